/* lfields.c: option tables and plain arguments: typed, named in every message, unknown keys answered with the nearest.
 */
#include <stdio.h>
#include <string.h>
#include "lspl.h"

enum { LONGEST_NAME = 40 };

/* Edit distance (insertions, deletions, substitutions, neighbours swapped) of two short names; long ones are far away.
 */
static int distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST_NAME || nb > LONGEST_NAME) return LONGEST_NAME;
    int row[3][LONGEST_NAME + 1];
    for (size_t j = 0; j <= nb; j++) row[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && earlier[j - 2] + 1 < best) {
                best = earlier[j - 2] + 1;
            }
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

const char *lspl_nearest(const char *name, const char *const *known) {
    const char *found = NULL;
    int best = (int)strlen(name) / 3 + 1; /* a word that differs in more than a third is another word */
    for (; *known; known++) {
        int d = distance(name, *known);
        if (d < best) best = d, found = *known;
    }
    return found;
}

void lspl_join(char *out, size_t n, const char *const *names) {
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; names[i] && used < n; i++) {
        int w = snprintf(out + used, n - used, "%s%s", i ? ", " : "", names[i]);
        if (w < 0) return;
        used += (size_t)w;
    }
}

/* An option without a name, its key at -2: sizes alone are most likely a shape. */
static void nameless(lua_State *L, int index, const char *function, const char *const *known) {
    const char *key = lua_isinteger(L, -2) ? lua_pushfstring(L, "%I", lua_tointeger(L, -2)) : luaL_typename(L, -2);
    int i = 0, sizes = (int)lua_rawlen(L, index);
    while (known[i] && strcmp(known[i], "shape")) i++;
    if (known[i] && sizes >= 1 && sizes <= SPL_MAX_DIMS && lua_rawgeti(L, index, 1) == LUA_TNUMBER) {
        luaL_Buffer b;
        luaL_buffinit(L, &b);
        for (int k = 1; k <= sizes; k++) {
            if (k > 1) luaL_addstring(&b, ", ");
            lua_rawgeti(L, index, k);
            luaL_tolstring(L, -1, NULL);
            lua_remove(L, -2);
            luaL_addvalue(&b);
        }
        luaL_pushresult(&b);
        lspl_raisef(L, SPL_EARG, "%s: option number 1 has no name; write shape = { %.60s }", function,
                    lua_tostring(L, -1));
    }
    lspl_raisef(L, SPL_EARG, "%s: option number %s has no name; write name = value", function, key);
}

void lspl_known_fields(lua_State *L, int index, const char *function, const char *const *known) {
    index = lua_absindex(L, index);
    if (!lua_istable(L, index)) lspl_bad_argument(L, function, "options", "a table of named options", index);
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING) nameless(L, index, function, known);
        const char *key = lua_tostring(L, -2);
        int i = 0;
        while (known[i] && strcmp(known[i], key)) i++;
        if (known[i]) continue;
        const char *near = lspl_nearest(key, known);
        char all[400];
        lspl_join(all, sizeof all, known);
        if (near) lspl_raisef(L, SPL_EARG, "%s: unknown option '%s'; did you mean '%s'?", function, key, near);
        lspl_raisef(L, SPL_EARG, "%s: unknown option '%s'; known: %s", function, key, all);
    }
}

int lspl_unknown_field(lua_State *L, const char *object, int key_index, const char *const *known) {
    if (lua_type(L, key_index) != LUA_TSTRING) {
        return lspl_raisef(L, SPL_EARG, "%s has no field of type %s; its fields have names", object,
                           luaL_typename(L, key_index));
    }
    const char *key = lua_tostring(L, key_index), *near = lspl_nearest(key, known);
    char all[400];
    lspl_join(all, sizeof all, known);
    if (near) return lspl_raisef(L, SPL_EARG, "%s has no field '%s'; did you mean '%s'?", object, key, near);
    return lspl_raisef(L, SPL_EARG, "%s has no field '%s'; it has %s", object, key, all);
}

/* ---- plain arguments */

int64_t lspl_integer(lua_State *L, int index, const char *function, const char *argument) {
    int ok = lua_type(L, index) == LUA_TNUMBER;
    int64_t v = ok ? (int64_t)lua_tointegerx(L, index, &ok) : 0;
    if (!ok) lspl_bad_argument(L, function, argument, "an integer", index);
    return v;
}

double lspl_number(lua_State *L, int index, const char *function, const char *argument) {
    if (lua_type(L, index) != LUA_TNUMBER) lspl_bad_argument(L, function, argument, "a number", index);
    return lua_tonumber(L, index);
}

int lspl_dim(lua_State *L, int index, const char *function, const char *argument, int ndim) {
    int64_t d = lspl_integer(L, index, function, argument);
    if (d < 1 || d > ndim) {
        lspl_raisef(L, SPL_EARG, "%s: argument '%s': dimension %lld of a tensor of %d; dimensions count from 1",
                    function, argument, (long long)d, ndim);
    }
    return (int)d - 1;
}

spl_dtype lspl_dtype(lua_State *L, int index, const char *function, const char *argument) {
    spl_dtype t = SPL_F32;
    if (lua_type(L, index) != LUA_TSTRING)
        lspl_bad_argument(L, function, argument, "the name of a dtype, as \"f32\"", index);
    if (!spl_dtype_parse(lua_tostring(L, index), &t)) {
        const char *names[SPL_DTYPE_COUNT + 1] = {NULL};
        char all[120];
        for (int i = 0; i < SPL_DTYPE_COUNT; i++) names[i] = spl_dtype_name((spl_dtype)i);
        lspl_join(all, sizeof all, names);
        lspl_raisef(L, SPL_EARG, "%s: argument '%s': there is no dtype '%s'; use one of %s", function, argument,
                    lua_tostring(L, index), all);
    }
    return t;
}

int lspl_shape(lua_State *L, int index, const char *function, const char *argument, int64_t *shape) {
    index = lua_absindex(L, index);
    if (!lua_istable(L, index)) lspl_bad_argument(L, function, argument, "a list of sizes, as {2, 3},", index);
    lua_Unsigned n = lua_rawlen(L, index);
    if (n > SPL_MAX_DIMS) {
        lspl_raisef(L, SPL_EARG, "%s: argument '%s': %llu dimensions; at most %d are allowed", function, argument,
                    (unsigned long long)n, (int)SPL_MAX_DIMS);
    }
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        if (!lua_isinteger(L, -2)) {
            lspl_raisef(L, SPL_EARG, "%s: argument '%s': a list of sizes such as {2, 3} has no named fields", function,
                        argument);
        }
        lua_Integer at = lua_tointeger(L, -2);
        if (at < 1 || (lua_Unsigned)at > n) {
            lspl_raisef(L, SPL_EARG, "%s: argument '%s': a list of sizes has no holes, but this one has %d sizes and "
                        "one more at place %lld", function, argument, (int)n, (long long)at);
        }
    }
    for (lua_Unsigned i = 0; i < n; i++) {
        int ok = lua_rawgeti(L, index, (lua_Integer)i + 1) == LUA_TNUMBER;
        lua_Integer v = ok ? lua_tointegerx(L, -1, &ok) : 0;
        if (!ok || v < 0) {
            lspl_raisef(L, SPL_EARG, "%s: argument '%s': size %d is %s; sizes are integers, zero or more", function,
                        argument, (int)i + 1, luaL_tolstring(L, -1, NULL));
        }
        shape[i] = v;
        lua_pop(L, 1);
    }
    return (int)n;
}

/* ---- fields of an option table */

int lspl_raw_field(lua_State *L, int index, const char *key) {
    index = lua_absindex(L, index);
    lua_pushstring(L, key);
    return lua_rawget(L, index);
}

int64_t lspl_field_integer(lua_State *L, int index, const char *function, const char *key, int64_t fallback) {
    index = lua_absindex(L, index);
    int64_t v = lspl_raw_field(L, index, key) == LUA_TNIL ? fallback : lspl_integer(L, -1, function, key);
    lua_pop(L, 1);
    return v;
}

double lspl_field_number(lua_State *L, int index, const char *function, const char *key, double fallback) {
    index = lua_absindex(L, index);
    double v = lspl_raw_field(L, index, key) == LUA_TNIL ? fallback : lspl_number(L, -1, function, key);
    lua_pop(L, 1);
    return v;
}

int lspl_field_boolean(lua_State *L, int index, const char *function, const char *key, int fallback) {
    index = lua_absindex(L, index);
    int type = lspl_raw_field(L, index, key), v = fallback;
    if (type == LUA_TBOOLEAN)
        v = lua_toboolean(L, -1);
    else if (type != LUA_TNIL)
        lspl_bad_argument(L, function, key, "true or false", -1);
    lua_pop(L, 1);
    return v;
}

const char *lspl_field_string(lua_State *L, int index, const char *function, const char *key, const char *fallback) {
    index = lua_absindex(L, index);
    int type = lspl_raw_field(L, index, key);
    const char *v = fallback;
    if (type == LUA_TSTRING)
        v = lua_tostring(L, -1); /* kept alive by the table */
    else if (type != LUA_TNIL)
        lspl_bad_argument(L, function, key, "a string", -1);
    lua_pop(L, 1);
    return v;
}

static int choice(lua_State *L, spl_code code, int index, const char *function, const char *key,
                  const char *const *names, int fallback) {
    const char *v = lspl_field_string(L, index, function, key, NULL);
    if (!v) return fallback;
    for (int i = 0; names[i]; i++) {
        if (!strcmp(names[i], v)) return i;
    }
    char all[200];
    lspl_join(all, sizeof all, names);
    const char *near = lspl_nearest(v, names);
    return lspl_raisef(L, code, "%s: %s = '%s' is not known; use one of %s%s%s%s", function, key, v, all,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

int lspl_field_choice(lua_State *L, int index, const char *function, const char *key, const char *const *names,
                      int fallback) {
    return choice(L, SPL_EARG, index, function, key, names, fallback);
}

int lspl_field_way(lua_State *L, int index, const char *function, const char *key, const char *const *names,
                   int fallback) {
    return choice(L, SPL_EUSAGE, index, function, key, names, fallback);
}

/* ---- tables of results: plain tables that print a line a field */

static int record_tostring(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "spl.report");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "record");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

void lspl_record(lua_State *L) {
    if (luaL_newmetatable(L, "spl.record")) {
        lua_pushcfunction(L, record_tostring);
        lua_setfield(L, -2, "__tostring");
    }
    lua_setmetatable(L, -2);
}

int lspl_as_record(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lspl_record(L);
    return 1;
}

/* ---- lists of sizes: plain tables that print as "[1, 2048, 768]" and are equal when their entries are */

static int sizes_tostring(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_Buffer b;
    lua_Unsigned n = lua_rawlen(L, 1);
    luaL_buffinit(L, &b);
    luaL_addchar(&b, '[');
    for (lua_Unsigned i = 1; i <= n; i++) {
        if (i > 1) luaL_addstring(&b, ", ");
        lua_rawgeti(L, 1, (lua_Integer)i);
        luaL_tolstring(L, -1, NULL); /* the buffer takes the top; what it was made of lies below */
        lua_remove(L, -2);
        luaL_addvalue(&b);
    }
    luaL_addchar(&b, ']');
    luaL_pushresult(&b);
    return 1;
}

static int sizes_eq(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Unsigned n = lua_rawlen(L, 1);
    int same = n == lua_rawlen(L, 2);
    for (lua_Unsigned i = 1; same && i <= n; i++) {
        lua_rawgeti(L, 1, (lua_Integer)i);
        lua_rawgeti(L, 2, (lua_Integer)i);
        same = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
    }
    lua_pushboolean(L, same);
    return 1;
}

void lspl_push_int64s(lua_State *L, const int64_t *values, int n) {
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushinteger(L, (lua_Integer)values[i]);
        lua_rawseti(L, -2, i + 1);
    }
    if (luaL_newmetatable(L, "spl.sizes")) {
        lua_pushcfunction(L, sizes_tostring);
        lua_setfield(L, -2, "__tostring");
        lua_pushcfunction(L, sizes_eq);
        lua_setfield(L, -2, "__eq");
    }
    lua_setmetatable(L, -2);
}
