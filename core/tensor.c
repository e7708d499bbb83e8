/* tensor.c: tensors and their storage: making, sharing, dropping, filling, and moving this rank's part to and from the
 * host. */
#include "tensor.h"
#include "layout.h"
#include "rng.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- storage ---- */

static spl_status storage_create(spl_runtime *rt, spl_memory_category category, size_t bytes, spli_storage **out) {
    spli_storage *s = calloc(1, sizeof *s);
    if (!s) return spli_error(SPL_ENOMEM, "out of memory while making a tensor");
    s->rt = rt;
    s->refs = 1;
    s->category = category;
    s->bytes = bytes;
    if (bytes) {
        spl_status status = spli_alloc(rt, category, bytes, &s->data);
        if (status.code != SPL_OK) {
            free(s);
            return status;
        }
    }
    rt->counters.live_storages++;
    *out = s;
    return spli_ok();
}

static void storage_release(spli_storage *s) {
    if (--s->refs) return;
    if (s->data) spli_free(s->rt, s->category, s->data, s->bytes);
    if (s->origin) spli_origin_forget(s);
    s->rt->counters.live_storages--;
    free(s);
}

/* ---- making ---- */

static spl_status tensor_over(spl_runtime *rt, spli_storage *storage, spl_tensor **out) {
    spl_tensor *t = calloc(1, sizeof *t);
    if (!t) return spli_error(SPL_ENOMEM, "out of memory while making a tensor");
    t->rt = rt;
    t->refs = 1;
    t->storage = storage;
    if (storage) storage->refs++;
    rt->counters.live_tensors++;
    *out = t;
    return spli_ok();
}

static void dense_strides(spl_tensor *t) {
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->strides[d] = stride;
        stride *= t->local[d] > 0 ? t->local[d] : 1;
    }
}

/* Global and local element counts must fit, in bytes, into a size. */
static spl_status checked_bytes(const spl_tensor *t, size_t *bytes) {
    int64_t count = 1, local = 1, size = (int64_t)spl_dtype_size(t->dtype), all;
    /* Sizes of an empty tensor count as 1: strides, and rows of no elements, must be numbers too. */
    for (int d = 0; d < t->ndim; d++) SPL_TRY(spli_mul_size(count, t->shape[d] > 0 ? t->shape[d] : 1, &count));
    SPL_TRY(spli_mul_size(count, size, &all));
    for (int d = 0; d < t->ndim; d++) local *= t->local[d]; /* at most the global count, which fits */
    *bytes = (size_t)(local * size);
    return spli_ok();
}

static spl_status create(spl_runtime *rt, spl_mesh *mesh, const spl_layout *layout, int ndim, const int64_t *shape,
                         spl_dtype dtype, spl_memory_category category, spl_tensor **out) {
    spl_tensor *t = NULL;
    spl_status status = spli_ok();
    size_t bytes;
    SPL_TRY(tensor_over(rt, NULL, &t));
    t->dtype = dtype;
    t->ndim = ndim;
    memcpy(t->shape, shape, sizeof(int64_t) * (size_t)ndim);
    for (int d = 0; d < ndim; d++) {
        t->local[d] = mesh ? spl_layout_local_size(layout, mesh->coords, d) : shape[d];
        if (t->local[d] < 0) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while making a tensor"), fail);
    }
    SPL_GO(checked_bytes(t, &bytes), fail);
    SPL_GO(storage_create(rt, category, bytes, &t->storage), fail);
    dense_strides(t);
    if (rt->origin_site) spli_origin_note(t);
    if (mesh) {
        t->mesh = mesh;
        spl_mesh_retain(mesh);
        t->layout = *layout;
        spl_layout_retain(layout);
    }
    *out = t;
    return spli_ok();
fail:
    rt->counters.live_tensors--;
    free(t);
    return status;
}

/* The layout's axes must be the mesh's. */
static spl_status layout_fits(const spl_layout *l, const spl_mesh *m) {
    int fits = l->naxes == m->spec.naxes;
    for (int a = 0; fits && a < l->naxes; a++)
        fits = l->axis_size[a] == m->spec.axes[a].size && !strcmp(l->axis_name[a], m->spec.axes[a].name);
    if (fits) return spl_layout_check(l);
    char spec[200];
    spl_mesh_format(&m->spec, spec, sizeof spec);
    return spli_error(SPL_EARG, "the layout was made for another mesh than (%s); make it with this mesh", spec);
}

spl_status spl_tensor_create(spl_runtime *rt, spl_mesh *mesh, const spl_layout *layout, spl_dtype t,
                             spl_memory_category category, spl_tensor **out) {
    if (!mesh || !layout) return spli_error(SPL_EARG, "a distributed tensor needs a mesh and a layout");
    SPL_TRY(layout_fits(layout, mesh));
    return create(rt, mesh, layout, layout->ndim, layout->shape, t, category, out);
}

spl_status spl_tensor_create_local(spl_runtime *rt, int ndim, const int64_t *shape, spl_dtype t, spl_tensor **out) {
    spl_layout plain;
    if (ndim < 0 || ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "a tensor of %d dimensions was asked for; 0 to %d are possible", ndim,
                          SPL_MAX_DIMS);
    spl_layout_replicated(&plain, NULL, ndim, shape);
    SPL_TRY(spl_layout_check(&plain));
    return create(rt, NULL, NULL, ndim, shape, t, SPL_MEM_ACTIVATIONS, out);
}

void spl_tensor_drop(spl_tensor *t) {
    if (!t || t->dropped) return;
    t->dropped = 1;
    storage_release(t->storage);
    t->storage = NULL;
}

void spl_tensor_retain(spl_tensor *t) { t->refs++; }

void spl_tensor_release(spl_tensor *t) {
    if (!t || --t->refs) return;
    spl_tensor_drop(t);
    if (t->mesh) spl_layout_release(&t->layout);
    spl_mesh_release(t->mesh);
    t->rt->counters.live_tensors--;
    free(t);
}

spl_status spli_tensor_alias(spl_tensor *t, const spl_layout *layout, int ndim, const int64_t *local,
                             const int64_t *strides, int64_t offset, spl_tensor **out) {
    spl_tensor *v = NULL;
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(tensor_over(t->rt, t->storage, &v));
    v->dtype = t->dtype;
    v->ndim = ndim;
    v->offset = offset;
    for (int d = 0; d < ndim; d++) {
        v->shape[d] = layout ? layout->shape[d] : local[d];
        v->local[d] = local[d];
        v->strides[d] = strides[d];
    }
    if (layout) {
        v->layout = *layout;
        spl_layout_retain(layout);
        v->mesh = t->mesh;
        spl_mesh_retain(t->mesh);
    }
    *out = v;
    return spli_ok();
}

/* ---- asking ---- */

int spl_tensor_dropped(const spl_tensor *t) { return t->dropped; }
spl_dtype spl_tensor_dtype(const spl_tensor *t) { return t->dtype; }
int spl_tensor_ndim(const spl_tensor *t) { return t->ndim; }
const int64_t *spl_tensor_shape(const spl_tensor *t) { return t->shape; }
const int64_t *spl_tensor_local_shape(const spl_tensor *t) { return t->local; }
const spl_layout *spl_tensor_layout(const spl_tensor *t) { return t->mesh ? &t->layout : NULL; }
spl_mesh *spl_tensor_mesh(const spl_tensor *t) { return t->mesh; }

int64_t spl_tensor_local_count(const spl_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) n *= t->local[d];
    return n;
}

int spli_tensor_dense(const spl_tensor *t) {
    int64_t stride = 1;
    for (int d = 0; d < t->ndim; d++)
        if (t->local[d] == 0) return 1; /* nothing lies anywhere: strides say nothing */
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->local[d] > 1 && t->strides[d] != stride) return 0;
        stride *= t->local[d];
    }
    return 1;
}

spl_status spli_tensor_usable(const spl_tensor *t, const char *name) {
    if (!t->dropped) return spli_ok();
    return spli_error(SPL_ERELEASED, "%s was released; use it before release(), or keep a clone", name);
}

spl_status spli_tensors_together(const char *op, spl_tensor *const *ts, int n) {
    const spl_tensor *first = NULL;
    char name[80];
    for (int i = 0; i < n; i++) {
        if (!ts[i]) continue;
        snprintf(name, sizeof name, "argument %d of %s", i + 1, op);
        SPL_TRY(spli_tensor_usable(ts[i], name));
        if (!first) first = ts[i];
        if (ts[i]->mesh == first->mesh) continue;
        char here[160] = "this rank alone", there[160] = "this rank alone";
        if (first->mesh) spl_mesh_format(&first->mesh->spec, here, sizeof here);
        if (ts[i]->mesh) spl_mesh_format(&ts[i]->mesh->spec, there, sizeof there);
        return spli_error(SPL_EARG,
                          "%s was given tensors of different meshes (%.120s and %.120s%s); make them on one mesh", op,
                          here, there, strcmp(here, there) ? "" : ", another mesh of the same form");
    }
    return spli_ok();
}

spl_status spli_index_map_of(const spl_tensor *t, spl_index_map *out) {
    memset(out, 0, sizeof *out);
    out->ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++) {
        spli_segments s = {0};
        out->global[d] = t->shape[d];
        out->local[d] = t->local[d];
        if (t->mesh) {
            spl_status status = spli_layout_segments(&t->layout, t->mesh->coords, d, -1, &s);
            if (status.code != SPL_OK) {
                spli_index_map_free(out);
                return status;
            }
        } else if (t->local[d] > 0) {
            s.at = malloc(sizeof *s.at);
            if (!s.at) {
                spli_index_map_free(out);
                return spli_error(SPL_ENOMEM, "out of memory while describing a tensor");
            }
            s.at[0] = (spl_segment){0, t->local[d], 1};
            s.n = 1;
        }
        out->segments[d] = s.at;
        out->nsegments[d] = s.n;
    }
    return spli_ok();
}

void spli_index_map_free(spl_index_map *m) {
    for (int d = 0; d < m->ndim; d++) free((void *)m->segments[d]);
    memset(m, 0, sizeof *m);
}

/* ---- filling ---- */

/* Writes through a dense tensor: itself, or a dense twin that is copied back. */
static spl_status dense_twin(spl_tensor *t, spl_tensor **out) {
    if (spli_tensor_dense(t)) {
        spl_tensor_retain(t);
        *out = t;
        return spli_ok();
    }
    if (t->mesh) return spl_tensor_create(t->rt, t->mesh, &t->layout, t->dtype, SPL_MEM_ACTIVATIONS, out);
    return spl_tensor_create_local(t->rt, t->ndim, t->local, t->dtype, out);
}

static spl_status copy_box(const spl_tensor *from, spl_tensor *to) {
    spl_box_args box = {
        .dtype = from->dtype, .ndim = from->ndim, .dst = spli_tensor_data(to), .src = spli_tensor_data(from)};
    if (spl_tensor_local_count(from) == 0) return spli_ok();
    for (int d = 0; d < from->ndim; d++) {
        box.shape[d] = from->local[d];
        box.src_strides[d] = from->strides[d];
        box.dst_strides[d] = to->strides[d];
    }
    return from->rt->backend->box(from->rt->backend_ctx, from->rt->compute, &box);
}

static spl_status write_back(spl_tensor *twin, spl_tensor *t) { return twin == t ? spli_ok() : copy_box(twin, t); }

/* A sum that waits must be counted once: on a partial axis only coordinate 0 takes values. */
static int holds_zeros(const spl_tensor *t) {
    for (int a = 0; t->mesh && a < t->layout.naxes; a++)
        if (t->layout.axes[a].place == SPL_PARTIAL && t->mesh->coords[a] != 0) return 1;
    return 0;
}

spl_status spl_tensor_fill(spl_tensor *t, double value) {
    spl_tensor *twin;
    spl_status status = spli_ok();
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(dense_twin(t, &twin));
    if (spl_tensor_local_count(t) > 0)
        SPL_GO(t->rt->backend->fill(t->rt->backend_ctx, t->rt->compute, spli_tensor_data(twin), t->dtype,
                                    spl_tensor_local_count(t), holds_zeros(t) ? 0.0 : value),
               done);
    SPL_GO(write_back(twin, t), done);
done:
    spl_tensor_release(twin);
    return status;
}

spl_status spl_tensor_random(spl_tensor *t, spl_random_kind kind, uint64_t seed, uint64_t instance, double a,
                             double b) {
    spl_tensor *twin;
    spl_index_map map;
    spl_status status = spli_ok();
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (holds_zeros(t)) return spl_tensor_fill(t, 0);
    SPL_TRY(spli_index_map_of(t, &map));
    spl_segment one = {0, 1, 1};
    if (t->ndim == 0) { /* a single number is a list of one */
        map.global[0] = map.local[0] = map.nsegments[0] = 1;
        map.segments[0] = &one;
    }
    SPL_GO(dense_twin(t, &twin), map_only);
    if (spl_tensor_local_count(t) > 0) {
        spl_index_map shown = map;
        if (t->ndim == 0) shown.ndim = 1;
        spl_random_args args = {.dtype = t->dtype,
                                .kind = kind,
                                .key = spli_rng_key(seed, instance, 0),
                                .a = a,
                                .b = b,
                                .map = &shown,
                                .out = spli_tensor_data(twin)};
        SPL_GO(t->rt->backend->random(t->rt->backend_ctx, t->rt->compute, &args), done);
    }
    SPL_GO(write_back(twin, t), done);
done:
    spl_tensor_release(twin);
map_only:
    spli_index_map_free(&map);
    return status;
}

/* ---- host <-> this rank's part ---- */

static spl_status has_values(const spl_tensor *t) {
    if (t->rt->backend->has_memory) return spli_ok();
    return spli_error(SPL_EUNSUPPORTED,
                      "backend '%s' keeps shapes and counts only: there are no values of a tensor to read; run with "
                      "--backend cpu",
                      t->rt->backend->name);
}

spl_status spl_tensor_read(spl_tensor *t, void *host, spl_dtype dtype) {
    spl_tensor *dense = NULL, *cast = NULL;
    spl_status status = spli_ok();
    int64_t n = spl_tensor_local_count(t);
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(has_values(t));
    if (n == 0) return spli_ok();
    SPL_GO(spl_tensor_contiguous(t, &dense), done);
    SPL_GO(spl_tensor_cast(dense, dtype, &cast), done);
    SPL_GO(t->rt->backend->copy_out(t->rt->backend_ctx, t->rt->compute, host, spli_tensor_data(cast),
                                    (size_t)n * spl_dtype_size(dtype)), done);
    SPL_GO(spli_wait_queue(t->rt, t->rt->compute), done);
done:
    spl_tensor_release(dense);
    spl_tensor_release(cast);
    return status;
}

spl_status spl_tensor_write(spl_tensor *t, const void *host, spl_dtype dtype) {
    spl_tensor *source = NULL, *cast = NULL;
    spl_status status = spli_ok();
    int64_t n = spl_tensor_local_count(t);
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (n == 0) return spli_ok();
    SPL_TRY(spl_tensor_create_local(t->rt, t->ndim, t->local, dtype, &source));
    SPL_GO(t->rt->backend->copy_in(t->rt->backend_ctx, t->rt->compute, spli_tensor_data(source), host,
                                   (size_t)n * spl_dtype_size(dtype)), done);
    SPL_GO(spl_tensor_cast(source, t->dtype, &cast), done);
    SPL_GO(copy_box(cast, t), done);
    SPL_GO(spli_wait_queue(t->rt, t->rt->compute), done);
done:
    spl_tensor_release(source);
    spl_tensor_release(cast);
    return status;
}

typedef struct source { /* of a global array */
    spl_fetch *fetch;
    void *ctx;
    size_t size; /* of an element */
} source;

/* Copies the rows of the array that the index map names, from element `at` on, densely, innermost dimension by runs. */
static spl_status take_part(const source *from, const spl_index_map *m, int64_t at, char *dense) {
    const size_t size = from->size;
    int64_t row_elements = 1;
    for (int d = 1; d < m->ndim; d++) row_elements *= m->global[d];
    if (m->ndim == 0) return from->fetch(from->ctx, (size_t)at * size, size, dense);
    int64_t local_row = 1;
    for (int d = 1; d < m->ndim; d++) local_row *= m->local[d];
    if (local_row == 0) return spli_ok();
    spl_index_map inner = *m;
    inner.ndim = m->ndim - 1;
    for (int d = 0; d < inner.ndim; d++) {
        inner.global[d] = m->global[d + 1];
        inner.local[d] = m->local[d + 1];
        inner.segments[d] = m->segments[d + 1];
        inner.nsegments[d] = m->nsegments[d + 1];
    }
    for (int s = 0; s < m->nsegments[0]; s++) {
        spl_segment seg = m->segments[0][s];
        if (local_row == row_elements && seg.stride == 1) { /* whole rows follow each other */
            SPL_TRY(from->fetch(from->ctx, (size_t)(at + seg.start * row_elements) * size,
                                (size_t)(seg.length * row_elements) * size, dense));
            dense += (size_t)(seg.length * row_elements) * size;
            continue;
        }
        for (int64_t i = 0; i < seg.length; i++) {
            SPL_TRY(take_part(from, &inner, at + (seg.start + i * seg.stride) * row_elements, dense));
            dense += (size_t)local_row * size;
        }
    }
    return spli_ok();
}

static spl_status fetch_memory(void *ctx, size_t at, size_t n, void *into) {
    memcpy(into, (const char *)ctx + at, n);
    return spli_ok();
}

spl_status spl_tensor_load(spl_tensor *t, const void *global, spl_dtype dtype) {
    return spl_tensor_load_from(t, fetch_memory, (void *)global, dtype);
}

spl_status spl_tensor_load_from(spl_tensor *t, spl_fetch *fetch, void *ctx, spl_dtype dtype) {
    const source from = {fetch, ctx, spl_dtype_size(dtype)};
    spl_index_map map;
    int64_t n = spl_tensor_local_count(t);
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    if (holds_zeros(t)) return spl_tensor_fill(t, 0);
    if (n == 0) return spli_ok();
    SPL_TRY(spli_index_map_of(t, &map));
    char *dense = malloc((size_t)n * spl_dtype_size(dtype));
    spl_status status = spli_ok();
    if (!dense) SPL_GO(spli_error(SPL_ENOMEM, "out of memory: %lld bytes wanted to load a tensor",
                                  (long long)(n * (int64_t)spl_dtype_size(dtype))), done);
    SPL_GO(take_part(&from, &map, 0, dense), done);
    SPL_GO(spl_tensor_write(t, dense, dtype), done);
done:
    free(dense);
    spli_index_map_free(&map);
    return status;
}

spl_status spl_tensor_stats(spl_tensor *t, spl_stats *out) {
    spl_tensor *dense = NULL;
    spl_status status = spli_ok();
    int64_t n = spl_tensor_local_count(t);
    memset(out, 0, sizeof *out);
    SPL_TRY(spli_tensor_usable(t, "the tensor"));
    SPL_TRY(has_values(t));
    if (n == 0) return spli_ok();
    SPL_TRY(spl_tensor_contiguous(t, &dense));
    SPL_GO(t->rt->backend->stats(t->rt->backend_ctx, t->rt->compute, spli_tensor_data(dense), t->dtype, n, out), done);
done:
    spl_tensor_release(dense);
    return status;
}
