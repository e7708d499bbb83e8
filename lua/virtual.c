/* virtual.c: P ranks in this process, each with its own lua_State and runtime, switched where a rank waits. */
#include <stdio.h>
#include "host.h"
#include "interrupt.h"

typedef struct virtual_job {
    const lspl_options *options;
    spl_sim *sim;
    int code; /* of the lowest rank that failed */
} virtual_job;

static void run_rank(void *ctx, int rank) {
    virtual_job *job = ctx;
    int code = lspl_host_run_rank(job->options, job->sim, rank);
    if (job->code == 0) job->code = code;
}

int lspl_virtual_run(const lspl_options *options) {
    virtual_job job = {.options = options};
    int aborted = 0;
    spl_status s = spl_sim_create(options->virtual_ranks, &job.sim);
    if (s.code == SPL_OK) {
        lspl_interrupt_ticks(job.sim);
        s = spl_sim_run(job.sim, 0, run_rank, &job, &aborted);
        lspl_interrupt_ticks(NULL);
    }
    spl_sim_release(job.sim);
    if (s.code == SPL_OK) return aborted ? aborted : job.code;
    fprintf(stderr, "spl: %s\n", s.message);
    return spl_exit_code(s.code);
}
