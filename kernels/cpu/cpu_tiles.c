/* cpu_tiles.c: the products of attention tiles. Inside a parallel region the BLAS runs on the calling thread alone,
 * picks its instructions at run time, and takes strided operands as they are. */
#include "cpu.h"
#include <cblas.h>

static void abt_f32(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
                    int64_t ldb, float *c, int64_t ldc) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, 0,
                c, (int)ldc);
}

static void ab_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                   float *c, int64_t ldc) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, 1, c,
                (int)ldc);
}

static void abt_f64(int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda, const double *b,
                    int64_t ldb, double *c, int64_t ldc) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, 0,
                c, (int)ldc);
}

static void ab_f64(int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b, int64_t ldb,
                   double *c, int64_t ldc) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, 1, c,
                (int)ldc);
}

const splk_tiles_f32 splk_tiles_f32_blas = {abt_f32, ab_f32};
const splk_tiles_f64 splk_tiles_f64_blas = {abt_f64, ab_f64};
