/* cpu_move.c: copying and adding strided boxes, zeroing.
 *
 * A box is simplified before anything moves: dimensions of size 1 vanish, dimensions that continue each other in both
 * arrays become one, and the rest are ordered so that the destination's smallest stride is innermost and, just
 * outside it, the source's smallest. Then the two inner dimensions are cut into tiles: long strips where both run
 * along the same dimension (memcpy), squares where they do not (a transposition that stays in cache). Tiles are the
 * parallel units. */
#include "cpu.h"
#include "half.h"
#include <stdlib.h>

/* Elements are moved as bits, whatever their type was. */
typedef uint64_t __attribute__((may_alias)) bits64;
typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint16_t __attribute__((may_alias)) bits16;

typedef struct plan {
    int n;
    int64_t shape[SPL_MAX_DIMS + 2], dst[SPL_MAX_DIMS + 2], src[SPL_MAX_DIMS + 2];
} plan;

static int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

static void swap_dims(plan *p, int i, int j) {
    int64_t shape = p->shape[i], dst = p->dst[i], src = p->src[i];
    p->shape[i] = p->shape[j], p->dst[i] = p->dst[j], p->src[i] = p->src[j];
    p->shape[j] = shape, p->dst[j] = dst, p->src[j] = src;
}

/* Whether no two index vectors reach the same destination: each stride steps over all that is inside it. */
static int injective(const plan *sorted) {
    int64_t reach = 0;
    for (int i = sorted->n - 1; i >= 0; i--) {
        if (magnitude(sorted->dst[i]) <= reach) return 0;
        reach += (sorted->shape[i] - 1) * magnitude(sorted->dst[i]);
    }
    return 1;
}

static void drop_ones_and_join(plan *p) {
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->shape[i] == 1) continue;
        if (n > 0 && p->dst[n - 1] == p->dst[i] * p->shape[i] && p->src[n - 1] == p->src[i] * p->shape[i]) {
            p->shape[n - 1] *= p->shape[i];
            p->dst[n - 1] = p->dst[i];
            p->src[n - 1] = p->src[i];
        } else {
            p->shape[n] = p->shape[i];
            p->dst[n] = p->dst[i];
            p->src[n] = p->src[i];
            n++;
        }
    }
    p->n = n;
}

static void order(plan *p) {
    for (int i = 1; i < p->n; i++) /* insertion sort: largest destination stride outermost */
        for (int j = i; j > 0 && magnitude(p->dst[j]) > magnitude(p->dst[j - 1]); j--) swap_dims(p, j, j - 1);
}

static void copy_tile(size_t size, char *dst, const char *src, int64_t n0, int64_t d0, int64_t s0, int64_t n1,
                      int64_t d1, int64_t s1) {
    if (d1 == 1 && s1 == 1) {
        for (int64_t i = 0; i < n0; i++)
            memcpy(dst + i * d0 * (int64_t)size, src + i * s0 * (int64_t)size, (size_t)n1 * size);
        return;
    }
#define COPY_LOOP(type)                                                                                              \
    do {                                                                                                             \
        type *d = (type *)(void *)dst;                                                                               \
        const type *s = (const type *)(const void *)src;                                                             \
        for (int64_t i = 0; i < n0; i++)                                                                             \
            for (int64_t j = 0; j < n1; j++) d[i * d0 + j * d1] = s[i * s0 + j * s1];                                \
    } while (0)
    switch (size) {
    case 8: COPY_LOOP(bits64); break;
    case 4: COPY_LOOP(bits32); break;
    case 2: COPY_LOOP(bits16); break;
    default: COPY_LOOP(uint8_t); break;
    }
#undef COPY_LOOP
}

static void add_tile(spl_dtype t, void *dst, const void *src, int64_t n0, int64_t d0, int64_t s0, int64_t n1,
                     int64_t d1, int64_t s1) {
#define ADD_LOOP(type, load, store)                                                                                  \
    do {                                                                                                             \
        type *d = dst;                                                                                               \
        const type *s = src;                                                                                         \
        for (int64_t i = 0; i < n0; i++)                                                                             \
            for (int64_t j = 0; j < n1; j++)                                                                         \
                d[i * d0 + j * d1] = store(load(d[i * d0 + j * d1]) + load(s[i * s0 + j * s1]));                     \
    } while (0)
    switch (t) {
    case SPL_F64: ADD_LOOP(double, , ); break;
    case SPL_F32: ADD_LOOP(float, , ); break;
    case SPL_BF16: ADD_LOOP(uint16_t, splk_bf16_to_f32, splk_bf16_of_f32); break;
    case SPL_F16: ADD_LOOP(uint16_t, splk_f16_to_f32, splk_f16_of_double); break;
    case SPL_I64: ADD_LOOP(int64_t, (uint64_t), (int64_t)); break; /* integers wrap */
    case SPL_I32: ADD_LOOP(int32_t, (uint32_t), (int32_t)); break;
    default: ADD_LOOP(uint8_t, (unsigned), (uint8_t)); break;
    }
#undef ADD_LOOP
}

static void move_tile(const spl_box_args *a, size_t size, char *dst, const char *src, int64_t n0, int64_t d0,
                      int64_t s0, int64_t n1, int64_t d1, int64_t s1) {
    if (a->add)
        add_tile(a->dtype, dst, src, n0, d0, s0, n1, d1, s1);
    else
        copy_tile(size, dst, src, n0, d0, s0, n1, d1, s1);
}

/* Cuts the two inner dimensions into tiles and lets the threads take (outer index, tile) pairs. */
static void move_tiles(const splk_cpu *c, const spl_box_args *a, const plan *p, int64_t count) {
    enum { STRIP = 16384, SQUARE = 64 };
    size_t size = spl_dtype_size(a->dtype);
    int o = p->n - 2;
    int64_t n0 = p->shape[o], d0 = p->dst[o], s0 = p->src[o], n1 = p->shape[o + 1], d1 = p->dst[o + 1],
            s1 = p->src[o + 1];
    int strips = magnitude(s1) <= magnitude(s0) || n0 == 1;
    int64_t tile1 = strips ? STRIP : SQUARE, tile0 = strips ? (n1 >= STRIP ? 1 : STRIP / n1) : SQUARE;
    int64_t tiles0 = (n0 + tile0 - 1) / tile0, tiles1 = (n1 + tile1 - 1) / tile1;
    int64_t units = count / (n0 * n1) * tiles0 * tiles1;
    int team = splk_team(c, units, count);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t u = 0; u < units; u++) {
        int64_t j = u % tiles1 * tile1, i = u / tiles1 % tiles0 * tile0, rest = u / (tiles1 * tiles0);
        int64_t dst = i * d0 + j * d1, src = i * s0 + j * s1;
        for (int k = o - 1; k >= 0; k--) {
            int64_t at = rest % p->shape[k];
            rest /= p->shape[k];
            dst += at * p->dst[k];
            src += at * p->src[k];
        }
        move_tile(a, size, (char *)a->dst + dst * (int64_t)size, (const char *)a->src + src * (int64_t)size,
                  n0 - i < tile0 ? n0 - i : tile0, d0, s0, n1 - j < tile1 ? n1 - j : tile1, d1, s1);
    }
}

spl_status splk_cpu_box(void *ctx, spl_queue *q, const spl_box_args *a) {
    (void)q;
    plan given = {.n = a->ndim};
    int64_t count = 1;
    if (a->ndim < 0 || a->ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "box: %d dimensions given, 0 to %d are possible", a->ndim, SPL_MAX_DIMS);
    if (a->add && a->dtype == SPL_BOOL)
        return spli_error(SPL_EARG, "box: bool elements cannot be added; copy them, or cast to u8 first");
    for (int i = 0; i < a->ndim; i++) {
        if (!splk_mul(count, a->shape[i], &count))
            return spli_error(SPL_EARG, "box: size %lld in dimension %d is negative or too large",
                              (long long)a->shape[i], i + 1);
        given.shape[i] = a->shape[i];
        given.dst[i] = a->dst_strides[i];
        given.src[i] = a->src_strides[i];
    }
    if (count == 0) return spli_ok();
    plan p = given, sorted;
    drop_ones_and_join(&p);
    sorted = p;
    order(&sorted);
    splk_cpu serial = {.nthreads = 1};
    const splk_cpu *team = ctx;
    if (injective(&sorted)) {
        p = sorted;
        drop_ones_and_join(&p);
        /* the source's smallest stride goes next to the innermost dimension, unless it is the innermost */
        int best = p.n - 1;
        for (int i = 0; i < p.n - 1; i++)
            if (magnitude(p.src[i]) < magnitude(p.src[best])) best = i;
        if (best < p.n - 2) swap_dims(&p, best, p.n - 2);
    } else {
        team = &serial; /* elements are written more than once: one after another, in the order of indices */
    }
    while (p.n < 2) { /* a scalar or a line becomes a plane */
        for (int i = p.n; i > 0; i--) p.shape[i] = p.shape[i - 1], p.dst[i] = p.dst[i - 1], p.src[i] = p.src[i - 1];
        p.shape[0] = 1, p.dst[0] = 0, p.src[0] = 0;
        p.n++;
    }
    if (team == &serial) { /* whole inner planes: tiles would change the order */
        for (int64_t u = 0, inner = p.shape[p.n - 1]; u < count / inner; u++) {
            int64_t rest = u, dst = 0, src = 0, size = (int64_t)spl_dtype_size(a->dtype);
            for (int k = p.n - 2; k >= 0; k--) {
                dst += rest % p.shape[k] * p.dst[k];
                src += rest % p.shape[k] * p.src[k];
                rest /= p.shape[k];
            }
            move_tile(a, (size_t)size, (char *)a->dst + dst * size, (const char *)a->src + src * size, 1, 0, 0, inner,
                      p.dst[p.n - 1], p.src[p.n - 1]);
        }
        return spli_ok();
    }
    move_tiles(team, a, &p, count);
    return spli_ok();
}

spl_status splk_cpu_zero(void *ctx, spl_queue *q, void *dst, size_t bytes) {
    (void)ctx, (void)q;
    if (bytes > 0) memset(dst, 0, bytes);
    return spli_ok();
}
