/* cpu_pointwise.c: bias, activation and gate; bias, dropout and residual: one pass over memory each.
 *
 * Work goes in pieces of a row through a small buffer, so that an output may be any of the inputs and each inner loop
 * has one job. GELU is written with a sigmoid, x / (1 + exp(-2u)), which equals x/2 (1 + tanh u) without its
 * cancellation for negative x and without overflow: exp gives inf, x / inf is 0. */
#include "cpu.h"
#include "cpu_half.h"

enum { PIECE = 512 };

#define T float
#define S f32
#define EXP splk_exp_f32
#define ERFC erfcf
#include "cpu_pointwise_body.h"
#undef T
#undef S
#undef EXP
#undef ERFC
#define T double
#define S f64
#define EXP exp
#define ERFC erfc
#include "cpu_pointwise_body.h"
#undef T
#undef S
#undef EXP
#undef ERFC

spl_status splk_cpu_act(void *ctx, spl_queue *q, const spl_act_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_act(ctx, q, a);
    (void)q;
    int64_t area;
    SPL_TRY(splk_need_float("activation", a->dtype));
    SPL_TRY(splk_area("activation", a->rows, a->cols, &area));
    if (a->dtype == SPL_F64)
        act_rows_f64(ctx, a->act, a->rows, a->cols, a->x, a->bias, a->up, a->y, a->cols);
    else
        act_rows_f32(ctx, a->act, a->rows, a->cols, a->x, a->bias, a->up, a->y, a->cols);
    return spli_ok();
}

spl_status splk_cpu_residual(void *ctx, spl_queue *q, const spl_residual_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_residual(ctx, q, a);
    (void)q;
    int64_t area, rows, cols;
    SPL_TRY(splk_need_float("residual", a->dtype));
    SPL_TRY(splk_area("residual", a->rows, a->cols, &area));
    if (!(a->p >= 0 && a->p < 1))
        return spli_error(SPL_EARG, "residual: dropout probability %g given, it must be in [0, 1)", a->p);
    if (a->p > 0) {
        if (!a->map)
            return spli_error(SPL_EARG, "residual: dropout needs the global coordinates of x (an index map)");
        SPL_TRY(splk_map_check("residual", a->map, &rows, &cols));
        if (rows * cols != area || (cols != a->cols && area > 0))
            return spli_error(SPL_EARG, "residual: x is %lld by %lld but its index map holds %lld by %lld",
                              (long long)a->rows, (long long)a->cols, (long long)rows, (long long)cols);
    }
    if (area == 0) return spli_ok();
    int team = splk_team(ctx, a->rows, area);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->dtype == SPL_F64)
            residual_row_f64(a, r);
        else
            residual_row_f32(a, r);
    }
    return spli_ok();
}
