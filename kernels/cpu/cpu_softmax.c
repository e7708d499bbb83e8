/* cpu_softmax.c: softmax of rows of scores that are in memory, as attention without tiles has them. */
#include <math.h>
#include "cpu.h"

static void row_softmax(float *x, int64_t seen, int64_t cols, float scale) {
    float most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++) {
        x[j] *= scale;
        most = x[j] > most ? x[j] : most;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; j++) {
        x[j] = splk_exp_negative_f32(x[j] - most);
        sum += x[j];
    }
    const float share = seen > 0 ? 1 / sum : 0;
    for (int64_t j = 0; j < seen; j++) x[j] *= share;
    for (int64_t j = seen; j < cols; j++) x[j] = 0;
}

spl_status splk_cpu_softmax(void *ctx, spl_queue *q, const spl_softmax_args *a) {
    (void)q;
    splk_cpu *c = ctx;
    int64_t size;
    if (a->rows < 0 || a->cols < 0 || !splk_mul(a->rows, a->cols, &size))
        return spli_error(SPL_EARG, "softmax: %lld rows of %lld are not sizes", (long long)a->rows, (long long)a->cols);
    int team = splk_team(c, a->rows, size);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(dynamic, 16)
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t seen = a->seen + i * a->more;
        row_softmax(a->x + i * a->cols, seen < 0 ? 0 : seen < a->cols ? seen : a->cols, a->cols, (float)a->scale);
    }
    return spli_ok();
}
