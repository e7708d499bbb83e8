/* counters.c: what a rank has done and holds, as scripts and benchmarks read it. */
#include "runtime.h"
#include <stdint.h>
#include <string.h>

void spl_counters_get(const spl_runtime *rt, spl_counters *out) {
    *out = rt->counters;
    if (rt->backend->workspace_peak) { /* kernels take and give back their own scratch within a call */
        int64_t peak = rt->backend->workspace_peak(rt->backend_ctx, 0);
        if (peak > out->bytes_peak[SPL_MEM_WORKSPACE]) out->bytes_peak[SPL_MEM_WORKSPACE] = peak;
    }
}

int64_t spl_saturated_sum(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

void spli_count(int64_t *counter, double more) {
    *counter = more >= 9223372036854775807.0 ? INT64_MAX : spl_saturated_sum(*counter, (int64_t)more);
}

int64_t spli_flops(const spl_runtime *rt) {
    return spl_saturated_sum(rt->counters.gemm_flops, rt->counters.attention_flops);
}

void spl_counters_reset(spl_runtime *rt) {
    spl_counters *c = &rt->counters;
    memset(c->comm_calls, 0, sizeof c->comm_calls);
    memset(c->comm_bytes, 0, sizeof c->comm_bytes);
    memcpy(c->bytes_peak, c->bytes_now, sizeof c->bytes_peak);
    c->comm_seconds = c->comm_exposed_seconds = 0;
    c->gemm_flops = c->attention_flops = c->attention_tiles = 0;
    if (rt->backend->workspace_peak) rt->backend->workspace_peak(rt->backend_ctx, 1);
}
