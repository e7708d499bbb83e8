/* repl.c: the prompt on the side of the ranks: where lines come from (the front end's socket, or standard input), how
 * they go to all ranks, and how one is run so that it can be stopped and the session lives on. What a line means is
 * spl/repl.lua's.
 *
 * While a line runs, rank 0 gets SIGIO when the front end says something, which is to stop; the others learn it from
 * rank 0's messages, which a hook looks for now and then while Lua runs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "interrupt.h"
#include "lspl.h"
#include "repl.h"

enum { LOOK_EVERY = 200000 }; /* VM instructions: a few milliseconds */

typedef struct channel {
    int fd;               /* the front end; -1: standard input and output */
    int ended;
    volatile int running; /* a line: what comes now is to stop it */
    size_t used, most;    /* bytes that Lua has, and may have */
} channel;

/* The handler of a signal has no arguments; one rank of a process talks to the front end. */
static channel *volatile listening;

static channel *channel_of(lua_State *L) {
    channel *c = lspl_host_of(L)->repl;
    if (!c) lspl_raisef(L, SPL_EINTERNAL, "the prompt was not opened");
    return c;
}

/* ---- stopping */

static void take_stops(channel *c) {
    char head[LSPL_FRAME_HEAD];
    while (c->running) {
        ssize_t n = recv(c->fd, head, sizeof head, MSG_DONTWAIT);
        if (n < 0) return;
        lspl_host_stop_all(n == 0 ? SIGTERM : SIGINT); /* the front end is gone, or asks */
        if (n == 0) return;
    }
}

static void on_input(int number) {
    (void)number;
    int kept = errno;
    if (listening && listening->running) take_stops(listening);
    errno = kept;
}

static void look(lua_State *L, lua_Debug *frame) {
    (void)frame;
    lspl_host *host = lspl_host_of(L);
    if (spl_turn_stopped(host->runtime)) lspl_host_stop(host, SIGINT);
    lspl_host_answer(L);
    lspl_host_insist(L); /* does nothing when there is no reason */
}

/* ---- memory: Lua's own, so that a script that takes ever more meets an error before the machine does */

static void *capped(void *ud, void *p, size_t old, size_t n) {
    channel *c = ud;
    if (!p) old = 0;
    if (n == 0) {
        c->used -= old;
        free(p);
        return NULL;
    }
    if (n > old && c->used + (n - old) > c->most) return NULL;
    void *q = realloc(p, n);
    if (q) c->used += n - old;
    return q;
}

/* ---- the channel */

static void where(void *ctx, char *out, size_t n) {
    lspl_host *host = ctx;
    lua_State *L = host->running ? host->running : host->L;
    out[0] = 0;
    if (L) lspl_site(L, out, n);
}

static int connect_to(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* repl.open(): rank 0 connects to the front end, if there is one. -> is there? */
static int l_open(lua_State *L) {
    spl_runtime *rt = lspl_runtime(L);
    const char *path = getenv(LSPL_REPL_SOCKET);
    if (lspl_host_of(L)->repl) return lspl_raisef(L, SPL_EINTERNAL, "the prompt is open already");
    channel *c = calloc(1, sizeof *c); /* the host frees it when the state, whose memory it counts, is closed */
    if (!c) return lspl_raisef(L, SPL_ENOMEM, "out of memory while opening the prompt");
    if (!strcmp(spl_backend_name(rt), "null") && spl_size(rt) > 1 && !spl_virtual(rt)) {
        free(c);
        return lspl_raisef(L, SPL_EUSAGE, "with --backend null nothing moves between processes, lines neither; use "
                           "--virtual %d in place of several processes", spl_size(rt));
    }
    c->fd = -1;
    lspl_host_of(L)->repl = c;
    lspl_host_of(L)->at_prompt = LSPL_IDLE;
    if (spl_rank(rt) == 0 && path) {
        c->fd = connect_to(path);
        if (c->fd < 0) {
            return lspl_raisef(L, SPL_EENV, "rank 0 cannot reach the prompt that started it (%s); the first rank must "
                               "run on the host of the terminal", strerror(errno));
        }
        listening = c;
        struct sigaction action = {.sa_handler = on_input, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        sigaction(SIGIO, &action, NULL);
        fcntl(c->fd, F_SETOWN, getpid());
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_ASYNC);
    }
    size_t share = (size_t)(spl_memory_share(rt) / 2), least = (size_t)256 << 20;
    c->used = (size_t)lua_gc(L, LUA_GCCOUNT) * 1024 + (size_t)lua_gc(L, LUA_GCCOUNTB);
    c->most = c->used + (share > least ? share : least);
    lua_setallocf(L, capped, c);
    spl_runtime_note_origins(rt, where, lspl_host_of(L));
    lua_pushboolean(L, c->fd >= 0);
    return 1;
}

/* A chunk from standard input; 0 at its end. */
static int read_chunk(lua_State *L) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    lspl_chunk chunk = {0};
    while ((n = getline(&line, &room, stdin)) >= 0) {
        if (!lspl_chunk_add(&chunk, line, (size_t)n)) break;
        if (!lspl_wants_more(L, chunk.text, chunk.n)) break;
    }
    free(line);
    lua_pushlstring(L, chunk.text ? chunk.text : "", chunk.n);
    free(chunk.text);
    return chunk.n > 0;
}

/* repl.read() -> "line" or "complete", text; "over" when a rank has left the job; nil at the end. Rank 0. */
static int l_read(lua_State *L) {
    channel *c = channel_of(L);
    lspl_host *host = lspl_host_of(L);
    while (c->fd >= 0 && !c->ended) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        lspl_frame kind;
        char *text;
        size_t n;
        int ready = poll(&p, 1, 500);
        if (host->signal) break;
        if (spl_turn_stopped(host->runtime)) {
            lua_pushliteral(L, "over");
            return 1;
        }
        if (ready <= 0) continue;
        if (!lspl_frame_read(c->fd, &kind, &text, &n)) break;
        if (kind == LSPL_FRAME_STOP) { /* of a line that had ended by then */
            free(text);
            continue;
        }
        lua_pushstring(L, kind == LSPL_FRAME_LINE ? "line" : "complete");
        lua_pushlstring(L, text, n);
        free(text);
        return 2;
    }
    if (c->fd >= 0) return 0;
    lua_pushliteral(L, "line");
    return read_chunk(L) ? 2 : 0;
}

/* repl.write(kind, text): kind is a frame's letter. Without a front end only what is for people is shown. Rank 0. */
static int l_write(lua_State *L) {
    channel *c = channel_of(L);
    size_t n;
    const char *kind = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &n);
    if (c->fd >= 0) {
        c->ended |= !lspl_frame_send(c->fd, (lspl_frame)kind[0], text, n);
    } else if (kind[0] == LSPL_FRAME_OUT || kind[0] == LSPL_FRAME_ERR || kind[0] == LSPL_FRAME_BYE) {
        FILE *to = kind[0] == LSPL_FRAME_OUT ? stdout : stderr;
        fwrite(text, 1, n, to);
        fflush(to);
    }
    return 0;
}

/* ---- memory by the lines that made it */

static void take_origin(void *ctx, const char *site, const char *what, int category, int64_t bytes) {
    static const char *const categories[] = {"weights", "activations", "buffers", "workspace"};
    lua_State *L = ctx;
    lua_createtable(L, 0, 4);
    lua_pushstring(L, site);
    lua_setfield(L, -2, "site");
    lua_pushstring(L, what);
    lua_setfield(L, -2, "what");
    lua_pushstring(L, categories[category]);
    lua_setfield(L, -2, "category");
    lua_pushinteger(L, bytes);
    lua_setfield(L, -2, "bytes");
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

/* repl.memory() -> {site=, what=, category=, bytes=} of every piece of tensor memory that lives, the latest first */
static int l_memory(lua_State *L) {
    lua_newtable(L);
    spl_runtime_origins(lspl_runtime(L), take_origin, L);
    return 1;
}

/* ---- turns */

/* repl.begin([text]) -> the text that rank 0 gives, or nil when the session is over. [collective] */
static int l_begin(lua_State *L) {
    channel *c = channel_of(L);
    size_t n = 0, length;
    const char *given = lua_tolstring(L, 1, &n);
    char *text;
    spl_runtime_set_site(lspl_runtime(L), NULL);
    spl_status s = spl_turn_begin(lspl_runtime(L), given ? given : "", n, &text, &length);
    if (s.code == SPL_EINTERRUPT) lspl_raisef(L, SPL_EINTERRUPT, "interrupted by SIGTERM");
    lspl_check(L, s);
    if (!text) return 0;
    lspl_host_of(L)->at_prompt = 1;
    lua_pushlstring(L, text, length);
    free(text);
    if (c->fd >= 0) {
        c->running = 1;
        take_stops(c); /* what came before the handler could see it */
    }
    return 1;
}

static int note_trace(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    if (host->leaving || host->signal) return 1;
    luaL_traceback(L, L, NULL, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "spl.repl.trace");
    return 1;
}

/* repl.run(f, ...) -> true, results; or false, error, traceback. Whatever stops f is over then, but os.exit and
 * SIGTERM, which go on. */
static int l_run(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "spl.repl.trace");
    lua_pushcfunction(L, note_trace);
    lua_insert(L, 1);
    host->at_prompt = 0;
    lspl_host_hook(host, look, LOOK_EVERY);
    int failed = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 1);
    host->at_prompt = 1;
    if (host->leaving || host->signal == SIGTERM) {
        lua_pushnil(L);
        return lspl_rethrow(L);
    }
    lspl_host_hook(host, NULL, 0);
    lua_pushboolean(L, !failed);
    lua_replace(L, 1);
    if (!failed) return lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "spl.repl.trace");
    return 3;
}

typedef struct taken {
    char *text;
    size_t n;
} taken;

static void take(void *ctx, int rank, const char *bytes, size_t n) {
    taken *all = ctx;
    all[rank].text = malloc(n ? n : 1);
    if (!all[rank].text) return;
    memcpy(all[rank].text, bytes, n);
    all[rank].n = n;
}

/* repl.finish(code, text) -> on rank 0 what every rank said, {[rank] = text}. [collective] */
static int l_finish(lua_State *L) {
    channel *c = channel_of(L);
    lspl_host *host = lspl_host_of(L);
    size_t n;
    const char *code = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &n);
    int size = spl_size(host->runtime);
    spl_code how = SPL_OK;
    for (int k = SPL_OK; k <= SPL_EINTERNAL; k++)
        if (!strcmp(code, spl_code_name((spl_code)k))) how = (spl_code)k;
    taken *all = lua_newuserdatauv(L, sizeof *all * (size_t)size, 0);
    memset(all, 0, sizeof *all * (size_t)size);
    spl_status s = spl_turn_end(host->runtime, how, text, n, take, all);
    c->running = 0;
    host->at_prompt = LSPL_IDLE;
    int ends = host->signal == SIGTERM;
    if (!ends) lspl_host_go_on(host);
    lua_createtable(L, 0, size);
    for (int r = 0; r < size; r++) {
        if (all[r].text) {
            lua_pushlstring(L, all[r].text, all[r].n);
            lua_rawseti(L, -2, r);
        }
        free(all[r].text);
    }
    if (s.code != SPL_OK) lspl_raise(L, &s);
    if (ends) lspl_raisef(L, SPL_EINTERRUPT, "interrupted by SIGTERM");
    return spl_rank(host->runtime) == 0;
}

void lspl_open_repl(lua_State *L) {
    static const luaL_Reg functions[] = {{"open", l_open},   {"read", l_read}, {"write", l_write}, {"begin", l_begin},
                                         {"run", l_run},     {"finish", l_finish}, {"memory", l_memory}, {NULL, NULL}};
    luaL_newlib(L, functions);
    lua_setfield(L, -2, "repl");
}
