/* cuda_bf16.h: stands in for CUDA's: bf16, rounded to nearest even. */
#ifndef SPL_EMU_CUDA_BF16_H
#define SPL_EMU_CUDA_BF16_H
#include <stdint.h>
#include <string.h>

struct __nv_bfloat16 { uint16_t x; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };

static inline float __bfloat162float(__nv_bfloat16 h) {
    uint32_t u = (uint32_t)h.x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {(uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
#endif
