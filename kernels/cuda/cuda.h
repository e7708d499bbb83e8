/* cuda.h: what the host files of the CUDA backend share: the context, memory, queues, lists for kernels, errors.
 *
 * Everything is ordered by streams: a call puts work into its queue's stream and returns. The host waits only where
 * a result must be in host memory (copies out, statistics, labels), and then for that stream alone. */
#ifndef SPLK_CUDA_H
#define SPLK_CUDA_H
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include "backend.h"
#include "comm.h"
#include "cuda_kernels.h"

#pragma GCC visibility push(hidden)

enum { SPLK_NEEDS_MAJOR = 8 }; /* the least compute capability: mma of bf16 and cp.async */

typedef struct splk_block { /* of device memory */
    struct splk_block *next;
    void *p;
    size_t bytes;
} splk_block;

typedef struct splk_plan { /* of a matrix product: descriptors and the algorithm found for it */
    struct splk_plan *next;
    int64_t key[16];
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    int works; /* 0: cuBLASLt has no algorithm for it */
} splk_plan;

typedef struct splk_cuda {
    int device, cached; /* cached: memory given back is kept for the next request */
    char description[256];
    size_t in_use, held, peak;       /* bytes of device memory: handed out, kept, most handed out */
    splk_block *blocks;              /* kept */
    splk_block *host_blocks;         /* pinned memory handed out by host_alloc */
    int64_t workspace_now, workspace_peak;
    cublasLtHandle_t blas;
    splk_plan *plans;
    int nplans;
    void *workspace; /* of cuBLASLt; one, since products run on one queue */
    size_t workspace_bytes;
    spl_stats *stats; /* pinned */
    spl_queue *queues;
} splk_cuda;

/* Lists of arguments travel to the device through a ring of pinned memory with a twin on the device; a half is used
 * again when the stream has passed what read it. Copies of pageable host memory use the same two halves of `bounce`. */
enum { SPLK_RING_HALF = 128 << 10, SPLK_BOUNCE_HALF = 1 << 20 };

struct spl_queue {
    cudaStream_t stream;
    spl_queue *next;
    char *ring_host, *ring_device, *bounce;
    size_t ring_used;
    int ring_half, bounce_half;
    cudaEvent_t ring_passed[2], bounce_passed[2];
    int ring_waits[2], bounce_waits[2];
};

struct spl_event {
    cudaEvent_t event;
    int recorded;
};

/* cuda_memory.c */
spl_status splk_cuda_error(cudaError_t e, const char *what);
#define SPLK_TRY(call)                                                                                               \
    do {                                                                                                             \
        cudaError_t cuda_ = (call);                                                                                  \
        if (cuda_ != cudaSuccess) return splk_cuda_error(cuda_, #call);                                              \
    } while (0)
spl_status splk_cuda_alloc(void *ctx, size_t bytes, void **ptr);
void splk_cuda_free(void *ctx, void *ptr, size_t bytes);
void splk_cuda_drop_kept(splk_cuda *c);
spl_status splk_cuda_host_alloc(void *ctx, size_t bytes, void **ptr);
void splk_cuda_host_free(void *ctx, void *ptr);
int64_t splk_cuda_workspace_peak(void *ctx, int reset);
/* Scratch of one call, counted as workspace. It may be given back at once: whoever takes it next works on the same
 * queue, behind what this call has queued. */
spl_status splk_cuda_scratch_take(splk_cuda *c, size_t bytes, void **out);
void splk_cuda_scratch_give(splk_cuda *c, void *p, size_t bytes);

/* cuda_queue.c */
spl_status splk_cuda_queue_open(void *ctx, spl_queue **q);
void splk_cuda_queue_close(void *ctx, spl_queue *q);
spl_status splk_cuda_event_open(void *ctx, spl_event **e);
void splk_cuda_event_close(void *ctx, spl_event *e);
spl_status splk_cuda_event_record(void *ctx, spl_queue *q, spl_event *e);
spl_status splk_cuda_event_wait(void *ctx, spl_queue *q, spl_event *e);
spl_status splk_cuda_event_test(void *ctx, spl_event *e, int *done);
spl_status splk_cuda_copy_in(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes);
spl_status splk_cuda_copy_out(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes);
/* Copies `bytes` of a list to the device; *device is good for kernels launched on q before the next call of this. The
 * host's list may change at once. */
spl_status splk_cuda_list(splk_cuda *c, spl_queue *q, const void *host, size_t bytes, const void **device);

/* cuda_move.c */
spl_status splk_cuda_box(void *ctx, spl_queue *q, const spl_box_args *a);
spl_status splk_cuda_zero(void *ctx, spl_queue *q, void *dst, size_t bytes);
spl_status splk_cuda_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                          int64_t n);
spl_status splk_cuda_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                         spl_dtype t);
spl_status splk_cuda_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value);
spl_status splk_cuda_random(void *ctx, spl_queue *q, const spl_random_args *a);
spl_status splk_cuda_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *out);

/* cuda_ops.c */
spl_status splk_cuda_norm(void *ctx, spl_queue *q, const spl_norm_args *a);
spl_status splk_cuda_act(void *ctx, spl_queue *q, const spl_act_args *a);
spl_status splk_cuda_residual(void *ctx, spl_queue *q, const spl_residual_args *a);
spl_status splk_cuda_rope(void *ctx, spl_queue *q, const spl_rope_args *a);
spl_status splk_cuda_embed(void *ctx, spl_queue *q, const spl_embed_args *a);
spl_status splk_cuda_pool(void *ctx, spl_queue *q, const spl_pool_args *a);
spl_status splk_cuda_nll(void *ctx, spl_queue *q, const spl_nll_args *a);
/* The map with its segments on the device; checked; rows = product of all local dimensions but the last. */
spl_status splk_cuda_map(splk_cuda *c, spl_queue *q, const char *op, const spl_index_map *m, splk_map *out,
                         int64_t *rows);
spl_status splk_cuda_need_float(const char *op, spl_dtype t);
/* rows x cols as a number of elements, refused where it is negative or does not fit. */
spl_status splk_cuda_area(const char *op, int64_t rows, int64_t cols, int64_t *out);
/* An array that may be of the stored type or already of f32. */
spl_status splk_cuda_mixed(const char *op, const char *name, spl_dtype stored, spl_dtype t);
static inline int splk_cuda_is_half(spl_dtype t) { return t == SPL_BF16 || t == SPL_F16; }
static inline int splk_cuda_mul(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

/* cuda_gemm.c */
spl_status splk_cuda_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a);
void splk_cuda_forget_plans(splk_cuda *c);

/* cuda_attention.c */
spl_status splk_cuda_attention(void *ctx, spl_queue *q, const spl_attn_args *a);

#pragma GCC visibility pop
#endif
