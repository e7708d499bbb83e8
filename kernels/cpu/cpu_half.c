/* cpu_half.c: bf16 and f16 in operations on rows: norm, activation, residual and loss. Rows are widened in groups that
 * stay in cache; the residual, one pass over memory, in pieces of a row. */
#include "cpu_half.h"

enum { GROUP = 1 << 18, PIECE = 512 };

void splk_widen(float *dst, const void *src, spl_dtype t, int64_t at, int64_t stride, int64_t n) {
    const uint16_t *h = (const uint16_t *)src + (t == SPL_F32 ? 0 : at);
    if (t == SPL_F32)
        for (int64_t i = 0; i < n; i++) dst[i] = ((const float *)src)[at + i * stride];
    else if (stride != 1)
        for (int64_t i = 0; i < n; i++)
            dst[i] = t == SPL_BF16 ? splk_bf16_to_f32(h[i * stride]) : splk_f16_to_f32(h[i * stride]);
    else if (t == SPL_BF16)
        for (int64_t i = 0; i < n; i++) dst[i] = splk_bf16_to_f32(h[i]);
    else
        for (int64_t i = 0; i < n; i++) dst[i] = splk_f16_to_f32(h[i]);
}

void splk_narrow(void *dst, spl_dtype t, int64_t at, int64_t stride, const float *src, int64_t n) {
    uint16_t *h = (uint16_t *)dst + (t == SPL_F32 ? 0 : at);
    if (t == SPL_F32)
        for (int64_t i = 0; i < n; i++) ((float *)dst)[at + i * stride] = src[i];
    else if (stride != 1)
        for (int64_t i = 0; i < n; i++)
            h[i * stride] = t == SPL_BF16 ? splk_bf16_of_f32(src[i]) : splk_f16_of_f32(src[i]);
    else if (t == SPL_BF16)
        for (int64_t i = 0; i < n; i++) h[i] = splk_bf16_of_f32(src[i]);
    else
        for (int64_t i = 0; i < n; i++) h[i] = splk_f16_of_f32(src[i]);
}

/* Whole arrays, by all threads. */
static void widen_all(const splk_cpu *c, float *dst, const void *src, spl_dtype t, int64_t at, int64_t n) {
    int64_t pieces = (n + PIECE - 1) / PIECE;
    int team = splk_team(c, pieces, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        splk_widen(dst + p * PIECE, src, t, at + p * PIECE, 1, n - p * PIECE < PIECE ? n - p * PIECE : PIECE);
}

static void narrow_all(const splk_cpu *c, void *dst, spl_dtype t, int64_t at, const float *src, int64_t n) {
    int64_t pieces = (n + PIECE - 1) / PIECE;
    int team = splk_team(c, pieces, n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        splk_narrow(dst, t, at + p * PIECE, 1, src + p * PIECE, n - p * PIECE < PIECE ? n - p * PIECE : PIECE);
}

/* An array that may be of the stored type or already of f32. */
static spl_status check_mixed(const char *op, const char *name, spl_dtype stored, spl_dtype t) {
    if (t == stored || t == SPL_F32) return spli_ok();
    return spli_error(SPL_EARG, "%s: %s is given as %s, in a call of %s it must be %s or f32", op, name,
                      (unsigned)t < SPL_DTYPE_COUNT ? spl_dtype_name(t) : "no type", spl_dtype_name(stored),
                      spl_dtype_name(stored));
}

/* Scratch for a group of rows: `arrays` of rows_at_once * cols floats, then `vectors` of cols, one part each. */
typedef struct group {
    int64_t rows_at_once, parts, stride;
    char *scratch;
} group;

static spl_status group_take(splk_cpu *c, int64_t rows, int64_t cols, int arrays, int vectors, group *g) {
    void *p;
    g->rows_at_once = cols < GROUP ? GROUP / (cols > 0 ? cols : 1) : 1;
    if (g->rows_at_once > rows) g->rows_at_once = rows > 0 ? rows : 1;
    g->parts = arrays + vectors;
    SPL_TRY(splk_scratch_take(c, g->parts, g->rows_at_once * cols * 4, &g->stride, &p));
    g->scratch = p;
    return spli_ok();
}

static float *group_part(const group *g, int i) { return (float *)(void *)(g->scratch + i * g->stride); }

spl_status splk_half_norm(void *ctx, spl_queue *q, const spl_norm_args *a) {
    splk_cpu *c = ctx;
    int64_t area;
    group g;
    SPL_TRY(splk_area("norm", a->rows, a->cols, &area));
    SPL_TRY(check_mixed("norm", "x", a->dtype, a->x_dtype));
    SPL_TRY(group_take(c, a->rows, a->cols, 1, 2, &g));
    spl_status status = spli_ok();
    float *rows = group_part(&g, 0), *gamma = group_part(&g, 1), *beta = group_part(&g, 2);
    if (a->gamma) splk_widen(gamma, a->gamma, a->dtype, 0, 1, a->cols);
    if (a->beta) splk_widen(beta, a->beta, a->dtype, 0, 1, a->cols);
    for (int64_t r = 0; r < a->rows && status.code == SPL_OK; r += g.rows_at_once) {
        spl_norm_args f = *a;
        f.dtype = SPL_F32;
        f.rows = a->rows - r < g.rows_at_once ? a->rows - r : g.rows_at_once;
        if (a->x_dtype == SPL_F32)
            f.x = (const float *)a->x + r * a->cols;
        else
            widen_all(c, rows, a->x, a->dtype, r * a->cols, f.rows * a->cols), f.x = rows;
        f.gamma = a->gamma ? gamma : NULL, f.beta = a->beta ? beta : NULL, f.y = rows;
        f.mean = a->mean ? (float *)a->mean + r : NULL, f.rstd = a->rstd ? (float *)a->rstd + r : NULL;
        status = splk_cpu_norm(ctx, q, &f);
        if (status.code == SPL_OK) narrow_all(c, a->y, a->dtype, r * a->cols, rows, f.rows * a->cols);
    }
    splk_scratch_give(c, g.parts, g.stride, g.scratch);
    return status;
}

spl_status splk_half_act(void *ctx, spl_queue *q, const spl_act_args *a) {
    splk_cpu *c = ctx;
    int64_t area;
    group g;
    SPL_TRY(splk_area("activation", a->rows, a->cols, &area));
    SPL_TRY(group_take(c, a->rows, a->cols, 2, 1, &g));
    spl_status status = spli_ok();
    float *x = group_part(&g, 0), *up = group_part(&g, 1), *bias = group_part(&g, 2);
    if (a->bias) splk_widen(bias, a->bias, a->dtype, 0, 1, a->cols);
    for (int64_t r = 0; r < a->rows && status.code == SPL_OK; r += g.rows_at_once) {
        spl_act_args f = *a;
        f.dtype = SPL_F32;
        f.rows = a->rows - r < g.rows_at_once ? a->rows - r : g.rows_at_once;
        widen_all(c, x, a->x, a->dtype, r * a->cols, f.rows * a->cols);
        if (a->up) widen_all(c, up, a->up, a->dtype, r * a->cols, f.rows * a->cols);
        f.x = f.y = x, f.up = a->up ? up : NULL, f.bias = a->bias ? bias : NULL;
        status = splk_cpu_act(ctx, q, &f);
        if (status.code == SPL_OK) narrow_all(c, a->y, a->dtype, r * a->cols, x, f.rows * a->cols);
    }
    splk_scratch_give(c, g.parts, g.stride, g.scratch);
    return status;
}

spl_status splk_half_nll(void *ctx, spl_queue *q, const spl_nll_args *a) {
    splk_cpu *c = ctx;
    int64_t area;
    group g;
    SPL_TRY(splk_area("nll", a->rows, a->vocab, &area));
    for (int64_t r = 0; r < a->rows; r++) /* here, where the number of the row is still the caller's */
        if (a->labels[r] >= a->vocab)
            return spli_error(SPL_EARG, "nll: label %lld in row %lld, the logits have %lld columns",
                              (long long)a->labels[r], (long long)r, (long long)a->vocab);
    SPL_TRY(group_take(c, a->rows, a->vocab, 1, 0, &g));
    spl_status status = spli_ok();
    for (int64_t r = 0; r < a->rows && status.code == SPL_OK; r += g.rows_at_once) {
        spl_nll_args f = *a;
        f.dtype = SPL_F32;
        f.rows = a->rows - r < g.rows_at_once ? a->rows - r : g.rows_at_once;
        widen_all(c, group_part(&g, 0), a->logits, a->dtype, r * a->vocab, f.rows * a->vocab);
        f.logits = group_part(&g, 0), f.labels = a->labels + r, f.nll = (double *)a->nll + r;
        status = splk_cpu_nll(ctx, q, &f);
    }
    splk_scratch_give(c, g.parts, g.stride, g.scratch);
    return status;
}

/* ---- residual: y = residual + dropout(x + bias) ---- */

/* Up to PIECE elements, `at` in the array, `col` in the row, with their random words (NULL: all are kept). */
static void residual_piece(const spl_residual_args *a, int64_t at, int64_t col, int64_t n, const uint32_t *words) {
    float v[PIECE], other[PIECE];
    uint8_t *mask = a->mask ? (uint8_t *)a->mask + at : NULL;
    splk_widen(v, a->x, a->dtype, at, 1, n);
    if (a->bias) {
        splk_widen(other, a->bias, a->dtype, col, 1, n);
        for (int64_t i = 0; i < n; i++) v[i] += other[i];
    }
    if (words) {
        uint32_t least = splk_keep_threshold(a->p);
        float scale = (float)(1 / (1 - a->p));
        for (int64_t i = 0; i < n; i++) v[i] *= words[i] >> 8 >= least ? scale : 0; /* times 0: a NaN is not lost */
        if (mask)
            for (int64_t i = 0; i < n; i++) mask[i] = words[i] >> 8 >= least;
    } else if (mask) {
        memset(mask, 1, (size_t)n);
    }
    if (a->residual) {
        splk_widen(other, a->residual, a->residual_dtype, at, 1, n);
        for (int64_t i = 0; i < n; i++) v[i] = other[i] + v[i];
    }
    splk_narrow(a->y, a->y_dtype, at, 1, v, n);
}

static void residual_row(const spl_residual_args *a, int64_t row) {
    uint32_t words[PIECE];
    int64_t at = row * a->cols, col = 0;
    const spl_segment whole = {0, a->cols, 1}, *s = &whole;
    int n = 1;
    if (a->p > 0) s = a->map->segments[a->map->ndim - 1], n = a->map->nsegments[a->map->ndim - 1];
    int64_t base = a->p > 0 ? splk_map_row(a->map, row) : 0;
    for (; n > 0; n--, s++)
        for (int64_t j = 0; j < s->length; j += PIECE) {
            int64_t len = s->length - j < PIECE ? s->length - j : PIECE;
            if (a->p > 0) splk_random_words(a->key, base + s->start + j * s->stride, s->stride, len, words);
            residual_piece(a, at + col, col, len, a->p > 0 ? words : NULL);
            col += len;
        }
}

spl_status splk_half_residual(void *ctx, spl_queue *q, const spl_residual_args *a) {
    (void)q;
    int64_t area, rows, cols;
    SPL_TRY(splk_area("residual", a->rows, a->cols, &area));
    SPL_TRY(check_mixed("residual", "y", a->dtype, a->y_dtype));
    if (a->residual) SPL_TRY(check_mixed("residual", "the residual", a->dtype, a->residual_dtype));
    if (!(a->p >= 0 && a->p < 1))
        return spli_error(SPL_EARG, "residual: dropout probability %g given, it must be in [0, 1)", a->p);
    if (a->p > 0) {
        if (!a->map)
            return spli_error(SPL_EARG, "residual: dropout needs the global coordinates of x (an index map)");
        SPL_TRY(splk_map_check("residual", a->map, &rows, &cols));
        if (rows * cols != area || (cols != a->cols && area > 0))
            return spli_error(SPL_EARG, "residual: x is %lld by %lld but its index map holds %lld by %lld",
                              (long long)a->rows, (long long)a->cols, (long long)rows, (long long)cols);
    }
    if (area == 0) return spli_ok();
    int team = splk_team(ctx, a->rows, area);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) residual_row(a, r);
    return spli_ok();
}
