/* comm.c: the way core starts, runs and groups collectives, whatever comm carries them. */
#include "comm.h"
#include "trace.h"
#include <stdio.h>
#include <string.h>

static spl_status record(spl_runtime *rt, spl_event **event) {
    if (!rt->backend->has_memory) return spli_ok();
    SPL_TRY(rt->backend->event_open(rt->backend_ctx, event));
    return rt->backend->event_record(rt->backend_ctx, rt->compute, *event);
}

spl_status spli_comm_start(spl_runtime *rt, spl_comm *c, const spl_coll *coll, spl_request **out) {
    *out = NULL;
    SPL_TRY(spli_coll_check(c, coll));
    double begin = spli_now();
    SPL_TRY(spli_agree(rt, c, coll));
    spl_event *ready = NULL; /* the data may still be in the making */
    spl_status status = record(rt, &ready);
    if (status.code == SPL_OK) status = c->ops->start(c, coll, &ready, ready != NULL, out);
    if (status.code != SPL_OK) {
        if (ready) rt->backend->event_close(rt->backend_ctx, ready);
        return status;
    }
    (*out)->ready = ready;
    (*out)->counted = begin;
    if (rt->travelling++ == 0) rt->travelling_since = begin;
    rt->counters.comm_calls[coll->kind]++;
    int64_t *bytes = &rt->counters.comm_bytes[coll->kind];
    *bytes = spl_saturated_sum(*bytes, spl_coll_bytes(c, coll));
    rt->counters.comm_exposed_seconds += spli_now() - begin;
    if (rt->trace) (*out)->traced = spli_trace_started(rt, begin, c, coll);
    return spli_ok();
}

spl_status spli_comm_run(spl_runtime *rt, spl_comm *c, const spl_coll *coll) {
    char place[48], what[96];
    spl_request *r;
    SPL_TRY(spli_comm_start(rt, c, coll, &r));
    snprintf(what, sizeof what, "%s %s", spl_coll_name(coll->kind), spli_comm_place(c, place, sizeof place));
    return spli_wait(rt, r, what);
}

spl_status spli_comm_group(spl_runtime *rt, const int *world_ranks, int n, const char *axis, uint32_t id,
                           spl_comm **out) {
    int here = 0;
    *out = NULL;
    if (id == 0) return spli_error(SPL_EARG, "a group on axis %.31s was given the id 0, which is the world's", axis);
    for (int m = 0; m < n; m++) {
        if (world_ranks[m] < 0 || world_ranks[m] >= rt->size)
            return spli_error(SPL_EARG, "a group on axis %.31s was given rank %d; ranks are 0 to %d", axis,
                              world_ranks[m], rt->size - 1);
        if (m && world_ranks[m] <= world_ranks[m - 1])
            return spli_error(SPL_EARG, "a group on axis %.31s was given rank %d after rank %d; ranks must rise", axis,
                              world_ranks[m], world_ranks[m - 1]);
        here += world_ranks[m] == rt->rank;
    }
    if (!here)
        return spli_error(SPL_EARG, "a group on axis %.31s does not hold rank %d, which makes it", axis, rt->rank);
    SPL_TRY(rt->world->ops->group(rt->world, world_ranks, n, id, out));
    snprintf((*out)->axis, sizeof(*out)->axis, "%s", axis);
    return spli_ok();
}
