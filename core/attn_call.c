/* attn_call.c: attention as scripts and other programs call it where earlier calls gave a part: a tile of a scheme of
 * their own, merged into what is there. */
#include "block.h"
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
    out->role = o->role ? o->role : q->mesh ? spli_schedule_travels(&q->mesh->spec) : SPL_ROLE_NONE;
    if (out->role == SPL_ROLE_NONE) out->role = SPL_ROLE_RING;
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

/* ---- memory that must not be shared ---- */

/* The bytes of its storage that this rank's part reaches over: [*begin, *end). */
static void reach(const spl_tensor *t, int64_t *begin, int64_t *end) {
    const int64_t size = (int64_t)spl_dtype_size(t->dtype);
    int64_t low = t->offset, high = t->offset + 1;
    for (int d = 0; d < t->ndim; d++) {
        const int64_t last = (t->local[d] - 1) * t->strides[d];
        if (last < 0)
            low += last;
        else
            high += last;
    }
    *begin = low * size;
    *end = high * size;
}

static int share(const spl_tensor *a, const spl_tensor *b) {
    int64_t a0, a1, b0, b1;
    if (a->storage != b->storage || !spl_tensor_local_count(a) || !spl_tensor_local_count(b)) return 0;
    reach(a, &a0, &a1);
    reach(b, &b0, &b1);
    return a0 < b1 && b0 < a1;
}

spl_status spli_attention_apart(const char *function, spl_tensor *const all[5]) {
    static const char *const names[] = {"q", "k", "v", "out", "lse"};
    for (int i = 3; i < 5; i++)
        for (int j = 0; j < i; j++)
            if (share(all[i], all[j]))
                return spli_error(SPL_EARG,
                                  "%s: %s to merge into shares memory with %s; it does not work in place: give a clone "
                                  "of one of them",
                                  function, names[i], names[j]);
    return spli_ok();
}

/* ---- ranks that mean the same ---- */

uint64_t spli_attention_hash(uint64_t hash, const spl_tensor *q, const spli_attention_attrs *attrs) {
    const spli_dropout none = {0}, *drop = attrs->dropout.p > 0 ? &attrs->dropout : &none;
    int64_t scale, p;
    memcpy(&scale, &attrs->scale, sizeof scale);
    memcpy(&p, &drop->p, sizeof p);
    const int64_t words[] = {scale, p, (int64_t)drop->seed, (int64_t)drop->instance, (int64_t)drop->step,
                             attrs->merge, attrs->group, (int64_t)q->dtype,
                             q->shape[0], q->shape[1], q->shape[2], q->shape[3]};
    return spli_attn_mix(hash, words, sizeof words / sizeof *words);
}

spl_status spli_attention_agree(const spl_tensor *q, const spli_attention_attrs *attrs) {
    if (!q->mesh) return spli_ok();
    uint64_t hash = spli_attention_hash(0, q, attrs);
    for (int i = 0; i < attrs->mask.n; i++) {
        const spl_slice *x = &attrs->mask.slices[i];
        hash = spli_attn_mix(hash, (int64_t[]){x->q_begin, x->q_end, x->k_begin, x->k_end, (int64_t)x->kind}, 5);
    }
    for (int a = 0; a < q->mesh->spec.naxes; a++)
        if (q->mesh->spec.axes[a].role == SPL_ROLE_ULYSSES && q->mesh->spec.axes[a].size > 1)
            SPL_TRY(spli_agree_plan(q->rt, q->mesh->comm[a], hash));
    return spli_ok();
}

/* ---- merging ---- */

/* q, k, v and out as the op wants them; where they are so already, the same memory. */
static spl_status inward(spl_tensor *const all[4], const spli_attention_attrs *attrs, spl_tensor *in[4]) {
    static const char *const names[] = {"q", "k", "v", "out"};
    for (int i = 0; i < 4; i++) {
        spl_layout to;
        if (!all[i]->mesh) {
            spl_tensor_retain(all[i]);
            in[i] = all[i];
            continue;
        }
        const spl_mesh_spec *spec = &all[i]->mesh->spec;
        const int is_kv = i == 1 || i == 2;
        spli_schedule_attention(spec, attrs->role, &all[i]->layout, is_kv, is_kv ? attrs->group : 1, &to);
        all[i]->rt->subject = names[i];
        SPL_TRY(spl_redistribute(all[i], &to, &in[i]));
    }
    return spli_ok();
}

static spl_status homeward(spl_tensor *merged, spl_tensor *out) {
    spl_runtime *rt = out->rt;
    spl_tensor *home = NULL;
    spl_status status = spli_ok();
    if (merged->storage == out->storage) return status;
    rt->subject = "out";
    SPL_GO(spl_redistribute(merged, &out->layout, &home), done);
    if (spl_tensor_local_count(out) > 0)
        SPL_GO(rt->backend->cast(rt->backend_ctx, rt->compute, spli_tensor_data(out), out->dtype,
                                 spli_tensor_data(home), home->dtype, spl_tensor_local_count(out)),
               done);
    SPL_GO(spli_wait_queue(rt, rt->compute), done);
done:
    spl_tensor_release(home);
    return status;
}

spl_status spl_attention_into(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_options *options,
                              spl_tensor *out, spl_tensor *lse) {
    spli_attention_attrs attrs;
    spl_tensor *all[] = {q, k, v, out, lse}, *in[4] = {NULL};
    spli_out_spec wanted[2];
    SPL_TRY(spli_tensors_together("attention", all, 5));
    spl_runtime *rt = q->rt;
    spli_span span = spli_trace_begin(rt);
    spl_status status = attrs_of(q, k, options, &attrs);
    attrs.merge = 1;
    memset(wanted, 0, sizeof wanted);
    SPL_GO(status, done);
    SPL_GO(spli_attention_apart("attention", all), done);
    wanted[0] = (spli_out_spec){.layout = q->layout, .dtype = q->dtype};
    wanted[0].layout.ndim = 4; /* of one rank alone its shapes are meant */
    memcpy(wanted[0].layout.shape, q->shape, 4 * sizeof *q->shape);
    SPL_GO(fits(out, &wanted[0], "out", 1), done);
    if (spli_is_half(out->dtype))
        SPL_GO(spli_error(SPL_EARG, "attention: out to merge into has dtype %s and would be rounded at each merge; "
                          "cast it to f32 first", spl_dtype_name(out->dtype)), done);
    SPL_GO(spli_attention_agree(q, &attrs), done);
    SPL_GO(inward(all, &attrs, in), done);
    spli_call c = {.rt = rt, .attrs = &attrs, .in = {in[0], in[1], in[2]}, .out = {in[3], lse}, .wanted = 3u};
    SPL_GO(spli_op_attention.layouts(&c, wanted), done);
    if (!q->mesh) wanted[1].layout.ndim = 3;
    SPL_GO(fits(lse, &wanted[1], "lse", 0), done);
    rt->subject = "attention";
    SPL_GO(spli_op_attention.forward(&c), done);
    SPL_GO(homeward(in[3], out), done);
    spli_trace_op(rt, span, "attention", 0, out);
done:
    for (int i = 0; i < 4; i++) spl_tensor_release(in[i]);
    spli_mask_free(&attrs.mask);
    return status;
}
