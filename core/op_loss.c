/* op_loss.c: token log-likelihood: logits [..., vocab], labels [...] i64 (negative: ignored), nll [...] f64.
 *
 * Per axis: logits replicate, or sharded in a leading dimension; labels placed alike; nll as labels. Logits sharded by
 * vocabulary are redistributed to rows first (one all-to-all). Cotangents: d logits as d nll. */
#include "op.h"
#include <string.h>

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *logits = c->in[0], *labels = c->in[1];
    int last = logits->ndim - 1;
    SPL_TRY(spli_need_float("nll", logits, "logits"));
    SPL_TRY(spli_need_dtype("nll", labels, "labels", SPL_I64));
    int same = labels->ndim == last;
    for (int d = 0; same && d < last; d++) same = labels->shape[d] == logits->shape[d];
    if (!same)
        return spli_error(SPL_EARG, "nll: labels must have the shape of the logits without their last dimension");
    for (int a = 0; logits->mesh && a < logits->layout.naxes; a++) {
        const spl_placement *p = &logits->layout.axes[a];
        if (logits->layout.axis_size[a] == 1) continue;
        if (p->place == SPL_PARTIAL || (p->place == SPL_SHARD && p->dim == last))
            return spli_rule_error("nll", &logits->layout, a, "the logits of a token are spread over ranks",
                                   "each rank needs whole rows");
        if (!spli_same_on_axis(&logits->layout, &labels->layout, a))
            return spli_rule_error("nll", &logits->layout, a, "logits and labels are placed differently",
                                   "they must be placed alike");
    }
    out[0].layout = labels->layout;
    out[0].layout.ndim = labels->ndim;
    memcpy(out[0].layout.shape, labels->shape, sizeof labels->shape);
    out[0].dtype = SPL_F64;
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    din[0] = c->in[0]->layout;
    din[1] = c->in[1]->layout;
    for (int a = 0; a < dy->naxes; a++) din[0].axes[a] = dy->axes[a];
}

static spl_status forward(const spli_call *c) {
    spl_tensor *logits = NULL, *labels = NULL;
    spl_status status = spli_ok();
    SPL_GO(spli_dense(c->in[0], &logits), done);
    SPL_GO(spli_dense(c->in[1], &labels), done);
    spl_nll_args n = {.dtype = logits->dtype,
                      .rows = spl_tensor_local_count(labels),
                      .vocab = logits->local[logits->ndim - 1],
                      .logits = spli_tensor_data(logits),
                      .labels = spli_tensor_data(labels),
                      .nll = spli_tensor_data(c->out[0])};
    if (n.rows > 0) SPL_GO(c->rt->backend->nll(c->rt->backend_ctx, c->rt->compute, &n), done);
done:
    spl_tensor_release(logits);
    spl_tensor_release(labels);
    return status;
}

const spli_op spli_op_nll = {
    .name = "nll", .nin = 2, .nout = 1, .layouts = layouts, .cotangents = cotangents, .forward = forward};

spl_status spl_nll(spl_tensor *logits, spl_tensor *labels, spl_tensor **nll) {
    spl_tensor *in[] = {logits, labels};
    return spli_op_run(&spli_op_nll, NULL, in, 1u, nll);
}
