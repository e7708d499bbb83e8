/* faults.c: the program spl with one thing wrong in its attention, to see whether `spl check` notices. Linked into
 * build/tests/spl-faults alone, in place of core's own functions (--wrap); SPL_FAULT says which one, without it nothing
 * is wrong. */
#include "attn.h"
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

spl_status __real_spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv,
                                      int members, spli_attn_method method, int first, int count, spli_attn_plan *out);
spl_status __wrap_spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv,
                                      int members, spli_attn_method method, int first, int count, spli_attn_plan *out);
spl_status __real_spli_attn_execute(spli_attn_run *run);
spl_status __wrap_spli_attn_execute(spli_attn_run *run);

static int wanted(const char *name) {
    const char *fault = getenv("SPL_FAULT");
    return fault && !strcmp(fault, name);
}

/* The first step beside the own keys on which this member computes, or 0. */
static int other_step(const spli_attn_plan *p) {
    for (int s = 1; s < p->nsteps; s++)
        if (p->steps[s].npieces > 0) return s;
    return 0;
}

/* Two documents that follow each other are one. */
static spl_status join_documents(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                                 spli_attn_method method, int first, int count, spli_attn_plan *out) {
    spl_slice joined[64];
    spli_mask wrong = *mask;
    if (mask->n < 2 || mask->n > 64 || mask->slices[0].kind != SPL_SLICE_CAUSAL ||
        mask->slices[0].q_end != mask->slices[1].q_begin || mask->slices[0].k_end != mask->slices[1].k_begin)
        return __real_spli_attn_plan_make(mask, q, kv, members, method, first, count, out);
    memcpy(joined, mask->slices + 1, sizeof *joined * (size_t)(mask->n - 1));
    joined[0].q_begin = mask->slices[0].q_begin;
    joined[0].k_begin = mask->slices[0].k_begin;
    wrong.slices = joined;
    wrong.n--;
    return __real_spli_attn_plan_make(&wrong, q, kv, members, method, first, count, out);
}

static void swap_blocks(spli_attn_plan *p) {
    int a = other_step(p), b = a + 1;
    if (!a || b >= p->nsteps || p->steps[a].source_rows != p->steps[b].source_rows) return;
    spli_attn_step *x = &p->steps[a], *y = &p->steps[b];
    spl_attn_piece *pieces = x->pieces;
    int n = x->npieces;
    x->pieces = y->pieces, x->npieces = y->npieces;
    y->pieces = pieces, y->npieces = n;
}

spl_status __wrap_spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv,
                                      int members, spli_attn_method method, int first, int count, spli_attn_plan *out) {
    if (wanted("document boundary ignored")) return join_documents(mask, q, kv, members, method, first, count, out);
    spl_status s = __real_spli_attn_plan_make(mask, q, kv, members, method, first, count, out);
    for (int i = 0; s.code == SPL_OK && i < count; i++) {
        if (wanted("dropped step") && other_step(&out[i])) out[i].steps[other_step(&out[i])].npieces = 0;
        if (wanted("swapped block")) swap_blocks(&out[i]);
    }
    return s;
}

/* ---- step 0's keys are computed on again in place of those that came ---- */

enum { MOST_RANKS = 64 };

static const spl_backend_ops *real_ops; /* the same for all ranks of the process */
static spl_backend_ops wrong_ops;
static struct {
    void *ctx; /* of the backend: one a rank */
    spl_attn_args own;
} ranks[MOST_RANKS];

static spl_status reuse_own_keys(void *ctx, spl_queue *queue, const spl_attn_args *a) {
    spl_attn_args wrong = *a;
    int r = 0;
    while (r < MOST_RANKS - 1 && ranks[r].ctx && ranks[r].ctx != ctx) r++;
    ranks[r].ctx = ctx;
    const spl_attn_args *own = &ranks[r].own;
    if (!a->merge) {
        ranks[r].own = *a;
    } else if (a->sk <= own->sk && a->out == own->out) {
        wrong.k = own->k, wrong.v = own->v;
        memcpy(wrong.k_strides, own->k_strides, sizeof wrong.k_strides);
        memcpy(wrong.v_strides, own->v_strides, sizeof wrong.v_strides);
    }
    return real_ops->attention(ctx, queue, &wrong);
}

spl_status __wrap_spli_attn_execute(spli_attn_run *run) {
    if (wanted("wrong scale")) run->args.scale *= 1.001;
    if (!wanted("own keys again")) return __real_spli_attn_execute(run);
    real_ops = run->rt->backend;
    wrong_ops = *real_ops;
    wrong_ops.attention = reuse_own_keys;
    run->rt->backend = &wrong_ops;
    spl_status s = __real_spli_attn_execute(run);
    run->rt->backend = real_ops;
    return s;
}
