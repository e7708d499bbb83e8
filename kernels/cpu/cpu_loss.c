/* cpu_loss.c: the negative log-likelihood of labels under rows of logits, summed in double. */
#include "cpu.h"
#include "cpu_half.h"

static double nll_f32(const float *x, int64_t n, int64_t label) {
    enum { PIECE = 1024 };
    float top = splk_largest_f32(x, n);
    double sum = 0;
    for (int64_t j = 0; j < n; j += PIECE) {
        float e[PIECE];
        int64_t len = n - j < PIECE ? n - j : PIECE;
        for (int64_t i = 0; i < len; i++) e[i] = splk_exp_f32(x[j + i] - top);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < len; i++) sum += (double)e[i];
    }
    return log(sum) + ((double)top - (double)x[label]);
}

static double nll_f64(const double *x, int64_t n, int64_t label) {
    double top = splk_largest_f64(x, n), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return log(sum) + (top - x[label]);
}

spl_status splk_cpu_nll(void *ctx, spl_queue *q, const spl_nll_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_nll(ctx, q, a);
    (void)q;
    int64_t area;
    SPL_TRY(splk_need_float("nll", a->dtype));
    SPL_TRY(splk_area("nll", a->rows, a->vocab, &area));
    for (int64_t r = 0; r < a->rows; r++)
        if (a->labels[r] >= a->vocab)
            return spli_error(SPL_EARG, "nll: label %lld in row %lld, the logits have %lld columns",
                              (long long)a->labels[r], (long long)r, (long long)a->vocab);
    int team = splk_team(ctx, a->rows, area);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
        double *nll = (double *)a->nll + r;
        if (a->labels[r] < 0)
            *nll = 0;
        else if (a->dtype == SPL_F64)
            *nll = nll_f64((const double *)a->logits + r * a->vocab, a->vocab, a->labels[r]);
        else
            *nll = nll_f32((const float *)a->logits + r * a->vocab, a->vocab, a->labels[r]);
    }
    return spli_ok();
}
