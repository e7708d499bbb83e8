/* sim.h: P ranks in one process. Each rank runs on a stack of its own; exactly one runs at a time, and control passes
 * on only where a rank waits (spli_wait_for), in rank order. So a run is deterministic, needs no locks, and a debugger
 * follows it. */
#ifndef SPL_SIM_H
#define SPL_SIM_H
#include "comm.h"
#include "spl.h"

/* [local] The running rank waits: let the next one go on. Returns when it is this one's turn again. */
void spli_sim_yield(spl_sim *s);
/* Ends the simulation with this exit code: control returns to spl_sim_run, and never to the calling rank. */
void spli_sim_abort(spl_sim *s, int exit_code) __attribute__((noreturn));
int spli_sim_size(const spl_sim *s);
/* Where comm_sim keeps what is shared between the ranks; freed with the simulation by `drop`. */
void **spli_sim_shared(spl_sim *s, void (*drop)(void *shared));

/* comm_sim.c: the comm of one rank. */
spl_status spli_comm_sim_open(spl_sim *s, int rank, const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out);

#endif
