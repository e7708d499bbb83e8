/* cuda_attention.cu: flash attention forward on ordinary arithmetic units: every float type, any head_dim up to
 * SPLK_MOST_HEAD_DIM (Dao 2023; online softmax of Milakov & Gimelshein 2018).
 *
 * Four warps, four query rows a warp, one key a lane. A tile's sum over its keys is formed apart, then added; every
 * 1,024 keys the running sums move into a second accumulator, with what its rounding leaves over kept beside it (Kahan
 * 1965), so that long rows do not drift. */
#include "attention.h"

enum { WARPS = 4, ROWS_A_WARP = 4, ROWS = WARPS * ROWS_A_WARP, KEYS = 32, RESTART = 1024 };

template <class W> struct row_state {
    W top, sum, total, rest; /* the largest score; e^(score - top) summed since the restart, and before it */
};

template <class W> SPLK_DEV void splk_move_sum(W *sum, W *total, W *rest) {
    const W more = *sum - *rest, now = *total + more;
    *rest = (now - *total) - more;
    *total = now;
    *sum = 0;
}

/* Elements [0, dim) of `rows` rows of T, stride apart, widened into shared memory of `ld` a row; zeros past `have`. */
template <class T, class W>
SPLK_DEV void splk_load_rows(W *to, int ld, const T *from, int64_t stride, int rows, int64_t have, int dim) {
    for (int i = threadIdx.x; i < rows * dim; i += blockDim.x) {
        const int r = i / dim, d = i % dim;
        to[r * ld + d] = r < have ? (W)splk_load(from[r * stride + d]) : (W)0;
    }
}

template <class T, class O, int CHUNKS> SPLK_KERNEL attention_kernel(splk_attention c) {
    typedef splk_wide<T> W;
    SPLK_SHARED(shared);
    const spl_attn_args &a = c.a;
    const int lane = threadIdx.x % SPLK_WARP, warp = threadIdx.x / SPLK_WARP, dim = (int)a.head_dim;
    W *q = (W *)(void *)shared, *k = q + ROWS * dim, *v = k + KEYS * (dim + 1); /* k: a pad against bank conflicts */
    int64_t b, h;
    int row0;
    splk_block_place(a, ROWS, &b, &h, &row0);
    const int kv = a.kv_of_head ? a.kv_of_head[h] : 0;
    const T *keys = (const T *)a.k + b * a.k_strides[0] + kv * a.k_strides[2];
    const T *values = (const T *)a.v + b * a.v_strides[0] + kv * a.v_strides[2];
    splk_load_rows(q, dim, (const T *)a.q + b * a.q_strides[0] + row0 * a.q_strides[1] + h * a.q_strides[2],
                   a.q_strides[1], ROWS, a.sq - row0, dim);
    row_state<W> state[ROWS_A_WARP];
    W sums[ROWS_A_WARP][CHUNKS], totals[ROWS_A_WARP][CHUNKS], rests[ROWS_A_WARP][CHUNKS];
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; r++) {
        state[r] = {-(W)INFINITY, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) sums[r][i] = totals[r][i] = rests[r][i] = 0;
    }
    splk_words words = splk_words_of(a.key);
    int since = 0;
    for (splk_tile t = splk_first_tile(c, row0, ROWS); t.piece < a.npieces; splk_next_tile(c, row0, ROWS, KEYS, &t)) {
        const splk_piece &p = c.pieces[t.piece];
        __syncthreads();
        splk_load_rows(k, dim + 1, keys + (p.k0 + t.key) * a.k_strides[1], a.k_strides[1], KEYS, t.end - t.key, dim);
        splk_load_rows(v, dim, values + (p.k0 + t.key) * a.v_strides[1], a.v_strides[1], KEYS, t.end - t.key, dim);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS_A_WARP; r++) {
            const int row = warp * ROWS_A_WARP + r;
            int first, last;
            splk_seen_in_tile(c, t, row0 + row, KEYS, &first, &last);
            if (first >= last) continue; /* the same on all lanes */
            W part[4] = {0, 0, 0, 0};
            for (int d = 0; d < dim; d++) part[d % 4] += q[row * dim + d] * k[lane * (dim + 1) + d];
            const int seen = lane >= first && lane < last;
            W score = ((part[0] + part[1]) + (part[2] + part[3])) * (W)a.scale;
            if (a.key_bias && seen) score += ((const W *)a.key_bias)[p.k0 + t.key + lane];
            W top = seen ? score : -(W)INFINITY;
#pragma unroll
            for (int x = SPLK_WARP / 2; x > 0; x /= 2) {
                const W other = __shfl_xor_sync(0xffffffffu, top, x);
                top = other > top || top != top ? other : top;
            }
            const W old = state[r].top, now = top > old ? top : old, base = now == -(W)INFINITY ? (W)0 : now;
            const W less = splk_exp_of(old - base); /* 0 while nothing was seen */
            W weight = seen ? splk_exp_of(score - base) : (W)0, all = weight;
#pragma unroll
            for (int x = SPLK_WARP / 2; x > 0; x /= 2) all += __shfl_xor_sync(0xffffffffu, all, x);
            state[r] = {now, state[r].sum * less + all, state[r].total * less, state[r].rest * less};
            if (a.p > 0) {
                const int64_t at = p.k_start + (t.key + lane) * p.k_stride;
                const uint64_t g = (uint64_t)(splk_dropout_row(a, p, b, h, row0 + row) + at);
                weight = (splk_word(&words, g) >> 8) >= c.keep_from ? weight * (W)(1 / (1 - a.p)) : weight * (W)0;
            }
            W tile[CHUNKS];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) tile[i] = 0;
            for (int j = first; j < last; j++) { /* a hidden key is not touched: its value may be anything */
                const W w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
                for (int i = 0; i < CHUNKS; i++)
                    if (i * SPLK_WARP + lane < dim) tile[i] += w * v[j * dim + i * SPLK_WARP + lane];
            }
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                sums[r][i] = sums[r][i] * less + tile[i];
                totals[r][i] *= less;
                rests[r][i] *= less;
            }
        }
        since += KEYS;
        if (since >= RESTART) {
            since = 0;
#pragma unroll
            for (int r = 0; r < ROWS_A_WARP; r++) {
                splk_move_sum(&state[r].sum, &state[r].total, &state[r].rest);
#pragma unroll
                for (int i = 0; i < CHUNKS; i++) splk_move_sum(&sums[r][i], &totals[r][i], &rests[r][i]);
            }
        }
    }
    for (int r = 0; r < ROWS_A_WARP; r++) {
        const int64_t row = row0 + warp * ROWS_A_WARP + r, at = (b * a.heads + h) * a.sq + row;
        if (row >= a.sq) break;
        O *out = (O *)a.out + b * a.out_strides[0] + row * a.out_strides[1] + h * a.out_strides[2];
        const W sum = state[r].total + (state[r].sum - state[r].rest);
        const splk_weights<W> w = splk_weigh(a, at, state[r].top, sum);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (i * SPLK_WARP + lane < dim)
                splk_write(&out[i * SPLK_WARP + lane], totals[r][i] + (sums[r][i] - rests[r][i]), w);
        __syncwarp(); /* all lanes have read the old lse */
        if (lane == 0) ((W *)a.lse)[at] = (W)w.lse;
    }
}

template <class T, class O, int CHUNKS> static cudaError_t launch(cudaStream_t s, const splk_attention *c) {
    const int64_t tiles = (c->a.sq + ROWS - 1) / ROWS, dim = c->a.head_dim;
    const size_t shared = sizeof(splk_wide<T>) * (size_t)(ROWS * dim + KEYS * (dim + 1) + KEYS * dim);
    cudaError_t e = cudaFuncSetAttribute((const void *)attention_kernel<T, O, CHUNKS>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (e != cudaSuccess) return e;
    SPLK_LAUNCH((attention_kernel<T, O, CHUNKS>), (unsigned)(tiles * c->a.heads * c->a.batch), WARPS * SPLK_WARP,
                shared, s, *c);
    return cudaGetLastError();
}

template <class T, class O> static cudaError_t by_dim(cudaStream_t s, const splk_attention *c) {
    if (c->a.head_dim <= 64) return launch<T, O, 2>(s, c);
    if (c->a.head_dim <= 128) return launch<T, O, 4>(s, c);
    return launch<T, O, 8>(s, c);
}

cudaError_t splk_launch_attention(cudaStream_t s, const splk_attention *c) {
    const int wide = c->a.out_dtype == SPL_F32;
    switch (c->a.dtype) {
    case SPL_F64: return by_dim<double, double>(s, c);
    case SPL_BF16: return wide ? by_dim<__nv_bfloat16, float>(s, c) : by_dim<__nv_bfloat16, __nv_bfloat16>(s, c);
    case SPL_F16: return wide ? by_dim<__half, float>(s, c) : by_dim<__half, __half>(s, c);
    default: return by_dim<float, float>(s, c);
    }
}
