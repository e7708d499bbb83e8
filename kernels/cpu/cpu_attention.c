/* cpu_attention.c: tiled flash attention over the pieces of one plan step.
 *
 * Keys and values are packed first, each KV head once, in blocks of KEYS: keys transposed, so that both products of a
 * tile (scores = q . k^T, out += p . v) run along vectors (cpu_tile.h). All query heads of a KV head read the same
 * packed blocks. KV heads are taken a few at a time, enough to keep all threads busy, so that packing takes little
 * memory.
 *
 * One unit of work is a block of query rows of one head; it owns its output rows, so units are independent and the
 * result does not depend on which thread takes which. A unit walks the pieces that touch its rows, and each piece in
 * blocks of keys. In a piece the keys that a row sees are an interval (strides are positive), and both its ends grow
 * with the row; so a tile's rows with anything to see are a range, and a tile is whole when its first row reaches its
 * end and its last row its beginning. Whole tiles are computed unmasked, tiles with no visible pair are skipped, the
 * rest go in narrow strips of rows, each with the keys that it sees, cut to each row's interval. What is invisible
 * contributes exactly nothing, even where it is NaN.
 *
 * Numbers: a running maximum m per row; probabilities exp(s - m) in T; the products accumulate in T in `acc`, which
 * is folded into `total`, a double, at least every 1,024 keys, so that its rounding errors stay those of 1,024 terms;
 * `total` keeps the maximum it was scaled by. Sums of probabilities are kept in double. */
#include "cpu.h"
#include "cpu_half.h"
#include <stdio.h>

enum { ROWS = 96, KEYS = 128, RESTART = 1024 }; /* a block of keys and a row of register tiles fit the first cache */

typedef struct job {
    const spl_attn_args *a;
    char *work; /* per thread: `work_stride` bytes */
    int64_t work_stride;
    uint32_t least; /* threshold of dropout, 0: none */
} job;

/* The global index held at local position `at` of a list of segments; `at` itself where there is no list. */
static int64_t global_index(const spl_segment *s, int n, int64_t at) {
    if (n == 0) return at;
    while (at >= s->length) at -= s++->length;
    return s->start + at * s->stride;
}

/* Sums that stop at the ends of int64 (bounds may be as large as "no bound" would be). */
static int64_t add_clamped(int64_t a, int64_t b) {
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    return a > 0 ? INT64_MAX : INT64_MIN;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

/* The keys [*begin, *end) of piece p that its row i sees, counted from p->k0. */
static void visible(const spl_attn_piece *p, int64_t i, int64_t *begin, int64_t *end) {
    int64_t q = p->q_start + i * p->q_stride, first = 0, last = p->nk - 1;
    if (p->has_upper) {
        int64_t top = floor_div(add_clamped(add_clamped(q, p->upper), -p->k_start), p->k_stride);
        if (top < last) last = top;
    }
    if (p->has_lower) { /* the ceiling of (q + lower - k_start) / k_stride */
        int64_t distance = add_clamped(add_clamped(q, p->lower), -p->k_start);
        int64_t low = distance == INT64_MIN ? 0 : -floor_div(-distance, p->k_stride);
        if (low > first) first = low;
    }
    *begin = first;
    *end = last < first ? first : last + 1;
}

#define T float
#define S f32
#define EXP splk_exp_negative_f32
#include "cpu_tile.h"
#if defined(__AVX512F__)
#include <immintrin.h>
/* The same with what AVX-512 has for it: rounding to a whole number, and scaling by a power of two. 2^r is a polynomial
 * of degree 6 for |r| <= 1/2, error 9e-09; log2 e is split, so that r is right for every x. */
static inline __attribute__((always_inline)) vector_f32 exp_vector(vector_f32 given) {
    const __m512 x = (__m512)given;
    const __m512 n = _mm512_roundscale_ps(x * 1.44269504f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ); /* a NaN is kept */
    __m512 r = _mm512_fmsub_ps(x, _mm512_set1_ps(1.442695022e+00f), n);
    r = _mm512_fmadd_ps(x, _mm512_set1_ps(1.925963034e-08f), r);
    __m512 p = _mm512_set1_ps(1.545316336e-04f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.339086331e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618083015e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550356954e-02f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402265072e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931471825e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return (vector_f32)_mm512_maskz_scalef_ps(kept, p, n);
}
#define EXP_VECTOR exp_vector
#define MAX_VECTOR(a, b) ((vector_f32)_mm512_max_ps((__m512)(a), (__m512)(b))) /* b where one is a NaN */
#define LARGEST_LANE(x) _mm512_reduce_max_ps((__m512)(x))
#define SUM_LANES(x) _mm512_reduce_add_ps((__m512)(x))
#endif
#include "cpu_attention_body.h"
#undef T
#undef S
#undef EXP
#undef EXP_VECTOR
#undef MAX_VECTOR
#undef LARGEST_LANE
#undef SUM_LANES
#define T double
#define S f64
#define EXP exp
#include "cpu_tile.h"
#include "cpu_attention_body.h"
#undef T
#undef S
#undef EXP

static spl_status check(const spl_attn_args *a) {
    SPL_TRY(splk_need_float("attention", a->dtype));
    return spli_attn_args_check(a, INT32_MAX / (2 * KEYS)); /* as long as a tile can hold */
}

/* The (batch entry, query head) pairs in the order of the KV heads that they read. A slot is a KV head of a batch
 * entry; its pairs are order[first[slot], first[slot + 1]). */
static void sort_by_slot(const spl_attn_args *a, int64_t *first, int64_t *order) {
    int64_t slots = a->batch * a->kv_heads;
    memset(first, 0, (size_t)(slots + 1) * sizeof *first);
    for (int64_t i = 0; i < a->batch * a->heads; i++)
        first[i / a->heads * a->kv_heads + a->kv_of_head[i % a->heads] + 1]++;
    for (int64_t s = 0; s < slots; s++) first[s + 1] += first[s];
    for (int64_t i = 0; i < a->batch * a->heads; i++)
        order[first[i / a->heads * a->kv_heads + a->kv_of_head[i % a->heads]]++] = i;
    for (int64_t s = slots; s > 0; s--) first[s] = first[s - 1]; /* each had moved on to the next */
    first[0] = 0;
}

/* Scratch of one call. */
typedef struct scratch {
    int64_t *first, *order;
    char *work, *packed;
    unsigned char *finite;
    int64_t list_stride, work_stride, slot_stride, finite_stride;
} scratch;

static void give_scratch(splk_cpu *c, const scratch *s, int team, int64_t group) {
    splk_scratch_give(c, 1, s->list_stride, s->first);
    splk_scratch_give(c, team, s->work_stride, s->work);
    splk_scratch_give(c, group, s->slot_stride, s->packed);
    splk_scratch_give(c, group, s->finite_stride, s->finite);
}

static spl_status take_scratch(splk_cpu *c, const spl_attn_args *a, int team, int64_t group, int64_t blocks,
                               scratch *s) {
    int wide = a->dtype == SPL_F64;
    int64_t slots = a->batch * a->kv_heads, block, size;
    spl_status status = spli_ok();
    memset(s, 0, sizeof *s);
    block = wide ? block_size_f64(a->head_dim) * 8 : block_size_f32(a->head_dim) * 4;
    if (!splk_mul(blocks, block, &size))
        return spli_error(SPL_ENOMEM, "attention: %lld keys of %lld elements do not fit memory", (long long)a->sk,
                          (long long)a->head_dim);
    void *p = NULL;
    SPL_GO(splk_scratch_take(c, 1, (slots + 1 + a->batch * a->heads) * 8, &s->list_stride, &p), fail);
    s->first = p;
    s->order = s->first + slots + 1;
    SPL_GO(splk_scratch_take(c, team, wide ? work_bytes_f64(a->head_dim) : work_bytes_f32(a->head_dim),
                             &s->work_stride, &p),
           fail);
    s->work = p;
    SPL_GO(splk_scratch_take(c, group, size, &s->slot_stride, &p), fail);
    s->packed = p;
    SPL_GO(splk_scratch_take(c, group, blocks, &s->finite_stride, &p), fail);
    s->finite = p;
    return status;
fail:
    give_scratch(c, s, team, group);
    return status;
}

/* Packs the KV heads of slots [s0, s1), then does the units of the query heads that read them. */
static void run_group(const job *j, const scratch *s, int team, int64_t s0, int64_t s1, int64_t blocks) {
    const spl_attn_args *a = j->a;
    int64_t heads = s->first[s1] - s->first[s0], row_blocks = (a->sq + ROWS - 1) / ROWS;
    int64_t packs = (s1 - s0) * blocks, units = heads * row_blocks, block_bytes;
    if (heads == 0) return;
    block_bytes = a->dtype == SPL_F64 ? block_size_f64(a->head_dim) * 8 : block_size_f32(a->head_dim) * 4;
#pragma omp parallel num_threads(team) if (team > 1)
    {
#pragma omp for schedule(static)
        for (int64_t u = 0; u < packs; u++) {
            int64_t slot = s0 + u / blocks, n = u % blocks, b = slot / a->kv_heads, kv = slot % a->kv_heads;
            unsigned char *finite = s->finite + (slot - s0) * s->finite_stride + n;
            void *block = s->packed + (slot - s0) * s->slot_stride + n * block_bytes;
            if (s->first[slot] == s->first[slot + 1]) continue; /* nobody reads it */
            *finite = (unsigned char)(a->dtype == SPL_F64 ? pack_f64(a, b, kv, n, block)
                                                          : pack_f32(a, b, kv, n, block));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t u = 0; u < units; u++) { /* the last rows first: with a causal mask they are the longest */
            int64_t row0 = (row_blocks - 1 - u / heads) * ROWS, pair = s->order[s->first[s0] + u % heads];
            int64_t b = pair / a->heads, h = pair % a->heads, at = b * a->kv_heads + a->kv_of_head[h] - s0;
            const char *packed = s->packed + at * s->slot_stride;
            const unsigned char *finite = s->finite + at * s->finite_stride;
            if (a->dtype == SPL_F64)
                unit_f64(j, b, h, row0, packed, finite);
            else
                unit_f32(j, b, h, row0, packed, finite);
            if (a->progress && splk_thread() == 0) a->progress(a->progress_ctx); /* the thread that called */
        }
    }
}

/* Without a piece nothing is visible. */
static void see_nothing(const spl_attn_args *a) {
    size_t size = spl_dtype_size(a->dtype);
    for (int64_t i = 0; i < a->batch * a->heads * a->sq && !a->merge; i++) {
        int64_t row = i % a->sq, h = i / a->sq % a->heads, b = i / a->sq / a->heads;
        int64_t at = b * a->out_strides[0] + row * a->out_strides[1] + h * a->out_strides[2];
        memset((char *)a->out + at * (int64_t)size, 0, (size_t)a->head_dim * size);
        if (a->dtype == SPL_F64)
            ((double *)a->lse)[i] = -(double)INFINITY;
        else
            ((float *)a->lse)[i] = -INFINITY;
    }
}

spl_status splk_cpu_attention(void *ctx, spl_queue *q, const spl_attn_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_attention(ctx, q, a);
    (void)q;
    splk_cpu *c = ctx;
    SPL_TRY(check(a));
    job j = {.a = a};
    scratch s;
    int64_t row_blocks = (a->sq + ROWS - 1) / ROWS, blocks = (a->sk + KEYS - 1) / KEYS;
    int64_t units = a->batch * a->heads * row_blocks, slots = a->batch * a->kv_heads;
    if (units == 0) return spli_ok();
    if (a->npieces == 0) {
        see_nothing(a);
        return spli_ok();
    }
    if (a->p > 0) j.least = splk_keep_threshold(a->p);
    int team = splk_team(c, units, INT64_MAX);
    if (a->batch * a->heads * a->sq * (double)a->sk < 16384) team = 1;
    /* slots at a time: about 16 units a thread, so that the last of them keep few waiting */
    int64_t units_a_slot = units / slots > 0 ? units / slots : 1, group = (16 * team + units_a_slot - 1) / units_a_slot;
    if (group > slots) group = slots;
    SPL_TRY(take_scratch(c, a, team, group, blocks, &s));
    sort_by_slot(a, s.first, s.order);
    j.work = s.work;
    j.work_stride = s.work_stride;
    for (int64_t s0 = 0; s0 < slots; s0 += group)
        run_group(&j, &s, team, s0, s0 + group < slots ? s0 + group : slots, blocks);
    give_scratch(c, &s, team, group);
    return spli_ok();
}

void splk_attention_tiles(char *out, size_t n) {
    snprintf(out, n, "blocks of %d queries and %d keys, register tiles of %d x %d (f32) and %d x %d (f64)", ROWS, KEYS,
             TILE_ROWS_f32, TILE_VECTORS_f32 * LANES_f32, TILE_ROWS_f64, TILE_VECTORS_f64 * LANES_f64);
}
