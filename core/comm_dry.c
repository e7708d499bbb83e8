/* comm_dry.c: pretends to be one rank of many: collectives are checked, done at once, and move nothing. */
#include "comm.h"
#include <stdlib.h>
#include <unistd.h>

static spl_status dry_start(spl_comm *c, const spl_coll *coll, spl_event *const *wait, int nwait, spl_request **req) {
    (void)wait, (void)nwait; /* nothing is read, so nothing need have been written */
    *req = NULL;
    c->sequence++;
    SPL_TRY(spli_coll_check(c, coll));
    spl_request *r = calloc(1, sizeof *r);
    if (!r) return spli_error(SPL_ENOMEM, "out of memory while starting %s", spl_coll_name(coll->kind));
    r->comm = c;
    *req = r;
    return spli_ok();
}

static spl_status dry_test(spl_request *r, int *done) {
    (void)r;
    *done = 1;
    return spli_ok();
}

static void dry_free(spl_request *r) { free(r); }

static void dry_close(spl_comm *c) {
    free(c->world_ranks);
    free(c);
}

static spl_status dry_make(const spl_comm *like, int n, spl_comm **out) {
    spl_comm *c = malloc(sizeof *c);
    int *ranks = malloc(sizeof *ranks * (size_t)n);
    if (!c || !ranks) {
        free(c);
        free(ranks);
        return spli_error(SPL_ENOMEM, "out of memory while opening communication over %d ranks", n);
    }
    *c = *like;
    c->size = n;
    c->world_ranks = ranks;
    *out = c;
    return spli_ok();
}

static spl_status dry_group(spl_comm *parent, const int *members, int n, uint32_t id, spl_comm **child) {
    int rank = -1;
    *child = NULL;
    for (int m = 0; m < n; m++)
        if (members[m] == parent->rank) rank = m;
    if (rank < 0)
        return spli_error(SPL_EARG, "a group of %d ranks does not hold member %d, which makes it", n, parent->rank);
    SPL_TRY(dry_make(parent, n, child));
    (*child)->rank = rank;
    (*child)->id = id;
    (*child)->sequence = 0;
    (*child)->axis[0] = '\0';
    for (int m = 0; m < n; m++) (*child)->world_ranks[m] = parent->world_ranks[members[m]];
    return spli_ok();
}

static spl_status dry_control_send(spl_comm *world, int peer, const void *bytes, size_t n) {
    (void)world, (void)peer, (void)bytes, (void)n;
    return spli_ok();
}

static spl_status dry_control_test(spl_comm *world, int peer, void *into, size_t n, int *done) {
    (void)world, (void)peer, (void)into, (void)n;
    *done = 0;
    return spli_ok();
}

static void dry_abort(spl_comm *world, int exit_code) {
    (void)world;
    _exit(exit_code);
}

static const spl_comm_ops dry_ops = {
    .name = "dry",
    .start = dry_start,
    .test = dry_test,
    .request_free = dry_free,
    .group = dry_group,
    .close = dry_close,
    .control_send = dry_control_send,
    .control_test = dry_control_test,
    .abort = dry_abort,
};

spl_status spli_comm_dry_open(int rank, int size, const spl_backend_ops *b, void *ctx, spl_queue *q, spl_comm **out) {
    *out = NULL;
    if (size < 1 || rank < 0 || rank >= size)
        return spli_error(SPL_EARG, "a dry run as rank %d of %d was asked for; ranks are 0 to size - 1", rank, size);
    if (b->has_memory)
        return spli_error(SPL_EARG, "a dry run moves nothing, so it needs a backend without memory (null), not %s",
                          b->name);
    spl_comm like = {.ops = &dry_ops, .rank = rank, .backend = b, .backend_ctx = ctx, .queue = q};
    SPL_TRY(dry_make(&like, size, out));
    for (int m = 0; m < size; m++) (*out)->world_ranks[m] = m;
    return spli_ok();
}
