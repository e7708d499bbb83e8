/* cpu_rope.c: rotary position embedding. Angles, sines and cosines are formed in double once per position (a position
 * of 1e6 leaves an f32 angle no correct digits) and serve all batches and heads of it. */
#include "cpu.h"
#include "cpu_half.h"

#define T float
#define S f32
#include "cpu_rope_body.h"
#undef T
#undef S
#define T double
#define S f64
#include "cpu_rope_body.h"
#undef T
#undef S

static spl_status check(const spl_rope_args *a) {
    int64_t held = 0, size;
    SPL_TRY(splk_need_float("rope", a->dtype));
    for (int s = 0; s < a->npositions; s++) held += a->positions[s].length;
    if (held != a->seq)
        return spli_error(SPL_EARG, "rope: %lld positions given for a sequence of %lld", (long long)held,
                          (long long)a->seq);
    if (!(a->theta > 0)) return spli_error(SPL_EARG, "rope: theta is %g, it must be positive", a->theta);
    if (!splk_mul(a->batch, a->seq, &size) || !splk_mul(size, a->heads, &size) || !splk_mul(size, a->head_dim, &size))
        return spli_error(SPL_EARG, "rope: %lld x %lld x %lld x %lld is not a size", (long long)a->batch,
                          (long long)a->seq, (long long)a->heads, (long long)a->head_dim);
    return spli_ok();
}

spl_status splk_cpu_rope(void *ctx, spl_queue *q, const spl_rope_args *a) {
    if (splk_is_half(a->dtype)) return splk_half_rope(ctx, q, a);
    (void)q;
    splk_cpu *c = ctx;
    SPL_TRY(check(a));
    int64_t half = a->head_dim / 2, work = a->batch * a->seq * a->heads * a->head_dim, stride;
    if (work == 0) return spli_ok();
    int team = splk_team(c, a->seq, work);
    void *scratch; /* frequencies, then for each thread its cosines and sines */
    SPL_TRY(splk_scratch_take(c, 1 + 2 * (int64_t)team, half * 8, &stride, &scratch));
    double *frequency = scratch;
    for (int64_t j = 0; j < half; j++) frequency[j] = pow(a->theta, -2.0 * (double)j / (double)a->head_dim);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t t = 0; t < a->seq; t++) {
        double *cosines = (double *)(void *)((char *)scratch + (1 + 2 * splk_thread()) * stride);
        double *sines = (double *)(void *)((char *)cosines + stride);
        const spl_segment *s = a->positions;
        int64_t at = t;
        while (at >= s->length) at -= s++->length;
        double position = (double)(s->start + at * s->stride);
        for (int64_t j = 0; j < half; j++) {
            cosines[j] = cos(position * frequency[j]);
            sines[j] = sin(position * frequency[j]);
        }
        if (a->dtype == SPL_F64)
            rotate_f64(a, t, cosines, sines);
        else
            rotate_f32(a, t, cosines, sines);
    }
    splk_scratch_give(c, 1 + 2 * (int64_t)team, stride, scratch);
    return spli_ok();
}
