/* device.cpp: the CUDA runtime on the CPU: device memory, streams, events, copies.
 *
 * Device memory is a range of addresses that is mapped without access while host code runs and opened while device work
 * runs: a host that touches it is stopped. Addresses are not used twice, and what lies behind an allocation is guarded.
 * Work put into a stream runs when it must (SPL_EMU_MODE=lazy: only what somebody waits for, as late as it can), at
 * once (eager), or now and then (random, SPL_EMU_SEED). What must not differ between them is the result. */
#include "emu.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace emu {

/* ---- settings ---- */

Settings &settings() {
    static Settings s;
    static bool read;
    if (!read) {
        const char *mode = getenv("SPL_EMU_MODE"), *order = getenv("SPL_EMU_ORDER"), *seed = getenv("SPL_EMU_SEED");
        read = true;
        s.mode = !mode || !strcmp(mode, "lazy") ? LAZY : !strcmp(mode, "eager") ? EAGER : RANDOM;
        s.order = !order || !strcmp(order, "forward") ? 0 : !strcmp(order, "reverse") ? 1 : 2;
        s.seed = (seed ? (uint32_t)atoi(seed) : 1) * 2654435761u + 1;
    }
    return s;
}

uint32_t draw() {
    uint32_t &x = settings().seed;
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    return x;
}

/* ---- memory ---- */

static const size_t RANGE = (size_t)64 << 30, PAGE = 4096, RED = 512;
struct Allocation { size_t bytes; bool live; };
static char *memory; /* the range */
static size_t top, in_use;
static int open_depth, is_open;
static unsigned closings;
static std::map<size_t, Allocation> allocations; /* by offset */
static std::map<const char *, size_t> pinned;

static void on_fault(int, siginfo_t *info, void *) {
    char text[200];
    char *at = (char *)info->si_addr;
    const bool ours = memory && at >= memory && at < memory + RANGE;
    int n = snprintf(text, sizeof text, "cuda-emu: %s at %p\n",
                     ours ? "host code touches device memory" : "an address that is nobody's is used", (void *)at);
    (void)!write(2, text, (size_t)n);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void start() {
    if (memory) return;
    void *p = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("cannot reserve the range of device addresses");
    memory = (char *)p;
    top = PAGE;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}

static void protect(int access) {
    is_open = access != PROT_NONE;
    if (top > PAGE && mprotect(memory, (top + PAGE - 1) & ~(PAGE - 1), access) != 0)
        die("cannot change access to device memory");
}

/* Closing costs time for each page in use, so where many are, it is done now and then: who touches device memory from
 * the host does it again and again. */
enum { SMALL = 1 << 20, NOW_AND_THEN = 32 };

OnDevice::OnDevice() {
    start();
    if (open_depth++ == 0 && !is_open) protect(PROT_READ | PROT_WRITE);
}
OnDevice::~OnDevice() {
    if (--open_depth == 0 && (in_use < SMALL || ++closings % NOW_AND_THEN == 0)) protect(PROT_NONE);
}

bool is_device(const void *p) { return memory && (const char *)p >= memory && (const char *)p < memory + RANGE; }

void check_device(const void *p, size_t n, const char *what) {
    if (!is_device(p)) die("%s: %p is no address of device memory", what, p);
    const size_t at = (size_t)((const char *)p - memory);
    auto it = allocations.upper_bound(at);
    if (it == allocations.begin()) die("%s: %p is in no allocation", what, p);
    --it;
    if (at >= it->first + it->second.bytes) die("%s: %p is in no allocation", what, p);
    if (!it->second.live) die("%s: %p was freed", what, p);
    if (at + n > it->first + it->second.bytes)
        die("%s: %zu bytes at %p reach %zu past an allocation of %zu bytes", what, n, p,
            at + n - it->first - it->second.bytes, it->second.bytes);
}

/* ---- streams ---- */

struct Work {
    const char *name;
    std::function<bool()> poll;
    bool done = false;
    std::vector<std::shared_ptr<Work>> after;
    char begin = 0, end = 0; /* tokens for ThreadSanitizer */
};
typedef std::shared_ptr<Work> WorkPtr;

}

struct CUstream_st {
    std::deque<emu::WorkPtr> queue;
    void *fiber = nullptr;
    char order = 0;
    CUstream_st() { EMU_TS(fiber = __tsan_create_fiber(0);) }
};
struct CUevent_st {
    emu::WorkPtr work;
    int asked = 0;
};

namespace emu {

static std::vector<cudaStream_t> streams;

static cudaStream_t known(cudaStream_t s) {
    if (std::find(streams.begin(), streams.end(), s) == streams.end())
        die("stream %p is not one that was made and not destroyed", (void *)s);
    return s;
}

/* Tries the first work of a stream; true when it is done. */
static bool step(cudaStream_t s) {
    while (!s->queue.empty() && s->queue.front()->done) s->queue.pop_front();
    if (s->queue.empty()) return false;
    WorkPtr w = s->queue.front();
    for (auto &d : w->after)
        if (!d->done) return false;
    EMU_TS(static std::vector<WorkPtr> kept; kept.push_back(w); /* freeing it would look like a race */
           void *host = __tsan_get_current_fiber(); __tsan_switch_to_fiber(s->fiber, 1); __tsan_acquire(&w->begin);
           for (auto &d : w->after) __tsan_acquire(&d->end);)
    bool finished;
    {
        OnDevice open;
        finished = w->poll();
    }
    EMU_TS(if (finished) {
        __tsan_release(&w->end);
        __tsan_release(&s->order);
    } __tsan_switch_to_fiber(host, 1);)
    if (!finished) return false;
    w->done = true;
#ifndef EMU_TSAN
    w->poll = nullptr;
#endif
    s->queue.pop_front();
    return true;
}

static cudaStream_t holder(const WorkPtr &w) {
    for (auto s : streams)
        if (std::find(s->queue.begin(), s->queue.end(), w) != s->queue.end()) return s;
    return nullptr;
}

/* Runs what w needs, as far as that goes without waiting for another rank. */
static bool attempt(const WorkPtr &w) {
    while (!w->done) {
        cudaStream_t s = holder(w);
        if (!s) die("%s was lost", w->name);
        WorkPtr first = s->queue.front();
        for (auto &d : first->after)
            if (!d->done && !attempt(d)) return false;
        if (!step(s)) return false;
    }
    return true;
}

static double seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For calls of CUDA that block. Another rank may be what they wait for, and it may need this rank's other streams. */
static void demand(const WorkPtr &w) {
    const double begin = seconds();
    while (!attempt(w)) {
        if (seconds() - begin > 60) die("nothing moved for 60 s in %s", w->name);
        progress();
        sched_yield();
    }
}

void progress() {
    for (auto s : std::vector<cudaStream_t>(streams)) step(s);
}

static void now_and_then() {
    if (settings().mode != RANDOM || streams.empty()) return;
    for (uint32_t k = draw() % 4; k; k--) step(streams[draw() % streams.size()]);
}

static WorkPtr push(cudaStream_t s, const char *name, std::function<bool()> poll, WorkPtr after = nullptr) {
    WorkPtr w = std::make_shared<Work>();
    w->name = name;
    w->poll = std::move(poll);
    if (after) w->after.push_back(after);
    EMU_TS(__tsan_release(&w->begin);)
    known(s)->queue.push_back(w);
    if (settings().mode == EAGER) attempt(w);
    now_and_then();
    return w;
}

void enqueue(cudaStream_t s, const char *name, std::function<bool()> poll) { push(s, name, std::move(poll)); }

static void drain(cudaStream_t s) {
    if (!known(s)->queue.empty()) demand(WorkPtr(s->queue.back()));
    EMU_TS(__tsan_acquire(&s->order);)
}

static bool is_pinned(const void *p, size_t n) {
    auto it = pinned.upper_bound((const char *)p);
    return it != pinned.begin() && (--it, (const char *)p + n <= it->first + it->second);
}
}

using namespace emu;

extern "C" {

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *n) {
    const char *devices = getenv("SPL_EMU_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *driver = getenv("SPL_EMU_DRIVER");
    *n = 0;
    if (driver && !strcmp(driver, "none")) return cudaErrorInsufficientDriver;
    *n = devices ? atoi(devices) : 8;
    if (visible && (!*visible || *visible == '-')) *n = 0;
    return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static size_t memory_size() {
    const char *limit = getenv("SPL_EMU_MEMORY");
    return limit ? (size_t)atoll(limit) : (size_t)8 << 30;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int) {
    const char *capability = getenv("SPL_EMU_CAPABILITY");
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated GPU");
    p->totalGlobalMem = memory_size();
    p->major = 9;
    if (capability) sscanf(capability, "%d.%d", &p->major, &p->minor);
    p->multiProcessorCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int device) {
    snprintf(id, (size_t)n, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int d) {
    int n;
    cudaGetDeviceCount(&n);
    return d >= 0 && d < n ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDriverGetVersion(int *v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 13000, cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = memory_size();
    *available = *total > in_use ? *total - in_use : 0;
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t n) {
    start();
    *p = nullptr;
    if (n == 0) return cudaSuccess;
    if (n > memory_size() || in_use + n > memory_size() || top + n + RED + 256 > RANGE)
        return cudaErrorMemoryAllocation;
    const size_t at = top, end = (at + n + RED + 255) & ~(size_t)255;
    top = end;
    OnDevice open;
    protect(PROT_READ | PROT_WRITE); /* of what has been added too */
    allocations[at] = {n, true};
    in_use += n;
    memset(memory + at, 0xff, n < (1 << 20) ? n : 1 << 20); /* NaN; of the large ones, the beginning */
    memset(memory + at + n, 0xa5, end - at - n);
    EMU_POISON(memory + at + n, end - at - n);
    *p = memory + at;
    return cudaSuccess;
}

static void synchronize_all() {
    bool any = true;
    while (any) {
        any = false;
        for (auto s : std::vector<cudaStream_t>(streams)) {
            any |= !s->queue.empty();
            drain(s);
        }
    }
}

cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    synchronize_all();
    const size_t at = (size_t)((char *)p - memory);
    auto it = is_device(p) ? allocations.find(at) : allocations.end();
    if (it == allocations.end() || !it->second.live) die("cudaFree of %p, which is no live allocation", p);
    const size_t n = it->second.bytes, end = (at + n + RED + 255) & ~(size_t)255;
    OnDevice open;
    EMU_UNPOISON(memory + at + n, end - at - n);
    for (size_t i = at + n; i < end; i++)
        if ((unsigned char)memory[i] != 0xa5)
            die("device memory was written %zu bytes past the end of an allocation of %zu bytes", i - at - n, n);
    it->second.live = false;
    in_use -= n;
    EMU_POISON(memory + at, end - at);
    const size_t from = (at + PAGE - 1) & ~(PAGE - 1), to = (at + n) & ~(PAGE - 1);
    if (to > from) madvise(memory + from, to - from, MADV_DONTNEED);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t n) {
    *p = aligned_alloc(256, (n + 255) & ~(size_t)255);
    if (!*p) return cudaErrorMemoryAllocation;
    pinned[(char *)*p] = n;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p) {
    if (!p) return cudaSuccess;
    synchronize_all();
    if (!pinned.erase((const char *)p)) die("cudaFreeHost of %p, which cudaMallocHost did not give", p);
    free(p);
    return cudaSuccess;
}

static void check_side(const void *p, size_t n, bool device, const char *what) {
    if (device) check_device(p, n, what);
    else if (is_device(p)) die("%s: device memory where the kind of copy says host", what);
    else if (!is_pinned(p, n)) die("%s: %zu bytes at %p are not pinned, so the copy is not asynchronous", what, n, p);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
    start();
    if (n == 0) return cudaSuccess;
    check_side(to, n, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, "cudaMemcpyAsync to");
    check_side(from, n, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, "cudaMemcpyAsync from");
    push(s, "cudaMemcpyAsync", [=] {
        reads(from, n);
        writes(to, n);
        memcpy(to, from, n);
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
    if (n == 0) return cudaSuccess;
    check_device(p, n, "cudaMemsetAsync");
    push(s, "cudaMemsetAsync", [=] {
        writes(p, n);
        memset(p, value, n);
        return true;
    });
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    start();
    if (flags != cudaStreamNonBlocking) die("a stream that the legacy stream would block is asked for");
    streams.push_back(*s = new CUstream_st());
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    drain(s);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) { return drain(s), cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new CUevent_st(), cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    e->work = push(s, "an event", [] { return true; });
    e->asked = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    if (e->work) push(s, "a wait for an event", [] { return true; }, e->work);
    return cudaSuccess;
}

/* A device works on while nobody looks: whoever asks often enough sees the end. */
cudaError_t cudaEventQuery(cudaEvent_t e) {
    now_and_then();
    if (e->work && !e->work->done && (++e->asked < 3 || !attempt(e->work))) {
        if (e->asked > 100) progress();
        return cudaErrorNotReady;
    }
    EMU_TS(if (e->work) __tsan_acquire(&e->work->end);)
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (!e->work) return cudaSuccess;
    demand(e->work);
    EMU_TS(__tsan_acquire(&e->work->end);)
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value) {
    return value > 227 * 1024 ? cudaErrorInvalidValue : cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "an emulated CUDA error";
    }
}
}
