/* redistribute.c: moving a tensor between layouts: everything in SPL that communicates, but for attention steps, is
 * this.
 *
 * layout gives a path of single-axis steps; each step is one of five moves, decided by what the axis does before and
 * after: partial -> replicate    all-reduce            shard -> replicate    all-gather partial -> shard reduce-scatter
 * shard -> shard        all-to-all everything else         local: a slice, or zeros where another rank's coordinate
 * holds the value of a pending sum What goes from member i to member j is the meeting of i's holdings before with j's
 * holdings after, a set of boxes that both sides work out alone from the layouts; parts are packed box by box. Where
 * shards overlap, the lowest holder sends.
 *
 * A sum that is pending over several axes is finished along one after the other. In bf16 and f16 it is f32 from the
 * first of these sums to the last, and rounded once (redistribute_sum.c). */
#include "layout.h"
#include "op.h"
#include "redistribute.h"
#include "trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The boxes of one transfer: the product of the runs of each dimension. */
typedef struct transfer {
    int ndim, nruns[SPL_MAX_DIMS];
    spli_run *runs[SPL_MAX_DIMS]; /* a: position at the holder, b: position at the receiver */
    int64_t count;                /* elements in all */
} transfer;

static void transfer_free(transfer *t) {
    for (int d = 0; d < t->ndim; d++) free(t->runs[d]);
    memset(t, 0, sizeof *t);
}

/* What member i (in layout `from`) gives to member j (in layout `to`) along `axis`. */
static spl_status transfer_between(const spl_layout *from, const spl_layout *to, const int *coords, int axis, int i,
                                   int j, transfer *out) {
    memset(out, 0, sizeof *out);
    out->ndim = from->ndim;
    out->count = 1;
    for (int d = 0; d < from->ndim; d++) {
        spl_status status = spli_layout_transfer(from, to, coords, axis, i, j, d, &out->runs[d], &out->nruns[d]);
        if (status.code != SPL_OK) {
            transfer_free(out);
            return status;
        }
        int64_t total = 0;
        for (int r = 0; r < out->nruns[d]; r++) total += out->runs[d][r].length;
        out->count *= total;
    }
    return spli_ok();
}

/* The three uses of a transfer's boxes: holder -> packed, packed -> receiver, holder -> receiver. */
typedef enum box_use { PACK, UNPACK, STRAIGHT } box_use;

static spl_status move_boxes(spl_runtime *rt, const transfer *t, box_use use, spl_dtype dtype, const void *src,
                             const int64_t *src_strides, void *dst, const int64_t *dst_strides) {
    if (t->count == 0) return spli_ok();
    int at[SPL_MAX_DIMS] = {0};
    size_t size = spl_dtype_size(dtype);
    int64_t packed = 0;
    for (;;) {
        spl_box_args box = {.dtype = dtype, .ndim = t->ndim};
        int64_t src_at = 0, dst_at = 0, stride = 1;
        for (int d = t->ndim - 1; d >= 0; d--) {
            const spli_run *r = &t->runs[d][at[d]];
            box.shape[d] = r->length;
            box.src_strides[d] = use == UNPACK ? stride : r->a_step * src_strides[d];
            box.dst_strides[d] = use == PACK ? stride : r->b_step * dst_strides[d];
            if (use != UNPACK) src_at += r->a * src_strides[d];
            if (use != PACK) dst_at += r->b * dst_strides[d];
            stride *= r->length;
        }
        if (use == UNPACK) src_at = packed;
        if (use == PACK) dst_at = packed;
        box.src = (const char *)src + (size_t)src_at * size;
        box.dst = (char *)dst + (size_t)dst_at * size;
        SPL_TRY(rt->backend->box(rt->backend_ctx, rt->compute, &box));
        packed += stride;
        int d = t->ndim - 1;
        while (d >= 0 && ++at[d] == t->nruns[d]) at[d--] = 0;
        if (d < 0) return spli_ok();
    }
}

/* Is the transfer one box that lies densely, in its order, at *offset of the holder's (or the receiver's) memory? Then
 * it travels from there, or to there, without a copy. */
static int lies_dense(const transfer *t, const spl_tensor *where, int at_holder, int64_t *offset) {
    int64_t stride = 1;
    *offset = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        const spli_run *r = t->runs[d];
        if (t->nruns[d] != 1) return 0;
        if (r->length > 1 && ((at_holder ? r->a_step : r->b_step) != 1 || where->strides[d] != stride)) return 0;
        *offset += (at_holder ? r->a : r->b) * where->strides[d];
        stride *= r->length;
    }
    return 1;
}

typedef struct step_state {
    spl_runtime *rt;
    const spl_tensor *from;
    spl_tensor *to;
    const spl_layout *before, *after;
    int axis, size, me;
    spl_comm *comm;
} step_state;

static spl_status between(const step_state *s, int i, int j, transfer *t) {
    return transfer_between(s->before, s->after, s->from->mesh->coords, s->axis, i, j, t);
}

/* From member i's part straight into my result, no communication (i is me, or everyone holds the same). */
static spl_status place_locally(const step_state *s, int holder) {
    transfer t;
    SPL_TRY(between(s, holder, s->me, &t));
    spl_status status = move_boxes(s->rt, &t, STRAIGHT, s->from->dtype, spli_tensor_data(s->from), s->from->strides,
                                   spli_tensor_data(s->to), s->to->strides);
    transfer_free(&t);
    return status;
}

static spl_status zero(const step_state *s) {
    size_t bytes = (size_t)spl_tensor_local_count(s->to) * spl_dtype_size(s->to->dtype);
    return bytes ? s->rt->backend->zero(s->rt->backend_ctx, s->rt->compute, spli_tensor_data(s->to), bytes) : spli_ok();
}

/* to a pending sum: each value at exactly one coordinate, zeros elsewhere. */
static spl_status become_partial(const step_state *s) {
    if (s->before->axes[s->axis].place == SPL_REPLICATE) return s->me == 0 ? place_locally(s, 0) : zero(s);
    SPL_TRY(zero(s));
    return place_locally(s, s->me); /* of overlapping shards only the owner's part is placed */
}

static spl_status all_reduce(const step_state *s, int64_t *bytes) {
    int64_t n = spl_tensor_local_count(s->to);
    spl_coll coll = {.kind = SPL_COLL_ALL_REDUCE,
                     .dtype = s->to->dtype,
                     .send = spli_tensor_data(s->to),
                     .recv = spli_tensor_data(s->to),
                     .send_counts = &n};
    if (spli_tensor_dense(s->from)) coll.send = spli_tensor_data(s->from);
    else SPL_TRY(place_locally(s, s->me));
    *bytes = spl_coll_bytes(s->comm, &coll);
    return spli_comm_run(s->rt, s->comm, &coll);
}

/* Packs what goes to one member. A part that is summed on arrival is packed in the receiver's memory order, since the
 * sum is the receiver's result. */
static spl_status pack(const step_state *s, const transfer *t, int in_receiver_order, void *into) {
    int64_t strides[SPL_MAX_DIMS], stride = 1;
    if (!in_receiver_order)
        return move_boxes(s->rt, t, PACK, s->from->dtype, spli_tensor_data(s->from), s->from->strides, into, NULL);
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t wanted = 0; /* a summed part is all that its receiver holds */
        for (int r = 0; r < t->nruns[d]; r++) wanted += t->runs[d][r].length;
        strides[d] = stride;
        stride *= wanted > 0 ? wanted : 1;
    }
    return move_boxes(s->rt, t, STRAIGHT, s->from->dtype, spli_tensor_data(s->from), s->from->strides, into, strides);
}

/* Only some positions of one dimension: of what a member holds before, or of what it shall hold. */
typedef struct part {
    int dim, at_holder;
    const int64_t *begin, *end; /* by member */
} part;

/* Takes out of a transfer between members i and j what the part does not have. */
static void clip(transfer *t, const part *only, int i, int j) {
    int64_t begin = only->begin[only->at_holder ? i : j], end = only->end[only->at_holder ? i : j], total = 0;
    int kept = 0;
    for (int r = 0; r < t->nruns[only->dim]; r++) {
        spli_run x = t->runs[only->dim][r];
        int64_t first = only->at_holder ? x.a : x.b, step = only->at_holder ? x.a_step : x.b_step;
        int64_t from = first < begin ? (begin - first + step - 1) / step : 0;
        int64_t to = first >= end ? 0 : (end - first + step - 1) / step;
        if (to > x.length) to = x.length;
        if (from >= to) continue;
        total += to - from;
        t->runs[only->dim][kept++] =
            (spli_run){x.a + from * x.a_step, x.b + from * x.b_step, to - from, x.a_step, x.b_step};
    }
    t->nruns[only->dim] = kept;
    t->count = total;
    for (int d = 0; d < t->ndim; d++) {
        int64_t length = 0;
        for (int r = 0; r < t->nruns[d] && d != only->dim; r++) length += t->runs[d][r].length;
        if (d != only->dim) t->count *= length;
    }
}

/* All-gather, reduce-scatter and all-to-all: pack for each receiver, exchange, unpack from each sender; what already
 * lies as it travels is sent, and received, in its place. */
typedef struct exchange {
    step_state s;
    spl_coll_kind kind;
    int widens; /* a sum of halves in f32: parts arrive, and are added here */
    int recv_direct;
    char *send, *recv;
    int64_t send_total, recv_total;
    int64_t *send_counts, *recv_counts;
    transfer *out, *in;
    spl_request *request;
    int64_t bytes;
} exchange;

static void exchange_free(exchange *x) {
    const size_t size = spl_dtype_size(x->s.from->dtype);
    if (x->request) spli_give_up(x->s.rt, x->request); /* an error elsewhere while this travels */
    for (int j = 0; j < x->s.size; j++) {
        if (x->out) transfer_free(&x->out[j]);
        if (x->in) transfer_free(&x->in[j]);
    }
    free(x->out);
    free(x->in);
    free(x->send_counts);
    if (x->send) spli_free(x->s.rt, SPL_MEM_BUFFERS, x->send, (size_t)x->send_total * size);
    if (x->recv) spli_free(x->s.rt, SPL_MEM_BUFFERS, x->recv, (size_t)x->recv_total * size);
    memset(x, 0, sizeof *x);
}

static spl_status exchange_start(exchange *x, const step_state *state, spl_coll_kind kind, const part *only) {
    const int P = state->size, gathers = kind == SPL_COLL_ALL_GATHER, reduces = kind == SPL_COLL_REDUCE_SCATTER;
    const size_t size = spl_dtype_size(state->from->dtype);
    spl_status status = spli_ok();
    int64_t at = 0, offset, send_from = 0;
    *x = (exchange){.s = *state, .kind = kind, .widens = state->to->dtype != state->from->dtype};
    const step_state *s = &x->s;
    x->send_counts = calloc(2 * (size_t)P, sizeof *x->send_counts);
    x->out = calloc((size_t)P, sizeof *x->out);
    x->in = calloc((size_t)P, sizeof *x->in);
    if (!x->send_counts || !x->out || !x->in)
        SPL_GO(spli_error(SPL_ENOMEM, "out of memory while planning a redistribution"), fail);
    x->recv_counts = x->send_counts + P;

    int recv_direct = 1, send_direct = 1;
    for (int j = 0; j < P; j++) {
        if (!gathers || j == s->me)
            SPL_GO(between(s, s->me, j, &x->out[j]), fail); /* gathering, everyone is sent the same */
        if (!reduces) SPL_GO(between(s, j, s->me, &x->in[j]), fail);
        if (only) {
            clip(&x->out[j], only, s->me, j);
            clip(&x->in[j], only, j, s->me);
        }
        if (x->in[j].count && !(lies_dense(&x->in[j], s->to, 0, &offset) && offset == x->recv_total)) recv_direct = 0;
        if (x->out[j].count && send_direct) { /* the parts follow each other in memory, from wherever the first lies */
            send_direct = lies_dense(&x->out[j], s->from, 1, &offset);
            if (x->send_total == 0) send_from = offset;
            send_direct = send_direct && offset == send_from + x->send_total;
        }
        x->send_total += x->send_counts[j] = x->out[j].count;
        x->recv_total += x->recv_counts[j] = x->in[j].count;
    }
    if (gathers) x->send_counts[0] = x->send_total;
    for (int j = 0; j < P && x->widens; j++) x->recv_total += x->recv_counts[j] = x->send_counts[s->me];
    x->recv_direct = recv_direct && !x->widens;
    if (!send_direct && x->send_total)
        SPL_GO(spli_alloc(s->rt, SPL_MEM_BUFFERS, (size_t)x->send_total * size, (void **)&x->send), fail);
    if (!x->recv_direct && x->recv_total)
        SPL_GO(spli_alloc(s->rt, SPL_MEM_BUFFERS, (size_t)x->recv_total * size, (void **)&x->recv), fail);

    for (int j = 0; j < P && !send_direct; at += x->out[j++].count)
        SPL_GO(pack(s, &x->out[j], reduces, x->send + (size_t)at * size), fail);
    const char *parts =
        send_direct && x->send_total ? (char *)spli_tensor_data(s->from) + (size_t)send_from * size : x->send;
    spl_coll coll = {.kind = x->widens ? SPL_COLL_ALL_TO_ALL : kind,
                     .dtype = s->from->dtype,
                     .send_counts = x->send_counts,
                     .recv_counts = reduces && !x->widens ? NULL : x->recv_counts,
                     .send = parts,
                     .recv = x->recv_direct ? spli_tensor_data(s->to) : x->recv};
    x->kind = coll.kind;
    x->bytes = spl_coll_bytes(s->comm, &coll);
    SPL_GO(spli_comm_start(s->rt, s->comm, &coll, &x->request), fail);
    return status;
fail:
    exchange_free(x);
    return status;
}

static spl_status exchange_finish(exchange *x) {
    const step_state *s = &x->s;
    const size_t size = spl_dtype_size(s->from->dtype);
    spl_status status = spli_ok();
    char place[48], what[96];
    int64_t at = 0;
    spl_request *request = x->request;
    x->request = NULL;
    snprintf(what, sizeof what, "%s %s", spl_coll_name(x->kind), spli_comm_place(s->comm, place, sizeof place));
    SPL_GO(spli_wait(s->rt, request, what), done);
    if (x->widens)
        SPL_GO(spli_sum_widened(s->rt, spli_tensor_data(s->to), x->recv, s->from->dtype, s->size,
                                x->send_counts[s->me]),
               done);
    for (int j = 0; j < s->size && !x->recv_direct && !x->widens; at += x->in[j++].count)
        SPL_GO(move_boxes(s->rt, &x->in[j], UNPACK, s->from->dtype, x->recv + (size_t)at * size, NULL,
                          spli_tensor_data(s->to), s->to->strides),
               done);
done:
    exchange_free(x);
    return status;
}

static spl_status exchange_all(const step_state *s, spl_coll_kind kind, int64_t *bytes) {
    exchange x;
    SPL_TRY(exchange_start(&x, s, kind, NULL));
    *bytes = x.bytes;
    return exchange_finish(&x);
}

static step_state state_of(const spl_tensor *from, int axis, const spl_layout *to, spl_tensor *result) {
    return (step_state){from->rt,
                        from,
                        result,
                        &from->layout,
                        to,
                        axis,
                        from->mesh->spec.axes[axis].size,
                        from->mesh->coords[axis],
                        from->mesh->comm[axis]};
}

/* One axis changes, everything else stays; a reduce-scatter of bf16 or f16 may give f32. */
static spl_status take_step(spl_tensor *from, int axis, const spl_layout *to, spl_dtype dtype, spl_tensor **out) {
    spl_runtime *rt = from->rt;
    spl_tensor *result;
    int64_t bytes = 0;
    const char *kind = "slice";
    spli_span span = spli_trace_begin(rt);
    SPL_TRY(spl_tensor_create(rt, from->mesh, to, dtype, SPL_MEM_ACTIVATIONS, &result));
    step_state s = state_of(from, axis, to, result);
    spl_place before = from->layout.axes[axis].place, after = to->axes[axis].place;
    spl_coll_kind coll = before == SPL_PARTIAL ? (after == SPL_SHARD ? SPL_COLL_REDUCE_SCATTER : SPL_COLL_ALL_REDUCE)
                                               : (after == SPL_SHARD ? SPL_COLL_ALL_TO_ALL : SPL_COLL_ALL_GATHER);
    spl_status status;
    if (before != SPL_PARTIAL && after == SPL_PARTIAL) {
        kind = "pending sum";
        status = become_partial(&s);
    } else if (before == SPL_REPLICATE) {
        status = place_locally(&s, s.me);
    } else {
        kind = spl_coll_name(coll);
        status = coll == SPL_COLL_ALL_REDUCE ? all_reduce(&s, &bytes) : exchange_all(&s, coll, &bytes);
    }
    if (status.code != SPL_OK) {
        spl_tensor_release(result);
        return status;
    }
    spli_trace_op(rt, span, kind, 1, result);
    if (rt->hook.comm) rt->hook.comm(rt->hook.ctx, rt->subject, kind, from->mesh->spec.axes[axis].name, bytes, result);
    *out = result;
    return spli_ok();
}

/* Does step i finish a sum, from the layout before it? */
static int finishes(const spl_layout *before, const spli_layout_step *step) {
    return before->axes[step->axis].place == SPL_PARTIAL && step->layout.axes[step->axis].place != SPL_PARTIAL;
}

static const spl_layout *before(const spl_tensor *t, const spli_layout_step *steps, int i) {
    return i ? &steps[i - 1].layout : &t->layout;
}

/* Step i, and all-reduces that follow it at once; *count says how many steps that was. `sums` are to come, this one
 * included. */
static spl_status take_steps(const spl_tensor *t, spl_tensor *now, const spli_layout_step *steps, int n, int i,
                             int sums, int several, int *count, spl_tensor **out) {
    const int axis = steps[i].axis, half = spli_is_half(t->dtype);
    int axes[SPLI_MAX_STEPS];
    *count = 1;
    if (!finishes(before(t, steps, i), &steps[i]) || !several)
        return take_step(now, axis, &steps[i].layout, now->dtype, out);
    if (steps[i].layout.axes[axis].place == SPL_SHARD) {
        spl_tensor *wide;
        SPL_TRY(take_step(now, axis, &steps[i].layout, half ? SPL_F32 : t->dtype, &wide));
        spl_status status = spl_tensor_cast(wide, half && sums > 1 ? SPL_F32 : t->dtype, out);
        spl_tensor_release(wide);
        return status;
    }
    axes[0] = axis;
    while (i + *count < n && finishes(before(t, steps, i + *count), &steps[i + *count]) &&
           steps[i + *count].layout.axes[steps[i + *count].axis].place == SPL_REPLICATE) {
        axes[*count] = steps[i + *count].axis;
        ++*count;
    }
    return spli_all_reduce_axes(now, axes, *count, &steps[i + *count - 1].layout,
                                half && sums > *count ? SPL_F32 : t->dtype, out);
}

spl_status spl_redistribute(spl_tensor *t, const spl_layout *to, spl_tensor **out) {
    SPL_TRY(spli_tensor_usable(t, "the tensor of redistribute"));
    if (!t->mesh)
        return spli_error(
            SPL_EARG,
            "redistribute was given a tensor of this rank alone; make it on a mesh (spl.tensor{mesh=..., layout=...})");
    SPL_TRY(spl_layout_check(to));
    int same = to->ndim == t->ndim && to->naxes == t->layout.naxes;
    for (int d = 0; same && d < t->ndim; d++) same = to->shape[d] == t->shape[d];
    for (int a = 0; same && a < to->naxes; a++)
        same = to->axis_size[a] == t->layout.axis_size[a] && !strcmp(to->axis_name[a], t->layout.axis_name[a]);
    if (!same)
        return spli_error(SPL_EARG,
                          "redistribute was given a layout of another shape or mesh; make it for this tensor's");

    spli_layout_step steps[SPLI_MAX_STEPS];
    int n = spli_layout_path(&t->layout, to, steps);
    if (n == 0) return spli_tensor_alias(t, to, t->ndim, t->local, t->strides, t->offset, out);
    spl_tensor *now = t;
    int sums = 0, several, count;
    for (int i = 0; i < n; i++) sums += finishes(before(t, steps, i), &steps[i]);
    several = sums > 1;
    for (int i = 0; i < n; i += count) {
        spl_tensor *next = NULL;
        spl_status status = take_steps(t, now, steps, n, i, sums, several, &count, &next);
        for (int k = i; k < i + count; k++) sums -= finishes(before(t, steps, k), &steps[k]);
        if (now != t) spl_tensor_release(now);
        SPL_TRY(status);
        now = next;
    }
    *out = now;
    return spli_ok();
}

/* ---- in parts ---- */

struct spli_move {
    spl_tensor *from, *result;
    int axis; /* -1: all of it is there already */
    int travelling;
    exchange x;
};

static spl_status move_new(spl_tensor *from, const spl_layout *to, int in_parts, spli_move **out) {
    spli_layout_step steps[SPLI_MAX_STEPS];
    spl_status status;
    *out = NULL;
    spli_move *m = calloc(1, sizeof *m);
    if (!m) return spli_error(SPL_ENOMEM, "out of memory while planning a redistribution");
    int n = in_parts ? spli_layout_path(&from->layout, to, steps) : 0, axis = n == 1 ? steps[0].axis : -1;
    if (axis >= 0 && (from->layout.axes[axis].place != SPL_SHARD || to->axes[axis].place != SPL_SHARD)) axis = -1;
    m->axis = axis;
    status = axis < 0 ? spl_redistribute(from, to, &m->result)
                      : spl_tensor_create(from->rt, from->mesh, to, from->dtype, SPL_MEM_ACTIVATIONS, &m->result);
    if (status.code != SPL_OK) {
        free(m);
        return status;
    }
    m->from = from;
    spl_tensor_retain(from);
    *out = m;
    return status;
}

spl_status spli_move_open(spl_tensor *from, const spl_layout *to, spli_move **out) {
    return move_new(from, to, 1, out);
}

spl_status spli_move_whole(spl_tensor *from, const spl_layout *to, spli_move **out) {
    return move_new(from, to, 0, out);
}

spl_tensor *spli_move_result(const spli_move *m) { return m->result; }

spl_status spli_move_start(spli_move *m, int dim, int at_holder, const int64_t *begin, const int64_t *end) {
    const part only = {dim, at_holder, begin, end};
    if (m->axis < 0) return spli_ok();
    step_state s = state_of(m->from, m->axis, &m->result->layout, m->result);
    SPL_TRY(exchange_start(&m->x, &s, SPL_COLL_ALL_TO_ALL, &only));
    m->travelling = 1;
    return spli_ok();
}

spl_status spli_move_finish(spli_move *m) {
    spl_runtime *rt = m->from->rt;
    if (!m->travelling) return spli_ok();
    const int64_t bytes = m->x.bytes;
    m->travelling = 0;
    SPL_TRY(exchange_finish(&m->x));
    if (rt->hook.comm)
        rt->hook.comm(rt->hook.ctx, rt->subject, spl_coll_name(SPL_COLL_ALL_TO_ALL),
                      m->from->mesh->spec.axes[m->axis].name, bytes, m->result);
    return spli_ok();
}

void spli_move_close(spli_move *m) {
    if (!m) return;
    if (m->travelling) exchange_free(&m->x);
    spl_tensor_release(m->from);
    spl_tensor_release(m->result);
    free(m);
}
