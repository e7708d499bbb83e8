/* ref.h: what the files of the reference share: one element read or written as a double, Philox, and little else.
 * Everything here is plain fp64 loops in the order of the formulas; rows may run in parallel. */
#ifndef SPLK_REF_H
#define SPLK_REF_H
#include "backend.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(hidden)

/* ref_element.c: element i of an array. Writing to an integer type truncates and saturates; NaN becomes 0. */
double splk_ref_get(const void *p, spl_dtype t, int64_t i);
void splk_ref_put(void *p, spl_dtype t, int64_t i, double v);

/* The dtype of a tensor that has a field of its own for bf16 and f16 (see backend.h). */
static inline spl_dtype splk_ref_mixed(spl_dtype dtype, spl_dtype own) {
    return dtype == SPL_BF16 || dtype == SPL_F16 ? own : dtype;
}

/* ref_philox.c */
void splk_ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
double splk_ref_uniform(spl_rng_key key, int64_t g); /* of the element with global flat index g */
double splk_ref_normal(spl_rng_key key, int64_t g);
/* The global flat index of the local element with row-major number `local`. */
int64_t splk_ref_global(const spl_index_map *m, int64_t local);

/* ref_move.c */
spl_status splk_ref_box(void *ctx, spl_queue *q, const spl_box_args *a);
spl_status splk_ref_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                         int64_t n);
spl_status splk_ref_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                        spl_dtype t);
spl_status splk_ref_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value);
spl_status splk_ref_random(void *ctx, spl_queue *q, const spl_random_args *a);
spl_status splk_ref_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *host_out);

/* ref_ops.c */
double splk_ref_activation(spl_activation act, double x);
spl_status splk_ref_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a);
spl_status splk_ref_norm(void *ctx, spl_queue *q, const spl_norm_args *a);
spl_status splk_ref_act(void *ctx, spl_queue *q, const spl_act_args *a);
spl_status splk_ref_residual(void *ctx, spl_queue *q, const spl_residual_args *a);
spl_status splk_ref_rope(void *ctx, spl_queue *q, const spl_rope_args *a);
spl_status splk_ref_embed(void *ctx, spl_queue *q, const spl_embed_args *a);
spl_status splk_ref_nll(void *ctx, spl_queue *q, const spl_nll_args *a);

/* ref_pieces.c */
spl_status splk_ref_pieces(void *ctx, spl_queue *q, const spl_attn_args *a);
spl_status splk_ref_pool(void *ctx, spl_queue *q, const spl_pool_args *a);

/* ref_chunks.c: one query and head of hierarchical attention; 0 when memory is short */
typedef struct splk_ref_chunk_query {
    const double *q, *k, *v;           /* q [head_dim]; row t of k and v at t * stride */
    int64_t stride, seq, head_dim, row; /* of the query */
    int64_t chunk, summaries;
    int causal;
    double scale;
} splk_ref_chunk_query;
int splk_ref_chunk_attention(const splk_ref_chunk_query *a, double *out, double *lse);

/* ref_attention.c */
int splk_ref_shows(const spl_ref_slice *slices, int n, int64_t q, int64_t k);

/* ref_attention.c, ref_block.c: the whole references */
spl_status splk_ref_attention(const spl_ref_attention_args *a);
spl_status splk_ref_block(const spl_ref_block_args *a);

#pragma GCC visibility pop

#endif
