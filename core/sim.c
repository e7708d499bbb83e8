/* sim.c: ranks as fibers: stacks, switching, and the order in which ranks run. */
#define _GNU_SOURCE
#include "sim.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifdef SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

typedef struct fiber {
    ucontext_t context;
    void *stack;
    int finished;
    void *fake_stack; /* of the address sanitizer */
} fiber;

struct spl_sim {
    unsigned long turns;
    int size, running; /* rank whose fiber runs now; -1: spl_sim_run itself */
    size_t stack_bytes;
    fiber *fibers;
    ucontext_t home;
    void *home_fake_stack;
    const void *home_stack;
    size_t home_stack_bytes;
    int aborted, exit_code;
    void (*rank_main)(void *ctx, int rank);
    void *ctx;
    void *shared;
    void (*drop_shared)(void *shared);
};

spl_status spl_sim_create(int ranks, spl_sim **out) {
    *out = NULL;
    if (ranks < 1 || ranks > 4096)
        return spli_error(SPL_EUSAGE, "%d virtual ranks were asked for; 1 to 4096 are possible", ranks);
    spl_sim *s = calloc(1, sizeof *s);
    if (s) s->fibers = calloc((size_t)ranks, sizeof *s->fibers);
    if (!s || !s->fibers) {
        free(s);
        return spli_error(SPL_ENOMEM, "out of memory while making %d virtual ranks", ranks);
    }
    s->size = ranks;
    s->running = -1;
    *out = s;
    return spli_ok();
}

void spl_sim_release(spl_sim *s) {
    if (!s) return;
    if (s->drop_shared) s->drop_shared(s->shared);
    for (int r = 0; r < s->size; r++)
        if (s->fibers[r].stack) munmap(s->fibers[r].stack, s->stack_bytes);
    free(s->fibers);
    free(s);
}

void spl_sim_give_way(spl_sim *s) { spli_sim_yield(s); }

unsigned long spl_sim_turn(const spl_sim *s, int *running) {
    *running = s->running;
    return s->turns;
}

int spli_sim_size(const spl_sim *s) { return s->size; }

void **spli_sim_shared(spl_sim *s, void (*drop)(void *shared)) {
    s->drop_shared = drop;
    return &s->shared;
}

/* ---- switching; the sanitizer is told, since it follows stacks ---- */

static void arrive(spl_sim *s, void *fake_stack) {
#ifdef SANITIZED
    const void *from;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &from, &bytes);
    if (!s->home_stack) { /* the first arrival comes from home */
        s->home_stack = from;
        s->home_stack_bytes = bytes;
    }
#else
    (void)s, (void)fake_stack;
#endif
}

static void to_fiber(spl_sim *s, ucontext_t *from, void **fake_stack, int rank) {
    s->running = rank;
    s->turns++;
#ifdef SANITIZED
    __sanitizer_start_switch_fiber(fake_stack, s->fibers[rank].stack, s->stack_bytes);
#else
    (void)fake_stack;
#endif
    swapcontext(from, &s->fibers[rank].context);
}

static void to_home(spl_sim *s, ucontext_t *from, void **fake_stack) {
    s->running = -1;
#ifdef SANITIZED
    __sanitizer_start_switch_fiber(fake_stack, s->home_stack, s->home_stack_bytes);
#else
    (void)fake_stack;
#endif
    swapcontext(from, &s->home);
}

/* The next rank after `rank` that has not finished, or -1. May be `rank` itself. */
static int next_rank(const spl_sim *s, int rank) {
    for (int i = 1; i <= s->size; i++)
        if (!s->fibers[(rank + i) % s->size].finished) return (rank + i) % s->size;
    return -1;
}

void spli_sim_yield(spl_sim *s) {
    int me = s->running, next = next_rank(s, me);
    if (me < 0 || next == me) return;
    fiber *f = &s->fibers[me];
    to_fiber(s, &f->context, &f->fake_stack, next);
    arrive(s, f->fake_stack);
}

void spli_sim_abort(spl_sim *s, int exit_code) {
    s->aborted = 1;
    s->exit_code = exit_code;
    fiber *f = &s->fibers[s->running];
    for (;;) to_home(s, &f->context, &f->fake_stack); /* nobody comes back here */
}

/* makecontext passes ints only, so the pointer comes in two halves. */
static void fiber_main(unsigned high, unsigned low) {
    spl_sim *s = (spl_sim *)((uintptr_t)high << 32 | low);
    arrive(s, NULL);
    int me = s->running;
    s->rank_main(s->ctx, me);
    fiber *f = &s->fibers[me];
    f->finished = 1;
    int next = next_rank(s, me);
    void **gone = NULL; /* this stack's fake frames go with it */
    if (next >= 0) to_fiber(s, &f->context, gone, next);
    else to_home(s, &f->context, gone);
}

/* Apart from the loop over ranks: getcontext returns twice as far as the compiler knows, and would spoil its
 * counter. */
static void make_context(spl_sim *s, fiber *f, size_t guard) {
    getcontext(&f->context);
    f->context.uc_stack = (stack_t){.ss_sp = (char *)f->stack + guard, .ss_size = s->stack_bytes - guard};
    f->context.uc_link = NULL;
    makecontext(&f->context, (void (*)(void))fiber_main, 2, (unsigned)((uintptr_t)s >> 32), (unsigned)(uintptr_t)s);
}

static spl_status make_stacks(spl_sim *s, size_t stack_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    s->stack_bytes = (stack_bytes + 2 * page - 1) / page * page;
    for (int r = 0; r < s->size; r++) {
        void *stack =
            mmap(NULL, s->stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED)
            return spli_error(SPL_ENOMEM, "out of memory for the stacks of %d virtual ranks", s->size);
        s->fibers[r].stack = stack;
        mprotect(stack, page, PROT_NONE); /* stacks grow down: an overflow faults instead of spoiling a neighbour */
        make_context(s, &s->fibers[r], page);
    }
    return spli_ok();
}

spl_status spl_sim_run(spl_sim *s, size_t stack_bytes, void (*rank_main)(void *ctx, int rank), void *ctx,
                       int *exit_code) {
    SPL_TRY(make_stacks(s, stack_bytes ? stack_bytes : (size_t)2 << 20));
    s->rank_main = rank_main;
    s->ctx = ctx;
    to_fiber(s, &s->home, &s->home_fake_stack, 0);
#ifdef SANITIZED
    __sanitizer_finish_switch_fiber(s->home_fake_stack, NULL, NULL);
#endif
    if (exit_code) *exit_code = s->exit_code;
    return spli_ok();
}
