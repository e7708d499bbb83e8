/* lsafetensors.c: spl.safetensors, weight files as Lua sees them.
 *
 *   file = spl.safetensors.open(path)      nil, message, code where the file cannot be opened; a broken one raises
 *   file = spl.safetensors.require(path)   raises in both cases
 *   file:names() file:info(name) file:load(name, tensor) file:table(name) file:release() */
#include <string.h>
#include "lspl.h"

static spl_safetensors **to_handle(lua_State *L) {
    return (spl_safetensors **)lspl_to_object(L, 1, LSPL_SAFETENSORS);
}

static void let_go(void *s) { spl_safetensors_close(s); }

/* The open file at stack 1; its path is its user value. */
static spl_safetensors *check_file(lua_State *L, const char *function) {
    spl_safetensors **handle = to_handle(L);
    if (!handle) lspl_bad_argument(L, function, "self", "a safetensors file (call it with a colon)", 1);
    if (!*handle) lspl_raisef(L, SPL_ERELEASED, "%s: the file was released", function);
    spl_safetensors *s = *handle;
    spl_safetensors_retain(s);
    lspl_hold(L, s, let_go);
    return s;
}

static const char *path_of(lua_State *L) {
    lua_getiuservalue(L, 1, 1);
    const char *path = lua_tostring(L, -1); /* the user value keeps it alive */
    lua_pop(L, 1);
    return path;
}

static int file_release(lua_State *L) {
    spl_safetensors **handle = to_handle(L);
    if (!handle) lspl_bad_argument(L, "safetensors:release", "self", "a safetensors file", 1);
    spl_safetensors *s = *handle;
    *handle = NULL;
    spl_safetensors_close(s);
    return 0;
}

static int open_file(lua_State *L, const char *function, int must) {
    if (lua_type(L, 1) != LUA_TSTRING) lspl_bad_argument(L, function, "path", "a string", 1);
    const char *path = lua_tostring(L, 1);
    spl_safetensors **handle = (spl_safetensors **)lspl_new_object(L, LSPL_SAFETENSORS);
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1);
    spl_status s = spl_safetensors_open(path, handle);
    if (s.code == SPL_EIO && !must) return lspl_push_nil_error(L, &s);
    lspl_check(L, s);
    return 1;
}

static int file_open(lua_State *L) {
    return open_file(L, "safetensors.open", 0);
}

static int file_require(lua_State *L) {
    return open_file(L, "safetensors.require", 1);
}

static int file_names(lua_State *L) {
    lspl_enter(L, 1);
    spl_safetensors *s = check_file(L, "safetensors:names");
    int n = spl_safetensors_count(s);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushstring(L, spl_safetensors_at(s, i)->name);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* The entry called by the string at stack 2; NULL when the file has none. */
static const spl_safetensors_entry *find_entry(lua_State *L, spl_safetensors *s, const char *function) {
    if (lua_type(L, 2) != LUA_TSTRING) lspl_bad_argument(L, function, "name", "a string", 2);
    return spl_safetensors_find(s, lua_tostring(L, 2));
}

static const spl_safetensors_entry *check_entry(lua_State *L, spl_safetensors *s, const char *function) {
    const spl_safetensors_entry *e = find_entry(L, s, function);
    if (!e) {
        lspl_raisef(L, SPL_EFORMAT, "%s: it has no tensor '%s' (it has %d others)", path_of(L), lua_tostring(L, 2),
                    spl_safetensors_count(s));
    }
    return e;
}

static int file_info(lua_State *L) {
    lspl_enter(L, 2);
    spl_safetensors *s = check_file(L, "safetensors:info");
    const spl_safetensors_entry *e = find_entry(L, s, "safetensors:info");
    if (!e) return 0;
    lua_createtable(L, 0, 2);
    lua_pushstring(L, spl_dtype_name(e->dtype));
    lua_setfield(L, -2, "dtype");
    lua_createtable(L, e->ndim, 0);
    for (int d = 0; d < e->ndim; d++) {
        lua_pushinteger(L, e->shape[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    return 1;
}

/* "[512, 64]" onto the stack. */
static const char *push_shape(lua_State *L, int ndim, const int64_t *shape) {
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    luaL_addchar(&b, '[');
    for (int d = 0; d < ndim; d++) {
        if (d) luaL_addstring(&b, ", ");
        lua_pushinteger(L, shape[d]);
        luaL_addvalue(&b);
    }
    luaL_addchar(&b, ']');
    luaL_pushresult(&b);
    return lua_tostring(L, -1);
}

typedef struct reading {
    spl_safetensors *file;
    const spl_safetensors_entry *entry;
} reading;

static spl_status fetch(void *ctx, size_t at, size_t n, void *into) {
    const reading *r = ctx;
    return spl_safetensors_read(r->file, r->entry, at, n, into);
}

/* Takes this rank's part of a tensor straight out of the file. */
static int file_load(lua_State *L) {
    lspl_enter(L, 3);
    spl_safetensors *s = check_file(L, "safetensors:load");
    const spl_safetensors_entry *e = check_entry(L, s, "safetensors:load");
    spl_tensor *t = lspl_check_tensor(L, 3, "safetensors:load", "tensor");
    int ndim = spl_tensor_ndim(t);
    if (ndim != e->ndim || memcmp(spl_tensor_shape(t), e->shape, (size_t)ndim * sizeof e->shape[0]) != 0) {
        const char *given = push_shape(L, e->ndim, e->shape), *needed = push_shape(L, ndim, spl_tensor_shape(t));
        lspl_raisef(L, SPL_EFORMAT, "%s: tensor '%s' has shape %s, but %s is needed", path_of(L), e->name, given,
                    needed);
    }
    reading r = {s, e};
    lspl_check(L, spl_tensor_load_from(t, fetch, &r, e->dtype));
    lua_settop(L, 3);
    return 1;
}

static double half_to_double(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude;
    if (exponent == 31) magnitude = fraction ? __builtin_nan("") : __builtin_inf();
    else if (exponent == 0) magnitude = fraction * 0x1p-24;
    else magnitude = (1024 + fraction) * 0x1p-25 * (double)(1u << exponent);
    return h >> 15 ? -magnitude : magnitude;
}

static void push_element(lua_State *L, spl_dtype t, const unsigned char *p) {
    union {
        double f64;
        float f32;
        uint16_t half;
        int64_t i64;
        int32_t i32;
        uint8_t u8;
        uint32_t bits;
    } v = {0};
    memcpy(&v, p, spl_dtype_size(t));
    switch (t) {
    case SPL_F64: lua_pushnumber(L, v.f64); break;
    case SPL_F32: lua_pushnumber(L, v.f32); break;
    case SPL_F16: lua_pushnumber(L, half_to_double(v.half)); break;
    case SPL_BF16:
        v.bits = (uint32_t)v.half << 16;
        lua_pushnumber(L, v.f32);
        break;
    case SPL_I64: lua_pushinteger(L, v.i64); break;
    case SPL_I32: lua_pushinteger(L, v.i32); break;
    case SPL_BOOL: lua_pushboolean(L, v.u8); break;
    default: lua_pushinteger(L, v.u8); break;
    }
}

/* Dimensions d and up of the entry as nested tables (a scalar as itself, no elements as {}); returns where it ends. */
static const unsigned char *push_nested(lua_State *L, const spl_safetensors_entry *e, int d, const unsigned char *p) {
    if (d == e->ndim) {
        push_element(L, e->dtype, p);
        return p + spl_dtype_size(e->dtype);
    }
    lua_newtable(L);
    for (int64_t i = 0; e->bytes && i < e->shape[d]; i++) {
        p = push_nested(L, e, d + 1, p);
        lua_rawseti(L, -2, i + 1);
    }
    return p;
}

static int file_table(lua_State *L) {
    lspl_enter(L, 2);
    spl_safetensors *s = check_file(L, "safetensors:table");
    const spl_safetensors_entry *e = check_entry(L, s, "safetensors:table");
    luaL_checkstack(L, SPL_MAX_DIMS + 4, "nested tables");
    unsigned char *bytes = lua_newuserdatauv(L, e->bytes ? e->bytes : 1, 0);
    lspl_check(L, spl_safetensors_read(s, e, 0, e->bytes, bytes));
    push_nested(L, e, 0, bytes);
    return 1;
}

static int file_tostring(lua_State *L) {
    spl_safetensors **handle = to_handle(L), *s = handle ? *handle : NULL;
    if (!handle) lspl_bad_argument(L, "tostring", "self", "a safetensors file", 1);
    if (s) lua_pushfstring(L, "safetensors %s: %d tensors", path_of(L), spl_safetensors_count(s));
    else lua_pushfstring(L, "safetensors %s: released", path_of(L));
    return 1;
}

void lspl_open_safetensors(lua_State *L) {
    static const luaL_Reg methods[] = {{"names", file_names}, {"info", file_info}, {"load", file_load},
                                       {"table", file_table}, {"release", file_release}, {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", file_release}, {"__close", file_release}, {"__tostring", file_tostring},
                                    {NULL, NULL}};
    static const luaL_Reg functions[] = {{"open", file_open}, {"require", file_require}, {NULL, NULL}};
    luaL_newmetatable(L, LSPL_SAFETENSORS);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);

    luaL_newlib(L, functions);
    lua_setfield(L, -2, "safetensors");
}
