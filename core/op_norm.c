/* op_norm.c: LayerNorm and RMSNorm over the last dimension: x [..., n], gamma [n], beta [n]; y like x, mean and rstd
 * [...]. x may be f32 where gamma and beta are bf16 or f16: y is then as they are.
 *
 * Per axis: x replicate or sharded in a leading dimension; gamma and beta replicate; y, mean and rstd as x.
 * Cotangents: d x as d y; d gamma and d beta partial where x is sharded. A partial x is refused: a norm is not linear.
 */
#include "op.h"
#include <math.h>
#include <string.h>

typedef struct norm_attrs {
    spl_norm_kind kind;
    double eps;
} norm_attrs;

/* What gamma, beta and y are of. */
static spl_dtype dtype_of(const spli_call *c) {
    const spl_tensor *p = c->in[1] ? c->in[1] : c->in[2];
    return p && spli_is_half(p->dtype) && c->in[0]->dtype == SPL_F32 ? p->dtype : c->in[0]->dtype;
}

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *x = c->in[0];
    int last = x->ndim - 1;
    spl_dtype dtype = dtype_of(c);
    SPL_TRY(spli_need_float("norm", x, "x"));
    if (x->ndim < 1) return spli_error(SPL_EARG, "norm: x has no dimension to normalise over");
    for (int i = 1; i < 3; i++) {
        const spl_tensor *p = c->in[i];
        const char *name = i == 1 ? "gamma" : "beta";
        if (!p) continue;
        SPL_TRY(spli_need_dtype("norm", p, name, dtype));
        SPL_TRY(spli_need_ndim("norm", p, name, 1));
        if (p->shape[0] != x->shape[last])
            return spli_error(SPL_EARG, "norm: %s has %lld elements, but the last dimension of x has %lld", name,
                              (long long)p->shape[0], (long long)x->shape[last]);
        for (int a = 0; x->mesh && a < x->layout.naxes; a++)
            if (x->layout.axis_size[a] > 1 && p->layout.axes[a].place != SPL_REPLICATE)
                return spli_rule_error("norm", &x->layout, a, "gamma or beta is not replicated",
                                       "each rank needs it whole");
    }
    for (int a = 0; x->mesh && a < x->layout.naxes; a++) {
        const spl_placement *p = &x->layout.axes[a];
        if (x->layout.axis_size[a] == 1) continue;
        if (p->place == SPL_PARTIAL)
            return spli_rule_error("norm", &x->layout, a, "x is a pending sum", "a norm needs finished values");
        if (p->place == SPL_SHARD && p->dim == last)
            return spli_rule_error("norm", &x->layout, a, "x is sharded in its last dimension",
                                   "a norm needs whole rows");
    }
    for (int i = 0; i < 3; i++) {
        spl_layout *l = &out[i].layout;
        *l = x->layout;
        l->ndim = i == 0 ? x->ndim : last;
        memcpy(l->shape, x->shape, sizeof l->shape);
        out[i].dtype = i == 0 ? dtype : dtype == SPL_F64 ? SPL_F64 : SPL_F32;
        for (int a = 0; x->mesh && a < l->naxes; a++)
            if (i > 0 && l->axes[a].place == SPL_SHARD && l->axes[a].dim == last)
                l->axes[a] = (spl_placement){0}; /* of one rank */
    }
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    din[0] = *dy;
    for (int i = 1; i < 3; i++) {
        if (!c->in[i]) continue;
        din[i] = c->in[i]->layout;
        for (int a = 0; a < din[i].naxes; a++)
            if (dy->axes[a].place != SPL_REPLICATE) din[i].axes[a] = (spl_placement){.place = SPL_PARTIAL};
    }
}

static spl_status forward(const spli_call *c) {
    const norm_attrs *attrs = c->attrs;
    spl_tensor *x = NULL, *gamma = NULL, *beta = NULL;
    spl_status status = spli_ok();
    SPL_GO(spli_dense(c->in[0], &x), done);
    SPL_GO(spli_dense(c->in[1], &gamma), done);
    SPL_GO(spli_dense(c->in[2], &beta), done);
    spl_norm_args n = {.dtype = c->out[0]->dtype,
                       .x_dtype = x->dtype,
                       .kind = attrs->kind,
                       .rows = 1,
                       .cols = x->local[x->ndim - 1],
                       .x = spli_tensor_data(x),
                       .gamma = gamma ? spli_tensor_data(gamma) : NULL,
                       .beta = beta ? spli_tensor_data(beta) : NULL,
                       .eps = attrs->eps,
                       .y = spli_tensor_data(c->out[0]),
                       .mean = c->out[1] ? spli_tensor_data(c->out[1]) : NULL,
                       .rstd = c->out[2] ? spli_tensor_data(c->out[2]) : NULL};
    for (int d = 0; d < x->ndim - 1; d++) n.rows *= x->local[d];
    if (n.rows > 0) SPL_GO(c->rt->backend->norm(c->rt->backend_ctx, c->rt->compute, &n), done);
done:
    spl_tensor_release(x);
    spl_tensor_release(gamma);
    spl_tensor_release(beta);
    return status;
}

const spli_op spli_op_norm = {
    .name = "norm", .nin = 3, .nout = 3, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spl_norm(spl_tensor *x, spl_tensor *gamma, spl_tensor *beta, spl_norm_kind kind, double eps, spl_tensor **y,
                    spl_tensor **mean, spl_tensor **rstd) {
    norm_attrs attrs = {kind, eps};
    spl_tensor *in[] = {x, gamma, beta}, *out[3] = {NULL, NULL, NULL};
    if (!(eps >= 0) || isinf(eps))
        return spli_error(SPL_EARG, "norm: eps is %g; a number of 0 or more is needed, 1e-5 say", eps);
    unsigned wanted = 1u | (mean ? 2u : 0) | (rstd ? 4u : 0);
    SPL_TRY(spli_op_run(&spli_op_norm, &attrs, in, wanted, out));
    *y = out[0];
    if (mean) *mean = out[1];
    if (rstd) *rstd = out[2];
    return spli_ok();
}
