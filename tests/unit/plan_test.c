/* plan_test.c: masks and attention plans against brute force over all pairs, for any segments and slices; no rank is
 * needed. Plans are played: what every member holds after each step is followed row by row. */
#include "attn.h"
#include "tap.h"
#include <stdlib.h>
#include <string.h>

static uint64_t state = 362436069u;
static int rnd(int n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

static int shows(const spl_slice *s, int64_t q, int64_t k) {
    if (q < s->q_begin || q >= s->q_end || k < s->k_begin || k >= s->k_end) return 0;
    if ((s->kind == SPL_SLICE_CAUSAL || s->kind == SPL_SLICE_BOTH) && k - s->k_end > q - s->q_end) return 0;
    return !((s->kind == SPL_SLICE_INVERSE || s->kind == SPL_SLICE_BOTH) && k - s->k_begin < q - s->q_begin);
}

static int visible(const spli_mask *m, int64_t q, int64_t k) {
    int times = 0;
    for (int i = 0; i < m->n; i++) times += shows(&m->slices[i], q, k);
    return times;
}

static int64_t brute_pairs(const spli_mask *m) {
    int64_t n = 0;
    for (int64_t q = 0; q < m->seq_q; q++)
        for (int64_t k = 0; k < m->seq_k; k++) n += visible(m, q, k) > 0;
    return n;
}

static spl_slice room[4];

static void random_mask(spli_mask *m) {
    *m = (spli_mask){.seq_q = 1 + rnd(24), .seq_k = 1 + rnd(24), .n = 1 + rnd(3), .slices = room};
    for (int i = 0; i < m->n; i++) {
        spl_slice *s = &m->slices[i];
        s->q_begin = rnd((int)m->seq_q), s->q_end = s->q_begin + rnd((int)(m->seq_q - s->q_begin) + 1);
        s->k_begin = rnd((int)m->seq_k), s->k_end = s->k_begin + rnd((int)(m->seq_k - s->k_begin) + 1);
        s->kind = (spl_slice_kind)rnd(4);
    }
}

static void shard(int64_t n, int parts, int c, spl_scheme scheme, spli_segments *out) {
    spl_layout l = {
        .ndim = 1, .naxes = 1, .shape = {n}, .axis_size = {parts}, .axes = {{.place = SPL_SHARD, .scheme = scheme}}};
    if (spli_layout_segments(&l, &c, 0, -1, out).code != SPL_OK) abort();
}

/* All global indices of a list of segments, and how many. */
static int64_t listed(const spli_segments *s, int64_t **out) {
    int64_t n = 0;
    *out = malloc(sizeof **out * (size_t)(spli_segments_total(s->at, s->n) + 1));
    for (int i = 0; i < s->n; i++)
        for (int64_t j = 0; j < s->at[i].length; j++) (*out)[n++] = s->at[i].start + j * s->at[i].stride;
    return n;
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
    spl_slice outside = {0, 9, 0, 8, SPL_SLICE_FULL};
    spli_mask m = {.seq_q = 8, .seq_k = 8, .n = 1, .slices = &outside};
    ok(spli_mask_check(&m).code == SPL_EUSAGE, "a slice outside the sequence is refused");
}

/* ---- names of masks against what they say ---- */

static int says(const char *name, int64_t n, int64_t seq_q, int64_t seq_k, int64_t q, int64_t k) {
    int64_t at = q + seq_k - seq_q; /* where query q stands among the keys */
    if (!strncmp(name, "causal", 6)) return k <= at;
    if (!strncmp(name, "full", 4)) return 1;
    if (!strncmp(name, "window", 6)) return k <= at && k > at - n;
    if (!strncmp(name, "prefix", 6)) return k < n || k <= at;
    if (!strncmp(name, "padding", 7)) return k <= at && at < n;
    return 0;
}

static void test_names(void) {
    static const char *const names[] = {"causal", "full", "window", "prefix", "padding"};
    int wrong = 0, tried = 0;
    for (int kind = 0; kind < 5; kind++)
        for (int64_t seq_q = 1; seq_q < 9; seq_q++)
            for (int64_t seq_k = 1; seq_k < 9; seq_k++)
                for (int64_t n = kind < 2 ? 1 : kind == 2; n <= (kind < 2 ? 1 : seq_k); n++) {
                    char text[32];
                    spl_mask *mask;
                    spli_mask m;
                    if (kind < 2)
                        snprintf(text, sizeof text, "%s", names[kind]);
                    else
                        snprintf(text, sizeof text, "%s:%d", names[kind], (int)n);
                    if (spl_mask_parse(text, &mask).code != SPL_OK) abort();
                    if (spli_mask_resolve(mask, seq_q, seq_k, &m).code != SPL_OK) abort();
                    wrong += spli_mask_check(&m).code != SPL_OK;
                    for (int64_t q = 0; q < seq_q; q++)
                        for (int64_t k = 0; k < seq_k; k++)
                            wrong += visible(&m, q, k) != says(text, n, seq_q, seq_k, q, k);
                    tried++;
                    spli_mask_free(&m);
                    spl_mask_release(mask);
                }
    ok(wrong == 0, "%d named masks show what their names say", tried);
    spl_mask *mask;
    spli_mask m;
    char text[40];
    ok(spl_mask_parse("docs:3,1,4", &mask).code == SPL_OK && spli_mask_resolve(mask, 8, 8, &m).code == SPL_OK,
       "documents");
    wrong = 0;
    for (int64_t q = 0; q < 8; q++)
        for (int64_t k = 0; k < 8; k++) {
            int dq = q < 3 ? 0 : q < 4 ? 1 : 2, dk = k < 3 ? 0 : k < 4 ? 1 : 2;
            wrong += visible(&m, q, k) != (dq == dk && k <= q);
        }
    spl_mask_format(mask, text, sizeof text);
    ok(wrong == 0 && !strcmp(text, "docs:3,1,4"), "are causal each for itself");
    spli_mask_free(&m);
    ok(spli_mask_resolve(mask, 9, 9, &m).code == SPL_EUSAGE, "and must sum to the sequence");
    spl_mask_release(mask);
    static const char *const bad[] = {"",
                                      "caus",
                                      "window",
                                      "window:",
                                      "window:0",
                                      "window:-1",
                                      "window:x",
                                      "window:3x",
                                      "causal:3",
                                      "docs:",
                                      "docs:3,",
                                      "docs:3,0",
                                      "docs:3;4",
                                      "prefix",
                                      "Full",
                                      "docs:9223372036854775807,1",
                                      "window:99999999999999999999"};
    wrong = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) wrong += spl_mask_parse(bad[i], &mask).code != SPL_EUSAGE;
    ok(wrong == 0, "what is no mask is refused");
}

/* ---- plans ---- */

typedef struct members {
    int n;
    spli_segments *q, *kv;
    int64_t **q_index, **k_index; /* all global indices held */
} members;

static void members_make(members *g, const spli_mask *m, int n, spl_scheme scheme) {
    g->n = n;
    g->q = calloc((size_t)n, sizeof *g->q), g->kv = calloc((size_t)n, sizeof *g->kv);
    g->q_index = calloc((size_t)n, sizeof *g->q_index), g->k_index = calloc((size_t)n, sizeof *g->k_index);
    for (int i = 0; i < n; i++) {
        shard(m->seq_q, n, i, scheme, &g->q[i]);
        shard(m->seq_k, n, i, scheme, &g->kv[i]);
        listed(&g->q[i], &g->q_index[i]);
        listed(&g->kv[i], &g->k_index[i]);
    }
}

static void members_free(members *g) {
    for (int i = 0; i < g->n; i++) {
        spli_segments_free(&g->q[i]), spli_segments_free(&g->kv[i]);
        free(g->q_index[i]), free(g->k_index[i]);
    }
    free(g->q), free(g->kv), free(g->q_index), free(g->k_index);
}

/* The `r`-th row that a send moves, as a position in its source. */
static int64_t nth_row(const spli_attn_send *s, int64_t r) {
    int i = 0;
    while (r >= s->rows.at[i].end - s->rows.at[i].begin) r -= s->rows.at[i].end - s->rows.at[i].begin, i++;
    return s->rows.at[i].begin + r;
}

/* Plays all plans together; returns the number of faults. seen[q * seq_k + k] counts how often a pair is computed. */
static int play(const spli_mask *m, const members *g, const spli_attn_plan *plans, unsigned char *seen,
                int64_t *received) {
    int wrong = 0, P = g->n;
    int64_t **now = calloc((size_t)P, sizeof *now), **next = calloc((size_t)P, sizeof *next);
    for (int t = 0; t < plans[0].nsteps; t++) {
        for (int i = 0; i < P; i++) {
            const spli_attn_step *step = &plans[i].steps[t];
            const int64_t *source = t ? now[i] : g->k_index[i];
            if (plans[i].nsteps != plans[0].nsteps) return 1000;
            for (int n = 0; n < step->npieces; n++) {
                const spl_attn_piece *p = &step->pieces[n];
                for (int64_t a = 0; a < p->nq; a++)
                    for (int64_t b = 0; b < p->nk; b++) {
                        int64_t qp = p->q_start + a * p->q_stride, kp = p->k_start + b * p->k_stride;
                        if (p->k0 + b >= step->source_rows || g->q_index[i][p->q0 + a] != qp || source[p->k0 + b] != kp)
                            wrong++;
                        else if (!(p->has_upper && kp > qp + p->upper) && !(p->has_lower && kp < qp + p->lower))
                            seen[qp * m->seq_k + kp]++;
                    }
            }
        }
        if (t + 1 == plans[0].nsteps) break;
        for (int i = 0; i < P; i++) next[i] = calloc((size_t)plans[i].steps[t + 1].source_rows + 1, sizeof **next);
        for (int i = 0; i < P; i++) { /* each receive against the sends of its sender, in their order */
            int64_t filled = 0;
            for (int r = 0; r < plans[i].steps[t].nrecvs; r++) {
                const spli_attn_recv *recv = &plans[i].steps[t].recvs[r];
                const spli_attn_step *theirs = &plans[recv->from].steps[t];
                int skip = 0, match = -1;
                for (int b = 0; b < r; b++) skip += plans[i].steps[t].recvs[b].from == recv->from;
                for (int s = 0; s < theirs->nsends && match < 0; s++)
                    if (theirs->sends[s].to == i && skip-- == 0) match = s;
                if (match < 0 || spli_rows_total(&theirs->sends[match].rows) != recv->rows || recv->at != filled) {
                    wrong++;
                    continue;
                }
                const spli_attn_send *send = &theirs->sends[match];
                for (int64_t x = 0; x < recv->rows; x++) {
                    int64_t at = nth_row(send, x), from = recv->from;
                    if (t == 0) { /* of the staged rows */
                        spli_attn_send staged = {.rows = plans[from].staged};
                        next[i][recv->at + x] = g->k_index[from][nth_row(&staged, at)];
                    } else {
                        next[i][recv->at + x] = send->own ? g->k_index[from][at] : now[from][at];
                    }
                }
                filled += recv->rows;
                received[i] += recv->rows;
            }
            wrong += filled != plans[i].steps[t + 1].source_rows;
        }
        for (int i = 0; i < P; i++) free(now[i]), now[i] = next[i];
    }
    for (int i = 0; i < P; i++) free(now[i]);
    free(now), free(next);
    return wrong;
}

/* Keys of other members that some query of member i sees. */
static int64_t keys_needed(const spli_mask *m, const members *g, int i) {
    int64_t n = 0, nq = spli_segments_total(g->q[i].at, g->q[i].n);
    for (int o = 0; o < g->n; o++)
        for (int64_t k = 0; o != i && k < spli_segments_total(g->kv[o].at, g->kv[o].n); k++) {
            int any = 0;
            for (int64_t q = 0; q < nq && !any; q++) any = visible(m, g->q_index[i][q], g->k_index[o][k]) > 0;
            n += any;
        }
    return n;
}

static int judge(const spli_mask *m, int P, spl_scheme scheme, spli_attn_method method, int brute) {
    members g;
    members_make(&g, m, P, scheme);
    spli_attn_plan *plans = calloc((size_t)P, sizeof *plans);
    unsigned char *seen = calloc((size_t)(m->seq_q * m->seq_k), 1);
    int64_t *received = calloc((size_t)P, sizeof *received), sent = 0, all = 0, pairs = 0;
    if (spli_attn_plan_make(m, g.q, g.kv, P, method, 0, P, plans).code != SPL_OK) abort();
    int wrong = play(m, &g, plans, seen, received);
    for (int64_t q = 0; q < m->seq_q; q++)
        for (int64_t k = 0; k < m->seq_k; k++) wrong += seen[q * m->seq_k + k] != visible(m, q, k);
    for (int i = 0; i < P; i++) {
        if (brute) wrong += received[i] != keys_needed(m, &g, i);
        sent += plans[i].rows_sent;
        all += received[i];
        pairs += plans[i].pairs;
        wrong += plans[i].hash != plans[0].hash;
    }
    wrong += sent != all || pairs != brute_pairs(m);
    for (int i = 0; i < P; i++) spli_attn_plan_free(&plans[i]);
    free(plans), free(seen), free(received);
    members_free(&g);
    return wrong;
}

static void test_plans(void) {
    int wrong = 0, made = 0;
    for (int round = 0; round < 4000; round++) {
        spli_mask m;
        random_mask(&m);
        if (spli_mask_check(&m).code != SPL_OK) continue;
        wrong += judge(&m, 1 + rnd(7), (spl_scheme)rnd(3), (spli_attn_method)rnd(2), 1);
        made++;
    }
    ok(wrong == 0, "%d random plans: each visible pair once, each key that is seen travels once (%d wrong)", made,
       wrong);
}

static spli_mask named(const char *text, int64_t seq) {
    spl_mask *mask;
    spli_mask m;
    if (spl_mask_parse(text, &mask).code != SPL_OK || spli_mask_resolve(mask, seq, seq, &m).code != SPL_OK) abort();
    spl_mask_release(mask);
    return m;
}

static void test_many_ranks(void) {
    static const char *const masks[] = {"causal", "full", "window:9"};
    for (int i = 0; i < 3; i++)
        for (int method = 0; method < (i == 0 ? 2 : 1); method++) {
            spli_mask m = named(masks[i], 2100);
            int wrong = judge(&m, 1024, i == 0 ? SPL_ZIGZAG : SPL_CONTIGUOUS, (spli_attn_method)method, 0);
            ok(wrong == 0, "1,024 ranks, %s, %s (%d wrong)", masks[i], method ? "gather" : "ring", wrong);
            spli_mask_free(&m);
        }
}

static void test_bytes_of_a_full_mask(void) {
    int wrong = 0;
    for (int P = 1; P < 40; P++)
        for (int method = 0; method < 2; method++)
            for (int scheme = 0; scheme < 3; scheme++) {
                members g;
                spli_mask m = named("full", 8 * P);
                spli_attn_plan *plans = calloc((size_t)P, sizeof *plans);
                members_make(&g, &m, P, (spl_scheme)scheme);
                if (spli_attn_plan_make(&m, g.q, g.kv, P, (spli_attn_method)method, 0, P, plans).code != SPL_OK)
                    abort();
                for (int i = 0; i < P; i++) { /* every rank, the closed form: (P - 1) / P of the sequence */
                    wrong += plans[i].rows_sent != (int64_t)(P - 1) * 8;
                    spli_attn_plan_free(&plans[i]);
                }
                free(plans);
                members_free(&g);
                spli_mask_free(&m);
            }
    ok(wrong == 0, "with a full mask every rank sends (P-1)/P of the sequence");
}

/* What is held beside the own keys never exceeds two blocks: one that is used, one that arrives. */
static void test_room(void) {
    int wrong = 0;
    for (int P = 2; P < 20; P++)
        for (int scheme = 0; scheme < 3; scheme++)
            for (int full = 0; full < 2; full++) {
                members g;
                spli_mask m = named(full ? "full" : "causal", 12 * P);
                spli_attn_plan *plans = calloc((size_t)P, sizeof *plans);
                members_make(&g, &m, P, (spl_scheme)scheme);
                if (spli_attn_plan_make(&m, g.q, g.kv, P, SPLI_ATTN_RING, 0, P, plans).code != SPL_OK) abort();
                for (int i = 0; i < P; i++) {
                    for (int t = 0; t < plans[i].nsteps; t++) {
                        int64_t extra = 0;
                        for (int s = 0; s < plans[i].steps[t].nsends; s++)
                            if (plans[i].steps[t].sends[s].own)
                                extra += spli_rows_total(&plans[i].steps[t].sends[s].rows);
                        wrong += t > 0 && plans[i].steps[t].source_rows + extra > 12;
                    }
                    spli_attn_plan_free(&plans[i]);
                }
                free(plans);
                members_free(&g);
                spli_mask_free(&m);
            }
    ok(wrong == 0, "a ring's buffer holds at most one block, causal or full (%d wrong)", wrong);
}

static void test_balance(void) {
    double worst = 0, contiguous = 0;
    for (int P = 2; P <= 1024; P *= 2)
        for (int scheme = 0; scheme < 3; scheme++) {
            int64_t S = 128 * P + 7, most = 0;
            spli_mask m = named("causal", S);
            for (int i = 0; i < P; i++) {
                spli_segments q, all;
                spli_attn_plan plan;
                shard(S, P, i, (spl_scheme)scheme, &q);
                shard(S, 1, 0, SPL_CONTIGUOUS, &all);
                if (spli_attn_plan_make(&m, &q, &all, 1, SPLI_ATTN_RING, 0, 1, &plan).code != SPL_OK) abort();
                if (plan.pairs > most) most = plan.pairs;
                spli_attn_plan_free(&plan);
                spli_segments_free(&q), spli_segments_free(&all);
            }
            double over = (double)most * P / (double)spli_mask_pairs(&m) - 1;
            if (scheme == SPL_CONTIGUOUS)
                contiguous = over;
            else if (over > worst)
                worst = over;
            spli_mask_free(&m);
        }
    ok(worst < 0.02, "causal work of zigzag and striped is within 2 %% of the mean (%.2f %%)", 100 * worst);
    ok(contiguous > 0.9, "and contiguous is not: the busiest rank has %.2f times the mean", 1 + contiguous);
}

static spli_segments stretch(int64_t seq, spl_segment *room) {
    room->start = rnd((int)seq), room->stride = 1 + rnd(7);
    room->length = 1 + rnd((int)((seq - 1 - room->start) / room->stride) + 1);
    return (spli_segments){.at = room, .n = 1, .capacity = 1};
}

/* Pairs of strides that have nothing to do with each other, against a loop over all; and of sequences that nobody
 * could loop over. */
static void test_pair_counts(void) {
    int wrong = 0;
    spl_segment room_q, room_k;
    spli_attn_plan plan;
    for (int round = 0; round < 4000; round++) {
        spli_mask m;
        random_mask(&m);
        m.n = 1;
        const spli_segments q = stretch(m.seq_q, &room_q), k = stretch(m.seq_k, &room_k);
        int64_t pairs = 0;
        for (int64_t i = 0; i < room_q.length; i++)
            for (int64_t j = 0; j < room_k.length; j++)
                pairs += visible(&m, room_q.start + i * room_q.stride, room_k.start + j * room_k.stride);
        if (spli_attn_plan_make(&m, &q, &k, 1, SPLI_ATTN_GATHER, 0, 1, &plan).code != SPL_OK) abort();
        wrong += plan.pairs != pairs;
        spli_attn_plan_free(&plan);
    }
    ok(wrong == 0, "pairs of any two strides are those of a loop (%d are not)", wrong);
    const int64_t n = (int64_t)1 << 40;
    for (spl_scheme scheme = SPL_CONTIGUOUS; scheme <= SPL_STRIPED; scheme++) {
        spli_mask m = named("window:8", n);
        spli_segments parts[4] = {0};
        spli_attn_plan plans[4];
        int64_t all = 0;
        for (int i = 0; i < 4; i++) shard(n, 4, i, scheme, &parts[i]);
        if (spli_attn_plan_make(&m, parts, parts, 4, SPLI_ATTN_RING, 0, 4, plans).code != SPL_OK) abort();
        for (int i = 0; i < 4; i++) {
            all += plans[i].pairs;
            spli_attn_plan_free(&plans[i]);
            spli_segments_free(&parts[i]);
        }
        ok(all == 8 * n - 28 && spli_mask_pairs(&m) == all, "a window over 2^40 tokens is counted, scheme %d", scheme);
        spli_mask_free(&m);
    }
    spli_mask m = named("causal", n);
    const spl_segment first = {0, n, 1}, last = {n - 1, 1, INT64_MAX};
    const spli_segments every = {.at = (spl_segment *)&first, .n = 1}, one = {.at = (spl_segment *)&last, .n = 1};
    ok(spli_mask_pairs(&m) == INT64_MAX &&
           spli_attn_plan_make(&m, &every, &every, 1, SPLI_ATTN_GATHER, 0, 1, &plan).code == SPL_EUSAGE,
       "more pairs than can be counted are refused");
    ok(spli_attn_plan_make(&m, &one, &every, 1, SPLI_ATTN_GATHER, 0, 1, &plan).code == SPL_OK && plan.pairs == n,
       "one query of them sees its keys");
    spli_attn_plan_free(&plan);
    spli_mask_free(&m);
    spl_slice halves[] = {{0, n, 0, n, SPL_SLICE_CAUSAL}, {0, n, 0, n, SPL_SLICE_INVERSE}};
    m = (spli_mask){.seq_q = n, .seq_k = n, .n = 2, .slices = halves};
    ok(spli_mask_check(&m).code == SPL_EUSAGE, "both halves of a square share its diagonal, however long");
    halves[0] = (spl_slice){1, n, 0, n - 1, SPL_SLICE_CAUSAL};
    ok(spli_mask_check(&m).code == SPL_OK, "and without it nothing");
}

static uint64_t hash_of(const spli_mask *m, spl_scheme scheme, int parts, spli_attn_method method) {
    members g;
    spli_attn_plan plan;
    members_make(&g, m, parts, scheme);
    if (spli_attn_plan_make(m, g.q, g.kv, parts, method, 0, 1, &plan).code != SPL_OK) abort();
    uint64_t hash = plan.hash;
    spli_attn_plan_free(&plan);
    members_free(&g);
    return hash;
}

static void test_hash(void) {
    spli_mask causal = named("causal", 16), full = named("full", 16), longer = named("causal", 17),
              window = named("window:3", 16), wider = named("window:4", 16);
    uint64_t h = hash_of(&causal, SPL_CONTIGUOUS, 2, SPLI_ATTN_RING);
    ok(h == hash_of(&causal, SPL_CONTIGUOUS, 2, SPLI_ATTN_RING), "equal plans have equal hashes");
    ok(h != hash_of(&full, SPL_CONTIGUOUS, 2, SPLI_ATTN_RING) &&
           h != hash_of(&longer, SPL_CONTIGUOUS, 2, SPLI_ATTN_RING) &&
           h != hash_of(&causal, SPL_ZIGZAG, 2, SPLI_ATTN_RING) &&
           h != hash_of(&causal, SPL_CONTIGUOUS, 4, SPLI_ATTN_RING) &&
           h != hash_of(&causal, SPL_CONTIGUOUS, 2, SPLI_ATTN_GATHER) &&
           hash_of(&window, SPL_ZIGZAG, 2, SPLI_ATTN_RING) != hash_of(&wider, SPL_ZIGZAG, 2, SPLI_ATTN_RING),
       "mask, length, scheme, ranks and method change the hash");
    spli_mask_free(&causal), spli_mask_free(&full), spli_mask_free(&longer);
    spli_mask_free(&window), spli_mask_free(&wider);
}

int main(void) {
    test_masks();
    test_names();
    test_plans();
    test_many_ranks();
    test_bytes_of_a_full_mask();
    test_room();
    test_balance();
    test_pair_counts();
    test_hash();
    return tap_done();
}
