/* trace.c: recording what a rank does: ops, communication, waits, memory and spans of the script, with the script's
 * line. Events stay in memory until the trace is written (trace_write.c); names are kept once each. Where memory for
 * events ends, or the limit is reached, later ones are counted and left out. */
#include "trace.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double LEAST_WAIT = 1e-6; /* seconds: shorter ones, found done at the first look, are none */
enum { DEFAULT_MOST = 200000, FIRST_EVENTS = 1024, FIRST_SLOTS = 256 };

/* ---------------------------------------------------------------- texts */

static uint64_t hash(const char *text) { /* FNV-1a, Fowler, Noll, Vo */
    uint64_t h = 14695981039346656037u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

static int grow_table(spli_trace *t) {
    uint32_t slots = t->slots ? 2 * t->slots : FIRST_SLOTS;
    uint32_t *table = calloc(slots, sizeof *table);
    char **texts = realloc(t->texts, slots * sizeof *texts);
    if (texts) t->texts = texts;
    if (!table || !texts) {
        free(table);
        return 0;
    }
    for (uint32_t i = 0; i < t->ntexts; i++) {
        uint32_t at = (uint32_t)hash(t->texts[i]) & (slots - 1);
        while (table[at]) at = (at + 1) & (slots - 1);
        table[at] = i + 1;
    }
    free(t->table);
    t->table = table;
    t->slots = slots;
    return 1;
}

/* The number of a text; 0, which is "", where memory has ended. */
static uint32_t text_number(spli_trace *t, const char *text) {
    if (!text || !*text) return 0;
    uint32_t at = (uint32_t)hash(text) & (t->slots - 1);
    for (; t->table[at]; at = (at + 1) & (t->slots - 1))
        if (!strcmp(t->texts[t->table[at] - 1], text)) return t->table[at] - 1;
    if (2 * (t->ntexts + 1) > t->slots) {
        if (!grow_table(t)) return 0;
        return text_number(t, text);
    }
    char *copy = strdup(text);
    if (!copy) return 0;
    t->texts[t->ntexts] = copy;
    t->table[at] = ++t->ntexts;
    return t->ntexts - 1;
}

static uint32_t site_number(spl_runtime *rt) {
    char site[160] = "";
    spli_trace *t = rt->trace;
    if (t->site) t->site(t->ctx, site, sizeof site);
    return text_number(t, site[0] ? site : rt->site);
}

/* ---------------------------------------------------------------- events */

static spli_event *add(spl_runtime *rt, spli_event_kind kind, double begin) {
    spli_trace *t = rt->trace;
    if (t->count == t->capacity && t->count < t->most) {
        int64_t capacity = t->capacity ? 2 * t->capacity : FIRST_EVENTS;
        if (capacity > t->most) capacity = t->most;
        spli_event *events = realloc(t->events, (size_t)capacity * sizeof *events);
        if (events) t->events = events, t->capacity = capacity;
    }
    if (t->count == t->capacity) {
        t->dropped++;
        return NULL;
    }
    spli_event *e = &t->events[t->count++];
    *e = (spli_event){.kind = kind, .begin = begin, .end = begin, .to = -1, .from = -1};
    return e;
}

static void result_text(const spl_tensor *result, char *out, size_t n) {
    size_t used = 0;
    *out = 0;
    for (int d = 0; result && d < result->ndim && used < n; d++)
        used += (size_t)snprintf(out + used, n - used, "%s%" PRId64, d ? ", " : "[", result->local[d]);
    if (result && used < n) snprintf(out + used, n - used, "%s] %s", result->ndim ? "" : "[",
                                     spl_dtype_name(result->dtype));
}

void spli_trace_op(spl_runtime *rt, spli_span span, const char *name, int moves, const spl_tensor *result) {
    if (!rt->trace || span.begin == 0) return;
    char detail[160];
    double end = spli_now();
    spli_event *e = add(rt, moves ? SPLI_EVENT_MOVE : SPLI_EVENT_OP, span.begin);
    if (!e) return;
    e->end = end;
    e->name = text_number(rt->trace, name);
    e->subject = text_number(rt->trace, rt->subject);
    e->site = site_number(rt);
    result_text(result, detail, sizeof detail);
    e->detail = text_number(rt->trace, detail);
    e->amount[0] = spli_flops(rt) - span.flops;
    if (e->amount[0] < 0) e->amount[0] = 0; /* counters were reset meanwhile */
}

/* The one other member with a count above 0 as a world rank; -1 where there is none or more than one. */
static int only_other(const spl_comm *c, const int64_t *counts) {
    int found = -1;
    for (int m = 0; m < c->size; m++) {
        if (m == c->rank || counts[m] == 0) continue;
        if (found >= 0) return -1;
        found = c->world_ranks[m];
    }
    return found;
}

uint64_t spli_trace_started(spl_runtime *rt, double begin, const spl_comm *c, const spl_coll *coll) {
    spli_trace *t = rt->trace;
    spli_event *e = add(rt, SPLI_EVENT_COMM, begin);
    if (!e) return 0;
    uint64_t which = t->number << 40 | (uint64_t)t->count;
    char ranks[128] = "";
    size_t used = 0;
    e->end = 0;
    e->name = text_number(t, spl_coll_name(coll->kind));
    e->subject = text_number(t, rt->subject);
    e->site = site_number(rt);
    for (int m = 0; m < c->size && used < sizeof ranks - 16; m++)
        used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", m ? " " : "", c->world_ranks[m]);
    char detail[192];
    snprintf(detail, sizeof detail, "%s\n%s%s\n%s", c->axis[0] ? c->axis : "all ranks", ranks,
             used >= sizeof ranks - 16 ? " ..." : "", spl_dtype_name(coll->dtype));
    e->detail = text_number(t, detail);
    e->amount[0] = spl_coll_bytes(c, coll);
    if (coll->kind == SPL_COLL_ALL_TO_ALL) {
        e->to = only_other(c, coll->send_counts);
        e->from = only_other(c, coll->recv_counts);
    }
    return which;
}

/* NULL: it was not recorded, or by a trace that is over. */
static spli_event *started(spli_trace *t, uint64_t which) {
    return t && which >> 40 == t->number ? &t->events[(which & ((UINT64_C(1) << 40) - 1)) - 1] : NULL;
}

void spli_trace_rename(spl_runtime *rt, uint64_t which, const char *name) {
    spli_event *e = started(rt->trace, which);
    if (e) e->name = text_number(rt->trace, name);
}

void spli_trace_arrived(spl_runtime *rt, uint64_t which) {
    spli_event *e = started(rt->trace, which);
    if (e) e->end = spli_now();
}

void spli_trace_wait(spl_runtime *rt, double begin, const char *what, int communication) {
    double end = spli_now();
    if (end - begin < LEAST_WAIT) return;
    spli_event *e = add(rt, SPLI_EVENT_WAIT, begin);
    if (!e) return;
    e->end = end;
    e->name = text_number(rt->trace, what);
    e->site = site_number(rt);
    e->amount[0] = communication;
}

void spli_trace_memory(spl_runtime *rt) {
    spli_event *e = add(rt, SPLI_EVENT_MEMORY, spli_now());
    if (e) memcpy(e->amount, rt->counters.bytes_now, sizeof e->amount);
}

void spl_trace_span(spl_runtime *rt, const char *name, double begin) {
    if (!rt->trace) return;
    double end = spli_now();
    spli_event *e = add(rt, SPLI_EVENT_SPAN, begin);
    if (!e) return;
    e->end = end;
    e->name = text_number(rt->trace, name);
    e->site = site_number(rt);
}

/* ---------------------------------------------------------------- begin and end */

static void trace_free(spli_trace *t) {
    if (!t) return;
    for (uint32_t i = 1; i < t->ntexts; i++) free(t->texts[i]);
    free(t->texts);
    free(t->table);
    free(t->events);
    if (t->comm) t->comm->ops->close(t->comm);
    free(t);
}

void spli_trace_free(spl_runtime *rt) {
    trace_free(rt->trace);
    rt->trace = NULL;
}

void spl_trace_drop(spl_runtime *rt) { spli_trace_free(rt); }

int spl_tracing(const spl_runtime *rt) { return rt->trace != NULL; }

static spl_status open_comm(spl_runtime *rt, spli_trace *t) {
    uint32_t id = rt->next_comm_id++; /* equal on all ranks, as that of meshes */
    if (rt->size == 1 || rt->dry || !rt->backend->has_memory) return spli_ok();
    int *all = malloc(sizeof *all * (size_t)rt->size);
    if (!all) return spli_error(SPL_ENOMEM, "out of memory while starting a trace");
    for (int p = 0; p < rt->size; p++) all[p] = p;
    spl_status status = spli_comm_group(rt, all, rt->size, "trace", id, &t->comm);
    free(all);
    return status;
}

spl_status spl_trace_start(spl_runtime *rt, const spl_trace_config *config) {
    static const spl_trace_config defaults;
    if (!config) config = &defaults;
    if (rt->trace) return spli_error(SPL_EARG, "a trace is being recorded already; write it before the next begins");
    if (config->most_events < 0)
        return spli_error(SPL_EARG, "a trace of at most %" PRId64 " events was asked for; give 1 or more",
                          config->most_events);
    spli_trace *t = calloc(1, sizeof *t);
    if (!t || !grow_table(t)) {
        trace_free(t);
        return spli_error(SPL_ENOMEM, "out of memory while starting a trace");
    }
    t->texts[t->ntexts++] = "";
    t->most = config->most_events ? config->most_events : DEFAULT_MOST;
    t->site = config->site;
    t->ctx = config->ctx;
    t->number = ++rt->traces;
    spl_status status = open_comm(rt, t);
    if (status.code == SPL_OK) status = spli_trace_clock(rt, t->comm, &t->measured, &t->offset, &t->origin);
    t->started = spli_now() + rt->trace_skew;
    if (status.code != SPL_OK) {
        trace_free(t);
        return status;
    }
    rt->trace = t;
    spli_trace_memory(rt);
    return spli_ok();
}
