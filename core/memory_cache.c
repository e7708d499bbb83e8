/* memory_cache.c: memory given back is kept, by size class, for the next request.
 *
 * A forward pass asks for the same sizes again and again; taking them from the system each time costs a page fault per
 * 4 KiB, and on a device a synchronisation. Classes are eight to an octave, so at most an eighth is wasted. What is in
 * use and what is kept together never exceed what was in use at the peak: keeping costs no memory that the program did
 * not need anyway.
 *
 * Ordered with the compute queue: everything in core is taken for, and given back after, work on that queue, and a
 * communication that uses it is waited for before it is given back. So the next user's work comes after the last one's.
 */
#include "memory_cache.h"
#include <stdlib.h>

enum { STEPS = 8, OCTAVES = 48, SMALLEST = 1 << 16 };

typedef struct kept {
    struct kept *next;
    void *p;
} kept;

struct spli_cache {
    kept *lists[OCTAVES * STEPS];
    int64_t held, live, live_peak; /* in bytes of the classes */
};

/* The class of a size: its index, and the bytes it really takes. -1: too small or too large to be worth keeping. */
static int class_of(size_t bytes, size_t *rounded) {
    *rounded = bytes;
    if (bytes < SMALLEST) return -1;
    int octave = 63 - __builtin_clzll((unsigned long long)bytes);
    size_t step = ((size_t)1 << octave) / STEPS;
    size_t above = (bytes - ((size_t)1 << octave) + step - 1) / step;
    int index = octave * STEPS + (int)above; /* above == STEPS is the first class of the next octave */
    if (index >= OCTAVES * STEPS) return -1;
    *rounded = ((size_t)1 << octave) + above * step;
    return index;
}

/* Sanitizers and memory checkers must see each block end; the environment can ask for that too. */
static int wanted(const spl_runtime *rt) {
#if defined(__SANITIZE_ADDRESS__)
    (void)rt;
    return 0;
#else
    const char *choice = getenv("SPL_MEMORY_CACHE");
    return rt->backend->has_memory && !(choice && choice[0] == '0');
#endif
}

static spli_cache *cache_of(spl_runtime *rt) {
    if (!rt->cache && !rt->cache_off) {
        rt->cache_off = !wanted(rt);
        if (!rt->cache_off) rt->cache = calloc(1, sizeof *rt->cache); /* without memory for it, it is not there */
    }
    return rt->cache;
}

spl_status spli_cache_take(spl_runtime *rt, size_t bytes, void **out) {
    size_t rounded;
    int class = class_of(bytes, &rounded);
    spli_cache *c = class >= 0 ? cache_of(rt) : NULL;
    if (!c) {
        spl_status status = rt->backend->alloc(rt->backend_ctx, bytes, out);
        if (status.code != SPL_ENOMEM || !rt->cache || rt->cache->held == 0) return status;
        spli_cache_flush(rt);
        return rt->backend->alloc(rt->backend_ctx, bytes, out);
    }
    kept *k = c->lists[class];
    if (k) {
        c->lists[class] = k->next;
        *out = k->p;
        free(k);
        c->held -= (int64_t)rounded;
    } else {
        spl_status status = rt->backend->alloc(rt->backend_ctx, rounded, out);
        if (status.code == SPL_ENOMEM && c->held > 0) {
            spli_cache_flush(rt);
            status = rt->backend->alloc(rt->backend_ctx, rounded, out);
        }
        SPL_TRY(status);
    }
    c->live += (int64_t)rounded;
    if (c->live > c->live_peak) c->live_peak = c->live;
    return spli_ok();
}

/* Gives kept blocks of other classes back until `bytes` more may be kept. */
static void make_room(spl_runtime *rt, int64_t bytes) {
    spli_cache *c = rt->cache;
    for (int i = OCTAVES * STEPS - 1; i >= 0 && c->held > 0 && c->live + c->held + bytes > c->live_peak; i--) {
        size_t rounded = ((size_t)1 << (i / STEPS)) + (size_t)(i % STEPS) * (((size_t)1 << (i / STEPS)) / STEPS);
        while (c->lists[i] && c->live + c->held + bytes > c->live_peak) {
            kept *k = c->lists[i];
            c->lists[i] = k->next;
            rt->backend->free(rt->backend_ctx, k->p, rounded);
            c->held -= (int64_t)rounded;
            free(k);
        }
    }
}

void spli_cache_give(spl_runtime *rt, void *p, size_t bytes) {
    size_t rounded;
    int class = class_of(bytes, &rounded);
    spli_cache *c = class >= 0 ? rt->cache : NULL;
    if (!c) {
        rt->backend->free(rt->backend_ctx, p, bytes);
        return;
    }
    c->live -= (int64_t)rounded;
    if (c->live + c->held + (int64_t)rounded > c->live_peak) make_room(rt, (int64_t)rounded);
    kept *k = malloc(sizeof *k);
    if (!k) {
        rt->backend->free(rt->backend_ctx, p, rounded);
        return;
    }
    *k = (kept){c->lists[class], p};
    c->lists[class] = k;
    c->held += (int64_t)rounded;
}

void spli_cache_flush(spl_runtime *rt) {
    if (!rt->cache) return;
    int64_t peak = rt->cache->live_peak;
    rt->cache->live_peak = INT64_MIN;
    make_room(rt, 0);
    rt->cache->live_peak = peak;
}

int64_t spli_cache_held(const spl_runtime *rt) { return rt->cache ? rt->cache->held : 0; }

void spli_cache_close(spl_runtime *rt) {
    spli_cache_flush(rt);
    free(rt->cache);
    rt->cache = NULL;
}
