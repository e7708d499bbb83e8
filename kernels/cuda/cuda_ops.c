/* cuda_ops.c: norms, activations, residual, rotary embedding, embedding, means and loss: checks and launches. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

spl_status splk_cuda_need_float(const char *op, spl_dtype t) {
    if (t == SPL_F32 || t == SPL_F64 || splk_cuda_is_half(t)) return spli_ok();
    return spli_error(SPL_EUNSUPPORTED,
                      "%s on the cuda backend takes f64, f32, bf16 and f16, got %s: cast to f32 first", op,
                      spl_dtype_name(t));
}

spl_status splk_cuda_area(const char *op, int64_t rows, int64_t cols, int64_t *out) {
    *out = 0;
    if (splk_cuda_mul(rows, cols, out) && *out <= INT64_MAX / 8) return spli_ok();
    return spli_error(SPL_EARG,
                      "%s: %lld rows of %lld columns are not a size: both must be >= 0 and the product fit memory",
                      op, (long long)rows, (long long)cols);
}

spl_status splk_cuda_mixed(const char *op, const char *name, spl_dtype stored, spl_dtype t) {
    if (!splk_cuda_is_half(stored) || t == stored || t == SPL_F32) return spli_ok();
    return spli_error(SPL_EARG, "%s: %s is given as %s, in a call of %s it must be %s or f32", op, name,
                      (unsigned)t < SPL_DTYPE_COUNT ? spl_dtype_name(t) : "no type", spl_dtype_name(stored),
                      spl_dtype_name(stored));
}

spl_status splk_cuda_map(splk_cuda *c, spl_queue *q, const char *op, const spl_index_map *m, splk_map *out,
                         int64_t *rows) {
    int64_t global = 1, local = 1;
    int n = 0;
    memset(out, 0, sizeof *out);
    *rows = 1;
    if (m->ndim < 1 || m->ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "%s: the index map has %d dimensions, 1 to %d are possible", op, m->ndim,
                          SPL_MAX_DIMS);
    out->ndim = m->ndim;
    for (int d = 0; d < m->ndim; d++) {
        int64_t held = 0;
        out->global[d] = m->global[d];
        out->local[d] = m->local[d];
        out->first[d] = n;
        out->count[d] = m->nsegments[d];
        n += m->nsegments[d];
        for (int s = 0; s < m->nsegments[d]; s++) held += m->segments[d][s].length;
        if (held != m->local[d])
            return spli_error(SPL_EARG,
                              "%s: dimension %d of the index map holds %lld elements but its segments have %lld", op,
                              d + 1, (long long)m->local[d], (long long)held);
        if (!splk_cuda_mul(global, m->global[d], &global) || !splk_cuda_mul(local, m->local[d], &local))
            return spli_error(SPL_EARG, "%s: the sizes of the index map overflow 64 bits at dimension %d", op, d + 1);
        if (d + 1 < m->ndim) *rows = local;
    }
    if (local == 0) return spli_ok();
    spl_segment few[32], *all = n <= 32 ? few : malloc((size_t)n * sizeof *all);
    const void *list;
    if (!all) return spli_error(SPL_ENOMEM, "%s: no memory for %d segments", op, n);
    for (int d = 0; d < m->ndim; d++)
        memcpy(all + out->first[d], m->segments[d], (size_t)m->nsegments[d] * sizeof *all);
    spl_status status = splk_cuda_list(c, q, all, (size_t)n * sizeof *all, &list);
    if (all != few) free(all);
    out->segments = list;
    return status;
}

spl_status splk_cuda_norm(void *ctx, spl_queue *q, const spl_norm_args *a) {
    (void)ctx;
    int64_t area;
    spl_norm_args n = *a;
    SPL_TRY(splk_cuda_need_float("norm", a->dtype));
    SPL_TRY(splk_cuda_area("norm", a->rows, a->cols, &area));
    SPL_TRY(splk_cuda_mixed("norm", "x", a->dtype, a->x_dtype));
    if (!splk_cuda_is_half(a->dtype)) n.x_dtype = a->dtype;
    if (a->rows > 0) SPLK_TRY(splk_launch_norm(q->stream, &n));
    return spli_ok();
}

spl_status splk_cuda_act(void *ctx, spl_queue *q, const spl_act_args *a) {
    (void)ctx;
    int64_t area;
    SPL_TRY(splk_cuda_need_float("activation", a->dtype));
    SPL_TRY(splk_cuda_area("activation", a->rows, a->cols, &area));
    if (area > 0) SPLK_TRY(splk_launch_act(q->stream, a));
    return spli_ok();
}

spl_status splk_cuda_residual(void *ctx, spl_queue *q, const spl_residual_args *a) {
    int64_t area, rows;
    splk_map map;
    spl_residual_args r = *a;
    memset(&map, 0, sizeof map);
    SPL_TRY(splk_cuda_need_float("residual", a->dtype));
    SPL_TRY(splk_cuda_area("residual", a->rows, a->cols, &area));
    if (a->residual) SPL_TRY(splk_cuda_mixed("residual", "the residual", a->dtype, a->residual_dtype));
    SPL_TRY(splk_cuda_mixed("residual", "y", a->dtype, a->y_dtype));
    if (!splk_cuda_is_half(a->dtype)) r.residual_dtype = r.y_dtype = a->dtype;
    if (!(a->p >= 0 && a->p < 1))
        return spli_error(SPL_EARG, "residual: dropout probability %g given, it must be in [0, 1)", a->p);
    if (a->p > 0) {
        if (!a->map) return spli_error(SPL_EARG, "residual: dropout needs the global coordinates of its elements");
        SPL_TRY(splk_cuda_map(ctx, q, "residual", a->map, &map, &rows));
        if (rows != a->rows || map.local[map.ndim - 1] != a->cols)
            return spli_error(SPL_EARG,
                              "residual: %lld rows of %lld columns given, its coordinates are of %lld of %lld",
                              (long long)a->rows, (long long)a->cols, (long long)rows,
                              (long long)map.local[map.ndim - 1]);
    }
    if (area > 0) SPLK_TRY(splk_launch_residual(q->stream, &r, &map));
    return spli_ok();
}

spl_status splk_cuda_rope(void *ctx, spl_queue *q, const spl_rope_args *a) {
    int64_t area, held = 0;
    spl_rope_args r = *a;
    const void *list;
    SPL_TRY(splk_cuda_need_float("rope", a->dtype));
    SPL_TRY(splk_cuda_area("rope", a->batch, a->heads, &area));
    SPL_TRY(splk_cuda_area("rope", area, a->seq, &area));
    SPL_TRY(splk_cuda_area("rope", area, a->head_dim, &area));
    for (int i = 0; i < a->npositions; i++) held += a->positions[i].length;
    if (held != a->seq)
        return spli_error(SPL_EARG, "rope: %lld positions are given for a sequence of %lld", (long long)held,
                          (long long)a->seq);
    if (area == 0) return spli_ok();
    SPL_TRY(splk_cuda_list(ctx, q, a->positions, (size_t)a->npositions * sizeof *a->positions, &list));
    r.positions = list;
    SPLK_TRY(splk_launch_rope(q->stream, &r));
    return spli_ok();
}

spl_status splk_cuda_embed(void *ctx, spl_queue *q, const spl_embed_args *a) {
    (void)ctx;
    int64_t area;
    SPL_TRY(splk_cuda_need_float("embedding", a->dtype));
    SPL_TRY(splk_cuda_area("embedding", a->rows, a->hidden, &area));
    if (area > 0) SPLK_TRY(splk_launch_embed(q->stream, a));
    return spli_ok();
}

/* Labels are looked at here, since a kernel cannot refuse one: the loss is what a script waits for anyway. */
spl_status splk_cuda_nll(void *ctx, spl_queue *q, const spl_nll_args *a) {
    int64_t area;
    SPL_TRY(splk_cuda_need_float("nll", a->dtype));
    SPL_TRY(splk_cuda_area("nll", a->rows, a->vocab, &area));
    if (a->rows == 0) return spli_ok();
    int64_t *labels = malloc((size_t)a->rows * sizeof *labels);
    if (!labels) return spli_error(SPL_ENOMEM, "nll: no memory for %lld labels", (long long)a->rows);
    spl_status status = splk_cuda_copy_out(ctx, q, labels, a->labels, (size_t)a->rows * sizeof *labels);
    for (int64_t r = 0; r < a->rows && status.code == SPL_OK; r++)
        if (labels[r] >= a->vocab)
            status = spli_error(SPL_EARG, "nll: label %lld in row %lld, the logits have %lld columns",
                                (long long)labels[r], (long long)r, (long long)a->vocab);
    free(labels);
    SPL_TRY(status);
    SPLK_TRY(splk_launch_nll(q->stream, a));
    return spli_ok();
}

spl_status splk_cuda_pool(void *ctx, spl_queue *q, const spl_pool_args *a) {
    spl_pool_args p = *a;
    const void *list;
    int64_t area;
    SPL_TRY(splk_cuda_need_float("pool", a->dtype));
    SPL_TRY(splk_cuda_area("pool", a->batch, a->heads, &area));
    SPL_TRY(splk_cuda_area("pool", area, a->ngroups, &area));
    SPL_TRY(splk_cuda_area("pool", area, a->head_dim, &area));
    if (a->head_dim > 1 && (a->x_strides[3] != 1 || a->y_strides[3] != 1))
        return spli_error(SPL_EARG,
                          "pool: elements of a head must be neighbours (last stride 1); make the tensor contiguous");
    for (int64_t g = 0; g < a->ngroups; g++)
        if (a->groups[g].start < 0 || a->groups[g].length < 1 || a->groups[g].start + a->groups[g].length > a->seq)
            return spli_error(SPL_EARG, "pool: group %lld is rows %lld+%lld of %lld", (long long)g,
                              (long long)a->groups[g].start, (long long)a->groups[g].length, (long long)a->seq);
    if (area == 0) return spli_ok();
    SPL_TRY(splk_cuda_list(ctx, q, a->groups, (size_t)a->ngroups * sizeof *a->groups, &list));
    p.groups = list;
    SPLK_TRY(splk_launch_pool(q->stream, &p));
    return spli_ok();
}
