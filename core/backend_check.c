/* backend_check.c: what every backend refuses of the arguments of its kernels, as backend.h states them. A backend adds
 * the limits that are its own. */
#include "backend.h"

/* a * b >= 0 into *out; 0 on overflow or a negative factor. */
static int times(int64_t a, int64_t b, int64_t *out) { return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out); }

static spl_status check_matrix(const char *name, int64_t rows, int64_t cols, int64_t most, const char *whose,
                               int64_t *ld) {
    if (rows <= 1 && *ld < cols) *ld = cols;
    if (*ld < cols)
        return spli_error(
            SPL_EARG,
            "gemm: the leading dimension of %s is %lld, its rows have %lld elements: it must be at least that", name,
            (long long)*ld, (long long)cols);
    if (rows > most || cols > most || *ld > most)
        return spli_error(
            SPL_EUNSUPPORTED,
            "gemm: %s is %lld by %lld with leading dimension %lld; %s takes at most %lld each: split the tensor", name,
            (long long)rows, (long long)cols, (long long)*ld, whose, (long long)most);
    if (*ld < 1) *ld = 1;
    return spli_ok();
}

spl_status spli_gemm_leading(const spl_gemm_args *a, int64_t most, const char *whose, int64_t ld[3]) {
    ld[0] = a->lda, ld[1] = a->ldb, ld[2] = a->ldc;
    SPL_TRY(check_matrix("A", a->trans_a ? a->k : a->m, a->trans_a ? a->m : a->k, most, whose, &ld[0]));
    SPL_TRY(check_matrix("B", a->trans_b ? a->n : a->k, a->trans_b ? a->k : a->n, most, whose, &ld[1]));
    return check_matrix("C", a->m, a->n, most, whose, &ld[2]);
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
    if (times(top, a->heads_global, &size) && times(size, a->seq_q_global, &size) &&
        times(size, a->seq_k_global, &size))
        return spli_ok();
    return spli_error(SPL_EUNSUPPORTED,
                      "attention: dropout over %lld x %lld x %lld x %lld pairs overflows their 64-bit index; use a "
                      "smaller batch or no attention dropout",
                      (long long)top, (long long)a->heads_global, (long long)a->seq_q_global,
                      (long long)a->seq_k_global);
}

static spl_status check_pieces(const spl_attn_args *a) {
    for (int i = 0; i < a->npieces; i++) {
        const spl_attn_piece *p = &a->pieces[i];
        if (p->q0 < 0 || p->nq < 0 || p->k0 < 0 || p->nk < 0 || p->nq > a->sq - p->q0 || p->nk > a->sk - p->k0)
            return spli_error(
                SPL_EARG, "attention: piece %d covers rows %lld+%lld and keys %lld+%lld of %lld rows and %lld keys", i,
                (long long)p->q0, (long long)p->nq, (long long)p->k0, (long long)p->nk, (long long)a->sq,
                (long long)a->sk);
        if (p->q_stride < 1 || p->k_stride < 1)
            return spli_error(SPL_EARG, "attention: piece %d has strides %lld and %lld; both must be at least 1", i,
                              (long long)p->q_stride, (long long)p->k_stride);
    }
    return spli_ok();
}

spl_status spli_attn_args_check(const spl_attn_args *a, int64_t most_head_dim) {
    int64_t size;
    if (a->batch < 0 || a->heads < 0 || a->kv_heads < 0 || a->sq < 0 || a->sk < 0 || a->head_dim < 0 ||
        a->npieces < 0 || !times(a->batch, a->heads, &size) || !times(size, a->sq, &size))
        return spli_error(SPL_EARG,
                          "attention: batch %lld, heads %lld, kv_heads %lld, queries %lld, keys %lld, head_dim %lld "
                          "are not sizes",
                          (long long)a->batch, (long long)a->heads, (long long)a->kv_heads, (long long)a->sq,
                          (long long)a->sk, (long long)a->head_dim);
    if (a->head_dim > most_head_dim)
        return spli_error(SPL_EUNSUPPORTED,
                          "attention: head_dim %lld is more than the %lld that this backend takes; use more heads",
                          (long long)a->head_dim, (long long)most_head_dim);
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
