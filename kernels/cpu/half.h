/* half.h: bf16 and f16 as bits. Widening is exact; narrowing rounds once, to nearest even, also from double. */
#ifndef SPLK_HALF_H
#define SPLK_HALF_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float splk_float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t splk_bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float splk_bf16_to_f32(uint16_t h) { return splk_float_of_bits((uint32_t)h << 16); }

static inline float splk_f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    /* As a float this is the value times 2^-112, denormals too; infinities and NaN need the top exponent. */
    float f = splk_float_of_bits(magnitude) * 0x1p112f;
    if ((h & 0x7c00) == 0x7c00) f = splk_float_of_bits(magnitude | 0x7f800000u);
    return splk_float_of_bits(splk_bits_of_float(f) | (uint32_t)(h & 0x8000) << 16);
}

/* A double as a 16-bit float of `mantissa` stored bits and 15 - mantissa exponent bits. Normal numbers are rounded as
 * integers (a carry moves into the exponent as it should); below the smallest normal number the unit is fixed, so
 * that rint rounds, and a carry again gives the right number. */
static inline uint16_t splk_half_of_double(double x, int mantissa) {
    int bias = (1 << (14 - mantissa)) - 1, drop = 52 - mantissa;
    uint16_t infinity = (uint16_t)(((1 << (15 - mantissa)) - 1) << mantissa);
    uint64_t u;
    memcpy(&u, &x, 8);
    uint16_t sign = (uint16_t)(u >> 48 & 0x8000);
    u &= ~(UINT64_C(1) << 63);
    if (x != x) return (uint16_t)(sign | infinity | 1 << (mantissa - 1));
    if (fabs(x) < ldexp(1, 1 - bias)) return (uint16_t)(sign | (uint16_t)rint(ldexp(fabs(x), bias - 1 + mantissa)));
    u += (UINT64_C(1) << (drop - 1)) - 1 + (u >> drop & 1);
    uint64_t h = (u >> drop) - ((uint64_t)(1023 - bias) << mantissa);
    return (uint16_t)(sign | (h > infinity ? infinity : h));
}

static inline uint16_t splk_bf16_of_double(double x) { return splk_half_of_double(x, 7); }
static inline uint16_t splk_f16_of_double(double x) { return splk_half_of_double(x, 10); }

/* The same as through double, in integer arithmetic that vectorises. */
static inline uint16_t splk_bf16_of_f32(float x) {
    uint32_t u = splk_bits_of_float(x), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? (u >> 16) | 0x40 : rounded);
}

static inline uint16_t splk_f16_of_f32(float x) {
    uint32_t u = splk_bits_of_float(x), m = u & 0x7fffffff;
    uint32_t normal = (m - (112u << 23) + 0xfff + (m >> 13 & 1)) >> 13; /* the exponent's bias is 15, not 127 */
    /* Below 2^-14 the unit is 2^-24, as it is in [0.5, 1): the addition rounds. */
    uint32_t tiny = splk_bits_of_float(splk_float_of_bits(m) + 0.5f) - 0x3f000000u;
    uint32_t h = m < 0x38800000u ? tiny : normal;
    h = m >= 0x47800000u ? 0x7c00 : h; /* from 2^16; what rounds up to that has carried into infinity */
    h = m > 0x7f800000u ? 0x7e00 : h;
    return (uint16_t)(u >> 16 & 0x8000) | (uint16_t)h;
}

#endif
