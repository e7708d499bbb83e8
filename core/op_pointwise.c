/* op_pointwise.c: element by element: activation (with bias, with gate), bias + dropout + residual, sum.
 *
 * Per axis: all tensors of x's shape are placed alike, and so is y; a bias [n] is split as the last dimension is. add
 * is linear and may be partial; the others are not, and refuse a pending sum. Cotangents: as d y; of a bias, partial
 * where rows are sharded. */
#include "layout.h"
#include "op.h"
#include "rng.h"
#include <string.h>

typedef struct pointwise_attrs {
    spl_activation act;
    spli_dropout dropout;
    int wide;
} pointwise_attrs;

/* in[0] is x, in[1] the bias or NULL, in[2] another tensor like x or NULL. `mixed`: that one may be f32 where x is bf16
 * or f16. */
static spl_status rule(const char *name, const spli_call *c, int linear, int mixed, spli_out_spec *out) {
    const spl_tensor *x = c->in[0], *bias = c->in[1], *other = c->in[2];
    int last = x->ndim - 1;
    SPL_TRY(spli_need_float(name, x, "x"));
    if (bias) {
        SPL_TRY(spli_need_dtype(name, bias, "bias", x->dtype));
        SPL_TRY(spli_need_ndim(name, bias, "bias", 1));
        if (x->ndim < 1 || bias->shape[0] != x->shape[last])
            return spli_error(SPL_EARG, "%s: the bias has %lld elements; it needs as many as the last dimension of x",
                              name, (long long)bias->shape[0]);
    }
    if (other) {
        if (!(mixed && spli_is_half(x->dtype) && other->dtype == SPL_F32))
            SPL_TRY(spli_need_dtype(name, other, "the second tensor", x->dtype));
        int same = other->ndim == x->ndim;
        for (int d = 0; same && d < x->ndim; d++) same = other->shape[d] == x->shape[d];
        if (!same) return spli_error(SPL_EARG, "%s: the two tensors differ in shape; they must be equal", name);
    }
    for (int a = 0; x->mesh && a < x->layout.naxes; a++) {
        const spl_placement *p = &x->layout.axes[a];
        if (x->layout.axis_size[a] == 1) continue;
        if (p->place == SPL_PARTIAL && !linear)
            return spli_rule_error(name, &x->layout, a, "x is a pending sum",
                                   "the function is not linear and needs finished values");
        if (other && !spli_same_on_axis(&x->layout, &other->layout, a))
            return spli_rule_error(name, &x->layout, a, "the two tensors are placed differently",
                                   "they must be placed alike");
        if (!bias) continue;
        spl_layout as_x = bias->layout;
        as_x.axes[a].dim = last;
        int fits = p->place == SPL_SHARD && p->dim == last ? spli_same_on_axis(&as_x, &x->layout, a)
                                                           : bias->layout.axes[a].place == SPL_REPLICATE;
        if (!fits)
            return spli_rule_error(name, &x->layout, a, "the bias is placed differently",
                                   "a bias is split as the last dimension is");
    }
    for (int i = 0; i < 2; i++) {
        out[i].layout = x->layout;
        out[i].layout.ndim = x->ndim;
        memcpy(out[i].layout.shape, x->shape, sizeof x->shape);
        out[i].dtype = i == 0 ? x->dtype : SPL_BOOL;
    }
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    const spl_tensor *bias = c->in[1];
    din[0] = *dy;
    if (c->in[2]) din[2] = *dy;
    if (!bias) return;
    din[1] = bias->layout;
    for (int a = 0; a < dy->naxes; a++)
        if (dy->axes[a].place == SPL_SHARD && dy->axes[a].dim != dy->ndim - 1)
            din[1].axes[a] = (spl_placement){.place = SPL_PARTIAL};
}

static void rows_and_cols(const spl_tensor *x, int64_t *rows, int64_t *cols) {
    *cols = x->ndim ? x->local[x->ndim - 1] : 1;
    *rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) *rows *= x->local[d];
}

/* Dense forms of the inputs. */
static spl_status dense_inputs(const spli_call *c, int n, spl_tensor **t) {
    for (int i = 0; i < n; i++) t[i] = NULL;
    for (int i = 0; i < n; i++) SPL_TRY(spli_dense(c->in[i], &t[i]));
    return spli_ok();
}

static void release_all(spl_tensor **t, int n) {
    for (int i = 0; i < n; i++) spl_tensor_release(t[i]);
}

static const void *data_or_null(const spl_tensor *t) { return t ? spli_tensor_data(t) : NULL; }

/* ---- activation ---- */

static spl_status act_layouts(const spli_call *c, spli_out_spec *out) { return rule("activation", c, 0, 0, out); }

static spl_status act_forward(const spli_call *c) {
    const pointwise_attrs *attrs = c->attrs;
    spl_tensor *t[3];
    spl_status status = spli_ok();
    SPL_GO(dense_inputs(c, 3, t), done);
    spl_act_args a = {.dtype = t[0]->dtype, .act = attrs->act, .x = spli_tensor_data(t[0]), .bias = data_or_null(t[1]),
                      .up = data_or_null(t[2]), .y = spli_tensor_data(c->out[0])};
    rows_and_cols(t[0], &a.rows, &a.cols);
    if (a.rows * a.cols > 0) SPL_GO(c->rt->backend->act(c->rt->backend_ctx, c->rt->compute, &a), done);
done:
    release_all(t, 3);
    return status;
}

const spli_op spli_op_act = {.name = "activation",
                             .nin = 3,
                             .nout = 1,
                             .layouts = act_layouts,
                             .cotangents = cotangents,
                             .forward = act_forward};

spl_status spli_activate(spl_tensor *x, spl_tensor *bias, spl_tensor *up, spl_activation act, spl_tensor **y) {
    pointwise_attrs attrs = {.act = act};
    spl_tensor *in[] = {x, bias, up};
    return spli_op_run(&spli_op_act, &attrs, in, 1u, y);
}

/* ---- bias + dropout + residual: one pass over memory; the mask is a function of global indices, so any split gives
 * the same ---- */

static spl_status residual_layouts(const spli_call *c, spli_out_spec *out) {
    const pointwise_attrs *attrs = c->attrs;
    SPL_TRY(rule("residual", c, 0, 1, out));
    if (attrs->wide && spli_is_half(out[0].dtype)) out[0].dtype = SPL_F32;
    return spli_ok();
}

static spl_status residual_forward(const spli_call *c) {
    const pointwise_attrs *attrs = c->attrs;
    spl_tensor *t[3];
    spl_index_map map = {0};
    spl_status status = spli_ok();
    SPL_GO(dense_inputs(c, 3, t), done);
    SPL_GO(spli_index_map_of(c->in[0], &map), done);
    spl_residual_args a = {.dtype = t[0]->dtype,
                           .residual_dtype = t[2] ? t[2]->dtype : t[0]->dtype,
                           .y_dtype = c->out[0]->dtype,
                           .x = spli_tensor_data(t[0]),
                           .bias = data_or_null(t[1]),
                           .residual = data_or_null(t[2]),
                           .p = attrs->dropout.p,
                           .map = &map,
                           .y = spli_tensor_data(c->out[0]),
                           .mask = c->out[1] ? spli_tensor_data(c->out[1]) : NULL,
                           .key = spli_rng_key(attrs->dropout.seed, attrs->dropout.instance, attrs->dropout.step)};
    rows_and_cols(t[0], &a.rows, &a.cols);
    if (a.rows * a.cols > 0) SPL_GO(c->rt->backend->residual(c->rt->backend_ctx, c->rt->compute, &a), done);
done:
    spli_index_map_free(&map);
    release_all(t, 3);
    return status;
}

const spli_op spli_op_residual = {.name = "residual",
                                  .nin = 3,
                                  .nout = 2,
                                  .layouts = residual_layouts,
                                  .cotangents = cotangents,
                                  .forward = residual_forward};

spl_status spli_residual(spl_tensor *x, spl_tensor *bias, spl_tensor *residual, spli_dropout dropout, int wide,
                         spl_tensor **y, spl_tensor **mask) {
    pointwise_attrs attrs = {.dropout = dropout, .wide = wide};
    spl_tensor *in[] = {x, bias, residual}, *out[2] = {NULL, NULL};
    SPL_TRY(spli_op_run(&spli_op_residual, &attrs, in, mask ? 3u : 1u, out));
    *y = out[0];
    if (mask) *mask = out[1];
    return spli_ok();
}

/* ---- sum ---- */

static spl_status add_layouts(const spli_call *c, spli_out_spec *out) { return rule("add", c, 1, 0, out); }

static spl_status add_forward(const spli_call *c) {
    spl_tensor *t[3];
    spl_status status = spli_ok();
    SPL_GO(dense_inputs(c, 3, t), done);
    const void *terms[] = {spli_tensor_data(t[0]), spli_tensor_data(t[2])};
    int64_t n = spl_tensor_local_count(t[0]);
    if (n > 0)
        SPL_GO(c->rt->backend->sum(c->rt->backend_ctx, c->rt->compute, spli_tensor_data(c->out[0]), terms, 2, n,
                                   t[0]->dtype),
               done);
done:
    release_all(t, 3);
    return status;
}

const spli_op spli_op_add = {
    .name = "add", .nin = 3, .nout = 1, .layouts = add_layouts, .cotangents = cotangents, .forward = add_forward};

spl_status spl_add(spl_tensor *a, spl_tensor *b, spl_tensor **y) {
    spl_tensor *in[] = {a, NULL, b};
    return spli_op_run(&spli_op_add, NULL, in, 1u, y);
}
