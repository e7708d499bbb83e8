/* kernels_test.c: memory, movement, conversion, sums, statistics and random numbers of the CPU backend against the
 * reference, bit for bit; the null backend; Philox against its published vectors. */
#include "kernels_common.h"
#include "rng.h"

static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 17, 63, 64, 65, 1021, 1024, 4099, 40009};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

/* ---- Philox ---- */

typedef void philox_function(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

static void core_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    spli_philox(counter,
                (spl_rng_key){
                    {key[0], key[1]}
    },
                out);
}

/* The known answers that the authors publish with Random123. */
static void known_answers(const char *name, philox_function *philox) {
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, /* digits of pi */
         0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int c = 0; c < 3; c++) {
        uint32_t out[4];
        philox(cases[c], cases[c] + 4, out);
        ok(memcmp(out, cases[c] + 6, sizeof out) == 0, "philox of %s: known answer %d", name, c + 1);
    }
}

static void cpu_first_block(void) {
    spl_segment all = {0, 4, 1};
    spl_index_map map = {.ndim = 1, .global = {4}, .local = {4}, .segments = {&all}, .nsegments = {1}};
    double out[4], want[4] = {0x6627e8, 0xe169c5, 0xbc57ac, 0x9b00db};
    spl_random_args a = {.dtype = SPL_F64, .kind = SPL_RANDOM_UNIFORM, .a = 0, .b = 0x1p24, .map = &map, .out = out};
    int good = cpu.ops->random(cpu.ctx, cpu.queue, &a).code == SPL_OK && memcmp(out, want, sizeof out) == 0;
    ok(good, "philox of the cpu kernels: known answer 1, as uniforms");
}

/* ---- random by global index ---- */

static spl_index_map map_3d(int64_t d0, int64_t d1, int64_t d2, const spl_segment *s0, int n0, const spl_segment *s1,
                            int n1, const spl_segment *s2, int n2) {
    spl_index_map m = {
        .ndim = 3, .global = {d0, d1, d2},
             .segments = {s0, s1, s2},
             .nsegments = {n0, n1, n2}
    };
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < m.nsegments[d]; i++) m.local[d] += m.segments[d][i].length;
    return m;
}

static void random_case(const char *name, const spl_index_map *m) {
    int64_t n = m->local[0] * m->local[1] * m->local[2];
    for (int kind = SPL_RANDOM_UNIFORM; kind <= SPL_RANDOM_IOTA; kind++) {
        int good = 1;
        for (int t = 0; t < SPL_DTYPE_COUNT; t++) {
            size_t size = spl_dtype_size((spl_dtype)t);
            array x = array_make((size_t)n * size, (int)size), y = array_make((size_t)n * size, 0);
            /* integers and iota keep the scale so that values differ; halves of units expose wrong rounding */
            spl_random_args a = {.dtype = (spl_dtype)t,
                                 .kind = (spl_random_kind)kind,
                                 .key = {{77, 0x80000001}},
                                 .a = 0.5,
                                 .b = 3,
                                 .map = m,
                                 .out = x.data};
            spl_random_args b = a;
            b.out = y.data;
            good &= BOTH(random, &a, &b) && array_intact(&x);
            for (int64_t i = 0; i < n && kind == SPL_RANDOM_NORMAL && t <= SPL_F32;
                 i++) /* libm may differ in the last bit */
                good &= same_number(get(x.data, (spl_dtype)t, i), get(y.data, (spl_dtype)t, i),
                                    t == SPL_F64 ? 1e-13 : 2e-6);
            if (kind != SPL_RANDOM_NORMAL) good &= memcmp(x.data, y.data, (size_t)n * size) == 0;
            array_free(&x);
            array_free(&y);
        }
        ok(good, "random kind %d by global index: %s, all types", kind, name);
    }
}

static void random_numbers(void) {
    const spl_segment whole5[] =
        {
            {0, 5, 1}
    },
                      one[] = {{3, 1, 1}}, none[] = {{0, 0, 1}};
    const spl_segment zigzag[] =
        {
            {2,  3, 1},
            {11, 4, 1}
    },
                      striped[] = {{1, 333, 3}}, wide[] = {{0, 1000, 1}};
    const spl_segment far[] = {
        {(INT64_C(1) << 38) + 5, 70, 1},
        {INT64_C(1) << 20,       9,  7}
    };
    spl_index_map m = map_3d(5, 15, 1000, whole5, 1, zigzag, 2, wide, 1);
    random_case("zigzag rows", &m);
    m = map_3d(5, 15, 1000, whole5, 1, zigzag, 2, striped, 1);
    random_case("striped columns", &m);
    m = map_3d(5, 15, 1000, one, 1, none, 1, wide, 1);
    random_case("empty", &m);
    m = map_3d(4, 3, INT64_C(1) << 39, one, 1,
               (const spl_segment[]){
                   {2, 1, 1}
    },
               1, far, 2);
    random_case("indices above 2^36", &m);

    int64_t out[2];
    const spl_segment end[] = {
        {(INT64_C(1) << 61) + 1, 2, 1}
    };
    spl_index_map huge = {.ndim = 1, .global = {INT64_C(1) << 62}, .local = {2}, .segments = {end}, .nsegments = {1}};
    spl_random_args a = {.dtype = SPL_I64, .kind = SPL_RANDOM_IOTA, .a = 7, .b = 1, .map = &huge, .out = out};
    int good = cpu.ops->random(cpu.ctx, cpu.queue, &a).code == SPL_OK && out[0] == (INT64_C(1) << 61) + 8 &&
               out[1] == out[0] + 1;
    ok(good, "iota in i64 is exact above 2^53");
    huge.global[0] = INT64_C(1) << 62;
    huge.ndim = 2, huge.global[1] = 4, huge.local[1] = 1, huge.segments[1] = one, huge.nsegments[1] = 1;
    ok(cpu.ops->random(cpu.ctx, cpu.queue, &a).code == SPL_EARG, "an index map that overflows 64 bits is refused");
}

static void moments(void) {
    enum { N = 400000 };
    double *x = malloc(N * sizeof *x), sum = 0, squares = 0, fourth = 0;
    spl_segment all = {0, N, 1};
    spl_index_map map = {.ndim = 1, .global = {N}, .local = {N}, .segments = {&all}, .nsegments = {1}};
    spl_random_args a = {
        .dtype = SPL_F64, .kind = SPL_RANDOM_NORMAL, .key = {{1, 2}}, .a = 0, .b = 1, .map = &map, .out = x};
    int good = cpu.ops->random(cpu.ctx, cpu.queue, &a).code == SPL_OK;
    for (int i = 0; i < N; i++) sum += x[i], squares += x[i] * x[i], fourth += x[i] * x[i] * x[i] * x[i];
    ok(good && fabs(sum / N) < 0.01 && fabs(squares / N - 1) < 0.02 && fabs(fourth / N - 3) < 0.1,
       "normal numbers have mean 0, variance 1, fourth moment 3");
    free(x);
}

/* ---- boxes ---- */

static int box_case(spl_dtype t, int ndim, const int64_t *shape, const int64_t *dst, const int64_t *src, int add,
                    int64_t reach) {
    size_t size = spl_dtype_size(t);
    array from = array_make((size_t)(2 * reach + 1) * size, (int)size),
          x = array_make((size_t)(2 * reach + 1) * size, (int)size),
          y = array_make((size_t)(2 * reach + 1) * size, 0);
    for (size_t i = 0; i < from.bytes; i++) ((unsigned char *)from.data)[i] = (unsigned char)random_bits();
    if (spl_dtype_is_float(t)) /* finite and modest, so that sums are exact enough to compare bits */
        for (int64_t i = 0; i <= 2 * reach; i++) {
            double v = (double)random_below(17) - 8;
            ref.ops->cast(ref.ctx, ref.queue, (char *)from.data + (size_t)i * size, t, &v, SPL_F64, 1);
        }
    memcpy(x.data, from.data, x.bytes);
    memcpy(y.data, from.data, y.bytes);
    spl_box_args a = {.dtype = t, .ndim = ndim, .add = add};
    memcpy(a.shape, shape, sizeof a.shape);
    memcpy(a.dst_strides, dst, sizeof a.dst_strides);
    memcpy(a.src_strides, src, sizeof a.src_strides);
    a.src = (char *)from.data + (size_t)reach * size;
    spl_box_args b = a;
    a.dst = (char *)x.data + (size_t)reach * size;
    b.dst = (char *)y.data + (size_t)reach * size;
    int good = BOTH(box, &a, &b) && memcmp(x.data, y.data, x.bytes) == 0 && array_intact(&x);
    if (!good)
        for (int d = 0; d < ndim; d++)
            tap_note("dim %d: shape %lld, dst %lld, src %lld", d, (long long)shape[d], (long long)dst[d],
                     (long long)src[d]);
    array_free(&from);
    array_free(&x);
    array_free(&y);
    return good;
}

static void boxes(void) {
    static const int64_t lengths[] = {1, 1, 2, 3, 5, 8, 13};
    for (int t = 0; t < SPL_DTYPE_COUNT; t++)
        for (int add = 0; add < 2 - (t == SPL_BOOL); add++) {
            int good = 1;
            for (int round = 0; round < 150 && good; round++) {
                int ndim = (int)random_below(SPL_MAX_DIMS + 1);
                int64_t shape[SPL_MAX_DIMS] = {0}, dst[SPL_MAX_DIMS] = {0}, src[SPL_MAX_DIMS] = {0};
                int64_t order[SPL_MAX_DIMS] = {0, 1, 2, 3, 4, 5}, reach = 0, step_dst = 1, step_src = 1;
                for (int d = 0; d < ndim; d++) {
                    int64_t swap = order[d], with = random_below(ndim);
                    order[d] = order[with], order[with] = swap;
                    shape[d] = round % 40 == 7 && d == 1 ? 0 : lengths[random_below(7)];
                }
                for (int d = ndim - 1; d >= 0; d--) { /* dense in a random order, with gaps, signs, broadcasts */
                    int64_t e = order[d];
                    src[d] = random_below(6) ? step_src * (random_below(5) ? 1 : -1) : random_below(2);
                    dst[e] = step_dst * (random_below(5) ? 1 : -1);
                    step_src *= shape[d] + random_below(2);
                    step_dst *= shape[e] + (random_below(3) == 0);
                    if (step_src < 1) step_src = 1;
                    if (step_dst < 1) step_dst = 1;
                }
                if (round % 10 == 3 && ndim > 1)
                    dst[random_below(ndim)] = random_below(3); /* written more than once */
                for (int d = 0; d < ndim; d++) {
                    int64_t a = llabs(dst[d]), b = llabs(src[d]);
                    reach += shape[d] * (a > b ? a : b);
                }
                if (reach > 4000000) continue;
                good = box_case((spl_dtype)t, ndim, shape, dst, src, add, reach);
            }
            ok(good, "box of %s: %s, random shapes and strides", spl_dtype_name((spl_dtype)t), add ? "add" : "copy");
        }
    ok(box_case(SPL_F32, 3, (int64_t[6]){3, 211, 307}, (int64_t[6]){64777, 307, 1}, (int64_t[6]){64777, 1, 211}, 0,
                200000),
       "box: a large batched transposition");
    ok(box_case(SPL_U8, 2, (int64_t[6]){2, 100003}, (int64_t[6]){100003, 1}, (int64_t[6]){100005, 1}, 0, 300000),
       "box: two long rows with a gap");
    ok(box_case(SPL_F64, 2, (int64_t[6]){50000, 3}, (int64_t[6]){3, 1}, (int64_t[6]){5, 1}, 1, 250020),
       "box: many short rows, added");
    ok(box_case(SPL_I32, 2, (int64_t[6]){40000, 2}, (int64_t[6]){0, 1}, (int64_t[6]){2, 1}, 1, 80010),
       "box: adding into a broadcast destination sums every element");
    spl_box_args bad = {.dtype = SPL_F32, .ndim = 1, .shape = {-1}};
    ok(cpu.ops->box(cpu.ctx, cpu.queue, &bad).code == SPL_EARG, "box: a negative size is refused");
}

/* ---- casts ---- */

static const double corners[] = {0,
                                 -0.0,
                                 1,
                                 -1,
                                 0.5,
                                 -0.5,
                                 1.5,
                                 2.5,
                                 -2.5,
                                 255,
                                 256,
                                 254.9,
                                 65504,
                                 65519.999,
                                 65520,
                                 -65520,
                                 2147483647,
                                 2147483648.0,
                                 -2147483648.0,
                                 -2147483649.0,
                                 9.2e18,
                                 9223372036854775808.0,
                                 -9223372036854775808.0,
                                 -9.3e18,
                                 1e300,
                                 -1e300,
                                 3.4e38,
                                 3.5e38,
                                 3.3961e38,
                                 1e-300,
                                 5e-324,
                                 0x1p-149,
                                 0x1p-150,
                                 0x1.8p-150,
                                 0x1p-126,
                                 0x1.fffffcp-127,
                                 0x1p-133,
                                 0x1p-134,
                                 0x1.8p-134,
                                 0x1p-24,
                                 0x1p-25,
                                 0x1.000001p-25,
                                 0x1.8p-24,
                                 0x1p-14,
                                 0x1.ffcp-15,
                                 0x1.ff8p-15,
                                 0x1.ffep-15,
                                 0x1.01p0,
                                 0x1.0100001p0,
                                 0x1.03p0,
                                 0x1.002p0,
                                 0x1.0020001p0,
                                 0x1.006p0,
                                 0x1.0000010000001p0,
                                 0x1.00000100000001p0};

static int same_bits(const void *x, const void *y, spl_dtype t, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double a, b;
        ref.ops->cast(ref.ctx, ref.queue, &a, SPL_F64, (const char *)x + (size_t)i * spl_dtype_size(t), t, 1);
        ref.ops->cast(ref.ctx, ref.queue, &b, SPL_F64, (const char *)y + (size_t)i * spl_dtype_size(t), t, 1);
        if (isnan(a) && isnan(b)) continue; /* which NaN is nobody's business */
        if (memcmp((const char *)x + (size_t)i * spl_dtype_size(t), (const char *)y + (size_t)i * spl_dtype_size(t),
                   spl_dtype_size(t)) != 0) {
            tap_note("element %lld: cpu %.17g, ref %.17g", (long long)i, a, b);
            return 0;
        }
    }
    return 1;
}

static void casts(void) {
    enum { N = 70000, CORNERS = sizeof corners / sizeof corners[0] };
    double *values = malloc(N * sizeof *values);
    for (int i = 0; i < N; i++) {
        values[i] = i < CORNERS ? corners[i] : ldexp(random_unit(), (int)random_below(300) - 160);
        if (i % 3 == 1 && i >= CORNERS) values[i] = random_unit() * 70000;
    }
    values[CORNERS] = NAN, values[CORNERS + 1] = INFINITY, values[CORNERS + 2] = -INFINITY,
    values[CORNERS + 3] = -NAN;
    for (int from = 0; from < SPL_DTYPE_COUNT; from++)
        for (int to = 0; to < SPL_DTYPE_COUNT; to++) {
            size_t fs = spl_dtype_size((spl_dtype)from), ts = spl_dtype_size((spl_dtype)to);
            array src = array_make(N * fs, (int)fs), x = array_make(N * ts, (int)ts), y = array_make(N * ts, 0);
            ref.ops->cast(ref.ctx, ref.queue, src.data, (spl_dtype)from, values, SPL_F64, N);
            if (from == SPL_I64) /* all 64 bits */
                for (int i = 0; i < N; i += 2) ((int64_t *)src.data)[i] = (int64_t)random_bits();
            int good =
                both_ok(cpu.ops->cast(cpu.ctx, cpu.queue, x.data, (spl_dtype)to, src.data, (spl_dtype)from, N),
                        ref.ops->cast(ref.ctx, ref.queue, y.data, (spl_dtype)to, src.data, (spl_dtype)from, N));
            ok(good && same_bits(x.data, y.data, (spl_dtype)to, N) && array_intact(&x), "cast %s to %s",
               spl_dtype_name((spl_dtype)from), spl_dtype_name((spl_dtype)to));
            array_free(&src);
            array_free(&x);
            array_free(&y);
        }
    free(values);
    uint16_t all[65536], back[65536];
    float wide[65536];
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (int t = SPL_BF16; t <= SPL_F16; t++) {
        int good = cpu.ops->cast(cpu.ctx, cpu.queue, wide, SPL_F32, all, (spl_dtype)t, 65536).code == SPL_OK &&
                   cpu.ops->cast(cpu.ctx, cpu.queue, back, (spl_dtype)t, wide, SPL_F32, 65536).code == SPL_OK;
        ok(good && same_bits(back, all, (spl_dtype)t, 65536), "every %s survives f32 and back",
           spl_dtype_name((spl_dtype)t));
    }
    ok(wide[0x3c00] == 1 && wide[0x7bff] == 65504 && wide[1] == 0x1p-24f && wide[0xc000] == -2 && isinf(wide[0x7c00]),
       "f16: 1, the largest, the smallest, -2 and infinity are where IEEE 754 puts them");
}

/* ---- sums, fills, statistics, copies ---- */

static void sums(void) {
    for (int t = 0; t < SPL_DTYPE_COUNT; t++) {
        size_t size = spl_dtype_size((spl_dtype)t);
        int good = 1;
        for (int n = 0; n < NSIZES; n++)
            for (int nsrcs = 0; nsrcs <= 5; nsrcs += nsrcs < 3 ? 1 : 2) {
                array src[5], y = array_make((size_t)sizes[n] * size, 0),
                              x = array_make((size_t)sizes[n] * size, (int)size);
                const void *cpu_srcs[5], *ref_srcs[5];
                for (int s = 0; s < nsrcs; s++) {
                    src[s] = array_make((size_t)sizes[n] * size, (int)size);
                    for (int64_t i = 0; i < sizes[n]; i++) {
                        double v = random_unit() * (t == SPL_U8 ? 255 : 1e4);
                        uint64_t bits = random_bits();
                        ref.ops->cast(ref.ctx, ref.queue, (char *)src[s].data + (size_t)i * size, (spl_dtype)t, &v,
                                      SPL_F64, 1);
                        if (t == SPL_I64 || t == SPL_I32)
                            memcpy((char *)src[s].data + (size_t)i * size, &bits, size); /* wraps */
                    }
                    cpu_srcs[s] = ref_srcs[s] = src[s].data;
                }
                void *dst = x.data;
                if (nsrcs > 1) { /* onto the second source */
                    memcpy(x.data, src[1].data, (size_t)sizes[n] * size);
                    cpu_srcs[1] = x.data;
                }
                good &= both_ok(cpu.ops->sum(cpu.ctx, cpu.queue, dst, cpu_srcs, nsrcs, sizes[n], (spl_dtype)t),
                                ref.ops->sum(ref.ctx, ref.queue, y.data, ref_srcs, nsrcs, sizes[n], (spl_dtype)t));
                good &= same_bits(dst, y.data, (spl_dtype)t, sizes[n]) && array_intact(&x);
                for (int s = 0; s < nsrcs; s++) array_free(&src[s]);
                array_free(&x);
                array_free(&y);
            }
        ok(good, "sum of 0 to 5 arrays of %s, in place, bit for bit", spl_dtype_name((spl_dtype)t));
    }
}

static void fills(void) {
    for (int t = 0; t < SPL_DTYPE_COUNT; t++) {
        size_t size = spl_dtype_size((spl_dtype)t);
        int good = 1;
        for (int n = 0; n < NSIZES; n++) {
            array x = array_make((size_t)sizes[n] * size, (int)size), y = array_make((size_t)sizes[n] * size, 0);
            good &= both_ok(cpu.ops->fill(cpu.ctx, cpu.queue, x.data, (spl_dtype)t, sizes[n], -2.75),
                            ref.ops->fill(ref.ctx, ref.queue, y.data, (spl_dtype)t, sizes[n], -2.75));
            good &= memcmp(x.data, y.data, x.bytes) == 0 && array_intact(&x);
            good &= cpu.ops->zero(cpu.ctx, cpu.queue, x.data, x.bytes).code == SPL_OK && array_intact(&x);
            for (size_t i = 0; i < x.bytes; i++) good &= ((unsigned char *)x.data)[i] == 0;
            array_free(&x);
            array_free(&y);
        }
        ok(good, "fill and zero of %s", spl_dtype_name((spl_dtype)t));
    }
}

static void statistics(void) {
    for (int t = 0; t < SPL_DTYPE_COUNT; t++) {
        size_t size = spl_dtype_size((spl_dtype)t);
        int good = 1;
        for (int n = 0; n < NSIZES + 1; n++) {
            int64_t count = n < NSIZES ? sizes[n] : 300007;
            array x = array_make((size_t)count * size, (int)size);
            spl_stats a, b;
            for (int64_t i = 0; i < count; i++) {
                double v = random_unit() * 200;
                ref.ops->cast(ref.ctx, ref.queue, (char *)x.data + (size_t)i * size, (spl_dtype)t, &v, SPL_F64, 1);
            }
            good &= both_ok(cpu.ops->stats(cpu.ctx, cpu.queue, x.data, (spl_dtype)t, count, &a),
                            ref.ops->stats(ref.ctx, ref.queue, x.data, (spl_dtype)t, count, &b));
            good &= fabs(a.sum - b.sum) <= 1e-7 * (double)(count + 1) &&
                    fabs(a.sum_squares - b.sum_squares) <= 1e-11 * (1 + b.sum_squares) && a.abs_max == b.abs_max &&
                    a.nan_count == 0 && a.inf_count == 0;
            array_free(&x);
        }
        ok(good, "stats of %s", spl_dtype_name((spl_dtype)t));
    }
    float odd[] = {1, NAN, -INFINITY, 3, INFINITY, NAN, NAN};
    spl_stats s;
    cpu.ops->stats(cpu.ctx, cpu.queue, odd, SPL_F32, 7, &s);
    ok(s.nan_count == 3 && s.inf_count == 2 && isnan(s.sum) && isnan(s.sum_squares) && isinf(s.abs_max),
       "stats count NaN and infinities, and sums do not hide them");
}

static void memory(void) {
    void *p = NULL;
    spl_event *e = NULL;
    int done = 0, good;
    ok(cpu.ops->alloc(cpu.ctx, 1001, &p).code == SPL_OK && (uintptr_t)p % 64 == 0, "memory is 64-byte aligned");
    char host[] = "seventeen letters", again[sizeof host] = "";
    good = cpu.ops->copy_in(cpu.ctx, cpu.queue, p, host, sizeof host).code == SPL_OK &&
           cpu.ops->copy_out(cpu.ctx, cpu.queue, again, p, sizeof host).code == SPL_OK && strcmp(host, again) == 0;
    ok(good, "copies in and out");
    cpu.ops->free(cpu.ctx, p, 1001);
    ok(cpu.ops->alloc(cpu.ctx, SIZE_MAX - 5, &p).code == SPL_ENOMEM && !p,
       "an impossible size is an error, not a crash");
    good = cpu.ops->event_open(cpu.ctx, &e).code == SPL_OK &&
           cpu.ops->event_record(cpu.ctx, cpu.queue, e).code == SPL_OK &&
           cpu.ops->event_wait(cpu.ctx, cpu.queue, e).code == SPL_OK &&
           cpu.ops->event_test(cpu.ctx, e, &done).code == SPL_OK && (done || !on_cpu());
    for (long i = 0; i < 100000000 && good && !done; i++) good = cpu.ops->event_test(cpu.ctx, e, &done).code == SPL_OK;
    ok(good && done, "an event recorded on a queue is done, on the cpu at once");
    cpu.ops->event_close(cpu.ctx, e);
    void *ctx = NULL;
    ok(cpu.ops->open(0, 0, &ctx).code == SPL_EARG && !ctx, "zero threads are refused");
    ok(strstr(cpu.ops->describe(cpu.ctx), on_cpu() ? "2 threads" : "cuda: GPU") != NULL, "describe: %s",
       cpu.ops->describe(cpu.ctx));
}

static void registry(void) {
    const char *names[] = {"cpu", "null", "ref"};
    int good = 1, n = 0;
    while (spli_backend_name(n)) n++;
    for (int i = 0; i < 3; i++) {
        const spl_backend_ops *ops = spli_backend_find(names[i]);
        good &= ops && strcmp(ops->name, names[i]) == 0 && ops->abi == SPL_BACKEND_ABI;
        good &= ops && ops->is_reference == (i == 2) && ops->has_memory == (i != 1);
        void *const *slot = ops ? (void *const *)(const void *)&ops->open : NULL;
        for (; slot && (const char *)slot < (const char *)&ops->select; slot++) good &= *slot != NULL;
    }
    ok(good && n == 3, "cpu, null and ref are found, every slot filled");
    ok(spli_backend_find("nonesuch") == NULL && spli_backend_find("../cpu") == NULL, "an unknown backend is not");
}

static void null_backend(void) {
    side s;
    void *p = NULL;
    spl_stats stats;
    open_side(&s, "null", 1);
    int good = s.ops->alloc(s.ctx, (size_t)1 << 50, &p).code == SPL_OK && p != NULL;
    ok(good, "null: a petabyte is a token");
    good =
        s.ops
            ->gemm(s.ctx, s.queue, &(spl_gemm_args){.m = 1 << 20, .n = 1 << 20, .k = 1 << 20, .a = p, .b = p, .c = p})
            .code == SPL_OK;
    good &= s.ops->attention(s.ctx, s.queue, &(spl_attn_args){.q = p, .out = p}).code == SPL_OK;
    good &= s.ops->zero(s.ctx, s.queue, p, 1 << 20).code == SPL_OK &&
            s.ops->fill(s.ctx, s.queue, p, SPL_F32, 1 << 20, 1).code == SPL_OK;
    good &= s.ops->stats(s.ctx, s.queue, p, SPL_F32, 100, &stats).code == SPL_OK && stats.sum == 0 &&
            stats.nan_count == 0;
    ok(good, "null: kernels succeed and touch nothing");
    s.ops->free(s.ctx, p, (size_t)1 << 50);
    close_side(&s);
}

int main(void) {
    open_side(&cpu, "cpu", 2);
    open_side(&ref, "ref", 2);
    registry();
    null_backend();
    memory();
    known_answers("the reference", splk_reference.philox);
    known_answers("core", core_philox);
    cpu_first_block();
    random_numbers();
    moments();
    boxes();
    casts();
    sums();
    fills();
    statistics();
    close_side(&cpu);
    close_side(&ref);
    return tap_done();
}
