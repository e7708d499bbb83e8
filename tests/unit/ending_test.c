/* ending_test.c: how ranks end together: who speaks, what the job's exit code is, and what a rank learns that still
 * waits for one that is gone. Virtual ranks, so that one process sees what all of them found. */
#include "comm_pairwise.h"
#include "runtime.h"
#include "tap.h"
#include "tiny_backend.h"

enum { P = 4 };

static const spl_backend_ops backend = TINY_BACKEND;

typedef struct outcome {
    int speak, worst, all;
    double when;       /* seconds after the start, at the first word of finish */
    spl_status waited; /* of the collective that this rank made, if it did */
} outcome;

typedef struct scenario {
    const char *name;
    int code[P];    /* how a rank ends on its own account; 0 and waits[r]: by what its collective says */
    int waits[P];   /* makes a collective that not all make */
    double late[P]; /* comes to its end only after so many seconds */
    int check;
    double patience;
    /* what must come of it */
    int speaker, worst;
} scenario;

typedef struct run {
    spl_sim *sim;
    const scenario *s;
    double begin;
    outcome out[P];
    int bad;
} run;

static spl_status poll_until(void *ctx, int *done, uint64_t *progress) {
    (void)progress;
    *done = spli_now() >= *(double *)ctx;
    return spli_ok();
}

static void rank_main(void *ctx, int rank) {
    run *r = ctx;
    const scenario *s = r->s;
    outcome *o = &r->out[rank];
    spl_runtime *rt;
    spl_runtime_config config = {.backend = &backend,
                                 .threads = 1,
                                 .timeout = 30,
                                 .check_collectives = s->check,
                                 .sim = r->sim,
                                 .sim_rank = rank};
    if (spl_runtime_open(&config, &rt).code != SPL_OK) {
        r->bad = 1;
        return;
    }
    int code = s->code[rank], leaked, speak, worst, all;
    double until = spli_now() + s->late[rank];
    if (s->late[rank] > 0) spli_wait_for(rt, poll_until, &until, -1, 0, "a nap");
    if (s->waits[rank]) {
        double x[8] = {1}, y[8];
        int64_t n = 8;
        spl_coll coll = {.kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F64, .send = x, .recv = y, .send_counts = &n};
        o->waited = spli_comm_run(rt, rt->world, &coll);
        if (code == 0) code = spl_exit_code(o->waited.code);
    }
    spl_runtime_finish(rt, code, s->patience, &o->speak, &o->worst, &o->all);
    o->when = spli_now() - r->begin;
    spl_runtime_finish(rt, code, 30, &speak, &worst,
                       &all); /* asked again, when all have ended, it says the final word */
    if (!all || speak != (rank == s->speaker) || worst != s->worst) r->bad = 1;
    if (spl_runtime_close(rt, &leaked).code != SPL_OK || leaked) r->bad = 1;
}

static run play(const scenario *s) {
    run r = {.s = s, .begin = spli_now()};
    int code = 0;
    spl_status status = spl_sim_create(P, &r.sim);
    if (status.code == SPL_OK) status = spl_sim_run(r.sim, 1 << 20, rank_main, &r, &code);
    spl_sim_release(r.sim);
    r.bad |= status.code != SPL_OK || code != 0;
    int speakers = 0, worst = 1, all = 1;
    for (int k = 0; k < P; k++) {
        speakers += r.out[k].speak;
        worst &= r.out[k].worst == s->worst;
        all &= r.out[k].all;
    }
    ok(!r.bad, "%s: opened, ended and closed", s->name);
    if (s->patience > 1) {
        ok(worst && all, "%s: every rank knows the exit code %d and that all have ended", s->name, s->worst);
        ok(speakers == (s->speaker >= 0) && (s->speaker < 0 || r.out[s->speaker].speak),
           "%s: rank %d speaks, nobody else", s->name, s->speaker);
    }
    return r;
}

static int says(const spl_status *s, spl_code code, const char *words) {
    int good = s->code == code && strstr(s->message, words);
    if (!good) tap_note("%s: %s", spl_code_name(s->code), s->code ? s->message : "");
    return good;
}

int main(void) {
    scenario good = {.name = "all do well", .patience = 10, .speaker = -1};
    play(&good);

    scenario late = {.name = "one does well later", .patience = 10, .late = {0, 0.3, 0, 0}, .speaker = -1};
    run r = play(&late);
    ok(r.out[0].when >= 0.3, "success waits for all");

    for (int check = 0; check < 2; check++) {
        scenario one = {.name = check ? "one fails, others wait, with agreement" : "one fails, others wait",
                        .code = {0, 0, 1, 0},
                        .waits = {1, 1, 0, 1},
                        .check = check,
                        .patience = 10,
                        .speaker = 2,
                        .worst = 1};
        r = play(&one);
        ok(says(&r.out[0].waited, SPL_EDISAGREE, "rank 2 failed (exit code 1)"),
           "who waits for it learns which rank failed");
        ok(r.out[0].when < 2, "within %.2f s", r.out[0].when);

        scenario gone = {.name = check ? "one ends early, with agreement" : "one ends early",
                         .waits = {1, 0, 1, 1},
                         .check = check,
                         .patience = 10,
                         .speaker = 0,
                         .worst = 4};
        r = play(&gone);
        ok(says(&r.out[2].waited, SPL_EDISAGREE, "rank 1 ended its script"),
           "who waits for it learns which rank ended");
        ok(r.out[2].when < (check ? 1 : 4), "within %.2f s", r.out[2].when);
    }

    scenario two = {.name = "two fail, others wait",
                    .code = {0, 2, 0, 1},
                    .waits = {1, 0, 1, 0},
                    .patience = 10,
                    .speaker = 1,
                    .worst = 2};
    play(&two);

    scenario same = {.name = "all fail alike", .code = {1, 1, 1, 1}, .patience = 10, .speaker = 0, .worst = 1};
    play(&same);

    scenario busy = {.name = "one fails while another computes",
                     .code = {0, 0, 0, 3},
                     .late = {1.2, 0, 0, 0},
                     .patience = 0.3,
                     .speaker = 3,
                     .worst = 3};
    r = play(&busy);
    ok(r.out[3].speak && r.out[3].worst == 3 && !r.out[3].all && r.out[3].when >= 0.3 && r.out[3].when < 1.1,
       "it waits no longer than asked (%.2f s), speaks, and knows that not all have ended", r.out[3].when);

    scenario queue = {.name = "two fail while another computes",
                      .code = {0, 1, 0, 3},
                      .late = {2, 0.1, 0, 0},
                      .patience = 0.4,
                      .speaker = 1,
                      .worst = 1};
    r = play(&queue);
    ok(r.out[1].speak && !r.out[3].speak && r.out[3].when > r.out[1].when,
       "the one that does not speak (%.2f s) gives way to the one "
       "that does (%.2f s)",
       r.out[3].when, r.out[1].when);
    return tap_done();
}
