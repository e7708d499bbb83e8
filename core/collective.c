/* collective.c: the collectives on tensors of one rank alone, over one axis of a mesh: for programs that say themselves
 * what travels, and for measuring. Counts are equal on all members; uneven parts are what redistribution is for. */
#include "tensor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    spl_mesh *mesh;
    spl_comm *comm;
    const char *name, *axis;
    spl_tensor *send, *recv;
    int64_t sent, got; /* elements of both */
} call;

static spl_status axis_exists(const spl_mesh *m, int axis, const char *name) {
    if (axis >= 0 && axis < m->spec.naxes) return spli_ok();
    return spli_error(SPL_EARG, "%s was given axis %d of a mesh of %d; axes count from 0", name, axis, m->spec.naxes);
}

static spl_status usable(const call *c, const spl_tensor *t, const char *use) {
    char name[80];
    if (!t) return spli_error(SPL_EARG, "%s on axis %s was given no tensor to %s", c->name, c->axis, use);
    snprintf(name, sizeof name, "the tensor to %s of %s", use, c->name);
    SPL_TRY(spli_tensor_usable(t, name));
    if (t->mesh)
        return spli_error(SPL_EARG,
                          "%s on axis %s was given a tensor with a layout to %s; it takes tensors of one rank alone: "
                          "to_local() gives this rank's part, redistribute() moves the whole",
                          c->name, c->axis, use);
    if (t->rt != c->mesh->rt)
        return spli_error(SPL_EARG, "%s on axis %s was given a tensor of another rank's runtime to %s", c->name,
                          c->axis, use);
    if (!spli_tensor_dense(t))
        return spli_error(SPL_EARG,
                          "%s on axis %s was given a tensor to %s that does not lie densely; contiguous() makes a "
                          "dense copy",
                          c->name, c->axis, use);
    return spli_ok();
}

/* Both tensors, and what they must have in common. send may be NULL with `may_lack`. */
static spl_status begin(call *c, spl_mesh *m, int axis, const char *name, spl_tensor *send, spl_tensor *recv,
                        int may_lack) {
    *c = (call){.mesh = m, .comm = m->comm[axis], .name = name, .axis = m->spec.axes[axis].name};
    c->send = send;
    c->recv = recv;
    if (send || !may_lack) SPL_TRY(usable(c, send, "send"));
    SPL_TRY(usable(c, recv, "receive into"));
    if (send && send->dtype != recv->dtype)
        return spli_error(SPL_EARG,
                          "%s on axis %s was given %s to send and %s to receive into; both must have one dtype", name,
                          c->axis, spl_dtype_name(send->dtype), spl_dtype_name(recv->dtype));
    c->got = spl_tensor_local_count(recv);
    c->sent = send ? spl_tensor_local_count(send) : c->got;
    return spli_ok();
}

/* The `more` elements on one side must be `times` the `fewer` on the other. */
static spl_status counts_fit(const call *c, int64_t fewer, int64_t more, int64_t times) {
    if (more % times == 0 && more / times == fewer) return spli_ok();
    if (times == 1)
        return spli_error(SPL_EARG,
                          "%s on axis %s was given %lld elements to send and %lld to receive; both must be equal",
                          c->name, c->axis, (long long)c->sent, (long long)c->got);
    return spli_error(SPL_EARG,
                      "%s on axis %s of %lld members was given %lld elements to send and %lld to receive; the %s must "
                      "be %lld times the other",
                      c->name, c->axis, (long long)times, (long long)c->sent, (long long)c->got,
                      more == c->got ? "second" : "first", (long long)times);
}

/* Where send and recv share memory, send must begin `at` elements after recv; *in_place says whether they do. */
static spl_status places_fit(const call *c, int may_share, int64_t at, int *in_place) {
    *in_place = 0;
    if (!c->send || c->send->storage != c->recv->storage || !c->sent || !c->got) return spli_ok();
    int64_t apart = c->send->offset - c->recv->offset; /* one dtype, so in elements of both */
    if (apart >= c->got || -apart >= c->sent) return spli_ok();
    *in_place = 1;
    if (may_share && apart == at) return spli_ok();
    if (!may_share)
        return spli_error(SPL_EARG,
                          "%s on axis %s was given tensors that share memory; it does not work in place: receive into "
                          "another tensor",
                          c->name, c->axis);
    return spli_error(SPL_EARG,
                      "%s on axis %s was given tensors that share memory, but not as working in place needs it: %s",
                      c->name, c->axis,
                      c->sent == c->got ? "both must be the same elements"
                                        : "the smaller must be this member's own part of the larger");
}

static spl_status run(const call *c, const char *kind, spl_coll *coll) {
    spl_runtime *rt = c->mesh->rt;
    coll->dtype = c->recv->dtype;
    coll->recv = spli_tensor_data(c->recv);
    if (!coll->send && c->send) coll->send = spli_tensor_data(c->send);
    SPL_TRY(spli_comm_run(rt, c->comm, coll));
    if (rt->hook.comm)
        rt->hook.comm(rt->hook.ctx, rt->subject, kind, c->axis, spl_coll_bytes(c->comm, coll), c->recv);
    return spli_ok();
}

static spl_status counts_alloc(const call *c, int64_t **counts) { /* what is sent to each, then what is received */
    *counts = calloc(2 * (size_t)c->comm->size, sizeof **counts);
    if (*counts) return spli_ok();
    return spli_error(SPL_ENOMEM, "out of memory while starting %s on axis %s", c->name, c->axis);
}

spl_status spl_collective(spl_mesh *m, int axis, spl_coll_kind kind, spl_tensor *send, spl_tensor *recv, int root) {
    call c;
    int64_t *counts;
    int in_place;
    spl_coll coll = {.kind = kind, .root = root};
    const char *name = spl_coll_name(kind);
    SPL_TRY(axis_exists(m, axis, name));
    if (kind == SPL_COLL_BARRIER) return spli_comm_run(m->rt, m->comm[axis], &coll);
    SPL_TRY(begin(&c, m, axis, name, send, recv, kind == SPL_COLL_BROADCAST && m->coords[axis] != root));
    const int P = c.comm->size, me = c.comm->rank;
    switch (kind) {
    case SPL_COLL_ALL_GATHER:
        SPL_TRY(counts_fit(&c, c.sent, c.got, P));
        SPL_TRY(places_fit(&c, 1, me * c.sent, &in_place));
        if (in_place) coll.send = spli_tensor_data(recv); /* tells the comm that the own part lies in its place */
        break;
    case SPL_COLL_REDUCE_SCATTER:
        SPL_TRY(counts_fit(&c, c.got, c.sent, P));
        SPL_TRY(places_fit(&c, 1, -me * c.got, &in_place));
        break;
    case SPL_COLL_ALL_REDUCE:
    case SPL_COLL_BROADCAST:
        SPL_TRY(counts_fit(&c, c.sent, c.got, 1));
        SPL_TRY(places_fit(&c, 1, 0, &in_place));
        break;
    case SPL_COLL_ALL_TO_ALL:
        SPL_TRY(counts_fit(&c, c.sent, c.got, 1));
        if (c.sent % P)
            return spli_error(SPL_EARG, "%s on axis %s was given %lld elements, which its %d members do not divide",
                              name, c.axis, (long long)c.sent, P);
        SPL_TRY(places_fit(&c, 0, 0, &in_place));
        break;
    case SPL_COLL_BARRIER:
    case SPL_COLL_KIND_COUNT:
        break; /* done above; refused by the comm */
    }
    SPL_TRY(counts_alloc(&c, &counts));
    int per_member = kind == SPL_COLL_REDUCE_SCATTER || kind == SPL_COLL_ALL_TO_ALL;
    for (int p = 0; p < P; p++) {
        counts[p] = per_member ? c.sent / P : c.sent;
        counts[P + p] = c.got / P;
    }
    coll.send_counts = counts;
    if (kind == SPL_COLL_ALL_GATHER || kind == SPL_COLL_ALL_TO_ALL) coll.recv_counts = counts + P;
    spl_status status = run(&c, name, &coll);
    free(counts);
    return status;
}

spl_status spl_ring_shift(spl_mesh *m, int axis, spl_tensor *send, spl_tensor *recv, int64_t by) {
    static const char name[] = "ring shift";
    call c;
    int64_t *counts;
    int in_place;
    spl_coll coll = {.kind = SPL_COLL_ALL_TO_ALL};
    SPL_TRY(axis_exists(m, axis, name));
    SPL_TRY(begin(&c, m, axis, name, send, recv, 0));
    SPL_TRY(counts_fit(&c, c.sent, c.got, 1));
    SPL_TRY(places_fit(&c, 0, 0, &in_place));
    SPL_TRY(counts_alloc(&c, &counts));
    const int P = c.comm->size, me = c.comm->rank, on = (int)((by % P + P) % P);
    counts[(me + on) % P] = c.sent;
    counts[P + (me - on + P) % P] = c.got;
    coll.send_counts = counts;
    coll.recv_counts = counts + P;
    spl_status status = run(&c, name, &coll);
    free(counts);
    return status;
}
