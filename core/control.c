/* control.c: the inbox of control messages, and what is known of how other ranks ended. */
#include "control.h"
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(spli_message) <= SPL_CONTROL_BYTES, "a control message must fit the channel");

spl_status spli_control_open(spl_runtime *rt) {
    spli_control *ctl = calloc(1, sizeof *ctl);
    spli_peer *peers = calloc((size_t)rt->size, sizeof *peers);
    spli_heard *heard = calloc((size_t)rt->size, sizeof *heard);
    if (!ctl || !peers || !heard) {
        free(ctl);
        free(peers);
        free(heard);
        return spli_error(SPL_ENOMEM, "out of memory while opening %d ranks", rt->size);
    }
    ctl->peers = peers;
    ctl->heard = heard;
    rt->control = ctl;
    return spli_ok();
}

void spli_control_close(spl_runtime *rt) {
    if (!rt->control) return;
    for (int p = 0; p < rt->size; p++)
        while (rt->control->peers[p].inbox) spli_control_drop(&rt->control->peers[p].inbox);
    free(rt->control->peers);
    free(rt->control->seen);
    free(rt->control->heard);
    free(rt->control);
    rt->control = NULL;
}

void spli_control_drop(spli_letter **at) {
    spli_letter *gone = *at;
    *at = gone->next;
    free(gone);
}

spl_status spli_control_send(spl_runtime *rt, int peer, const spli_message *m) {
    return rt->world->ops->control_send(rt->world, peer, m, sizeof *m);
}

spl_status spli_control_drain(spl_runtime *rt, int peer) {
    spli_peer *p = &rt->control->peers[peer];
    if (peer == rt->rank || p->ended) return spli_ok(); /* that a rank ended is the last it says */
    for (;;) {
        spli_message m;
        int done = 0;
        SPL_TRY(rt->world->ops->control_test(rt->world, peer, &m, sizeof m, &done));
        if (!done) return spli_ok();
        rt->control->letters++;
        if (m.type == SPLI_ENDED) {
            p->ended = 1;
            p->exit_code = m.as.ended.exit_code;
            p->follows = m.as.ended.follows;
            return spli_ok();
        }
        if (m.type == SPLI_TURN_END) {
            p->turn_done = m.sequence;
            p->step = m.as.step;
            continue;
        }
        if (m.type == SPLI_TURN_STOP) {
            rt->control->turn_stop = m.sequence;
            continue;
        }
        spli_letter *letter = malloc(sizeof *letter), **last = &p->inbox;
        if (!letter) return spli_error(SPL_ENOMEM, "out of memory while receiving a message of rank %d", peer);
        letter->next = NULL;
        letter->m = m;
        while (*last) last = &(*last)->next;
        *last = letter;
    }
}

spl_status spli_control_ended(spl_runtime *rt, int peer, const char *what) {
    const spli_peer *p = &rt->control->peers[peer];
    if (!p->ended && rt->control->turn && p->turn_done == rt->control->turn) {
        rt->control->follows = p->step.code != SPL_OK;
        return spli_error(SPL_EDISAGREE,
                          "missing participant: rank %d %s the line, and is missed in %s%s%s%s", peer,
                          p->step.code ? "failed in" : "has finished", what, rt->site[0] ? " (" : "", rt->site,
                          rt->site[0] ? ")" : "");
    }
    if (!p->ended) return spli_ok();
    rt->control->follows = p->exit_code != 0;
    if (p->exit_code)
        return spli_error(SPL_EDISAGREE,
                          "rank %d failed (exit code %d) while rank %d waited for %s; see the message of rank %d", peer,
                          p->exit_code, rt->rank, what, peer);
    return spli_error(SPL_EDISAGREE,
                      "missing participant: rank %d ended its script while rank %d waited for %s%s%s%s; every rank "
                      "must make the same collective calls",
                      peer, rt->rank, what, rt->site[0] ? " (" : "", rt->site, rt->site[0] ? ")" : "");
}

spl_status spli_control_watch(spl_runtime *rt, const char *what) {
    if (rt->size == 1 || rt->dry || !rt->control) return spli_ok();
    /* while opening, all ranks are still on their way to the same place: one that got there first, and failed since,
     * has left its part behind for the others */
    if (!rt->backend_open) return spli_ok();
    for (int p = 0; p < rt->size; p++) {
        SPL_TRY(spli_control_drain(rt, p));
        if (p != rt->rank && rt->control->peers[p].ended && rt->control->peers[p].exit_code)
            return spli_control_ended(rt, p, what);
    }
    if (spli_turn_over(rt))
        return spli_error(SPL_EINTERRUPT, "interrupted while rank %d waited for %s", rt->rank, what);
    return spli_ok();
}
