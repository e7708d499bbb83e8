/* turn.c: a job that works in turns (the prompt): rank 0 hands out a text, every rank does with it what it does, and
 * all meet at the end of the turn, whatever became of it.
 *
 * A rank whose turn is over says so to all others at once, so that nobody waits for it in a collective any more; what
 * came of its turn goes to rank 0 alone. Ranks may have made different calls in a turn that failed. So with each turn
 * rank 0 says from which number on collectives are counted, and from which on groups: both above all that any rank has
 * used. What is left over of earlier turns has a lower number and is dropped. */
#include "control.h"
#include "whereabouts.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static spl_status send_text(spl_runtime *rt, int peer, spli_message *m, const char *text, size_t n) {
    size_t at = 0;
    m->as.text.bytes = (int64_t)n;
    do { /* also of no bytes one message */
        size_t piece = n - at < SPLI_TEXT_PIECE ? n - at : SPLI_TEXT_PIECE;
        m->as.text.offset = (int64_t)at;
        if (piece) memcpy(m->as.text.piece, text + at, piece);
        SPL_TRY(spli_control_send(rt, peer, m));
        at += piece;
    } while (at < n);
    return spli_ok();
}

typedef struct arrival { /* a text on its way */
    char *text;
    size_t bytes, got;
    int begun;
} arrival;

static int arrived(const arrival *a) { return a->begun && a->got == a->bytes; }

static spl_status take_piece(arrival *a, const spli_message *m) {
    if (!a->begun) {
        a->bytes = (size_t)m->as.text.bytes;
        a->text = malloc(a->bytes + 1);
        if (!a->text) return spli_error(SPL_ENOMEM, "out of memory for a text of %zu bytes", a->bytes);
        a->begun = 1;
    }
    size_t piece = a->bytes - a->got < SPLI_TEXT_PIECE ? a->bytes - a->got : SPLI_TEXT_PIECE;
    if (piece) memcpy(a->text + a->got, m->as.text.piece, piece);
    a->got += piece;
    a->text[a->got] = '\0';
    return spli_ok();
}

/* Takes pieces of `type` out of the inbox of `peer`; those of earlier turns are dropped. */
static spl_status read_text(spl_runtime *rt, int peer, int type, uint64_t turn, arrival *a) {
    spli_letter **at = &rt->control->peers[peer].inbox;
    while (*at && !arrived(a)) {
        spli_letter *l = *at;
        if (l->m.type != type) {
            at = &l->next;
            continue;
        }
        spl_status status = l->m.sequence < turn ? spli_ok() : take_piece(a, &l->m);
        spli_control_drop(at);
        SPL_TRY(status);
    }
    return spli_ok();
}

/* Has any rank left the job? Then there are no more turns. */
static int somebody_left(const spl_runtime *rt) {
    for (int p = 0; p < rt->size; p++)
        if (p != rt->rank && rt->control->peers[p].ended) return 1;
    return 0;
}

/* ---------------------------------------------------------------- the beginning */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static spl_status hand_out(spl_runtime *rt, const char *given, size_t n) {
    spli_control *ctl = rt->control;
    spli_step step = {.sequence = rt->next_sequence, .next_comm_id = rt->next_comm_id};
    for (int p = 1; p < rt->size; p++) {
        const spli_step *his = &ctl->peers[p].step;
        step.sequence = later(step.sequence, his->sequence);
        if (his->next_comm_id > step.next_comm_id) step.next_comm_id = his->next_comm_id;
    }
    ctl->step = step;
    for (int p = 1; p < rt->size; p++) {
        spli_message m = {.type = SPLI_TURN, .sequence = ctl->turn + 1};
        m.as.step = step;
        m.comm_id = 1; /* the step, before the pieces */
        SPL_TRY(spli_control_send(rt, p, &m));
        m.comm_id = 0;
        SPL_TRY(send_text(rt, p, &m, given, n));
    }
    return spli_ok();
}

typedef struct begin_wait {
    spl_runtime *rt;
    arrival text;
    int over;
} begin_wait;

static spl_status poll_begin(void *ctx, int *done, uint64_t *progress) {
    begin_wait *w = ctx;
    spli_control *ctl = w->rt->control;
    *progress = ctl->letters;
    for (int p = 0; p < w->rt->size; p++) SPL_TRY(spli_control_drain(w->rt, p));
    for (spli_letter **at = &ctl->peers[0].inbox; *at;) {
        if ((*at)->m.type != SPLI_TURN || !(*at)->m.comm_id) {
            at = &(*at)->next;
            continue;
        }
        ctl->step = (*at)->m.as.step;
        spli_control_drop(at);
    }
    SPL_TRY(read_text(w->rt, 0, SPLI_TURN, ctl->turn + 1, &w->text));
    w->over = !arrived(&w->text) && somebody_left(w->rt);
    *done = w->over || arrived(&w->text);
    return spli_ok();
}

/* What ranks said in turns that are over. */
static void forget(spl_runtime *rt) {
    for (int p = 0; p < rt->size; p++)
        for (spli_letter **at = &rt->control->peers[p].inbox; *at;) {
            const spli_message *m = &(*at)->m;
            int of_calls = m->type == SPLI_FINGERPRINT || m->type == SPLI_VERDICT || m->type == SPLI_REPORT ||
                           m->type == SPLI_HOST;
            if (of_calls && m->sequence < rt->control->step.sequence) spli_control_drop(at);
            else at = &(*at)->next;
        }
}

spl_status spl_turn_begin(spl_runtime *rt, const char *given, size_t n, char **text, size_t *length) {
    begin_wait w = {.rt = rt};
    *text = NULL;
    *length = 0;
    if (rt->size == 1 || rt->dry) {
        *text = malloc(n + 1);
        if (!*text) return spli_error(SPL_ENOMEM, "out of memory for a text of %zu bytes", n);
        memcpy(*text, given, n);
        (*text)[*length = n] = '\0';
        return spli_ok();
    }
    spli_control *ctl = rt->control;
    if (rt->rank == 0) {
        for (int p = 1; p < rt->size; p++) SPL_TRY(spli_control_drain(rt, p));
        if (somebody_left(rt)) return spli_ok();
        w.text = (arrival){.text = malloc(n + 1), .bytes = n, .got = n, .begun = 1};
        if (!w.text.text) return spli_error(SPL_ENOMEM, "out of memory for a text of %zu bytes", n);
        memcpy(w.text.text, given, n);
        w.text.text[n] = '\0';
        SPL_TRY(hand_out(rt, given, n));
    } else {
        spl_status status = spli_wait_for(rt, poll_begin, &w, -1, 0, "the next line");
        if (status.code != SPL_OK || w.over) {
            free(w.text.text);
            return status;
        }
    }
    ctl->turn++;
    ctl->in_turn = 1;
    ctl->follows = 0;
    rt->first_sequence = rt->next_sequence = ctl->step.sequence;
    rt->next_comm_id = ctl->step.next_comm_id;
    forget(rt);
    *text = w.text.text;
    *length = w.text.bytes;
    return spli_ok();
}

/* ---------------------------------------------------------------- the end */

typedef struct end_wait {
    spl_runtime *rt;
    arrival *texts; /* by rank */
    const volatile int *interrupt;
    int told; /* the others know of the interrupt */
} end_wait;

static spl_status ask_to_stop(spl_runtime *rt) {
    spli_message m = {.type = SPLI_TURN_STOP, .sequence = rt->control->turn};
    for (int p = 1; p < rt->size; p++)
        if (!rt->control->peers[p].ended) SPL_TRY(spli_control_send(rt, p, &m));
    spli_signal_ranks(rt, SIGINT);
    return spli_ok();
}

static spl_status poll_end(void *ctx, int *done, uint64_t *progress) {
    end_wait *w = ctx;
    spl_runtime *rt = w->rt;
    const uint64_t turn = rt->control->turn;
    int here = 1, stalled = 0;
    for (int p = 1; p < rt->size; p++) {
        const spli_peer *peer = &rt->control->peers[p];
        SPL_TRY(spli_control_drain(rt, p));
        SPL_TRY(read_text(rt, p, SPLI_TURN_TEXT, turn, &w->texts[p]));
        here += peer->ended || (peer->turn_done == turn && arrived(&w->texts[p]));
        stalled |= peer->turn_done == turn && peer->step.code == SPL_ESTALL;
    }
    if (!w->told && (stalled || (w->interrupt && *w->interrupt))) {
        w->told = 1;
        SPL_TRY(ask_to_stop(rt));
    }
    *done = here == rt->size;
    *progress = rt->control->letters;
    return spli_ok();
}

static spl_status collect(spl_runtime *rt, spl_code how, spl_turn_take take, void *ctx) {
    end_wait w = {.rt = rt, .interrupt = rt->interrupt, .texts = calloc((size_t)rt->size, sizeof(arrival))};
    if (!w.texts) return spli_error(SPL_ENOMEM, "out of memory while collecting what %d ranks say", rt->size);
    if (how == SPL_EINTERRUPT || how == SPL_ESTALL) {
        w.told = 1;
        (void)ask_to_stop(rt); /* the wait below meets the same trouble and says so */
    }
    rt->interrupt = NULL; /* it stops the others, not this wait for them */
    spl_status status = spli_wait_for(rt, poll_end, &w, -1, 0, "the other ranks to end the line");
    rt->interrupt = w.interrupt;
    for (int p = 1; p < rt->size; p++) {
        if (status.code == SPL_OK && arrived(&w.texts[p])) take(ctx, p, w.texts[p].text, w.texts[p].bytes);
        free(w.texts[p].text);
    }
    free(w.texts);
    return status;
}

spl_status spl_turn_end(spl_runtime *rt, spl_code how, const char *mine, size_t n, spl_turn_take take, void *ctx) {
    if (rt->rank == 0) take(ctx, 0, mine, n);
    if (rt->size == 1 || rt->dry) return spli_ok();
    rt->control->in_turn = 0;
    spli_message m = {.type = SPLI_TURN_END, .sequence = rt->control->turn};
    m.as.step = (spli_step){.sequence = rt->next_sequence, .next_comm_id = rt->next_comm_id, .code = (int32_t)how,
                            .follows = rt->control->follows};
    for (int p = 0; p < rt->size; p++)
        if (p != rt->rank && !rt->control->peers[p].ended) SPL_TRY(spli_control_send(rt, p, &m));
    if (rt->rank == 0) return collect(rt, how, take, ctx);
    memset(&m, 0, sizeof m);
    m.type = SPLI_TURN_TEXT;
    m.sequence = rt->control->turn;
    return rt->control->peers[0].ended ? spli_ok() : send_text(rt, 0, &m, mine, n);
}

int spl_turn_stopped(spl_runtime *rt) {
    if (rt->size == 1 || rt->dry || !rt->control->turn) return 0;
    for (int p = 0; p < rt->size; p++)
        if (spli_control_drain(rt, p).code != SPL_OK) return 0; /* the next wait says what is wrong */
    return spli_turn_over(rt);
}

int spli_turn_over(const spl_runtime *rt) {
    const spli_control *ctl = rt->control;
    if (!ctl->turn) return 0;
    if (ctl->in_turn && ctl->turn_stop == ctl->turn) return 1;
    for (int p = 0; p < rt->size; p++) {
        const spli_peer *peer = &ctl->peers[p];
        if (p == rt->rank) continue;
        if (peer->ended) return 1;
        if (!ctl->in_turn || peer->turn_done != ctl->turn) continue;
        if (peer->step.code == SPL_ESTALL || (p == 0 && peer->step.code == SPL_EINTERRUPT)) return 1;
    }
    return 0;
}
