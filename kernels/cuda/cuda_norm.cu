/* cuda_norm.cu: LayerNorm and RMSNorm, a block a row. Two passes over a row that stays in cache: the mean first, then
 * the deviations from it, both summed in double, so that a large mean or a long row costs no accuracy. */
#include "gpu.h"

template <class T, class X> SPLK_KERNEL norm_kernel(spl_norm_args a) {
    typedef splk_wide<T> W; /* of the statistics, and of the arithmetic that is stored */
    SPLK_SHARED(shared);
    double *room = (double *)(void *)shared;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const X *x = (const X *)a.x + row * a.cols;
        double sum = 0, squares = 0, mean = 0;
        if (a.kind == SPL_NORM_LAYER) {
            for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) sum += (double)splk_load(x[c]);
            mean = splk_over_block<splk_plus>(sum, room);
            if (a.cols > 0) mean /= (double)a.cols;
        }
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            const double d = (double)splk_load(x[c]) - mean;
            squares += d * d;
        }
        squares = splk_over_block<splk_plus>(squares, room);
        const double rstd = 1 / sqrt((a.cols > 0 ? squares / (double)a.cols : 0) + a.eps);
        if (threadIdx.x == 0) {
            if (a.mean) ((W *)a.mean)[row] = (W)mean;
            if (a.rstd) ((W *)a.rstd)[row] = (W)rstd;
        }
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            double y = ((double)splk_load(x[c]) - mean) * rstd;
            if (a.gamma) y *= (double)splk_load(((const T *)a.gamma)[c]);
            if (a.beta) y += (double)splk_load(((const T *)a.beta)[c]);
            ((T *)a.y)[row * a.cols + c] = splk_round<T>((W)y);
        }
        __syncthreads(); /* y may be x: the next row's readers come after */
    }
}

template <class T, class X> static cudaError_t norm(cudaStream_t s, const spl_norm_args *a) {
    SPLK_LAUNCH((norm_kernel<T, X>), splk_blocks(a->rows, 1), SPLK_BLOCK, SPLK_ROOM, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_norm(cudaStream_t s, const spl_norm_args *a) {
    const int wide = a->x_dtype == SPL_F32;
    switch (a->dtype) {
    case SPL_F64: return norm<double, double>(s, a);
    case SPL_BF16: return wide ? norm<__nv_bfloat16, float>(s, a) : norm<__nv_bfloat16, __nv_bfloat16>(s, a);
    case SPL_F16: return wide ? norm<__half, float>(s, a) : norm<__half, __half>(s, a);
    default: return norm<float, float>(s, a);
    }
}
