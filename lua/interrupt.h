/* interrupt.h: how a script is stopped from outside, or stops itself: signals, os.exit, and virtual ranks that would
 * keep the others from their turn. */
#ifndef LSPL_INTERRUPT_H
#define LSPL_INTERRUPT_H
#include "host.h"

/* [local] From here on (1) signals reach this host's script; or (0) no longer. */
void lspl_interrupt_watch(lspl_host *host, int on);
/* [local] After a signal: what comes next, closing the state or ending together, gets its own time, else the process
 * ends itself. */
void lspl_interrupt_closing(const lspl_host *host);
/* [local] This virtual rank failed: from now on the others give way from time to time, also where they only compute,
 * so that it gets to end the job. */
void lspl_interrupt_give_way(const lspl_host *failed);
/* [local] From now on (NULL: no longer) a virtual rank that computes in Lua for seconds without a wait gives the others
 * a turn, so that one of them can fail, or see that nothing moves. Only the order of what ranks print depends on it. */
void lspl_interrupt_ticks(const spl_sim *sim);

/* [local] As if this signal had come, for one host or all of this process; may be called in a signal handler. What runs
 * in Lua or waits in core ends with an error of code interrupt, through every pcall, until lspl_host_go_on. */
void lspl_host_stop(lspl_host *host, int number);
void lspl_host_stop_all(int number);
void lspl_host_go_on(lspl_host *host);
/* Raises that error when there is reason to; for hooks. */
void lspl_host_insist(lua_State *L);
/* What is called every `count` VM instructions from now on while nothing is to be stopped; NULL: nothing. */
void lspl_host_hook(lspl_host *host, lua_Hook hook, int count);

/* In Lua: tells a rank that asks which line the script is at. */
void lspl_host_answer(lua_State *L);

/* Puts `leave` into the table on top, and makes coroutines and os.execute so that an interrupt gets through them. */
void lspl_open_interrupt(lua_State *L);

#endif
