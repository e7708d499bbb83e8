/* twins.h: what each PTX instruction of kernels/cuda/mma.h does, for the emulator. Fragment layouts are those of the
 * PTX ISA ("Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix"). */
#ifndef SPL_EMU_TWINS_H
#define SPL_EMU_TWINS_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace emu {
float element(uint32_t pair, int high, __nv_bfloat16);
float element(uint32_t pair, int high, __half);

/* Lane 4g + t holds of a: {row g, columns 2t, 2t+1}, {row g+8, same}, {row g, columns 2t+8, 2t+9}, {row g+8, same}; of
 * b: {rows 2t, 2t+1, column g}, {rows 2t+8, 2t+9}; of d: {row g, columns 2t, 2t+1}, {row g+8, same}. */
template <class T>
__attribute__((noinline, no_sanitize("thread"))) void mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                                                          const char *file, int line) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned char *all = exchange(~0u, mine, sizeof mine, "mma.sync", file, line);
    auto part = [&](int of, int i) {
        uint32_t v;
        memcpy(&v, all + of * SLOT + 4 * i, 4);
        return v;
    };
    const int g = lane->lane / 4, t = lane->lane % 4;
    for (int i = 0; i < 4; i++) {
        const int low = i / 2, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++)
            d[i] += element(part(g * 4 + k % 8 / 2, low + k / 8 * 2), k % 2, T()) *
                    element(part(column * 4 + k % 8 / 2, 4 + k / 8), k % 2, T());
    }
}
void ldmatrix(uint32_t r[4], const void *row, bool trans, const char *file, int line);
void copy_wait(int groups);
}

static inline void splk_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16, EMU_SITE) {
    emu::mma<__nv_bfloat16>(d, a, b, file, line);
}
static inline void splk_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __half, EMU_SITE) {
    emu::mma<__half>(d, a, b, file, line);
}
static inline void splk_ldmatrix(uint32_t r[4], const void *row, EMU_SITE) { emu::ldmatrix(r, row, false, file, line); }
static inline void splk_ldmatrix_trans(uint32_t r[4], const void *row, EMU_SITE) {
    emu::ldmatrix(r, row, true, file, line);
}
void splk_copy16(void *shared, const void *global, int have, EMU_SITE);
void splk_copy_commit();
template <int N> static inline void splk_copy_wait() { emu::copy_wait(N); }

#endif
