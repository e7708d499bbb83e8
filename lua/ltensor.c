/* ltensor.c: the tensor object: making, fields, views, filling, redistribution, printing, release. Values in and out
 * of Lua tables and whole-tensor numbers are in ltensor_values.c. */
#include <stdio.h>
#include <string.h>
#include "lspl.h"

static const char *const names[] = {"shape",    "local_shape", "dtype",        "layout",    "mesh",     "ndim",
                                    "count",    "local_count", "bytes",        "randn",     "uniform",  "iota",
                                    "fill",     "set",         "set_local",    "to_local",  "to_table", "flat",
                                    "to_bytes", "gather",      "redistribute", "norm",      "sum",      "max_abs",
                                    "stats",    "item",        "narrow",       "transpose", "reshape",  "contiguous",
                                    "cast",     "clone",       "release",      "where",     "to_text",  NULL};

/* ---- memory */

enum { COLLECT_ABOVE = 64 << 20, HANDLE_BYTES = 2048 };

/* All tensor memory, and what handles weigh besides: many tiny tensors are a load too. */
static lua_Integer weight(lua_State *L) {
    spl_counters c;
    spl_counters_get(lspl_runtime(L), &c);
    lua_Integer sum = HANDLE_BYTES * (lua_Integer)c.live_tensors;
    for (int i = 0; i < 4; i++) sum += c.bytes_now[i];
    return sum;
}

void lspl_account(lua_State *L) {
    static const char key = 0; /* its address names the registry entry */
    lua_Integer now = weight(L), limit = COLLECT_ABOVE;
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &key) == LUA_TNUMBER) limit = lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (now <= limit || !lua_gc(L, LUA_GCISRUNNING, 0)) return;
    lua_gc(L, LUA_GCCOLLECT, 0);
    now = weight(L);
    lua_pushinteger(L, 2 * now > COLLECT_ABOVE ? 2 * now : COLLECT_ABOVE);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &key);
}

spl_tensor **lspl_new_tensor(lua_State *L) {
    lspl_account(L);
    return (spl_tensor **)lspl_new_object(L, LSPL_TENSOR);
}

static void let_go(void *t) { spl_tensor_release(t); }

spl_tensor *lspl_check_tensor(lua_State *L, int index, const char *function, const char *argument) {
    spl_tensor **p = (spl_tensor **)lspl_to_object(L, index, LSPL_TENSOR);
    if (!p) lspl_bad_argument(L, function, argument, "a tensor", index);
    if (!*p || spl_tensor_dropped(*p)) {
        lspl_raisef(L, SPL_ERELEASED,
                    "%s: argument '%s': this tensor was released; use it before release, or clone() it", function,
                    argument);
    }
    spl_tensor *t = *p;
    spl_tensor_retain(t);
    lspl_hold(L, t, let_go);
    return t;
}

spl_tensor *lspl_opt_tensor(lua_State *L, int index, const char *function, const char *argument) {
    return lua_isnoneornil(L, index) ? NULL : lspl_check_tensor(L, index, function, argument);
}

int lspl_is_tensor(lua_State *L, int index) { return lspl_to_object(L, index, LSPL_TENSOR) != NULL; }

/* :release(), __gc and __close. Views and whoever else holds the storage keep it; the last one frees it. */
static int tensor_release(lua_State *L) {
    spl_tensor **p = (spl_tensor **)lspl_to_object(L, 1, LSPL_TENSOR);
    if (!p) lspl_bad_argument(L, "tensor:release", "self", "a tensor", 1);
    spl_tensor *t = *p;
    *p = NULL;
    spl_tensor_release(t);
    return 0;
}

/* ---- making */

static const char *const options[] = {"shape", "dtype", "mesh", "layout", "category", NULL};

/* Pushes the tensor that the options at `index` describe. */
static spl_tensor *push_described(lua_State *L, int index, const char *function) {
    static const char *const categories[] = {"weights", "activations", NULL};
    spl_runtime *rt = lspl_runtime(L);
    if (!lua_istable(L, index)) {
        lspl_bad_argument(L, function, "options", "a table such as {shape = {2, 3}, dtype = \"f32\"}", index);
    }
    lspl_known_fields(L, index, function, options);
    int category = lspl_field_choice(L, index, function, "category", categories, 1);
    spl_dtype dtype = SPL_F32;
    if (lspl_raw_field(L, index, "dtype") != LUA_TNIL) dtype = lspl_dtype(L, -1, function, "dtype");
    int has_mesh = lspl_raw_field(L, index, "mesh") != LUA_TNIL;
    spl_mesh *mesh = has_mesh ? lspl_check_mesh(L, -1, function, "mesh") : NULL;
    int has_layout = lspl_raw_field(L, index, "layout") != LUA_TNIL;
    int64_t shape[SPL_MAX_DIMS] = {0};
    int ndim = 0;
    if (lspl_raw_field(L, index, "shape") == LUA_TNIL && has_layout && lspl_is_layout(L, -2)) {
        const spl_layout *l = lspl_check_layout(L, -2, function, "layout"); /* a layout object knows its shape */
        ndim = l->ndim;
        memcpy(shape, l->shape, sizeof shape);
    } else {
        ndim = lspl_shape(L, -1, function, "shape", shape);
    }
    if (has_layout && !mesh) {
        lspl_raisef(L, SPL_EARG,
                    "%s: a layout needs a mesh: add mesh = spl.mesh(...), or leave the layout out for a tensor of "
                    "this rank alone",
                    function);
    }
    spl_tensor **out = lspl_new_tensor(L);
    if (mesh) {
        spl_layout layout;
        spl_layout_replicated(&layout, spl_mesh_spec_of(mesh), ndim, shape);
        if (has_layout) lspl_layout_argument(L, -3, function, spl_mesh_spec_of(mesh), ndim, shape, &layout);
        spl_memory_category c = category == 0 ? SPL_MEM_WEIGHTS : SPL_MEM_ACTIVATIONS;
        LSPL_ALLOCATE(L, spl_tensor_create(rt, mesh, &layout, dtype, c, out));
    } else {
        LSPL_ALLOCATE(L, spl_tensor_create_local(rt, ndim, shape, dtype, out));
    }
    return *out;
}

/* spl.tensor{shape=, dtype=, mesh=, layout=, category=} [local]: contents undefined */
static int tensor_new(lua_State *L) {
    lspl_enter(L, 1);
    push_described(L, 1, "tensor");
    return 1;
}

static int tensor_zeros(lua_State *L) {
    lspl_enter(L, 1);
    lspl_check(L, spl_tensor_fill(push_described(L, 1, "zeros"), 0.0));
    return 1;
}

static int tensor_ones(lua_State *L) {
    lspl_enter(L, 1);
    lspl_check(L, spl_tensor_fill(push_described(L, 1, "ones"), 1.0));
    return 1;
}

/* ---- filling: each gives the tensor back */

static uint64_t opt_natural(lua_State *L, int index, const char *function, const char *argument, int64_t fallback) {
    int64_t v = lua_isnoneornil(L, index) ? fallback : lspl_integer(L, index, function, argument);
    if (v < 0)
        lspl_raisef(L, SPL_EARG, "%s: argument '%s' is %lld; it must be zero or more", function, argument,
                    (long long)v);
    return (uint64_t)v;
}

static int fill_random(lua_State *L, const char *function, spl_random_kind kind, const char *a_name,
                       const char *b_name) {
    lspl_enter(L, 5);
    spl_tensor *t = lspl_check_tensor(L, 1, function, "self");
    if (lua_isnoneornil(L, 2)) lspl_bad_argument(L, function, "seed", "an integer", 2);
    uint64_t seed = opt_natural(L, 2, function, "seed", 0), instance = opt_natural(L, 3, function, "instance", 0);
    double a = lua_isnoneornil(L, 4) ? 0.0 : lspl_number(L, 4, function, a_name);
    double b = lua_isnoneornil(L, 5) ? 1.0 : lspl_number(L, 5, function, b_name);
    if (kind == SPL_RANDOM_UNIFORM) b -= a; /* low, high -> low + width * draw */
    lspl_check(L, spl_tensor_random(t, kind, seed, instance, a, b));
    lua_settop(L, 1);
    return 1;
}

static int tensor_randn(lua_State *L) {
    return fill_random(L, "tensor:randn", SPL_RANDOM_NORMAL, "mean", "deviation");
}
static int tensor_uniform(lua_State *L) { return fill_random(L, "tensor:uniform", SPL_RANDOM_UNIFORM, "low", "high"); }

static int tensor_iota(lua_State *L) {
    lspl_enter(L, 1);
    lspl_check(L, spl_tensor_random(lspl_check_tensor(L, 1, "tensor:iota", "self"), SPL_RANDOM_IOTA, 0, 0, 0.0, 1.0));
    lua_settop(L, 1);
    return 1;
}

static spl_status repeat(void *ctx, size_t at, size_t n, void *into) {
    (void)at;
    for (size_t i = 0; i < n / sizeof(int64_t); i++) memcpy((char *)into + i * sizeof(int64_t), ctx, sizeof(int64_t));
    return spli_ok();
}

static int tensor_fill(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:fill", "self");
    double value = lspl_number(L, 2, "tensor:fill", "value");
    if (spl_tensor_dtype(t) == SPL_I64 && lua_isinteger(L, 2)) { /* a double does not hold each of them */
        int64_t exact = lua_tointeger(L, 2);
        lspl_check(L, spl_tensor_load_from(t, repeat, &exact, SPL_I64));
    } else {
        lspl_check(L, spl_tensor_fill(t, value));
    }
    lua_settop(L, 1);
    return 1;
}

/* ---- views and copies */

/* Whether two tensors share memory must not depend on how many ranks there are. So to_local, narrow and transpose
 * always give views, and what would copy on some ranks or layouts only has memory of its own always. */
static int push_own(lua_State *L, spl_tensor *t) {
    spl_tensor **out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_tensor_copy(t, out));
    return 1;
}

/* *out was made from t: gives it memory of its own where it has not. */
static int own(lua_State *L, spl_tensor *t, spl_tensor **out) {
    if (!spl_tensor_shares(*out, t)) return 1;
    spl_tensor *view = *out, *copy = NULL;
    LSPL_ALLOCATE(L, spl_tensor_copy(view, &copy));
    *out = copy;
    spl_tensor_release(view);
    return 1;
}

static int tensor_to_local(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:to_local", "self");
    lspl_check(L, spl_tensor_local(t, lspl_new_tensor(L)));
    return 1;
}

static int tensor_narrow(lua_State *L) {
    lspl_enter(L, 4);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:narrow", "self");
    int dim = lspl_dim(L, 2, "tensor:narrow", "dim", spl_tensor_ndim(t));
    int64_t start = lspl_integer(L, 3, "tensor:narrow", "start"),
            length = lspl_integer(L, 4, "tensor:narrow", "length");
    int64_t size = spl_tensor_shape(t)[dim];
    if (start < 1 || length < 0 || start - 1 > size || length > size - (start - 1)) {
        lspl_raisef(L, SPL_EARG,
                    "tensor:narrow: start %lld and length %lld do not fit dimension %d of size %lld; start counts "
                    "from 1",
                    (long long)start, (long long)length, dim + 1, (long long)size);
    }
    lspl_check(L, spl_tensor_narrow(t, dim, start - 1, length, lspl_new_tensor(L)));
    return 1;
}

static int tensor_transpose(lua_State *L) {
    lspl_enter(L, 3);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:transpose", "self");
    int a = lspl_dim(L, 2, "tensor:transpose", "a", spl_tensor_ndim(t));
    int b = lspl_dim(L, 3, "tensor:transpose", "b", spl_tensor_ndim(t));
    lspl_check(L, spl_tensor_transpose(t, a, b, lspl_new_tensor(L)));
    return 1;
}

static int tensor_reshape(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:reshape", "self"), **out;
    int64_t shape[SPL_MAX_DIMS];
    int ndim = lspl_shape(L, 2, "tensor:reshape", "shape", shape);
    out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_tensor_reshape(t, ndim, shape, out));
    return own(L, t, out);
}

static int tensor_contiguous(lua_State *L) {
    lspl_enter(L, 1);
    return push_own(L, lspl_check_tensor(L, 1, "tensor:contiguous", "self"));
}

static int tensor_cast(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:cast", "self"), **out;
    spl_dtype to = lspl_dtype(L, 2, "tensor:cast", "dtype");
    out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_tensor_cast(t, to, out));
    return own(L, t, out);
}

/* tensor:clone() [local]: same layout, memory of its own, dense */
static int tensor_clone(lua_State *L) {
    lspl_enter(L, 1);
    return push_own(L, lspl_check_tensor(L, 1, "tensor:clone", "self"));
}

/* tensor:redistribute(layout) [collective] */
static int tensor_redistribute(lua_State *L) {
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:redistribute", "self"), **out;
    if (!spl_tensor_mesh(t)) {
        lspl_raisef(L, SPL_EARG,
                    "tensor:redistribute: this tensor is of one rank alone; make it with spl.tensor{mesh = ...} to "
                    "spread it over ranks");
    }
    spl_layout to;
    lspl_layout_argument(L, 2, "tensor:redistribute", spl_mesh_spec_of(spl_tensor_mesh(t)), spl_tensor_ndim(t),
                         spl_tensor_shape(t), &to);
    lspl_collective(L, "redistribute");
    out = lspl_new_tensor(L);
    lspl_check(L, spl_redistribute(t, &to, out));
    own(L, t, out);
    lspl_account(L);
    return 1;
}

/* tensor:gather() [collective]: the whole value as a tensor of this rank alone, on every rank */
static int tensor_gather(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:gather", "self"), **whole, **out;
    if (!spl_tensor_mesh(t)) return push_own(L, t);
    spl_layout to;
    spl_layout_replicated(&to, spl_mesh_spec_of(spl_tensor_mesh(t)), spl_tensor_ndim(t), spl_tensor_shape(t));
    lspl_collective(L, "gather");
    whole = lspl_new_tensor(L);
    out = lspl_new_tensor(L);
    lspl_check(L, spl_redistribute(t, &to, whole));
    spl_status s = spl_tensor_local(*whole, out);
    spl_tensor_release(*whole);
    *whole = NULL;
    lspl_check(L, s);
    own(L, t, out);
    lspl_account(L);
    return 1;
}

/* Upvalue 1: the layout. Draws what every rank holds (spl/where.lua). */
static int where_tostring(lua_State *L) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "spl.where");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "layout");
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_call(L, 1, 1);
    return 1;
}

/* tensor:where() -> per dimension the segments that this rank holds; prints as a map of the mesh [local] */
static int tensor_where(lua_State *L) {
    lspl_enter(L, 1);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:where", "self");
    int ndim = spl_tensor_ndim(t);
    lua_createtable(L, ndim, 0);
    const int list = lua_gettop(L), layout = list + 1;
    if (spl_tensor_layout(t)) {
        lspl_push_layout(L, spl_tensor_layout(t), spl_tensor_mesh(t));
        for (int i = 0; i < ndim; i++) {
            lua_getfield(L, layout, "segments");
            lua_pushvalue(L, layout);
            lua_pushinteger(L, i + 1);
            lua_call(L, 2, 1);
            lua_rawseti(L, list, i + 1);
        }
        lua_createtable(L, 0, 1);
        lua_insert(L, layout);
        lua_pushcclosure(L, where_tostring, 1); /* takes the layout from the top */
        lua_setfield(L, layout, "__tostring");
        lua_setmetatable(L, list);
        return 1;
    }
    for (int i = 0; i < ndim; i++) { /* all of it */
        lua_createtable(L, 1, 0);
        if (spl_tensor_shape(t)[i]) {
            lua_createtable(L, 0, 3);
            lua_pushinteger(L, 1);
            lua_setfield(L, -2, "start");
            lua_pushinteger(L, (lua_Integer)spl_tensor_shape(t)[i]);
            lua_setfield(L, -2, "length");
            lua_pushinteger(L, 1);
            lua_setfield(L, -2, "stride");
            lua_rawseti(L, -2, 1);
        }
        lua_rawseti(L, list, i + 1);
    }
    return 1;
}

/* ---- printing */

static void add_shape(luaL_Buffer *b, const int64_t *shape, int ndim) {
    char text[24];
    luaL_addchar(b, '[');
    for (int i = 0; i < ndim; i++) {
        snprintf(text, sizeof text, "%s%lld", i ? ", " : "", (long long)shape[i]);
        luaL_addstring(b, text);
    }
    luaL_addchar(b, ']');
}

enum { CORNER = 4 };

typedef struct corner {
    const double *values; /* or integers, by dtype */
    const int64_t *integers;
    int ndim;
    int64_t shape[SPL_MAX_DIMS], local[SPL_MAX_DIMS]; /* of the corner; of the local part */
} corner;

/* Values of the corner, nested braces; "..." where there is more. */
static void add_corner(luaL_Buffer *b, const corner *c, int dim, int64_t at) {
    char text[40];
    if (dim == c->ndim) {
        if (c->integers) snprintf(text, sizeof text, "%lld", (long long)c->integers[at]);
        else snprintf(text, sizeof text, "%.4g", c->values[at]);
        luaL_addstring(b, text);
        return;
    }
    luaL_addchar(b, '{');
    for (int64_t i = 0; i < c->shape[dim]; i++) {
        if (i) luaL_addstring(b, dim == c->ndim - 1 ? ", " : ",\n");
        for (int k = 0; i && dim < c->ndim - 1 && k <= dim; k++) luaL_addchar(b, ' ');
        add_corner(b, c, dim + 1, at * c->shape[dim] + i);
    }
    if (c->local[dim] > c->shape[dim]) luaL_addstring(b, c->shape[dim] ? ", ..." : "...");
    luaL_addchar(b, '}');
}

/* A view of at most `outer` positions of each dimension, of the last two `rows` and `cols`; pushes it. */
static spl_tensor *push_corner(lua_State *L, spl_tensor *t, corner *c, int64_t outer, int64_t rows, int64_t cols) {
    spl_tensor **now = lspl_new_tensor(L);
    lspl_check(L, spl_tensor_local(t, now));
    c->ndim = spl_tensor_ndim(t);
    memcpy(c->local, spl_tensor_local_shape(t), sizeof c->local);
    for (int i = 0; i < c->ndim; i++) {
        int64_t most = i < c->ndim - 2 ? outer : i == c->ndim - 2 ? rows : cols;
        c->shape[i] = c->local[i] < most ? c->local[i] : most;
        if (c->shape[i] == c->local[i]) continue;
        spl_tensor **next = lspl_new_tensor(L);
        luaL_checkstack(L, 4, "too many dimensions");
        lspl_check(L, spl_tensor_narrow(*now, i, 0, c->shape[i], next));
        now = next;
    }
    return *now;
}

/* Shape, layout and the first values of this rank's part. */
static int push_text(lua_State *L, spl_tensor *t, int64_t outer, int64_t rows, int64_t cols) {
    corner c = {0};
    const char *layout = NULL;
    if (spl_tensor_layout(t)) {
        lspl_push_layout(L, spl_tensor_layout(t), spl_tensor_mesh(t));
        layout = luaL_tolstring(L, -1, NULL);
    }
    if (spli_backend_find(spl_backend_name(lspl_runtime(L)))->has_memory) {
        spl_tensor *view = push_corner(L, t, &c, outer, rows, cols);
        if (spl_dtype_is_float(spl_tensor_dtype(t))) c.values = lspl_read_doubles(L, view);
        else c.integers = lspl_read_integers(L, view);
    }
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    luaL_addstring(&b, "tensor ");
    luaL_addstring(&b, spl_dtype_name(spl_tensor_dtype(t)));
    luaL_addchar(&b, ' ');
    add_shape(&b, spl_tensor_shape(t), spl_tensor_ndim(t));
    if (layout) {
        luaL_addstring(&b, ", ");
        luaL_addstring(&b, layout);
        luaL_addstring(&b, ", here ");
        add_shape(&b, spl_tensor_local_shape(t), spl_tensor_ndim(t));
    } else {
        luaL_addstring(&b, ", local");
    }
    const int shown = c.values || c.integers;
    luaL_addstring(&b, shown ? "\n" : "\n(a backend without memory: no values)");
    if (shown) add_corner(&b, &c, 0, 0);
    luaL_pushresult(&b);
    return 1;
}

static int tensor_tostring(lua_State *L) {
    spl_tensor **p = (spl_tensor **)lspl_to_object(L, 1, LSPL_TENSOR);
    if (!p) lspl_bad_argument(L, "tostring", "self", "a tensor", 1);
    if (!*p || spl_tensor_dropped(*p)) {
        lua_pushliteral(L, "tensor (released)");
        return 1;
    }
    lspl_enter(L, 1);
    return push_text(L, lspl_check_tensor(L, 1, "tostring", "self"), 2, CORNER, CORNER);
}

/* tensor:to_text([{rows=, cols=}]) [local]: as print shows it, with more of the values */
static int tensor_to_text(lua_State *L) {
    enum { ALL_UP_TO = 1024, LARGER = 16 };
    static const char *const known[] = {"rows", "cols", NULL};
    lspl_enter(L, 2);
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor:to_text", "self");
    int64_t count = spl_tensor_local_count(t);
    int small = count > 0 && count <= ALL_UP_TO; /* of no elements there may be endless rows */
    int64_t rows = small ? ALL_UP_TO : LARGER, cols = rows;
    if (!lua_isnoneornil(L, 2)) {
        lspl_known_fields(L, 2, "tensor:to_text", known);
        rows = lspl_field_integer(L, 2, "tensor:to_text", "rows", rows);
        cols = lspl_field_integer(L, 2, "tensor:to_text", "cols", cols);
        if (rows < 0 || cols < 0) {
            lspl_raisef(L, SPL_EARG, "tensor:to_text: rows = %lld and cols = %lld; give how many to show at most, "
                        "zero or more", (long long)rows, (long long)cols);
        }
    }
    return push_text(L, t, small ? ALL_UP_TO : 2, rows, cols);
}

/* Operators that tensors do not have; upvalues: the sign, and what there is instead. */
static int tensor_operator(lua_State *L) {
    return lspl_raisef(L, SPL_EARG, "tensors have no operator %s; %s", lua_tostring(L, lua_upvalueindex(1)),
                       lua_tostring(L, lua_upvalueindex(2)));
}

/* Adds them to the metatable on top. */
static void add_operators(lua_State *L) {
    static const char ops[] = "there are spl.add(a, b), spl.linear(x, w) for x w^T, spl.norm, spl.embed and spl.nll; "
                              "other arithmetic goes over to_table() and set()";
    static const char order[] = "tensors are not ordered; compare numbers such as t:item(1) or t:norm()";
    static const char text[] = "tostring(t) or t:to_text() makes text of it";
    static const struct {
        const char *event, *sign, *instead;
    } list[] = {{"__add", "+", "spl.add(a, b) adds two of one shape, dtype and layout"},
                {"__sub", "-", ops},   {"__unm", "-", ops},      {"__mul", "*", ops},     {"__div", "/", ops},
                {"__mod", "%", ops},   {"__idiv", "//", ops},    {"__pow", "^", ops},     {"__lt", "<", order},
                {"__le", "<=", order}, {"__concat", "..", text}, {NULL, NULL, NULL}};
    for (int i = 0; list[i].event; i++) {
        lua_pushstring(L, list[i].sign);
        lua_pushstring(L, list[i].instead);
        lua_pushcclosure(L, tensor_operator, 2);
        lua_setfield(L, -2, list[i].event);
    }
}

static int tensor_length(lua_State *L) {
    return lspl_raisef(L, SPL_EARG,
                       "# of a tensor says nothing clear; use .count for the number of elements, .shape[1] for the "
                       "first size or .ndim");
}

/* ---- fields; upvalue 1: the methods */

static int tensor_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    lspl_enter(L, 2);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    spl_tensor *t = lspl_check_tensor(L, 1, "tensor", "self");
    int ndim = spl_tensor_ndim(t);
    if (!strcmp(key, "shape")) {
        lspl_push_int64s(L, spl_tensor_shape(t), ndim);
    } else if (!strcmp(key, "local_shape")) {
        lspl_push_int64s(L, spl_tensor_local_shape(t), ndim);
    } else if (!strcmp(key, "dtype")) {
        lua_pushstring(L, spl_dtype_name(spl_tensor_dtype(t)));
    } else if (!strcmp(key, "layout")) {
        if (spl_tensor_layout(t))
            lspl_push_layout(L, spl_tensor_layout(t), spl_tensor_mesh(t));
        else
            lua_pushnil(L);
    } else if (!strcmp(key, "mesh")) {
        if (spl_tensor_mesh(t))
            lspl_push_mesh(L, spl_tensor_mesh(t));
        else
            lua_pushnil(L);
    } else if (!strcmp(key, "ndim")) {
        lua_pushinteger(L, ndim);
    } else if (!strcmp(key, "count")) {
        lua_Integer n = 1;
        for (int i = 0; i < ndim; i++) n *= spl_tensor_shape(t)[i];
        lua_pushinteger(L, n);
    } else if (!strcmp(key, "local_count")) {
        lua_pushinteger(L, (lua_Integer)spl_tensor_local_count(t));
    } else if (!strcmp(key, "bytes")) {
        lua_pushinteger(L, (lua_Integer)(spl_tensor_local_count(t) * (int64_t)spl_dtype_size(spl_tensor_dtype(t))));
    } else {
        return lspl_unknown_field(L, "a tensor", 2, names);
    }
    return 1;
}

static int tensor_newindex(lua_State *L) {
    return lspl_raisef(L, SPL_EARG,
                       "a tensor's fields cannot be set (%s); use set(), fill() or randn() for its values",
                       luaL_tolstring(L, 2, NULL));
}

void lspl_open_tensor(lua_State *L) {
    static const luaL_Reg methods[] = {{"randn", tensor_randn},
                                       {"uniform", tensor_uniform},
                                       {"iota", tensor_iota},
                                       {"fill", tensor_fill},
                                       {"to_local", tensor_to_local},
                                       {"narrow", tensor_narrow},
                                       {"transpose", tensor_transpose},
                                       {"reshape", tensor_reshape},
                                       {"contiguous", tensor_contiguous},
                                       {"cast", tensor_cast},
                                       {"clone", tensor_clone},
                                       {"redistribute", tensor_redistribute},
                                       {"gather", tensor_gather},
                                       {"where", tensor_where},
                                       {"to_text", tensor_to_text},
                                       {"release", tensor_release},
                                       {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", tensor_release},        {"__close", tensor_release},
                                    {"__tostring", tensor_tostring}, {"__newindex", tensor_newindex},
                                    {"__len", tensor_length},        {NULL, NULL}};
    static const luaL_Reg functions[] = {{"tensor", tensor_new},
                                         {"zeros", tensor_zeros},
                                         {"ones", tensor_ones},
                                         {NULL, NULL}};
    luaL_newmetatable(L, LSPL_TENSOR);
    luaL_setfuncs(L, meta, 0);
    add_operators(L);
    luaL_newlib(L, methods);
    lspl_tensor_value_methods(L);
    lua_pushcclosure(L, tensor_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    luaL_setfuncs(L, functions, 0);
    lspl_open_values(L);
}
