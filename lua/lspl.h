/* lspl.h: what every binding file shares. Binding order in each function: check all arguments, create the empty
 * userdata (so that memory errors strike before anything is owned), call core, clean up, raise last. Only lerror.c
 * raises core's errors. `__gc`, `__close` and `:release()` share one idempotent function per type. */
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
#define LSPL_MASK "spl.mask"
#define LSPL_SAFETENSORS "spl.safetensors"

/* host.c: one runtime a state */
spl_runtime *lspl_runtime(lua_State *L);

/* lerror.c. An error object is a table {code, message, rank} whose metatable prints the message; it passes through
 * pcall unchanged, and the host turns an uncaught one into traceback and exit code. */
int lspl_raise(lua_State *L, const spl_status *s);                        /* never returns */
int lspl_raisef(lua_State *L, spl_code code, const char *format, ...);    /* never returns */
static inline void lspl_check(lua_State *L, spl_status s) { if (s.code != SPL_OK) lspl_raise(L, &s); }
int lspl_push_nil_error(lua_State *L, const spl_status *s); /* for expected outcomes: nil, message, code */
/* Message for a bad argument: "linear: argument 'x': a tensor is needed, got nil". Never returns. */
int lspl_bad_argument(lua_State *L, const char *function, const char *argument, const char *needed, int index);

/* Call before anything collective: records script:line for agreement and stalls, and refuses inside a finalizer. */
void lspl_collective(lua_State *L, const char *what);
/* Call before what may take long: records script:line, for tables of what ranks do. */
void lspl_working(lua_State *L);

/* lhold.c: what a binding uses stays alive until it returns. A binding that takes objects begins with lspl_enter: it
 * fixes the stack at its `nargs` arguments (absent ones are nil) and puts one value above them. What the lspl_check
 * functions below hand out is then retained until the binding returns or raises, whatever finalizers do meanwhile. */
void lspl_enter(lua_State *L, int nargs);
/* Takes over one reference until the binding ends. */
void lspl_hold(lua_State *L, void *object, void (*release)(void *object));
/* Userdata of a type of ours: `size` bytes, zeroed, beginning with the type's name; the type's metatable alone proves
 * nothing, since debug.setmetatable gives it to anything. lspl_payload is NULL for what is of no such type. */
enum { LSPL_TYPE_BYTES = 24 };
void *lspl_new_payload(lua_State *L, const char *type, size_t size, int user_values);
void *lspl_payload(lua_State *L, int index, const char *type, size_t size);
typedef struct lspl_object { /* one that holds a handle of core; NULL once released */
    char type[LSPL_TYPE_BYTES];
    void *object;
} lspl_object;
void **lspl_new_object(lua_State *L, const char *type);
void **lspl_to_object(lua_State *L, int index, const char *type);
void lspl_open_hold(lua_State *L);

/* The script's line ("a.lua:12"), or "". */
void lspl_site(lua_State *L, char *site, size_t n);

/* Typed access; `function` and `argument` are for the message. A released object is SPL_ERELEASED. */
spl_tensor *lspl_check_tensor(lua_State *L, int index, const char *function, const char *argument);
spl_tensor *lspl_opt_tensor(lua_State *L, int index, const char *function, const char *argument); /* nil -> NULL */
spl_tensor **lspl_new_tensor(lua_State *L); /* pushes a userdata holding NULL; store the handle into it */
spl_mesh *lspl_check_mesh(lua_State *L, int index, const char *function, const char *argument);
spl_layout *lspl_check_layout(lua_State *L, int index, const char *function, const char *argument);
spl_layout *lspl_new_layout(lua_State *L); /* pushes a plain-data userdata */
int lspl_is_tensor(lua_State *L, int index);
int lspl_is_layout(lua_State *L, int index);
void lspl_push_mesh(lua_State *L, spl_mesh *m);                                   /* retains m */
/* `m` (or NULL) says where this rank stands. */
void lspl_push_layout(lua_State *L, const spl_layout *layout, const spl_mesh *m);
int lspl_axis(lua_State *L, int index, const char *function, spl_mesh *m); /* the axis of this name, counted from 0 */
/* A layout of `mesh` for this shape, given as a layout object or in the notation of spl_layout_parse. */
void lspl_layout_argument(lua_State *L, int index, const char *function, const spl_mesh_spec *mesh, int ndim,
                          const int64_t *shape, spl_layout *out);

/* lmask.c */
void lspl_push_mask(lua_State *L, spl_mask *m); /* retains m */
/* A mask, given as one, as its notation or as a list of slices; pushes the mask that holds it. */
spl_mask *lspl_mask_argument(lua_State *L, int index, const char *function, const char *argument);

/* lfields.c: option tables. Getters leave the stack as it was; an absent key gives the fallback. Strings given back
 * stay valid while the table is. */
void lspl_known_fields(lua_State *L, int index, const char *function, const char *const *known); /* NULL-terminated */
int64_t lspl_field_integer(lua_State *L, int index, const char *function, const char *key, int64_t fallback);
double lspl_field_number(lua_State *L, int index, const char *function, const char *key, double fallback);
int lspl_field_boolean(lua_State *L, int index, const char *function, const char *key, int fallback);
const char *lspl_field_string(lua_State *L, int index, const char *function, const char *key, const char *fallback);
/* Position in the NULL-terminated `names` of the string under `key`. */
int lspl_field_way(lua_State *L, int index, const char *function, const char *key, const char *const *names,
                   int fallback); /* of roles and schemes: a wrong one is as wrong as one that does not fit the mesh */
int lspl_field_choice(lua_State *L, int index, const char *function, const char *key, const char *const *names,
                      int fallback);
/* A list of sizes {2, 3}: at most SPL_MAX_DIMS integers >= 0; returns how many. */
int lspl_shape(lua_State *L, int index, const char *function, const char *argument, int64_t *shape);
int64_t lspl_integer(lua_State *L, int index, const char *function, const char *argument);
double lspl_number(lua_State *L, int index, const char *function, const char *argument);
/* A 1-based dimension of a tensor of `ndim`, as 0-based. */
int lspl_dim(lua_State *L, int index, const char *function, const char *argument, int ndim);
spl_dtype lspl_dtype(lua_State *L, int index, const char *function, const char *argument);
const char *lspl_nearest(const char *name, const char *const *known); /* NULL when nothing is near */
/* "a, b, c" of a NULL-terminated list, cut where the buffer ends. */
void lspl_join(char *out, size_t n, const char *const *names);
void lspl_record(lua_State *L);   /* the table on top, one of results, will print a line a field (report.lua) */
int lspl_as_record(lua_State *L); /* core.record(t) -> t: the same, for modules */
/* t[key] without metamethods: option tables are plain. Pushes the value and returns its type. */
int lspl_raw_field(lua_State *L, int index, const char *key);
void lspl_push_int64s(lua_State *L, const int64_t *values, int n);    /* as a list */
/* Unknown field of an object: error naming it and the nearest known one. Never returns. */
int lspl_unknown_field(lua_State *L, const char *object, int key_index, const char *const *known);

/* ltensor.c: memory that Lua's collector cannot see. Core's tensors may fill the machine while their userdata look
 * tiny, so a full collection runs whenever tensor memory, or the number of tensors, has doubled since the last one;
 * lspl_new_tensor does it, call it also after what makes large ones. */
void lspl_account(lua_State *L);
/* [local] calls only (a collective may not be tried again by one rank alone): on SPL_ENOMEM one collection, one
 * retry. */
#define LSPL_ALLOCATE(L, call)                      \
    do {                                            \
        spl_status allocate_ = (call);              \
        if (allocate_.code == SPL_ENOMEM) {         \
            lua_gc((L), LUA_GCCOLLECT, 0);          \
            allocate_ = (call);                     \
        }                                           \
        if (allocate_.code != SPL_OK) lspl_raise((L), &allocate_); \
        lspl_account(L);                            \
    } while (0)

/* ltensor_values.c */
void lspl_tensor_value_methods(lua_State *L); /* adds the methods that carry values to the table on top */
void lspl_open_values(lua_State *L);          /* spl.from_table */
/* The local part as doubles in a new userdata on the stack. */
double *lspl_read_doubles(lua_State *L, spl_tensor *t);
int64_t *lspl_read_integers(lua_State *L, spl_tensor *t);

/* lcollective.c */
void lspl_mesh_collectives(lua_State *L); /* adds all_gather and its like to the table of methods on top */

/* Each adds its functions to the table `spl` on top of the stack. */
/* Pushes `core`, the table of all bindings, each opened by a function below (host.c). */
void lspl_open_bindings(lua_State *L);
void lspl_open_error(lua_State *L);
void lspl_open_runtime(lua_State *L);  /* rank size barrier counters ... (lruntime.c) */
void lspl_open_info(lua_State *L);     /* spl.facts: the machine and the build (linfo.c) */
void lspl_open_trace(lua_State *L);    /* spl.trace_start, trace_write ... (ltrace.c) */
void lspl_open_file(lua_State *L);     /* core.read_file, core.exists (lfile.c) */
void lspl_open_mesh(lua_State *L);
void lspl_open_layout(lua_State *L);
void lspl_open_mask(lua_State *L);
void lspl_open_tensor(lua_State *L);
void lspl_open_ops(lua_State *L);
void lspl_open_block(lua_State *L);
void lspl_open_attention(lua_State *L);
void lspl_open_reference(lua_State *L); /* spl.reference.block, .attention; spl.compare (lreference.c) */
void lspl_open_safetensors(lua_State *L);
void lspl_open_process(lua_State *L);   /* core.system: processes, files (lprocess.c) */
void lspl_open_regex(lua_State *L);     /* spl.regex over PCRE2 (lregex.c) */

#endif
