/* cuda_pointwise.cu: activations with bias and gate; bias + dropout + residual in one pass; what a GEMM does after
 * itself. */
#include "gpu.h"
#include "activation.h"

template <class T> SPLK_KERNEL act_kernel(spl_act_args a) {
    typedef splk_wide<T> W;
    const int64_t n = a.rows * a.cols;
    for (int64_t i = splk_first(); i < n; i += splk_stride()) {
        W x = splk_load(((const T *)a.x)[i]);
        if (a.bias) x += splk_load(((const T *)a.bias)[i % a.cols]);
        W y = splk_activate(a.act, x);
        if (a.up) y *= splk_load(((const T *)a.up)[i]);
        ((T *)a.y)[i] = splk_round<T>(y);
    }
}

template <class T> static cudaError_t act(cudaStream_t s, const spl_act_args *a) {
    SPLK_LAUNCH(act_kernel<T>, splk_blocks(a->rows * a->cols, SPLK_BLOCK), SPLK_BLOCK, 0, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_act(cudaStream_t s, const spl_act_args *a) {
    switch (a->dtype) {
    case SPL_F64: return act<double>(s, a);
    case SPL_BF16: return act<__nv_bfloat16>(s, a);
    case SPL_F16: return act<__half>(s, a);
    default: return act<float>(s, a);
    }
}

/* ---- y = residual + dropout(x + bias) ---- */

template <class T, class R, class Y> SPLK_KERNEL residual_kernel(spl_residual_args a, splk_map m, uint32_t keep_from) {
    typedef splk_wide<T> W;
    enum { EACH = 4 }; /* neighbours that a thread does: they share a block of random words */
    const int64_t runs = (a.cols + SPLK_RUN - 1) / SPLK_RUN;
    const W scale = (W)(1 / (1 - a.p));
    splk_words words = splk_words_of(a.key);
    for (int64_t item = blockIdx.x; item < a.rows * runs; item += gridDim.x) {
        const int64_t row = item / runs, from = item % runs * SPLK_RUN;
        const int64_t base = a.p > 0 ? splk_row_base(&m, row) : 0, at = row * a.cols;
        for (int64_t c0 = from + EACH * threadIdx.x; c0 < a.cols && c0 < from + SPLK_RUN; c0 += EACH * blockDim.x)
            for (int64_t c = c0; c < c0 + EACH && c < a.cols; c++) {
                int keep = 1;
                if (a.p > 0) {
                    const int last = m.ndim - 1;
                    const int64_t g = base + splk_held(m.segments + m.first[last], m.count[last], c);
                    keep = (splk_word(&words, (uint64_t)g) >> 8) >= keep_from;
                }
                W x = splk_load(((const T *)a.x)[at + c]);
                if (a.bias) x += splk_load(((const T *)a.bias)[c]);
                if (a.p > 0) x *= keep ? scale : (W)0; /* a NaN stays one */
                if (a.residual) x += (W)splk_load(((const R *)a.residual)[at + c]);
                if (a.mask) ((uint8_t *)a.mask)[at + c] = (uint8_t)keep;
                ((Y *)a.y)[at + c] = splk_round<Y>(x);
            }
    }
}

template <class T, class R, class Y>
static cudaError_t residual(cudaStream_t s, const spl_residual_args *a, const splk_map *m) {
    const int64_t items = a->rows * ((a->cols + SPLK_RUN - 1) / SPLK_RUN);
    const uint32_t keep_from = (uint32_t)ceil(a->p * 0x1p24);
    SPLK_LAUNCH((residual_kernel<T, R, Y>), splk_blocks(items, 1), SPLK_BLOCK, 0, s, *a, *m, keep_from);
    return cudaGetLastError();
}

template <class T> static cudaError_t residual_half(cudaStream_t s, const spl_residual_args *a, const splk_map *m) {
    if (a->residual_dtype == SPL_F32)
        return a->y_dtype == SPL_F32 ? residual<T, float, float>(s, a, m) : residual<T, float, T>(s, a, m);
    return a->y_dtype == SPL_F32 ? residual<T, T, float>(s, a, m) : residual<T, T, T>(s, a, m);
}

cudaError_t splk_launch_residual(cudaStream_t s, const spl_residual_args *a, const splk_map *m) {
    switch (a->dtype) {
    case SPL_F64: return residual<double, double, double>(s, a, m);
    case SPL_BF16: return residual_half<__nv_bfloat16>(s, a, m);
    case SPL_F16: return residual_half<__half>(s, a, m);
    default: return residual<float, float, float>(s, a, m);
    }
}

/* ---- c = act(from + bias) ---- */

template <class T> SPLK_KERNEL epilogue_kernel(spl_gemm_args a, const splk_wide<T> *from, int64_t ld_from) {
    for (int64_t i = splk_first(); i < a.m * a.n; i += splk_stride()) {
        const int64_t row = i / a.n, col = i % a.n;
        splk_wide<T> x = from[row * ld_from + col];
        if (a.bias) x += splk_load(((const T *)a.bias)[col]);
        ((T *)a.c)[row * a.ldc + col] = splk_round<T>(splk_activate(a.act, x));
    }
}

template <class T>
static cudaError_t epilogue(cudaStream_t s, const spl_gemm_args *a, const void *from, int64_t ld_from) {
    SPLK_LAUNCH(epilogue_kernel<T>, splk_blocks(a->m * a->n, SPLK_BLOCK), SPLK_BLOCK, 0, s, *a,
                (const splk_wide<T> *)from, ld_from);
    return cudaGetLastError();
}

cudaError_t splk_launch_epilogue(cudaStream_t s, const spl_gemm_args *a, const void *from, int64_t ld_from) {
    switch (a->dtype) {
    case SPL_F64: return epilogue<double>(s, a, from, ld_from);
    case SPL_BF16: return epilogue<__nv_bfloat16>(s, a, from, ld_from);
    case SPL_F16: return epilogue<__half>(s, a, from, ld_from);
    default: return epilogue<float>(s, a, from, ld_from);
    }
}

/* ---- the plain product ---- */

template <class T> SPLK_KERNEL gemm_kernel(spl_gemm_args a) {
    typedef splk_wide<T> W;
    const T *x = (const T *)a.a, *w = (const T *)a.b;
    for (int64_t i = splk_first(); i < a.m * a.n; i += splk_stride()) {
        const int64_t row = i / a.n, col = i % a.n;
        W sum = 0;
        for (int64_t l = 0; l < a.k; l++)
            sum += splk_load(x[a.trans_a ? l * a.lda + row : row * a.lda + l]) *
                   splk_load(w[a.trans_b ? col * a.ldb + l : l * a.ldb + col]);
        sum *= (W)a.alpha;
        if (a.beta != 0) sum += (W)a.beta * splk_load(((const T *)a.c)[row * a.ldc + col]);
        if (a.bias) sum += splk_load(((const T *)a.bias)[col]);
        ((T *)a.c)[row * a.ldc + col] = splk_round<T>(splk_activate(a.act, sum));
    }
}

template <class T> static cudaError_t gemm(cudaStream_t s, const spl_gemm_args *a) {
    SPLK_LAUNCH(gemm_kernel<T>, splk_blocks(a->m * a->n, SPLK_BLOCK), SPLK_BLOCK, 0, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_gemm(cudaStream_t s, const spl_gemm_args *a) {
    switch (a->dtype) {
    case SPL_F64: return gemm<double>(s, a);
    case SPL_BF16: return gemm<__nv_bfloat16>(s, a);
    case SPL_F16: return gemm<__half>(s, a);
    default: return gemm<float>(s, a);
    }
}
