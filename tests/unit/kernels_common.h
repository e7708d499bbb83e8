/* kernels_common.h: what the kernel tests share: two backends side by side, of which the first is the cpu or the one
 * that SPL_TEST_BACKEND names; guarded arrays, test data, comparison. */
#ifndef KERNELS_COMMON_H
#define KERNELS_COMMON_H
#include "backend.h"
#include "mirror.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct side {
    const spl_backend_ops *ops;
    void *ctx;
    spl_queue *queue;
} side;

static side cpu, ref;

/* SPL_TEST_BACKEND names a backend to judge in place of the cpu. */
static inline const char *judged(void) {
    const char *name = getenv("SPL_TEST_BACKEND");
    return name && *name ? name : "cpu";
}
static inline int on_cpu(void) { return strcmp(judged(), "cpu") == 0; }

static inline void open_side(side *s, const char *name, int threads) {
    s->ops = mirror_of(spli_backend_find(strcmp(name, "cpu") == 0 ? judged() : name));
    if (!s->ops || s->ops->open(0, threads, &s->ctx).code != SPL_OK ||
        s->ops->queue_open(s->ctx, &s->queue).code != SPL_OK) {
        printf("Bail out! the %s backend does not open\n", name);
        exit(1);
    }
}

static inline void close_side(side *s) {
    s->ops->queue_close(s->ctx, s->queue);
    s->ops->close(s->ctx);
}

/* Whether both accepted the call; what they said goes into the output when not. */
static inline int both_ok(spl_status a, spl_status b) {
    if (a.code != SPL_OK) tap_note("cpu: %s", a.message);
    if (b.code != SPL_OK) tap_note("ref: %s", b.message);
    return a.code == SPL_OK && b.code == SPL_OK;
}

/* Calls one slot of both backends with their own arguments. */
#define BOTH(slot, cpu_args, ref_args)                                                                               \
    both_ok(cpu.ops->slot(cpu.ctx, cpu.queue, cpu_args), ref.ops->slot(ref.ctx, ref.queue, ref_args))

/* ---- arrays with guards on both sides, at an offset that no alignment helps ---- */

enum { GUARD = 192 };

typedef struct array {
    unsigned char *base;
    void *data;
    size_t bytes;
} array;

static inline array array_make(size_t bytes, int off_by) {
    array a = {.bytes = bytes};
    a.base = malloc(bytes + 2 * GUARD + 64);
    if (!a.base) exit(1);
    memset(a.base, 0xA5, bytes + 2 * GUARD + 64);
    a.data = a.base + (64 - (size_t)(uintptr_t)a.base % 64) % 64 + GUARD / 64 * 64 + (size_t)off_by;
    return a;
}

static inline int array_intact(const array *a) {
    for (const unsigned char *p = a->base; p < a->base + a->bytes + 2 * GUARD + 64; p++)
        if ((p < (unsigned char *)a->data || p >= (unsigned char *)a->data + a->bytes) && *p != 0xA5) return 0;
    return 1;
}

static inline void array_free(array *a) { free(a->base); }

/* ---- test data ---- */

static uint64_t random_state = 88172645463325252u;

static inline uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53 * 2 - 1; }
static inline int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static inline int is_wide(spl_dtype t) { return t == SPL_F64; }

static inline double get(const void *p, spl_dtype t, int64_t i) {
    return is_wide(t) ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static inline void put(void *p, spl_dtype t, int64_t i, double v) {
    if (is_wide(t))
        ((double *)p)[i] = v;
    else
        ((float *)p)[i] = (float)v;
}

/* The same numbers as the cpu sees them (f32 or f64) and widened for the reference; freed together. */
typedef struct twin {
    array narrow, wide;
    int64_t n;
    spl_dtype t;
} twin;

static inline twin twin_make(spl_dtype t, int64_t n) {
    size_t size = is_wide(t) ? 8 : 4;
    return (twin){array_make((size_t)n * size, (int)size), array_make((size_t)n * 8, 8), n, t};
}

static inline void twin_set(twin *w, int64_t i, double v) {
    put(w->narrow.data, w->t, i, v);
    ((double *)w->wide.data)[i] = get(w->narrow.data, w->t, i);
}

static inline twin twin_random(spl_dtype t, int64_t n, double scale) {
    twin w = twin_make(t, n);
    for (int64_t i = 0; i < n; i++) twin_set(&w, i, scale * random_unit());
    return w;
}

static inline void twin_free(twin *w) {
    array_free(&w->narrow);
    array_free(&w->wide);
}

/* ---- comparison ---- */

static inline int same_number(double a, double b, double slack) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b)) return a == b;
    return fabs(a - b) <= slack;
}

/* Every element within tol * (|ref| + rms of ref), or the unit of f32 denormals; NaN and infinities in the same
 * places, and the guards untouched. */
static inline int twin_close(const twin *w, double tol, const char *what) {
    double squares = 0, *wide = w->wide.data;
    int64_t finite = 0;
    for (int64_t i = 0; i < w->n; i++)
        if (isfinite(wide[i])) squares += wide[i] * wide[i], finite++;
    double rms = finite ? sqrt(squares / (double)finite) : 0;
    if (!array_intact(&w->narrow) || !array_intact(&w->wide)) {
        tap_note("%s: written outside the array", what);
        return 0;
    }
    for (int64_t i = 0; i < w->n; i++) {
        double x = get(w->narrow.data, w->t, i);
        if (!same_number(x, wide[i], tol * (fabs(wide[i]) + rms) + (is_wide(w->t) ? 0 : 0x1p-149))) {
            tap_note("%s[%lld]: cpu %.17g, ref %.17g, rms %g", what, (long long)i, x, wide[i], rms);
            return 0;
        }
    }
    return 1;
}

/* The norm of the difference within tol of the norm of the reference, over finite elements. */
static inline int twin_near(const twin *w, double tol, const char *what) {
    double error = 0, squares = 0, *wide = w->wide.data;
    for (int64_t i = 0; i < w->n; i++)
        if (isfinite(wide[i])) {
            error += pow(get(w->narrow.data, w->t, i) - wide[i], 2);
            squares += wide[i] * wide[i];
        }
    if (sqrt(error) <= tol * sqrt(squares)) return 1;
    tap_note("%s: relative error %g", what, sqrt(error / squares));
    return 0;
}

static const spl_dtype float_types[] = {SPL_F32, SPL_F64};
static inline double tolerance(spl_dtype t, double f32, double f64) { return t == SPL_F64 ? f64 : f32; }

#endif
