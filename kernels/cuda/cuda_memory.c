/* cuda_memory.c: device memory, pinned host memory, scratch, and what CUDA's errors mean.
 *
 * Memory given back is kept and handed out again without asking the driver, which would wait for the whole device. That
 * is right because of the order of the queue: whoever takes a block uses it behind what its last owner queued, and
 * communication that used it was waited for before it was given back. Where the device has no more, what is kept goes
 * back to the driver first. SPL_MEMORY_CACHE=0 keeps nothing, so that tools see each block end. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

enum { GRAIN = 512, LARGE = 1 << 20, LARGE_GRAIN = 128 << 10 };

spl_status splk_cuda_error(cudaError_t e, const char *what) {
    int call = (int)strcspn(what, "(");
    return spli_error_native(e == cudaErrorMemoryAllocation ? SPL_ENOMEM : SPL_EINTERNAL, (long)e,
                             "CUDA failed in %.*s: %s; this ends the use of the device", call, what,
                             cudaGetErrorString(e));
}

static size_t rounded(const splk_cuda *c, size_t bytes) {
    size_t grain = bytes >= LARGE ? LARGE_GRAIN : GRAIN;
    return c->cached ? (bytes + grain - 1) / grain * grain : bytes;
}

void splk_cuda_drop_kept(splk_cuda *c) {
    while (c->blocks) {
        splk_block *b = c->blocks;
        c->blocks = b->next;
        c->held -= b->bytes;
        (void)cudaFree(b->p); /* waits until the device has done with it */
        free(b);
    }
}

static spl_status refuse(const splk_cuda *c, size_t bytes) {
    const double GiB = 1024.0 * 1024.0 * 1024.0;
    size_t available = 0, total = 0;
    (void)cudaMemGetInfo(&available, &total);
    return spli_error_native(SPL_ENOMEM, cudaErrorMemoryAllocation,
                             "%zu bytes (%.2f GiB) are wanted on GPU %d: %zu (%.2f GiB) are in use here, %zu (%.2f "
                             "GiB) of %.2f GiB are free; use smaller sizes, more ranks, or a smaller dtype",
                             bytes, (double)bytes / GiB, c->device, c->in_use, (double)c->in_use / GiB, available,
                             (double)available / GiB, (double)total / GiB);
}

spl_status splk_cuda_alloc(void *ctx, size_t bytes, void **ptr) {
    splk_cuda *c = ctx;
    *ptr = NULL;
    if (bytes > SIZE_MAX / 2) return refuse(c, bytes);
    size_t size = rounded(c, bytes > 0 ? bytes : 1);
    for (splk_block **at = &c->blocks; *at; at = &(*at)->next)
        if ((*at)->bytes == size) {
            splk_block *b = *at;
            *at = b->next;
            *ptr = b->p;
            c->held -= size;
            free(b);
            break;
        }
    if (!*ptr) {
        cudaError_t e = cudaMalloc(ptr, size);
        if (e == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError(); /* it is not the device that failed */
            splk_cuda_drop_kept(c);
            e = cudaMalloc(ptr, size);
        }
        if (e == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            *ptr = NULL;
            return refuse(c, bytes);
        }
        if (e != cudaSuccess) return splk_cuda_error(e, "cudaMalloc");
    }
    c->in_use += size;
    if (c->in_use > c->peak) c->peak = c->in_use;
    return spli_ok();
}

void splk_cuda_free(void *ctx, void *ptr, size_t bytes) {
    splk_cuda *c = ctx;
    if (!ptr) return;
    size_t size = rounded(c, bytes > 0 ? bytes : 1);
    splk_block *b = c->cached ? malloc(sizeof *b) : NULL;
    c->in_use -= size;
    if (!b) {
        (void)cudaFree(ptr);
        return;
    }
    *b = (splk_block){c->blocks, ptr, size};
    c->blocks = b;
    c->held += size;
}

spl_status splk_cuda_host_alloc(void *ctx, size_t bytes, void **ptr) {
    splk_cuda *c = ctx;
    *ptr = NULL;
    splk_block *b = malloc(sizeof *b);
    if (!b || cudaMallocHost(ptr, bytes) != cudaSuccess) {
        free(b);
        (void)cudaGetLastError();
        return spli_error(SPL_ENOMEM, "%zu bytes of pinned host memory cannot be had; lower what else is pinned, or "
                                      "raise the limit of locked memory (ulimit -l)", bytes);
    }
    *b = (splk_block){c->host_blocks, *ptr, bytes};
    c->host_blocks = b;
    return spli_ok();
}

void splk_cuda_host_free(void *ctx, void *ptr) {
    splk_cuda *c = ctx;
    for (splk_block **at = &c->host_blocks; *at; at = &(*at)->next)
        if ((*at)->p == ptr) {
            splk_block *b = *at;
            *at = b->next;
            (void)cudaFreeHost(b->p);
            free(b);
            return;
        }
}

spl_status splk_cuda_scratch_take(splk_cuda *c, size_t bytes, void **out) {
    SPL_TRY(splk_cuda_alloc(c, bytes, out));
    c->workspace_now += (int64_t)bytes;
    if (c->workspace_now > c->workspace_peak) c->workspace_peak = c->workspace_now;
    return spli_ok();
}

void splk_cuda_scratch_give(splk_cuda *c, void *p, size_t bytes) {
    if (!p) return;
    c->workspace_now -= (int64_t)bytes;
    splk_cuda_free(c, p, bytes);
}

int64_t splk_cuda_workspace_peak(void *ctx, int reset) {
    splk_cuda *c = ctx;
    int64_t peak = c->workspace_peak;
    if (reset) c->workspace_peak = c->workspace_now;
    return peak;
}
