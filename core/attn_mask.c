/* attn_mask.c: masks as short lists of slices. */
#include "attn.h"

void spli_mask_full(spli_mask *m, int64_t seq_q, int64_t seq_k) {
    *m = (spli_mask){.seq_q = seq_q, .seq_k = seq_k, .n = 1, .slices = {{0, seq_q, 0, seq_k, SPLI_FULL}}};
}

void spli_mask_causal(spli_mask *m, int64_t seq_q, int64_t seq_k) {
    *m = (spli_mask){.seq_q = seq_q, .seq_k = seq_k, .n = 1, .slices = {{0, seq_q, 0, seq_k, SPLI_CAUSAL}}};
}

/* Keys that query row q of the slice sees: [*first, *last). */
static int64_t row(const spli_slice *s, int64_t q, int64_t *first, int64_t *last) {
    *first = s->k_begin;
    *last = s->k_end;
    if (s->kind == SPLI_CAUSAL || s->kind == SPLI_BOTH) {
        int64_t end = q - s->q_end + s->k_end + 1;
        if (end < *last) *last = end;
    }
    if (s->kind == SPLI_INVERSE_CAUSAL || s->kind == SPLI_BOTH) {
        int64_t begin = q - s->q_begin + s->k_begin;
        if (begin > *first) *first = begin;
    }
    return *last > *first ? *last - *first : 0;
}

spl_status spli_mask_check(const spli_mask *m) {
    for (int i = 0; i < m->n; i++) {
        const spli_slice *s = &m->slices[i];
        if (s->q_begin < 0 || s->q_end < s->q_begin || s->q_end > m->seq_q || s->k_begin < 0 || s->k_end < s->k_begin ||
            s->k_end > m->seq_k)
            return spli_error(
                SPL_EUSAGE, "mask slice %d (queries %lld-%lld, keys %lld-%lld) lies outside %lld queries and %lld keys",
                i + 1, (long long)s->q_begin, (long long)s->q_end, (long long)s->k_begin, (long long)s->k_end,
                (long long)m->seq_q, (long long)m->seq_k);
        for (int j = 0; j < i; j++) { /* rows that both have: their key ranges must not meet */
            const spli_slice *t = &m->slices[j];
            int64_t q0 = s->q_begin > t->q_begin ? s->q_begin : t->q_begin,
                    q1 = s->q_end < t->q_end ? s->q_end : t->q_end;
            for (int64_t q = q0; q < q1; q++) {
                int64_t a0, a1, b0, b1;
                if (row(s, q, &a0, &a1) && row(t, q, &b0, &b1) && a0 < b1 && b0 < a1)
                    return spli_error(
                        SPL_EUSAGE, "mask slices %d and %d both show query %lld the same keys; slices must not overlap",
                        j + 1, i + 1, (long long)q);
            }
        }
    }
    return spli_ok();
}

int64_t spli_mask_pairs(const spli_mask *m) {
    int64_t total = 0, first, last;
    for (int i = 0; i < m->n; i++)
        for (int64_t q = m->slices[i].q_begin; q < m->slices[i].q_end; q++)
            total += row(&m->slices[i], q, &first, &last);
    return total;
}
