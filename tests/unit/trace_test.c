/* trace_test.c: recording and writing traces in core: what is recorded and what is not, limits, the file, and clocks
 * that differ between ranks (planted, on virtual ranks). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "trace.h"
#include "tap.h"

static char path[64];

static char *read_file(const char *name) {
    FILE *f = fopen(name, "r");
    if (!f) return NULL;
    char *text = calloc(1, 1 << 22);
    size_t n = text ? fread(text, 1, (1 << 22) - 1, f) : 0;
    fclose(f);
    (void)n;
    return text;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; at && (at = strstr(at, what)); at++) n++;
    return n;
}

static void work(spl_runtime *rt, int rounds) {
    int64_t shape[] = {4, 8};
    for (int i = 0; i < rounds; i++) {
        spl_tensor *a = NULL, *b = NULL, *c = NULL;
        spl_status s = spl_tensor_create_local(rt, 2, shape, SPL_F32, &a);
        if (s.code == SPL_OK) s = spl_tensor_create_local(rt, 2, shape, SPL_F32, &b);
        if (s.code == SPL_OK) s = spl_add(a, b, &c);
        spl_tensor_release(a);
        spl_tensor_release(b);
        spl_tensor_release(c);
    }
}

static void one_rank(void) {
    spl_runtime *rt;
    spl_trace_config few = {.most_events = 10};
    if (!ok(spl_runtime_open(&(spl_runtime_config){.threads = 1}, &rt).code == SPL_OK, "one rank opens")) return;
    work(rt, 2);
    ok(!spl_tracing(rt), "nothing is recorded before a trace begins");
    ok(spl_trace_write(rt, path, 0).code == SPL_EARG, "without a trace there is none to write");
    ok(spl_trace_start(rt, NULL).code == SPL_OK && spl_tracing(rt), "a trace begins");
    ok(spl_trace_start(rt, NULL).code == SPL_EARG, "but not twice");
    spl_runtime_set_site(rt, "a \"quoted\\ name\".lua:3");
    double begin = spli_now();
    work(rt, 3);
    spl_trace_span(rt, "three \xff rounds \xc3\xa4", begin);
    ok(spl_trace_write(rt, path, 0).code == SPL_OK && !spl_tracing(rt), "is written, and over");
    char *text = read_file(path);
    ok(count(text, "\"name\":\"add\"") == 3, "it has the three ops since, and not those before");
    ok(count(text, "\"line\":\"a \\\"quoted\\\\ name\\\".lua:3\"") == 4, "with the line, escaped");
    ok(count(text, "three ? rounds \xc3\xa4") == 1, "bytes that are no UTF-8 are replaced, others are not");
    ok(count(text, "\"ph\":\"C\"") == 1 + 3 * 6, "memory after each of 3 x 3 takes and gives, and at the start");
    free(text);
    ok(spl_trace_start(rt, NULL).code == SPL_OK, "a trace of counters that are full begins");
    rt->counters.gemm_flops = rt->counters.attention_flops = rt->counters.comm_bytes[0] = INT64_MAX;
    spli_span full = spli_trace_begin(rt);
    ok(full.flops == INT64_MAX && spli_flops(rt) == INT64_MAX, "their sum is full, too");
    work(rt, 1);
    ok(spl_trace_write(rt, path, 0).code == SPL_OK, "and it is written");
    text = read_file(path);
    ok(count(text, "\"name\":\"add\"") == 1 && count(text, "\"flops\"") == 0, "with an op of no FLOPs");
    free(text);
    spl_counters_reset(rt);
    ok(spl_trace_start(rt, &few).code == SPL_OK, "a trace of at most 10 events begins");
    work(rt, 20);
    ok(spl_trace_write(rt, path, 0).code == SPL_OK, "and is written");
    text = read_file(path);
    ok(count(text, "\"events\":10,\"dropped\":") == 1, "with 10 events, and says that there were more");
    free(text);
    ok(spl_trace_start(rt, NULL).code == SPL_OK, "a trace that is never written");
    ok(spl_runtime_close(rt, NULL).code == SPL_OK, "goes with the runtime");
}

static void bad_paths(void) {
    static const char *const bad[] = {"", "/", "/dev/null/x.json", "/dev/null"};
    for (int i = 0; i < 4; i++) {
        spl_status s = spl_trace_check_path(bad[i]);
        ok(s.code == SPL_EIO && strstr(s.message, "trace"), "no trace can be written to '%s': %s", bad[i], s.message);
    }
    remove(path);
    ok(spl_trace_check_path(path).code == SPL_OK && access(path, F_OK), "a check leaves nothing behind");
}

/* ---- clocks ---- */

enum { RANKS = 3 };
static const double SKEW = 1000; /* seconds, times the rank */
static spl_sim *sim; /* of the test program alone */
static int bad;

static void skewed_rank(void *ctx, int rank) {
    spl_runtime *rt;
    spl_runtime_config config = {.threads = 1, .timeout = 30, .sim = ctx, .sim_rank = rank};
    if (spl_runtime_open(&config, &rt).code != SPL_OK) {
        bad = 1;
        return;
    }
    rt->trace_skew = SKEW * rank;
    bad |= spl_trace_start(rt, NULL).code != SPL_OK;
    double begin = spli_now();
    bad |= spl_barrier(rt).code != SPL_OK;
    spl_trace_span(rt, "between", begin);
    bad |= spl_trace_write(rt, path, 0).code != SPL_OK;
    bad |= spl_runtime_close(rt, NULL).code != SPL_OK;
}

static void skewed(void) {
    int code = 0;
    spl_status s = spl_sim_create(RANKS, &sim);
    if (s.code == SPL_OK) s = spl_sim_run(sim, 1 << 20, skewed_rank, sim, &code);
    spl_sim_release(sim);
    ok(s.code == SPL_OK && !code && !bad, "three ranks whose clocks differ write one trace");
    char *text = read_file(path);
    int together = 0;
    const char *at = text;
    for (int i = 0; i < RANKS && at; i++) {
        at = strstr(at, "\"cat\":\"script\"");
        double ts = -1;
        const char *stamp = at;
        while (stamp && stamp > text && strncmp(stamp, "\"ts\":", 5)) stamp--;
        if (at && sscanf(stamp, "\"ts\":%lf", &ts) == 1 && ts > -30e6 && ts < 30e6) together++;
        else tap_note("ts %g", ts);
        at = at ? at + 1 : NULL;
    }
    ok(together == RANKS, "in which the same moment has the same time on all, within what a busy machine needs");
    ok(count(text, "\"name\":\"spl_rank\"") == RANKS && count(text, "\"complete\":true") == 1, "and which is complete");
    free(text);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/spl_trace_%d.json", (int)getpid());
    one_rank();
    bad_paths();
    skewed();
    remove(path);
    return tap_done();
}
