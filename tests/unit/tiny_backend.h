/* tiny_backend.h: the least that communication needs of a backend, for its own tests, apart from kernels/.
 *
 * With `lazy` work on a queue does not happen when it is queued, but bit by bit while events are tested, as on a
 * device: so a collective that reads a result too early fails. Memory that is given back is overwritten. The sum writes
 * its result first and then adds, so a result that overwrites one of its terms is wrong. */
#ifndef TINY_BACKEND_H
#define TINY_BACKEND_H
#include "backend.h"
#include <stdlib.h>
#include <string.h>

enum { TINY_MAX_SOURCES = 64, TINY_MAX_PENDING = 4096 };

typedef struct tiny_work {
    int is_sum, nsrcs;
    void *dst;
    const void *srcs[TINY_MAX_SOURCES];
    int64_t n;
    spl_dtype t;
} tiny_work;

typedef struct tiny { /* one rank's backend */
    int lazy;
    long queued, done, tests;
    int64_t bytes_now, bytes_peak;
    int open_events;
    tiny_work work[TINY_MAX_PENDING];
} tiny;

static inline void tiny_do(const tiny_work *w) {
    if (!w->is_sum) {
        memmove(w->dst, w->srcs[0], (size_t)w->n * spl_dtype_size(w->t));
        return;
    }
    if (w->nsrcs > 0) memmove(w->dst, w->srcs[0], (size_t)w->n * spl_dtype_size(w->t));
    for (int s = 1; s < w->nsrcs; s++)
        for (int64_t i = 0; i < w->n; i++) {
            switch (w->t) {
            case SPL_F64:
                ((double *)w->dst)[i] += ((const double *)w->srcs[s])[i];
                break;
            case SPL_F32:
                ((float *)w->dst)[i] += ((const float *)w->srcs[s])[i];
                break;
            case SPL_I64:
                ((int64_t *)w->dst)[i] += ((const int64_t *)w->srcs[s])[i];
                break;
            default:
                ((unsigned char *)w->dst)[i] += ((const unsigned char *)w->srcs[s])[i];
                break;
            }
        }
}

static inline spl_status tiny_queue(tiny *b, const tiny_work *w) {
    if (!b->lazy) {
        tiny_do(w);
        return spli_ok();
    }
    if (b->queued - b->done == TINY_MAX_PENDING) return spli_error(SPL_EINTERNAL, "the test's queue is full");
    b->work[b->queued++ % TINY_MAX_PENDING] = *w;
    return spli_ok();
}

static inline spl_status tiny_open(int rank, int nthreads, void **ctx) {
    (void)rank, (void)nthreads;
    *ctx = calloc(1, sizeof(tiny));
    return *ctx ? spli_ok() : spli_error(SPL_ENOMEM, "no memory for a test backend");
}

static inline void tiny_close(void *ctx) { free(ctx); }
static inline const char *tiny_describe(void *ctx) { return (void)ctx, "tiny: for tests"; }

static inline spl_status tiny_alloc(void *ctx, size_t bytes, void **p) {
    tiny *b = ctx;
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!*p) return spli_error(SPL_ENOMEM, "no memory");
    memset(*p, 0xA5, bytes);
    b->bytes_now += (int64_t)bytes;
    if (b->bytes_now > b->bytes_peak) b->bytes_peak = b->bytes_now;
    return spli_ok();
}

static inline void tiny_free(void *ctx, void *p, size_t bytes) {
    tiny *b = ctx;
    memset(p, 0x5A, bytes);
    free(p);
    b->bytes_now -= (int64_t)bytes;
}

static inline spl_status tiny_queue_open(void *ctx, spl_queue **q) {
    *q = (spl_queue *)ctx;
    return spli_ok();
}
static inline void tiny_queue_close(void *ctx, spl_queue *q) { (void)ctx, (void)q; }

static inline spl_status tiny_event_open(void *ctx, spl_event **e) {
    *e = calloc(1, sizeof(long));
    if (!*e) return spli_error(SPL_ENOMEM, "no memory");
    ((tiny *)ctx)->open_events++;
    return spli_ok();
}
static inline void tiny_event_close(void *ctx, spl_event *e) {
    free(e);
    ((tiny *)ctx)->open_events--;
}
static inline spl_status tiny_event_record(void *ctx, spl_queue *q, spl_event *e) {
    (void)q;
    *(long *)(void *)e = ((tiny *)ctx)->queued;
    return spli_ok();
}
static inline spl_status tiny_event_wait(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx, (void)q, (void)e;
    return spli_ok();
}
static inline spl_status tiny_event_test(void *ctx, spl_event *e, int *done) {
    tiny *b = ctx;
    *done = b->done >= *(long *)(void *)e;
    if (!*done && ++b->tests % 3 == 0) {
        tiny_do(&b->work[b->done % TINY_MAX_PENDING]);
        b->done++;
    }
    return spli_ok();
}

static inline spl_status tiny_box(void *ctx, spl_queue *q, const spl_box_args *a) {
    (void)q;
    if (a->ndim != 1 || a->add || a->dst_strides[0] != 1 || a->src_strides[0] != 1)
        return spli_error(SPL_EINTERNAL, "communication copies dense runs only");
    tiny_work w = {.nsrcs = 1, .dst = a->dst, .n = a->shape[0], .t = a->dtype};
    w.srcs[0] = a->src;
    return tiny_queue(ctx, &w);
}

static inline spl_status tiny_sum(void *ctx, spl_queue *q, void *dst, const void *const *srcs, int nsrcs, int64_t n,
                                  spl_dtype t) {
    (void)q;
    tiny_work w = {.is_sum = 1, .nsrcs = nsrcs, .dst = dst, .n = n, .t = t};
    if (nsrcs > TINY_MAX_SOURCES) return spli_error(SPL_EINTERNAL, "too many sources for the test backend");
    memcpy(w.srcs, srcs, sizeof *srcs * (size_t)nsrcs);
    return tiny_queue(ctx, &w);
}

#define TINY_BACKEND                                                                                                   \
    {.abi = SPL_BACKEND_ABI,                                                                                           \
     .name = "tiny",                                                                                                   \
     .has_memory = 1,                                                                                                  \
     .open = tiny_open,                                                                                                \
     .close = tiny_close,                                                                                              \
     .describe = tiny_describe,                                                                                        \
     .alloc = tiny_alloc,                                                                                              \
     .free = tiny_free,                                                                                                \
     .queue_open = tiny_queue_open,                                                                                    \
     .queue_close = tiny_queue_close,                                                                                  \
     .event_open = tiny_event_open,                                                                                    \
     .event_close = tiny_event_close,                                                                                  \
     .event_record = tiny_event_record,                                                                                \
     .event_wait = tiny_event_wait,                                                                                    \
     .event_test = tiny_event_test,                                                                                    \
     .box = tiny_box,                                                                                                  \
     .sum = tiny_sum}
#endif
