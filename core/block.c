/* block.c: the transformer block, pre-norm (GPT and Llama kinds), written on ops.
 *
 *   x ---- norm - qkv - attention - out ---(+ bias, dropout)--+---- norm - up [gate] - act - down ---(+ bias,
 * dropout)--+-- y
 *     \________________________________________________________/ \___________________________________________________/
 *
 * With bf16 or f16 weights all that linears and collectives take and give is of that dtype, and the residual is f32
 * until the block's output.
 *
 * The definition says the mathematics once. How ranks share it is in the layouts that the schedule gives to four kinds
 * of tensor (block_schedule.c); between ops that need different layouts stands a redistribution, and it does nothing
 * where they are the same. Nothing here asks which role an axis has. */
#include "block.h"
#include <stdlib.h>
#include <string.h>

/* What the forward pass makes on its way. Dropped as soon as nothing needs it. */
typedef struct pass {
    const spl_block *b;
    spl_saved *saved; /* NULL: keep nothing */
    int64_t batch, seq;
    uint64_t step;
    spl_layout residual, whole;
} pass;

static void drop(spl_tensor **t) {
    spl_tensor_release(*t);
    *t = NULL;
}

/* Names what is made next, for explain and traces. */
static void name_next(const pass *p, const char *name) { p->b->rt->subject = name; }

/* Keeps a tensor as a saved output. */
static void save(const pass *p, const char *name, spl_tensor *t) {
    spl_saved *s = p->saved;
    if (!s || !t || s->count == SPL_MAX_SAVED) return;
    strncpy(s->name[s->count], name, SPL_NAME_BYTES - 1);
    spl_tensor_retain(t);
    s->tensor[s->count++] = t;
}

/* The same, but through a view. */
static spl_status save_view(const pass *p, const char *name, spl_status made, spl_tensor **view) {
    if (made.code == SPL_OK) save(p, name, *view);
    drop(view);
    return made;
}

static spl_status move(const pass *p, const char *name, const spl_layout *to, spl_tensor **t) {
    spl_tensor *moved;
    name_next(p, name);
    SPL_TRY(spl_redistribute(*t, to, &moved));
    spl_tensor_release(*t);
    *t = moved;
    return spli_ok();
}

static spl_status normalise(const pass *p, const char *const names[3], spl_tensor *x, spli_param gamma, spli_param beta,
                            spl_tensor **y) {
    const spl_block *b = p->b;
    spl_tensor *mean = NULL, *rstd = NULL, *view = NULL;
    int wants_mean = p->saved && b->config.norm == SPL_NORM_LAYER;
    name_next(p, names[0]);
    SPL_TRY(spl_norm(x, b->param[gamma], b->param[beta], b->config.norm, b->config.eps, y, wants_mean ? &mean : NULL,
                     p->saved ? &rstd : NULL));
    save(p, names[1], mean);
    spl_status status = spli_ok();
    if (p->saved) {
        int64_t column[] = {p->batch, p->seq, 1};
        status = save_view(p, names[2], spl_tensor_reshape(rstd, 3, column, &view), &view);
    }
    drop(&mean);
    drop(&rstd);
    if (status.code != SPL_OK) drop(y);
    return status;
}

/* q, k, v [batch, seq, heads, head_dim] as three views of one product: the weight interleaves them head by head. */
static spl_status project_interleaved(const pass *p, spl_tensor *x, spl_tensor *qkv[3]) {
    const spl_block *b = p->b;
    int64_t d = b->config.head_dim;
    spl_tensor *flat = NULL, *heads = NULL;
    spl_status status = spli_ok();
    name_next(p, "mha_linear0_out");
    SPL_GO(spl_linear(x, b->param[SPLI_QKV_WEIGHT], b->param[SPLI_QKV_BIAS], SPL_ACT_NONE, &flat), done);
    save(p, "mha_linear0_out", flat);
    SPL_GO(spl_tensor_split(flat, 2, 3 * d, &heads), done);
    for (int i = 0; i < 3; i++) SPL_GO(spl_tensor_narrow(heads, 3, i * d, d, &qkv[i]), done);
done:
    drop(&flat);
    drop(&heads);
    return status;
}

static spl_status project_separate(const pass *p, spl_tensor *x, spl_tensor *qkv[3]) {
    static const char *const names[] = {"mha_q_out", "mha_k_out", "mha_v_out"};
    const spl_block *b = p->b;
    spl_tensor *flat = NULL;
    spl_status status = spli_ok();
    for (int i = 0; i < 3; i++) {
        name_next(p, names[i]);
        SPL_GO(spl_linear(x, b->param[SPLI_Q_WEIGHT + 2 * i], b->param[SPLI_Q_BIAS + 2 * i], SPL_ACT_NONE, &flat),
               done);
        save(p, names[i], flat);
        SPL_GO(spl_tensor_split(flat, 2, b->config.head_dim, &qkv[i]), done);
        drop(&flat);
    }
done:
    drop(&flat);
    return status;
}

static spli_dropout dropout(const pass *p, int which, double probability) {
    return (spli_dropout){probability, p->b->config.seed, spli_block_dropout_instance(p->b, which), p->step};
}

/* [batch, seq, hidden] as the linears want it -> attention, before the output projection:
 * [batch, seq, heads * head_dim] */
static spl_status attend(const pass *p, spl_tensor *x, spl_tensor **out) {
    const spl_block_config *c = &p->b->config;
    spl_tensor *qkv[3] = {NULL, NULL, NULL}, *heads_out = NULL, *lse = NULL, *view = NULL;
    spl_status status = spli_ok();
    SPL_GO(c->separate_qkv ? project_separate(p, x, qkv) : project_interleaved(p, x, qkv), done);
    for (int i = 0; i < 2 && c->rope_theta > 0; i++) {
        spl_tensor *turned;
        name_next(p, i ? "rope_k" : "rope_q");
        SPL_GO(spli_rope(qkv[i], c->rope_theta, spl_mask_documents(c->mask), &turned), done);
        spl_tensor_release(qkv[i]);
        qkv[i] = turned;
    }
    name_next(p, "attention"); /* [batch, seq, heads, head_dim]; saved as sdpa_out [batch, heads, seq, head_dim] */
    SPL_GO(spli_block_attend(p->b, qkv, dropout(p, 0, c->dropout_attention), &heads_out, p->saved ? &lse : NULL), done);
    if (p->saved) SPL_GO(save_view(p, "sdpa_out", spl_tensor_transpose(heads_out, 1, 2, &view), &view), done);
    save(p, "sdpa_logsumexp", lse);
    SPL_GO(spl_tensor_merge(heads_out, 2, out), done);
done:
    for (int i = 0; i < 3; i++) drop(&qkv[i]);
    drop(&heads_out);
    drop(&lse);
    return status;
}

/* [batch, seq, hidden] as the linears want it -> MLP, before the down projection: [batch, seq, ffn] */
static spl_status expand(const pass *p, spl_tensor *x, spl_tensor **out) {
    const spl_block *b = p->b;
    const spl_block_config *c = &b->config;
    spl_tensor *up = NULL, *gate = NULL;
    spl_status status = spli_ok();
    /* saved: the value before the activation is wanted; halves: that value is rounded whether it is saved or not */
    spl_activation fused = c->gated || p->saved || spli_is_half(c->dtype) ? SPL_ACT_NONE : c->act;
    name_next(p, c->gated ? "mlp_up_out" : "mlp_linear0_out");
    SPL_GO(spl_linear(x, b->param[SPLI_UP_WEIGHT], b->param[SPLI_UP_BIAS], fused, &up), done);
    if (c->gated) {
        name_next(p, "mlp_gate_out");
        SPL_GO(spl_linear(x, b->param[SPLI_GATE_WEIGHT], b->param[SPLI_GATE_BIAS], SPL_ACT_NONE, &gate), done);
        save(p, "mlp_gate_out", gate);
        save(p, "mlp_up_out", up);
        name_next(p, "mlp_act");
        SPL_GO(spli_activate(gate, NULL, up, c->act, out), done);
    } else if (fused == c->act) {
        *out = up;
        up = NULL;
    } else {
        save(p, "mlp_linear0_out", up);
        name_next(p, "mlp_act");
        SPL_GO(spli_activate(up, NULL, NULL, c->act, out), done);
    }
done:
    drop(&up);
    drop(&gate);
    return status;
}

/* What one half of the block is made of: the two halves differ in nothing else. */
typedef struct half {
    const char *norm_names[3];
    spli_param gamma, beta, weight, bias;
    spl_status (*inner)(const pass *p, spl_tensor *x, spl_tensor **out);
    const char *out_name, *mask_name, *y_name;
    int save_out;
    int dropout;
    int wide; /* y is the residual on its way, f32 at least; else the output of the block, of its dtype */
} half;

static const half halves[2] = {
    {{"ln0_out", "ln0_mean", "ln0_rstd"}, SPLI_LN0_GAMMA, SPLI_LN0_BETA, SPLI_OUT_WEIGHT, SPLI_OUT_BIAS, attend,
     "mha_linear1_out", "mha_dropout_mask", "mha_out", 1, 1, 1},
    {{"ln1_out", "ln1_mean", "ln1_rstd"}, SPLI_LN1_GAMMA, SPLI_LN1_BETA, SPLI_DOWN_WEIGHT, SPLI_DOWN_BIAS, expand,
     "mlp_linear1_out", "mlp_dropout_mask", "out", 0, 2, 0},
};

/* norm, to what the linears want, inner, row linear, back to the residual's layout, + bias, dropout, residual. */
static spl_status run_half(const pass *p, const half *h, spl_tensor *x, spl_tensor **y) {
    const spl_block *b = p->b;
    spl_tensor *t = NULL, *inner = NULL, *mask = NULL;
    spl_status status = spli_ok();
    SPL_GO(normalise(p, h->norm_names, x, h->gamma, h->beta, &t), done);
    SPL_GO(move(p, h->norm_names[0], &p->whole, &t), done);
    SPL_GO(h->inner(p, t, &inner), done);
    drop(&t);
    name_next(p, h->out_name);
    SPL_GO(spl_linear(inner, b->param[h->weight], NULL, SPL_ACT_NONE, &t), done);
    drop(&inner);
    SPL_GO(move(p, h->out_name, &p->residual, &t), done);
    if (h->save_out) save(p, h->out_name, t);
    name_next(p, h->y_name);
    SPL_GO(spli_residual(t, b->param[h->bias], x, dropout(p, h->dropout, b->config.dropout_hidden), h->wide, y,
                         p->saved ? &mask : NULL),
           done);
    save(p, h->mask_name, mask);
done:
    drop(&t);
    drop(&inner);
    drop(&mask);
    return status;
}

spl_status spl_block_forward(spl_block *b, spl_tensor *x, uint64_t step, spl_tensor **y, spl_saved *saved) {
    spl_tensor *in = NULL, *middle = NULL, *out = NULL;
    spl_status status = spli_ok();
    if (saved) memset(saved, 0, sizeof *saved);
    if (!b->mesh)
        return spli_error(SPL_EARG, "forward: the block has no schedule yet; call block:schedule(mesh) first");
    SPL_TRY(spli_tensor_usable(x, "x of forward"));
    if (x->mesh != b->mesh)
        return spli_error(
            SPL_EARG,
            "forward: x was made on another mesh than the block's; make it with block:input{} or on the block's mesh");
    SPL_TRY(spli_need_ndim("forward", x, "x", 3));
    if (!(spli_is_half(b->config.dtype) && x->dtype == SPL_F32)) /* the residual is f32 inside, so x may be */
        SPL_TRY(spli_need_dtype("forward", x, "x", b->config.dtype));
    if (x->shape[2] != b->config.hidden)
        return spli_error(SPL_EARG, "forward: x has hidden size %lld, the block has %lld", (long long)x->shape[2],
                          (long long)b->config.hidden);

    pass p = {.b = b, .saved = saved, .batch = x->shape[0], .seq = x->shape[1], .step = step};
    const spli_placing placing = spli_block_placing(b);
    spli_schedule_layout(&placing, SPLI_RESIDUAL, 3, x->shape, 0, 0, &p.residual);
    spli_schedule_layout(&placing, SPLI_INNER, 3, x->shape, 0, 0, &p.whole);
    if (saved) saved->seed = b->config.seed, saved->offset = step;
    name_next(&p, "x");
    SPL_GO(spl_redistribute(x, &p.residual, &in), done);
    SPL_GO(run_half(&p, &halves[0], in, &middle), done);
    SPL_GO(run_half(&p, &halves[1], middle, &out), done);
    save(&p, "out", out);
    *y = out;
    out = NULL;
done:
    b->rt->subject = NULL;
    drop(&in);
    drop(&middle);
    drop(&out);
    if (status.code != SPL_OK && saved) {
        for (int i = 0; i < saved->count; i++) spl_tensor_release(saved->tensor[i]);
        saved->count = 0;
    }
    return status;
}
