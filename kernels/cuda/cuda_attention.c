/* cuda_attention.c: attention: checks, lists on their way to the device, and which kernel does it. */
#include "cuda.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static spl_status check_pieces(const spl_attn_args *a) {
    for (int i = 0; i < a->npieces; i++) {
        const spl_attn_piece *p = &a->pieces[i];
        if (p->q0 < 0 || p->nq < 0 || p->q0 + p->nq > a->sq || p->k0 < 0 || p->nk < 0 || p->k0 + p->nk > a->sk)
            return spli_error(SPL_EARG,
                              "attention: piece %d is of queries %lld + %lld and keys %lld + %lld, there are %lld rows "
                              "and %lld keys",
                              i, (long long)p->q0, (long long)p->nq, (long long)p->k0, (long long)p->nk,
                              (long long)a->sq, (long long)a->sk);
        if (p->q_stride < 1 || p->k_stride < 1)
            return spli_error(SPL_EARG, "attention: piece %d has strides %lld and %lld; both must be at least 1", i,
                              (long long)p->q_stride, (long long)p->k_stride);
    }
    return spli_ok();
}

static spl_status check_dropout(const spl_attn_args *a) {
    int64_t top = a->batch, size;
    if (!(a->p >= 0 && a->p < 1))
        return spli_error(SPL_EARG, "attention: dropout probability %g given, it must be in [0, 1)", a->p);
    if (a->p == 0) return spli_ok();
    for (int i = 0; i < a->nbatch_segments; i++) {
        const spl_segment *s = &a->batch_segments[i];
        int64_t end = s->start + s->length * s->stride;
        if (end > top) top = end;
    }
    if (splk_cuda_mul(top, a->heads_global, &size) && splk_cuda_mul(size, a->seq_q_global, &size) &&
        splk_cuda_mul(size, a->seq_k_global, &size))
        return spli_ok();
    return spli_error(SPL_EUNSUPPORTED,
                      "attention: dropout over %lld x %lld x %lld x %lld pairs overflows their 64-bit index; use a "
                      "smaller batch or no attention dropout",
                      (long long)top, (long long)a->heads_global, (long long)a->seq_q_global,
                      (long long)a->seq_k_global);
}

static spl_status check(const spl_attn_args *a) {
    int64_t size;
    SPL_TRY(splk_cuda_need_float("attention", a->dtype));
    SPL_TRY(splk_cuda_mixed("attention", "out", a->dtype, a->out_dtype));
    if (a->batch < 0 || a->heads < 0 || a->kv_heads < 0 || a->sq < 0 || a->sk < 0 || a->head_dim < 0 ||
        a->npieces < 0 || !splk_cuda_mul(a->batch, a->heads, &size) || !splk_cuda_mul(size, a->sq, &size))
        return spli_error(SPL_EARG,
                          "attention: batch %lld, heads %lld, kv_heads %lld, queries %lld, keys %lld, head_dim %lld "
                          "are not sizes",
                          (long long)a->batch, (long long)a->heads, (long long)a->kv_heads, (long long)a->sq,
                          (long long)a->sk, (long long)a->head_dim);
    if (a->head_dim > SPLK_MOST_HEAD_DIM)
        return spli_error(SPL_EUNSUPPORTED,
                          "attention: head_dim %lld is more than the %d that the cuda backend takes; use more heads",
                          (long long)a->head_dim, SPLK_MOST_HEAD_DIM);
    if (a->sq > INT32_MAX - 256 || a->sk > INT32_MAX - 256 || size / 16 > INT32_MAX)
        return spli_error(SPL_EUNSUPPORTED,
                          "attention: %lld queries and %lld keys of %lld heads are more than one GPU takes; use more "
                          "ranks",
                          (long long)a->sq, (long long)a->sk, (long long)(a->batch * a->heads));
    if (a->head_dim > 1 &&
        (a->q_strides[3] != 1 || a->k_strides[3] != 1 || a->v_strides[3] != 1 || a->out_strides[3] != 1))
        return spli_error(
            SPL_EARG, "attention: elements of a head must be neighbours (last stride 1); make the tensor contiguous");
    for (int64_t h = 0; h < a->heads; h++)
        if (a->npieces > 0 && (a->kv_of_head[h] < 0 || a->kv_of_head[h] >= a->kv_heads))
            return spli_error(SPL_EARG, "attention: query head %lld reads KV head %d, there are %lld", (long long)h,
                              (int)a->kv_of_head[h], (long long)a->kv_heads);
    SPL_TRY(check_dropout(a));
    return check_pieces(a);
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
