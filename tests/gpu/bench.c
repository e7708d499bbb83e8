/* bench.c: measures the kernels of a device against two ceilings taken first in the same run, the rate of a large
 * matrix product and the bandwidth of a copy: attention over the sequence length, and the kernels of one rank of
 * eight of the GPT-3 layer (batch 1, seq 2048, hidden 12288, 96 heads, bf16, dropout 0.1), without communication.
 *   bench [--backend cuda] [--small] [--out FILE]   one JSON line a figure goes to FILE, a table to standard output */
#include "backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const spl_backend_ops *ops;
static void *ctx;
static spl_queue *queue;
static FILE *json;
static double gemm_rate, copy_rate; /* FLOP/s, bytes/s */
static int small;

static void need(spl_status s) {
    if (s.code == SPL_OK) return;
    fprintf(stderr, "bench: %s\n", s.message);
    exit(spl_exit_code(s.code));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void drain(void) {
    spl_event *e;
    int done = 0;
    need(ops->event_open(ctx, &e));
    need(ops->event_record(ctx, queue, e));
    while (!done) need(ops->event_test(ctx, e, &done));
    ops->event_close(ctx, e);
}

static void *take(int64_t elements, spl_dtype t, double scale) { /* normal numbers */
    void *p;
    need(ops->alloc(ctx, (size_t)elements * spl_dtype_size(t), &p));
    spl_segment all = {0, elements, 1};
    spl_index_map map = {.ndim = 1, .global = {elements}, .local = {elements}, .segments = {&all}, .nsegments = {1}};
    spl_random_args r = {.dtype = t, .kind = SPL_RANDOM_NORMAL, .key = {{1, 2}}, .b = scale, .map = &map, .out = p};
    need(ops->random(ctx, queue, &r));
    return p;
}

static void give(void *p, int64_t elements, spl_dtype t) {
    drain();
    ops->free(ctx, p, (size_t)elements * spl_dtype_size(t));
}

/* The least time of a call out of several rounds of `each` calls. */
static double best(void (*call)(void *), void *args, int each) {
    double least = 1e30;
    call(args);
    drain();
    for (int round = 0; round < (small ? 1 : 7); round++) {
        double begin = now();
        for (int i = 0; i < each; i++) call(args);
        drain();
        double t = (now() - begin) / each;
        if (t < least) least = t;
    }
    return least;
}

static void report(const char *name, double seconds, double flops, double bytes) {
    double rate = flops / seconds, band = bytes / seconds;
    printf("%-44s %10.4f ms", name, seconds * 1e3);
    if (flops > 0)
        printf(" %8.1f TFLOP/s %5.1f %% of gemm", rate * 1e-12, gemm_rate > 0 ? 100 * rate / gemm_rate : 100.0);
    if (bytes > 0) printf(" %8.1f GB/s %5.1f %% of copy", band * 1e-9, copy_rate > 0 ? 100 * band / copy_rate : 100.0);
    printf("\n");
    if (!json) return;
    fprintf(json,
            "{\"name\":\"%s\",\"seconds\":%.9g,\"flops\":%.9g,\"bytes\":%.9g,\"of_gemm\":%.5g,\"of_copy\":%.5g}\n",
            name,
             seconds, flops, bytes, gemm_rate > 0 ? rate / gemm_rate : 0, copy_rate > 0 ? band / copy_rate : 0);
}

/* ---------------------------------------------------------------- ceilings */

static void call_gemm(void *args) { need(ops->gemm(ctx, queue, args)); }
static void call_box(void *args) { need(ops->box(ctx, queue, args)); }

static void ceilings(void) {
    const int64_t n = small ? 64 : 8192, count = small ? 1 << 12 : 1 << 28;
    spl_gemm_args g = {.dtype = SPL_BF16, .m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .trans_b = 1,
                       .alpha = 1};
    void *a = take(n * n, SPL_BF16, 1), *b = take(n * n, SPL_BF16, 1), *c = take(n * n, SPL_BF16, 1);
    g.a = a, g.b = b, g.c = c;
    double t = best(call_gemm, &g, small ? 1 : 10), flops = 2.0 * (double)n * (double)n * (double)n;
    gemm_rate = flops / t;
    report("ceiling: bf16 matrix product", t, flops, 0);
    give(a, n * n, SPL_BF16), give(b, n * n, SPL_BF16), give(c, n * n, SPL_BF16);
    void *from = take(count, SPL_F32, 1), *to = take(count, SPL_F32, 1);
    spl_box_args box = {.dtype = SPL_F32, .ndim = 1, .shape = {count}, .dst_strides = {1}, .src_strides = {1},
                        .dst = to, .src = from};
    t = best(call_box, &box, small ? 1 : 10);
    copy_rate = 8.0 * (double)count / t;
    report("ceiling: copy", t, 0, 8.0 * (double)count);
    give(from, count, SPL_F32), give(to, count, SPL_F32);
}

/* ---------------------------------------------------------------- attention */

static void call_attention(void *args) { need(ops->attention(ctx, queue, args)); }

static void attention(int64_t seq, int64_t heads, int64_t dim, int causal, spl_dtype t, double p) {
    const int64_t n = seq * heads * dim;
    char name[96];
    int32_t *kv = calloc((size_t)heads, sizeof *kv);
    spl_segment one = {0, 1, 1}, all = {0, heads, 1};
    spl_attn_piece piece = {.nq = seq, .nk = seq, .q_stride = 1, .k_stride = 1, .has_upper = causal};
    spl_attn_args a = {.dtype = t, .out_dtype = t, .batch = 1, .heads = heads, .kv_heads = heads, .sq = seq, .sk = seq,
                       .head_dim = dim, .kv_of_head = kv, .scale = 0.1, .pieces = &piece, .npieces = 1, .p = p,
                       .key = {{3, 4}}, .batch_segments = &one, .nbatch_segments = 1, .head_segments = &all,
                       .nhead_segments = 1, .heads_global = heads, .seq_q_global = seq, .seq_k_global = seq};
    const int64_t strides[4] = {n, heads * dim, dim, 1};
    if (!kv) exit(1);
    for (int64_t h = 0; h < heads; h++) kv[h] = (int32_t)h;
    memcpy(a.q_strides, strides, sizeof strides), memcpy(a.k_strides, strides, sizeof strides);
    memcpy(a.v_strides, strides, sizeof strides), memcpy(a.out_strides, strides, sizeof strides);
    void *q = take(n, t, 1), *k = take(n, t, 1), *v = take(n, t, 1), *out = take(n, t, 1),
         *lse = take(heads * seq, SPL_F32, 1);
    a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse;
    snprintf(name, sizeof name, "attention %s seq %lld heads %lld dim %lld%s%s", spl_dtype_name(t), (long long)seq,
             (long long)heads, (long long)dim, causal ? " causal" : "", p > 0 ? " dropout" : "");
    double pairs = causal ? (double)seq * (double)(seq + 1) / 2 : (double)seq * (double)seq;
    report(name, best(call_attention, &a, seq > 8192 ? 1 : 5), 4 * pairs * (double)(heads * dim), 0);
    give(q, n, t), give(k, n, t), give(v, n, t), give(out, n, t), give(lse, heads * seq, SPL_F32);
    free(kv);
}

/* ---------------------------------------------------------------- the share of one rank of eight */

typedef struct layer {
    spl_norm_args norm[2];
    spl_gemm_args gemm[4];
    spl_attn_args attention;
    spl_residual_args residual[2];
} layer;

static void call_layer(void *args) {
    layer *l = args;
    need(ops->norm(ctx, queue, &l->norm[0]));
    need(ops->gemm(ctx, queue, &l->gemm[0]));
    need(ops->attention(ctx, queue, &l->attention));
    need(ops->gemm(ctx, queue, &l->gemm[1]));
    need(ops->residual(ctx, queue, &l->residual[0]));
    need(ops->norm(ctx, queue, &l->norm[1]));
    need(ops->gemm(ctx, queue, &l->gemm[2]));
    need(ops->gemm(ctx, queue, &l->gemm[3]));
    need(ops->residual(ctx, queue, &l->residual[1]));
}

static spl_gemm_args linear(int64_t m, int64_t n, int64_t k, const void *x, const void *w, void *y, const void *bias,
                            spl_activation act) {
    return (spl_gemm_args){.dtype = SPL_BF16, .m = m, .n = n, .k = k, .a = x, .b = w, .c = y, .lda = k, .ldb = k,
                           .ldc = n, .trans_b = 1, .alpha = 1, .bias = bias, .act = act};
}

/* rows: of norm, dropout and residual: all of the sequence in `tensor`, an eighth in `sequence`. */
static void share(const char *role, int64_t rows_of) {
    const int64_t seq = small ? 64 : 2048, e = small ? 128 : 12288, heads = small ? 2 : 12, dim = small ? 16 : 128;
    const int64_t rows = seq / rows_of, wide = heads * dim, ffn = small ? 64 : 6144;
    layer l;
    memset(&l, 0, sizeof l);
    void *x = take(rows * e, SPL_F32, 1), *xs = take(seq * e, SPL_BF16, 1), *qkv = take(seq * 3 * wide, SPL_BF16, 1),
         *att = take(seq * wide, SPL_BF16, 1), *mid = take(seq * ffn, SPL_BF16, 1),
         *w0 = take(3 * wide * e, SPL_BF16, 0.02),
         *w1 = take(e * wide, SPL_BF16, 0.02), *w2 = take(ffn * e, SPL_BF16, 0.02), *w3 = take(e * ffn, SPL_BF16, 0.02),
         *vec = take(4 * e, SPL_BF16, 1), *stat = take(2 * seq, SPL_F32, 1), *lse = take(heads * seq, SPL_F32, 1),
         *mask;
    need(ops->alloc(ctx, (size_t)(rows * e), &mask));
    int32_t kv[12];
    spl_segment one = {0, 1, 1}, all = {0, heads, 1}, of_rows = {0, rows, 1}, of_cols = {0, e, 1};
    spl_index_map map = {.ndim = 2, .global = {seq, e}, .local = {rows, e}, .segments = {&of_rows, &of_cols},
                         .nsegments = {1, 1}};
    spl_attn_piece piece = {.nq = seq, .nk = seq, .q_stride = 1, .k_stride = 1, .has_upper = 1};
    for (int h = 0; h < 12; h++) kv[h] = h;
    for (int i = 0; i < 2; i++) {
        l.norm[i] = (spl_norm_args){.dtype = SPL_BF16, .x_dtype = SPL_F32, .rows = rows, .cols = e, .x = x,
                                    .gamma = vec, .beta = vec, .eps = 1e-5, .y = xs, .mean = stat,
                                    .rstd = (float *)stat + seq};
        l.residual[i] = (spl_residual_args){.dtype = SPL_BF16, .residual_dtype = SPL_F32, .y_dtype = SPL_F32,
                                            .rows = rows, .cols = e, .x = xs, .bias = vec, .residual = x, .p = 0.1,
                                            .key = {{5, 6}}, .map = &map, .mask = mask, .y = x};
    }
    l.gemm[0] = linear(seq, 3 * wide, e, xs, w0, qkv, vec, SPL_ACT_NONE);
    l.gemm[1] = linear(seq, e, wide, att, w1, xs, NULL, SPL_ACT_NONE);
    l.gemm[2] = linear(seq, ffn, e, xs, w2, mid, vec, SPL_ACT_GELU_TANH);
    l.gemm[3] = linear(seq, e, ffn, mid, w3, xs, NULL, SPL_ACT_NONE);
    l.attention = (spl_attn_args){
        .dtype = SPL_BF16, .out_dtype = SPL_BF16, .batch = 1, .heads = heads, .kv_heads = heads, .sq = seq, .sk = seq,
        .head_dim = dim, .q = qkv, .k = (char *)qkv + 2 * dim, .v = (char *)qkv + 4 * dim, .out = att, .lse = lse,
        .q_strides = {0, 3 * wide, 3 * dim, 1}, .k_strides = {0, 3 * wide, 3 * dim, 1},
        .v_strides = {0, 3 * wide, 3 * dim, 1}, .out_strides = {0, wide, dim, 1}, .kv_of_head = kv, .scale = 0.09,
        .pieces = &piece, .npieces = 1, .p = 0.1, .key = {{7, 8}}, .batch_segments = &one, .nbatch_segments = 1,
        .head_segments = &all, .nhead_segments = 1, .heads_global = 8 * heads, .seq_q_global = seq,
        .seq_k_global = seq};
    char name[96];
    snprintf(name, sizeof name, "one rank's kernels of eight, %s", role);
    double gemms = 2.0 * (double)seq * (double)e * (double)(4 * wide + 2 * ffn);
    double visible = (double)seq * (double)(seq + 1) / 2;
    report(name, best(call_layer, &l, small ? 1 : 20), gemms + 4 * visible * (double)wide, 0);
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"qkv", "attention out", "mlp up, gelu", "mlp down"};
        const spl_gemm_args *g = &l.gemm[i];
        snprintf(name, sizeof name, "  product: %s", names[i]);
        if (rows_of == 1)
            report(name, best(call_gemm, &l.gemm[i], small ? 1 : 20), 2.0 * (double)g->m * (double)g->n * (double)g->k,
                   0);
    }
    give(x, rows * e, SPL_F32), give(xs, seq * e, SPL_BF16), give(qkv, seq * 3 * wide, SPL_BF16);
    give(att, seq * wide, SPL_BF16), give(mid, seq * ffn, SPL_BF16), give(w0, 3 * wide * e, SPL_BF16);
    give(w1, e * wide, SPL_BF16), give(w2, ffn * e, SPL_BF16), give(w3, e * ffn, SPL_BF16), give(vec, 4 * e, SPL_BF16);
    give(stat, 2 * seq, SPL_F32), give(lse, heads * seq, SPL_F32), give(mask, rows * e, SPL_BOOL);
}

int main(int argc, char **argv) {
    const char *backend = "cuda", *file = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) small = 1;
        else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc) backend = argv[++i];
        else if (strcmp(argv[i], "--out") == 0 && i + 1 < argc) file = argv[++i];
        else return fprintf(stderr, "bench: unknown option '%s'\n", argv[i]), 2;
    }
    need(spli_backend_open(backend, &ops));
    need(ops->open(0, 1, &ctx));
    need(ops->queue_open(ctx, &queue));
    if (file && !(json = fopen(file, "a"))) return fprintf(stderr, "bench: cannot write %s\n", file), 1;
    char date[32];
    time_t t = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&t));
    printf("# %s, %s\n", ops->describe(ctx), date);
    if (json) fprintf(json, "{\"device\":\"%s\",\"date\":\"%s\"}\n", ops->describe(ctx), date);
    ceilings();
    for (int64_t seq = small ? 64 : 2048; seq <= (small ? 64 : 32768); seq *= 2) {
        attention(seq, small ? 2 : 12, 128, 1, SPL_BF16, 0);
        if (seq == 16384) attention(seq, 12, 128, 0, SPL_BF16, 0);
    }
    attention(small ? 64 : 2048, small ? 2 : 12, 128, 1, SPL_BF16, 0.1);
    attention(small ? 64 : 8192, small ? 2 : 16, 64, 1, SPL_BF16, 0);
    attention(small ? 64 : 4096, small ? 2 : 12, 128, 1, SPL_F32, 0);
    share("tensor", 1);
    share("sequence", 8);
    if (json) fclose(json);
    ops->queue_close(ctx, queue);
    ops->close(ctx);
    return 0;
}
