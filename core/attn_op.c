/* attn_op.c: the attention op: its layout rules, and its part between tensors and a plan.
 *
 * Per axis: q, k and v replicate, or sharded alike in the batch; heads: q sharded in heads (dimension 3) with k and v
 * sharded to cover the query heads that are here; q sharded in its sequence with k and v whole, or sharded in theirs:
 * then keys travel along the axis, as the attrs' role says. All axes along which they travel are one group of ranks.
 * out as q; lse [batch, heads, seq_q] as q. Cotangents: as the inputs; where KV heads overlap on ranks, the transposed
 * redistribution sums over holders. */
#include "attn.h"
#include "rng.h"
#include <stdlib.h>
#include <string.h>

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    const spli_attention_attrs *attrs = c->attrs;
    SPL_TRY(spli_need_float("attention", q, "q"));
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"q", "k", "v"};
        SPL_TRY(spli_need_ndim("attention", c->in[i], names[i], 4));
        SPL_TRY(spli_need_dtype("attention", c->in[i], names[i], q->dtype));
    }
    int fits = k->shape[0] == q->shape[0] && k->shape[3] == q->shape[3] && attrs->group > 0 &&
               k->shape[2] * attrs->group == q->shape[2] && q->shape[1] == attrs->mask.seq_q &&
               k->shape[1] == attrs->mask.seq_k;
    for (int d = 0; d < 4; d++) fits = fits && k->shape[d] == v->shape[d];
    if (!fits)
        return spli_error(SPL_EARG,
                          "attention: q is [%lld, %lld, %lld, %lld], k is [%lld, %lld, %lld, %lld]; batch and head_dim "
                          "must be equal, "
                          "heads a multiple of KV heads, k and v alike, and the sequences those of the mask",
                          (long long)q->shape[0], (long long)q->shape[1], (long long)q->shape[2],
                          (long long)q->shape[3], (long long)k->shape[0], (long long)k->shape[1],
                          (long long)k->shape[2], (long long)k->shape[3]);
    for (int a = 0; q->mesh && a < q->layout.naxes; a++) {
        const spl_placement *pq = &q->layout.axes[a], *pk = &k->layout.axes[a];
        if (q->layout.axis_size[a] == 1) continue;
        if (!spli_same_on_axis(&k->layout, &v->layout, a))
            return spli_rule_error("attention", &k->layout, a, "k and v are placed differently",
                                   "they must be placed alike");
        int whole = pq->place == SPL_REPLICATE && pk->place == SPL_REPLICATE;
        int batch = pq->place == SPL_SHARD && pq->dim == 0 && spli_same_on_axis(&q->layout, &k->layout, a);
        int queries = pq->place == SPL_SHARD && pq->dim == 1 &&
                      (pk->place == SPL_REPLICATE || (pk->place == SPL_SHARD && pk->dim == 1));
        int heads = pq->place == SPL_SHARD && pq->dim == 2 && pk->place == SPL_SHARD && pk->dim == 2 &&
                    pq->scheme == pk->scheme && spli_unit(pq) == 1 && spli_unit(pk) == 1 &&
                    spli_cover(pk) == attrs->group * spli_cover(pq);
        if (!whole && !batch && !queries && !heads)
            return spli_rule_error("attention", &q->layout, a, "q and k are placed in a way that does not fit",
                                   "both whole, both sharded in batch, q in its sequence with k and v whole or in "
                                   "theirs, or q in heads with k "
                                   "and v covering them");
    }
    for (int i = 0; i < 2; i++) {
        spl_layout *l = &out[i].layout;
        *l = q->layout;
        l->ndim = i == 0 ? 4 : 3;
        l->shape[0] = q->shape[0];
        l->shape[1] = i == 0 ? q->shape[1] : q->shape[2];
        l->shape[2] = i == 0 ? q->shape[2] : q->shape[1];
        l->shape[3] = q->shape[3];
        for (int a = 0; q->mesh && a < l->naxes; a++) {
            if (i == 1 && l->axes[a].place == SPL_SHARD && l->axes[a].dim == 3)
                l->axes[a] = (spl_placement){0}; /* of one rank */
            if (i == 1 && l->axes[a].place == SPL_SHARD && l->axes[a].dim > 0)
                l->axes[a].dim = 3 - l->axes[a].dim; /* heads before seq */
        }
        out[i].dtype = i == 0 || q->dtype == SPL_F64 ? q->dtype : SPL_F32;
    }
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dout, spl_layout *din) {
    din[0] = *dout;
    for (int i = 1; i < 3; i++) {
        din[i] = c->in[i]->layout;
        for (int a = 0; c->in[0]->mesh && a < din[i].naxes; a++)
            if (c->in[0]->layout.axes[a].place == SPL_SHARD && c->in[0]->layout.axes[a].dim == 1 &&
                din[i].axes[a].place == SPL_REPLICATE)
                din[i].axes[a] = (spl_placement){.place = SPL_PARTIAL}; /* every query shard adds to all keys */
    }
}

/* Global indices of one dimension of a local part. */
static spl_status segments_of(const spl_tensor *t, int dim, spli_segments *out) {
    if (t->mesh) return spli_layout_segments(&t->layout, t->mesh->coords, dim, -1, out);
    memset(out, 0, sizeof *out);
    if (t->local[dim] == 0) return spli_ok();
    out->at = malloc(sizeof *out->at);
    if (!out->at) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    out->at[0] = (spl_segment){0, t->local[dim], 1};
    out->n = out->capacity = 1;
    return spli_ok();
}

/* For each local query head the position, among the KV heads held here, of the one it reads. */
static spl_status map_heads(const spli_segments *q_heads, const spli_segments *kv_heads, int64_t group, int32_t *map) {
    int64_t h = 0;
    for (int i = 0; i < q_heads->n; i++)
        for (int64_t j = 0; j < q_heads->at[i].length; j++, h++) {
            int64_t kv = (q_heads->at[i].start + j * q_heads->at[i].stride) / group, position = 0;
            map[h] = -1;
            for (int s = 0; s < kv_heads->n && map[h] < 0; position += kv_heads->at[s++].length) {
                int64_t off = kv - kv_heads->at[s].start;
                if (off >= 0 && off % kv_heads->at[s].stride == 0 &&
                    off / kv_heads->at[s].stride < kv_heads->at[s].length)
                    map[h] = (int32_t)(position + off / kv_heads->at[s].stride);
            }
            if (map[h] < 0)
                return spli_error(
                    SPL_EARG,
                    "attention: KV head %lld, which query head %lld reads, is not on this rank; shard k and v to "
                    "cover the query heads",
                    (long long)kv, (long long)(kv * group));
        }
    return spli_ok();
}

spl_status spli_heads_reading(const spli_segments *q_heads, const spli_segments *kv_heads, int64_t group,
                              int64_t kv_begin, int64_t kv_end, int64_t *begin, int64_t *end) {
    int64_t n = spli_segments_total(q_heads->at, q_heads->n), h = 0;
    int32_t *map = malloc((size_t)(n ? n : 1) * sizeof *map);
    if (!map) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    spl_status status = map_heads(q_heads, kv_heads, group, map);
    while (status.code == SPL_OK && h < n && map[h] < kv_begin) h++;
    *begin = h;
    while (status.code == SPL_OK && h < n && map[h] < kv_end) h++;
    *end = h;
    free(map);
    return status;
}

/* ---- the members along whose axes keys travel ---- */

typedef struct group {
    int naxes, axes[SPL_MAX_AXES], size, me; /* axes in mesh order; members count with the last axis fastest */
    spl_comm *comm;
    spli_segments *q, *kv; /* [size] sequence indices that each holds */
} group;

static void group_free(group *g) {
    for (int i = 0; i < g->size; i++) {
        if (g->q) spli_segments_free(&g->q[i]);
        if (g->kv) spli_segments_free(&g->kv[i]);
    }
    free(g->q);
    free(g->kv);
}

static spl_status group_make(const spl_tensor *q, const spl_tensor *k, spl_role role, group *g) {
    *g = (group){.size = 1};
    for (int a = 0; q->mesh && a < q->layout.naxes; a++) {
        const spl_placement *pq = &q->layout.axes[a], *pk = &k->layout.axes[a];
        if (q->layout.axis_size[a] == 1 || pq->place != SPL_SHARD || pq->dim != 1 || pk->place != SPL_SHARD) continue;
        g->axes[g->naxes++] = a;
        g->me = g->me * q->layout.axis_size[a] + q->mesh->coords[a];
        g->size *= q->layout.axis_size[a];
    }
    g->q = calloc((size_t)g->size, sizeof *g->q);
    g->kv = calloc((size_t)g->size, sizeof *g->kv);
    if (!g->q || !g->kv) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    if (!g->naxes) {
        SPL_TRY(segments_of(q, 1, &g->q[0]));
        return segments_of(k, 1, &g->kv[0]);
    }
    int at[SPL_MAX_AXES];
    memcpy(at, q->mesh->coords, sizeof at);
    for (int m = 0; m < g->size; m++) {
        for (int i = g->naxes - 1, rest = m; i >= 0; rest /= q->layout.axis_size[g->axes[i--]])
            at[g->axes[i]] = rest % q->layout.axis_size[g->axes[i]];
        SPL_TRY(spli_layout_segments(&q->layout, at, 1, -1, &g->q[m]));
        SPL_TRY(spli_layout_segments(&k->layout, at, 1, -1, &g->kv[m]));
    }
    return spli_mesh_group(q->mesh, role, g->axes, g->naxes, &g->comm);
}

/* ---- forward ---- */

typedef struct indices { /* of batch and heads, for dropout and for KV heads */
    spli_segments batch, heads, kv_heads;
    int32_t *kv_of_head;
} indices;

static void indices_free(indices *x) {
    spli_segments_free(&x->batch);
    spli_segments_free(&x->heads);
    spli_segments_free(&x->kv_heads);
    free(x->kv_of_head);
}

static spl_status indices_make(const spl_tensor *q, const spl_tensor *k, int64_t per_kv, indices *x) {
    memset(x, 0, sizeof *x);
    SPL_TRY(segments_of(q, 0, &x->batch));
    SPL_TRY(segments_of(q, 2, &x->heads));
    SPL_TRY(segments_of(k, 2, &x->kv_heads));
    x->kv_of_head = malloc((size_t)(q->local[2] ? q->local[2] : 1) * sizeof *x->kv_of_head);
    if (!x->kv_of_head) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    return map_heads(&x->heads, &x->kv_heads, per_kv, x->kv_of_head);
}

static spl_attn_args args_of(const spli_call *c, const indices *x, const spl_tensor *out) {
    const spli_attention_attrs *attrs = c->attrs;
    const spl_tensor *q = c->in[0], *k = c->in[1];
    spl_attn_args a = {.dtype = q->dtype,
                       .out_dtype = out->dtype,
                       .batch = q->local[0],
                       .heads = q->local[2],
                       .kv_heads = k->local[2],
                       .sq = q->local[1],
                       .head_dim = q->local[3],
                       .q = spli_tensor_data(q),
                       .out = spli_tensor_data(out),
                       .lse = spli_tensor_data(c->out[1]),
                       .kv_of_head = x->kv_of_head,
                       .scale = attrs->scale,
                       .p = attrs->dropout.p,
                       .key = spli_rng_key(attrs->dropout.seed, attrs->dropout.instance, attrs->dropout.step),
                       .batch_segments = x->batch.at,
                       .nbatch_segments = x->batch.n,
                       .head_segments = x->heads.at,
                       .nhead_segments = x->heads.n,
                       .heads_global = q->shape[2],
                       .seq_q_global = q->shape[1],
                       .seq_k_global = k->shape[1],
                       .tiles = &c->rt->counters.attention_tiles};
    memcpy(a.q_strides, q->strides, sizeof a.q_strides);
    memcpy(a.out_strides, out->strides, sizeof a.out_strides);
    return a;
}

/* What is merged into the same softmax: everybody has all of its keys. */
static spl_status add_more(const spli_call *c, const group *g, const spli_attn_run *same) {
    spli_attn_run more = *same, *run = &more;
    const spli_attention_attrs *attrs = c->attrs;
    spli_segments all;
    spli_attn_plan plan = {0};
    spl_status status = spli_ok();
    SPL_TRY(segments_of(attrs->more_k, 1, &all));
    SPL_GO(spli_attn_plan_make(attrs->more_mask, &g->q[g->me], &all, 1, SPLI_ATTN_GATHER, 0, 1, &plan), done);
    run->comm = NULL;
    run->plan = &plan;
    run->k = attrs->more_k;
    run->v = attrs->more_v;
    run->merged = 1;
    run->args.key_bias = spli_tensor_data(attrs->more_bias);
    status = spli_attn_execute(run);
done:
    spli_segments_free(&all);
    spli_attn_plan_free(&plan);
    return status;
}

/* The local query heads [begin, end): all of those of some KV heads. */
static spl_status run_heads(const spli_call *c, const group *g, const spli_attn_run *all, int64_t begin, int64_t end) {
    const spli_attention_attrs *attrs = c->attrs;
    spli_attn_run run = *all;
    spl_attn_args *a = &run.args;
    const int64_t heads = end - begin;
    int32_t *kv_of_head = malloc((size_t)(heads > 0 ? heads : 1) * sizeof *kv_of_head), low = 0, high = -1;
    spli_segments part = {0};
    spl_status status = spli_ok();
    if (!kv_of_head) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    for (int64_t h = 0; h < heads; h++) {
        int32_t kv = all->args.kv_of_head[begin + h];
        if (h == 0 || kv < low) low = kv;
        if (kv > high) high = kv;
    }
    for (int64_t h = 0; h < heads; h++) kv_of_head[h] = all->args.kv_of_head[begin + h] - low;
    run.kv_begin = low;
    a->kv_heads = high - low + 1;
    a->kv_of_head = kv_of_head;
    a->heads = heads;
    if (a->batch * a->sq > 0) { /* else there is no memory to point into */
        a->q = (const char *)a->q + (size_t)(begin * a->q_strides[2]) * spl_dtype_size(a->dtype);
        a->out = (char *)a->out + (size_t)(begin * a->out_strides[2]) * spl_dtype_size(a->out_dtype);
        a->lse = (char *)a->lse + (size_t)(begin * a->sq) * (a->dtype == SPL_F64 ? 8 : 4);
    }
    SPL_GO(spli_segments_part(a->head_segments, a->nhead_segments, begin, end, &part), done);
    a->head_segments = part.at;
    a->nhead_segments = part.n;
    SPL_GO(spli_attn_execute(&run), done);
    if (attrs->more_k) status = add_more(c, g, &run);
done:
    spli_segments_free(&part);
    free(kv_of_head);
    return status;
}

static spl_status forward(const spli_call *c) {
    const spli_attention_attrs *attrs = c->attrs;
    const spl_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    spl_tensor *wide = NULL, *out = c->out[0];
    spli_attn_method method = attrs->role == SPL_ROLE_GATHER ? SPLI_ATTN_GATHER : SPLI_ATTN_RING;
    spli_attn_plan plan = {0};
    indices x = {0};
    group g = {0};
    spl_status status = spli_ok();
    SPL_GO(group_make(q, k, attrs->role, &g), done);
    SPL_GO(spli_attn_plan_make(&attrs->mask, g.q, g.kv, g.size, method, g.me, 1, &plan), done);
    if (g.comm) SPL_GO(spli_agree_plan(c->rt, g.comm, spli_attention_hash(plan.hash, q, attrs)), done);
    SPL_GO(indices_make(q, k, attrs->group, &x), done);
    int parts = (plan.nsteps > 1) + (attrs->more_k != NULL);
    if (parts > 0 && spli_is_half(out->dtype)) { /* rounded once, after the last part */
        spl_layout l = out->layout;
        if (out->mesh)
            SPL_GO(spl_tensor_create(c->rt, out->mesh, &l, SPL_F32, SPL_MEM_ACTIVATIONS, &wide), done);
        else
            SPL_GO(spl_tensor_create_local(c->rt, out->ndim, out->shape, SPL_F32, &wide), done);
    }
    spli_attn_run run = {.rt = c->rt,
                         .comm = g.comm,
                         .plan = &plan,
                         .role = spl_role_name(attrs->role),
                         .args = args_of(c, &x, wide ? wide : out),
                         .k = k,
                         .v = v,
                         .merged = attrs->merge,
                         .lse_heads = q->local[2]};
    const int64_t none = 0;
    const spli_attn_groups one = {.n = 1, .begin = &none, .end = &q->local[2]};
    const spli_attn_groups *groups = attrs->groups ? attrs->groups : &one;
    if (groups->arrive) SPL_GO(groups->arrive(groups->ctx, 0), done);
    for (int i = 0; i < groups->n; i++) {
        SPL_GO(run_heads(c, &g, &run, groups->begin[i], groups->end[i]), done);
        if (groups->arrive && i + 1 < groups->n) SPL_GO(groups->arrive(groups->ctx, i + 1), done);
        if (groups->leave && !wide) SPL_GO(groups->leave(groups->ctx, i, out), done);
    }
    if (wide && spl_tensor_local_count(out) > 0)
        SPL_GO(c->rt->backend->cast(c->rt->backend_ctx, c->rt->compute, spli_tensor_data(out), out->dtype,
                                    spli_tensor_data(wide), SPL_F32, spl_tensor_local_count(out)),
               done);
    for (int i = 0; groups->leave && wide && i < groups->n; i++) SPL_GO(groups->leave(groups->ctx, i, out), done);
    SPL_GO(spli_wait_queue(c->rt, c->rt->compute), done); /* pieces and segments are host memory */
done:
    spl_tensor_release(wide);
    indices_free(&x);
    group_free(&g);
    spli_attn_plan_free(&plan);
    return status;
}

const spli_op spli_op_attention = {
    .name = "attention", .nin = 3, .nout = 2, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spli_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spli_attention_attrs *attrs,
                          spl_tensor **out, spl_tensor **lse) {
    spl_tensor *in[] = {q, k, v}, *both[2] = {NULL, NULL};
    SPL_TRY(spli_op_run(&spli_op_attention, attrs, in, 3u, both));
    *out = both[0];
    if (lse)
        *lse = both[1];
    else
        spl_tensor_release(both[1]);
    return spli_ok();
}
