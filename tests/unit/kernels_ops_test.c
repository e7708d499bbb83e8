/* kernels_ops_test.c: gemm, norm, activation, residual, rope, embedding and loss of the CPU backend against the
 * reference in fp64, over awkward shapes, strides and values. */
#include "kernels_common.h"

static const char *type_name(spl_dtype t) { return spl_dtype_name(t); }

/* ---- gemm ---- */

static int gemm_case(spl_dtype t, int64_t m, int64_t n, int64_t k, int trans, double alpha, double beta, int gap,
                     spl_activation act, int with_bias) {
    spl_gemm_args a = {.dtype = t,
                       .m = m,
                       .n = n,
                       .k = k,
                       .trans_a = trans & 1,
                       .trans_b = trans >> 1,
                       .alpha = alpha,
                       .beta = beta,
                       .act = act};
    a.lda = (a.trans_a ? m : k) + gap, a.ldb = (a.trans_b ? k : n) + gap, a.ldc = n + gap;
    twin x = twin_random(t, (a.trans_a ? k : m) * a.lda, 1), y = twin_random(t, (a.trans_b ? n : k) * a.ldb, 1),
         c = twin_random(t, m * a.ldc, 1), bias = twin_random(t, n, 1);
    if (beta == 0) /* C must not be read */
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) twin_set(&c, i * a.ldc + j, NAN);
    spl_gemm_args b = a;
    a.a = x.narrow.data, a.b = y.narrow.data, a.c = c.narrow.data, a.bias = with_bias ? bias.narrow.data : NULL;
    b.a = x.wide.data, b.b = y.wide.data, b.c = c.wide.data, b.bias = with_bias ? bias.wide.data : NULL,
    b.dtype = SPL_F64;
    int good = BOTH(gemm, &a, &b) && twin_close(&c, tolerance(t, 3e-6, 1e-13), "C");
    if (!good)
        tap_note("m %lld n %lld k %lld trans %d alpha %g beta %g gap %d", (long long)m, (long long)n, (long long)k,
                 trans, alpha, beta, gap);
    twin_free(&x), twin_free(&y), twin_free(&c), twin_free(&bias);
    return good;
}

static void gemms(void) {
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 16, 31, 65, 130};
    for (int i = 0; i < 2; i++) {
        spl_dtype t = float_types[i];
        for (int trans = 0; trans < 4; trans++) {
            int good = 1;
            for (int round = 0; round < 60; round++)
                good &= gemm_case(t, lengths[random_below(9)], lengths[random_below(9)], lengths[random_below(9)],
                                  trans, round % 4 == 1 ? -0.5 : 1, round % 3 == 1 ? 0.75 : 0, (int)random_below(4),
                                  (spl_activation)random_below(4), (int)random_below(2));
            ok(good, "gemm %s, trans %d: random shapes, C not read when beta is 0", type_name(t), trans);
        }
        ok(gemm_case(t, 5, 7, 0, 0, 1, 0, 1, SPL_ACT_NONE, 1), "gemm %s: k 0 gives the bias", type_name(t));
        ok(gemm_case(t, 5, 7, 0, 0, 1, 0.5, 1, SPL_ACT_NONE, 0), "gemm %s: k 0 still scales C", type_name(t));
        ok(gemm_case(t, 203, 301, 517, 2, 1, 0, 0, SPL_ACT_GELU_TANH, 1), "gemm %s: x w^T + bias, GELU, larger",
           type_name(t));
        ok(gemm_case(t, 70, 3, 20000, 2, 1, 0, 0, SPL_ACT_NONE, 1), "gemm %s: long sums", type_name(t));
    }
    float x[4] = {0};
    spl_gemm_args bad = {
        .dtype = SPL_F32, .m = 2, .n = 2, .k = 2, .a = x, .b = x, .c = x, .lda = 1, .ldb = 2, .ldc = 2, .alpha = 1};
    ok(cpu.ops->gemm(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "gemm: a leading dimension inside a row is refused");
    bad.lda = INT64_C(1) << 32;
    ok(cpu.ops->gemm(cpu.ctx, cpu.queue, &bad).code == SPL_EUNSUPPORTED, "gemm: dimensions past 32 bits are refused");
    bad.lda = 2, bad.dtype = SPL_I32;
    ok(cpu.ops->gemm(cpu.ctx, cpu.queue, &bad).code == SPL_EUNSUPPORTED, "gemm: integers are refused by name");
}

/* ---- norm ---- */

typedef struct norm_shape {
    int64_t rows, cols;
    double scale, shift;
    const char *name;
} norm_shape;

static int norm_case(spl_dtype t, spl_norm_kind kind, const norm_shape *s, int options) {
    twin x = twin_random(t, s->rows * s->cols, s->scale), y = twin_make(t, s->rows * s->cols),
         gamma = twin_random(t, s->cols, 2), beta = twin_random(t, s->cols, 1), mean = twin_make(t, s->rows),
         rstd = twin_make(t, s->rows);
    for (int64_t i = 0; i < x.n; i++) twin_set(&x, i, s->shift + ((double *)x.wide.data)[i]);
    int g = options & 1, b = options >> 1 & 1, in_place = options >> 2 & 1, stats = options >> 3 & 1;
    spl_norm_args a = {.dtype = t,
                       .kind = kind,
                       .rows = s->rows,
                       .cols = s->cols,
                       .eps = 1e-5,
                       .x = x.narrow.data,
                       .gamma = g ? gamma.narrow.data : NULL,
                       .beta = b ? beta.narrow.data : NULL,
                       .y = in_place ? x.narrow.data : y.narrow.data,
                       .mean = stats ? mean.narrow.data : NULL,
                       .rstd = stats ? rstd.narrow.data : NULL};
    spl_norm_args r = {.dtype = SPL_F64,
                       .kind = kind,
                       .rows = s->rows,
                       .cols = s->cols,
                       .eps = 1e-5,
                       .x = x.wide.data,
                       .gamma = g ? gamma.wide.data : NULL,
                       .beta = b ? beta.wide.data : NULL,
                       .y = y.wide.data,
                       .mean = stats ? mean.wide.data : NULL,
                       .rstd = stats ? rstd.wide.data : NULL};
    int good = BOTH(norm, &a, &r);
    if (in_place) {
        memcpy(y.narrow.data, x.narrow.data, x.narrow.bytes);
        good &= array_intact(&x.narrow);
    }
    good = good && twin_close(&y, tolerance(t, 2e-7, s->shift != 0 ? 1e-9 : 1e-13), "y");
    if (stats)
        good = good && twin_close(&mean, tolerance(t, 1e-7, 1e-13), "mean") &&
               twin_close(&rstd, tolerance(t, 2e-7, s->shift != 0 ? 1e-9 : 1e-13), "rstd");
    if (!good) tap_note("%lld x %lld, options %d", (long long)s->rows, (long long)s->cols, options);
    twin_free(&x), twin_free(&y), twin_free(&gamma), twin_free(&beta), twin_free(&mean), twin_free(&rstd);
    return good;
}

static void norms(void) {
    static const norm_shape shapes[] = {
        {3,   1,      1,     0,     "one column"     },
        {0,   5,      1,     0,     "no rows"        },
        {7,   17,     1,     0,     "17 columns"     },
        {501, 768,    1,     0,     "501 x 768"      },
        {2,   100003, 1,     0,     "long rows"      },
        {5,   65,     1e18,  0,     "values of 1e18" },
        {5,   65,     1e-20, 0,     "values of 1e-20"},
        {5,   65,     1e-42, 0,     "denormals"      },
        {4,   771,    1,     30000, "mean far from 0"},
        {4,   64,     3e38,  0,     "values of 3e38" }
    };
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < 2; kind++)
            for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
                int good = 1;
                for (int options = 0; options < 16; options++)
                    good &= norm_case(float_types[i], (spl_norm_kind)kind, &shapes[s], options);
                ok(good, "%s %s: %s", kind == SPL_NORM_LAYER ? "LayerNorm" : "RMSNorm", type_name(float_types[i]),
                   shapes[s].name);
            }
    float x[6] = {1, NAN, 2, 3, 4, 5}, y[6];
    spl_norm_args a = {.dtype = SPL_F32, .rows = 2, .cols = 3, .eps = 1e-5, .x = x, .y = y};
    int good = cpu.ops->norm(cpu.ctx, cpu.queue, &a).code == SPL_OK;
    ok(good && isnan(y[0]) && isnan(y[2]) && fabsf(y[3] + 1.2247f) < 1e-3f, "norm: a NaN fills its row and no other");
    float empty = 0, rstd = 0;
    a = (spl_norm_args){.dtype = SPL_F32, .rows = 1, .cols = 0, .eps = 1e-4, .x = &empty, .y = &empty, .rstd = &rstd};
    ok(cpu.ops->norm(cpu.ctx, cpu.queue, &a).code == SPL_OK && fabsf(rstd - 100) < 1e-3f,
       "norm: rows without columns have finite statistics");
}

/* ---- activation ---- */

static const double extremes[] = {0,     -0.0, 1,     -1,    3,      -3,    -5,     -8,       -12,
                                  20,    -20,  88,    -88,   104,    -104,  1e4,    -1e4,     1e18,
                                  -1e18, 3e38, -3e38, 1e-30, -1e-30, 1e-42, -1e-42, INFINITY, NAN};
enum { EXTREMES = sizeof extremes / sizeof extremes[0] };

static int act_case(spl_dtype t, spl_activation act, int64_t rows, int64_t cols, int options) {
    int with_bias = options & 1, with_up = options >> 1 & 1, in_place = options >> 2 & 1;
    twin x = twin_random(t, rows * cols, 6), bias = twin_random(t, cols, 1), up = twin_random(t, rows * cols, 2),
         y = twin_make(t, rows * cols);
    for (int64_t i = 0; i < x.n && i < 3 * EXTREMES; i++) twin_set(&x, i, extremes[i % EXTREMES]);
    spl_act_args a = {.dtype = t,
                      .act = act,
                      .rows = rows,
                      .cols = cols,
                      .x = x.narrow.data,
                      .bias = with_bias ? bias.narrow.data : NULL,
                      .up = with_up ? up.narrow.data : NULL,
                      .y = in_place ? x.narrow.data : y.narrow.data};
    spl_act_args b = {.dtype = SPL_F64,
                      .act = act,
                      .rows = rows,
                      .cols = cols,
                      .x = x.wide.data,
                      .bias = with_bias ? bias.wide.data : NULL,
                      .up = with_up ? up.wide.data : NULL,
                      .y = y.wide.data};
    int good = BOTH(act, &a, &b);
    if (in_place) memcpy(y.narrow.data, x.narrow.data, x.narrow.bytes);
    const double *want = y.wide.data;
    for (int64_t i = 0; i < y.n && good; i++) { /* element by element: one huge value must not excuse the rest */
        double got = get(y.narrow.data, t, i), limit = is_wide(t) ? INFINITY : 3.4028235e38;
        if (fabs(want[i]) > limit && isinf(got)) continue; /* up can take an f32 past its range */
        /* relative, with an absolute part where the reference's own 1 + tanh has cancelled or values are denormal */
        good = same_number(got, want[i], tolerance(t, 2e-6, 1e-14) * fabs(want[i]) + tolerance(t, 1e-9, 1e-14));
        if (!good)
            tap_note("x %g: cpu %.9g, ref %.9g (options %d)", ((double *)x.wide.data)[i], got, want[i], options);
    }
    good &= array_intact(&x.narrow) && array_intact(&y.narrow);
    twin_free(&x), twin_free(&bias), twin_free(&up), twin_free(&y);
    return good;
}

static void activations(void) {
    static const char *const names[] = {"no activation", "tanh-GELU", "erf-GELU", "SiLU"};
    static const int64_t shapes[][2] = {
        {0,  3  },
        {3,  0  },
        {1,  1  },
        {5,  31 },
        {3,  513},
        {67, 301}
    };
    for (int i = 0; i < 2; i++)
        for (int act = 0; act < 4; act++) {
            int good = 1;
            for (int s = 0; s < 6; s++)
                for (int options = 0; options < 8; options++)
                    good &= act_case(float_types[i], (spl_activation)act, shapes[s][0], shapes[s][1], options);
            ok(good, "%s %s: extreme values, bias, gate, in place", names[act], type_name(float_types[i]));
        }
}

/* ---- residual and dropout ---- */

static int residual_case(spl_dtype t, double p, const spl_index_map *map, int64_t rows, int64_t cols, int options) {
    int with_bias = options & 1, with_residual = options >> 1 & 1, with_mask = options >> 2 & 1,
        onto = options >> 3 & 3;
    int64_t n = rows * cols, kept = 0;
    twin x = twin_random(t, n, 3), bias = twin_random(t, cols, 1), residual = twin_random(t, n, 3),
         y = twin_make(t, n);
    array mask = array_make((size_t)n, 1), want = array_make((size_t)n, 0);
    void *out = onto == 1 ? x.narrow.data : onto == 2 ? residual.narrow.data : y.narrow.data;
    spl_residual_args a = {.dtype = t,
                           .rows = rows,
                           .cols = cols,
                           .p = p,
                           .key = {{3, 0xfffffff0}},
                           .map = map,
                           .x = x.narrow.data,
                           .bias = with_bias ? bias.narrow.data : NULL,
                           .residual = with_residual ? residual.narrow.data : NULL,
                           .mask = with_mask ? mask.data : NULL,
                           .y = out};
    spl_residual_args b = a;
    b.dtype = SPL_F64, b.x = x.wide.data, b.bias = with_bias ? bias.wide.data : NULL;
    b.residual = with_residual ? residual.wide.data : NULL, b.mask = want.data, b.y = y.wide.data;
    int good = BOTH(residual, &a, &b);
    if (onto) memcpy(y.narrow.data, out, y.narrow.bytes);
    good = good && twin_close(&y, tolerance(t, 3e-7, 1e-15), "y") && array_intact(&mask) && array_intact(&x.narrow);
    for (int64_t i = 0; i < n; i++) kept += ((unsigned char *)want.data)[i];
    if (with_mask) good &= memcmp(mask.data, want.data, (size_t)n) == 0;
    if (n > 1000) good &= fabs((double)kept / (double)n - (1 - p)) < 0.05;
    twin_free(&x), twin_free(&bias), twin_free(&residual), twin_free(&y);
    array_free(&mask), array_free(&want);
    return good;
}

static void residuals(void) {
    const spl_segment batch[] =
        {
            {1, 2, 2}
    },
                      rows[] = {{0, 3, 1}, {21, 3, 1}}, striped[] = {{2, 8, 3}}, whole[] = {{0, 771, 1}},
                      half[] = {{386, 385, 1}}, two[] = {{5, 100, 1}, {600, 33, 5}};
    struct {
        const char *name;
        spl_index_map map;
    } cases[] = {
        {"zigzag rows",
         {.ndim = 3,
          .global = {4, 24, 771},
          .local = {2, 6, 771},
          .segments = {batch, rows, whole},
          .nsegments = {1, 2, 1}}                                                                          },
        {"striped rows, half the columns",
         {.ndim = 3,
          .global = {4, 26, 771},
          .local = {2, 8, 385},
          .segments = {batch, striped, half},
          .nsegments = {1, 1, 1}}                                                                          },
        {"columns in two runs",
         {.ndim = 2, .global = {30, 1000}, .local = {6, 133}, .segments = {rows, two}, .nsegments = {2, 2}}}
    };
    for (int i = 0; i < 2; i++)
        for (int c = 0; c < 3; c++)
            for (int drop = 0; drop < 2; drop++) {
                const spl_index_map *m = &cases[c].map;
                int64_t cols = m->local[m->ndim - 1], count = m->ndim == 3 ? m->local[0] * m->local[1] : m->local[0];
                int good = 1;
                for (int options = 0; options < 24; options++)
                    good &= residual_case(float_types[i], drop ? 0.1 : 0, drop || options % 2 ? m : NULL, count, cols,
                                          options);
                ok(good, "residual %s, p %g: %s; masks bit for bit", type_name(float_types[i]), drop ? 0.1 : 0,
                   cases[c].name);
            }
    float x[4] = {1, 2, 3, 4};
    spl_residual_args bad = {.dtype = SPL_F32, .rows = 2, .cols = 2, .x = x, .y = x, .p = 1};
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "dropout probability 1 is refused");
    bad.p = 0.5;
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "dropout without coordinates is refused");
    bad.map = &cases[0].map;
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "coordinates of another shape are refused");
    x[1] = NAN;
    bad.p = 0.999, bad.rows = 1, bad.cols = 4;
    const spl_segment four[] = {
        {0, 4, 1}
    };
    bad.map = &(spl_index_map){.ndim = 1, .global = {4}, .local = {4}, .segments = {four}, .nsegments = {1}};
    ok(cpu.ops->residual(cpu.ctx, cpu.queue, &bad).code == SPL_OK && isnan(x[1]) && x[0] == 0,
       "dropout does not hide a NaN");
}

/* At the edge: a probability equal to a draw keeps it, the smallest step above drops it. */
static void dropout_edges(void) {
    const spl_segment line[] = {
        {100, 40, 1}
    };
    spl_index_map map = {.ndim = 1, .global = {200}, .local = {40}, .segments = {line}, .nsegments = {1}};
    double draw[40], x[40], y[40];
    unsigned char mask[40];
    spl_random_args r = {.dtype = SPL_F64, .key = {{9, 8}}, .b = 1, .map = &map, .out = draw};
    int good = ref.ops->random(ref.ctx, ref.queue, &r).code == SPL_OK;
    for (int i = 0; i < 40; i++) x[i] = 1;
    for (int i = 0; i < 40; i++)
        for (int step = 0; step < 3; step++) {
            double p = draw[i] + (step == 1 ? 0x1p-24 : step == 2 ? 0x1p-50 : 0);
            spl_residual_args a = {.dtype = SPL_F64, .rows = 1, .cols = 40, .x = x, .y = y, .p = p, .key = {{9, 8}}};
            a.map = &map, a.mask = mask;
            good &= cpu.ops->residual(cpu.ctx, cpu.queue, &a).code == SPL_OK && mask[i] == (step == 0);
            good &= fabs(y[i] - (step == 0 ? 1 / (1 - p) : 0)) < 1e-12;
        }
    ok(good, "dropout: a draw equal to the probability is kept, one below it is dropped");
}

/* ---- rope, embedding, loss ---- */

static int rope_case(spl_dtype t, int64_t batch, int64_t seq, int64_t heads, int64_t dim, int half, int layout,
                     const spl_segment *s, int ns) {
    int64_t gap = layout & 1, n = batch * seq * heads * (dim + gap) + 8;
    int in_place = layout >> 1 & 1, heads_first = layout >> 2;
    twin x = twin_random(t, n, 1), y = twin_random(t, n, 1);
    spl_rope_args a = {
        .dtype = t,
        .batch = batch,
        .seq = seq,
        .heads = heads,
        .head_dim = dim,
        .theta = 10000,
        .half = half,
        .positions = s,
        .npositions = ns,
        .x = x.narrow.data,
        .y = in_place ? x.narrow.data : y.narrow.data,
        .x_strides = {seq * heads * (dim + gap), heads * (dim + gap), dim + gap, 1}
    };
    if (heads_first) a.x_strides[1] = dim + gap, a.x_strides[2] = seq * (dim + gap);
    memcpy(a.y_strides, a.x_strides, sizeof a.y_strides);
    if (!in_place && heads_first) { /* every element of a head far from the next */
        a.y_strides[3] = seq * heads, a.y_strides[1] = heads, a.y_strides[2] = 1, a.y_strides[0] = seq * heads * dim;
    }
    spl_rope_args b = a;
    b.dtype = SPL_F64, b.x = x.wide.data, b.y = in_place ? x.wide.data : y.wide.data;
    int good = BOTH(rope, &a, &b) && twin_close(in_place ? &x : &y, tolerance(t, 2e-7, 1e-13), "y");
    twin_free(&x), twin_free(&y);
    return good;
}

static void ropes(void) {
    const spl_segment near[] =
        {
            {0,  3, 1},
            {21, 4, 1}
    },
                      far[] = {{1000000, 5, 3}, {7, 2, 1}}, none[] = {{0, 0, 1}}, many[] = {{100, 900, 2}};
    static const int64_t dims[] = {1, 2, 3, 6, 7, 64, 128};
    for (int i = 0; i < 2; i++)
        for (int half = 0; half < 2; half++) {
            spl_dtype t = float_types[i];
            int good = 1;
            for (int d = 0; d < 7; d++)
                for (int layout = 0; layout < 8; layout++) {
                    good &= rope_case(t, 2, 7, 3, dims[d], half, layout, near, 2);
                    good &= rope_case(t, 1, 7, 2, dims[d], half, layout, far, 2);
                    good &= rope_case(t, 2, 0, 3, dims[d], half, layout, none, 1);
                }
            good &= rope_case(t, 2, 900, 2, 16, half, 0, many, 1);
            ok(good, "rope %s, half %d: segments, positions of 1e6, strides, in place", type_name(t), half);
        }
    float x[2];
    spl_rope_args bad = {.dtype = SPL_F32,
                         .batch = 1,
                         .seq = 2,
                         .heads = 1,
                         .head_dim = 1,
                         .x = x,
                         .y = x,
                         .theta = 1e4,
                         .positions = near,
                         .npositions = 1};
    ok(cpu.ops->rope(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "rope: positions of another length are refused");
}

static void embeddings(void) {
    static const spl_dtype types[] = {SPL_F64, SPL_F32, SPL_BF16, SPL_F16};
    static const int64_t shapes[][2] = {
        {0,   4  },
        {5,   0  },
        {1,   1  },
        {7,   3  },
        {300, 129}
    };
    for (int t = 0; t < 4; t++) {
        int good = 1;
        size_t size = spl_dtype_size(types[t]);
        for (int s = 0; s < 5; s++) {
            int64_t rows = shapes[s][0], hidden = shapes[s][1], local = 11;
            int64_t *ids = malloc((size_t)(rows + 1) * sizeof *ids);
            array table = array_make((size_t)(local * hidden) * size, (int)size),
                  x = array_make((size_t)(rows * hidden) * size, (int)size),
                  y = array_make((size_t)(rows * hidden) * size, 0);
            for (int64_t r = 0; r < rows; r++) ids[r] = random_below(40);
            for (int64_t i = 0; i < local * hidden; i++) {
                double v = random_unit();
                ref.ops->cast(ref.ctx, ref.queue, (char *)table.data + (size_t)i * size, types[t], &v, SPL_F64, 1);
            }
            spl_embed_args a = {.dtype = types[t],
                                .rows = rows,
                                .hidden = hidden,
                                .first = 13,
                                .vocab_local = local,
                                .ids = ids,
                                .table = table.data,
                                .out = x.data};
            spl_embed_args b = a;
            b.out = y.data;
            good &= BOTH(embed, &a, &b) && memcmp(x.data, y.data, x.bytes) == 0 && array_intact(&x);
            free(ids);
            array_free(&table), array_free(&x), array_free(&y);
        }
        ok(good, "embedding %s: ids inside and outside this part of the table", type_name(types[t]));
    }
}

static void losses(void) {
    static const int64_t shapes[][2] = {
        {0,  3    },
        {1,  1    },
        {5,  2    },
        {9,  1027 },
        {40, 512  },
        {3,  50257}
    };
    for (int i = 0; i < 2; i++)
        for (int big = 0; big < 2; big++) {
            spl_dtype t = float_types[i];
            int good = 1;
            for (int s = 0; s < 6; s++) {
                int64_t rows = shapes[s][0], vocab = shapes[s][1];
                twin logits = twin_random(t, rows * vocab, big ? 3000 : 9);
                int64_t *labels = malloc((size_t)(rows + 1) * sizeof *labels);
                double *x = malloc((size_t)(rows + 1) * sizeof *x), *y = malloc((size_t)(rows + 1) * sizeof *y);
                for (int64_t r = 0; r < rows; r++) labels[r] = r % 4 == 3 ? -100 : random_below(vocab);
                if (rows > 5) twin_set(&logits, 5 * vocab, -INFINITY);
                spl_nll_args a = {.dtype = t,
                                  .rows = rows,
                                  .vocab = vocab,
                                  .labels = labels,
                                  .logits = logits.narrow.data,
                                  .nll = x};
                spl_nll_args b = {.dtype = SPL_F64,
                                  .rows = rows,
                                  .vocab = vocab,
                                  .labels = labels,
                                  .logits = logits.wide.data,
                                  .nll = y};
                good &= BOTH(nll, &a, &b);
                for (int64_t r = 0; r < rows; r++)
                    good &= same_number(x[r], y[r], tolerance(t, 3e-7, 1e-12) * (1 + fabs(y[r])));
                free(labels), free(x), free(y);
                twin_free(&logits);
            }
            ok(good, "nll %s: logits up to %d, ignored labels", type_name(t), big ? 3000 : 9);
        }
    float logits[3] = {0};
    double nll;
    int64_t label = 3;
    spl_nll_args bad = {.dtype = SPL_F32, .rows = 1, .vocab = 3, .logits = logits, .labels = &label, .nll = &nll};
    ok(cpu.ops->nll(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "nll: a label past the vocabulary is refused");
    logits[1] = NAN, label = 0;
    ok(cpu.ops->nll(cpu.ctx, cpu.queue, &bad).code == SPL_OK && isnan(nll), "nll: a NaN anywhere in the row shows");
}

/* ---- accounting ---- */

static void workspace(void) {
    const spl_segment s[] = {
        {0, 4, 1}
    };
    double x[4 * 64] = {0};
    spl_rope_args a = {
        .dtype = SPL_F64,
        .batch = 1,
        .seq = 4,
        .heads = 1,
        .head_dim = 64,
        .theta = 1e4,
        .x = x,
        .y = x,
        .x_strides = {256, 64, 64, 1},
        .y_strides = {256, 64, 64, 1},
        .positions = s,
        .npositions = 1
    };
    cpu.ops->workspace_peak(cpu.ctx, 1);
    int64_t before = cpu.ops->workspace_peak(cpu.ctx, 0);
    int good = cpu.ops->rope(cpu.ctx, cpu.queue, &a).code == SPL_OK;
    int64_t peak = cpu.ops->workspace_peak(cpu.ctx, 1);
    good &= !on_cpu() || (before == 0 && peak >= 32 * 8 * 3 && cpu.ops->workspace_peak(cpu.ctx, 0) == 0);
    ok(good,
       "scratch is counted and given back (%lld bytes)", (long long)peak);
}

int main(void) {
    open_side(&cpu, "cpu", 2);
    open_side(&ref, "ref", 2);
    gemms();
    norms();
    activations();
    residuals();
    dropout_edges();
    ropes();
    embeddings();
    losses();
    workspace();
    close_side(&cpu);
    close_side(&ref);
    return tap_done();
}
