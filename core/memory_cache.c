/* memory_cache.c: memory given back is kept, by size class, for the next request.
 *
 * A forward pass asks for the same sizes again and again; taking them from the system each time costs a page fault per
 * 4 KiB, and on a device a synchronisation. Classes are eight to an octave, so at most an eighth is wasted. What is in
 * use and what is kept are together at most twice what was in use at the peak: enough for the sizes of one half of a
 * block to survive the other half, where a bound of once the peak made each half throw the other's away. Beyond a
 * quarter of the rank's share of the machine that is too greedy, and the peak is the bound. What was kept longest goes
 * first; and all of it goes when memory is short (memory.c).
 *
 * Ordered with the compute queue: everything in core is taken for, and given back after, work on that queue, and a
 * communication that uses it is waited for before it is given back. So the next user's work comes after the last one's.
 */
#include "memory_cache.h"
#include <stdlib.h>
#include <sys/queue.h>

enum { STEPS = 8, OCTAVES = 48, SMALLEST = 1 << 16 };

typedef struct kept {
    LIST_ENTRY(kept) same; /* those of its class, the last given back first */
    TAILQ_ENTRY(kept) all; /* those of all classes, the last given back last */
    void *p;
    size_t bytes; /* of its class */
} kept;

struct spli_cache {
    LIST_HEAD(, kept) lists[OCTAVES * STEPS];
    TAILQ_HEAD(, kept) all;
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
        if (rt->cache) TAILQ_INIT(&rt->cache->all);
    }
    return rt->cache;
}

/* Takes a block out of the lists. */
static void *unkeep(spli_cache *c, kept *k) {
    void *p = k->p;
    LIST_REMOVE(k, same);
    TAILQ_REMOVE(&c->all, k, all);
    c->held -= (int64_t)k->bytes;
    free(k);
    return p;
}

static void now_live(spli_cache *c, size_t rounded) {
    c->live += (int64_t)rounded;
    if (c->live > c->live_peak) c->live_peak = c->live;
}

void *spli_cache_find(spl_runtime *rt, size_t bytes) {
    size_t rounded;
    int class = class_of(bytes, &rounded);
    spli_cache *c = class >= 0 ? cache_of(rt) : NULL;
    kept *k = c ? LIST_FIRST(&c->lists[class]) : NULL;
    if (!k) return NULL;
    now_live(c, rounded);
    return unkeep(c, k);
}

spl_status spli_cache_new(spl_runtime *rt, size_t bytes, void **out) {
    size_t rounded;
    spli_cache *c = class_of(bytes, &rounded) >= 0 ? cache_of(rt) : NULL;
    if (!c) rounded = bytes;
    spl_status status = rt->backend->alloc(rt->backend_ctx, rounded, out);
    if (status.code == SPL_ENOMEM && spli_cache_held(rt) > 0) {
        spli_cache_flush(rt);
        status = rt->backend->alloc(rt->backend_ctx, rounded, out);
    }
    if (status.code == SPL_OK && c) now_live(c, rounded);
    return status;
}

/* Gives back what was kept longest until held + live + bytes <= limit. */
static void make_room(spl_runtime *rt, int64_t bytes, int64_t limit) {
    spli_cache *c = rt->cache;
    while (c->held > 0 && c->live + c->held + bytes > limit) {
        kept *k = TAILQ_FIRST(&c->all);
        size_t rounded = k->bytes;
        rt->backend->free(rt->backend_ctx, unkeep(c, k), rounded);
    }
}

/* The most that may be in use and kept together. */
static int64_t limit_of(const spl_runtime *rt) {
    int64_t peak = rt->cache->live_peak, quarter = rt->memory_share / 4;
    if (rt->memory_share <= 0 || 2 * peak <= quarter) return 2 * peak;
    return peak > quarter ? peak : quarter;
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
    make_room(rt, (int64_t)rounded, limit_of(rt));
    kept *k = malloc(sizeof *k);
    if (!k) {
        rt->backend->free(rt->backend_ctx, p, rounded);
        return;
    }
    *k = (kept){.p = p, .bytes = rounded};
    LIST_INSERT_HEAD(&c->lists[class], k, same);
    TAILQ_INSERT_TAIL(&c->all, k, all);
    c->held += (int64_t)rounded;
}

void spli_cache_flush(spl_runtime *rt) {
    if (rt->cache) make_room(rt, 0, INT64_MIN);
}

int64_t spli_cache_held(const spl_runtime *rt) { return rt->cache ? rt->cache->held : 0; }

void spli_cache_close(spl_runtime *rt) {
    spli_cache_flush(rt);
    free(rt->cache);
    rt->cache = NULL;
}
