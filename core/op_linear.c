/* op_linear.c: y = act(x W^T + bias): x [..., k], W [n, k], bias [n], y [..., n].
 *
 * Per axis (Shoeybi et al. 2019, Megatron-LM, section 3, as layout rules):
 *   x            W             y                     d x             d W
 *   replicate    replicate     replicate             as d y          as d y (replicate)
 *   shard(<k)    replicate     shard(same)           as d y          partial
 *   replicate    shard(1)      shard(last) (column)  partial         shard(1)
 *   shard(k)     shard(2)      partial     (row)     shard(k)        shard(2)
 *   partial      replicate     partial               as d y          (needs x replicate)
 * A bias or activation cannot be applied to a partial y: it comes once, after the reduction. */
#include "layout.h"
#include "op.h"
#include <stdio.h>
#include <string.h>

typedef struct linear_attrs {
    spl_activation act;
} linear_attrs;

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *x = c->in[0], *w = c->in[1], *bias = c->in[2];
    const linear_attrs *attrs = c->attrs;
    int last = x->ndim - 1;
    SPL_TRY(spli_need_float("linear", x, "x"));
    SPL_TRY(spli_need_dtype("linear", w, "weight", x->dtype));
    SPL_TRY(spli_need_ndim("linear", w, "weight", 2));
    if (bias) {
        SPL_TRY(spli_need_dtype("linear", bias, "bias", x->dtype));
        SPL_TRY(spli_need_ndim("linear", bias, "bias", 1));
    }
    if (x->ndim < 1 || x->shape[last] != w->shape[1])
        return spli_error(
            SPL_EARG,
            "linear: x ends in %lld elements, but the weight is [%lld, %lld]; the last dimension of x must be %lld",
            x->ndim ? (long long)x->shape[last] : 0LL, (long long)w->shape[0], (long long)w->shape[1],
            (long long)w->shape[1]);
    if (bias && bias->shape[0] != w->shape[0])
        return spli_error(SPL_EARG, "linear: the bias has %lld elements for a weight of %lld rows",
                          (long long)bias->shape[0], (long long)w->shape[0]);
    spl_layout *y = &out[0].layout;
    *y = x->layout;
    y->ndim = x->ndim;
    memcpy(y->shape, x->shape, sizeof y->shape);
    y->shape[last] = w->shape[0];
    out[0].dtype = x->dtype;
    for (int a = 0; x->mesh && a < x->layout.naxes; a++) {
        const spl_placement *px = &x->layout.axes[a], *pw = &w->layout.axes[a];
        spl_placement *py = &y->axes[a];
        char given[96], t1[24], t2[24];
        if (x->layout.axis_size[a] == 1) { /* does nothing, but says what it would do */
            if (pw->place == SPL_SHARD && pw->dim == 0) *py = *pw, py->dim = last;
            else if (px->place == SPL_SHARD && px->dim == last) *py = (spl_placement){0};
            continue;
        }
        int column = px->place == SPL_REPLICATE && pw->place == SPL_SHARD && pw->dim == 0;
        int row = px->place == SPL_SHARD && px->dim == last && pw->place == SPL_SHARD && pw->dim == 1 &&
                  px->scheme == pw->scheme && spli_unit(px) == spli_unit(pw) && spli_cover(px) == 1 &&
                  spli_cover(pw) == 1;
        int through = pw->place == SPL_REPLICATE && !(px->place == SPL_SHARD && px->dim == last);
        if (column) {
            *py = *pw;
            py->dim = last;
        } else if (row) {
            *py = (spl_placement){.place = SPL_PARTIAL};
        } else if (!through) {
            snprintf(given, sizeof given, "x is %s and the weight %s", spli_place_text(&x->layout, a, t1, sizeof t1),
                     spli_place_text(&w->layout, a, t2, sizeof t2));
            return spli_rule_error("linear", &x->layout, a, given,
                                   "a weight shard(1) takes a replicated x, a weight shard(2) an x sharded "
                                   "alike in its last dimension, a replicated weight an x whole in its last dimension");
        }
        if (py->place == SPL_PARTIAL && (bias || attrs->act != SPL_ACT_NONE))
            return spli_rule_error("linear", &x->layout, a, "the result is a pending sum",
                                   "its bias and activation come once, after the "
                                   "reduction: call linear without them, then redistribute");
        if (!bias) continue;
        spl_placement pb = bias->layout.axes[a];
        pb.dim = last; /* dimension 1 of the bias is the last of y */
        spl_layout yb = *y;
        yb.axes[a] = pb;
        int fits = py->place == SPL_SHARD && py->dim == last ? spli_same_on_axis(&yb, y, a) : pb.place == SPL_REPLICATE;
        if (!fits) {
            snprintf(given, sizeof given, "the bias is %s and the result %s",
                     spli_place_text(&bias->layout, a, t1, sizeof t1), spli_place_text(y, a, t2, sizeof t2));
            return spli_rule_error("linear", &x->layout, a, given, "a bias is split as the weight's rows are");
        }
    }
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    const spl_tensor *x = c->in[0], *w = c->in[1], *bias = c->in[2];
    din[0] = x->layout;
    din[1] = w->layout;
    if (bias) din[2] = bias->layout;
    for (int a = 0; x->mesh && a < x->layout.naxes; a++) {
        const spl_placement *px = &x->layout.axes[a], *pw = &w->layout.axes[a];
        const spl_placement partial = {.place = SPL_PARTIAL};
        if (pw->place == SPL_SHARD && pw->dim == 0) din[0].axes[a] = partial; /* each rank knows its columns' share */
        else if (pw->place == SPL_REPLICATE) din[0].axes[a] = dy->axes[a];
        if (px->place == SPL_SHARD && px->dim != x->ndim - 1) { /* rows of x are spread: so is the sum over them */
            din[1].axes[a] = partial;
            if (bias) din[2].axes[a] = partial;
        }
    }
}

static spl_status forward(const spli_call *c) {
    const linear_attrs *attrs = c->attrs;
    spl_tensor *x = NULL, *w = NULL, *bias = NULL, *y = c->out[0];
    spl_status status = spli_ok();
    SPL_GO(spli_dense(c->in[0], &x), done);
    SPL_GO(spli_dense(c->in[1], &w), done);
    SPL_GO(spli_dense(c->in[2], &bias), done);
    spl_gemm_args g = {.dtype = x->dtype,
                       .n = w->local[0],
                       .k = w->local[1],
                       .a = spli_tensor_data(x),
                       .b = spli_tensor_data(w),
                       .c = spli_tensor_data(y),
                       .lda = w->local[1],
                       .ldb = w->local[1],
                       .ldc = w->local[0],
                       .trans_b = 1,
                       .alpha = 1,
                       .bias = bias ? spli_tensor_data(bias) : NULL,
                       .act = attrs->act};
    g.m = 1;
    for (int d = 0; d < x->ndim - 1; d++) g.m *= x->local[d];
    if (g.m > 0 && g.n > 0) SPL_GO(c->rt->backend->gemm(c->rt->backend_ctx, c->rt->compute, &g), done);
    spli_count(&c->rt->counters.gemm_flops, 2.0 * (double)g.m * (double)g.n * (double)g.k);
done:
    spl_tensor_release(x);
    spl_tensor_release(w);
    spl_tensor_release(bias);
    return status;
}

const spli_op spli_op_linear = {
    .name = "linear", .nin = 3, .nout = 1, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spl_linear(spl_tensor *x, spl_tensor *weight, spl_tensor *bias, spl_activation act, spl_tensor **y) {
    linear_attrs attrs = {act};
    spl_tensor *in[] = {x, weight, bias};
    return spli_op_run(&spli_op_linear, &attrs, in, 1u, y);
}
