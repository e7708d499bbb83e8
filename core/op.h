/* op.h: an operation = layout rules + forward + backward. An op never communicates: where layouts do not fit it
 * refuses, and whoever wrote the model says the redistribution. Rules are per mesh axis, so they hold for any number of
 * axes. */
#ifndef SPL_OP_H
#define SPL_OP_H
#include "runtime.h"
#include "tensor.h"

enum { SPLI_MAX_IN = 5, SPLI_MAX_OUT = 3 };

typedef struct spli_call {
    spl_runtime *rt;
    const void *attrs; /* the op's own struct */
    spl_tensor *in[SPLI_MAX_IN]; /* optional ones may be NULL */
    spl_tensor *out[SPLI_MAX_OUT];
    unsigned wanted; /* bit i: output i is wanted */
} spli_call;

typedef struct spli_out_spec { /* what the layout rule says of one output */
    spl_layout layout;
    spl_dtype dtype;
} spli_out_spec;

typedef struct spli_op {
    const char *name;
    int nin, nout;
    /* Forward rule: checks shapes, dtypes and layouts of the inputs, gives those of the outputs. */
    spl_status (*layouts)(const spli_call *c, spli_out_spec *out);
    /* Cotangent rule: from the layout of the cotangent of output 0 (which the op asks to be `like` its output,
     * replicate where that is partial) to those of the cotangents of the inputs. */
    void (*cotangents)(const spli_call *c, const spl_layout *dout, spl_layout *din);
    spl_status (*forward)(const spli_call *c);
    spl_status (*backward)(const spli_call *c, spl_tensor *const *dout,
                           spl_tensor **din); /* NULL: forward only so far */
} spli_op;

/* [local] Runs the rule, makes the wanted outputs, runs forward. On failure no output is left. */
spl_status spli_op_run(const spli_op *op, const void *attrs, spl_tensor *const *in, unsigned wanted, spl_tensor **out);

/* Helpers of rules. */
spl_status spli_rule_error(const char *op, const spl_layout *l, int axis, const char *given, const char *allowed);
const char *spli_place_text(const spl_layout *l, int axis, char *buffer, size_t n);
int spli_same_on_axis(const spl_layout *a, const spl_layout *b,
                      int axis); /* same placement (dims compared as they are) */
int spli_is_half(spl_dtype t); /* bf16 or f16 */
spl_status spli_need_float(const char *op, const spl_tensor *t, const char *name);
spl_status spli_need_dtype(const char *op, const spl_tensor *t, const char *name, spl_dtype dtype);
spl_status spli_need_ndim(const char *op, const spl_tensor *t, const char *name, int ndim);
/* A dense form of t to hand to a kernel: retained or copied; release it. NULL gives NULL. */
spl_status spli_dense(spl_tensor *t, spl_tensor **out);

/* ---- the ops that core itself uses beyond the public ones ---- */

typedef struct spli_dropout { /* p == 0: none */
    double p;
    uint64_t seed, instance, step;
} spli_dropout;

/* y = act(x + bias) [* up] */
spl_status spli_activate(spl_tensor *x, spl_tensor *bias, spl_tensor *up, spl_activation act, spl_tensor **y);
/* y = residual + dropout(x + bias); mask bool, NULL when not wanted. Where x is bf16 or f16, the residual may be f32,
 * and with `wide` y is f32: between the halves of a block the residual is not rounded. */
spl_status spli_residual(spl_tensor *x, spl_tensor *bias, spl_tensor *residual, spli_dropout dropout, int wide,
                         spl_tensor **y, spl_tensor **mask);
/* x [batch, seq, heads, head_dim], half pairing; positions count from the begin of each document (NULL: of one) */
spl_status spli_rope(spl_tensor *x, double theta, const spl_documents *documents, spl_tensor **y);

extern const spli_op spli_op_linear, spli_op_norm, spli_op_act, spli_op_residual, spli_op_add, spli_op_rope,
    spli_op_embed, spli_op_nll, spli_op_attention;

#endif
