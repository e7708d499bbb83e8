/* ref_chunks.c: hierarchical attention of one query and head, from its definition: the keys of its own chunk one by one
 * (those up to itself, where causal), and of every other chunk (every earlier one) the means of its keys and values
 * over balanced groups, each with the log of the group's size added to its score; one softmax over all. */
#include "ref.h"

typedef struct term { /* one entry of the softmax */
    double score;
    int64_t first, rows; /* its value: the mean of these rows */
} term;

static double mean(const double *x, int64_t stride, int64_t first, int64_t rows, int64_t j) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += x[(first + r) * stride + j];
    return sum / (double)rows;
}

static double score_of(const splk_ref_chunk_query *a, int64_t first, int64_t rows) {
    double dot = 0;
    for (int64_t j = 0; j < a->head_dim; j++) dot += a->q[j] * mean(a->k, a->stride, first, rows, j);
    return dot * a->scale + log((double)rows);
}

int splk_ref_chunk_attention(const splk_ref_chunk_query *a, double *out, double *lse) {
    int64_t own = a->row / a->chunk, chunks = (a->seq + a->chunk - 1) / a->chunk, n = 0;
    term *terms = malloc((size_t)(a->chunk + chunks * a->summaries + 1) * sizeof *terms);
    if (!terms) return 0;
    for (int64_t c = 0; c < chunks; c++) {
        int64_t begin = c * a->chunk, end = begin + a->chunk < a->seq ? begin + a->chunk : a->seq;
        int64_t groups = c == own ? end - begin : a->summaries < end - begin ? a->summaries : end - begin;
        if (a->causal && c > own) break;
        for (int64_t g = 0, first = begin; g < groups; g++) {
            int64_t rows = (end - begin) / groups + (g < (end - begin) % groups);
            if (c == own && a->causal && first > a->row) break;
            terms[n++] = (term){score_of(a, first, rows), first, rows};
            first += rows;
        }
    }
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(terms[i].score <= largest)) largest = terms[i].score;
    for (int64_t i = 0; i < n; i++) total += exp(terms[i].score - largest);
    for (int64_t j = 0; j < a->head_dim; j++) {
        out[j] = 0;
        for (int64_t i = 0; i < n; i++)
            out[j] += exp(terms[i].score - largest) / total * mean(a->v, a->stride, terms[i].first, terms[i].rows, j);
    }
    *lse = largest + log(total);
    free(terms);
    return 1;
}
