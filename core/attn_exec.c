/* attn_exec.c: carries out an attention plan: while a step's pieces are computed, the rows of the next travel.
 *
 * A row that travels is the keys and values of one position: [2, batch, kv_heads, head_dim]. There are two buffers,
 * made once: one holds the rows that this step computes on (and sends on, from where they lie), the other takes in the
 * next step's. During step 0, which computes on the own keys, the first buffer holds the own rows that are sent. What
 * must be put together first (rows of one's own in a later step, or several stretches for one member) goes through a
 * third, which plans of common masks do not need. Parts are merged in f32 (f64), in the order of steps. */
#include "attn.h"
#include "trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct travel {
    spli_attn_run *run;
    int64_t row;                                                      /* elements of one */
    char *base;                                                       /* of all three buffers */
    int64_t at[3], rows[3];                                           /* where each begins, in rows, and its room */
    int64_t *numbers, *send_counts, *send_at, *recv_counts, *recv_at; /* by member, in elements */
} travel;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* One stretch that lies where it can be sent from? */
static int lies_ready(const spli_attn_step *step, int first, int n) {
    return n == 1 && !step->sends[first].own && step->sends[first].rows.n == 1;
}

/* Calls for each member that gets something in this step: its sends are [first, first + n). */
static int next_member(const spli_attn_step *step, int *first, int *n) {
    *first += *n;
    *n = 0;
    while (*first + *n < step->nsends && step->sends[*first + *n].to == step->sends[*first].to) ++*n;
    return *n > 0;
}

static int64_t rows_to_pack(const spli_attn_step *step) {
    int64_t total = 0;
    for (int first = 0, n = 0; next_member(step, &first, &n);)
        for (int s = first; s < first + n && !lies_ready(step, first, n); s++)
            total += spli_rows_total(&step->sends[s].rows);
    return total;
}

static char *row_at(const travel *t, int buffer, int64_t row) {
    size_t size = spl_dtype_size(t->run->args.dtype);
    return t->base + (size_t)((t->at[buffer] + row) * t->row) * size;
}

/* Rows [begin, end) of the own keys and values, as they travel. */
static spl_status pack_own(const travel *t, int64_t begin, int64_t end, char *into) {
    const spl_attn_args *a = &t->run->args;
    spl_runtime *rt = t->run->rt;
    const spl_tensor *from[] = {t->run->k, t->run->v};
    size_t size = spl_dtype_size(a->dtype);
    for (int i = 0; i < 2; i++) {
        spl_box_args box = {
            .dtype = a->dtype,
            .ndim = 4,
            .shape = {end - begin, a->batch, a->kv_heads, a->head_dim},
            .dst_strides = {t->row, a->kv_heads * a->head_dim, a->head_dim, 1},
            .src_strides = {from[i]->strides[1], from[i]->strides[0], from[i]->strides[2], from[i]->strides[3]}};
        int64_t at = begin * from[i]->strides[1] + t->run->kv_begin * from[i]->strides[2];
        box.src = (const char *)spli_tensor_data(from[i]) + (size_t)at * size;
        box.dst = into + (size_t)(i * t->row / 2) * size;
        SPL_TRY(rt->backend->box(rt->backend_ctx, rt->compute, &box));
    }
    return spli_ok();
}

static spl_status copy_rows(const travel *t, const char *from, int64_t n, char *into) {
    spl_runtime *rt = t->run->rt;
    spl_box_args box = {.dtype = t->run->args.dtype,
                        .ndim = 1,
                        .shape = {n * t->row},
                        .dst_strides = {1},
                        .src_strides = {1},
                        .dst = into,
                        .src = from};
    return n ? rt->backend->box(rt->backend_ctx, rt->compute, &box) : spli_ok();
}

/* ---- room ---- */

static spl_status room_take(travel *t) {
    const spli_attn_plan *p = t->run->plan;
    const int P = t->run->comm->size;
    size_t size = spl_dtype_size(t->run->args.dtype);
    int64_t bytes;
    t->rows[0] = spli_rows_total(&p->staged);
    for (int s = 0; s < p->nsteps; s++) {
        if (s > 0) t->rows[s % 2] = most(t->rows[s % 2], p->steps[s].source_rows);
        t->rows[2] = most(t->rows[2], rows_to_pack(&p->steps[s]));
    }
    t->at[1] = t->rows[0];
    t->at[2] = t->at[1] + t->rows[1];
    t->numbers = calloc(4 * (size_t)P, sizeof *t->numbers);
    if (!t->numbers) return spli_error(SPL_ENOMEM, "out of memory while planning attention");
    t->send_counts = t->numbers;
    t->send_at = t->numbers + P;
    t->recv_counts = t->numbers + 2 * P;
    t->recv_at = t->numbers + 3 * P;
    SPL_TRY(spli_mul_size(t->at[2] + t->rows[2], t->row, &bytes));
    SPL_TRY(spli_mul_size(bytes, (int64_t)size, &bytes));
    return bytes ? spli_alloc(t->run->rt, SPL_MEM_BUFFERS, (size_t)bytes, (void **)&t->base) : spli_ok();
}

static void room_give(travel *t) {
    size_t bytes = (size_t)((t->at[2] + t->rows[2]) * t->row) * spl_dtype_size(t->run->args.dtype);
    if (t->base) spli_free(t->run->rt, SPL_MEM_BUFFERS, t->base, bytes);
    free(t->numbers);
}

/* ---- one exchange ---- */

static spl_status pack_sends(travel *t, int s) {
    const spli_attn_plan *p = t->run->plan;
    const spli_attn_step *step = &p->steps[s];
    const int here = s % 2;
    int64_t packed = 0;
    if (t->row == 0) return spli_ok(); /* no heads or no batch here: nothing has elements */
    for (int r = 0; s == 0 && r < p->staged.n; r++) {
        const spli_interval *x = &p->staged.at[r];
        SPL_TRY(pack_own(t, x->begin, x->end, row_at(t, 0, packed)));
        packed += x->end - x->begin;
    }
    packed = 0;
    for (int first = 0, n = 0; next_member(step, &first, &n);) {
        const int to = step->sends[first].to;
        if (lies_ready(step, first, n)) {
            const spli_interval *x = &step->sends[first].rows.at[0];
            t->send_at[to] = (t->at[here] + x->begin) * t->row;
            t->send_counts[to] = (x->end - x->begin) * t->row;
            continue;
        }
        t->send_at[to] = (t->at[2] + packed) * t->row;
        int64_t before = packed;
        for (int i = first; i < first + n; i++)
            for (int r = 0; r < step->sends[i].rows.n; r++) {
                const spli_interval *x = &step->sends[i].rows.at[r];
                char *into = row_at(t, 2, packed);
                packed += x->end - x->begin;
                if (step->sends[i].own)
                    SPL_TRY(pack_own(t, x->begin, x->end, into));
                else
                    SPL_TRY(copy_rows(t, row_at(t, here, x->begin), x->end - x->begin, into));
            }
        t->send_counts[to] = (packed - before) * t->row;
    }
    return spli_ok();
}

static spl_status start_exchange(travel *t, int s, spl_request **request) {
    spl_runtime *rt = t->run->rt;
    spl_comm *comm = t->run->comm;
    const spli_attn_step *step = &t->run->plan->steps[s];
    memset(t->numbers, 0, 4 * (size_t)comm->size * sizeof *t->numbers);
    SPL_TRY(pack_sends(t, s));
    for (int i = 0; i < step->nrecvs; i++) { /* by rising member, each member's behind each other */
        const spli_attn_recv *r = &step->recvs[i];
        if (!t->recv_counts[r->from]) t->recv_at[r->from] = (t->at[(s + 1) % 2] + r->at) * t->row;
        t->recv_counts[r->from] += r->rows * t->row;
    }
    spl_coll coll = {.kind = SPL_COLL_ALL_TO_ALL,
                     .dtype = t->run->args.dtype,
                     .send = t->base,
                     .recv = t->base,
                     .send_counts = t->send_counts,
                     .recv_counts = t->recv_counts,
                     .send_at = t->send_at,
                     .recv_at = t->recv_at};
    SPL_TRY(spli_comm_start(rt, comm, &coll, request));
    spli_trace_rename(rt, (*request)->traced, t->run->role);
    if (rt->hook.comm)
        rt->hook.comm(rt->hook.ctx, "keys and values", t->run->role, comm->axis, spl_coll_bytes(comm, &coll), NULL);
    return spli_ok();
}

/* ---- one step's pieces ---- */

static void move_on(void *ctx) {
    spl_runtime *rt = ctx;
    rt->world->ops->progress(rt->world);
}

/* Some heads of several batch entries: their lse lie apart, so each entry is a call. */
static spl_status one_by_one(spl_runtime *rt, const spl_attn_args *all, int64_t lse_heads) {
    size_t size = spl_dtype_size(all->dtype), out_size = spl_dtype_size(all->out_dtype);
    size_t lse_size = all->dtype == SPL_F64 ? 8 : 4;
    int s = 0;
    for (int64_t b = 0, done = 0; b < all->batch; b++) {
        while (s < all->nbatch_segments && b - done >= all->batch_segments[s].length)
            done += all->batch_segments[s++].length;
        spl_segment entry = {b, 1, 1};
        if (s < all->nbatch_segments) /* the global index of entry b */
            entry.start = all->batch_segments[s].start + (b - done) * all->batch_segments[s].stride;
        spl_attn_args a = *all;
        a.batch = 1;
        a.batch_segments = &entry;
        a.nbatch_segments = 1;
        a.q = (const char *)all->q + (size_t)(b * all->q_strides[0]) * size;
        a.k = (const char *)all->k + (size_t)(b * all->k_strides[0]) * size;
        a.v = (const char *)all->v + (size_t)(b * all->v_strides[0]) * size;
        a.out = (char *)all->out + (size_t)(b * all->out_strides[0]) * out_size;
        a.lse = (char *)all->lse + (size_t)(b * lse_heads * all->sq) * lse_size;
        SPL_TRY(rt->backend->attention(rt->backend_ctx, rt->compute, &a));
        SPL_TRY(spli_wait_queue(rt, rt->compute)); /* the entry is host memory */
    }
    return spli_ok();
}

static spl_status compute(spli_attn_run *run, const travel *t, int s, int travelling, int *begun) {
    const spli_attn_step *step = &run->plan->steps[s];
    spl_runtime *rt = run->rt;
    spl_attn_args a = run->args;
    if (a.batch * a.heads * a.sq == 0 || (step->npieces == 0 && *begun)) return spli_ok();
    a.sk = step->source_rows;
    if (s == 0) {
        size_t size = spl_dtype_size(a.dtype);
        a.k = (const char *)spli_tensor_data(run->k) + (size_t)(run->kv_begin * run->k->strides[2]) * size;
        a.v = (const char *)spli_tensor_data(run->v) + (size_t)(run->kv_begin * run->v->strides[2]) * size;
        memcpy(a.k_strides, run->k->strides, sizeof a.k_strides);
        memcpy(a.v_strides, run->v->strides, sizeof a.v_strides);
    } else {
        const int64_t strides[] = {a.kv_heads * a.head_dim, t->row, a.head_dim, 1};
        a.k = row_at(t, s % 2, 0);
        a.v = (const char *)a.k + (size_t)(t->row / 2) * spl_dtype_size(a.dtype);
        memcpy(a.k_strides, strides, sizeof strides);
        memcpy(a.v_strides, strides, sizeof strides);
    }
    a.pieces = step->pieces;
    a.npieces = step->npieces;
    a.merge = *begun;
    if (travelling && rt->world->ops->progress) a.progress = move_on, a.progress_ctx = rt;
    *begun = 1;
    if (a.heads == run->lse_heads || a.batch == 1) return rt->backend->attention(rt->backend_ctx, rt->compute, &a);
    return one_by_one(rt, &a, run->lse_heads);
}

spl_status spli_attn_execute(spli_attn_run *run) {
    const spli_attn_plan *p = run->plan;
    const spl_attn_args *a = &run->args;
    spl_runtime *rt = run->rt;
    travel t = {.run = run, .row = 2 * a->batch * a->kv_heads * a->head_dim};
    spl_request *request = NULL;
    spl_status status = spli_ok();
    char what[64];
    int begun = run->merged;
    snprintf(what, sizeof what, "keys and values along %s", run->comm ? run->comm->axis : "");
    if (p->nsteps > 1) SPL_GO(room_take(&t), done);
    for (int s = 0; s < p->nsteps; s++) {
        if (s + 1 < p->nsteps) SPL_GO(start_exchange(&t, s, &request), done);
        SPL_GO(compute(run, &t, s, request != NULL, &begun), done);
        SPL_GO(spli_wait_queue(rt, rt->compute), done); /* the source is about to be overwritten */
        if (request) {
            spl_request *r = request;
            request = NULL;
            SPL_GO(spli_wait(rt, r, what), done);
        }
    }
    spli_count(&rt->counters.attention_flops,
               4.0 * (double)a->head_dim * (double)p->pairs * (double)(a->batch * a->heads));
done:
    if (request) spli_give_up(rt, request); /* an error while something travels */
    room_give(&t);
    return status;
}
