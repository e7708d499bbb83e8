/* cuda_gemm.c: matrix products by cuBLASLt, with bias and GELU in its epilogue.
 *
 * Ours are row-major, its are column-major: C = A.B there is the transposed product of the swapped operands here, and
 * its bias along a column is ours along a row. What its epilogue does not know (SiLU, erf-GELU) follows as a pass over
 * a result in f32, so that halves are rounded once. Descriptors and algorithms are found once per shape and kept. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 256 };
static const uint64_t MOST_WORKSPACE = 32 << 20;

static spl_status blas_error(cublasStatus_t s, const char *call) {
    return spli_error_native(s == CUBLAS_STATUS_ALLOC_FAILED ? SPL_ENOMEM : SPL_EINTERNAL, (long)s,
                             "cuBLASLt failed in %s with status %d", call, (int)s);
}

static cudaDataType_t type_of(spl_dtype t) {
    return t == SPL_F64 ? CUDA_R_64F : t == SPL_BF16 ? CUDA_R_16BF : t == SPL_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static uint32_t alignment(const void *p, int64_t ld, spl_dtype t) { /* of every column there, in bytes, up to 256 */
    uintptr_t all = (uintptr_t)p | (uintptr_t)ld * spl_dtype_size(t) | 256;
    return (uint32_t)(all & -all);
}

static void plan_free(splk_plan *p) {
    if (p->desc) (void)cublasLtMatmulDescDestroy(p->desc);
    if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) (void)cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

void splk_cuda_forget_plans(splk_cuda *c) {
    while (c->plans) {
        splk_plan *p = c->plans;
        c->plans = p->next;
        plan_free(p);
    }
    c->nplans = 0;
}

#define BLAS(call)                                                                                                   \
    do {                                                                                                             \
        cublasStatus_t blas_ = (call);                                                                               \
        if (blas_ != CUBLAS_STATUS_SUCCESS) return blas_error(blas_, #call);                                         \
    } while (0)
#define SET(what, value)                                                                                             \
    BLAS(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_##what, &(value), sizeof(value)))

/* Asks cuBLASLt for an algorithm. That there is none is no error. */
static spl_status find_algorithm(splk_cuda *c, splk_plan *p, const uint32_t align[3]) {
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    BLAS(cublasLtMatmulPreferenceCreate(&wish));
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &MOST_WORKSPACE, sizeof MOST_WORKSPACE);
    const cublasLtMatmulPreferenceAttributes_t which[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(wish, which[i], &align[i < 3 ? i : 2], sizeof align[0]);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(c->blas, p->desc, p->a, p->b, p->c, p->c, wish, 1, &found, &n);
    (void)cublasLtMatmulPreferenceDestroy(wish);
    p->works = s == CUBLAS_STATUS_SUCCESS && n > 0;
    if (p->works) {
        p->algo = found.algo;
        p->workspace = found.workspaceSize;
    }
    if (s == CUBLAS_STATUS_SUCCESS || s == CUBLAS_STATUS_NOT_SUPPORTED) return spli_ok();
    return blas_error(s, "cublasLtMatmulAlgoGetHeuristic");
}

static spl_status plan_fill(splk_cuda *c, splk_plan *p, const spl_gemm_args *g, spl_dtype out, int32_t epilogue,
                            const uint32_t align[3]) {
    const int32_t ta = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int wide = g->dtype == SPL_F64;
    const uint64_t m = (uint64_t)g->n, n = (uint64_t)g->m, k = (uint64_t)g->k; /* as cuBLASLt sees them */
    BLAS(cublasLtMatmulDescCreate(&p->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                  wide ? CUDA_R_64F : CUDA_R_32F));
    SET(TRANSA, ta);
    SET(TRANSB, tb);
    SET(EPILOGUE, epilogue);
    if (epilogue & CUBLASLT_EPILOGUE_BIAS) SET(BIAS_POINTER, g->bias);
    BLAS(cublasLtMatrixLayoutCreate(&p->a, type_of(g->dtype), g->trans_b ? k : m, g->trans_b ? m : k, g->ldb));
    BLAS(cublasLtMatrixLayoutCreate(&p->b, type_of(g->dtype), g->trans_a ? n : k, g->trans_a ? k : n, g->lda));
    BLAS(cublasLtMatrixLayoutCreate(&p->c, type_of(out), m, n, g->ldc));
    return find_algorithm(c, p, align);
}

static spl_status plan_of(splk_cuda *c, const spl_gemm_args *g, spl_dtype out, int32_t epilogue, splk_plan **found) {
    const uint32_t align[3] = {alignment(g->b, g->ldb, g->dtype), alignment(g->a, g->lda, g->dtype),
                               alignment(g->c, g->ldc, out)};
    const int64_t key[16] = {g->dtype, out,    epilogue,   g->m,       g->n,     g->k,     g->lda,
                             g->ldb,   g->ldc, g->trans_a, g->trans_b, align[0], align[1], align[2]};
    for (splk_plan *p = c->plans; p; p = p->next)
        if (memcmp(p->key, key, sizeof key) == 0) {
            *found = p;
            return spli_ok();
        }
    if (c->nplans >= MOST_PLANS) splk_cuda_forget_plans(c);
    splk_plan *p = calloc(1, sizeof *p);
    if (!p) return spli_error(SPL_ENOMEM, "no memory for the plan of a matrix product");
    memcpy(p->key, key, sizeof key);
    spl_status status = plan_fill(c, p, g, out, epilogue, align);
    if (status.code != SPL_OK) {
        plan_free(p);
        return status;
    }
    p->next = c->plans;
    c->plans = p;
    c->nplans++;
    *found = p;
    return spli_ok();
}

/* The workspace grows to what the algorithms met so far want. Work that uses the old one is before what follows. */
static spl_status grow_workspace(splk_cuda *c, size_t bytes) {
    if (bytes <= c->workspace_bytes) return spli_ok();
    splk_cuda_scratch_give(c, c->workspace, c->workspace_bytes);
    c->workspace = NULL;
    c->workspace_bytes = 0;
    SPL_TRY(splk_cuda_scratch_take(c, bytes, &c->workspace));
    c->workspace_bytes = bytes;
    return spli_ok();
}

static spl_status multiply(splk_cuda *c, spl_queue *q, const spl_gemm_args *g, splk_plan *p) {
    const float alpha32 = (float)g->alpha, beta32 = (float)g->beta;
    const int wide = g->dtype == SPL_F64;
    SPL_TRY(grow_workspace(c, p->workspace));
    if (g->bias) SET(BIAS_POINTER, g->bias);
    BLAS(cublasLtMatmul(c->blas, p->desc, wide ? (const void *)&g->alpha : &alpha32, g->b, p->a, g->a, p->b,
                        wide ? (const void *)&g->beta : &beta32, g->c, p->c, g->c, p->c, &p->algo,
                        p->workspace ? c->workspace : NULL, p->workspace, q->stream));
    return spli_ok();
}

/* Product, then a pass for an activation that the epilogue does not know. */
static spl_status multiply_then(splk_cuda *c, spl_queue *q, const spl_gemm_args *a) {
    spl_gemm_args g = *a;
    const int half = splk_cuda_is_half(a->dtype);
    const size_t bytes = half ? (size_t)(a->m * a->n) * sizeof(float) : 0;
    void *sums = NULL;
    splk_plan *plan;
    g.bias = NULL;
    if (half) { /* beta is 0 here: the sums are not the C that was given */
        SPL_TRY(splk_cuda_scratch_take(c, bytes, &sums));
        g.c = sums;
        g.ldc = a->n;
    }
    spl_status status = plan_of(c, &g, half ? SPL_F32 : a->dtype, CUBLASLT_EPILOGUE_DEFAULT, &plan);
    if (status.code == SPL_OK && plan->works) {
        status = multiply(c, q, &g, plan);
        if (status.code == SPL_OK) {
            cudaError_t e = splk_launch_epilogue(q->stream, a, g.c, g.ldc);
            if (e != cudaSuccess) status = splk_cuda_error(e, "the epilogue of a product");
        }
    } else if (status.code == SPL_OK) {
        cudaError_t e = splk_launch_gemm(q->stream, a);
        if (e != cudaSuccess) status = splk_cuda_error(e, "a plain product");
    }
    splk_cuda_scratch_give(c, sums, bytes);
    return status;
}

spl_status splk_cuda_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a) {
    splk_cuda *c = ctx;
    spl_gemm_args g = *a;
    int64_t area, ld[3];
    SPL_TRY(splk_cuda_need_float("gemm", a->dtype));
    SPL_TRY(splk_cuda_area("gemm", a->m, a->n, &area));
    SPL_TRY(splk_cuda_area("gemm", a->m, a->k, &area));
    SPL_TRY(splk_cuda_area("gemm", a->k, a->n, &area));
    SPL_TRY(spli_gemm_leading(a, INT32_MAX, "cuBLASLt", ld));
    g.lda = ld[0], g.ldb = ld[1], g.ldc = ld[2];
    if (a->m == 0 || a->n == 0) return spli_ok();
    const int plain = a->act == SPL_ACT_NONE && !a->bias; /* in f64 the epilogue knows nothing else */
    const int fused = plain || (a->dtype != SPL_F64 && (a->act == SPL_ACT_NONE || a->act == SPL_ACT_GELU_TANH));
    if (a->k > 0 && !fused && a->beta == 0) return multiply_then(c, q, &g);
    if (a->k > 0 && fused) {
        const int32_t epilogue = a->act == SPL_ACT_GELU_TANH
                                     ? (a->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU)
                                     : (a->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
        splk_plan *plan;
        SPL_TRY(plan_of(c, &g, a->dtype, epilogue, &plan));
        if (plan->works) return multiply(c, q, &g, plan);
    }
    SPLK_TRY(splk_launch_gemm(q->stream, &g)); /* no product at all, or none that cuBLASLt does */
    return spli_ok();
}
