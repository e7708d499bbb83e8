/* launch.c: `spl run -n N`: starts mpirun with this same program, passes on what comes out of it (relay.c), and says in
 * the end, once and last, why the job failed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

static pid_t start(char **argv, const int out[2], const int err[2]) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing is left behind when this process is killed */
    if (getppid() != parent) _exit(1);
    signal(SIGPIPE, SIG_DFL);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execvp(argv[0], argv);
    fprintf(stderr, "spl: cannot start mpirun: %s\n", strerror(errno));
    _exit(127);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How often the kernel has ended a process for want of memory; -1: it does not say. */
static long memory_kills(void) {
    FILE *f = fopen("/proc/vmstat", "re");
    char line[128];
    long n = -1;
    while (f && n < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %ld", &n) != 1) n = -1;
    if (f) fclose(f);
    return n;
}

/* Seconds for mpirun to end after a rank has ended the job, or after it was told to: it may hang on its way out (seen
 * on busy machines). And for ranks to end when mpirun went before them. */
static const double GRACE = 10, ORPHANED = 5;

typedef struct job {
    pid_t pid;
    lspl_relay *relay;
    int status;  /* of mpirun */
    int stopped; /* this process ended mpirun */
} job;

static void attend(job *j) {
    double since = 0;
    int ended = 0, told = 0;
    while (!ended) {
        int came = lspl_relay_turn(j->relay, 100, &interrupted);
        if (lspl_relay_broken(j->relay) && !told) { /* nobody gets to read the rest */
            told = 1;
            j->stopped = 1;
            kill(j->pid, SIGTERM);
        }
        if (came && since == 0) continue;
        ended = waitpid(j->pid, &j->status, WNOHANG) == j->pid;
        if (since == 0 && (told || interrupted || lspl_relay_ended(j->relay))) since = now();
        if (!ended && since > 0 && now() - since > GRACE) {
            j->stopped = 1;
            kill(j->pid, SIGKILL);
        }
    }
    child_pid = 0;
    /* told twice, as by a signal to the whole process group, mpirun does not wait for its ranks */
    double until = now() + (WIFSIGNALED(j->status) || j->stopped || interrupted ? ORPHANED : 0);
    while (lspl_relay_turn(j->relay, 0, &interrupted) ||
           (now() < until && lspl_relay_open_streams(j->relay) && lspl_relay_turn(j->relay, 100, &interrupted) >= 0)) {}
}

static void say_signal(const job *j, const char *who, int number, long kills) {
    char text[256];
    long now_kills = kills >= 0 && number == SIGKILL ? memory_kills() : -1;
    snprintf(text, sizeof text, "spl: %s was ended by signal %d (%s)%s\n", who, number, strsignal(number),
             now_kills < 0 ? "" : now_kills > kills ?
             "; the system ran out of memory meanwhile and ended a process for it" :
             "; not for want of memory, as far as the system tells");
    lspl_relay_say(j->relay, text);
}

/* Says why the job failed, where there is anything to say, and returns its exit code. `kills`: memory_kills() before
 * it began. */
static int conclude(const job *j, long kills) {
    int exited = WIFEXITED(j->status), code = exited ? WEXITSTATUS(j->status) : 1, his = 1;
    int number = exited && code < 128 + SIGRTMAX ? code - 128 : 0, lost = lspl_relay_lost(j->relay);
    int broken = lspl_relay_broken(j->relay);
    char *told, who[32] = "a rank", text[256];
    const char *host = lspl_relay_lost_host(j->relay);
    lspl_end end = lspl_relay_cause(j->relay, &his, &told);
    if (broken == EPIPE) { /* the reader has gone and wants no more: end as a program does that SIGPIPE ends */
        code = 128 + SIGPIPE;
    } else if (broken) {
        snprintf(text, sizeof text, "spl: cannot write standard output: %s\n", strerror(broken));
        lspl_relay_say(j->relay, text);
        code = 1;
    } else if (host && !interrupted) { /* whatever the ranks that were left said of it */
        snprintf(text, sizeof text, "spl: %s%.100s was lost in the middle of the job, with its ranks; the others were "
                 "ended\n", host[0] ? "host " : "a host", host);
        lspl_relay_say(j->relay, text);
        code = 1;
    } else if (end == LSPL_END_OWN || (end == LSPL_END_INTERRUPTED && (interrupted || (exited && lost < 0)))) {
        if (told) lspl_relay_say(j->relay, told);
        code = his;
    } else if (interrupted) {
        snprintf(text, sizeof text, "spl: interrupted by %s\n", interrupted == SIGTERM ? "SIGTERM" : "SIGINT");
        lspl_relay_say(j->relay, text);
        code = 1;
    } else if (!exited && !j->stopped) {
        say_signal(j, "mpirun", WTERMSIG(j->status), kills);
    } else if (lost >= 0 || (number > 0 && end == LSPL_END_NONE)) {
        if (lost >= 0) snprintf(who, sizeof who, "rank %d", lost);
        say_signal(j, who, number > 0 ? number : SIGKILL, kills);
        code = 1;
    } else if (end != LSPL_END_NONE) {
        if (told) lspl_relay_say(j->relay, told);
        code = his;
    } else if (code == 127) code = 3; /* it could not be started */
    else if (code > 4) code = 1; /* one of mpirun's own */
    free(told);
    return code;
}

static int launch(const lspl_options *options, const char *own, lspl_relay *relay) {
    int out[2] = {-1, -1}, err[2] = {-1, -1}, code = 1;
    char mark[300];
    words w = {.v = calloc((size_t)options->nargs + 40, sizeof(char *))};
    if (!w.v || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
        fprintf(stderr, "spl: cannot start mpirun: %s\n", strerror(errno));
        if (out[0] >= 0) close(out[0]), close(out[1]);
        free(w.v);
        return 1;
    }
    build_command(&w, options, own);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    snprintf(mark, sizeof mark, "%c%s", isatty(2) ? LSPL_MARK_TERMINAL : LSPL_MARK_PLAIN, lspl_relay_folder(relay));
    if (mark[1]) setenv(LSPL_LAUNCHER_MARK, mark, 1);
    else unsetenv(LSPL_LAUNCHER_MARK);
    signal(SIGPIPE, SIG_IGN);
    watch_signals();
    long kills = memory_kills();
    job j = {.relay = relay};
    j.pid = start(w.v, out, err);
    close(out[1]);
    close(err[1]);
    lspl_relay_mpirun(relay, out[0], err[0]);
    child_pid = j.pid;
    if (j.pid < 0) fprintf(stderr, "spl: cannot start mpirun: %s\n", strerror(errno));
    else {
        attend(&j);
        code = conclude(&j, kills);
    }
    free(w.v);
    return code;
}

/* Ranks talk through files in shared memory; where they cannot be made, mpirun stands still instead of ending. */
static int files_too_small(void) {
    const unsigned long long least = 64ull << 20;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= least) return 0;
    fprintf(stderr, "spl: files are limited to %llu KiB and mpirun needs at least %llu for several ranks; raise it "
                    "(ulimit -f), or use --virtual\n",
            (unsigned long long)limit.rlim_cur >> 10, least >> 10);
    return 1;
}

int lspl_launch(const lspl_options *options) {
    char own[4096];
    if (files_too_small()) return 3;
    if (!on_path("mpirun")) {
        fprintf(stderr, "spl: -n needs mpirun, and there is none on PATH: install it (Debian: apt-get install "
                        "openmpi-bin), or leave -n out to run one rank\n");
        return 3;
    }
    if (!lspl_own_path(own, sizeof own)) {
        fprintf(stderr, "spl: cannot find this program's own path in /proc\n");
        return 3;
    }
    lspl_relay *relay = lspl_relay_open(options->ranks);
    if (!relay) {
        fprintf(stderr, "spl: out of memory while starting %d ranks\n", options->ranks);
        return 1;
    }
    int code = launch(options, own, relay);
    lspl_relay_close(relay);
    return code;
}
