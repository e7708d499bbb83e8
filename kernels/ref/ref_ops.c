/* ref_ops.c: the kernels of a transformer as their formulas read, each element computed in double. */
#include "ref.h"

/* bias[i], or 0 where there is none */
static double or_zero(const void *p, spl_dtype t, int64_t i) { return p ? splk_ref_get(p, t, i) : 0; }

double splk_ref_activation(spl_activation act, double x) {
    switch (act) {
    case SPL_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case SPL_ACT_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case SPL_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

spl_status splk_ref_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a) {
    (void)ctx, (void)q;
#pragma omp parallel for
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            double sum = 0, c = a->beta == 0 ? 0 : a->beta * splk_ref_get(a->c, a->dtype, i * a->ldc + j);
            for (int64_t l = 0; l < a->k; l++)
                sum += splk_ref_get(a->a, a->dtype, a->trans_a ? l * a->lda + i : i * a->lda + l) *
                       splk_ref_get(a->b, a->dtype, a->trans_b ? j * a->ldb + l : l * a->ldb + j);
            c = splk_ref_activation(a->act, a->alpha * sum + c + or_zero(a->bias, a->dtype, j));
            splk_ref_put(a->c, a->dtype, i * a->ldc + j, c);
        }
    return spli_ok();
}

spl_status splk_ref_norm(void *ctx, spl_queue *q, const spl_norm_args *a) {
    (void)ctx, (void)q;
    spl_dtype x_dtype = splk_ref_mixed(a->dtype, a->x_dtype);
    for (int64_t r = 0; r < a->rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < a->cols && a->kind == SPL_NORM_LAYER; i++)
            mean += splk_ref_get(a->x, x_dtype, r * a->cols + i) / (double)a->cols;
        for (int64_t i = 0; i < a->cols; i++)
            variance += pow(splk_ref_get(a->x, x_dtype, r * a->cols + i) - mean, 2) / (double)a->cols;
        double rstd = 1 / sqrt(variance + a->eps);
        if (a->mean) splk_ref_put(a->mean, a->dtype == SPL_F64 ? SPL_F64 : SPL_F32, r, mean);
        if (a->rstd) splk_ref_put(a->rstd, a->dtype == SPL_F64 ? SPL_F64 : SPL_F32, r, rstd);
        for (int64_t i = 0; i < a->cols; i++) {
            double x = splk_ref_get(a->x, x_dtype, r * a->cols + i),
                   gamma = a->gamma ? splk_ref_get(a->gamma, a->dtype, i) : 1;
            splk_ref_put(a->y, a->dtype, r * a->cols + i, (x - mean) * rstd * gamma + or_zero(a->beta, a->dtype, i));
        }
    }
    return spli_ok();
}

spl_status splk_ref_act(void *ctx, spl_queue *q, const spl_act_args *a) {
    (void)ctx, (void)q;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        double x = splk_ref_get(a->x, a->dtype, i) + or_zero(a->bias, a->dtype, i % a->cols);
        splk_ref_put(a->y, a->dtype, i,
                     splk_ref_activation(a->act, x) * (a->up ? splk_ref_get(a->up, a->dtype, i) : 1));
    }
    return spli_ok();
}

spl_status splk_ref_residual(void *ctx, spl_queue *q, const spl_residual_args *a) {
    (void)ctx, (void)q;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        int keep = a->p == 0 || splk_ref_uniform(a->key, splk_ref_global(a->map, i)) >= a->p;
        double x = splk_ref_get(a->x, a->dtype, i) + or_zero(a->bias, a->dtype, i % a->cols);
        if (a->mask) splk_ref_put(a->mask, SPL_BOOL, i, keep);
        splk_ref_put(a->y, splk_ref_mixed(a->dtype, a->y_dtype), i,
                     or_zero(a->residual, splk_ref_mixed(a->dtype, a->residual_dtype), i) + x * keep / (1 - a->p));
    }
    return spli_ok();
}

spl_status splk_ref_rope(void *ctx, spl_queue *q, const spl_rope_args *a) {
    (void)ctx, (void)q;
    int64_t t = 0, pairs = a->head_dim / 2;
    for (int s = 0; s < a->npositions; s++)
        for (int64_t i = 0; i < a->positions[s].length; i++, t++)
            for (int64_t b = 0; b < a->batch; b++)
                for (int64_t h = 0; h < a->heads; h++) {
                    int64_t x = b * a->x_strides[0] + t * a->x_strides[1] + h * a->x_strides[2];
                    int64_t y = b * a->y_strides[0] + t * a->y_strides[1] + h * a->y_strides[2];
                    double position = (double)(a->positions[s].start + i * a->positions[s].stride);
                    for (int64_t j = 0; j < pairs; j++) {
                        double angle = position * pow(a->theta, -2 * (double)j / (double)a->head_dim);
                        int64_t first = a->half ? j : 2 * j, second = a->half ? j + pairs : 2 * j + 1;
                        double u = splk_ref_get(a->x, a->dtype, x + first * a->x_strides[3]);
                        double v = splk_ref_get(a->x, a->dtype, x + second * a->x_strides[3]);
                        splk_ref_put(a->y, a->dtype, y + first * a->y_strides[3], u * cos(angle) - v * sin(angle));
                        splk_ref_put(a->y, a->dtype, y + second * a->y_strides[3], v * cos(angle) + u * sin(angle));
                    }
                    if (a->head_dim % 2 == 1) /* the last element has no partner and is not turned */
                        splk_ref_put(a->y, a->dtype, y + (a->head_dim - 1) * a->y_strides[3],
                                     splk_ref_get(a->x, a->dtype, x + (a->head_dim - 1) * a->x_strides[3]));
                }
    return spli_ok();
}

spl_status splk_ref_embed(void *ctx, spl_queue *q, const spl_embed_args *a) {
    (void)ctx, (void)q;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t i = 0; i < a->hidden; i++) {
            int64_t at = a->ids[r] - a->first;
            double v = at >= 0 && at < a->vocab_local ? splk_ref_get(a->table, a->dtype, at * a->hidden + i) : 0;
            splk_ref_put(a->out, a->dtype, r * a->hidden + i, v);
        }
    return spli_ok();
}

spl_status splk_ref_nll(void *ctx, spl_queue *q, const spl_nll_args *a) {
    (void)ctx, (void)q;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t label = a->labels[r];
        double top = -INFINITY, sum = 0;
        ((double *)a->nll)[r] = 0;
        if (label < 0) continue;
        if (label >= a->vocab)
            return spli_error(SPL_EARG, "nll: label %lld in row %lld, the logits have %lld columns", (long long)label,
                              (long long)r, (long long)a->vocab);
        for (int64_t i = 0; i < a->vocab; i++) top = fmax(top, splk_ref_get(a->logits, a->dtype, r * a->vocab + i));
        for (int64_t i = 0; i < a->vocab; i++) sum += exp(splk_ref_get(a->logits, a->dtype, r * a->vocab + i) - top);
        ((double *)a->nll)[r] = top + log(sum) - splk_ref_get(a->logits, a->dtype, r * a->vocab + label);
    }
    return spli_ok();
}
