/* cpu_backend.c: the table of the CPU backend, and its opening: threads, the BLAS. */
#include "cpu.h"
#include <stdio.h>
#include <stdlib.h>

/* OpenBLAS has these; another CBLAS may not, and then follows OpenMP's own setting. */
extern void openblas_set_num_threads(int n) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));

void splk_blas_threads(const splk_cpu *c) {
#ifdef _OPENMP
    if (omp_get_max_threads() == c->nthreads) return;
    omp_set_num_threads(c->nthreads); /* what the OpenMP flavour of OpenBLAS goes by */
#endif
    if (openblas_set_num_threads) openblas_set_num_threads(c->nthreads);
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* "OpenBLAS 0.3.21 (SkylakeX)" */
static void describe_blas(char *out, size_t n) {
    snprintf(out, n, "CBLAS");
    if (!openblas_get_config || !openblas_get_corename) return;
    const char *config = openblas_get_config(), *space = strchr(config, ' ');
    int words = space ? (int)(space + 1 - config) + (int)strcspn(space + 1, " ") : (int)strlen(config);
    snprintf(out, n, "%.*s (%s)", words, config, openblas_get_corename());
}

static void describe_into(splk_cpu *c) {
    char blas[96];
    describe_blas(blas, sizeof blas);
    snprintf(c->description, sizeof c->description, "cpu: %d thread%s, %s kernels, gemm by %s", c->nthreads,
             c->nthreads == 1 ? "" : "s", TEXT(SPLK_LEVEL), blas);
}

static void describe_kernels(splk_cpu *c) {
    char blas[96], tiles[160];
    describe_blas(blas, sizeof blas);
    splk_attention_tiles(tiles, sizeof tiles);
    snprintf(c->kernels, sizeof c->kernels,
             "gemm: f32 and f64 by %s, then bias and activation in one pass; bf16 and f16 widened to f32 by panels\n"
             "attention: flash attention, %s; %s exponential; libxsmm is not used\n"
             "norm, activation, residual, rope, embed, nll, random, sum, pool, cast, box: loops over %s vectors",
             blas, tiles, TEXT(SPLK_LEVEL), TEXT(SPLK_LEVEL));
}

static const char *cpu_kernels(void *ctx) { return ((const splk_cpu *)ctx)->kernels; }

static spl_status cpu_open(int rank, int nthreads, void **ctx) {
    (void)rank;
    *ctx = NULL;
    SPL_TRY(splk_cpu_select_check());
    if (nthreads < 1) return spli_error(SPL_EARG, "the cpu backend needs at least 1 thread, got %d", nthreads);
    splk_cpu *c = calloc(1, sizeof *c);
    if (!c) return spli_error(SPL_ENOMEM, "no memory for the context of the cpu backend (%zu bytes)", sizeof *c);
    c->nthreads = nthreads;
#ifdef _OPENMP
    omp_set_num_threads(nthreads);
#endif
    if (openblas_set_num_threads) openblas_set_num_threads(nthreads);
    describe_into(c);
    describe_kernels(c);
    *ctx = c;
    return spli_ok();
}

static void cpu_close(void *ctx) { free(ctx); }

static const char *cpu_describe(void *ctx) { return ((const splk_cpu *)ctx)->description; }

const spl_backend_ops SPLK_TABLE = {
    .abi = SPL_BACKEND_ABI,
    .name = "cpu",
    .is_reference = 0,
    .has_memory = 1,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = splk_cpu_alloc,
    .free = splk_cpu_free,
    .queue_open = splk_cpu_queue_open,
    .queue_close = splk_cpu_queue_close,
    .event_open = splk_cpu_event_open,
    .event_close = splk_cpu_event_close,
    .event_record = splk_cpu_event_record,
    .event_wait = splk_cpu_event_wait,
    .event_test = splk_cpu_event_test,
    .copy_in = splk_cpu_copy,
    .copy_out = splk_cpu_copy,
    .box = splk_cpu_box,
    .zero = splk_cpu_zero,
    .cast = splk_cpu_cast,
    .sum = splk_cpu_sum,
    .fill = splk_cpu_fill,
    .random = splk_cpu_random,
    .stats = splk_cpu_stats,
    .gemm = splk_cpu_gemm,
    .norm = splk_cpu_norm,
    .act = splk_cpu_act,
    .residual = splk_cpu_residual,
    .rope = splk_cpu_rope,
    .embed = splk_cpu_embed,
    .nll = splk_cpu_nll,
    .attention = splk_cpu_attention,
    .pool = splk_cpu_pool,
    .softmax = splk_cpu_softmax,
    .workspace_peak = splk_cpu_workspace_peak,
    .kernels = cpu_kernels,
    .select = splk_cpu_select,
};
