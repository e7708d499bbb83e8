/* gpu.h: what all CUDA kernels share: launching, shared memory, element types, reductions over a block.
 *
 * The same text is compiled by nvcc and by a plain C++17 compiler against the emulator of tests/emu, whose header takes
 * the place of cuda_runtime.h and brings its own SPLK_LAUNCH and SPLK_SHARED. Three habits make that possible: kernels
 * are launched by macro, shared memory is always the dynamic one, and PTX stands in mma.h alone. */
#ifndef SPLK_GPU_H
#define SPLK_GPU_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "cuda_kernels.h"

#ifndef SPLK_LAUNCH
#define SPLK_LAUNCH(kernel, grid, block, shared, stream, ...)                                                        \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define SPLK_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
#define SPLK_DEV static __device__ __forceinline__
#define SPLK_DEV_MEMBER __device__ __forceinline__
#define SPLK_KERNEL static __global__ void

enum { SPLK_WARP = 32, SPLK_BLOCK = 256, SPLK_MOST_BLOCKS = 1 << 16, SPLK_RUN = 4096 };

/* ---- element types: how each is stored, and the type that is computed in ---- */

typedef struct splk_bool { uint8_t x; } splk_bool;

template <class T> struct splk_of { typedef float wide; };
template <> struct splk_of<double> { typedef double wide; };
template <class T> using splk_wide = typename splk_of<T>::wide;
template <class A, class B> struct splk_same { enum { yes = 0 }; };
template <class A> struct splk_same<A, A> { enum { yes = 1 }; };

SPLK_DEV float splk_load(float x) { return x; }
SPLK_DEV double splk_load(double x) { return x; }
SPLK_DEV float splk_load(__nv_bfloat16 x) { return __bfloat162float(x); }
SPLK_DEV float splk_load(__half x) { return __half2float(x); }

/* To nearest even. */
template <class T> SPLK_DEV T splk_round(splk_wide<T> x) {
    if constexpr (splk_same<T, __nv_bfloat16>::yes) return __float2bfloat16_rn(x);
    else if constexpr (splk_same<T, __half>::yes) return __float2half_rn(x);
    else return x;
}

/* ---- reductions over a block: the same tree whatever the schedule ---- */

SPLK_DEV double splk_plus(double a, double b) { return a + b; }
SPLK_DEV double splk_greater(double a, double b) { return b > a ? b : a; } /* a NaN is never the greater */

/* The sum or maximum of one double a thread, on every thread; `room` is shared memory for 33 doubles. */
template <double (*combine)(double, double)> SPLK_DEV double splk_over_block(double x, double *room) {
    const int lane = threadIdx.x % SPLK_WARP, warp = threadIdx.x / SPLK_WARP, warps = blockDim.x / SPLK_WARP;
    for (int step = SPLK_WARP / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (lane == 0) room[warp] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = room[0];
        for (int w = 1; w < warps; w++) all = combine(all, room[w]);
        room[SPLK_WARP] = all;
    }
    __syncthreads();
    x = room[SPLK_WARP];
    __syncthreads(); /* the room may be used again */
    return x;
}
enum { SPLK_ROOM = 33 * sizeof(double) };

/* ---- small helpers ---- */

SPLK_DEV int64_t splk_first() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
SPLK_DEV int64_t splk_stride() { return (int64_t)gridDim.x * blockDim.x; }

static inline unsigned splk_blocks(int64_t work, int64_t each) { /* of a grid whose kernel loops over what is left */
    int64_t n = (work + each - 1) / each;
    return (unsigned)(n < 1 ? 1 : n > SPLK_MOST_BLOCKS ? (int64_t)SPLK_MOST_BLOCKS : n);
}

/* Philox 4x32-10 (Salmon et al., SC'11): the block with counter {lo(block), hi(block), 0, 0}. */
SPLK_DEV void splk_philox(spl_rng_key key, uint64_t block, uint32_t w[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0, k0 = key.word[0], k1 = key.word[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

/* Random words by global index; neighbours share a block, which is kept. */
struct splk_words {
    spl_rng_key key;
    uint64_t block;
    uint32_t w[4];
};

SPLK_DEV uint32_t splk_word(splk_words *s, uint64_t g) {
    if (g / 4 != s->block) {
        s->block = g / 4;
        splk_philox(s->key, s->block, s->w);
    }
    uint32_t i = (uint32_t)g % 4; /* a choice of registers: an index would put them into memory */
    return i == 0 ? s->w[0] : i == 1 ? s->w[1] : i == 2 ? s->w[2] : s->w[3];
}
SPLK_DEV splk_words splk_words_of(spl_rng_key key) {
    splk_words s;
    s.key = key;
    s.block = UINT64_MAX; /* none: indices end at 2^63 / 4 */
    s.w[0] = s.w[1] = s.w[2] = s.w[3] = 0;
    return s;
}

/* The global index at local place `at` of a list of segments; `segments` NULL: the same. */
SPLK_DEV int64_t splk_held(const spl_segment *segments, int n, int64_t at) {
    for (int i = 0; i < n; i++) {
        if (at < segments[i].length) return segments[i].start + at * segments[i].stride;
        at -= segments[i].length;
    }
    return at;
}

/* The flat global index at which local row `row` starts (coordinate 0 of the last dimension). */
SPLK_DEV int64_t splk_row_base(const splk_map *m, int64_t row) {
    int64_t flat = 0, scale = m->global[m->ndim - 1];
    for (int d = m->ndim - 2; d >= 0; d--) {
        flat += splk_held(m->segments + m->first[d], m->count[d], row % m->local[d]) * scale;
        row /= m->local[d];
        scale *= m->global[d];
    }
    return flat;
}

#endif
