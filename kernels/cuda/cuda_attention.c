/* cuda_attention.c: attention: checks, lists on their way to the device, and which kernel does it. */
#include "cuda.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static spl_status check(const spl_attn_args *a) {
    SPL_TRY(splk_cuda_need_float("attention", a->dtype));
    SPL_TRY(splk_cuda_mixed("attention", "out", a->dtype, a->out_dtype));
    SPL_TRY(spli_attn_args_check(a, SPLK_MOST_HEAD_DIM));
    if (a->sq <= INT32_MAX - 256 && a->sk <= INT32_MAX - 256 && a->batch * a->heads * a->sq / 16 <= INT32_MAX)
        return spli_ok();
    return spli_error(SPL_EUNSUPPORTED,
                      "attention: %lld queries and %lld keys of %lld heads are more than one GPU takes; use more ranks",
                      (long long)a->sq, (long long)a->sk, (long long)(a->batch * a->heads));
}

static splk_piece piece_of(const spl_attn_piece *p) {
    return (splk_piece){.q0 = (int)p->q0, .nq = (int)p->nq, .k0 = (int)p->k0, .nk = (int)p->nk,
                        .has_upper = p->has_upper, .has_lower = p->has_lower, .q_start = p->q_start,
                        .q_stride = p->q_stride, .k_start = p->k_start, .k_stride = p->k_stride,
                        .upper = p->upper, .lower = p->lower, .per_k_stride = 1.0 / (double)p->k_stride};
}

/* All lists in one, so that none can push another out of the ring: pieces, segments of batch and heads, KV heads. */
static spl_status send_lists(splk_cuda *c, spl_queue *q, splk_attention *at) {
    spl_attn_args *a = &at->a;
    const size_t heads = a->npieces > 0 ? (size_t)a->heads : 0;
    const size_t nb = a->p > 0 ? (size_t)a->nbatch_segments : 0, nh = a->p > 0 ? (size_t)a->nhead_segments : 0;
    const size_t segments = (size_t)a->npieces * sizeof(splk_piece), kv = segments + (nb + nh) * sizeof(spl_segment);
    const size_t bytes = kv + heads * sizeof(int32_t);
    const void *device;
    if (bytes == 0) return spli_ok();
    char *list = malloc(bytes);
    if (!list) return spli_error(SPL_ENOMEM, "attention: no memory for lists of %zu bytes", bytes);
    for (int i = 0; i < a->npieces; i++) ((splk_piece *)(void *)list)[i] = piece_of(&a->pieces[i]);
    if (nb) memcpy(list + segments, a->batch_segments, nb * sizeof(spl_segment));
    if (nh) memcpy(list + segments + nb * sizeof(spl_segment), a->head_segments, nh * sizeof(spl_segment));
    if (heads) memcpy(list + kv, a->kv_of_head, heads * sizeof(int32_t));
    spl_status status = splk_cuda_list(c, q, list, bytes, &device);
    free(list);
    SPL_TRY(status);
    at->pieces = device;
    a->batch_segments = nb ? (const spl_segment *)(const void *)((const char *)device + segments) : NULL;
    a->head_segments =
        nh ? (const spl_segment *)(const void *)((const char *)device + segments + nb * sizeof(spl_segment)) : NULL;
    a->kv_of_head = heads ? (const int32_t *)(const void *)((const char *)device + kv) : NULL;
    return spli_ok();
}

spl_status splk_cuda_attention(void *ctx, spl_queue *q, const spl_attn_args *a) {
    splk_attention at = {.a = *a, .keep_from = (uint32_t)ceil(a->p * 0x1p24), .keep_scale = (float)(1 / (1 - a->p))};
    SPL_TRY(check(a));
    if (!splk_cuda_is_half(a->dtype)) at.a.out_dtype = a->dtype;
    if (a->batch * a->heads * a->sq == 0) return spli_ok();
    SPL_TRY(send_lists(ctx, q, &at));
    SPLK_TRY(splk_attention_fits_mma(&at.a) ? splk_launch_attention_mma(q->stream, &at)
                                            : splk_launch_attention(q->stream, &at));
    return spli_ok();
}
