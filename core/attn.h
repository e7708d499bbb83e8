/* attn.h: attention across ranks: masks as slices, the pure plan, and its executor. */
#ifndef SPL_ATTN_H
#define SPL_ATTN_H
#include "layout.h"
#include "op.h"

/* ---- masks (attn_mask.c): a short list of slices; their union is what is visible, and they must not overlap ---- */

typedef struct spli_mask { /* a mask for given lengths; free with spli_mask_free */
    int64_t seq_q, seq_k;
    int n;
    spl_slice *slices;
} spli_mask;

/* SPL_EUSAGE where the mask does not fit the lengths. */
spl_status spli_mask_resolve(const spl_mask *m, int64_t seq_q, int64_t seq_k, spli_mask *out);
spl_status spli_mask_one(spli_mask *m, int64_t seq_q, int64_t seq_k, spl_slice_kind kind); /* of one slice */
void spli_mask_free(spli_mask *m);
/* Slices inside the sequence, no pair twice. */
spl_status spli_mask_check(const spli_mask *m);
/* Visible (query, key) pairs; INT64_MAX where there are as many, or more. */
int64_t spli_mask_pairs(const spli_mask *m);

/* Hierarchical attention: exact within chunks, and summaries of the others. NULL is the causal mask. */
int spli_mask_chunkable(const spl_mask *m, int *causal);
spl_status spli_mask_chunks(int64_t seq, int64_t chunk, int causal, spli_mask *out);
spl_status spli_mask_summaries(int64_t seq, int64_t chunk, int64_t each, int64_t total, int causal, spli_mask *out);

/* ---- sets of rows (attn_rows.c): ascending disjoint intervals of local positions ---- */

typedef struct spli_interval {
    int64_t begin, end;
} spli_interval;

typedef struct spli_rows {
    spli_interval *at;
    int n, capacity;
    int failed; /* memory ran out while it grew */
} spli_rows;
void spli_rows_free(spli_rows *r);
void spli_rows_add(spli_rows *r, int64_t begin, int64_t end); /* any order; joined where they touch */
int64_t spli_rows_total(const spli_rows *r);
void spli_rows_meet(const spli_rows *a, const spli_rows *b, spli_rows *out); /* in both; out starts as zeroes */
void spli_rows_less(const spli_rows *a, const spli_rows *b, spli_rows *out); /* in a, not in b */
void spli_rows_copy(const spli_rows *a, spli_rows *out);
/* Appends to `out` where the rows `part` stand when those of `all` (which has them all) lie densely from `base` on. */
void spli_rows_place(const spli_rows *all, int64_t base, const spli_rows *part, spli_rows *out);

/* ---- the plan (attn_plan.c): pure; no MPI, no backend ---- */

typedef enum spli_attn_method {
    SPLI_ATTN_RING,  /* rows travel round the ring, each as far as the members that need it follow each other */
    SPLI_ATTN_GATHER /* each member sends every other the rows that it needs, at once */
} spli_attn_method;

typedef struct spli_attn_send {
    int to;
    int own;        /* rows of this member's own keys; else of the step's source */
    spli_rows rows; /* in the order in which they travel */
} spli_attn_send;

typedef struct spli_attn_recv { /* lands in the next step's source */
    int from;
    int64_t at, rows;
} spli_attn_recv;

typedef struct spli_attn_step {
    int64_t source_rows; /* step 0 computes on the own keys, later ones on what the step before received */
    int npieces;
    spl_attn_piece *pieces; /* rectangles with something visible; local queries, positions in the source */
    int nsends, nrecvs;     /* while this step computes; by rising member, then in the order of sending */
    spli_attn_send *sends;  /* of step 0: rows of the staged list below */
    spli_attn_recv *recvs;
} spli_attn_step;

typedef struct spli_attn_plan {
    int nsteps; /* the same on all members; all but the last exchange */
    spli_attn_step *steps;
    spli_rows staged;  /* own rows that travel during step 0 */
    int64_t pairs;     /* visible (query, key) pairs that this member computes, per head */
    int64_t rows_sent; /* rows that this member sends, over all steps */
    uint64_t hash;     /* of mask, segments of all members and method: equal on all members */
} spli_attn_plan;

/* For members `first` to `first + count - 1` of `members`, into out[0 .. count): q[i] and kv[i] are the global indices
 * that member i holds. Free each with spli_attn_plan_free.
 *
 * ring: a row of block b goes up, from member b to b+1, b+2, ..., as long as each of them needs it (its queries see
 * it); then down, b-1, b-2, ..., to those not yet served; then, where still missing, straight from its owner in the
 * step in which the ring would have brought it. So every member receives each row that it needs once and no other, and
 * with a full mask everything just goes up. */
spl_status spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                               spli_attn_method method, int first, int count, spli_attn_plan *out);
void spli_attn_plan_free(spli_attn_plan *p);
/* Words mixed into a plan's hash: what else must be the same on all members. */
uint64_t spli_attn_mix(uint64_t hash, const int64_t *words, size_t n);

/* ---- the op (attn_op.c) and its executor (attn_exec.c) ---- */

/* This rank's query heads in groups [begin[g], end[g]), each all heads of some KV heads. `arrive` sees to it that the
 * heads of a group are there before it is computed; `leave` is told that its part of out is done. Either may be NULL.
 */
typedef struct spli_attn_groups {
    int n;
    const int64_t *begin, *end;
    spl_status (*arrive)(void *ctx, int g);
    spl_status (*leave)(void *ctx, int g, spl_tensor *out);
    void *ctx;
} spli_attn_groups;

typedef struct spli_attention_attrs {
    spli_mask mask;
    double scale;
    int64_t group; /* query heads per KV head */
    spli_dropout dropout;
    spl_role role;                  /* how keys reach queries along the axes that split both: ring or gather */
    const spli_attn_groups *groups; /* NULL: all heads at once */
    /* A part that is merged into the same softmax, NULL: none: keys and values of the whole mesh's view, e.g.
     * summaries, [batch, n, kv_heads, head_dim], with a mask of their own and a number added to the score of each. */
    spl_tensor *more_k, *more_v;
    const spli_mask *more_mask;
    spl_tensor *more_bias; /* [n] local, f32 (f64) */
    int merge; /* the outputs are there already, and hold a part of the softmax */
} spli_attention_attrs;

/* q [batch, seq_q, heads, head_dim], k and v [batch, seq_k, kv_heads, head_dim]; out like q, lse [batch, heads, seq_q]
 * (may be NULL). [collective over the axes that split the sequence of k] */
spl_status spli_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spli_attention_attrs *attrs,
                          spl_tensor **out, spl_tensor **lse);

/* Of lists of query and KV heads: which positions of the first (all behind each other) read KV positions [kv_begin,
 * kv_end), `group` query heads a KV head. */
spl_status spli_heads_reading(const spli_segments *q_heads, const spli_segments *kv_heads, int64_t group,
                              int64_t kv_begin, int64_t kv_end, int64_t *begin, int64_t *end);
/* Fills in a scale of 0, 1 / sqrt(head_dim), and refuses numbers that are none. */
spl_status spli_attention_numbers(const char *function, double *scale, double dropout, int64_t head_dim);

/* Refuses memory that out or lse share with each other or with what they are computed from: {q, k, v, out, lse}. */
spl_status spli_attention_apart(const char *function, spl_tensor *const all[5]);
/* What all members must mean alike beside the plan, mixed in; and the same compared, with the mask, along ulysses axes,
 * whose members compute heads of one result. [collective over those] */
uint64_t spli_attention_hash(uint64_t hash, const spl_tensor *q, const spli_attention_attrs *attrs);
spl_status spli_attention_agree(const spl_tensor *q, const spli_attention_attrs *attrs);

/* Carries a plan out: `members` are those of `comm`. The op has checked and made everything. */
typedef struct spli_attn_run {
    spl_runtime *rt;
    spl_comm *comm; /* NULL: nobody else */
    const spli_attn_plan *plan;
    const char *role;   /* for traces: "ring" */
    spl_attn_args args; /* of the own keys; out, lse and the rest */
    const spl_tensor *k, *v;
    int64_t kv_begin;  /* the first, in k and v, of the KV heads that args are about */
    int64_t lse_heads; /* heads of the array that lse points into */
    int merged;        /* out holds something already */
} spli_attn_run;
spl_status spli_attn_execute(spli_attn_run *run);

/* ---- hierarchical attention (attn_summary.c) ---- */

/* Means of k and v over `each` balanced groups of each chunk, on all ranks, and the log of the group sizes. x
 * [batch, seq, kv_heads, head_dim], chunks of dim 1 whole on ranks. The last, shorter chunk has at most as many groups
 * as rows. */
int64_t spli_summary_count(int64_t seq, int64_t chunk, int64_t each);
spl_status spli_summaries(spl_tensor *x, int64_t chunk, int64_t each, spl_tensor **out);
spl_status spli_summary_bias(spl_runtime *rt, int64_t seq, int64_t chunk, int64_t each, spl_dtype t, spl_tensor **out);

#endif
