/* launch.h: what the launcher and the ranks it starts agree on. The launcher makes a folder that nobody else may enter:
 * out.R and err.R are pipes for what rank R prints, end.R is how it ended and why. So nothing that a script prints can
 * be taken for anything else, lines of different ranks stay apart, and exit codes are the ranks' own. A rank that
 * cannot reach the folder (on another host) prints through mpirun. */
#ifndef LSPL_LAUNCH_H
#define LSPL_LAUNCH_H
#include <stddef.h>

/* In the environment of ranks started by `spl run -n`: the folder, after a letter that says whether the launcher's own
 * standard error is a terminal. */
#define LSPL_LAUNCHER_MARK "SPL_LAUNCHER"
enum { LSPL_MARK_TERMINAL = 't', LSPL_MARK_PLAIN = '-' };

/* How a rank failed; of several, the one that stands first here is the cause. */
typedef enum lspl_end { LSPL_END_OWN, LSPL_END_INTERRUPTED, LSPL_END_FOLLOWS, LSPL_END_NONE } lspl_end;

/* report.c, the rank's side. [local] Standard output and error become the launcher's pipes, where there is one. */
void lspl_adopt(void);
int lspl_adopted(void);
/* Does somebody at a terminal watch standard error? */
int lspl_watched(void);
/* [local] Why this rank ends, in whole lines: to the launcher, which prints the cause at the end; without one to
 * standard error. `code` is what the job should end with. */
void lspl_report(lspl_end how, int code, const char *text);
/* The same in a signal handler, for an interrupt. */
void lspl_report_interrupt(const char *text);

/* relay.c, the launcher's side: passes on what comes from mpirun and the ranks. */
typedef struct lspl_relay lspl_relay;
/* Makes folder and pipes for so many ranks; NULL: out of memory. Without a folder only mpirun's streams are read. */
lspl_relay *lspl_relay_open(int ranks);
const char *lspl_relay_folder(const lspl_relay *r); /* "" without one */
/* mpirun's standard output and error come from these, which are closed with the rest. */
void lspl_relay_mpirun(lspl_relay *r, int out, int err);
/* Passes on what there is, waiting up to `milliseconds` for it; 0: nothing came. `stop`: discard output when it is set
 * while a write blocks. */
int lspl_relay_turn(lspl_relay *r, int milliseconds, const volatile int *stop);
/* How many streams may still bring something: a rank's are closed when it has ended. */
int lspl_relay_open_streams(const lspl_relay *r);
/* errno of what prevents standard output from being written; 0: nothing. */
int lspl_relay_broken(const lspl_relay *r);
/* Has any rank said how it ended? */
int lspl_relay_ended(const lspl_relay *r);
/* The cause: how, and the rank's code and text (to be freed; may be NULL). After the last turn. */
lspl_end lspl_relay_cause(const lspl_relay *r, int *code, char **text);
/* The rank that mpirun says a signal ended, when that rank has not told how it ended itself; -1: none. */
int lspl_relay_lost(lspl_relay *r);
/* The host that mpirun lost in the middle of the job ("" where nobody names it); NULL: none. */
const char *lspl_relay_lost_host(lspl_relay *r);
/* Says this last on standard error, on a line of its own. */
void lspl_relay_say(lspl_relay *r, const char *text);
void lspl_relay_close(lspl_relay *r);

#endif
