/* kernels_levels_test.c: the CPU kernels of every instruction level that this processor has against those of the
 * highest, which the other kernel tests hold against the reference; and the choice of a level by SPL_CPU_LEVEL. */
#include "backend.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 203, HEADS = 3, DIM_MOST = 80, COUNT = SEQ * HEADS * DIM_MOST };

typedef struct side {
    const spl_backend_ops *ops;
    void *ctx;
    spl_queue *queue;
} side;

static int open_level(side *s, const char *name) {
    if (setenv("SPL_CPU_LEVEL", name, 1)) return 0;
    s->ops = spli_backend_find("cpu");
    return s->ops->open(0, 2, &s->ctx).code == SPL_OK && s->ops->queue_open(s->ctx, &s->queue).code == SPL_OK;
}

static void close_level(side *s) {
    s->ops->queue_close(s->ctx, s->queue);
    s->ops->close(s->ctx);
}

static float *numbers(int64_t n, unsigned seed) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return x;
}

/* ||a - b|| <= tol ||b||, and no NaN */
static int near(const float *a, const float *b, int64_t n, double tol) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    if (sqrt(error) <= tol * sqrt(norm)) return 1;
    tap_note("relative error %g", sqrt(error / norm));
    return 0;
}

/* What a level makes of the same input, into out (COUNT floats, zeros at first). */
typedef spl_status kernel(const side *s, int variant, float *x, float *out);

static spl_status attention(const side *s, int variant, float *x, float *out) {
    static const int dims[] = {64, 80, 1, 33, 16};
    int32_t kv[HEADS] = {0, 0, 0};
    float lse[HEADS * SEQ];
    int64_t d = dims[variant], strides[4] = {0, HEADS * d, d, 1};
    spl_attn_piece p = {0, SEQ, 0, SEQ, 0, 1, 0, 1, 1, variant % 2, 0, -70};
    spl_attn_args a = {.dtype = SPL_F32, .batch = 1, .heads = HEADS, .kv_heads = 1, .sq = SEQ, .sk = SEQ,
                       .head_dim = d, .q = x, .k = x + 100, .v = x + 333, .out = out, .lse = lse, .kv_of_head = kv,
                       .scale = 1, .pieces = &p, .npieces = 1, .p = variant == 4 ? 0.25 : 0, .key = {{1, 2}},
                       .heads_global = HEADS, .seq_q_global = SEQ, .seq_k_global = SEQ};
    memcpy(a.q_strides, strides, sizeof strides), memcpy(a.k_strides, strides, sizeof strides);
    memcpy(a.v_strides, strides, sizeof strides), memcpy(a.out_strides, strides, sizeof strides);
    return s->ops->attention(s->ctx, s->queue, &a);
}

static spl_status product(const side *s, int variant, float *x, float *out) {
    spl_gemm_args a = {.dtype = SPL_F32, .m = 70 + variant, .n = 91, .k = 130, .a = x, .b = x + 9, .c = out, .lda = 130,
                       .ldb = 130, .ldc = 91, .trans_b = 1, .alpha = 1, .bias = x, .act = (spl_activation)variant};
    return s->ops->gemm(s->ctx, s->queue, &a);
}

static spl_status norm(const side *s, int variant, float *x, float *out) {
    spl_norm_args a = {.dtype = SPL_F32, .kind = variant ? SPL_NORM_RMS : SPL_NORM_LAYER, .rows = 50, .cols = 111,
                       .x = x, .gamma = x + 5, .beta = variant ? NULL : x + 77, .eps = 1e-5, .y = out};
    return s->ops->norm(s->ctx, s->queue, &a);
}

static spl_status residual(const side *s, int variant, float *x, float *out) {
    spl_segment rows = {0, 60, 1}, cols = {0, 77, 1};
    spl_index_map map = {.ndim = 2, .global = {60, 77}, .local = {60, 77}, .segments = {&rows, &cols},
                         .nsegments = {1, 1}};
    spl_residual_args a = {.dtype = SPL_F32, .rows = 60, .cols = 77, .x = x, .bias = x + 1, .residual = x + 50,
                           .p = variant ? 0.3 : 0, .key = {{3, 4}}, .map = &map, .y = out};
    return s->ops->residual(s->ctx, s->queue, &a);
}

static spl_status random_numbers(const side *s, int variant, float *x, float *out) {
    spl_segment all = {3, 10001, 2};
    spl_index_map map = {.ndim = 1, .global = {30000}, .local = {10001}, .segments = {&all}, .nsegments = {1}};
    spl_random_args a = {.dtype = SPL_F32, .kind = (spl_random_kind)variant, .key = {{5, 6}}, .a = 0, .b = 1,
                         .map = &map, .out = out};
    (void)x;
    return s->ops->random(s->ctx, s->queue, &a);
}

static spl_status rope(const side *s, int variant, float *x, float *out) {
    spl_segment all = {7, 40, 3};
    spl_rope_args a = {.dtype = SPL_F32, .batch = 1, .seq = 40, .heads = 3, .head_dim = 34, .x = x, .y = out,
                       .x_strides = {0, 102, 34, 1}, .y_strides = {0, 102, 34, 1}, .theta = 1e4, .half = variant,
                       .positions = &all, .npositions = 1};
    return s->ops->rope(s->ctx, s->queue, &a);
}

static const struct {
    const char *name;
    kernel *run;
    int variants;
} kernels[] = {{"attention", attention, 5}, {"gemm with bias and activation", product, 4}, {"norm", norm, 2},
               {"residual and dropout", residual, 2}, {"random", random_numbers, 3}, {"rope", rope, 2}};

static void compare(const char *level, const char *top, float *x) {
    side low, high;
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    int opened = a && b && open_level(&low, level);
    opened = opened && open_level(&high, top);
    ok(opened && low.ops != high.ops && strstr(low.ops->describe(low.ctx), level), "%s: a table of its own", level);
    for (size_t k = 0; opened && k < sizeof kernels / sizeof kernels[0]; k++) {
        int good = 1;
        for (int v = 0; v < kernels[k].variants; v++) {
            memset(a, 0, COUNT * sizeof *a);
            memset(b, 0, COUNT * sizeof *b);
            good &= kernels[k].run(&low, v, x, a).code == SPL_OK && kernels[k].run(&high, v, x, b).code == SPL_OK;
            good &= near(a, b, COUNT, 2e-6);
        }
        ok(good, "%s as %s: %s", level, top, kernels[k].name);
    }
    if (opened) close_level(&low), close_level(&high);
    free(a);
    free(b);
}

int main(void) {
    static const char *const levels[] = {"baseline", "avx2", "avx512"};
    float *x = numbers(COUNT + 1000, 12345);
    side s;
    int top = 0;
    for (int i = 1; i < 3; i++)
        if (open_level(&s, levels[i])) top = i, close_level(&s);
    for (int i = 0; i < top; i++) compare(levels[i], levels[top], x);
    void *ctx = NULL;
    setenv("SPL_CPU_LEVEL", "fast", 1);
    spl_status refused = spli_backend_find("cpu")->open(0, 1, &ctx);
    ok(refused.code == SPL_EUSAGE && strstr(refused.message, "'fast'") && strstr(refused.message, levels[top]),
       "an unknown level is refused with those there are: %s", refused.message);
    unsetenv("SPL_CPU_LEVEL");
    ok(open_level(&s, "") && strstr(s.ops->describe(s.ctx), levels[top]), "the highest level is the default");
    close_level(&s);
    free(x);
    return tap_done();
}
