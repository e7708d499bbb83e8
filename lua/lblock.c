/* lblock.c: spl.block{...}: the transformer block: definition, schedule, forward with its saved outputs, FLOPs,
 * explain. */
#include <string.h>
#include "lspl.h"

static const char *const fields[] = {"config", "mesh",    "schedule", "params",      "param",   "input", "forward",
                                     "flops",  "explain", "check",    "dropout_key", "release", "plan",
                                     NULL};

static spl_block **to_block(lua_State *L, int index) { return (spl_block **)lspl_to_object(L, index, LSPL_BLOCK); }

static void let_go(void *b) { spl_block_release(b); }

static spl_block *check_block(lua_State *L, int index, const char *function) {
    spl_block **p = to_block(L, index);
    if (!p) lspl_bad_argument(L, function, "self", "a block", index);
    if (!*p) lspl_raisef(L, SPL_ERELEASED, "%s: this block was released", function);
    spl_block *b = *p;
    spl_block_retain(b);
    lspl_hold(L, b, let_go);
    return b;
}

static spl_block *check_scheduled(lua_State *L, int index, const char *function) {
    spl_block *b = check_block(L, index, function);
    if (!spl_block_mesh(b)) {
        lspl_raisef(L, SPL_EARG, "%s: the block has no schedule yet; call block:schedule(mesh) first", function);
    }
    return b;
}

static int block_release(lua_State *L) {
    spl_block **p = to_block(L, 1);
    if (!p) lspl_bad_argument(L, "block:release", "self", "a block", 1);
    spl_block *b = *p;
    *p = NULL;
    spl_block_release(b);
    return 0;
}

/* ---- definition */

static const char *const norms[] = {"layer", "rms", NULL};
static const char *const projections[] = {"interleaved", "separate", NULL};
static const char *const activations[] = {"none", "gelu_tanh", "gelu_erf", "silu", NULL};

/* spl.block{...} [local]: of GPT unless said otherwise */
static int block_new(lua_State *L) {
    static const char *const options[] = {
        "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "eps", "qkv", "bias", "qkv_bias", "out_bias",
        "mlp_bias", "act", "gated", "rope_theta", "causal", "mask", "dropout", "dropout_attention", "dropout_hidden",
        "seed", "instance", "dtype", NULL};
    static const char function[] = "block";
    const int at = 1;
    lspl_enter(L, 1);
    lspl_known_fields(L, at, function, options);
    spl_block_config c;
    memset(&c, 0, sizeof c);
    static const char *const needed[] = {"hidden", "heads"};
    for (int i = 0; i < 2; i++) {
        lspl_raw_field(L, at, needed[i]);
        lspl_integer(L, -1, function, needed[i]);
        lua_pop(L, 1);
    }
    static const char *const sizes[] = {"kv_heads", "head_dim", "ffn", "eps"}; /* to core, 0 says: as usual */
    for (int i = 0; i < 4; i++) {
        if (lspl_raw_field(L, at, sizes[i]) == LUA_TNUMBER && lua_tonumber(L, -1) == 0) {
            lspl_raisef(L, SPL_EARG, "block: %s is %s; it must be %s, or left out for the usual one", sizes[i],
                        luaL_tolstring(L, -1, NULL), i < 3 ? "1 or more" : "a small positive number");
        }
        lua_pop(L, 1);
    }
    c.hidden = lspl_field_integer(L, at, function, "hidden", 0);
    c.heads = lspl_field_integer(L, at, function, "heads", 0);
    c.kv_heads = lspl_field_integer(L, at, function, "kv_heads", 0);
    c.head_dim = lspl_field_integer(L, at, function, "head_dim", 0);
    c.ffn = lspl_field_integer(L, at, function, "ffn", 0);
    c.norm = (spl_norm_kind)lspl_field_choice(L, at, function, "norm", norms, SPL_NORM_LAYER);
    c.eps = lspl_field_number(L, at, function, "eps", 0.0);
    c.separate_qkv = lspl_field_choice(L, at, function, "qkv", projections, c.kv_heads && c.kv_heads != c.heads);
    int bias = lspl_field_boolean(L, at, function, "bias", 1);
    c.qkv_bias = lspl_field_boolean(L, at, function, "qkv_bias", bias);
    c.out_bias = lspl_field_boolean(L, at, function, "out_bias", bias);
    c.mlp_bias = lspl_field_boolean(L, at, function, "mlp_bias", bias);
    c.gated = lspl_field_boolean(L, at, function, "gated", 0);
    c.act = (spl_activation)lspl_field_choice(L, at, function, "act", activations,
                                              c.gated ? SPL_ACT_SILU : SPL_ACT_GELU_TANH);
    c.rope_theta = lspl_field_number(L, at, function, "rope_theta", 0.0);
    c.causal = lspl_field_boolean(L, at, function, "causal", 1);
    if (lspl_raw_field(L, at, "mask") != LUA_TNIL) c.mask = lspl_mask_argument(L, -1, function, "mask");
    if (c.mask && lspl_raw_field(L, at, "causal") != LUA_TNIL) {
        lspl_raisef(L, SPL_EUSAGE, "block: mask and causal were both given; mask = \"causal\" and mask = \"full\" say "
                                   "the same as causal");
    }
    double dropout = lspl_field_number(L, at, function, "dropout", 0.0);
    if (!(dropout >= 0 && dropout < 1)) { /* by the name that was given; core sees the two it stands for */
        lspl_raisef(L, SPL_EUSAGE,
                    "block: dropout is %g; a probability from 0 up to, but not including, 1 is needed", dropout);
    }
    c.dropout_attention = lspl_field_number(L, at, function, "dropout_attention", dropout);
    c.dropout_hidden = lspl_field_number(L, at, function, "dropout_hidden", dropout);
    c.seed = (uint64_t)lspl_field_integer(L, at, function, "seed", 0);
    int64_t instance = lspl_field_integer(L, at, function, "instance", 0);
    if (instance < 0 || instance > INT32_MAX) {
        lspl_raisef(L, SPL_EARG, "block: instance is %lld; it counts the blocks of a model from 0",
                    (long long)instance);
    }
    c.instance = (int)instance;
    lspl_raw_field(L, at, "dtype");
    c.dtype = lua_isnil(L, -1) ? SPL_F32 : lspl_dtype(L, -1, function, "dtype");
    spl_block **p = (spl_block **)lspl_new_object(L, LSPL_BLOCK);
    lspl_check(L, spl_block_create(lspl_runtime(L), &c, p));
    return 1;
}

static void push_config(lua_State *L, const spl_block_config *c) {
    const struct {
        const char *name;
        int64_t value;
    } integers[] = {{"hidden", c->hidden},     {"heads", c->heads}, {"kv_heads", c->kv_heads},
                    {"head_dim", c->head_dim}, {"ffn", c->ffn},     {"seed", (int64_t)c->seed},
                    {"instance", c->instance}};
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"eps", c->eps},
                   {"rope_theta", c->rope_theta},
                   {"dropout_attention", c->dropout_attention},
                   {"dropout_hidden", c->dropout_hidden}};
    const struct {
        const char *name;
        int value;
    } flags[] = {{"qkv_bias", c->qkv_bias},
                 {"out_bias", c->out_bias},
                 {"mlp_bias", c->mlp_bias},
                 {"gated", c->gated},
                 {"causal", c->causal}};
    const struct {
        const char *name, *value;
    } texts[] = {{"norm", norms[c->norm]},
                 {"qkv", projections[c->separate_qkv != 0]},
                 {"act", activations[c->act]},
                 {"dtype", spl_dtype_name(c->dtype)}};
    lua_createtable(L, 0, 22);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        lua_pushinteger(L, (lua_Integer)integers[i].value);
        lua_setfield(L, -2, integers[i].name);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        lua_pushnumber(L, numbers[i].value);
        lua_setfield(L, -2, numbers[i].name);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        lua_pushboolean(L, flags[i].value);
        lua_setfield(L, -2, flags[i].name);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lua_pushstring(L, texts[i].value);
        lua_setfield(L, -2, texts[i].name);
    }
    if (c->mask) {
        lspl_push_mask(L, c->mask);
        lua_setfield(L, -2, "mask");
    }
    lspl_record(L);
}

/* block:schedule(mesh [, {scheme=, chunk=, summaries=}]) [collective] -> block */
static int block_schedule(lua_State *L) {
    lspl_enter(L, 3);
    static const char *const options[] = {"scheme", "chunk", "summaries", NULL};
    static const char *const schemes[] = {"contiguous", "zigzag", "striped", NULL};
    static const char function[] = "block:schedule";
    spl_block *b = check_block(L, 1, function);
    spl_mesh *m = lspl_check_mesh(L, 2, function, "mesh");
    spl_schedule s = {SPL_CONTIGUOUS, 0, 0};
    if (!lua_isnoneornil(L, 3)) {
        lspl_known_fields(L, 3, function, options);
        s.scheme = (spl_scheme)lspl_field_way(L, 3, function, "scheme", schemes, SPL_CONTIGUOUS);
        s.chunk = lspl_field_integer(L, 3, function, "chunk", 1024);
        s.summaries = lspl_field_integer(L, 3, function, "summaries", 1);
        if (s.chunk < 1 || s.summaries < 1) {
            lspl_raisef(L, SPL_EUSAGE, "block:schedule: %s is %lld; it must be 1 or more",
                        s.chunk < 1 ? "chunk" : "summaries", (long long)(s.chunk < 1 ? s.chunk : s.summaries));
        }
    }
    lspl_collective(L, "schedule");
    lspl_check(L, spl_block_schedule(b, m, &s));
    lspl_account(L);
    lua_settop(L, 1);
    return 1;
}

/* ---- weights */

static void push_param(lua_State *L, const spl_block *b, int i) {
    spl_tensor **p = lspl_new_tensor(L), *t = spl_block_param(b, i);
    spl_tensor_retain(t);
    *p = t;
}

/* block:params() -> { {name=, tensor=}, ... } [local] */
static int block_params(lua_State *L) {
    lspl_enter(L, 1);
    const spl_block *b = check_scheduled(L, 1, "block:params");
    int n = spl_block_param_count(b);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_createtable(L, 0, 2);
        lua_pushstring(L, spl_block_param_name(b, i));
        lua_setfield(L, -2, "name");
        push_param(L, b, i);
        lua_setfield(L, -2, "tensor");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* block:param(name) -> tensor [local] */
static int block_param(lua_State *L) {
    lspl_enter(L, 2);
    enum { MOST = 32 };
    const spl_block *b = check_scheduled(L, 1, "block:param");
    if (lua_type(L, 2) != LUA_TSTRING) lspl_bad_argument(L, "block:param", "name", "the name of a weight", 2);
    const char *name = lua_tostring(L, 2), *known[MOST + 1] = {NULL};
    int n = spl_block_param_count(b);
    for (int i = 0; i < n && i < MOST; i++) known[i] = spl_block_param_name(b, i);
    for (int i = 0; i < n; i++) {
        if (!strcmp(name, spl_block_param_name(b, i))) {
            push_param(L, b, i);
            return 1;
        }
    }
    const char *near = lspl_nearest(name, known);
    if (near) return lspl_raisef(L, SPL_EARG, "block:param: there is no weight '%s'; did you mean '%s'?", name, near);
    char all[400];
    lspl_join(all, sizeof all, known);
    return lspl_raisef(L, SPL_EARG, "block:param: there is no weight '%s'; this block has %s", name, all);
}

/* ---- running */

static void read_size(lua_State *L, int index, const char *function, int64_t *batch, int64_t *seq) {
    if (!lua_istable(L, index)) lspl_bad_argument(L, function, "options", "a table {batch =, seq =}", index);
    if (lspl_raw_field(L, index, "seq") == LUA_TNIL) {
        lspl_raisef(L, SPL_EARG, "%s: seq is missing: how many tokens, as in {batch = 1, seq = 2048}", function);
    }
    lua_pop(L, 1);
    *batch = lspl_field_integer(L, index, function, "batch", 1);
    *seq = lspl_field_integer(L, index, function, "seq", 0);
    if (*batch < 0 || *seq < 0) {
        lspl_raisef(L, SPL_EARG, "%s: %s is %lld; it must be zero or more", function, *batch < 0 ? "batch" : "seq",
                    (long long)(*batch < 0 ? *batch : *seq));
    }
}

/* block:input{batch=, seq=} -> tensor in the layout that forward takes [local]; contents undefined */
static int block_input(lua_State *L) {
    lspl_enter(L, 2);
    spl_block *b = check_scheduled(L, 1, "block:input");
    int64_t batch, seq;
    read_size(L, 2, "block:input", &batch, &seq);
    spl_layout layout;
    lspl_check(L, spl_block_io_layout(b, batch, seq, &layout));
    spl_tensor **out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_tensor_create(lspl_runtime(L), spl_block_mesh(b), &layout, spl_block_config_of(b)->dtype,
                                       SPL_MEM_ACTIVATIONS, out));
    return 1;
}

/* saved:release(), __close: drops every tensor of the table at once */
static int saved_release(lua_State *L) {
    if (!lua_istable(L, 1)) lspl_bad_argument(L, "saved:release", "self", "what block:forward saved", 1);
    lua_Unsigned n = lua_rawlen(L, 1);
    for (lua_Unsigned i = 1; i <= n; i++) {
        if (lua_rawgeti(L, 1, (lua_Integer)i) == LUA_TTABLE && lspl_raw_field(L, -1, "tensor") == LUA_TUSERDATA) {
            spl_tensor **p = (spl_tensor **)lspl_to_object(L, -1, LSPL_TENSOR), *t = p ? *p : NULL;
            if (p) *p = NULL;
            spl_tensor_release(t);
        }
        lua_settop(L, 1);
    }
    return 0;
}

/* block:forward(x [, {save=, step=}]) [collective] -> y [, saved] */
static int block_forward(lua_State *L) {
    static const char *const options[] = {"save", "step", NULL};
    lspl_enter(L, 3);
    spl_block *b = check_scheduled(L, 1, "block:forward");
    spl_tensor *x = lspl_check_tensor(L, 2, "block:forward", "x");
    int save = 0;
    int64_t step = 0;
    if (!lua_isnoneornil(L, 3)) {
        lspl_known_fields(L, 3, "block:forward", options);
        save = lspl_field_boolean(L, 3, "block:forward", "save", 0);
        step = lspl_field_integer(L, 3, "block:forward", "step", 0);
    }
    if (step < 0) lspl_raisef(L, SPL_EARG, "block:forward: step is %lld; it must be zero or more", (long long)step);
    lspl_collective(L, "forward");
    spl_tensor **y = lspl_new_tensor(L);
    if (!save) {
        lspl_check(L, spl_block_forward(b, x, (uint64_t)step, y, NULL));
        lspl_account(L);
        return 1;
    }
    /* All userdata first: once core has given out handles, nothing may fail before each has its owner. */
    spl_tensor **slot[SPL_MAX_SAVED];
    luaL_checkstack(L, SPL_MAX_SAVED + 8, "saved tensors");
    spl_saved *saved = lua_newuserdatauv(L, sizeof *saved, 0);
    memset(saved, 0, sizeof *saved);
    const int first = lua_gettop(L) + 1;
    for (int i = 0; i < SPL_MAX_SAVED; i++) slot[i] = lspl_new_tensor(L);
    spl_status s = spl_block_forward(b, x, (uint64_t)step, y, saved);
    if (s.code == SPL_OK) {
        for (int i = 0; i < saved->count; i++) *slot[i] = saved->tensor[i];
    }
    lspl_check(L, s);
    lua_createtable(L, saved->count, saved->count + 2);
    for (int i = 0; i < saved->count; i++) {
        lua_createtable(L, 0, 2);
        lua_pushstring(L, saved->name[i]);
        lua_setfield(L, -2, "name");
        lua_pushvalue(L, first + i);
        lua_setfield(L, -2, "tensor");
        lua_rawseti(L, -2, i + 1);
        lua_pushvalue(L, first + i);
        lua_setfield(L, -2, saved->name[i]);
    }
    lua_pushinteger(L, (lua_Integer)saved->seed);
    lua_setfield(L, -2, "seed");
    lua_pushinteger(L, (lua_Integer)saved->offset);
    lua_setfield(L, -2, "offset");
    luaL_setmetatable(L, "spl.saved");
    lua_replace(L, first - 1); /* where the C side of `saved` lies; y is below it */
    lua_settop(L, first - 1);
    lspl_account(L);
    return 2;
}

/* block:flops{batch=, seq=} -> total, gemm, attention: of all ranks together [local] */
static int block_flops(lua_State *L) {
    lspl_enter(L, 2);
    const spl_block *b = check_block(L, 1, "block:flops");
    int64_t batch, seq;
    double gemm, attention;
    read_size(L, 2, "block:flops", &batch, &seq);
    spl_block_flops(b, batch, seq, &gemm, &attention);
    lua_pushnumber(L, gemm + attention);
    lua_pushnumber(L, gemm);
    lua_pushnumber(L, attention);
    return 3;
}

/* block:dropout_key("attention" | "hidden0" | "hidden1" [, step]) -> the two words of its Philox key [local] */
static int block_dropout_key(lua_State *L) {
    lspl_enter(L, 3);
    static const char *const which[] = {"attention", "hidden0", "hidden1", NULL};
    const spl_block *b = check_block(L, 1, "block:dropout_key");
    int i = 0;
    if (lua_type(L, 2) != LUA_TSTRING)
        lspl_bad_argument(L, "block:dropout_key", "which", "attention, hidden0 or hidden1", 2);
    while (which[i] && strcmp(which[i], lua_tostring(L, 2))) i++;
    if (!which[i]) lspl_bad_argument(L, "block:dropout_key", "which", "attention, hidden0 or hidden1", 2);
    int64_t step = lua_isnoneornil(L, 3) ? 0 : lspl_integer(L, 3, "block:dropout_key", "step");
    spl_rng_key key = spl_block_dropout_key(b, i, (uint64_t)step);
    lua_pushinteger(L, key.word[0]);
    lua_pushinteger(L, key.word[1]);
    return 2;
}

/* ---- explain */

typedef struct explain_list {
    spl_explain_line *lines;
    int n, room;
} explain_list;

static void take_line(void *ctx, const spl_explain_line *line) {
    explain_list *list = ctx;
    if (list->n < list->room) list->lines[list->n] = *line;
    list->n++;
}

/* block:explain{batch=, seq= [, rank=]} -> lines, printable as a table [local] */
static int block_explain(lua_State *L) {
    lspl_enter(L, 2);
    const spl_block *b = check_scheduled(L, 1, "block:explain");
    int64_t batch, seq;
    read_size(L, 2, "block:explain", &batch, &seq);
    spl_runtime *rt = lspl_runtime(L);
    int64_t rank = lspl_field_integer(L, 2, "block:explain", "rank", spl_rank(rt));
    if (rank < 0 || rank >= spl_size(rt)) {
        lspl_raisef(L, SPL_EARG, "block:explain: rank %lld of %d; ranks count from 0", (long long)rank, spl_size(rt));
    }
    explain_list list = {NULL, 0, 0}; /* counted first, so that the list can live in a userdata: no error leaks it */
    lspl_check(L, spl_block_explain(b, batch, seq, (int)rank, take_line, &list));
    list.room = list.n;
    list.n = 0;
    list.lines = lua_newuserdatauv(L, sizeof *list.lines * (size_t)(list.room ? list.room : 1), 0);
    lspl_check(L, spl_block_explain(b, batch, seq, (int)rank, take_line, &list));
    int n = list.n < list.room ? list.n : list.room;
    int64_t total = 0;
    lua_createtable(L, n, 2);
    for (int i = 0; i < n; i++) {
        const spl_explain_line *l = &list.lines[i];
        lua_createtable(L, 0, 7);
        lua_pushstring(L, l->what);
        lua_setfield(L, -2, "what");
        lua_pushstring(L, l->subject);
        lua_setfield(L, -2, "subject");
        if (l->axis[0]) {
            lua_pushstring(L, l->axis);
            lua_setfield(L, -2, "axis");
        }
        lua_pushstring(L, l->layout);
        lua_setfield(L, -2, "layout");
        lspl_push_int64s(L, l->shape, l->ndim);
        lua_setfield(L, -2, "shape");
        lspl_push_int64s(L, l->local_shape, l->ndim);
        lua_setfield(L, -2, "local_shape");
        lua_pushinteger(L, (lua_Integer)l->bytes);
        lua_setfield(L, -2, "bytes");
        lua_rawseti(L, -2, i + 1);
        total += l->bytes;
    }
    lua_pushinteger(L, (lua_Integer)total);
    lua_setfield(L, -2, "bytes");
    lua_pushinteger(L, (lua_Integer)rank);
    lua_setfield(L, -2, "rank");
    luaL_setmetatable(L, "spl.explain");
    return 1;
}

/* Calls a function of an embedded module with the arguments that are on the stack. */
static int delegate(lua_State *L, const char *module, const char *function, int results) {
    lua_getglobal(L, "require");
    lua_pushstring(L, module);
    lua_call(L, 1, 1);
    lua_getfield(L, -1, function);
    lua_insert(L, 1);
    lua_pop(L, 1);
    lua_call(L, lua_gettop(L) - 1, results);
    return lua_gettop(L);
}

static int explain_tostring(lua_State *L) {
    lua_settop(L, 1);
    return delegate(L, "spl.report", "explain", 1);
}

static int saved_tostring(lua_State *L) {
    if (!lua_istable(L, 1)) lspl_bad_argument(L, "tostring", "self", "what block:forward saved", 1);
    lua_settop(L, 1);
    return delegate(L, "spl.report", "saved", 1);
}

/* saved.NAME where there is none; upvalue 1: the methods */
static int saved_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    const char *known[SPL_MAX_SAVED + 4] = {"seed", "offset", "release"};
    int n = 3, count = lua_istable(L, 1) ? (int)lua_rawlen(L, 1) : 0;
    if (lua_isinteger(L, 2)) return lua_pushnil(L), 1; /* the end of the list */
    for (int i = 1; i <= count && i <= SPL_MAX_SAVED; i++) {
        if (lua_rawgeti(L, 1, i) == LUA_TTABLE && lspl_raw_field(L, -1, "name") == LUA_TSTRING) {
            known[n++] = lua_tostring(L, -1); /* the entry keeps the string */
        }
        lua_settop(L, 2);
    }
    return lspl_unknown_field(L, "what this block saved", 2, known);
}

/* block:check(x [, options]) [collective]: see spl/check.lua */
static int block_check(lua_State *L) {
    spl_block **p = to_block(L, 1);
    if (!p) lspl_bad_argument(L, "block:check", "self", "a block", 1);
    return delegate(L, "spl.check", "block", LUA_MULTRET);
}

/* ---- fields; upvalue 1: the methods */

/* {scheme =} and, where an axis is hierarchical, {chunk =, summaries =}: how the sequence is dealt out; nil before
 * schedule. */
static void push_schedule(lua_State *L, const spl_block *b) {
    static const char *const schemes[] = {"contiguous", "zigzag", "striped"};
    const spl_schedule *s = spl_block_schedule_of(b);
    if (!spl_block_mesh(b)) {
        lua_pushnil(L);
        return;
    }
    lua_createtable(L, 0, 3);
    lua_pushstring(L, schemes[s->scheme]);
    lua_setfield(L, -2, "scheme");
    const spl_mesh_spec *mesh = spl_mesh_spec_of(spl_block_mesh(b));
    int chunked = 0;
    for (int a = 0; a < mesh->naxes; a++) chunked |= mesh->axes[a].role == SPL_ROLE_HIERARCHICAL;
    if (chunked) {
        lua_pushinteger(L, (lua_Integer)s->chunk);
        lua_setfield(L, -2, "chunk");
        lua_pushinteger(L, (lua_Integer)s->summaries);
        lua_setfield(L, -2, "summaries");
    }
    lspl_record(L);
}

static int block_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    lspl_enter(L, 2);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    spl_block *b = check_block(L, 1, "block");
    if (!strcmp(key, "config")) {
        push_config(L, spl_block_config_of(b));
    } else if (!strcmp(key, "plan")) {
        push_schedule(L, b);
    } else if (!strcmp(key, "mesh")) {
        if (spl_block_mesh(b))
            lspl_push_mesh(L, spl_block_mesh(b));
        else
            lua_pushnil(L);
    } else {
        return lspl_unknown_field(L, "a block", 2, fields);
    }
    return 1;
}

static int block_tostring(lua_State *L) {
    spl_block **p = to_block(L, 1);
    if (!p || !*p) {
        lua_pushliteral(L, "block (released)");
        return 1;
    }
    const spl_block *b = *p;
    const spl_block_config config = *spl_block_config_of(b); /* Lua may let go of the block from here on */
    char mesh[SPL_MAX_AXES * (SPL_NAME_BYTES + 48)] = "not scheduled";
    if (spl_block_mesh(b)) spl_mesh_format(spl_mesh_spec_of(spl_block_mesh(b)), mesh, sizeof mesh);
    lua_settop(L, 0);
    push_config(L, &config);
    delegate(L, "spl.report", "block", 1);
    lua_pushfstring(L, "block %s (%s)", lua_tostring(L, -1), mesh);
    return 1;
}

void lspl_open_block(lua_State *L) {
    static const luaL_Reg methods[] = {{"schedule", block_schedule},
                                       {"params", block_params},
                                       {"param", block_param},
                                       {"input", block_input},
                                       {"forward", block_forward},
                                       {"flops", block_flops},
                                       {"explain", block_explain},
                                       {"check", block_check},
                                       {"release", block_release},
                                       {"dropout_key", block_dropout_key},
                                       {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", block_release},
                                    {"__close", block_release},
                                    {"__tostring", block_tostring},
                                    {NULL, NULL}};
    static const luaL_Reg saved[] = {{"release", saved_release}, {NULL, NULL}};
    luaL_newmetatable(L, LSPL_BLOCK);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_pushcclosure(L, block_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);

    luaL_newmetatable(L, "spl.saved");
    luaL_newlib(L, saved);
    lua_pushcclosure(L, saved_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, saved_release);
    lua_setfield(L, -2, "__close");
    lua_pushcfunction(L, saved_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);

    luaL_newmetatable(L, "spl.explain");
    lua_pushcfunction(L, explain_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);

    lua_pushcfunction(L, block_new);
    lua_setfield(L, -2, "block");
}
