/* llayout.c: spl.layout("tp=shard(2)", mesh, {1, 8, 4}): who holds what, as plain data. The mesh may also be what
 * spl.mesh.parse gives, so that layouts of meshes that are not here can be looked at from one rank. Coordinates count
 * from 0 as ranks do; dimensions and the positions of segments count from 1. */
#include <stdio.h>
#include <string.h>
#include "lspl.h"

typedef struct layout_object {
    char type[LSPL_TYPE_BYTES];
    spl_layout layout;
    int placed; /* coords are this rank's */
    int coords[SPL_MAX_AXES];
} layout_object;

static const char *const fields[] = {"shape", "ndim", "segments", "local_shape", "describe", NULL};

static layout_object *new_object(lua_State *L) {
    return lspl_new_payload(L, LSPL_LAYOUT, sizeof(layout_object), 0);
}

static layout_object *to_layout(lua_State *L, int index) {
    return lspl_payload(L, index, LSPL_LAYOUT, sizeof(layout_object));
}

int lspl_is_layout(lua_State *L, int index) { return to_layout(L, index) != NULL; }

spl_layout *lspl_new_layout(lua_State *L) { return &new_object(L)->layout; }

void lspl_push_layout(lua_State *L, const spl_layout *layout, const spl_mesh *m) {
    layout_object *o = new_object(L);
    o->layout = *layout;
    spl_layout_retain(layout);
    if (!m) return;
    o->placed = 1;
    for (int i = 0; i < layout->naxes; i++) o->coords[i] = spl_mesh_coord(m, i);
}

static int layout_gc(lua_State *L) {
    layout_object *o = to_layout(L, 1);
    if (!o) return 0;
    spl_layout_release(&o->layout);
    o->layout.naxes = 0;
    return 0;
}

static layout_object *check_object(lua_State *L, int index, const char *function, const char *argument) {
    layout_object *o = to_layout(L, index);
    if (!o) lspl_bad_argument(L, function, argument, "a layout", index);
    return o;
}

spl_layout *lspl_check_layout(lua_State *L, int index, const char *function, const char *argument) {
    return &check_object(L, index, function, argument)->layout;
}

/* { axes = { {name=, size=}, ... } } as spl.mesh.parse gives it. */
static void spec_from_table(lua_State *L, int index, const char *function, spl_mesh_spec *spec) {
    index = lua_absindex(L, index);
    memset(spec, 0, sizeof *spec);
    lspl_raw_field(L, index, "axes");
    if (!lua_istable(L, -1)) lspl_bad_argument(L, function, "mesh", "a mesh or the table of spl.mesh.parse", index);
    lua_Unsigned n = lua_rawlen(L, -1);
    if (n > SPL_MAX_AXES) {
        lspl_raisef(L, SPL_EARG, "%s: a mesh of %d axes; at most %d are allowed", function, (int)n, (int)SPL_MAX_AXES);
    }
    for (lua_Unsigned i = 0; i < n; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        if (!lua_istable(L, -1)) lspl_bad_argument(L, function, "mesh", "axes that are tables {name=, size=}", -1);
        const char *name = lspl_field_string(L, -1, function, "name", NULL);
        int named = name && *name && strlen(name) < SPL_NAME_BYTES;
        if (named) strcpy(spec->axes[i].name, name); /* before anything else runs: the table may change */
        int64_t size = lspl_field_integer(L, -1, function, "size", 0);
        if (!named || size < 1 || size > INT32_MAX) {
            lspl_raisef(L, SPL_EARG,
                        "%s: axis %d of the mesh needs a name of at most %d letters and a size of 1 or more", function,
                        (int)i + 1, (int)SPL_NAME_BYTES - 1);
        }
        spec->axes[i].size = (int)size;
        for (lua_Unsigned j = 0; j < i; j++) {
            if (strcmp(spec->axes[j].name, spec->axes[i].name)) continue;
            lspl_raisef(L, SPL_EARG, "%s: axes %d and %d of the mesh are both called '%s'; each needs its own name",
                        function, (int)j + 1, (int)i + 1, spec->axes[i].name);
        }
        lua_pop(L, 1);
    }
    spec->naxes = (int)n;
    lua_pop(L, 1);
}

void lspl_layout_argument(lua_State *L, int index, const char *function, const spl_mesh_spec *mesh, int ndim,
                          const int64_t *shape, spl_layout *out) {
    if (lua_type(L, index) == LUA_TSTRING) {
        lspl_check(L, spl_layout_parse(lua_tostring(L, index), mesh, ndim, shape, out));
        return;
    }
    if (!lspl_is_layout(L, index)) {
        lspl_bad_argument(L, function, "layout", "a layout or a text such as \"tp=shard(2)\"", index);
    }
    *out = *lspl_check_layout(L, index, function, "layout");
    int same = out->ndim == ndim && out->naxes == mesh->naxes;
    for (int i = 0; same && i < ndim; i++) same = out->shape[i] == shape[i];
    if (!same) {
        lspl_raisef(L, SPL_EARG,
                    "%s: the layout was made for another shape or mesh; make one with spl.layout(text, mesh, shape)",
                    function);
    }
    for (int i = 0; i < mesh->naxes; i++) {
        if (out->axis_size[i] != mesh->axes[i].size || strcmp(out->axis_name[i], mesh->axes[i].name)) {
            lspl_raisef(L, SPL_EARG, "%s: the layout is of a mesh whose axis %d is %s=%d, here it is %s=%d", function,
                        i + 1, out->axis_name[i], out->axis_size[i], mesh->axes[i].name, mesh->axes[i].size);
        }
    }
}

/* spl.layout(text, mesh, shape) [local] */
static int layout_new(lua_State *L) {
    lspl_enter(L, 3);
    if (lua_type(L, 1) != LUA_TSTRING) lspl_bad_argument(L, "layout", "text", "a text such as \"tp=shard(2)\"", 1);
    const spl_mesh *m = NULL;
    spl_mesh_spec spec;
    if (lua_istable(L, 2)) {
        spec_from_table(L, 2, "layout", &spec);
    } else {
        m = lspl_check_mesh(L, 2, "layout", "mesh");
        spec = *spl_mesh_spec_of(m);
    }
    int64_t shape[SPL_MAX_DIMS];
    int ndim = lspl_shape(L, 3, "layout", "shape", shape);
    spl_layout layout;
    lspl_check(L, spl_layout_parse(lua_tostring(L, 1), &spec, ndim, shape, &layout));
    lspl_push_layout(L, &layout, m);
    return 1;
}

/* Coordinates at `index`: a list in mesh order, a table by axis name (axes left out: 0), or absent: this rank's. */
static void check_coords(lua_State *L, int index, const char *function, const layout_object *o, int *coords) {
    const spl_layout *l = &o->layout;
    if (lua_isnoneornil(L, index)) {
        if (!o->placed) {
            lspl_raisef(L, SPL_EARG,
                        "%s: this layout is of a mesh that is not here; say whose part: coordinates such as {0, 1}",
                        function);
        }
        memcpy(coords, o->coords, sizeof o->coords);
        return;
    }
    if (!lua_istable(L, index))
        lspl_bad_argument(L, function, "coords", "coordinates such as {tp = 1} or {0, 1}", index);
    lua_Unsigned n = lua_rawlen(L, index);
    if (n && n != (lua_Unsigned)l->naxes) {
        lspl_raisef(L, SPL_EARG, "%s: %d coordinates for a mesh of %d axes", function, (int)n, l->naxes);
    }
    const char *known[SPL_MAX_AXES + 1] = {NULL};
    for (int i = 0; i < l->naxes; i++) known[i] = l->axis_name[i];
    if (!n) lspl_known_fields(L, index, function, known);
    for (int i = 0; i < l->naxes; i++) {
        int64_t c;
        if (n) {
            lua_rawgeti(L, index, i + 1);
            c = lspl_integer(L, -1, function, "coords");
            lua_pop(L, 1);
        } else {
            c = lspl_field_integer(L, index, function, l->axis_name[i], 0);
        }
        if (c < 0 || c >= l->axis_size[i]) {
            lspl_raisef(L, SPL_EARG, "%s: coordinate %lld on axis '%s'; its coordinates are 0 to %d",
                        function, (long long)c, l->axis_name[i], l->axis_size[i] - 1);
        }
        coords[i] = (int)c;
    }
}

/* layout:segments(dim [, coords]) -> { {start=, length=, stride=}, ... } [local] */
static int layout_segments(lua_State *L) {
    const layout_object *o = check_object(L, 1, "layout:segments", "self");
    int dim = lspl_dim(L, 2, "layout:segments", "dim", o->layout.ndim), coords[SPL_MAX_AXES];
    check_coords(L, 3, "layout:segments", o, coords);
    int n = spl_layout_segments(&o->layout, coords, dim, NULL, 0);
    if (n < 0) lspl_raisef(L, SPL_ENOMEM, "layout:segments: out of memory while listing the segments of a shard");
    spl_segment *s =
        lua_newuserdatauv(L, sizeof *s * (size_t)(n > 0 ? n : 1), 0); /* collected whatever happens below */
    if (spl_layout_segments(&o->layout, coords, dim, s, n) != n)
        lspl_raisef(L, SPL_ENOMEM, "layout:segments: out of memory while listing the segments of a shard");
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_createtable(L, 0, 3);
        lua_pushinteger(L, (lua_Integer)s[i].start + 1);
        lua_setfield(L, -2, "start");
        lua_pushinteger(L, (lua_Integer)s[i].length);
        lua_setfield(L, -2, "length");
        lua_pushinteger(L, (lua_Integer)s[i].stride);
        lua_setfield(L, -2, "stride");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* layout:local_shape([coords]) [local] */
static int layout_local_shape(lua_State *L) {
    const layout_object *o = check_object(L, 1, "layout:local_shape", "self");
    int coords[SPL_MAX_AXES];
    check_coords(L, 2, "layout:local_shape", o, coords);
    int64_t local[SPL_MAX_DIMS];
    for (int i = 0; i < o->layout.ndim; i++) {
        local[i] = spl_layout_local_size(&o->layout, coords, i);
        if (local[i] < 0) lspl_raisef(L, SPL_ENOMEM, "layout:local_shape: out of memory while working out a shard");
    }
    lspl_push_int64s(L, local, o->layout.ndim);
    return 1;
}

static int layout_tostring(lua_State *L) {
    const layout_object *o = check_object(L, 1, "tostring", "self");
    int n = spl_layout_format(&o->layout, NULL, 0);
    char *text = lua_newuserdatauv(L, (size_t)n + 1, 0);
    spl_layout_format(&o->layout, text, (size_t)n + 1);
    lua_pushstring(L, text);
    return 1;
}

static int layout_eq(lua_State *L) {
    layout_object *a = to_layout(L, 1), *b = to_layout(L, 2);
    lua_pushboolean(L, a && b && spl_layout_equal(&a->layout, &b->layout));
    return 1;
}

/* Upvalue 1: the methods. */
static int layout_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    const layout_object *o = check_object(L, 1, "layout", "self");
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (!strcmp(key, "shape"))
        lspl_push_int64s(L, o->layout.shape, o->layout.ndim);
    else if (!strcmp(key, "ndim"))
        lua_pushinteger(L, o->layout.ndim);
    else
        return lspl_unknown_field(L, "a layout", 2, fields);
    return 1;
}

/* layout:describe() -> one table an axis: {axis=, place=, dim=, scheme=, unit=, cover=, nest=} [local] */
static int layout_describe(lua_State *L) {
    static const char *const places[] = {"replicate", "shard", "partial"};
    static const char *const schemes[] = {"contiguous", "zigzag", "striped"};
    const spl_layout *l = lspl_check_layout(L, 1, "layout:describe", "self");
    lua_createtable(L, l->naxes, 0);
    for (int i = 0; i < l->naxes; i++) {
        const spl_placement *p = &l->axes[i];
        lua_createtable(L, 0, 8);
        lua_pushstring(L, l->axis_name[i]);
        lua_setfield(L, -2, "axis");
        lua_pushinteger(L, l->axis_size[i]);
        lua_setfield(L, -2, "size");
        lua_pushstring(L, places[p->place]);
        lua_setfield(L, -2, "place");
        if (p->place == SPL_SHARD) {
            lua_pushinteger(L, p->dim + 1);
            lua_setfield(L, -2, "dim");
            lua_pushstring(L, schemes[p->scheme]);
            lua_setfield(L, -2, "scheme");
            lua_pushinteger(L, (lua_Integer)(p->unit ? p->unit : 1));
            lua_setfield(L, -2, "unit");
            lua_pushinteger(L, (lua_Integer)(p->cover ? p->cover : 1));
            lua_setfield(L, -2, "cover");
            lua_pushinteger(L, p->nest);
            lua_setfield(L, -2, "nest");
        }
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

void lspl_open_layout(lua_State *L) {
    static const luaL_Reg methods[] = {{"segments", layout_segments},
                                       {"local_shape", layout_local_shape},
                                       {"describe", layout_describe},
                                       {NULL, NULL}};
    static const luaL_Reg meta[] = {
        {"__tostring", layout_tostring}, {"__eq", layout_eq}, {"__gc", layout_gc}, {NULL, NULL}};
    luaL_newmetatable(L, LSPL_LAYOUT);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_pushcclosure(L, layout_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    lua_pushcfunction(L, layout_new);
    lua_setfield(L, -2, "layout");
}
