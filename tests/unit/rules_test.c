/* rules_test.c: the layout rules of ops, forward and cotangent, on a dry mesh (no memory, no other rank): every
 * combination of placements on one axis is either the documented result or a refusal. */
#include "attn.h"
#include "block.h"
#include "op.h"
#include "tap.h"
#include <string.h>

static spl_runtime *rt;
static spl_mesh *mesh;

static spl_tensor *make(spl_dtype t, int ndim, const int64_t *shape, const char *layout) {
    spl_layout l;
    spl_tensor *out = NULL;
    spl_status s = spl_layout_parse(layout, spl_mesh_spec_of(mesh), ndim, shape, &l);
    if (s.code == SPL_OK) s = spl_tensor_create(rt, mesh, &l, t, SPL_MEM_ACTIVATIONS, &out);
    if (s.code != SPL_OK) printf("# %s: %s\n", layout, s.message);
    return out;
}

static const char *text_of(const spl_layout *l) {
    static char buffer[4][200];
    static int at;
    at = (at + 1) % 4;
    spl_layout_format(l, buffer[at], sizeof buffer[at]);
    return buffer[at];
}

/* Runs the two rules of an op. Returns 1 when it accepts. */
static int rules(const spli_op *op, const void *attrs, spl_tensor **in, const char *y, const char **din) {
    spli_call c = {.rt = rt, .attrs = attrs, .wanted = 1};
    spli_out_spec out[SPLI_MAX_OUT];
    spl_layout got[SPLI_MAX_IN];
    memset(out, 0, sizeof out);
    memset(got, 0, sizeof got);
    memcpy(c.in, in, sizeof(spl_tensor *) * (size_t)op->nin);
    spl_status s = op->layouts(&c, out);
    if (!y)
        return ok(s.code == SPL_EARG && strstr(s.message, "Redistribute") != NULL, "%s refuses: %s", op->name,
                  s.code ? s.message : "(accepted)");
    if (!ok(s.code == SPL_OK && !strcmp(text_of(&out[0].layout), y), "%s gives %s (%s)", op->name, y,
            s.code ? s.message : text_of(&out[0].layout)))
        return 0;
    spl_layout dy = out[0].layout;
    for (int a = 0; a < dy.naxes; a++) /* the cotangent of a pending sum is replicated */
        if (dy.axes[a].place == SPL_PARTIAL) dy.axes[a] = (spl_placement){0};
    op->cotangents(&c, &dy, got);
    for (int i = 0; i < op->nin; i++) {
        if (!in[i] || !din[i]) continue;
        ok(!strcmp(text_of(&got[i]), din[i]), "%s: cotangent of input %d is %s (%s)", op->name, i + 1, din[i],
           text_of(&got[i]));
        ok(spl_layout_check(&got[i]).code == SPL_OK && got[i].ndim == in[i]->ndim,
           "%s: cotangent of input %d has its shape", op->name, i + 1);
    }
    return 1;
}

static const struct {
    const char *x, *w, *bias, *y, *dx, *dw, *db;
} linear_cases[] = {
    {"replicate", "replicate", "replicate", "replicate", "replicate", "replicate", "replicate"},
    {"tp=shard(1)", "replicate", "replicate", "tp=shard(1)", "tp=shard(1)", "tp=partial", "tp=partial"},
    {"tp=shard(2,zigzag)", "replicate", NULL, "tp=shard(2,zigzag)", "tp=shard(2,zigzag)", "tp=partial", NULL},
    {"replicate", "tp=shard(1)", "tp=shard(1)", "tp=shard(3)", "tp=partial", "tp=shard(1)", "tp=shard(1)"},
    {"replicate", "tp=shard(1,unit:4)", NULL, "tp=shard(3,unit:4)", "tp=partial", "tp=shard(1,unit:4)", NULL},
    {"tp=shard(3,unit:2)", "tp=shard(2,unit:2)", NULL, "tp=partial", "tp=shard(3,unit:2)", "tp=shard(2,unit:2)", NULL},
    {"dp=shard(1), tp=shard(3)", "tp=shard(2)", NULL, "dp=shard(1), tp=partial", "dp=shard(1), tp=shard(3)",
     "dp=partial, tp=shard(2)", NULL},
    {"dp=shard(1)", "tp=shard(1)", "tp=shard(1)", "dp=shard(1), tp=shard(3)", "dp=shard(1), tp=partial",
     "dp=partial, tp=shard(1)", "dp=partial, tp=shard(1)"},
    {"tp=shard(3)", "replicate", NULL, NULL, NULL, NULL, NULL},
    {"tp=shard(1)", "tp=shard(1)", NULL, NULL, NULL, NULL, NULL},
    {"tp=shard(3)", "tp=shard(2,striped)", NULL, NULL, NULL, NULL, NULL},
    {"tp=shard(3)", "tp=shard(2)", "replicate", NULL, NULL, NULL,
     NULL}, /* a bias before the reduction would be added twice */
    {"tp=partial", "tp=shard(1)", NULL, NULL, NULL, NULL, NULL},
    {"replicate", "tp=shard(1)", "replicate", NULL, NULL, NULL, NULL},
};

static void test_linear(void) {
    int64_t x[] = {2, 6, 8}, w[] = {12, 8}, b[] = {12};
    int act = SPL_ACT_NONE;
    for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++) {
        spl_tensor *in[] = {make(SPL_F32, 3, x, linear_cases[i].x), make(SPL_F32, 2, w, linear_cases[i].w),
                            linear_cases[i].bias ? make(SPL_F32, 1, b, linear_cases[i].bias) : NULL};
        const char *din[] = {linear_cases[i].dx, linear_cases[i].dw, linear_cases[i].db};
        rules(&spli_op_linear, &act, in, linear_cases[i].y, din);
        for (int k = 0; k < 3; k++) spl_tensor_release(in[k]);
    }
}

static void test_rows(void) {
    int64_t x[] = {2, 6, 8}, n[] = {8}, ids[] = {2, 6}, table[] = {10, 8}, attrs[8] = {0};
    const char *same[] = {"tp=shard(2)", "tp=partial", NULL}, *none[] = {NULL, NULL, NULL};
    spl_tensor *in[3] = {make(SPL_F32, 3, x, "tp=shard(2)"), make(SPL_F32, 1, n, "replicate"), NULL};
    rules(&spli_op_norm, attrs, in, "tp=shard(2)", same);
    spl_tensor_release(in[0]);
    in[0] = make(SPL_F32, 3, x, "tp=partial");
    rules(&spli_op_norm, attrs, in, NULL, none);
    rules(&spli_op_residual, attrs, in, NULL, none);
    spl_tensor_release(in[0]);
    in[0] = make(SPL_F32, 3, x, "tp=shard(3)");
    rules(&spli_op_norm, attrs, in, NULL, none);
    spl_tensor_release(in[1]);
    in[1] = make(SPL_F32, 1, n, "tp=shard(1)");
    const char *split[] = {"tp=shard(3)", "tp=shard(1)", NULL};
    rules(&spli_op_act, attrs, in, "tp=shard(3)", split);
    spl_tensor_release(in[0]);
    spl_tensor_release(in[1]);
    spl_tensor *look[] = {make(SPL_I64, 2, ids, "replicate"), make(SPL_F32, 2, table, "tp=shard(1)"), NULL};
    const char *vocabulary[] = {"replicate", "tp=shard(1)"};
    rules(&spli_op_embed, NULL, look, "tp=partial", vocabulary);
    spl_tensor_release(look[0]);
    look[0] = make(SPL_I64, 2, ids, "tp=shard(2)");
    rules(&spli_op_embed, NULL, look, NULL, none);
    spl_tensor_release(look[1]);
    look[1] = make(SPL_F32, 2, table, "replicate");
    const char *rows[] = {"tp=shard(2)", "tp=partial"};
    rules(&spli_op_embed, NULL, look, "tp=shard(2)", rows);
    spl_tensor_release(look[0]);
    spl_tensor_release(look[1]);
}

static void test_attention(void) {
    int64_t q[] = {2, 6, 8, 4}, kv[] = {2, 6, 4, 4};
    spli_attention_attrs attrs = {.scale = 1, .group = 2};
    attrs.role = SPL_ROLE_RING;
    ok(spli_mask_one(&attrs.mask, 6, 6, SPL_SLICE_CAUSAL).code == SPL_OK, "a causal mask");
    const struct {
        const char *q, *kv, *out, *dkv;
    } cases[] = {
        {"replicate", "replicate", "replicate", "replicate"},
        {"dp=shard(1), tp=shard(3)", "dp=shard(1), tp=shard(3,cover:2)", "dp=shard(1), tp=shard(3)",
         "dp=shard(1), tp=shard(3,cover:2)"},
        {"tp=shard(2,zigzag)", "replicate", "tp=shard(2,zigzag)", "tp=partial"}, /* gathered keys */
        {"tp=shard(3)", "tp=shard(3)", NULL, NULL},
        {"tp=shard(3)", "replicate", NULL, NULL},
        {"tp=shard(4)", "tp=shard(4)", NULL, NULL},
        {"tp=shard(2)", "tp=shard(2,striped)", "tp=shard(2)", "tp=shard(2,striped)"}, /* travelling keys */
        {"replicate", "tp=shard(2)", NULL, NULL},
        {"tp=partial", "replicate", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spl_tensor *in[] = {make(SPL_F32, 4, q, cases[i].q), make(SPL_F32, 4, kv, cases[i].kv),
                            make(SPL_F32, 4, kv, cases[i].kv)};
        const char *din[] = {cases[i].out, cases[i].dkv, cases[i].dkv};
        rules(&spli_op_attention, &attrs, in, cases[i].out, din);
        for (int k = 0; k < 3; k++) spl_tensor_release(in[k]);
    }
    spli_mask_free(&attrs.mask);
}

/* Every role that exists by name, on every axis of a two-axis mesh: scheduled, or refused with a mesh that works. */
static void test_roles(void) {
    for (int r = 0; r < SPL_ROLE_COUNT; r++) {
        spl_mesh_spec spec = {.naxes = 2, .axes = {{"a", 2, SPL_ROLE_DATA}, {"b", 2, (spl_role)r}}};
        const spl_schedule options = {SPL_CONTIGUOUS, 1024, 1};
        const spl_block_config block = {.causal = 1};
        spl_status s = spli_schedule_check(&spec, &options, &block);
        int built = r != SPL_ROLE_NONE && r != SPL_ROLE_FSDP && r != SPL_ROLE_PIPELINE;
        const char *nearest = r == SPL_ROLE_FSDP ? "b=2:data" : "b=2:sequence";
        ok(built ? s.code == SPL_OK : s.code == SPL_EUSAGE && strstr(s.message, nearest), "role '%s': %s",
           spl_role_name((spl_role)r), s.code ? s.message : "scheduled");
    }
}

int main(void) {
    spl_runtime_config config = {.backend = &splk_null_backend, .dry_rank = 1, .dry_size = 4, .threads = 1};
    spl_mesh_spec spec;
    spl_status s = spl_runtime_open(&config, &rt);
    if (s.code == SPL_OK) s = spl_mesh_parse("dp=2, tp=2", 4, &spec);
    if (s.code == SPL_OK) s = spl_mesh_create(rt, &spec, &mesh);
    if (!ok(s.code == SPL_OK, "a dry mesh of 2 x 2 opens %s", s.code ? s.message : "")) return tap_done();
    test_linear();
    test_rows();
    test_attention();
    test_roles();
    int leaked = -1;
    spl_mesh_release(mesh);
    s = spl_runtime_close(rt, &leaked);
    ok(s.code == SPL_OK && leaked == 0, "nothing is left alive (%d)", leaked);
    return tap_done();
}
