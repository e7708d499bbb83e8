/* cpu_gemm.c: matrix products through CBLAS, with bias and activation as a pass over the result. */
#include "cpu.h"
#include "cpu_half.h"
#include <cblas.h>
#include <limits.h>

static void scale_rows(const splk_cpu *c, const spl_gemm_args *a, int64_t ldc) {
    int team = splk_team(c, a->m, a->m * a->n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < a->m; i++) {
        double *d = (double *)a->c + i * ldc;
        float *f = (float *)a->c + i * ldc;
        for (int64_t j = 0; j < a->n; j++) {
            if (a->dtype == SPL_F64)
                d[j] = a->beta == 0 ? 0 : d[j] * a->beta;
            else
                f[j] = a->beta == 0 ? 0 : f[j] * (float)a->beta;
        }
    }
}

spl_status splk_cpu_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_gemm(ctx, q, a);
    (void)q;
    const splk_cpu *c = ctx;
    int64_t ld[3], area;
    SPL_TRY(splk_need_float("gemm", a->dtype));
    SPL_TRY(splk_area("gemm", a->m, a->n, &area));
    SPL_TRY(splk_area("gemm", a->m, a->k, &area));
    SPL_TRY(splk_area("gemm", a->k, a->n, &area));
    SPL_TRY(spli_gemm_leading(a, INT_MAX, "the BLAS", ld));
    const int lda = (int)ld[0], ldb = (int)ld[1], ldc = (int)ld[2];
    if (a->m == 0 || a->n == 0) return spli_ok();
    if (a->k == 0) {
        scale_rows(c, a, ldc);
    } else {
        enum CBLAS_TRANSPOSE ta = a->trans_a ? CblasTrans : CblasNoTrans, tb = a->trans_b ? CblasTrans : CblasNoTrans;
        splk_blas_threads(c);
        if (a->dtype == SPL_F64)
            cblas_dgemm(CblasRowMajor, ta, tb, (int)a->m, (int)a->n, (int)a->k, a->alpha, a->a, lda, a->b,
                        ldb, a->beta, a->c, ldc);
        else
            cblas_sgemm(CblasRowMajor, ta, tb, (int)a->m, (int)a->n, (int)a->k, (float)a->alpha, a->a, lda, a->b,
                        ldb, (float)a->beta, a->c, ldc);
    }
    if (a->dtype == SPL_F64)
        splk_bias_act_f64(c, a->act, a->m, a->n, a->c, ldc, a->bias);
    else
        splk_bias_act_f32(c, a->act, a->m, a->n, a->c, ldc, a->bias);
    return spli_ok();
}
