/* lcollective.c: mesh:all_gather and its like: collectives on tensors of this rank alone, over one axis of a mesh. The
 * first dimension is the one that is gathered or split. Each takes what to send and, if wanted, what to receive into
 * (made here otherwise), and gives the latter. */
#include <string.h>
#include "lspl.h"

enum { SELF = 1, AXIS, TENSOR, NEXT }; /* places of arguments */

typedef struct call {
    const char *function;
    spl_mesh *mesh;
    int axis;
    int64_t ranks; /* of the axis */
    spl_tensor *send, *recv;
    int ndim;
    int64_t shape[SPL_MAX_DIMS]; /* of what is received */
} call;

static void check(lua_State *L, const char *function, call *c) {
    lspl_enter(L, NEXT + 1);
    c->function = function;
    c->mesh = lspl_check_mesh(L, SELF, function, "self");
    c->axis = lspl_axis(L, AXIS, function, c->mesh);
    c->ranks = spl_mesh_spec_of(c->mesh)->axes[c->axis].size;
    c->send = lspl_check_tensor(L, TENSOR, function, "t");
    if (spl_tensor_mesh(c->send)) {
        lspl_raisef(L, SPL_EARG,
                    "%s: argument 't' has a layout; a tensor of this rank alone is needed: to_local() gives this "
                    "rank's part, redistribute() moves the whole",
                    function);
    }
    c->ndim = spl_tensor_ndim(c->send);
    memcpy(c->shape, spl_tensor_shape(c->send), sizeof c->shape);
}

static void need_dimension(lua_State *L, const call *c, const char *what) {
    if (c->ndim > 0) return;
    lspl_raisef(L, SPL_EARG, "%s: argument 't' is a single number; its first dimension is to be %s, so reshape{1} it",
                c->function, what);
}

static void need_whole_parts(lua_State *L, const call *c) {
    need_dimension(L, c, "split");
    if (c->shape[0] % c->ranks == 0) return;
    lspl_raisef(L, SPL_EARG,
                "%s: the first dimension of 't' is %lld, which the %lld ranks of axis '%s' do not divide; pad it, or "
                "redistribute() a tensor with a layout, which splits any size",
                c->function, (long long)c->shape[0], (long long)c->ranks,
                spl_mesh_spec_of(c->mesh)->axes[c->axis].name);
}

static void push_shape(lua_State *L, const int64_t *shape, int ndim) {
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    luaL_addchar(&b, '[');
    for (int i = 0; i < ndim; i++) {
        lua_pushfstring(L, i ? ", %I" : "%I", (LUAI_UACINT)shape[i]);
        luaL_addvalue(&b);
    }
    luaL_addchar(&b, ']');
    luaL_pushresult(&b);
}

/* Pushes the tensor to receive into: argument `index`, or a new one. */
static void push_out(lua_State *L, call *c, int index) {
    if (lua_isnoneornil(L, index)) {
        spl_tensor **out = lspl_new_tensor(L);
        LSPL_ALLOCATE(L, spl_tensor_create_local(lspl_runtime(L), c->ndim, c->shape, spl_tensor_dtype(c->send), out));
        c->recv = *out;
        return;
    }
    c->recv = lspl_check_tensor(L, index, c->function, "out");
    int same = spl_tensor_ndim(c->recv) == c->ndim;
    for (int i = 0; same && i < c->ndim; i++) same = spl_tensor_shape(c->recv)[i] == c->shape[i];
    if (!same) {
        push_shape(L, spl_tensor_shape(c->recv), spl_tensor_ndim(c->recv));
        push_shape(L, c->shape, c->ndim);
        lspl_raisef(L, SPL_EARG, "%s: argument 'out' has the shape %s; %s is needed", c->function,
                    lua_tostring(L, -2), lua_tostring(L, -1));
    }
    lua_pushvalue(L, index);
}

static int run(lua_State *L, call *c, spl_coll_kind kind, int root, int out) {
    push_out(L, c, out);
    lspl_collective(L, c->function);
    lspl_check(L, spl_collective(c->mesh, c->axis, kind, c->send, c->recv, root));
    return 1;
}

/* mesh:all_gather(axis, t [n, ..] [, out]) -> [ranks * n, ..] [collective], as all below */
static int mesh_all_gather(lua_State *L) {
    call c;
    check(L, "mesh:all_gather", &c);
    need_dimension(L, &c, "gathered");
    if (__builtin_mul_overflow(c.shape[0], c.ranks, &c.shape[0])) {
        lspl_raisef(L, SPL_ENOMEM, "%s: the first dimension of the result does not fit 63 bits", c.function);
    }
    return run(L, &c, SPL_COLL_ALL_GATHER, 0, NEXT);
}

static int mesh_all_reduce(lua_State *L) {
    call c;
    check(L, "mesh:all_reduce", &c);
    return run(L, &c, SPL_COLL_ALL_REDUCE, 0, NEXT);
}

/* t [n, ..] -> [n / ranks, ..] */
static int mesh_reduce_scatter(lua_State *L) {
    call c;
    check(L, "mesh:reduce_scatter", &c);
    need_whole_parts(L, &c);
    c.shape[0] /= c.ranks;
    return run(L, &c, SPL_COLL_REDUCE_SCATTER, 0, NEXT);
}

static int mesh_all_to_all(lua_State *L) {
    call c;
    check(L, "mesh:all_to_all", &c);
    need_whole_parts(L, &c);
    return run(L, &c, SPL_COLL_ALL_TO_ALL, 0, NEXT);
}

/* mesh:broadcast(axis, t, root [, out]): t gives the shape on every rank, the values on root */
static int mesh_broadcast(lua_State *L) {
    call c;
    check(L, "mesh:broadcast", &c);
    int64_t root = lspl_integer(L, NEXT, c.function, "root");
    if (root < 0 || root >= c.ranks) {
        lspl_raisef(L, SPL_EARG, "%s: argument 'root' is %lld; the ranks of axis '%s' are 0 to %lld", c.function,
                    (long long)root, spl_mesh_spec_of(c.mesh)->axes[c.axis].name, (long long)c.ranks - 1);
    }
    return run(L, &c, SPL_COLL_BROADCAST, (int)root, NEXT + 1);
}

/* mesh:shift(axis, t [, by = 1 [, out]]): t goes `by` ranks on round the ring */
static int mesh_shift(lua_State *L) {
    call c;
    check(L, "mesh:shift", &c);
    int64_t by = lua_isnoneornil(L, NEXT) ? 1 : lspl_integer(L, NEXT, c.function, "by");
    push_out(L, &c, NEXT + 1);
    lspl_collective(L, c.function);
    lspl_check(L, spl_ring_shift(c.mesh, c.axis, c.send, c.recv, by));
    return 1;
}

void lspl_mesh_collectives(lua_State *L) {
    static const luaL_Reg methods[] = {{"all_gather", mesh_all_gather},         {"all_reduce", mesh_all_reduce},
                                       {"reduce_scatter", mesh_reduce_scatter}, {"all_to_all", mesh_all_to_all},
                                       {"broadcast", mesh_broadcast},           {"shift", mesh_shift},
                                       {NULL, NULL}};
    luaL_setfuncs(L, methods, 0);
}
