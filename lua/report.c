/* report.c: a rank's side of `spl run -n`: where its output goes, and how it tells why it ends. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "host.h"
#include "launch.h"

static struct { /* of this process; a signal handler needs it too */
    char folder[256], begun[300], done[300]; /* end.R while it is being written, and when it is whole */
    int terminal;
} launcher;

static volatile int said; /* a cause */

static int redirect(const char *what, int rank, int to) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s.%d", launcher.folder, what, rank);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    /* mpirun's end stays open as long as this process lives: when it closes, mpirun drops the rank's standard input */
    (void)fcntl(to, F_DUPFD_CLOEXEC, 3);
    dup2(fd, to);
    close(fd);
    return 1;
}

void lspl_adopt(void) {
    const char *mark = getenv(LSPL_LAUNCHER_MARK);
    int rank, size;
    if (!mark || !*mark || strlen(mark) > sizeof launcher.folder) return;
    launcher.terminal = mark[0] == LSPL_MARK_TERMINAL;
    snprintf(launcher.folder, sizeof launcher.folder, "%s", mark + 1);
    unsetenv(LSPL_LAUNCHER_MARK); /* what a script starts is no rank of ours */
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* mpirun, told twice to end, leaves its ranks behind */
    if (!launcher.folder[0] || !lspl_launched(&rank, &size)) {
        launcher.folder[0] = 0;
        return;
    }
    if (!redirect("out", rank, STDOUT_FILENO) || !redirect("err", rank, STDERR_FILENO)) {
        launcher.folder[0] = 0;
        return;
    }
    snprintf(launcher.begun, sizeof launcher.begun, "%s/begun.%d", launcher.folder, rank);
    snprintf(launcher.done, sizeof launcher.done, "%s/end.%d", launcher.folder, rank);
}

int lspl_adopted(void) {
    return launcher.folder[0] != 0;
}

int lspl_watched(void) {
    return launcher.terminal || isatty(2);
}

/* Only calls that are safe in a signal handler, here and in lspl_report_interrupt. */
static int write_whole(const char *head, const char *text) {
    int fd = open(launcher.begun, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), good = fd >= 0;
    const char *const parts[] = {head, text};
    for (int i = 0; i < 2 && good; i++) {
        for (size_t n = strlen(parts[i]), at = 0; at < n && good;) {
            ssize_t w = write(fd, parts[i] + at, n - at);
            good = w > 0;
            at += good ? (size_t)w : 0;
        }
    }
    if (fd >= 0) close(fd);
    return good && rename(launcher.begun, launcher.done) == 0;
}

void lspl_report(lspl_end how, int code, const char *text) {
    char head[80];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    fflush(stdout);
    said |= text[0] != 0;
    snprintf(head, sizeof head, "%d %d %.6f\n", (int)how, code, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    if (lspl_adopted() && write_whole(head, text)) return;
    fputs(text, stderr); /* in one write, so that nothing of another rank gets between */
    fflush(stderr);
}

void lspl_report_interrupt(const char *text) {
    if (said) return;
    /* behind all others: a launcher ends ranks in this way too */
    if (lspl_adopted() && write_whole("1 1 1e18\n", text)) return;
    ssize_t unheard = write(STDERR_FILENO, text, strlen(text));
    (void)unheard;
}

int lspl_output_broken(char *message, size_t n) {
    int failed = fflush(stdout) != 0, why = failed ? errno : 0;
    if (!failed && !ferror(stdout)) return 0;
    /* an earlier failure has left no reason: asking again, for a line's end, tells it where it lasts */
    if (!why && write(STDOUT_FILENO, "\n", 1) < 0) why = errno;
    snprintf(message, n, "cannot write all of standard output: %s", why ? strerror(why) : "part of it was refused");
    return 1;
}
