/* tensor.h: inside of a tensor. Local part = storage + offset + strides; global meaning = mesh + layout. */
#ifndef SPL_TENSOR_H
#define SPL_TENSOR_H
#include "runtime.h"

typedef struct spli_storage { /* reference-counted backend memory */
    spl_runtime *rt;
    int refs;
    spl_memory_category category;
    size_t bytes;
    void *data; /* NULL when bytes == 0 or dropped */
    struct spli_origin *origin; /* who made it (origin.c); NULL: not noted */
} spli_storage;

/* origin.c: notes who made the storage of t, where that is wanted; forgets it. */
void spli_origin_note(const spl_tensor *t);
void spli_origin_forget(spli_storage *s);

struct spl_tensor {
    spl_runtime *rt;
    int refs, dropped;
    spli_storage *storage;
    spl_mesh *mesh; /* retained; NULL: of this rank alone */
    spl_layout layout; /* valid when mesh != NULL */
    spl_dtype dtype;
    int ndim;
    int64_t shape[SPL_MAX_DIMS], local[SPL_MAX_DIMS],
        strides[SPL_MAX_DIMS]; /* global; local; of the local part, in elements */
    int64_t offset; /* elements into the storage */
};

struct spl_mesh {
    spl_runtime *rt;
    int refs;
    spl_mesh_spec spec;
    int coords[SPL_MAX_AXES];
    spl_comm *comm[SPL_MAX_AXES]; /* of the ranks that differ from this one only along the axis */
    spl_comm *joined[SPL_ROLE_COUNT]; /* along all axes of a role over which keys travel, where there are several */
};

static inline void *spli_tensor_data(const spl_tensor *t) {
    return t->storage->data ? (char *)t->storage->data + (size_t)t->offset * spl_dtype_size(t->dtype) : NULL;
}
int spli_tensor_dense(const spl_tensor *t);
/* SPL_ERELEASED when dropped; `name` is used in the message ("x of linear"). */
spl_status spli_tensor_usable(const spl_tensor *t, const char *name);
/* A redistribution in parts, so that work begins on the first while the rest travels. What one all-to-all does goes in
 * parts; anything else is there when open returns, and the other calls do nothing. A part is positions [begin[m],
 * end[m]) of dimension `dim` of member m's part of the axis, of what it holds before (at_holder) or shall hold. One
 * part travels at a time. [collective over the axis: open, start and finish, by all in the same order] */
typedef struct spli_move spli_move;
spl_status spli_move_open(spl_tensor *from, const spl_layout *to, spli_move **out);
spl_status spli_move_whole(spl_tensor *from, const spl_layout *to, spli_move **out); /* all of it, at once */
spl_tensor *spli_move_result(const spli_move *m); /* borrowed; filled part by part */
spl_status spli_move_start(spli_move *m, int dim, int at_holder, const int64_t *begin, const int64_t *end);
spl_status spli_move_finish(spli_move *m);
void spli_move_close(spli_move *m); /* NULL is allowed */

/* All given tensors (NULLs skipped) alive and of one mesh. */
spl_status spli_tensors_together(const char *op, spl_tensor *const *ts, int n);
/* The same local memory under another global meaning: new global shape, layout (its local shape must equal local),
 * strides. */
spl_status spli_tensor_alias(spl_tensor *t, const spl_layout *layout, int ndim, const int64_t *local,
                             const int64_t *strides, int64_t offset, spl_tensor **out);
/* Segments of each dimension at this rank, as kernels take them; free with spli_index_map_free. */
spl_status spli_index_map_of(const spl_tensor *t, spl_index_map *out);
void spli_index_map_free(spl_index_map *m);
/* The comm along these axes together: one axis, or all axes of one role that have more than one rank; `role` is for
 * the message. */
spl_status spli_mesh_group(const spl_mesh *m, spl_role role, const int *axes, int naxes, spl_comm **out);
int spli_mesh_member(const spl_mesh_spec *spec, const int *coords); /* world rank at coords */
void spli_mesh_coords(const spl_mesh_spec *spec, int rank, int *coords);

#endif
