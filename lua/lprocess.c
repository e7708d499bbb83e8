/* lprocess.c: what sweeps need of the system: a child process with a time limit, lines that are on the disk when they
 * are said to be written, and a folder that one sweep at a time works in. For modules inside (core.system). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "host.h"
#include "lspl.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* nil, message, "io" */
static int failed(lua_State *L, const char *what, const char *path) {
    spl_status s = {.code = SPL_EIO, .rank = -1};
    snprintf(s.message, sizeof s.message, "%s '%.300s': %s", what, path, strerror(errno));
    return lspl_push_nil_error(L, &s);
}

/* ---- children ---- */

/* No path: as this process has it. */
static int open_onto(const char *path, int flags, int onto) {
    if (!path) return 1;
    int fd = open(path, flags, 0666);
    if (fd < 0 || dup2(fd, onto) < 0) return 0;
    close(fd);
    return 1;
}

extern char **environ;

/* A child is no rank of this job, and may start one of its own. */
static void forget_launcher(void) {
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "SPL_LAUNCHER", NULL};
    for (int i = 0; environ[i];) {
        int ours = 0;
        char name[256];
        for (int p = 0; prefixes[p]; p++) ours |= strncmp(environ[i], prefixes[p], strlen(prefixes[p])) == 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(environ[i], "="), environ[i]);
        if (!ours || unsetenv(name)) i++;
    }
}

/* In the child: a process group of its own, which ends with this process. */
static void become(char **argv, const char *out, const char *err, pid_t parent) {
    setpgid(0, 0);
    forget_launcher();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (getppid() == parent && open_onto("/dev/null", O_RDONLY, 0) && open_onto(out, O_WRONLY | O_CREAT | O_TRUNC, 1) &&
        open_onto(err, O_WRONLY | O_CREAT | O_TRUNC, 2))
        execv(argv[0], argv);
    _exit(127);
}

static void end_group(pid_t pid, double *killed, int hard) {
    kill(-pid, hard ? SIGKILL : SIGTERM);
    if (!hard) *killed = now();
}

/* After SIGTERM a child has this long before SIGKILL. */
static const double GRACE = 8;

/* core.system.run_process({program, arguments...}, {out=, err=, seconds=}) -> {how = "exit" | "signal" | "timeout" |
 * "interrupt", code, seconds}. Without out or err the child writes where this process does. A signal to this process
 * ends the child, and is for the caller to act upon. */
static int run_process(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
    char **argv = lua_newuserdatauv(L, sizeof *argv * (size_t)(n + 1), 0);
    for (lua_Integer i = 0; i < n; i++) {
        lua_rawgeti(L, 1, i + 1);
        argv[i] = (char *)luaL_checkstring(L, -1); /* the table keeps it */
        lua_pop(L, 1);
    }
    argv[n] = NULL;
    lua_getfield(L, 2, "out");
    lua_getfield(L, 2, "err");
    lua_getfield(L, 2, "seconds");
    const char *out = luaL_optstring(L, -3, NULL), *err = luaL_optstring(L, -2, NULL), *how = NULL;
    double limit = luaL_checknumber(L, -1), begin = now(), killed = 0;
    lspl_host *host = lspl_host_of(L);
    pid_t parent = getpid(), pid = fork();
    int status = 0, gone = 0;
    if (pid < 0) return failed(L, "cannot start", argv[0]);
    if (pid == 0) become(argv, out, err, parent);
    setpgid(pid, pid); /* also here: whoever comes first */
    while (!gone) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        gone = ended == pid || (ended < 0 && errno != EINTR);
        if (gone) break;
        double at = now();
        if (!how && host->signal) how = "interrupt", end_group(pid, &killed, 0);
        else if (!how && at - begin > limit) how = "timeout", end_group(pid, &killed, 0);
        else if (killed > 0 && at - killed > GRACE) end_group(pid, &killed, 1);
        nanosleep(&(struct timespec){.tv_nsec = (at - begin < 0.5 ? 2 : 20) * 1000000}, NULL);
    }
    if (how) kill(-pid, SIGKILL); /* whatever of the group is left */
    lua_createtable(L, 0, 3);
    lua_pushstring(L, how ? how : WIFSIGNALED(status) ? "signal" : "exit");
    lua_setfield(L, -2, "how");
    lua_pushinteger(L, WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    lua_setfield(L, -2, "code");
    lua_pushnumber(L, now() - begin);
    lua_setfield(L, -2, "seconds");
    return 1;
}

/* core.system.interrupted() -> did SIGINT or SIGTERM come? From the first call on a signal no longer ends the script by
 * itself: whoever asks does so again, and ends in order. A second signal ends the process in any case. */
static int interrupted(lua_State *L) {
    lspl_host_of(L)->defers_signals = 1;
    lua_pushboolean(L, lspl_host_of(L)->signal != 0);
    return 1;
}

/* ---- files ---- */

static int write_whole(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t wrote = write(fd, bytes, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return 0;
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
}

/* core.system.append(path, text) -> true | nil, message, code: on the disk when it returns. */
static int append(lua_State *L) {
    size_t n;
    const char *path = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &n);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return failed(L, "cannot write to", path);
    int good = write_whole(fd, text, n), number = errno;
    close(fd);
    errno = number;
    if (!good) return failed(L, "cannot write to", path);
    lua_pushboolean(L, 1);
    return 1;
}

/* core.system.replace(path, text) -> true | nil, message, code: the old file or the new one, never a part. */
static int replace(lua_State *L) {
    size_t n;
    const char *path = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &n);
    const char *beside = lua_pushfstring(L, "%s.new", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return failed(L, "cannot write", path);
    int good = write_whole(fd, text, n), number = errno;
    if (close(fd) && good) good = 0, number = errno;
    if (good && rename(beside, path)) good = 0, number = errno;
    if (!good) unlink(beside);
    errno = number;
    if (!good) return failed(L, "cannot write", path);
    lua_pushboolean(L, 1);
    return 1;
}

/* core.system.make_folder(path) -> true | nil, message, code: with the folders above it; there already is good. */
static int make_folder(lua_State *L) {
    size_t n;
    const char *path = luaL_checklstring(L, 1, &n);
    char *part = lua_newuserdatauv(L, n + 1, 0);
    struct stat s;
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i]) continue;
        char kept = part[i];
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST) return failed(L, "cannot make the folder", part);
        part[i] = kept;
    }
    if (stat(path, &s) || !S_ISDIR(s.st_mode)) {
        errno = ENOTDIR;
        return failed(L, "cannot make the folder", path);
    }
    lua_pushboolean(L, 1);
    return 1;
}

/* core.system.lock(path) -> a value to keep as long as the lock is wanted | nil when another process has it. */
static int unlock(lua_State *L) {
    int *fd = lua_touserdata(L, 1);
    if (fd && *fd >= 0) close(*fd);
    if (fd) *fd = -1;
    return 0;
}

static int lock(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    int *fd = lua_newuserdatauv(L, sizeof *fd, 0);
    *fd = -1;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, unlock);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return failed(L, "cannot write to", path);
    if (flock(*fd, LOCK_EX | LOCK_NB)) {
        lua_pushnil(L);
        return 1;
    }
    return 1;
}

void lspl_open_process(lua_State *L) {
    static const luaL_Reg functions[] = {{"run_process", run_process}, {"interrupted", interrupted},
                                         {"append", append},           {"replace", replace},
                                         {"make_folder", make_folder}, {"lock", lock},
                                         {NULL, NULL}};
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    lua_setfield(L, -2, "system");
}
