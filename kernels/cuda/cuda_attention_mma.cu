/* cuda_attention_mma.cu: flash attention forward of bf16 and f16 on the tensor cores.
 *
 * Four warps, 16 * FOLDS query rows a warp, tiles of KEYS keys. Queries lie in shared memory; keys and values of the
 * next tile travel (cp.async) while this one is computed. Scores, the softmax and the sums are f32; probabilities are
 * rounded to the data's type for the second product, as in FlashAttention-2 (Dao 2023).
 *
 * What depends on the instruction (how a fragment lies over the threads, how the two products are issued) is in
 * mma_tile: a tile made with wgmma and TMA can take its place, the walk and the softmax stay. */
#include "attention.h"
#include "mma.h"

enum { WARPS = 4, PAD = 8 /* elements: rows then begin in different banks */ };

template <class T, int DIM, int FOLDS, int KEYS> struct mma_tile {
    enum { ROWS = 16 * FOLDS * WARPS, LD = DIM + PAD };
    T q[ROWS][LD], k[2][KEYS][LD], v[2][KEYS][LD]; /* in shared memory */

    /* The two rows, counted in the block, of which this thread holds parts: element i of a fragment is of row
     * row_of(fold, i / 2) and column 8 * n + 2 * (lane % 4) + i % 2 of the n-th group of eight. */
    SPLK_DEV_MEMBER static int row_of(int fold, int half) {
        const int lane = threadIdx.x % SPLK_WARP, warp = threadIdx.x / SPLK_WARP;
        return (warp * FOLDS + fold) * 16 + lane / 4 + 8 * half;
    }
    SPLK_DEV_MEMBER static int column_of(int n, int i) { return 8 * n + 2 * (threadIdx.x % 4) + i % 2; }

    /* Rows of DIM elements, stride apart; `have` rows of `dim` elements are there, the rest is zeros. */
    SPLK_DEV_MEMBER static void load(T (*to)[LD], const T *from, int64_t stride, int rows, int64_t have, int dim) {
        for (int i = threadIdx.x; i < rows * (DIM / 8); i += WARPS * SPLK_WARP) {
            const int r = i / (DIM / 8), d = i % (DIM / 8) * 8, there = r < have && d < dim;
            splk_copy16(&to[r][d], there ? from + r * stride + d : from, there);
        }
    }

    /* s = q . k^T over buffer `buffer` */
    SPLK_DEV_MEMBER void scores(float s[FOLDS][KEYS / 8][4], int buffer) const {
        const int lane = threadIdx.x % SPLK_WARP, warp = threadIdx.x / SPLK_WARP;
#pragma unroll
        for (int f = 0; f < FOLDS; f++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[f][n][i] = 0;
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint32_t rows[FOLDS][4];
#pragma unroll
            for (int f = 0; f < FOLDS; f++)
                splk_ldmatrix(rows[f], &q[(warp * FOLDS + f) * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                uint32_t pair[4]; /* two groups of eight keys, each of two halves of d */
                splk_ldmatrix(pair, &k[buffer][n * 8 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
#pragma unroll
                for (int f = 0; f < FOLDS; f++) {
                    splk_mma(s[f][n], rows[f], pair, T());
                    splk_mma(s[f][n + 1], rows[f], pair + 2, T());
                }
            }
        }
    }

    /* sums += p . v over buffer `buffer` */
    SPLK_DEV_MEMBER void add(float sums[FOLDS][DIM / 8][4], const float p[FOLDS][KEYS / 8][4], int buffer) const {
        const int lane = threadIdx.x % SPLK_WARP;
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t weights[FOLDS][4];
#pragma unroll
            for (int f = 0; f < FOLDS; f++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    weights[f][i] = splk_pair(p[f][2 * n + i / 2][i % 2 * 2], p[f][2 * n + i / 2][i % 2 * 2 + 1], T());
#pragma unroll
            for (int d = 0; d < DIM / 8; d += 2) {
                uint32_t pair[4];
                splk_ldmatrix_trans(pair, &v[buffer][n * 16 + lane % 16][d * 8 + lane / 16 * 8]);
#pragma unroll
                for (int f = 0; f < FOLDS; f++) {
                    splk_mma(sums[f][d], weights[f], pair, T());
                    splk_mma(sums[f][d + 1], weights[f], pair + 2, T());
                }
            }
        }
    }
};

/* The largest or the sum over the four threads that share a row. */
SPLK_DEV float splk_row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
SPLK_DEV float splk_row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Online softmax of one tile: scores become weights e^(score - top), and what was summed before is scaled down. Scores
 * count in powers of two: scale2 is the scale times log2(e). */
template <int FOLDS, int GROUPS, int KEYS>
SPLK_DEV void splk_softmax(float s[FOLDS][KEYS / 8][4], float sums[FOLDS][GROUPS][4], float top[FOLDS][2],
                           float sum[FOLDS][2], float scale2) {
#pragma unroll
    for (int f = 0; f < FOLDS; f++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY, all = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(s[f][n][2 * half], s[f][n][2 * half + 1]));
            most = splk_row_max(most);
            const float now = fmaxf(top[f][half], most * scale2), base = now == -INFINITY ? 0 : now;
            const float less = exp2f(top[f][half] - base);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[f][n][i] = exp2f(s[f][n][i] * scale2 - base);
                    all += s[f][n][i];
                }
            top[f][half] = now;
            sum[f][half] = sum[f][half] * less + all; /* of this thread's columns; the row's at the end */
            if (!__any_sync(0xffffffffu, less != 1)) continue; /* after the first tiles the largest seldom changes */
#pragma unroll
            for (int d = 0; d < GROUPS; d++) {
                sums[f][d][2 * half] *= less;
                sums[f][d][2 * half + 1] *= less;
            }
        }
}

template <class T, class O, int DIM, int FOLDS, int KEYS, bool DROPOUT>
static __global__ void __launch_bounds__(WARPS * SPLK_WARP) attention_mma_kernel(splk_attention c) {
    typedef mma_tile<T, DIM, FOLDS, KEYS> tile;
    SPLK_SHARED(shared);
    tile &m = *(tile *)(void *)shared;
    const spl_attn_args &a = c.a;
    const int dim = (int)a.head_dim;
    const float scale2 = (float)(a.scale * 1.4426950408889634);
    int64_t b, h;
    int row0;
    splk_block_place(a, tile::ROWS, &b, &h, &row0);
    const int kv = a.kv_of_head ? a.kv_of_head[h] : 0;
    const T *keys = (const T *)a.k + b * a.k_strides[0] + kv * a.k_strides[2];
    const T *values = (const T *)a.v + b * a.v_strides[0] + kv * a.v_strides[2];
    auto fetch = [&](const splk_tile &t, int buffer) {
        const int64_t key = c.pieces[t.piece].k0 + t.key;
        tile::load(m.k[buffer], keys + key * a.k_strides[1], a.k_strides[1], KEYS, t.end - t.key, dim);
        tile::load(m.v[buffer], values + key * a.v_strides[1], a.v_strides[1], KEYS, t.end - t.key, dim);
        splk_copy_commit();
    };
    float sums[FOLDS][DIM / 8][4], top[FOLDS][2], sum[FOLDS][2];
#pragma unroll
    for (int f = 0; f < FOLDS; f++) {
        top[f][0] = top[f][1] = -INFINITY;
        sum[f][0] = sum[f][1] = 0;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[f][d][i] = 0;
    }
    tile::load(m.q, (const T *)a.q + b * a.q_strides[0] + row0 * a.q_strides[1] + h * a.q_strides[2], a.q_strides[1],
               tile::ROWS, a.sq - row0, dim);
    splk_copy_commit(); /* of a group of its own: there may be no key to come with */
    splk_tile t = splk_first_tile(c, row0, tile::ROWS);
    if (t.piece < a.npieces) fetch(t, 0);
    for (int buffer = 0; t.piece < a.npieces; buffer ^= 1) {
        splk_tile next = t;
        splk_next_tile(c, row0, tile::ROWS, KEYS, &next);
        if (next.piece < a.npieces) {
            fetch(next, buffer ^ 1);
            splk_copy_wait<1>();
        } else {
            splk_copy_wait<0>();
        }
        __syncthreads();
        float s[FOLDS][KEYS / 8][4];
        m.scores(s, buffer);
        if (!splk_tile_full(c, t, row0, tile::ROWS, KEYS)) {
#pragma unroll
            for (int f = 0; f < FOLDS; f++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int first, last;
                    splk_seen_in_tile(c, t, row0 + tile::row_of(f, half), KEYS, &first, &last);
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                        for (int i = 2 * half; i < 2 * half + 2; i++)
                            if (tile::column_of(n, i) < first || tile::column_of(n, i) >= last) s[f][n][i] = -INFINITY;
                }
        }
        splk_softmax<FOLDS, DIM / 8, KEYS>(s, sums, top, sum, scale2);
        if constexpr (DROPOUT) {
            const splk_piece &p = c.pieces[t.piece];
            splk_words words = splk_words_of(a.key);
#pragma unroll
            for (int f = 0; f < FOLDS; f++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int64_t base = splk_dropout_row(a, p, b, h, row0 + tile::row_of(f, i / 2)) + p.k_start;
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
                        const int64_t g = base + (t.key + tile::column_of(n, i)) * p.k_stride;
                        s[f][n][i] *= (splk_word(&words, (uint64_t)g) >> 8) >= c.keep_from ? c.keep_scale : 0;
                    }
                }
        }
        m.add(sums, s, buffer);
        __syncthreads(); /* the next fetch overwrites this buffer */
        t = next;
    }
    splk_copy_wait<0>(); /* of queries that saw nothing */
#pragma unroll
    for (int f = 0; f < FOLDS; f++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = row0 + tile::row_of(f, half), at = (b * a.heads + h) * a.sq + row;
            const float all = splk_row_sum(sum[f][half]);
            splk_weights<float> w = {0, 0, 0};
            if (row < a.sq) w = splk_weigh(a, at, top[f][half] * 0.69314718055994531f, all);
            __syncwarp(); /* the four threads of a row have read the old lse */
            if (row >= a.sq) continue;
            O *out = (O *)a.out + b * a.out_strides[0] + row * a.out_strides[1] + h * a.out_strides[2];
#pragma unroll
            for (int d = 0; d < DIM / 8; d++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    if (tile::column_of(d, i) < dim) splk_write(&out[tile::column_of(d, i)], sums[f][d][i], w);
            if (threadIdx.x % 4 == 0) ((float *)a.lse)[at] = (float)w.lse;
        }
}

template <class T, class O, int DIM, int FOLDS, int KEYS, bool DROPOUT>
static cudaError_t launch(cudaStream_t s, const splk_attention *c) {
    typedef mma_tile<T, DIM, FOLDS, KEYS> tile;
    const int64_t tiles = (c->a.sq + tile::ROWS - 1) / tile::ROWS;
    cudaError_t e = cudaFuncSetAttribute((const void *)attention_mma_kernel<T, O, DIM, FOLDS, KEYS, DROPOUT>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(tile));
    if (e != cudaSuccess) return e;
    SPLK_LAUNCH((attention_mma_kernel<T, O, DIM, FOLDS, KEYS, DROPOUT>), (unsigned)(tiles * c->a.heads * c->a.batch),
                WARPS * SPLK_WARP, sizeof(tile), s, *c);
    return cudaGetLastError();
}

template <class T, class O, int DIM, int FOLDS, int KEYS>
static cudaError_t by_dropout(cudaStream_t s, const splk_attention *c) {
    return c->a.p > 0 ? launch<T, O, DIM, FOLDS, KEYS, true>(s, c) : launch<T, O, DIM, FOLDS, KEYS, false>(s, c);
}

template <class T, class O> static cudaError_t by_dim(cudaStream_t s, const splk_attention *c) {
    if (c->a.head_dim <= 32) return by_dropout<T, O, 32, 2, 64>(s, c);
    if (c->a.head_dim <= 64) return by_dropout<T, O, 64, 2, 64>(s, c);
    return by_dropout<T, O, 128, 2, 32>(s, c);
}

static int aligned(const void *p, const int64_t strides[4]) { /* every row begins on a boundary of 16 bytes */
    return (uintptr_t)p % 16 == 0 && strides[0] % 8 == 0 && strides[1] % 8 == 0 && strides[2] % 8 == 0;
}

int splk_attention_fits_mma(const spl_attn_args *a) {
    return (a->dtype == SPL_BF16 || a->dtype == SPL_F16) && !a->key_bias && a->head_dim >= 8 && a->head_dim <= 128 &&
           a->head_dim % 8 == 0 && aligned(a->q, a->q_strides) && aligned(a->k, a->k_strides) &&
           aligned(a->v, a->v_strides);
}

cudaError_t splk_launch_attention_mma(cudaStream_t s, const splk_attention *c) {
    const int wide = c->a.out_dtype == SPL_F32;
    if (c->a.dtype == SPL_BF16)
        return wide ? by_dim<__nv_bfloat16, float>(s, c) : by_dim<__nv_bfloat16, __nv_bfloat16>(s, c);
    return wide ? by_dim<__half, float>(s, c) : by_dim<__half, __half>(s, c);
}
