/* convert.h: any element type as a double or an int64, and back, for kernels that take them all. */
#ifndef SPLK_CONVERT_H
#define SPLK_CONVERT_H
#include "gpu.h"

/* A type belongs to one of two families: doubles (the four float types) and int64 (the four integer types). */
SPLK_DEV double splk_value(double x) { return x; }
SPLK_DEV double splk_value(float x) { return x; }
SPLK_DEV double splk_value(__nv_bfloat16 x) { return splk_load(x); }
SPLK_DEV double splk_value(__half x) { return splk_load(x); }
SPLK_DEV int64_t splk_value(int64_t x) { return x; }
SPLK_DEV int64_t splk_value(int32_t x) { return x; }
SPLK_DEV int64_t splk_value(uint8_t x) { return x; }
SPLK_DEV int64_t splk_value(splk_bool x) { return x.x != 0; }

/* A double as a 16-bit float of `mantissa` stored bits, rounded once to nearest even: by way of a float it would be
 * rounded twice. Normal numbers are rounded as integers, the carry moving into the exponent; below the smallest normal
 * number the unit is fixed. */
SPLK_DEV uint16_t splk_half_bits(double x, int mantissa) {
    const int bias = (1 << (14 - mantissa)) - 1, drop = 52 - mantissa;
    const uint16_t infinity = (uint16_t)(((1 << (15 - mantissa)) - 1) << mantissa);
    uint64_t u = (uint64_t)__double_as_longlong(x);
    const uint16_t sign = (uint16_t)(u >> 48 & 0x8000);
    u &= ~((uint64_t)1 << 63);
    if (x != x) return (uint16_t)(sign | infinity | 1 << (mantissa - 1));
    if (fabs(x) < ldexp(1.0, 1 - bias)) return (uint16_t)(sign | (uint16_t)rint(ldexp(fabs(x), bias - 1 + mantissa)));
    u += ((uint64_t)1 << (drop - 1)) - 1 + (u >> drop & 1);
    const uint64_t h = (u >> drop) - ((uint64_t)(1023 - bias) << mantissa);
    return (uint16_t)(sign | (h > infinity ? infinity : h));
}

SPLK_DEV void splk_store(double *p, double v) { *p = v; }
SPLK_DEV void splk_store(float *p, double v) { *p = (float)v; }
SPLK_DEV void splk_store(__nv_bfloat16 *p, double v) { *(uint16_t *)(void *)p = splk_half_bits(v, 7); }
SPLK_DEV void splk_store(__half *p, double v) { *(uint16_t *)(void *)p = splk_half_bits(v, 10); }
SPLK_DEV void splk_store(double *p, int64_t v) { *p = (double)v; }
SPLK_DEV void splk_store(float *p, int64_t v) { *p = (float)v; }
SPLK_DEV void splk_store(__nv_bfloat16 *p, int64_t v) { splk_store(p, (double)v); }
SPLK_DEV void splk_store(__half *p, int64_t v) { splk_store(p, (double)v); }

SPLK_DEV int64_t splk_whole(double v) {
    if (v != v) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    return v < -9223372036854775808.0 ? INT64_MIN : (int64_t)v;
}
SPLK_DEV int64_t splk_clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

SPLK_DEV void splk_store(int64_t *p, int64_t v) { *p = v; }
SPLK_DEV void splk_store(int32_t *p, int64_t v) { *p = (int32_t)splk_clamp(v, INT32_MIN, INT32_MAX); }
SPLK_DEV void splk_store(uint8_t *p, int64_t v) { *p = (uint8_t)splk_clamp(v, 0, 255); }
SPLK_DEV void splk_store(splk_bool *p, int64_t v) { p->x = v != 0; }
SPLK_DEV void splk_store(int64_t *p, double v) { *p = splk_whole(v); }
SPLK_DEV void splk_store(int32_t *p, double v) { splk_store(p, splk_whole(v)); }
SPLK_DEV void splk_store(uint8_t *p, double v) { splk_store(p, splk_whole(v)); }
SPLK_DEV void splk_store(splk_bool *p, double v) { p->x = v != 0; }

#endif
