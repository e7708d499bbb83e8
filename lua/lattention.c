/* lattention.c: spl.attention and what schemes of one's own are made of: tiles, and merging partial results. */
#include <string.h>
#include "lspl.h"

/* Options behind the options would be lost without a word. */
static void enter(lua_State *L, const char *function, int nargs) {
    if (lua_gettop(L) > nargs)
        lspl_raisef(L, SPL_EARG, "%s: %d arguments were given; it takes at most %d", function, lua_gettop(L), nargs);
    lspl_enter(L, nargs);
}

static spl_mask *mask_field(lua_State *L, int index, const char *function) {
    if (lspl_raw_field(L, index, "mask") == LUA_TNIL) {
        lua_pop(L, 1);
        return NULL;
    }
    return lspl_mask_argument(L, -1, function, "mask"); /* what holds it stays on the stack */
}

static uint64_t natural_field(lua_State *L, int index, const char *function, const char *key) {
    int64_t v = lspl_field_integer(L, index, function, key, 0);
    if (v < 0) lspl_raisef(L, SPL_EARG, "%s: %s is %lld; it must be zero or more", function, key, (long long)v);
    return (uint64_t)v;
}

static void chunk_fields(lua_State *L, int index, const char *function, spl_schedule *s) {
    s->chunk = lspl_field_integer(L, index, function, "chunk", 1024);
    s->summaries = lspl_field_integer(L, index, function, "summaries", 1);
    if (s->chunk < 1 || s->summaries < 1) {
        lspl_raisef(L, SPL_EUSAGE, "%s: %s is %lld; it must be 1 or more", function,
                    s->chunk < 1 ? "chunk" : "summaries", (long long)(s->chunk < 1 ? s->chunk : s->summaries));
    }
}

/* {out, lse} under `into`, each a tensor that is held; 0 where absent. Pushes both. */
static int into_field(lua_State *L, int index, const char *function, spl_tensor *into[2]) {
    if (lspl_raw_field(L, index, "into") == LUA_TNIL) {
        lua_pop(L, 1);
        return 0;
    }
    if (!lua_istable(L, -1) || lua_rawlen(L, -1) != 2) lspl_bad_argument(L, function, "into", "a list {out, lse}", -1);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    into[0] = lspl_check_tensor(L, lua_gettop(L) - 1, function, "into[1]");
    into[1] = lspl_check_tensor(L, lua_gettop(L), function, "into[2]");
    return 1;
}

/* spl.attention(q, k, v [, {mask=, scale=, role=, into= {out, lse}, chunk=, summaries=, dropout=, seed=, instance=,
 * step=}]) -> out, lse [collective over the mesh] */
static int attention(lua_State *L) {
    static const char f[] = "attention";
    static const char *const options[] = {"mask",    "scale", "role",     "into", "chunk", "summaries",
                                          "dropout", "seed",  "instance", "step", NULL};
    static const char *const names[] = {"ring", "gather", "hierarchical", NULL};
    static const spl_role roles[] = {SPL_ROLE_RING, SPL_ROLE_GATHER, SPL_ROLE_HIERARCHICAL, SPL_ROLE_NONE};
    enter(L, f, 4);
    spl_tensor *q = lspl_check_tensor(L, 1, f, "q"), *k = lspl_check_tensor(L, 2, f, "k"),
               *v = lspl_check_tensor(L, 3, f, "v"), *into[2];
    spl_attention_options o = {0};
    if (!lua_isnil(L, 4)) {
        lspl_known_fields(L, 4, f, options);
        o.mask = mask_field(L, 4, f);
        o.scale = lspl_field_number(L, 4, f, "scale", 0.0);
        o.role = roles[lspl_field_way(L, 4, f, "role", names, 3)];
        chunk_fields(L, 4, f, &o.schedule);
        o.dropout = lspl_field_number(L, 4, f, "dropout", 0.0);
        o.seed = natural_field(L, 4, f, "seed");
        o.instance = natural_field(L, 4, f, "instance");
        o.step = natural_field(L, 4, f, "step");
    }
    if (spl_tensor_mesh(q)) lspl_collective(L, f);
    if (!lua_isnil(L, 4) && into_field(L, 4, f, into)) {
        lspl_check(L, spl_attention_into(q, k, v, &o, into[0], into[1]));
        return 2;
    }
    spl_tensor **out = lspl_new_tensor(L), **lse = lspl_new_tensor(L);
    if (spl_tensor_mesh(q))
        lspl_check(L, spl_attention(q, k, v, &o, out, lse));
    else
        LSPL_ALLOCATE(L, spl_attention(q, k, v, &o, out, lse));
    lspl_account(L);
    return 2;
}

/* The list of segments under `key`, positions counted from 1: a userdata that stays on the stack. Absent: rows 1 to
 * `rows`. */
static const spl_segment *segments_field(lua_State *L, int index, const char *function, const char *key, int64_t rows,
                                         int *n) {
    static const char *const fields[] = {"start", "length", "stride", NULL};
    luaL_checkstack(L, 8, "segments");
    if (lspl_raw_field(L, index, key) == LUA_TNIL) {
        spl_segment *all = lua_newuserdatauv(L, sizeof *all, 0);
        *all = (spl_segment){0, rows, 1};
        *n = 1;
        return all;
    }
    if (!lua_istable(L, -1))
        lspl_bad_argument(L, function, key, "a list of segments {start =, length =, stride =}", -1);
    lua_Unsigned count = lua_rawlen(L, -1);
    if (count > 1 << 20)
        lspl_raisef(L, SPL_EARG, "%s: %s has %llu segments, more than 1048576", function, key,
                    (unsigned long long)count);
    spl_segment *s = lua_newuserdatauv(L, sizeof *s * (size_t)(count ? count : 1), 0);
    for (lua_Unsigned i = 0; i < count; i++) {
        if (lua_rawgeti(L, -2, (lua_Integer)i + 1) != LUA_TTABLE)
            lspl_bad_argument(L, function, key, "a segment {start =, length =, stride =}", -1);
        lspl_known_fields(L, lua_gettop(L), function, fields);
        s[i].start = lspl_field_integer(L, -1, function, "start", 1);
        if (s[i].start > INT64_MIN) s[i].start--;
        s[i].length = lspl_field_integer(L, -1, function, "length", 0);
        s[i].stride = lspl_field_integer(L, -1, function, "stride", 1);
        lua_pop(L, 1);
    }
    *n = (int)count;
    return s;
}

static int64_t rows_of(lua_State *L, spl_tensor *t, const char *function, const char *argument) {
    if (spl_tensor_ndim(t) != 4)
        lspl_raisef(L, SPL_EARG, "%s: argument '%s' has %d dimensions; [batch, seq, heads, head_dim] is needed",
                    function, argument, spl_tensor_ndim(t));
    return spl_tensor_shape(t)[1];
}

/* spl.attention_tile(q, k, v [, {queries=, keys=, seq=, kv_seq=, mask=, scale=, into={out, lse}}]) -> out, lse
 * [local] */
static int attention_tile(lua_State *L) {
    static const char f[] = "attention_tile";
    static const char *const options[] = {"queries", "keys", "seq", "kv_seq", "mask", "scale", "into", NULL};
    enter(L, f, 4);
    spl_tensor *q = lspl_check_tensor(L, 1, f, "q"), *k = lspl_check_tensor(L, 2, f, "k"),
               *v = lspl_check_tensor(L, 3, f, "v");
    spl_attention_part part = {.seq = rows_of(L, q, f, "q"), .kv_seq = rows_of(L, k, f, "k")};
    spl_tensor *into[2] = {NULL, NULL};
    if (lua_isnil(L, 4)) {
        lua_newtable(L);
        lua_replace(L, 4);
    }
    lspl_known_fields(L, 4, f, options);
    part.mask = mask_field(L, 4, f);
    part.scale = lspl_field_number(L, 4, f, "scale", 0.0);
    part.queries = segments_field(L, 4, f, "queries", part.seq, &part.nqueries);
    part.keys = segments_field(L, 4, f, "keys", part.kv_seq, &part.nkeys);
    part.seq = lspl_field_integer(L, 4, f, "seq", part.seq);
    int64_t kv_seq = lspl_raw_field(L, 4, "seq") == LUA_TNIL ? part.kv_seq : part.seq;
    part.kv_seq = lspl_field_integer(L, 4, f, "kv_seq", kv_seq);
    if (part.seq < 0 || part.kv_seq < 0)
        lspl_raisef(L, SPL_EARG, "%s: seq is %lld and kv_seq %lld; sizes are 0 or more", f, (long long)part.seq,
                    (long long)part.kv_seq);
    part.merge = into_field(L, 4, f, into);
    if (part.merge) {
        lspl_check(L, spl_attention_tile(q, k, v, &part, &into[0], &into[1]));
        return 2;
    }
    spl_tensor **out = lspl_new_tensor(L), **lse = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_attention_tile(q, k, v, &part, out, lse));
    return 2;
}

/* spl.attention_merge(out_a, lse_a, out_b, lse_b) -> out, lse [local] */
static int attention_merge(lua_State *L) {
    static const char *const names[] = {"out_a", "lse_a", "out_b", "lse_b"};
    enter(L, "attention_merge", 4);
    spl_tensor *in[4];
    for (int i = 0; i < 4; i++) in[i] = lspl_check_tensor(L, i + 1, "attention_merge", names[i]);
    spl_tensor **out = lspl_new_tensor(L), **lse = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_attention_merge(in[0], in[1], in[2], in[3], out, lse));
    return 2;
}

/* spl.attention_naive(q, k, v [, "causal" | "full"]) -> out [local] */
static int attention_naive(lua_State *L) {
    static const char f[] = "attention_naive";
    enter(L, f, 4);
    spl_tensor *q = lspl_check_tensor(L, 1, f, "q"), *k = lspl_check_tensor(L, 2, f, "k"),
               *v = lspl_check_tensor(L, 3, f, "v");
    const char *mask = lua_isnil(L, 4) ? "causal" : lua_type(L, 4) == LUA_TSTRING ? lua_tostring(L, 4) : "";
    if (strcmp(mask, "causal") && strcmp(mask, "full"))
        lspl_bad_argument(L, f, "mask", "\"causal\" or \"full\"", 4);
    spl_tensor **out = lspl_new_tensor(L);
    LSPL_ALLOCATE(L, spl_attention_naive(q, k, v, !strcmp(mask, "causal"), out));
    return 1;
}

/* spl.dropout_key(seed [, instance [, step]]) -> its two words [local] */
static int dropout_key(lua_State *L) {
    static const char *const names[] = {"seed", "instance", "step"};
    uint64_t v[3];
    enter(L, "dropout_key", 3);
    for (int i = 0; i < 3; i++) {
        int64_t n = i > 0 && lua_isnil(L, i + 1) ? 0 : lspl_integer(L, i + 1, "dropout_key", names[i]);
        if (n < 0)
            lspl_raisef(L, SPL_EARG, "dropout_key: %s is %lld; it must be zero or more", names[i], (long long)n);
        v[i] = (uint64_t)n;
    }
    spl_rng_key key = spl_dropout_key(v[0], v[1], v[2]);
    lua_pushinteger(L, key.word[0]);
    lua_pushinteger(L, key.word[1]);
    return 2;
}

/* spl.attention_input(mesh, {batch=, seq=, kv_seq=, heads=, kv_heads=, head_dim=, scheme=, chunk=, summaries=, mask=,
 * dtype=}) -> q, k, v [local]; contents undefined */
static int attention_input(lua_State *L) {
    static const char f[] = "attention_input";
    static const char *const options[] = {"batch",  "seq",   "kv_seq",    "heads", "kv_heads", "head_dim",
                                          "scheme", "chunk", "summaries", "mask",  "dtype",    NULL};
    static const char *const schemes[] = {"contiguous", "zigzag", "striped", NULL};
    static const char *const needed[] = {"seq", "heads", "head_dim"};
    enter(L, f, 2);
    spl_mesh *mesh = lspl_check_mesh(L, 1, f, "mesh");
    if (!lua_istable(L, 2)) lspl_bad_argument(L, f, "options", "a table {seq =, heads =, head_dim =}", 2);
    lspl_known_fields(L, 2, f, options);
    for (int i = 0; i < 3; i++) {
        lspl_raw_field(L, 2, needed[i]);
        lspl_integer(L, -1, f, needed[i]);
        lua_pop(L, 1);
    }
    spl_schedule s = {.scheme = (spl_scheme)lspl_field_way(L, 2, f, "scheme", schemes, SPL_CONTIGUOUS)};
    chunk_fields(L, 2, f, &s);
    const int64_t seq = lspl_field_integer(L, 2, f, "seq", 0), heads = lspl_field_integer(L, 2, f, "heads", 0),
                  kv_heads = lspl_field_integer(L, 2, f, "kv_heads", heads);
    if (kv_heads < 1 || heads < 1 || heads % kv_heads)
        lspl_raisef(L, SPL_EUSAGE, "%s: heads is %lld and kv_heads %lld; heads must be a multiple of kv_heads", f,
                    (long long)heads, (long long)kv_heads);
    int64_t shape[2][4] = {{lspl_field_integer(L, 2, f, "batch", 1), seq, heads,
                            lspl_field_integer(L, 2, f, "head_dim", 0)}};
    memcpy(shape[1], shape[0], sizeof shape[0]);
    shape[1][1] = lspl_field_integer(L, 2, f, "kv_seq", seq);
    shape[1][2] = kv_heads;
    spl_dtype dtype = SPL_F32;
    if (lspl_raw_field(L, 2, "dtype") != LUA_TNIL) dtype = lspl_dtype(L, -1, f, "dtype");
    spl_mask *mask = mask_field(L, 2, f);
    spl_layout layout[2];
    for (int i = 0; i < 2; i++)
        lspl_check(L, spl_attention_layout(spl_mesh_spec_of(mesh), &s, mask, shape[i], i ? heads / kv_heads : 1,
                                           &layout[i]));
    for (int i = 0; i < 3; i++) {
        spl_tensor **t = lspl_new_tensor(L);
        LSPL_ALLOCATE(L, spl_tensor_create(lspl_runtime(L), mesh, &layout[i > 0], dtype, SPL_MEM_ACTIVATIONS, t));
    }
    return 3;
}

void lspl_open_attention(lua_State *L) {
    static const luaL_Reg functions[] = {{"attention", attention},
                                         {"attention_tile", attention_tile},
                                         {"attention_merge", attention_merge},
                                         {"attention_naive", attention_naive},
                                         {"attention_input", attention_input},
                                         {"dropout_key", dropout_key},
                                         {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
