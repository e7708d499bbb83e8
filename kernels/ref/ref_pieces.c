/* ref_pieces.c: the attention kernel of the vtable, row by row: gather the scores a row can see in all pieces, then
 * their maximum, then the sums; and means of groups of rows. */
#include "ref.h"

static int64_t element(const int64_t strides[4], int64_t b, int64_t s, int64_t h, int64_t d) {
    return b * strides[0] + s * strides[1] + h * strides[2] + d * strides[3];
}

static int64_t held(const spl_segment *s, int n, int64_t at) {
    for (int i = 0; i < n; i++) {
        if (at < s[i].length) return s[i].start + at * s[i].stride;
        at -= s[i].length;
    }
    return at; /* no segments: local is global */
}

typedef struct seen {
    int64_t key, q_position, k_position;
    double score;
} seen;

static int64_t gather(const spl_attn_args *a, int64_t b, int64_t h, int64_t row, seen *list) {
    int64_t n = 0;
    for (int i = 0; i < a->npieces; i++) {
        const spl_attn_piece *p = &a->pieces[i];
        if (row < p->q0 || row >= p->q0 + p->nq) continue;
        for (int64_t j = 0; j < p->nk; j++) {
            int64_t q = p->q_start + (row - p->q0) * p->q_stride, k = p->k_start + j * p->k_stride;
            if ((p->has_upper && k - q > p->upper) || (p->has_lower && k - q < p->lower)) continue;
            double dot = 0;
            for (int64_t d = 0; d < a->head_dim; d++)
                dot += splk_ref_get(a->q, a->dtype, element(a->q_strides, b, row, h, d)) *
                       splk_ref_get(a->k, a->dtype, element(a->k_strides, b, p->k0 + j, a->kv_of_head[h], d));
            spl_dtype t = a->dtype == SPL_F64 ? SPL_F64 : SPL_F32;
            double bias = a->key_bias ? splk_ref_get(a->key_bias, t, p->k0 + j) : 0;
            list[n++] = (seen){p->k0 + j, q, k, dot * a->scale + bias};
        }
    }
    return n;
}

static void one_row(const spl_attn_args *a, int64_t b, int64_t h, int64_t row, seen *list) {
    int64_t n = gather(a, b, h, row, list), at = (b * a->heads + h) * a->sq + row;
    spl_dtype t = a->dtype, out_type = splk_ref_mixed(t, a->out_dtype), lse_type = t == SPL_F64 ? SPL_F64 : SPL_F32;
    double top = -INFINITY, sum = 0, old = a->merge ? splk_ref_get(a->lse, lse_type, at) : -INFINITY;
    for (int64_t i = 0; i < n; i++) top = fmax(top, list[i].score);
    for (int64_t i = 0; i < n; i++) sum += exp(list[i].score - top);
    double lse = n > 0 ? top + log(sum) : -INFINITY, high = old > lse ? old : lse;
    double both = n == 0 ? old : old == -INFINITY ? lse : high + log(exp(old - high) + exp(lse - high));
    for (int64_t d = 0; d < a->head_dim; d++) {
        int64_t o = element(a->out_strides, b, row, h, d);
        double out = 0;
        for (int64_t i = 0; i < n; i++) {
            double weight = exp(list[i].score - top) / sum;
            if (a->p > 0) {
                int64_t bg = held(a->batch_segments, a->nbatch_segments, b),
                        hg = held(a->head_segments, a->nhead_segments, h);
                int64_t g = ((bg * a->heads_global + hg) * a->seq_q_global + list[i].q_position) * a->seq_k_global +
                            list[i].k_position;
                weight *= (splk_ref_uniform(a->key, g) >= a->p) / (1 - a->p);
            }
            out += weight * splk_ref_get(a->v, t, element(a->v_strides, b, list[i].key, a->kv_of_head[h], d));
        }
        if (n > 0) out *= exp(lse - both);
        if (old > -INFINITY || isnan(old)) out += splk_ref_get(a->out, out_type, o) * exp(old - both);
        splk_ref_put(a->out, out_type, o, out);
    }
    splk_ref_put(a->lse, lse_type, at, both);
}

spl_status splk_ref_pieces(void *ctx, spl_queue *q, const spl_attn_args *a) {
    (void)ctx, (void)q;
    int64_t capacity = 1, rows = a->batch * a->heads * a->sq;
    int failed = 0;
    for (int i = 0; i < a->npieces; i++) capacity += a->pieces[i].nk;
#pragma omp parallel reduction(+ : failed)
    {
        seen *list = malloc((size_t)capacity * sizeof *list);
        if (!list) failed++;
#pragma omp for
        for (int64_t r = 0; r < rows; r++)
            if (list) one_row(a, r / (a->heads * a->sq), r / a->sq % a->heads, r % a->sq, list);
        free(list);
    }
    if (failed)
        return spli_error(SPL_ENOMEM, "the reference of attention found no memory for %lld scores",
                          (long long)capacity);
    return spli_ok();
}

spl_status splk_ref_pool(void *ctx, spl_queue *q, const spl_pool_args *a) {
    (void)ctx, (void)q;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t g = 0; g < a->ngroups; g++)
            for (int64_t h = 0; h < a->heads; h++)
                for (int64_t d = 0; d < a->head_dim; d++) {
                    double sum = 0;
                    for (int64_t t = 0; t < a->groups[g].length; t++)
                        sum += splk_ref_get(a->x, a->dtype, element(a->x_strides, b, a->groups[g].start + t, h, d));
                    splk_ref_put(a->y, a->dtype, element(a->y_strides, b, g, h, d), sum / (double)a->groups[g].length);
                }
    return spli_ok();
}
