/* cpu_reduce.c: sums of several arrays (the local half of a reduction between ranks), and statistics of one array. */
#include "cpu.h"
#include "half.h"

enum { BLOCK = 1024 };

static inline uint8_t truth(uint8_t v) { return v != 0; }

/* dst = srcs[0] + srcs[1] + ..., element by element in that order. The sum of a block is formed aside before it is
 * stored, so that dst may be any of the sources. load widens an element to `acc`, store brings it back. */
#define SUM_LOOP(name, type, acc, load, store, plus)                                                                 \
    static void sum_##name(void *dst, const void *const *srcs, int nsrcs, int64_t at, int64_t n) {                   \
        acc sum[BLOCK];                                                                                              \
        for (int64_t i = 0; i < n; i++) sum[i] = load(((const type *)srcs[0])[at + i]);                              \
        for (int s = 1; s < nsrcs; s++) {                                                                            \
            const type *x = (const type *)srcs[s] + at;                                                              \
            for (int64_t i = 0; i < n; i++) sum[i] = (acc)(sum[i] plus load(x[i]));                                  \
        }                                                                                                            \
        for (int64_t i = 0; i < n; i++) ((type *)dst)[at + i] = store(sum[i]);                                       \
    }
SUM_LOOP(f64, double, double, , , +)
SUM_LOOP(f32, float, float, , , +)
SUM_LOOP(bf16, uint16_t, float, splk_bf16_to_f32, splk_bf16_of_f32, +)
SUM_LOOP(f16, uint16_t, float, splk_f16_to_f32, splk_f16_of_f32, +)
SUM_LOOP(i64, int64_t, uint64_t, (uint64_t), (int64_t), +) /* integers wrap */
SUM_LOOP(i32, int32_t, uint32_t, (uint32_t), (int32_t), +)
SUM_LOOP(u8, uint8_t, uint8_t, , , +)
SUM_LOOP(bool, uint8_t, uint8_t, truth, , |)

typedef void sum_loop(void *dst, const void *const *srcs, int nsrcs, int64_t at, int64_t n);

static sum_loop *const sums[SPL_DTYPE_COUNT] = {
    [SPL_F64] = sum_f64, [SPL_F32] = sum_f32, [SPL_BF16] = sum_bf16, [SPL_F16] = sum_f16,
    [SPL_I64] = sum_i64, [SPL_I32] = sum_i32, [SPL_U8] = sum_u8,     [SPL_BOOL] = sum_bool,
};

spl_status splk_cpu_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                        spl_dtype t) {
    (void)q;
    if ((unsigned)t >= SPL_DTYPE_COUNT || n < 0 || nsrcs < 0)
        return spli_error(SPL_EARG, "sum: %d arrays of %lld elements of type %d cannot be added", nsrcs, (long long)n,
                          (int)t);
    if (n == 0) return spli_ok();
    if (nsrcs == 0) {
        memset(dst, 0, (size_t)n * spl_dtype_size(t));
        return spli_ok();
    }
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    int team = splk_team(ctx, blocks, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = b * BLOCK;
        sums[t](dst, srcs, nsrcs, at, n - at < BLOCK ? n - at : BLOCK);
    }
    return spli_ok();
}

/* Statistics of up to BLOCK elements, added to *out. The largest magnitude is found as an integer: the bits of
 * non-negative doubles are ordered like the numbers, and a maximum of integers vectorises. */
static void stats_block(const double *x, int64_t n, spl_stats *out) {
    double sum = 0, squares = 0, top;
    uint64_t top_bits = 0;
    int64_t nans = 0, infs = 0;
#pragma omp simd reduction(+ : sum, squares, nans, infs) reduction(max : top_bits)
    for (int64_t i = 0; i < n; i++) {
        double v = x[i], m = fabs(v);
        uint64_t bits;
        memcpy(&bits, &m, 8);
        sum += v;
        squares += v * v;
        nans += v != v;
        infs += m > 0x1.fffffffffffffp1023;
        bits = v != v ? 0 : bits;
        top_bits = bits > top_bits ? bits : top_bits;
    }
    memcpy(&top, &top_bits, 8);
    out->sum += sum;
    out->sum_squares += squares;
    out->nan_count += nans;
    out->inf_count += infs;
    if (top > out->abs_max) out->abs_max = top;
}

/* A part of up to PART elements is one thread's; parts are added up in order whatever the threads. */
enum { PART = 64 * BLOCK };

static spl_stats stats_part(const void *x, spl_dtype t, int64_t at, int64_t n) {
    spl_stats part = {0};
    double wide[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t len = n - i < BLOCK ? n - i : BLOCK;
        const char *from = (const char *)x + (size_t)(at + i) * spl_dtype_size(t);
        splk_load_doubles(wide, from, t, len);
        stats_block(wide, len, &part);
    }
    return part;
}

spl_status splk_cpu_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *host_out) {
    (void)q;
    splk_cpu *c = ctx;
    spl_stats *parts;
    void *scratch;
    int64_t count = (n + PART - 1) / PART, stride;
    memset(host_out, 0, sizeof *host_out);
    if ((unsigned)t >= SPL_DTYPE_COUNT || n < 0)
        return spli_error(SPL_EARG, "stats: %lld elements of type %d are not an array", (long long)n, (int)t);
    if (n == 0) return spli_ok();
    SPL_TRY(splk_scratch_take(c, 1, count * (int64_t)sizeof *parts, &stride, &scratch));
    parts = scratch;
    int team = splk_team(c, count, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < count; i++)
        parts[i] = stats_part(x, t, i * PART, n - i * PART < PART ? n - i * PART : PART);
    for (int64_t i = 0; i < count; i++) {
        host_out->sum += parts[i].sum;
        host_out->sum_squares += parts[i].sum_squares;
        host_out->nan_count += parts[i].nan_count;
        host_out->inf_count += parts[i].inf_count;
        if (parts[i].abs_max > host_out->abs_max) host_out->abs_max = parts[i].abs_max;
    }
    splk_scratch_give(c, 1, stride, scratch);
    return spli_ok();
}
