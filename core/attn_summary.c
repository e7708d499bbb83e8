/* attn_summary.c: what hierarchical attention sees of other chunks: means of their keys and values.
 *
 * A chunk of C tokens is cut into `each` balanced groups; the mean of a group's keys (after RoPE) and of its values
 * stand for all of it, and the log of its size is added to its score, so that n equal keys weigh what they would weigh
 * exactly. Chunks are global, and shards are made of whole chunks, so the result does not depend on the ranks. */
#include "attn.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of chunk c. */
static int64_t chunk_rows(int64_t seq, int64_t chunk, int64_t c) {
    return (c + 1) * chunk <= seq ? chunk : seq - c * chunk;
}

static int64_t groups_of(int64_t rows, int64_t each) { return rows < each ? rows : each; }

int64_t spli_summary_count(int64_t seq, int64_t chunk, int64_t each) {
    int64_t n = (seq + chunk - 1) / chunk;
    return n ? (n - 1) * each + groups_of(chunk_rows(seq, chunk, n - 1), each) : 0;
}

/* The groups of this rank's rows, as rows of its part. */
static spl_status local_groups(const spl_tensor *x, int64_t chunk, int64_t each, int64_t expected,
                               spl_segment *groups) {
    spli_segments held;
    spl_segment all = {0, x->local[1], 1};
    int64_t n = 0, at = 0, begin;
    spl_status status = spli_ok();
    memset(&held, 0, sizeof held);
    if (x->mesh) SPL_TRY(spli_layout_segments(&x->layout, x->mesh->coords, 1, -1, &held));
    for (int i = 0; i < (x->mesh ? held.n : 1); i++) {
        const spl_segment s = x->mesh ? held.at[i] : all;
        for (int64_t done = 0; done < s.length; done += chunk_rows(x->shape[1], chunk, (s.start + done) / chunk)) {
            int64_t rows = chunk_rows(x->shape[1], chunk, (s.start + done) / chunk), count = groups_of(rows, each);
            if (s.stride != 1 || s.start % chunk || done + rows > s.length || n + count > expected)
                SPL_GO(spli_error(SPL_EARG,
                                  "hierarchical attention needs whole chunks of %lld tokens on each rank; shard the "
                                  "sequence contiguously in units of a chunk",
                                  (long long)chunk),
                       done);
            for (int64_t g = 0; g < count; g++, n++) {
                int64_t length = spli_split(rows, (int)count, (int)g, &begin);
                groups[n] = (spl_segment){at + begin, length, 1};
            }
            at += rows;
        }
    }
done:
    spli_segments_free(&held);
    return status;
}

spl_status spli_summaries(spl_tensor *x, int64_t chunk, int64_t each, spl_tensor **out) {
    spl_layout layout = x->layout, whole;
    int64_t shape[] = {x->shape[0], spli_summary_count(x->shape[1], chunk, each), x->shape[2], x->shape[3]};
    spl_tensor *part = NULL;
    spl_segment *groups = NULL;
    spl_runtime *rt = x->rt;
    spl_status status = spli_ok();
    *out = NULL;
    if (x->mesh) {
        layout.shape[1] = shape[1];
        whole = layout;
        for (int a = 0; a < layout.naxes; a++) {
            if (layout.axes[a].place != SPL_SHARD || layout.axes[a].dim != 1) continue;
            layout.axes[a].unit = each;
            whole.axes[a] = (spl_placement){0};
        }
        SPL_GO(spl_tensor_create(rt, x->mesh, &layout, x->dtype, SPL_MEM_ACTIVATIONS, &part), done);
    } else {
        SPL_GO(spl_tensor_create_local(rt, 4, shape, x->dtype, &part), done);
    }
    groups = malloc((size_t)(part->local[1] ? part->local[1] : 1) * sizeof *groups);
    if (!groups) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while summarising chunks"), done);
    SPL_GO(local_groups(x, chunk, each, part->local[1], groups), done);
    spl_pool_args p = {.dtype = x->dtype,
                       .batch = x->local[0],
                       .seq = x->local[1],
                       .heads = x->local[2],
                       .head_dim = x->local[3],
                       .x = spli_tensor_data(x),
                       .y = spli_tensor_data(part),
                       .groups = groups,
                       .ngroups = part->local[1]};
    memcpy(p.x_strides, x->strides, sizeof p.x_strides);
    memcpy(p.y_strides, part->strides, sizeof p.y_strides);
    if (spl_tensor_local_count(part) > 0) SPL_GO(rt->backend->pool(rt->backend_ctx, rt->compute, &p), done);
    SPL_GO(spli_wait_queue(rt, rt->compute), done); /* the groups are host memory */
    if (x->mesh) {
        status = spl_redistribute(part, &whole, out);
    } else {
        *out = part;
        part = NULL;
    }
done:
    free(groups);
    spl_tensor_release(part);
    return status;
}

spl_status spli_summary_bias(spl_runtime *rt, int64_t seq, int64_t chunk, int64_t each, spl_dtype t, spl_tensor **out) {
    int64_t total = spli_summary_count(seq, chunk, each), begin, n = 0;
    double *sizes = malloc((size_t)(total ? total : 1) * sizeof *sizes);
    *out = NULL;
    if (!sizes) return spli_error(SPL_ENOMEM, "out of memory while summarising chunks");
    for (int64_t c = 0; c * chunk < seq; c++) {
        int64_t rows = chunk_rows(seq, chunk, c), count = groups_of(rows, each);
        for (int64_t g = 0; g < count; g++) sizes[n++] = log((double)spli_split(rows, (int)count, (int)g, &begin));
    }
    spl_status status = spl_tensor_create_local(rt, 1, &total, t, out);
    if (status.code == SPL_OK) status = spl_tensor_write(*out, sizes, SPL_F64);
    if (status.code != SPL_OK) {
        spl_tensor_release(*out);
        *out = NULL;
    }
    free(sizes);
    return status;
}
