/* attn.h: attention across ranks: masks as slices, the pure plan, and its executor. */
#ifndef SPL_ATTN_H
#define SPL_ATTN_H
#include "layout.h"
#include "op.h"

/* ---- masks (attn_mask.c): a short list of slices; their union is what is visible, and they must not overlap ---- */

typedef enum spli_slice_kind {
    SPLI_FULL,           /* every pair of the rectangle */
    SPLI_CAUSAL,         /* k - k_end <= q - q_end: aligned at the bottom right corner */
    SPLI_INVERSE_CAUSAL, /* k - k_begin >= q - q_begin: aligned at the top left corner */
    SPLI_BOTH            /* both bounds: a diagonal band */
} spli_slice_kind;

typedef struct spli_slice { /* queries [q_begin, q_end), keys [k_begin, k_end), global indices */
    int64_t q_begin, q_end, k_begin, k_end;
    spli_slice_kind kind;
} spli_slice;

enum { SPLI_MASK_INLINE = 4 };
typedef struct spli_mask {
    int64_t seq_q, seq_k;
    int n;
    spli_slice slices[SPLI_MASK_INLINE];
} spli_mask;

void spli_mask_full(spli_mask *m, int64_t seq_q, int64_t seq_k);
/* Query i of seq_q sees keys 0 .. i + (seq_k - seq_q). */
void spli_mask_causal(spli_mask *m, int64_t seq_q, int64_t seq_k);
/* Slices inside the sequence, in order, no pair twice. */
spl_status spli_mask_check(const spli_mask *m);
/* Visible (query, key) pairs. */
int64_t spli_mask_pairs(const spli_mask *m);

/* ---- the plan (attn_plan.c): pure; no MPI, no backend ---- */

typedef enum spli_attn_method {
    SPLI_ATTN_LOCAL /* every member holds all keys that its queries may see */
} spli_attn_method;

typedef struct spli_attn_step {
    int kv_of;              /* member whose KV this step computes on */
    int send_to, recv_from; /* members, while this step computes; -1: nothing travels */
    int npieces;
    spl_attn_piece *pieces; /* rectangles with something visible; local positions */
} spli_attn_step;

typedef struct spli_attn_plan {
    int nsteps;
    spli_attn_step *steps;
    int64_t pairs;          /* visible (query, key) pairs that this member computes, per head */
    uint64_t hash;          /* of mask, segments of all members and method: equal on all members */
} spli_attn_plan;

/* For member `me` of `members`: q[i] and kv[i] are the global indices that member i holds. Free with
 * spli_attn_plan_free. */
spl_status spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                               int me, spli_attn_method method, spli_attn_plan *out);
void spli_attn_plan_free(spli_attn_plan *p);

/* ---- the executor (attn_exec.c) ---- */

typedef struct spli_attention_attrs {
    spli_mask mask;
    double scale;
    int64_t group; /* query heads per KV head */
    spli_dropout dropout;
} spli_attention_attrs;

/* q [batch, seq_q, heads, head_dim], k and v [batch, seq_k, kv_heads, head_dim]; out like q, lse [batch, heads, seq_q]
 * (may be NULL) */
spl_status spli_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spli_attention_attrs *attrs,
                          spl_tensor **out, spl_tensor **lse);

#endif
