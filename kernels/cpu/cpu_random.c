/* cpu_random.c: numbers by global index: uniform, normal, iota; the walk over an index map; runs of Philox words. */
#include "cpu.h"
#include "philox.h"

uint32_t splk_keep_threshold(double p) { return (uint32_t)ceil(p * 0x1p24); }

spl_status splk_map_check(const char *op, const spl_index_map *m, int64_t *rows, int64_t *cols) {
    int64_t global = 1, local = 1;
    if (m->ndim < 1 || m->ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "%s: the index map has %d dimensions, 1 to %d are possible", op, m->ndim,
                          SPL_MAX_DIMS);
    *rows = 1;
    for (int d = 0; d < m->ndim; d++) {
        int64_t held = 0;
        for (int s = 0; s < m->nsegments[d]; s++) held += m->segments[d][s].length;
        if (held != m->local[d])
            return spli_error(SPL_EARG,
                              "%s: dimension %d of the index map holds %lld elements but its segments have %lld", op,
                              d + 1, (long long)m->local[d], (long long)held);
        if (!splk_mul(global, m->global[d], &global) || !splk_mul(local, m->local[d], &local))
            return spli_error(SPL_EARG, "%s: the sizes of the index map overflow 64 bits at dimension %d", op, d + 1);
        if (d + 1 < m->ndim) *rows = local;
    }
    *cols = m->local[m->ndim - 1];
    return spli_ok();
}

int64_t splk_map_row(const spl_index_map *m, int64_t row) {
    int64_t flat = 0, scale = m->global[m->ndim - 1];
    for (int d = m->ndim - 2; d >= 0; d--) {
        int64_t at = row % m->local[d];
        row /= m->local[d];
        const spl_segment *s = m->segments[d];
        while (at >= s->length) at -= s++->length;
        flat += (s->start + at * s->stride) * scale;
        scale *= m->global[d];
    }
    return flat;
}

void splk_random_words(spl_rng_key key, int64_t g, int64_t stride, int64_t n, uint32_t *out) {
    enum { L = SPLK_PHILOX_LANES };
    uint64_t block[L];
    uint32_t w[4][L];
    if (stride == 1) { /* each block of four serves up to four neighbours */
        int64_t done = 0;
        while (done < n) {
            uint64_t first = (uint64_t)(g + done) / 4;
            for (int i = 0; i < L; i++) block[i] = first + (uint64_t)i;
            splk_philox_batch(key, block, w);
            for (int64_t i = (g + done) % 4; i < 4 * L && done < n; i++) out[done++] = w[i % 4][i / 4];
        }
        return;
    }
    for (int64_t done = 0; done < n; done += L) {
        int64_t len = n - done < L ? n - done : L;
        for (int i = 0; i < L; i++) block[i] = (uint64_t)(g + (done + (i < len ? i : 0)) * stride) / 4;
        splk_philox_batch(key, block, w);
        for (int64_t i = 0; i < len; i++) out[done + i] = w[(g + (done + i) * stride) % 4][i];
    }
}

/* out[i] = the normal number of element g + i * stride. Two neighbours (even, odd) share a pair of words. */
static void normal_run(spl_rng_key key, int64_t g, int64_t stride, int64_t n, double *out) {
    uint64_t held = UINT64_MAX; /* no block: indices end at 2^63 / 4 */
    double four[4];
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)(g + i * stride);
        if (at / 4 != held) {
            uint32_t w[4];
            held = at / 4;
            splk_philox_block(key, held, w);
            for (int pair = 0; pair < 4; pair += 2) {
                double r = sqrt(-2 * log(((double)w[pair] + 1) * 0x1p-32));
                double angle = 6.283185307179586477 * ((double)w[pair + 1] * 0x1p-32);
                four[pair] = r * cos(angle);
                four[pair + 1] = r * sin(angle);
            }
        }
        out[i] = four[at % 4];
    }
}

static void draw_run(const spl_random_args *a, int64_t g, int64_t stride, int64_t n, double *out) {
    enum { RUN = 256 };
    uint32_t words[RUN];
    for (int64_t done = 0; done < n; done += RUN) {
        int64_t len = n - done < RUN ? n - done : RUN, from = g + done * stride;
        double *o = out + done;
        if (a->kind == SPL_RANDOM_UNIFORM) {
            splk_random_words(a->key, from, stride, len, words);
            for (int64_t i = 0; i < len; i++) o[i] = (words[i] >> 8) * 0x1p-24;
        } else if (a->kind == SPL_RANDOM_NORMAL) {
            normal_run(a->key, from, stride, len, o);
        } else {
            for (int64_t i = 0; i < len; i++) o[i] = (double)(from + i * stride);
        }
        for (int64_t i = 0; i < len; i++) o[i] = a->a + a->b * o[i];
    }
}

/* Integers hold every index exactly, which a double does not above 2^53. */
static int exact_iota(const spl_random_args *a) {
    return a->kind == SPL_RANDOM_IOTA && a->dtype == SPL_I64 && a->a == rint(a->a) && a->b == rint(a->b) &&
           fabs(a->a) < 0x1p53 && fabs(a->b) < 0x1p53;
}

spl_status splk_cpu_random(void *ctx, spl_queue *q, const spl_random_args *a) {
    (void)q;
    enum { RUN = 1024 };
    int64_t rows, cols;
    SPL_TRY(splk_map_check("random", a->map, &rows, &cols));
    if (rows == 0 || cols == 0) return spli_ok();
    const spl_index_map *m = a->map;
    int last = m->ndim - 1, exact = exact_iota(a);
    int team = splk_team(ctx, rows, rows * cols);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t base = splk_map_row(m, r), at = r * cols;
        double values[RUN];
        for (int s = 0; s < m->nsegments[last]; s++) {
            const spl_segment *g = &m->segments[last][s];
            for (int64_t i = 0; i < g->length; i += RUN) {
                int64_t len = g->length - i < RUN ? g->length - i : RUN, from = base + g->start + i * g->stride;
                if (exact) {
                    int64_t *o = (int64_t *)a->out + at;
                    for (int64_t j = 0; j < len; j++)
                        o[j] = (int64_t)((uint64_t)(int64_t)a->a +
                                         (uint64_t)(int64_t)a->b * (uint64_t)(from + j * g->stride));
                } else {
                    draw_run(a, from, g->stride, len, values);
                    splk_store_doubles(a->out, a->dtype, at, values, len);
                }
                at += len;
            }
        }
    }
    return spli_ok();
}
