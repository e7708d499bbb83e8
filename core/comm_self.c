/* comm_self.c: communication of one rank with itself: collectives are local copies, and there is nobody to talk to. */
#include "comm_pairwise.h"
#include <stdlib.h>
#include <unistd.h>

typedef struct self_world {
    spli_pairwise_comm comm;
    spli_pairwise engine;
} self_world;

static void self_close(spl_comm *c) {
    free(c->world_ranks);
    free(c); /* a group, or the world: both are one block */
}

static spl_status no_peer(int peer) {
    return spli_error(SPL_EINTERNAL, "a message for rank %d, but there is one rank only", peer);
}

static spl_status self_control_send(spl_comm *world, int peer, const void *bytes, size_t n) {
    (void)world, (void)bytes, (void)n;
    return no_peer(peer);
}

static spl_status self_control_test(spl_comm *world, int peer, void *into, size_t n, int *done) {
    (void)world, (void)into, (void)n;
    *done = 0;
    return no_peer(peer);
}

static void self_abort(spl_comm *world, int exit_code) {
    (void)world;
    _exit(exit_code);
}

static const spl_comm_ops self_ops = {
    .name = "self",
    .start = spli_pairwise_start,
    .test = spli_pairwise_test,
    .request_free = spli_pairwise_free,
    .group = spli_pairwise_group,
    .close = self_close,
    .control_send = self_control_send,
    .control_test = self_control_test,
    .abort = self_abort,
    .progress = spli_pairwise_progress,
};

spl_status spli_comm_self_open(const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out) {
    self_world *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return spli_error(SPL_ENOMEM, "out of memory while opening communication");
    spli_pairwise_init(&w->engine, NULL, NULL);
    spl_status status = spli_pairwise_world(&w->comm, &w->engine, 0, 1, b, ctx, q);
    if (status.code != SPL_OK) {
        free(w);
        return status;
    }
    w->comm.base.ops = &self_ops;
    *out = &w->comm.base;
    return spli_ok();
}
