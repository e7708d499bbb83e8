/* cpu_cast.c: conversions between any two element types, and filling with a value.
 *
 * Float to float rounds once, to nearest even. Float to integer truncates toward zero, saturates, and takes NaN as 0;
 * integer to smaller integer saturates; anything to bool is x != 0 (NaN is true). */
#include "cpu.h"
#include "half.h"

/* One type, two families of value: doubles (from the four float types) and int64 (from the four integer types). */
static inline double to_f64_d(double v) { return v; }
static inline double to_f64_i(int64_t v) { return (double)v; }
static inline float to_f32_d(double v) { return (float)v; }
static inline float to_f32_i(int64_t v) { return (float)v; }
static inline uint16_t to_bf16_d(double v) { return splk_bf16_of_double(v); }
static inline uint16_t to_bf16_i(int64_t v) { return splk_bf16_of_double((double)v); }
static inline uint16_t to_f16_d(double v) { return splk_f16_of_double(v); }
static inline uint16_t to_f16_i(int64_t v) { return splk_f16_of_double((double)v); }

static inline int64_t to_i64_d(double v) {
    if (v != v) return 0;
    if (v >= 0x1p63) return INT64_MAX;
    return v < -0x1p63 ? INT64_MIN : (int64_t)v;
}
static inline int64_t to_i64_i(int64_t v) { return v; }
static inline int32_t to_i32_i(int64_t v) {
    return (int32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}
static inline int32_t to_i32_d(double v) { return to_i32_i(to_i64_d(v)); }
static inline uint8_t to_u8_i(int64_t v) { return (uint8_t)(v > 255 ? 255 : v < 0 ? 0 : v); }
static inline uint8_t to_u8_d(double v) { return to_u8_i(to_i64_d(v)); }
static inline uint8_t to_bool_d(double v) { return v != 0; }
static inline uint8_t to_bool_i(int64_t v) { return v != 0; }

static inline double from_f64(double v) { return v; }
static inline double from_f32(float v) { return v; }
static inline double from_bf16(uint16_t v) { return splk_bf16_to_f32(v); }
static inline double from_f16(uint16_t v) { return splk_f16_to_f32(v); }
static inline int64_t from_i64(int64_t v) { return v; }
static inline int64_t from_i32(int32_t v) { return v; }
static inline int64_t from_u8(uint8_t v) { return v; }
static inline int64_t from_bool(uint8_t v) { return v != 0; }

typedef void cast_loop(void *dst, const void *src, int64_t n);

#define PAIR(from, from_type, family, to, to_type)                                                                   \
    static void cast_##from##_##to(void *dst, const void *src, int64_t n) {                                          \
        to_type *d = dst;                                                                                            \
        const from_type *s = src;                                                                                    \
        for (int64_t i = 0; i < n; i++) d[i] = to_##to##_##family(from_##from(s[i]));                                \
    }
#define PAIRS(from, from_type, family)                                                                               \
    PAIR(from, from_type, family, f64, double)                                                                       \
    PAIR(from, from_type, family, f32, float)                                                                        \
    PAIR(from, from_type, family, bf16, uint16_t)                                                                    \
    PAIR(from, from_type, family, f16, uint16_t)                                                                     \
    PAIR(from, from_type, family, i64, int64_t)                                                                      \
    PAIR(from, from_type, family, i32, int32_t)                                                                      \
    PAIR(from, from_type, family, u8, uint8_t)                                                                       \
    PAIR(from, from_type, family, bool, uint8_t)
PAIRS(f64, double, d)
PAIRS(f32, float, d)
PAIRS(bf16, uint16_t, d)
PAIRS(f16, uint16_t, d)
PAIRS(i64, int64_t, i)
PAIRS(i32, int32_t, i)
PAIRS(u8, uint8_t, i)
PAIRS(bool, uint8_t, i)

static void cast_f32_bf16_fast(void *dst, const void *src, int64_t n) {
    uint16_t *d = dst;
    const float *s = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = splk_bf16_of_f32(s[i]);
}

static void cast_f32_f16_fast(void *dst, const void *src, int64_t n) {
    uint16_t *d = dst;
    const float *s = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = splk_f16_of_f32(s[i]);
}

/* [from][to] */
#define ROW(from)                                                                                                    \
    {cast_##from##_f64, cast_##from##_f32, cast_##from##_bf16, cast_##from##_f16,                                    \
     cast_##from##_i64, cast_##from##_i32, cast_##from##_u8,   cast_##from##_bool}
static cast_loop *const loops[SPL_DTYPE_COUNT][SPL_DTYPE_COUNT] = {
    [SPL_F64] = ROW(f64), [SPL_F32] = ROW(f32), [SPL_BF16] = ROW(bf16), [SPL_F16] = ROW(f16),
    [SPL_I64] = ROW(i64), [SPL_I32] = ROW(i32), [SPL_U8] = ROW(u8),     [SPL_BOOL] = ROW(bool),
};

static spl_status check(const char *op, spl_dtype t, int64_t n) {
    if ((unsigned)t >= SPL_DTYPE_COUNT) return spli_error(SPL_EARG, "%s: %d is not an element type", op, (int)t);
    if (n < 0) return spli_error(SPL_EARG, "%s: a count of %lld is negative", op, (long long)n);
    return spli_ok();
}

enum { CHUNK = 16384 };

spl_status splk_cpu_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                         int64_t n) {
    (void)q;
    SPL_TRY(check("cast", to, n));
    SPL_TRY(check("cast", from, n));
    int64_t chunks = (n + CHUNK - 1) / CHUNK;
    size_t from_size = spl_dtype_size(from), to_size = spl_dtype_size(to);
    cast_loop *loop = from == SPL_F32 && to == SPL_BF16  ? cast_f32_bf16_fast
                      : from == SPL_F32 && to == SPL_F16 ? cast_f32_f16_fast
                                                         : loops[from][to];
    int team = splk_team(ctx, chunks, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t at = c * CHUNK, len = n - at < CHUNK ? n - at : CHUNK;
        char *d = (char *)dst + (size_t)at * to_size;
        const char *s = (const char *)src + (size_t)at * from_size;
        if (from == to)
            memmove(d, s, (size_t)len * to_size);
        else
            loop(d, s, len);
    }
    return spli_ok();
}

void splk_store_doubles(void *dst, spl_dtype t, int64_t at, const double *src, int64_t n) {
    loops[SPL_F64][t]((char *)dst + (size_t)at * spl_dtype_size(t), src, n);
}

void splk_load_doubles(double *dst, const void *src, spl_dtype t, int64_t n) { loops[t][SPL_F64](dst, src, n); }

spl_status splk_cpu_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value) {
    (void)q;
    enum { BLOCK = 512 };
    SPL_TRY(check("fill", t, n));
    double values[BLOCK];
    union {
        double align;
        char bytes[BLOCK * 8];
    } pattern;
    for (int i = 0; i < BLOCK; i++) values[i] = value;
    splk_store_doubles(&pattern, t, 0, values, BLOCK);
    size_t size = spl_dtype_size(t);
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    int team = splk_team(ctx, blocks, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = b * BLOCK, len = n - at < BLOCK ? n - at : BLOCK;
        memcpy((char *)dst + (size_t)at * size, &pattern, (size_t)len * size);
    }
    return spli_ok();
}
