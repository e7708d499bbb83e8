/* blas.cpp: cublasLtMatmul by CBLAS: column-major, 16-bit types multiplied in f32 and rounded once after the epilogue.
 * Sizes, leading dimensions, pointers and the workspace are checked; C is read only where beta is not 0. */
#include "emu.h"
#include <cblas.h>
#include <cmath>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector>

using namespace emu;

struct cublasLtContext { int unused; };
struct cublasLtDesc {
    cublasComputeType_t compute;
    int32_t trans_a, trans_b, epilogue;
    const void *bias;
};
struct cublasLtLayout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct cublasLtPreference { uint64_t workspace; };

static size_t size_of(cudaDataType_t t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }

static double load(const void *p, cudaDataType_t t, size_t i) {
    switch (t) {
    case CUDA_R_64F: return ((const double *)p)[i];
    case CUDA_R_32F: return ((const float *)p)[i];
    case CUDA_R_16BF: return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    default: return __half2float(((const __half *)p)[i]);
    }
}

static void store(void *p, cudaDataType_t t, size_t i, double v) {
    switch (t) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_32F: ((float *)p)[i] = (float)v; break;
    case CUDA_R_16BF: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)v); break;
    default: ((__half *)p)[i] = __float2half_rn((float)v); break;
    }
}

static size_t span(const cublasLtLayout &l) {
    return ((size_t)(l.cols - 1) * (size_t)l.ld + (size_t)l.rows) * size_of(l.type);
}

/* A dense column-major copy in F. */
template <class F> static std::vector<F> dense(const void *p, const cublasLtLayout &l) {
    std::vector<F> out((size_t)(l.rows * l.cols));
    for (uint64_t c = 0; c < l.cols; c++)
        for (uint64_t r = 0; r < l.rows; r++) out[c * l.rows + r] = (F)load(p, l.type, c * (uint64_t)l.ld + r);
    return out;
}

static void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha, const double *a,
                     int lda, const double *b, int ldb, double *c) {
    cblas_dgemm(CblasColMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, 0, c, m);
}
static void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, float alpha, const float *a, int lda,
                     const float *b, int ldb, float *c) {
    cblas_sgemm(CblasColMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, 0, c, m);
}

template <class F>
static void matmul(const cublasLtDesc &d, F alpha, const void *a, const cublasLtLayout &la, const void *b,
                   const cublasLtLayout &lb, F beta, void *out, const cublasLtLayout &lout) {
    const int m = (int)lout.rows, n = (int)lout.cols, k = (int)(d.trans_a ? la.rows : la.cols);
    std::vector<F> x = dense<F>(a, la), y = dense<F>(b, lb), sum((size_t)m * (size_t)n);
    multiply(d.trans_a ? CblasTrans : CblasNoTrans, d.trans_b ? CblasTrans : CblasNoTrans, m, n, k, alpha, x.data(),
             (int)la.rows, y.data(), (int)lb.rows, sum.data());
    for (int c = 0; c < n; c++)
        for (int r = 0; r < m; r++) {
            F v = sum[(size_t)c * (size_t)m + (size_t)r];
            const size_t at = (size_t)c * (size_t)lout.ld + (size_t)r;
            if (beta != 0) v += beta * (F)load(out, lout.type, at);
            if (d.epilogue & CUBLASLT_EPILOGUE_BIAS) v += (F)load(d.bias, lout.type, (size_t)r);
            if (d.epilogue & CUBLASLT_EPILOGUE_GELU)
                v = v / (1 + std::exp(-(F)1.5957691216057308 * (v + (F)0.044715 * v * v * v)));
            store(out, lout.type, at, (double)v);
        }
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) { return *h = new cublasLtContext(), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return delete h, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t) {
    *d = new cublasLtDesc{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t n) {
    if (n != (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA: memcpy(&d->trans_a, value, n); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: memcpy(&d->trans_b, value, n); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: memcpy(&d->epilogue, value, n); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: memcpy(&d->bias, value, n); break;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return delete d, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    *l = new cublasLtLayout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return delete l, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new cublasLtPreference{0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *value,
                                                    size_t n) {
    if (n != (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(&p->workspace, value, 8);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return delete p, CUBLAS_STATUS_SUCCESS; }

static int fits(const cublasLtDesc &d, const cublasLtLayout &a, const cublasLtLayout &b, const cublasLtLayout &out) {
    const uint64_t k = d.trans_a ? a.rows : a.cols;
    return out.rows > 0 && out.cols > 0 && k > 0 && a.ld >= (int64_t)a.rows && b.ld >= (int64_t)b.rows &&
           out.ld >= (int64_t)out.rows && (d.trans_a ? a.cols : a.rows) == out.rows &&
           (d.trans_b ? b.rows : b.cols) == out.cols && (d.trans_b ? b.cols : b.rows) == k;
}

/* Odd products have no algorithm, so that the way without one is walked too; the rest wants a little workspace. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t p, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    *found = 0;
    if (!fits(*d, *a, *b, *out)) return CUBLAS_STATUS_INVALID_VALUE;
    if (size_of(a->type) == 2 && a->ld % 4 == 3 && out->rows % 2 == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    results->workspaceSize = p->workspace < 1024 ? p->workspace : 1024;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *, void *workspace, size_t workspace_bytes, cudaStream_t s) {
    if (!fits(*d, *la, *lb, *lout)) return CUBLAS_STATUS_INVALID_VALUE;
    if (c != out) die("cublasLtMatmul: C and D are not one matrix");
    check_device(a, span(*la), "cublasLtMatmul: A");
    check_device(b, span(*lb), "cublasLtMatmul: B");
    check_device(out, span(*lout), "cublasLtMatmul: D");
    if (workspace_bytes) check_device(workspace, workspace_bytes, "cublasLtMatmul: workspace");
    if (d->epilogue & CUBLASLT_EPILOGUE_BIAS)
        check_device(d->bias, lout->rows * size_of(lout->type), "cublasLtMatmul: bias");
    const bool wide = d->compute == CUBLAS_COMPUTE_64F;
    const double al = wide ? *(const double *)alpha : (double)*(const float *)alpha; /* read at the call */
    const double be = wide ? *(const double *)beta : (double)*(const float *)beta;
    const cublasLtDesc desc = *d;
    const cublasLtLayout xa = *la, xb = *lb, xo = *lout;
    enqueue(s, "cublasLtMatmul", [=] {
        reads(a, span(xa));
        reads(b, span(xb));
        writes(out, span(xo));
        if (workspace_bytes) {
            writes(workspace, workspace_bytes);
            memset(workspace, 0x5a, workspace_bytes); /* nobody else's data may lie there */
        }
        if (wide) matmul<double>(desc, al, a, xa, b, xb, be, out, xo);
        else matmul<float>(desc, (float)al, a, xa, b, xb, (float)be, out, xo);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
}
