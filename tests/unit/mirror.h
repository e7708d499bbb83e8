/* mirror.h: lets tests that hand plain host arrays to a backend judge one whose memory is on a device: each call's
 * arrays are copied there, the call is made, and what it may have written is copied back. The copies are as long as
 * the call says and no longer, so that what a kernel touches beyond them lies outside its allocation. */
#ifndef MIRROR_H
#define MIRROR_H
#include "backend.h"
#include <stdlib.h>
#include <string.h>

enum { MIRROR_SPANS = 16 };

typedef struct mirror_span {
    char *host, *base, *device;
    size_t bytes, taken;
    int out;
} mirror_span;

static struct {
    const spl_backend_ops *ops; /* of the device */
    mirror_span span[MIRROR_SPANS];
    int n;
    spl_status failed;
} mirror;

/* The device's copy of [host, host + bytes). Overlapping arrays of one call are one copy. */
static void *mirror_map(void *ctx, spl_queue *q, const void *host, int64_t bytes, int out) {
    enum { MOST = 1 << 28 }; /* sizes that a test expects to be refused are not copied */
    if (!host) return NULL;
    if (bytes < 0 || bytes > MOST) bytes = 0;
    for (int i = 0; i < mirror.n; i++) {
        mirror_span *s = &mirror.span[i];
        if ((char *)host < s->host || (char *)host + bytes > s->host + s->bytes) continue;
        s->out |= out;
        return s->device + ((char *)host - s->host);
    }
    mirror_span *s = &mirror.span[mirror.n++];
    void *p = NULL;
    *s = (mirror_span){.host = (char *)host, .bytes = (size_t)bytes, .out = out};
    size_t shift = (uintptr_t)host % 64; /* as badly aligned as the test made it */
    s->taken = shift + s->bytes + (bytes == 0);
    spl_status status = mirror.ops->alloc(ctx, s->taken, &p);
    if (status.code == SPL_OK) {
        s->base = p;
        s->device = s->base + shift;
        status = mirror.ops->copy_in(ctx, q, s->device, host, s->bytes);
    }
    if (status.code != SPL_OK) mirror.failed = status;
    return s->device;
}

static spl_status mirror_end(void *ctx, spl_queue *q, spl_status status) {
    if (mirror.failed.code != SPL_OK) status = mirror.failed;
    for (int i = 0; i < mirror.n; i++) {
        mirror_span *s = &mirror.span[i];
        if (status.code == SPL_OK && s->out) status = mirror.ops->copy_out(ctx, q, s->host, s->device, s->bytes);
        if (s->base) mirror.ops->free(ctx, s->base, s->taken);
    }
    mirror.n = 0;
    mirror.failed = spli_ok();
    return status;
}

/* Bytes from the first to behind the last element; *low: of those before p (strides may be negative). */
static int64_t mirror_extent(int ndim, const int64_t *shape, const int64_t *strides, size_t size, int64_t *low) {
    int64_t high = 1;
    *low = 0;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] <= 0) return 0;
        if (strides[d] > 0) high += (shape[d] - 1) * strides[d];
        else *low -= (shape[d] - 1) * strides[d];
    }
    *low *= (int64_t)size;
    return *low + high * (int64_t)size;
}

static void *mirror_strided(void *ctx, spl_queue *q, const void *p, int ndim, const int64_t *shape,
                            const int64_t *strides, size_t size, int out) {
    int64_t low, bytes = mirror_extent(ndim, shape, strides, size, &low);
    if (!p) return NULL;
    char *first = mirror_map(ctx, q, (const char *)p - low, bytes, out);
    return first ? first + low : NULL;
}

#define MAP(p, bytes, out) mirror_map(ctx, q, p, (int64_t)(bytes), out)
#define MIRROR(slot, args) mirror_end(ctx, q, mirror.ops->slot(ctx, q, args))

static size_t mirror_mixed(spl_dtype t, spl_dtype own) {
    return spl_dtype_size(t == SPL_BF16 || t == SPL_F16 ? own : t);
}

static spl_status mirror_box(void *ctx, spl_queue *q, const spl_box_args *a) {
    spl_box_args b = *a;
    size_t size = spl_dtype_size(a->dtype);
    b.dst = mirror_strided(ctx, q, a->dst, a->ndim, a->shape, a->dst_strides, size, 1);
    b.src = mirror_strided(ctx, q, a->src, a->ndim, a->shape, a->src_strides, size, 0);
    return MIRROR(box, &b);
}

static spl_status mirror_zero(void *ctx, spl_queue *q, void *dst, size_t bytes) {
    return mirror_end(ctx, q, mirror.ops->zero(ctx, q, MAP(dst, bytes, 1), bytes));
}

static spl_status mirror_cast(void *ctx, spl_queue *q, void *dst, spl_dtype to, const void *src, spl_dtype from,
                              int64_t n) {
    void *d = MAP(dst, n * (int64_t)spl_dtype_size(to), 1), *s = MAP(src, n * (int64_t)spl_dtype_size(from), 0);
    return mirror_end(ctx, q, mirror.ops->cast(ctx, q, d, to, s, from, n));
}

static spl_status mirror_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                             spl_dtype t) {
    const void *all[8];
    int64_t bytes = n * (int64_t)spl_dtype_size(t);
    void *d = MAP(dst, bytes, 1);
    for (int i = 0; i < nsrcs && i < 8; i++) all[i] = MAP(srcs[i], bytes, 0);
    return mirror_end(ctx, q, mirror.ops->sum(ctx, q, d, all, nsrcs, n, t));
}

static spl_status mirror_fill(void *ctx, spl_queue *q, void *dst, spl_dtype t, int64_t n, double value) {
    return mirror_end(ctx, q, mirror.ops->fill(ctx, q, MAP(dst, n * (int64_t)spl_dtype_size(t), 1), t, n, value));
}

static spl_status mirror_random(void *ctx, spl_queue *q, const spl_random_args *a) {
    spl_random_args b = *a;
    int64_t n = (int64_t)spl_dtype_size(a->dtype);
    for (int d = 0; d < a->map->ndim; d++) n *= a->map->local[d];
    b.out = MAP(a->out, n, 1);
    return MIRROR(random, &b);
}

static spl_status mirror_stats(void *ctx, spl_queue *q, const void *x, spl_dtype t, int64_t n, spl_stats *out) {
    return mirror_end(ctx, q, mirror.ops->stats(ctx, q, MAP(x, n * (int64_t)spl_dtype_size(t), 0), t, n, out));
}

static int64_t mirror_matrix(int64_t rows, int64_t cols, int64_t ld, size_t size) {
    return rows > 0 && cols > 0 && ld < 1 << 20 ? ((rows - 1) * ld + cols) * (int64_t)size : 0;
}

static spl_status mirror_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a) {
    spl_gemm_args b = *a;
    size_t size = spl_dtype_size(a->dtype);
    b.a = MAP(a->a, mirror_matrix(a->trans_a ? a->k : a->m, a->trans_a ? a->m : a->k, a->lda, size), 0);
    b.b = MAP(a->b, mirror_matrix(a->trans_b ? a->n : a->k, a->trans_b ? a->k : a->n, a->ldb, size), 0);
    b.c = MAP(a->c, mirror_matrix(a->m, a->n, a->ldc, size), 1);
    b.bias = MAP(a->bias, a->n * (int64_t)size, 0);
    return MIRROR(gemm, &b);
}

static spl_status mirror_norm(void *ctx, spl_queue *q, const spl_norm_args *a) {
    spl_norm_args b = *a;
    int64_t size = (int64_t)spl_dtype_size(a->dtype), stat = a->dtype == SPL_F64 ? 8 : 4;
    b.y = MAP(a->y, a->rows * a->cols * size, 1);
    b.x = MAP(a->x, a->rows * a->cols * (int64_t)mirror_mixed(a->dtype, a->x_dtype), 0);
    b.gamma = MAP(a->gamma, a->cols * size, 0);
    b.beta = MAP(a->beta, a->cols * size, 0);
    b.mean = MAP(a->mean, a->rows * stat, 1);
    b.rstd = MAP(a->rstd, a->rows * stat, 1);
    return MIRROR(norm, &b);
}

static spl_status mirror_act(void *ctx, spl_queue *q, const spl_act_args *a) {
    spl_act_args b = *a;
    int64_t size = (int64_t)spl_dtype_size(a->dtype), area = a->rows * a->cols * size;
    b.y = MAP(a->y, area, 1);
    b.x = MAP(a->x, area, 0);
    b.up = MAP(a->up, area, 0);
    b.bias = MAP(a->bias, a->cols * size, 0);
    return MIRROR(act, &b);
}

static spl_status mirror_residual(void *ctx, spl_queue *q, const spl_residual_args *a) {
    spl_residual_args b = *a;
    int64_t area = a->rows * a->cols, size = (int64_t)spl_dtype_size(a->dtype);
    b.y = MAP(a->y, area * (int64_t)mirror_mixed(a->dtype, a->y_dtype), 1);
    b.x = MAP(a->x, area * size, 0);
    b.bias = MAP(a->bias, a->cols * size, 0);
    b.residual = MAP(a->residual, area * (int64_t)mirror_mixed(a->dtype, a->residual_dtype), 0);
    b.mask = MAP(a->mask, area, 1);
    return MIRROR(residual, &b);
}

static spl_status mirror_rope(void *ctx, spl_queue *q, const spl_rope_args *a) {
    spl_rope_args b = *a;
    const int64_t shape[4] = {a->batch, a->seq, a->heads, a->head_dim};
    b.y = mirror_strided(ctx, q, a->y, 4, shape, a->y_strides, spl_dtype_size(a->dtype), 1);
    b.x = mirror_strided(ctx, q, a->x, 4, shape, a->x_strides, spl_dtype_size(a->dtype), 0);
    return MIRROR(rope, &b);
}

static spl_status mirror_embed(void *ctx, spl_queue *q, const spl_embed_args *a) {
    spl_embed_args b = *a;
    int64_t size = (int64_t)spl_dtype_size(a->dtype);
    b.ids = MAP(a->ids, a->rows * 8, 0);
    b.table = MAP(a->table, a->vocab_local * a->hidden * size, 0);
    b.out = MAP(a->out, a->rows * a->hidden * size, 1);
    return MIRROR(embed, &b);
}

static spl_status mirror_nll(void *ctx, spl_queue *q, const spl_nll_args *a) {
    spl_nll_args b = *a;
    b.logits = MAP(a->logits, a->rows * a->vocab * (int64_t)spl_dtype_size(a->dtype), 0);
    b.labels = MAP(a->labels, a->rows * 8, 0);
    b.nll = MAP(a->nll, a->rows * 8, 1);
    return MIRROR(nll, &b);
}

static spl_status mirror_pool(void *ctx, spl_queue *q, const spl_pool_args *a) {
    spl_pool_args b = *a;
    const int64_t x[4] = {a->batch, a->seq, a->heads, a->head_dim};
    const int64_t y[4] = {a->batch, a->ngroups, a->heads, a->head_dim};
    b.x = mirror_strided(ctx, q, a->x, 4, x, a->x_strides, spl_dtype_size(a->dtype), 0);
    b.y = mirror_strided(ctx, q, a->y, 4, y, a->y_strides, spl_dtype_size(a->dtype), 1);
    return MIRROR(pool, &b);
}

static spl_status mirror_attention(void *ctx, spl_queue *q, const spl_attn_args *a) {
    spl_attn_args b = *a;
    size_t size = spl_dtype_size(a->dtype), stat = a->dtype == SPL_F64 ? 8 : 4;
    const int64_t rows[4] = {a->batch, a->sq, a->heads, a->head_dim};
    const int64_t keys[4] = {a->batch, a->sk, a->kv_heads, a->head_dim};
    b.out = mirror_strided(ctx, q, a->out, 4, rows, a->out_strides, mirror_mixed(a->dtype, a->out_dtype), 1);
    b.lse = MAP(a->lse, a->batch * a->heads * a->sq * (int64_t)stat, 1);
    b.q = mirror_strided(ctx, q, a->q, 4, rows, a->q_strides, size, 0);
    b.k = mirror_strided(ctx, q, a->k, 4, keys, a->k_strides, size, 0);
    b.v = mirror_strided(ctx, q, a->v, 4, keys, a->v_strides, size, 0);
    b.key_bias = MAP(a->key_bias, a->sk * (int64_t)stat, 0);
    return MIRROR(attention, &b);
}

#undef MAP
#undef MIRROR

/* A table that takes host arrays, in place of that of a backend with device memory. */
static inline const spl_backend_ops *mirror_of(const spl_backend_ops *ops) {
    static spl_backend_ops table;
    if (!ops || !ops->device_memory) return ops;
    mirror.ops = ops;
    table = *ops;
    table.box = mirror_box;
    table.zero = mirror_zero;
    table.cast = mirror_cast;
    table.sum = mirror_sum;
    table.fill = mirror_fill;
    table.random = mirror_random;
    table.stats = mirror_stats;
    table.gemm = mirror_gemm;
    table.norm = mirror_norm;
    table.act = mirror_act;
    table.residual = mirror_residual;
    table.rope = mirror_rope;
    table.embed = mirror_embed;
    table.nll = mirror_nll;
    table.pool = mirror_pool;
    table.attention = mirror_attention;
    return &table;
}

#endif
