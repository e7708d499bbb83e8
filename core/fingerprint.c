/* fingerprint.c: agreement. Before data moves, the members of a comm tell each other what they are about to call.
 *
 * Each call over a comm has a number, the comm's sequence, which grows by one on every member whatever comes of the
 * call. To agree on call n a member
 *   1. sends each other member its fingerprint: kind, dtype, root, counts as that member sees them, axis, script line;
 *   2. compares those it gets with its own; when all fit, sends each other member the verdict "agreed";
 *   3. returns once it has that verdict from all. Only then does any byte of data move.
 * What does not fit, a member that ended, an interrupt, or the time limit makes a verdict with one sentence instead.
 * Its sender leaves the call at once; who gets it leaves with that sentence. So either all members go on or none does,
 * and since every message names its comm and call, what is left over of a failed call is known as stale and dropped:
 * the ranks may go on with the next call. (A limit that strikes one member just while the last verdicts travel can
 * still part them; the data then stand still, and the time limit of the wait says so.)
 *
 * Messages of a pair of ranks keep their order. So when another comm's fingerprint comes first from a member that is
 * awaited here, that member is calling something else now: a mismatch. Unless it has given that call up, which its next
 * message says. A member that comes late to a call that the others gave up (since it did not come, or called on another
 * comm) fails with their sentence if it makes that same call; if it makes another, it had left that one out, and
 * catches up by counting it as done. */
#include "control.h"
#include "sim.h"
#include "whereabouts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct agreement {
    spl_runtime *rt;
    spl_comm *c;
    const spl_coll *coll; /* NULL: a host call */
    spli_fingerprint mine;
    uint64_t number;
    unsigned char *fits, *agreed; /* by member: its fingerprint came and fits; its verdict came */
    int decided;
    int mismatch;  /* calls were found that do not fit each other */
    int told;      /* the error is another member's sentence: all have it */
    int elsewhere; /* a member makes another comm's call, this one: */
    uint32_t its_comm;
    uint64_t its_sequence;
    const char *what;
} agreement;

/* ---------------------------------------------------------------- what is stale */

static uint64_t seen_next(const spl_runtime *rt, uint32_t comm_id) {
    const spli_control *ctl = rt->control;
    for (int i = 0; i < ctl->nseen; i++)
        if (ctl->seen[i].comm_id == comm_id)
            return ctl->seen[i].next > rt->first_sequence ? ctl->seen[i].next : rt->first_sequence;
    return rt->first_sequence;
}

static spl_status seen_set(spli_control *ctl, uint32_t comm_id, uint64_t next) {
    for (int i = 0; i < ctl->nseen; i++)
        if (ctl->seen[i].comm_id == comm_id) {
            ctl->seen[i].next = next;
            return spli_ok();
        }
    if (ctl->nseen == ctl->max_seen) {
        int max = ctl->max_seen ? 2 * ctl->max_seen : 16;
        spli_seen *grown = realloc(ctl->seen, sizeof *grown * (size_t)max);
        if (!grown) return spli_error(SPL_ENOMEM, "out of memory while agreeing on a collective");
        ctl->seen = grown;
        ctl->max_seen = max;
    }
    ctl->seen[ctl->nseen++] = (spli_seen){comm_id, next};
    return spli_ok();
}

/* ---------------------------------------------------------------- fingerprints */

static void describe(const spli_fingerprint *f, char *out, size_t n) {
    static const char *const ops[] = {"agreement (sum)", "agreement (max)", "agreement (min)"};
    int numbers = f->kind >= SPLI_HOST_SUM && f->kind <= SPLI_HOST_MIN, bytes = f->kind == SPLI_HOST_BYTES;
    const char *kind = numbers ? ops[f->kind - SPLI_HOST_SUM]
                       : bytes ? "gather"
                               : spl_coll_name((spl_coll_kind)f->kind);
    const char *unit = numbers ? "numbers" : bytes ? "bytes" : spl_dtype_name((spl_dtype)f->dtype);
    char count[64] = "", root[32] = "";
    if (f->kind == SPLI_HOST_PLAN) {
        snprintf(out, n, "attention with plan %08" PRIx32 " %s%.31s%s%.64s%s", (uint32_t)f->total,
                 f->axis[0] ? "on axis " : "over all ranks", f->axis, f->site[0] ? " (" : "", f->site,
                 f->site[0] ? ")" : "");
        return;
    }
    if (f->kind != SPL_COLL_BARRIER) snprintf(count, sizeof count, " of %" PRId64 " %s", f->total, unit);
    if (f->kind == SPL_COLL_BROADCAST) snprintf(root, sizeof root, " from member %d", f->root);
    snprintf(out, n, "%s%s%s %s%.31s%s%.64s%s", kind, count, root, f->axis[0] ? "on axis " : "over all ranks", f->axis,
             f->site[0] ? " (" : "", f->site, f->site[0] ? ")" : "");
}

/* What member m is to know of this call. */
static spli_fingerprint fingerprint_for(const agreement *a, int m) {
    spli_fingerprint f = a->mine;
    const spl_coll *coll = a->coll;
    if (!coll) return f;
    switch (coll->kind) {
    case SPL_COLL_ALL_GATHER:
        f.send = coll->send_counts[0];
        f.expect = coll->recv_counts[m];
        break;
    case SPL_COLL_ALL_TO_ALL:
        f.send = coll->send_counts[m];
        f.expect = coll->recv_counts[m];
        break;
    case SPL_COLL_REDUCE_SCATTER:
        f.send = coll->send_counts[m];
        f.expect = coll->send_counts[a->c->rank];
        break;
    case SPL_COLL_ALL_REDUCE:
    case SPL_COLL_BROADCAST:
        f.send = f.expect = coll->send_counts[0];
        break;
    case SPL_COLL_BARRIER:
    case SPL_COLL_KIND_COUNT:
        break;
    }
    return f;
}

/* What differs between two calls, or NULL: an API, a parameter, a count. */
static const char *difference(const spli_fingerprint *x, const spli_fingerprint *y, int same_comm) {
    if (x->kind != y->kind) return "different API";
    if (!same_comm) return "different parameter, the axis";
    if (x->size != y->size) return "different parameter, the group's size";
    if (x->kind == SPL_COLL_BARRIER) return NULL;
    if (x->kind == SPLI_HOST_PLAN)
        return x->total != y->total ? "different parameter, the attention plan (shapes, mask, scale, dropout or into)"
                                    : NULL;
    if (x->dtype != y->dtype) return "different parameter, the dtype";
    if (x->root != y->root) return "different parameter, the root";
    return x->total != y->total ? "different count" : NULL;
}

static spl_status disagree(const char *kind, int rank, const spli_fingerprint *print, int other,
                           const spli_fingerprint *others, const char *more) {
    char here[200], there[200];
    describe(print, here, sizeof here);
    describe(others, there, sizeof there);
    return spli_error(SPL_EDISAGREE, "ranks disagree (%s): rank %d calls %.150s, rank %d calls %.150s%s", kind, rank,
                      here, other, there, more);
}

/* An error on what differs between my call and that of member m; both sides say the same. */
static spl_status compare(const agreement *a, int m, const spli_fingerprint *theirs, int same_comm) {
    const spli_fingerprint mine = fingerprint_for(a, m);
    int pairs = mine.kind == SPL_COLL_ALL_GATHER || mine.kind == SPL_COLL_ALL_TO_ALL;
    const char *kind = difference(&mine, theirs, same_comm);
    char more[120] = "";
    /* how much each sends is its own affair where the other expects that */
    if (same_comm && pairs && (!kind || !strcmp(kind, "different count"))) kind = NULL;
    if (!kind && (mine.send != theirs->expect || mine.expect != theirs->send)) kind = "different count";
    if (!kind) return spli_ok();
    int other = a->c->world_ranks[m], me = a->rt->rank;
    if (pairs && same_comm && !strcmp(kind, "different count")) {
        int out = mine.send != theirs->expect; /* the direction that differs */
        snprintf(more, sizeof more, "; rank %d sends %" PRId64 " elements to rank %d, which expects %" PRId64,
                 out ? me : other, out ? mine.send : theirs->send, out ? other : me,
                 out ? theirs->expect : mine.expect);
    }
    return me < other ? disagree(kind, me, &mine, other, theirs, more) : disagree(kind, other, theirs, me, &mine, more);
}

/* ---------------------------------------------------------------- sending */

static spl_status send_fingerprints(agreement *a) {
    spli_message m = {.type = SPLI_FINGERPRINT, .comm_id = a->c->id, .sequence = a->number};
    for (int p = 0; p < a->c->size; p++) {
        if (p == a->c->rank) continue;
        m.as.print = fingerprint_for(a, p);
        SPL_TRY(spli_control_send(a->rt, a->c->world_ranks[p], &m));
    }
    return spli_ok();
}

/* The table goes before the verdict that it belongs to. */
static spl_status send_report(agreement *a) {
    const char *text = a->rt->report;
    spli_message m = {.type = SPLI_REPORT, .comm_id = a->c->id, .sequence = a->number};
    size_t n = text ? strlen(text) : 0;
    for (size_t at = 0; at < n; at += SPLI_TEXT_PIECE) {
        size_t piece = n - at < SPLI_TEXT_PIECE ? n - at : SPLI_TEXT_PIECE;
        m.as.text.bytes = (int64_t)n;
        m.as.text.offset = (int64_t)at;
        memcpy(m.as.text.piece, text + at, piece);
        for (int p = 0; p < a->c->size; p++)
            if (p != a->c->rank && !a->rt->control->peers[a->c->world_ranks[p]].ended)
                SPL_TRY(spli_control_send(a->rt, a->c->world_ranks[p], &m));
    }
    return spli_ok();
}

static spl_status send_verdict(agreement *a, spl_code code, const char *text) {
    spli_message m = {.type = SPLI_VERDICT, .comm_id = a->c->id, .sequence = a->number};
    m.as.verdict.code = (int32_t)code;
    m.as.verdict.follows = a->rt->control->follows;
    m.as.verdict.elsewhere = a->elsewhere;
    m.as.verdict.its_comm = a->its_comm;
    m.as.verdict.its_sequence = a->its_sequence;
    snprintf(m.as.verdict.text, sizeof m.as.verdict.text, "%s", text);
    for (int p = 0; p < a->c->size; p++)
        if (p != a->c->rank && !a->rt->control->peers[a->c->world_ranks[p]].ended)
            SPL_TRY(spli_control_send(a->rt, a->c->world_ranks[p], &m));
    return spli_ok();
}

/* ---------------------------------------------------------------- receiving */

/* Has the sender of this fingerprint given that call up? Then its verdict is further down the inbox. */
static const spli_letter *given_up(const spli_letter *print) {
    for (const spli_letter *l = print->next; l; l = l->next)
        if (l->m.type == SPLI_VERDICT && l->m.comm_id == print->m.comm_id && l->m.sequence == print->m.sequence)
            return l->m.as.verdict.code != SPL_OK ? l : NULL;
    return NULL;
}

/* This member left call `number` out, which the others gave up: it is at the next one. */
static spl_status catch_up(agreement *a) {
    a->number++;
    a->decided = 0;
    memset(a->fits, 0, (size_t)a->c->size);
    memset(a->agreed, 0, (size_t)a->c->size);
    return send_fingerprints(a);
}

/* The table that member m sent with its verdict. */
static void take_report(agreement *a, int m, const spli_message *verdict) {
    spl_runtime_drop_report(a->rt);
    for (const spli_letter *l = a->rt->control->peers[a->c->world_ranks[m]].inbox; l; l = l->next) {
        if (l->m.type != SPLI_REPORT || l->m.comm_id != verdict->comm_id || l->m.sequence != verdict->sequence)
            continue;
        size_t n = (size_t)l->m.as.text.bytes, at = (size_t)l->m.as.text.offset;
        if (!a->rt->report) a->rt->report = calloc(1, n + 1); /* the sentence is there in any case */
        if (a->rt->report && at < n)
            memcpy(a->rt->report + at, l->m.as.text.piece, n - at < SPLI_TEXT_PIECE ? n - at : SPLI_TEXT_PIECE);
    }
}

static spl_status tell(agreement *a, int m, const spli_message *verdict) {
    a->told = 1;
    take_report(a, m, verdict);
    if (verdict->as.verdict.follows) a->rt->control->follows = 1;
    return spli_error((spl_code)verdict->as.verdict.code, "%s", verdict->as.verdict.text);
}

static void hear(agreement *a, int m, const spli_message *print) {
    a->rt->control->heard[a->c->world_ranks[m]] = (spli_heard){1, print->comm_id, print->as.print};
}

/* The fingerprint of member m for this call. */
static spl_status judge(agreement *a, int m, const spli_letter *l) {
    const spli_fingerprint *theirs = &l->m.as.print;
    const spli_letter *end = given_up(l);
    spl_status unfit = compare(a, m, theirs, 1);
    int another = unfit.code != SPL_OK || strcmp(theirs->site, a->mine.site) != 0;
    if (end && another && (end->m.as.verdict.code == SPL_ESTALL || end->m.as.verdict.elsewhere)) return catch_up(a);
    if (end) return tell(a, m, &end->m);
    hear(a, m, &l->m);
    a->mismatch = unfit.code != SPL_OK;
    if (a->mismatch) return unfit;
    a->fits[m] = 1;
    return spli_ok();
}

/* Member m calls on another comm. It finds this call's fingerprint just as this member finds its: both calls are void,
 * and each side counts the other's as made. */
static spl_status is_elsewhere(agreement *a, int m, const spli_letter *l) {
    a->elsewhere = a->mismatch = 1;
    a->its_comm = l->m.comm_id;
    a->its_sequence = l->m.sequence;
    hear(a, m, &l->m);
    SPL_TRY(seen_set(a->rt->control, l->m.comm_id, l->m.sequence + 1));
    return compare(a, m, &l->m.as.print, 0);
}

/* Is this call of another comm what its sender makes instead of mine? Not when it gave that up, unless over mine. */
static int stands_against(const agreement *a, const spli_letter *print) {
    const spli_letter *end = given_up(print);
    return !end || (end->m.as.verdict.elsewhere && end->m.as.verdict.its_comm == a->c->id &&
                    end->m.as.verdict.its_sequence == a->number);
}

/* Goes through what member m has said. */
static spl_status read_inbox(agreement *a, int m) {
    spli_letter **at = &a->rt->control->peers[a->c->world_ranks[m]].inbox;
    const uint64_t number = a->number;
    while (*at && a->number == number) {
        spli_letter *l = *at;
        int print = l->m.type == SPLI_FINGERPRINT, verdict = l->m.type == SPLI_VERDICT, ours = l->m.comm_id == a->c->id;
        int report = l->m.type == SPLI_REPORT;
        if (!print && !verdict && !report) {
            at = &l->next;
        } else if (l->m.sequence < (ours ? number : seen_next(a->rt, l->m.comm_id))) {
            spli_control_drop(at);
        } else if (report) { /* tell takes it */
            at = &l->next;
        } else if (!ours) {
            if (print && !a->fits[m] && stands_against(a, l)) return is_elsewhere(a, m, l);
            at = &l->next;
        } else if (l->m.sequence > number) {
            return spli_ok(); /* of a later call */
        } else if (print) {
            SPL_TRY(judge(a, m, l));
            spli_control_drop(at);
        } else {
            if (l->m.as.verdict.code != SPL_OK) return tell(a, m, &l->m);
            a->agreed[m] = 1;
            spli_control_drop(at);
        }
    }
    return spli_ok();
}

static spl_status poll_agreement(void *ctx, int *done, uint64_t *progress) {
    agreement *a = ctx;
    const uint64_t number = a->number;
    int fitting = 1, agreed = 1; /* this member itself */
    *progress = a->rt->control->letters;
    for (int m = 0; m < a->c->size; m++) {
        int rank = a->c->world_ranks[m];
        if (m == a->c->rank) continue;
        if (!a->agreed[m]) {
            SPL_TRY(spli_control_drain(a->rt, rank));
            SPL_TRY(read_inbox(a, m));
            if (a->number != number) return spli_ok(); /* caught up: all of it again */
            if (!a->agreed[m]) SPL_TRY(spli_control_ended(a->rt, rank, a->what));
        }
        fitting += a->fits[m];
        agreed += a->agreed[m];
    }
    if (!a->decided && fitting == a->c->size) {
        a->decided = 1;
        SPL_TRY(send_verdict(a, SPL_OK, ""));
    }
    *done = a->decided && agreed == a->c->size;
    return spli_ok();
}

/* The sentence of a time limit: who never came. */
static spl_status stalled(const agreement *a) {
    enum { NAMED = 8 };
    char call[200], missing[16 * NAMED] = "";
    size_t at = 0;
    int n = 0;
    for (int m = 0; m < a->c->size; m++) {
        if (m == a->c->rank || a->fits[m]) continue;
        if (n < NAMED)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%d", n ? ", " : "", a->c->world_ranks[m]);
        n++;
    }
    if (n > NAMED) snprintf(missing + at, sizeof missing - at, " and %d more", n - NAMED);
    describe(&a->mine, call, sizeof call);
    if (n == 0)
        return spli_error(SPL_ESTALL, "all ranks came to %s, but not all said so within %g s", call, a->rt->timeout);
    return spli_error(SPL_ESTALL,
                      "missing participant: rank%s %s never came to %s within %g s; every member must make the same "
                      "calls in the same order, or --timeout is too short",
                      n > 1 ? "s" : "", missing, call, a->rt->timeout);
}

/* ---------------------------------------------------------------- the table of a failure */

/* Looks into the inbox of member m for what it calls, if that is not known yet. */
static int find_call(agreement *a, int m) {
    int rank = a->c->world_ranks[m];
    const spli_peer *peer = &a->rt->control->peers[rank];
    if (m == a->c->rank || a->rt->control->heard[rank].there) return 1;
    for (const spli_letter *l = peer->inbox; l; l = l->next) {
        uint64_t least = l->m.comm_id == a->c->id ? a->number : seen_next(a->rt, l->m.comm_id);
        if (a->elsewhere && l->m.comm_id == a->its_comm) least = a->its_sequence; /* counted as made just now */
        if (l->m.type != SPLI_FINGERPRINT || l->m.sequence < least) continue;
        hear(a, m, &l->m);
        return 1;
    }
    return peer->ended || (a->rt->control->turn && peer->turn_done == a->rt->control->turn);
}

/* The verdict with which member m gave this call up, or NULL. */
static const spli_message *gave_up(const agreement *a, int m) {
    for (const spli_letter *l = a->rt->control->peers[a->c->world_ranks[m]].inbox; l; l = l->next)
        if (l->m.type == SPLI_VERDICT && l->m.comm_id == a->c->id && l->m.sequence == a->number &&
            l->m.as.verdict.code != SPL_OK)
            return &l->m;
    return NULL;
}

/* Gives members that are about to call something so many seconds to say so. 1 when all have, or one has found out as
 * well: *other is its verdict. */
static int listen(agreement *a, double seconds, int *member, const spli_message **other) {
    const double until = spli_now() + seconds;
    for (;;) {
        int known = 0;
        for (int m = 0; m < a->c->size; m++) {
            if (spli_control_drain(a->rt, a->c->world_ranks[m]).code != SPL_OK) return 0;
            known += find_call(a, m);
        }
        for (int m = 0; m < a->c->size; m++) { /* after all of those: what they do may follow from a verdict */
            if (spli_control_drain(a->rt, a->c->world_ranks[m]).code != SPL_OK) return 0;
            *member = m;
            if (m != a->c->rank && (*other = gave_up(a, m))) return 1;
        }
        if (known == a->c->size || spli_now() > until) return known == a->c->size;
        if (a->rt->sim) spli_sim_yield(a->rt->sim);
        else nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* The same sentence on all ranks: of the lowest member, and the lowest whose call differs from its. */
static spl_status lowest_pair(const agreement *a, const spl_status *found) {
    const spli_heard *all = a->rt->control->heard;
    const spli_heard mine = {1, a->c->id, a->mine};
    const spli_heard *first = NULL;
    int first_rank = 0;
    for (int m = 0; m < a->c->size; m++) {
        int rank = a->c->world_ranks[m];
        const spli_heard *h = m == a->c->rank ? &mine : &all[rank];
        if (!h->there) continue;
        if (!first) {
            first = h;
            first_rank = rank;
            continue;
        }
        const char *kind = difference(&first->print, &h->print, first->comm_id == h->comm_id);
        int pairs = h->print.kind == SPL_COLL_ALL_GATHER || h->print.kind == SPL_COLL_ALL_TO_ALL;
        if (kind && !(pairs && !strcmp(kind, "different count")))
            return disagree(kind, first_rank, &first->print, rank, &h->print, "");
    }
    return *found;
}

static void look_at_missing(agreement *a, spli_row *rows) {
    spli_ask_ranks(a->rt);
    for (int m = 0; m < a->c->size; m++) spli_row_of(a->rt, a->c->world_ranks[m], &rows[m]);
}

/* Makes the table of what the members do, and the sentence that goes with it. A stall is looked at first and listened
 * to then, a mismatch the other way round: whoever finds one out ends its call, which changes what the others do. */
static spl_status explain(agreement *a, const spl_status *found) {
    spl_runtime *rt = a->rt;
    const spli_message *other = NULL;
    int member, stall = found->code == SPL_ESTALL;
    spli_row *rows = calloc((size_t)a->c->size, sizeof *rows);
    if (!rows) return *found;
    if (stall) look_at_missing(a, rows);
    int all = listen(a, stall ? 0.05 : 0.3, &member, &other);
    if (!stall && !all) look_at_missing(a, rows);
    else if (!stall) /* known, or over */
        for (int m = 0; m < a->c->size; m++) spli_row_of(rt, a->c->world_ranks[m], &rows[m]);
    if (other) {
        free(rows);
        return tell(a, member, other); /* the same sentence and table everywhere */
    }
    for (int m = 0; m < a->c->size; m++) {
        int rank = a->c->world_ranks[m];
        const spli_heard *h = &rt->control->heard[rank];
        if (m != a->c->rank && !h->there) continue;
        spli_fingerprint print = m == a->c->rank ? a->mine : h->print;
        memcpy(rows[m].where, print.site, sizeof rows[m].where);
        print.site[0] = '\0';
        describe(&print, rows[m].what, sizeof rows[m].what);
    }
    spli_report(rt, rows, a->c->size);
    free(rows);
    return a->mismatch ? lowest_pair(a, found) : *found;
}

static spl_status agree(spl_runtime *rt, spl_comm *c, const spl_coll *coll, int kind, int64_t total) {
    if (c->size == 1 || rt->dry) return spli_ok();
    uint64_t next = seen_next(rt, c->id);
    if (next > c->sequence) c->sequence = next;
    if (c->sequence >= rt->next_sequence) rt->next_sequence = c->sequence + 1;
    if (!rt->check) return spli_ok();
    char what[200];
    agreement a = {.rt = rt, .c = c, .coll = coll, .number = c->sequence, .what = what};
    a.mine = (spli_fingerprint){.kind = kind,
                                .dtype = coll ? (int32_t)coll->dtype : 0,
                                .size = c->size,
                                .total = total,
                                .send = total,
                                .expect = total,
                                .root = kind == SPL_COLL_BROADCAST ? coll->root : 0};
    snprintf(a.mine.axis, sizeof a.mine.axis, "%s", c->axis);
    describe(&a.mine, what, sizeof what); /* without the script's line, which waits name themselves */
    snprintf(a.mine.site, sizeof a.mine.site, "%s", rt->site);
    a.fits = calloc(2, (size_t)c->size);
    if (!a.fits) return spli_error(SPL_ENOMEM, "out of memory while agreeing on %s", what);
    a.agreed = a.fits + c->size;
    for (int m = 0; m < c->size; m++) rt->control->heard[c->world_ranks[m]].there = 0;

    spl_status status = send_fingerprints(&a);
    if (status.code == SPL_OK) status = spli_wait_plain(rt, poll_agreement, &a, rt->timeout, 1, what);
    if (status.code == SPL_ESTALL && !a.told) status = stalled(&a);
    if (status.code != SPL_OK && !a.told) {
        spli_activity before = spli_now_in(rt, SPLI_IN_WAIT, what);
        if (status.code == SPL_ESTALL || status.code == SPL_EDISAGREE) {
            status = explain(&a, &status);
            if (!a.told) (void)send_report(&a); /* the first error counts */
        }
        if (!a.told) (void)send_verdict(&a, status.code, status.message);
        if (status.code != SPL_ESTALL) rt->slot->activity = before; /* else others look at it too */
    }
    c->sequence = a.number + (status.code != SPL_OK);
    spl_status noted = seen_set(rt->control, c->id, a.number + 1);
    if (a.number >= rt->next_sequence) rt->next_sequence = a.number + 1;
    free(a.fits);
    return status.code != SPL_OK ? status : noted;
}

spl_status spli_agree(spl_runtime *rt, spl_comm *c, const spl_coll *coll) {
    int64_t total = 0;
    int per_member = coll->kind == SPL_COLL_REDUCE_SCATTER || coll->kind == SPL_COLL_ALL_TO_ALL;
    int parts = per_member ? c->size : coll->kind != SPL_COLL_BARRIER;
    for (int m = 0; m < parts; m++) total += coll->send_counts[m];
    return agree(rt, c, coll, (int)coll->kind, total);
}

spl_status spli_agree_host(spl_runtime *rt, spl_comm *c, int kind, int64_t total) {
    return agree(rt, c, NULL, kind, total);
}

spl_status spli_agree_plan(spl_runtime *rt, spl_comm *c, uint64_t hash) {
    const int check = rt->check;
    rt->check = 1; /* a plan that differs would leave ranks waiting for rows that nobody sends */
    spl_status status = agree(rt, c, NULL, SPLI_HOST_PLAN, (int64_t)hash);
    rt->check = check;
    return status;
}
