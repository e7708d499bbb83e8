/* cpu_embed.c: rows of a table by id; ids outside this rank's part of the vocabulary give zeros. */
#include "cpu.h"

spl_status splk_cpu_embed(void *ctx, spl_queue *q, const spl_embed_args *a) {
    (void)q;
    int64_t area;
    SPL_TRY(splk_area("embed", a->rows, a->hidden, &area));
    SPL_TRY(splk_area("embed", a->vocab_local, a->hidden, &area));
    size_t row = (size_t)a->hidden * spl_dtype_size(a->dtype);
    if (row == 0) return spli_ok();
    int team = splk_team(ctx, a->rows, a->rows * a->hidden);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t id = a->ids[r];
        char *out = (char *)a->out + (size_t)r * row;
        if (id >= a->first && id - a->first < a->vocab_local)
            memcpy(out, (const char *)a->table + (size_t)(id - a->first) * row, row);
        else
            memset(out, 0, row);
    }
    return spli_ok();
}
