/* cuda_runtime.h: stands in for CUDA's: the language of kernels for a plain C++17 compiler. A kernel is a function that
 * runs once for each thread of a block, each on a fiber of its own (block.cpp). */
#ifndef SPL_EMU_CUDA_RUNTIME_H
#define SPL_EMU_CUDA_RUNTIME_H
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace emu {
struct Lane { uint3 index; int lane, warp; }; /* of the thread that runs */
struct Block { uint3 index; dim3 size, grid; unsigned char *shared; size_t shared_bytes; };
extern Lane *lane;
extern Block block;
enum { SLOT = 64 }; /* bytes that a lane can give the others */
/* All lanes of `mask` meet; returns what each gave, [32][SLOT]. */
const unsigned char *exchange(unsigned mask, const void *mine, size_t n, const char *what, const char *file, int line);
void barrier(const char *file, int line);
void launch(cudaStream_t s, const char *name, dim3 grid, dim3 block, size_t shared, std::function<void()> body);

template <class... P, class... A>
void launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 size, size_t shared, cudaStream_t s,
                   A &&...a) {
    static_assert(sizeof...(P) == sizeof...(A), "arguments of the kernel");
    std::tuple<std::decay_t<P>...> arguments{static_cast<std::decay_t<P>>(a)...};
    launch(s, name, grid, size, shared, [=] { std::apply(kernel, arguments); });
}

template <class T>
__attribute__((noinline, no_sanitize("thread"))) T shuffle(unsigned mask, T v, int from, const char *what,
                                                           const char *file, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    const unsigned char *all = exchange(mask, &v, sizeof v, what, file, line);
    const bool takes_part = mask >> (from & 31) & 1; /* else what comes is undefined */
    for (size_t i = 0; i < sizeof v; i++)
        ((unsigned char *)&v)[i] =
            takes_part ? ((volatile const unsigned char *)all)[(from & 31) * SLOT + i] : (unsigned char)0xff;
    return v;
}
}

#define SPLK_LAUNCH(kernel, grid, block, shared, stream, ...)                                                        \
    emu::launch_kernel(#kernel, kernel, (grid), (block), (shared), (stream), __VA_ARGS__)
#define SPLK_SHARED(name) unsigned char *const name = emu::block.shared
#define threadIdx (emu::lane->index)
#define blockIdx (emu::block.index)
#define blockDim (emu::block.size)
#define gridDim (emu::block.grid)

#define EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
static inline void __syncthreads(EMU_SITE) { emu::barrier(file, line); }
void __syncwarp(unsigned mask = 0xffffffffu, EMU_SITE);
unsigned __ballot_sync(unsigned mask, int p, EMU_SITE);
static inline int __any_sync(unsigned mask, int p, EMU_SITE) { return __ballot_sync(mask, p, file, line) != 0; }
template <class T> T __shfl_sync(unsigned mask, T v, int from, EMU_SITE) {
    return emu::shuffle(mask, v, from, "__shfl_sync", file, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int x, EMU_SITE) {
    return emu::shuffle(mask, v, emu::lane->lane ^ x, "__shfl_xor_sync", file, line);
}
static inline long long __double_as_longlong(double x) {
    long long u;
    memcpy(&u, &x, 8);
    return u;
}
#endif
