/* lops.c: the ops that scripts compose: linear, norm, embed, nll, add. Each takes and gives tensors with layouts; none
 * of them communicates: what a layout rule does not allow is refused, and redistribute() is the way out. */
#include "lspl.h"

static const char *const activations[] = {"none", "gelu_tanh", "gelu_erf", "silu", NULL};

static int choice(lua_State *L, int index, const char *function, const char *argument, const char *const *names,
                  int fallback) {
    if (lua_isnoneornil(L, index)) return fallback;
    lua_createtable(L, 0, 1); /* the same words and messages as in option tables */
    lua_pushvalue(L, index);
    lua_setfield(L, -2, argument);
    int c = lspl_field_choice(L, -1, function, argument, names, fallback);
    lua_pop(L, 1);
    return c;
}

/* spl.linear(x [.., k], w [n, k], bias [n] | nil, act | nil) -> y [.., n] */
static int op_linear(lua_State *L) {
    lspl_enter(L, 4);
    lspl_working(L);
    spl_tensor *x = lspl_check_tensor(L, 1, "linear", "x"), *w = lspl_check_tensor(L, 2, "linear", "w");
    spl_tensor *bias = lspl_opt_tensor(L, 3, "linear", "bias");
    spl_activation act = (spl_activation)choice(L, 4, "linear", "act", activations, SPL_ACT_NONE);
    spl_tensor **y = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_linear(x, w, bias, act, y));
    return 1;
}

/* spl.norm(x, gamma, beta | nil, "layer" | "rms", eps) -> y, mean, rstd */
static int op_norm(lua_State *L) {
    lspl_enter(L, 5);
    lspl_working(L);
    static const char *const kinds[] = {"layer", "rms", NULL};
    spl_tensor *x = lspl_check_tensor(L, 1, "norm", "x"), *gamma = lspl_opt_tensor(L, 2, "norm", "gamma");
    spl_tensor *beta = lspl_opt_tensor(L, 3, "norm", "beta");
    spl_norm_kind kind = (spl_norm_kind)choice(L, 4, "norm", "kind", kinds, SPL_NORM_LAYER);
    double eps = lua_isnoneornil(L, 5) ? 1e-5 : lspl_number(L, 5, "norm", "eps");
    spl_tensor **y = lspl_new_tensor(L), **mean = lspl_new_tensor(L), **rstd = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_norm(x, gamma, beta, kind, eps, y, mean, rstd));
    return 3;
}

/* spl.embed(ids i64, table [vocab, hidden]) -> y [.., hidden]; partial where the table's rows are sharded */
static int op_embed(lua_State *L) {
    lspl_enter(L, 2);
    lspl_working(L);
    spl_tensor *ids = lspl_check_tensor(L, 1, "embed", "ids"), *table = lspl_check_tensor(L, 2, "embed", "table");
    spl_tensor **y = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_embed(ids, table, y));
    return 1;
}

/* spl.nll(logits [b, s, vocab], labels [b, s] i64) -> [b, s] f64; a negative label gives 0 */
static int op_nll(lua_State *L) {
    lspl_enter(L, 2);
    lspl_working(L);
    spl_tensor *logits = lspl_check_tensor(L, 1, "nll", "logits"), *labels = lspl_check_tensor(L, 2, "nll", "labels");
    spl_tensor **y = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_nll(logits, labels, y));
    return 1;
}

static int op_add(lua_State *L) {
    lspl_enter(L, 2);
    lspl_working(L);
    spl_tensor *a = lspl_check_tensor(L, 1, "add", "a"), *b = lspl_check_tensor(L, 2, "add", "b");
    spl_tensor **y = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_add(a, b, y));
    return 1;
}

void lspl_open_ops(lua_State *L) {
    static const luaL_Reg functions[] = {{"linear", op_linear}, {"norm", op_norm}, {"embed", op_embed},
                                         {"nll", op_nll},       {"add", op_add},   {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
