/* attn_plan.c: which member computes what on whose keys, as a pure function of the mask and of everyone's segments.
 *
 * A piece is one (slice, query segment, key segment) with something visible in it, cut to the slice and named by local
 * positions; its diagonal bounds are in global positions. Pieces of one plan are disjoint because slices are. */
#include "attn.h"
#include <stdlib.h>
#include <string.h>

void spli_attn_plan_free(spli_attn_plan *p) {
    for (int i = 0; i < p->nsteps; i++) free(p->steps[i].pieces);
    free(p->steps);
    memset(p, 0, sizeof *p);
}

/* The part of a segment whose indices lie in [begin, end): first position (within the segment) and count. */
static int64_t cut(spl_segment s, int64_t begin, int64_t end, int64_t *first) {
    int64_t lo = begin <= s.start ? 0 : (begin - s.start + s.stride - 1) / s.stride;
    int64_t hi = end <= s.start ? 0 : (end - s.start + s.stride - 1) / s.stride;
    if (hi > s.length) hi = s.length;
    *first = lo;
    return hi > lo ? hi - lo : 0;
}

/* Visible pairs of a piece: a loop over its rows. */
static int64_t piece_pairs(const spl_attn_piece *p) {
    int64_t total = 0;
    for (int64_t i = 0; i < p->nq; i++) {
        int64_t q = p->q_start + i * p->q_stride, lo = 0, hi = p->nk;
        if (p->has_upper) { /* k_start + j*k_stride <= q + upper */
            int64_t room = q + p->upper - p->k_start;
            int64_t n = room < 0 ? 0 : room / p->k_stride + 1;
            if (n < hi) hi = n;
        }
        if (p->has_lower) {
            int64_t need = q + p->lower - p->k_start;
            int64_t n = need <= 0 ? 0 : (need + p->k_stride - 1) / p->k_stride;
            if (n > lo) lo = n;
        }
        if (hi > lo) total += hi - lo;
    }
    return total;
}

static spl_status add_pieces(const spli_mask *mask, const spli_segments *q, const spli_segments *kv,
                             spli_attn_step *step, int64_t *pairs) {
    int capacity = 0;
    for (int s = 0; s < mask->n; s++) {
        const spli_slice *slice = &mask->slices[s];
        int64_t q_offset = 0;
        for (int i = 0; i < q->n; q_offset += q->at[i++].length) {
            int64_t q_first, nq = cut(q->at[i], slice->q_begin, slice->q_end, &q_first), k_offset = 0;
            for (int j = 0; j < kv->n && nq > 0; k_offset += kv->at[j++].length) {
                int64_t k_first, nk = cut(kv->at[j], slice->k_begin, slice->k_end, &k_first);
                spl_attn_piece p = {.q0 = q_offset + q_first,
                                    .nq = nq,
                                    .k0 = k_offset + k_first,
                                    .nk = nk,
                                    .q_start = q->at[i].start + q_first * q->at[i].stride,
                                    .q_stride = q->at[i].stride,
                                    .k_start = kv->at[j].start + k_first * kv->at[j].stride,
                                    .k_stride = kv->at[j].stride,
                                    .has_upper = slice->kind == SPLI_CAUSAL || slice->kind == SPLI_BOTH,
                                    .has_lower = slice->kind == SPLI_INVERSE_CAUSAL || slice->kind == SPLI_BOTH,
                                    .upper = slice->k_end - slice->q_end,
                                    .lower = slice->k_begin - slice->q_begin};
                int64_t visible = piece_pairs(&p);
                if (visible == 0) continue; /* masked: never computed */
                if (step->npieces == capacity) {
                    capacity = capacity ? 2 * capacity : 4;
                    spl_attn_piece *grown = realloc(step->pieces, (size_t)capacity * sizeof *grown);
                    if (!grown) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
                    step->pieces = grown;
                }
                step->pieces[step->npieces++] = p;
                *pairs += visible;
            }
        }
    }
    return spli_ok();
}

/* FNV-1a, 64 bits. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t plan_hash(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                          spli_attn_method method) {
    uint64_t hash = 0xcbf29ce484222325u;
    hash = mix(hash, &mask->seq_q, sizeof mask->seq_q);
    hash = mix(hash, &mask->seq_k, sizeof mask->seq_k);
    for (int s = 0; s < mask->n; s++) { /* field by field: padding is not part of a mask */
        int64_t fields[] = {mask->slices[s].q_begin, mask->slices[s].q_end, mask->slices[s].k_begin,
                            mask->slices[s].k_end, mask->slices[s].kind};
        hash = mix(hash, fields, sizeof fields);
    }
    for (int m = 0; m < members; m++) {
        hash = mix(hash, q[m].at, (size_t)q[m].n * sizeof *q[m].at);
        hash = mix(hash, kv[m].at, (size_t)kv[m].n * sizeof *kv[m].at);
    }
    return mix(hash, &method, sizeof method);
}

spl_status spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                               int me, spli_attn_method method, spli_attn_plan *out) {
    memset(out, 0, sizeof *out);
    SPL_TRY(spli_mask_check(mask));
    out->steps = calloc(1, sizeof *out->steps);
    if (!out->steps) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    out->nsteps = 1;
    out->steps[0] = (spli_attn_step){.kv_of = me, .send_to = -1, .recv_from = -1};
    spl_status status = add_pieces(mask, &q[me], &kv[me], &out->steps[0], &out->pairs);
    if (status.code != SPL_OK) spli_attn_plan_free(out);
    else out->hash = plan_hash(mask, q, kv, members, method);
    return status;
}
