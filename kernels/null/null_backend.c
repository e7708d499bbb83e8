/* null_backend.c: the backend that computes nothing. Memory is tokens that nobody may read, every call succeeds and
 * returns at once. It lets the whole engine run for shapes, layouts and byte counts alone. */
#include "backend.h"
#include <stdlib.h>
#include <string.h>

/* The context is one byte so that it is an object of its own; queues and events likewise. */
static spl_status make(void **out) {
    *out = malloc(1);
    if (!*out) return spli_error(SPL_ENOMEM, "the null backend found no memory for an object of one byte");
    return spli_ok();
}

static spl_status null_open(int rank, int nthreads, void **ctx) {
    (void)rank, (void)nthreads;
    return make(ctx);
}

static void null_close(void *ctx) { free(ctx); }

static const char *null_describe(void *ctx) {
    (void)ctx;
    return "null: shapes and accounting only, nothing is computed";
}

/* A token is any address that is neither NULL nor usable; it carries the alignment that real memory would have. */
static spl_status null_alloc(void *ctx, size_t bytes, void **ptr) {
    (void)ctx, (void)bytes;
    *ptr = (void *)(uintptr_t)64;
    return spli_ok();
}

static void null_free(void *ctx, void *ptr, size_t bytes) { (void)ctx, (void)ptr, (void)bytes; }

static spl_status null_queue_open(void *ctx, spl_queue **q) {
    void *p = NULL;
    (void)ctx;
    SPL_TRY(make(&p));
    *q = p;
    return spli_ok();
}

static void null_queue_close(void *ctx, spl_queue *q) {
    (void)ctx;
    free(q);
}

static spl_status null_event_open(void *ctx, spl_event **e) {
    void *p = NULL;
    (void)ctx;
    SPL_TRY(make(&p));
    *e = p;
    return spli_ok();
}

static void null_event_close(void *ctx, spl_event *e) {
    (void)ctx;
    free(e);
}

static spl_status null_event(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx, (void)q, (void)e;
    return spli_ok();
}

static spl_status null_event_test(void *ctx, spl_event *e, int *done) {
    (void)ctx, (void)e;
    *done = 1;
    return spli_ok();
}

static spl_status null_copy_in(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    (void)ctx, (void)q, (void)dst, (void)src, (void)bytes;
    return spli_ok();
}

/* Host memory is real and somebody will read it: it gets zeros. */
static spl_status null_copy_out(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    (void)ctx, (void)q, (void)src;
    if (bytes > 0) memset(dst, 0, bytes);
    return spli_ok();
}

static spl_status null_zero(void *ctx, spl_queue *q, void *dst, size_t bytes) {
    (void)ctx, (void)q, (void)dst, (void)bytes;
    return spli_ok();
}

static spl_status null_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                            int64_t n) {
    (void)ctx, (void)q, (void)dst, (void)to, (void)src, (void)from, (void)n;
    return spli_ok();
}

static spl_status null_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                           spl_dtype t) {
    (void)ctx, (void)q, (void)dst, (void)srcs, (void)nsrcs, (void)n, (void)t;
    return spli_ok();
}

static spl_status null_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value) {
    (void)ctx, (void)q, (void)dst, (void)t, (void)n, (void)value;
    return spli_ok();
}

static spl_status null_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *out) {
    (void)ctx, (void)q, (void)x, (void)t, (void)n;
    memset(out, 0, sizeof *out);
    return spli_ok();
}

/* The slots that take their arguments in a struct differ only in its type. */
#define NULL_SLOT(name)                                                                                              \
    static spl_status null_##name(void *ctx, spl_queue *q, const spl_##name##_args *a) {                             \
        (void)ctx, (void)q, (void)a;                                                                                 \
        return spli_ok();                                                                                            \
    }
NULL_SLOT(box)
NULL_SLOT(random)
NULL_SLOT(gemm)
NULL_SLOT(norm)
NULL_SLOT(act)
NULL_SLOT(residual)
NULL_SLOT(rope)
NULL_SLOT(embed)
NULL_SLOT(nll)
NULL_SLOT(attn)
NULL_SLOT(pool)

static const char *null_kernels(void *ctx) {
    (void)ctx;
    return "all ops: nothing is computed";
}

static int64_t null_workspace_peak(void *ctx, int reset) {
    (void)ctx, (void)reset;
    return 0;
}

const spl_backend_ops splk_null_backend = {
    .abi = SPL_BACKEND_ABI,
    .name = "null",
    .is_reference = 0,
    .has_memory = 0,
    .open = null_open,
    .close = null_close,
    .describe = null_describe,
    .alloc = null_alloc,
    .free = null_free,
    .queue_open = null_queue_open,
    .queue_close = null_queue_close,
    .event_open = null_event_open,
    .event_close = null_event_close,
    .event_record = null_event,
    .event_wait = null_event,
    .event_test = null_event_test,
    .copy_in = null_copy_in,
    .copy_out = null_copy_out,
    .box = null_box,
    .zero = null_zero,
    .cast = null_cast,
    .sum = null_sum,
    .fill = null_fill,
    .random = null_random,
    .stats = null_stats,
    .gemm = null_gemm,
    .norm = null_norm,
    .act = null_act,
    .residual = null_residual,
    .rope = null_rope,
    .embed = null_embed,
    .nll = null_nll,
    .attention = null_attn,
    .pool = null_pool,
    .workspace_peak = null_workspace_peak,
    .kernels = null_kernels,
};
