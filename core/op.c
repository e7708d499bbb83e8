/* op.c: running an op, and what the layout rules of ops share. */
#include "op.h"
#include "layout.h"
#include "trace.h"
#include "whereabouts.h"
#include <stdio.h>
#include <string.h>

spl_status spli_op_run(const spli_op *op, const void *attrs, spl_tensor *const *in, unsigned wanted, spl_tensor **out) {
    spli_call c = {.attrs = attrs, .wanted = wanted};
    spli_out_spec spec[SPLI_MAX_OUT];
    spl_status status = spli_ok();
    memcpy(c.in, in, sizeof(spl_tensor *) * (size_t)op->nin);
    SPL_TRY(spli_tensors_together(op->name, c.in, op->nin));
    c.rt = in[0]->rt;
    spli_span span = spli_trace_begin(c.rt);
    memset(spec, 0, sizeof spec);
    SPL_TRY(op->layouts(&c, spec));
    for (int i = 0; i < op->nout; i++) {
        if (!(wanted & 1u << i)) continue;
        spl_mesh *mesh = in[0]->mesh;
        if (mesh)
            SPL_GO(spl_tensor_create(c.rt, mesh, &spec[i].layout, spec[i].dtype, SPL_MEM_ACTIVATIONS, &c.out[i]), fail);
        else
            SPL_GO(spl_tensor_create_local(c.rt, spec[i].layout.ndim, spec[i].layout.shape, spec[i].dtype, &c.out[i]),
                   fail);
    }
    spli_activity before = spli_now_in(c.rt, SPLI_IN_OP, op->name);
    status = op->forward(&c);
    spli_now_in(c.rt, before, NULL);
    if (status.code != SPL_OK) goto fail;
    spli_trace_op(c.rt, span, op->name, 0, c.out[0]);
    if (c.rt->hook.op) c.rt->hook.op(c.rt->hook.ctx, op->name, c.rt->subject, c.out[0]);
    for (int i = 0; i < op->nout; i++)
        if (wanted & 1u << i) out[i] = c.out[i];
    return status;
fail:
    for (int i = 0; i < op->nout; i++) spl_tensor_release(c.out[i]);
    return status;
}

const char *spli_place_text(const spl_layout *l, int axis, char *buffer, size_t n) {
    const spl_placement *p = &l->axes[axis];
    if (p->place == SPL_SHARD) snprintf(buffer, n, "shard(%d)", p->dim + 1);
    else snprintf(buffer, n, "%s", p->place == SPL_PARTIAL ? "partial" : "replicate");
    return buffer;
}

spl_status spli_rule_error(const char *op, const spl_layout *l, int axis, const char *given, const char *allowed) {
    return spli_error(SPL_EARG, "%s on axis '%s': %s; %s. Redistribute first", op, l->axis_name[axis], given, allowed);
}

int spli_same_on_axis(const spl_layout *a, const spl_layout *b, int axis) {
    const spl_placement *p = &a->axes[axis], *q = &b->axes[axis];
    if (a->axis_size[axis] == 1) return 1;
    if (p->place != q->place) return 0;
    return p->place != SPL_SHARD || (p->dim == q->dim && p->scheme == q->scheme && spli_unit(p) == spli_unit(q) &&
                                     spli_cover(p) == spli_cover(q));
}

int spli_is_half(spl_dtype t) { return t == SPL_BF16 || t == SPL_F16; }

spl_status spli_need_float(const char *op, const spl_tensor *t, const char *name) {
    if (spl_dtype_is_float(t->dtype)) return spli_ok();
    return spli_error(SPL_EARG, "%s: %s has dtype %s; a float is needed, cast it to f32 or f64", op, name,
                      spl_dtype_name(t->dtype));
}

spl_status spli_need_dtype(const char *op, const spl_tensor *t, const char *name, spl_dtype dtype) {
    if (t->dtype == dtype) return spli_ok();
    return spli_error(SPL_EARG, "%s: %s has dtype %s, but %s is needed here; cast it", op, name,
                      spl_dtype_name(t->dtype), spl_dtype_name(dtype));
}

spl_status spli_need_ndim(const char *op, const spl_tensor *t, const char *name, int ndim) {
    if (t->ndim == ndim) return spli_ok();
    return spli_error(SPL_EARG, "%s: %s has %d dimensions; %d are needed", op, name, t->ndim, ndim);
}

spl_status spli_dense(spl_tensor *t, spl_tensor **out) {
    *out = NULL;
    return t ? spl_tensor_contiguous(t, out) : spli_ok();
}
