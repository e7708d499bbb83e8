/* interrupt.c: stopping a script: by SIGINT or SIGTERM, by os.exit, and for the sake of other virtual ranks.
 *
 * A hook raises the error, again at each instruction, so that no pcall of the script keeps it. Lua's hooks belong to
 * one coroutine, therefore coroutines are resumed by functions that know which one runs, and set the hook in whatever
 * runs next. What is no Lua code (a long call, a child's end) gets a moment to come back; then the process ends itself.
 */
#include "interrupt.h"
#include <errno.h>
#include <lauxlib.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "launch.h"
#include "lspl.h"

enum {
    MOMENT = 1,         /* seconds for what is no Lua code to come back to it */
    LONG_MOMENT = 5,    /* for the ranks to end together, or for many virtual ones */
    PATIENCE = 2,       /* ticks of a second without a wait */
    INSTRUCTIONS = 20000 /* between two turns of the others */
};

/* A signal arrives at the process, so this must be reachable without arguments: the hosts whose scripts run now, one,
 * or as many as there are virtual ranks. */
static lspl_host *volatile targets;
static volatile sig_atomic_t signal_came; /* also for virtual ranks that begin later */
static char last_words[2][64];            /* for SIGINT, SIGTERM */
static int failing;                       /* a virtual rank has failed */

static struct {
    const spl_sim *sim;
    unsigned long turn;
    int still; /* ticks since the turn changed */
} ticks;

/* ---- hooks */

static void insist(lua_State *L, lua_Debug *frame) {
    (void)frame;
    lspl_host *host = lspl_host_of(L);
    if (!host->leaving && !host->signal) { /* a coroutine that was stopped, and is taken up again */
        lua_sethook(L, NULL, 0, 0);
        return;
    }
    lua_sethook(L, insist, LUA_MASKCOUNT, 1);
    if (host->leaving) lspl_raisef(L, SPL_EINTERRUPT, "os.exit(%d)", host->leave_code);
    lspl_raisef(L, SPL_EINTERRUPT, "interrupted by %s", host->signal == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void give_way(lua_State *L, lua_Debug *frame) {
    lspl_host *host = lspl_host_of(L);
    if (host->signal || host->leaving) {
        insist(L, frame);
        return;
    }
    if (host->gives_way == LSPL_ONCE) {
        host->gives_way = 0;
        lua_sethook(L, host->hook, host->hook ? LUA_MASKCOUNT : 0, host->hook_count);
    }
    spl_sim_give_way(host->sim);
}

/* Is what runs to be stopped? Between the lines of a prompt there is nothing that SIGINT could stop, and a sweep asks
 * for signals itself. */
static int stops(const lspl_host *host) {
    if (host->defers_signals) return host->leaving;
    return host->leaving || (host->signal && (!host->at_prompt || host->signal == SIGTERM));
}

/* Safe in a signal handler, as lua_sethook is. */
static void arm_state(const lspl_host *host, lua_State *L) {
    if (!L) return;
    if (stops(host)) lua_sethook(L, insist, LUA_MASKCOUNT, 1);
    else if (host->gives_way) lua_sethook(L, give_way, LUA_MASKCOUNT, INSTRUCTIONS);
    else if (host->hook) lua_sethook(L, host->hook, LUA_MASKCOUNT, host->hook_count);
}

static void arm(const lspl_host *host) {
    arm_state(host, host->L);
    arm_state(host, host->running);
}

/* Another rank wants to know which line the script is at (core's whereabouts.h). */
static void answer(lua_State *L, lua_Debug *frame) {
    (void)frame;
    lua_sethook(L, NULL, 0, 0);
    arm_state(lspl_host_of(L), L);
    lspl_host_answer(L);
}

void lspl_host_answer(lua_State *L) {
    char site[128];
    spl_runtime *rt = lspl_host_of(L)->runtime;
    if (!rt || !spl_runtime_asked(rt)) return;
    lspl_site(L, site, sizeof site);
    spl_runtime_answer(rt, site);
}

static void on_question(int number) {
    (void)number;
    for (lspl_host *host = targets; host; host = host->next) {
        lua_State *L = host->running ? host->running : host->L;
        if (L && !stops(host) && !host->gives_way) lua_sethook(L, answer, LUA_MASKCOUNT, 1);
    }
}

/* ---- signals */

void lspl_host_stop(lspl_host *host, int number) {
    if (host->at_prompt == LSPL_IDLE && number != SIGTERM) return;
    host->signal = number;
    arm(host);
}

void lspl_host_stop_all(int number) {
    for (lspl_host *host = targets; host; host = host->next) lspl_host_stop(host, number);
}

static void catch_signals(void);

static void on_signal(int number) {
    int prompt = targets && targets->repl && number == SIGINT; /* which outlives it, and asks again */
    if (!prompt) signal_came = number;
    lspl_host_stop_all(number);
    if (prompt) catch_signals();
    if (prompt) return;
    if (targets && targets->defers_signals) return;
    alarm(targets && targets->sim ? LONG_MOMENT : MOMENT);
}

void lspl_host_insist(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    if (host->leaving || host->signal) insist(L, NULL);
}

void lspl_host_hook(lspl_host *host, lua_Hook hook, int count) {
    host->hook = hook;
    host->hook_count = count;
    lua_sethook(host->L, hook, hook ? LUA_MASKCOUNT : 0, count);
    arm(host);
}

/* The moment is over. Only calls that are safe in a signal handler. */
static void end_at_once(void) {
    lspl_report_interrupt(last_words[signal_came == SIGTERM]);
    _exit(1);
}

static void on_tick(void) {
    int rank;
    unsigned long turn = spl_sim_turn(ticks.sim, &rank);
    ticks.still = turn == ticks.turn ? ticks.still + 1 : 0;
    ticks.turn = turn;
    if (ticks.still < PATIENCE) return;
    ticks.still = 0;
    for (lspl_host *host = targets; host; host = host->next) {
        if (host->sim_rank != rank) continue;
        if (!host->gives_way) host->gives_way = LSPL_ONCE;
        arm(host);
    }
}

static void on_alarm(int number) {
    (void)number;
    int kept = errno;
    if (signal_came) end_at_once();
    else if (ticks.sim) on_tick();
    errno = kept;
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void catch_signals(void) {
    void (*handler)(int) = targets ? on_signal : SIG_DFL;
    handle(SIGALRM, on_alarm, SA_RESTART);
    handle(SIGINT, handler, (int)SA_RESETHAND); /* no SA_RESTART: a blocking read comes back */
    handle(SIGTERM, handler, (int)SA_RESETHAND);
    handle(SIGURG, targets ? on_question : SIG_DFL, SA_RESTART);
}

void lspl_interrupt_watch(lspl_host *host, int on) {
    if (on) {
        int rank = host->runtime ? spl_rank(host->runtime) : 0;
        snprintf(last_words[0], sizeof last_words[0], "spl: rank %d: interrupted by SIGINT\n", rank);
        snprintf(last_words[1], sizeof last_words[1], "spl: rank %d: interrupted by SIGTERM\n", rank);
        host->next = targets;
        host->signal = signal_came;
        host->gives_way = failing ? LSPL_ALWAYS : 0;
        targets = host;
        arm(host);
    } else {
        lspl_host *volatile *at = &targets;
        while (*at && *at != host) at = (lspl_host *volatile *)&(*at)->next;
        if (*at) *at = host->next;
    }
    if (signal_came) return; /* the default is in force: a second one ends the process at once */
    catch_signals();
}

void lspl_host_go_on(lspl_host *host) {
    host->signal = 0;
    signal_came = 0;
    lua_sethook(host->L, NULL, 0, 0);
    arm(host);
    catch_signals(); /* the first one had given up the handler */
}

void lspl_interrupt_closing(const lspl_host *host) {
    if (host->signal) alarm(host->sim || !host->L ? LONG_MOMENT : MOMENT);
}

void lspl_interrupt_give_way(const lspl_host *failed) {
    failing = 1;
    for (lspl_host *host = targets; host; host = host->next) {
        if (host == failed) continue;
        host->gives_way = LSPL_ALWAYS;
        arm(host);
    }
}

void lspl_interrupt_ticks(const spl_sim *sim) {
    ticks.sim = sim;
    handle(SIGALRM, on_alarm, SA_RESTART);
    struct itimerval second = {.it_interval = {.tv_sec = sim != NULL}, .it_value = {.tv_sec = sim != NULL}};
    setitimer(ITIMER_REAL, &second, NULL);
}

/* ---- os.exit: spl.leave(code) unwinds to the host, which ends all ranks in order */

static int leave(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    int code = 0;
    if (lua_isboolean(L, 1)) code = lua_toboolean(L, 1) ? 0 : 1;
    else if (!lua_isnoneornil(L, 1)) code = (int)luaL_checkinteger(L, 1) & 255;
    host->leaving = 1;
    host->leave_code = code;
    arm(host);
    insist(L, NULL);
    return 0;
}

/* ---- coroutines: what Lua's own do, and the host knows which one runs */

static lua_State *check_coroutine(lua_State *L, int index) {
    lua_State *co = lua_tothread(L, index);
    if (!co) luaL_typeerror(L, index, "coroutine");
    return co;
}

/* Resumes co with the n values on top; leaves what it gave, or its error, on top. How many, or -1 for an error. */
static int resume(lua_State *L, lua_State *co, int n) {
    lspl_host *host = lspl_host_of(L);
    if (!lua_checkstack(co, n)) {
        lua_pushliteral(L, "too many arguments to resume");
        return -1;
    }
    lua_xmove(L, co, n);
    lua_State *before = host->running;
    host->running = co;
    arm_state(host, co);
    int got = 0, status = lua_resume(co, L, n, &got);
    host->running = before;
    arm_state(host, L);
    if (status != LUA_OK && status != LUA_YIELD) {
        lua_xmove(co, L, 1);
        return -1;
    }
    if (!lua_checkstack(L, got + 1)) {
        lua_pop(co, got);
        lua_pushliteral(L, "too many results to resume");
        return -1;
    }
    lua_xmove(co, L, got);
    return got;
}

static int coroutine_resume(lua_State *L) {
    lua_State *co = check_coroutine(L, 1);
    int got = resume(L, co, lua_gettop(L) - 1);
    lua_pushboolean(L, got >= 0);
    lua_insert(L, got >= 0 ? -(got + 1) : -2);
    return got >= 0 ? got + 1 : 2;
}

/* What coroutine.wrap gives: an error ends the coroutine and goes on, with the position added to a text. */
static int wrapped(lua_State *L) {
    lua_State *co = lua_tothread(L, lua_upvalueindex(1));
    int got = resume(L, co, lua_gettop(L));
    if (got >= 0) return got;
    int status = lua_status(co);
    if (status != LUA_OK && status != LUA_YIELD) {
        lspl_host *host = lspl_host_of(L);
        lua_State *before = host->running;
        lua_xmove(L, co, 1);
        host->running = co;
        status = lua_resetthread(co); /* closes its variables; the error stays, or becomes theirs */
        host->running = before;
        arm_state(host, L);
        lua_xmove(co, L, 1);
    }
    if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    return lspl_rethrow(L);
}

static int coroutine_wrap(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    lua_xmove(L, co, 1);
    lua_pushcclosure(L, wrapped, 1);
    return 1;
}

/* Upvalue: Lua's own. Variables to be closed run code of the coroutine. */
static int coroutine_close(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    lua_State *co = check_coroutine(L, 1), *before = host->running;
    lua_settop(L, 1);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    host->running = co;
    arm_state(host, co);
    int status = lua_pcall(L, 1, LUA_MULTRET, 0);
    host->running = before;
    arm_state(host, L);
    if (status == LUA_OK) return lua_gettop(L);
    luaL_where(L, 1);
    lua_insert(L, -2);
    if (lua_type(L, -1) == LUA_TSTRING) lua_concat(L, 2);
    return lspl_rethrow(L);
}

/* ---- os.execute: C's system() is deaf to SIGINT while it waits */

extern char **environ;

static int os_execute(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    const char *command = luaL_optstring(L, 1, NULL);
    if (!command) {
        lua_pushboolean(L, access("/bin/sh", X_OK) == 0);
        return 1;
    }
    char *words[] = {(char *)"sh", (char *)"-c", (char *)command, NULL};
    pid_t pid;
    int status = 0, error = posix_spawn(&pid, "/bin/sh", NULL, NULL, words, environ);
    if (error) {
        errno = error;
        return luaL_fileresult(L, 0, NULL);
    }
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) return luaL_fileresult(L, 0, NULL);
        if (!host->signal) continue;
        kill(pid, SIGTERM);
        insist(L, NULL);
    }
    errno = 0; /* else it would count */
    return luaL_execresult(L, status);
}

void lspl_open_interrupt(lua_State *L) {
    lua_pushcfunction(L, leave);
    lua_setfield(L, -2, "leave");
    lua_getglobal(L, LUA_OSLIBNAME);
    lua_pushcfunction(L, os_execute);
    lua_setfield(L, -2, "execute");
    lua_pop(L, 1);
    lua_getglobal(L, LUA_COLIBNAME);
    lua_pushcfunction(L, coroutine_resume);
    lua_setfield(L, -2, "resume");
    lua_pushcfunction(L, coroutine_wrap);
    lua_setfield(L, -2, "wrap");
    lua_getfield(L, -1, "close");
    lua_pushcclosure(L, coroutine_close, 1);
    lua_setfield(L, -2, "close");
    lua_pop(L, 1);
}
