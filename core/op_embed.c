/* op_embed.c: rows of a table by token id: ids [...] i64, table [vocab, hidden], y [..., hidden].
 *
 * Per axis:   ids          table        y          d table
 *             replicate    replicate    replicate  as d y (replicate)
 *             shard(i)     replicate    shard(i)   partial
 *             replicate    shard(1)     partial    shard(1)   (each rank knows its part of the vocabulary: Megatron-LM)
 * Ids have no cotangent. */
#include "layout.h"
#include "op.h"
#include <stdlib.h>
#include <string.h>

static spl_status layouts(const spli_call *c, spli_out_spec *out) {
    const spl_tensor *ids = c->in[0], *table = c->in[1];
    SPL_TRY(spli_need_dtype("embed", ids, "ids", SPL_I64));
    SPL_TRY(spli_need_float("embed", table, "table"));
    SPL_TRY(spli_need_ndim("embed", table, "table", 2));
    if (ids->ndim + 1 > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "embed: ids have %d dimensions; at most %d are possible", ids->ndim,
                          SPL_MAX_DIMS - 1);
    spl_layout *y = &out[0].layout;
    *y = ids->layout;
    y->ndim = ids->ndim + 1;
    memcpy(y->shape, ids->shape, sizeof y->shape);
    y->shape[ids->ndim] = table->shape[1];
    out[0].dtype = table->dtype;
    for (int a = 0; ids->mesh && a < y->naxes; a++) {
        const spl_placement *pi = &ids->layout.axes[a], *pt = &table->layout.axes[a];
        if (y->axis_size[a] == 1) continue;
        if (pi->place == SPL_PARTIAL)
            return spli_rule_error("embed", &ids->layout, a, "the ids are a pending sum", "ids must be finished");
        if (pt->place == SPL_REPLICATE) continue;
        if (pi->place != SPL_REPLICATE || pt->place != SPL_SHARD || pt->dim != 0)
            return spli_rule_error("embed", &ids->layout, a, "ids and table are placed in a way that does not fit",
                                   "a table shard(1) takes replicated ids, any other table is replicated");
        if (spli_cover(pt) > 1) /* a row that two ranks hold would count twice in the sum */
            return spli_rule_error("embed", &table->layout, a, "shards of the table overlap (cover)",
                                   "each row must lie on one rank");
        y->axes[a] = (spl_placement){.place = SPL_PARTIAL};
    }
    return spli_ok();
}

static void cotangents(const spli_call *c, const spl_layout *dy, spl_layout *din) {
    (void)dy;
    din[0] = c->in[0]->layout;
    din[1] = c->in[1]->layout;
    for (int a = 0; c->in[0]->mesh && a < din[1].naxes; a++)
        if (c->in[0]->layout.axes[a].place == SPL_SHARD) din[1].axes[a] = (spl_placement){.place = SPL_PARTIAL};
}

static spl_status forward(const spli_call *c) {
    spl_runtime *rt = c->rt;
    spl_tensor *ids = NULL, *table = NULL, *y = c->out[0], *part = NULL;
    spli_segments rows = {0};
    spl_segment all = {0, c->in[1]->local[0], 1};
    spl_status status = spli_ok();
    SPL_GO(spli_dense(c->in[0], &ids), done);
    SPL_GO(spli_dense(c->in[1], &table), done);
    if (table->mesh) SPL_GO(spli_layout_segments(&table->layout, table->mesh->coords, 0, -1, &rows), done);
    int n = table->mesh ? rows.n : 1;
    int64_t count = spl_tensor_local_count(ids), first = 0, hidden = table->local[1];
    if (count * hidden == 0) goto done;
    if (n == 0) {
        SPL_GO(rt->backend->zero(rt->backend_ctx, rt->compute, spli_tensor_data(y),
                                 (size_t)(count * hidden) * spl_dtype_size(y->dtype)),
               done);
        goto done;
    }
    for (int s = 0; s < n;
         s++) { /* one look-up a segment of the vocabulary; ids of others give zeros, so the parts add up */
        spl_segment seg = table->mesh ? rows.at[s] : all;
        if (seg.stride != 1)
            SPL_GO(spli_error(SPL_EARG, "embed: the table is sharded striped; shard it contiguous or zigzag"), done);
        const char *base =
            (const char *)spli_tensor_data(table) + (size_t)(first * hidden) * spl_dtype_size(table->dtype);
        spl_embed_args e = {.dtype = table->dtype,
                            .rows = count,
                            .hidden = hidden,
                            .first = seg.start,
                            .vocab_local = seg.length,
                            .ids = spli_tensor_data(ids),
                            .table = base,
                            .out = spli_tensor_data(y)};
        if (s > 0) {
            if (!part) SPL_GO(spl_tensor_create_local(rt, y->ndim, y->local, y->dtype, &part), done);
            e.out = spli_tensor_data(part);
        }
        SPL_GO(rt->backend->embed(rt->backend_ctx, rt->compute, &e), done);
        const void *terms[] = {spli_tensor_data(y), s ? spli_tensor_data(part) : NULL};
        if (s > 0)
            SPL_GO(
                rt->backend->sum(rt->backend_ctx, rt->compute, spli_tensor_data(y), terms, 2, count * hidden, y->dtype),
                done);
        first += seg.length;
    }
done:
    spl_tensor_release(ids);
    spl_tensor_release(table);
    spl_tensor_release(part);
    spli_segments_free(&rows);
    return status;
}

const spli_op spli_op_embed = {
    .name = "embed", .nin = 2, .nout = 1, .layouts = layouts, .cotangents = cotangents, .forward = forward};

/* An id outside the vocabulary would silently read as zeros: refused. */
static spl_status ids_in_range(spl_tensor *ids, int64_t vocab) {
    int64_t n = spl_tensor_local_count(ids);
    spl_status status = spli_ok();
    if (!ids->rt->backend->has_memory || n == 0 || ids->dtype != SPL_I64) return spli_ok();
    int64_t *host = malloc((size_t)n * sizeof *host);
    if (!host) return spli_error(SPL_ENOMEM, "out of memory: %lld bytes wanted to check token ids", (long long)n * 8);
    SPL_GO(spl_tensor_read(ids, host, SPL_I64), done);
    for (int64_t i = 0; i < n; i++)
        if (host[i] < 0 || host[i] >= vocab)
            SPL_GO(spli_error(SPL_EARG, "embed: token id %lld is outside the vocabulary of %lld", (long long)host[i],
                              (long long)vocab),
                   done);
done:
    free(host);
    return status;
}

spl_status spl_embed(spl_tensor *ids, spl_tensor *table, spl_tensor **y) {
    spl_tensor *in[] = {ids, table};
    SPL_TRY(spli_tensors_together("embed", in, 2));
    SPL_TRY(ids_in_range(ids, table->shape[0]));
    return spli_op_run(&spli_op_embed, NULL, in, 1u, y);
}
