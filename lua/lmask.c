/* lmask.c: spl.mask("window:128"), spl.mask{seq =, {q =, k =, kind =}, ...}: who sees whom in attention. */
#include <stdlib.h>
#include <string.h>
#include "lspl.h"

static const char *const fields[] = {"slices", "pairs", "spec", "release", NULL};
static const char *const kinds[] = {"full", "causal", "inverse-causal", "both", NULL};

static spl_mask **new_mask(lua_State *L) { return (spl_mask **)lspl_new_object(L, LSPL_MASK); }

static spl_mask **to_mask(lua_State *L, int index) { return (spl_mask **)lspl_to_object(L, index, LSPL_MASK); }

static void let_go(void *m) { spl_mask_release(m); }

static spl_mask *held(lua_State *L, spl_mask *m) {
    spl_mask_retain(m);
    lspl_hold(L, m, let_go);
    return m;
}

void lspl_push_mask(lua_State *L, spl_mask *m) {
    spl_mask **p = new_mask(L);
    spl_mask_retain(m);
    *p = m;
}

/* A range {first, last} of the slice on top, counted from 1, as [begin, end) from 0. */
static void range_field(lua_State *L, const char *function, const char *key, int64_t all, int64_t *begin,
                        int64_t *end) {
    *begin = 0;
    *end = all;
    if (lspl_raw_field(L, lua_gettop(L), key) != LUA_TNIL) {
        if (!lua_istable(L, -1) || lua_rawlen(L, -1) != 2) {
            lspl_bad_argument(L, function, key, "a range {first, last}, counted from 1,", -1);
        }
        lua_rawgeti(L, -1, 1);
        *begin = lspl_integer(L, -1, function, key) - 1;
        lua_rawgeti(L, -2, 2);
        *end = lspl_integer(L, -1, function, key);
        lua_pop(L, 2);
    }
    lua_pop(L, 1);
}

/* {seq =, kv_seq =, {q = {1, 8}, k = {1, 8}, kind = "causal"}, ...} at `index` */
static void from_table(lua_State *L, int index, const char *function, spl_mask **out) {
    static const char *const slice_fields[] = {"q", "k", "kind", NULL};
    int64_t seq = lspl_field_integer(L, index, function, "seq", -1);
    if (seq < 0) lspl_raisef(L, SPL_EARG, "%s: seq is needed beside a list of slices: how many queries", function);
    int64_t kv_seq = lspl_field_integer(L, index, function, "kv_seq", seq);
    lua_Unsigned n = lua_rawlen(L, index);
    if (n == 0)
        lspl_raisef(L, SPL_EARG, "%s: no slice is given, so nobody would see anything; give slices {q = {first, last}, "
                    "k = {first, last}, kind =}", function);
    if (n > 1 << 20) lspl_raisef(L, SPL_EARG, "%s: %llu slices are more than 1048576", function, (unsigned long long)n);
    spl_slice *s = lua_newuserdatauv(L, sizeof *s * (size_t)(n ? n : 1), 0);
    for (lua_Unsigned i = 0; i < n; i++) {
        lua_rawgeti(L, index, (lua_Integer)i + 1);
        if (!lua_istable(L, -1)) {
            lspl_bad_argument(L, function, "slices", "a slice {q = {first, last}, k = {first, last}, kind =}", -1);
        }
        lspl_known_fields(L, lua_gettop(L), function, slice_fields);
        range_field(L, function, "q", seq, &s[i].q_begin, &s[i].q_end);
        range_field(L, function, "k", kv_seq, &s[i].k_begin, &s[i].k_end);
        s[i].kind = (spl_slice_kind)lspl_field_choice(L, lua_gettop(L), function, "kind", kinds, SPL_SLICE_FULL);
        lua_pop(L, 1);
    }
    spl_status status = spl_mask_from_slices(s, (int)n, seq, kv_seq, out);
    lua_pop(L, 1);
    lspl_check(L, status);
}

spl_mask *lspl_mask_argument(lua_State *L, int index, const char *function, const char *argument) {
    index = lua_absindex(L, index);
    spl_mask **p = to_mask(L, index);
    if (p && !*p) lspl_raisef(L, SPL_ERELEASED, "%s: argument '%s': this mask was released", function, argument);
    if (p) {
        lua_pushvalue(L, index);
        return held(L, *p);
    }
    if (lua_type(L, index) != LUA_TSTRING && !lua_istable(L, index)) {
        lspl_bad_argument(L, function, argument,
                          "a mask, its notation (\"causal\", \"window:128\") or a list of slices", index);
    }
    size_t length = 0;
    const char *text = lua_type(L, index) == LUA_TSTRING ? lua_tolstring(L, index, &length) : "";
    if (strlen(text) != length)
        lspl_raisef(L, SPL_EUSAGE,
                    "%s: argument '%s': the mask '%.80s' goes on behind a zero byte; a mask is plain text", function,
                    argument, text);
    spl_mask **made = new_mask(L);
    if (lua_istable(L, index))
        from_table(L, index, function, made);
    else
        lspl_check(L, spl_mask_parse(lua_tostring(L, index), made));
    return held(L, *made);
}

static spl_mask *check_mask(lua_State *L, const char *function) {
    spl_mask **p = to_mask(L, 1);
    if (!p) lspl_bad_argument(L, function, "self", "a mask", 1);
    if (!*p) lspl_raisef(L, SPL_ERELEASED, "%s: this mask was released", function);
    return held(L, *p);
}

/* spl.mask(text | list) [local] */
static int mask_new(lua_State *L) {
    lspl_enter(L, 1);
    lspl_mask_argument(L, 1, "mask", "mask");
    return 1;
}

static int mask_release(lua_State *L) {
    spl_mask **p = to_mask(L, 1);
    if (!p) lspl_bad_argument(L, "mask:release", "self", "a mask", 1);
    spl_mask *m = *p;
    *p = NULL;
    spl_mask_release(m);
    return 0;
}

/* The lengths at 2 and 3: keys as many as queries where absent. */
static void lengths(lua_State *L, const char *function, int64_t *seq_q, int64_t *seq_k) {
    *seq_q = lspl_integer(L, 2, function, "seq");
    *seq_k = lua_isnoneornil(L, 3) ? *seq_q : lspl_integer(L, 3, function, "kv_seq");
}

static void push_range(lua_State *L, const char *key, int64_t begin, int64_t end) {
    lua_createtable(L, 2, 0);
    lua_pushinteger(L, (lua_Integer)begin + 1);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, (lua_Integer)end);
    lua_rawseti(L, -2, 2);
    lua_setfield(L, -2, key);
}

/* mask:slices(seq [, kv_seq]) -> list [local] */
static int mask_slices(lua_State *L) {
    lspl_enter(L, 3);
    spl_mask *m = check_mask(L, "mask:slices");
    int64_t seq_q, seq_k, pairs;
    spl_slice *list = NULL, *copy;
    int n;
    lengths(L, "mask:slices", &seq_q, &seq_k);
    lspl_check(L, spl_mask_slices(m, seq_q, seq_k, &list, &n, &pairs)); /* counted first: no error may leak the list */
    free(list);
    copy = lua_newuserdatauv(L, sizeof *copy * (size_t)(n ? n : 1), 0);
    lspl_check(L, spl_mask_slices(m, seq_q, seq_k, &list, &n, &pairs));
    memcpy(copy, list, sizeof *copy * (size_t)n);
    free(list);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_createtable(L, 0, 3);
        push_range(L, "q", copy[i].q_begin, copy[i].q_end);
        push_range(L, "k", copy[i].k_begin, copy[i].k_end);
        lua_pushstring(L, kinds[copy[i].kind]);
        lua_setfield(L, -2, "kind");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* mask:pairs(seq [, kv_seq]) -> visible (query, key) pairs [local] */
static int mask_pairs(lua_State *L) {
    lspl_enter(L, 3);
    spl_mask *m = check_mask(L, "mask:pairs");
    int64_t seq_q, seq_k, pairs;
    spl_slice *list;
    int n;
    lengths(L, "mask:pairs", &seq_q, &seq_k);
    lspl_check(L, spl_mask_slices(m, seq_q, seq_k, &list, &n, &pairs));
    free(list);
    if (pairs == INT64_MAX)
        lspl_raisef(L, SPL_EUSAGE, "mask:pairs: %lld queries see more of %lld keys than can be counted (2^63 pairs)",
                    (long long)seq_q, (long long)seq_k);
    lua_pushinteger(L, (lua_Integer)pairs);
    return 1;
}

static void push_text(lua_State *L, const spl_mask *m) {
    int n = spl_mask_format(m, NULL, 0);
    char *text = lua_newuserdatauv(L, (size_t)n + 1, 0);
    spl_mask_format(m, text, (size_t)n + 1);
    lua_pushstring(L, text);
    lua_remove(L, -2);
}

static int mask_tostring(lua_State *L) {
    spl_mask **p = to_mask(L, 1);
    if (p && *p)
        push_text(L, *p);
    else
        lua_pushliteral(L, "mask (released)");
    return 1;
}

/* Upvalue 1: the methods. */
static int mask_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    lspl_enter(L, 2);
    if (lua_type(L, 2) != LUA_TSTRING || strcmp(lua_tostring(L, 2), "spec")) {
        return lspl_unknown_field(L, "a mask", 2, fields);
    }
    push_text(L, check_mask(L, "mask.spec"));
    return 1;
}

void lspl_open_mask(lua_State *L) {
    static const luaL_Reg methods[] = {
        {"slices", mask_slices}, {"pairs", mask_pairs}, {"release", mask_release}, {NULL, NULL}};
    static const luaL_Reg meta[] = {
        {"__gc", mask_release}, {"__close", mask_release}, {"__tostring", mask_tostring}, {NULL, NULL}};
    luaL_newmetatable(L, LSPL_MASK);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_pushcclosure(L, mask_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    lua_pushcfunction(L, mask_new);
    lua_setfield(L, -2, "mask");
}
