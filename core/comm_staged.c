/* comm_staged.c: messages of device memory for transports that know host memory alone: copied out into pinned host
 * memory, sent from there, received into pinned memory, copied in. It wraps the transport of comm_pairwise, so that
 * collectives are the same steps and sums, hence the same bits, wherever memory lies.
 *
 * A message passes two states, and none of them waits: to be sent, COPYING until the queue has passed the copy, then
 * TRAVELLING; received, TRAVELLING first. Messages are cut at PIECE, so that buffers stay small and copies of one piece
 * run beside the travel of the other. */
#include "comm_pairwise.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20, LEAST = 64 << 10 };

typedef struct buffer { /* pinned, with the event that says when its copy is over */
    struct buffer *next;
    char *bytes;
    size_t capacity;
    spl_event *event;
} buffer;

struct spli_staging {
    const spli_p2p_ops *under; /* the transport that is wrapped */
    void *under_ctx;
    spl_comm *world;
    buffer *spare;
    buffer *lost; /* of messages given up: the transport or the queue may still touch them */
};

typedef struct stage {
    int sending, travelling, peer;
    spli_p2p_key key;
    spli_p2p_handle handle;
    buffer *buffer;
    void *device; /* where it is received into */
    size_t bytes;
} stage;

static void buffer_free(const spli_staging *s, buffer *b) {
    const spl_comm *w = s->world;
    if (b->event) w->backend->event_close(w->backend_ctx, b->event);
    if (b->bytes) w->backend->host_free(w->backend_ctx, b->bytes);
    free(b);
}

static spl_status buffer_take(spli_staging *s, size_t bytes, buffer **out) {
    const spl_comm *w = s->world;
    size_t capacity = LEAST;
    void *p = NULL;
    for (buffer **at = &s->spare; *at; at = &(*at)->next)
        if ((*at)->capacity >= bytes) {
            *out = *at;
            *at = (*out)->next;
            return spli_ok();
        }
    while (capacity < bytes) capacity *= 2;
    buffer *b = calloc(1, sizeof *b);
    if (!b) return spli_error(SPL_ENOMEM, "out of memory while a message is copied to the host");
    spl_status status = w->backend->host_alloc(w->backend_ctx, capacity, &p);
    b->bytes = p;
    b->capacity = capacity;
    if (status.code == SPL_OK) status = w->backend->event_open(w->backend_ctx, &b->event);
    if (status.code == SPL_OK) *out = b;
    else buffer_free(s, b);
    return status;
}

static void buffer_give(buffer **list, buffer *b) {
    if (!b) return;
    b->next = *list;
    *list = b;
}

static spl_status mark(const spli_staging *s, const stage *t) {
    const spl_comm *w = s->world;
    return w->backend->event_record(w->backend_ctx, w->queue, t->buffer->event);
}

/* A message without bytes needs no buffer, and no copy. */
static spl_status stage_make(spli_staging *s, int peer, const spli_p2p_key *key, size_t bytes, stage **out) {
    stage *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return spli_error(SPL_ENOMEM, "out of memory while a message is copied to the host");
    t->peer = peer;
    t->key = *key;
    t->bytes = bytes;
    spl_status status = bytes > 0 ? buffer_take(s, bytes, &t->buffer) : spli_ok();
    if (status.code == SPL_OK) *out = t;
    else free(t);
    return status;
}

static spl_status travel(spli_staging *s, stage *t) {
    void *p = t->buffer ? t->buffer->bytes : NULL;
    SPL_TRY(t->sending ? s->under->isend(s->under_ctx, t->peer, &t->key, p, t->bytes, &t->handle)
                       : s->under->irecv(s->under_ctx, t->peer, &t->key, p, t->bytes, &t->handle));
    t->travelling = 1;
    return spli_ok();
}

static spl_status staged_isend(void *ctx, int peer, const spli_p2p_key *key, const void *p, size_t bytes,
                               spli_p2p_handle *h) {
    spli_staging *s = ctx;
    const spl_comm *w = s->world;
    spl_status status = spli_ok();
    stage *t;
    SPL_TRY(stage_make(s, peer, key, bytes, &t));
    t->sending = 1;
    if (bytes > 0) {
        SPL_GO(w->backend->copy_out(w->backend_ctx, w->queue, t->buffer->bytes, p, bytes), fail);
        SPL_GO(mark(s, t), fail);
    } else {
        SPL_GO(travel(s, t), fail);
    }
    h->pointer = t;
    return spli_ok();
fail:
    buffer_give(&s->lost, t->buffer);
    free(t);
    return status;
}

static spl_status staged_irecv(void *ctx, int peer, const spli_p2p_key *key, void *p, size_t bytes,
                               spli_p2p_handle *h) {
    spli_staging *s = ctx;
    stage *t;
    SPL_TRY(stage_make(s, peer, key, bytes, &t));
    t->device = p;
    spl_status status = travel(s, t);
    if (status.code == SPL_OK) {
        h->pointer = t;
        return status;
    }
    buffer_give(&s->spare, t->buffer);
    free(t);
    return status;
}

static void stage_end(spli_staging *s, stage *t, spli_p2p_handle *h) {
    buffer_give(&s->spare, t->buffer);
    free(t);
    h->pointer = NULL;
}

static spl_status staged_test(void *ctx, spli_p2p_handle *h, int *done) {
    spli_staging *s = ctx;
    const spl_comm *w = s->world;
    stage *t = h->pointer;
    int over = 0;
    *done = 0;
    if (t->travelling) {
        SPL_TRY(s->under->test(s->under_ctx, &t->handle, &over));
        if (!over) return spli_ok();
        t->travelling = 0;
        if (t->sending || t->bytes == 0) {
            stage_end(s, t, h);
            *done = 1;
            return spli_ok();
        }
        SPL_TRY(w->backend->copy_in(w->backend_ctx, w->queue, t->device, t->buffer->bytes, t->bytes));
        SPL_TRY(mark(s, t));
    }
    SPL_TRY(w->backend->event_test(w->backend_ctx, t->buffer->event, &over));
    if (!over) return spli_ok();
    if (t->sending) return travel(s, t);
    stage_end(s, t, h);
    *done = 1;
    return spli_ok();
}

static void staged_cancel(void *ctx, spli_p2p_handle *h) {
    spli_staging *s = ctx;
    stage *t = h->pointer;
    if (!t) return;
    if (t->travelling) s->under->cancel(s->under_ctx, &t->handle);
    buffer_give(&s->lost, t->buffer);
    free(t);
    h->pointer = NULL;
}

static const spli_p2p_ops staged_p2p = {staged_isend, staged_irecv, staged_test, staged_cancel};

spl_status spli_staging_open(spl_comm *world) {
    spli_pairwise *e = ((spli_pairwise_comm *)world)->engine;
    if (!e->p2p) return spli_ok(); /* one rank: nothing travels */
    spli_staging *s = calloc(1, sizeof *s);
    if (!s) return spli_error(SPL_ENOMEM, "out of memory while opening communication");
    *s = (spli_staging){.under = e->p2p, .under_ctx = e->ctx, .world = world};
    e->staging = s;
    e->p2p = &staged_p2p;
    e->ctx = s;
    if (e->message_limit > PIECE) e->message_limit = PIECE;
    return spli_ok();
}

void spli_staging_close(spl_comm *world) {
    spli_pairwise *e = ((spli_pairwise_comm *)world)->engine;
    spli_staging *s = e->staging;
    if (!s) return;
    for (buffer **list = &s->spare;; list = &s->lost) {
        while (*list) {
            buffer *b = *list;
            *list = b->next;
            buffer_free(s, b);
        }
        if (list == &s->lost) break;
    }
    e->p2p = s->under;
    e->ctx = s->under_ctx;
    e->staging = NULL;
    free(s);
}
