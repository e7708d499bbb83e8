/* trace_write.c: writing the traces of all ranks as one file of the Trace Event Format (the JSON that chrome://tracing
 * and Perfetto read), on one clock.
 *
 * Ranks of one machine share its monotonic clock. Where machines differ, every rank notes its clock before and after
 * each of a few barriers: no rank leaves one before the last has entered, so with b and a of two ranks, each on its
 * own clock, b_0 <= a_r - offset and b_r - offset <= a_0; the offset lies where all rounds allow it, and the middle is
 * taken (as in Cristian, "Probabilistic clock synchronization", 1989). It is measured when a trace begins and when it
 * is written, and drifts evenly in between.
 *
 * Each rank writes its events as lines of JSON and sends them to rank 0 a piece at a time; the file gets its name when
 * it is whole. */
#include "trace.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLOCK_ROUNDS = 8, PIECE = 1 << 20, LANES = 16, TID_OPS = 1, TID_WAITS = 2, TID_SCRIPT = 3, TID_COMM = 4 };

/* ---------------------------------------------------------------- between ranks, after scripts have ended too */

static spl_status poll_raw(void *ctx, int *done, uint64_t *progress) {
    spl_request *r = ctx;
    SPL_TRY(r->comm->ops->test(r, done));
    *progress = r->progress;
    return spli_ok();
}

/* Neither agreed on, counted nor recorded, and another rank's failure does not end it: it may have failed already. */
static spl_status raw(spl_runtime *rt, spl_comm *c, const spl_coll *coll) {
    spl_request *r;
    const volatile int *interrupt = rt->interrupt;
    SPL_TRY(c->ops->start(c, coll, NULL, 0, &r));
    rt->interrupt = NULL; /* an interrupt may be why the script ended */
    spl_status status = spli_wait_for(rt, poll_raw, r, rt->timeout, 0, "the traces of the other ranks");
    rt->interrupt = interrupt;
    r->comm->ops->request_free(r);
    return status;
}

/* Gathers n bytes of every rank into all[size * n]. */
static spl_status gather(spl_runtime *rt, spl_comm *c, const void *mine, int64_t n, void *all) {
    spl_status status = spli_ok();
    size_t total = (size_t)(n * rt->size);
    void *memory = NULL;
    char *own;
    int64_t *counts = malloc(sizeof *counts * (size_t)rt->size);
    if (!counts) return spli_error(SPL_ENOMEM, "out of memory while gathering traces");
    for (int p = 0; p < rt->size; p++) counts[p] = n;
    SPL_GO(spli_alloc(rt, SPL_MEM_BUFFERS, total, &memory), done);
    own = (char *)memory + (size_t)(n * rt->rank);
    SPL_GO(rt->backend->copy_in(rt->backend_ctx, rt->compute, own, mine, (size_t)n), done);
    SPL_GO(spli_wait_queue(rt, rt->compute), done);
    spl_coll coll = {.kind = SPL_COLL_ALL_GATHER, .dtype = SPL_U8, .send = own, .recv = memory, .send_counts = counts,
                     .recv_counts = counts};
    SPL_GO(raw(rt, c, &coll), done);
    SPL_GO(rt->backend->copy_out(rt->backend_ctx, rt->compute, all, memory, total), done);
    SPL_GO(spli_wait_queue(rt, rt->compute), done);
done:
    spli_free(rt, SPL_MEM_BUFFERS, memory, total);
    free(counts);
    return status;
}

/* ---------------------------------------------------------------- clocks */

typedef struct clock_note {
    char machine[48]; /* what boots once has one clock */
    double before[CLOCK_ROUNDS], after[CLOCK_ROUNDS];
    int32_t skewed, rounds;
} clock_note;

static double clock_now(const spl_runtime *rt) { return spli_now() + rt->trace_skew; }

static void read_machine(char *out, size_t n) {
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(out, (int)n, f)) *out = 0;
    if (f) fclose(f);
}

/* The middle of where the notes of rank 0 and of another let the other's offset lie. */
static double offset_between(const clock_note *zero, const clock_note *other) {
    double low = -1e300, high = 1e300;
    for (int i = 0; i < zero->rounds; i++) {
        double l = other->before[i] - zero->after[i], h = other->after[i] - zero->before[i];
        if (l > low) low = l;
        if (h < high) high = h;
    }
    return 0.5 * (low + high);
}

spl_status spli_trace_clock(spl_runtime *rt, spl_comm *c, int *measured, double *offset, double *origin) {
    clock_note mine = {.skewed = rt->trace_skew != 0};
    spl_status status = spli_ok();
    *measured = 0;
    *offset = 0;
    *origin = clock_now(rt);
    if (!c) return status;
    clock_note *all = malloc(sizeof *all * (size_t)rt->size);
    if (!all) return spli_error(SPL_ENOMEM, "out of memory while comparing the clocks of %d ranks", rt->size);
    read_machine(mine.machine, sizeof mine.machine);
    mine.before[0] = *origin;
    SPL_GO(gather(rt, c, &mine, sizeof mine, all), done);
    *origin = all[0].before[0];
    for (int p = 0; p < rt->size; p++) *measured |= strcmp(all[p].machine, all[0].machine) != 0 || all[p].skewed;
    if (!*measured) goto done;
    mine.rounds = CLOCK_ROUNDS;
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        spl_coll barrier = {.kind = SPL_COLL_BARRIER};
        mine.before[i] = clock_now(rt);
        SPL_GO(raw(rt, c, &barrier), done);
        mine.after[i] = clock_now(rt);
    }
    SPL_GO(gather(rt, c, &mine, sizeof mine, all), done);
    if (rt->rank > 0) *offset = offset_between(&all[0], &all[rt->rank]);
done:
    free(all);
    return status;
}

/* Microseconds since the trace began, on rank 0's clock. */
static double stamp(const spl_runtime *rt, const spli_trace *t, double seconds, double now) {
    double mine = seconds + rt->trace_skew, share = now > t->started ? (mine - t->started) / (now - t->started) : 0;
    return 1e6 * (mine - (t->offset + share * (t->offset_at_end - t->offset)) - t->origin);
}

/* ---------------------------------------------------------------- JSON */

typedef struct text {
    char *at;
    size_t used, room;
    int failed;
} text;

__attribute__((format(printf, 2, 3))) static void put(text *o, const char *format, ...) {
    va_list args;
    for (;;) {
        size_t left = o->room - o->used;
        va_start(args, format);
        int n = vsnprintf(o->at ? o->at + o->used : NULL, left, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < left) {
            o->used += (size_t)n;
            return;
        }
        size_t room = 2 * o->room + (size_t)n + 4096;
        char *more = n >= 0 ? realloc(o->at, room) : NULL;
        if (!more) {
            o->failed = 1;
            return;
        }
        o->at = more;
        o->room = room;
    }
}

/* A string in quotes. Bytes that are no UTF-8 come from names of files: they are written as '?', so that the file stays
 * valid. */
static void put_string(text *o, const char *s) {
    put(o, "\"");
    while (*s) {
        unsigned char c = (unsigned char)*s;
        int more = c >= 0xf0 && c < 0xf8 ? 3 : c >= 0xe0 ? 2 : c >= 0xc2 ? 1 : 0;
        for (int i = 1; i <= more; i++)
            if (((unsigned char)s[i] & 0xc0) != 0x80) more = 0;
        if (c == '"' || c == '\\') put(o, "\\%c", c);
        else if (c < 0x20) put(o, "\\u%04x", c);
        else if (c < 0x80) put(o, "%c", c);
        else if (c >= 0xf8 || more == 0) put(o, "?");
        else put(o, "%.*s", more + 1, s);
        s += 1 + (c >= 0x80 ? more : 0);
    }
    put(o, "\"");
}

static void put_named(text *o, const char *key, const char *value) {
    if (!*value) return;
    put(o, "%s\"%s\":", o->at && o->at[o->used - 1] == '{' ? "" : ",", key);
    put_string(o, value);
}

static void put_meta(text *o, int pid, int tid, const char *what, const char *name) {
    put(o, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":", pid, tid, what);
    put_string(o, name);
    put(o, "}},\n");
}

static void put_rank(text *o, const spl_runtime *rt, const spli_trace *t, double now) {
    char host[256] = "", name[320];
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d (%s)", rt->rank, host);
    put_meta(o, rt->rank, 0, "process_name", name);
    put(o, "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}},\n",
        rt->rank, rt->rank);
    put_meta(o, rt->rank, TID_OPS, "thread_name", "ops");
    put_meta(o, rt->rank, TID_WAITS, "thread_name", "waits");
    put_meta(o, rt->rank, TID_SCRIPT, "thread_name", "script");
    put_meta(o, rt->rank, TID_COMM, "thread_name", "communication");
    put(o, "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"spl_rank\",\"args\":{\"rank\":%d,\"events\":%" PRId64
           ",\"dropped\":%" PRId64 ",\"clock_offset_us\":%.3f,\"end_us\":%.3f",
        rt->rank, rt->rank, t->count, t->dropped, 1e6 * t->offset_at_end, stamp(rt, t, spli_now(), now));
    put_named(o, "host", host);
    put(o, "}},\n");
}

static void put_memory(text *o, const spl_runtime *rt, const spli_event *e, double at) {
    put(o,
        "{\"ph\":\"C\",\"pid\":%d,\"name\":\"memory\",\"ts\":%.3f,\"args\":{\"weights\":%" PRId64
        ",\"activations\":%" PRId64 ",\"buffers\":%" PRId64 ",\"workspace\":%" PRId64 "}},\n",
        rt->rank, at, e->amount[SPL_MEM_WEIGHTS], e->amount[SPL_MEM_ACTIVATIONS], e->amount[SPL_MEM_BUFFERS],
        e->amount[SPL_MEM_WORKSPACE]);
}

static void put_comm_args(text *o, const spli_trace *t, const spli_event *e) {
    char axis[192];
    snprintf(axis, sizeof axis, "%s", t->texts[e->detail]); /* axis, members, dtype: a line each */
    char *ranks = strchr(axis, '\n'), *dtype = ranks ? strchr(ranks + 1, '\n') : NULL;
    if (!dtype) return;
    *ranks++ = 0;
    *dtype++ = 0;
    put(o, ",\"bytes\":%" PRId64, e->amount[0]);
    put_named(o, "axis", axis);
    put_named(o, "ranks", ranks);
    put_named(o, "dtype", dtype);
    if (e->to >= 0) put(o, ",\"to\":%d", e->to);
    if (e->from >= 0) put(o, ",\"from\":%d", e->from);
}

static const char *const categories[] = {"op", "move", "comm", "wait", "memory", "script"};

/* `lanes`: when each row of communication is free again, since what is under way at once must not share one. */
static void put_event(text *o, const spl_runtime *rt, const spli_trace *t, const spli_event *e, double now,
                      double *lanes) {
    double begin = stamp(rt, t, e->begin, now);
    if (e->kind == SPLI_EVENT_MEMORY) {
        put_memory(o, rt, e, begin);
        return;
    }
    double end = e->end == 0 ? stamp(rt, t, spli_now(), now) : stamp(rt, t, e->end, now);
    int tid = e->kind == SPLI_EVENT_WAIT ? TID_WAITS : e->kind == SPLI_EVENT_SPAN ? TID_SCRIPT : TID_OPS;
    if (e->kind == SPLI_EVENT_COMM) {
        int lane = 0;
        while (lane < LANES - 1 && lanes[lane] > begin) lane++;
        if (lane > 0 && lanes[lane] == 0) put_meta(o, rt->rank, TID_COMM + lane, "thread_name", "communication");
        lanes[lane] = end;
        tid = TID_COMM + lane;
    }
    put(o, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\"", rt->rank, tid, begin,
        end > begin ? end - begin : 0, categories[e->kind]);
    put_named(o, "name", e->name ? t->texts[e->name] : "?");
    put(o, ",\"args\":{\"rank\":%d", rt->rank);
    put_named(o, "line", t->texts[e->site]);
    put_named(o, "makes", t->texts[e->subject]);
    if (e->kind == SPLI_EVENT_COMM) put_comm_args(o, t, e);
    else put_named(o, "result", t->texts[e->detail]);
    if (e->kind == SPLI_EVENT_OP && e->amount[0]) put(o, ",\"flops\":%" PRId64, e->amount[0]);
    if (e->kind == SPLI_EVENT_WAIT && e->amount[0]) put(o, ",\"communication\":true");
    if (e->end == 0) put(o, ",\"under_way\":true");
    put(o, "}},\n");
}

/* ---------------------------------------------------------------- the file */

typedef struct writer {
    spl_runtime *rt;
    const spli_trace *t;
    int64_t next; /* event */
    int said;     /* who I am */
    double now, lanes[LANES];
    text piece;
    FILE *file;       /* rank 0 */
    int64_t *counts;  /* of bytes: [size], and as many zeros */
    spl_status wrong; /* the first error of the file: the others' pieces are still taken */
} writer;

/* Events up to about PIECE bytes, whole ones, or none when all were written. */
static spl_status next_piece(writer *w) {
    w->piece.used = 0;
    if (!w->said) put_rank(&w->piece, w->rt, w->t, w->now);
    w->said = 1;
    while (w->next < w->t->count && w->piece.used < PIECE && !w->piece.failed)
        put_event(&w->piece, w->rt, w->t, &w->t->events[w->next++], w->now, w->lanes);
    if (w->piece.failed) return spli_error(SPL_ENOMEM, "out of memory while writing a trace");
    return spli_ok();
}

static void to_file(writer *w, const char *bytes, size_t n, const char *path) {
    if (w->wrong.code != SPL_OK || !w->file || n == 0) return;
    if (fwrite(bytes, 1, n, w->file) != n)
        w->wrong = spli_error_native(SPL_EIO, errno, "cannot write the trace to '%.200s': %s", path, strerror(errno));
}

/* One piece of every rank to rank 0; *more: whether there was any. */
static spl_status exchange(writer *w, const char *path, int *more) {
    spl_runtime *rt = w->rt;
    spl_status status = next_piece(w);
    int64_t n = status.code == SPL_OK ? (int64_t)w->piece.used : -1, total = 0, *zeros = w->counts + rt->size;
    void *send = NULL, *recv = NULL;
    SPL_TRY(gather(rt, w->t->comm, &n, sizeof n, w->counts));
    *more = 0;
    for (int p = 0; p < rt->size; p++) {
        if (w->counts[p] < 0) /* all learn of it, and stop */
            return status.code != SPL_OK
                       ? status
                       : spli_error(SPL_ENOMEM, "rank %d ran out of memory while writing its trace", p);
        *more |= w->counts[p] > 0;
        total += w->counts[p];
    }
    if (!*more) return status;
    char *host = rt->rank == 0 ? malloc((size_t)total) : NULL;
    memset(zeros, 0, sizeof *zeros * (size_t)rt->size);
    zeros[0] = n;
    SPL_GO(spli_alloc(rt, SPL_MEM_BUFFERS, (size_t)n, &send), done);
    if (n) SPL_GO(rt->backend->copy_in(rt->backend_ctx, rt->compute, send, w->piece.at, (size_t)n), done);
    if (rt->rank == 0) SPL_GO(spli_alloc(rt, SPL_MEM_BUFFERS, (size_t)total, &recv), done);
    else memset(w->counts, 0, sizeof *w->counts * (size_t)rt->size);
    spl_coll coll = {.kind = SPL_COLL_ALL_TO_ALL, .dtype = SPL_U8, .send = send, .recv = recv, .send_counts = zeros,
                     .recv_counts = w->counts};
    if (rt->rank > 0) w->counts[rt->rank] = 0;
    SPL_GO(spli_wait_queue(rt, rt->compute), done);
    SPL_GO(raw(rt, w->t->comm, &coll), done);
    if (rt->rank == 0 && host) {
        SPL_GO(rt->backend->copy_out(rt->backend_ctx, rt->compute, host, recv, (size_t)total), done);
        SPL_GO(spli_wait_queue(rt, rt->compute), done);
        to_file(w, host, (size_t)total, path);
    } else if (rt->rank == 0 && w->wrong.code == SPL_OK)
        w->wrong = spli_error(SPL_ENOMEM, "out of memory while writing a trace");
done:
    spli_free(rt, SPL_MEM_BUFFERS, send, (size_t)n);
    spli_free(rt, SPL_MEM_BUFFERS, recv, (size_t)total);
    free(host);
    return status;
}

static spl_status write_all(writer *w, const char *path, int by_itself) {
    int more = 1;
    while (more && !by_itself) SPL_TRY(exchange(w, path, &more));
    while (more) {
        SPL_TRY(next_piece(w));
        to_file(w, w->piece.at, w->piece.used, path);
        more = w->piece.used > 0;
    }
    return w->wrong;
}

/* A name beside where it will stand. */
static char *name_beside(const char *path, int rank) {
    size_t n = strlen(path) + 24;
    char *name = malloc(n);
    if (name) snprintf(name, n, "%s.new%d", path, rank);
    return name;
}

static spl_status open_file(const char *path, const char *beside, FILE **out) {
    struct stat s;
    int there = stat(path, &s) == 0;
    *out = NULL;
    if (!*path)
        return spli_error(SPL_EIO, "a trace was given the name '' for its file; give a path such as trace.json");
    if (there && !S_ISREG(s.st_mode))
        return spli_error(SPL_EIO, "cannot write the trace to '%.200s': it is %s; give a path such as trace.json", path,
                          S_ISDIR(s.st_mode) ? "a folder" : "no regular file");
    if (there && access(path, W_OK)) return spli_error_native(SPL_EIO, errno, "cannot write the trace to '%.200s': %s",
                                                              path, strerror(errno));
    *out = beside ? fopen(beside, "we") : NULL;
    if (*out) return spli_ok();
    return spli_error_native(SPL_EIO, errno, "cannot write the trace to '%.200s': %s", path, strerror(errno));
}

spl_status spl_trace_check_path(const char *path) {
    FILE *f;
    char *beside = name_beside(path, 0);
    spl_status status = open_file(path, beside, &f);
    if (f) fclose(f), remove(beside);
    free(beside);
    return status;
}

/* `by_itself`: this rank's part alone; `complete`: not since others did not come to their end. */
static spl_status write_file(spl_runtime *rt, const spli_trace *t, const char *path, int by_itself, int complete) {
    writer w = {.rt = rt, .t = t, .now = clock_now(rt), .wrong = spli_ok()};
    int writes = by_itself || rt->rank == 0;
    char *beside = name_beside(path, rt->rank);
    spl_status status = spli_ok();
    w.counts = calloc(2 * (size_t)rt->size, sizeof *w.counts);
    if (writes) w.wrong = open_file(path, beside, &w.file);
    text frame = {0}; /* what stands around the events */
    put(&frame,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"spl\":\"" SPL_VERSION "\",\"ranks\":%d,\"backend\":\"%s\","
        "\"virtual\":%s,\"complete\":%s},\n\"traceEvents\":[\n",
        rt->size, rt->backend->name, rt->sim ? "true" : "false", complete ? "true" : "false");
    to_file(&w, frame.at, frame.used, path);
    if (!w.counts) status = spli_error(SPL_ENOMEM, "out of memory while writing a trace");
    else status = write_all(&w, path, by_itself);
    if (w.file) {
        frame.used = 0; /* each line before ends in a comma */
        put(&frame, "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"spl_end\",\"args\":{}}\n]}\n", rt->rank);
        to_file(&w, frame.at, frame.used, path);
        if (status.code == SPL_OK) status = w.wrong;
        int bad = frame.failed | ferror(w.file) | fclose(w.file);
        if (status.code == SPL_OK && (bad || rename(beside, path)))
            status = spli_error_native(SPL_EIO, errno, "cannot write the trace to '%.200s': %s", path, strerror(errno));
        if (status.code != SPL_OK) remove(beside);
    }
    free(beside);
    free(frame.at);
    free(w.counts);
    free(w.piece.at);
    return status;
}

spl_status spl_trace_write(spl_runtime *rt, const char *path, int by_itself) {
    spli_trace *t = rt->trace;
    int measured;
    double origin;
    spl_status status = spli_ok();
    if (!t) return spli_error(SPL_EARG, "no trace is being recorded, so there is none to write");
    rt->trace = NULL; /* writing is no part of it */
    t->offset_at_end = t->offset;
    if (t->comm && !by_itself && t->measured)
        status = spli_trace_clock(rt, t->comm, &measured, &t->offset_at_end, &origin);
    int writes = rt->rank == 0 || by_itself || t->comm;
    if (status.code == SPL_OK && writes)
        status = write_file(rt, t, path, by_itself || !t->comm, !by_itself || rt->size == 1);
    rt->trace = t;
    if (!by_itself) spli_trace_free(rt);
    return status;
}
