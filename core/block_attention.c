/* block_attention.c: attention between a block's linears, as its schedule has it: q, k and v into the layouts that the
 * op wants, keys along the axes on which they travel, and the result back into q's. */
#include "block.h"
#include <math.h>

static spl_status move(const spl_block *b, const char *name, spl_tensor *t, int is_kv, int64_t cover,
                       spl_tensor **out) {
    spl_layout to;
    spli_schedule_attention(&b->mesh->spec, &t->layout, is_kv, cover, &to);
    b->rt->subject = name;
    return spl_redistribute(t, &to, out);
}

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

spl_status spli_block_attend(const spl_block *b, spl_tensor *const qkv[3], spli_dropout dropout, spl_tensor **out,
                             spl_tensor **lse) {
    static const char *const names[] = {"q", "k", "v"};
    const spl_block_config *c = &b->config;
    const int64_t group = c->heads / c->kv_heads;
    spl_tensor *in[3] = {NULL, NULL, NULL}, *result = NULL;
    summaries s = {0};
    spli_attention_attrs a = {.scale = 1.0 / sqrt((double)c->head_dim),
                              .group = group,
                              .dropout = dropout,
                              .role = spli_schedule_travels(&b->mesh->spec)};
    spl_status status = spli_ok();
    for (int i = 0; i < 3; i++) SPL_GO(move(b, names[i], qkv[i], i > 0, i > 0 ? group : 1, &in[i]), done);
    SPL_GO(spli_block_mask(b, qkv[0]->shape[1], &a.mask), done);
    if (a.role == SPL_ROLE_HIERARCHICAL) SPL_GO(summarise(b, in[1], in[2], &a, &s), done);
    b->rt->subject = "attention";
    SPL_GO(spli_attention(in[0], in[1], in[2], &a, &result, lse), done);
    for (int i = 0; i < 3; i++) { /* not needed any more: their memory serves the way back */
        spl_tensor_release(in[i]);
        in[i] = NULL;
    }
    status = spl_redistribute(result, &qkv[0]->layout, out);
done:
    for (int i = 0; i < 3; i++) spl_tensor_release(in[i]);
    spl_tensor_release(result);
    summaries_free(&s);
    spli_mask_free(&a.mask);
    return status;
}
