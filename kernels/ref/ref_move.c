/* ref_move.c: boxes, casts, sums, filling and statistics, one element after another. */
#include "ref.h"

/* Integer addition wraps; on 64-bit integers it must not go through double. */
static int64_t wrapped(uint64_t a, uint64_t b) { return (int64_t)(a + b); }

spl_status splk_ref_box(void *ctx, spl_queue *q, const spl_box_args *a) {
    (void)ctx, (void)q;
    size_t size = spl_dtype_size(a->dtype);
    int64_t count = 1;
    for (int d = 0; d < a->ndim; d++) count *= a->shape[d];
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, to = 0, from = 0;
        for (int d = a->ndim - 1; d >= 0; d--) {
            to += rest % a->shape[d] * a->dst_strides[d];
            from += rest % a->shape[d] * a->src_strides[d];
            rest /= a->shape[d];
        }
        if (!a->add)
            memcpy((char *)a->dst + to * (int64_t)size, (const char *)a->src + from * (int64_t)size, size);
        else if (a->dtype == SPL_I64)
            ((int64_t *)a->dst)[to] =
                wrapped((uint64_t)((int64_t *)a->dst)[to], (uint64_t)((const int64_t *)a->src)[from]);
        else if (a->dtype == SPL_I32)
            ((int32_t *)a->dst)[to] =
                (int32_t)wrapped((uint64_t)((int32_t *)a->dst)[to], (uint64_t)((const int32_t *)a->src)[from]);
        else if (a->dtype == SPL_U8)
            ((uint8_t *)a->dst)[to] = (uint8_t)wrapped(((uint8_t *)a->dst)[to], ((const uint8_t *)a->src)[from]);
        else
            splk_ref_put(a->dst, a->dtype, to,
                         splk_ref_get(a->dst, a->dtype, to) + splk_ref_get(a->src, a->dtype, from));
    }
    return spli_ok();
}

static int64_t get_integer(const void *p, spl_dtype t, int64_t i) {
    return t == SPL_I64 ? ((const int64_t *)p)[i] : (int64_t)splk_ref_get(p, t, i);
}

spl_status splk_ref_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                         int64_t n) {
    (void)ctx, (void)q;
    for (int64_t i = 0; i < n; i++) {
        if (spl_dtype_is_float(from)) {
            splk_ref_put(dst, to, i, splk_ref_get(src, from, i));
        } else { /* an i64 above 2^53 must not become a double on its way to f32 or an integer */
            int64_t v = get_integer(src, from, i);
            if (to == SPL_I64)
                ((int64_t *)dst)[i] = v;
            else if (to == SPL_F32)
                ((float *)dst)[i] = (float)v;
            else
                splk_ref_put(dst, to, i, (double)v);
        }
    }
    return spli_ok();
}

spl_status splk_ref_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                        spl_dtype t) {
    (void)ctx, (void)q;
    for (int64_t i = 0; i < n; i++) {
        if (t == SPL_F64 || t == SPL_F32) {
            double sum = nsrcs > 0 ? splk_ref_get(srcs[0], t, i) : 0;
            for (int s = 1; s < nsrcs; s++) { /* f32 rounds after each addition: the order is part of the contract */
                sum += splk_ref_get(srcs[s], t, i);
                if (t == SPL_F32) sum = (float)sum;
            }
            splk_ref_put(dst, t, i, sum);
        } else if (spl_dtype_is_float(t)) {
            float sum = 0;
            for (int s = 0; s < nsrcs; s++) sum += (float)splk_ref_get(srcs[s], t, i);
            splk_ref_put(dst, t, i, sum);
        } else {
            int64_t sum = 0;
            for (int s = 0; s < nsrcs; s++) {
                int64_t v = get_integer(srcs[s], t, i);
                sum = t == SPL_BOOL ? (sum || v) : wrapped((uint64_t)sum, (uint64_t)v);
            }
            if (t == SPL_I64) ((int64_t *)dst)[i] = sum;
            if (t == SPL_I32) ((int32_t *)dst)[i] = (int32_t)sum;
            if (t == SPL_U8 || t == SPL_BOOL) ((uint8_t *)dst)[i] = (uint8_t)sum;
        }
    }
    return spli_ok();
}

spl_status splk_ref_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value) {
    (void)ctx, (void)q;
    for (int64_t i = 0; i < n; i++) splk_ref_put(dst, t, i, value);
    return spli_ok();
}

spl_status splk_ref_random(void *ctx, spl_queue *q, const spl_random_args *a) {
    (void)ctx, (void)q;
    int64_t count = 1;
    for (int d = 0; d < a->map->ndim; d++) count *= a->map->local[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t g = splk_ref_global(a->map, i);
        double draw = (double)g;
        if (a->kind == SPL_RANDOM_UNIFORM) draw = splk_ref_uniform(a->key, g);
        if (a->kind == SPL_RANDOM_NORMAL) draw = splk_ref_normal(a->key, g);
        splk_ref_put(a->out, a->dtype, i, a->a + a->b * draw);
    }
    return spli_ok();
}

spl_status splk_ref_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *out) {
    (void)ctx, (void)q;
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        double v = splk_ref_get(x, t, i);
        out->sum += v;
        out->sum_squares += v * v;
        if (isnan(v)) out->nan_count++;
        if (isinf(v)) out->inf_count++;
        if (fabs(v) > out->abs_max) out->abs_max = fabs(v);
    }
    return spli_ok();
}
