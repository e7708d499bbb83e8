/* comm_sim.c: messages between ranks of one process, for the collectives of comm_pairwise: the same steps and the same
 * sums as over MPI, hence the same bits. A message is the sender's own memory until the receiver has copied it: nothing
 * is buffered. */
#include "comm_pairwise.h"
#include "sim.h"
#include <stdlib.h>
#include <string.h>

typedef struct message { /* from one rank to another, in the order of sending */
    struct message *next;
    spli_p2p_key key;
    const void *bytes;
    size_t n;
    int taken, given_up;
} message;

typedef struct note { /* a control message */
    struct note *next;
    size_t n;
    char bytes[SPL_CONTROL_BYTES];
} note;

typedef struct lane { /* of one pair of ranks */
    message *messages;
    note *notes;
} lane;

typedef struct post { /* shared by all ranks */
    int size;
    lane *lanes;       /* [from * size + to] */
} post;

typedef struct sim_world {
    spli_pairwise_comm comm;
    spli_pairwise engine;
    spl_sim *sim;
    post *post;
} sim_world;

typedef struct waiting { /* a receive */
    int peer;
    spli_p2p_key key;
    void *into;
    size_t n;
} waiting;

enum { SENDING = 1, RECEIVING = 2 }; /* what a handle points to, in its lowest bits */

static lane *lane_of(const sim_world *w, int from, int to) {
    return &w->post->lanes[(size_t)from * (size_t)w->post->size + (size_t)to];
}

static int same_call(const spli_p2p_key *a, const spli_p2p_key *b) {
    return a->comm_id == b->comm_id && a->sequence == b->sequence;
}

/* ---------------------------------------------------------------- data */

static spl_status sim_isend(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t bytes,
                            spli_p2p_handle *h) {
    sim_world *w = ctx;
    message *m = calloc(1, sizeof *m), **last = &lane_of(w, w->comm.base.rank, peer)->messages;
    if (!m) return spli_error(SPL_ENOMEM, "out of memory while sending to rank %d", peer);
    m->key = *key;
    m->bytes = p;
    m->n = bytes;
    while (*last) last = &(*last)->next;
    *last = m;
    h->number = (uintptr_t)m | SENDING;
    return spli_ok();
}

static spl_status sim_irecv(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t bytes, spli_p2p_handle *h) {
    (void)ctx;
    waiting *r = malloc(sizeof *r);
    if (!r) return spli_error(SPL_ENOMEM, "out of memory while receiving from rank %d", peer);
    *r = (waiting){peer, *key, p, bytes};
    h->number = (uintptr_t)r | RECEIVING;
    return spli_ok();
}

static spl_status take(sim_world *w, waiting *r, int *done) {
    for (message **at = &lane_of(w, r->peer, w->comm.base.rank)->messages; *at; at = &(*at)->next) {
        message *m = *at;
        if (!same_call(&m->key, &r->key)) continue;
        if (m->key.what != r->key.what)
            return spli_error(SPL_EDISAGREE,
                              "rank %d and rank %d make different collective calls (another kind, dtype or root); "
                              "every rank must make the same; run with --check-collectives to see who calls what",
                              r->peer, w->comm.base.rank);
        if (m->n != r->n)
            return spli_error(
                SPL_EDISAGREE,
                "rank %d sent %zu bytes where rank %d expects %zu; every rank must make the same collective "
                "calls",
                r->peer, m->n, w->comm.base.rank, r->n);
        if (m->n && w->comm.base.backend->has_memory) memcpy(r->into, m->bytes, m->n);
        *at = m->next;
        m->taken = 1;
        if (m->given_up) free(m);
        *done = 1;
        return spli_ok();
    }
    return spli_ok();
}

static spl_status sim_test(void *ctx, spli_p2p_handle *h, int *done) {
    void *what = (void *)(uintptr_t)(h->number & ~(uint64_t)3);
    *done = 0;
    if ((h->number & 3) == SENDING) {
        message *m = what;
        *done = m->taken;
        if (*done) free(m);
    } else {
        SPL_TRY(take(ctx, what, done));
        if (*done) free(what);
    }
    if (*done) h->number = 0;
    return spli_ok();
}

static void sim_cancel(void *ctx, spli_p2p_handle *h) {
    sim_world *w = ctx;
    void *what = (void *)(uintptr_t)(h->number & ~(uint64_t)3);
    int sending = (h->number & 3) == SENDING;
    h->number = 0;
    if (!what) return;
    for (int p = 0; sending && p < w->post->size; p++) /* its memory is about to go: nobody may read it any more */
        for (message **at = &lane_of(w, w->comm.base.rank, p)->messages; *at; at = &(*at)->next)
            if (*at == what) {
                *at = (*at)->next;
                break;
            }
    free(what);
}

static const spli_p2p_ops sim_p2p = {sim_isend, sim_irecv, sim_test, sim_cancel};

/* ---------------------------------------------------------------- control */

static spl_status sim_control_send(spl_comm *world, int peer, const void *bytes, size_t n) {
    sim_world *w = (sim_world *)world;
    if (n > SPL_CONTROL_BYTES) return spli_error(SPL_EINTERNAL, "a control message of %zu bytes is too long", n);
    note *o = malloc(sizeof *o), **last = &lane_of(w, world->rank, peer)->notes;
    if (!o) return spli_error(SPL_ENOMEM, "out of memory while sending a message to rank %d", peer);
    o->next = NULL;
    o->n = n;
    memcpy(o->bytes, bytes, n);
    while (*last) last = &(*last)->next;
    *last = o;
    return spli_ok();
}

static spl_status sim_control_test(spl_comm *world, int peer, void *into, size_t n, int *done) {
    sim_world *w = (sim_world *)world;
    note **first = &lane_of(w, peer, world->rank)->notes, *o = *first;
    *done = o != NULL;
    if (!o) return spli_ok();
    *first = o->next;
    spl_status status = spli_ok();
    if (o->n != n)
        status = spli_error(SPL_EINTERNAL, "a control message of rank %d has %zu bytes, not %zu", peer, o->n, n);
    else memcpy(into, o->bytes, n);
    free(o);
    return status;
}

static void sim_abort(spl_comm *world, int exit_code) { spli_sim_abort(((sim_world *)world)->sim, exit_code); }

/* ---------------------------------------------------------------- opening and closing */

static void drop_post(void *shared) {
    post *p = shared;
    if (!p) return;
    for (size_t i = 0; i < (size_t)p->size * (size_t)p->size; i++) {
        for (message *m = p->lanes[i].messages, *next; m; m = next) next = m->next, free(m);
        for (note *o = p->lanes[i].notes, *next; o; o = next) next = o->next, free(o);
    }
    free(p->lanes);
    free(p);
}

static void sim_close(spl_comm *c) {
    if (c->id != 0) {
        spli_pairwise_close_group(c);
        return;
    }
    sim_world *w = (sim_world *)c;
    free(c->world_ranks);
    free(w);
}

static const spl_comm_ops sim_ops = {
    .name = "sim",
    .start = spli_pairwise_start,
    .test = spli_pairwise_test,
    .request_free = spli_pairwise_free,
    .group = spli_pairwise_group,
    .close = sim_close,
    .control_send = sim_control_send,
    .control_test = sim_control_test,
    .abort = sim_abort,
    .progress = spli_pairwise_progress,
};

spl_status spli_comm_sim_open(spl_sim *s, int rank, const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out) {
    spl_status status = spli_ok();
    int size = spli_sim_size(s);
    void **shared = spli_sim_shared(s, drop_post);
    *out = NULL;
    sim_world *w = calloc(1, sizeof *w);
    if (!w) return spli_error(SPL_ENOMEM, "out of memory while opening virtual rank %d", rank);
    if (!*shared) {
        post *p = calloc(1, sizeof *p);
        if (p) p->lanes = calloc((size_t)size * (size_t)size, sizeof *p->lanes);
        if (!p || !p->lanes) {
            free(p);
            SPL_GO(spli_error(SPL_ENOMEM, "out of memory while opening %d virtual ranks", size), fail);
        }
        p->size = size;
        *shared = p;
    }
    w->sim = s;
    w->post = *shared;
    spli_pairwise_init(&w->engine, &sim_p2p, w);
    SPL_GO(spli_pairwise_world(&w->comm, &w->engine, rank, size, b, ctx, q), fail);
    w->comm.base.ops = &sim_ops;
    *out = &w->comm.base;
    return spli_ok();
fail:
    free(w);
    return status;
}
