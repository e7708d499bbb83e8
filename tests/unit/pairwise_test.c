/* pairwise_test.c: the collectives' state machines, all ranks in this one process, over a transport that delivers at
 * random.
 *
 * Each trial starts a few collectives on random groups with random counts, kinds, dtypes and limits, lets the ranks
 * progress in random order, and compares every element with a plain calculation (sums in member order, to the last bit)
 * and every rank's sent bytes with spl_coll_bytes. */
#include "comm_pairwise.h"
#include "tap.h"
#include "tiny_backend.h"

enum { MAX_RANKS = 13, MAX_OPEN = 3, GUARD = 3 };

static uint64_t seed = 88172645463325252u; /* xorshift64: the same trials in every run */
static int64_t below(int64_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int64_t)(seed % (uint64_t)n);
}

/* ---------------------------------------------------------------- the transport */

typedef struct message {
    struct message *next;
    int from, to, matched, eager;
    spli_p2p_key key;
    void *data; /* a copy when eager, else the sender's memory */
    size_t bytes;
    int sender_done;
} message;

typedef struct receive {
    struct receive *next;
    int from, to, done;
    spli_p2p_key key;
    void *into;
    size_t bytes;
} receive;

typedef struct network {
    message *messages;
    receive *receives;
    size_t eager_limit;
    int broken; /* a receive and its message had different sizes */
} network;

typedef struct port { /* one rank's end */
    network *net;
    int rank;
    size_t sent;
    long sends;
} port;

static int same_key(const spli_p2p_key *a, const spli_p2p_key *b) {
    return a->comm_id == b->comm_id && a->sequence == b->sequence;
}

/* Matches each receive, in the order in which they were posted, with the first free message of its pair and key. */
static void deliver(network *net) {
    for (receive *r = net->receives; r; r = r->next) {
        if (r->done || below(3) == 0) continue;
        int blocked = 0; /* an older receive of the same pair and key comes first */
        for (receive *o = net->receives; o != r; o = o->next)
            blocked |= !o->done && o->from == r->from && o->to == r->to && same_key(&o->key, &r->key);
        for (message *m = net->messages; m && !blocked; m = m->next) {
            if (m->matched || m->from != r->from || m->to != r->to || !same_key(&m->key, &r->key)) continue;
            net->broken |= m->bytes != r->bytes;
            if (m->bytes) memcpy(r->into, m->data, m->bytes);
            m->matched = r->done = m->sender_done = 1;
            break;
        }
    }
}

static spl_status net_isend(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t bytes,
                            spli_p2p_handle *h) {
    port *me = ctx;
    message *m = calloc(1, sizeof *m), **last = &me->net->messages;
    *m = (message){.from = me->rank, .to = peer, .key = *key, .bytes = bytes, .eager = bytes <= me->net->eager_limit};
    m->data = (void *)p;
    if (m->eager) {
        m->data = malloc(bytes ? bytes : 1);
        if (bytes) memcpy(m->data, p, bytes);
        m->sender_done = 1;
    }
    while (*last) last = &(*last)->next;
    *last = m;
    me->sent += bytes;
    me->sends++;
    h->pointer = m;
    h->number = 1; /* marks a send */
    return spli_ok();
}

static spl_status net_irecv(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t bytes, spli_p2p_handle *h) {
    port *me = ctx;
    receive *r = calloc(1, sizeof *r), **last = &me->net->receives;
    *r = (receive){.from = peer, .to = me->rank, .key = *key, .into = p, .bytes = bytes};
    while (*last) last = &(*last)->next;
    *last = r;
    h->pointer = r;
    h->number = 0;
    return spli_ok();
}

static void drop_message(network *net, message *gone) {
    for (message **at = &net->messages; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            if (gone->eager) free(gone->data);
            free(gone);
            return;
        }
}

static void drop_receive(network *net, receive *gone) {
    for (receive **at = &net->receives; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            free(gone);
            return;
        }
}

/* Forgets messages that both sides are through with; a sender of an eager one need not look again. */
static spl_status net_test(void *ctx, spli_p2p_handle *h, int *done) {
    port *me = ctx;
    deliver(me->net);
    *done = 0;
    if (below(2)) return spli_ok();
    if (h->number & 1) {
        message *m = h->pointer;
        *done = m->sender_done && (m->matched || !m->eager); /* an eager one is kept until matched, which only delays */
        if (*done) drop_message(me->net, m);
    } else {
        receive *r = h->pointer;
        *done = r->done;
        if (*done) drop_receive(me->net, r);
    }
    return spli_ok();
}

static void net_cancel(void *ctx, spli_p2p_handle *h) {
    port *me = ctx;
    if (h->number & 1) drop_message(me->net, h->pointer);
    else drop_receive(me->net, h->pointer);
}

static const spli_p2p_ops net_p2p = {net_isend, net_irecv, net_test, net_cancel};

/* ---------------------------------------------------------------- ranks */

static const spl_backend_ops backend = TINY_BACKEND;
static const spl_comm_ops no_ops = {.name = "test"};

typedef struct virtual_rank {
    tiny *memory;
    port port;
    spli_pairwise engine;
    spli_pairwise_comm world;
} virtual_rank;

typedef struct world {
    int size;
    network net;
    virtual_rank ranks[MAX_RANKS];
    uint32_t next_id;
} world;

static world *world_open(int size, int lazy) {
    world *w = calloc(1, sizeof *w);
    w->size = size;
    w->next_id = 1;
    for (int r = 0; r < size; r++) {
        virtual_rank *v = &w->ranks[r];
        tiny_open(r, 1, (void **)&v->memory);
        v->memory->lazy = lazy;
        v->port = (port){.net = &w->net, .rank = r};
        spli_pairwise_init(&v->engine, &net_p2p, &v->port);
        spli_pairwise_world(&v->world, &v->engine, r, size, &backend, v->memory, (spl_queue *)v->memory);
        v->world.base.ops = &no_ops;
    }
    return w;
}

static int world_close(world *w) {
    int clean = !w->net.messages && !w->net.receives && !w->net.broken;
    for (int r = 0; r < w->size; r++) {
        clean &= w->ranks[r].memory->bytes_now == 0 && w->ranks[r].memory->open_events == 0 &&
                 !w->ranks[r].engine.active;
        free(w->ranks[r].world.base.world_ranks);
        tiny_close(w->ranks[r].memory);
    }
    free(w);
    return clean;
}

/* ---------------------------------------------------------------- one collective on one group */

typedef struct call {
    spl_coll_kind kind;
    spl_dtype dtype;
    int n, members[MAX_RANKS], root, in_place;
    int64_t counts[MAX_RANKS][MAX_RANKS]; /* [from][to]; other kinds use [from][0], or [0][to] for reduce-scatter */
    spl_comm *comm[MAX_RANKS];
    unsigned char *send[MAX_RANKS], *recv[MAX_RANKS], *want[MAX_RANKS];
    int64_t want_n[MAX_RANKS];
    spl_request *request[MAX_RANKS];
    spl_event *event[MAX_RANKS];
    size_t sent_before[MAX_RANKS];
    int64_t bytes[MAX_RANKS];
    int finished[MAX_RANKS];
} call;

static void put(void *p, spl_dtype t, int64_t i, double x) {
    if (t == SPL_F64) ((double *)p)[i] = x;
    else if (t == SPL_F32) ((float *)p)[i] = (float)x;
    else if (t == SPL_I64) ((int64_t *)p)[i] = (int64_t)(x * 1000);
    else ((unsigned char *)p)[i] = (unsigned char)(int64_t)(x * 100);
}

/* Values whose sum depends on its order. */
static double value(int from, int64_t i) {
    return (double)((i * 7919 + from * 104729 + 13) % 1009) / 37.0 * ((from & 1) ? 1e-3 : 1e3);
}

static int64_t some_count(void) {
    switch (below(5)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return below(8);
    default:
        return below(200);
    }
}

static int64_t total_of(const int64_t *counts, int n) {
    int64_t t = 0;
    for (int m = 0; m < n; m++) t += counts[m];
    return t;
}

static void *bytes_of(int64_t n, spl_dtype t) {
    size_t bytes = (size_t)(n + GUARD) * spl_dtype_size(t);
    void *p = malloc(bytes);
    memset(p, 0xEE, bytes);
    return p;
}

/* dst[i] = sum over members of member's value, added in member order in the type itself. */
static void want_sum(const call *c, void *dst, int64_t n, int64_t offset) {
    unsigned char one[8];
    for (int64_t i = 0; i < n; i++) {
        for (int m = 0; m < c->n; m++) {
            put(one, c->dtype, 0, value(m, offset + i));
            if (c->dtype == SPL_F64) ((double *)dst)[i] = (m ? ((double *)dst)[i] : 0) + *(double *)(void *)one;
            if (c->dtype == SPL_F32) ((float *)dst)[i] = (m ? ((float *)dst)[i] : 0) + *(float *)(void *)one;
            if (c->dtype == SPL_I64) ((int64_t *)dst)[i] = (m ? ((int64_t *)dst)[i] : 0) + *(int64_t *)(void *)one;
            if (c->dtype == SPL_U8)
                ((unsigned char *)dst)[i] = (unsigned char)((m ? ((unsigned char *)dst)[i] : 0) + *one);
        }
    }
}

static void call_make(world *w, call *c) {
    static const spl_dtype types[] = {SPL_F64, SPL_F32, SPL_I64, SPL_U8};
    memset(c, 0, sizeof *c);
    c->kind = (spl_coll_kind)below(SPL_COLL_KIND_COUNT);
    c->dtype = types[below(4)];
    for (int r = 0; r < w->size; r++)
        if (below(4)) c->members[c->n++] = r;
    if (c->n == 0) c->members[c->n++] = (int)below(w->size);
    c->root = (int)below(c->n);
    c->in_place = (int)below(2) && c->kind != SPL_COLL_REDUCE_SCATTER && c->kind != SPL_COLL_ALL_TO_ALL;
    int64_t shared = some_count();
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->n; j++) c->counts[i][j] = some_count();
    for (int i = 0; i < c->n; i++) {
        if (c->kind == SPL_COLL_ALL_REDUCE || c->kind == SPL_COLL_BROADCAST) c->counts[i][0] = shared;
        if (c->kind == SPL_COLL_REDUCE_SCATTER) memcpy(c->counts[i], c->counts[0], sizeof c->counts[0]);
    }
    uint32_t id = w->next_id++;
    for (int m = 0; m < c->n; m++) {
        spli_pairwise_group(&w->ranks[c->members[m]].world.base, c->members, c->n, id, &c->comm[m]);
        int64_t own = 0, send_n = c->counts[m][0], recv_n = send_n, at = 0;
        int64_t gathered[MAX_RANKS];
        for (int i = 0; i < c->n; i++) gathered[i] = c->counts[i][0];
        if (c->kind == SPL_COLL_BARRIER) send_n = recv_n = 0;
        if (c->kind == SPL_COLL_ALL_GATHER) recv_n = total_of(gathered, c->n), own = total_of(gathered, m);
        if (c->kind == SPL_COLL_REDUCE_SCATTER) send_n = total_of(c->counts[m], c->n), recv_n = c->counts[m][m];
        if (c->kind == SPL_COLL_ALL_TO_ALL) {
            send_n = total_of(c->counts[m], c->n);
            recv_n = 0;
            for (int i = 0; i < c->n; i++) recv_n += c->counts[i][m];
        }
        c->recv[m] = bytes_of(recv_n, c->dtype);
        c->want[m] = bytes_of(recv_n, c->dtype);
        c->want_n[m] = recv_n;
        c->send[m] = c->in_place ? c->recv[m] : bytes_of(send_n, c->dtype);
        for (int64_t i = 0; i < send_n; i++) put(c->send[m], c->dtype, own * c->in_place + i, value(m, i));
        switch (c->kind) {
        case SPL_COLL_ALL_GATHER:
            for (int i = 0; i < c->n; i++)
                for (int64_t k = 0; k < gathered[i]; k++) put(c->want[m], c->dtype, at++, value(i, k));
            break;
        case SPL_COLL_ALL_TO_ALL:
            for (int i = 0; i < c->n; i++)
                for (int64_t k = 0; k < c->counts[i][m]; k++)
                    put(c->want[m], c->dtype, at++, value(i, total_of(c->counts[i], m) + k));
            break;
        case SPL_COLL_ALL_REDUCE:
            want_sum(c, c->want[m], recv_n, 0);
            break;
        case SPL_COLL_REDUCE_SCATTER:
            want_sum(c, c->want[m], recv_n, total_of(c->counts[m], m));
            break;
        case SPL_COLL_BROADCAST:
            for (int64_t k = 0; k < recv_n; k++) put(c->want[m], c->dtype, k, value(c->root, k));
            break;
        default:
            break;
        }
    }
}

static int call_start(world *w, call *c, int m) {
    virtual_rank *v = &w->ranks[c->members[m]];
    int64_t column[MAX_RANKS];
    for (int i = 0; i < c->n; i++) column[i] = c->kind == SPL_COLL_ALL_TO_ALL ? c->counts[i][m] : c->counts[i][0];
    int receives = c->kind == SPL_COLL_ALL_TO_ALL || c->kind == SPL_COLL_ALL_GATHER;
    spl_coll coll = {.kind = c->kind,
                     .dtype = c->dtype,
                     .send = c->send[m],
                     .recv = c->recv[m],
                     .send_counts = c->counts[m],
                     .recv_counts = receives ? column : NULL,
                     .root = c->root};
    tiny_event_open(v->memory, &c->event[m]);
    tiny_event_record(v->memory, NULL, c->event[m]);
    c->bytes[m] = spl_coll_bytes(c->comm[m], &coll);
    size_t before = v->port.sent;
    spl_status s = spli_pairwise_start(c->comm[m], &coll, &c->event[m], 1, &c->request[m]);
    c->sent_before[m] = before;
    memset(column, 0x77, sizeof column); /* start must have copied it */
    return s.code == SPL_OK;
}

static int call_check(world *w, call *c) {
    int good = 1;
    for (int m = 0; m < c->n; m++) {
        size_t bytes = (size_t)(c->want_n[m] + GUARD) * spl_dtype_size(c->dtype);
        good &= memcmp(c->recv[m], c->want[m], bytes) == 0;
        if (c->event[m]) tiny_event_close(w->ranks[c->members[m]].memory, c->event[m]);
        spli_pairwise_free(c->request[m]);
        spli_pairwise_close_group(c->comm[m]);
        if (!c->in_place) free(c->send[m]);
        free(c->recv[m]);
        free(c->want[m]);
    }
    return good;
}

static int run_trial(int size, int lazy, int *bytes_right) {
    world *w = world_open(size, lazy);
    call calls[MAX_OPEN];
    int open = 1 + (int)below(MAX_OPEN), good = 1, left = 0;
    size_t message_limit = (size_t)(8 * (1 + below(40))), scratch_limit = (size_t)(64 * (1 + below(60)));
    int64_t bytes[MAX_RANKS] = {0};
    w->net.eager_limit = (size_t)below(300);
    for (int r = 0; r < size; r++) {
        w->ranks[r].engine.message_limit = message_limit;
        w->ranks[r].engine.scratch_limit = scratch_limit;
    }
    for (int k = 0; k < open; k++) call_make(w, &calls[k]);
    for (int k = 0; k < open; k++) {
        for (int m = 0; m < calls[k].n; m++) {
            good &= call_start(w, &calls[k], m);
            bytes[calls[k].members[m]] += calls[k].bytes[m];
            left++;
        }
    }
    for (long turn = 0; left > 0 && turn < 4000000 && good; turn++) { /* any rank, any of its requests */
        call *c = &calls[below(open)];
        int m = (int)below(c->n), done = 0;
        if (c->finished[m]) continue;
        good &= spli_pairwise_test(c->request[m], &done).code == SPL_OK;
        if (done) c->finished[m] = 1, left--;
    }
    good &= left == 0;
    for (int k = 0; k < open; k++) good &= call_check(w, &calls[k]);
    for (int r = 0; r < size; r++) *bytes_right &= bytes[r] == (int64_t)w->ranks[r].port.sent;
    return world_close(w) && good;
}

/* ---------------------------------------------------------------- other properties */

static void test_limits_of_scratch(void) {
    world *w = world_open(4, 0);
    enum { N = 100000 };
    static float data[4][N];
    int64_t n = N, done_n = 0;
    spl_request *r[4];
    for (int m = 0; m < 4; m++) {
        for (int i = 0; i < N; i++) data[m][i] = (float)value(m, i);
        spl_coll coll = {
            .kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F32, .send = data[m], .recv = data[m], .send_counts = &n};
        w->ranks[m].engine.scratch_limit = 64 << 10;
        spli_pairwise_start(&w->ranks[m].world.base, &coll, NULL, 0, &r[m]);
    }
    for (int turn = 0; done_n < 4 && turn < 1000000; turn++) {
        int done;
        done_n = 0;
        for (int m = 0; m < 4; m++) {
            spli_pairwise_test(r[m], &done);
            done_n += done;
        }
    }
    int same = 1, small = 1;
    for (int m = 0; m < 4; m++) {
        same &= memcmp(data[m], data[0], sizeof data[0]) == 0;
        small &= w->ranks[m].memory->bytes_peak <= 4 * (64 << 10) && w->ranks[m].memory->bytes_peak > 0;
        spli_pairwise_free(r[m]);
    }
    ok(same, "all-reduce of 100,000 floats in pieces: the same bits on 4 ranks");
    ok(small, "its scratch stays within the limit");
    ok(world_close(w), "and nothing is left over");
}

static void test_messages_of_nothing(void) {
    world *w = world_open(3, 0);
    int64_t zero[3] = {0}, only[3] = {0, 5, 0}, from[3] = {5, 0, 0};
    char data[8] = "abcde", into[3][8] = {{0}};
    spl_request *r[3];
    for (int m = 0; m < 3; m++) { /* 0 sends five bytes to 1: one message in all */
        spl_coll coll = {.kind = SPL_COLL_ALL_TO_ALL,
                         .dtype = SPL_U8,
                         .send = data,
                         .recv = into[m],
                         .send_counts = m == 0 ? only : zero,
                         .recv_counts = m == 1 ? from : zero};
        spli_pairwise_start(&w->ranks[m].world.base, &coll, NULL, 0, &r[m]);
    }
    int all = 0;
    for (int turn = 0; all < 3 && turn < 1000; turn++) {
        all = 0;
        for (int m = 0, done; m < 3; m++) {
            spli_pairwise_test(r[m], &done);
            all += done;
        }
    }
    long sends = w->ranks[0].port.sends + w->ranks[1].port.sends + w->ranks[2].port.sends;
    ok(all == 3 && sends == 1 && memcmp(into[1], data, 5) == 0, "counts of zero send no message (%ld sent)", sends);
    for (int m = 0; m < 3; m++) spli_pairwise_free(r[m]);
    ok(world_close(w), "and nothing is left over");
}

static void test_giving_up(void) {
    world *w = world_open(2, 1);
    int64_t n = 1000;
    static double a[1000], b[1000];
    spl_coll coll = {.kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F64, .send = a, .recv = b, .send_counts = &n};
    spl_request *r;
    int done;
    spli_pairwise_start(&w->ranks[0].world.base, &coll, NULL, 0, &r);
    for (int i = 0; i < 100; i++) spli_pairwise_test(r, &done);
    ok(!done, "a collective whose partner never comes is not done");
    spli_pairwise_free(r);
    ok(world_close(w), "and giving it up leaves no message, memory or event");
}

static void test_refusals(void) {
    world *w = world_open(2, 0);
    spl_comm *c = &w->ranks[0].world.base;
    spl_request *r;
    char byte;
    int64_t negative[2] = {-1, 0}, huge[2] = {INT64_MAX / 4, INT64_MAX / 4}, one[2] = {1, 1}, two[2] = {2, 1};
    spl_coll coll = {.kind = SPL_COLL_ALL_TO_ALL,
                     .dtype = SPL_F64,
                     .send = &byte,
                     .recv = &byte,
                     .send_counts = negative,
                     .recv_counts = one};
    uint64_t before = c->sequence;
    ok(spli_pairwise_start(c, &coll, NULL, 0, &r).code == SPL_EARG && !r, "a negative count is refused");
    coll.send_counts = huge;
    ok(spli_pairwise_start(c, &coll, NULL, 0, &r).code == SPL_ENOMEM, "counts whose bytes overflow are refused");
    coll.send_counts = two;
    ok(spli_pairwise_start(c, &coll, NULL, 0, &r).code == SPL_EARG, "an own part of two sizes is refused");
    coll.send_counts = one;
    coll.recv = NULL;
    ok(spli_pairwise_start(c, &coll, NULL, 0, &r).code == SPL_EARG, "receiving into no memory is refused");
    coll = (spl_coll){
        .kind = SPL_COLL_BROADCAST, .dtype = SPL_F64, .send = &byte, .recv = &byte, .send_counts = one, .root = 2};
    ok(spli_pairwise_start(c, &coll, NULL, 0, &r).code == SPL_EARG, "a root that is no member is refused");
    ok(c->sequence == before + 5, "a refused call counts as a call, so members stay in step");
    ok(world_close(w), "and nothing is left over");
}

static void test_shapes(void) {
    int right = 1;
    for (int P = 1; P < 70; P++) {
        for (int root = 0; root < P; root += 1 + P / 5) {
            int reached = 0, parent, children[32], hears[70];
            memset(hears, 0xFF, sizeof hears);
            for (int r = 0; r < P; r++) {
                int n = spli_coll_tree(P, r, root, &parent, children);
                for (int i = 0; i < n; i++) hears[children[i]] = r;
                reached += n;
            }
            for (int r = 0; r < P; r++) {
                spli_coll_tree(P, r, root, &parent, children);
                right &= r == root ? parent == -1 && hears[r] == -1 : parent == hears[r];
            }
            right &= reached == P - 1;
        }
        int64_t at, count, next = 0;
        for (int m = 0; m < P; m++) {
            spli_coll_split(1000, P, m, &at, &count);
            right &= at == next && count >= 1000 / P && count <= 1000 / P + 1;
            next += count;
        }
        right &= next == 1000;
    }
    ok(right, "trees reach each member once, splits are balanced and cover all");
}

int main(void) {
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 13};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int lazy = 0; lazy < 2; lazy++) {
            int good = 1, bytes = 1, trials = sizes[i] > 5 ? 30 : 150;
            for (int t = 0; t < trials; t++) good &= run_trial(sizes[i], lazy, &bytes);
            ok(good, "%d random trials on %d ranks, %s queue: every element right, nothing left over", trials, sizes[i],
               lazy ? "lazy" : "immediate");
            ok(bytes, "  and spl_coll_bytes is what was sent");
        }
    }
    test_limits_of_scratch();
    test_messages_of_nothing();
    test_giving_up();
    test_refusals();
    test_shapes();
    return tap_done();
}
