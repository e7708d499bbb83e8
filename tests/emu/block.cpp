/* block.cpp: runs one block of a kernel at a time, each of its threads on a fiber. A thread runs until it must wait for
 * others (a barrier, a warp operation) or ends; which goes next is forward, reverse or random (SPL_EMU_ORDER). Found
 * here: threads that wait at different barriers, lanes that are missing from a warp operation, shared memory that is
 * read before it is written (it is filled with 0xff, NaN in every float type), and threads that cannot go on. */
#include "emu.h"
#include "twins.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#define EMU_UCONTEXT
#include <ucontext.h>
#endif

#ifndef EMU_UCONTEXT
extern "C" void emu_swap(void **save, void *load);
asm(".text\n.globl emu_swap\n.hidden emu_swap\n.type emu_swap,@function\nemu_swap:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size emu_swap,.-emu_swap\n");
#endif

namespace emu {

Lane *lane;
Block block;

enum State { READY, AT_BARRIER, IN_WARP, ENDED };
enum { MOST_COPIES = 256, MOST_MASKS = 8, SHARED_LIMIT = 227 * 1024, RED = 512 };

struct Copy { void *to; const void *from; bool have; int group; };

/* The lanes of one mask that meet in a warp operation. */
struct Meeting {
    unsigned mask, arrived;
    int turn;
    const char *what, *file;
    int line;
    char order[2];
    alignas(16) unsigned char slot[2][32][SLOT];
};

struct Thread : Lane {
    State state;
    const char *what, *file; /* where it waits */
    int line;
    Meeting *meeting;
    void *sp;
    unsigned char *stack;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
    void *fake_stack, *tsan;
    Copy copies[MOST_COPIES]; /* under way: a ring, since a fiber must not allocate (ThreadSanitizer sees it) */
    int first_copy, end_copy, group;
};

struct Warp { int meetings; Meeting meeting[MOST_MASKS]; };

static std::vector<std::unique_ptr<Thread>> threads;
static std::vector<std::unique_ptr<Warp>> warps;
static struct { int arrived; unsigned turn; const char *file; int line; char order[2]; } at_barrier;
static int count, live;
static const std::function<void()> *body;
static const char *kernel;
static void *main_sp;
[[maybe_unused]] static void *main_fake, *main_tsan;
[[maybe_unused]] static const void *main_bottom;
[[maybe_unused]] static size_t main_size;
#ifdef EMU_UCONTEXT
static ucontext_t main_context;
#endif
[[maybe_unused]] static char grid_order;
static const size_t STACK = 256 << 10;
static std::vector<unsigned char> shared_memory;

const char *where() {
    static char text[256];
    text[0] = 0;
    if (kernel) {
        int n = snprintf(text, sizeof text, " [kernel %.120s, block %u", kernel, block.index.x);
        if (lane) n += snprintf(text + n, sizeof text - (size_t)n, ", thread %u", lane->index.x);
        snprintf(text + n, sizeof text - (size_t)n, "]");
    }
    return text;
}

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "cuda-emu: ");
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "%s\n", where());
    abort();
}

/* ---- fibers ---- */

static Thread *self() { return static_cast<Thread *>(lane); }

static void to_main(Thread *t, bool last) {
    (void)last;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(last ? nullptr : &t->fake_stack, main_bottom, main_size);
#endif
    EMU_TS(__tsan_switch_to_fiber(main_tsan, 1);)
#ifdef EMU_UCONTEXT
    swapcontext(&t->context, &main_context);
#else
    emu_swap(&t->sp, main_sp);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(t->fake_stack, &main_bottom, &main_size);
#endif
}

static void open_barrier() {
    at_barrier.arrived = 0;
    at_barrier.turn++;
    for (int i = 0; i < count; i++)
        if (threads[(size_t)i]->state == AT_BARRIER) threads[(size_t)i]->state = READY;
}

static void entry() {
    Thread *t = self();
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_size);
#endif
    (*body)();
    t = self();
    if (t->first_copy != t->end_copy)
        die("a thread ends while %d of its cp.async are under way", t->end_copy - t->first_copy);
    EMU_TS(__tsan_release(&grid_order);)
    t->state = ENDED;
    live--;
    if (at_barrier.arrived && at_barrier.arrived >= live) open_barrier(); /* those that ended count no longer */
    to_main(t, true);
    abort();
}

static void resume(Thread *t) {
    lane = t;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&main_fake, t->stack, STACK);
#endif
    EMU_TS(__tsan_switch_to_fiber(t->tsan, 1);)
#ifdef EMU_UCONTEXT
    swapcontext(&main_context, &t->context);
#else
    emu_swap(&main_sp, t->sp);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(main_fake, nullptr, nullptr);
#endif
    lane = nullptr;
}

static void start(Thread *t, int i) {
    const dim3 b = block.size;
    const unsigned n = (unsigned)i;
    t->index = {n % b.x, n / b.x % b.y, n / (b.x * b.y)};
    t->lane = i % 32;
    t->warp = i / 32;
    t->state = READY;
    t->fake_stack = nullptr;
    t->group = t->first_copy = t->end_copy = 0;
    if (!t->stack) {
        void *p = mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                       0);
        if (p == MAP_FAILED) die("no memory for the stack of a fiber");
        mprotect(p, 4096, PROT_NONE);
        t->stack = (unsigned char *)p + 4096;
    }
    EMU_UNPOISON(t->stack, STACK);
#ifdef EMU_UCONTEXT
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK;
    t->context.uc_link = nullptr;
    makecontext(&t->context, entry, 0);
#else
    void **s = (void **)(void *)(t->stack + STACK);
    *--s = nullptr;
    *--s = (void *)entry;
    for (int k = 0; k < 6; k++) *--s = nullptr;
    t->sp = s;
#endif
    EMU_TS(__tsan_java_alloc((unsigned long)t->stack + STACK - 32768, 32768); t->tsan = __tsan_create_fiber(0);)
}

/* ---- blocks ---- */

__attribute__((no_sanitize("address"))) static void spoil(unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++) ((volatile unsigned char *)p)[i] = 0xff;
}

static void stuck() {
    fprintf(stderr, "cuda-emu: no thread can go on; waiting:\n");
    const char *file = nullptr;
    int line = -1, shown = 0;
    for (int i = 0; i < count && shown < 8; i++) {
        Thread *t = threads[(size_t)i].get();
        if (t->state == ENDED || (t->file == file && t->line == line)) continue;
        fprintf(stderr, "  from thread %u on: %s at %s:%d\n", t->index.x, t->what, t->file, t->line);
        file = t->file, line = t->line, shown++;
    }
    die("%d of %d threads are blocked", live, count);
}

static void run_block() {
    count = live = (int)(block.size.x * block.size.y * block.size.z);
    while ((int)threads.size() < count) threads.emplace_back(new Thread());
    while (warps.size() < (size_t)(count + 31) / 32) warps.emplace_back(new Warp());
    for (auto &w : warps) {
        w->meetings = 0;
        for (auto &m : w->meeting) m.arrived = 0;
    }
    at_barrier.arrived = 0;
    spoil(block.shared, block.shared_bytes);
    EMU_TS(if (block.shared_bytes) __tsan_java_alloc((unsigned long)block.shared, (block.shared_bytes + 7) & ~7ul);)
    std::vector<int> turn((size_t)count);
    for (int i = 0; i < count; i++) {
        start(threads[(size_t)i].get(), i);
        turn[(size_t)i] = settings().order == 1 ? count - 1 - i : i;
    }
    while (live) {
        bool any = false;
        if (settings().order == 2)
            for (int i = count - 1; i > 0; i--) std::swap(turn[(size_t)i], turn[draw() % (uint32_t)(i + 1)]);
        for (int i : turn)
            if (threads[(size_t)i]->state == READY) {
                any = true;
                resume(threads[(size_t)i].get());
            }
        if (!any && live) stuck();
    }
    EMU_TS(for (int i = 0; i < count; i++) __tsan_destroy_fiber(threads[(size_t)i]->tsan);)
}

void run_grid(const char *name, dim3 grid, dim3 size, size_t shared, const std::function<void()> &f) {
    const char *outer = kernel;
    kernel = name;
    body = &f;
    EMU_TS(static bool once; if (!once) {
        static char heap[64] __attribute__((aligned(64)));
        once = true;
        __tsan_java_init((unsigned long)heap, sizeof heap);
    })
    shared_memory.assign(shared + 2048, 0);
    block.size = size;
    block.grid = grid;
    block.shared = (unsigned char *)(((uintptr_t)shared_memory.data() + 1023) & ~(uintptr_t)1023);
    block.shared_bytes = shared;
    EMU_POISON(block.shared + ((shared + 7) & ~(size_t)7), RED);
    EMU_TS(main_tsan = __tsan_get_current_fiber();)
    for (unsigned k = 0; k < grid.x; k++) {
        block.index = {settings().order == 1 ? grid.x - 1 - k : k, 0, 0};
        run_block();
    }
    EMU_TS(__tsan_acquire(&grid_order);)
    EMU_UNPOISON(shared_memory.data(), shared_memory.size());
    kernel = outer;
}

void launch(cudaStream_t s, const char *name, dim3 grid, dim3 size, size_t shared, std::function<void()> f) {
    if (size.x * size.y * size.z == 0 || size.x * size.y * size.z > 1024 || grid.x == 0 || grid.x > 0x7fffffffu ||
        grid.y != 1 || grid.z != 1)
        die("%s is launched with %u blocks (x %u x %u) of %u threads", name, grid.x, grid.y, grid.z, size.x);
    if (shared > SHARED_LIMIT) die("%s is launched with %zu bytes of shared memory", name, shared);
    enqueue(s, name, [=] {
        run_grid(name, grid, size, shared, f);
        return true;
    });
}

/* ---- waiting for each other ---- */

static void wait_in(State state, const char *what, const char *file, int line) {
    Thread *t = self();
    t->state = state;
    t->what = what;
    t->file = file;
    t->line = line;
    while (t->state != READY) to_main(t, false);
}

void barrier(const char *file, int line) {
    [[maybe_unused]] const unsigned turn = at_barrier.turn;
    if (at_barrier.arrived == 0) {
        at_barrier.file = file;
        at_barrier.line = line;
    } else if (at_barrier.line != line || at_barrier.file != file) {
        die("a divergent barrier: this thread is at %s:%d, others wait at %s:%d", file, line, at_barrier.file,
            at_barrier.line);
    }
    EMU_TS(__tsan_release(&at_barrier.order[turn & 1]);)
    if (++at_barrier.arrived >= live) open_barrier();
    else wait_in(AT_BARRIER, "__syncthreads", file, line);
    EMU_TS(__tsan_acquire(&at_barrier.order[turn & 1]);)
}

static Meeting *meeting_of(unsigned mask) {
    Warp &w = *warps[(size_t)lane->warp];
    for (int i = 0; i < w.meetings; i++)
        if (w.meeting[i].mask == mask) return &w.meeting[i];
    int i = w.meetings;
    if (i < MOST_MASKS) w.meetings++;
    else for (i = 0; i < MOST_MASKS && w.meeting[i].arrived; i++) {}
    if (i == MOST_MASKS) die("more than %d masks wait in one warp", MOST_MASKS);
    w.meeting[i].mask = mask;
    return &w.meeting[i];
}

const unsigned char *exchange(unsigned mask, const void *mine, size_t n, const char *what, const char *file, int line) {
    Thread *t = self();
    if (!(mask >> t->lane & 1))
        die("%s at %s:%d: lane %d is not in its own mask %08x", what, file, line, t->lane, mask);
    unsigned wanted = 0; /* lanes of the mask that exist; one that has ended would be waited for in vain */
    for (int i = 0; i < 32; i++) {
        const int k = t->warp * 32 + i;
        if (!(mask >> i & 1) || k >= count) continue;
        if (threads[(size_t)k]->state == ENDED)
            die("%s at %s:%d: lane %d of the mask %08x has ended", what, file, line, i, mask);
        wanted |= 1u << i;
    }
    for (auto &other : warps[(size_t)t->warp]->meeting)
        if (other.arrived && other.mask != mask && (other.mask & mask))
            die("%s at %s:%d with mask %08x while lanes wait in %s at %s:%d with mask %08x", what, file, line, mask,
                other.what, other.file, other.line, other.mask);
    Meeting *m = meeting_of(mask);
    const int k = m->turn & 1;
    if (!m->arrived) {
        m->what = what;
        m->file = file;
        m->line = line;
        spoil(&m->slot[k][0][0], sizeof m->slot[k]);
    } else if (m->line != line || m->file != file) {
        die("a warp diverges: %s at %s:%d while lanes of mask %08x wait in %s at %s:%d", what, file, line, mask,
            m->what, m->file, m->line);
    }
    for (size_t i = 0; i < n; i++)
        ((volatile unsigned char *)m->slot[k][t->lane])[i] = ((const unsigned char *)mine)[i];
    m->arrived |= 1u << t->lane;
    if ((m->arrived & wanted) == wanted) {
        m->arrived = 0;
        m->turn++;
        for (int i = t->warp * 32; i < t->warp * 32 + 32 && i < count; i++)
            if (threads[(size_t)i]->state == IN_WARP && threads[(size_t)i]->meeting == m)
                threads[(size_t)i]->state = READY;
    } else {
        t->meeting = m;
        wait_in(IN_WARP, what, file, line);
    }
    return &m->slot[k][0][0];
}

/* ---- cp.async ---- */

void copy_wait(int groups) {
    Thread *t = self();
    while (t->first_copy != t->end_copy && t->copies[t->first_copy % MOST_COPIES].group < t->group - groups) {
        Copy c = t->copies[t->first_copy++ % MOST_COPIES];
        EMU_TS(__tsan_write16(c.to); if (c.have) __tsan_read16((void *)c.from);)
        if (c.have) memcpy(c.to, c.from, 16);
        else memset(c.to, 0, 16);
    }
}

static void copy_begin(void *to, const void *from, bool have, const char *file, int line) {
    Thread *t = self();
    unsigned char *p = (unsigned char *)to;
    if (((uintptr_t)to | (have ? (uintptr_t)from : 0)) & 15)
        die("cp.async at %s:%d: %p from %p is not on 16-byte boundaries", file, line, to, from);
    if (p < block.shared || p + 16 > block.shared + block.shared_bytes)
        die("cp.async at %s:%d: the destination is outside shared memory", file, line);
    if (have) check_device(from, 16, "cp.async");
    EMU_TS(__tsan_write16(to);)
    memset(to, 0xff, 16); /* who reads before the wait gets NaN */
    if (t->end_copy - t->first_copy == MOST_COPIES) die("more than %d cp.async are under way in a thread", MOST_COPIES);
    t->copies[t->end_copy++ % MOST_COPIES] = {to, from, have, t->group};
}

static void copy_commit() { self()->group++; }

/* ---- matrices ---- */

float element(uint32_t pair, int high, __nv_bfloat16) {
    return __bfloat162float({(uint16_t)(high ? pair >> 16 : pair)});
}
float element(uint32_t pair, int high, __half) { return __half2float({(uint16_t)(high ? pair >> 16 : pair)}); }

void ldmatrix(uint32_t r[4], const void *row, bool trans, const char *file, int line) {
    if ((uintptr_t)row & 15) die("ldmatrix at %s:%d: a row at %p is not on a 16-byte boundary", file, line, row);
    EMU_TS(__tsan_read16((void *)row);)
    const unsigned char *all = exchange(~0u, &row, sizeof row, "ldmatrix", file, line);
    for (int m = 0; m < 4; m++) {
        uint16_t two[2];
        for (int i = 0; i < 2; i++) {
            int from_row = lane->lane / 4, column = 2 * (lane->lane % 4) + i;
            if (trans) std::swap(from_row, column);
            const uint16_t *p;
            memcpy(&p, all + (m * 8 + from_row) * SLOT, sizeof p);
            memcpy(&two[i], p + column, 2);
        }
        r[m] = two[0] | (uint32_t)two[1] << 16;
    }
}

/* ---- votes ---- */

static void sync_warp(unsigned mask, const char *file, int line) {
    EMU_TS(Meeting *m = meeting_of(mask); char *order = &m->order[m->turn & 1]; __tsan_release(order);)
    exchange(mask, "", 0, "__syncwarp", file, line); /* a shuffle orders no memory, this does */
    EMU_TS(__tsan_acquire(order);)
}

static unsigned ballot(unsigned mask, int p, const char *file, int line) {
    unsigned char mine = p != 0;
    const unsigned char *all = exchange(mask, &mine, 1, "a vote", file, line);
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && all[i * SLOT] == 1) r |= 1u << i;
    return r;
}
}

void __syncwarp(unsigned mask, const char *file, int line) { emu::sync_warp(mask, file, line); }
unsigned __ballot_sync(unsigned mask, int p, const char *file, int line) { return emu::ballot(mask, p, file, line); }
void splk_copy16(void *to, const void *from, int have, const char *file, int line) {
    emu::copy_begin(to, from, have != 0, file, line);
}
void splk_copy_commit() { emu::copy_commit(); }
