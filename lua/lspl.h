/* lspl.h: what every binding file shares. Binding order in each function: check all arguments, create the empty userdata
 * (so that memory errors strike before anything is owned), call core, clean up, raise last. Only lerror.c raises core's
 * errors. `__gc`, `__close` and `:release()` share one idempotent function per type. */
#ifndef LSPL_H
#define LSPL_H
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include "spl.h"

#define LSPL_TENSOR "spl.tensor"
#define LSPL_MESH "spl.mesh"
#define LSPL_LAYOUT "spl.layout"
#define LSPL_BLOCK "spl.block"
#define LSPL_SAFETENSORS "spl.safetensors"

/* host.c: one runtime a state */
spl_runtime *lspl_runtime(lua_State *L);

/* lerror.c. An error object is a table {code, message, rank} whose metatable prints the message; it passes through
 * pcall unchanged, and the host turns an uncaught one into traceback and exit code. */
int lspl_raise(lua_State *L, const spl_status *s);                        /* never returns */
int lspl_raisef(lua_State *L, spl_code code, const char *format, ...);    /* never returns */
static inline void lspl_check(lua_State *L, spl_status s) { if (s.code != SPL_OK) lspl_raise(L, &s); }
int lspl_push_nil_error(lua_State *L, const spl_status *s);               /* for expected outcomes: nil, message, code */
/* Message for a bad argument: "linear: argument 'x': a tensor is needed, got nil". Never returns. */
int lspl_bad_argument(lua_State *L, const char *function, const char *argument, const char *needed, int index);

/* Call before anything collective: records script:line for agreement and stalls, and refuses inside a finalizer. */
void lspl_collective(lua_State *L, const char *what);

/* Typed access; `function` and `argument` are for the message. A released object is SPL_ERELEASED. */
spl_tensor *lspl_check_tensor(lua_State *L, int index, const char *function, const char *argument);
spl_tensor *lspl_opt_tensor(lua_State *L, int index, const char *function, const char *argument); /* nil -> NULL */
spl_tensor **lspl_new_tensor(lua_State *L); /* pushes a userdata holding NULL; store the handle into it */
spl_mesh *lspl_check_mesh(lua_State *L, int index, const char *function, const char *argument);
spl_layout *lspl_check_layout(lua_State *L, int index, const char *function, const char *argument);
spl_layout *lspl_new_layout(lua_State *L); /* pushes a plain-data userdata */
int lspl_is(lua_State *L, int index, const char *type);

/* Each adds its functions to the table `spl` on top of the stack. */
void lspl_open_error(lua_State *L);
void lspl_open_runtime(lua_State *L);  /* rank size barrier counters ... (lruntime.c) */
void lspl_open_mesh(lua_State *L);
void lspl_open_layout(lua_State *L);
void lspl_open_tensor(lua_State *L);
void lspl_open_ops(lua_State *L);
void lspl_open_block(lua_State *L);
void lspl_open_reference(lua_State *L); /* spl.reference.block / attention on host tables or local f64 tensors (lreference.c) */
void lspl_open_safetensors(lua_State *L);
void lspl_open_regex(lua_State *L);     /* spl.regex over PCRE2 (lregex.c) */

#endif
