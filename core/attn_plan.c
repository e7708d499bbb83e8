/* attn_plan.c: which member computes what on whose keys, and what travels when, as a pure function of the mask and of
 * everyone's segments.
 *
 * A piece is one (slice, query segment, key segment) with something visible in it, cut to the slice and named by local
 * positions; its diagonal bounds are in global positions. Pieces of one plan are disjoint because slices are.
 *
 * Member m needs those rows of block b (the keys that member b holds) that some query of m sees. For each block these
 * sets alone say how its rows travel: `ways` finds out, and hands every wanted member what it shall receive and send.
 * At the end each step's source is the rows received, ordered by sender, and named as global segments; so the pieces of
 * a later step are made just as those of the own keys. */
#include "attn.h"
#include <stdlib.h>
#include <string.h>

static spl_status no_memory(void) { return spli_error(SPL_ENOMEM, "out of memory while planning attention"); }

/* ---- what is visible ---- */

__extension__ typedef __int128 wide; /* sums and products of int64 */

static wide floor_div(wide a, wide b) { return a / b - (a % b < 0); }

static int64_t clamp(wide v, int64_t high) { return v < 0 ? 0 : v > high ? high : (int64_t)v; }

/* The part of a segment whose indices lie in [begin, end): first position (within the segment) and count. */
static int64_t cut(spl_segment s, int64_t begin, int64_t end, int64_t *first) {
    const int64_t lo = clamp(-floor_div((wide)s.start - begin, s.stride), s.length);
    const int64_t hi = clamp(-floor_div((wide)s.start - end, s.stride), s.length);
    *first = lo;
    return hi > lo ? hi - lo : 0;
}

/* How many keys of the piece stand before or at the global position `at`. */
static int64_t keys_up_to(const spl_attn_piece *p, wide at) {
    return clamp(floor_div(at - p->k_start, p->k_stride) + 1, p->nk);
}

/* How many keys of the piece stand before the position that a query at `q` may reach to; and may begin at. */
static int64_t keys_to(const spl_attn_piece *p, int64_t q) {
    return p->has_upper ? keys_up_to(p, (wide)q + p->upper) : p->nk;
}

static int64_t keys_from(const spl_attn_piece *p, int64_t q) {
    return p->has_lower ? keys_up_to(p, (wide)q + p->lower - 1) : 0;
}

/* The sum of floor((a i + b) / m) over i in [0, n), for a, b >= 0: whole parts out, then with the axes changed about,
 * as Euclid's algorithm goes on. */
static wide floor_sum(wide n, wide m, wide a, wide b) {
    wide total = 0;
    int sign = 1;
    while (n > 0) {
        total += sign * (n * (n - 1) / 2 * (a / m) + n * (b / m));
        a %= m;
        b %= m;
        const wide top = (a * (n - 1) + b) / m; /* of the last: lattice points in columns become such in rows */
        if (top == 0) break;
        total += sign * top * (n - 1);
        /* the sum over j in [0, top) of the i with a i + b < m (j + 1), less one */
        const wide next_b = m - b - 1, next_m = a;
        sign = -sign;
        n = top;
        a = m;
        b = next_b;
        m = next_m;
    }
    return total;
}

/* The sum over the piece's queries of keys_up_to(q + shift): none at first, then growing with each, then all. */
static wide keys_of_all(const spl_attn_piece *p, wide shift) {
    const wide a = (wide)p->q_start + shift - p->k_start;
    const int64_t none = clamp(-floor_div(a, p->q_stride), p->nq);
    const int64_t all = clamp(-floor_div(a - (wide)(p->nk - 1) * p->k_stride, p->q_stride), p->nq);
    const wide grow = all - none;
    return grow + floor_sum(grow, p->k_stride, p->q_stride, a + (wide)none * p->q_stride) + (wide)(p->nq - all) * p->nk;
}

/* Visible pairs; INT64_MAX where there are as many, or more. A band that is empty has none. */
static int64_t piece_pairs(const spl_attn_piece *p) {
    if (p->has_upper && p->has_lower && p->upper < p->lower) return 0;
    wide total = p->has_upper ? keys_of_all(p, p->upper) : (wide)p->nq * p->nk;
    if (p->has_lower) total -= keys_of_all(p, (wide)p->lower - 1);
    return total < INT64_MAX ? (int64_t)total : INT64_MAX;
}

/* Keys that some row of the piece sees, as positions from k0 on: those between where the first row may begin and where
 * the last may end, unless a band is narrower than the step from one query to the next. */
static void piece_keys(const spl_attn_piece *p, spli_rows *out) {
    int gaps = p->has_upper && p->has_lower && p->upper - p->lower + 1 < p->q_stride;
    int64_t each = gaps ? 1 : p->nq;
    for (int64_t i = 0; i < p->nq; i += each) {
        int64_t first = p->q_start + i * p->q_stride, last = first + (each - 1) * p->q_stride;
        spli_rows_add(out, p->k0 + keys_from(p, first), p->k0 + keys_to(p, last));
    }
}

typedef void (*piece_use)(void *ctx, const spl_attn_piece *p);

static void each_piece(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, piece_use use,
                       void *ctx) {
    for (int s = 0; s < mask->n; s++) {
        const spl_slice *slice = &mask->slices[s];
        int64_t q_offset = 0;
        for (int i = 0; i < q->n; q_offset += q->at[i++].length) {
            int64_t q_first, nq = cut(q->at[i], slice->q_begin, slice->q_end, &q_first), k_offset = 0;
            for (int j = 0; j < kv->n && nq > 0; k_offset += kv->at[j++].length) {
                int64_t k_first, nk = cut(kv->at[j], slice->k_begin, slice->k_end, &k_first);
                if (nk == 0) continue;
                spl_attn_piece p = {.q0 = q_offset + q_first,
                                    .nq = nq,
                                    .k0 = k_offset + k_first,
                                    .nk = nk,
                                    .q_start = q->at[i].start + q_first * q->at[i].stride,
                                    .q_stride = q->at[i].stride,
                                    .k_start = kv->at[j].start + k_first * kv->at[j].stride,
                                    .k_stride = kv->at[j].stride,
                                    .has_upper = slice->kind == SPL_SLICE_CAUSAL || slice->kind == SPL_SLICE_BOTH,
                                    .has_lower = slice->kind == SPL_SLICE_INVERSE || slice->kind == SPL_SLICE_BOTH,
                                    .upper = slice->k_end - slice->q_end,
                                    .lower = slice->k_begin - slice->q_begin};
                use(ctx, &p);
            }
        }
    }
}

static void use_keys(void *ctx, const spl_attn_piece *p) { piece_keys(p, ctx); }

typedef struct piece_list {
    spli_attn_step *step;
    int capacity, failed, uncountable;
    int64_t pairs;
} piece_list;

static void use_piece(void *ctx, const spl_attn_piece *p) {
    piece_list *l = ctx;
    int64_t visible = piece_pairs(p);
    if (visible == 0 || l->failed) return; /* masked: never computed */
    if (__builtin_add_overflow(l->pairs, visible, &l->pairs) || l->pairs == INT64_MAX) {
        l->failed = l->uncountable = 1;
        return;
    }
    if (l->step->npieces == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 4;
        spl_attn_piece *grown = realloc(l->step->pieces, (size_t)l->capacity * sizeof *grown);
        if (!grown) {
            l->failed = 1;
            return;
        }
        l->step->pieces = grown;
    }
    l->step->pieces[l->step->npieces++] = *p;
}

static spl_status add_pieces(const spli_mask *mask, const spli_segments *q, const spli_segments *source,
                             spli_attn_step *step, int64_t *pairs) {
    piece_list l = {.step = step, .pairs = *pairs};
    each_piece(mask, q, source, use_piece, &l);
    if (l.uncountable)
        return spli_error(SPL_EUSAGE,
                          "attention: of %lld queries and %lld keys a rank would see more pairs than can be counted "
                          "(2^63); take more ranks or a mask that shows less",
                          (long long)mask->seq_q, (long long)mask->seq_k);
    *pairs = l.pairs;
    return l.failed ? no_memory() : spli_ok();
}

/* ---- how the rows of one block travel ---- */

/* Rows of a block that reach a member: from the member below, from the one above, or straight from the owner. */
enum { UP, DOWN, STRAIGHT, WAYS };

typedef struct ways { /* by member */
    spli_rows *by[WAYS];
} ways;

static void ways_clear(ways *w, int members) {
    for (int k = 0; k < WAYS; k++)
        for (int m = 0; m < members; m++) w->by[k][m].n = 0;
}

static void swap(spli_rows *a, spli_rows *b) {
    spli_rows t = *a;
    *a = *b;
    *b = t;
}

/* In a plan that uses both directions, the rows of a block that all members need may go up or down: those that go up
 * are at most half of the block, so that what comes to a member at one time is no more than a block. Takes the rest out
 * of `now`, all rows of block b. */
static void share_directions(const spli_rows *needed, int members, int b, spli_rows *some, spli_rows *now) {
    spli_rows all = {0}, rest = {0};
    int64_t half = (spli_rows_total(now) + 1) / 2;
    spli_rows_copy(now, &all);
    for (int m = 0; m < members && all.n; m++) {
        if (m == b) continue;
        some->n = 0;
        spli_rows_meet(&all, &needed[m], some);
        swap(&all, some);
    }
    for (int i = 0; i < all.n; i++) {
        int64_t rows = all.at[i].end - all.at[i].begin, kept = rows < half ? rows : half;
        half -= kept;
        spli_rows_add(&rest, all.at[i].begin + kept, all.at[i].end);
    }
    some->n = 0;
    some->failed |= all.failed | rest.failed;
    spli_rows_less(now, &rest, some);
    swap(now, some);
    spli_rows_free(&all);
    spli_rows_free(&rest);
}

/* Fills w for block b. `some` and `now` are scratch. */
static void find_ways(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                      spli_attn_method method, int both, int b, ways *w, spli_rows *some, spli_rows *now) {
    spli_rows *up = w->by[UP], *down = w->by[DOWN], *straight = w->by[STRAIGHT];
    ways_clear(w, members);
    for (int m = 0; m < members; m++)
        if (m != b) each_piece(mask, &q[m], &kv[b], use_keys, &straight[m]); /* all that m needs */
    if (method == SPLI_ATTN_GATHER) return;
    for (int direction = 0; direction < 2; direction++) {
        spli_rows *way = direction == 0 ? up : down;
        now->n = 0;
        spli_rows_add(now, 0, spli_segments_total(kv[b].at, kv[b].n));
        if (both && direction == 0) share_directions(straight, members, b, some, now);
        for (int t = 1; t < members && now->n; t++) {
            int m = direction == 0 ? (b + t) % members : (b - t + members) % members;
            some->n = 0;
            spli_rows_meet(now, &straight[m], some);
            swap(now, some); /* what goes on travelling is what this member needs of what came to it */
            spli_rows_copy(now, &way[m]);
            some->n = 0;
            spli_rows_less(&straight[m], &way[m], some);
            swap(&straight[m], some);
        }
    }
}

/* ---- collecting what concerns one member ---- */

typedef struct part { /* something that member receives, or sends, during step `step` */
    int step, peer, way, block;
    spli_rows rows; /* of the block */
} part;

typedef struct parts {
    part *at;
    int n, capacity;
} parts;

static spl_status parts_add(parts *l, int step, int peer, int way, int block, const spli_rows *rows) {
    if (rows->n == 0) return spli_ok();
    if (l->n == l->capacity) {
        int capacity = l->capacity ? 2 * l->capacity : 16;
        part *grown = realloc(l->at, (size_t)capacity * sizeof *grown);
        if (!grown) return no_memory();
        l->at = grown;
        l->capacity = capacity;
    }
    part *p = &l->at[l->n++];
    *p = (part){.step = step, .peer = peer, .way = way, .block = block};
    spli_rows_copy(rows, &p->rows);
    return p->rows.failed ? no_memory() : spli_ok();
}

static void parts_clear(parts *l) {
    for (int i = 0; i < l->n; i++) spli_rows_free(&l->at[i].rows);
    free(l->at);
    *l = (parts){0};
}

static int by_step_and_peer(const void *x, const void *y) {
    const part *a = x, *b = y;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->peer != b->peer) return a->peer < b->peer ? -1 : 1;
    return a->way - b->way;
}

/* Step during which rows of block b travel to member m. */
static int step_of(int way, int b, int m, int members, spli_attn_method method) {
    if (method == SPLI_ATTN_GATHER) return 0;
    return (way == DOWN ? b - m + members : m - b + members) % members - 1;
}

/* What block b brings member m, and what m passes on of it. */
static spl_status collect(const ways *w, int b, int m, int members, spli_attn_method method, parts *in, parts *out) {
    int below = (m - 1 + members) % members, above = (m + 1) % members;
    if (m != b) {
        const int from[WAYS] = {[UP] = below, [DOWN] = above, [STRAIGHT] = b};
        for (int k = 0; k < WAYS; k++)
            SPL_TRY(parts_add(in, step_of(k, b, m, members, method), from[k], k, b, &w->by[k][m]));
    }
    if (above != b) SPL_TRY(parts_add(out, step_of(UP, b, above, members, method), above, UP, b, &w->by[UP][above]));
    if (below != b)
        SPL_TRY(parts_add(out, step_of(DOWN, b, below, members, method), below, DOWN, b, &w->by[DOWN][below]));
    for (int to = 0; m == b && to < members; to++)
        if (to != b)
            SPL_TRY(parts_add(out, step_of(STRAIGHT, b, to, members, method), to, STRAIGHT, b, &w->by[STRAIGHT][to]));
    return spli_ok();
}

/* ---- from parts to steps ---- */

/* The global indices of some rows of a block, behind what `out` has. */
static spl_status append_rows(const spli_segments *block, const spli_rows *rows, spli_segments *out) {
    int64_t offset = 0;
    for (int i = 0, r = 0; i < block->n && r < rows->n; offset += block->at[i++].length) {
        const spl_segment s = block->at[i];
        while (r < rows->n && rows->at[r].begin < offset + s.length) {
            int64_t begin = rows->at[r].begin > offset ? rows->at[r].begin - offset : 0;
            int64_t end = rows->at[r].end - offset < s.length ? rows->at[r].end - offset : s.length;
            if (out->n == out->capacity) {
                int capacity = out->capacity ? 2 * out->capacity : 8;
                spl_segment *grown = realloc(out->at, (size_t)capacity * sizeof *grown);
                if (!grown) return no_memory();
                out->at = grown;
                out->capacity = capacity;
            }
            out->at[out->n++] = (spl_segment){s.start + begin * s.stride, end - begin, s.stride};
            if (rows->at[r].end > offset + s.length) break; /* goes on in the next segment */
            r++;
        }
    }
    return spli_ok();
}

/* What arrives during step `s` as the source of the next, and the pieces computed on it. */
static spl_status fill_source(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, const part *in,
                              int n, int s, spli_attn_plan *plan) {
    spli_attn_step *step = &plan->steps[s], *next = &plan->steps[s + 1];
    spli_segments source = {0};
    spl_status status = spli_ok();
    if (n == 0) return status;
    step->recvs = calloc((size_t)n, sizeof *step->recvs);
    if (!step->recvs) return no_memory();
    for (int i = 0; i < n; i++) {
        int64_t rows = spli_rows_total(&in[i].rows);
        step->recvs[step->nrecvs++] = (spli_attn_recv){in[i].peer, next->source_rows, rows};
        next->source_rows += rows;
        SPL_GO(append_rows(&kv[in[i].block], &in[i].rows, &source), done);
    }
    SPL_GO(add_pieces(mask, q, &source, next, &plan->pairs), done);
done:
    spli_segments_free(&source);
    return status;
}

/* Where the rows that are sent on during step s lie: what came during the step before in the same way. */
static spl_status fill_sends(const parts *in, const part *out, int n, int s, spli_attn_plan *plan) {
    spli_attn_step *step = &plan->steps[s];
    if (n == 0) return spli_ok();
    step->sends = calloc((size_t)n, sizeof *step->sends);
    if (!step->sends) return no_memory();
    for (int i = 0; s == 0 && i < n; i++)
        for (int r = 0; r < out[i].rows.n; r++)
            spli_rows_add(&plan->staged, out[i].rows.at[r].begin, out[i].rows.at[r].end);
    for (int i = 0; i < n; i++) {
        spli_attn_send *send = &step->sends[step->nsends++];
        send->to = out[i].peer;
        plan->rows_sent += spli_rows_total(&out[i].rows);
        if (s == 0) {
            spli_rows_place(&plan->staged, 0, &out[i].rows, &send->rows);
        } else if (out[i].way == STRAIGHT) {
            send->own = 1;
            spli_rows_copy(&out[i].rows, &send->rows);
        } else {
            int64_t base = 0;
            for (int j = 0; j < in->n; j++) {
                if (in->at[j].step != s - 1) continue;
                if (in->at[j].way == out[i].way && in->at[j].block == out[i].block)
                    spli_rows_place(&in->at[j].rows, base, &out[i].rows, &send->rows);
                base += spli_rows_total(&in->at[j].rows);
            }
        }
        if (send->rows.failed) return no_memory();
    }
    return plan->staged.failed ? no_memory() : spli_ok();
}

static spl_status fill_plan(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int me, int nsteps,
                            parts *in, parts *out, spli_attn_plan *plan) {
    plan->steps = calloc((size_t)nsteps, sizeof *plan->steps);
    if (!plan->steps) return no_memory();
    plan->nsteps = nsteps;
    plan->steps[0].source_rows = spli_segments_total(kv[me].at, kv[me].n);
    SPL_TRY(add_pieces(mask, &q[me], &kv[me], &plan->steps[0], &plan->pairs));
    if (in->n) qsort(in->at, (size_t)in->n, sizeof *in->at, by_step_and_peer);
    if (out->n) qsort(out->at, (size_t)out->n, sizeof *out->at, by_step_and_peer);
    for (int s = 0, i = 0, o = 0; s + 1 < nsteps; s++) {
        int i0 = i, o0 = o;
        while (i < in->n && in->at[i].step == s) i++;
        while (o < out->n && out->at[o].step == s) o++;
        SPL_TRY(fill_source(mask, &q[me], kv, in->at + i0, i - i0, s, plan));
        SPL_TRY(fill_sends(in, out->at + o0, o - o0, s, plan));
    }
    return spli_ok();
}

/* ---- the hash ---- */

/* FNV-1a over 64-bit words. */
uint64_t spli_attn_mix(uint64_t hash, const int64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)words[i] ^ (uint64_t)words[i] >> 32) * 0x100000001b3u;
    return hash;
}

static uint64_t mix_segments(uint64_t hash, const spli_segments *s) {
    for (int i = 0; i < s->n; i++) {
        int64_t fields[] = {s->at[i].start, s->at[i].length, s->at[i].stride};
        hash = spli_attn_mix(hash, fields, 3);
    }
    return spli_attn_mix(hash, &(int64_t){s->n}, 1);
}

static uint64_t plan_hash(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                          spli_attn_method method) {
    const int64_t sizes[] = {mask->seq_q, mask->seq_k, mask->n, (int64_t)method};
    uint64_t hash = spli_attn_mix(0xcbf29ce484222325u, sizes, 4);
    for (int s = 0; s < mask->n; s++) {
        const spl_slice *x = &mask->slices[s];
        hash = spli_attn_mix(hash, (int64_t[]){x->q_begin, x->q_end, x->k_begin, x->k_end, (int64_t)x->kind}, 5);
    }
    for (int m = 0; m < members; m++) hash = mix_segments(mix_segments(hash, &q[m]), &kv[m]);
    return hash;
}

/* ---- all of it ---- */

void spli_attn_plan_free(spli_attn_plan *p) {
    for (int i = 0; i < p->nsteps; i++) {
        for (int s = 0; s < p->steps[i].nsends; s++) spli_rows_free(&p->steps[i].sends[s].rows);
        free(p->steps[i].sends);
        free(p->steps[i].recvs);
        free(p->steps[i].pieces);
    }
    free(p->steps);
    spli_rows_free(&p->staged);
    memset(p, 0, sizeof *p);
}

/* Ways of all blocks, handed to the wanted members; *last: the last step during which anything travels, anywhere;
 * *down: whether anything goes down. */
static spl_status plan_travel(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                              spli_attn_method method, int both, int first, int count, parts *in, parts *sent,
                              int *last, int *down) {
    ways w;
    spli_rows some = {0}, now = {0};
    spl_status status = spli_ok();
    spli_rows *rows = calloc((size_t)members * WAYS, sizeof *rows);
    *last = -1;
    *down = 0;
    if (!rows) return no_memory();
    for (int k = 0; k < WAYS; k++) w.by[k] = rows + k * members;
    for (int b = 0; b < members && members > 1; b++) {
        find_ways(mask, q, kv, members, method, both, b, &w, &some, &now);
        for (int i = 0; i < members * WAYS; i++) {
            if (rows[i].failed || some.failed || now.failed) SPL_GO(no_memory(), done);
            int step = step_of(i / members, b, i % members, members, method);
            if (rows[i].n && step > *last) *last = step;
            *down |= rows[i].n && i / members == DOWN;
        }
        for (int i = 0; i < count; i++) SPL_GO(collect(&w, b, first + i, members, method, &in[i], &sent[i]), done);
    }
done:
    for (int i = 0; i < members * WAYS; i++) spli_rows_free(&rows[i]);
    free(rows);
    spli_rows_free(&some);
    spli_rows_free(&now);
    return status;
}

spl_status spli_attn_plan_make(const spli_mask *mask, const spli_segments *q, const spli_segments *kv, int members,
                               spli_attn_method method, int first, int count, spli_attn_plan *out) {
    spl_status status = spli_ok();
    int last, down;
    memset(out, 0, (size_t)count * sizeof *out);
    parts *in = calloc((size_t)count * 2, sizeof *in), *sent = in + count;
    if (!in) return no_memory();
    SPL_GO(plan_travel(mask, q, kv, members, method, 0, first, count, in, sent, &last, &down), done);
    if (down) {
        for (int i = 0; i < 2 * count; i++) parts_clear(&in[i]);
        SPL_GO(plan_travel(mask, q, kv, members, method, 1, first, count, in, sent, &last, &down), done);
    }
    uint64_t hash = plan_hash(mask, q, kv, members, method);
    for (int i = 0; i < count; i++) {
        SPL_GO(fill_plan(mask, q, kv, first + i, last + 2, &in[i], &sent[i], &out[i]), done);
        out[i].hash = hash;
    }
done:
    for (int i = 0; i < 2 * count; i++) parts_clear(&in[i]);
    free(in);
    if (status.code != SPL_OK)
        for (int i = 0; i < count; i++) spli_attn_plan_free(&out[i]);
    return status;
}
