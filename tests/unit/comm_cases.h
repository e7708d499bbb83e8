/* comm_cases.h: what is tested of communication between ranks, the same over MPI (comm_test.c) and between virtual
 * ranks (comm_virtual_test.c). Each case runs on all ranks; a failure on any is a failure, and rank 0 prints. */
#ifndef COMM_CASES_H
#define COMM_CASES_H
#include "comm_pairwise.h"
#include "control.h"
#include "runtime.h"
#include "tap.h"
#include "tiny_backend.h"
#include <math.h>

static const spl_backend_ops tiny_backend = TINY_BACKEND;

typedef struct counting { /* stands before the transport and counts what really leaves */
    const spli_p2p_ops *real;
    void *ctx;
    int64_t bytes;
} counting;

typedef struct env {
    spl_runtime *rt;
    int rank, size, good;
    char why[160];
    counting count;
    spl_comm *row, *column; /* ranks 2i and 2i + 1; ranks of one parity */
} env;

static spl_status count_isend(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t n,
                              spli_p2p_handle *h) {
    counting *c = ctx;
    c->bytes += (int64_t)n;
    return c->real->isend(c->ctx, peer, key, p, n, h);
}
static spl_status count_irecv(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t n, spli_p2p_handle *h) {
    counting *c = ctx;
    return c->real->irecv(c->ctx, peer, key, p, n, h);
}
static spl_status count_test(void *ctx, spli_p2p_handle *h, int *done) {
    counting *c = ctx;
    return c->real->test(c->ctx, h, done);
}
static void count_cancel(void *ctx, spli_p2p_handle *h) {
    counting *c = ctx;
    c->real->cancel(c->ctx, h);
}
static const spli_p2p_ops count_p2p = {count_isend, count_irecv, count_test, count_cancel};

/* ---------------------------------------------------------------- judging together */

__attribute__((format(printf, 3, 4))) static void expect(env *e, int good, const char *format, ...) {
    va_list args;
    if (good || !e->good) return; /* the first failure is the one to tell */
    e->good = 0;
    va_start(args, format);
    vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
}

static void expect_ok(env *e, spl_status s, const char *what) {
    expect(e, s.code == SPL_OK, "%s: %s", what, s.code ? s.message : "");
}

/* All ranks agree on how the case went. */
static void verdict(env *e, const char *name) {
    int check = e->rt->check;
    double limit = e->rt->timeout, good = e->good;
    e->rt->check = 0;
    e->rt->timeout = 30;
    char *all = calloc((size_t)e->size, sizeof e->why);
    if (spl_agree_doubles(e->rt, &good, 1, '<').code != SPL_OK ||
        spl_gather_bytes(e->rt, e->why, sizeof e->why, all).code != SPL_OK) {
        ok(0, "%s: the ranks cannot meet any more (rank %d)", name, e->rank);
        spl_runtime_abort(e->rt, 1);
    }
    if (e->rank == 0) {
        ok(good > 0, "%s", name);
        for (int r = 0; r < e->size; r++)
            if (all[r * (int)sizeof e->why]) tap_note("rank %d: %s", r, all + r * (int)sizeof e->why);
    }
    free(all);
    e->good = 1;
    e->why[0] = '\0';
    e->rt->check = check;
    e->rt->timeout = limit;
}

typedef struct nap_until {
    double when;
} nap_until;
static spl_status poll_nap(void *ctx, int *done, uint64_t *progress) {
    (void)progress;
    *done = spli_now() >= ((nap_until *)ctx)->when;
    return spli_ok();
}
/* Stays away for a while; virtual ranks let the others run meanwhile. */
static void nap(env *e, double seconds) {
    nap_until until = {spli_now() + seconds};
    spli_wait_for(e->rt, poll_nap, &until, -1, 0, "a nap");
}

/* ---------------------------------------------------------------- one collective, checked element by element */

/* Values whose sum depends on its order. */
static float value(int from, int64_t i) {
    return (float)((i * 7919 + from * 104729 + 13) % 1009) / 37.0f * ((from & 1) ? 1e-3f : 1e3f);
}

typedef enum pattern { NOTHING, ONE, UNEVEN, LARGE, PATTERNS } pattern;

static int64_t count_of(pattern p, int from, int to) {
    switch (p) {
    case NOTHING:
        return 0;
    case ONE:
        return 1;
    case UNEVEN:
        return (from * 7 + to * 3) % 5 * 37;
    default:
        return 300001 + 11 * from + to; /* 1.2 MB: far above what MPI sends eagerly */
    }
}

typedef struct job { /* a collective under way, and what must come of it */
    spl_coll coll;
    int64_t *send_counts, *recv_counts, send_n, recv_n;
    float *send, *recv, *want;
} job;

static void job_free(job *j) {
    if (j->send != j->recv) free(j->send);
    free(j->recv);
    free(j->want);
    free(j->send_counts);
    free(j->recv_counts);
}

static float *floats(int64_t n) {
    float *p = malloc(((size_t)n + 2) * sizeof *p);
    for (int64_t i = 0; i < n + 2; i++) p[i] = -12345.5f; /* two behind the end stay */
    return p;
}

static job job_make(const spl_comm *c, spl_coll_kind kind, pattern p, int in_place) {
    const int P = c->size, me = c->rank;
    job j = {.send_counts = calloc((size_t)P, sizeof(int64_t)), .recv_counts = calloc((size_t)P, sizeof(int64_t))};
    int64_t at = 0, own_at = 0;
    for (int m = 0; m < P; m++) {
        switch (kind) {
        case SPL_COLL_ALL_TO_ALL:
            j.send_counts[m] = count_of(p, me, m), j.recv_counts[m] = count_of(p, m, me);
            break;
        case SPL_COLL_ALL_GATHER:
            j.recv_counts[m] = count_of(p, m, 1);
            break;
        case SPL_COLL_REDUCE_SCATTER:
            j.send_counts[m] = count_of(p, m, 2);
            break;
        default:
            break;
        }
        j.send_n += j.send_counts[m];
        j.recv_n += j.recv_counts[m];
        if (m < me) own_at += kind == SPL_COLL_ALL_GATHER ? j.recv_counts[m] : j.send_counts[m];
    }
    if (kind == SPL_COLL_ALL_GATHER) j.send_n = j.send_counts[0] = j.recv_counts[me];
    if (kind == SPL_COLL_REDUCE_SCATTER) j.recv_n = j.send_counts[me];
    if (kind == SPL_COLL_ALL_REDUCE || kind == SPL_COLL_BROADCAST)
        j.send_n = j.recv_n = j.send_counts[0] = count_of(p, 3, 2);
    j.recv = floats(j.recv_n);
    j.want = floats(j.recv_n);
    j.send = in_place ? j.recv : floats(j.send_n);
    float *own = in_place && kind == SPL_COLL_ALL_GATHER ? j.send + own_at : j.send;
    for (int64_t i = 0; i < j.send_n; i++) own[i] = value(me, i);
    int root = P / 2;
    for (int m = 0; m < P && kind == SPL_COLL_ALL_GATHER; m++)
        for (int64_t i = 0; i < j.recv_counts[m]; i++) j.want[at++] = value(m, i);
    for (int m = 0; m < P && kind == SPL_COLL_ALL_TO_ALL; m++) {
        int64_t from = 0;
        for (int k = 0; k < me; k++) from += count_of(p, m, k);
        for (int64_t i = 0; i < j.recv_counts[m]; i++) j.want[at++] = value(m, from + i);
    }
    for (int64_t i = 0; i < j.recv_n && kind == SPL_COLL_BROADCAST; i++) j.want[i] = value(root, i);
    int reduces = kind == SPL_COLL_ALL_REDUCE || kind == SPL_COLL_REDUCE_SCATTER;
    for (int64_t i = 0; i < j.recv_n && reduces; i++) {
        int64_t from = kind == SPL_COLL_REDUCE_SCATTER ? own_at : 0;
        j.want[i] = value(0, from + i);
        for (int m = 1; m < P; m++) j.want[i] += value(m, from + i);
    }
    j.coll = (spl_coll){.kind = kind,
                        .dtype = SPL_F32,
                        .send = j.send,
                        .recv = j.recv,
                        .send_counts = j.send_counts,
                        .recv_counts = kind == SPL_COLL_ALL_GATHER || kind == SPL_COLL_ALL_TO_ALL ? j.recv_counts
                                                                                                  : NULL,
                        .root = root};
    return j;
}

static int job_right(const job *j) { return memcmp(j->recv, j->want, (size_t)(j->recv_n + 2) * sizeof(float)) == 0; }

static void run_job(env *e, spl_comm *c, spl_coll_kind kind, pattern p, int in_place) {
    job j = job_make(c, kind, p, in_place);
    spl_counters before, after;
    spl_counters_get(e->rt, &before);
    int64_t sent = e->count.bytes;
    expect_ok(e, spli_comm_run(e->rt, c, &j.coll), spl_coll_name(kind));
    spl_counters_get(e->rt, &after);
    expect(e, job_right(&j), "%s of pattern %d %s gives wrong numbers", spl_coll_name(kind), p,
           in_place ? "in place" : "apart");
    int64_t counted = after.comm_bytes[kind] - before.comm_bytes[kind];
    expect(e, counted == e->count.bytes - sent, "%s of pattern %d counted %lld bytes and sent %lld",
           spl_coll_name(kind), p, (long long)counted, (long long)(e->count.bytes - sent));
    expect(e, after.comm_calls[kind] == before.comm_calls[kind] + 1, "a call is counted once");
    expect(e, after.bytes_now[SPL_MEM_BUFFERS] == 0, "scratch is given back");
    job_free(&j);
}

static void good_all_reduce(env *e, spl_comm *c) {
    spl_runtime_set_site(e->rt, "good.lua:1");
    run_job(e, c, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
}

static void case_collectives(env *e, spl_comm *c, const char *where) {
    char name[96];
    for (int kind = 1; kind < SPL_COLL_KIND_COUNT; kind++) {
        int may_be_in_place = kind == SPL_COLL_ALL_REDUCE || kind == SPL_COLL_ALL_GATHER || kind == SPL_COLL_BROADCAST;
        for (int in_place = 0; in_place <= may_be_in_place; in_place++)
            for (int p = 0; p < PATTERNS; p++) run_job(e, c, (spl_coll_kind)kind, (pattern)p, in_place);
        snprintf(name, sizeof name, "%s %s: none, one, uneven and 1.2 MB counts, bytes as counted",
                 spl_coll_name((spl_coll_kind)kind), where);
        verdict(e, name);
    }
}

static void case_outstanding(env *e) {
    spl_comm *c = e->rt->world;
    job j[3] = {job_make(c, SPL_COLL_ALL_REDUCE, LARGE, 1), job_make(c, SPL_COLL_ALL_GATHER, LARGE, 0),
                job_make(e->column, SPL_COLL_ALL_TO_ALL, UNEVEN, 0)};
    spl_request *r[3] = {0};
    for (int i = 0; i < 3; i++)
        expect_ok(e, spli_comm_start(e->rt, i == 2 ? e->column : c, &j[i].coll, &r[i]), "start");
    for (int i = 0; i < 3; i++) { /* waits in opposite orders: each must move on what the other is waiting for */
        int k = e->rank & 1 ? 2 - i : i;
        if (r[k]) expect_ok(e, spli_wait(e->rt, r[k], "one of several"), "wait");
    }
    for (int i = 0; i < 3; i++) {
        expect(e, job_right(&j[i]), "collective %d of several gives wrong numbers", i);
        job_free(&j[i]);
    }
    verdict(e, "three collectives at once, waited for in opposite orders");

    job k = job_make(c, SPL_COLL_ALL_REDUCE, LARGE, 0);
    spl_request *under_way = NULL;
    double one = 1;
    expect_ok(e, spli_comm_start(e->rt, c, &k.coll, &under_way), "start");
    if (e->rank & 1) expect_ok(e, spli_wait(e->rt, under_way, "an all-reduce"), "wait");
    expect_ok(e, spl_agree_doubles(e->rt, &one, 1, '+'), "agree"); /* here too the others' collective moves on */
    if (!(e->rank & 1)) expect_ok(e, spli_wait(e->rt, under_way, "an all-reduce"), "wait");
    expect(e, job_right(&k) && one == e->size, "wrong numbers");
    job_free(&k);
    verdict(e, "a collective moves on while a rank waits for something else");
}

static void case_counters(env *e) {
    spl_counters c;
    spl_counters_reset(e->rt);
    run_job(e, e->rt->world, SPL_COLL_ALL_REDUCE, LARGE, 0);
    spl_counters_get(e->rt, &c);
    expect(e, c.comm_seconds > 0 && c.comm_exposed_seconds > 0 && c.comm_exposed_seconds < c.comm_seconds * 1.5 + 0.01,
           "%g s, exposed %g s", c.comm_seconds, c.comm_exposed_seconds);
    expect(e, e->size == 1 || c.bytes_peak[SPL_MEM_BUFFERS] > 0, "scratch is counted");
    int64_t calls = 0;
    expect_ok(e, spl_barrier(e->rt), "barrier");
    spl_counters_get(e->rt, &c);
    for (int k = 0; k < SPL_COLL_KIND_COUNT; k++) calls += c.comm_calls[k];
    expect(e, calls == 1, "control traffic is not counted");
    spl_counters_reset(e->rt);
    spl_counters_get(e->rt, &c);
    expect(e, c.comm_seconds == 0 && c.comm_bytes[SPL_COLL_ALL_REDUCE] == 0 && c.bytes_peak[SPL_MEM_BUFFERS] == 0,
           "reset");
    verdict(e, "counters: time, calls, scratch; control traffic apart; reset");
}

static void case_refused_memory(env *e) {
    job j = job_make(e->rt->world, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
    e->rt->fail_alloc = 1;
    spl_status s = spli_comm_run(e->rt, e->rt->world, &j.coll);
    e->rt->fail_alloc = 0;
    expect(e, e->size == 1 || s.code == SPL_ENOMEM, "no error when memory is refused");
    job_free(&j);
    good_all_reduce(e, e->rt->world);
    verdict(e, "memory refused for scratch is an error, and the next call is good");
}

/* ---------------------------------------------------------------- host values */

static void case_host_values(env *e) {
    int P = e->size;
    double v[3] = {e->rank + 1, 0.1 * (e->rank + 1), -e->rank};
    expect_ok(e, spl_agree_doubles(e->rt, v, 3, '+'), "sum");
    double tenths = 0;
    for (int r = 0; r < P; r++) tenths += 0.1 * (r + 1);
    expect(e, v[0] == P * (P + 1) / 2 && v[1] == tenths, "sums in rank order");
    double high = e->rank, low = e->rank, nan = e->rank == P - 1 ? NAN : 1;
    expect_ok(e, spl_agree_doubles(e->rt, &high, 1, '>'), "max");
    expect_ok(e, spl_agree_doubles(e->rt, &low, 1, '<'), "min");
    expect_ok(e, spl_agree_doubles(e->rt, &nan, 1, '>'), "max with NaN");
    expect_ok(e, spl_agree_doubles(e->rt, NULL, 0, '+'), "no numbers");
    expect(e, high == P - 1 && low == 0 && nan != nan, "max, min, and a NaN that stays visible");
    expect(e, spl_agree_doubles(e->rt, &high, 1, '*').code == SPL_EARG, "an unknown operation is refused");
    static const size_t sizes[] = {0, 1, 439, 440, 441, 5000};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        size_t n = sizes[k];
        unsigned char *mine = malloc(n + 1), *all = malloc(n * (size_t)P + 1);
        int right = 1;
        for (size_t i = 0; i < n; i++) mine[i] = (unsigned char)((size_t)e->rank * 31 + i * 7);
        all[n * (size_t)P] = 0xAB;
        expect_ok(e, spl_gather_bytes(e->rt, mine, n, all), "gather");
        for (size_t i = 0; i < n * (size_t)P; i++) right &= all[i] == (unsigned char)(i / n * 31 + i % n * 7);
        expect(e, right && all[n * (size_t)P] == 0xAB, "%zu gathered bytes are wrong", n);
        free(mine);
        free(all);
    }
    verdict(e, "agreed numbers and gathered bytes");
    if (P == 1) return;
    double different[2] = {1, 2};
    spl_status s = spl_agree_doubles(e->rt, different, e->rank == P - 1 ? 2 : 1, '+');
    expect(e, s.code == SPL_EDISAGREE, "ranks give different numbers of numbers: %s", s.code ? s.message : "no error");
    verdict(e, "agreeing on different numbers of numbers is an error on every rank");
}

static void case_barrier(env *e) {
    nap(e, 0.01 * e->rank);
    double times[2] = {spli_now(), 0};
    expect_ok(e, spl_barrier(e->rt), "barrier");
    times[1] = spli_now();
    double *all = malloc(sizeof times * (size_t)e->size), last_in = 0, first_out = INFINITY;
    expect_ok(e, spl_gather_bytes(e->rt, times, sizeof times, all), "gather");
    for (int r = 0; r < e->size; r++) {
        if (all[2 * r] > last_in) last_in = all[2 * r];
        if (all[2 * r + 1] < first_out) first_out = all[2 * r + 1];
    }
    expect(e, first_out >= last_in, "a rank left the barrier %g s before the last came", last_in - first_out);
    free(all);
    verdict(e, "no rank leaves a barrier before the last has come");
}

/* ---------------------------------------------------------------- agreement */

static void expect_error(env *e, spl_status s, spl_code code, const char *const *words) {
    expect(e, s.code == code, "code %s, not %s: %s", spl_code_name(s.code), spl_code_name(code),
           s.code ? s.message : "");
    for (; s.code == code && *words; words++)
        expect(e, strstr(s.message, *words) != NULL, "'%s' is not in: %s", *words, s.message);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The last rank does one thing, the others another; then all do the same. */
static void case_mismatch(env *e, const char *name, const spl_coll *most, const spl_coll *last,
                          const char *const *words) {
    int is_last = e->rank == e->size - 1;
    char rank[24];
    snprintf(rank, sizeof rank, "rank %d calls", e->size - 1);
    spl_runtime_set_site(e->rt, is_last ? "last.lua:20" : "most.lua:10");
    int64_t sent = e->count.bytes;
    spl_status s = spli_comm_run(e->rt, e->rt->world, is_last ? last : most);
    expect_error(e, s, SPL_EDISAGREE, words);
    expect_error(e, s, SPL_EDISAGREE, WORDS(rank, "last.lua:20", "most.lua:10", "over all ranks"));
    expect(e, e->count.bytes == sent, "data moved before agreement");
    good_all_reduce(e, e->rt->world);
    verdict(e, name);
}

static void cases_of_mismatch(env *e) {
    enum { N = 64 };
    static float room[N * N];
    int P = e->size;
    int64_t five[N], odd[N], six = 6;
    for (int m = 0; m < P; m++) five[m] = odd[m] = 5;
    odd[0] = 4; /* what the last rank thinks that rank 0 has */
    spl_coll reduce = {
        .kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F32, .send = room, .recv = room + N, .send_counts = five};
    spl_coll gather = {.kind = SPL_COLL_ALL_GATHER,
                       .dtype = SPL_F32,
                       .send = room,
                       .recv = room + N,
                       .send_counts = five,
                       .recv_counts = five};
    spl_coll all = gather, scatter = reduce, broadcast = reduce, other;
    all.kind = SPL_COLL_ALL_TO_ALL;
    scatter.kind = SPL_COLL_REDUCE_SCATTER;
    broadcast.kind = SPL_COLL_BROADCAST;
    case_mismatch(e, "agreement: another call", &reduce, &gather,
                  WORDS("(different API)", "all-reduce of 5 f32", "all-gather of 5 f32"));
    other = reduce, other.dtype = SPL_F64;
    case_mismatch(e, "agreement: another dtype", &reduce, &other,
                  WORDS("(different parameter, the dtype)", "5 f32", "5 f64"));
    other = reduce, other.send_counts = &six;
    case_mismatch(e, "agreement: another count in an all-reduce", &reduce, &other,
                  WORDS("(different count)", "of 5 f32", "of 6 f32"));
    other = gather, other.recv_counts = odd;
    case_mismatch(e, "agreement: an all-gather that expects less than is sent", &gather, &other,
                  WORDS("(different count)", "rank 0 sends 5 elements", "expects 4"));
    other = all, other.recv_counts = odd;
    case_mismatch(e, "agreement: an all-to-all that expects less than is sent", &all, &other,
                  WORDS("(different count)", "rank 0 sends 5 elements", "expects 4"));
    other = scatter, other.send_counts = odd;
    case_mismatch(e, "agreement: other parts in a reduce-scatter", &scatter, &other,
                  WORDS("(different count)", "reduce-scatter"));
    other = broadcast, other.root = 1;
    case_mismatch(e, "agreement: another root", &broadcast, &other,
                  WORDS("(different parameter, the root)", "from member 0", "from member 1"));

    int is_last = e->rank == P - 1;
    double number = 1;
    spl_status s = is_last ? spl_agree_doubles(e->rt, &number, 1, '+') : spl_barrier(e->rt);
    expect_error(e, s, SPL_EDISAGREE, WORDS("barrier", "agreement (sum) of 1 numbers"));
    expect_ok(e, spl_barrier(e->rt), "barrier");
    verdict(e, "agreement: a barrier is no agreement of numbers");
}

/* Rank 0 calls on its row, the others over all ranks. */
static void case_elsewhere(env *e) {
    job world = job_make(e->rt->world, SPL_COLL_ALL_REDUCE, UNEVEN, 0),
        row = job_make(e->row, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
    spl_status s = e->rank == 0 ? spli_comm_run(e->rt, e->row, &row.coll)
                                : spli_comm_run(e->rt, e->rt->world, &world.coll);
    expect_error(e, s, SPL_EDISAGREE, WORDS("(different parameter, the axis)", "on axis row", "over all ranks"));
    good_all_reduce(e, e->rt->world);
    if (e->row->size > 1) good_all_reduce(e, e->row);
    good_all_reduce(e, e->column);
    job_free(&world);
    job_free(&row);
    verdict(e, "agreement: another axis; then both axes and the world are good");
}

/* The last rank leaves a call out (or comes when the others have given up). */
static void case_missing(env *e, int comes_late) {
    int is_last = e->rank == e->size - 1;
    char missing[32];
    snprintf(missing, sizeof missing, "rank %d never came", e->size - 1);
    job j = job_make(e->rt->world, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
    e->rt->timeout = 0.3;
    spl_runtime_set_site(e->rt, "missing.lua:7");
    if (is_last) nap(e, 2.5); /* the others give up after 0.3 s, and a busy machine may hold them up for long */
    double begin = spli_now();
    if (!is_last || comes_late) {
        spl_status s = spli_comm_run(e->rt, e->rt->world, &j.coll);
        expect_error(e, s, SPL_ESTALL, WORDS(missing, "missing.lua:7", "all-reduce"));
        expect(e, spli_now() - begin < 10, "it took %g s", spli_now() - begin);
    }
    e->rt->timeout = 30;
    good_all_reduce(e, e->rt->world);
    good_all_reduce(e, e->rt->world);
    job_free(&j);
    verdict(e, comes_late ? "agreement: a rank that comes too late" : "agreement: a rank that leaves a call out");
}

/* The last rank finds out late that it disagrees: the others, to whom all seems well, must not have moved any data. */
static void case_late_verdict(env *e) {
    spl_comm *c = e->rt->world;
    int64_t sent = e->count.bytes;
    if (e->rank == e->size - 1) {
        spli_message m = {.type = SPLI_FINGERPRINT, .comm_id = c->id, .sequence = c->sequence};
        m.as.print = (spli_fingerprint){.kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F32, .size = c->size};
        m.as.print.send = m.as.print.expect = m.as.print.total = count_of(UNEVEN, 3, 2);
        for (int p = 0; p < c->rank; p++) expect_ok(e, spli_control_send(e->rt, p, &m), "fingerprint");
        nap(e, 0.1);
        memset(&m.as, 0, sizeof m.as);
        m.type = SPLI_VERDICT;
        m.as.verdict.code = SPL_EDISAGREE;
        snprintf(m.as.verdict.text, sizeof m.as.verdict.text, "said late");
        for (int p = 0; p < c->rank; p++) expect_ok(e, spli_control_send(e->rt, p, &m), "verdict");
        c->sequence++;
    } else {
        job j = job_make(c, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
        expect_error(e, spli_comm_run(e->rt, c, &j.coll), SPL_EDISAGREE, WORDS("said late"));
        expect(e, e->count.bytes == sent, "data moved before agreement");
        job_free(&j);
    }
    good_all_reduce(e, c);
    verdict(e, "agreement: a verdict that comes late");
}

/* Many calls, of which some differ on some rank: errors and results come on all ranks alike. */
static void case_many(env *e) {
    uint32_t s = 12345;
    for (int round = 0; round < 60; round++) {
        s = s * 1664525u + 1013904223u;
        int kind = 1 + (int)(s >> 8) % (SPL_COLL_KIND_COUNT - 1), odd_rank = (int)(s >> 16) % (2 * e->size),
            on_row = (s >> 4) & 1;
        spl_comm *c = on_row ? e->row : e->rt->world;
        int odd_here = 0; /* is the odd rank in my group? */
        for (int m = 0; m < c->size; m++) odd_here |= c->world_ranks[m] == odd_rank && c->size > 1;
        int other = 1 + kind % (SPL_COLL_KIND_COUNT - 1);
        job j = job_make(c, (spl_coll_kind)(e->rank == odd_rank ? other : kind), ONE, 0);
        spl_status status = spli_comm_run(e->rt, c, &j.coll);
        expect(e, (status.code == SPL_EDISAGREE) == odd_here, "round %d: %s", round,
               status.code ? status.message : "no error");
        expect(e, status.code || job_right(&j), "round %d: wrong numbers", round);
        job_free(&j);
    }
    verdict(e, "60 calls, some of them different on one rank");
}

/* ---------------------------------------------------------------- waiting */

static void case_stall(env *e) {
    job j = job_make(e->row, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
    e->rt->check = 0;
    e->rt->timeout = 0.3;
    if (e->row->size > 1 && e->row->rank == 0) { /* the other one does not come; this row is not used again */
        double begin = spli_now();
        spl_status s = spli_comm_run(e->rt, e->row, &j.coll);
        expect_error(e, s, SPL_ESTALL, WORDS("all-reduce on axis row", "waited", "rank"));
        expect(e, spli_now() - begin < 5, "it took %g s", spli_now() - begin);
    }
    e->rt->timeout = 30;
    job_free(&j);
    verdict(e, "without agreement a collective that stands still is an error after the time limit");

    volatile int interrupted = 0;
    job k = job_make(e->column, SPL_COLL_ALL_REDUCE, UNEVEN, 0);
    e->rt->interrupt = &interrupted;
    if (e->column->size > 1 && e->column->rank == 0) {
        interrupted = 1;
        expect_error(e, spli_comm_run(e->rt, e->column, &k.coll), SPL_EINTERRUPT,
                     WORDS("interrupted", "all-reduce on axis column"));
        interrupted = 0;
    }
    e->rt->interrupt = NULL;
    job_free(&k);
    expect(e, e->rt->counters.bytes_now[SPL_MEM_BUFFERS] == 0, "scratch is given back");
    good_all_reduce(e, e->rt->world);
    verdict(e, "an interrupt ends a wait, and the world goes on");
}

/* ---------------------------------------------------------------- all of it */

static void make_groups(env *e) {
    int row[2], column[64], nrow = 0, ncolumn = 0;
    for (int r = 0; r < e->size; r++) {
        if (r / 2 == e->rank / 2) row[nrow++] = r;
        if (r % 2 == e->rank % 2) column[ncolumn++] = r;
    }
    expect_ok(e, spli_comm_group(e->rt, row, nrow, "row", e->rt->next_comm_id++, &e->row), "row");
    expect_ok(e, spli_comm_group(e->rt, column, ncolumn, "column", e->rt->next_comm_id++, &e->column), "column");
    int wrong[2] = {1, 0}, beyond[1] = {e->size};
    spl_comm *none;
    expect(e, e->size == 1 || spli_comm_group(e->rt, wrong, 2, "x", 9, &none).code == SPL_EARG,
           "members out of order are refused");
    expect(e, spli_comm_group(e->rt, beyond, 1, "x", 9, &none).code == SPL_EARG,
           "a member beyond the world is refused");
    verdict(e, "groups of a mesh of two axes");
}

static void all_cases(spl_runtime *rt) {
    env e = {.rt = rt, .rank = rt->rank, .size = rt->size, .good = 1};
    spli_pairwise *engine = ((spli_pairwise_comm *)rt->world)->engine;
    e.count = (counting){.real = engine->p2p, .ctx = engine->ctx};
    engine->p2p = &count_p2p;
    engine->ctx = &e.count;
    make_groups(&e);
    for (int check = 0; check < 2; check++) {
        rt->check = check;
        case_collectives(&e, rt->world, check ? "over all, with agreement" : "over all");
        if (!check) case_collectives(&e, e.row, "on rows"), case_collectives(&e, e.column, "on columns");
        case_outstanding(&e);
        case_host_values(&e);
        case_barrier(&e);
    }
    case_counters(&e);
    case_refused_memory(&e);
    if (rt->size > 1) {
        cases_of_mismatch(&e);
        case_late_verdict(&e);
        case_elsewhere(&e);
        case_missing(&e, 0);
        case_missing(&e, 1);
        case_many(&e);
        case_stall(&e);
    }
    engine->p2p = e.count.real;
    engine->ctx = e.count.ctx;
    e.row->ops->close(e.row);
    e.column->ops->close(e.column);
}
#endif
