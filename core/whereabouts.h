/* whereabouts.h: what each rank is doing at this moment, and the table that says so when ranks stall or disagree.
 *
 * Each rank keeps a slot in memory that other ranks of its host can open; so also a rank that is stuck in Lua or in
 * compute can be looked at. Of ranks on other hosts only what they said in agreements is known. */
#ifndef SPL_WHEREABOUTS_H
#define SPL_WHEREABOUTS_H
#include "runtime.h"
#include <string.h>

typedef enum spli_activity { SPLI_IN_SCRIPT, SPLI_IN_OP, SPLI_IN_WAIT } spli_activity;

typedef struct spli_slot { /* written by its rank, read by others at any moment: texts may be half new, never open */
    volatile int32_t activity;
    volatile int32_t asked, answered; /* others ask where the script is; the answer is in `site` */
    char op[32], what[120];           /* the op that is computed; what is waited for */
    char site[128];                   /* the last known line of the script */
} spli_slot;

struct spli_cores;
spl_status spli_slot_open(spl_runtime *rt);
/* [local] Says in `here` where this rank's slot lies. */
void spli_slot_place(const spl_runtime *rt, struct spli_cores *here);
/* [local] What all ranks said. */
spl_status spli_slots_note(spl_runtime *rt, const struct spli_cores *all);
void spli_slots_close(spl_runtime *rt);

/* Sets what this rank is doing (what NULL: as before) and gives what it did before. */
static inline spli_activity spli_now_in(spl_runtime *rt, spli_activity activity, const char *what) {
    spli_slot *s = rt->slot;
    spli_activity before = (spli_activity)s->activity;
    size_t room = activity == SPLI_IN_OP ? sizeof s->op : sizeof s->what;
    if (what) {
        size_t n = strnlen(what, room - 1);
        char *to = activity == SPLI_IN_OP ? s->op : s->what;
        memcpy(to, what, n);
        to[n] = '\0';
    }
    s->activity = activity;
    return before;
}

typedef struct spli_row { /* what the table says of a rank */
    int rank;
    int waits; /* inside a wait of core, for `what` */
    char what[160], where[128];
} spli_row;

/* [local] Asks ranks of this host that run a script which line they are at, and waits a moment for their answers. */
void spli_ask_ranks(spl_runtime *rt);
/* [local] Sends a signal to the processes of this host whose turn is not over: what they do may be no Lua code, and no
 * wait in core. */
void spli_signal_ranks(spl_runtime *rt, int number);
/* [local] What is known of a rank: that it ended, or its slot; asks nobody. */
void spli_row_of(spl_runtime *rt, int rank, spli_row *out);
/* [local] Keeps a table of these rows, ranks that do the same in one, as rt->report. */
void spli_report(spl_runtime *rt, const spli_row *rows, int n);
/* [local] The same for all ranks of the job, as far as is known here. `advice`: what to look for, as that shows. */
void spli_report_all(spl_runtime *rt, char *advice, size_t n);

#endif
