/* comm_nccl.c: collectives of device memory over NCCL, on the communication stream.
 *
 * Every collective is a few grouped sends and receives, which take any counts, and for reductions this backend's own
 * sum of the parts in member order: the result does not depend on NCCL's choice of algorithm, and is that of the other
 * comms to the last bit. A broadcast is NCCL's. Barriers and control messages stay with the comm underneath (MPI).
 *
 * Nothing blocks. An NCCL communicator comes up with the first collective of its group: its id travels as a broadcast
 * of the comm underneath, and joining is polled. Requests are put on the stream in the order of their starts, also
 * across groups, so that all ranks queue them alike; `test` and `progress` move them on. An error of NCCL, or a request
 * given up, aborts the communicator: what waits on the device ends, and later calls are refused. */
#include "comm_nccl.h"
#include "nccl_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SPLK_NO_NCCL
spl_status splk_comm_nccl_open(spl_comm *under, spl_comm **out) {
    (void)under;
    *out = NULL;
    return spli_error(SPL_EENV, "this program was built without NCCL's header");
}
#else

static const size_t SCRATCH_LIMIT = 64 << 20; /* bytes that a reduction receives at a time; equal on all ranks */

typedef enum comm_state { COMM_NEW, COMM_ID, COMM_JOINING, COMM_READY, COMM_BROKEN } comm_state;

typedef struct nccl_world nccl_world;

typedef struct nccl_comm {
    spl_comm base;
    nccl_world *world;
    spl_comm *under; /* of the same members */
    ncclComm_t nccl;
    comm_state state;
    ncclUniqueId id;
    void *id_device;
    spl_event *id_event;
    spl_request *id_request;
} nccl_comm;

typedef enum request_state { REQUEST_WAITS, REQUEST_QUEUING, REQUEST_RUNS, REQUEST_DONE, REQUEST_FAILED } request_state;

typedef struct nccl_request {
    spl_request base;
    struct nccl_request *next;
    spl_coll coll;
    request_state state;
    int listed, grouped; /* in the world's list; a group was handed to NCCL that its step belongs to */
    spl_status status;
    spl_event **wait, *done;
    int nwait;
    int64_t piece, at, own; /* of a reduction: elements a step, begin of this one, elements of this member's part */
    char *scratch;
    size_t scratch_bytes;
    const void **sources;
    void *memory;
} nccl_request;

struct nccl_world {
    nccl_comm comm;
    splk_nccl api;
    nccl_request *first; /* not done yet, in the order of their starts */
};

static nccl_comm *comm_of(const nccl_request *r) { return (nccl_comm *)r->base.comm; }

static spl_status nccl_error(const nccl_comm *c, ncclResult_t e, const char *what) {
    return spli_error_native(SPL_EINTERNAL, (long)e,
                             "NCCL failed in %s on %s%s: %s (is a rank gone? NCCL_DEBUG=WARN says more)", what,
                             c->base.axis[0] ? "axis " : "all ranks", c->base.axis, c->world->api.GetErrorString(e));
}

#define TRY_NCCL(c, call, what)                                                                                      \
    do {                                                                                                             \
        ncclResult_t nccl_ = (c)->world->api.call;                                                                   \
        if (nccl_ != ncclSuccess && nccl_ != ncclInProgress) return nccl_error(c, nccl_, what);                      \
    } while (0)

static void comm_break(nccl_comm *c) {
    if (c->nccl) (void)c->world->api.CommAbort(c->nccl);
    c->nccl = NULL;
    c->state = COMM_BROKEN;
}

/* ---------------------------------------------------------------- coming up */

static spl_status send_id(nccl_comm *c) {
    const spl_backend_ops *b = c->base.backend;
    static const int64_t count[1] = {sizeof c->id};
    spl_coll coll = {.kind = SPL_COLL_BROADCAST, .dtype = SPL_U8, .send_counts = count};
    if (c->base.rank == 0) TRY_NCCL(c, GetUniqueId(&c->id), "ncclGetUniqueId");
    SPL_TRY(b->alloc(c->base.backend_ctx, sizeof c->id, &c->id_device));
    SPL_TRY(b->copy_in(c->base.backend_ctx, c->base.queue, c->id_device, &c->id, sizeof c->id));
    SPL_TRY(b->event_open(c->base.backend_ctx, &c->id_event));
    SPL_TRY(b->event_record(c->base.backend_ctx, c->base.queue, c->id_event));
    coll.send = coll.recv = c->id_device;
    SPL_TRY(c->under->ops->start(c->under, &coll, &c->id_event, 1, &c->id_request));
    c->state = COMM_ID;
    return spli_ok();
}

static void drop_id(nccl_comm *c) {
    const spl_backend_ops *b = c->base.backend;
    if (c->id_request) c->under->ops->request_free(c->id_request);
    if (c->id_event) b->event_close(c->base.backend_ctx, c->id_event);
    if (c->id_device) b->free(c->base.backend_ctx, c->id_device, sizeof c->id);
    c->id_request = NULL;
    c->id_event = NULL;
    c->id_device = NULL;
}

/* One step towards READY. */
static spl_status come_up(nccl_comm *c) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclSuccess;
    int done = 0;
    switch (c->state) {
    case COMM_NEW:
        return send_id(c);
    case COMM_ID:
        SPL_TRY(c->under->ops->test(c->id_request, &done));
        if (!done) return spli_ok();
        SPL_TRY(c->base.backend->copy_out(c->base.backend_ctx, c->base.queue, &c->id, c->id_device, sizeof c->id));
        drop_id(c);
        config.blocking = 0;
        TRY_NCCL(c, CommInitRankConfig(&c->nccl, c->base.size, c->id, c->base.rank, &config), "ncclCommInitRankConfig");
        c->state = COMM_JOINING;
        return spli_ok();
    case COMM_JOINING:
        TRY_NCCL(c, CommGetAsyncError(c->nccl, &state), "ncclCommGetAsyncError");
        if (state == ncclInProgress) return spli_ok();
        if (state != ncclSuccess) return nccl_error(c, state, "joining");
        c->state = COMM_READY;
        return spli_ok();
    case COMM_BROKEN:
        return spli_error(SPL_ESTALL, "communication on %s%s was given up earlier, and the device's state is lost",
                          c->base.axis[0] ? "axis " : "all ranks", c->base.axis);
    case COMM_READY:
        break;
    }
    return spli_ok();
}

/* ---------------------------------------------------------------- a collective on the stream */

static size_t element(const nccl_request *r) { return spl_dtype_size(r->coll.dtype); }
static void *at(const nccl_request *r, const void *p, int64_t n) { return (char *)p + (size_t)n * element(r); }
static cudaStream_t stream_of(const nccl_request *r) { return r->base.comm->queue->stream; }

static spl_status copy_own(nccl_request *r, void *to, const void *from, int64_t n) {
    if (n > 0 && to != from)
        SPLK_TRY(cudaMemcpyAsync(to, from, (size_t)n * element(r), cudaMemcpyDeviceToDevice, stream_of(r)));
    return spli_ok();
}

static spl_status send_to(nccl_request *r, int m, const void *p, int64_t n) {
    nccl_comm *c = comm_of(r);
    if (n > 0) TRY_NCCL(c, Send(p, (size_t)n * element(r), ncclInt8, m, c->nccl, stream_of(r)), "ncclSend");
    return spli_ok();
}

static spl_status receive_from(nccl_request *r, int m, void *p, int64_t n) {
    nccl_comm *c = comm_of(r);
    if (n > 0) TRY_NCCL(c, Recv(p, (size_t)n * element(r), ncclInt8, m, c->nccl, stream_of(r)), "ncclRecv");
    return spli_ok();
}

/* Sends parts and receives parts, one of each a member; what a member has for itself is copied. */
static spl_status exchange(nccl_request *r) {
    const spl_coll *k = &r->coll;
    const int P = r->base.comm->size, me = r->base.comm->rank, gathers = k->kind == SPL_COLL_ALL_GATHER;
    int64_t send_at = 0, recv_at = 0;
    for (int m = 0; m < P; m++) {
        const int64_t sent = gathers ? k->send_counts[0] : k->send_counts[m];
        const void *from = at(r, k->send, gathers ? 0 : k->send_at ? k->send_at[m] : send_at);
        void *to = at(r, k->recv, k->recv_at ? k->recv_at[m] : recv_at);
        if (!gathers) send_at += sent;
        recv_at += k->recv_counts[m];
        if (m == me) {
            if (!(gathers && k->send == k->recv)) SPL_TRY(copy_own(r, to, from, sent)); /* else it is there already */
            continue;
        }
        if (gathers && k->send == k->recv) { /* the own part lies in its place in recv */
            int64_t own = 0;
            for (int i = 0; i < me; i++) own += k->recv_counts[i];
            from = at(r, k->recv, own);
        }
        SPL_TRY(send_to(r, m, from, sent));
        SPL_TRY(receive_from(r, m, to, k->recv_counts[m]));
    }
    return spli_ok();
}

/* Where member m's part of a reduction begins, and how long it is. */
static void part_of(const nccl_request *r, int m, int64_t *begin, int64_t *n) {
    if (r->coll.kind == SPL_COLL_ALL_REDUCE) {
        spli_coll_split(r->coll.send_counts[0], r->base.comm->size, m, begin, n);
        return;
    }
    *begin = 0;
    for (int i = 0; i < m; i++) *begin += r->coll.send_counts[i];
    *n = r->coll.send_counts[m];
}

static int64_t piece_of(const nccl_request *r, int64_t n) {
    int64_t left = n - r->at;
    return left <= 0 ? 0 : left < r->piece ? left : r->piece;
}

/* One piece of a reduction: every member sends the others their parts of it. */
static spl_status exchange_piece(nccl_request *r) {
    const int P = r->base.comm->size, me = r->base.comm->rank;
    int64_t begin, n;
    for (int m = 0; m < P; m++) {
        if (m == me) continue;
        part_of(r, m, &begin, &n);
        SPL_TRY(send_to(r, m, at(r, r->coll.send, begin + r->at), piece_of(r, n)));
        SPL_TRY(receive_from(r, m, r->scratch + (size_t)m * (size_t)r->piece * element(r), piece_of(r, r->own)));
    }
    return spli_ok();
}

static spl_status sum_piece(nccl_request *r) {
    const spl_comm *c = r->base.comm;
    int64_t begin, n, here = piece_of(r, r->own);
    if (here == 0) return spli_ok();
    part_of(r, c->rank, &begin, &n);
    for (int m = 0; m < c->size; m++)
        r->sources[m] = m == c->rank ? at(r, r->coll.send, begin + r->at)
                                     : r->scratch + (size_t)m * (size_t)r->piece * element(r);
    void *to = at(r, r->coll.recv, (r->coll.kind == SPL_COLL_ALL_REDUCE ? begin : 0) + r->at);
    return c->backend->sum(c->backend_ctx, c->queue, to, r->sources, c->size, here, r->coll.dtype);
}

/* The second half of an all-reduce: everybody's sums to everybody. */
static spl_status gather_sums(nccl_request *r) {
    const int P = r->base.comm->size, me = r->base.comm->rank;
    int64_t begin, n, mine;
    part_of(r, me, &mine, &n);
    for (int m = 0; m < P; m++) {
        if (m == me) continue;
        part_of(r, m, &begin, &n);
        SPL_TRY(send_to(r, m, at(r, r->coll.recv, mine), r->own));
        SPL_TRY(receive_from(r, m, at(r, r->coll.recv, begin), n));
    }
    return spli_ok();
}

static spl_status broadcast(nccl_request *r) {
    nccl_comm *c = comm_of(r);
    const size_t bytes = (size_t)r->coll.send_counts[0] * element(r);
    const void *from = c->base.rank == r->coll.root ? r->coll.send : r->coll.recv;
    if (bytes > 0)
        TRY_NCCL(c, Broadcast(from, r->coll.recv, bytes, ncclInt8, r->coll.root, c->nccl, stream_of(r)),
                 "ncclBroadcast");
    return spli_ok();
}

static int reduces(const nccl_request *r) {
    return r->coll.kind == SPL_COLL_ALL_REDUCE || r->coll.kind == SPL_COLL_REDUCE_SCATTER;
}

static int64_t longest_part(const nccl_request *r) {
    int64_t most = 0, begin, n;
    for (int m = 0; m < r->base.comm->size; m++) {
        part_of(r, m, &begin, &n);
        if (n > most) most = n;
    }
    return most;
}

/* Hands the messages of the step that r->at stands for to NCCL. */
static spl_status begin_step(nccl_request *r) {
    nccl_comm *c = comm_of(r);
    TRY_NCCL(c, GroupStart(), "ncclGroupStart");
    spl_status status;
    if (!reduces(r)) status = r->coll.kind == SPL_COLL_BROADCAST ? broadcast(r) : exchange(r);
    else status = r->at < longest_part(r) ? exchange_piece(r) : gather_sums(r);
    ncclResult_t end = c->world->api.GroupEnd();
    r->grouped = 1;
    if (status.code == SPL_OK && end != ncclSuccess && end != ncclInProgress)
        status = nccl_error(c, end, "ncclGroupEnd");
    return status;
}

/* The messages of a step are on the stream; *more: another step follows. */
static spl_status end_step(nccl_request *r, int *more) {
    r->grouped = 0;
    *more = 0;
    if (!reduces(r)) return spli_ok();
    const int64_t most = longest_part(r);
    const int summing = r->at < most, gathers = r->coll.kind == SPL_COLL_ALL_REDUCE;
    if (summing) SPL_TRY(sum_piece(r));
    r->at += r->piece;
    *more = summing && (r->at < most || gathers);
    return spli_ok();
}

/* ---------------------------------------------------------------- requests */

static void unlist(nccl_request *r) {
    nccl_world *w = comm_of(r)->world;
    for (nccl_request **p = &w->first; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            break;
        }
    r->listed = 0;
}

static spl_status begin(nccl_request *r) {
    const spl_comm *c = r->base.comm;
    for (int i = 0; i < r->nwait; i++) SPL_TRY(c->backend->event_wait(c->backend_ctx, c->queue, r->wait[i]));
    r->state = REQUEST_QUEUING;
    if (c->size == 1) { /* nobody to send to */
        const int64_t n = r->coll.send_counts[0];
        return r->coll.kind == SPL_COLL_ALL_TO_ALL || r->coll.kind == SPL_COLL_ALL_GATHER
                   ? exchange(r)
                   : copy_own(r, r->coll.recv, r->coll.send, n);
    }
    return reduces(r) && longest_part(r) == 0 ? spli_ok() : begin_step(r);
}

static spl_status step(nccl_request *r, int *moved) {
    nccl_comm *c = comm_of(r);
    ncclResult_t state = ncclSuccess;
    int done = 0, more = 0;
    *moved = 0;
    switch (r->state) {
    case REQUEST_WAITS:
        if (c->state != COMM_READY && c->base.size > 1) {
            comm_state before = c->state;
            SPL_TRY(come_up(c));
            *moved = c->state != before;
            return spli_ok();
        }
        *moved = 1;
        return begin(r);
    case REQUEST_QUEUING:
        if (r->grouped) TRY_NCCL(c, CommGetAsyncError(c->nccl, &state), "ncclCommGetAsyncError");
        if (state == ncclInProgress) return spli_ok();
        if (state != ncclSuccess) return nccl_error(c, state, spl_coll_name(r->coll.kind));
        *moved = 1;
        if (r->grouped) SPL_TRY(end_step(r, &more));
        if (more) return begin_step(r);
        SPL_TRY(c->base.backend->event_record(c->base.backend_ctx, c->base.queue, r->done));
        r->state = REQUEST_RUNS;
        return spli_ok();
    case REQUEST_RUNS:
        if (c->nccl) TRY_NCCL(c, CommGetAsyncError(c->nccl, &state), "ncclCommGetAsyncError");
        if (state != ncclSuccess && state != ncclInProgress) return nccl_error(c, state, spl_coll_name(r->coll.kind));
        SPL_TRY(c->base.backend->event_test(c->base.backend_ctx, r->done, &done));
        if (!done) return spli_ok();
        r->state = REQUEST_DONE;
        *moved = 1;
        return spli_ok();
    case REQUEST_DONE:
    case REQUEST_FAILED:
        break;
    }
    return spli_ok();
}

/* In the order of starts: one that is not yet on the stream keeps those behind it off too. */
static void advance_all(nccl_world *w) {
    int blocked = 0;
    for (nccl_request *r = w->first, *next; r; r = next) {
        int moved = 1;
        next = r->next;
        while (moved && (!blocked || r->state == REQUEST_RUNS) && r->state < REQUEST_DONE) {
            spl_status status = step(r, &moved);
            if (moved) r->base.progress++;
            if (status.code == SPL_OK) continue;
            r->status = status;
            r->state = REQUEST_FAILED;
            comm_break(comm_of(r));
        }
        blocked |= r->state < REQUEST_RUNS;
        if (r->state >= REQUEST_DONE) unlist(r);
    }
}

static spl_status nccl_test(spl_request *base, int *done) {
    nccl_request *r = (nccl_request *)base;
    if (r->state < REQUEST_DONE) {
        nccl_world *w = comm_of(r)->world;
        if (w->comm.under->ops->progress) w->comm.under->ops->progress(w->comm.under);
        advance_all(w);
    }
    *done = r->state == REQUEST_DONE;
    return r->state == REQUEST_FAILED ? r->status : spli_ok();
}

static void nccl_free(spl_request *base) {
    nccl_request *r = (nccl_request *)base;
    if (!r) return;
    const spl_comm *c = base->comm;
    if (r->listed) unlist(r);
    if (r->state == REQUEST_QUEUING || r->state == REQUEST_RUNS) { /* given up: nobody may wait for it any more */
        comm_break(comm_of(r));
        (void)cudaStreamSynchronize(stream_of(r)); /* what was aborted has left the stream: its scratch may go */
    }
    if (r->done) c->backend->event_close(c->backend_ctx, r->done);
    if (r->scratch && c->memory.alloc) c->memory.free(c->memory.owner, r->scratch, r->scratch_bytes);
    else if (r->scratch) c->backend->free(c->backend_ctx, r->scratch, r->scratch_bytes);
    free(r->memory);
    free(r);
}

/* Copies of the counts and places, the events, and room for the sources of a sum. */
static spl_status arrays_take(nccl_request *r, const spl_coll *coll, spl_event *const *wait, int nwait) {
    const size_t P = (size_t)r->base.comm->size, counts = P * sizeof(int64_t);
    const int per_member = coll->kind == SPL_COLL_REDUCE_SCATTER || coll->kind == SPL_COLL_ALL_TO_ALL;
    char *p = calloc(1, 4 * counts + P * sizeof(void *) + (size_t)nwait * sizeof(spl_event *));
    if (!p) return spli_error(SPL_ENOMEM, "out of memory while starting %s", spl_coll_name(coll->kind));
    int64_t *numbers = (int64_t *)(void *)p;
    r->memory = p;
    memcpy(numbers, coll->send_counts, per_member ? counts : sizeof(int64_t));
    if (coll->recv_counts) memcpy(numbers + P, coll->recv_counts, counts);
    r->coll.send_counts = numbers;
    r->coll.recv_counts = numbers + P;
    if (coll->send_at) r->coll.send_at = memcpy(numbers + 2 * P, coll->send_at, counts);
    if (coll->recv_at) r->coll.recv_at = memcpy(numbers + 3 * P, coll->recv_at, counts);
    r->sources = (const void **)(void *)(p + 4 * counts);
    r->wait = (spl_event **)(void *)(p + 4 * counts + P * sizeof(void *));
    for (int i = 0; i < nwait; i++) r->wait[i] = wait[i];
    r->nwait = nwait;
    return spli_ok();
}

static spl_status scratch_take(nccl_request *r) {
    const spl_comm *c = r->base.comm;
    const int64_t P = c->size, most = reduces(r) ? longest_part(r) : 0;
    int64_t begin;
    if (most == 0 || P == 1) return spli_ok();
    part_of(r, c->rank, &begin, &r->own);
    r->piece = (int64_t)(SCRATCH_LIMIT / element(r)) / P;
    if (r->piece < 1) r->piece = 1;
    if (r->piece > most) r->piece = most;
    r->scratch_bytes = (size_t)(P * r->piece) * element(r);
    void *p = NULL;
    SPL_TRY(c->memory.alloc ? c->memory.alloc(c->memory.owner, r->scratch_bytes, &p)
                            : c->backend->alloc(c->backend_ctx, r->scratch_bytes, &p));
    r->scratch = p;
    return spli_ok();
}

static spl_status nccl_start(spl_comm *base, const spl_coll *coll, spl_event *const *wait, int nwait,
                             spl_request **out) {
    nccl_comm *c = (nccl_comm *)base;
    *out = NULL;
    if (coll->kind == SPL_COLL_BARRIER) { /* of the host's ranks */
        c->base.sequence++;
        return c->under->ops->start(c->under, coll, wait, nwait, out);
    }
    base->sequence++; /* also when it fails: members must not fall out of step */
    SPL_TRY(spli_coll_check(base, coll));
    nccl_request *r = calloc(1, sizeof *r), **last = &c->world->first;
    if (!r) return spli_error(SPL_ENOMEM, "out of memory while starting %s", spl_coll_name(coll->kind));
    spl_status status = spli_ok();
    r->base.comm = base;
    r->coll = *coll;
    SPL_GO(arrays_take(r, coll, wait, nwait), fail);
    SPL_GO(scratch_take(r), fail);
    SPL_GO(base->backend->event_open(base->backend_ctx, &r->done), fail);
    while (*last) last = &(*last)->next;
    *last = r;
    r->listed = 1;
    advance_all(c->world);
    if (r->state == REQUEST_FAILED) SPL_GO(r->status, fail);
    *out = &r->base;
    return spli_ok();
fail:
    nccl_free(&r->base);
    return status;
}

/* ---------------------------------------------------------------- comms */

static void nccl_progress(spl_comm *world) {
    nccl_world *w = (nccl_world *)world;
    if (w->comm.under->ops->progress) w->comm.under->ops->progress(w->comm.under);
    advance_all(w);
}

static void comm_down(nccl_comm *c) {
    drop_id(c);
    if (c->nccl) {
        if (c->state == COMM_READY) (void)c->world->api.CommDestroy(c->nccl);
        else (void)c->world->api.CommAbort(c->nccl);
    }
    free(c->base.world_ranks);
}

static spl_status ranks_copy(spl_comm *to, const spl_comm *from) {
    const size_t bytes = sizeof(int) * (size_t)from->size;
    to->world_ranks = malloc(bytes);
    if (!to->world_ranks) return spli_error(SPL_ENOMEM, "out of memory while making a group of %d ranks", from->size);
    memcpy(to->world_ranks, from->world_ranks, bytes);
    return spli_ok();
}

static spl_status nccl_group(spl_comm *parent, const int *members, int n, uint32_t id, spl_comm **child) {
    nccl_comm *p = (nccl_comm *)parent;
    *child = NULL;
    nccl_comm *c = calloc(1, sizeof *c);
    if (!c) return spli_error(SPL_ENOMEM, "out of memory while making a group of %d ranks", n);
    c->world = p->world;
    spl_status status = p->under->ops->group(p->under, members, n, id, &c->under);
    if (status.code == SPL_OK) {
        c->base = *c->under;
        c->base.ops = parent->ops;
        c->base.memory = parent->memory;
        status = ranks_copy(&c->base, c->under);
        if (status.code != SPL_OK) c->under->ops->close(c->under);
    }
    if (status.code == SPL_OK) *child = &c->base;
    else free(c);
    return status;
}

static void nccl_close(spl_comm *base) {
    nccl_comm *c = (nccl_comm *)base;
    comm_down(c);
    if (base->id != 0) c->under->ops->close(c->under); /* the world underneath belongs to whoever opened it */
    free(base->id != 0 ? (void *)c : (void *)c->world);
}

static spl_status nccl_control_send(spl_comm *world, int peer, const void *bytes, size_t n) {
    spl_comm *under = ((nccl_comm *)world)->under;
    return under->ops->control_send(under, peer, bytes, n);
}

static spl_status nccl_control_test(spl_comm *world, int peer, void *into, size_t n, int *done) {
    spl_comm *under = ((nccl_comm *)world)->under;
    return under->ops->control_test(under, peer, into, n, done);
}

static void nccl_abort(spl_comm *world, int exit_code) {
    nccl_comm *c = (nccl_comm *)world;
    comm_break(c);
    c->under->ops->abort(c->under, exit_code);
}

static const spl_comm_ops nccl_ops = {
    .name = "nccl",
    .start = nccl_start,
    .test = nccl_test,
    .request_free = nccl_free,
    .group = nccl_group,
    .close = nccl_close,
    .control_send = nccl_control_send,
    .control_test = nccl_control_test,
    .abort = nccl_abort,
    .progress = nccl_progress,
};

spl_status splk_comm_nccl_open(spl_comm *under, spl_comm **out) {
    *out = NULL;
    nccl_world *w = calloc(1, sizeof *w);
    if (!w) return spli_error(SPL_ENOMEM, "out of memory while opening NCCL");
    spl_status status = splk_nccl_load(&w->api);
    if (status.code == SPL_OK) {
        w->comm.base = *under;
        w->comm.base.ops = &nccl_ops;
        w->comm.under = under;
        w->comm.world = w;
        status = ranks_copy(&w->comm.base, under);
    }
    if (status.code == SPL_OK) *out = &w->comm.base;
    else free(w);
    return status;
}
#endif
