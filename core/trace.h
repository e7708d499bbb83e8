/* trace.h: what core tells a trace while one is being recorded. Each call costs one test of a pointer when none is. */
#ifndef SPL_TRACE_H
#define SPL_TRACE_H
#include "tensor.h"

typedef struct spli_span { /* something that began; begin == 0: nobody records */
    double begin;
    int64_t flops;
} spli_span;

static inline spli_span spli_trace_begin(const spl_runtime *rt) {
    if (!rt->trace) return (spli_span){0};
    return (spli_span){spli_now(), spli_flops(rt)};
}

/* An op (or, with `moves`, a redistribution over one axis) that made `result`, which may be NULL. */
void spli_trace_op(spl_runtime *rt, spli_span span, const char *name, int moves, const spl_tensor *result);
/* Communication that was started; the answer, kept in the request, says to `arrived` which it was. */
uint64_t spli_trace_started(spl_runtime *rt, double begin, const spl_comm *c, const spl_coll *coll);
void spli_trace_arrived(spl_runtime *rt, uint64_t which);
/* What it is part of, in place of the collective's name: "ring". The same on all members. */
void spli_trace_rename(spl_runtime *rt, uint64_t which, const char *name);
/* A wait that is over; `communication`: for data of something that was started. */
void spli_trace_wait(spl_runtime *rt, double begin, const char *what, int communication);
/* Memory was taken or given back. */
void spli_trace_memory(spl_runtime *rt);
void spli_trace_free(spl_runtime *rt);

/* ---- between trace.c, which records, and trace_write.c ---- */

typedef enum spli_event_kind {
    SPLI_EVENT_OP,
    SPLI_EVENT_MOVE,
    SPLI_EVENT_COMM,
    SPLI_EVENT_WAIT,
    SPLI_EVENT_MEMORY,
    SPLI_EVENT_SPAN
} spli_event_kind;

typedef struct spli_event {
    double begin, end; /* seconds of this rank's clock; end == 0: under way */
    int32_t kind;
    uint32_t name, subject, site, detail; /* texts */
    int32_t to, from;                     /* communication: world ranks where there is one of each, else -1 */
    int64_t amount[4]; /* op: FLOPs; communication: bytes; wait: is it for communication; memory: bytes by category */
} spli_event;

typedef struct spli_trace {
    spli_event *events;
    int64_t count, capacity, most, dropped;
    char **texts; /* texts[0] is "" */
    uint32_t ntexts, max_texts;
    uint32_t *table; /* open addressing: 1 + place in texts, 0 empty; of `slots` = 2^n */
    uint32_t slots;
    uint64_t number; /* of the traces of this runtime */
    spl_comm *comm;  /* of all ranks, for nothing else: after a failure the world's calls need not match any more; NULL:
                      * this rank writes its own alone (there is no other, or no memory to send from) */
    void (*site)(void *ctx, char *out, size_t n);
    void *ctx;
    double origin;                     /* rank 0's clock when the trace began */
    double started, offset, offset_at_end; /* this rank's clock less rank 0's, when it began and when it is written */
    int measured;                      /* clocks of several machines: offsets were measured, else they are 0 */
} spli_trace;

/* [collective] How far this rank's clock is ahead of rank 0's, into *offset; rank 0's clock before, into *origin. */
spl_status spli_trace_clock(spl_runtime *rt, spl_comm *c, int *measured, double *offset, double *origin);

#endif
