/* comm_pairwise.c: the collectives, each a few stages of one pattern, the exchange:
 *
 *   in a stage this member has for every other member something to send, something to receive, or nothing. Both are cut
 *   into pieces of equal, agreed size; round k moves piece k of each. All receives of a round are posted before its
 *   sends; receives come from members r-1, r-2, ... and sends go to r+1, r+2, ..., so that no member is everybody's
 *   first. Two rounds are under way at a time: while piece k is summed, piece k+1 travels.
 *
 *   all-gather, all-to-all   one stage.
 *   reduce-scatter           one stage into scratch; each piece is summed in member order 0 .. P-1, this member's own
 *                            part in its place, whatever came first: the result does not depend on timing.
 *   all-reduce               a reduce-scatter over a balanced split, then an all-gather: the same bits everywhere.
 *   broadcast                binomial tree: a stage that receives from the parent, one that sends to the children, one
 *                            of empty messages back up: roots receive nothing else, so two of them would not notice.
 *   barrier                  dissemination: in stage i an empty message to r + 2^i and one from r - 2^i.
 *
 * A member with nothing for another sends it no message. A request waits for its events, copies its own part on the
 * queue, runs its stages, and is done when the queue has passed its last sum or copy. Messages of one collective
 * between two members are sent and received in one order, that of stages and pieces, so their key need not tell them
 * apart. */
#include "comm_pairwise.h"
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 2, MESSAGE_LIMIT = 1 << 30, SCRATCH_LIMIT = 1 << 20, LEAST_PIECE = 32 << 10 };

typedef enum request_state { WAIT_EVENTS, EXCHANGE, WAIT_QUEUE, DONE, FAILED } request_state;

typedef struct flow { /* per member, in elements */
    int64_t *send_at, *send_n, *recv_at, *recv_n;
} flow;

typedef struct round_slot { /* messages of one round */
    spli_p2p_handle *handles;
    int active;
} round_slot;

typedef struct spli_pairwise_request {
    spl_request base;
    struct spli_pairwise_request *next, **link; /* the engine's list; link NULL: not in it */
    spl_coll coll;                              /* counts point into `memory` */
    spli_pairwise *engine;
    request_state state;
    spl_status status; /* when FAILED */
    spl_event **wait;
    int nwait;
    uint64_t sequence;

    int stage, stages;
    flow flow;
    const char *from; /* bases of the stage's send_at and recv_at */
    char *into;
    int reduce, tokens;
    int64_t piece; /* elements a round */
    int64_t round, rounds, posted;
    round_slot slot[WINDOW];

    char *scratch; /* WINDOW x parts x piece, backend memory */
    size_t scratch_bytes;
    int64_t scratch_piece;
    const void **sources;
    spl_event *event;
    int queued;      /* the queue holds work that nobody has waited for yet */
    int after_queue; /* 1: the round whose sum was queued is over; 0: the end */
    void *memory;    /* one block with all the arrays */
} request;

static size_t element(const request *r) { return spl_dtype_size(r->coll.dtype); }

/* Element n from p; a NULL p (of a part without elements) stays NULL. */
static void *at(const request *r, const void *p, int64_t n) {
    return n ? (char *)p + (size_t)n * element(r) : (void *)p;
}

/* ---------------------------------------------------------------- work on the queue */

static spl_status copy_local(request *r, void *to, const void *from, int64_t n) {
    if (n == 0 || to == from) return spli_ok();
    spl_box_args box = {.dtype = r->coll.dtype, .ndim = 1, .dst = to, .src = from};
    box.shape[0] = n;
    box.dst_strides[0] = box.src_strides[0] = 1;
    r->queued = 1;
    return r->base.comm->backend->box(r->base.comm->backend_ctx, r->base.comm->queue, &box);
}

static spl_status mark_queue(request *r) {
    if (!r->event) SPL_TRY(r->base.comm->backend->event_open(r->base.comm->backend_ctx, &r->event));
    r->queued = 0;
    return r->base.comm->backend->event_record(r->base.comm->backend_ctx, r->base.comm->queue, r->event);
}

/* This member's own part. */
static spl_status copy_own(request *r) {
    const spl_coll *c = &r->coll;
    const int me = r->base.comm->rank;
    int64_t send_at = 0, recv_at = 0;
    switch (c->kind) {
    case SPL_COLL_ALL_GATHER:
        for (int m = 0; m < me; m++) recv_at += c->recv_counts[m];
        if (c->send == c->recv) return spli_ok(); /* lies in its place already */
        return copy_local(r, at(r, c->recv, recv_at), c->send, c->send_counts[0]);
    case SPL_COLL_ALL_TO_ALL:
        for (int m = 0; m < me; m++) {
            send_at += c->send_counts[m];
            recv_at += c->recv_counts[m];
        }
        if (c->send_at) send_at = c->send_at[me];
        if (c->recv_at) recv_at = c->recv_at[me];
        return copy_local(r, at(r, c->recv, recv_at), at(r, c->send, send_at), c->send_counts[me]);
    case SPL_COLL_BROADCAST:
        return me == c->root ? copy_local(r, c->recv, c->send, c->send_counts[0]) : spli_ok();
    case SPL_COLL_ALL_REDUCE:
    case SPL_COLL_REDUCE_SCATTER: /* otherwise part of the sum */
        return r->base.comm->size == 1 ? copy_local(r, c->recv, c->send, c->send_counts[0]) : spli_ok();
    case SPL_COLL_BARRIER:
    case SPL_COLL_KIND_COUNT:
        break;
    }
    return spli_ok();
}

/* ---------------------------------------------------------------- stages */

static void flow_clear(request *r) {
    size_t n = sizeof(int64_t) * (size_t)r->base.comm->size;
    memset(r->flow.send_n, 0, n);
    memset(r->flow.recv_n, 0, n);
    memset(r->flow.send_at, 0, n);
    memset(r->flow.recv_at, 0, n);
}

static void flow_of_reduction(request *r, const int64_t *parts) { /* parts NULL: the balanced split of an all-reduce */
    int64_t begin = 0, n;
    for (int m = 0; m < r->base.comm->size; m++, begin += n) {
        if (parts) n = parts[m];
        else spli_coll_split(r->coll.send_counts[0], r->base.comm->size, m, &begin, &n);
        r->flow.send_at[m] = begin;
        r->flow.send_n[m] = n;
    }
    for (int m = 0; m < r->base.comm->size; m++) r->flow.recv_n[m] = r->flow.send_n[r->base.comm->rank];
    r->from = r->coll.send;
    r->reduce = 1;
    r->into = r->coll.recv;
    if (r->coll.kind == SPL_COLL_ALL_REDUCE) r->into = at(r, r->coll.recv, r->flow.send_at[r->base.comm->rank]);
}

static void flow_of_gather(request *r) {
    int64_t begin = 0, n;
    const spl_coll *c = &r->coll;
    const int me = r->base.comm->rank;
    for (int m = 0; m < r->base.comm->size; m++, begin += n) {
        if (c->kind == SPL_COLL_ALL_GATHER) n = c->recv_counts[m];
        else spli_coll_split(c->send_counts[0], r->base.comm->size, m, &begin, &n);
        r->flow.recv_at[m] = begin;
        r->flow.recv_n[m] = n;
    }
    r->into = c->recv;
    int in_place = c->kind == SPL_COLL_ALL_REDUCE || c->send == c->recv;
    r->from = in_place ? at(r, c->recv, r->flow.recv_at[me]) : c->send;
    for (int m = 0; m < r->base.comm->size; m++) r->flow.send_n[m] = r->flow.recv_n[me];
}

static void flow_of_all_to_all(request *r) {
    int64_t send_at = 0, recv_at = 0;
    for (int m = 0; m < r->base.comm->size; m++) {
        r->flow.send_at[m] = r->coll.send_at ? r->coll.send_at[m] : send_at;
        r->flow.recv_at[m] = r->coll.recv_at ? r->coll.recv_at[m] : recv_at;
        send_at += r->flow.send_n[m] = r->coll.send_counts[m];
        recv_at += r->flow.recv_n[m] = r->coll.recv_counts[m];
    }
    r->from = r->coll.send;
    r->into = r->coll.recv;
}

static void flow_of_broadcast(request *r) {
    int parent, children[32];
    int n = spli_coll_tree(r->base.comm->size, r->base.comm->rank, r->coll.root, &parent, children);
    r->into = r->coll.recv;
    r->from = parent < 0 ? r->coll.send : r->into;
    if (r->stage == 0) {
        if (parent >= 0) r->flow.recv_n[parent] = r->coll.send_counts[0];
    } else if (r->stage == 1) {
        for (int i = 0; i < n; i++) r->flow.send_n[children[i]] = r->coll.send_counts[0];
    } else {
        r->tokens = 1;
        if (parent >= 0) r->flow.send_n[parent] = 1;
        for (int i = 0; i < n; i++) r->flow.recv_n[children[i]] = 1;
    }
}

static void flow_of_barrier(request *r) {
    int64_t P = r->base.comm->size, step = (int64_t)1 << r->stage;
    r->tokens = 1;
    r->flow.send_n[(r->base.comm->rank + step) % P] = 1;
    r->flow.recv_n[(r->base.comm->rank - step + P) % P] = 1;
}

static int stages_of(spl_coll_kind kind, int size) {
    int n = 0;
    if (size == 1) return 0;
    switch (kind) {
    case SPL_COLL_BARRIER:
        while ((int64_t)1 << n < size) n++;
        return n;
    case SPL_COLL_ALL_REDUCE:
        return 2;
    case SPL_COLL_BROADCAST:
        return 3;
    case SPL_COLL_ALL_GATHER:
    case SPL_COLL_REDUCE_SCATTER:
    case SPL_COLL_ALL_TO_ALL:
        return 1;
    case SPL_COLL_KIND_COUNT:
        break;
    }
    return 0;
}

/* Elements a reduction moves a round: known to all members, since it depends on nothing that differs between them. */
static int64_t reduction_piece(const spli_pairwise *e, int size, size_t element_size) {
    size_t bytes = e->scratch_limit / (size_t)(WINDOW * size), least = LEAST_PIECE;
    if (least > e->scratch_limit) least = e->scratch_limit;
    if (bytes < least) bytes = least;
    if (bytes > e->message_limit) bytes = e->message_limit;
    int64_t n = (int64_t)(bytes / element_size);
    return n > 0 ? n : 1;
}

static spl_status post_round(request *r);

static spl_status begin_stage(request *r) {
    flow_clear(r);
    r->reduce = r->tokens = 0;
    switch (r->coll.kind) {
    case SPL_COLL_BARRIER:
        flow_of_barrier(r);
        break;
    case SPL_COLL_ALL_GATHER:
        flow_of_gather(r);
        break;
    case SPL_COLL_ALL_REDUCE:
        r->stage == 0 ? flow_of_reduction(r, NULL) : flow_of_gather(r);
        break;
    case SPL_COLL_REDUCE_SCATTER:
        flow_of_reduction(r, r->coll.send_counts);
        break;
    case SPL_COLL_ALL_TO_ALL:
        flow_of_all_to_all(r);
        break;
    case SPL_COLL_BROADCAST:
        flow_of_broadcast(r);
        break;
    case SPL_COLL_KIND_COUNT:
        break;
    }
    int64_t longest = 0, whole = (int64_t)(r->engine->message_limit / element(r));
    r->piece = r->reduce ? reduction_piece(r->engine, r->base.comm->size, element(r)) : whole > 0 ? whole : 1;
    for (int m = 0; m < r->base.comm->size; m++) {
        if (m == r->base.comm->rank) continue;
        if (r->flow.send_n[m] > longest) longest = r->flow.send_n[m];
        if (r->flow.recv_n[m] > longest) longest = r->flow.recv_n[m];
    }
    r->rounds = (longest + r->piece - 1) / r->piece;
    r->round = r->posted = 0;
    r->state = EXCHANGE;
    while (r->posted < r->rounds && r->posted < WINDOW) SPL_TRY(post_round(r));
    return spli_ok();
}

/* ---------------------------------------------------------------- rounds */

static int64_t piece_of(const request *r, int64_t n, int64_t round) {
    int64_t left = n - round * r->piece;
    return left <= 0 ? 0 : left < r->piece ? left : r->piece;
}

/* Where the piece from the i-th sender (1 .. P-1 places before this member) lies in scratch; i == 0: a copy of the own
 * piece. */
static char *scratch_at(const request *r, int64_t round, int i) {
    int64_t part = (round % WINDOW) * r->base.comm->size + i;
    return r->scratch + (size_t)(part * r->scratch_piece) * element(r);
}

static spl_status post_round(request *r) {
    const int P = r->base.comm->size, me = r->base.comm->rank;
    const int64_t k = r->posted;
    const size_t size = element(r);
    const spli_p2p_ops *p2p = r->engine->p2p;
    const spl_coll *c = &r->coll;
    const int root = c->kind == SPL_COLL_BROADCAST ? c->root : 0;
    const int dtype = c->kind == SPL_COLL_BARRIER ? 0 : (int)c->dtype;
    const spli_p2p_key key = {.comm_id = r->base.comm->id,
                              .sequence = r->sequence,
                              .what = (uint32_t)c->kind + SPL_COLL_KIND_COUNT *
                                                              ((uint32_t)dtype + SPL_DTYPE_COUNT * (uint32_t)root)};
    round_slot *slot = &r->slot[k % WINDOW];
    r->posted++;
    for (int i = 1; i < P; i++) {
        int m = (me - i + P) % P;
        int64_t n = piece_of(r, r->flow.recv_n[m], k);
        if (n == 0) continue;
        char *to = NULL;
        if (r->reduce) to = scratch_at(r, k, i);
        else if (!r->tokens) to = at(r, r->into, r->flow.recv_at[m] + k * r->piece);
        SPL_TRY(p2p->irecv(r->engine->ctx, r->base.comm->world_ranks[m], &key, to, r->tokens ? 0 : (size_t)n * size,
                           &slot->handles[slot->active]));
        slot->active++;
    }
    for (int i = 1; i < P; i++) {
        int m = (me + i) % P;
        int64_t n = piece_of(r, r->flow.send_n[m], k);
        if (n == 0) continue;
        const char *from = r->tokens ? NULL : at(r, r->from, r->flow.send_at[m] + k * r->piece);
        SPL_TRY(p2p->isend(r->engine->ctx, r->base.comm->world_ranks[m], &key, from, r->tokens ? 0 : (size_t)n * size,
                           &slot->handles[slot->active]));
        slot->active++;
    }
    return spli_ok();
}

static spl_status test_round(request *r, int *done) {
    round_slot *slot = &r->slot[r->round % WINDOW];
    for (int i = 0; i < slot->active;) {
        int over = 0;
        SPL_TRY(r->engine->p2p->test(r->engine->ctx, &slot->handles[i], &over));
        if (over) {
            slot->handles[i] = slot->handles[--slot->active];
            r->base.progress++;
        } else {
            i++;
        }
    }
    *done = slot->active == 0;
    return spli_ok();
}

static spl_status sum_round(request *r) {
    const int P = r->base.comm->size, me = r->base.comm->rank;
    const int64_t n = piece_of(r, r->flow.recv_n[me], r->round), begin = r->round * r->piece;
    if (n == 0) return spli_ok();
    char *to = at(r, r->into, begin);
    const char *own = at(r, r->from, r->flow.send_at[me] + begin);
    if (own == to) { /* in place: kernels need not allow that the sum overwrites one of its terms */
        SPL_TRY(copy_local(r, scratch_at(r, r->round, 0), own, n));
        own = scratch_at(r, r->round, 0);
    }
    for (int m = 0; m < P; m++) r->sources[m] = m == me ? own : scratch_at(r, r->round, (me - m + P) % P);
    r->queued = 1;
    return r->base.comm->backend->sum(r->base.comm->backend_ctx, r->base.comm->queue, to, r->sources, P, n,
                                      r->coll.dtype);
}

/* ---------------------------------------------------------------- the state machine */

static spl_status end_round(request *r) {
    r->round++;
    if (r->posted < r->rounds) return post_round(r);
    return spli_ok();
}

static spl_status step(request *r, int *moved) {
    int done = 1;
    *moved = 0;
    switch (r->state) {
    case WAIT_EVENTS:
        while (r->nwait > 0) {
            SPL_TRY(r->base.comm->backend->event_test(r->base.comm->backend_ctx, r->wait[r->nwait - 1], &done));
            if (!done) return spli_ok();
            r->nwait--;
        }
        *moved = 1;
        SPL_TRY(copy_own(r));
        if (r->stages) return begin_stage(r);
        r->state = EXCHANGE;
        return spli_ok();
    case EXCHANGE:
        *moved = 1;
        if (r->round < r->rounds) {
            SPL_TRY(test_round(r, &done));
            if (!done) {
                *moved = 0;
                return spli_ok();
            }
            if (!r->reduce) return end_round(r);
            SPL_TRY(sum_round(r));
            if (!r->queued) return end_round(r);
            r->after_queue = 1;
        } else if (r->stage + 1 < r->stages) {
            r->stage++;
            return begin_stage(r);
        } else if (r->queued) {
            r->after_queue = 0;
        } else {
            r->state = DONE;
            return spli_ok();
        }
        r->state = WAIT_QUEUE;
        return mark_queue(r);
    case WAIT_QUEUE:
        SPL_TRY(r->base.comm->backend->event_test(r->base.comm->backend_ctx, r->event, &done));
        if (!done) return spli_ok();
        *moved = 1;
        r->base.progress++;
        r->state = r->after_queue ? EXCHANGE : DONE;
        return r->after_queue ? end_round(r) : spli_ok();
    case DONE:
    case FAILED:
        break;
    }
    return spli_ok();
}

static void unlink_request(request *r) {
    if (!r->link) return;
    *r->link = r->next;
    if (r->next) r->next->link = r->link;
    r->link = NULL;
}

static void advance(request *r) {
    int moved = 1;
    while (moved && r->state != DONE && r->state != FAILED) {
        spl_status s = step(r, &moved);
        if (s.code != SPL_OK) {
            r->status = s;
            r->state = FAILED;
        }
    }
    if (r->state == DONE || r->state == FAILED) unlink_request(r);
}

static void advance_all(spli_pairwise *e) {
    for (request *r = e->active, *next; r; r = next) {
        next = r->next;
        advance(r);
    }
}

void spli_pairwise_progress(spl_comm *world) { advance_all(((spli_pairwise_comm *)world)->engine); }

spl_status spli_pairwise_test(spl_request *base, int *done) {
    request *r = (request *)base;
    advance(r);
    *done = r->state == DONE;
    return r->state == FAILED ? r->status : spli_ok();
}

/* ---------------------------------------------------------------- making and freeing */

static spl_status scratch_take(request *r) {
    const spl_comm_memory *m = &r->base.comm->memory;
    int64_t own = 0, begin;
    if (r->stages == 0) return spli_ok();
    if (r->coll.kind == SPL_COLL_ALL_REDUCE)
        spli_coll_split(r->coll.send_counts[0], r->base.comm->size, r->base.comm->rank, &begin, &own);
    if (r->coll.kind == SPL_COLL_REDUCE_SCATTER) own = r->coll.send_counts[r->base.comm->rank];
    if (own == 0) return spli_ok();
    int64_t piece = reduction_piece(r->engine, r->base.comm->size, element(r));
    int64_t slots = own <= piece ? 1 : WINDOW;
    r->scratch_piece = own < piece ? own : piece;
    r->scratch_bytes = (size_t)(slots * r->base.comm->size * r->scratch_piece) * element(r);
    return m->alloc ? m->alloc(m->owner, r->scratch_bytes, (void **)&r->scratch)
                    : r->base.comm->backend->alloc(r->base.comm->backend_ctx, r->scratch_bytes, (void **)&r->scratch);
}

/* One block: counts and places (4), flow (4), events, handles, sources. */
static spl_status arrays_take(request *r, const spl_coll *coll, int nwait) {
    const size_t P = (size_t)r->base.comm->size, counts = P * sizeof(int64_t);
    const size_t handles = WINDOW * 2 * P * sizeof(spli_p2p_handle);
    char *p = calloc(1, 8 * counts + (size_t)nwait * sizeof(spl_event *) + handles + P * sizeof(void *));
    if (!p) return spli_error(SPL_ENOMEM, "out of memory while starting %s", spl_coll_name(coll->kind));
    int per_member = coll->kind == SPL_COLL_REDUCE_SCATTER || coll->kind == SPL_COLL_ALL_TO_ALL;
    r->memory = p;
    int64_t *numbers = (int64_t *)p;
    if (coll->send_counts) memcpy(numbers, coll->send_counts, per_member ? counts : sizeof(int64_t));
    if (coll->recv_counts) memcpy(numbers + P, coll->recv_counts, counts);
    r->coll.send_counts = numbers;
    r->coll.recv_counts = numbers + P;
    if (coll->send_at) r->coll.send_at = memcpy(numbers + 2 * P, coll->send_at, counts);
    if (coll->recv_at) r->coll.recv_at = memcpy(numbers + 3 * P, coll->recv_at, counts);
    r->flow = (flow){numbers + 4 * P, numbers + 5 * P, numbers + 6 * P, numbers + 7 * P};
    p += 8 * counts;
    for (int i = 0; i < WINDOW; i++, p += handles / WINDOW) r->slot[i].handles = (spli_p2p_handle *)p;
    r->sources = (const void **)p;
    r->wait = (spl_event **)(p + P * sizeof(void *));
    return spli_ok();
}

spl_status spli_pairwise_start(spl_comm *c, const spl_coll *coll, spl_event *const *wait, int nwait,
                               spl_request **out) {
    spli_pairwise_comm *pc = (spli_pairwise_comm *)c;
    uint64_t sequence = c->sequence++; /* also when it fails: members must not fall out of step */
    *out = NULL;
    SPL_TRY(spli_coll_check(c, coll));
    request *r = calloc(1, sizeof *r);
    if (!r) return spli_error(SPL_ENOMEM, "out of memory while starting %s", spl_coll_name(coll->kind));
    r->base.comm = c;
    r->engine = pc->engine;
    r->coll = *coll;
    r->sequence = sequence;
    if (coll->kind == SPL_COLL_BARRIER) r->coll.dtype = SPL_U8;
    r->stages = stages_of(coll->kind, c->size);
    if (!c->backend->has_memory && coll->kind != SPL_COLL_BARRIER) { /* nothing to move */
        r->state = DONE;
        *out = &r->base;
        return spli_ok();
    }
    spl_status status = spli_ok();
    SPL_GO(arrays_take(r, coll, nwait), fail);
    for (int i = 0; i < nwait; i++) r->wait[i] = wait[i];
    r->nwait = nwait;
    SPL_GO(scratch_take(r), fail);
    r->link = &r->engine->active;
    while (*r->link) r->link = &(*r->link)->next; /* in the order of starts */
    *r->link = r;
    advance(r);
    if (r->state == FAILED) SPL_GO(r->status, fail);
    *out = &r->base;
    return spli_ok();
fail:
    spli_pairwise_free(&r->base);
    return status;
}

void spli_pairwise_free(spl_request *base) {
    request *r = (request *)base;
    if (!r) return;
    unlink_request(r);
    for (int k = 0; k < WINDOW; k++)
        for (int i = 0; i < r->slot[k].active; i++) r->engine->p2p->cancel(r->engine->ctx, &r->slot[k].handles[i]);
    if (r->event) r->base.comm->backend->event_close(r->base.comm->backend_ctx, r->event);
    if (r->scratch) {
        const spl_comm_memory *m = &r->base.comm->memory;
        if (m->alloc) m->free(m->owner, r->scratch, r->scratch_bytes);
        else r->base.comm->backend->free(r->base.comm->backend_ctx, r->scratch, r->scratch_bytes);
    }
    free(r->memory);
    free(r);
}

/* ---------------------------------------------------------------- comms */

void spli_pairwise_init(spli_pairwise *e, const spli_p2p_ops *p2p, void *ctx) {
    *e = (spli_pairwise){.p2p = p2p, .ctx = ctx, .message_limit = MESSAGE_LIMIT, .scratch_limit = SCRATCH_LIMIT};
}

spl_status spli_pairwise_world(spli_pairwise_comm *c, spli_pairwise *engine, int rank, int size,
                               const spl_backend_ops *b, void *backend_ctx, spl_queue *q) {
    c->base.rank = rank;
    c->base.size = size;
    c->base.backend = b;
    c->base.backend_ctx = backend_ctx;
    c->base.queue = q;
    c->engine = engine;
    c->base.world_ranks = malloc(sizeof(int) * (size_t)size);
    if (!c->base.world_ranks)
        return spli_error(SPL_ENOMEM, "out of memory while opening communication over %d ranks", size);
    for (int m = 0; m < size; m++) c->base.world_ranks[m] = m;
    return spli_ok();
}

spl_status spli_pairwise_group(spl_comm *parent, const int *members, int n, uint32_t id, spl_comm **child) {
    spli_pairwise_comm *c = calloc(1, sizeof *c);
    int *ranks = malloc(sizeof(int) * (size_t)(n > 0 ? n : 1));
    *child = NULL;
    if (!c || !ranks) {
        free(c);
        free(ranks);
        return spli_error(SPL_ENOMEM, "out of memory while making a group of %d ranks", n);
    }
    *c = *(spli_pairwise_comm *)parent;
    c->base.size = n;
    c->base.rank = -1;
    c->base.id = id;
    c->base.sequence = 0;
    c->base.world_ranks = ranks;
    c->base.axis[0] = '\0';
    for (int m = 0; m < n; m++) {
        if (members[m] == parent->rank) c->base.rank = m;
        ranks[m] = members[m] >= 0 && members[m] < parent->size ? parent->world_ranks[members[m]] : -1;
    }
    *child = &c->base;
    if (c->base.rank >= 0) return spli_ok();
    spli_pairwise_close_group(*child);
    *child = NULL;
    return spli_error(SPL_EARG, "a group of %d ranks does not hold member %d, which makes it", n, parent->rank);
}

void spli_pairwise_close_group(spl_comm *c) {
    free(c->world_ranks);
    free(c);
}
