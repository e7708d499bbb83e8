/* launch.h: what the launcher and the ranks it starts agree on. */
#ifndef LSPL_LAUNCH_H
#define LSPL_LAUNCH_H

#define LSPL_LAUNCHER_MARK "SPL_LAUNCHER" /* in the environment of ranks started by `spl run -n`: */
#define LSPL_MARK_TERMINAL "terminal"    /* the launcher's own standard error is one */
#define LSPL_MARK_PLAIN "1"
/* Around the cause of a failure on their standard error; a rank that was interrupted may only follow another's end. */
enum { LSPL_CAUSE_BEGIN = 1, LSPL_CAUSE_END = 2, LSPL_INTERRUPT_BEGIN = 3 };

#endif
