/* relay.c: the launcher's ears: what the ranks and mpirun print, passed on line by line, and how the ranks ended.
 *
 * Nothing is stored: a stream that has begun a line keeps the output to itself until the line ends, and the others wait
 * in their pipes; when it stays silent in the middle of a line (a prompt, say) they go on. mpirun's own notices of how
 * ranks ended, each between two lines of dashes, are read and not shown: they would hide the cause. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "host.h"
#include "launch.h"

enum { CHUNK = 1 << 16, SILENCE_MS = 200, NOTICE_BYTES = 1 << 14 };

typedef struct stream {
    int fd, to;     /* -1: closed; 0, 1: of relay.outlet */
    int of_mpirun;
} stream;

typedef struct outlet {
    int fd, broken, in_line;
    const stream *owner; /* of the line that was begun */
    double since;
} outlet;

struct lspl_relay {
    char folder[256];
    int ranks, n;
    stream *streams; /* [2 ranks + 2] */
    struct pollfd *polled;
    const stream **asked;
    outlet outlet[2];
    char *notice;    /* of mpirun, held back up to its second line of dashes; NULL: none */
    size_t noticed;
    int inside, dropping; /* of mpirun's standard error: in a line; one that is not shown */
    int lost;        /* 1 + the rank that mpirun says a signal ended */
    int lost_daemon; /* mpirun says that it lost what it had started on another host */
    char host[128], peer[128]; /* that host, as mpirun or ssh names it; whom a rank's MPI names */
    char chunk[CHUNK];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void path_of(const lspl_relay *r, const char *what, int rank, char *out, size_t n) {
    snprintf(out, n, "%s/%s.%d", r->folder, what, rank);
}

static void add_stream(lspl_relay *r, int fd, int to, int of_mpirun) {
    if (fd >= 0) r->streams[r->n++] = (stream){fd, to, of_mpirun};
}

static void open_pipes(lspl_relay *r) {
    static const char *const names[] = {"out", "err"};
    char path[300];
    for (int rank = 0; rank < r->ranks; rank++) {
        for (int to = 0; to < 2; to++) {
            path_of(r, names[to], rank, path, sizeof path);
            if (mkfifo(path, 0600)) return;
            int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd < 0) { /* this rank and those after it print through mpirun */
                unlink(path);
                return;
            }
            add_stream(r, fd, to, 0);
        }
    }
}

lspl_relay *lspl_relay_open(int ranks) {
    lspl_relay *r = calloc(1, sizeof *r);
    size_t most = 2 * (size_t)ranks + 2;
    if (r) {
        r->streams = calloc(most, sizeof *r->streams);
        r->polled = calloc(most, sizeof *r->polled);
        r->asked = calloc(most, sizeof *r->asked);
    }
    if (!r || !r->streams || !r->polled || !r->asked) {
        lspl_relay_close(r);
        return NULL;
    }
    r->ranks = ranks;
    r->outlet[0].fd = STDOUT_FILENO;
    r->outlet[1].fd = STDERR_FILENO;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(r->folder, sizeof r->folder, "%s/spl-" "XX" "XX" "XX", tmp && *tmp ? tmp : "/tmp");
    if (n >= (int)sizeof r->folder - 1 || !mkdtemp(r->folder)) r->folder[0] = 0;
    else open_pipes(r);
    return r;
}

const char *lspl_relay_folder(const lspl_relay *r) { return r->folder; }

void lspl_relay_mpirun(lspl_relay *r, int out, int err) {
    add_stream(r, out, 0, 1);
    add_stream(r, err, 1, 1);
}

/* ---- writing */

static void put(outlet *o, const char *bytes, size_t n, const volatile int *stop) {
    while (n > 0 && !o->broken) {
        ssize_t w = write(o->fd, bytes, n);
        if (w >= 0) {
            if (w > 0) o->in_line = bytes[w - 1] != '\n';
            bytes += w;
            n -= (size_t)w;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){.fd = o->fd, .events = POLLOUT}, 1, 100);
        } else if (errno != EINTR) {
            o->broken = errno;
        }
        if (w < 0 && stop && *stop) return;
    }
}

/* ---- what mpirun says itself */

/* What the event library inside mpirun says, though not always, when a job ends early; and mpirun of notices that
 * several ranks gave. */
static int is_noise(const char *line, size_t n) {
    static const char *const prefixes[] = {"[warn] Epoll ", "mpirun: Forwarding signal "};
    for (int i = 0; i < 2; i++)
        if (n >= strlen(prefixes[i]) && memcmp(line, prefixes[i], strlen(prefixes[i])) == 0) return 1;
    return n > 0 && line[0] == '[' && /* its notices, when they meet on their way to it */
           (memmem(line, n, "orte_base_help_aggregate", 24) || memmem(line, n, "show_help.c", 11) ||
            (memmem(line, n, "has sent help message", 21) && memmem(line, n, "abort", 5)));
}

/* The word behind `key` on its line, up to a blank or a dot. */
static void word_after(const char *text, size_t n, const char *key, char *out, size_t room) {
    const char *at = memmem(text, n, key, strlen(key));
    if (!at) return;
    at += strlen(key);
    size_t left = n - (size_t)(at - text), blank = 0;
    while (blank < left && (at[blank] == ' ' || at[blank] == ':')) blank++;
    size_t length = 0;
    while (blank + length < left && !strchr(" \n\r,", at[blank + length])) length++;
    if (length) snprintf(out, room, "%.*s", (int)length, at + blank);
}

/* A whole notice about another host that went away; 1 when it was one. Where ssh ends before mpirun sees its own
 * connection break, mpirun believes that it never began. */
static int read_loss(lspl_relay *r) {
    int lost = strstr(r->notice, "ORTE has lost communication") != NULL;
    int daemon = r->host[0] && strstr(r->notice, "unable to reliably start one or more daemons");
    int peer = strstr(r->notice, "peer process has unexpectedly disconnected") != NULL;
    const char *remote = strstr(r->notice, "Remote daemon");
    if (lost && remote) word_after(remote, strlen(remote), "on node", r->host, sizeof r->host);
    if (peer) word_after(r->notice, r->noticed, "Peer host", r->peer, sizeof r->peer);
    r->lost_daemon |= lost || daemon;
    return lost || daemon || peer;
}

#define DASHES "--------------------------------------------------------------------------" /* as mpirun prints them */

/* A whole notice is held: what it says of the end of ranks is kept, what it says of anything else is shown. */
static void conclude_notice(lspl_relay *r) {
    static const char *const of_the_end[] = {"mpirun noticed that process rank", "Primary job  terminated normally",
                                             "MPI_ABORT was invoked on rank", "mpirun detected that one or more",
                                             "mpirun has exited due to process", NULL};
    int known, rank;
    if (!r->notice) return;
    known = read_loss(r);
    for (int i = 0; of_the_end[i]; i++) {
        const char *at = strstr(r->notice, of_the_end[i]);
        if (!at) continue;
        known = 1;
        if (i == 0 && strstr(at, "exited on signal") && sscanf(at + strlen(of_the_end[0]), " %d", &rank) == 1)
            r->lost = rank + 1;
    }
    if (!known) put(&r->outlet[1], r->notice, r->noticed, NULL);
    free(r->notice);
    r->notice = NULL;
    r->inside = 0;
}

static void hold_notice(lspl_relay *r, char c) {
    const size_t line = sizeof DASHES - 1;
    r->notice[r->noticed++] = c;
    r->notice[r->noticed] = 0;
    int full = r->noticed + 2 > NOTICE_BYTES;
    if (full || (c == '\n' && r->noticed > 2 * line && memcmp(r->notice + r->noticed - 1 - line, DASHES, line) == 0))
        conclude_notice(r);
}

static void read_mpirun(lspl_relay *r, const char *bytes, size_t n, const volatile int *stop) {
    for (size_t i = 0; i < n;) {
        if (!r->notice && !r->inside && n - i >= sizeof DASHES && memcmp(bytes + i, DASHES "\n", sizeof DASHES) == 0) {
            r->notice = malloc(NOTICE_BYTES);
            r->noticed = 0;
        }
        if (r->notice) {
            hold_notice(r, bytes[i++]);
            continue;
        }
        const char *end = memchr(bytes + i, '\n', n - i);
        size_t plain = end ? (size_t)(end - bytes) + 1 - i : n - i;
        if (!r->inside) r->dropping = is_noise(bytes + i, plain);
        if (memmem(bytes + i, plain, " closed by remote host", 22)) /* says ssh */
            word_after(bytes + i, plain, "Connection to", r->host, sizeof r->host);
        if (!r->dropping) put(&r->outlet[1], bytes + i, plain, stop);
        i += plain;
        r->inside = !end;
    }
}

/* ---- passing on */

static void close_stream(lspl_relay *r, stream *s) {
    if (r->outlet[s->to].owner == s) r->outlet[s->to].owner = NULL;
    close(s->fd);
    s->fd = -1;
}

/* 1 when something came. */
static int pass_on(lspl_relay *r, stream *s, const volatile int *stop) {
    outlet *o = &r->outlet[s->to];
    if (o->owner && o->owner != s && now() - o->since < SILENCE_MS * 1e-3) return 0; /* since the poll */
    ssize_t n = read(s->fd, r->chunk, sizeof r->chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
    if (n <= 0) {
        close_stream(r, s);
        return 0;
    }
    int whole;
    if (s->of_mpirun && s->to == 1) {
        read_mpirun(r, r->chunk, (size_t)n, stop);
        whole = !r->inside || r->dropping;
    } else {
        put(o, r->chunk, (size_t)n, stop);
        whole = r->chunk[n - 1] == '\n';
    }
    o->owner = whole ? NULL : s;
    o->since = now();
    return 1;
}

int lspl_relay_turn(lspl_relay *r, int milliseconds, const volatile int *stop) {
    nfds_t n = 0;
    double t = now();
    int came = 0;
    for (int i = 0; i < r->n; i++) {
        const stream *s = &r->streams[i];
        const outlet *o = &r->outlet[s->to];
        if (s->fd < 0) continue;
        if (o->owner && o->owner != s && t - o->since < SILENCE_MS * 1e-3) {
            milliseconds = milliseconds > SILENCE_MS / 4 ? SILENCE_MS / 4 : milliseconds;
            continue;
        }
        r->asked[n] = s;
        r->polled[n++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    }
    if (poll(r->polled, n, milliseconds) <= 0) return 0;
    for (nfds_t i = 0; i < n; i++)
        if (r->polled[i].revents) came |= pass_on(r, (stream *)r->asked[i], stop);
    return came;
}

int lspl_relay_open_streams(const lspl_relay *r) {
    int n = 0;
    for (int i = 0; i < r->n; i++) n += r->streams[i].fd >= 0;
    return n;
}

int lspl_relay_broken(const lspl_relay *r) { return r->outlet[0].broken; }

void lspl_relay_say(lspl_relay *r, const char *text) {
    outlet *o = &r->outlet[1];
    if (o->in_line) put(o, "\n", 1, NULL); /* what a rank began to say ends here */
    put(o, text, strlen(text), NULL);
}

/* ---- how the ranks ended */

/* end.R whole, or NULL. */
static char *read_end(const lspl_relay *r, int rank) {
    char path[300];
    struct stat info;
    path_of(r, "end", rank, path, sizeof path);
    FILE *f = r->folder[0] ? fopen(path, "re") : NULL;
    if (!f) return NULL;
    char *text = fstat(fileno(f), &info) == 0 ? malloc((size_t)info.st_size + 1) : NULL;
    if (text) text[fread(text, 1, (size_t)info.st_size, f)] = 0;
    fclose(f);
    return text;
}

static int has_ended(const lspl_relay *r, int rank) {
    char path[300];
    path_of(r, "end", rank, path, sizeof path);
    return r->folder[0] && access(path, F_OK) == 0;
}

int lspl_relay_ended(const lspl_relay *r) {
    for (int rank = 0; rank < r->ranks; rank++)
        if (has_ended(r, rank)) return 1;
    return 0;
}

int lspl_relay_lost(lspl_relay *r) {
    conclude_notice(r);
    return r->lost && !has_ended(r, r->lost - 1) ? r->lost - 1 : -1;
}

const char *lspl_relay_lost_host(lspl_relay *r) {
    conclude_notice(r);
    return !r->lost_daemon ? NULL : r->host[0] ? r->host : r->peer;
}

/* Of those that failed by themselves the lowest; of those that were interrupted the first, since a launcher ends the
 * others in this way. */
lspl_end lspl_relay_cause(const lspl_relay *r, int *code, char **text) {
    int found = LSPL_END_NONE;
    double when = 0;
    *text = NULL;
    for (int rank = 0; rank < r->ranks; rank++) {
        char *whole = read_end(r, rank);
        int how, his;
        double at;
        if (whole && sscanf(whole, "%d %d %lf", &how, &his, &at) == 3 &&
            (how < found || (how == found && how == LSPL_END_INTERRUPTED && at < when))) {
            const char *rest = strchr(whole, '\n');
            free(*text);
            *text = rest && rest[1] ? strdup(rest + 1) : NULL;
            found = how;
            *code = his;
            when = at;
        }
        free(whole);
    }
    return (lspl_end)found;
}

void lspl_relay_close(lspl_relay *r) {
    static const char *const names[] = {"out", "err", "end", "begun"};
    char path[300];
    if (!r) return;
    for (int i = 0; i < r->n; i++)
        if (r->streams[i].fd >= 0) close(r->streams[i].fd);
    for (int rank = 0; r->folder[0] && rank < r->ranks; rank++) {
        for (int i = 0; i < 4; i++) {
            path_of(r, names[i], rank, path, sizeof path);
            unlink(path);
        }
    }
    if (r->folder[0]) rmdir(r->folder);
    free(r->streams);
    free(r->polled);
    free(r->asked);
    free(r->notice);
    free(r);
}
