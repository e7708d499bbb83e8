/* cpu.h: what the files of the CPU backend share: the context, threads, scratch, the slots, and a few helpers.
 *
 * One file per op family; those that exist in f32 and f64 keep their loops in a `_body.h` that is included once per
 * type with T (the element type) and S (its suffix) defined. All loops over rows, heads or blocks are OpenMP loops
 * with a fixed split, and whatever is summed is summed in an order that the number of threads does not change:
 * results are the same bits for any thread count, up to the BLAS. */
#ifndef SPLK_CPU_H
#define SPLK_CPU_H
#include "backend.h"
#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#pragma GCC visibility push(hidden)

#define SPLK_PASTE_(a, b) a##_##b
#define SPLK_PASTE(a, b) SPLK_PASTE_(a, b)

/* Every file but cpu_select.c is compiled once for each instruction level, with SPLK_LEVEL (none: baseline, what the
 * whole program is compiled for) and the compiler's flags for it. The levels live side by side in one program: what
 * files share bears the level in its name, and each level has a whole table of its own. */
#define SPLK_LEVELED_(name, level) name##_##level
#define SPLK_LEVELED2(name, level) SPLK_LEVELED_(name, level)
#define SPLK_LEVELED(name) SPLK_LEVELED2(name, SPLK_LEVEL)
#ifndef SPLK_LEVEL
#define SPLK_LEVEL baseline
#define SPLK_TABLE splk_cpu_backend /* the one symbol that the folder exports */
#else
#define SPLK_TABLE SPLK_LEVELED(splk_cpu_backend)
#endif
#define splk_blas_threads SPLK_LEVELED(splk_blas_threads)
#define splk_cpu_alloc SPLK_LEVELED(splk_cpu_alloc)
#define splk_cpu_free SPLK_LEVELED(splk_cpu_free)
#define splk_cpu_queue_open SPLK_LEVELED(splk_cpu_queue_open)
#define splk_cpu_queue_close SPLK_LEVELED(splk_cpu_queue_close)
#define splk_cpu_event_open SPLK_LEVELED(splk_cpu_event_open)
#define splk_cpu_event_close SPLK_LEVELED(splk_cpu_event_close)
#define splk_cpu_event_record SPLK_LEVELED(splk_cpu_event_record)
#define splk_cpu_event_wait SPLK_LEVELED(splk_cpu_event_wait)
#define splk_cpu_event_test SPLK_LEVELED(splk_cpu_event_test)
#define splk_cpu_copy SPLK_LEVELED(splk_cpu_copy)
#define splk_scratch_take SPLK_LEVELED(splk_scratch_take)
#define splk_scratch_give SPLK_LEVELED(splk_scratch_give)
#define splk_cpu_workspace_peak SPLK_LEVELED(splk_cpu_workspace_peak)
#define splk_cpu_box SPLK_LEVELED(splk_cpu_box)
#define splk_cpu_zero SPLK_LEVELED(splk_cpu_zero)
#define splk_cpu_cast SPLK_LEVELED(splk_cpu_cast)
#define splk_cpu_fill SPLK_LEVELED(splk_cpu_fill)
#define splk_store_doubles SPLK_LEVELED(splk_store_doubles)
#define splk_load_doubles SPLK_LEVELED(splk_load_doubles)
#define splk_cpu_sum SPLK_LEVELED(splk_cpu_sum)
#define splk_cpu_stats SPLK_LEVELED(splk_cpu_stats)
#define splk_cpu_random SPLK_LEVELED(splk_cpu_random)
#define splk_random_words SPLK_LEVELED(splk_random_words)
#define splk_keep_threshold SPLK_LEVELED(splk_keep_threshold)
#define splk_map_check SPLK_LEVELED(splk_map_check)
#define splk_map_row SPLK_LEVELED(splk_map_row)
#define splk_cpu_gemm SPLK_LEVELED(splk_cpu_gemm)
#define splk_cpu_norm SPLK_LEVELED(splk_cpu_norm)
#define splk_cpu_act SPLK_LEVELED(splk_cpu_act)
#define splk_cpu_residual SPLK_LEVELED(splk_cpu_residual)
#define splk_cpu_rope SPLK_LEVELED(splk_cpu_rope)
#define splk_cpu_embed SPLK_LEVELED(splk_cpu_embed)
#define splk_cpu_nll SPLK_LEVELED(splk_cpu_nll)
#define splk_cpu_attention SPLK_LEVELED(splk_cpu_attention)
#define splk_cpu_pool SPLK_LEVELED(splk_cpu_pool)
#define splk_cpu_softmax SPLK_LEVELED(splk_cpu_softmax)
#define splk_attention_tiles SPLK_LEVELED(splk_attention_tiles)
#define splk_bias_act_f32 SPLK_LEVELED(splk_bias_act_f32)
#define splk_bias_act_f64 SPLK_LEVELED(splk_bias_act_f64)

typedef struct splk_cpu {
    int nthreads;
    int64_t workspace_now, workspace_peak; /* bytes of scratch; kernels of one context run one after another */
    char description[192];
    char kernels[1024];
} splk_cpu;

/* cpu_select.c, compiled once: the tables, and which of them this processor and SPL_CPU_LEVEL mean. */
extern const spl_backend_ops splk_cpu_backend_avx2, splk_cpu_backend_avx512;
const spl_backend_ops *splk_cpu_select(void);
spl_status splk_cpu_select_check(void);

/* cpu_backend.c */
void splk_blas_threads(const splk_cpu *c); /* makes the BLAS use this context's threads in calls that follow */

/* cpu_memory.c */
spl_status splk_cpu_alloc(void *ctx, size_t bytes, void **ptr);
void splk_cpu_free(void *ctx, void *ptr, size_t bytes);
spl_status splk_cpu_queue_open(void *ctx, spl_queue **q);
void splk_cpu_queue_close(void *ctx, spl_queue *q);
spl_status splk_cpu_event_open(void *ctx, spl_event **e);
void splk_cpu_event_close(void *ctx, spl_event *e);
spl_status splk_cpu_event_record(void *ctx, spl_queue *q, spl_event *e);
spl_status splk_cpu_event_wait(void *ctx, spl_queue *q, spl_event *e);
spl_status splk_cpu_event_test(void *ctx, spl_event *e, int *done);
spl_status splk_cpu_copy(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes);
/* Scratch of one call: `count` parts of `bytes` each, every part 64-byte aligned, *stride bytes apart. */
spl_status splk_scratch_take(splk_cpu *c, int64_t count, int64_t bytes, int64_t *stride, void **out);
void splk_scratch_give(splk_cpu *c, int64_t count, int64_t stride, void *p);
int64_t splk_cpu_workspace_peak(void *ctx, int reset);

/* cpu_move.c */
spl_status splk_cpu_box(void *ctx, spl_queue *q, const spl_box_args *a);
spl_status splk_cpu_zero(void *ctx, spl_queue *q, void *dst, size_t bytes);

/* cpu_cast.c */
spl_status splk_cpu_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                         int64_t n);
spl_status splk_cpu_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value);
/* dst[at..] = src, converted; and back. */
void splk_store_doubles(void *dst, spl_dtype t, int64_t at, const double *src, int64_t n);

void splk_load_doubles(double *dst, const void *src, spl_dtype t, int64_t n);

/* cpu_reduce.c */
spl_status splk_cpu_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                        spl_dtype t);
spl_status splk_cpu_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *host_out);

/* cpu_random.c */
spl_status splk_cpu_random(void *ctx, spl_queue *q, const spl_random_args *a);
/* out[i] = the random word of the element with global flat index g + i * stride. */
void splk_random_words(spl_rng_key key, int64_t g, int64_t stride, int64_t n, uint32_t *out);
/* A draw is kept when (word >> 8) >= this: the same as uniform >= p, since p * 2^24 is exact. */
uint32_t splk_keep_threshold(double p);
/* Checks a map (sizes agree, flat indices fit 64 bits); rows = product of all local dimensions but the last. */
spl_status splk_map_check(const char *op, const spl_index_map *m, int64_t *rows, int64_t *cols);
/* The flat global index at which local row `row` starts (coordinate 0 of the last dimension). */
int64_t splk_map_row(const spl_index_map *m, int64_t row);

/* cpu_gemm.c, cpu_norm.c, cpu_pointwise.c, cpu_rope.c, cpu_embed.c, cpu_loss.c, cpu_attention.c */
spl_status splk_cpu_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a);
spl_status splk_cpu_norm(void *ctx, spl_queue *q, const spl_norm_args *a);
spl_status splk_cpu_act(void *ctx, spl_queue *q, const spl_act_args *a);
spl_status splk_cpu_residual(void *ctx, spl_queue *q, const spl_residual_args *a);
spl_status splk_cpu_rope(void *ctx, spl_queue *q, const spl_rope_args *a);
spl_status splk_cpu_embed(void *ctx, spl_queue *q, const spl_embed_args *a);
spl_status splk_cpu_nll(void *ctx, spl_queue *q, const spl_nll_args *a);
spl_status splk_cpu_attention(void *ctx, spl_queue *q, const spl_attn_args *a);

/* cpu_softmax.c */
spl_status splk_cpu_softmax(void *ctx, spl_queue *q, const spl_softmax_args *a);
/* cpu_pool.c */
spl_status splk_cpu_pool(void *ctx, spl_queue *q, const spl_pool_args *a);
/* How attention is cut, as text: "blocks of 96 queries and 128 keys, ...". */
void splk_attention_tiles(char *out, size_t n);
/* y = act(x + bias) over rows with leading dimension ld, in place; what a GEMM does after itself. */
void splk_bias_act_f32(const splk_cpu *c, spl_activation act, int64_t rows, int64_t cols, float *x, int64_t ld,
                       const float *bias);
void splk_bias_act_f64(const splk_cpu *c, spl_activation act, int64_t rows, int64_t cols, double *x, int64_t ld,
                       const double *bias);

#pragma GCC visibility pop

/* Threads for a loop of `units` parts that touches `elements` in all: one where a team would cost more. */
static inline int splk_team(const splk_cpu *c, int64_t units, int64_t elements) {
    if (elements < 16384 || units < 2) return 1;
    return (int64_t)c->nthreads < units ? c->nthreads : (int)units;
}

static inline int splk_thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* The one refusal of dtypes that can be stored but not computed with. */
static inline spl_status splk_need_float(const char *op, spl_dtype t) {
    if (t == SPL_F32 || t == SPL_F64) return spli_ok();
    return spli_error(SPL_EUNSUPPORTED, "%s on the cpu backend takes f64, f32, bf16 and f16, got %s: cast to f32 first",
                      op, spl_dtype_name(t));
}

/* a * b >= 0 into *out; 0 on overflow or a negative factor. */
static inline int splk_mul(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

/* rows x cols as a number of elements, refused where it is negative or does not fit. */
static inline spl_status splk_area(const char *op, int64_t rows, int64_t cols, int64_t *out) {
    *out = 0;
    if (splk_mul(rows, cols, out) && *out <= INT64_MAX / 8) return spli_ok();
    return spli_error(SPL_EARG,
                      "%s: %lld rows of %lld columns are not a size: both must be >= 0 and the product fit memory",
                      op, (long long)rows, (long long)cols);
}

/* The largest of n numbers, -inf of none; a NaN is never the largest. Compilers may not reorder a maximum of floats,
 * but one of integers vectorises: flipping the lower bits of negative floats makes their bits ordered like the
 * numbers. */
#define SPLK_LARGEST(name, T, bits_t, unsigned_t, shift, lowest)                                                     \
    static inline T name(const T *x, int64_t n) {                                                                    \
        T low = -(T)INFINITY;                                                                                        \
        bits_t top;                                                                                                  \
        memcpy(&top, &low, sizeof top);                                                                              \
        top ^= (bits_t)((unsigned_t)(top >> shift) >> 1);                                                            \
        for (int64_t i = 0; i < n; i++) {                                                                            \
            bits_t key;                                                                                              \
            memcpy(&key, &x[i], sizeof key);                                                                         \
            key ^= (bits_t)((unsigned_t)(key >> shift) >> 1);                                                        \
            key = x[i] != x[i] ? lowest : key;                                                                       \
            top = key > top ? key : top;                                                                             \
        }                                                                                                            \
        top ^= (bits_t)((unsigned_t)(top >> shift) >> 1);                                                            \
        memcpy(&low, &top, sizeof low);                                                                              \
        return low;                                                                                                  \
    }
SPLK_LARGEST(splk_largest_f32, float, int32_t, uint32_t, 31, INT32_MIN)
SPLK_LARGEST(splk_largest_f64, double, int64_t, uint64_t, 63, INT64_MIN)

/* e^x to about 1 ulp for every float, written so that loops over it vectorise (no branch, no call, no float-to-int
 * conversion). x = n ln 2 + r, Taylor to degree 7 on |r| <= ln 2 / 2 (remainder 5e-9), scaled by 2^n in two halves so
 * that overflow gives inf and underflow goes through denormals to 0; NaN stays NaN. */
static inline float splk_exp_f32(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, held in the low bits */
    float t = x * 1.44269504f + magic, n = t - magic;
    float r = x - n * 0.693359375f; /* exact: 9 bits of ln 2 times 8 of n */
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, base, half1, half2;
    memcpy(&bits, &t, 4);
    memcpy(&base, &magic, 4);
    uint32_t k = bits - base + 256; /* n + 256, positive */
    half1 = ((k >> 1) - 128 + 127) << 23;
    half2 = (k - (k >> 1) - 128 + 127) << 23;
    float s1, s2;
    memcpy(&s1, &half1, 4);
    memcpy(&s2, &half2, 4);
    p = p * s1 * s2;
    memcpy(&bits, &p, 4); /* masks, since a choice may become a branch */
    uint32_t fits = x > 89.0f ? 0 : ~0u, kept = x < -104.0f ? 0 : ~0u;
    bits = ((bits & fits) | (0x7f800000u & ~fits)) & kept;
    memcpy(&p, &bits, 4);
    return p;
}

/* e^x for x <= 0, to about 1 ulp, shorter than the above: 0 where it would be a denormal number (what is that much
 * smaller than the largest of its row adds nothing); NaN stays NaN. A minimax polynomial of degree 6 in r, error
 * 1.9e-9. */
static inline float splk_exp_negative_f32(float x) {
    const float magic = 12582912.0f;
    float t = x * 1.44269504f + magic, n = t - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.383684614e-03f;
    p = p * r + 8.374815798e-03f;
    p = p * r + 4.166822557e-02f;
    p = p * r + 1.666642017e-01f;
    p = p * r + 4.999999208e-01f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, base, scale, kept = x < -87.3f ? 0 : ~0u; /* a mask, since a choice of floats may become a branch */
    memcpy(&bits, &t, 4);
    memcpy(&base, &magic, 4);
    scale = (bits - base + 127) << 23;
    float s;
    memcpy(&s, &scale, 4);
    p *= s;
    memcpy(&bits, &p, 4);
    bits &= kept;
    memcpy(&p, &bits, 4);
    return p;
}

#endif
