/* ltensor_values.c: values between tensors and Lua: nested tables, flat lists, bytes, single items, and the numbers of
 * a whole tensor (sum, norm, largest) in which every element counts once, however many ranks hold it. Host copies live
 * in userdata, so that an error on the way leaks nothing. */
#include <math.h>
#include <string.h>
#include "lspl.h"

static int is_integer(spl_dtype t) { return !spl_dtype_is_float(t); }

/* 64-bit host array of `n` elements, in a userdata on the stack: int64_t for integer dtypes, double for the rest. */
static void *push_host(lua_State *L, int64_t n) { return lua_newuserdatauv(L, (n ? (size_t)n : 1) * 8, 0); }

static spl_dtype host_dtype(spl_dtype t) { return is_integer(t) ? SPL_I64 : SPL_F64; }

double *lspl_read_doubles(lua_State *L, spl_tensor *t) {
    double *host = push_host(L, spl_tensor_local_count(t));
    lspl_check(L, spl_tensor_read(t, host, SPL_F64));
    return host;
}

int64_t *lspl_read_integers(lua_State *L, spl_tensor *t) {
    int64_t *host = push_host(L, spl_tensor_local_count(t));
    lspl_check(L, spl_tensor_read(t, host, SPL_I64));
    return host;
}

static int64_t product(const int64_t *shape, int ndim) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    return n;
}

/* ---- tables to host arrays */

typedef struct sink {
    lua_State *L;
    const char *function;
    spl_dtype dtype; /* of the tensor */
    void *host;
    int64_t at;
} sink;

/* The value on top of the stack becomes the next element. */
static void take_value(sink *s) {
    lua_State *L = s->L;
    int ok = 0;
    if (is_integer(s->dtype)) {
        int64_t v = 0;
        if (lua_isboolean(L, -1))
            v = lua_toboolean(L, -1), ok = 1;
        else if (lua_type(L, -1) == LUA_TNUMBER)
            v = (int64_t)lua_tointegerx(L, -1, &ok);
        if (ok) ((int64_t *)s->host)[s->at] = v;
    } else if (lua_type(L, -1) == LUA_TNUMBER) {
        ((double *)s->host)[s->at] = lua_tonumber(L, -1);
        ok = 1;
    }
    if (!ok) {
        const char *text = luaL_tolstring(L, -1, NULL);
        lspl_raisef(L, SPL_EARG, "%s: value %lld is %s, which is not %s", s->function, (long long)s->at + 1, text,
                    s->dtype == SPL_BOOL   ? "a boolean or an integer"
                    : is_integer(s->dtype) ? "an integer"
                                           : "a number");
    }
    s->at++;
}

/* The table on top of the stack, of `shape` from dimension `dim` on. */
static void take_nested(sink *s, const int64_t *shape, int ndim, int dim) {
    lua_State *L = s->L;
    if (!lua_istable(L, -1) || (int64_t)lua_rawlen(L, -1) != shape[dim]) {
        if (lua_istable(L, -1)) {
            lspl_raisef(L, SPL_EARG, "%s: a table of %lld entries where dimension %d has size %lld", s->function,
                        (long long)lua_rawlen(L, -1), dim + 1, (long long)shape[dim]);
        }
        lspl_raisef(L, SPL_EARG, "%s: a %s where dimension %d needs a table of %lld entries", s->function,
                    luaL_typename(L, -1), dim + 1, (long long)shape[dim]);
    }
    luaL_checkstack(L, 4, "too many dimensions");
    for (int64_t i = 0; i < shape[dim]; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        if (dim + 1 < ndim)
            take_nested(s, shape, ndim, dim + 1);
        else
            take_value(s);
        lua_pop(L, 1);
    }
}

/* Pushes a host array holding the values of the table at `index`: flat, or nested as `shape`. */
static void *push_values(lua_State *L, int index, const char *function, spl_dtype dtype, const int64_t *shape,
                         int ndim) {
    index = lua_absindex(L, index);
    if (!lua_istable(L, index)) lspl_bad_argument(L, function, "values", "a table of values", index);
    int64_t n = product(shape, ndim);
    sink s = {L, function, dtype, push_host(L, n), 0};
    lua_rawgeti(L, index, 1);
    int nested = ndim > 1 && lua_istable(L, -1);
    lua_pop(L, 1);
    lua_pushvalue(L, index);
    if (nested || (ndim > 0 && n == 0 && (int64_t)lua_rawlen(L, -1) == shape[0])) {
        if (n > 0) take_nested(&s, shape, ndim, 0);
    } else {
        if ((int64_t)lua_rawlen(L, -1) != n) {
            lspl_raisef(L, SPL_EARG, "%s: %lld values where the tensor has %lld", function,
                        (long long)lua_rawlen(L, -1), (long long)n);
        }
        for (int64_t i = 0; i < n; i++) {
            lua_rawgeti(L, -1, (lua_Integer)i + 1);
            take_value(&s);
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
    return s.host;
}

/* tensor:set(values) [local]: the GLOBAL value as a table, flat or nested, or a local tensor; this rank takes its part
 */
static int tensor_set(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:set", "self");
    int ndim = spl_tensor_ndim(t);
    const int64_t *shape = spl_tensor_shape(t);
    spl_dtype dtype = spl_tensor_dtype(t);
    void *host;
    if (lspl_is_tensor(L, 2)) {
        spl_tensor *from = lspl_check_tensor(L, 2, "tensor:set", "values");
        int same = !spl_tensor_mesh(from) && spl_tensor_ndim(from) == ndim;
        for (int i = 0; same && i < ndim; i++) same = spl_tensor_shape(from)[i] == shape[i];
        if (!same) {
            lspl_raisef(L, SPL_EARG,
                        "tensor:set: the source must be a tensor of this rank alone with the same global shape; "
                        "gather() or to_local() gives one, redistribute() moves between layouts");
        }
        host = push_host(L, spl_tensor_local_count(from));
        lspl_check(L, spl_tensor_read(from, host, host_dtype(dtype)));
    } else {
        host = push_values(L, 2, "tensor:set", dtype, shape, ndim);
    }
    lspl_check(L, spl_tensor_load(t, host, host_dtype(dtype)));
    lua_settop(L, 1);
    return 1;
}

/* tensor:set_local(values) [local]: this rank's part */
static int tensor_set_local(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:set_local", "self");
    spl_dtype dtype = spl_tensor_dtype(t);
    void *host = push_values(L, 2, "tensor:set_local", dtype, spl_tensor_local_shape(t), spl_tensor_ndim(t));
    lspl_check(L, spl_tensor_write(t, host, host_dtype(dtype)));
    lua_settop(L, 1);
    return 1;
}

/* spl.from_table(values [, dtype]) [local]: nested, or {shape = , data = } */
static int from_table(lua_State *L) {
    spl_dtype dtype = lua_isnoneornil(L, 2) ? SPL_F32 : lspl_dtype(L, 2, "from_table", "dtype");
    lua_settop(L, 1);
    if (!lua_istable(L, 1)) lspl_bad_argument(L, "from_table", "values", "a table of numbers", 1);
    int64_t shape[SPL_MAX_DIMS];
    int ndim = 0, source = 1;
    if (lua_getfield(L, 1, "data") != LUA_TNIL) {
        source = 2;
        lua_getfield(L, 1, "shape");
        ndim = lspl_shape(L, 3, "from_table", "shape", shape);
    } else { /* sizes as the first entries show; push_values checks all the others against them */
        lua_settop(L, 1);
        for (lua_pushvalue(L, 1); lua_istable(L, -1); lua_rawgeti(L, -1, 1)) {
            if (ndim == SPL_MAX_DIMS) {
                lspl_raisef(L, SPL_EARG, "from_table: more than %d levels of tables", (int)SPL_MAX_DIMS);
            }
            luaL_checkstack(L, 4, "too many dimensions");
            shape[ndim++] = (int64_t)lua_rawlen(L, -1);
        }
    }
    void *host = push_values(L, source, "from_table", dtype, shape, ndim);
    spl_tensor **out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_tensor_create_local(lspl_runtime(L), ndim, shape, dtype, out));
    lspl_check(L, spl_tensor_write(*out, host, host_dtype(dtype)));
    return 1;
}

/* ---- host arrays to tables */

static void push_value(lua_State *L, spl_dtype dtype, const void *host, int64_t at) {
    if (dtype == SPL_BOOL)
        lua_pushboolean(L, ((const int64_t *)host)[at] != 0);
    else if (is_integer(dtype))
        lua_pushinteger(L, (lua_Integer)((const int64_t *)host)[at]);
    else
        lua_pushnumber(L, ((const double *)host)[at]);
}

static void push_nested(lua_State *L, spl_dtype dtype, const void *host, const int64_t *shape, int ndim, int64_t at) {
    if (ndim == 0) {
        push_value(L, dtype, host, at);
        return;
    }
    luaL_checkstack(L, 3, "too many dimensions");
    lua_createtable(L, shape[0] < INT32_MAX ? (int)shape[0] : 0, 0);
    for (int64_t i = 0; i < shape[0]; i++) {
        push_nested(L, dtype, host, shape + 1, ndim - 1, at * shape[0] + i);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

enum { MOST_EMPTY = 1 << 20 };

static void *push_read(lua_State *L, spl_tensor *t) {
    void *host = push_host(L, spl_tensor_local_count(t));
    lspl_check(L, spl_tensor_read(t, host, host_dtype(spl_tensor_dtype(t))));
    return host;
}

/* tensor:to_table() [local]: the local part, nested */
static int tensor_to_table(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:to_table", "self");
    int64_t tables = 1; /* without elements there may be endless empty tables */
    const int64_t *local = spl_tensor_local_shape(t);
    for (int i = 0; i + 1 < spl_tensor_ndim(t) && local[i] > 0; i++) {
        if (__builtin_mul_overflow(tables, local[i], &tables)) tables = INT64_MAX;
    }
    if (spl_tensor_local_count(t) == 0 && tables > MOST_EMPTY) {
        lspl_raisef(L, SPL_ENOMEM, "tensor:to_table: the tensor has no elements, but %lld empty tables would say so; "
                    "its shape says the same", (long long)tables);
    }
    void *host = push_read(L, t);
    push_nested(L, spl_tensor_dtype(t), host, spl_tensor_local_shape(t), spl_tensor_ndim(t), 0);
    return 1;
}

/* tensor:flat() [local]: the local part, one list */
static int tensor_flat(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:flat", "self");
    int64_t n = spl_tensor_local_count(t);
    void *host = push_read(L, t);
    push_nested(L, spl_tensor_dtype(t), host, &n, 1, 0);
    return 1;
}

/* tensor:to_bytes() [local]: the local part, dense, as its own dtype lies in memory */
static int tensor_to_bytes(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:to_bytes", "self");
    size_t n = (size_t)spl_tensor_local_count(t) * spl_dtype_size(spl_tensor_dtype(t));
    char *host = lua_newuserdatauv(L, n ? n : 1, 0);
    lspl_check(L, spl_tensor_read(t, host, spl_tensor_dtype(t)));
    lua_pushlstring(L, host, n);
    return 1;
}

/* tensor:item(i, j, ...) [local]: one element of the local part; no indices where there is only one */
static int tensor_item(lua_State *L) {
    const int given = lua_gettop(L) - 1;
    lspl_enter(L, given < 0 ? 1 : given + 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:item", "self");
    int ndim = spl_tensor_ndim(t);
    const int64_t *local = spl_tensor_local_shape(t);
    int64_t at[SPL_MAX_DIMS] = {0};
    if (given == 0 && spl_tensor_local_count(t) != 1) {
        lspl_raisef(L, SPL_EARG, "tensor:item: %lld elements here; say which one: item(i, j, ...) counted from 1",
                    (long long)spl_tensor_local_count(t));
    }
    if (given != 0 && given != ndim) {
        lspl_raisef(L, SPL_EARG, "tensor:item: %d indices for a tensor of %d dimensions", given, ndim);
    }
    for (int i = 0; i < given; i++) {
        at[i] = lspl_integer(L, i + 2, "tensor:item", "index");
        if (at[i] < 1 || at[i] > local[i]) {
            lspl_raisef(L, SPL_EARG, "tensor:item: index %d is %lld; this rank holds 1 to %lld there", i + 1,
                        (long long)at[i], (long long)local[i]);
        }
        at[i]--;
    }
    spl_tensor **view = lspl_new_tensor(L);
    lspl_check(L, spl_tensor_local(t, view));
    for (int i = 0; i < ndim; i++) {
        spl_tensor **next = lspl_new_tensor(L);
        luaL_checkstack(L, 4, "too many dimensions");
        lspl_check(L, spl_tensor_narrow(*view, i, at[i], 1, next));
        view = next;
    }
    push_value(L, spl_tensor_dtype(t), push_read(L, *view), 0);
    return 1;
}

/* ---- numbers of the whole tensor */

/* A tensor in which no axis is partial and no two ranks hold the same part for want of a disjoint split: `t` itself,
 * or one moved to such a layout and pushed. */
static spl_tensor *push_disjoint(lua_State *L, spl_tensor *t) {
    spl_layout to = *spl_tensor_layout(t);
    int change = 0;
    for (int i = 0; i < to.naxes; i++) {
        spl_placement *p = &to.axes[i];
        int overlaps = p->place == SPL_SHARD && p->cover > 1;
        if (p->place != SPL_PARTIAL && !overlaps) continue;
        memset(p, 0, sizeof *p); /* replicate */
        change = 1;
    }
    if (!change) return t;
    spl_tensor **out = lspl_new_tensor(L);
    lspl_check(L, spl_redistribute(t, &to, out));
    lspl_account(L);
    return *out;
}

/* Statistics of a local tensor, or of a distributed one over all ranks ([collective] then). */
static spl_stats whole_stats(lua_State *L, const char *function) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, function, "self");
    spl_stats s = {0};
    if (!spl_tensor_mesh(t)) {
        lspl_check(L, spl_tensor_stats(t, &s));
        return s;
    }
    lspl_collective(L, function);
    t = push_disjoint(L, t);
    const spl_layout *l = spl_tensor_layout(t);
    int counts = 1; /* of ranks that hold the same, the one at coordinate 0 speaks */
    for (int i = 0; i < l->naxes; i++) {
        if (l->axes[i].place == SPL_REPLICATE && spl_mesh_coord(spl_tensor_mesh(t), i) != 0) counts = 0;
    }
    if (counts) lspl_check(L, spl_tensor_stats(t, &s));
    double sums[4] = {s.sum, s.sum_squares, (double)s.nan_count, (double)s.inf_count}, most = s.abs_max;
    lspl_check(L, spl_agree_doubles(lspl_runtime(L), sums, 4, '+'));
    lspl_check(L, spl_agree_doubles(lspl_runtime(L), &most, 1, '>'));
    s.sum = sums[0];
    s.sum_squares = sums[1];
    s.nan_count = (int64_t)sums[2];
    s.inf_count = (int64_t)sums[3];
    s.abs_max = most;
    return s;
}

static int tensor_norm(lua_State *L) {
    spl_stats s = whole_stats(L, "tensor:norm");
    lua_pushnumber(L, s.nan_count ? (double)NAN : s.inf_count ? (double)INFINITY : sqrt(s.sum_squares));
    return 1;
}

static int tensor_sum(lua_State *L) {
    spl_stats s = whole_stats(L, "tensor:sum");
    lua_pushnumber(L, s.nan_count ? (double)NAN : s.sum);
    return 1;
}

static int tensor_max_abs(lua_State *L) {
    spl_stats s = whole_stats(L, "tensor:max_abs");
    lua_pushnumber(L, s.nan_count ? (double)NAN : s.inf_count ? (double)INFINITY : s.abs_max);
    return 1;
}

static int tensor_stats(lua_State *L) {
    spl_stats s = whole_stats(L, "tensor:stats");
    lua_createtable(L, 0, 6);
    lua_pushnumber(L, s.sum);
    lua_setfield(L, -2, "sum");
    lua_pushnumber(L, s.sum_squares);
    lua_setfield(L, -2, "sum_squares");
    lua_pushnumber(L, s.abs_max);
    lua_setfield(L, -2, "max_abs");
    lua_pushinteger(L, (lua_Integer)s.nan_count);
    lua_setfield(L, -2, "nan");
    lua_pushinteger(L, (lua_Integer)s.inf_count);
    lua_setfield(L, -2, "inf");
    lspl_record(L);
    return 1;
}

void lspl_tensor_value_methods(lua_State *L) {
    static const luaL_Reg methods[] = {{"set", tensor_set},
                                       {"set_local", tensor_set_local},
                                       {"to_table", tensor_to_table},
                                       {"flat", tensor_flat},
                                       {"to_bytes", tensor_to_bytes},
                                       {"item", tensor_item},
                                       {"norm", tensor_norm},
                                       {"sum", tensor_sum},
                                       {"max_abs", tensor_max_abs},
                                       {"stats", tensor_stats},
                                       {NULL, NULL}};
    luaL_setfuncs(L, methods, 0);
}

void lspl_open_values(lua_State *L) {
    lua_pushcfunction(L, from_table);
    lua_setfield(L, -2, "from_table");
}
