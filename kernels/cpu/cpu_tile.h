/* cpu_tile.h: products of small matrices that lie in cache, in element type T (suffix S), for code inside parallel
 * regions, where no BLAS is called.
 *
 * A register tile of C, TILE_ROWS rows by TILE_VECTORS vectors, stays in registers while k passes: per step one load
 * for each vector of B and one broadcast for each row of A. The sizes fill the registers of the level (32 in AVX-512,
 * else 16) and leave the loads fewer than the products. */
#include <stddef.h>

#if defined(__AVX512F__)
enum { SPLK_PASTE(VECTOR_BYTES, S) = 64, SPLK_PASTE(TILE_ROWS, S) = 6, SPLK_PASTE(TILE_VECTORS, S) = 4 };
#elif defined(__AVX__)
enum { SPLK_PASTE(VECTOR_BYTES, S) = 32, SPLK_PASTE(TILE_ROWS, S) = 6, SPLK_PASTE(TILE_VECTORS, S) = 2 };
#else
enum { SPLK_PASTE(VECTOR_BYTES, S) = 16, SPLK_PASTE(TILE_ROWS, S) = 6, SPLK_PASTE(TILE_VECTORS, S) = 2 };
#endif

#define FN(name) SPLK_PASTE(name, S)

/* The unit of C's columns. */
enum { FN(LANES) = FN(VECTOR_BYTES) / sizeof(T) };

typedef T FN(vector) __attribute__((vector_size(FN(VECTOR_BYTES)), aligned(sizeof(T)), may_alias));

/* C[rows, vectors * LANES] = A[rows, k] . B[k, vectors * LANES] + keep[row] * C, where keep is not NULL; rows and
 * vectors are constants where it is used. */
static inline __attribute__((always_inline)) void FN(register_tile)(const int rows, const int vectors, const T *keep,
                                                                    int64_t k, const T *a, int64_t lda, const T *b,
                                                                    int64_t ldb, T *c, int64_t ldc) {
    FN(vector) sum[FN(TILE_ROWS)][FN(TILE_VECTORS)];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            sum[i][j] = (FN(vector)){0};
#pragma GCC unroll 1
    for (int64_t p = 0; p < k; p++) {
        FN(vector) row[FN(TILE_VECTORS)];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) row[j] = *(const FN(vector) *)(b + p * ldb + j * FN(LANES));
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            T x = a[i * lda + p];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sum[i][j] += x * row[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            FN(vector) *to = (FN(vector) *)(c + i * ldc + j * FN(LANES));
            if (keep) sum[i][j] += keep[i] * *to; /* last: what was there takes one rounding, not k */
            *to = sum[i][j];
        }
}

/* All rows of one group of columns. */
static inline __attribute__((always_inline)) void FN(column_group)(const int vectors, const T *keep, int64_t m,
                                                                   int64_t k, const T *a, int64_t lda, const T *b,
                                                                   int64_t ldb, T *c, int64_t ldc) {
    int64_t i = 0;
    for (; i + FN(TILE_ROWS) <= m; i += FN(TILE_ROWS))
        FN(register_tile)(FN(TILE_ROWS), vectors, keep ? keep + i : NULL, k, a + i * lda, lda, b, ldb, c + i * ldc,
                          ldc);
    if (i + 4 <= m) {
        FN(register_tile)(4, vectors, keep ? keep + i : NULL, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
        i += 4;
    }
    for (; i < m; i++)
        FN(register_tile)(1, vectors, keep ? keep + i : NULL, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}

/* C[m, n] = A[m, k] . B[k, n] [+ keep[m] * C], row-major with leading dimensions; n is a multiple of LANES. */
static inline __attribute__((always_inline)) void FN(tile_product)(const T *keep, int64_t m, int64_t n, int64_t k,
                                                                   const T *a, int64_t lda, const T *b, int64_t ldb,
                                                                   T *c, int64_t ldc) {
    enum { L = FN(LANES) };
    int64_t j = 0;
    for (; j + FN(TILE_VECTORS) * L <= n; j += FN(TILE_VECTORS) * L)
        FN(column_group)(FN(TILE_VECTORS), keep, m, k, a, lda, b + j, ldb, c + j, ldc);
    if (FN(TILE_VECTORS) > 2 && j + 2 * L <= n) {
        FN(column_group)(2, keep, m, k, a, lda, b + j, ldb, c + j, ldc);
        j += 2 * L;
    }
    for (; j < n; j += L) FN(column_group)(1, keep, m, k, a, lda, b + j, ldb, c + j, ldc);
}

static void FN(tile_store)(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c,
                           int64_t ldc) {
    FN(tile_product)(NULL, m, n, k, a, lda, b, ldb, c, ldc);
}

static void FN(tile_add)(const T *keep, int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b,
                         int64_t ldb, T *c, int64_t ldc) {
    FN(tile_product)(keep, m, n, k, a, lda, b, ldb, c, ldc);
}

#undef FN
