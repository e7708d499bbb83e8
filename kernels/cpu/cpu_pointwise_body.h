/* cpu_pointwise_body.h: the loops of cpu_pointwise.c in element type T, with EXP and ERFC of that type. */

#define FN(name) SPLK_PASTE(name, S)

static void FN(activate)(spl_activation act, int64_t n, T *v) {
    switch (act) {
    case SPL_ACT_GELU_TANH: /* 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            T x = v[i], u2 = x * ((T)1.5957691216057307117 + (T)0.071354816272600242 * x * x);
            v[i] = x / (1 + EXP(-u2));
        }
        break;
    case SPL_ACT_GELU_ERF:
        for (int64_t i = 0; i < n; i++) v[i] = (T)0.5 * v[i] * ERFC(v[i] * (T)-0.70710678118654752440);
        break;
    case SPL_ACT_SILU:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) v[i] = v[i] / (1 + EXP(-v[i]));
        break;
    case SPL_ACT_NONE: break;
    }
}

/* y = act(x + bias) [* up] on rows of `cols`; x, y and up share the leading dimension. */
static void FN(act_rows)(const splk_cpu *c, spl_activation act, int64_t rows, int64_t cols, const T *x, const T *bias,
                         const T *up, T *y, int64_t ld) {
    int team = splk_team(c, rows, rows * cols);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j += PIECE) {
            T v[PIECE];
            int64_t n = cols - j < PIECE ? cols - j : PIECE, at = r * ld + j;
            if (bias)
                for (int64_t i = 0; i < n; i++) v[i] = x[at + i] + bias[j + i];
            else
                memcpy(v, x + at, (size_t)n * sizeof(T));
            FN(activate)(act, n, v);
            if (up)
                for (int64_t i = 0; i < n; i++) y[at + i] = v[i] * up[at + i];
            else
                memcpy(y + at, v, (size_t)n * sizeof(T));
        }
}

void FN(splk_bias_act)(const splk_cpu *c, spl_activation act, int64_t rows, int64_t cols, T *x, int64_t ld,
                       const T *bias) {
    if (bias || act != SPL_ACT_NONE) FN(act_rows)(c, act, rows, cols, x, bias, NULL, x, ld);
}

/* Up to PIECE elements, `at` in the array, `col` in the row, with their random words (NULL: all are kept). */
static void FN(residual_piece)(const spl_residual_args *a, int64_t at, int64_t col, int64_t n,
                               const uint32_t *words) {
    const T *x = (const T *)a->x + at, *bias = a->bias, *residual = a->residual;
    uint8_t *mask = a->mask ? (uint8_t *)a->mask + at : NULL;
    T *y = (T *)a->y + at, v[PIECE];
    if (bias)
        for (int64_t i = 0; i < n; i++) v[i] = x[i] + bias[col + i];
    else
        memcpy(v, x, (size_t)n * sizeof(T));
    if (words) {
        uint32_t least = splk_keep_threshold(a->p);
        T scale = (T)(1 / (1 - a->p));
        for (int64_t i = 0; i < n; i++) v[i] *= words[i] >> 8 >= least ? scale : 0; /* times 0: a NaN is not lost */
        if (mask)
            for (int64_t i = 0; i < n; i++) mask[i] = words[i] >> 8 >= least;
    } else if (mask) {
        memset(mask, 1, (size_t)n);
    }
    if (residual)
        for (int64_t i = 0; i < n; i++) y[i] = residual[at + i] + v[i];
    else
        memcpy(y, v, (size_t)n * sizeof(T));
}

static void FN(residual_row)(const spl_residual_args *a, int64_t row) {
    uint32_t words[PIECE];
    int64_t at = row * a->cols;
    if (a->p == 0) {
        for (int64_t j = 0; j < a->cols; j += PIECE)
            FN(residual_piece)(a, at + j, j, a->cols - j < PIECE ? a->cols - j : PIECE, NULL);
        return;
    }
    const spl_index_map *m = a->map;
    int last = m->ndim - 1;
    int64_t base = splk_map_row(m, row), col = 0;
    for (int s = 0; s < m->nsegments[last]; s++) {
        const spl_segment *g = &m->segments[last][s];
        for (int64_t j = 0; j < g->length; j += PIECE) {
            int64_t n = g->length - j < PIECE ? g->length - j : PIECE;
            splk_random_words(a->key, base + g->start + j * g->stride, g->stride, n, words);
            FN(residual_piece)(a, at + col, col, n, words);
            col += n;
        }
    }
}

#undef FN
