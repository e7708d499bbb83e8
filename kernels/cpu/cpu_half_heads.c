/* cpu_half_heads.c: bf16 and f16 in operations on [batch, seq, heads, head_dim]: rope and attention. One batch element
 * at a time is gathered into dense f32 scratch, so that scratch is that of one sequence. */
#include "cpu_half.h"

/* A strided array of one batch element, [seq, heads, head_dim]. */
typedef struct heads {
    int64_t seq, heads, head_dim;
    const int64_t *strides; /* of [batch, seq, heads, head_dim] */
} heads;

static void gather(const splk_cpu *c, float *dst, const void *src, spl_dtype t, int64_t b, heads h) {
    int64_t row = h.heads * h.head_dim;
    int team = splk_team(c, h.seq, h.seq * row);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t s = 0; s < h.seq; s++)
        for (int64_t i = 0; i < h.heads; i++)
            splk_widen(dst + s * row + i * h.head_dim, src, t,
                       b * h.strides[0] + s * h.strides[1] + i * h.strides[2], h.strides[3], h.head_dim);
}

static void scatter(const splk_cpu *c, void *dst, spl_dtype t, int64_t b, heads h, const float *src) {
    int64_t row = h.heads * h.head_dim;
    int team = splk_team(c, h.seq, h.seq * row);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t s = 0; s < h.seq; s++)
        for (int64_t i = 0; i < h.heads; i++)
            splk_narrow(dst, t, b * h.strides[0] + s * h.strides[1] + i * h.strides[2], h.strides[3],
                        src + s * row + i * h.head_dim, h.head_dim);
}

static void dense_strides(int64_t strides[4], heads h) {
    strides[0] = h.seq * h.heads * h.head_dim;
    strides[1] = h.heads * h.head_dim;
    strides[2] = h.head_dim;
    strides[3] = 1;
}

spl_status splk_half_rope(void *ctx, spl_queue *q, const spl_rope_args *a) {
    splk_cpu *c = ctx;
    heads hx = {a->seq, a->heads, a->head_dim, a->x_strides}, hy = {a->seq, a->heads, a->head_dim, a->y_strides};
    spl_rope_args f = *a;
    f.dtype = SPL_F32;
    if (a->batch >= 0) f.batch = 0;
    SPL_TRY(splk_cpu_rope(ctx, q, &f)); /* judges the arguments; of no batch it does nothing else */
    int64_t stride, size;
    void *scratch;
    if (!splk_mul(a->seq, a->heads, &size) || !splk_mul(size, a->head_dim, &size) || !splk_mul(size, 4, &size))
        return spli_error(SPL_EARG, "rope: %lld x %lld x %lld is not a size", (long long)a->seq, (long long)a->heads,
                          (long long)a->head_dim);
    if (a->batch == 0 || size == 0) return spli_ok();
    SPL_TRY(splk_scratch_take(c, 1, size, &stride, &scratch));
    spl_status status = spli_ok();
    f.batch = 1;
    f.x = f.y = scratch;
    dense_strides(f.x_strides, hx);
    dense_strides(f.y_strides, hx);
    for (int64_t b = 0; b < a->batch && status.code == SPL_OK; b++) {
        gather(c, scratch, a->x, a->dtype, b, hx);
        status = splk_cpu_rope(ctx, q, &f);
        if (status.code == SPL_OK) scatter(c, a->y, a->dtype, b, hy, scratch);
    }
    splk_scratch_give(c, 1, stride, scratch);
    return status;
}

/* The global index held at local position `at` of a list of segments; `at` itself where there is no list. */
static int64_t global_index(const spl_segment *s, int n, int64_t at) {
    if (n == 0) return at;
    while (at >= s->length) at -= s++->length;
    return s->start + at * s->stride;
}

/* The f32 kernel judges the arguments; of no batch it does nothing else. */
static spl_status check_attention(void *ctx, spl_queue *q, const spl_attn_args *a) {
    spl_attn_args f = *a;
    f.dtype = SPL_F32;
    f.batch = 0;
    if (a->batch < 0) return spli_error(SPL_EARG, "attention: a batch of %lld is not a size", (long long)a->batch);
    if (a->out_dtype != a->dtype && a->out_dtype != SPL_F32)
        return spli_error(SPL_EARG, "attention: out is given as %s, in a call of %s it must be %s or f32",
                          (unsigned)a->out_dtype < SPL_DTYPE_COUNT ? spl_dtype_name(a->out_dtype) : "no type",
                          spl_dtype_name(a->dtype), spl_dtype_name(a->dtype));
    return splk_cpu_attention(ctx, q, &f);
}

spl_status splk_half_attention(void *ctx, spl_queue *q, const spl_attn_args *a) {
    splk_cpu *c = ctx;
    SPL_TRY(check_attention(ctx, q, a));
    heads hq = {a->sq, a->heads, a->head_dim, a->q_strides}, hk = {a->sk, a->kv_heads, a->head_dim, a->k_strides},
          hv = {a->sk, a->kv_heads, a->head_dim, a->v_strides}, ho = {a->sq, a->heads, a->head_dim, a->out_strides};
    int narrow_out = a->out_dtype != SPL_F32;
    int64_t stride, q_size, kv_size;
    void *scratch;
    if (!splk_mul(a->sq, a->heads, &q_size) || !splk_mul(q_size, a->head_dim, &q_size) || q_size > INT64_MAX / 32 ||
        !splk_mul(a->sk, a->kv_heads, &kv_size) || !splk_mul(kv_size, a->head_dim, &kv_size) ||
        kv_size > INT64_MAX / 32)
        return spli_error(SPL_EARG, "attention: %lld queries and %lld keys are not sizes that fit memory",
                          (long long)a->sq, (long long)a->sk);
    if (a->batch == 0) return spli_ok();
    SPL_TRY(splk_scratch_take(c, 1, 4 * ((narrow_out ? 2 : 1) * q_size + 2 * kv_size), &stride, &scratch));
    float *fq = scratch, *fk = fq + q_size, *fv = fk + kv_size, *out = fv + kv_size;
    spl_attn_args f = *a;
    f.dtype = SPL_F32;
    f.batch = 1;
    f.q = fq, f.k = fk, f.v = fv;
    dense_strides(f.q_strides, hq);
    dense_strides(f.k_strides, hk);
    dense_strides(f.v_strides, hv);
    if (narrow_out) {
        f.out = out;
        dense_strides(f.out_strides, ho);
    }
    spl_status status = spli_ok();
    for (int64_t b = 0; b < a->batch && status.code == SPL_OK; b++) {
        spl_segment here = {global_index(a->batch_segments, a->nbatch_segments, b), 1, 1};
        f.batch_segments = &here, f.nbatch_segments = 1;
        gather(c, fq, a->q, a->dtype, b, hq);
        gather(c, fk, a->k, a->dtype, b, hk);
        gather(c, fv, a->v, a->dtype, b, hv);
        if (!narrow_out) f.out = (float *)a->out + b * a->out_strides[0];
        else if (a->merge) gather(c, out, a->out, a->dtype, b, ho);
        f.lse = (float *)a->lse + b * a->heads * a->sq;
        status = splk_cpu_attention(ctx, q, &f);
        if (narrow_out && status.code == SPL_OK) scatter(c, a->out, a->dtype, b, ho, out);
    }
    splk_scratch_give(c, 1, stride, scratch);
    return status;
}
