/* comm_pairwise.h: collectives as small state machines over point-to-point messages.
 *
 * comm_mpi and comm_sim differ only in how one message travels; what is sent to whom, in which pieces, and in which
 * order parts are summed is decided here, so that both give the same bits. One engine a rank; its groups share it. */
#ifndef SPL_COMM_PAIRWISE_H
#define SPL_COMM_PAIRWISE_H
#include "comm.h"

/* Which messages belong together: between two ranks, messages with the same key arrive in the order in which they were
 * sent. */
typedef struct spli_p2p_key {
    uint32_t comm_id;
    uint64_t sequence; /* the collective */
    uint32_t what;     /* its kind, dtype and root in one number: calls that differ must not meet */
} spli_p2p_key;

typedef struct spli_p2p_handle { /* one message under way, as the transport knows it: what it wants in either field */
    void *pointer;
    uint64_t number;
} spli_p2p_handle;

/* The transport. Peers are world ranks. Memory stays valid until test says done, or cancel. */
typedef struct spli_p2p_ops {
    spl_status (*isend)(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t bytes, spli_p2p_handle *h);
    spl_status (*irecv)(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t bytes, spli_p2p_handle *h);
    spl_status (*test)(void *ctx, spli_p2p_handle *h, int *done); /* a handle that is done is gone */
    void (*cancel)(void *ctx, spli_p2p_handle *h);                /* gives it up */
} spli_p2p_ops;

typedef struct spli_pairwise {
    const spli_p2p_ops *p2p; /* NULL where there is no other rank */
    void *ctx;
    size_t message_limit; /* longer messages are cut into pieces of this; must be the same on all ranks */
    size_t scratch_limit; /* a reduction that needs more goes in chunks; must be the same on all ranks */
    struct spli_pairwise_request *active;
    struct spli_staging *staging; /* messages go by way of host memory (comm_staged.c); else NULL */
} spli_pairwise;

typedef struct spli_staging spli_staging;

typedef struct spli_pairwise_comm { /* what pairwise_* functions take as a spl_comm */
    spl_comm base;
    spli_pairwise *engine;
} spli_pairwise_comm;

/* [local] Fills limits with their defaults. */
void spli_pairwise_init(spli_pairwise *engine, const spli_p2p_ops *p2p, void *ctx);
/* [local] Fills the fields of a world comm; the caller allocated it and sets ops. */
spl_status spli_pairwise_world(spli_pairwise_comm *c, spli_pairwise *engine, int rank, int size,
                               const spl_backend_ops *b, void *backend_ctx, spl_queue *q);

/* The functions of spl_comm_ops that do not depend on the transport. */
spl_status spli_pairwise_start(spl_comm *c, const spl_coll *coll, spl_event *const *wait, int nwait, spl_request **req);
spl_status spli_pairwise_test(spl_request *r, int *done);
void spli_pairwise_free(spl_request *r);
spl_status spli_pairwise_group(spl_comm *parent, const int *members, int n, uint32_t id, spl_comm **child);
void spli_pairwise_close_group(spl_comm *c); /* frees a group; world comms are closed by their own implementation */
void spli_pairwise_progress(spl_comm *world);

/* [local, on all ranks alike] From now on messages of `world` and its groups go through pinned host memory: for a
 * backend whose memory the transport cannot read. After world's backend_ctx and queue are set; closed before the
 * backend is. */
spl_status spli_staging_open(spl_comm *world);
void spli_staging_close(spl_comm *world);

#endif
