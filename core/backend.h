/* backend.h: the kernel vtable. A backend owns memory, queues and kernels; core never dereferences backend memory.
 *
 * Asynchronous by contract: every call that touches backend memory takes a queue and may return before the work is
 * done; work on one queue runs in order. CPU queues complete at once. All tensors handed to kernels are described by
 * a pointer, a dtype and strides in ELEMENTS. What a call's arguments list in host memory (segments, pieces, sources)
 * is copied by the call: it may go when the call returns. Memory of the backend may go too, if nothing but work queued
 * later on the same queue takes it up again. Kernels own no memory between calls: scratch is theirs to take and free
 * within the call (through ctx), and is counted as workspace.
 *
 * Kernels include only backend.h, comm.h, status.h and dtype.h. They know nothing of meshes or layouts: where a kernel
 * needs global coordinates (dropout, RoPE, masks) it is given segments. */
#ifndef SPL_BACKEND_H
#define SPL_BACKEND_H
#include "dtype.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SPL_MAX_DIMS = 6, SPL_BACKEND_ABI = 4 };

/* Global indices start, start + stride, ..., `length` of them, held in this order by the local positions. */
typedef struct spl_segment {
    int64_t start, length, stride;
} spl_segment;

/* The global coordinates of a local dense (row-major) array: per dimension the global size and the segments held. */
typedef struct spl_index_map {
    int ndim;
    int64_t global[SPL_MAX_DIMS];
    int64_t local[SPL_MAX_DIMS]; /* sum of the lengths of the segments of that dimension */
    const spl_segment *segments[SPL_MAX_DIMS];
    int nsegments[SPL_MAX_DIMS];
} spl_index_map;

/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 * Element with global flat index g takes word g % 4 of the block with counter {lo(g/4), hi(g/4), 0, 0}; the 64-bit
 * Philox key is given here (see rng.h for how it is derived from seed, op instance and step).
 *   uniform: (word >> 8) * 2^-24, in [0, 1)      keep (dropout): uniform >= p, kept values scaled by 1 / (1 - p)
 *   normal:  Box-Muller in double on words (0,1) and (2,3): u1 = (w_even + 1) * 2^-32, u2 = w_odd * 2^-32,
 *            r = sqrt(-2 ln u1); even lane r cos(2 pi u2), odd lane r sin(2 pi u2). */
typedef struct spl_rng_key {
    uint32_t word[2];
} spl_rng_key;

typedef struct spl_queue spl_queue; /* opaque, made by the backend */
typedef struct spl_event spl_event; /* opaque, made by the backend */

/* Copy (or add) a box: for every index vector i < shape: dst[sum i*dst_strides] (=|+=) src[sum i*src_strides]. */
typedef struct spl_box_args {
    spl_dtype dtype;
    int ndim;
    int64_t shape[SPL_MAX_DIMS], dst_strides[SPL_MAX_DIMS], src_strides[SPL_MAX_DIMS];
    void *dst;
    const void *src;
    int add; /* 0 copy, 1 dst += src (float and integer dtypes) */
} spl_box_args;

/* bf16 and f16 are how numbers are stored: a kernel of such a dtype computes in f32 (sums too) and rounds its result
 * once, to nearest even. Where a tensor of such a call may also be f32, its own dtype field says so; these fields are
 * read only where `dtype` is bf16 or f16, and then must be `dtype` or SPL_F32. */

typedef enum spl_activation { SPL_ACT_NONE, SPL_ACT_GELU_TANH, SPL_ACT_GELU_ERF, SPL_ACT_SILU } spl_activation;

/* C[m,n] = alpha * op(A)[m,k] . op(B)[k,n] + beta * C, row-major with leading dimensions; then, where given,
 * + bias[n] and the activation. beta == 0 never reads C; k == 0 gives zeros (plus bias). */
typedef struct spl_gemm_args {
    spl_dtype dtype;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int trans_a, trans_b; /* 1: the operand is stored transposed ([k,m] / [n,k]) */
    double alpha, beta;
    const void *bias; /* [n] or NULL */
    spl_activation act;
} spl_gemm_args;

typedef enum spl_norm_kind { SPL_NORM_LAYER, SPL_NORM_RMS } spl_norm_kind;

/* y = (x - mean) * rstd * gamma + beta over each row of `cols`; LayerNorm with biased variance (Ba et al. 2016);
 * RMSNorm (Zhang & Sennrich 2019) has no mean: rstd = 1 / sqrt(mean(x^2) + eps). Statistics are f32 (f64 when dtype is
 * f64). y may alias x where both have one dtype. */
typedef struct spl_norm_args {
    spl_dtype dtype;
    spl_dtype x_dtype; /* bf16 and f16: of x */
    spl_norm_kind kind;
    int64_t rows, cols;
    const void *x;           /* [rows, cols] */
    const void *gamma, *beta; /* [cols]; beta may be NULL; gamma may be NULL (ones) */
    double eps;
    void *y;                 /* [rows, cols] */
    void *mean, *rstd;       /* [rows], f32 (f64 when dtype is f64), each may be NULL */
} spl_norm_args;

/* y = act(x + bias) [* up]: rows of `cols`. With `up` this is SwiGLU's act(gate) * up (Shazeer 2020). y may alias x. */
typedef struct spl_act_args {
    spl_dtype dtype;
    spl_activation act;
    int64_t rows, cols;
    const void *x;    /* [rows, cols] */
    const void *bias; /* [cols] or NULL */
    const void *up;   /* [rows, cols] or NULL */
    void *y;          /* [rows, cols] */
} spl_act_args;

/* y = residual + dropout(x + bias); map describes [batch, seq, hidden] (or any shape) of x. y may alias x or residual
 * of its dtype. */
typedef struct spl_residual_args {
    spl_dtype dtype;                   /* of x and bias */
    spl_dtype residual_dtype, y_dtype; /* bf16 and f16: of residual and y */
    int64_t rows, cols;   /* rows * cols == number of local elements; cols == map->local[ndim-1] */
    const void *x;        /* [rows, cols] */
    const void *bias;     /* [cols] or NULL */
    const void *residual; /* [rows, cols] or NULL (zeros) */
    double p;             /* dropout probability in [0, 1) */
    spl_rng_key key;
    const spl_index_map *map; /* global coordinates; may be NULL when p == 0 */
    void *mask;           /* [rows, cols] bool (1 = kept), or NULL; written also when p == 0 (all 1) */
    void *y;              /* [rows, cols] */
} spl_residual_args;

/* Rotary embedding (Su et al. 2021): for pair j < head_dim/2 and position t: angle = t * theta^(-2j/head_dim).
 * half == 1 pairs (j, j + head_dim/2) (Hugging Face Llama); half == 0 pairs (2j, 2j+1). In place is allowed. */
typedef struct spl_rope_args {
    spl_dtype dtype;
    int64_t batch, seq, heads, head_dim;
    const void *x;
    void *y;
    int64_t x_strides[4], y_strides[4]; /* of [batch, seq, heads, head_dim] */
    double theta;
    int half;
    const spl_segment *positions; /* positions of the local sequence, total length == seq */
    int npositions;
} spl_rope_args;

/* out[row] = table[id - first] where first <= id < first + vocab_local, else zeros. ids outside [0, vocab) are an error
 * the caller has already refused. */
typedef struct spl_embed_args {
    spl_dtype dtype; /* of table and out */
    int64_t rows, hidden, first, vocab_local;
    const int64_t *ids; /* [rows], backend memory */
    const void *table;  /* [vocab_local, hidden] */
    void *out;          /* [rows, hidden] */
} spl_embed_args;

/* Token log-likelihood: nll[row] = logsumexp(logits[row]) - logits[row, label]; a negative label is ignored (nll 0). */
typedef struct spl_nll_args {
    spl_dtype dtype;
    int64_t rows, vocab;
    const void *logits;    /* [rows, vocab] */
    const int64_t *labels; /* [rows] */
    void *nll;             /* [rows] f64 */
} spl_nll_args;

/* One rectangle of attention work: local query rows [q0, q0+nq) against local keys [k0, k0+nk). Row i sits at global
 * position q_start + i*q_stride, key j at k_start + j*k_stride (strides > 0). A pair is visible when
 *   (no upper bound or  k_pos <= q_pos + upper)  and  (no lower bound or  k_pos >= q_pos + lower).
 * Causal is upper = 0; pieces of one call never make a pair visible twice. */
typedef struct spl_attn_piece {
    int64_t q0, nq, k0, nk;
    int64_t q_start, q_stride, k_start, k_stride;
    int has_upper, has_lower;
    int64_t upper, lower;
} spl_attn_piece;

/* Flash attention forward (Dao 2023, online softmax of Milakov & Gimelshein 2018) of the pieces of one plan step.
 * q [batch, sq, heads, head_dim], k and v [batch, sk, kv_heads, head_dim] by strides; query head h reads local KV head
 * kv_of_head[h] (grouped queries). out [batch, sq, heads, head_dim] by strides, lse [batch, heads, sq] dense, natural
 * log. A row without a visible key gets out 0 and lse -inf. key_bias, where given, is added to the scaled scores of
 * each local key (finite). merge == 1: combine with what out and lse hold already (m =
 * max(lse_a, lse_b); a part with lse -inf contributes exactly nothing). f32 data accumulate in f32, restarting a second
 * accumulator at least every 1,024 keys; f64 in f64.
 * Dropout acts on the probabilities, after lse: element (b, h, q, k), global indices, has the flat index
 * ((b * heads_global + h) * seq_q_global + q) * seq_k_global + k. */
typedef struct spl_attn_args {
    spl_dtype dtype;     /* of q, k and v */
    spl_dtype out_dtype; /* bf16 and f16: of out; f32 where more is to be merged, so that it is rounded once */
    int64_t batch, heads, kv_heads, sq, sk, head_dim;
    const void *q, *k, *v;
    void *out;
    void *lse; /* f32 (f64 when dtype is f64) */
    int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4]; /* batch, seq, head, head_dim (last must be 1) */
    const int32_t *kv_of_head; /* [heads], host memory */
    const void *key_bias;      /* [sk] of the dtype of lse, or NULL */
    double scale;
    const spl_attn_piece *pieces;
    int npieces;
    int merge;
    double p;                /* dropout probability in [0, 1) */
    spl_rng_key key;
    const spl_segment *batch_segments, *head_segments; /* global batch and query-head indices held here (for dropout) */
    int nbatch_segments, nhead_segments;
    int64_t heads_global, seq_q_global, seq_k_global;
    /* May be NULL. A kernel that computes on the calling thread calls it there now and then, so that what travels
     * meanwhile is moved on; it never blocks. */
    void (*progress)(void *progress_ctx);
    void *progress_ctx;
    int64_t *tiles; /* may be NULL. A tiled kernel adds how many tiles it visited. */
} spl_attn_args;

/* Means of consecutive rows: y[b, g, h, :] = mean over the rows t of group g of x[b, t, h, :]. Group g is rows [start,
 * start + length) of x (stride is not read), length > 0. Sums in f32 at least, pairwise or wider. */
typedef struct spl_pool_args {
    spl_dtype dtype;
    int64_t batch, seq, heads, head_dim;
    const void *x;
    void *y;
    int64_t x_strides[4], y_strides[4]; /* of [batch, seq, heads, head_dim] and [batch, ngroups, heads, head_dim] */
    const spl_segment *groups;          /* host memory */
    int64_t ngroups;
} spl_pool_args;

/* In place, f32: each row becomes exp(scale x - m) / sum over its first columns, and 0 behind them: row i sees
 * seen + i * more of them, at most cols. A row that sees none becomes 0. */
typedef struct spl_softmax_args {
    int64_t rows, cols;
    float *x; /* [rows, cols] */
    double scale;
    int64_t seen, more;
} spl_softmax_args;

typedef enum spl_random_kind {
    SPL_RANDOM_UNIFORM,
    SPL_RANDOM_NORMAL,
    SPL_RANDOM_IOTA /* the global flat index */
} spl_random_kind;

/* Fill by global index, so that values do not depend on how the tensor is split. value = a + b * draw. */
typedef struct spl_random_args {
    spl_dtype dtype;
    spl_random_kind kind;
    spl_rng_key key;
    double a, b;
    const spl_index_map *map;
    void *out; /* dense, map->local */
} spl_random_args;

/* sum and sum_squares take every element (a NaN makes them NaN); abs_max is over the elements that are not NaN, 0 of
 * none. */
typedef struct spl_stats {
    double sum, sum_squares, abs_max;
    int64_t nan_count, inf_count;
} spl_stats;

typedef struct spl_backend_ops {
    int abi; /* SPL_BACKEND_ABI */
    const char *name;
    int is_reference; /* 1 for kernels/ref: a check refuses to be judged by itself */
    int has_memory;   /* 0 for null: pointers are tokens, nothing may be read */

    spl_status (*open)(int rank, int nthreads, void **ctx); /* [local] */
    void (*close)(void *ctx);
    const char *(*describe)(void *ctx); /* device and kernel choices in one line */

    /* memory: 64-byte aligned; bytes > 0 */
    spl_status (*alloc)(void *ctx, size_t bytes, void **ptr);
    void (*free)(void *ctx, void *ptr, size_t bytes);

    /* queues and events */
    spl_status (*queue_open)(void *ctx, spl_queue **q);
    void (*queue_close)(void *ctx, spl_queue *q);
    spl_status (*event_open)(void *ctx, spl_event **e);
    void (*event_close)(void *ctx, spl_event *e);
    spl_status (*event_record)(void *ctx, spl_queue *q, spl_event *e);
    spl_status (*event_wait)(void *ctx, spl_queue *q, spl_event *e); /* the queue waits, not the caller */
    spl_status (*event_test)(void *ctx, spl_event *e, int *done);    /* never blocks */

    /* host <-> backend memory; the host side must stay valid until the queue has passed this point */
    spl_status (*copy_in)(void *ctx, spl_queue *q, void *dst, const void *host_src, size_t bytes);
    spl_status (*copy_out)(void *ctx, spl_queue *q, void *host_dst, const void *src, size_t bytes);

    /* movement */
    spl_status (*box)(void *ctx, spl_queue *q, const spl_box_args *a);
    spl_status (*zero)(void *ctx, spl_queue *q, void *dst, size_t bytes);
    spl_status (*cast)(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from, int64_t n);
    /* dst[i] = srcs[0][i] + srcs[1][i] + ... in exactly this order (half precision: summed in f32, rounded once); bool:
     * or */
    spl_status (*sum)(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n, spl_dtype t);

    /* filling and judging */
    spl_status (*fill)(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value);
    spl_status (*random)(void *ctx, spl_queue *q, const spl_random_args *a);
    spl_status (*stats)(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n,
                        spl_stats *host_out); /* completes before return */

    /* transformer kernels */
    spl_status (*gemm)(void *ctx, spl_queue *q, const spl_gemm_args *a);
    spl_status (*norm)(void *ctx, spl_queue *q, const spl_norm_args *a);
    spl_status (*act)(void *ctx, spl_queue *q, const spl_act_args *a);
    spl_status (*residual)(void *ctx, spl_queue *q, const spl_residual_args *a);
    spl_status (*rope)(void *ctx, spl_queue *q, const spl_rope_args *a);
    spl_status (*embed)(void *ctx, spl_queue *q, const spl_embed_args *a);
    spl_status (*nll)(void *ctx, spl_queue *q, const spl_nll_args *a);
    spl_status (*attention)(void *ctx, spl_queue *q, const spl_attn_args *a);
    spl_status (*pool)(void *ctx, spl_queue *q, const spl_pool_args *a);

    /* the most bytes of scratch that kernels held at one time since the last call with reset = 1 */
    int64_t (*workspace_peak)(void *ctx, int reset);

    /* Which kernel each op has here, one "ops: kernel" a line; may be NULL. Valid until close. */
    const char *(*kernels)(void *ctx);

    /* The table to use in place of this one on this machine (the same backend for a newer processor); NULL: this. */
    const struct spl_backend_ops *(*select)(void);

    /* 1: memory of this backend is no host memory: whoever moves it between ranks copies it out and in. Then host_alloc
     * gives host memory with which these copies do not wait (pinned); the slots stay NULL otherwise. */
    int device_memory;
    spl_status (*host_alloc)(void *ctx, size_t bytes, void **ptr);
    void (*host_free)(void *ctx, void *ptr);

    /* for comparing with attention whose scores are all in memory; may be NULL */
    spl_status (*softmax)(void *ctx, spl_queue *q, const spl_softmax_args *a);
} spl_backend_ops;

/* ---- What any backend refuses of its arguments (backend_check.c); a backend adds the limits that are its own ---- */

/* Leading dimensions of A, B and C as a library takes them. Each must reach over a stored row (where there is a single
 * row any will do, since views may leave any stride there), and no size may pass `most`, the limit of `whose` ("the
 * BLAS"). */
spl_status spli_gemm_leading(const spl_gemm_args *a, int64_t most, const char *whose, int64_t ld[3]);
/* Sizes, strides, KV heads, dropout's index and pieces; SPL_EUNSUPPORTED above most_head_dim. */
spl_status spli_attn_args_check(const spl_attn_args *a, int64_t most_head_dim);

/* [local] The backend of this name: "cpu", "null", "ref", or that of the plugin spl-NAME.so. SPL_EENV: there is none,
 * and why. */
spl_status spli_backend_open(const char *name, const spl_backend_ops **out);
/* [local] The same, or NULL. */
const spl_backend_ops *spli_backend_find(const char *name);
/* [local] The names of the program's own one by one, for messages: NULL when `i` is past the last. */
const char *spli_backend_name(int i);

/* ---- The whole-model reference (kernels/ref): plain fp64 loops on host memory, sharing nothing with core's block,
 * ops, layout or plan. All arrays are dense, global, host memory, double. ---- */

typedef struct spl_ref_slice { /* visible pairs: q in [q_begin,q_end), k in [k_begin,k_end), bounded as in
                                  MagiAttention: */
    int64_t q_begin, q_end, k_begin, k_end;
    int kind; /* 0 full; 1 causal: k - k_end <= q - q_end; 2 inverse causal: k - k_begin >= q - q_begin; 3 both */
} spl_ref_slice;

typedef struct spl_ref_attention_args {
    int64_t batch, heads, kv_heads, seq_q, seq_k, head_dim;
    const double *q, *k, *v; /* [batch, seq, heads, head_dim] */
    double scale, p;
    spl_rng_key key;
    const spl_ref_slice *slices;
    int nslices;
    int64_t chunk, summaries; /* chunk 0: exact. Else hierarchical (ref_chunks.c), not by slices; seq_q == seq_k */
    int causal;               /* of hierarchical */
    const int64_t *rows; /* sampled query rows (sequence indices), or NULL for all */
    int64_t nrows;
    double *out; /* [batch, nrows, heads, head_dim] */
    double *lse; /* [batch, heads, nrows] */
} spl_ref_attention_args;

typedef struct spl_ref_block_args {
    int64_t batch, seq, hidden, heads, kv_heads, head_dim, ffn;
    spl_norm_kind norm;
    double eps;
    int interleaved_qkv;  /* 1: qkv weight [heads * 3 * head_dim, hidden], rows of head h: q, k, v. 0: q, k, v separate
                           */
    spl_activation act;   /* of the MLP */
    int gated;            /* 1: act(gate) * up with two weights (SwiGLU) */
    double rope_theta;    /* 0: none */
    int causal;
    const spl_ref_slice *slices; /* NULL: by `causal` */
    int nslices;
    const int64_t *positions;    /* [seq] for RoPE, NULL: 0, 1, 2, ... */
    int64_t chunk, summaries;    /* chunk 0: exact; else hierarchical, by `causal` */
    double p_attention, p_hidden;
    spl_rng_key key_attention, key_hidden0, key_hidden1; /* of attention, after attention, after the MLP */
    const double *x; /* [batch, seq, hidden] */
    const double *ln0_gamma, *ln0_beta, *ln1_gamma, *ln1_beta;         /* [hidden], beta may be NULL */
    const double *wqkv, *bqkv;                                        /* interleaved */
    const double *wq, *bq, *wk, *bk, *wv, *bv; /* separate: [heads*head_dim, hidden], [kv_heads*head_dim, hidden] */
    const double *wo, *bo;                                            /* [hidden, heads*head_dim], [hidden] or NULL */
    const double *w1, *b1;                                            /* up projection [ffn, hidden], [ffn] or NULL */
    const double *wg, *bg;                                            /* gate projection [ffn, hidden], or NULL */
    const double *w2, *b2;                                            /* [hidden, ffn], [hidden] or NULL */
    const int64_t *rows; /* sampled sequence rows, or NULL for all (nrows == seq then) */
    int64_t nrows;
    /* outputs over the sampled rows; any may be NULL */
    double *ln0_mean, *ln0_rstd, *ln1_mean, *ln1_rstd; /* [batch, nrows] */
    double *linear0; /* interleaved: [batch, nrows, 3*heads*head_dim] with bias; separate: q of [batch, nrows,
                        heads*head_dim] before RoPE */
    double *linear0_k, *linear0_v; /* separate only: [batch, nrows, kv_heads*head_dim] */
    double *sdpa_out; /* [batch, heads, nrows, head_dim] */
    double *sdpa_lse; /* [batch, heads, nrows] */
    double *linear1;  /* [batch, nrows, hidden] output projection, without its bias */
    double *mlp0; /* [batch, nrows, ffn] up projection (gate projection when gated) with bias, before the activation */
    double *mlp0_up;  /* gated only: [batch, nrows, ffn] */
    unsigned char *mask0, *mask1; /* [batch, nrows, hidden], 1 = kept */
    double *out;      /* [batch, nrows, hidden] */
} spl_ref_block_args;

typedef struct spl_reference {
    spl_status (*attention)(const spl_ref_attention_args *a);
    spl_status (*block)(const spl_ref_block_args *a);
    void (*philox)(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]); /* written apart from core's */
} spl_reference;

/* The symbols that kernel folders export, one each. */
extern const spl_backend_ops splk_cpu_backend;
extern const spl_backend_ops splk_null_backend;
extern const spl_backend_ops
    splk_ref_backend; /* the same vtable in plain fp64 loops (f64 in, or widened), for op tests */
extern const spl_reference splk_reference;

#ifdef __cplusplus
}
#endif
#endif
