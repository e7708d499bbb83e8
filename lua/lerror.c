/* lerror.c: how core's errors become Lua's. The one file that raises; everything else returns a spl_status or calls
 * here.
 *
 * An error object is a table {code, message, rank, exit} whose metatable prints the message. It passes through pcall
 * as it is, so that scripts can look at err.code; the host turns an uncaught one into a traceback and an exit code. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "host.h"
#include "lspl.h"

#define LSPL_ERROR "spl.error"

static void push_error(lua_State *L, const spl_status *s) {
    lspl_host *host = lspl_host_of(L);
    int rank = s->rank;
    if (rank < 0) rank = host && host->runtime ? spl_rank(host->runtime) : 0;
    lua_createtable(L, 0, 4);
    lua_pushstring(L, spl_code_name(s->code));
    lua_setfield(L, -2, "code");
    lua_pushstring(L, s->message);
    lua_setfield(L, -2, "message");
    lua_pushinteger(L, rank);
    lua_setfield(L, -2, "rank");
    lua_pushinteger(L, spl_exit_code(s->code));
    lua_setfield(L, -2, "exit");
    if (host && host->runtime && spl_runtime_follows(host->runtime)) { /* not the cause */
        lua_pushboolean(L, s->code == SPL_EDISAGREE);
        lua_setfield(L, -2, "follows");
    }
    if (host && host->runtime && spl_exit_code(s->code) == 4 && spl_runtime_report(host->runtime)) {
        lua_pushstring(L, spl_runtime_report(host->runtime));
        lua_setfield(L, -2, "report");
        spl_runtime_drop_report(host->runtime);
    }
    luaL_setmetatable(L, LSPL_ERROR);
}

int lspl_raise(lua_State *L, const spl_status *s) {
    lspl_host *host = lspl_host_of(L);
    if (host && lspl_finalizing(L)) snprintf(host->finalizer_note, sizeof host->finalizer_note, "%s", s->message);
    push_error(L, s);
    return lua_error(L);
}

int lspl_raisef(lua_State *L, spl_code code, const char *format, ...) {
    spl_status s = {.code = code, .rank = -1};
    va_list args;
    va_start(args, format);
    vsnprintf(s.message, sizeof s.message, format, args);
    va_end(args);
    return lspl_raise(L, &s);
}

int lspl_push_nil_error(lua_State *L, const spl_status *s) {
    lua_pushnil(L);
    lua_pushstring(L, s->message);
    lua_pushstring(L, spl_code_name(s->code));
    return 3;
}

int lspl_bad_argument(lua_State *L, const char *function, const char *argument, const char *needed, int index) {
    const char *got = luaL_typename(L, index);
    char text[80];
    switch (lua_type(L, index)) {
    case LUA_TUSERDATA:
        if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) got = lua_tostring(L, -1);
        break;
    case LUA_TNUMBER: /* the value says more than the type; a copy is converted, not the caller's number */
        lua_pushvalue(L, index);
        snprintf(text, sizeof text, "%s", lua_tostring(L, -1));
        got = text;
        break;
    case LUA_TSTRING:
        snprintf(text, sizeof text, "'%.60s'", lua_tostring(L, index));
        got = text;
        break;
    case LUA_TNONE:
        got = "nothing";
        break;
    }
    return lspl_raisef(L, SPL_EARG, "%s: argument '%s': %s is needed, got %s", function, argument, needed, got);
}

int lspl_rethrow(lua_State *L) {
    return lua_error(L);
}

/* ---- what scripts see: spl.error ---- */

static int code_named(const char *name, spl_code *code) {
    for (int c = SPL_EARG; c <= SPL_EINTERNAL; c++) {
        if (strcmp(spl_code_name((spl_code)c), name) == 0) {
            *code = (spl_code)c;
            return 1;
        }
    }
    return 0;
}

/* spl.error{code = "usage", message = "..."}: raises; code is "argument" when absent. */
static int raise_from_lua(lua_State *L) {
    if (!lua_istable(L, 1)) return lspl_bad_argument(L, "error", "options", "a table {code = , message = }", 1);
    spl_code code = SPL_EARG;
    lua_getfield(L, 1, "code");
    if (!lua_isnil(L, -1) && !(lua_type(L, -1) == LUA_TSTRING && code_named(lua_tostring(L, -1), &code))) {
        return lspl_raisef(L, SPL_EARG, "error: there is no code '%s'; codes are usage, argument, memory, io, format, "
                           "released, numeric, environment, disagree, stall, interrupt, unsupported, internal",
                           luaL_tolstring(L, -1, NULL));
    }
    lua_getfield(L, 1, "message");
    if (lua_type(L, -1) != LUA_TSTRING) return lspl_bad_argument(L, "error", "message", "a string", -1);
    size_t n;
    const char *text = lua_tolstring(L, -1, &n);
    spl_status s = {.code = code, .rank = -1};
    for (size_t i = 0; i < n && i + 1 < sizeof s.message; i++) {
        s.message[i] = text[i];
        if (!text[i]) s.message[i] = '?'; /* else it would end there: names in files may hold zero bytes */
    }
    return lspl_raise(L, &s);
}

int lspl_raised_by_script(lua_State *L) {
    lua_Debug frame;
    if (!lua_getstack(L, 1, &frame)) return 0;
    lua_getinfo(L, "f", &frame);
    int same = lua_tocfunction(L, -1) == raise_from_lua;
    lua_pop(L, 1);
    return same;
}

/* spl.is_error(value): true for an error object of spl. */
static int is_error(lua_State *L) {
    luaL_checkany(L, 1);
    lua_pushboolean(L, lspl_is_error(L, 1));
    return 1;
}

static int error_tostring(lua_State *L) {
    lua_getfield(L, 1, "message");
    luaL_tolstring(L, -1, NULL);
    return 1;
}

int lspl_is_error(lua_State *L, int index) {
    if (!lua_istable(L, index) || !lua_getmetatable(L, index)) return 0;
    luaL_getmetatable(L, LSPL_ERROR);
    int same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same;
}

void lspl_open_error(lua_State *L) {
    if (luaL_newmetatable(L, LSPL_ERROR)) {
        lua_pushcfunction(L, error_tostring);
        lua_setfield(L, -2, "__tostring");
    }
    lua_pop(L, 1);
    lua_pushcfunction(L, raise_from_lua);
    lua_setfield(L, -2, "error");
    lua_pushcfunction(L, is_error);
    lua_setfield(L, -2, "is_error");
}
