/* ref_attention.c: attention over a mask given as slices, from its definition: the whole row of scores, its maximum,
 * the sum of exponentials, the weighted sum of values. A pair is visible when any slice shows it. */
#include "ref.h"

static int shows(const spl_ref_slice *s, int64_t q, int64_t k) {
    if (q < s->q_begin || q >= s->q_end || k < s->k_begin || k >= s->k_end) return 0;
    int not_after = k - s->k_end <= q - s->q_end, not_before = k - s->k_begin >= q - s->q_begin;
    switch (s->kind) {
    case 0: return 1;
    case 1: return not_after;
    case 2: return not_before;
    default: return not_after && not_before;
    }
}

int splk_ref_shows(const spl_ref_slice *slices, int n, int64_t q, int64_t k) {
    for (int s = 0; s < n; s++)
        if (shows(&slices[s], q, k)) return 1;
    return 0;
}

/* Row `i` of the output (query row `q` of the sequence) for one batch item and head; `score` has room for seq_k. */
static int attend(const spl_ref_attention_args *a, int64_t b, int64_t h, int64_t i, double *score) {
    int64_t q = a->rows ? a->rows[i] : i, rows = a->rows ? a->nrows : a->seq_q, d = a->head_dim;
    int64_t kv = h / (a->heads / a->kv_heads);
    const double *query = a->q + ((b * a->seq_q + q) * a->heads + h) * d;
    double *out = a->out + ((b * rows + i) * a->heads + h) * d;
    double largest = -INFINITY, total = 0;
    int64_t seen = 0;
    if (a->chunk > 0) {
        splk_ref_chunk_query one = {query, a->k + (b * a->seq_k * a->kv_heads + kv) * d,
                                    a->v + (b * a->seq_k * a->kv_heads + kv) * d, a->kv_heads * d, a->seq_k, d, q,
                                    a->chunk, a->summaries, a->causal, a->scale};
        return splk_ref_chunk_attention(&one, out, &a->lse[(b * a->heads + h) * rows + i]);
    }
    for (int64_t k = 0; k < a->seq_k; k++) {
        score[k] = NAN; /* marks what is hidden: a visible score may be NaN too, and then the row is NaN anyway */
        if (!splk_ref_shows(a->slices, a->nslices, q, k)) continue;
        const double *key = a->k + ((b * a->seq_k + k) * a->kv_heads + kv) * d;
        double dot = 0;
        for (int64_t j = 0; j < d; j++) dot += query[j] * key[j];
        score[k] = dot * a->scale;
        if (isnan(score[k])) {
            for (int64_t j = 0; j < d; j++) out[j] = NAN;
            a->lse[(b * a->heads + h) * rows + i] = NAN;
            return 1;
        }
        if (score[k] > largest) largest = score[k];
        seen++;
    }
    for (int64_t j = 0; j < d; j++) out[j] = 0;
    a->lse[(b * a->heads + h) * rows + i] = -INFINITY;
    if (seen == 0) return 1;
    for (int64_t k = 0; k < a->seq_k; k++)
        if (!isnan(score[k])) total += exp(score[k] - largest);
    for (int64_t k = 0; k < a->seq_k; k++) {
        if (isnan(score[k])) continue;
        double weight = exp(score[k] - largest) / total;
        if (a->p > 0) {
            int64_t g = ((b * a->heads + h) * a->seq_q + q) * a->seq_k + k;
            weight = splk_ref_uniform(a->key, g) >= a->p ? weight / (1 - a->p) : 0;
        }
        const double *value = a->v + ((b * a->seq_k + k) * a->kv_heads + kv) * d;
        for (int64_t j = 0; j < d; j++) out[j] += weight * value[j];
    }
    a->lse[(b * a->heads + h) * rows + i] = largest + log(total);
    return 1;
}

spl_status splk_ref_attention(const spl_ref_attention_args *a) {
    if (a->batch < 0 || a->heads < 0 || a->kv_heads < 1 || a->heads % a->kv_heads != 0 || a->seq_q < 0 ||
        a->seq_k < 0 || a->head_dim < 0)
        return spli_error(SPL_EARG,
                          "reference attention: heads %lld must be a multiple of kv_heads %lld and no size negative",
                          (long long)a->heads, (long long)a->kv_heads);
    if (a->chunk < 0 || (a->chunk > 0 && (a->summaries < 1 || a->seq_q != a->seq_k || a->p > 0)))
        return spli_error(SPL_EARG,
                          "reference attention: chunks of %lld with %lld summaries need as many queries as keys and no "
                          "dropout",
                          (long long)a->chunk, (long long)a->summaries);
    int64_t rows = a->rows ? a->nrows : a->seq_q;
    for (int64_t i = 0; i < rows && a->rows; i++)
        if (a->rows[i] < 0 || a->rows[i] >= a->seq_q)
            return spli_error(SPL_EARG, "reference attention: sampled row %lld is outside the %lld queries",
                              (long long)a->rows[i], (long long)a->seq_q);
    int failed = 0;
#pragma omp parallel reduction(+ : failed)
    {
        double *score = malloc((size_t)(a->seq_k + 1) * sizeof *score);
        if (!score) failed++;
#pragma omp for schedule(dynamic, 8)
        for (int64_t n = 0; n < a->batch * a->heads * rows; n++)
            if (score) failed += !attend(a, n / (a->heads * rows), n / rows % a->heads, n % rows, score);
        free(score);
    }
    if (failed)
        return spli_error(SPL_ENOMEM, "reference attention: no memory for rows of %lld scores", (long long)a->seq_k);
    return spli_ok();
}
