/* cpu_pool.c: means of groups of rows. Sums are double whatever the dtype: a mean of many numbers of both signs is
 * small against its terms. */
#include "cpu.h"

static spl_status check(const spl_pool_args *a) {
    int64_t size;
    if (!spl_dtype_is_float(a->dtype)) SPL_TRY(splk_need_float("pool", a->dtype)); /* 16-bit floats too */
    if (a->batch < 0 || a->seq < 0 || a->heads < 0 || a->head_dim < 0 || a->ngroups < 0 ||
        !splk_mul(a->batch, a->ngroups, &size) || !splk_mul(size, a->heads, &size) ||
        !splk_mul(size, a->head_dim, &size))
        return spli_error(SPL_EARG, "pool: batch %lld, rows %lld, heads %lld, head_dim %lld, %lld groups are not sizes",
                          (long long)a->batch, (long long)a->seq, (long long)a->heads, (long long)a->head_dim,
                          (long long)a->ngroups);
    if (a->head_dim > 1 && (a->x_strides[3] != 1 || a->y_strides[3] != 1))
        return spli_error(SPL_EARG,
                          "pool: elements of a head must be neighbours (last stride 1); make the tensor contiguous");
    for (int64_t g = 0; g < a->ngroups; g++) {
        const spl_segment *s = &a->groups[g];
        if (s->start < 0 || s->length < 1 || s->start > a->seq - s->length)
            return spli_error(SPL_EARG, "pool: group %lld is rows %lld+%lld of %lld", (long long)g, (long long)s->start,
                              (long long)s->length, (long long)a->seq);
    }
    return spli_ok();
}

spl_status splk_cpu_pool(void *ctx, spl_queue *q, const spl_pool_args *a) {
    (void)q;
    splk_cpu *c = ctx;
    SPL_TRY(check(a));
    const int64_t d = a->head_dim, units = a->batch * a->ngroups * a->heads;
    const size_t size = spl_dtype_size(a->dtype);
    int64_t stride;
    void *scratch;
    if (units == 0 || d == 0) return spli_ok();
    int team = splk_team(c, units, a->batch * a->seq * a->heads * d);
    SPL_TRY(splk_scratch_take(c, 2 * (int64_t)team, d * 8, &stride, &scratch));
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t u = 0; u < units; u++) {
        int64_t h = u % a->heads, g = u / a->heads % a->ngroups, b = u / a->heads / a->ngroups;
        double *sum = (double *)(void *)((char *)scratch + 2 * splk_thread() * stride);
        double *row = (double *)(void *)((char *)sum + stride);
        const spl_segment *s = &a->groups[g];
        memset(sum, 0, (size_t)d * sizeof *sum);
        for (int64_t t = s->start; t < s->start + s->length; t++) {
            int64_t at = b * a->x_strides[0] + t * a->x_strides[1] + h * a->x_strides[2];
            splk_load_doubles(row, (const char *)a->x + at * (int64_t)size, a->dtype, d);
            for (int64_t j = 0; j < d; j++) sum[j] += row[j];
        }
        for (int64_t j = 0; j < d; j++) sum[j] /= (double)s->length;
        splk_store_doubles(a->y, a->dtype, b * a->y_strides[0] + g * a->y_strides[1] + h * a->y_strides[2], sum, d);
    }
    splk_scratch_give(c, 2 * (int64_t)team, stride, scratch);
    return spli_ok();
}
