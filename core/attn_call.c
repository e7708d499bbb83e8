/* attn_call.c: attention as scripts and other programs call it where earlier calls gave a part: a tile of a scheme of
 * their own, merged into what is there. */
#include "attn.h"
#include "trace.h"
#include <string.h>

/* The attrs of a call; mask.slices is to be freed. */
static spl_status attrs_of(const spl_tensor *q, const spl_tensor *k, const spl_attention_options *o,
                           spli_attention_attrs *out) {
    memset(out, 0, sizeof *out);
    SPL_TRY(spli_need_ndim("attention", q, "q", 4));
    SPL_TRY(spli_need_ndim("attention", k, "k", 4));
    out->scale = o->scale;
    SPL_TRY(spli_attention_numbers("attention", &out->scale, o->dropout, q->shape[3]));
    out->group = k->shape[2] > 0 ? q->shape[2] / k->shape[2] : 0;
    out->role = o->role ? o->role : SPL_ROLE_RING;
    out->dropout = (spli_dropout){o->dropout, o->seed, o->instance, o->step};
    if (out->role != SPL_ROLE_RING && out->role != SPL_ROLE_GATHER)
        return spli_error(SPL_EARG, "attention: into takes keys that travel as 'ring' or 'gather', not as '%s'",
                          spl_role_name(out->role));
    if (!o->mask) return spli_mask_one(&out->mask, q->shape[1], k->shape[1], SPL_SLICE_CAUSAL);
    return spli_mask_resolve(o->mask, q->shape[1], k->shape[1], &out->mask);
}

/* The tensor given must be what the op would have made, but that out may be f32 where q is of half precision. */
static spl_status fits(const spl_tensor *t, const spli_out_spec *wanted, const char *name, int wide) {
    int same = t->ndim == wanted->layout.ndim && spli_tensor_dense(t);
    for (int d = 0; same && d < t->ndim; d++) same = t->shape[d] == wanted->layout.shape[d];
    if (same && t->mesh) same = spl_layout_equal(&t->layout, &wanted->layout);
    if (!same)
        return spli_error(SPL_EARG,
                          "attention: %s to merge into is not shaped and placed as this call's result; give what an "
                          "earlier call of the same queries gave",
                          name);
    if (t->dtype == wanted->dtype || (wide && spli_is_half(wanted->dtype) && t->dtype == SPL_F32)) return spli_ok();
    return spli_error(SPL_EARG, "attention: %s to merge into has dtype %s; %s is needed", name,
                      spl_dtype_name(t->dtype), spl_dtype_name(wanted->dtype));
}

spl_status spl_attention_into(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_options *options,
                              spl_tensor *out, spl_tensor *lse) {
    spli_attention_attrs attrs;
    spl_tensor *all[] = {q, k, v, out, lse};
    spli_out_spec wanted[2];
    SPL_TRY(spli_tensors_together("attention", all, 5));
    spl_runtime *rt = q->rt;
    spli_call c = {.rt = rt, .attrs = &attrs, .in = {q, k, v}, .out = {out, lse}, .wanted = 3u};
    spli_span span = spli_trace_begin(rt);
    spl_status status = attrs_of(q, k, options, &attrs);
    attrs.merge = 1;
    memset(wanted, 0, sizeof wanted);
    SPL_GO(status, done);
    SPL_GO(spli_op_attention.layouts(&c, wanted), done);
    if (!q->mesh) { /* a rule says layouts; of one rank alone its shapes are meant */
        wanted[0].layout.ndim = 4;
        wanted[1].layout.ndim = 3;
    }
    SPL_GO(fits(out, &wanted[0], "out", 1), done);
    SPL_GO(fits(lse, &wanted[1], "lse", 0), done);
    if (spli_is_half(out->dtype))
        SPL_GO(spli_error(SPL_EARG, "attention: out to merge into has dtype %s and would be rounded at each merge; "
                          "cast it to f32 first", spl_dtype_name(out->dtype)), done);
    SPL_GO(spli_op_attention.forward(&c), done);
    spli_trace_op(rt, span, "attention", 0, out);
done:
    spli_mask_free(&attrs.mask);
    return status;
}
