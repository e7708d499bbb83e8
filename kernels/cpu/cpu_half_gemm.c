/* cpu_half_gemm.c: matrix products of bf16 and f16. Panels of A, B and C are widened into scratch of a fixed size and
 * the f32 slot multiplies them; a panel of C stays in f32 over all of k, then gets bias and activation, and is rounded
 * once. */
#include "cpu_half.h"

enum { PANEL_M = 512, PANEL_N = 1024, PANEL_K = 4096 };

/* A stored matrix: where, how far its rows are apart. */
typedef struct matrix {
    const void *data;
    int64_t ld;
} matrix;

/* Rows [r, r + rows) and columns [l, l + cols) of a stored matrix, densely into dst. */
static void widen_panel(const splk_cpu *c, float *dst, spl_dtype t, matrix m, int64_t r, int64_t rows, int64_t l,
                        int64_t cols) {
    int team = splk_team(c, rows, rows * cols);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < rows; i++) splk_widen(dst + i * cols, m.data, t, (r + i) * m.ld + l, 1, cols);
}

static void narrow_panel(const splk_cpu *c, void *dst, spl_dtype t, int64_t ld, int64_t r, int64_t rows, int64_t l,
                         int64_t cols, const float *src) {
    int team = splk_team(c, rows, rows * cols);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < rows; i++) splk_narrow(dst, t, (r + i) * ld + l, 1, src + i * cols, cols);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

spl_status splk_half_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a) {
    splk_cpu *c = ctx;
    int64_t area, ld[3], stride;
    SPL_TRY(splk_area("gemm", a->m, a->n, &area));
    SPL_TRY(splk_area("gemm", a->m, a->k, &area));
    SPL_TRY(splk_area("gemm", a->k, a->n, &area));
    SPL_TRY(spli_gemm_leading(a, INT64_MAX, "memory", ld));
    const matrix ma = {a->a, ld[0]}, mb = {a->b, ld[1]}, mc = {a->c, ld[2]};
    if (a->m == 0 || a->n == 0) return spli_ok();

    int64_t pm = least(a->m, PANEL_M), pn = least(a->n, PANEL_N), pk = least(a->k, PANEL_K);
    void *scratch;
    SPL_TRY(splk_scratch_take(c, 1, 4 * (pm * pk + pn * pk + pm * pn + pn), &stride, &scratch));
    float *fa = scratch, *fb = fa + pm * pk, *fc = fb + pn * pk, *bias = fc + pm * pn;
    spl_status status = spli_ok();
    for (int64_t j = 0; j < a->n; j += pn) {
        int64_t n = least(pn, a->n - j);
        if (a->bias) splk_widen(bias, a->bias, a->dtype, j, 1, n);
        for (int64_t i = 0; i < a->m; i += pm) {
            int64_t m = least(pm, a->m - i), l = 0;
            if (a->beta != 0) widen_panel(c, fc, a->dtype, mc, i, m, j, n);
            do { /* also once where k is 0: C is scaled, and bias and activation are due */
                int64_t k = least(pk, a->k - l);
                int last = l + k == a->k;
                if (a->trans_a) widen_panel(c, fa, a->dtype, ma, l, k, i, m);
                else widen_panel(c, fa, a->dtype, ma, i, m, l, k);
                if (i == 0 || pk < a->k) { /* else the panel of B is there already */
                    if (a->trans_b) widen_panel(c, fb, a->dtype, mb, j, n, l, k);
                    else widen_panel(c, fb, a->dtype, mb, l, k, j, n);
                }
                spl_gemm_args f = {.dtype = SPL_F32, .m = m, .n = n, .k = k, .a = fa, .b = fb, .c = fc,
                                   .lda = a->trans_a ? m : k, .ldb = a->trans_b ? k : n, .ldc = n,
                                   .trans_a = a->trans_a, .trans_b = a->trans_b, .alpha = a->alpha,
                                   .beta = l == 0 ? a->beta : 1, .bias = last && a->bias ? bias : NULL,
                                   .act = last ? a->act : SPL_ACT_NONE};
                SPL_GO(splk_cpu_gemm(ctx, q, &f), done);
                l += k;
            } while (l < a->k);
            narrow_panel(c, a->c, a->dtype, mc.ld, i, m, j, n, fc);
        }
    }
done:
    splk_scratch_give(c, 1, stride, scratch);
    return status;
}
