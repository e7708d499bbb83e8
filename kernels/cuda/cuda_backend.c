/* cuda_backend.c: the table of the CUDA backend, its opening on a device, and the plugin that brings it. */
#include "cuda.h"
#include "comm_nccl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which of a host's ranks this is, from the launcher's environment; the rank itself where nobody says. */
static int local_rank(int rank) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK",
                                        "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && *text) return atoi(text);
    }
    return rank;
}

static spl_status find_device(int rank, int *device, struct cudaDeviceProp *p) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        int hidden = visible && e != cudaErrorInsufficientDriver;
        return spli_error_native(SPL_EENV, (long)e, "no GPU for the cuda backend: %s%s%s%s; --backend cpu needs none",
                                 e == cudaSuccess ? "no device was found" : cudaGetErrorString(e),
                                 hidden ? " (CUDA_VISIBLE_DEVICES is '" : "", hidden ? visible : "",
                                 hidden ? "')" : "");
    }
    *device = local_rank(rank) % n;
    SPLK_TRY(cudaGetDeviceProperties(p, *device));
    if (p->major >= SPLK_NEEDS_MAJOR) return spli_ok();
    return spli_error(SPL_EENV,
                      "GPU %d (%s) has compute capability %d.%d; the cuda backend needs %d.0 or newer (A100, H100, "
                      "...); --backend cpu needs none",
                      *device, p->name, p->major, p->minor, SPLK_NEEDS_MAJOR);
}

static void cuda_close(void *ctx) {
    splk_cuda *c = ctx;
    if (!c) return;
    splk_cuda_forget_plans(c);
    if (c->blas) (void)cublasLtDestroy(c->blas);
    splk_cuda_scratch_give(c, c->workspace, c->workspace_bytes);
    while (c->queues) splk_cuda_queue_close(c, c->queues);
    while (c->host_blocks) splk_cuda_host_free(c, c->host_blocks->p);
    splk_cuda_drop_kept(c);
    free(c);
}

static spl_status open_parts(splk_cuda *c, int rank) {
    struct cudaDeviceProp p;
    const char *keep = getenv("SPL_MEMORY_CACHE");
    char bus[32] = "?";
    int driver = 0;
    SPL_TRY(find_device(rank, &c->device, &p));
    SPLK_TRY(cudaSetDevice(c->device));
    cublasStatus_t s = cublasLtCreate(&c->blas);
    if (s != CUBLAS_STATUS_SUCCESS)
        return spli_error_native(SPL_EENV, (long)s, "cuBLASLt does not start (status %d); is its library that of CUDA?",
                                 (int)s);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaDeviceGetPCIBusId(bus, sizeof bus, c->device);
    c->cached = !(keep && keep[0] == '0');
    snprintf(c->description, sizeof c->description,
             "cuda: GPU %d, %.100s (%d.%d, %d multiprocessors, %.0f GiB, %s), driver for CUDA %d.%d", c->device, p.name,
             p.major, p.minor, p.multiProcessorCount, (double)p.totalGlobalMem / (1024.0 * 1024.0 * 1024.0), bus,
             driver / 1000, driver % 1000 / 10);
    return spli_ok();
}

static spl_status cuda_open(int rank, int nthreads, void **ctx) {
    *ctx = NULL;
    if (nthreads < 1) return spli_error(SPL_EARG, "the cuda backend needs at least 1 thread, got %d", nthreads);
    splk_cuda *c = calloc(1, sizeof *c);
    if (!c) return spli_error(SPL_ENOMEM, "no memory for the context of the cuda backend");
    spl_status status = open_parts(c, rank);
    if (status.code == SPL_OK) *ctx = c;
    else cuda_close(c);
    return status;
}

static const char *cuda_describe(void *ctx) { return ((const splk_cuda *)ctx)->description; }

static const char *cuda_kernels(void *ctx) {
    (void)ctx;
    return "gemm: cuBLASLt, bias and tanh-GELU in its epilogue; a plain kernel where it has no algorithm\n"
           "attention: bf16 and f16 up to head_dim 128: mma.sync m16n8k16, cp.async; else on ordinary units\n"
           "others: one CUDA kernel each";
}

static spl_status cuda_device_id(void *ctx, char *out, size_t n) {
    char host[128] = "", bus[32] = "";
    gethostname(host, sizeof host - 1);
    SPLK_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, ((const splk_cuda *)ctx)->device));
    snprintf(out, n, "%s %s", host, bus);
    return spli_ok();
}

#ifndef SPLK_CUDA_NAME
#define SPLK_CUDA_NAME "cuda" /* "cuda-emu" when it is built against the emulator */
#endif

static const spl_backend_ops cuda_backend = {
    .abi = SPL_BACKEND_ABI,
    .name = SPLK_CUDA_NAME,
    .is_reference = 0,
    .has_memory = 1,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .kernels = cuda_kernels,
    .alloc = splk_cuda_alloc,
    .free = splk_cuda_free,
    .queue_open = splk_cuda_queue_open,
    .queue_close = splk_cuda_queue_close,
    .event_open = splk_cuda_event_open,
    .event_close = splk_cuda_event_close,
    .event_record = splk_cuda_event_record,
    .event_wait = splk_cuda_event_wait,
    .event_test = splk_cuda_event_test,
    .copy_in = splk_cuda_copy_in,
    .copy_out = splk_cuda_copy_out,
    .box = splk_cuda_box,
    .zero = splk_cuda_zero,
    .cast = splk_cuda_cast,
    .sum = splk_cuda_sum,
    .fill = splk_cuda_fill,
    .random = splk_cuda_random,
    .stats = splk_cuda_stats,
    .gemm = splk_cuda_gemm,
    .norm = splk_cuda_norm,
    .act = splk_cuda_act,
    .residual = splk_cuda_residual,
    .rope = splk_cuda_rope,
    .embed = splk_cuda_embed,
    .nll = splk_cuda_nll,
    .attention = splk_cuda_attention,
    .pool = splk_cuda_pool,
    .workspace_peak = splk_cuda_workspace_peak,
    .device_memory = 1,
    .host_alloc = splk_cuda_host_alloc,
    .host_free = splk_cuda_host_free,
};

const spl_plugin splk_plugin = {
    .abi = SPL_BACKEND_ABI, .backend = &cuda_backend, .device_id = cuda_device_id, .comm_open = splk_comm_nccl_open};
