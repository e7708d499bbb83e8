/* cpu_memory.c: memory, scratch, queues, events and copies of the CPU backend. Queues complete at once, so that
 * queues and events carry no state. */
#include "cpu.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

struct spl_queue {
    char unused;
};

struct spl_event {
    char unused;
};

static spl_status take(size_t bytes, void **ptr) {
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *ptr = rounded < bytes ? NULL : aligned_alloc(ALIGNMENT, rounded > 0 ? rounded : ALIGNMENT);
    if (*ptr) return spli_ok();
    return spli_error(SPL_ENOMEM, "no memory for %zu bytes on the cpu backend; use smaller sizes or more ranks",
                      bytes);
}

/* Large blocks ask for huge pages: 512 times fewer page faults, and products of matrices miss fewer translations. */
spl_status splk_cpu_alloc(void *ctx, size_t bytes, void **ptr) {
    (void)ctx;
#ifdef MADV_HUGEPAGE
    if (bytes >= 2 * (size_t)HUGE_PAGE && bytes <= PTRDIFF_MAX) {
        *ptr = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
        if (*ptr) {
            madvise(*ptr, bytes, MADV_HUGEPAGE); /* advice: small pages do as well */
            return spli_ok();
        }
    }
#endif
    return take(bytes, ptr);
}

void splk_cpu_free(void *ctx, void *ptr, size_t bytes) {
    (void)ctx, (void)bytes;
    free(ptr);
}

spl_status splk_scratch_take(splk_cpu *c, int64_t count, int64_t bytes, int64_t *stride, void **out) {
    int64_t rounded, total;
    *out = NULL;
    if (bytes < 0 || bytes > INT64_MAX - ALIGNMENT ||
        (rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, !splk_mul(count, rounded, &total)))
        return spli_error(SPL_ENOMEM, "scratch of %lld parts of %lld bytes does not fit memory", (long long)count,
                          (long long)bytes);
    SPL_TRY(take((size_t)total, out));
    *stride = rounded;
    c->workspace_now += total;
    if (c->workspace_now > c->workspace_peak) c->workspace_peak = c->workspace_now;
    return spli_ok();
}

void splk_scratch_give(splk_cpu *c, int64_t count, int64_t stride, void *p) {
    if (!p) return;
    c->workspace_now -= count * stride;
    free(p);
}

int64_t splk_cpu_workspace_peak(void *ctx, int reset) {
    splk_cpu *c = ctx;
    int64_t peak = c->workspace_peak;
    if (reset) c->workspace_peak = c->workspace_now;
    return peak;
}

spl_status splk_cpu_queue_open(void *ctx, spl_queue **q) {
    (void)ctx;
    *q = calloc(1, sizeof **q);
    if (!*q) return spli_error(SPL_ENOMEM, "no memory for a queue of %zu bytes on the cpu backend", sizeof **q);
    return spli_ok();
}

void splk_cpu_queue_close(void *ctx, spl_queue *q) {
    (void)ctx;
    free(q);
}

spl_status splk_cpu_event_open(void *ctx, spl_event **e) {
    (void)ctx;
    *e = calloc(1, sizeof **e);
    if (!*e) return spli_error(SPL_ENOMEM, "no memory for an event of %zu bytes on the cpu backend", sizeof **e);
    return spli_ok();
}

void splk_cpu_event_close(void *ctx, spl_event *e) {
    (void)ctx;
    free(e);
}

spl_status splk_cpu_event_record(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx, (void)q, (void)e;
    return spli_ok();
}

spl_status splk_cpu_event_wait(void *ctx, spl_queue *q, spl_event *e) {
    (void)ctx, (void)q, (void)e;
    return spli_ok();
}

spl_status splk_cpu_event_test(void *ctx, spl_event *e, int *done) {
    (void)ctx, (void)e;
    *done = 1;
    return spli_ok();
}

spl_status splk_cpu_copy(void *ctx, spl_queue *q, void *dst, const void *src, size_t bytes) {
    (void)ctx, (void)q;
    if (bytes > 0 && dst != src) memcpy(dst, src, bytes);
    return spli_ok();
}
