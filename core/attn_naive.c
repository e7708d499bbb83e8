/* attn_naive.c: attention whose scores are all in memory, a head at a time: GEMM, softmax, GEMM. It is there to be
 * compared with: what tiles save in time and memory. */
#include "attn.h"
#include <math.h>

static spl_status check(spl_tensor *const in[3]) {
    static const char *const names[] = {"q", "k", "v"};
    const spl_tensor *q = in[0], *k = in[1], *v = in[2];
    for (int i = 0; i < 3; i++) {
        SPL_TRY(spli_tensor_usable(in[i], names[i]));
        SPL_TRY(spli_need_ndim("attention_naive", in[i], names[i], 4));
        SPL_TRY(spli_need_dtype("attention_naive", in[i], names[i], SPL_F32));
        if (in[i]->mesh)
            return spli_error(SPL_EARG, "attention_naive: %s has a layout; it is one rank's way of doing attention",
                              names[i]);
    }
    int fits = q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] && k->shape[2] > 0 &&
               q->shape[2] % k->shape[2] == 0;
    for (int d = 0; d < 4; d++) fits = fits && k->shape[d] == v->shape[d];
    if (!fits)
        return spli_error(SPL_EARG, "attention_naive: batch and head_dim must be equal, heads a multiple of KV heads, "
                                    "and k and v alike");
    if (!q->rt->backend->softmax)
        return spli_error(SPL_EUNSUPPORTED, "attention_naive: the backend '%s' has no softmax; run with --backend cpu",
                          q->rt->backend->name);
    return spli_ok();
}

static float *at(const spl_tensor *t, int64_t b, int64_t h) {
    return (float *)spli_tensor_data(t) + b * t->strides[0] + h * t->strides[2];
}

spl_status spl_attention_naive(spl_tensor *q, spl_tensor *k, spl_tensor *v, int causal, spl_tensor **out) {
    spl_tensor *in[] = {q, k, v}, *dense[3] = {NULL, NULL, NULL}, *scores = NULL, *y = NULL;
    spl_status status = spli_ok();
    SPL_TRY(check(in));
    spl_runtime *rt = q->rt;
    const int64_t sq = q->shape[1], sk = k->shape[1], d = q->shape[3], per_kv = q->shape[2] / k->shape[2];
    for (int i = 0; i < 3; i++) SPL_GO(spli_dense(in[i], &dense[i]), done);
    SPL_GO(spl_tensor_create_local(rt, 2, (int64_t[]){sq, sk}, SPL_F32, &scores), done);
    SPL_GO(spl_tensor_create_local(rt, 4, q->shape, SPL_F32, &y), done);
    for (int64_t i = 0; i < q->shape[0] * q->shape[2] && sq > 0 && d > 0; i++) {
        const int64_t b = i / q->shape[2], h = i % q->shape[2];
        spl_gemm_args g = {.dtype = SPL_F32, .m = sq, .n = sk, .k = d, .alpha = 1, .trans_b = 1};
        g.a = at(dense[0], b, h), g.lda = dense[0]->strides[1];
        g.b = at(dense[1], b, h / per_kv), g.ldb = dense[1]->strides[1];
        g.c = spli_tensor_data(scores), g.ldc = sk;
        if (sk > 0) SPL_GO(rt->backend->gemm(rt->backend_ctx, rt->compute, &g), done);
        const spl_softmax_args s = {sq, sk, spli_tensor_data(scores), 1 / sqrt((double)d), causal ? sk - sq + 1 : sk,
                                    causal};
        if (sk > 0) SPL_GO(rt->backend->softmax(rt->backend_ctx, rt->compute, &s), done);
        g = (spl_gemm_args){.dtype = SPL_F32, .m = sq, .n = d, .k = sk, .alpha = 1};
        g.a = spli_tensor_data(scores), g.lda = sk > 0 ? sk : 1;
        g.b = at(dense[2], b, h / per_kv), g.ldb = dense[2]->strides[1];
        g.c = at(y, b, h), g.ldc = y->strides[1];
        SPL_GO(rt->backend->gemm(rt->backend_ctx, rt->compute, &g), done);
    }
    SPL_GO(spli_wait_queue(rt, rt->compute), done);
    *out = y;
    y = NULL;
done:
    for (int i = 0; i < 3; i++) spl_tensor_release(dense[i]);
    spl_tensor_release(scores);
    spl_tensor_release(y);
    return status;
}
