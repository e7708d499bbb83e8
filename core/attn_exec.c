/* attn_exec.c: carries out an attention plan: runs each step's pieces through the backend's attention kernel and
 * merges.
 *
 * The op's rule, per axis: q, k and v replicate, or sharded alike in the batch; heads: q sharded in heads (dimension 3)
 * with k and v sharded to cover the query heads that are here; the sequence of k and v whole. out as q; lse [batch,
 * heads, seq_q] as q. Cotangents: as the inputs; where KV heads overlap on ranks, the transposed redistribution sums
 * over holders. */
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
        int queries = pq->place == SPL_SHARD && pq->dim == 1 && pk->place == SPL_REPLICATE;
        int heads = pq->place == SPL_SHARD && pq->dim == 2 && pk->place == SPL_SHARD && pk->dim == 2 &&
                    pq->scheme == pk->scheme && spli_unit(pq) == 1 && spli_unit(pk) == 1 &&
                    spli_cover(pk) == attrs->group * spli_cover(pq);
        if (!whole && !batch && !queries && !heads)
            return spli_rule_error(
                "attention", &q->layout, a, "q and k are placed in a way that does not fit",
                "both whole, both sharded in batch, q in its sequence, or q in heads with k and v covering them");
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
            if (c->in[0]->layout.axes[a].place == SPL_SHARD && c->in[0]->layout.axes[a].dim == 1)
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

static spl_status forward(const spli_call *c) {
    const spli_attention_attrs *attrs = c->attrs;
    const spl_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *out = c->out[0];
    spl_runtime *rt = c->rt;
    spli_segments q_seq = {0}, kv_seq = {0}, batch = {0}, heads = {0}, kv_heads = {0};
    spli_attn_plan plan = {0};
    int32_t *kv_of_head = NULL;
    spl_status status = spli_ok();
    if (spl_tensor_local_count(q) == 0) return spli_ok();
    SPL_GO(segments_of(q, 0, &batch), done);
    SPL_GO(segments_of(q, 1, &q_seq), done);
    SPL_GO(segments_of(q, 2, &heads), done);
    SPL_GO(segments_of(k, 1, &kv_seq), done);
    SPL_GO(segments_of(k, 2, &kv_heads), done);
    kv_of_head = malloc((size_t)q->local[2] * sizeof *kv_of_head);
    if (!kv_of_head) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while planning attention"), done);
    SPL_GO(map_heads(&heads, &kv_heads, attrs->group, kv_of_head), done);
    SPL_GO(spli_attn_plan_make(&attrs->mask, &q_seq, &kv_seq, 1, 0, SPLI_ATTN_LOCAL, &plan), done);
    for (int i = 0; i < plan.nsteps; i++) {
        const spli_attn_step *step = &plan.steps[i];
        spl_attn_args a = {.dtype = q->dtype,
                           .out_dtype = out->dtype,
                           .batch = q->local[0],
                           .heads = q->local[2],
                           .kv_heads = k->local[2],
                           .sq = q->local[1],
                           .sk = k->local[1],
                           .head_dim = q->local[3],
                           .q = spli_tensor_data(q),
                           .k = spli_tensor_data(k),
                           .v = spli_tensor_data(v),
                           .out = spli_tensor_data(out),
                           .lse = spli_tensor_data(c->out[1]),
                           .kv_of_head = kv_of_head,
                           .scale = attrs->scale,
                           .pieces = step->pieces,
                           .npieces = step->npieces,
                           .merge = i > 0,
                           .p = attrs->dropout.p,
                           .key = spli_rng_key(attrs->dropout.seed, attrs->dropout.instance, attrs->dropout.step),
                           .batch_segments = batch.at,
                           .nbatch_segments = batch.n,
                           .head_segments = heads.at,
                           .nhead_segments = heads.n,
                           .heads_global = q->shape[2],
                           .seq_q_global = q->shape[1],
                           .seq_k_global = k->shape[1]};
        memcpy(a.q_strides, q->strides, sizeof a.q_strides);
        memcpy(a.k_strides, k->strides, sizeof a.k_strides);
        memcpy(a.v_strides, v->strides, sizeof a.v_strides);
        memcpy(a.out_strides, out->strides, sizeof a.out_strides);
        SPL_GO(rt->backend->attention(rt->backend_ctx, rt->compute, &a), done);
    }
    spli_count(&rt->counters.attention_flops, 4.0 * (double)q->local[3] * (double)plan.pairs * (double)q->local[0] *
                                                   (double)q->local[2]);
    SPL_GO(spli_wait_queue(rt, rt->compute), done); /* pieces and segments are host memory */
done:
    spli_segments_free(&batch);
    spli_segments_free(&q_seq);
    spli_segments_free(&heads);
    spli_segments_free(&kv_seq);
    spli_segments_free(&kv_heads);
    spli_attn_plan_free(&plan);
    free(kv_of_head);
    return status;
}

const spli_op spli_op_attention = {
    .name = "attention", .nin = 3, .nout = 2, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spli_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spli_attention_attrs *attrs,
                          spl_tensor **out, spl_tensor **lse) {
    spl_tensor *in[] = {q, k, v}, *both[2] = {NULL, NULL};
    SPL_TRY(spli_op_run(&spli_op_attention, attrs, in, 3u, both));
    *out = both[0];
    if (lse) *lse = both[1];
    else spl_tensor_release(both[1]);
    return spli_ok();
}
