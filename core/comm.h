/* comm.h: the communication vtable. A comm is an ordered group of ranks; collectives are started and polled, never
 * waited for inside: all waiting goes through spli_wait (runtime.h). Counts are in elements, one entry a member. */
#ifndef SPL_COMM_H
#define SPL_COMM_H
#include "backend.h"
#include "dtype.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum spl_coll_kind {
    SPL_COLL_BARRIER,
    SPL_COLL_ALL_GATHER,     /* send: own part; recv: parts of all members in member order, densely behind each other */
    SPL_COLL_ALL_REDUCE,     /* send, recv: counts summed over members; result equal on all members to the last bit */
    SPL_COLL_REDUCE_SCATTER, /* send: parts for all members in order; recv: own part, summed in member order */
    SPL_COLL_ALL_TO_ALL,     /* send: parts for all members in order; recv: parts from all members in order */
    SPL_COLL_BROADCAST,      /* root's send to every recv */
    SPL_COLL_KIND_COUNT
} spl_coll_kind;

const char *spl_coll_name(spl_coll_kind kind); /* "all-gather", ... */

/* One collective call. Pointers are backend memory of the comm's backend and must stay valid until the request is done;
 * the counts and places are copied by start. send == recv is allowed for all-reduce, and for all-gather and broadcast
 * where the own part already lies in its place in recv; recv of a reduce-scatter may be the own part in send. Zero
 * counts are legal everywhere. A ring step (send to next, receive from previous) is an all-to-all with two non-zero
 * counts. */
typedef struct spl_coll {
    spl_coll_kind kind;
    spl_dtype dtype;
    const void *send;
    void *recv;
    const int64_t *send_counts; /* all-to-all, reduce-scatter: per member. all-gather, all-reduce, broadcast: [0] = own
                                   (same total) */
    const int64_t *recv_counts; /* all-to-all, all-gather: per member. else NULL */
    /* all-to-all, may be NULL: at which element of send and of recv each member's part begins; else the parts follow
     * each other. Parts to be sent may overlap. */
    const int64_t *send_at, *recv_at;
    int root;                   /* broadcast */
} spl_coll;

typedef struct spl_comm spl_comm;

/* Every request begins with this; implementations append their own. */
typedef struct spl_request {
    spl_comm *comm;
    uint64_t progress; /* grows whenever something moved: a wait fails only when it stands still */
    double counted;    /* seconds when it was started, for the counters; 0: not counted */
    spl_event *ready;  /* its starter's event, closed by spli_wait; may be NULL */
    uint64_t traced;   /* which event of a trace it is; 0: none */
} spl_request;

typedef struct spl_comm_ops {
    const char *name; /* "self", "mpi", "sim", "dry", "nccl" */
    /* Start one collective after `nwait` events have passed. *req is released by request_free once done (or abandoned).
     */
    spl_status (*start)(spl_comm *c, const spl_coll *coll, spl_event *const *wait, int nwait, spl_request **req);
    spl_status (*test)(spl_request *r, int *done); /* makes progress, never blocks */
    void (*request_free)(spl_request *r);          /* also abandons one that is not done */
    /* [collective over the parent's members that are in the group] a comm of `n` of the parent's members, given in
     * order by their parent rank. No communication is needed where messages carry the group's id. */
    spl_status (*group)(spl_comm *parent, const int *members, int n, uint32_t id, spl_comm **child);
    void (*close)(spl_comm *c);
    /* Control messages of at most SPL_CONTROL_BYTES, in order per pair of ranks, apart from data. `peer` is a world
     * rank. control_test: done is set once something from `peer` was received into `into` (exactly `bytes`). */
    spl_status (*control_send)(spl_comm *world, int peer, const void *bytes, size_t n);
    spl_status (*control_test)(spl_comm *world, int peer, void *into, size_t n, int *done);
    /* Ends the whole job with this exit code; does not return. */
    void (*abort)(spl_comm *world, int exit_code);
    /* Moves on every request of the job that is under way here; never blocks. May be NULL. Called wherever a rank
     * waits, since a partner's wait may hang on a request that this rank has started but does not wait for yet. */
    void (*progress)(spl_comm *world);
} spl_comm_ops;

enum { SPL_CONTROL_BYTES = 512 };

/* Where a comm takes scratch in backend memory from, so that it is counted; alloc NULL: straight from the backend. */
typedef struct spl_comm_memory {
    spl_status (*alloc)(void *owner, size_t bytes, void **out);
    void (*free)(void *owner, void *p, size_t bytes);
    void *owner;
} spl_comm_memory;

/* Every comm begins with this; implementations append their own. */
struct spl_comm {
    const spl_comm_ops *ops;
    int rank, size;      /* mine in this group, and its size */
    int *world_ranks;    /* [size] world rank of each member */
    uint32_t id;         /* unique in the job, equal on all members; 0 = world */
    uint64_t sequence;   /* collectives started here, and agreements that failed: equal on all members */
    const spl_backend_ops *backend;
    void *backend_ctx;
    spl_queue *queue;    /* where reductions and local copies of a collective run */
    char axis[32];       /* mesh axis this serves, "" for world */
    spl_comm_memory memory; /* of groups: as of their parent */
};

/* Logical bytes this member contributes to one collective: own part x receivers; reduce-scatter: the parts of the
 * others; all-reduce: reduce-scatter then all-gather over a balanced split, which sums to 2(P-1)/P of its size each;
 * broadcast: what this member passes on along a binomial tree, (P-1) x its size over all members. */
int64_t spl_coll_bytes(const spl_comm *c, const spl_coll *coll);

/* [local] Counts, dtype, root and pointers that this member alone can judge. SPL_EARG or, for sizes past int64,
 * SPL_ENOMEM. */
spl_status spli_coll_check(const spl_comm *c, const spl_coll *coll);
/* [local] "on axis tp" or "over all ranks". */
const char *spli_comm_place(const spl_comm *c, char *out, size_t n);
/* [local] Member m's share of n elements: n / P each, the first n % P members one more. */
void spli_coll_split(int64_t n, int size, int m, int64_t *offset, int64_t *count);
/* [local] In a binomial tree rooted at `root`: the member it comes from (-1 at the root); returns how many it goes to.
 */
int spli_coll_tree(int size, int rank, int root, int *parent, int *children /* [32] */);

/* What a plugin exports, under the name splk_plugin: a backend that needs libraries which the program does not, and the
 * comm that moves its memory without a way through the host. */
typedef struct spl_plugin {
    int abi; /* SPL_BACKEND_ABI */
    const spl_backend_ops *backend;
    /* [local] Names the device that an open context runs on, the same for all ranks that share it. */
    spl_status (*device_id)(void *ctx, char *out, size_t n);
    /* [local] A comm over the members of `world`, an open one of this backend. Control messages, barriers and the new
     * comm's own coming up go through `world`; whoever opened that closes it, after the new one. NULL where the plugin
     * has none. The status says why where there can be none. */
    spl_status (*comm_open)(spl_comm *world, spl_comm **out);
} spl_plugin;

/* [local] The plugin of the backend of this name, spl-NAME.so (plugin.c says where it is looked for), which stays open.
 * SPL_EENV when there is none, or none that fits. */
spl_status spli_plugin_open(const char *name, const spl_plugin **out);
/* [local] The plugin that this backend came from, or NULL. */
const spl_plugin *spli_plugin_of(const spl_backend_ops *backend);

/* Openers. `world` size and rank come from the launcher. */
spl_status spli_comm_self_open(const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out);
/* Pretends to be `rank` of `size`: starts complete at once and move nothing. Only for a backend without memory. */
spl_status spli_comm_dry_open(int rank, int size, const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out);
/* [collective] Initialises MPI when needed; argc/argv may be NULL. */
spl_status spli_comm_mpi_open(const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out);
/* 1 when this process was started by an MPI launcher (environment only; MPI need not be initialised). */
int spli_comm_mpi_launched(void);

#ifdef __cplusplus
}
#endif
#endif
