/* wait.c: the one place where a rank waits.
 *
 * Polls hot for a moment, then yields the core at each turn, then sleeps for tens of microseconds, longer the longer
 * nothing moves: ranks that wait leave the cores to ranks that work, also with many ranks on few cores. Time is
 * measured since the last progress, so a slow transfer is no stall. */
#include "control.h"
#include "sim.h"
#include "trace.h"
#include "whereabouts.h"
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum { HOT_TURNS = 64 };
static const double WATCH_EVERY = 1e-3; /* seconds */

double spli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Gives the core away for as long as fits a wait that has stood still for `idle` seconds; of virtual ranks, to the
 * next. */
static void rest(spl_runtime *rt, double idle) {
    if (rt->sim) {
        spli_sim_yield(rt->sim);
        return;
    }
    if (idle < 1e-3) {
        sched_yield();
        return;
    }
    long us = idle < 0.01 ? 20 : idle < 0.1 ? 50 : idle < 1.0 ? 200 : idle < 10.0 ? 1000 : 5000;
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Data of a call that all members have agreed on come soon: an interrupt waits for them so long, lest one rank gives
 * up what another has sent. */
static const double ALMOST_DONE = 1.0;

static spl_status poll_request(void *ctx, int *done, uint64_t *progress);

/* Is the interrupt to be put off? *since: when it was seen first. */
static int almost_done(const spl_runtime *rt, spli_poll poll, double *since) {
    if (poll != poll_request || !rt->check) return 0;
    if (*since == 0) *since = spli_now();
    return spli_now() - *since < ALMOST_DONE;
}

static spl_status wait_for(spl_runtime *rt, spli_poll poll, void *ctx, double limit, int watch, const char *what) {
    double begin = 0, moved = 0, watched = 0, stopped = 0;
    uint64_t before = 0, progress = 0;
    unsigned turns = 0;
    for (;;) {
        int done = 0;
        SPL_TRY(poll(ctx, &done, &progress));
        if (done) return spli_ok();
        if (rt->interrupt && *rt->interrupt && !almost_done(rt, poll, &stopped))
            return spli_error(SPL_EINTERRUPT, "interrupted while rank %d waited for %s", rt->rank, what);
        if (rt->world && rt->world->ops->progress) rt->world->ops->progress(rt->world);
        if (++turns < HOT_TURNS && !rt->sim) continue; /* a virtual partner moves only when this rank lets it */
        double now = spli_now();
        if (begin == 0) {
            begin = moved = watched = now;
            spli_now_in(rt, SPLI_IN_WAIT, what);
        }
        if (progress != before) {
            before = progress;
            moved = now;
        }
        if (limit >= 0 && now - moved > limit)
            return spli_error(SPL_ESTALL, "rank %d waited %.1f s for %s%s%s%s and nothing moved for %.1f s", rt->rank,
                              now - begin, what, rt->site[0] ? " (" : "", rt->site, rt->site[0] ? ")" : "",
                              now - moved);
        if (watch && now - watched > WATCH_EVERY) {
            spl_status others = spli_control_watch(rt, what);
            if (others.code != SPL_OK && !(others.code == SPL_EINTERRUPT && almost_done(rt, poll, &stopped)))
                return others;
            watched = now;
        }
        rest(rt, now - moved);
    }
}

spl_status spli_wait_plain(spl_runtime *rt, spli_poll poll, void *ctx, double limit, int watch, const char *what) {
    spli_activity before = (spli_activity)rt->slot->activity;
    double begin = rt->trace ? spli_now() : 0;
    spl_status status = wait_for(rt, poll, ctx, limit, watch, what);
    if (rt->trace) spli_trace_wait(rt, begin, what, poll == poll_request);
    rt->slot->activity = before;
    return status;
}

spl_status spli_wait_for(spl_runtime *rt, spli_poll poll, void *ctx, double limit, int watch, const char *what) {
    spl_status status = spli_wait_plain(rt, poll, ctx, limit, watch, what);
    if (status.code == SPL_ESTALL) { /* the slot keeps what this rank waited for: others stall too, and look at it */
        char advice[240];
        spli_now_in(rt, SPLI_IN_WAIT, what);
        spli_report_all(rt, advice, sizeof advice);
        return spli_error(SPL_ESTALL, "%.220s; %s, or raise --timeout", status.message, advice);
    }
    return status;
}

typedef struct request_wait {
    spl_runtime *rt;
    spl_request *r;
    const char *what;
    double quiet; /* since when nothing moved */
    uint64_t before;
} request_wait;

/* After this long without progress, a member that has ended well will not come any more. */
static const double ENDED_GRACE = 2.0;

static spl_status poll_request(void *ctx, int *done, uint64_t *progress) {
    request_wait *w = ctx;
    spl_comm *c = w->r->comm;
    SPL_TRY(c->ops->test(w->r, done));
    *progress = w->r->progress;
    if (*done || w->rt->size == 1) return spli_ok();
    if (w->before != *progress || w->quiet == 0) {
        w->before = *progress;
        w->quiet = spli_now();
    } else if (spli_now() - w->quiet > ENDED_GRACE) {
        for (int m = 0; m < c->size; m++) SPL_TRY(spli_control_ended(w->rt, c->world_ranks[m], w->what));
    }
    return spli_ok();
}

spl_status spli_wait(spl_runtime *rt, spl_request *r, const char *what) {
    double begin = spli_now();
    request_wait w = {.rt = rt, .r = r, .what = what};
    spl_status status = spli_wait_for(rt, poll_request, &w, rt->timeout, 1, what);
    if (r->counted > 0) rt->counters.comm_exposed_seconds += spli_now() - begin;
    if (r->traced) spli_trace_arrived(rt, r->traced);
    spli_give_up(rt, r);
    return status;
}

/* Time during which anything travels counts once, however many requests are under way. */
void spli_give_up(spl_runtime *rt, spl_request *r) {
    if (r->counted > 0 && --rt->travelling == 0) rt->counters.comm_seconds += spli_now() - rt->travelling_since;
    if (r->ready) rt->backend->event_close(rt->backend_ctx, r->ready);
    r->comm->ops->request_free(r);
}

typedef struct queue_wait {
    spl_runtime *rt;
    spl_event *event;
} queue_wait;

static spl_status poll_event(void *ctx, int *done, uint64_t *progress) {
    queue_wait *w = ctx;
    (void)progress;
    return w->rt->backend->event_test(w->rt->backend_ctx, w->event, done);
}

spl_status spli_wait_queue(spl_runtime *rt, spl_queue *q) {
    queue_wait w = {.rt = rt};
    SPL_TRY(rt->backend->event_open(rt->backend_ctx, &w.event));
    spl_status status = rt->backend->event_record(rt->backend_ctx, q, w.event);
    if (status.code == SPL_OK)
        status = spli_wait_for(rt, poll_event, &w, rt->timeout, 0, "the device to finish its queue");
    rt->backend->event_close(rt->backend_ctx, w.event);
    return status;
}
