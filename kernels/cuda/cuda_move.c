/* cuda_move.c: boxes, casts, sums, fills, random numbers and statistics: checks, and how the work is laid out. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

static spl_status check_array(const char *op, spl_dtype t, int64_t n) {
    if ((unsigned)t >= SPL_DTYPE_COUNT) return spli_error(SPL_EARG, "%s: %d is not an element type", op, (int)t);
    if (n < 0) return spli_error(SPL_EARG, "%s: a count of %lld is negative", op, (long long)n);
    return spli_ok();
}

/* ---------------------------------------------------------------- boxes */

static void swap_dims(splk_box *b, int i, int j) {
    int64_t s = b->shape[i], d = b->dst_strides[i], f = b->src_strides[i];
    b->shape[i] = b->shape[j], b->dst_strides[i] = b->dst_strides[j], b->src_strides[i] = b->src_strides[j];
    b->shape[j] = s, b->dst_strides[j] = d, b->src_strides[j] = f;
}

static int64_t distance(int64_t stride) { return stride < 0 ? -stride : stride; }

/* Puts the dimensions that reach each destination once in front, the largest steps first, so that neighbouring threads
 * write neighbours. Destinations that are reached again are walked by one thread, in the order of the call: dimensions
 * of step 0 alone where that is all, else everything. */
static void order_dims(splk_box *b) {
    splk_box given = *b;
    int n = 0;
    b->ndim = 0;
    for (int pass = 0; pass < 2; pass++) { /* first what moves the destination, then what does not, each in order */
        for (int d = 0; d < given.ndim; d++) {
            if (given.shape[d] == 1 || (given.dst_strides[d] == 0) != pass) continue;
            b->shape[b->ndim] = given.shape[d];
            b->dst_strides[b->ndim] = given.dst_strides[d];
            b->src_strides[b->ndim++] = given.src_strides[d];
        }
        if (pass == 0) n = b->ndim;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && distance(b->dst_strides[j]) > distance(b->dst_strides[j - 1]); j--)
            swap_dims(b, j, j - 1);
    int64_t reach = 0;
    b->parallel = n;
    for (int d = n - 1; d >= 0; d--) {
        if (distance(b->dst_strides[d]) <= reach) b->parallel = 0;
        reach += distance(b->dst_strides[d]) * (b->shape[d] - 1);
    }
    if (b->parallel == 0 && n > 0) {
        *b = given;
        b->parallel = 0;
    }
}

/* Joins neighbouring dimensions that lie one behind the other on both sides. */
static void join_dims(splk_box *b) {
    for (int d = b->parallel - 1; d > 0; d--) {
        if (b->dst_strides[d - 1] != b->dst_strides[d] * b->shape[d] ||
            b->src_strides[d - 1] != b->src_strides[d] * b->shape[d])
            continue;
        b->shape[d - 1] *= b->shape[d];
        b->dst_strides[d - 1] = b->dst_strides[d];
        b->src_strides[d - 1] = b->src_strides[d];
        for (int e = d; e + 1 < b->ndim; e++) {
            b->shape[e] = b->shape[e + 1];
            b->dst_strides[e] = b->dst_strides[e + 1];
            b->src_strides[e] = b->src_strides[e + 1];
        }
        b->ndim--;
        b->parallel--;
    }
}

/* A copy whose rows are dense moves up to 16 bytes at a time, as far as sizes and addresses allow. */
static void widen_units(splk_box *b) {
    int64_t size = (int64_t)spl_dtype_size(b->dtype);
    int last = b->parallel - 1;
    b->unit = (int)size;
    if (b->add || last < 0 || b->ndim != b->parallel || b->dst_strides[last] != 1 || b->src_strides[last] != 1) return;
    int64_t all = (int64_t)((uintptr_t)b->dst | (uintptr_t)b->src) | b->shape[last] * size;
    for (int d = 0; d < last; d++) all |= b->dst_strides[d] * size | b->src_strides[d] * size;
    while (b->unit < 16 && all % (2 * b->unit) == 0) b->unit *= 2;
    int64_t each = b->unit / size;
    b->shape[last] /= each;
    for (int d = 0; d < last; d++) b->dst_strides[d] /= each, b->src_strides[d] /= each;
}

spl_status splk_cuda_box(void *ctx, spl_queue *q, const spl_box_args *a) {
    (void)ctx;
    splk_box b = {.dtype = a->dtype, .ndim = a->ndim, .add = a->add, .count = 1, .inner = 1};
    b.dst = a->dst;
    b.src = a->src;
    SPL_TRY(check_array("box", a->dtype, 0));
    if (a->ndim < 0 || a->ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "box: %d dimensions given, 0 to %d are possible", a->ndim, SPL_MAX_DIMS);
    if (a->add && a->dtype == SPL_BOOL) return spli_error(SPL_EUNSUPPORTED, "box: bool cannot be added; cast it first");
    for (int d = 0; d < a->ndim; d++) {
        if (a->shape[d] < 0)
            return spli_error(SPL_EARG, "box: dimension %d has size %lld; sizes are 0 or more", d + 1,
                              (long long)a->shape[d]);
        if (a->shape[d] == 0) return spli_ok();
    }
    memcpy(b.shape, a->shape, sizeof b.shape);
    memcpy(b.dst_strides, a->dst_strides, sizeof b.dst_strides);
    memcpy(b.src_strides, a->src_strides, sizeof b.src_strides);
    order_dims(&b);
    join_dims(&b);
    widen_units(&b);
    for (int d = 0; d < b.ndim; d++) *(d < b.parallel ? &b.count : &b.inner) *= b.shape[d];
    SPLK_TRY(splk_launch_box(q->stream, &b));
    return spli_ok();
}

/* ---------------------------------------------------------------- the rest */

spl_status splk_cuda_zero(void *ctx, spl_queue *q, void *dst, size_t bytes) {
    (void)ctx;
    if (bytes > 0) SPLK_TRY(cudaMemsetAsync(dst, 0, bytes, q->stream));
    return spli_ok();
}

spl_status splk_cuda_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                          int64_t n) {
    (void)ctx;
    SPL_TRY(check_array("cast", to, n));
    SPL_TRY(check_array("cast", from, n));
    if (n == 0) return spli_ok();
    if (to == from && dst != src)
        SPLK_TRY(cudaMemcpyAsync(dst, src, (size_t)n * spl_dtype_size(to), cudaMemcpyDeviceToDevice, q->stream));
    if (to != from) SPLK_TRY(splk_launch_cast(q->stream, dst, to, src, from, n));
    return spli_ok();
}

spl_status splk_cuda_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                         spl_dtype t) {
    SPL_TRY(check_array("sum", t, n));
    if (nsrcs < 0) return spli_error(SPL_EARG, "sum: %d arrays cannot be added", nsrcs);
    if (n == 0) return spli_ok();
    if (nsrcs == 0) return splk_cuda_zero(ctx, q, dst, (size_t)n * spl_dtype_size(t));
    const void *list;
    SPL_TRY(splk_cuda_list(ctx, q, srcs, (size_t)nsrcs * sizeof *srcs, &list));
    SPLK_TRY(splk_launch_sum(q->stream, dst, list, nsrcs, n, t));
    return spli_ok();
}

spl_status splk_cuda_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value) {
    (void)ctx;
    SPL_TRY(check_array("fill", t, n));
    if (n > 0) SPLK_TRY(splk_launch_fill(q->stream, dst, t, n, value));
    return spli_ok();
}

spl_status splk_cuda_random(void *ctx, spl_queue *q, const spl_random_args *a) {
    splk_map map;
    int64_t rows;
    SPL_TRY(check_array("random", a->dtype, 0));
    SPL_TRY(splk_cuda_map(ctx, q, "random", a->map, &map, &rows));
    if (rows == 0 || map.local[map.ndim - 1] == 0) return spli_ok();
    SPLK_TRY(splk_launch_random(q->stream, a, &map, rows));
    return spli_ok();
}

/* Completes before it returns: the parts of the blocks are added up here, in their order. */
spl_status splk_cuda_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *out) {
    splk_cuda *c = ctx;
    const size_t bytes = SPLK_STATS_PARTS * sizeof *c->stats;
    spl_status status = spli_ok();
    void *parts, *p;
    memset(out, 0, sizeof *out);
    SPL_TRY(check_array("stats", t, n));
    if (n == 0) return spli_ok();
    if (!c->stats) {
        SPL_TRY(splk_cuda_host_alloc(c, bytes, &p));
        c->stats = p;
    }
    SPL_TRY(splk_cuda_scratch_take(c, bytes, &parts));
    cudaError_t e = splk_launch_stats(q->stream, x, t, n, parts);
    if (e == cudaSuccess) e = cudaMemcpyAsync(c->stats, parts, bytes, cudaMemcpyDeviceToHost, q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(q->stream);
    if (e != cudaSuccess) status = splk_cuda_error(e, "the statistics of an array");
    splk_cuda_scratch_give(c, parts, bytes);
    for (int i = 0; i < SPLK_STATS_PARTS && status.code == SPL_OK; i++) {
        out->sum += c->stats[i].sum;
        out->sum_squares += c->stats[i].sum_squares;
        out->nan_count += c->stats[i].nan_count;
        out->inf_count += c->stats[i].inf_count;
        if (c->stats[i].abs_max > out->abs_max) out->abs_max = c->stats[i].abs_max;
    }
    return status;
}
