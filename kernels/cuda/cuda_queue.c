/* cuda_queue.c: streams, events, copies between host and device, and lists of arguments on their way to kernels. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

static spl_status open_parts(splk_cuda *c, spl_queue *q) {
    void *p;
    SPLK_TRY(cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        SPLK_TRY(cudaEventCreateWithFlags(&q->ring_passed[i], cudaEventDisableTiming));
        SPLK_TRY(cudaEventCreateWithFlags(&q->bounce_passed[i], cudaEventDisableTiming));
    }
    SPLK_TRY(cudaMallocHost(&p, 2 * SPLK_RING_HALF));
    q->ring_host = p;
    SPLK_TRY(cudaMallocHost(&p, 2 * SPLK_BOUNCE_HALF));
    q->bounce = p;
    SPL_TRY(splk_cuda_scratch_take(c, 2 * SPLK_RING_HALF, &p));
    q->ring_device = p;
    return spli_ok();
}

spl_status splk_cuda_queue_open(void *ctx, spl_queue **out) {
    splk_cuda *c = ctx;
    *out = NULL;
    spl_queue *q = calloc(1, sizeof *q);
    if (!q) return spli_error(SPL_ENOMEM, "no memory for a queue of the cuda backend");
    q->next = c->queues;
    c->queues = q;
    spl_status status = open_parts(c, q);
    if (status.code == SPL_OK) *out = q;
    else splk_cuda_queue_close(ctx, q);
    return status;
}

void splk_cuda_queue_close(void *ctx, spl_queue *q) {
    splk_cuda *c = ctx;
    if (q->stream) (void)cudaStreamSynchronize(q->stream);
    splk_cuda_scratch_give(c, q->ring_device, 2 * SPLK_RING_HALF);
    (void)cudaFreeHost(q->ring_host);
    (void)cudaFreeHost(q->bounce);
    for (int i = 0; i < 2; i++) {
        if (q->ring_passed[i]) (void)cudaEventDestroy(q->ring_passed[i]);
        if (q->bounce_passed[i]) (void)cudaEventDestroy(q->bounce_passed[i]);
    }
    if (q->stream) (void)cudaStreamDestroy(q->stream);
    for (spl_queue **at = &c->queues; *at; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            break;
        }
    free(q);
}

spl_status splk_cuda_event_open(void *ctx, spl_event **out) {
    (void)ctx;
    spl_event *e = *out = calloc(1, sizeof *e);
    if (!e) return spli_error(SPL_ENOMEM, "no memory for an event of the cuda backend");
    cudaError_t error = cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming);
    if (error == cudaSuccess) return spli_ok();
    free(e);
    *out = NULL;
    return splk_cuda_error(error, "cudaEventCreateWithFlags");
}

void splk_cuda_event_close(void *ctx, spl_event *e) {
    (void)ctx;
    if (e) (void)cudaEventDestroy(e->event);
    free(e);
}

spl_status splk_cuda_event_record(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx;
    SPLK_TRY(cudaEventRecord(e->event, q->stream));
    e->recorded = 1;
    return spli_ok();
}

spl_status splk_cuda_event_wait(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx;
    if (e->recorded) SPLK_TRY(cudaStreamWaitEvent(q->stream, e->event, 0));
    return spli_ok();
}

spl_status splk_cuda_event_test(void *ctx, spl_event *e, int *done) {
    (void)ctx;
    cudaError_t error = e->recorded ? cudaEventQuery(e->event) : cudaSuccess;
    *done = error == cudaSuccess;
    if (error == cudaSuccess || error == cudaErrorNotReady) return spli_ok();
    return splk_cuda_error(error, "cudaEventQuery");
}

/* ---------------------------------------------------------------- copies */

static int is_pinned(const splk_cuda *c, const void *p, size_t bytes) {
    for (const splk_block *b = c->host_blocks; b; b = b->next)
        if ((const char *)p >= (const char *)b->p && (const char *)p + bytes <= (const char *)b->p + b->bytes) return 1;
    return 0;
}

/* The half of the bounce buffer whose turn it is, when the stream has passed its last use. */
static spl_status take_bounce(spl_queue *q, int *half) {
    *half = q->bounce_half;
    q->bounce_half ^= 1;
    if (q->bounce_waits[*half]) SPLK_TRY(cudaEventSynchronize(q->bounce_passed[*half]));
    q->bounce_waits[*half] = 0;
    return spli_ok();
}

spl_status splk_cuda_copy_in(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) return spli_ok();
    if (is_pinned(ctx, src, bytes)) {
        SPLK_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, q->stream));
        return spli_ok();
    }
    for (size_t at = 0; at < bytes; at += SPLK_BOUNCE_HALF) {
        size_t n = bytes - at < SPLK_BOUNCE_HALF ? bytes - at : SPLK_BOUNCE_HALF;
        int half;
        SPL_TRY(take_bounce(q, &half));
        char *bounce = q->bounce + half * SPLK_BOUNCE_HALF;
        memcpy(bounce, (const char *)src + at, n);
        SPLK_TRY(cudaMemcpyAsync((char *)dst + at, bounce, n, cudaMemcpyHostToDevice, q->stream));
        SPLK_TRY(cudaEventRecord(q->bounce_passed[half], q->stream));
        q->bounce_waits[half] = 1;
    }
    return spli_ok();
}

/* Into pageable memory the host has to copy itself, so it waits: while a piece is copied, the next one travels. */
spl_status splk_cuda_copy_out(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) return spli_ok();
    if (is_pinned(ctx, dst, bytes)) {
        SPLK_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, q->stream));
        return spli_ok();
    }
    char *late = NULL;
    const char *late_bounce = NULL;
    size_t late_n = 0;
    int late_half = 0;
    for (size_t at = 0; at < bytes || late; at += SPLK_BOUNCE_HALF) {
        char *now = NULL, *bounce = NULL;
        size_t n = 0;
        int half = 0;
        if (at < bytes) {
            n = bytes - at < SPLK_BOUNCE_HALF ? bytes - at : SPLK_BOUNCE_HALF;
            now = (char *)dst + at;
            SPL_TRY(take_bounce(q, &half));
            bounce = q->bounce + half * SPLK_BOUNCE_HALF;
            SPLK_TRY(cudaMemcpyAsync(bounce, (const char *)src + at, n, cudaMemcpyDeviceToHost, q->stream));
            SPLK_TRY(cudaEventRecord(q->bounce_passed[half], q->stream));
            q->bounce_waits[half] = 1;
        }
        if (late) {
            SPLK_TRY(cudaEventSynchronize(q->bounce_passed[late_half]));
            memcpy(late, late_bounce, late_n);
        }
        late = now, late_bounce = bounce, late_n = n, late_half = half;
    }
    return spli_ok();
}

/* ---------------------------------------------------------------- lists */

static spl_status turn_ring(spl_queue *q) {
    SPLK_TRY(cudaEventRecord(q->ring_passed[q->ring_half], q->stream));
    q->ring_waits[q->ring_half] = 1;
    q->ring_half ^= 1;
    q->ring_used = 0;
    if (q->ring_waits[q->ring_half]) SPLK_TRY(cudaEventSynchronize(q->ring_passed[q->ring_half]));
    q->ring_waits[q->ring_half] = 0;
    return spli_ok();
}

spl_status splk_cuda_list(splk_cuda *c, spl_queue *q, const void *host, size_t bytes, const void **device) {
    *device = NULL;
    if (bytes == 0) return spli_ok();
    if (bytes > SPLK_RING_HALF) { /* long lists are rare: a block of their own, which goes back behind its reader */
        void *p;
        SPL_TRY(splk_cuda_scratch_take(c, bytes, &p));
        spl_status status = splk_cuda_copy_in(c, q, p, host, bytes);
        splk_cuda_scratch_give(c, p, bytes);
        *device = p;
        return status;
    }
    size_t size = (bytes + 63) / 64 * 64;
    if (q->ring_used + size > SPLK_RING_HALF) SPL_TRY(turn_ring(q));
    size_t at = (size_t)q->ring_half * SPLK_RING_HALF + q->ring_used;
    q->ring_used += size;
    memcpy(q->ring_host + at, host, bytes);
    SPLK_TRY(cudaMemcpyAsync(q->ring_device + at, q->ring_host + at, bytes, cudaMemcpyHostToDevice, q->stream));
    *device = q->ring_device + at;
    return spli_ok();
}
