/* cuda_random.cu: numbers by global index (uniform, normal, iota), and statistics of one array. */
#include "gpu.h"
#include "convert.h"

/* Element g: words (0, 1) of its block make elements 0 and 1, words (2, 3) elements 2 and 3 (Box-Muller). */
SPLK_DEV double splk_normal(splk_words *s, uint64_t g) {
    const double u1 = ((double)splk_word(s, g & ~(uint64_t)1) + 1) * 0x1p-32;
    const double u2 = (double)splk_word(s, g | 1) * 0x1p-32;
    const double r = sqrt(-2 * log(u1)), angle = 6.283185307179586477 * u2;
    return g % 2 == 0 ? r * cos(angle) : r * sin(angle);
}

template <class T> SPLK_KERNEL random_kernel(spl_random_args a, splk_map m, int64_t rows, int exact) {
    const int last = m.ndim - 1;
    const int64_t cols = m.local[last];
    splk_words words = splk_words_of(a.key);
    const int64_t runs = (cols + SPLK_RUN - 1) / SPLK_RUN; /* a block does a run of one row, and another */
    for (int64_t item = blockIdx.x; item < rows * runs; item += gridDim.x) {
        const int64_t row = item / runs, base = splk_row_base(&m, row), from = item % runs * SPLK_RUN;
        for (int64_t c = from + threadIdx.x; c < cols && c < from + SPLK_RUN; c += blockDim.x) {
            const int64_t g = base + splk_held(m.segments + m.first[last], m.count[last], c);
            T *to = (T *)a.out + row * cols + c;
            if (exact) { /* integers hold every index, which a double does not above 2^53 */
                splk_store(to, (int64_t)((uint64_t)(int64_t)a.a + (uint64_t)(int64_t)a.b * (uint64_t)g));
                continue;
            }
            double draw = (double)g;
            if (a.kind == SPL_RANDOM_UNIFORM) draw = (double)(splk_word(&words, (uint64_t)g) >> 8) * 0x1p-24;
            if (a.kind == SPL_RANDOM_NORMAL) draw = splk_normal(&words, (uint64_t)g);
            splk_store(to, a.a + a.b * draw);
        }
    }
}

template <class T>
static cudaError_t random_of(cudaStream_t s, const spl_random_args *a, const splk_map *m, int64_t rows) {
    const int64_t items = rows * ((m->local[m->ndim - 1] + SPLK_RUN - 1) / SPLK_RUN);
    const int exact = a->kind == SPL_RANDOM_IOTA && a->dtype == SPL_I64 && a->a == rint(a->a) && a->b == rint(a->b) &&
                      fabs(a->a) < 0x1p53 && fabs(a->b) < 0x1p53;
    SPLK_LAUNCH(random_kernel<T>, splk_blocks(items, 1), SPLK_BLOCK, 0, s, *a, *m, rows, exact);
    return cudaGetLastError();
}

cudaError_t splk_launch_random(cudaStream_t s, const spl_random_args *a, const splk_map *m, int64_t rows) {
    switch (a->dtype) {
    case SPL_F64: return random_of<double>(s, a, m, rows);
    case SPL_F32: return random_of<float>(s, a, m, rows);
    case SPL_BF16: return random_of<__nv_bfloat16>(s, a, m, rows);
    case SPL_F16: return random_of<__half>(s, a, m, rows);
    case SPL_I64: return random_of<int64_t>(s, a, m, rows);
    case SPL_I32: return random_of<int32_t>(s, a, m, rows);
    case SPL_BOOL: return random_of<splk_bool>(s, a, m, rows);
    default: return random_of<uint8_t>(s, a, m, rows);
    }
}

/* ---- statistics ---- */

template <class T> SPLK_KERNEL stats_kernel(const T *x, int64_t n, spl_stats *parts) {
    SPLK_SHARED(shared);
    double *room = (double *)(void *)shared, sum = 0, squares = 0, top = 0, nans = 0, infs = 0;
    for (int64_t i = splk_first(); i < n; i += splk_stride()) {
        const double v = (double)splk_value(x[i]), size = fabs(v);
        sum += v;
        squares += v * v;
        nans += v != v;
        infs += size > 0x1.fffffffffffffp1023;
        if (size > top) top = size;
    }
    sum = splk_over_block<splk_plus>(sum, room);
    squares = splk_over_block<splk_plus>(squares, room);
    nans = splk_over_block<splk_plus>(nans, room);
    infs = splk_over_block<splk_plus>(infs, room);
    top = splk_over_block<splk_greater>(top, room);
    if (threadIdx.x == 0) {
        spl_stats *p = &parts[blockIdx.x];
        p->sum = sum;
        p->sum_squares = squares;
        p->abs_max = top;
        p->nan_count = (int64_t)nans;
        p->inf_count = (int64_t)infs;
    }
}

template <class T> static cudaError_t stats(cudaStream_t s, const void *x, int64_t n, spl_stats *parts) {
    SPLK_LAUNCH(stats_kernel<T>, SPLK_STATS_PARTS, SPLK_BLOCK, SPLK_ROOM, s, (const T *)x, n, parts);
    return cudaGetLastError();
}

cudaError_t splk_launch_stats(cudaStream_t s, const void *x, spl_dtype t, int64_t n, spl_stats *parts) {
    switch (t) {
    case SPL_F64: return stats<double>(s, x, n, parts);
    case SPL_F32: return stats<float>(s, x, n, parts);
    case SPL_BF16: return stats<__nv_bfloat16>(s, x, n, parts);
    case SPL_F16: return stats<__half>(s, x, n, parts);
    case SPL_I64: return stats<int64_t>(s, x, n, parts);
    case SPL_I32: return stats<int32_t>(s, x, n, parts);
    case SPL_BOOL: return stats<splk_bool>(s, x, n, parts);
    default: return stats<uint8_t>(s, x, n, parts);
    }
}
