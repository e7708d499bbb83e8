/* block_attention.c: attention between a block's linears, as its schedule has it: q, k and v into the layouts that the
 * op wants, keys along the axes on which they travel, and the result back into q's. */
#include "block.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Chunks are exact; of the others there are summaries. */
typedef struct summaries {
    spl_tensor *k, *v, *bias;
    spli_mask mask;
} summaries;

static void summaries_free(summaries *s) {
    spl_tensor_release(s->k);
    spl_tensor_release(s->v);
    spl_tensor_release(s->bias);
    spli_mask_free(&s->mask);
}

static spl_status summarise(const spl_block *b, spl_tensor *k, spl_tensor *v, spli_attention_attrs *a, summaries *s) {
    const spl_schedule *how = &b->schedule;
    const int64_t seq = k->shape[1];
    int causal = b->config.causal;
    if (b->config.mask) spli_mask_chunkable(b->config.mask, &causal);
    spli_mask_free(&a->mask);
    SPL_TRY(spli_mask_chunks(seq, how->chunk, causal, &a->mask));
    SPL_TRY(spli_mask_summaries(seq, how->chunk, how->summaries, spli_summary_count(seq, how->chunk, how->summaries),
                                causal, &s->mask));
    b->rt->subject = "summaries of k";
    SPL_TRY(spli_summaries(k, how->chunk, how->summaries, &s->k));
    b->rt->subject = "summaries of v";
    SPL_TRY(spli_summaries(v, how->chunk, how->summaries, &s->v));
    SPL_TRY(
        spli_summary_bias(b->rt, seq, how->chunk, how->summaries, k->dtype == SPL_F64 ? SPL_F64 : SPL_F32, &s->bias));
    a->more_k = s->k;
    a->more_v = s->v;
    a->more_bias = s->bias;
    a->more_mask = &s->mask;
    return spli_ok();
}

/* ---- heads in groups: while one is computed, the next comes, and the one before goes back ---- */

/* With fewer heads than this on every rank all go at once: halves under way would hold more than they hide. */
enum { GROUPS = 4 };

static const char *const names[] = {"q", "k", "v"};

typedef struct journey {
    const spl_block *b;
    int groups, members;
    spli_move *in[3], *back; /* q, k, v; out */
    const spl_layout *home;  /* of out, in the end */
    int64_t *ranges;         /* heads of each member by group: [groups][q_begin, q_end, kv_begin, kv_end][members] */
    int arrived;             /* all heads are here */
    int64_t own[2][GROUPS]; /* begins and ends of this rank's query heads */
} journey;

static int64_t *range(const journey *j, int g, int which) { return j->ranges + (g * 4 + which) * j->members; }

static void journey_free(journey *j) {
    for (int i = 0; i < 3; i++) spli_move_close(j->in[i]);
    spli_move_close(j->back);
    free(j->ranges);
}

/* The axis along which heads are dealt out, where there is one of more than one rank; else -1. */
static int heads_axis(const spl_mesh_spec *mesh, const spl_layout *now, const spl_layout *to) {
    int found = -1;
    for (int a = 0; a < mesh->naxes; a++) {
        if (mesh->axes[a].size == 1 || now->axes[a].place != SPL_SHARD || now->axes[a].dim != 1 ||
            to->axes[a].place != SPL_SHARD || to->axes[a].dim != 2)
            continue;
        if (found >= 0) return -1; /* several: heads change hands more than once */
        found = a;
    }
    return found;
}

/* Groups of each member's heads: its KV heads in balanced parts, and the query heads that read them. */
static spl_status deal_groups(journey *j, int axis, const spl_layout *q, const spl_layout *k, int64_t per_kv) {
    const spl_mesh *mesh = j->b->mesh;
    int at[SPL_MAX_AXES];
    int64_t most = 1;
    memcpy(at, mesh->coords, sizeof at);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            j->groups = most < GROUPS ? 1 : GROUPS;
            j->ranges = calloc((size_t)(j->groups * 4 * j->members), sizeof *j->ranges);
            if (!j->ranges) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
        }
        for (int m = 0; m < j->members; m++) {
            spli_segments heads = {0}, kv = {0};
            if (axis >= 0) at[axis] = m;
            SPL_TRY(spli_layout_segments(q, at, 2, -1, &heads));
            spl_status status = spli_layout_segments(k, at, 2, -1, &kv);
            int64_t n = spli_segments_total(kv.at, kv.n);
            most = n > most ? n : most;
            for (int g = 0; pass == 1 && status.code == SPL_OK && g < j->groups; g++) {
                int64_t begin, count = spli_split(n, j->groups, g, &begin);
                range(j, g, 2)[m] = begin;
                range(j, g, 3)[m] = begin + count;
                status = spli_heads_reading(&heads, &kv, per_kv, begin, begin + count, &range(j, g, 0)[m],
                                            &range(j, g, 1)[m]);
            }
            spli_segments_free(&heads);
            spli_segments_free(&kv);
            SPL_TRY(status);
        }
    }
    return spli_ok();
}

static spl_status start(journey *j, int i, int g) {
    j->b->rt->subject = names[i];
    return spli_move_start(j->in[i], 2, 0, range(j, g, i ? 2 : 0), range(j, g, i ? 3 : 1));
}

static spl_status finish(journey *j, int i) {
    j->b->rt->subject = names[i];
    return spli_move_finish(j->in[i]);
}

/* The first group comes q, k, v one after the other, since nothing is computed meanwhile; so buffers are small. */
static spl_status arrive(void *ctx, int g) {
    journey *j = ctx;
    for (int i = 0; i < 3; i++) {
        if (g == 0) SPL_TRY(start(j, i, 0));
        SPL_TRY(finish(j, i));
    }
    for (int i = 0; i < 3 && g + 1 < j->groups; i++) SPL_TRY(start(j, i, g + 1));
    j->b->rt->subject = "attention";
    return spli_ok();
}

static spl_status arrive_all(journey *j) {
    for (int g = 0; g < j->groups; g++) SPL_TRY(arrive(j, g));
    j->arrived = 1;
    return spli_ok();
}

static spl_status leave(void *ctx, int g, spl_tensor *out) {
    journey *j = ctx;
    if (!j->back) SPL_TRY(spli_move_open(out, j->home, &j->back));
    SPL_TRY(spli_move_finish(j->back)); /* of the group before */
    SPL_TRY(spli_move_start(j->back, 2, 1, range(j, g, 0), range(j, g, 1)));
    j->b->rt->subject = "attention";
    return spli_ok();
}

/* Opens the ways in; where heads change hands along one axis, in groups. */
static spl_status depart(journey *j, const spl_block *b, spl_tensor *const qkv[3], int64_t per_kv,
                         spli_attn_groups *groups) {
    const spl_mesh_spec *mesh = &b->mesh->spec;
    spl_layout to[3];
    *j = (journey){.b = b, .home = &qkv[0]->layout};
    for (int i = 0; i < 3; i++) spli_schedule_attention(mesh, &qkv[i]->layout, i > 0, i > 0 ? per_kv : 1, &to[i]);
    const int axis = heads_axis(mesh, &qkv[0]->layout, &to[0]);
    for (int i = 0; i < 3; i++) {
        b->rt->subject = names[i];
        SPL_TRY(axis < 0 ? spli_move_whole(qkv[i], &to[i], &j->in[i]) : spli_move_open(qkv[i], &to[i], &j->in[i]));
    }
    if (axis < 0) return spli_ok();
    j->members = mesh->axes[axis].size;
    SPL_TRY(deal_groups(j, axis, &to[0], &to[1], per_kv));
    for (int g = 0; g < j->groups; g++) {
        j->own[0][g] = range(j, g, 0)[b->mesh->coords[axis]];
        j->own[1][g] = range(j, g, 1)[b->mesh->coords[axis]];
    }
    *groups = (spli_attn_groups){j->groups, j->own[0], j->own[1], arrive, leave, j};
    return spli_ok();
}

spl_status spli_block_attend(const spl_block *b, spl_tensor *const qkv[3], spli_dropout dropout, spl_tensor **out,
                             spl_tensor **lse) {
    const spl_block_config *c = &b->config;
    const int64_t per_kv = c->heads / c->kv_heads;
    spl_tensor *result = NULL, *in[3];
    spli_attn_groups groups = {0};
    journey j = {0};
    summaries s = {0};
    spli_attention_attrs a = {.scale = 1.0 / sqrt((double)c->head_dim),
                              .group = per_kv,
                              .dropout = dropout,
                              .role = spli_schedule_travels(&b->mesh->spec)};
    spl_status status = spli_ok();
    SPL_GO(depart(&j, b, qkv, per_kv, &groups), done);
    for (int i = 0; i < 3; i++) in[i] = spli_move_result(j.in[i]);
    SPL_GO(spli_block_mask(b, qkv[0]->shape[1], &a.mask), done);
    if (a.role == SPL_ROLE_HIERARCHICAL) {
        SPL_GO(arrive_all(&j), done); /* summaries are of all heads */
        SPL_GO(summarise(b, in[1], in[2], &a, &s), done);
    }
    if (groups.n && !j.arrived) a.groups = &groups;
    b->rt->subject = "attention";
    SPL_GO(spli_attention(in[0], in[1], in[2], &a, &result, lse), done);
    for (int i = 0; i < 3; i++) { /* not needed any more: their memory serves the way back */
        spli_move_close(j.in[i]);
        j.in[i] = NULL;
    }
    if (!j.back) {
        status = spl_redistribute(result, j.home, out);
        goto done;
    }
    SPL_GO(spli_move_finish(j.back), done);
    *out = spli_move_result(j.back);
    spl_tensor_retain(*out);
done:
    journey_free(&j);
    spl_tensor_release(result);
    summaries_free(&s);
    spli_mask_free(&a.mask);
    return status;
}
