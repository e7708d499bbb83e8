/* kernels_half_test.c: bf16 and f16 on the CPU backend: every result is the fp64 reference's, computed from the stored
 * numbers, rounded once. What f32 arithmetic may add to half a unit is far less than a second rounding would. */
#include "kernels_common.h"

static const spl_dtype half_types[] = {SPL_BF16, SPL_F16};
static const char *type_name(spl_dtype t) { return spl_dtype_name(t); }

/* n numbers as stored in `t` (bf16, f16 or f32), and what they are in double. The reference's own casts make them. */
typedef struct pair {
    array stored;
    double *wide;
    int64_t n;
    spl_dtype t;
} pair;

static pair pair_make(spl_dtype t, int64_t n) {
    size_t size = spl_dtype_size(t);
    pair p = {array_make((size_t)n * size, (int)size), malloc((size_t)(n + 1) * 8), n, t};
    if (!p.wide) exit(1);
    for (int64_t i = 0; i < n; i++) p.wide[i] = NAN;
    return p;
}

static void pair_store(pair *p) { /* rounds `wide` to the type and takes up what became of it */
    ref.ops->cast(ref.ctx, ref.queue, p->stored.data, p->t, p->wide, SPL_F64, p->n);
    ref.ops->cast(ref.ctx, ref.queue, p->wide, SPL_F64, p->stored.data, p->t, p->n);
}

static pair pair_random(spl_dtype t, int64_t n, double scale) {
    pair p = pair_make(t, n);
    for (int64_t i = 0; i < n; i++) p.wide[i] = scale * random_unit();
    pair_store(&p);
    return p;
}

static void pair_free(pair *p) {
    array_free(&p->stored);
    free(p->wide);
}

/* Half the distance between numbers of type t at x. */
static double half_unit(spl_dtype t, double x) {
    int mantissa = t == SPL_BF16 ? 7 : t == SPL_F16 ? 10 : 23, least = t == SPL_F16 ? -24 : t == SPL_BF16 ? -133 : -149;
    int exponent;
    frexp(x, &exponent);
    exponent -= 1 + mantissa;
    return ldexp(0.5, exponent > least ? exponent : least);
}

/* Every element rounded once: within half a unit of the reference and `slack` (of f32 arithmetic) of |ref| + rms. */
static int rounded_once(const pair *p, double slack, const char *what) {
    double squares = 0, *got = malloc((size_t)(p->n + 1) * 8);
    int64_t finite = 0;
    if (!got) exit(1);
    ref.ops->cast(ref.ctx, ref.queue, got, SPL_F64, p->stored.data, p->t, p->n);
    for (int64_t i = 0; i < p->n; i++)
        if (isfinite(p->wide[i])) squares += p->wide[i] * p->wide[i], finite++;
    double rms = finite ? sqrt(squares / (double)finite) : 0;
    int good = array_intact(&p->stored);
    if (!good) tap_note("%s: written outside the array", what);
    for (int64_t i = 0; i < p->n && good; i++) {
        double x = p->wide[i], bound = half_unit(p->t, x) + slack * (fabs(x) + rms);
        if (p->t == SPL_F16 && fabs(x) >= 65520) x = copysign(INFINITY, x);
        good = same_number(got[i], x, bound);
        if (!good)
            tap_note("%s[%lld]: got %.9g, exactly %.9g, %.3f units off", what, (long long)i, got[i], x,
                     fabs(got[i] - x) / (2 * half_unit(p->t, x)));
    }
    free(got);
    return good;
}

/* ---- rounding ---- */

/* Between each two neighbours of a type: the middle, and the floats next to it. */
static void middles(void) {
    enum { N = 3 * 65536 };
    float *values = malloc(N * sizeof *values);
    uint16_t *x = malloc(N * 2), *y = malloc(N * 2);
    for (int k = 0; k < 2; k++) {
        spl_dtype t = half_types[k];
        for (int i = 0; i < 65536; i++) {
            uint16_t both[2] = {(uint16_t)i, (uint16_t)(i ^ 0x8000 ? i + 1 : i)};
            double wide[2];
            ref.ops->cast(ref.ctx, ref.queue, wide, SPL_F64, both, t, 2);
            float middle = isfinite(wide[1]) ? (float)((wide[0] + wide[1]) / 2) : (float)wide[0];
            if (t == SPL_F16 && fabs(wide[0]) == 65504) middle = copysignf(65520, (float)wide[0]);
            values[3 * i] = middle, values[3 * i + 1] = nextafterf(middle, INFINITY),
                       values[3 * i + 2] = nextafterf(middle, -INFINITY);
        }
        int good = both_ok(cpu.ops->cast(cpu.ctx, cpu.queue, x, t, values, SPL_F32, N),
                           ref.ops->cast(ref.ctx, ref.queue, y, t, values, SPL_F32, N));
        for (int i = 0; i < N && good; i++) {
            good = x[i] == y[i] || isnan(values[i]);
            if (!good) tap_note("%.9g: cpu %04x, ref %04x", (double)values[i], x[i], y[i]);
        }
        ok(good, "f32 to %s: half way between each two numbers, and beside it", type_name(t));
    }
    free(values), free(x), free(y);
}

/* ---- gemm ---- */

static int gemm_case(spl_dtype t, int64_t m, int64_t n, int64_t k, int trans, double alpha, double beta, int gap,
                     spl_activation act, int with_bias) {
    spl_gemm_args a = {.dtype = t, .m = m, .n = n, .k = k, .trans_a = trans & 1, .trans_b = trans >> 1,
                       .alpha = alpha, .beta = beta, .act = act};
    a.lda = (a.trans_a ? m : k) + gap, a.ldb = (a.trans_b ? k : n) + gap, a.ldc = n + gap;
    pair x = pair_random(t, (a.trans_a ? k : m) * a.lda, 1), y = pair_random(t, (a.trans_b ? n : k) * a.ldb, 1),
         c = pair_random(t, m * a.ldc, 1), bias = pair_random(t, n, 1);
    for (int64_t i = 0; i < m && beta == 0; i++) /* C must not be read */
        for (int64_t j = 0; j < n; j++) c.wide[i * a.ldc + j] = NAN;
    pair_store(&c);
    spl_gemm_args b = a;
    a.a = x.stored.data, a.b = y.stored.data, a.c = c.stored.data, a.bias = with_bias ? bias.stored.data : NULL;
    b.a = x.wide, b.b = y.wide, b.c = c.wide, b.bias = with_bias ? bias.wide : NULL, b.dtype = SPL_F64;
    int good = BOTH(gemm, &a, &b) && rounded_once(&c, 2e-6, "C");
    if (!good)
        tap_note("m %lld n %lld k %lld trans %d alpha %g beta %g gap %d", (long long)m, (long long)n, (long long)k,
                 trans, alpha, beta, gap);
    pair_free(&x), pair_free(&y), pair_free(&c), pair_free(&bias);
    return good;
}

static void gemms(void) {
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 16, 31, 65, 130};
    static const int64_t past_panels[][3] = {{515, 3, 7}, {2, 1030, 5}, {3, 2, 4100}, {514, 1026, 1}, {17, 2, 4097}};
    for (int i = 0; i < 2; i++) {
        spl_dtype t = half_types[i];
        for (int trans = 0; trans < 4; trans++) {
            int good = 1;
            for (int round = 0; round < 40; round++)
                good &= gemm_case(t, lengths[random_below(9)], lengths[random_below(9)], lengths[random_below(9)],
                                  trans, round % 4 == 1 ? -0.5 : 1, round % 3 == 1 ? 0.75 : 0, (int)random_below(4),
                                  (spl_activation)random_below(4), (int)random_below(2));
            for (int s = 0; s < 5; s++)
                good &= gemm_case(t, past_panels[s][0], past_panels[s][1], past_panels[s][2], trans, 1,
                                  s % 2 ? 0.75 : 0, 1, SPL_ACT_GELU_TANH, 1);
            ok(good, "gemm %s, trans %d: rounded once, after bias and activation", type_name(t), trans);
        }
        ok(gemm_case(t, 5, 7, 0, 0, 1, 0, 1, SPL_ACT_SILU, 1), "gemm %s: k 0 gives the bias", type_name(t));
        ok(gemm_case(t, 5, 7, 0, 2, 1, 0.5, 1, SPL_ACT_NONE, 0), "gemm %s: k 0 still scales C", type_name(t));
        ok(gemm_case(t, 4, 3, 30000, 2, 1, 0, 0, SPL_ACT_NONE, 1), "gemm %s: long sums are in f32", type_name(t));
    }
    /* 300 * 300 is past the end of f16, not of f32 in which it is formed, nor of bf16 */
    double v = 300, out[2];
    uint16_t x[2], y[2];
    for (int i = 0; i < 2; i++) {
        ref.ops->cast(ref.ctx, ref.queue, &x[i], half_types[i], &v, SPL_F64, 1);
        spl_gemm_args a = {.dtype = half_types[i], .m = 1, .n = 1, .k = 1, .a = &x[i], .b = &x[i], .c = &y[i],
                           .lda = 1, .ldb = 1, .ldc = 1, .alpha = 1};
        cpu.ops->gemm(cpu.ctx, cpu.queue, &a);
        ref.ops->cast(ref.ctx, ref.queue, &out[i], SPL_F64, &y[i], half_types[i], 1);
    }
    ok(out[0] == 90112 && out[1] == INFINITY, "300 * 300 is 90112 in bf16 and infinite in f16: %g, %g", out[0],
       out[1]);
    spl_gemm_args bad = {
        .dtype = SPL_BF16, .m = 2, .n = 2, .k = 2, .a = x, .b = x, .c = y, .lda = 1, .ldb = 2, .ldc = 2, .alpha = 1};
    ok(cpu.ops->gemm(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "gemm: a leading dimension inside a row is refused");
}

/* ---- norm ---- */

static int norm_case(spl_dtype t, spl_dtype x_dtype, spl_norm_kind kind, int64_t rows, int64_t cols, double shift,
                     int options) {
    pair x = pair_random(x_dtype, rows * cols, 3), y = pair_make(t, rows * cols), gamma = pair_random(t, cols, 2),
         beta = pair_random(t, cols, 1), mean = pair_make(SPL_F32, rows), rstd = pair_make(SPL_F32, rows);
    for (int64_t i = 0; i < x.n; i++) x.wide[i] += shift;
    pair_store(&x);
    int g = options & 1, b = options >> 1 & 1, in_place = options >> 2 & 1 && x_dtype == t, stats = options >> 3 & 1;
    spl_norm_args a = {.dtype = t, .x_dtype = x_dtype, .kind = kind, .rows = rows, .cols = cols, .eps = 1e-5}, r = a;
    a.x = x.stored.data, a.gamma = g ? gamma.stored.data : NULL, a.beta = b ? beta.stored.data : NULL;
    a.y = in_place ? x.stored.data : y.stored.data;
    a.mean = stats ? mean.stored.data : NULL, a.rstd = stats ? rstd.stored.data : NULL;
    r.dtype = SPL_F64, r.x = x.wide, r.gamma = g ? gamma.wide : NULL, r.beta = b ? beta.wide : NULL, r.y = y.wide;
    r.mean = mean.wide, r.rstd = rstd.wide;
    int good = BOTH(norm, &a, &r);
    if (in_place) memcpy(y.stored.data, x.stored.data, y.stored.bytes);
    good = good && rounded_once(&y, shift != 0 ? 1e-5 : 5e-7, "y") && array_intact(&x.stored);
    if (stats) good = good && rounded_once(&mean, 2e-7, "mean") && rounded_once(&rstd, 3e-7, "rstd");
    if (!good) tap_note("%lld x %lld, options %d", (long long)rows, (long long)cols, options);
    pair_free(&x), pair_free(&y), pair_free(&gamma), pair_free(&beta), pair_free(&mean), pair_free(&rstd);
    return good;
}

static void norms(void) {
    static const int64_t shapes[][2] = {{0, 5}, {3, 1}, {7, 17}, {301, 1000}, {2, 140001}};
    for (int i = 0; i < 4; i++) {
        spl_dtype t = half_types[i / 2], x_dtype = i % 2 ? SPL_F32 : t;
        int good = 1;
        for (int kind = 0; kind < 2; kind++)
            for (int s = 0; s < 5; s++)
                for (int options = s > 2 ? 15 : 0; options < 16; options++)
                    good &= norm_case(t, x_dtype, (spl_norm_kind)kind, shapes[s][0], shapes[s][1],
                                      options % 4 == 3 && s < 4 ? 40 : 0, options);
        ok(good, "norms: x %s, y %s, rounded once; statistics f32", type_name(x_dtype), type_name(t));
    }
    uint16_t x[6] = {0x3f80, 0x7fc1, 0x4000, 0x3f80, 0x4000, 0x4040}, y[6];
    double wide[6];
    spl_norm_args a = {.dtype = SPL_BF16, .x_dtype = SPL_BF16, .rows = 2, .cols = 3, .eps = 1e-5, .x = x, .y = y};
    int good = cpu.ops->norm(cpu.ctx, cpu.queue, &a).code == SPL_OK;
    ref.ops->cast(ref.ctx, ref.queue, wide, SPL_F64, y, SPL_BF16, 6);
    ok(good && isnan(wide[0]) && isnan(wide[2]) && fabs(wide[3] + 1.2247) < 5e-3, "norm: a NaN fills its row only");
    a.x_dtype = SPL_F64;
    ok(cpu.ops->norm(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "norm: an x neither bf16 nor f32 is refused");
}

/* ---- activation, loss ---- */

static int act_case(spl_dtype t, spl_activation act, int64_t rows, int64_t cols, int options) {
    int with_bias = options & 1, with_up = options >> 1 & 1, in_place = options >> 2 & 1;
    pair x = pair_random(t, rows * cols, 6), bias = pair_random(t, cols, 1), up = pair_random(t, rows * cols, 2),
         y = pair_make(t, rows * cols);
    spl_act_args a = {.dtype = t, .act = act, .rows = rows, .cols = cols}, b = a;
    a.x = x.stored.data, a.bias = with_bias ? bias.stored.data : NULL, a.up = with_up ? up.stored.data : NULL;
    a.y = in_place ? x.stored.data : y.stored.data;
    b.dtype = SPL_F64, b.x = x.wide, b.bias = with_bias ? bias.wide : NULL, b.up = with_up ? up.wide : NULL;
    b.y = y.wide;
    int good = BOTH(act, &a, &b);
    if (in_place) memcpy(y.stored.data, x.stored.data, y.stored.bytes);
    good = good && rounded_once(&y, 1e-6, "y") && array_intact(&x.stored);
    pair_free(&x), pair_free(&bias), pair_free(&up), pair_free(&y);
    return good;
}

static void activations(void) {
    static const int64_t shapes[][2] = {{0, 3}, {3, 0}, {1, 1}, {5, 31}, {3, 513}, {263, 1001}};
    for (int i = 0; i < 2; i++) {
        int good = 1;
        for (int act = 0; act < 4; act++)
            for (int s = 0; s < 6; s++)
                for (int options = s == 5 ? 7 : 0; options < 8; options++)
                    good &= act_case(half_types[i], (spl_activation)act, shapes[s][0], shapes[s][1], options);
        ok(good, "activations %s: bias, gate, in place, rounded once", type_name(half_types[i]));
    }
}

static void losses(void) {
    enum { ROWS = 7, VOCAB = 50021 };
    for (int i = 0; i < 2; i++) {
        pair logits = pair_random(half_types[i], (int64_t)ROWS * VOCAB, 9);
        int64_t labels[ROWS];
        double got[ROWS], want[ROWS];
        for (int r = 0; r < ROWS; r++) labels[r] = r == 2 ? -1 : random_below(VOCAB);
        spl_nll_args a = {.dtype = half_types[i], .rows = ROWS, .vocab = VOCAB, .logits = logits.stored.data,
                          .labels = labels, .nll = got}, b = a;
        b.dtype = SPL_F64, b.logits = logits.wide, b.nll = want;
        int good = BOTH(nll, &a, &b);
        for (int r = 0; r < ROWS; r++) good &= fabs(got[r] - want[r]) <= 1e-6 * fabs(want[r]);
        ok(good, "loss of %s logits in groups of rows", type_name(half_types[i]));
        labels[6] = VOCAB;
        spl_status s = cpu.ops->nll(cpu.ctx, cpu.queue, &a);
        ok(s.code == SPL_EARG && strstr(s.message, "row 6"), "a label past the vocabulary is refused with its row");
        pair_free(&logits);
    }
}

/* ---- residual ---- */

static int residual_case(spl_dtype t, spl_dtype from, spl_dtype to, double p, const spl_index_map *map, int64_t rows,
                         int64_t cols, int options) {
    int with_bias = options & 1, with_residual = options >> 1 & 1, onto = options >> 2 & 1 && to == from;
    int64_t n = rows * cols;
    pair x = pair_random(t, n, 3), bias = pair_random(t, cols, 1), residual = pair_random(from, n, 30),
         y = pair_make(to, n);
    array mask = array_make((size_t)n, 1), want = array_make((size_t)n, 0);
    spl_residual_args a = {.dtype = t, .residual_dtype = from, .y_dtype = to, .rows = rows, .cols = cols, .p = p,
                           .key = {{3, 0xfffffff0}}, .map = map}, b = a;
    a.x = x.stored.data, a.bias = with_bias ? bias.stored.data : NULL, a.mask = mask.data;
    a.residual = with_residual ? residual.stored.data : NULL, a.y = onto ? residual.stored.data : y.stored.data;
    b.dtype = SPL_F64, b.x = x.wide, b.bias = with_bias ? bias.wide : NULL, b.mask = want.data;
    b.residual = with_residual ? residual.wide : NULL, b.y = y.wide;
    int good = BOTH(residual, &a, &b);
    if (onto) memcpy(y.stored.data, residual.stored.data, y.stored.bytes);
    good = good && rounded_once(&y, 3e-7, "y") && array_intact(&mask) && array_intact(&residual.stored) &&
           memcmp(mask.data, want.data, (size_t)n) == 0;
    if (!good) tap_note("p %g, options %d", p, options);
    pair_free(&x), pair_free(&bias), pair_free(&residual), pair_free(&y);
    array_free(&mask), array_free(&want);
    return good;
}

static void residuals(void) {
    const spl_segment batch[] = {{1, 2, 2}}, rows[] = {{0, 3, 1}, {21, 3, 1}}, cols[] = {{5, 700, 1}, {1000, 33, 5}};
    const spl_index_map map = {.ndim = 3, .global = {4, 24, 1200}, .local = {2, 6, 733},
                               .segments = {batch, rows, cols}, .nsegments = {1, 2, 2}};
    for (int i = 0; i < 8; i++) {
        spl_dtype t = half_types[i / 4], from = i & 2 ? SPL_F32 : t, to = i & 1 ? SPL_F32 : t;
        int good = 1;
        for (int options = 0; options < 8; options++) {
            good &= residual_case(t, from, to, 0, NULL, 12, 733, options);
            good &= residual_case(t, from, to, 0.1, &map, 12, 733, options);
        }
        ok(good, "residual: x %s, residual %s, y %s: rounded once; masks bit for bit", type_name(t), type_name(from),
           type_name(to));
    }
    uint16_t x[4] = {0};
    spl_residual_args bad = {.dtype = SPL_F16, .y_dtype = SPL_F16, .rows = 2, .cols = 2, .x = x, .y = x};
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_OK, "residual: the dtype of no residual is not read");
    bad.residual = x;
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "residual: a residual of f64 is refused");
    bad.residual_dtype = SPL_F16, bad.y_dtype = SPL_BF16;
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "residual: a y of the other half is refused");
    bad.y_dtype = SPL_F16, bad.p = 0.5;
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "residual: dropout needs coordinates");
}

/* ---- rope, embedding, attention ---- */

static void ropes(void) {
    const spl_segment positions[] = {{0, 5, 1}, {100000, 4, 7}};
    for (int i = 0; i < 8; i++) {
        int in_place = i >> 1 & 1, strided = i >> 2;
        int64_t batch = 3, seq = 9, heads = 2, dim = 18, n = batch * seq * heads * dim;
        pair x = pair_random(half_types[i & 1], n, 2), y = pair_make(half_types[i & 1], n);
        spl_rope_args a = {.dtype = half_types[i & 1], .batch = batch, .seq = seq, .heads = heads, .head_dim = dim,
                           .theta = 10000, .half = i >> 1 & 1, .positions = positions, .npositions = 2,
                           .x_strides = {seq * heads * dim, heads * dim, dim, 1}}, b;
        if (strided) /* [head_dim, heads, batch, seq] in memory */
            a.x_strides[0] = seq, a.x_strides[1] = 1, a.x_strides[2] = batch * seq,
            a.x_strides[3] = heads * batch * seq;
        memcpy(a.y_strides, a.x_strides, sizeof a.y_strides);
        b = a;
        b.dtype = SPL_F64, b.x = x.wide, b.y = y.wide;
        a.x = x.stored.data, a.y = in_place ? x.stored.data : y.stored.data;
        int good = BOTH(rope, &a, &b);
        if (in_place) memcpy(y.stored.data, x.stored.data, y.stored.bytes);
        ok(good && rounded_once(&y, 3e-7, "y"), "rope %s%s%s: rounded once", type_name(half_types[i & 1]),
           in_place ? ", in place" : "", strided ? ", head_dim outermost" : "");
        a.npositions = 1;
        ok(cpu.ops->rope(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "rope: too few positions are refused");
        pair_free(&x), pair_free(&y);
    }
}

static void embeddings(void) {
    uint16_t table[6] = {0x3f80, 0x7fc1, 3, 0xff80, 0x8000, 6}, out[9];
    const int64_t ids[3] = {8, 2, 7};
    spl_embed_args a = {.dtype = SPL_BF16, .rows = 3, .hidden = 3, .first = 7, .vocab_local = 2, .ids = ids,
                        .table = table, .out = out};
    const uint16_t want[9] = {0xff80, 0x8000, 6, 0, 0, 0, 0x3f80, 0x7fc1, 3};
    ok(cpu.ops->embed(cpu.ctx, cpu.queue, &a).code == SPL_OK && memcmp(out, want, sizeof out) == 0,
       "embedding: rows of bf16 are copied bit by bit");
}

typedef struct attention_case {
    spl_dtype t, out_dtype;
    int64_t sq, sk, dim;
    int merge, transposed;
    double p;
} attention_case;

static int run_attention(const attention_case *c) {
    enum { BATCH = 3, HEADS = 4, KV = 2 };
    static const int32_t kv_of_head[HEADS] = {0, 0, 1, 1};
    const spl_segment batch[] = {{1, 1, 1}, {5, 2, 3}}, heads[] = {{2, 4, 1}};
    const spl_attn_piece pieces[] = {
        {.nq = c->sq, .nk = c->sk, .q_start = c->sk - c->sq, .q_stride = 1, .k_stride = 1, .has_upper = 1}};
    int64_t nq = BATCH * c->sq * HEADS * c->dim, nk = BATCH * c->sk * KV * c->dim;
    pair q = pair_random(c->t, nq, 2), k = pair_random(c->t, nk, 2), v = pair_random(c->t, nk, 2),
         out = pair_random(c->out_dtype, nq, 1), lse = pair_random(SPL_F32, BATCH * HEADS * c->sq, 2);
    spl_attn_args a = {.dtype = c->t, .out_dtype = c->out_dtype, .batch = BATCH, .heads = HEADS, .kv_heads = KV,
                       .sq = c->sq, .sk = c->sk, .head_dim = c->dim, .kv_of_head = kv_of_head, .scale = 0.3,
                       .pieces = pieces, .npieces = 1, .merge = c->merge, .p = c->p, .key = {{5, 6}},
                       .batch_segments = batch, .nbatch_segments = 2, .head_segments = heads, .nhead_segments = 1,
                       .heads_global = 9, .seq_q_global = 4000, .seq_k_global = 4000}, b;
    for (int i = 0; i < 4; i++) {
        int kv = i == 1 || i == 2;
        int64_t s = kv ? c->sk : c->sq, h = kv ? KV : HEADS, *strides = i == 0 ? a.q_strides : i == 1 ? a.k_strides
                                                                      : i == 2 ? a.v_strides : a.out_strides;
        strides[0] = s * h * c->dim, strides[3] = 1;
        strides[1] = c->transposed ? c->dim : h * c->dim;
        strides[2] = c->transposed ? s * c->dim : c->dim;
    }
    b = a;
    a.q = q.stored.data, a.k = k.stored.data, a.v = v.stored.data, a.out = out.stored.data, a.lse = lse.stored.data;
    b.dtype = SPL_F64, b.q = q.wide, b.k = k.wide, b.v = v.wide, b.out = out.wide, b.lse = lse.wide;
    int good = BOTH(attention, &a, &b) && rounded_once(&out, 2e-6, "out") && rounded_once(&lse, 1e-6, "lse") &&
               array_intact(&q.stored) && array_intact(&k.stored) && array_intact(&v.stored);
    pair_free(&q), pair_free(&k), pair_free(&v), pair_free(&out), pair_free(&lse);
    return good;
}

static void attentions(void) {
    for (int i = 0; i < 2; i++) {
        spl_dtype t = half_types[i];
        const struct {
            const char *name;
            attention_case c;
        } cases[] = {
            {"causal", {t, t, 70, 70, 16, 0, 0, 0}},
            {"long rows, head_dim 7", {t, t, 5, 2100, 7, 0, 0, 0}},
            {"heads outermost", {t, t, 33, 131, 8, 0, 1, 0}},
            {"dropout", {t, t, 40, 200, 12, 0, 0, 0.2}},
            {"rows that see nothing", {t, t, 20, 3, 8, 0, 0, 0}},
            {"merged into its own dtype", {t, t, 33, 131, 8, 1, 0, 0}},
            {"out in f32", {t, SPL_F32, 70, 70, 16, 0, 1, 0}},
            {"merged into f32", {t, SPL_F32, 33, 131, 8, 1, 0, 0}},
            {"no queries", {t, t, 0, 9, 8, 0, 0, 0}},
            {"no keys", {t, t, 4, 0, 8, 0, 0, 0}},
        };
        for (size_t s = 0; s < sizeof cases / sizeof cases[0]; s++)
            ok(run_attention(&cases[s].c), "attention %s, %s: rounded once", type_name(t), cases[s].name);
    }
    uint16_t x[8] = {0};
    float lse[2];
    const int32_t wrong_head[1] = {1}, head[1] = {0};
    spl_attn_args a = {.dtype = SPL_BF16, .out_dtype = SPL_BF16, .batch = 1, .heads = 1, .kv_heads = 1, .sq = 1,
                       .sk = 1, .head_dim = 2, .q = x, .k = x, .v = x, .out = x, .lse = lse, .kv_of_head = wrong_head,
                       .q_strides = {2, 2, 2, 1}, .k_strides = {2, 2, 2, 1}, .v_strides = {2, 2, 2, 1},
                       .out_strides = {2, 2, 2, 1}, .npieces = 1,
                       .pieces = &(spl_attn_piece){.nq = 1, .nk = 1, .q_stride = 1, .k_stride = 1}};
    ok(cpu.ops->attention(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "attention: a missing KV head is refused");
    a.kv_of_head = head, a.out_dtype = SPL_F64;
    ok(cpu.ops->attention(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "attention: an out of f64 is refused");
    a.out_dtype = SPL_BF16, a.batch = -1;
    ok(cpu.ops->attention(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "attention: a negative batch is refused");
}

int main(void) {
    open_side(&cpu, "cpu", 2);
    open_side(&ref, "ref", 2);
    middles();
    gemms();
    norms();
    activations();
    losses();
    residuals();
    ropes();
    embeddings();
    attentions();
    cpu.ops->workspace_peak(cpu.ctx, 1);
    ok(!on_cpu() || cpu.ops->workspace_peak(cpu.ctx, 0) == 0, "all scratch was given back");
    close_side(&cpu);
    close_side(&ref);
    return tap_done();
}
