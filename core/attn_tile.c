/* attn_tile.c: what schemes of attention are made of, for those who write their own: one tile of queries against keys,
 * and two partial results as one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "attn.h"
#include "rng.h"

spl_rng_key spl_dropout_key(uint64_t seed, uint64_t instance, uint64_t step) {
    return spli_rng_key(seed, instance, step);
}

static spl_status no_memory(void) { return spli_error(SPL_ENOMEM, "out of memory while planning attention"); }

static spl_dtype wide_of(spl_dtype t) { return t == SPL_F64 ? SPL_F64 : SPL_F32; }

/* ---- a tile ---- */

static spl_status check_segments(const char *what, const spl_segment *s, int n, int64_t rows, int64_t seq) {
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        const int64_t steps = s[i].length > 0 ? s[i].length - 1 : 0;
        if (s[i].start < 0 || s[i].length < 0 || s[i].stride < 1 || s[i].start > seq || s[i].length > seq ||
            (s[i].length > 0 && (s[i].start >= seq || steps > (seq - 1 - s[i].start) / s[i].stride)))
            return spli_error(SPL_EARG,
                              "attention_tile: segment %d of %s (start %lld, length %lld, stride %lld) lies outside a "
                              "sequence of %lld",
                              i + 1, what, (long long)s[i].start + 1, (long long)s[i].length, (long long)s[i].stride,
                              (long long)seq);
        if (__builtin_add_overflow(total, s[i].length, &total))
            return spli_error(SPL_EARG,
                              "attention_tile: the segments of %s name more rows than can be counted; there are %lld",
                              what, (long long)rows);
    }
    if (total == rows) return spli_ok();
    return spli_error(SPL_EARG, "attention_tile: the segments of %s name %lld rows, but there are %lld", what,
                      (long long)total, (long long)rows);
}

static spl_status check_tile(spl_tensor *const in[3], const spl_attention_part *part, spl_tensor *out,
                             spl_tensor *lse) {
    static const char *const names[] = {"q", "k", "v"};
    const spl_tensor *q = in[0], *k = in[1], *v = in[2];
    for (int i = 0; i < 3; i++) {
        SPL_TRY(spli_tensor_usable(in[i], names[i]));
        if (in[i]->mesh)
            return spli_error(SPL_EARG, "attention_tile: %s has a layout; give this rank's part, to_local()", names[i]);
        SPL_TRY(spli_need_float("attention_tile", in[i], names[i]));
        SPL_TRY(spli_need_ndim("attention_tile", in[i], names[i], 4));
        SPL_TRY(spli_need_dtype("attention_tile", in[i], names[i], q->dtype));
    }
    int fits = q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] && k->shape[2] > 0 &&
               q->shape[2] % k->shape[2] == 0;
    for (int d = 0; d < 4; d++) fits = fits && k->shape[d] == v->shape[d];
    if (!fits)
        return spli_error(SPL_EARG, "attention_tile: q is [batch, queries, heads, head_dim], k and v are [batch, keys, "
                                    "kv_heads, head_dim], and heads are a multiple of kv_heads");
    SPL_TRY(check_segments("queries", part->queries, part->nqueries, q->shape[1], part->seq));
    SPL_TRY(check_segments("keys", part->keys, part->nkeys, k->shape[1], part->kv_seq));
    if (!part->merge) return spli_ok();
    SPL_TRY(spli_tensor_usable(out, "out"));
    SPL_TRY(spli_tensor_usable(lse, "lse"));
    fits = !out->mesh && !lse->mesh && out->ndim == 4 && lse->ndim == 3 && out->dtype == wide_of(q->dtype) &&
           lse->dtype == out->dtype && spli_tensor_dense(out) && spli_tensor_dense(lse);
    for (int d = 0; d < 4 && fits; d++) fits = out->shape[d] == q->shape[d];
    fits = fits && lse->shape[0] == q->shape[0] && lse->shape[1] == q->shape[2] && lse->shape[2] == q->shape[1];
    spl_tensor *const all[] = {in[0], in[1], in[2], out, lse};
    if (fits) return spli_attention_apart("attention_tile", all);
    return spli_error(SPL_EARG, "attention_tile: what is to be merged into are the out and lse that another tile of "
                                "the same queries gave");
}

spl_status spl_attention_tile(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_part *part,
                              spl_tensor **out, spl_tensor **lse) {
    spl_tensor *in[] = {q, k, v}, *dense[3] = {NULL, NULL, NULL}, *made[2] = {NULL, NULL};
    const spli_segments queries = {.at = (spl_segment *)part->queries, .n = part->nqueries};
    const spli_segments keys = {.at = (spl_segment *)part->keys, .n = part->nkeys};
    spl_runtime *rt = q->rt;
    double scale = part->scale;
    spli_mask mask = {0};
    spli_attn_plan plan = {0};
    int32_t *kv_of_head = NULL;
    spl_status status = spli_ok();
    SPL_TRY(check_tile(in, part, *out, *lse));
    SPL_TRY(spli_attention_numbers("attention_tile", &scale, 0, q->shape[3]));
    if (part->mask)
        SPL_TRY(spli_mask_resolve(part->mask, part->seq, part->kv_seq, &mask));
    else
        SPL_TRY(spli_mask_one(&mask, part->seq, part->kv_seq, SPL_SLICE_CAUSAL));
    SPL_GO(spli_attn_plan_make(&mask, &queries, &keys, 1, SPLI_ATTN_GATHER, 0, 1, &plan), done);
    for (int i = 0; i < 3; i++) SPL_GO(spli_dense(in[i], &dense[i]), done);
    const int64_t lse_shape[] = {q->shape[0], q->shape[2], q->shape[1]};
    if (!part->merge) {
        SPL_GO(spl_tensor_create_local(rt, 4, q->shape, wide_of(q->dtype), &made[0]), done);
        SPL_GO(spl_tensor_create_local(rt, 3, lse_shape, wide_of(q->dtype), &made[1]), done);
    }
    spl_tensor *const o = part->merge ? *out : made[0], *const l = part->merge ? *lse : made[1];
    kv_of_head = malloc((size_t)(q->shape[2] ? q->shape[2] : 1) * sizeof *kv_of_head);
    if (!kv_of_head) SPL_GO(no_memory(), done);
    for (int64_t h = 0; h < q->shape[2]; h++) kv_of_head[h] = (int32_t)(h / (q->shape[2] / k->shape[2]));
    spl_attn_args a = {.dtype = q->dtype,
                       .out_dtype = o->dtype,
                       .batch = q->shape[0],
                       .heads = q->shape[2],
                       .kv_heads = k->shape[2],
                       .sq = q->shape[1],
                       .sk = k->shape[1],
                       .head_dim = q->shape[3],
                       .q = spli_tensor_data(dense[0]),
                       .k = spli_tensor_data(dense[1]),
                       .v = spli_tensor_data(dense[2]),
                       .out = spli_tensor_data(o),
                       .lse = spli_tensor_data(l),
                       .kv_of_head = kv_of_head,
                       .scale = scale,
                       .pieces = plan.steps[0].pieces,
                       .npieces = plan.steps[0].npieces,
                       .merge = part->merge,
                       .heads_global = q->shape[2],
                       .seq_q_global = part->seq,
                       .seq_k_global = part->kv_seq,
                       .tiles = &rt->counters.attention_tiles};
    memcpy(a.q_strides, dense[0]->strides, sizeof a.q_strides);
    memcpy(a.k_strides, dense[1]->strides, sizeof a.k_strides);
    memcpy(a.v_strides, dense[2]->strides, sizeof a.v_strides);
    memcpy(a.out_strides, o->strides, sizeof a.out_strides);
    if (a.batch * a.heads * a.sq > 0) SPL_GO(rt->backend->attention(rt->backend_ctx, rt->compute, &a), done);
    SPL_GO(spli_wait_queue(rt, rt->compute), done); /* pieces are host memory */
    spli_count(&rt->counters.attention_flops,
               4.0 * (double)a.head_dim * (double)plan.pairs * (double)a.batch * (double)a.heads);
    if (!part->merge) {
        *out = made[0];
        *lse = made[1];
        made[0] = made[1] = NULL;
    }
done:
    for (int i = 0; i < 3; i++) spl_tensor_release(dense[i]);
    for (int i = 0; i < 2; i++) spl_tensor_release(made[i]);
    free(kv_of_head);
    spli_attn_plan_free(&plan);
    spli_mask_free(&mask);
    return status;
}

/* ---- merging ---- */

static spl_status check_merge(spl_tensor *const in[4]) {
    static const char *const names[] = {"out_a", "lse_a", "out_b", "lse_b"};
    for (int i = 0; i < 4; i++) {
        SPL_TRY(spli_tensor_usable(in[i], names[i]));
        SPL_TRY(spli_need_float("attention_merge", in[i], names[i]));
        SPL_TRY(spli_need_ndim("attention_merge", in[i], names[i], i % 2 ? 3 : 4));
    }
    const spl_tensor *out = in[0], *lse = in[1];
    int fits = (out->dtype == SPL_F64) == (lse->dtype == SPL_F64) && lse->dtype == wide_of(lse->dtype);
    for (int i = 0; i < 2; i++) { /* of a and of b alike, and lse as its out, heads before seq */
        const spl_tensor *a = in[i], *b = in[i + 2];
        fits = fits && a->mesh == b->mesh && a->dtype == b->dtype;
        for (int d = 0; d < a->ndim; d++) fits = fits && a->shape[d] == b->shape[d] && a->local[d] == b->local[d];
        fits = fits && (!a->mesh || spl_layout_equal(&a->layout, &b->layout));
    }
    for (int d = 0; d < 3; d++) {
        const int from = d == 0 ? 0 : 3 - d;
        fits = fits && lse->shape[d] == out->shape[from] && lse->local[d] == out->local[from];
    }
    if (fits) return spli_ok();
    return spli_error(SPL_EARG, "attention_merge: both parts need an out of [batch, seq, heads, head_dim] and an lse "
                                "of [batch, heads, seq], f32 (f64 where out is), alike in shape, dtype and layout");
}

/* One row: a becomes a and b together. Every weight is in (0, 1], or exactly 0 where the part saw nothing. */
#define MERGE_ROW(T, EXP, LOG)                                                                                      \
    static void merge_row_##T(T *a, T *lse_a, const T *b, T lse_b, int64_t n) {                                     \
        const T m = *lse_a > lse_b ? *lse_a : lse_b;                                                                \
        if (lse_b == -(T)INFINITY && *lse_a > -(T)INFINITY) return;                                                 \
        if (*lse_a == -(T)INFINITY) {                                                                               \
            for (int64_t x = 0; x < n; x++) a[x] = lse_b == -(T)INFINITY ? 0 : b[x];                                \
            *lse_a = lse_b;                                                                                         \
            return;                                                                                                 \
        }                                                                                                           \
        const T wa = EXP(*lse_a - m), wb = EXP(lse_b - m), sum = wa + wb;                                           \
        for (int64_t x = 0; x < n; x++) a[x] = (a[x] * wa + b[x] * wb) / sum;                                       \
        *lse_a = m + LOG(sum);                                                                                      \
    }
MERGE_ROW(float, expf, logf)
MERGE_ROW(double, exp, log)

static void merge_rows(spl_dtype t, const int64_t *local, void *const host[4]) {
    const int64_t batch = local[0], seq = local[1], heads = local[2], n = local[3];
    for (int64_t i = 0; i < batch * seq * heads; i++) {
        const int64_t h = i % heads, s = i / heads % seq, b = i / heads / seq, at = (b * heads + h) * seq + s;
        if (t == SPL_F64)
            merge_row_double((double *)host[0] + i * n, (double *)host[1] + at, (const double *)host[2] + i * n,
                             ((const double *)host[3])[at], n);
        else
            merge_row_float((float *)host[0] + i * n, (float *)host[1] + at, (const float *)host[2] + i * n,
                            ((const float *)host[3])[at], n);
    }
}

static spl_status like(const spl_tensor *t, spl_dtype dtype, spl_tensor **out) {
    if (!t->mesh) return spl_tensor_create_local(t->rt, t->ndim, t->shape, dtype, out);
    return spl_tensor_create(t->rt, t->mesh, &t->layout, dtype, SPL_MEM_ACTIVATIONS, out);
}

spl_status spl_attention_merge(spl_tensor *out_a, spl_tensor *lse_a, spl_tensor *out_b, spl_tensor *lse_b,
                               spl_tensor **out, spl_tensor **lse) {
    spl_tensor *in[] = {out_a, lse_a, out_b, lse_b}, *made[2] = {NULL, NULL};
    void *host[4] = {NULL, NULL, NULL, NULL};
    spl_status status = spli_ok();
    SPL_TRY(check_merge(in));
    const spl_dtype t = wide_of(out_a->dtype);
    for (int i = 0; i < 2; i++) SPL_GO(like(in[i], t, &made[i]), done);
    if (out_a->rt->backend->has_memory) {
        for (int i = 0; i < 4; i++) {
            const size_t bytes = (size_t)spl_tensor_local_count(in[i]) * spl_dtype_size(t);
            host[i] = malloc(bytes ? bytes : 1);
            if (!host[i]) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while merging parts of attention"), done);
            SPL_GO(spl_tensor_read(in[i], host[i], t), done);
        }
        merge_rows(t, out_a->local, host);
        for (int i = 0; i < 2; i++) SPL_GO(spl_tensor_write(made[i], host[i], t), done);
    }
    *out = made[0];
    *lse = made[1];
    made[0] = made[1] = NULL;
done:
    for (int i = 0; i < 4; i++) free(host[i]);
    for (int i = 0; i < 2; i++) spl_tensor_release(made[i]);
    return status;
}
