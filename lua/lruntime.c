/* lruntime.c: spl.rank, size, barrier, counters and their like: this rank's runtime as scripts see it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "embed.h"
#include "host.h"
#include "lspl.h"

spl_runtime *lspl_runtime(lua_State *L) {
    lspl_host *host = lspl_host_of(L);
    if (!host || !host->runtime) {
        lspl_raisef(L, SPL_EENV, "this needs a running rank: start the script with `spl run`");
    }
    return host->runtime;
}

/* The script's own line: frames of embedded modules are passed over while there is another. */
void lspl_site(lua_State *L, char *site, size_t n) {
    lua_Debug frame;
    site[0] = 0;
    for (int level = 0; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline <= 0) continue;
        int embedded = strncmp(frame.source, "@spl/", 5) == 0;
        if (embedded && site[0]) continue;
        const char *name = frame.short_src, *slash = strrchr(name, '/');
        snprintf(site, n, "%s:%d", slash && !embedded ? slash + 1 : name, frame.currentline);
        if (!embedded) break;
    }
}

static void set_site(lua_State *L, spl_runtime *rt) {
    char site[128];
    lspl_site(L, site, sizeof site);
    spl_runtime_set_site(rt, site[0] ? site : NULL);
}

void lspl_collective(lua_State *L, const char *what) {
    spl_runtime *rt = lspl_runtime(L);
    if (lspl_finalizing(L)) {
        spl_status s = spli_error(SPL_EARG, "%s is collective and was called in a finalizer (__gc): ranks collect "
                                  "garbage at different times, so the others would wait for ever; call it in the "
                                  "script's own course", what);
        lspl_host_blame_finalizer(lspl_host_of(L), s.message);
        lspl_raise(L, &s);
    }
    set_site(L, rt);
}

void lspl_working(lua_State *L) {
    set_site(L, lspl_runtime(L));
}

static int l_rank(lua_State *L) {
    lua_pushinteger(L, spl_rank(lspl_runtime(L)));
    return 1;
}

static int l_size(lua_State *L) {
    lua_pushinteger(L, spl_size(lspl_runtime(L)));
    return 1;
}

/* spl.virtual() -> do the ranks take turns in one process? [local] */
static int l_virtual(lua_State *L) {
    lua_pushboolean(L, spl_virtual(lspl_runtime(L)));
    return 1;
}

static int l_threads(lua_State *L) {
    lua_pushinteger(L, spl_threads(lspl_runtime(L)));
    return 1;
}

static int l_synchronize(lua_State *L) {
    lspl_check(L, spl_synchronize(lspl_runtime(L)));
    return 0;
}

static int l_barrier(lua_State *L) {
    lspl_collective(L, "barrier");
    lspl_check(L, spl_barrier(lspl_runtime(L)));
    return 0;
}

/* spl.max(x, ...): each value agreed over the world; integers stay integers, exactly, where all ranks give some. */
static int agree(lua_State *L, const char *what, char op) {
    enum { MOST = 16 };
    int n = lua_gettop(L);
    spl_number values[MOST];
    if (n < 1 || n > MOST) return lspl_raisef(L, SPL_EARG, "%s: takes 1 to %d numbers, got %d", what, (int)MOST, n);
    for (int i = 0; i < n; i++) {
        if (lua_type(L, i + 1) != LUA_TNUMBER) return lspl_bad_argument(L, what, "x", "a number", i + 1);
        values[i].whole = lua_isinteger(L, i + 1);
        values[i].integer = values[i].whole ? lua_tointeger(L, i + 1) : 0;
        values[i].value = lua_tonumber(L, i + 1);
    }
    lspl_collective(L, what);
    lspl_check(L, spl_agree_numbers(lspl_runtime(L), values, n, op));
    for (int i = 0; i < n; i++) {
        if (values[i].whole) lua_pushinteger(L, (lua_Integer)values[i].integer);
        else lua_pushnumber(L, values[i].value);
    }
    return n;
}

static int l_max(lua_State *L) {
    return agree(L, "max", '>');
}

static int l_min(lua_State *L) {
    return agree(L, "min", '<');
}

static int l_sum(lua_State *L) {
    return agree(L, "sum", '+');
}

/* spl.gather(text): the strings of all ranks, in rank order. */
static int l_gather(lua_State *L) {
    if (lua_type(L, 1) != LUA_TSTRING) return lspl_bad_argument(L, "gather", "text", "a string", 1);
    lspl_collective(L, "gather");
    spl_runtime *rt = lspl_runtime(L);
    size_t mine, size = (size_t)spl_size(rt);
    const char *text = lua_tolstring(L, 1, &mine);
    double longest = (double)mine;
    lspl_check(L, spl_agree_doubles(rt, &longest, 1, '>'));
    size_t width = (size_t)longest + sizeof mine; /* the length, then the text and padding */
    char *part = lua_newuserdatauv(L, width, 0), *all = lua_newuserdatauv(L, width * size, 0);
    memset(part, 0, width);
    memcpy(part, &mine, sizeof mine);
    memcpy(part + sizeof mine, text, mine);
    lspl_check(L, spl_gather_bytes(rt, part, width, all));
    lua_createtable(L, (int)size, 0);
    for (size_t i = 0; i < size; i++) {
        size_t n;
        memcpy(&n, all + i * width, sizeof n);
        lua_pushlstring(L, all + i * width + sizeof n, n);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

static void set_integer(lua_State *L, const char *key, int64_t value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_string(lua_State *L, const char *key, const char *value) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

static void push_by_category(lua_State *L, const int64_t *bytes) {
    lua_createtable(L, 0, 4);
    set_integer(L, "weights", bytes[SPL_MEM_WEIGHTS]);
    set_integer(L, "activations", bytes[SPL_MEM_ACTIVATIONS]);
    set_integer(L, "buffers", bytes[SPL_MEM_BUFFERS]);
    set_integer(L, "workspace", bytes[SPL_MEM_WORKSPACE]);
    lspl_record(L);
}

static void push_memory(lua_State *L, const spl_counters *c) {
    lua_createtable(L, 0, 2);
    push_by_category(L, c->bytes_now);
    lua_setfield(L, -2, "now");
    push_by_category(L, c->bytes_peak);
    lua_setfield(L, -2, "peak");
    lspl_record(L);
}

/* spl.counters(): {calls = , bytes = by collective and in `total`, comm_seconds, comm_exposed_seconds, gemm_flops,
 * attention_flops, attention_tiles, memory = {now = , peak = by category}}. */
static int l_counters(lua_State *L) {
    spl_counters c;
    spl_counters_get(lspl_runtime(L), &c);
    lua_createtable(L, 0, 8);
    const int64_t *source[2] = {c.comm_calls, c.comm_bytes};
    const char *name[2] = {"calls", "bytes"};
    for (int s = 0; s < 2; s++) {
        int64_t total = 0;
        lua_createtable(L, 0, SPL_COLL_KIND_COUNT + 1);
        for (int k = 0; k < SPL_COLL_KIND_COUNT; k++) {
            set_integer(L, spl_coll_name((spl_coll_kind)k), source[s][k]);
            total = spl_saturated_sum(total, source[s][k]);
        }
        set_integer(L, "total", total);
        lua_setfield(L, -2, name[s]);
    }
    set_number(L, "comm_seconds", c.comm_seconds);
    set_number(L, "comm_exposed_seconds", c.comm_exposed_seconds);
    set_integer(L, "gemm_flops", c.gemm_flops);
    set_integer(L, "attention_flops", c.attention_flops);
    set_integer(L, "attention_tiles", c.attention_tiles);
    push_memory(L, &c);
    lua_setfield(L, -2, "memory");
    lspl_record(L);
    return 1;
}

static int l_reset_counters(lua_State *L) {
    spl_counters_reset(lspl_runtime(L));
    return 0;
}

/* spl.memory(): bytes by category, {now = , peak = }. */
static int l_memory(lua_State *L) {
    spl_counters c;
    spl_counters_get(lspl_runtime(L), &c);
    push_memory(L, &c);
    return 1;
}

/* spl.live(): objects of core that are alive on this rank, and their sum. */
static int l_live(lua_State *L) {
    spl_counters c;
    spl_counters_get(lspl_runtime(L), &c);
    lua_createtable(L, 0, 5);
    set_integer(L, "tensors", c.live_tensors);
    set_integer(L, "storages", c.live_storages);
    set_integer(L, "meshes", c.live_meshes);
    set_integer(L, "blocks", c.live_blocks);
    set_integer(L, "total", c.live_tensors + c.live_storages + c.live_meshes + c.live_blocks);
    lspl_record(L);
    return 1;
}

/* spl.now(): seconds from an arbitrary start, never backwards. */
static int l_now(lua_State *L) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    lua_pushnumber(L, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    return 1;
}

static int l_host(lua_State *L) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    lua_pushstring(L, name);
    return 1;
}

/* core.process(): the number of this process, for modules. */
static int l_process(lua_State *L) {
    lua_pushinteger(L, getpid());
    return 1;
}

/* spl.check_collectives(on): whether ranks agree on each collective before data moves. */
static int l_check_collectives(lua_State *L) {
    if (lua_type(L, 1) != LUA_TBOOLEAN) return lspl_bad_argument(L, "check_collectives", "on", "a boolean", 1);
    spl_runtime_set_check(lspl_runtime(L), lua_toboolean(L, 1));
    return 0;
}

/* The text of an embedded file by its path ("spl/args.lua"), or nil. */
static int l_embedded(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    for (const lspl_embedded *f = lspl_embedded_files; f->path; f++) {
        if (strcmp(f->path, path) == 0) {
            lua_pushlstring(L, (const char *)f->bytes, f->size);
            return 1;
        }
    }
    lua_pushnil(L);
    return 1;
}

static int l_embedded_list(lua_State *L) {
    lua_newtable(L);
    lua_Integer i = 0;
    for (const lspl_embedded *f = lspl_embedded_files; f->path; f++) {
        lua_pushstring(L, f->path);
        lua_rawseti(L, -2, ++i);
    }
    return 1;
}

/* spl.nearest(word, list): the string of the list that `word` was probably meant to be, or nil. */
static int l_nearest(lua_State *L) {
    const char *word = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Integer n = (lua_Integer)lua_rawlen(L, 2), count = 0;
    const char **known = lua_newuserdatauv(L, sizeof *known * (size_t)(n + 1), 0);
    for (lua_Integer i = 1; i <= n; i++) {
        if (lua_rawgeti(L, 2, i) == LUA_TSTRING) known[count++] = lua_tostring(L, -1);
        lua_pop(L, 1); /* the table keeps the string */
    }
    known[count] = NULL;
    lua_pushstring(L, lspl_nearest(word, known));
    return 1;
}

void lspl_open_runtime(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"rank", l_rank}, {"size", l_size}, {"threads", l_threads}, {"virtual", l_virtual},
        {"synchronize", l_synchronize}, {"barrier", l_barrier}, {"max", l_max}, {"min", l_min},
        {"sum", l_sum}, {"gather", l_gather},
        {"counters", l_counters},
        {"reset_counters", l_reset_counters}, {"memory", l_memory}, {"live", l_live}, {"now", l_now},
        {"host", l_host}, {"process", l_process}, {"check_collectives", l_check_collectives}, {"nearest", l_nearest},
        {"embedded", l_embedded}, {"embedded_list", l_embedded_list}, {"record", lspl_as_record}, {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
    set_string(L, "version", SPL_VERSION);
}
