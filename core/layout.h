/* layout.h: who holds what. Pure index arithmetic of shards: no runtime, no communication, no backend. */
#ifndef SPL_LAYOUT_H
#define SPL_LAYOUT_H
#include "spl.h"

/* A growing list of segments; start from zeroes, free with spli_segments_free. */
typedef struct spli_segments {
    spl_segment *at;
    int n, capacity;
    int failed; /* memory ran out while it grew */
} spli_segments;
void spli_segments_free(spli_segments *s);
int64_t spli_segments_total(const spl_segment *s, int n);

/* Segments as positions in their documents (NULL: as they are): cut where a document begins, counted from there. */
spl_status spli_segments_restart(const spl_segment *s, int n, const spl_documents *documents, spli_segments *out);

/* The elements at positions [begin, end) of a list. */
spl_status spli_segments_part(const spl_segment *s, int n, int64_t begin, int64_t end, spli_segments *out);

/* Balanced split of n among parts: part c begins at *start and has the returned length; the first n % parts get one
 * more. */
int64_t spli_split(int64_t n, int64_t parts, int64_t c, int64_t *start);

/* The segments of `dim` at `coords`, in the order of local positions. `skip` (axis index or -1): as if that axis did
 * not split. */
spl_status spli_layout_segments(const spl_layout *l, const int *coords, int dim, int skip, spli_segments *out);

/* Where two lists of global indices meet, as runs of local positions: element i of a run is at position a + i*a_step of
 * list a and b + i*b_step of list b. Ordered by position in b's list, then a's. */
typedef struct spli_run {
    int64_t a, b, length, a_step, b_step;
} spli_run;
/* Returns the number of runs, writes a malloc'ed list to *out (NULL when 0); -1 when memory ran out. */
int spli_segments_meet(const spl_segment *a, int na, const spl_segment *b, int nb, spli_run **out);

/* What member i of `axis`, holding by layout `from`, gives of `dim` to member j, who shall hold by `to`; other
 * coordinates as in coords. Runs: a = position in what i holds, b = in what j shall hold. Where members overlap in
 * `from`, only the lowest holder gives. *runs is malloc'ed. */
spl_status spli_layout_transfer(const spl_layout *from, const spl_layout *to, const int *coords, int axis, int i, int j,
                                int dim, spli_run **runs, int *nruns);

static inline int64_t spli_unit(const spl_placement *p) { return p->unit > 0 ? p->unit : 1; }
static inline int64_t spli_cover(const spl_placement *p) { return p->cover > 0 ? p->cover : 1; }

/* The order in which axes split `dim`: writes axis indices, outermost first; returns how many. */
int spli_layout_nesting(const spl_layout *l, int dim, int *axes);
/* 1 when some axis of size > 1 shards the dimension. */
int spli_layout_sharded(const spl_layout *l, int dim);

/* One step of a redistribution: `axis` changes, everything else stays; `layout` is the result. */
typedef struct spli_layout_step {
    int axis;
    spl_layout layout;
} spli_layout_step;
enum { SPLI_MAX_STEPS = 4 * SPL_MAX_AXES };
/* A path of single-axis steps from one layout to another of the same mesh and shape; an inner axis of a dimension is
 * undone before its outer one changes. Steps that shrink the data come first. Returns the number of steps. */
int spli_layout_path(const spl_layout *from, const spl_layout *to, spli_layout_step *steps);

#endif
