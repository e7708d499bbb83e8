/* block_explain.c: what a forward pass would do, op by op, without doing it: the same code runs on the null backend,
 * whose tensors have shapes and layouts but no memory, and a comm that moves nothing; the runtime's hook hears of every
 * op and move. */
#include "block.h"
#include <stdio.h>
#include <string.h>

typedef struct listener {
    void (*line)(void *ctx, const spl_explain_line *l);
    void *ctx;
} listener;

static void say(const listener *l, const char *what, const char *subject, const char *axis, int64_t bytes,
                const spl_tensor *result) {
    spl_explain_line line;
    memset(&line, 0, sizeof line);
    snprintf(line.what, sizeof line.what, "%s", what);
    snprintf(line.subject, sizeof line.subject, "%s", subject ? subject : "");
    snprintf(line.axis, sizeof line.axis, "%s", axis);
    line.bytes = bytes;
    if (result) {
        spl_layout_format(&result->layout, line.layout, sizeof line.layout);
        line.ndim = result->ndim;
        memcpy(line.shape, result->shape, sizeof line.shape);
        memcpy(line.local_shape, result->local, sizeof line.local_shape);
    }
    l->line(l->ctx, &line);
}

static void on_op(void *ctx, const char *op, const char *subject, const spl_tensor *result) {
    say(ctx, op, subject, "", 0, result);
}

static void on_comm(void *ctx, const char *subject, const char *kind, const char *axis, int64_t bytes,
                    const spl_tensor *result) {
    say(ctx, kind, subject, axis, bytes, result);
}

spl_status spl_block_explain(const spl_block *b, int64_t batch, int64_t seq, int rank,
                             void (*line)(void *ctx, const spl_explain_line *l), void *ctx) {
    listener listen = {line, ctx};
    spl_status status = spli_ok();
    spl_runtime *dry = NULL;
    spl_mesh *mesh = NULL;
    spl_block *twin = NULL;
    spl_tensor *x = NULL, *y = NULL;
    spl_layout io;
    if (!b->mesh)
        return spli_error(SPL_EARG, "explain: the block has no schedule yet; call block:schedule(mesh) first");
    int size = 1;
    for (int a = 0; a < b->mesh->spec.naxes; a++) size *= b->mesh->spec.axes[a].size;
    if (rank < 0 || rank >= size)
        return spli_error(SPL_EARG, "explain: rank %d was asked for; the mesh has ranks 0 to %d", rank, size - 1);
    spl_runtime_config config = {.backend = &splk_null_backend, .dry_rank = rank, .dry_size = size, .threads = 1};
    SPL_TRY(spl_runtime_open(&config, &dry));
    SPL_GO(spl_mesh_create(dry, &b->mesh->spec, &mesh), done);
    SPL_GO(spl_block_create(dry, &b->config, &twin), done);
    SPL_GO(spl_block_schedule(twin, mesh, &b->schedule), done);
    SPL_GO(spl_block_io_layout(twin, batch, seq, &io), done);
    SPL_GO(spl_tensor_create(dry, mesh, &io, b->config.dtype, SPL_MEM_ACTIVATIONS, &x), done);
    dry->hook = (spli_trace_hook){.op = on_op, .comm = on_comm, .ctx = &listen};
    SPL_GO(spl_block_forward(twin, x, 0, &y, NULL), done);
done:
    spl_tensor_release(x);
    spl_tensor_release(y);
    spl_block_release(twin);
    spl_mesh_release(mesh);
    spl_status closed = spl_runtime_close(dry, NULL);
    return status.code != SPL_OK ? status : closed;
}
