/* plan_test.c: masks and attention plans against brute force over all pairs, for any segments and slices; no rank is
 * needed. */
#include "attn.h"
#include "tap.h"
#include <stdlib.h>
#include <string.h>

static uint64_t state = 362436069u;
static int rnd(int n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

static int visible(const spli_mask *m, int64_t q, int64_t k) {
    int times = 0;
    for (int i = 0; i < m->n; i++) {
        const spli_slice *s = &m->slices[i];
        if (q < s->q_begin || q >= s->q_end || k < s->k_begin || k >= s->k_end) continue;
        if ((s->kind == SPLI_CAUSAL || s->kind == SPLI_BOTH) && k - s->k_end > q - s->q_end) continue;
        if ((s->kind == SPLI_INVERSE_CAUSAL || s->kind == SPLI_BOTH) && k - s->k_begin < q - s->q_begin) continue;
        times++;
    }
    return times;
}

static int64_t brute_pairs(const spli_mask *m) {
    int64_t n = 0;
    for (int64_t q = 0; q < m->seq_q; q++)
        for (int64_t k = 0; k < m->seq_k; k++) n += visible(m, q, k) > 0;
    return n;
}

static void random_mask(spli_mask *m) {
    m->seq_q = 1 + rnd(24), m->seq_k = 1 + rnd(24), m->n = 1 + rnd(3);
    for (int i = 0; i < m->n; i++) {
        spli_slice *s = &m->slices[i];
        s->q_begin = rnd((int)m->seq_q), s->q_end = s->q_begin + rnd((int)(m->seq_q - s->q_begin) + 1);
        s->k_begin = rnd((int)m->seq_k), s->k_end = s->k_begin + rnd((int)(m->seq_k - s->k_begin) + 1);
        s->kind = (spli_slice_kind)rnd(4);
    }
}

static void shard(int64_t n, int parts, int c, spl_scheme scheme, spli_segments *out) {
    spl_layout l = {
        .ndim = 1, .naxes = 1, .shape = {n}, .axis_size = {parts}, .axes = {{.place = SPL_SHARD, .scheme = scheme}}};
    if (spli_layout_segments(&l, &c, 0, -1, out).code != SPL_OK) abort();
}

static int64_t at(const spli_segments *s, int64_t position) {
    for (int i = 0; i < s->n; position -= s->at[i++].length)
        if (position < s->at[i].length) return s->at[i].start + position * s->at[i].stride;
    return -1;
}

static void test_masks(void) {
    int wrong = 0, refused = 0, missed = 0;
    for (int round = 0; round < 5000; round++) {
        spli_mask m;
        random_mask(&m);
        int overlap = 0;
        for (int64_t q = 0; q < m.seq_q; q++)
            for (int64_t k = 0; k < m.seq_k; k++) overlap |= visible(&m, q, k) > 1;
        spl_status s = spli_mask_check(&m);
        if ((s.code != SPL_OK) != overlap) missed++;
        refused += overlap;
        if (!overlap && spli_mask_pairs(&m) != brute_pairs(&m)) wrong++;
    }
    ok(wrong == 0 && missed == 0, "pairs and overlaps of random masks (%d overlapping, all refused)", refused);
    spli_mask m = {.seq_q = 8, .seq_k = 8, .n = 1, .slices = {{0, 9, 0, 8, SPLI_FULL}}};
    ok(spli_mask_check(&m).code == SPL_EUSAGE, "a slice outside the sequence is refused");
    spli_mask_causal(&m, 4, 10);
    ok(visible(&m, 0, 6) && !visible(&m, 0, 7) && visible(&m, 3, 9),
       "causal with more keys than queries is aligned at the end");
}

static void test_plans(void) {
    int wrong = 0, made = 0, empty = 0;
    for (int round = 0; round < 3000; round++) {
        spli_mask m;
        random_mask(&m);
        if (spli_mask_check(&m).code != SPL_OK) continue;
        int parts = 1 + rnd(5), c = rnd(parts), kv_parts = 1 + rnd(4), kc = rnd(kv_parts);
        spli_segments q, kv;
        shard(m.seq_q, parts, c, (spl_scheme)rnd(3), &q);
        shard(m.seq_k, kv_parts, kc, (spl_scheme)rnd(3), &kv);
        spli_attn_plan plan;
        if (spli_attn_plan_make(&m, &q, &kv, 1, 0, SPLI_ATTN_LOCAL, &plan).code != SPL_OK) abort();
        int64_t sq = spli_segments_total(q.at, q.n), sk = spli_segments_total(kv.at, kv.n), pairs = 0;
        for (int64_t i = 0; i < sq; i++)
            for (int64_t j = 0; j < sk; j++) {
                int times = 0;
                for (int p = 0; p < plan.steps[0].npieces; p++) {
                    const spl_attn_piece *a = &plan.steps[0].pieces[p];
                    if (i < a->q0 || i >= a->q0 + a->nq || j < a->k0 || j >= a->k0 + a->nk) continue;
                    int64_t qp = a->q_start + (i - a->q0) * a->q_stride, kp = a->k_start + (j - a->k0) * a->k_stride;
                    if (qp != at(&q, i) || kp != at(&kv, j)) wrong++;
                    times += !(a->has_upper && kp > qp + a->upper) && !(a->has_lower && kp < qp + a->lower);
                }
                if (times != visible(&m, at(&q, i), at(&kv, j))) wrong++;
                pairs += times;
            }
        if (pairs != plan.pairs) wrong++;
        empty += plan.steps[0].npieces == 0;
        made++;
        spli_attn_plan_free(&plan);
        spli_segments_free(&q);
        spli_segments_free(&kv);
    }
    ok(wrong == 0, "every visible pair is in exactly one piece of %d random plans, %d of them empty (%d wrong)", made,
       empty, wrong);
}

static uint64_t hash_of(const spli_mask *m, spl_scheme scheme, int parts) {
    spli_segments q, kv;
    spli_attn_plan plan;
    shard(m->seq_q, parts, 0, scheme, &q);
    shard(m->seq_k, 1, 0, SPL_CONTIGUOUS, &kv);
    if (spli_attn_plan_make(m, &q, &kv, 1, 0, SPLI_ATTN_LOCAL, &plan).code != SPL_OK) abort();
    uint64_t hash = plan.hash;
    spli_attn_plan_free(&plan);
    spli_segments_free(&q);
    spli_segments_free(&kv);
    return hash;
}

static void test_hash(void) {
    spli_mask causal, full, longer;
    spli_mask_causal(&causal, 16, 16), spli_mask_full(&full, 16, 16), spli_mask_causal(&longer, 17, 17);
    uint64_t h = hash_of(&causal, SPL_CONTIGUOUS, 2);
    ok(h == hash_of(&causal, SPL_CONTIGUOUS, 2), "equal plans have equal hashes");
    ok(h != hash_of(&full, SPL_CONTIGUOUS, 2) && h != hash_of(&longer, SPL_CONTIGUOUS, 2) &&
           h != hash_of(&causal, SPL_ZIGZAG, 2) && h != hash_of(&causal, SPL_CONTIGUOUS, 4),
       "mask, length, scheme and ranks change the hash");
}

int main(void) {
    test_masks();
    test_plans();
    test_hash();
    return tap_done();
}
