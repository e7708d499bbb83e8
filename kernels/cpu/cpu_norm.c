/* cpu_norm.c: LayerNorm and RMSNorm. Two passes over a row that stays in cache: the mean first, then the deviations
 * from it, both summed in double, so that a large mean or a long row costs no accuracy. */
#include "cpu.h"
#include "cpu_half.h"

#define T float
#define S f32
#include "cpu_norm_body.h"
#undef T
#undef S
#define T double
#define S f64
#include "cpu_norm_body.h"
#undef T
#undef S

spl_status splk_cpu_norm(void *ctx, spl_queue *q, const spl_norm_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_norm(ctx, q, a);
    (void)q;
    int64_t area;
    SPL_TRY(splk_need_float("norm", a->dtype));
    SPL_TRY(splk_area("norm", a->rows, a->cols, &area));
    int team = splk_team(ctx, a->rows, area);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->dtype == SPL_F64)
            norm_row_f64(a, r);
        else
            norm_row_f32(a, r);
    }
    return spli_ok();
}
