/* tensor_view.c: other looks at the same memory, and the two conversions that may copy: contiguous and cast. */
#include "tensor.h"
#include "layout.h"
#include <stdlib.h>
#include <string.h>

static spl_status dim_in_range(const spl_tensor *t, int dim) {
    if (dim >= 0 && dim < t->ndim) return spli_ok();
    return spli_error(SPL_EARG, "dimension %d was given; the tensor has dimensions 1 to %d", dim + 1, t->ndim);
}

spl_status spl_tensor_narrow(spl_tensor *t, int dim, int64_t start, int64_t length, spl_tensor **out) {
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(dim_in_range(t, dim));
    if (t->mesh && spli_layout_sharded(&t->layout, dim))
        return spli_error(SPL_EARG,
                          "narrow was asked to cut dimension %d, which is sharded; redistribute it to replicate first",
                          dim + 1);
    if (start < 0 || length < 0 || start > t->local[dim] || length > t->local[dim] - start)
        return spli_error(SPL_EARG, "narrow was asked for %lld elements from %lld of dimension %d, which has %lld",
                          (long long)length, (long long)start + 1, dim + 1, (long long)t->local[dim]);
    int64_t local[SPL_MAX_DIMS];
    memcpy(local, t->local, sizeof local);
    local[dim] = length;
    spl_layout layout = t->layout;
    layout.shape[dim] = length;
    for (int a = 0; t->mesh && a < layout.naxes;
         a++) /* an axis of one rank may name the dimension; its unit need not fit now */
        if (layout.axes[a].place == SPL_SHARD && layout.axes[a].dim == dim) layout.axes[a] = (spl_placement){0};
    return spli_tensor_alias(t, t->mesh ? &layout : NULL, t->ndim, local, t->strides,
                             t->offset + start * t->strides[dim], out);
}

spl_status spl_tensor_transpose(spl_tensor *t, int a, int b, spl_tensor **out) {
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(dim_in_range(t, a));
    SPL_TRY(dim_in_range(t, b));
    int64_t local[SPL_MAX_DIMS], strides[SPL_MAX_DIMS];
    memcpy(local, t->local, sizeof local);
    memcpy(strides, t->strides, sizeof strides);
    local[a] = t->local[b], local[b] = t->local[a];
    strides[a] = t->strides[b], strides[b] = t->strides[a];
    spl_layout layout = t->layout;
    layout.shape[a] = t->shape[b], layout.shape[b] = t->shape[a];
    for (int x = 0; t->mesh && x < layout.naxes; x++) {
        if (layout.axes[x].place != SPL_SHARD) continue;
        if (layout.axes[x].dim == a) layout.axes[x].dim = b;
        else if (layout.axes[x].dim == b) layout.axes[x].dim = a;
    }
    return spli_tensor_alias(t, t->mesh ? &layout : NULL, t->ndim, local, strides, t->offset, out);
}

/* Elements behind each dimension. */
static void counts_behind(int ndim, const int64_t *shape, int64_t *behind) {
    int64_t count = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        behind[d] = count;
        count *= shape[d];
    }
}

/* Which new dimension each of the listed ones becomes; -1: none. It has the size, and as many elements behind it. Where
 * dimensions of size 1 leave a choice, they keep their order, each its own, and stay as near to their place from the
 * front as the others leave room for. Returns the first listed that finds none, or -1. */
static int match_dims(const spl_tensor *t, const int *listed, int n, int ndim, const int64_t *shape, int *to) {
    int64_t was[SPL_MAX_DIMS], is[SPL_MAX_DIMS];
    int latest[SPL_MAX_DIMS], bound = ndim, last = -1;
    counts_behind(t->ndim, t->shape, was);
    counts_behind(ndim, shape, is);
    for (int i = n - 1; i >= 0; i--) { /* the last place that leaves room for those behind */
        int d = bound - 1;
        while (d >= 0 && (shape[d] != t->shape[listed[i]] || is[d] != was[listed[i]])) d--;
        if (d < 0) return listed[i];
        latest[i] = bound = d;
    }
    for (int i = 0; i < n; i++) {
        int from = listed[i], best = -1;
        for (int d = last + 1; d <= latest[i]; d++)
            if (shape[d] == t->shape[from] && is[d] == was[from] && (best < 0 || abs(d - from) < abs(best - from)))
                best = d;
        to[from] = last = best;
    }
    return -1;
}

/* A sharded dimension survives whole. */
static spl_status reshaped_layout(const spl_tensor *t, int ndim, const int64_t *shape, spl_layout *layout,
                                  int64_t *local) {
    int to[SPL_MAX_DIMS] = {0}, by[SPL_MAX_DIMS], listed[SPL_MAX_DIMS], n = 0; /* by: an axis that shards it */
    int64_t before = 1, after = 1;
    *layout = t->layout;
    layout->ndim = ndim;
    for (int d = 0; d < ndim; d++) layout->shape[d] = shape[d];
    for (int from = 0; from < t->ndim; from++) {
        by[from] = -1;
        for (int a = 0; a < layout->naxes; a++)
            if (t->layout.axes[a].place == SPL_SHARD && t->layout.axes[a].dim == from) by[from] = a;
        if (by[from] >= 0) listed[n++] = from;
    }
    int broken = match_dims(t, listed, n, ndim, shape, to);
    if (broken >= 0)
        return spli_error(SPL_EARG,
                          "reshape would break dimension %d, which axis '%s' shards (or two such dimensions of size 1 "
                          "would become one); keep its size, or redistribute it to replicate first",
                          broken + 1, layout->axis_name[by[broken]]);
    for (int i = 0; i < n; i++) local[to[listed[i]]] = t->local[listed[i]];
    for (int a = 0; a < layout->naxes; a++)
        if (layout->axes[a].place == SPL_SHARD) layout->axes[a].dim = to[t->layout.axes[a].dim];
    for (int d = 0; d < t->ndim; d++) before *= t->local[d];
    for (int d = 0; d < ndim; d++) after *= local[d];
    if (before == after) return spli_ok();
    return spli_error(SPL_EARG, "reshape of an empty sharded tensor to this shape would not stay empty on each rank; "
                                "redistribute it to replicate first");
}

spl_status spl_tensor_reshape(spl_tensor *t, int ndim, const int64_t *shape, spl_tensor **out) {
    int64_t have = 1, want = 1, local[SPL_MAX_DIMS], strides[SPL_MAX_DIMS];
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (ndim < 0 || ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "reshape to %d dimensions was asked for; 0 to %d are possible", ndim, SPL_MAX_DIMS);
    for (int d = 0; d < t->ndim; d++) have *= t->shape[d];
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return spli_error(SPL_EARG, "reshape was given the size %lld; sizes are 0 or more", (long long)shape[d]);
        SPL_TRY(spli_mul_size(want, shape[d], &want));
        local[d] = shape[d];
    }
    if (have != want)
        return spli_error(SPL_EARG, "reshape was given a shape of %lld elements for a tensor of %lld", (long long)want,
                          (long long)have);
    spl_layout layout;
    if (t->mesh) SPL_TRY(reshaped_layout(t, ndim, shape, &layout, local));
    if (!spli_tensor_dense(t)) { /* a view of a dense copy */
        spl_tensor *dense;
        SPL_TRY(spl_tensor_contiguous(t, &dense));
        spl_status status = spl_tensor_reshape(dense, ndim, shape, out);
        spl_tensor_release(dense);
        return status;
    }
    for (int64_t d = ndim - 1, stride = 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= local[d] > 0 ? local[d] : 1;
    }
    return spli_tensor_alias(t, t->mesh ? &layout : NULL, ndim, local, strides, t->offset, out);
}

/* Views that cut a dimension of n in units into [n / inner, inner], and back. A shard of whole units stays a shard. */

spl_status spl_tensor_split(spl_tensor *t, int dim, int64_t inner, spl_tensor **out) {
    int64_t local[SPL_MAX_DIMS], strides[SPL_MAX_DIMS];
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(dim_in_range(t, dim));
    if (t->ndim == SPL_MAX_DIMS || inner < 1 || t->shape[dim] % inner != 0)
        return spli_error(SPL_EARG, "split was asked to cut dimension %d of size %lld into parts of %lld", dim + 1,
                          (long long)t->shape[dim], (long long)inner);
    spl_layout layout = t->layout;
    layout.ndim = t->ndim + 1;
    for (int d = 0, to = 0; d < t->ndim; d++) {
        layout.shape[to] = d == dim ? t->shape[d] / inner : t->shape[d];
        local[to] = d == dim ? t->local[d] / inner : t->local[d];
        strides[to++] = d == dim ? t->strides[d] * inner : t->strides[d];
        if (d != dim) continue;
        layout.shape[to] = local[to] = inner;
        strides[to++] = t->strides[d];
    }
    for (int a = 0; t->mesh && a < layout.naxes; a++) {
        spl_placement *p = &layout.axes[a];
        if (p->place != SPL_SHARD || p->dim < dim) continue;
        if (p->dim > dim) p->dim++;
        else if (spli_unit(p) % inner == 0) p->unit = spli_unit(p) / inner;
        else if (layout.axis_size[a] == 1) *p = (spl_placement){0};
        else
            return spli_error(SPL_EARG, "split would cut the units of %lld in which axis '%s' shards dimension %d",
                              (long long)spli_unit(p), layout.axis_name[a], dim + 1);
    }
    return spli_tensor_alias(t, t->mesh ? &layout : NULL, t->ndim + 1, local, strides, t->offset, out);
}

spl_status spl_tensor_merge(spl_tensor *t, int dim, spl_tensor **out) {
    int64_t local[SPL_MAX_DIMS], strides[SPL_MAX_DIMS], inner;
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(dim_in_range(t, dim));
    SPL_TRY(dim_in_range(t, dim + 1));
    inner = t->shape[dim + 1];
    if ((t->mesh && spli_layout_sharded(&t->layout, dim + 1)) ||
        (t->local[dim] > 1 && t->local[dim + 1] > 0 && t->strides[dim] != t->strides[dim + 1] * inner))
        return spli_error(SPL_EARG, "merge needs dimensions %d and %d dense, and the second not sharded", dim + 1,
                          dim + 2);
    spl_layout layout = t->layout;
    layout.ndim = t->ndim - 1;
    for (int d = 0, from = 0; d < t->ndim - 1; d++, from++) {
        layout.shape[d] = t->shape[from];
        local[d] = t->local[from];
        strides[d] = t->strides[from];
        if (d != dim) continue;
        from++;
        layout.shape[d] *= inner;
        local[d] *= inner;
        strides[d] = t->strides[from];
    }
    for (int a = 0; t->mesh && a < layout.naxes; a++) {
        spl_placement *p = &layout.axes[a];
        if (p->place != SPL_SHARD || p->dim < dim) continue;
        if (p->dim > dim) {
            if (p->dim == dim + 1) *p = (spl_placement){0}; /* an axis of one rank */
            else p->dim--;
        } else if (inner > 0) {
            p->unit = spli_unit(p) * inner;
        }
    }
    return spli_tensor_alias(t, t->mesh ? &layout : NULL, t->ndim - 1, local, strides, t->offset, out);
}

spl_status spl_tensor_local(spl_tensor *t, spl_tensor **out) {
    return spli_tensor_alias(t, NULL, t->ndim, t->local, t->strides, t->offset, out);
}

static spl_status like(spl_tensor *t, spl_dtype dtype, spl_tensor **out) {
    spl_memory_category category = t->storage->category;
    if (t->mesh) return spl_tensor_create(t->rt, t->mesh, &t->layout, dtype, category, out);
    return spl_tensor_create_local(t->rt, t->ndim, t->local, dtype, out);
}

static spl_status copy_into(const spl_tensor *t, spl_tensor *dense) {
    spl_box_args box = {.dtype = t->dtype, .ndim = t->ndim, .dst = spli_tensor_data(dense), .src = spli_tensor_data(t)};
    if (spl_tensor_local_count(t) == 0) return spli_ok();
    for (int d = 0; d < t->ndim; d++) {
        box.shape[d] = t->local[d];
        box.src_strides[d] = t->strides[d];
        box.dst_strides[d] = dense->strides[d];
    }
    return t->rt->backend->box(t->rt->backend_ctx, t->rt->compute, &box);
}

spl_status spl_tensor_contiguous(spl_tensor *t, spl_tensor **out) {
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (spli_tensor_dense(t)) {
        spl_tensor_retain(t);
        *out = t;
        return spli_ok();
    }
    return spl_tensor_copy(t, out);
}

int spl_tensor_shares(const spl_tensor *a, const spl_tensor *b) { return a->storage && a->storage == b->storage; }

spl_status spl_tensor_copy(spl_tensor *t, spl_tensor **out) {
    spl_tensor *copy;
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(like(t, t->dtype, &copy));
    spl_status status = copy_into(t, copy);
    if (status.code != SPL_OK) spl_tensor_release(copy);
    else *out = copy;
    return status;
}

spl_status spl_tensor_cast(spl_tensor *t, spl_dtype to, spl_tensor **out) {
    spl_tensor *dense = NULL, *cast = NULL;
    spl_status status = spli_ok();
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (t->dtype == to) {
        spl_tensor_retain(t);
        *out = t;
        return spli_ok();
    }
    SPL_GO(spl_tensor_contiguous(t, &dense), done);
    SPL_GO(like(t, to, &cast), done);
    if (spl_tensor_local_count(t) > 0)
        SPL_GO(t->rt->backend->cast(t->rt->backend_ctx, t->rt->compute, spli_tensor_data(cast), to,
                                    spli_tensor_data(dense), t->dtype, spl_tensor_local_count(t)),
               done);
    *out = cast;
    cast = NULL;
done:
    spl_tensor_release(dense);
    spl_tensor_release(cast);
    return status;
}
