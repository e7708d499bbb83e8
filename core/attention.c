/* attention.c: attention across a mesh as its roles have it: q, k and v into the layouts that the op wants, keys along
 * the axes on which they travel, summaries where an axis is hierarchical, and the result back into q's layout. Blocks
 * and scripts both come here. */
#include "block.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct how { /* attention is wanted */
    spl_runtime *rt;
    const spl_mesh *mesh; /* NULL: of this rank alone */
    spl_role role;        /* how keys travel */
    spl_schedule schedule;
    const spl_mask *mask; /* NULL: by `causal` */
    int causal;
    double scale;
    int64_t per_kv; /* query heads per KV head */
    spli_dropout dropout;
} how;

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

static spl_status summarise(const how *h, spl_tensor *k, spl_tensor *v, spli_attention_attrs *a, summaries *s) {
    const int64_t seq = k->shape[1], chunk = h->schedule.chunk, each = h->schedule.summaries;
    int causal = h->causal;
    if (h->mask) spli_mask_chunkable(h->mask, &causal);
    spli_mask_free(&a->mask);
    SPL_TRY(spli_mask_chunks(seq, chunk, causal, &a->mask));
    SPL_TRY(spli_mask_summaries(seq, chunk, each, spli_summary_count(seq, chunk, each), causal, &s->mask));
    h->rt->subject = "summaries of k";
    SPL_TRY(spli_summaries(k, chunk, each, &s->k));
    h->rt->subject = "summaries of v";
    SPL_TRY(spli_summaries(v, chunk, each, &s->v));
    SPL_TRY(spli_summary_bias(h->rt, seq, chunk, each, k->dtype == SPL_F64 ? SPL_F64 : SPL_F32, &s->bias));
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
    const how *h;
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
static spl_status deal_groups(journey *j, int axis, const spl_layout *q, const spl_layout *k) {
    const spl_mesh *mesh = j->h->mesh;
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
                status = spli_heads_reading(&heads, &kv, j->h->per_kv, begin, begin + count, &range(j, g, 0)[m],
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
    j->h->rt->subject = names[i];
    return spli_move_start(j->in[i], 2, 0, range(j, g, i ? 2 : 0), range(j, g, i ? 3 : 1));
}

static spl_status finish(journey *j, int i) {
    j->h->rt->subject = names[i];
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
    j->h->rt->subject = "attention";
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
    j->h->rt->subject = "attention";
    return spli_ok();
}

/* Opens the ways in; where heads change hands along one axis, in groups. */
static spl_status depart(journey *j, const how *h, spl_tensor *const qkv[3], spli_attn_groups *groups) {
    const spl_mesh_spec *mesh = &h->mesh->spec;
    spl_layout to[3];
    *j = (journey){.h = h, .home = &qkv[0]->layout};
    for (int i = 0; i < 3; i++)
        spli_schedule_attention(mesh, h->role, &qkv[i]->layout, i > 0, i > 0 ? h->per_kv : 1, &to[i]);
    const int axis = heads_axis(mesh, &qkv[0]->layout, &to[0]);
    for (int i = 0; i < 3; i++) {
        h->rt->subject = names[i];
        SPL_TRY(axis < 0 ? spli_move_whole(qkv[i], &to[i], &j->in[i]) : spli_move_open(qkv[i], &to[i], &j->in[i]));
    }
    if (axis < 0) return spli_ok();
    j->members = mesh->axes[axis].size;
    SPL_TRY(deal_groups(j, axis, &to[0], &to[1]));
    for (int g = 0; g < j->groups; g++) {
        j->own[0][g] = range(j, g, 0)[h->mesh->coords[axis]];
        j->own[1][g] = range(j, g, 1)[h->mesh->coords[axis]];
    }
    *groups = (spli_attn_groups){j->groups, j->own[0], j->own[1], arrive, leave, j};
    return spli_ok();
}

static spl_status resolve(const how *h, int64_t seq_q, int64_t seq_k, spli_mask *out) {
    if (h->mask) return spli_mask_resolve(h->mask, seq_q, seq_k, out);
    return spli_mask_one(out, seq_q, seq_k, h->causal ? SPL_SLICE_CAUSAL : SPL_SLICE_FULL);
}

static spl_status come_home(journey *j, spl_tensor *result, spl_tensor **out) {
    if (!j->home) { /* of this rank alone */
        spl_tensor_retain(result);
        *out = result;
        return spli_ok();
    }
    if (!j->back) return spl_redistribute(result, j->home, out);
    SPL_TRY(spli_move_finish(j->back));
    *out = spli_move_result(j->back);
    spl_tensor_retain(*out);
    return spli_ok();
}

static spl_status attend(const how *h, spl_tensor *const qkv[3], spl_tensor **out, spl_tensor **lse) {
    spl_tensor *result = NULL, *in[] = {qkv[0], qkv[1], qkv[2]};
    spli_attn_groups groups = {0};
    journey j = {0};
    summaries s = {0};
    spli_attention_attrs a = {.scale = h->scale, .group = h->per_kv, .dropout = h->dropout, .role = h->role};
    spl_status status = spli_ok();
    if (h->mesh) SPL_GO(depart(&j, h, qkv, &groups), done);
    for (int i = 0; h->mesh && i < 3; i++) in[i] = spli_move_result(j.in[i]);
    SPL_GO(resolve(h, qkv[0]->shape[1], qkv[1]->shape[1], &a.mask), done);
    if (a.role == SPL_ROLE_HIERARCHICAL) {
        SPL_GO(arrive_all(&j), done); /* summaries are of all heads */
        SPL_GO(summarise(h, in[1], in[2], &a, &s), done);
    }
    if (groups.n && !j.arrived) a.groups = &groups;
    h->rt->subject = "attention";
    SPL_GO(spli_attention(in[0], in[1], in[2], &a, &result, lse), done);
    for (int i = 0; i < 3; i++) { /* not needed any more: their memory serves the way back */
        spli_move_close(j.in[i]);
        j.in[i] = NULL;
    }
    status = come_home(&j, result, out);
    if (status.code != SPL_OK && lse) {
        spl_tensor_release(*lse);
        *lse = NULL;
    }
done:
    journey_free(&j);
    spl_tensor_release(result);
    summaries_free(&s);
    spli_mask_free(&a.mask);
    return status;
}

spl_status spli_block_attend(const spl_block *b, spl_tensor *const qkv[3], spli_dropout dropout, spl_tensor **out,
                             spl_tensor **lse) {
    const spl_block_config *c = &b->config;
    const how h = {.rt = b->rt,
                   .mesh = b->mesh,
                   .role = spli_schedule_travels(&b->mesh->spec),
                   .schedule = b->schedule,
                   .mask = c->mask,
                   .causal = c->causal,
                   .scale = 1.0 / sqrt((double)c->head_dim),
                   .per_kv = c->heads / c->kv_heads,
                   .dropout = dropout};
    return attend(&h, qkv, out, lse);
}

/* ---- without a block ---- */

static spl_schedule filled(const spl_schedule *s) {
    return (spl_schedule){s->scheme, s->chunk ? s->chunk : 1024, s->summaries ? s->summaries : 1};
}

static spl_status check_shapes(const spl_tensor *q, const spl_tensor *k, const spl_tensor *v) {
    SPL_TRY(spli_need_ndim("attention", q, "q", 4));
    SPL_TRY(spli_need_ndim("attention", k, "k", 4));
    SPL_TRY(spli_need_ndim("attention", v, "v", 4));
    int fits = k->shape[2] > 0 && q->shape[2] % k->shape[2] == 0 &&
               q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3];
    for (int d = 0; d < 4 && fits; d++) fits = k->shape[d] == v->shape[d];
    if (fits) return spli_ok();
    return spli_error(SPL_EARG,
                      "attention: q is [%lld, %lld, %lld, %lld], k is [%lld, %lld, %lld, %lld]; batch and head_dim "
                      "must be equal, heads a multiple of KV heads, and k and v alike",
                      (long long)q->shape[0], (long long)q->shape[1], (long long)q->shape[2], (long long)q->shape[3],
                      (long long)k->shape[0], (long long)k->shape[1], (long long)k->shape[2], (long long)k->shape[3]);
}

spl_status spli_attention_numbers(const char *function, double *scale, double dropout, int64_t head_dim) {
    if (*scale != *scale || *scale < 0 || isinf(*scale))
        return spli_error(SPL_EARG, "%s: the scale is %g; a positive number is needed, or 0 for 1/sqrt(head_dim)",
                          function, *scale);
    if (!(dropout >= 0 && dropout < 1))
        return spli_error(SPL_EARG, "%s: dropout is %g; a probability from 0 up to, but not including, 1 is needed",
                          function, dropout);
    if (*scale == 0) *scale = 1 / sqrt((double)(head_dim > 0 ? head_dim : 1));
    return spli_ok();
}

spl_status spl_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_options *o, spl_tensor **out,
                         spl_tensor **lse) {
    spl_tensor *qkv[] = {q, k, v};
    SPL_TRY(spli_tensors_together("attention", qkv, 3));
    SPL_TRY(check_shapes(q, k, v));
    how h = {.rt = q->rt,
             .mesh = q->mesh,
             .role = o->role,
             .schedule = filled(&o->schedule),
             .mask = o->mask,
             .causal = 1,
             .scale = o->scale,
             .per_kv = q->shape[2] / k->shape[2],
             .dropout = {o->dropout, o->seed, o->instance, o->step}};
    SPL_TRY(spli_attention_numbers("attention", &h.scale, o->dropout, q->shape[3]));
    if (h.role == SPL_ROLE_NONE) h.role = h.mesh ? spli_schedule_travels(&h.mesh->spec) : SPL_ROLE_NONE;
    if (h.role == SPL_ROLE_NONE) h.role = SPL_ROLE_RING;
    if (h.role != SPL_ROLE_RING && h.role != SPL_ROLE_GATHER && h.role != SPL_ROLE_HIERARCHICAL)
        return spli_error(SPL_EARG, "attention: keys travel as 'ring', 'gather' or 'hierarchical', not as '%s'",
                          spl_role_name(h.role));
    if (h.role == SPL_ROLE_HIERARCHICAL) {
        const spl_mesh_spec one = {1, {{"cp", 1, SPL_ROLE_HIERARCHICAL}}};
        const spl_block_config c = {.mask = o->mask, .dropout_attention = o->dropout};
        SPL_TRY(spli_schedule_check(&one, &h.schedule, &c));
        if (q->shape[1] != k->shape[1])
            return spli_error(SPL_EARG, "attention: %lld queries and %lld keys; hierarchical needs as many of both",
                              (long long)q->shape[1], (long long)k->shape[1]);
    }
    spli_attention_attrs a = {.scale = h.scale, .group = h.per_kv, .dropout = h.dropout, .role = h.role};
    SPL_TRY(resolve(&h, q->shape[1], k->shape[1], &a.mask));
    spl_status status = spli_attention_agree(q, &a);
    spli_mask_free(&a.mask);
    SPL_TRY(status);
    return attend(&h, qkv, out, lse);
}

spl_status spl_attention_layout(const spl_mesh_spec *mesh, const spl_schedule *s, spl_mask *mask,
                                const int64_t shape[4], int64_t cover, spl_layout *out) {
    const spl_schedule schedule = filled(s);
    const spl_block_config c = {.mask = mask};
    const spli_placing placing = {mesh, schedule, spl_mask_documents(mask)};
    spl_layout inner;
    SPL_TRY(spli_schedule_check(mesh, &schedule, &c));
    for (int d = 0; d < 4; d++)
        if (shape[d] < 0 || cover < 1)
            return spli_error(SPL_EARG, "attention_layout: sizes are 0 or more, and heads a multiple of kv_heads");
    spli_schedule_layout(&placing, SPLI_INNER, 4, shape, 0, 0, out);
    spli_schedule_layout(&placing, SPLI_COLUMN, 4, shape, 1, cover, &inner);
    for (int a = 0; a < mesh->naxes; a++) {
        if (inner.axes[a].place != SPL_SHARD) continue;
        out->axes[a] = inner.axes[a];
        out->axes[a].dim = 2;
    }
    return spl_layout_check(out);
}
