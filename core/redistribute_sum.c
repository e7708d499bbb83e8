/* redistribute_sum.c: finishing a sum that is pending over several axes.
 *
 * An all-reduce over several axes is a reduce-scatter along one after the other, over a balanced split of the elements
 * as they lie in memory, and then the all-gathers back: 2(P - 1)/P of the size in all, P being the product of the axes,
 * where one all-reduce after the other would send the whole again for each. Each element is summed over the first axis
 * first, in member order, as it would be then.
 *
 * bf16 and f16: what ranks contribute travels as it is stored; from the first sum on it is f32, and it is rounded once,
 * after the last (redistribute.c holds to the same where axes scatter). So the error does not grow with the number of
 * axes, and with one axis nothing travels in f32. */
#include "redistribute.h"
#include "op.h"
#include "trace.h"
#include <stdlib.h>

spl_status spli_sum_widened(spl_runtime *rt, float *dst, const void *parts, spl_dtype t, int P, int64_t n) {
    const size_t size = spl_dtype_size(t);
    spl_status status = spli_ok();
    void *wide = NULL;
    if (n == 0) return status;
    SPL_TRY(rt->backend->cast(rt->backend_ctx, rt->compute, dst, SPL_F32, parts, t, n));
    if (P == 1) return status;
    SPL_TRY(spli_alloc(rt, SPL_MEM_BUFFERS, (size_t)n * sizeof(float), &wide));
    spl_box_args add = {.dtype = SPL_F32, .ndim = 1, .dst = dst, .src = wide, .add = 1};
    add.shape[0] = n;
    add.dst_strides[0] = add.src_strides[0] = 1;
    for (int j = 1; j < P; j++) {
        const char *part = (const char *)parts + (size_t)j * (size_t)n * size;
        SPL_GO(rt->backend->cast(rt->backend_ctx, rt->compute, wide, SPL_F32, part, t, n), done);
        SPL_GO(rt->backend->box(rt->backend_ctx, rt->compute, &add), done);
    }
done:
    spli_free(rt, SPL_MEM_BUFFERS, wide, (size_t)n * sizeof(float));
    return status;
}

/* A buffer of `n` elements; data points there, or to memory of someone else (size 0). */
typedef struct part {
    char *data;
    spl_dtype dtype;
    int64_t n;
    size_t taken;
} part;

static spl_status part_take(spl_runtime *rt, part *p, spl_dtype dtype, int64_t n) {
    void *data = NULL;
    *p = (part){.dtype = dtype, .n = n, .taken = (size_t)n * spl_dtype_size(dtype)};
    spl_status status = spli_alloc(rt, SPL_MEM_BUFFERS, p->taken, &data);
    if (status.code != SPL_OK) p->taken = 0;
    p->data = data;
    return status;
}

static void part_give(spl_runtime *rt, part *p) {
    if (p->taken) spli_free(rt, SPL_MEM_BUFFERS, p->data, p->taken);
    *p = (part){0};
}

typedef struct along { /* one axis */
    spl_runtime *rt;
    spl_comm *comm;
    const char *axis;
    int64_t *counts;  /* of all members */
    int64_t *mine;    /* this member's, once for each */
    int64_t offset;   /* of this member's */
    const spl_tensor *result; /* for who listens */
} along;

static spl_status run(const along *a, spl_coll *coll, const char *kind) {
    spli_span span = spli_trace_begin(a->rt);
    SPL_TRY(spli_comm_run(a->rt, a->comm, coll));
    spli_trace_op(a->rt, span, kind, 1, a->result);
    if (a->rt->hook.comm)
        a->rt->hook.comm(a->rt->hook.ctx, a->rt->subject, kind, a->axis, spl_coll_bytes(a->comm, coll), a->result);
    return spli_ok();
}

/* *now, a pending sum, becomes this member's part of the finished one. */
static spl_status scatter(const along *a, part *now) {
    const int P = a->comm->size, widens = spli_is_half(now->dtype);
    const int64_t mine = a->mine[0];
    spl_status status = spli_ok();
    part sum = {0}, parts = {0};
    spl_coll coll = {.kind = widens ? SPL_COLL_ALL_TO_ALL : SPL_COLL_REDUCE_SCATTER, .dtype = now->dtype,
                     .send = now->data, .send_counts = a->counts};
    SPL_GO(part_take(a->rt, &sum, widens ? SPL_F32 : now->dtype, mine), done);
    coll.recv = sum.data;
    if (widens) {
        SPL_GO(part_take(a->rt, &parts, now->dtype, mine * P), done);
        coll.recv = parts.data;
        coll.recv_counts = a->mine;
    }
    SPL_GO(run(a, &coll, spl_coll_name(SPL_COLL_REDUCE_SCATTER)), done);
    if (widens) SPL_GO(spli_sum_widened(a->rt, (float *)(void *)sum.data, parts.data, now->dtype, P, mine), done);
    SPL_GO(spli_wait_queue(a->rt, a->rt->compute), done); /* the buffers are about to go */
    part_give(a->rt, now);
    *now = sum;
    sum = (part){0};
done:
    part_give(a->rt, &sum);
    part_give(a->rt, &parts);
    return status;
}

static spl_status place(spl_runtime *rt, void *to, spl_dtype dtype, const part *p) {
    if (p->n == 0) return spli_ok();
    if (p->dtype != dtype) return rt->backend->cast(rt->backend_ctx, rt->compute, to, dtype, p->data, p->dtype, p->n);
    spl_box_args box = {.dtype = dtype, .ndim = 1, .dst = to, .src = p->data};
    box.shape[0] = p->n;
    box.dst_strides[0] = box.src_strides[0] = 1;
    return rt->backend->box(rt->backend_ctx, rt->compute, &box);
}

spl_status spli_all_reduce_axes(spl_tensor *from, const int *axes, int naxes, const spl_layout *layout,
                                spl_dtype dtype, spl_tensor **out) {
    spl_runtime *rt = from->rt;
    const size_t size = spl_dtype_size(dtype);
    spl_status status = spli_ok();
    spl_tensor *dense = NULL, *result = NULL;
    part now = {0};
    along a[SPL_MAX_AXES] = {0};
    int64_t at[SPL_MAX_AXES + 1] = {0}, n[SPL_MAX_AXES + 1]; /* of the part after so many axes: its place, its size */
    SPL_GO(spl_tensor_contiguous(from, &dense), done);
    SPL_GO(spl_tensor_create(rt, from->mesh, layout, dtype, SPL_MEM_ACTIVATIONS, &result), done);
    n[0] = spl_tensor_local_count(dense);
    now = (part){.data = spli_tensor_data(dense), .dtype = from->dtype, .n = n[0]};
    for (int k = 0; k < naxes; k++) {
        spl_comm *comm = from->mesh->comm[axes[k]];
        a[k] = (along){.rt = rt, .comm = comm, .axis = from->mesh->spec.axes[axes[k]].name, .result = result};
        a[k].counts = calloc(2 * (size_t)comm->size, sizeof(int64_t));
        if (!a[k].counts) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while planning a redistribution"), done);
        a[k].mine = a[k].counts + comm->size;
        int64_t begin;
        for (int m = 0; m < comm->size; m++) spli_coll_split(n[k], comm->size, m, &begin, &a[k].counts[m]);
        spli_coll_split(n[k], comm->size, comm->rank, &begin, &n[k + 1]);
        at[k + 1] = at[k] + begin;
        for (int m = 0; m < comm->size; m++) a[k].mine[m] = n[k + 1];
        SPL_GO(scatter(&a[k], &now), done);
    }
    char *base = n[0] ? spli_tensor_data(result) : NULL;
    SPL_GO(place(rt, base + (size_t)at[naxes] * size, dtype, &now), done);
    for (int k = naxes - 1; k >= 0; k--) {
        char *to = base + (size_t)at[k] * size;
        spl_coll coll = {.kind = SPL_COLL_ALL_GATHER, .dtype = dtype, .send = to, .recv = to,
                         .send_counts = a[k].mine, .recv_counts = a[k].counts};
        SPL_GO(run(&a[k], &coll, spl_coll_name(SPL_COLL_ALL_GATHER)), done);
    }
    SPL_GO(spli_wait_queue(rt, rt->compute), done); /* the last part is about to go */
    *out = result;
    result = NULL;
done:
    part_give(rt, &now);
    for (int k = 0; k < naxes; k++) free(a[k].counts);
    spl_tensor_release(dense);
    spl_tensor_release(result);
    return status;
}
