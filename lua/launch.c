/* launch.c: `spl run -n N`: starts mpirun with this same program and passes on what comes out of it.
 *
 * Its standard error comes through a pipe: ranks put the cause of a failure between the marks CAUSE_BEGIN and CAUSE_END
 * (see host.c), and that is held back and printed when the job has ended: once, and last. mpirun's own notices of how
 * ranks ended, each between two lines of dashes, are read and not shown: they would hide the cause. Everything else
 * passes through at once. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "build.h"
#include "host.h"
#include "launch.h"

static int number_in(const char *name, int *out) {
    const char *text = getenv(name);
    if (!text || !*text) return 0;
    *out = atoi(text);
    return 1;
}

int lspl_launched(int *rank, int *size) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
    for (int i = 0; i < 3; i++) {
        if (!number_in(ranks[i], rank)) continue;
        *size = 1;
        for (int j = 0; j < 3 && !number_in(sizes[j], size); j++) {}
        return 1;
    }
    return 0;
}

static int on_path(const char *program) {
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char file[4096];
        snprintf(file, sizeof file, "%.*s/%s", (int)n, path, program);
        if (access(file, X_OK) == 0) return 1;
        path += n + (path[n] == ':');
    }
    return 0;
}

/* ---- the command line of mpirun ---- */

typedef struct words {
    char **v;
    int n;
    char number[4][32]; /* numbers as text */
    int numbers;
} words;

static void add(words *w, const char *word) {
    w->v[w->n++] = (char *)word;
}

static void add_number(words *w, const char *option, double value) {
    char *text = w->number[w->numbers++];
    snprintf(text, sizeof w->number[0], "%.15g", value);
    add(w, option);
    add(w, text);
}

static void build_command(words *w, const lspl_options *o, const char *own) {
    add(w, "mpirun");
    add_number(w, "-n", o->ranks);
    if (LSPL_BUILD_OPENMPI) { /* more ranks than cores is a choice, and threads find their cores by themselves */
        add(w, "--oversubscribe");
        add(w, "--bind-to");
        add(w, "none");
        add(w, "-x");
        add(w, LSPL_LAUNCHER_MARK);
    }
    add(w, own);
    add(w, o->command);
    if (o->backend) add(w, "--backend"), add(w, o->backend);
    if (o->timeout > 0) add_number(w, "--timeout", o->timeout);
    if (o->threads > 0) add_number(w, "--threads", o->threads);
    if (o->trace) add(w, "--trace"), add(w, o->trace);
    if (o->check_collectives) add(w, "--check-collectives");
    if (o->script && !o->strict) add(w, "--no-strict");
    if (o->script) add(w, o->script);
    add(w, "--");
    for (int i = 0; i < o->nargs; i++) add(w, o->args[i]);
    add(w, NULL);
}

/* ---- passing on what mpirun prints ---- */

typedef struct outlet {
    int inside;     /* a line: what comes next does not begin one */
    int dropping;   /* up to the end of a line */
    int holding;    /* the mark that began what is being held back; 0: passing on */
    char *reading;  /* what is being held back */
    size_t used;
    char *cause;    /* of the lowest rank */
    char *interrupt; /* the same of ranks that were interrupted */
    double since;    /* when a cause was known */
    int lost;        /* 1 + the rank that mpirun says a signal ended; 0: none */
} outlet;

static int rank_of_cause(const char *text) {
    int rank = -1;
    return text && sscanf(text, "spl: rank %d", &rank) == 1 ? rank : 1 << 30;
}

static void hold(outlet *o, char c) {
    enum { MOST = LSPL_TEXT_BYTES + 128 };
    if (!o->reading) o->reading = malloc(MOST), o->used = 0;
    if (!o->reading || o->used + 2 > MOST) return;
    o->reading[o->used++] = c;
    o->reading[o->used] = 0;
}

static void keep_lowest(outlet *o) {
    char **kept = o->holding == LSPL_INTERRUPT_BEGIN ? &o->interrupt : &o->cause;
    if (o->reading && rank_of_cause(o->reading) <= rank_of_cause(*kept)) {
        char *gone = *kept;
        *kept = o->reading;
        o->reading = gone;
    }
    free(o->reading);
    o->reading = NULL;
    o->holding = 0;
}

/* How much of the text up to a mark belongs to one line, its end included. */
static size_t line_length(const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') return i + 1;
        if (bytes[i] == LSPL_CAUSE_BEGIN || bytes[i] == LSPL_INTERRUPT_BEGIN) return i;
    }
    return n;
}

/* What the event library inside mpirun says, though not always, when a job ends early; and mpirun of notices that
 * several ranks gave. */
static int is_noise(const char *line, size_t n) {
    static const char prefix[] = "[warn] Epoll ";
    if (n >= sizeof prefix - 1 && memcmp(line, prefix, sizeof prefix - 1) == 0) return 1;
    return n > 0 && line[0] == '[' && /* its notices, when they meet on their way to it */
           (memmem(line, n, "orte_base_help_aggregate", 24) || memmem(line, n, "show_help.c", 11) ||
            (memmem(line, n, "has sent help message", 21) && memmem(line, n, "abort", 5)));
}

#define DASHES "--------------------------------------------------------------------------" /* as mpirun prints them */

/* A whole notice is held: what it says of the end of ranks is kept, what it says of anything else is shown. */
static void conclude_notice(outlet *o) {
    static const char *const of_the_end[] = {"mpirun noticed that process rank", "Primary job  terminated normally",
                                             "MPI_ABORT was invoked on rank", "mpirun detected that one or more",
                                             "mpirun has exited due to process", NULL};
    int known = 0, rank;
    for (int i = 0; of_the_end[i]; i++) {
        const char *at = o->reading ? strstr(o->reading, of_the_end[i]) : NULL;
        if (!at) continue;
        known = 1;
        if (i == 0 && strstr(at, "exited on signal") && sscanf(at + strlen(of_the_end[0]), " %d", &rank) == 1)
            o->lost = rank + 1;
    }
    if (!known && o->reading) fputs(o->reading, stderr);
    free(o->reading);
    o->reading = NULL;
    o->holding = o->inside = 0;
}

enum { NOTICE = 'N' }; /* outlet.holding */

static void hold_notice(outlet *o, char c) {
    const size_t line = sizeof DASHES - 1;
    size_t before = o->used;
    hold(o, c);
    int full = !o->reading || o->used == before;
    if (full || (c == '\n' && o->used > 2 * line && memcmp(o->reading + o->used - 1 - line, DASHES, line) == 0))
        conclude_notice(o);
}

static void pass_on(outlet *o, const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        if (!o->holding && !o->inside && n - i >= sizeof DASHES && memcmp(bytes + i, DASHES "\n", sizeof DASHES) == 0)
            o->holding = NOTICE, o->used = 0;
        if (o->holding == NOTICE) {
            hold_notice(o, bytes[i++]);
            continue;
        }
        if (o->holding) {
            if (bytes[i] == LSPL_CAUSE_END) keep_lowest(o);
            else hold(o, bytes[i]);
            i++;
            continue;
        }
        size_t plain = line_length(bytes + i, n - i);
        if (plain == 0) {
            o->holding = bytes[i++];
            continue;
        }
        if (!o->inside) o->dropping = is_noise(bytes + i, plain);
        if (!o->dropping) fwrite(bytes + i, 1, plain, stderr); /* unbuffered */
        i += plain;
        o->inside = bytes[i - 1] != '\n';
    }
}

/* ---- signals: the terminal sends them to mpirun too, others are forwarded ---- */

static volatile sig_atomic_t child_pid, interrupted; /* a handler has no arguments of ours */

static void forward(int number, siginfo_t *info, void *context) {
    (void)context;
    interrupted = number;
    if (info->si_code != SI_KERNEL && child_pid > 0) kill((pid_t)child_pid, number);
}

static void watch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = forward;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static pid_t start(char **argv, int err[2]) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing is left behind when this process is killed */
    if (getppid() != parent) _exit(1);
    dup2(err[1], STDERR_FILENO);
    close(err[0]);
    close(err[1]);
    execvp(argv[0], argv);
    fprintf(stderr, "spl: cannot start mpirun: %s\n", strerror(errno));
    _exit(127);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Long after a rank has ended the job, mpirun itself may hang on its way out (seen on busy machines). */
static const double GRACE = 10;

/* Passes on until mpirun has ended; its wait status. */
static int attend(pid_t pid, int from, outlet *o) {
    char bytes[8192];
    int status = 0, ended = 0;
    for (;;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        int ready = poll(&p, 1, ended ? 0 : 100);
        if (ready > 0) {
            ssize_t n = read(from, bytes, sizeof bytes);
            if (n > 0) {
                pass_on(o, bytes, (size_t)n);
                continue;
            }
            if (n == 0 || errno != EINTR) break;
        } else if (ended) return status;
        if (!ended) ended = waitpid(pid, &status, WNOHANG) == pid;
        if (o->cause && o->since == 0) o->since = now();
        if (!ended && o->since > 0 && now() - o->since > GRACE) kill(pid, SIGKILL);
    }
    while (!ended && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

/* Says why the job failed, where there is anything to say, and returns its exit code. */
static int conclude(int status, outlet *o) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), number = code - 128;
    if (o->holding == NOTICE) conclude_notice(o);
    else if (o->holding) keep_lowest(o);
    const char *cause = o->cause ? o->cause : interrupted || code <= 128 ? o->interrupt : NULL;
    if (o->inside && !o->dropping && code) fputc('\n', stderr); /* what a rank began to say ends here */
    if (cause) fputs(cause, stderr);
    else if (interrupted) fprintf(stderr, "spl: interrupted by %s\n", interrupted == SIGTERM ? "SIGTERM" : "SIGINT");
    else if (number > 0) {
        char who[32] = "a rank";
        if (o->lost) snprintf(who, sizeof who, "rank %d", o->lost - 1);
        fprintf(stderr, "spl: %s was ended by signal %d (%s)%s\n", who, number, strsignal(number),
                number == SIGKILL ? "; the system does that when memory runs out" : "");
    }
    free(o->cause);
    free(o->interrupt);
    return code == 127 ? 3 : code > 128 || interrupted ? 1 : code;
}

int lspl_launch(const lspl_options *options) {
    char own[4096];
    if (!on_path("mpirun")) {
        fprintf(stderr, "spl: -n needs mpirun, and there is none on PATH: install it (Debian: apt-get install "
                        "openmpi-bin), or leave -n out to run one rank\n");
        return 3;
    }
    if (!lspl_own_path(own, sizeof own)) {
        fprintf(stderr, "spl: cannot find this program's own path in /proc\n");
        return 3;
    }
    int err[2];
    words w = {.v = calloc((size_t)options->nargs + 32, sizeof(char *))};
    if (!w.v || pipe2(err, O_CLOEXEC)) {
        free(w.v);
        fprintf(stderr, "spl: cannot start mpirun: %s\n", strerror(errno));
        return 1;
    }
    build_command(&w, options, own);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv(LSPL_LAUNCHER_MARK, isatty(2) ? LSPL_MARK_TERMINAL : LSPL_MARK_PLAIN, 1);
    setvbuf(stderr, NULL, _IONBF, 0);
    watch_signals();
    outlet o = {0};
    pid_t pid = start(w.v, err);
    close(err[1]);
    child_pid = pid;
    int status = pid > 0 ? attend(pid, err[0], &o) : 256;
    int code = conclude(status, &o);
    free(w.v);
    close(err[0]);
    return code;
}
