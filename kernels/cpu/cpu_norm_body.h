/* cpu_norm_body.h: one row of cpu_norm.c in element type T. */

static void SPLK_PASTE(norm_row, S)(const spl_norm_args *a, int64_t row) {
    int64_t n = a->cols;
    const T *x = (const T *)a->x + row * n, *gamma = a->gamma, *beta = a->beta;
    T *y = (T *)a->y + row * n;
    double sum = 0, squares = 0, mean = 0, count = n > 0 ? (double)n : 1;
    if (a->kind == SPL_NORM_LAYER) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (double)x[i];
        mean = sum / count;
    }
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double rstd = 1 / sqrt(squares / count + a->eps);
    if (a->mean) ((T *)a->mean)[row] = (T)mean;
    if (a->rstd) ((T *)a->rstd)[row] = (T)rstd;
    if (gamma && beta)
        for (int64_t i = 0; i < n; i++) y[i] = (T)(((double)x[i] - mean) * rstd * (double)gamma[i] + (double)beta[i]);
    else if (gamma)
        for (int64_t i = 0; i < n; i++) y[i] = (T)(((double)x[i] - mean) * rstd * (double)gamma[i]);
    else
        for (int64_t i = 0; i < n; i++) y[i] = (T)(((double)x[i] - mean) * rstd + (beta ? (double)beta[i] : 0));
}
