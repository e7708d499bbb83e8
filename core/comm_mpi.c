/* comm_mpi.c: messages over MPI, for the collectives of comm_pairwise.
 *
 * Groups have no MPI communicator of their own: all data travels on one duplicate of MPI_COMM_WORLD, told apart by a
 * tag made of the group's id and the number of the collective; MPI keeps messages of one pair and tag in
 * order. A second duplicate is the control channel: each rank keeps one receive posted for every rank that it has ever
 * listened to. Nothing here blocks but opening and closing. MPI's errors are returned as values. */
#include "comm_pairwise.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIELD_BITS = 10, CONTROL_TAG = 1 };

typedef struct outgoing { /* a control message on its way */
    struct outgoing *next;
    MPI_Request request;
    char bytes[SPL_CONTROL_BYTES];
} outgoing;

typedef struct incoming { /* the receive that waits for one rank */
    MPI_Request request;
    int posted;
    char bytes[SPL_CONTROL_BYTES];
} incoming;

typedef struct mpi_world {
    spli_pairwise_comm comm;
    spli_pairwise engine;
    MPI_Comm data, control;
    int tag_limit, finalize;
    int broken; /* messages were cut off or given up: MPI cannot be finalized any more (Open MPI 4.1 crashes there) */
    outgoing *out;
    incoming **in; /* [size], made when first listened to */
} mpi_world;

/* In a message handle: the request, and for a receive the bytes expected. */
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a message handle holds an MPI request");
#define SENT UINT64_MAX

static spl_status check(int rc, const char *call) {
    if (rc == MPI_SUCCESS) return spli_ok();
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n = 0, class = rc;
    MPI_Error_string(rc, text, &n);
    MPI_Error_class(rc, &class);
    return spli_error_native(SPL_EINTERNAL, class, "MPI failed in %s: %.300s", call, text);
}

#define TRY_MPI(call, name) SPL_TRY(check(call, name))

static MPI_Request request_of(const spli_p2p_handle *h) {
    MPI_Request r;
    memcpy(&r, &h->pointer, sizeof r);
    return r;
}

static void keep_request(spli_p2p_handle *h, MPI_Request r) {
    h->pointer = NULL;
    memcpy(&h->pointer, &r, sizeof r);
}

/* ---------------------------------------------------------------- data */

/* 10 bits each of group, collective, and size. Collectives 1,024 apart share a tag, and so do groups; order tells their
 * messages apart. Size, kind, dtype and root are there so that ranks whose calls differ wait for each other, and are
 * found out, instead of receiving what does not fit (Open MPI would spoil memory then) or what means something else.
 * Calls of equal size never share a tag unless they are alike, or their roots are 21 apart. */
static int tag_of(const mpi_world *w, const spli_p2p_key *key, size_t bytes) {
    const uint64_t mask = ((uint64_t)1 << FIELD_BITS) - 1;
    uint64_t size = ((uint64_t)bytes * UINT64_C(0x9E3779B97F4A7C15) >> (64 - FIELD_BITS)) ^ key->what % 1008;
    uint64_t tag = (((key->comm_id & mask) << FIELD_BITS | (key->sequence & mask)) << FIELD_BITS) | size;
    return (int)(tag % ((uint64_t)w->tag_limit + 1));
}

static spl_status mpi_isend(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t bytes,
                            spli_p2p_handle *h) {
    mpi_world *w = ctx;
    MPI_Request r;
    TRY_MPI(MPI_Isend(p, (int)bytes, MPI_BYTE, peer, tag_of(w, key, bytes), w->data, &r), "MPI_Isend");
    keep_request(h, r);
    h->number = SENT;
    return spli_ok();
}

static spl_status mpi_irecv(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t bytes, spli_p2p_handle *h) {
    mpi_world *w = ctx;
    MPI_Request r;
    TRY_MPI(MPI_Irecv(p, (int)bytes, MPI_BYTE, peer, tag_of(w, key, bytes), w->data, &r), "MPI_Irecv");
    keep_request(h, r);
    h->number = bytes;
    return spli_ok();
}

static spl_status mpi_test(void *ctx, spli_p2p_handle *h, int *done) {
    mpi_world *w = ctx;
    MPI_Request r = request_of(h);
    MPI_Status got;
    int rc = MPI_Test(&r, done, &got), class = rc, bytes = -1;
    keep_request(h, r);
    if (rc == MPI_SUCCESS && (!*done || h->number == SENT)) return spli_ok();
    if (rc == MPI_SUCCESS) {
        MPI_Get_count(&got, MPI_BYTE, &bytes);
        if (bytes == (int)h->number) return spli_ok();
    } else {
        MPI_Error_class(rc, &class);
    }
    w->broken = 1;
    if (rc != MPI_SUCCESS && class != MPI_ERR_TRUNCATE) return check(rc, "MPI_Test (is a rank gone?)");
    return spli_error_native(SPL_EDISAGREE, class,
                             "a rank sent %s than rank %d expects: ranks make different calls, or the same call on "
                             "tensors of different sizes; run with --check-collectives to see who calls what",
                             rc == MPI_SUCCESS ? "less" : "more", w->comm.base.rank);
}

static void mpi_cancel(void *ctx, spli_p2p_handle *h) {
    mpi_world *w = ctx;
    MPI_Request r = request_of(h);
    int done = 0;
    if (r == MPI_REQUEST_NULL) return;
    if (MPI_Test(&r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) return;
    if (h->number != SENT) { /* a receive that nothing has met yet is done with once it is called back */
        MPI_Cancel(&r);
        if (MPI_Test(&r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) return;
    }
    w->broken = 1; /* a send cannot be called back, and the partner may have begun to take it */
    MPI_Request_free(&r);
}

static const spli_p2p_ops mpi_p2p = {mpi_isend, mpi_irecv, mpi_test, mpi_cancel};

/* ---------------------------------------------------------------- control */

/* Forgets messages that have gone out. */
static spl_status sweep_outgoing(mpi_world *w) {
    for (outgoing **at = &w->out; *at;) {
        outgoing *o = *at;
        int done = 0;
        TRY_MPI(MPI_Test(&o->request, &done, MPI_STATUS_IGNORE), "MPI_Test of a control message");
        if (done) {
            *at = o->next;
            free(o);
        } else {
            at = &o->next;
        }
    }
    return spli_ok();
}

static spl_status mpi_control_send(spl_comm *world, int peer, const void *bytes, size_t n) {
    mpi_world *w = (mpi_world *)world;
    if (n > SPL_CONTROL_BYTES) return spli_error(SPL_EINTERNAL, "a control message of %zu bytes is too long", n);
    SPL_TRY(sweep_outgoing(w));
    outgoing *o = malloc(sizeof *o);
    if (!o) return spli_error(SPL_ENOMEM, "out of memory while sending a message to rank %d", peer);
    memcpy(o->bytes, bytes, n);
    spl_status status = check(MPI_Isend(o->bytes, (int)n, MPI_BYTE, peer, CONTROL_TAG, w->control, &o->request),
                              "MPI_Isend");
    if (status.code != SPL_OK) {
        free(o);
        return status;
    }
    o->next = w->out;
    w->out = o;
    return spli_ok();
}

static spl_status listen_to(mpi_world *w, int peer) {
    incoming *in = w->in[peer];
    TRY_MPI(MPI_Irecv(in->bytes, SPL_CONTROL_BYTES, MPI_BYTE, peer, CONTROL_TAG, w->control, &in->request),
            "MPI_Irecv");
    in->posted = 1;
    return spli_ok();
}

static spl_status mpi_control_test(spl_comm *world, int peer, void *into, size_t n, int *done) {
    mpi_world *w = (mpi_world *)world;
    *done = 0;
    if (w->out) SPL_TRY(sweep_outgoing(w));
    if (!w->in[peer]) w->in[peer] = calloc(1, sizeof *w->in[peer]);
    incoming *in = w->in[peer];
    if (!in) return spli_error(SPL_ENOMEM, "out of memory while listening to rank %d", peer);
    if (!in->posted) SPL_TRY(listen_to(w, peer));
    MPI_Status got;
    TRY_MPI(MPI_Test(&in->request, done, &got), "MPI_Test of a control message");
    if (!*done) return spli_ok();
    in->posted = 0;
    int bytes = 0;
    MPI_Get_count(&got, MPI_BYTE, &bytes);
    if ((size_t)bytes != n)
        return spli_error(SPL_EINTERNAL,
                          "a control message of rank %d has %d bytes, not %zu; do all ranks run the same program?",
                          peer, bytes, n);
    memcpy(into, in->bytes, n);
    return spli_ok();
}

/* ---------------------------------------------------------------- opening and closing */

static void mpi_abort(spl_comm *world, int exit_code) {
    (void)world;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code); /* were MPI_Abort to return */
}

/* Gives what is still going out a moment, since a partner may have yet to receive it, then lets go of it. */
static void end_control(mpi_world *w) {
    struct timespec pause = {.tv_nsec = 1000000};
    for (int turn = 0; w->out && turn < 500; turn++) {
        if (sweep_outgoing(w).code != SPL_OK) break;
        if (w->out) nanosleep(&pause, NULL);
    }
    while (w->out) {
        outgoing *o = w->out;
        w->out = o->next;
        MPI_Request_free(&o->request);
        free(o);
    }
    for (int p = 0; p < w->comm.base.size; p++) {
        incoming *in = w->in[p];
        if (in && in->posted) {
            MPI_Cancel(&in->request);
            MPI_Wait(&in->request, MPI_STATUS_IGNORE); /* returns at once, with the message or without */
        }
        free(in);
    }
}

static void mpi_close(spl_comm *c) {
    mpi_world *w = (mpi_world *)c;
    if (&w->comm.base != c || c->id != 0) {
        spli_pairwise_close_group(c);
        return;
    }
    if (!w->broken) {
        end_control(w);
        MPI_Comm_free(&w->data);
        MPI_Comm_free(&w->control);
        if (w->finalize) MPI_Finalize();
    }
    free(w->in);
    free(c->world_ranks);
    free(w);
}

static const spl_comm_ops mpi_ops = {
    .name = "mpi",
    .start = spli_pairwise_start,
    .test = spli_pairwise_test,
    .request_free = spli_pairwise_free,
    .group = spli_pairwise_group,
    .close = mpi_close,
    .control_send = mpi_control_send,
    .control_test = mpi_control_test,
    .abort = mpi_abort,
    .progress = spli_pairwise_progress,
};

int spli_comm_mpi_launched(void) {
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (getenv(marks[i])) return 1;
    return 0;
}

static spl_status start_mpi(int *finalize) {
    int up = 0, level = MPI_THREAD_SINGLE;
    TRY_MPI(MPI_Initialized(&up), "MPI_Initialized");
    *finalize = !up;
    if (up) TRY_MPI(MPI_Query_thread(&level), "MPI_Query_thread");
    else TRY_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    if (level < MPI_THREAD_FUNNELED)
        return spli_error(SPL_EENV,
                          "this MPI does not allow threads beside it (MPI_THREAD_FUNNELED); use one that does");
    return spli_ok();
}

spl_status spli_comm_mpi_open(const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out) {
    int rank, size, found = 0, *limit = NULL;
    spl_status status = spli_ok();
    *out = NULL;
    mpi_world *w = calloc(1, sizeof *w);
    if (!w) return spli_error(SPL_ENOMEM, "out of memory while opening MPI");
    w->data = w->control = MPI_COMM_NULL;
    SPL_GO(start_mpi(&w->finalize), fail);
    SPL_GO(check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank"), fail);
    SPL_GO(check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size"), fail);
    SPL_GO(check(MPI_Comm_dup(MPI_COMM_WORLD, &w->data), "MPI_Comm_dup"), fail);
    SPL_GO(check(MPI_Comm_dup(MPI_COMM_WORLD, &w->control), "MPI_Comm_dup"), fail);
    /* An error in testing a request is raised on no communicator, which Open MPI takes to be one of its own two. */
    SPL_GO(check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"), fail);
    SPL_GO(check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"), fail);
    SPL_GO(check(MPI_Comm_set_errhandler(w->data, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"), fail);
    SPL_GO(check(MPI_Comm_set_errhandler(w->control, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"), fail);
    SPL_GO(check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr"), fail);
    w->tag_limit = found ? *limit : 32767;
    spli_pairwise_init(&w->engine, &mpi_p2p, w);
    SPL_GO(spli_pairwise_world(&w->comm, &w->engine, rank, size, b, ctx, q), fail);
    w->in = calloc((size_t)size, sizeof *w->in);
    if (!w->in) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while opening MPI over %d ranks", size), fail);
    w->comm.base.ops = &mpi_ops;
    *out = &w->comm.base;
    return spli_ok();
fail: /* MPI stays up: ending it is collective, and the other ranks need not have failed */
    free(w->comm.base.world_ranks);
    free(w);
    return status;
}
