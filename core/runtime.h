/* runtime.h: what hangs on a spl_runtime (one a rank; there are no mutable globals), and the one function that waits.
 */
#ifndef SPL_RUNTIME_H
#define SPL_RUNTIME_H
#include "spl.h"

typedef struct spli_trace_hook { /* explain and traces listen here; both may be NULL */
    void (*op)(void *ctx, const char *op, const char *subject, const spl_tensor *result);
    void (*comm)(void *ctx, const char *subject, const char *kind, const char *axis, int64_t bytes,
                 const spl_tensor *result);
    void *ctx;
} spli_trace_hook;

struct spli_control;
struct spli_trace;
struct spli_slot;
struct spli_places;
typedef struct spli_cache spli_cache;

struct spl_runtime {
    int rank, size, threads;
    int local_ranks;       /* ranks on this host */
    int *host_of;          /* [size] the host of each rank, numbered from 0 as they first appear; NULL: not known */
    int dry;               /* comm `dry`: nobody else is there */
    const spl_backend_ops *backend;
    void *backend_ctx;
    int backend_open;
    spl_queue *compute, *comm_queue; /* the same queue on the CPU */
    spl_sim *sim;          /* virtual ranks: where a wait lets the next one run; else NULL */
    spl_comm *world, *host_world; /* the other is what a device's own comm stands on, where there is one; else NULL */
    char transport[400];          /* how device memory moves between ranks, in words; "" where it does not */
    double timeout;
    int check;
    const volatile int *interrupt;
    /* numbers of collectives: the least that counts (of this turn), and one above all that were used here */
    uint64_t first_sequence, next_sequence;
    uint32_t next_comm_id; /* equal on all ranks: groups are made in the same order everywhere */
    char site[128];
    spl_counters counters;
    spli_trace_hook hook;
    const char *subject;   /* name of the tensor now being made, for the hook; set by block */
    struct spli_trace *trace; /* being recorded (trace.h), or NULL */
    spl_site_of origin_site;  /* who makes tensors is noted with the line that this gives; NULL: it is not */
    void *origin_ctx;
    struct spli_origin *origins; /* of storages that live */
    uint64_t traces;          /* recorded so far */
    double trace_skew;        /* seconds added to this rank's clock as traces see it, to test how clocks are aligned */
    struct spli_control *control; /* messages between ranks apart from data (control.h) */
    struct spli_slot *slot;       /* what this rank is doing (whereabouts.h) */
    struct spli_places *places;   /* where those of the others lie */
    char *report;          /* the table that goes with the last stall or disagreement, or NULL */
    spli_cache *cache;     /* memory given back (memory_cache.c); NULL until used */
    int cache_off;
    int64_t memory_share;  /* this rank's share of the memory that was free at the start; 0 when not known */
    int travelling;        /* data requests under way, and since when there are any: for comm_seconds */
    double travelling_since;
    int64_t fail_alloc;    /* n > 0: the n-th spli_alloc from now fails, to test what follows */
};

/* Returns through *done whether what is waited for has happened; grows *progress whenever anything moved. Never blocks.
 */
typedef spl_status (*spli_poll)(void *ctx, int *done, uint64_t *progress);

/* [local] The one place where a rank waits: polls, keeps requests under way moving, honours interrupts, yields the core
 * and then sleeps when nothing moves. After `limit` seconds without progress (limit < 0: never): SPL_ESTALL, with
 * rt->report. `what` names the wait in messages. With `watch`, another rank's failure ends the wait. */
spl_status spli_wait_for(spl_runtime *rt, spli_poll poll, void *ctx, double limit, int watch, const char *what);

/* [local] The same without a report of what the ranks do when it stalls, for those who make a better one. */
spl_status spli_wait_plain(spl_runtime *rt, spli_poll poll, void *ctx, double limit, int watch, const char *what);

/* [local] Waits for `r`, polling; honours the time limit and interrupts, yields the core when nothing moves. Frees r in
 * every case. `what` names the wait in messages ("all-gather on axis tp"). */
spl_status spli_wait(spl_runtime *rt, spl_request *r, const char *what);
/* [local] Lets a request go, done or not: what an error elsewhere leaves under way. */
void spli_give_up(spl_runtime *rt, spl_request *r);
/* [local] Waits until everything queued on q so far is done. */
spl_status spli_wait_queue(spl_runtime *rt, spl_queue *q);
double spli_now(void); /* seconds, monotonic */

/* [collective over c] With checking on: all members exchange what they are about to do and compare before data moves.
 * Errors: SPL_EDISAGREE naming rank, call, site and the others' calls; SPL_ESTALL naming the ranks that never came. */
spl_status spli_agree(spl_runtime *rt, spl_comm *c, const spl_coll *coll);
/* [collective over c] Whether all members made the same plan, by its hash; with checking on or off. SPL_EDISAGREE on
 * all where not, and then nothing has moved. */
spl_status spli_agree_plan(spl_runtime *rt, spl_comm *c, uint64_t hash);
/* [collective over c] Agreement (when on), counting, start. Every data collective of core goes through here. */
spl_status spli_comm_start(spl_runtime *rt, spl_comm *c, const spl_coll *coll, spl_request **out);
/* [collective over c] Start and wait. */
spl_status spli_comm_run(spl_runtime *rt, spl_comm *c, const spl_coll *coll);
/* [collective over the members] A group of world ranks as a comm; only its members call it, all of them in the same
 * order. */
spl_status spli_comm_group(spl_runtime *rt, const int *world_ranks, int n, const char *axis, uint32_t id,
                           spl_comm **out);

/* Memory with accounting. Overflow and exhaustion: SPL_ENOMEM with bytes wanted and bytes free on the machine. */
spl_status spli_alloc(spl_runtime *rt, spl_memory_category c, size_t bytes, void **out);
void spli_free(spl_runtime *rt, spl_memory_category c, void *p, size_t bytes);
/* Bytes that can still be had on this machine: MemAvailable, or less where a control group limits it; -1 when not
 * known. */
int64_t spli_memory_free(void);
/* Is there room for `bytes` in all, before the first of them is taken? */
spl_status spli_memory_room(spl_runtime *rt, spl_memory_category c, double bytes);
/* a*b into *out; SPL_ENOMEM when it overflows. */
spl_status spli_mul_size(int64_t a, int64_t b, int64_t *out);

/* Adds to a counter of work, which stays at its largest value rather than overflow. */
void spli_count(int64_t *counter, double more);
/* Of matrix products and of attention together; as large as fits. */
int64_t spli_flops(const spl_runtime *rt);

#endif
