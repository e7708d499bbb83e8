/* faults_test.cpp: the emulator must find what it is for: each fault is planted in a child process, in a kernel or in
 * host code, and must end it with the right sentence, spoil its result in some order of threads or streams, or, in a
 * build with a sanitizer, be reported by that. The same code without the fault must run through. */
#include "twins.h"
#include <cstdio>
#include <cstdlib>
#include <cublasLt.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

/* ---- kernels, with a fault or without ---- */

static void barrier_kernel(float *out, int fault) { /* each thread reads what its neighbour wrote */
    SPLK_SHARED(shared);
    float *s = (float *)(void *)shared;
    const unsigned t = threadIdx.x;
    s[t] = (float)t;
    if (!fault) __syncthreads();
    out[t] = s[t ^ 33];
}

static void divergent_kernel(float *out, int fault) {
    if (fault && threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = (float)(threadIdx.x ^ 33);
}

static void shuffle_kernel(float *out, int fault) {
    float x = (float)(threadIdx.x ^ 32);
    if (!fault || threadIdx.x != 5) x = __shfl_xor_sync(0xffffffffu, x, 1);
    __syncthreads();
    out[threadIdx.x] = x;
}

static void shared_kernel(float *out, int fault) { /* one element past the end of shared memory */
    SPLK_SHARED(shared);
    float *s = (float *)(void *)shared;
    s[threadIdx.x + (fault ? 1 : 0)] = 0;
    out[threadIdx.x] = (float)(threadIdx.x ^ 33);
}

static void global_kernel(float *out, int fault) { /* one element past the end of device memory */
    out[threadIdx.x] = (float)(threadIdx.x ^ 33);
    if (fault && threadIdx.x == 63) out[64] = 0;
}

static void copy_kernel(float *out, const float *in, int fault) { /* cp.async that nobody waits for */
    SPLK_SHARED(shared);
    float *s = (float *)(void *)shared;
    if (threadIdx.x < 16) splk_copy16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, 1);
    splk_copy_commit();
    if (fault != 1) splk_copy_wait<0>();
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
    if (fault == 1) splk_copy_wait<0>();
}

static void unfinished_kernel(float *out, const float *in, int fault) {
    SPLK_SHARED(shared);
    if (threadIdx.x == 0) splk_copy16(shared, in, 1);
    splk_copy_commit();
    if (!fault) splk_copy_wait<0>();
    out[threadIdx.x] = (float)(threadIdx.x ^ 33);
}

static void matrix_kernel(float *out, int fault) { /* rows of ldmatrix that are not on boundaries */
    SPLK_SHARED(shared);
    uint32_t r[4];
    for (int i = 0; i < 16; i++) shared[threadIdx.x * 16 + (unsigned)i] = 0;
    __syncthreads();
    splk_ldmatrix(r, shared + threadIdx.x % 32 * 16 + (fault ? 2 : 0));
    out[threadIdx.x] = (float)(threadIdx.x ^ 33) + (float)r[0];
}

static void scale_kernel(float *x, float by) { x[threadIdx.x] *= by; }

/* ---- host code ---- */

struct World {
    cudaStream_t s, other;
    cudaEvent_t e;
    float *out, *in, *host;
};

static World open() {
    World w;
    cudaStreamCreateWithFlags(&w.s, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&w.other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&w.e, cudaEventDisableTiming);
    cudaMalloc((void **)&w.out, 64 * 4);
    cudaMalloc((void **)&w.in, 64 * 4);
    cudaMallocHost((void **)&w.host, 64 * 4);
    for (int i = 0; i < 64; i++) w.host[i] = (float)(i ^ 33);
    cudaMemcpyAsync(w.in, w.host, 64 * 4, cudaMemcpyHostToDevice, w.s);
    cudaStreamSynchronize(w.s);
    return w;
}

/* 0 when out holds i ^ 33; `factor` times that where asked. */
static int finish(World &w, float factor = 1) {
    cudaMemcpyAsync(w.host, w.out, 64 * 4, cudaMemcpyDeviceToHost, w.s);
    cudaStreamSynchronize(w.s);
    for (int i = 0; i < 64; i++)
        if (w.host[i] != factor * (float)(i ^ 33)) return 3;
    cudaFree(w.out); /* looks at what lies behind it */
    return 0;
}

static int kernel(void (*k)(float *, int), int fault) {
    World w = open();
    SPLK_LAUNCH(k, 1, 64, 64 * sizeof(float) * 4, w.s, w.out, fault);
    return finish(w);
}
static int barrier(int fault) {
    World w = open();
    SPLK_LAUNCH(barrier_kernel, 1, 64, 64 * sizeof(float), w.s, w.out, fault);
    return finish(w);
}
static int divergent(int fault) { return kernel(divergent_kernel, fault); }
static int lane_missing(int fault) {
    World w = open();
    SPLK_LAUNCH(shuffle_kernel, 1, 64, 0, w.s, w.out, fault);
    return finish(w);
}
static int shared_overrun(int fault) {
    World w = open();
    SPLK_LAUNCH(shared_kernel, 1, 64, 64 * sizeof(float), w.s, w.out, fault);
    return finish(w);
}
static int global_overrun(int fault) { return kernel(global_kernel, fault); }
static int copy_unwaited(int fault) {
    World w = open();
    SPLK_LAUNCH(copy_kernel, 1, 64, 64 * sizeof(float), w.s, w.out, w.in, fault);
    return finish(w);
}
static int copy_unfinished(int fault) {
    World w = open();
    SPLK_LAUNCH(unfinished_kernel, 1, 64, 64, w.s, w.out, w.in, fault);
    return finish(w);
}
static int matrix_misaligned(int fault) { return kernel(matrix_kernel, fault); }

static int host_touches(int fault) {
    World w = open();
    if (fault) *(volatile float *)w.in = 1;
    cudaMemcpyAsync(w.out, w.in, 64 * 4, cudaMemcpyDeviceToDevice, w.s);
    return finish(w);
}

static int freed_memory(int fault) {
    World w = open();
    if (fault) cudaFree(w.in);
    cudaMemcpyAsync(w.out, w.in, 64 * 4, cudaMemcpyDeviceToDevice, w.s);
    return finish(w);
}

static int wait_missing(int fault) { /* the other stream's work is not waited for */
    World w = open();
    cudaMemcpyAsync(w.out, w.in, 64 * 4, cudaMemcpyDeviceToDevice, w.other);
    SPLK_LAUNCH(scale_kernel, 1, 64, 0, w.other, w.out, 2.0f);
    cudaEventRecord(w.e, w.other);
    if (!fault) cudaStreamWaitEvent(w.s, w.e, 0);
    SPLK_LAUNCH(scale_kernel, 1, 64, 0, w.s, w.out, 3.0f);
    int result = finish(w, 6);
    cudaStreamSynchronize(w.other);
    return result;
}

static int reused_early(int fault) { /* pinned memory that a copy still reads is written */
    World w = open();
    cudaMemcpyAsync(w.out, w.host, 64 * 4, cudaMemcpyHostToDevice, w.s);
    if (!fault) cudaStreamSynchronize(w.s);
    for (int i = 0; i < 64; i++) w.host[i] = -1;
    return finish(w);
}

static int read_early(int fault) { /* a result is read before it is there */
    World w = open();
    memset(w.host, 0, 64 * 4);
    cudaMemcpyAsync(w.host, w.in, 64 * 4, cudaMemcpyDeviceToHost, w.s);
    if (!fault) cudaStreamSynchronize(w.s);
    const float got = w.host[7];
    cudaStreamSynchronize(w.s);
    return got == (float)(7 ^ 33) ? 0 : 3;
}

static int pageable(int fault) {
    static float plain[64];
    World w = open();
    cudaMemcpyAsync(w.out, fault ? plain : w.host, 64 * 4, cudaMemcpyHostToDevice, w.s);
    return finish(w);
}

static int wrong_kind(int fault) {
    World w = open();
    cudaMemcpyAsync(w.out, w.in, 64 * 4, fault ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, w.s);
    return finish(w);
}

static int leading_dimension(int fault) { /* 8 x 8, whose columns are said to be 9 apart */
    World w = open();
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t l, far;
    const float one = 1, zero = 0;
    cublasLtCreate(&h);
    cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 8, 8, 8);
    cublasLtMatrixLayoutCreate(&far, CUDA_R_32F, 8, 8, fault ? 9 : 8);
    cublasLtMatmulAlgo_t algo = {};
    cublasStatus_t s =
        cublasLtMatmul(h, d, &one, w.in, far, w.in, l, &zero, w.out, l, w.out, l, &algo, nullptr, 0, w.s);
    cudaStreamSynchronize(w.s);
    return s == CUBLAS_STATUS_SUCCESS ? 0 : 3;
}

/* ---- running them ---- */

#if defined(__SANITIZE_ADDRESS__)
static const bool address = true, races = false;
#elif defined(EMU_TSAN)
static const bool address = false, races = true;
#else
static const bool address = false, races = false;
#endif

struct Outcome { int code; std::string text; };

static Outcome run(int (*f)(int), int fault, const char *mode, const char *order) {
    int p[2];
    fflush(stdout);
    if (pipe(p) != 0) exit(1);
    const pid_t child = fork();
    if (child == 0) {
        dup2(p[1], 2);
        close(p[0]);
        setenv("SPL_EMU_MODE", mode, 1);
        setenv("SPL_EMU_ORDER", order, 1);
        exit(f(fault)); /* not _exit: a sanitizer sets the code */
    }
    close(p[1]);
    Outcome o;
    char bytes[4096];
    for (ssize_t n; (n = read(p[0], bytes, sizeof bytes)) > 0;) o.text.append(bytes, (size_t)n);
    close(p[0]);
    int status = 0;
    waitpid(child, &status, 0);
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return o;
}

/* How a fault shows: the process is stopped with a sentence; its result is wrong in some order; or a sanitizer, which
 * only some builds have, reports it. */
enum Shows { STOPS, SPOILS, ADDRESS };

static const struct {
    const char *name;
    int (*f)(int);
    Shows shows;
    const char *sentence;
    bool race; /* ThreadSanitizer sees it too */
} faults[] = {
    {"a barrier is missing", barrier, SPOILS, "", true},
    {"a barrier that threads reach at two places", divergent, STOPS, "divergent barrier", false},
    {"a lane is missing from a shuffle", lane_missing, STOPS, "while lanes wait in __shfl_xor_sync|no thread can go on",
     false},
    {"shared memory is overrun", shared_overrun, ADDRESS, "use-after-poison|heap-buffer-overflow", false},
    {"device memory is overrun", global_overrun, STOPS, "past the end of an allocation|use-after-poison", false},
    {"cp.async is read before its wait", copy_unwaited, SPOILS, "", false},
    {"a thread ends with a cp.async under way", copy_unfinished, STOPS, "cp.async are under way", false},
    {"rows of ldmatrix are misaligned", matrix_misaligned, STOPS, "16-byte boundary|misaligned", false},
    {"the host touches device memory", host_touches, STOPS, "host code touches device memory|SEGV", false},
    {"device memory is used after it was freed", freed_memory, STOPS, "was freed", false},
    {"a wait between streams is missing", wait_missing, SPOILS, "", true},
    {"a buffer is written while a copy reads it", reused_early, SPOILS, "", true},
    {"a result is read before it is there", read_early, SPOILS, "", true},
    {"a copy of pageable memory", pageable, STOPS, "are not pinned", false},
    {"a copy of the wrong kind", wrong_kind, STOPS, "says host|no address of device memory", false},
    {"a wrong leading dimension", leading_dimension, STOPS, "past an allocation", false},
};

static bool says(const std::string &text, const char *sentences) { /* one of several, separated by | */
    std::string all = sentences;
    for (size_t at = 0; at <= all.size();) {
        size_t end = all.find('|', at);
        if (end == std::string::npos) end = all.size();
        if (end > at && text.find(all.substr(at, end - at)) != std::string::npos) return true;
        at = end + 1;
    }
    return false;
}

int main() {
    static const char *const modes[] = {"lazy", "eager", "random"}, *const orders[] = {"forward", "reverse", "random"};
    int n = 0, failed = 0;
    for (auto &fault : faults) {
        if (fault.shows == ADDRESS && !address) continue;
        bool clean = true, found = false, race = false;
        std::string text;
        for (int i = 0; i < 3; i++) {
            const Outcome well = run(fault.f, 0, modes[i], orders[i]), ill = run(fault.f, 1, modes[i], orders[i]);
            clean &= well.code == 0;
            race |= says(ill.text, "data race");
            found |= ill.code != 0 && (fault.shows == SPOILS ? ill.code == 3 || race : says(ill.text, fault.sentence));
            text += (well.code ? well.text : "") + ill.text;
        }
        bool good = clean && (races && fault.race ? race : found);
        printf("%sok %d - %s: %s\n", good ? "" : "not ", ++n, fault.name, clean ? "found" : "well without it");
        if (!good) {
            printf("# %.1500s\n", text.c_str());
            failed++;
        }
    }
    printf("1..%d\n", n);
    return failed != 0;
}
