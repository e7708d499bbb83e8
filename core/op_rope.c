/* op_rope.c: rotary position embedding of [batch, seq, heads, head_dim]; positions are the global indices of the
 * sequence shard, from the begin of their document, so any split rotates alike.
 *
 * Per axis: x replicate, or sharded in batch, seq or heads; y like x. RoPE is linear, so a partial x stays partial. d x
 * as d y. */
#include "layout.h"
#include "op.h"
#include <string.h>

typedef struct rope_attrs {
    double theta;
    const spl_documents *documents; /* NULL: one */
} rope_attrs;

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *x = c->in[0];
    SPL_TRY(spli_need_float("rope", x, "x"));
    SPL_TRY(spli_need_ndim("rope", x, "x", 4));
    if (x->shape[3] % 2 != 0)
        return spli_error(SPL_EARG, "rope: head_dim is %lld; it must be even, since elements are rotated in pairs",
                          (long long)x->shape[3]);
    for (int a = 0; x->mesh && a < x->layout.naxes; a++)
        if (x->layout.axis_size[a] > 1 && x->layout.axes[a].place == SPL_SHARD && x->layout.axes[a].dim == 3)
            return spli_rule_error("rope", &x->layout, a, "x is sharded in head_dim", "each rank needs whole heads");
    out[0].layout = x->layout;
    out[0].layout.ndim = 4;
    memcpy(out[0].layout.shape, x->shape, sizeof x->shape);
    out[0].dtype = x->dtype;
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    (void)c;
    din[0] = *dy;
}

static spl_status forward(const spli_call *c) {
    const rope_attrs *attrs = c->attrs;
    const spl_tensor *x = c->in[0], *y = c->out[0];
    spli_segments positions = {0}, restarted = {0};
    spl_segment all = {0, x->local[1], 1};
    spl_status status = spli_ok();
    if (x->mesh) SPL_TRY(spli_layout_segments(&x->layout, x->mesh->coords, 1, -1, &positions));
    SPL_GO(
        spli_segments_restart(x->mesh ? positions.at : &all, x->mesh ? positions.n : 1, attrs->documents, &restarted),
        done);
    spl_rope_args r = {.dtype = x->dtype,
                       .batch = x->local[0],
                       .seq = x->local[1],
                       .heads = x->local[2],
                       .head_dim = x->local[3],
                       .x = spli_tensor_data(x),
                       .y = spli_tensor_data(y),
                       .theta = attrs->theta,
                       .half = 1,
                       .positions = restarted.at,
                       .npositions = restarted.n};
    memcpy(r.x_strides, x->strides, sizeof r.x_strides);
    memcpy(r.y_strides, y->strides, sizeof r.y_strides);
    if (spl_tensor_local_count(x) > 0) SPL_GO(c->rt->backend->rope(c->rt->backend_ctx, c->rt->compute, &r), done);
done:
    spli_segments_free(&positions);
    spli_segments_free(&restarted);
    return status;
}

const spli_op spli_op_rope = {
    .name = "rope", .nin = 1, .nout = 1, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spli_rope(spl_tensor *x, double theta, const spl_documents *documents, spl_tensor **y) {
    rope_attrs attrs = {theta, documents};
    return spli_op_run(&spli_op_rope, &attrs, &x, 1u, y);
}
