/* cuda_fp16.h: stands in for CUDA's: f16, rounded to nearest even, by the compiler's own type. */
#ifndef SPL_EMU_CUDA_FP16_H
#define SPL_EMU_CUDA_FP16_H
#include <math.h>
#include <stdint.h>
#include <string.h>

struct __half { uint16_t x; };
struct alignas(4) __half2 { __half x, y; };

static inline float __half2float(__half h) {
    const int exponent = h.x >> 10 & 31, fraction = h.x & 1023;
    float v = exponent == 31 ? (fraction ? (float)NAN : (float)INFINITY)
              : exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(1024 + fraction), exponent - 25);
    return h.x & 0x8000 ? -v : v;
}
static inline __half __float2half_rn(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (v != v) return {0x7fff};
    const float size = fabsf(v);
    if (size >= 65520) return {(uint16_t)(sign | 0x7c00)};
    if (size < 0x1p-14f) return {(uint16_t)(sign | (uint16_t)rintf(size * 0x1p24f))};
    u = (u & 0x7fffffffu) + 0xfff + (u >> 13 & 1);
    return {(uint16_t)(sign | (uint16_t)((u >> 13) - (112u << 10)))};
}
static inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
#endif
