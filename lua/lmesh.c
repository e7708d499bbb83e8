/* lmesh.c: spl.mesh("dp=2:data, tp=*:sequence"): named axes over the ranks. spl.mesh.parse gives the same as plain
 * data for any number of ranks, without communication. */
#include <string.h>
#include "lspl.h"

static const char *const fields[] = {"axes",       "size",           "spec",       "coord",     "release", "all_gather",
                                     "all_reduce", "reduce_scatter", "all_to_all", "broadcast", "shift",   NULL};

static void push_spec_text(lua_State *L, const spl_mesh_spec *spec) {
    char text[SPL_MAX_AXES * (SPL_NAME_BYTES + 48)];
    spl_mesh_format(spec, text, sizeof text);
    lua_pushstring(L, text);
}

static int64_t spec_size(const spl_mesh_spec *spec) {
    int64_t n = 1;
    for (int i = 0; i < spec->naxes; i++) n *= spec->axes[i].size;
    return n;
}

/* { {name=, size=, role=, coord=, hosts=}, ... }; coord and hosts only where there is a mesh. */
static void push_axes(lua_State *L, const spl_mesh_spec *spec, const spl_mesh *m) {
    lua_createtable(L, spec->naxes, 0);
    for (int i = 0; i < spec->naxes; i++) {
        lua_createtable(L, 0, 4);
        lua_pushstring(L, spec->axes[i].name);
        lua_setfield(L, -2, "name");
        lua_pushinteger(L, spec->axes[i].size);
        lua_setfield(L, -2, "size");
        lua_pushstring(L, spl_role_name(spec->axes[i].role));
        lua_setfield(L, -2, "role");
        if (m) {
            lua_pushinteger(L, spl_mesh_coord(m, i));
            lua_setfield(L, -2, "coord");
            lua_pushinteger(L, spl_mesh_hosts(m, i));
            lua_setfield(L, -2, "hosts");
        }
        lspl_record(L);
        lua_rawseti(L, -2, i + 1);
    }
    lspl_record(L);
}

static spl_mesh **new_mesh(lua_State *L) {
    return (spl_mesh **)lspl_new_object(L, LSPL_MESH);
}

void lspl_push_mesh(lua_State *L, spl_mesh *m) {
    spl_mesh **p = new_mesh(L);
    spl_mesh_retain(m);
    *p = m;
}

static spl_mesh **to_mesh(lua_State *L, int index) { return (spl_mesh **)lspl_to_object(L, index, LSPL_MESH); }

static void let_go(void *m) { spl_mesh_release(m); }

spl_mesh *lspl_check_mesh(lua_State *L, int index, const char *function, const char *argument) {
    spl_mesh **p = to_mesh(L, index);
    if (!p) lspl_bad_argument(L, function, argument, "a mesh", index);
    if (!*p) lspl_raisef(L, SPL_ERELEASED, "%s: argument '%s': this mesh was released", function, argument);
    spl_mesh *m = *p;
    spl_mesh_retain(m);
    lspl_hold(L, m, let_go);
    return m;
}

/* spl.mesh(text) [collective]: called as spl.mesh's __call, so the text is argument 2. */
static int mesh_call(lua_State *L) {
    if (lua_type(L, 2) != LUA_TSTRING)
        lspl_bad_argument(L, "mesh", "text", "a text such as \"dp=2:data, tp=*:sequence\"", 2);
    spl_runtime *rt = lspl_runtime(L);
    spl_mesh_spec spec;
    lspl_check(L, spl_mesh_parse(lua_tostring(L, 2), spl_size(rt), &spec));
    lspl_collective(L, "mesh");
    spl_mesh **p = new_mesh(L);
    lspl_check(L, spl_mesh_create(rt, &spec, p));
    return 1;
}

/* The list of ranks a host at `index`, as the host of each rank; the axes on top get `hosts`. */
static void add_hosts(lua_State *L, int index, const spl_mesh_spec *spec) {
    static const char f[] = "mesh.parse";
    int64_t size = spec_size(spec), rank = 0;
    if (!lua_istable(L, index)) lspl_bad_argument(L, f, "hosts", "a list: how many ranks each host has", index);
    if (size > 1 << 14) lspl_raisef(L, SPL_EARG, "%s: argument 'hosts' is for up to 16384 ranks", f);
    int *host_of = lua_newuserdatauv(L, sizeof *host_of * (size_t)size, 0);
    for (lua_Integer h = 1; rank < size; h++) {
        int kind = lua_rawgeti(L, index, h);
        int64_t n = kind == LUA_TNIL ? 0 : lspl_integer(L, -1, f, "hosts");
        if (n < 1 || n > size - rank) rank = size + 1;
        for (int64_t i = 0; i < n && rank < size; i++) host_of[rank++] = (int)h;
        lua_pop(L, 1);
    }
    if (rank != size || (lua_Integer)lua_rawlen(L, index) != host_of[size - 1])
        lspl_raisef(L, SPL_EARG, "%s: argument 'hosts': the ranks of all hosts must sum to the %lld of the mesh", f,
                    (long long)size);
    for (int a = 0; a < spec->naxes; a++) {
        lua_rawgeti(L, -2, a + 1);
        lua_pushinteger(L, spl_mesh_spans(spec, host_of, a));
        lua_setfield(L, -2, "hosts");
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

/* spl.mesh.parse(text, world [, hosts]) [local] */
static int mesh_parse(lua_State *L) {
    if (lua_type(L, 1) != LUA_TSTRING)
        lspl_bad_argument(L, "mesh.parse", "text", "a text such as \"tp=*:sequence\"", 1);
    int64_t world = lua_isnoneornil(L, 2) ? spl_size(lspl_runtime(L)) : lspl_integer(L, 2, "mesh.parse", "world");
    if (world < 1 || world > INT32_MAX) {
        lspl_raisef(L, SPL_EARG, "mesh.parse: argument 'world': %lld ranks; at least 1 is needed", (long long)world);
    }
    spl_mesh_spec spec;
    lua_settop(L, 3);
    lspl_check(L, spl_mesh_parse(lua_tostring(L, 1), (int)world, &spec));
    lua_createtable(L, 0, 3);
    push_axes(L, &spec, NULL);
    if (!lua_isnoneornil(L, 3)) add_hosts(L, 3, &spec);
    lua_setfield(L, -2, "axes");
    lua_pushinteger(L, (lua_Integer)spec_size(&spec));
    lua_setfield(L, -2, "size");
    push_spec_text(L, &spec);
    lua_setfield(L, -2, "spec");
    lspl_record(L);
    return 1;
}

/* spl.mesh.roles() [local]: the names of all roles, also of those that blocks refuse. */
static int mesh_roles(lua_State *L) {
    lua_createtable(L, SPL_ROLE_COUNT, 0);
    for (int r = SPL_ROLE_NONE + 1; r < SPL_ROLE_COUNT; r++) {
        lua_pushstring(L, spl_role_name((spl_role)r));
        lua_rawseti(L, -2, r - SPL_ROLE_NONE);
    }
    return 1;
}

int lspl_axis(lua_State *L, int index, const char *function, spl_mesh *m) {
    if (lua_type(L, index) != LUA_TSTRING) lspl_bad_argument(L, function, "axis", "the name of an axis", index);
    int axis = spl_mesh_find(m, lua_tostring(L, index));
    if (axis < 0) {
        push_spec_text(L, spl_mesh_spec_of(m));
        lspl_raisef(L, SPL_EARG, "%s: there is no axis '%s' in the mesh \"%s\"", function, lua_tostring(L, index),
                    lua_tostring(L, -1));
    }
    return axis;
}

static int mesh_coord(lua_State *L) {
    lspl_enter(L, 2);
    spl_mesh *m = lspl_check_mesh(L, 1, "mesh:coord", "self");
    lua_pushinteger(L, spl_mesh_coord(m, lspl_axis(L, 2, "mesh:coord", m)));
    return 1;
}

static int mesh_release(lua_State *L) {
    spl_mesh **p = to_mesh(L, 1);
    if (!p) lspl_bad_argument(L, "mesh:release", "self", "a mesh", 1);
    spl_mesh *m = *p;
    *p = NULL;
    spl_mesh_release(m);
    return 0;
}

static int mesh_tostring(lua_State *L) {
    spl_mesh **p = to_mesh(L, 1);
    if (p && *p)
        push_spec_text(L, spl_mesh_spec_of(*p));
    else
        lua_pushliteral(L, "mesh (released)");
    return 1;
}

static int mesh_eq(lua_State *L) {
    spl_mesh **a = to_mesh(L, 1), **b = to_mesh(L, 2);
    lua_pushboolean(L, a && b && *a == *b);
    return 1;
}

/* Upvalue 1: the methods. */
static int mesh_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    lspl_enter(L, 2);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    spl_mesh *m = lspl_check_mesh(L, 1, "mesh", "self");
    const spl_mesh_spec *spec = spl_mesh_spec_of(m);
    if (!strcmp(key, "axes"))
        push_axes(L, spec, m);
    else if (!strcmp(key, "size"))
        lua_pushinteger(L, (lua_Integer)spec_size(spec));
    else if (!strcmp(key, "spec"))
        push_spec_text(L, spec);
    else
        return lspl_unknown_field(L, "a mesh", 2, fields);
    return 1;
}

void lspl_open_mesh(lua_State *L) {
    static const luaL_Reg methods[] = {{"coord", mesh_coord}, {"release", mesh_release}, {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", mesh_release},
                                    {"__close", mesh_release},
                                    {"__tostring", mesh_tostring},
                                    {"__eq", mesh_eq},
                                    {NULL, NULL}};
    luaL_newmetatable(L, LSPL_MESH);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lspl_mesh_collectives(L);
    lua_pushcclosure(L, mesh_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);

    lua_createtable(L, 0, 1); /* spl.mesh: a function with a field */
    lua_pushcfunction(L, mesh_parse);
    lua_setfield(L, -2, "parse");
    lua_pushcfunction(L, mesh_roles);
    lua_setfield(L, -2, "roles");
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, mesh_call);
    lua_setfield(L, -2, "__call");
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "mesh");
}
