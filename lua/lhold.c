/* lhold.c: what a binding uses stays alive until it returns, whatever runs meanwhile.
 *
 * Lua runs finalizers wherever it allocates, and metamethods where it is asked for a field: a script's code in there
 * may release the very tensor that the binding has taken a pointer of. So a binding begins with lspl_enter, and what
 * the lspl_check functions hand out is retained until the binding returns or raises: a to-be-closed value on its stack
 * lets go. Calls nest (a finalizer may call bindings), never across coroutines: no binding yields. */
#include <stdlib.h>
#include <string.h>
#include "lspl.h"

typedef struct hold { /* release NULL: a binding begins here, and object is its frame */
    void *object;
    void (*release)(void *object);
} hold;

typedef struct holds { /* of one state, in its registry */
    hold *at;
    int n, room;
} holds;

static const char key = 0; /* its address names the registry entry */

static holds *push_holds(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    return lua_touserdata(L, -1);
}

static void *frame_of(lua_State *L) {
    lua_Debug frame;
    return lua_getstack(L, 0, &frame) ? (void *)frame.i_ci : NULL;
}

static int append(holds *h, hold one) {
    if (h->n == h->room) {
        int room = h->room ? 2 * h->room : 32;
        hold *at = realloc(h->at, sizeof *at * (size_t)room);
        if (!at) return 0;
        h->at = at;
        h->room = room;
    }
    h->at[h->n++] = one;
    return 1;
}

static int leave(lua_State *L) {
    holds *h = lua_touserdata(L, 1);
    while (h->n > 0) {
        hold last = h->at[--h->n];
        if (!last.release) break;
        last.release(last.object);
    }
    return 0;
}

void lspl_enter(lua_State *L, int nargs) {
    lua_settop(L, nargs);
    luaL_checkstack(L, LUA_MINSTACK, "arguments");
    holds *h = push_holds(L);
    if (!append(h, (hold){frame_of(L), NULL})) lspl_raisef(L, SPL_ENOMEM, "out of memory while calling into spl");
    lua_toclose(L, -1);
}

void lspl_hold(lua_State *L, void *object, void (*release)(void *)) {
    holds *h = push_holds(L);
    lua_pop(L, 1);
    int i = h->n;
    while (i > 0 && h->at[i - 1].release) i--;
    int inside = i > 0 && h->at[i - 1].object == frame_of(L);
    if (inside && append(h, (hold){object, release})) return;
    release(object);
    if (inside) lspl_raisef(L, SPL_ENOMEM, "out of memory while calling into spl");
    lspl_raisef(L, SPL_EINTERNAL, "a binding of spl holds an object without lspl_enter");
}

static int drop(lua_State *L) {
    holds *h = lua_touserdata(L, 1);
    free(h->at);
    memset(h, 0, sizeof *h);
    return 0;
}

/* ---- userdata that know what they are: debug.setmetatable can give any userdata any type's metatable */

typedef struct payload { /* every one begins with this */
    char type[LSPL_TYPE_BYTES];
} payload;

void *lspl_new_payload(lua_State *L, const char *type, size_t size, int user_values) {
    payload *p = lua_newuserdatauv(L, size, user_values);
    memset(p, 0, size);
    strncpy(p->type, type, sizeof p->type - 1);
    luaL_setmetatable(L, type);
    return p;
}

void *lspl_payload(lua_State *L, int index, const char *type, size_t size) {
    payload *p = luaL_testudata(L, index, type);
    if (!p || lua_rawlen(L, index) != size || strncmp(p->type, type, sizeof p->type)) return NULL;
    return p;
}

void **lspl_new_object(lua_State *L, const char *type) {
    return &((lspl_object *)lspl_new_payload(L, type, sizeof(lspl_object), 1))->object;
}

void **lspl_to_object(lua_State *L, int index, const char *type) {
    lspl_object *o = lspl_payload(L, index, type, sizeof *o);
    return o ? &o->object : NULL;
}

void lspl_open_hold(lua_State *L) {
    holds *h = lua_newuserdatauv(L, sizeof *h, 0);
    memset(h, 0, sizeof *h);
    lua_createtable(L, 0, 3);
    lua_pushcfunction(L, leave);
    lua_setfield(L, -2, "__close");
    lua_pushcfunction(L, drop);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &key);
}
