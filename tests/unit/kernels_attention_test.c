/* kernels_attention_test.c: the tiled attention of the CPU backend against row-by-row attention in fp64: shapes,
 * strides, grouped heads, pieces of every kind, merging, dropout, poison behind masks, drift, threads. */
#include "kernels_common.h"

enum { MAX_PIECES = 8, MAX_HEADS = 8 };

typedef struct attn_case {
    spl_dtype t;
    int64_t batch, heads, kv_heads, sq, sk, dim;
    int layout; /* 0 seq-major, 1 heads-major, 2 q, k, v interleaved by head, 3 gaps, 4 keys in reverse, 5 one key
                   repeated */
    double p;
    int npieces, merge;
    spl_attn_piece pieces[MAX_PIECES];
    double magnitude;
} attn_case;

typedef struct attn_data {
    twin q, k, v, out, lse, bias;
    spl_attn_args cpu, ref;
    int32_t kv_of_head[MAX_HEADS];
} attn_data;

static void strides_of(int layout, int64_t seq, int64_t heads, int64_t dim, int parts, int64_t s[4]) {
    int64_t row = layout == 2 ? parts * dim : layout == 3 ? dim + 3 : dim;
    s[3] = 1;
    s[2] = layout == 1 ? seq * row : row;
    s[1] = layout == 1 ? row : heads * row;
    s[0] = seq * heads * row;
}

/* Data and arguments of a case. Out and lse start as NaN: what is written must not depend on what was there. */
static void attn_make(const attn_case *c, attn_data *d) {
    int64_t row = (c->layout == 2 ? 3 * c->dim : c->dim + 3);
    spl_attn_args *a = &d->cpu;
    d->q = twin_random(c->t, c->batch * c->sq * c->heads * row + 8, c->magnitude);
    d->k = twin_random(c->t, c->batch * (c->sk + 1) * c->kv_heads * row + 8, c->magnitude);
    d->v = twin_random(c->t, c->batch * (c->sk + 1) * c->kv_heads * row + 8, 1);
    d->out = twin_random(c->t, c->batch * c->sq * c->heads * row, 1);
    d->lse = twin_random(c->t, c->batch * c->heads * c->sq, 1);
    for (int64_t i = 0; i < d->out.n; i++) twin_set(&d->out, i, NAN);
    for (int64_t i = 0; i < d->lse.n; i++) twin_set(&d->lse, i, NAN);
    for (int64_t h = 0; h < c->heads; h++) d->kv_of_head[h] = (int32_t)((h * 5 + 2) % c->kv_heads);
    *a = (spl_attn_args){.dtype = c->t,
                         .batch = c->batch,
                         .heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .sq = c->sq,
                         .sk = c->sk,
                         .head_dim = c->dim,
                         .q = d->q.narrow.data,
                         .k = d->k.narrow.data,
                         .v = d->v.narrow.data,
                         .out = d->out.narrow.data,
                         .lse = d->lse.narrow.data,
                         .kv_of_head = d->kv_of_head,
                         .scale = 1 / sqrt((double)c->dim + (c->dim == 0)),
                         .pieces = c->pieces,
                         .npieces = c->npieces,
                         .p = c->p,
                         .key = {{11, 0x9abcdef0}},
                         .heads_global = c->heads,
                         .seq_q_global = 100000,
                         .seq_k_global = 120000};
    strides_of(c->layout, c->sq, c->heads, c->dim, 3, a->q_strides);
    strides_of(c->layout, c->sk, c->kv_heads, c->dim, 3, a->k_strides);
    strides_of(c->layout, c->sk, c->kv_heads, c->dim, 3, a->v_strides);
    strides_of(c->layout == 2 ? 0 : c->layout, c->sq, c->heads, c->dim, 1, a->out_strides);
    spl_attn_args *r = &d->ref;
    d->bias = twin_random(c->t, c->sk + 1, 3);
    *r = *a;
    if ((c->sk + c->sq) % 2) { /* in half of all cases */
        a->key_bias = d->bias.narrow.data;
        r->key_bias = d->bias.wide.data;
    }
    r->dtype = SPL_F64;
    r->q = d->q.wide.data, r->k = d->k.wide.data, r->v = d->v.wide.data, r->out = d->out.wide.data,
    r->lse = d->lse.wide.data;
    if (c->layout == 4 && c->sk > 0) { /* last key first */
        int64_t size = c->t == SPL_F64 ? 8 : 4, back = (c->sk - 1) * a->k_strides[1];
        a->k = (const char *)a->k + back * size, a->v = (const char *)a->v + back * size;
        r->k = (const double *)r->k + back, r->v = (const double *)r->v + back;
        a->k_strides[1] = r->k_strides[1] = -a->k_strides[1];
        a->v_strides[1] = r->v_strides[1] = -a->v_strides[1];
    }
    if (c->layout == 5) a->k_strides[1] = r->k_strides[1] = a->v_strides[1] = r->v_strides[1] = 0;
}

static void attn_free(attn_data *d) {
    twin_free(&d->q), twin_free(&d->k), twin_free(&d->v), twin_free(&d->out), twin_free(&d->lse);
    twin_free(&d->bias);
}

/* Elements as loosely as f32 scores of 128 terms allow, the whole tightly. */
static int attn_compare(const attn_case *c, attn_data *d) {
    double sharp = c->magnitude > 4 ? c->magnitude * c->magnitude : 1; /* errors of scores grow with scores */
    return twin_close(&d->out, tolerance(c->t, 1e-5, 3e-14) * sharp, "out") &&
           twin_close(&d->lse, tolerance(c->t, 3e-6, 1e-14) * sharp, "lse") &&
           twin_near(&d->out, tolerance(c->t, 2e-6, 1e-14) * sharp, "out");
}

static int attn_run(const attn_case *c) {
    attn_data d;
    attn_make(c, &d);
    int good = BOTH(attention, &d.cpu, &d.ref) && attn_compare(c, &d);
    if (!good)
        tap_note("%s batch %lld heads %lld/%lld sq %lld sk %lld dim %lld layout %d p %g pieces %d",
                 spl_dtype_name(c->t), (long long)c->batch, (long long)c->heads, (long long)c->kv_heads,
                 (long long)c->sq, (long long)c->sk, (long long)c->dim, c->layout, c->p, c->npieces);
    attn_free(&d);
    return good;
}

static spl_attn_piece piece(int64_t q0, int64_t nq, int64_t k0, int64_t nk) {
    return (spl_attn_piece){
        .q0 = q0, .nq = nq, .k0 = k0, .nk = nk, .q_start = q0, .q_stride = 1, .k_start = k0, .k_stride = 1};
}

enum mask { FULL, CAUSAL, CAUSAL_SHIFTED, WINDOW, LOWER, STRIPED, ZIGZAG, DOCUMENTS, SCATTERED, NOTHING, NMASKS };
static const char *const mask_names[NMASKS] = {
    "full",   "causal",           "causal, keys ahead and behind", "sliding window", "lower bound only", "striped",
    "zigzag", "packed documents", "scattered rectangles",          "no pieces"};

static void set_mask(attn_case *c, enum mask m) {
    spl_attn_piece p = piece(0, c->sq, 0, c->sk);
    c->npieces = 1;
    switch (m) {
    case FULL: break;
    case CAUSAL: p.has_upper = 1; break;
    case CAUSAL_SHIFTED:
        p.has_upper = 1, p.upper = random_below(2) ? c->sk / 2 : -c->sq / 2, p.q_start = 1000, p.k_start = 990;
        break;
    case WINDOW: p.has_upper = p.has_lower = 1, p.lower = -random_below(100), p.q_start = 50; break;
    case LOWER: p.has_lower = 1, p.lower = random_below(2) ? INT64_MIN : -5; break;
    case STRIPED:
        p.has_upper = 1, p.q_start = 2, p.q_stride = 3, p.k_start = random_below(3), p.k_stride = 1 + random_below(4),
        p.upper = -1;
        break;
    case ZIGZAG: { /* rows and keys hold chunks 1 and 4 of 6 */
        int64_t hq = c->sq / 2, hk = c->sk / 2;
        int n = 0;
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                p = piece(i ? hq : 0, i ? c->sq - hq : hq, j ? hk : 0, j ? c->sk - hk : hk);
                p.q_start = i ? 4 * hk : hk, p.k_start = j ? 4 * hk : hk, p.has_upper = 1;
                c->pieces[n++] = p;
            }
        c->npieces = n;
        return;
    }
    case DOCUMENTS: {
        int64_t at = 0, end = c->sq < c->sk ? c->sq : c->sk;
        c->npieces = 0;
        while (at < end && c->npieces < MAX_PIECES) {
            int64_t n = 1 + random_below(90);
            if (n > end - at) n = end - at;
            p = piece(at, n, at, n), p.has_upper = 1;
            c->pieces[c->npieces++] = p;
            at += n;
        }
        return;
    }
    case SCATTERED: /* disjoint keys, any rows */
        c->npieces = 0;
        for (int64_t k0 = 0; k0 < c->sk && c->npieces < MAX_PIECES; k0 += 70) {
            int64_t q0 = random_below(c->sq + 1);
            c->pieces[c->npieces++] = piece(q0, random_below(c->sq - q0 + 1), k0, c->sk - k0 < 61 ? c->sk - k0 : 61);
        }
        return;
    default: c->npieces = 0; return;
    }
    c->pieces[0] = p;
}

static void masks(void) {
    static const int64_t lengths[] = {0, 1, 2, 7, 63, 64, 65, 127, 129, 200, 300};
    static const int64_t dims[] = {1, 2, 3, 8, 33, 64, 80, 128};
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < NMASKS; m++) {
            int good = 1;
            for (int round = 0; round < 24; round++) {
                attn_case c = {.t = float_types[i],
                               .batch = 1 + random_below(3),
                               .heads = 1 + random_below(4),
                               .kv_heads = 1 + random_below(3),
                               .sq = lengths[random_below(11)],
                               .sk = lengths[random_below(11)],
                               .dim = dims[random_below(8)],
                               .layout = round % 6,
                               .magnitude = 2,
                               .p = round % 5 == 4 ? 0.3 : 0};
                set_mask(&c, (enum mask)m);
                good &= attn_run(&c);
            }
            ok(good, "attention %s, %s: random sizes, strides, grouped heads", spl_dtype_name(float_types[i]),
               mask_names[m]);
        }
    attn_case c = {.t = SPL_F32, .batch = 1, .heads = 2, .kv_heads = 1, .sq = 5, .sk = 9, .dim = 0, .magnitude = 1};
    set_mask(&c, CAUSAL);
    ok(attn_run(&c), "attention: head_dim 0 has lse log(count)");
    c.dim = 16, c.magnitude = 300, c.sq = c.sk = 90;
    ok(attn_run(&c), "attention: scores of 1e5 neither overflow nor lose the maximum");
}

/* ---- merging ---- */

static void merging(void) {
    for (int i = 0; i < 2; i++) {
        attn_case c = {.t = float_types[i],
                       .batch = 2,
                       .heads = 3,
                       .kv_heads = 2,
                       .sq = 70,
                       .sk = 260,
                       .dim = 12,
                       .magnitude = 3};
        attn_data whole, parts;
        uint64_t start = random_state;
        int good = 1;
        c.pieces[0] = piece(0, 70, 0, 260), c.pieces[0].has_upper = 1, c.pieces[0].upper = 100, c.npieces = 1;
        attn_make(&c, &whole);
        random_state = start;
        attn_make(&c, &parts);
        good &= BOTH(attention, &whole.cpu, &whole.ref);
        /* the same keys in five steps, the first of which shows nothing, one of which repeats nothing */
        static const int64_t cuts[] = {200, 260, 0, 0, 0, 90, 90, 200, 90, 90};
        for (int s = 0; s < 5; s++) {
            spl_attn_piece p = piece(0, 70, cuts[2 * s], cuts[2 * s + 1] - cuts[2 * s]);
            p.has_upper = 1, p.upper = 100;
            parts.cpu.pieces = parts.ref.pieces = &p;
            parts.cpu.merge = parts.ref.merge = s > 0;
            good &= BOTH(attention, &parts.cpu, &parts.ref);
        }
        good &= attn_compare(&c, &whole) && attn_compare(&c, &parts);
        for (int64_t e = 0; e < whole.out.n; e++) /* both ways of cutting agree, in both backends */
            good &= same_number(get(parts.out.narrow.data, c.t, e), get(whole.out.wide.data, SPL_F64, e),
                                tolerance(c.t, 3e-6, 1e-13)) &&
                    same_number(get(parts.out.wide.data, SPL_F64, e), get(whole.out.wide.data, SPL_F64, e), 1e-13);
        ok(good, "merge %s: five steps give what one gives, unseen rows stay 0 and -inf", spl_dtype_name(c.t));
        attn_free(&whole), attn_free(&parts);
    }
    /* partial lse -50 with +60, both orders, and -50 with -inf; then all of them times 40 */
    for (int n = 0; n < 6; n++) {
        int order = n % 3;
        float low = n < 3 ? -50 : -2000, high = n < 3 ? 60 : 2400;
        float q = 1, k = order == 1 ? high : low, v = 2, out = order == 2 ? NAN : 7;
        float lse = order == 0 ? high : order == 1 ? low : -INFINITY;
        int32_t kv = 0;
        spl_attn_piece one = piece(0, 1, 0, 1);
        spl_attn_args a = {
            .dtype = SPL_F32,
            .batch = 1,
            .heads = 1,
            .kv_heads = 1,
            .sq = 1,
            .sk = 1,
            .head_dim = 1,
            .q = &q,
            .k = &k,
            .v = &v,
            .out = &out,
            .lse = &lse,
            .q_strides = {1, 1, 1, 1},
            .k_strides = {1, 1, 1, 1},
            .v_strides = {1, 1, 1, 1},
            .out_strides = {1, 1, 1, 1},
            .kv_of_head = &kv,
            .scale = 1,
            .pieces = &one,
            .npieces = 1,
            .merge = 1
        };
        int good = cpu.ops->attention(cpu.ctx, cpu.queue, &a).code == SPL_OK;
        ok(good && out == (order == 0 ? 7.0f : 2.0f) && lse == (order == 2 ? low : high), "merge: %s, %g and %g",
           order == 0   ? "a little into much"
           : order == 1 ? "much into a little"
                        : "into nothing, whose output is not read",
           (double)low, (double)high);
    }
    float q = 0, out = 3, lse = -INFINITY;
    spl_attn_args a = {
        .dtype = SPL_F32,
        .batch = 1,
        .heads = 1,
        .kv_heads = 0,
        .sq = 1,
        .head_dim = 1,
        .q = &q,
        .out = &out,
        .lse = &lse,
        .q_strides = {1, 1, 1, 1},
        .k_strides = {1, 1, 1, 1},
        .v_strides = {1, 1, 1, 1},
        .out_strides = {1, 1, 1, 1},
        .merge = 1
    };
    int good = cpu.ops->attention(cpu.ctx, cpu.queue, &a).code == SPL_OK;
    ok(good && out == 3 && lse == -INFINITY, "merge: nothing into nothing changes nothing");
}

/* ---- dropout over shards ---- */

static void dropout(void) {
    /* heads {1, 3} of 4, batch item 2 of 3, striped keys: against the whole, computed by the reference */
    attn_case c = {
        .t = SPL_F64, .batch = 3, .heads = 4, .kv_heads = 4, .sq = 75, .sk = 96, .dim = 7, .magnitude = 2, .p = 0.25};
    attn_data d;
    set_mask(&c, CAUSAL);
    c.pieces[0].upper = 20;
    attn_make(&c, &d);
    for (int h = 0; h < 4; h++) d.kv_of_head[h] = h;
    d.ref.key_bias = NULL;
    d.ref.seq_q_global = d.cpu.seq_q_global = 75, d.ref.seq_k_global = d.cpu.seq_k_global = 96;
    int good =
        both_ok(ref.ops->attention(ref.ctx, ref.queue, &d.ref), ref.ops->attention(ref.ctx, ref.queue, &d.ref));
    double *out = calloc((size_t)(2 * 25 * 7), sizeof *out), *lse = calloc(2 * 25, sizeof *lse);
    const int64_t *s = d.cpu.q_strides;
    const spl_segment batch = {2, 1, 1}, heads = {1, 2, 2};
    spl_attn_piece thirds[3];
    for (int r = 0; r < 3; r++) { /* keys r, r + 3, ...: a rank of striped keys; queries 1, 4, 7, ... */
        thirds[r] = (spl_attn_piece){.nq = 25,
                                     .nk = 32,
                                     .q_start = 1,
                                     .q_stride = 3,
                                     .k_start = r,
                                     .k_stride = 3,
                                     .has_upper = 1,
                                     .upper = 20};
        spl_attn_args a = d.cpu;
        a.batch = 1, a.heads = 2, a.kv_heads = 2, a.sq = 25, a.sk = 32, a.pieces = &thirds[r], a.npieces = 1,
        a.merge = r > 0, a.key_bias = NULL;
        a.q = (const double *)d.q.narrow.data + 2 * s[0] + s[1] + s[2];
        a.k = (const double *)d.k.narrow.data + 2 * a.k_strides[0] + r * a.k_strides[1] + a.k_strides[2];
        a.v = (const double *)d.v.narrow.data + 2 * a.v_strides[0] + r * a.v_strides[1] + a.v_strides[2];
        a.q_strides[1] *= 3, a.q_strides[2] *= 2, a.k_strides[1] *= 3, a.k_strides[2] *= 2, a.v_strides[1] *= 3,
            a.v_strides[2] *= 2;
        a.out = out, a.lse = lse, a.out_strides[1] = 14, a.out_strides[2] = 7;
        a.batch_segments = &batch, a.nbatch_segments = 1, a.head_segments = &heads, a.nhead_segments = 1;
        spl_status status = cpu.ops->attention(cpu.ctx, cpu.queue, &a);
        good &= status.code == SPL_OK;
    }
    const double *want = d.out.wide.data, *o = out;
    for (int64_t i = 0; i < 25; i++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t e = 0; e < 7; e++)
                good &= same_number(o[(i * 2 + h) * 7 + e],
                                    want[2 * d.ref.out_strides[0] + (1 + 3 * i) * d.ref.out_strides[1] +
                                         (1 + 2 * h) * d.ref.out_strides[2] + e],
                                    1e-13);
    ok(good, "dropout by global index: three striped shards of two heads give the whole's rows");
    free(out), free(lse);
    attn_free(&d);
}

/* ---- poison, drift, threads, refusals ---- */

static void poison(void) {
    for (int i = 0; i < 2; i++) {
        attn_case c = {.t = float_types[i],
                       .batch = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .sq = 250,
                       .sk = 250,
                       .dim = 9,
                       .magnitude = 2};
        attn_data d, clean;
        int good = 1, same = 1;
        for (int kind = 0; kind < 2; kind++) {
            const uint64_t start = random_state;
            set_mask(&c, CAUSAL);
            attn_make(&c, &clean);
            good &= BOTH(attention, &clean.cpu, &clean.ref);
            random_state = start;
            attn_make(&c, &d);
            for (int64_t e = 0; e < 9; e++) { /* from key 200 on, in the second block; rows before it must not notice */
                twin_set(&d.v, 200 * 9 + e, NAN), twin_set(&d.v, 249 * 9 + e, INFINITY);
                if (kind) twin_set(&d.k, 200 * 9 + e, NAN);
            }
            good &= BOTH(attention, &d.cpu, &d.ref) && attn_compare(&c, &d);
            for (int64_t row = 0; row < 200; row++) good &= isfinite(get(d.out.narrow.data, c.t, row * 18));
            good &= isnan(get(d.out.narrow.data, c.t, 200 * 18)) && isnan(get(d.out.narrow.data, c.t, 220 * 18));
            for (int64_t at = 0; at < 200 * 18; at++) /* not even by a rounding */
                same &= get(d.out.narrow.data, c.t, at) == get(clean.out.narrow.data, c.t, at);
            attn_free(&clean);
            attn_free(&d);
        }
        ok(same, "attention %s: rows that do not see a NaN are those of a run without it, bit for bit",
           spl_dtype_name(c.t));
        ok(good, "attention %s: NaN in hidden keys stays hidden, in visible ones it shows", spl_dtype_name(c.t));
    }
}

/* Relative error over so many keys, with random values or with equal ones under equal weights: sums that grow, not
 * cancel, and in the second case rounding errors of one sign. */
static double drift_of(int64_t keys, int equal) {
    attn_case c = {
        .t = SPL_F32, .batch = 1, .heads = 1, .kv_heads = 1, .sq = 8, .sk = keys, .dim = 16, .magnitude = 1};
    attn_data d;
    double error = 0, norm = 0;
    set_mask(&c, FULL);
    attn_make(&c, &d);
    for (int64_t i = 0; i < d.v.n; i++)
        twin_set(&d.v, i, equal ? 0.1 * (double)(1 + i % 16) : 1 + get(d.v.wide.data, SPL_F64, i));
    for (int64_t i = 0; i < d.q.n && equal; i++) twin_set(&d.q, i, 0);
    int good = BOTH(attention, &d.cpu, &d.ref);
    for (int64_t i = 0; i < 8 * 16; i++) {
        double a = get(d.out.narrow.data, c.t, i), b = ((double *)d.out.wide.data)[i];
        error += (a - b) * (a - b), norm += b * b;
    }
    attn_free(&d);
    return good ? sqrt(error / norm) : INFINITY;
}

static void drift(void) {
    double few = drift_of(1024, 0), many = drift_of(65536, 0);
    ok(few < 3e-7 && many < 3e-7, "attention f32: relative error %.1e over 1,024 keys, %.1e over 65,536", few, many);
    few = drift_of(1024, 1), many = drift_of(65536, 1);
    ok(many < 2e-6 && many < 1.1 * few + 5e-8, "attention f32, equal terms: %.1e over 1,024 keys, %.1e over 65,536",
       few, many);
}

static void threads(void) {
    for (int i = 0; i < 2; i++) {
        attn_case c = {.t = float_types[i],
                       .batch = 2,
                       .heads = 3,
                       .kv_heads = 1,
                       .sq = 333,
                       .sk = 333,
                       .dim = 24,
                       .magnitude = 2,
                       .p = 0.1};
        uint64_t start = random_state;
        int good = 1;
        attn_data one, more;
        set_mask(&c, CAUSAL);
        side single;
        open_side(&single, "cpu", 1);
        attn_make(&c, &one);
        good &= single.ops->attention(single.ctx, single.queue, &one.cpu).code == SPL_OK;
        for (int n = 2; n <= 5; n++) {
            side team;
            open_side(&team, "cpu", n);
            random_state = start;
            attn_make(&c, &more);
            good &= team.ops->attention(team.ctx, team.queue, &more.cpu).code == SPL_OK;
            good &= memcmp(one.out.narrow.data, more.out.narrow.data, one.out.narrow.bytes) == 0 &&
                    memcmp(one.lse.narrow.data, more.lse.narrow.data, one.lse.narrow.bytes) == 0;
            attn_free(&more);
            close_side(&team);
        }
        ok(good, "attention %s: 1 to 5 threads give the same bits", spl_dtype_name(c.t));
        attn_free(&one);
        close_side(&single);
    }
    close_side(&cpu); /* the BLAS follows the last context opened */
    open_side(&cpu, "cpu", 2);
}

static void refusals(void) {
    attn_case c = {.t = SPL_F32, .batch = 1, .heads = 2, .kv_heads = 1, .sq = 4, .sk = 4, .dim = 2, .magnitude = 1};
    attn_data d;
    set_mask(&c, FULL);
    attn_make(&c, &d);
#define REFUSED(change, expected, text)                                                                              \
    do {                                                                                                             \
        spl_attn_args a = d.cpu;                                                                                     \
        spl_attn_piece p = c.pieces[0];                                                                              \
        a.pieces = &p;                                                                                               \
        change;                                                                                                      \
        spl_status s = cpu.ops->attention(cpu.ctx, cpu.queue, &a);                                                   \
        ok(s.code == expected && strlen(s.message) > 20, "attention refuses " text);                                 \
    } while (0)
    REFUSED(p.nk = 5, SPL_EARG, "a piece past the keys");
    REFUSED(p.q_stride = 0, SPL_EARG, "a stride of 0 in a piece");
    REFUSED(a.q_strides[3] = 2, SPL_EARG, "scattered elements of a head");
    REFUSED(d.kv_of_head[1] = 1, SPL_EARG, "a KV head that is not there");
    d.kv_of_head[1] = 0;
    REFUSED(a.p = 1, SPL_EARG, "dropout probability 1");
    REFUSED((a.p = 0.5, a.seq_q_global = a.seq_k_global = INT64_C(1) << 33), SPL_EUNSUPPORTED,
            "a dropout index past 64 bits");
    REFUSED(a.dtype = SPL_I32, SPL_EUNSUPPORTED, "integers");
    attn_free(&d);
}

/* Means of rows, also of numbers that nearly cancel. */
static void pools(void) {
    static const spl_dtype types[] = {SPL_F32, SPL_F64};
    static const int64_t dims[] = {1, 7, 64};
    int good = 1;
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 3; k++)
            for (int layout = 0; layout < 4; layout++) {
                const int64_t d = dims[k], seq = 37, heads = 3, batch = 2;
                const spl_segment groups[] = {{0, 5, 1}, {5, 1, 1}, {20, 17, 1}, {6, 3, 1}};
                twin x = twin_random(types[t], batch * seq * heads * (3 * d + 3), 100);
                twin y = twin_make(types[t], batch * 4 * heads * d);
                spl_pool_args a = {.dtype = types[t], .batch = batch, .seq = seq, .heads = heads, .head_dim = d,
                                   .x = x.narrow.data, .y = y.narrow.data, .groups = groups, .ngroups = 4};
                strides_of(layout, seq, heads, d, 3, a.x_strides);
                strides_of(layout == 1, 4, heads, d, 1, a.y_strides);
                spl_pool_args r = a;
                r.dtype = SPL_F64, r.x = x.wide.data, r.y = y.wide.data;
                good &= BOTH(pool, &a, &r) && twin_close(&y, tolerance(types[t], 1e-6, 1e-14), "mean");
                a.ngroups = 1, a.groups = &(spl_segment){30, 8, 1};
                good &= cpu.ops->pool(cpu.ctx, cpu.queue, &a).code == SPL_EARG;
                twin_free(&x), twin_free(&y);
            }
    ok(good, "means of groups of rows, and a group past the rows is refused");
}

int main(void) {
    open_side(&cpu, "cpu", 2);
    open_side(&ref, "ref", 2);
    masks();
    merging();
    dropout();
    poison();
    drift();
    threads();
    refusals();
    pools();
    close_side(&cpu);
    close_side(&ref);
    return tap_done();
}
