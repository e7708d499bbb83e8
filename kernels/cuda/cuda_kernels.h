/* cuda_kernels.h: what the host code of the CUDA backend and its kernels say to each other: one launcher an operation.
 * Arguments are backend.h's own, with every list they point to already in device memory (see splk_cuda_args). Launchers
 * check nothing: that is done before. They return what cudaGetLastError says. */
#ifndef SPLK_CUDA_KERNELS_H
#define SPLK_CUDA_KERNELS_H
#include <cuda_runtime_api.h>
#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

/* spl_index_map with its segments in device memory, one list behind the other. */
typedef struct splk_map {
    int ndim;
    int64_t global[SPL_MAX_DIMS], local[SPL_MAX_DIMS];
    int first[SPL_MAX_DIMS], count[SPL_MAX_DIMS]; /* of each dimension in `segments` */
    const spl_segment *segments;
} splk_map;

/* A box whose first `parallel` dimensions reach every destination once; the rest are walked in order by one thread. */
typedef struct splk_box {
    spl_dtype dtype;
    int ndim, parallel, add, unit; /* unit: bytes that a copy moves at a time: 1, 2, 4, 8 or 16 */
    int64_t shape[SPL_MAX_DIMS], dst_strides[SPL_MAX_DIMS], src_strides[SPL_MAX_DIMS]; /* in elements, or units */
    int64_t count, inner; /* of the parallel dimensions, and of the others */
    void *dst;
    const void *src;
} splk_box;

/* spl_attn_piece with what a kernel would have to divide for. */
typedef struct splk_piece {
    int q0, nq, k0, nk, has_upper, has_lower;
    int64_t q_start, q_stride, k_start, k_stride, upper, lower;
    double per_k_stride;
} splk_piece;

/* The lists are in device memory: `pieces` stands for those of `a`. */
typedef struct splk_attention {
    spl_attn_args a;
    const splk_piece *pieces;
    uint32_t keep_from; /* a draw is kept when (word >> 8) >= this */
    float keep_scale;
} splk_attention;

cudaError_t splk_launch_box(cudaStream_t s, const splk_box *b);
cudaError_t splk_launch_cast(cudaStream_t s, void *dst, spl_dtype to, const void *src, spl_dtype from, int64_t n);
cudaError_t splk_launch_fill(cudaStream_t s, void *dst, spl_dtype t, int64_t n, double value);
/* srcs: device memory */
cudaError_t splk_launch_sum(cudaStream_t s, void *dst, const void *const *srcs, int nsrcs, int64_t n, spl_dtype t);
cudaError_t splk_launch_random(cudaStream_t s, const spl_random_args *a, const splk_map *m, int64_t rows);
/* parts[SPLK_STATS_PARTS], device memory; the caller adds them up */
enum { SPLK_STATS_PARTS = 256 };
cudaError_t splk_launch_stats(cudaStream_t s, const void *x, spl_dtype t, int64_t n, spl_stats *parts);
cudaError_t splk_launch_norm(cudaStream_t s, const spl_norm_args *a);
cudaError_t splk_launch_act(cudaStream_t s, const spl_act_args *a);
cudaError_t splk_launch_residual(cudaStream_t s, const spl_residual_args *a, const splk_map *m);
cudaError_t splk_launch_rope(cudaStream_t s, const spl_rope_args *a);
cudaError_t splk_launch_embed(cudaStream_t s, const spl_embed_args *a);
cudaError_t splk_launch_pool(cudaStream_t s, const spl_pool_args *a);
cudaError_t splk_launch_nll(cudaStream_t s, const spl_nll_args *a);
/* c [m, n] with leading dimension ldc becomes act(from + bias), `from` [m, n] of f32 (f64 for f64) with its own. */
cudaError_t splk_launch_epilogue(cudaStream_t s, const spl_gemm_args *a, const void *from, int64_t ld_from);
/* The whole product in a plain kernel: what cuBLASLt has no algorithm for. */
cudaError_t splk_launch_gemm(cudaStream_t s, const spl_gemm_args *a);
/* Any type and head_dim up to SPLK_MOST_HEAD_DIM, on ordinary arithmetic units. */
enum { SPLK_MOST_HEAD_DIM = 256 };
cudaError_t splk_launch_attention(cudaStream_t s, const splk_attention *a);
/* 1 when the tensor cores can do it: bf16 or f16, head_dim a multiple of 8 up to 128, rows on 16-byte boundaries, no
 * bias of keys. */
int splk_attention_fits_mma(const spl_attn_args *a);
cudaError_t splk_launch_attention_mma(cudaStream_t s, const splk_attention *a);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
