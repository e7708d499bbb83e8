/* host.c: one lua_State and one runtime a rank. How a run begins, how it is interrupted, and how all ranks end
 * together.
 *
 * The order at the end: collect garbage and close the state, so that failing finalizers count; tell the other ranks
 * how this one ended and learn how they did (the lowest failing rank prints the cause); close the runtime when all
 * have ended, else end the job. */
#include "host.h"
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "embed.h"
#include "interrupt.h"
#include "launch.h"
#include "lspl.h"
#include "repl.h"

lspl_host *lspl_host_of(lua_State *L) {
    return *(lspl_host **)lua_getextraspace(L); /* coroutines inherit it */
}

int lspl_finalizing(lua_State *L) {
    return lua_gc(L, LUA_GCISRUNNING) == -1; /* the collector refuses every call while it runs finalizers */
}

void lspl_host_blame_finalizer(lspl_host *host, const char *message) {
    if (host->finalizer_failed) return; /* the first cause */
    host->finalizer_failed = 1;
    snprintf(host->finalizer_message, sizeof host->finalizer_message, "%s", message);
}

/* ---- warnings: Lua swallows errors of finalizers into these ---- */

static void on_warning(void *ud, const char *piece, int more) {
    lspl_host *host = ud;
    size_t used = strlen(host->warning);
    snprintf(host->warning + used, sizeof host->warning - used, "%s", piece);
    if (more) return;
    if (!host->script_warns && strncmp(host->warning, "error in ", 9) == 0) {
        if (host->leaving) { /* os.exit in a finalizer is no failure */
            host->warning[0] = 0;
            return;
        }
        int noted = host->finalizer_note[0] && strstr(host->warning, "not a string");
        char message[sizeof host->warning + 32];
        snprintf(message, sizeof message, "a finalizer failed: %s", noted ? host->finalizer_note : host->warning);
        lspl_host_blame_finalizer(host, message);
        host->finalizer_note[0] = 0;
    } else if (host->warning[0] && host->warning[0] != '@') {
        fflush(stdout);
        fprintf(stderr, "spl: rank %d: warning: %s\n", host->runtime ? spl_rank(host->runtime) : 0, host->warning);
    }
    host->warning[0] = 0;
}

/* What the global `warn` becomes: its words are the script's, whatever they say. */
static int warn(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    int n = lua_gettop(L);
    luaL_checkstring(L, 1);
    for (int i = 2; i <= n; i++) luaL_checkstring(L, i);
    host->script_warns = 1;
    for (int i = 1; i <= n; i++) lua_warning(L, lua_tostring(L, i), i < n);
    host->script_warns = 0;
    return 0;
}

/* ---- running ---- */

void lspl_open_bindings(lua_State *L) {
    static void (*const openers[])(lua_State *) = {
        lspl_open_hold, lspl_open_error, lspl_open_runtime, lspl_open_info, lspl_open_trace, lspl_open_mesh,
        lspl_open_layout, lspl_open_mask, lspl_open_tensor, lspl_open_ops, lspl_open_block, lspl_open_reference,
        lspl_open_safetensors, lspl_open_regex, lspl_open_repl, lspl_open_file, lspl_open_process,
        lspl_open_attention};
    lua_newtable(L);
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) openers[i](L);
    lspl_open_interrupt(L);
    lua_pushcfunction(L, warn);
    lua_setfield(L, -2, "warn");
}

static void load_embedded(lua_State *L, const char *path) {
    for (const lspl_embedded *f = lspl_embedded_files; f->path; f++) {
        if (strcmp(f->path, path)) continue;
        lua_pushfstring(L, "@%s", path);
        if (luaL_loadbufferx(L, (const char *)f->bytes, f->size, lua_tostring(L, -1), "t") != LUA_OK) lspl_rethrow(L);
        lua_remove(L, -2);
        return;
    }
    lspl_raisef(L, SPL_EINTERNAL, "the file '%s' is not inside this program", path);
}

/* 1 when a Lua function is running, so that a traceback says something. */
static int in_lua(lua_State *L) {
    lua_Debug frame;
    for (int level = 1; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "l", &frame);
        if (frame.currentline > 0) return 1;
    }
    return 0;
}

/* The line of the script, or of a module beside it, that led here; 0 where there is none. *through: whether the way
 * goes through modules inside the program. */
static int script_line(lua_State *L, char *out, size_t n, int *through) {
    lua_Debug frame;
    *through = 0;
    for (int level = 1; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline <= 0) continue;
        if (strncmp(frame.source, "@spl/", 5) == 0) {
            *through = 1;
            continue;
        }
        snprintf(out, n, "%s:%d", frame.short_src, frame.currentline);
        return 1;
    }
    return 0;
}

/* Errors of these codes are about what the program was given, not about how it went on: a traceback explains nothing.
 * Where in the script they came up does, but for a wrong command line (found by spl.args, or said by the script itself)
 * and for commands and shipped scripts, which are nothing to look into: there a sentence of whatever code that was
 * raised on purpose says it all, unless it tells of a fault. Returns 1 for such errors; `where` gets the line or "". */
static int about_input(lua_State *L, lspl_host *host, char *where, size_t n) {
    static const char *const codes[] = {"usage", "environment", "io", "format", NULL};
    const lspl_options *o = host->options;
    const int shipped = !o->script || lspl_is_shipped(o->script);
    lua_getfield(L, 1, "code");
    const char *code = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    int i = 0, through;
    while (codes[i] && strcmp(codes[i], code)) i++;
    int said = lspl_raised_by_script(L), memory = strcmp(code, "memory") == 0;
    int fault = strcmp(code, "internal") == 0;
    lua_pop(L, 1);
    where[0] = 0;
    if (!codes[i]) return shipped && (said || memory) && !fault;
    int found = script_line(L, where, n, &through);
    int command_line = i < 2 && (said || through);
    if (!found || command_line || shipped) where[0] = 0;
    host->misused = i == 0 && !where[0];
    return 1;
}

enum { MESSAGE_BYTES = LSPL_TEXT_BYTES * 3 / 4, SHOWN_FIELDS = 4 }; /* a traceback follows the message */

/* A value as text, without asking its metamethods. */
static void plain_text(lua_State *L, int index, char *out, size_t n) {
    int type = lua_type(L, index);
    lua_pushvalue(L, index); /* a number is converted in place, which lua_next would not like */
    if (type == LUA_TNUMBER) snprintf(out, n, "%s", lua_tostring(L, -1));
    else if (type == LUA_TSTRING) snprintf(out, n, "'%s'", lua_tostring(L, -1));
    else if (type == LUA_TBOOLEAN) snprintf(out, n, "%s", lua_toboolean(L, -1) ? "true" : "false");
    else snprintf(out, n, "%s%s", type == LUA_TNIL ? "" : "a ", lua_typename(L, type));
    lua_pop(L, 1);
}

/* Pushes what is said of an error that is no text: its value; of a table, its fields. */
static void describe_value(lua_State *L) {
    char text[640], key[64], value[64];
    int type = lua_type(L, 1), shown = 0;
    plain_text(L, 1, value, sizeof value);
    size_t used = (size_t)snprintf(text, sizeof text, "the error is %s%s, not a message", value,
                                   type == LUA_TNUMBER || type == LUA_TNIL || type == LUA_TBOOLEAN ? "" : " value");
    if (type == LUA_TTABLE) {
        lua_pushnil(L);
        for (; lua_next(L, 1); lua_pop(L, 1)) {
            if (shown == SHOWN_FIELDS) continue;
            plain_text(L, -2, key, sizeof key);
            plain_text(L, -1, value, sizeof value);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s[%s] = %s", shown++ ? ", " : ": { ", key,
                                     value);
        }
    }
    lua_pushfstring(L, "%s%s", text, shown ? " }" : "");
}

/* Pushes what the error object at 1 says: its sentence and, of ranks that disagree or stall, its table. */
static void push_said(lua_State *L) {
    lua_getfield(L, 1, "message");
    luaL_tolstring(L, -1, NULL);
    if (lua_getfield(L, 1, "report") != LUA_TSTRING) {
        lua_pop(L, 1);
        return;
    }
    lua_pushfstring(L, "%s\n%s", lua_tostring(L, -2), lua_tostring(L, -1));
}

/* Message handler: writes the cause into the host while the stack still stands. */
static int note_cause(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    if (host->leaving) return 1;
    int quiet = !in_lua(L);
    char where[LUA_IDSIZE + 24] = "";
    if (lspl_is_error(L, 1)) {
        quiet |= about_input(L, host, where, sizeof where);
        push_said(L);
    } else if (lua_type(L, 1) == LUA_TSTRING || luaL_getmetafield(L, 1, "__tostring") != LUA_TNIL) {
        luaL_tolstring(L, 1, NULL);
    } else {
        describe_value(L);
    }
    int message = lua_gettop(L);
    if (!quiet) luaL_traceback(L, L, NULL, 1);
    size_t n;
    const char *text = lua_tolstring(L, message, &n);
    char cut[64] = "";
    if (n > MESSAGE_BYTES) snprintf(cut, sizeof cut, " ... (cut here: the message has %zu bytes)", n);
    snprintf(host->cause, sizeof host->cause, "%.*s%s%s%s", MESSAGE_BYTES, text, cut,
             !quiet ? "\n" : where[0] ? "\nat " : "", !quiet ? lua_tostring(L, -1) : where);
    lua_settop(L, 1);
    return 1;
}

static void push_arg_table(lua_State *L, const lspl_options *o) {
    lua_createtable(L, o->nargs, 1);
    lua_pushstring(L, o->script ? o->script : "spl");
    lua_rawseti(L, -2, 0);
    for (int i = 0; i < o->nargs; i++) {
        lua_pushstring(L, o->args[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setglobal(L, "arg");
}

/* Runs protected. Stack: options as light userdata. */
static int run_script(lua_State *L) {
    const lspl_options *o = lua_touserdata(L, 1);
    luaL_openlibs(L);
    push_arg_table(L, o);
    load_embedded(L, "spl/boot.lua");
    lspl_open_bindings(L);
    lua_pushstring(L, o->script);
    lua_pushboolean(L, o->strict);
    lua_call(L, 3, 0);
    if (o->script) {
        if (luaL_loadfilex(L, o->script, "t") != LUA_OK) {
            lspl_host_insist(L); /* opening a fifo waits for its writer */
            spl_status s = {.code = SPL_EARG, .rank = -1};
            const char *why = lua_tostring(L, -1); /* names the file, but where the file is no text at all */
            int binary = why && strstr(why, "attempt to load a binary chunk") == why;
            snprintf(s.message, sizeof s.message, "%s%s%s%s", binary ? o->script : "", binary ? ": " : "", why,
                     binary ? "; compiled Lua is not loaded, give the source" : "");
            return lspl_raise(L, &s);
        }
    } else {
        lua_getglobal(L, "require");
        lua_pushstring(L, o->module);
        lua_call(L, 1, 1);
        lua_getfield(L, -1, "main");
        lua_remove(L, -2);
    }
    for (int i = 0; i < o->nargs; i++) lua_pushstring(L, o->args[i]);
    lua_call(L, o->nargs, 0);
    return 0;
}

static int exit_code_of_error(lua_State *L) {
    if (!lspl_is_error(L, -1)) return 1;
    lua_getfield(L, -1, "exit");
    lua_Integer code = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return code >= 1 && code <= 4 ? (int)code : 1;
}

/* Runs, and closes the state; the exit code this rank would end with by itself. host->cause says why it is not 0. */
static int run_protected(lspl_host *host) {
    lua_State *L = host->L;
    lua_setwarnf(L, on_warning, host);
    lua_pushcfunction(L, note_cause);
    lua_pushcfunction(L, run_script);
    lua_pushlightuserdata(L, (void *)host->options);
    int failed = lua_pcall(L, 1, 0, 1);
    lua_sethook(L, NULL, 0, 0);
    lspl_interrupt_closing(host);
    int code = host->leaving ? host->leave_code : failed ? exit_code_of_error(L) : 0;
    if (failed && !host->leaving && !host->cause[0]) {
        snprintf(host->cause, sizeof host->cause, "not enough memory for Lua");
    }
    int left = host->leaving;
    lua_settop(L, 0);
    lua_gc(L, LUA_GCCOLLECT);
    lspl_interrupt_watch(host, 0);
    lua_close(L);
    host->L = NULL;
    lspl_interrupt_closing(host);
    if (host->leaving && !left && code == 0) code = host->leave_code; /* in a finalizer */
    if (code == 0 && host->finalizer_failed) {
        snprintf(host->cause, sizeof host->cause, "%s", host->finalizer_message);
        code = 1;
    }
    return code;
}

/* `how` as spl_runtime_finish gives it. */
static void say(const lspl_host *host, int code, int how) {
    char text[LSPL_TEXT_BYTES + 64] = "";
    int rank = host->runtime ? spl_rank(host->runtime) : host->sim_rank;
    int nobody = host->options->alone || host->misused; /* whichever rank it is */
    if (host->cause[0] && nobody) snprintf(text, sizeof text, "spl: %s\n", host->cause);
    else if (host->cause[0]) snprintf(text, sizeof text, "spl: rank %d: %s\n", rank, host->cause);
    lspl_report(how == 3 ? LSPL_END_FOLLOWS : how == 2 ? LSPL_END_INTERRUPTED : LSPL_END_OWN, code, text);
}

static lua_State *new_state(lspl_host *host) {
    lua_State *L = luaL_newstate();
    if (L) *(lspl_host **)lua_getextraspace(L) = host;
    return L;
}

/* All ranks are here. */
static int close_together(lspl_host *host, int code) {
    int leaked = 0, rank = spl_rank(host->runtime);
    spl_status s = spl_runtime_close(host->runtime, &leaked);
    if (code == 0 && leaked) {
        fprintf(stderr, "spl: rank %d: %d object%s never released: the script took __gc from them (debug.setmetatable, "
                        "or a metatable it changed); if it did not, spl has a fault\n", rank, leaked,
                leaked == 1 ? " was" : "s were");
    }
    if (code == 0 && s.code != SPL_OK) fprintf(stderr, "spl: rank %d: %s\n", rank, s.message);
    return code == 0 && (leaked || s.code != SPL_OK) ? 1 : code;
}

/* Rank and size of a job without memory come from the launcher too: nothing moves, so no MPI is needed. */
static spl_status open_runtime(lspl_host *host) {
    const lspl_options *o = host->options;
    spl_runtime_config config = {.timeout = o->timeout, .threads = o->threads, .interrupt = &host->signal,
                                 .check_collectives = o->check_collectives, .sim = host->sim,
                                 .sim_rank = host->sim_rank};
    if (o->backend) {
        spl_status found = spli_backend_open(o->backend, &config.backend);
        if (found.code != SPL_OK) return found;
        int dry = !host->sim && !config.backend->has_memory;
        if (dry && !lspl_launched(&config.dry_rank, &config.dry_size)) config.dry_size = 1;
    }
    return spl_runtime_open(&config, &host->runtime);
}

/* Whether rank 0 can write the file is known before any work starts. */
static spl_status begin_trace(lspl_host *host) {
    const char *path = host->options->trace;
    spl_status s = spli_ok();
    if (!path) return s;
    if (spl_rank(host->runtime) == 0) s = spl_trace_check_path(path);
    double wrong = s.code;
    SPL_TRY(spl_agree_doubles(host->runtime, &wrong, 1, '>'));
    SPL_TRY(s);
    if (wrong != 0) return spli_error((spl_code)wrong, "rank 0 cannot write the trace to '%.200s'", path);
    return lspl_trace_start(host, 0);
}

/* The trace of all ranks where all have come to the end; of a failed run that of the rank which says why, in case the
 * others do not. Returns the exit code. */
static int end_trace(lspl_host *host, int code, int speak, int all) {
    const char *path = host->options->trace;
    spl_status s = spli_ok();
    if (!path || !spl_tracing(host->runtime)) return code;
    if (speak && code && spl_size(host->runtime) > 1) s = spl_trace_write(host->runtime, path, 1);
    if (all && s.code == SPL_OK) s = spl_trace_write(host->runtime, path, 0);
    if (s.code == SPL_OK) return code;
    fprintf(stderr, "spl: rank %d: %s\n", spl_rank(host->runtime), s.message);
    return code ? code : spl_exit_code(s.code);
}

/* OpenBLAS takes a buffer a thread when it multiplies, and tries for ever where the address space is too small. */
static spl_status check_address_space(const lspl_host *host) {
    const unsigned long long base = 400ull << 20, each = 208ull << 20; /* buffer, arena and stack */
    struct rlimit limit;
    int threads = spl_threads(host->runtime);
    unsigned long long need = base + each * (unsigned long long)threads;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need) return spli_ok();
    return spli_error(SPL_EENV, "the address space is limited to %llu KiB, and %d thread%s need %llu; raise it "
                      "(ulimit -v)%s", (unsigned long long)limit.rlim_cur >> 10, threads, threads == 1 ? "" : "s",
                      need >> 10, threads > 1 ? ", or use --threads 1" : "");
}

static int run_host(lspl_host *host) {
    spl_status s = open_runtime(host);
    if (s.code == SPL_OK) {
        s = check_address_space(host);
        if (s.code != SPL_OK) {
            int leaked;
            spl_runtime_close(host->runtime, &leaked);
            host->runtime = NULL;
        }
    }
    if (s.code != SPL_OK) {
        int rank = host->sim_rank, size = 1;
        if (!host->sim) lspl_launched(&rank, &size);
        char text[SPL_MESSAGE_BYTES + 32];
        snprintf(text, sizeof text, "spl: rank %d: %s\n", rank, s.message);
        lspl_report(LSPL_END_OWN, spl_exit_code(s.code), text);
        return spl_exit_code(s.code);
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a line at a time, also when mpirun holds the other end */
    int code = 1, speak = 0, worst = 1, all = 0;
    s = begin_trace(host);
    host->L = s.code == SPL_OK ? new_state(host) : NULL;
    if (s.code != SPL_OK) {
        snprintf(host->cause, sizeof host->cause, "%s", s.message);
        code = spl_exit_code(s.code);
    } else if (!host->L) {
        snprintf(host->cause, sizeof host->cause, "not enough memory for Lua");
        code = 1;
    } else {
        lspl_interrupt_watch(host, 1);
        code = run_protected(host);
    }
    char why[SPL_MESSAGE_BYTES];
    if (lspl_output_broken(why, sizeof why) && code == 0) {
        snprintf(host->cause, sizeof host->cause, "%s", why);
        code = 1;
    }
    if (code && host->sim) lspl_interrupt_give_way(host);
    spl_runtime_finish(host->runtime, code, 1.0, &speak, &worst, &all);
    if (speak && code) say(host, worst, speak);
    worst = end_trace(host, worst, speak, all);
    if (!all) {
        /* mpirun may throw away what it has not passed on yet when it is told to end the job */
        if (speak && !host->sim && !lspl_adopted()) nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
        spl_runtime_abort(host->runtime, worst);
    }
    return close_together(host, worst);
}

int lspl_host_run_rank(const lspl_options *options, spl_sim *sim, int rank) {
    lspl_host *host = calloc(1, sizeof *host);
    if (!host) return 1;
    host->options = options;
    host->sim = sim;
    host->sim_rank = rank;
    int code = run_host(host);
    free(host->repl);
    free(host);
    return code;
}

int lspl_host_run(const lspl_options *options) {
    return lspl_host_run_rank(options, NULL, 0);
}

int lspl_host_call(const char *module, char **args, int nargs) {
    lspl_options options = {.command = "help", .module = module, .args = args, .nargs = nargs};
    lspl_host *host = calloc(1, sizeof *host);
    int code = 1;
    if (host) host->options = &options, host->L = new_state(host);
    if (host && host->L) {
        code = run_protected(host);
        if (code && host->cause[0]) fprintf(stderr, "spl: %s\n", host->cause);
    }
    free(host);
    return code;
}
