/* ref_backend.c: the table of the reference backend, its memory, and the table of the whole references. */
#include "ref.h"

static spl_status none(const char *what, size_t bytes) {
    return spli_error(SPL_ENOMEM, "the ref backend found no memory for %s of %zu bytes", what, bytes);
}

static spl_status ref_open(int rank, int nthreads, void **ctx) {
    (void)rank, (void)nthreads;
    *ctx = malloc(1);
    return *ctx ? spli_ok() : none("its context", 1);
}

static void ref_close(void *ctx) { free(ctx); }

static const char *ref_describe(void *ctx) {
    (void)ctx;
    return "ref: plain fp64 loops, slow, for judging the others";
}

static spl_status ref_alloc(void *ctx, size_t bytes, void **ptr) {
    (void)ctx;
    *ptr = NULL;
    return posix_memalign(ptr, 64, bytes > 0 ? bytes : 1) == 0 ? spli_ok() : none("an array", bytes);
}

static void ref_free(void *ctx, void *ptr, size_t bytes) {
    (void)ctx, (void)bytes;
    free(ptr);
}

static spl_status ref_queue_open(void *ctx, spl_queue **q) {
    (void)ctx;
    *q = malloc(1);
    return *q ? spli_ok() : none("a queue", 1);
}

static void ref_queue_close(void *ctx, spl_queue *q) {
    (void)ctx;
    free(q);
}

static spl_status ref_event_open(void *ctx, spl_event **e) {
    (void)ctx;
    *e = malloc(1);
    return *e ? spli_ok() : none("an event", 1);
}

static void ref_event_close(void *ctx, spl_event *e) {
    (void)ctx;
    free(e);
}

static spl_status ref_event(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx, (void)q, (void)e;
    return spli_ok();
}

static spl_status ref_event_test(void *ctx, spl_event *e, int *done) {
    (void)ctx, (void)e;
    *done = 1;
    return spli_ok();
}

static spl_status ref_copy(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    (void)ctx, (void)q;
    if (bytes > 0) memmove(dst, src, bytes);
    return spli_ok();
}

static spl_status ref_zero(void *ctx, spl_queue *q, void *dst, size_t bytes) {
    (void)ctx, (void)q;
    if (bytes > 0) memset(dst, 0, bytes);
    return spli_ok();
}

static const char *ref_kernels(void *ctx) {
    (void)ctx;
    return "all ops: plain loops in f64";
}

static int64_t ref_workspace_peak(void *ctx, int reset) {
    (void)ctx, (void)reset;
    return 0; /* not accounted: nobody plans memory by the reference */
}

const spl_backend_ops splk_ref_backend = {
    .abi = SPL_BACKEND_ABI,
    .name = "ref",
    .is_reference = 1,
    .has_memory = 1,
    .open = ref_open,
    .close = ref_close,
    .describe = ref_describe,
    .alloc = ref_alloc,
    .free = ref_free,
    .queue_open = ref_queue_open,
    .queue_close = ref_queue_close,
    .event_open = ref_event_open,
    .event_close = ref_event_close,
    .event_record = ref_event,
    .event_wait = ref_event,
    .event_test = ref_event_test,
    .copy_in = ref_copy,
    .copy_out = ref_copy,
    .box = splk_ref_box,
    .zero = ref_zero,
    .cast = splk_ref_cast,
    .sum = splk_ref_sum,
    .fill = splk_ref_fill,
    .random = splk_ref_random,
    .stats = splk_ref_stats,
    .gemm = splk_ref_gemm,
    .norm = splk_ref_norm,
    .act = splk_ref_act,
    .residual = splk_ref_residual,
    .rope = splk_ref_rope,
    .embed = splk_ref_embed,
    .nll = splk_ref_nll,
    .attention = splk_ref_pieces,
    .pool = splk_ref_pool,
    .workspace_peak = ref_workspace_peak,
    .kernels = ref_kernels,
};

const spl_reference splk_reference = {
    .attention = splk_ref_attention,
    .block = splk_ref_block,
    .philox = splk_ref_philox,
};
