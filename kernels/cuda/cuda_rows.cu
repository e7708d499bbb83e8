/* cuda_rows.cu: rotary embedding, token embedding, the negative log-likelihood of tokens, and means of groups of rows:
 * a block a row. */
#include "gpu.h"

/* The last element of an odd head_dim has no partner and is not turned. */
template <class T> SPLK_KERNEL rope_kernel(spl_rope_args a) {
    const int64_t pairs = a.head_dim / 2;
    for (int64_t t = blockIdx.x; t < a.seq; t += gridDim.x) {
        const double position = (double)splk_held(a.positions, a.npositions, t);
        for (int64_t j = threadIdx.x; j < pairs + a.head_dim % 2; j += blockDim.x) {
            double s = 0, c = 1;
            if (j < pairs) sincos(position * pow(a.theta, -2 * (double)j / (double)a.head_dim), &s, &c);
            const int64_t first = j == pairs ? 2 * j : a.half ? j : 2 * j, second = a.half ? j + pairs : 2 * j + 1;
            for (int64_t i = 0; i < a.batch * a.heads; i++) {
                const int64_t b = i / a.heads, h = i % a.heads;
                const T *x = (const T *)a.x + b * a.x_strides[0] + t * a.x_strides[1] + h * a.x_strides[2];
                T *y = (T *)a.y + b * a.y_strides[0] + t * a.y_strides[1] + h * a.y_strides[2];
                if (j == pairs) {
                    y[first * a.y_strides[3]] = x[first * a.x_strides[3]];
                    continue;
                }
                const double u = (double)splk_load(x[first * a.x_strides[3]]);
                const double v = (double)splk_load(x[second * a.x_strides[3]]);
                y[first * a.y_strides[3]] = splk_round<T>((splk_wide<T>)(u * c - v * s));
                y[second * a.y_strides[3]] = splk_round<T>((splk_wide<T>)(v * c + u * s));
            }
        }
    }
}

template <class T> static cudaError_t rope(cudaStream_t s, const spl_rope_args *a) {
    SPLK_LAUNCH(rope_kernel<T>, splk_blocks(a->seq, 1), 64, 0, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_rope(cudaStream_t s, const spl_rope_args *a) {
    switch (a->dtype) {
    case SPL_F64: return rope<double>(s, a);
    case SPL_BF16: return rope<__nv_bfloat16>(s, a);
    case SPL_F16: return rope<__half>(s, a);
    default: return rope<float>(s, a);
    }
}

/* ---- embedding: rows are copied, so the type matters only by its size ---- */

template <class T> SPLK_KERNEL embed_kernel(spl_embed_args a) {
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t at = a.ids[row] - a.first;
        const int here = at >= 0 && at < a.vocab_local;
        for (int64_t c = threadIdx.x; c < a.hidden; c += blockDim.x)
            ((T *)a.out)[row * a.hidden + c] = here ? ((const T *)a.table)[at * a.hidden + c] : (T)0;
    }
}

template <class T> static cudaError_t embed(cudaStream_t s, const spl_embed_args *a) {
    SPLK_LAUNCH(embed_kernel<T>, splk_blocks(a->rows, 1), SPLK_BLOCK, 0, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_embed(cudaStream_t s, const spl_embed_args *a) {
    switch (a->dtype) {
    case SPL_F64: return embed<uint64_t>(s, a);
    case SPL_BF16:
    case SPL_F16: return embed<uint16_t>(s, a);
    default: return embed<uint32_t>(s, a);
    }
}

/* ---- loss ---- */

SPLK_DEV double splk_exp(float x) { return (double)expf(x); }
SPLK_DEV double splk_exp(double x) { return exp(x); }

template <class T> SPLK_KERNEL nll_kernel(spl_nll_args a) {
    SPLK_SHARED(shared);
    double *room = (double *)(void *)shared;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *x = (const T *)a.logits + row * a.vocab;
        const int64_t label = a.labels[row];
        double top = -INFINITY, sum = 0;
        for (int64_t c = threadIdx.x; c < a.vocab; c += blockDim.x) top = splk_greater(top, (double)splk_load(x[c]));
        top = splk_over_block<splk_greater>(top, room);
        for (int64_t c = threadIdx.x; c < a.vocab; c += blockDim.x)
            sum += splk_exp(splk_load(x[c]) - (splk_wide<T>)top);
        sum = splk_over_block<splk_plus>(sum, room);
        if (threadIdx.x == 0)
            ((double *)a.nll)[row] = label < 0 ? 0 : log(sum) + (top - (double)splk_load(x[label]));
    }
}

template <class T> static cudaError_t nll(cudaStream_t s, const spl_nll_args *a) {
    SPLK_LAUNCH(nll_kernel<T>, splk_blocks(a->rows, 1), SPLK_BLOCK, SPLK_ROOM, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_nll(cudaStream_t s, const spl_nll_args *a) {
    switch (a->dtype) {
    case SPL_F64: return nll<double>(s, a);
    case SPL_BF16: return nll<__nv_bfloat16>(s, a);
    case SPL_F16: return nll<__half>(s, a);
    default: return nll<float>(s, a);
    }
}

/* ---- means of groups of rows ---- */

template <class T> SPLK_KERNEL pool_kernel(spl_pool_args a) {
    for (int64_t i = blockIdx.x; i < a.batch * a.ngroups * a.heads; i += gridDim.x) {
        const int64_t h = i % a.heads, g = i / a.heads % a.ngroups, b = i / a.heads / a.ngroups;
        const spl_segment group = a.groups[g];
        const T *x = (const T *)a.x + b * a.x_strides[0] + group.start * a.x_strides[1] + h * a.x_strides[2];
        T *y = (T *)a.y + b * a.y_strides[0] + g * a.y_strides[1] + h * a.y_strides[2];
        for (int64_t d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
            double sum = 0;
            for (int64_t t = 0; t < group.length; t++) sum += (double)splk_load(x[t * a.x_strides[1] + d]);
            y[d] = splk_round<T>((splk_wide<T>)(sum / (double)group.length));
        }
    }
}

template <class T> static cudaError_t pool(cudaStream_t s, const spl_pool_args *a) {
    SPLK_LAUNCH(pool_kernel<T>, splk_blocks(a->batch * a->ngroups * a->heads, 1), 64, 0, s, *a);
    return cudaGetLastError();
}

cudaError_t splk_launch_pool(cudaStream_t s, const spl_pool_args *a) {
    switch (a->dtype) {
    case SPL_F64: return pool<double>(s, a);
    case SPL_BF16: return pool<__nv_bfloat16>(s, a);
    case SPL_F16: return pool<__half>(s, a);
    default: return pool<float>(s, a);
    }
}
