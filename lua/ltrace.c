/* ltrace.c: spl.trace_start and its relatives: recording what ranks do into a file for Perfetto. */
#include "host.h"
#include "lspl.h"

/* Where the script of `ctx`, a host, stands. */
static void where(void *ctx, char *out, size_t n) {
    lspl_host *host = ctx;
    out[0] = 0;
    if (host->L && !lspl_finalizing(host->L)) lspl_site(host->L, out, n);
}

spl_status lspl_trace_start(lspl_host *host, int64_t most_events) {
    spl_trace_config config = {.most_events = most_events, .site = where, .ctx = host};
    return spl_trace_start(host->runtime, &config);
}

/* spl.trace_start{events = most of a rank} */
static int l_start(lua_State *L) {
    static const char *const known[] = {"events", NULL};
    int64_t most = 0;
    if (!lua_isnoneornil(L, 1)) {
        lspl_known_fields(L, 1, "trace_start", known);
        most = lspl_field_integer(L, 1, "trace_start", "events", 0);
    }
    lspl_runtime(L);
    lspl_collective(L, "trace_start");
    lspl_check(L, spl_barrier(lspl_runtime(L)));
    lspl_check(L, lspl_trace_start(lspl_host_of(L), most));
    return 0;
}

/* spl.trace_write(path): what rank 0 makes of it is everybody's. */
static int l_write(lua_State *L) {
    spl_runtime *rt = lspl_runtime(L);
    if (lua_type(L, 1) != LUA_TSTRING) return lspl_bad_argument(L, "trace_write", "path", "a string", 1);
    lspl_collective(L, "trace_write");
    lspl_check(L, spl_barrier(rt));
    spl_status s = spl_trace_write(rt, lua_tostring(L, 1), 0);
    double wrong = s.code == SPL_OK ? 0 : 1;
    lspl_check(L, spl_agree_doubles(rt, &wrong, 1, '>'));
    lspl_check(L, s);
    if (wrong != 0) return lspl_raisef(L, SPL_EIO, "trace_write: another rank could not write '%.200s'",
                                       lua_tostring(L, 1));
    return 0;
}

static int l_tracing(lua_State *L) {
    lua_pushboolean(L, spl_tracing(lspl_runtime(L)));
    return 1;
}

/* spl.trace_span(name, begin): from spl.now() = begin until now. */
static int l_span(lua_State *L) {
    if (lua_type(L, 1) != LUA_TSTRING) return lspl_bad_argument(L, "trace_span", "name", "a string", 1);
    double begin = lspl_number(L, 2, "trace_span", "begin");
    spl_trace_span(lspl_runtime(L), lua_tostring(L, 1), begin);
    return 0;
}

void lspl_open_trace(lua_State *L) {
    static const luaL_Reg functions[] = {{"trace_start", l_start}, {"trace_write", l_write}, {"tracing", l_tracing},
                                         {"trace_span", l_span},   {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
