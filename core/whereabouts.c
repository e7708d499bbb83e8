/* whereabouts.c: slots of ranks, and the table of what they do. A slot is an anonymous file in memory, which others of
 * the host and user open through /proc when they want to know; nothing has a name that could be left behind. */
#include "whereabouts.h"
#include "control.h"
#include "cores.h"
#include "sim.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct place { /* where a rank's slot lies */
    int near;        /* on this host */
    int32_t pid, fd;
    spli_slot *slot; /* when it was opened, or lies in this process */
    int mapped;
} place;

typedef struct spli_places {
    int fd; /* of this rank's own slot; -1: plain memory */
    place *at; /* [size]; NULL while opening */
} spli_places;

void spli_slot_place(const spl_runtime *rt, spli_cores *here) {
    here->pid = (int32_t)getpid();
    here->fd = rt->places->fd;
    here->slot = (uint64_t)(uintptr_t)rt->slot;
}

spl_status spli_slot_open(spl_runtime *rt) {
    spli_places *places = calloc(1, sizeof *places);
    if (!places) return spli_error(SPL_ENOMEM, "out of memory while opening the runtime");
    rt->places = places;
    places->fd = memfd_create("spl", MFD_CLOEXEC);
    if (places->fd >= 0 && ftruncate(places->fd, sizeof *rt->slot) == 0) {
        void *p = mmap(NULL, sizeof *rt->slot, PROT_READ | PROT_WRITE, MAP_SHARED, places->fd, 0);
        if (p != MAP_FAILED) {
            rt->slot = p;
            return spli_ok();
        }
    }
    if (places->fd >= 0) close(places->fd);
    places->fd = -1;
    rt->slot = calloc(1, sizeof *rt->slot);
    return rt->slot ? spli_ok() : spli_error(SPL_ENOMEM, "out of memory while opening the runtime");
}

spl_status spli_slots_note(spl_runtime *rt, const spli_cores *all) {
    spli_places *places = rt->places;
    places->at = calloc((size_t)rt->size, sizeof *places->at);
    if (!places->at) return spli_error(SPL_ENOMEM, "out of memory while opening %d ranks", rt->size);
    for (int r = 0; r < rt->size; r++) {
        place *p = &places->at[r];
        p->near = all[r].host == all[rt->rank].host;
        p->pid = all[r].pid;
        p->fd = all[r].fd;
        if (p->near && p->pid == (int32_t)getpid()) p->slot = (spli_slot *)(uintptr_t)all[r].slot;
    }
    return spli_ok();
}

void spli_slots_close(spl_runtime *rt) {
    spli_places *places = rt->places;
    if (!places) return;
    for (int r = 0; places->at && r < rt->size; r++)
        if (places->at[r].mapped) munmap(places->at[r].slot, sizeof *rt->slot);
    if (places->fd >= 0) {
        munmap(rt->slot, sizeof *rt->slot);
        close(places->fd);
    } else {
        free(rt->slot);
    }
    free(places->at);
    free(places);
    free(rt->report);
    rt->places = NULL;
    rt->slot = NULL;
    rt->report = NULL;
}

/* The slot of a rank of this host; NULL where it cannot be opened (another user or process space). */
static spli_slot *slot_of(spl_runtime *rt, int rank) {
    place *p = &rt->places->at[rank];
    if (p->slot || !p->near || p->fd < 0) return p->slot;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid, (int)p->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *at = mmap(NULL, sizeof *rt->slot, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return NULL;
    p->mapped = 1;
    return p->slot = at;
}

/* The state letter of a process as the kernel gives it: R, S, T (stopped), Z (ended) ...; 0: there is none. */
static char process_state(int32_t pid) {
    char path[64], line[512], *at = NULL;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fgets(line, sizeof line, f)) at = strrchr(line, ')'); /* the name before it may hold anything */
    fclose(f);
    return at && at[1] == ' ' ? at[2] : 0;
}

/* ---------------------------------------------------------------- asking */

void spli_ask_ranks(spl_runtime *rt) {
    enum { TURNS = 60, TURN_NS = 5000000 };
    if (rt->size == 1 || rt->dry || !rt->places->at) return;
    int32_t self = (int32_t)getpid();
    int open = 1;
    for (int r = 0; r < rt->size; r++) {
        spli_slot *s = r == rt->rank ? NULL : slot_of(rt, r);
        if (!s || rt->places->at[r].pid == self || rt->control->peers[r].ended || s->activity != SPLI_IN_SCRIPT)
            continue;
        s->asked = s->asked + 1;
        kill((pid_t)rt->places->at[r].pid, SIGURG); /* ignored where nobody listens for it */
    }
    for (int turn = 0; open && turn < TURNS; turn++) {
        open = 0;
        for (int r = 0; r < rt->size; r++) {
            const spli_slot *s = r == rt->rank ? NULL : rt->places->at[r].slot;
            open |= s && s->activity == SPLI_IN_SCRIPT && s->asked != s->answered &&
                    rt->places->at[r].pid != self && !rt->control->peers[r].ended;
        }
        if (open) nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
    }
}

void spli_signal_ranks(spl_runtime *rt, int number) {
    for (int r = 0; r < rt->size; r++) {
        const place *p = &rt->places->at[r];
        const spli_peer *peer = &rt->control->peers[r];
        if (r == rt->rank || !p->near || p->pid == (int32_t)getpid() || peer->ended) continue;
        if (peer->turn_done != rt->control->turn && process_state(p->pid)) kill((pid_t)p->pid, number);
    }
}

int spl_runtime_asked(const spl_runtime *rt) { return rt->slot->asked != rt->slot->answered; }

void spl_runtime_answer(spl_runtime *rt, const char *site) {
    snprintf(rt->slot->site, sizeof rt->slot->site, "%s", site);
    rt->slot->answered = rt->slot->asked;
}

/* ---------------------------------------------------------------- rows */

static void copy_text(char *to, size_t n, const volatile char *from, size_t most) {
    size_t i = 0;
    for (; i + 1 < n && i < most && from[i]; i++) to[i] = from[i];
    to[i] = '\0';
}

void spli_row_of(spl_runtime *rt, int rank, spli_row *out) {
    const spli_control *ctl = rt->control;
    const spli_peer *peer = &ctl->peers[rank];
    const spli_slot *s = rank == rt->rank ? rt->slot : slot_of(rt, rank);
    *out = (spli_row){.rank = rank};
    if (peer->ended) {
        snprintf(out->what, sizeof out->what, peer->exit_code ? "has failed (exit code %d)" : "has ended its script",
                 peer->exit_code);
        return;
    }
    if (ctl->turn && peer->turn_done == ctl->turn) {
        const char *how = peer->step.code ? "has failed in the line" : "has finished the line";
        snprintf(out->what, sizeof out->what, "%s", how);
        return;
    }
    if (!s) {
        snprintf(out->what, sizeof out->what, "%s",
                 rt->places->at[rank].near ? "cannot be looked at" : "is on another host and says nothing");
        return;
    }
    copy_text(out->where, sizeof out->where, s->site, sizeof s->site);
    char state = rank == rt->rank ? 'R' : process_state(rt->places->at[rank].pid);
    if (state == 'T' || state == 'Z' || state == 'X' || state == 0) {
        const char *how = state == 'T' ? "is stopped by a signal" : "has no process any more";
        snprintf(out->what, sizeof out->what, "%s", how);
        return;
    }
    switch ((spli_activity)s->activity) {
    case SPLI_IN_WAIT:
        copy_text(out->what, sizeof out->what, s->what, sizeof s->what);
        out->waits = 1;
        break;
    case SPLI_IN_OP:
        memcpy(out->what, "computes ", 10);
        copy_text(out->what + 9, sizeof out->what - 9, s->op, sizeof s->op);
        break;
    case SPLI_IN_SCRIPT:
        /* virtual ranks take turns: one that runs Lua is at the line of its last call */
        snprintf(out->what, sizeof out->what, "%s",
                 s->asked == s->answered ? "runs Lua" : "runs Lua, inside a library or another program");
        break;
    }
}

/* ---------------------------------------------------------------- the table */

enum { MOST_GROUPS = 24 };

/* "0,2-5" of the rows from `first` on that say the same. */
static void add_ranks(const spli_row *rows, int n, int first, char *out, size_t room) {
    size_t at = 0;
    int begin = -2, end = -2;
    out[0] = '\0';
    for (int i = first; i <= n && at + 32 < room; i++) {
        int same = i < n && !strcmp(rows[i].what, rows[first].what) && !strcmp(rows[i].where, rows[first].where);
        if (i < n && !same) continue;
        int rank = i < n ? rows[i].rank : -1;
        if (rank == end + 1) {
            end = rank;
            continue;
        }
        if (begin >= 0)
            at += (size_t)(end > begin ? snprintf(out + at, room - at, "%s%d-%d", at ? "," : "", begin, end)
                                       : snprintf(out + at, room - at, "%s%d", at ? "," : "", begin));
        begin = end = rank;
    }
}

static int said_before(const spli_row *rows, int i) {
    for (int k = 0; k < i; k++)
        if (!strcmp(rows[k].what, rows[i].what) && !strcmp(rows[k].where, rows[i].where)) return 1;
    return 0;
}

void spli_report(spl_runtime *rt, const spli_row *rows, int n) {
    enum { RANKS = 200, LINE = RANKS + sizeof(spli_row) + 16 };
    char ranks[RANKS];
    int wide = 4, broad = 12, groups = 0;
    for (int i = 0; i < n; i++) {
        if (said_before(rows, i)) continue;
        groups++;
        add_ranks(rows, n, i, ranks, sizeof ranks);
        if ((int)strlen(ranks) > wide) wide = (int)strlen(ranks);
        if ((int)strlen(rows[i].what) > broad) broad = (int)strlen(rows[i].what);
    }
    int shown = groups > MOST_GROUPS ? MOST_GROUPS : groups;
    size_t room = (size_t)(shown + 2) * LINE, at = 0;
    free(rt->report);
    rt->report = malloc(room);
    if (!rt->report) return; /* the sentence is there */
    at += (size_t)snprintf(rt->report, room, "  %-*s  %-*s  where", wide, "rank", broad, "what it does");
    for (int i = 0, g = 0; i < n && g < shown; i++) {
        if (said_before(rows, i)) continue;
        g++;
        add_ranks(rows, n, i, ranks, sizeof ranks);
        at += (size_t)snprintf(rt->report + at, room - at, "\n  %-*s  %-*s  %s", wide, ranks, broad, rows[i].what,
                               rows[i].where);
        while (at && rt->report[at - 1] == ' ') rt->report[--at] = '\0';
    }
    if (groups > shown)
        snprintf(rt->report + at, room - at, "\n  and %d more that each do something else", groups - shown);
}

/* Who waits for something else may make a call that does not fit, or be held up as well; where all wait for the same,
 * its sizes may differ. Only agreement tells. */
static void advise(const spl_runtime *rt, const spli_row *rows, char *advice, size_t n) {
    const spli_row *own = &rows[rt->rank], *other = NULL;
    int same = 0;
    for (int r = 0; r < rt->size && !rt->check; r++) {
        int is_same = !strcmp(rows[r].what, own->what) && !strcmp(rows[r].where, own->where);
        if (rows[r].waits && !is_same && !other) other = &rows[r];
        same += rows[r].waits && is_same;
    }
    if (other)
        snprintf(advice, n,
                 "rank %d makes another call, %.60s%s%.40s%s; --check-collectives names calls that do not fit each "
                 "other",
                 other->rank, other->what, other->where[0] ? " (" : "", other->where, other->where[0] ? ")" : "");
    else if (same == rt->size)
        snprintf(advice, n, "all ranks make this call, but perhaps not with the same sizes; --check-collectives "
                            "compares them");
}

void spli_report_all(spl_runtime *rt, char *advice, size_t n) {
    snprintf(advice, n, "look for a rank that does not make this call");
    if (rt->size == 1 || rt->dry || !rt->places->at) return;
    spli_row *rows = calloc((size_t)rt->size, sizeof *rows);
    if (!rows) return;
    spli_ask_ranks(rt);
    for (int r = 0; r < rt->size; r++) spli_row_of(rt, r, &rows[r]);
    spli_report(rt, rows, rt->size);
    advise(rt, rows, advice, n);
    free(rows);
}

const char *spl_runtime_report(const spl_runtime *rt) { return rt->report; }

void spl_runtime_drop_report(spl_runtime *rt) {
    free(rt->report);
    rt->report = NULL;
}
