/* lattention.c: spl.attention: attention on tensors, whole or as a tile of a scheme that a script writes itself. */
#include <string.h>
#include "lspl.h"

/* A tensor in the list at stack `index`. */
static spl_tensor *listed(lua_State *L, int index, lua_Integer i, const char *name) {
    lua_rawgeti(L, index, i);
    return lspl_check_tensor(L, lua_gettop(L), "attention", name);
}

/* spl.attention(q, k, v, {mask=, scale=, role=, into = {out, lse}}) -> out, lse */
static int attention(lua_State *L) {
    static const char *const known[] = {"mask", "scale", "role", "into", NULL};
    static const char *const roles[] = {"ring", "gather", NULL};
    lspl_enter(L, 4);
    spl_tensor *q = lspl_check_tensor(L, 1, "attention", "q"), *k = lspl_check_tensor(L, 2, "attention", "k");
    spl_tensor *v = lspl_check_tensor(L, 3, "attention", "v"), *out = NULL, *lse = NULL;
    spl_mask *mask = NULL;
    double scale = 0;
    spl_role role = SPL_ROLE_RING;
    if (!lua_isnil(L, 4)) {
        lspl_known_fields(L, 4, "attention", known);
        scale = lspl_field_number(L, 4, "attention", "scale", 0);
        role = lspl_field_choice(L, 4, "attention", "role", roles, 0) ? SPL_ROLE_GATHER : SPL_ROLE_RING;
        if (lspl_raw_field(L, 4, "into") != LUA_TNIL) {
            int into = lua_gettop(L);
            if (!lua_istable(L, into) || lua_rawlen(L, into) != 2)
                lspl_bad_argument(L, "attention", "into", "a list {out, lse}", into);
            out = listed(L, into, 1, "into[1]");
            lse = listed(L, into, 2, "into[2]");
        }
        if (lspl_raw_field(L, 4, "mask") != LUA_TNIL) mask = lspl_mask_argument(L, -1, "attention", "mask");
    }
    if (spl_tensor_mesh(q)) lspl_collective(L, "attention");
    if (out) {
        lspl_check(L, spl_attention_merge(q, k, v, mask, scale, role, out, lse));
        lua_getfield(L, 4, "into");
        lua_rawgeti(L, -1, 1);
        lua_rawgeti(L, -2, 2);
        return 2;
    }
    spl_tensor **made = lspl_new_tensor(L), **made_lse = lspl_new_tensor(L);
    if (spl_tensor_mesh(q)) lspl_check(L, spl_attention(q, k, v, mask, scale, role, made, made_lse));
    else LSPL_ALLOCATE(L, spl_attention(q, k, v, mask, scale, role, made, made_lse));
    lspl_account(L);
    return 2;
}

void lspl_open_attention(lua_State *L) {
    lua_pushcfunction(L, attention);
    lua_setfield(L, -2, "attention");
}
