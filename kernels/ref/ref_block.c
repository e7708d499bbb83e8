/* ref_block.c: a whole pre-norm transformer block in fp64, from its definition:
 *
 *   h = norm(x, ln0);  q, k, v = linear(h);  q, k = rope(q), rope(k)
 *   a = softmax(q k^T / sqrt(head_dim) + mask) v;  x1 = x + dropout(linear(a))
 *   g = norm(x1, ln1);  out = x1 + dropout(linear(act(linear(g)) [* linear(g)]))
 *
 * Batch items one after another; keys and values of all rows, the rest for the wanted rows only. Arrays of one item
 * are [rows, columns]. Nothing of the engine or of the other kernels is used, except the reference's own Philox. */
#include "ref.h"

typedef struct rows_of_item {      /* of the wanted rows unless `all` is in the name; [rows, ...] */
    double *all_h, *all_k, *all_v; /* [seq, hidden], [seq, kv_heads * head_dim] */
    double *all_mean, *all_rstd;
    double *h, *q, *a, *linear1, *x1, *mlp, *up;
    double *mean, *rstd;
} rows_of_item;

static int64_t wanted(const spl_ref_block_args *a) { return a->rows ? a->nrows : a->seq; }
static int64_t row_of(const spl_ref_block_args *a, int64_t i) { return a->rows ? a->rows[i] : i; }

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* y[r, o] = x[r] . w[o] + bias[o], rows of y `ldy` apart. Rows go in small groups so that a row of w is used while it
 * is in cache. */
static void linear(const double *x, int64_t rows, int64_t in, const double *w, const double *bias, int64_t out,
                   double *y, int64_t ldy) {
    const int64_t group = 16;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < rows; first += group)
        for (int64_t o = 0; o < out; o++)
            for (int64_t r = first; r < first + group && r < rows; r++)
                y[r * ldy + o] = dot(x + r * in, w + o * in, in) + (bias ? bias[o] : 0);
}

static void norm(const spl_ref_block_args *a, const double *x, int64_t rows, const double *gamma, const double *beta,
                 double *y, double *mean_out, double *rstd_out) {
    int64_t n = a->hidden;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, square = 0;
        if (a->norm == SPL_NORM_LAYER)
            for (int64_t i = 0; i < n; i++) mean += x[r * n + i];
        mean /= (double)n;
        for (int64_t i = 0; i < n; i++) square += (x[r * n + i] - mean) * (x[r * n + i] - mean);
        double rstd = 1 / sqrt(square / (double)n + a->eps);
        for (int64_t i = 0; i < n; i++)
            y[r * n + i] = (x[r * n + i] - mean) * rstd * (gamma ? gamma[i] : 1) + (beta ? beta[i] : 0);
        mean_out[r] = mean;
        rstd_out[r] = rstd;
    }
}

/* Element j of the first half of a head turns with element j of the second half. */
static void rope(const spl_ref_block_args *a, double *x, int64_t position, int64_t heads) {
    int64_t d = a->head_dim, pairs = d / 2;
    for (int64_t j = 0; j < pairs; j++) {
        double angle = (double)position * pow(a->rope_theta, -2.0 * (double)j / (double)d), c = cos(angle),
               s = sin(angle);
        for (int64_t h = 0; h < heads; h++) {
            double u = x[h * d + j], v = x[h * d + pairs + j];
            x[h * d + j] = u * c - v * s;
            x[h * d + pairs + j] = v * c + u * s;
        }
    }
}

/* q of the wanted rows, k and v of all, before RoPE; copies of them go to the saved outputs. */
static void project(const spl_ref_block_args *a, int64_t b, const rows_of_item *s) {
    int64_t d = a->head_dim, e = a->hidden, nq = a->heads * d, nkv = a->kv_heads * d, n = wanted(a);
    if (a->interleaved_qkv) {
        for (int64_t h = 0; h < a->heads; h++) { /* rows of head h: q, k, v */
            const double *w = a->wqkv + h * 3 * d * e, *bias = a->bqkv ? a->bqkv + h * 3 * d : NULL;
            linear(s->h, n, e, w, bias, d, s->q + h * d, nq);
            linear(s->all_h, a->seq, e, w + d * e, bias ? bias + d : NULL, d, s->all_k + h * d, nkv);
            linear(s->all_h, a->seq, e, w + 2 * d * e, bias ? bias + 2 * d : NULL, d, s->all_v + h * d, nkv);
        }
    } else {
        linear(s->h, n, e, a->wq, a->bq, nq, s->q, nq);
        linear(s->all_h, a->seq, e, a->wk, a->bk, nkv, s->all_k, nkv);
        linear(s->all_h, a->seq, e, a->wv, a->bv, nkv, s->all_v, nkv);
    }
    for (int64_t i = 0; i < n; i++) {
        const double *q = s->q + i * nq, *k = s->all_k + row_of(a, i) * nkv, *v = s->all_v + row_of(a, i) * nkv;
        if (a->linear0 && a->interleaved_qkv) {
            double *to = a->linear0 + (b * n + i) * 3 * nq;
            for (int64_t h = 0; h < a->heads; h++)
                for (int64_t j = 0; j < d; j++) {
                    to[h * 3 * d + j] = q[h * d + j];
                    to[h * 3 * d + d + j] = k[h * d + j];
                    to[h * 3 * d + 2 * d + j] = v[h * d + j];
                }
        } else if (a->linear0) {
            memcpy(a->linear0 + (b * n + i) * nq, q, (size_t)nq * sizeof *q);
        }
        if (a->linear0_k && !a->interleaved_qkv) memcpy(a->linear0_k + (b * n + i) * nkv, k, (size_t)nkv * sizeof *k);
        if (a->linear0_v && !a->interleaved_qkv) memcpy(a->linear0_v + (b * n + i) * nkv, v, (size_t)nkv * sizeof *v);
    }
}

static int64_t position_of(const spl_ref_block_args *a, int64_t row) { return a->positions ? a->positions[row] : row; }

/* One head of one wanted row; weight has room for seq. 0: no memory. */
static int attend(const spl_ref_block_args *a, int64_t b, const rows_of_item *s, int64_t h, int64_t i,
                   double *weight) {
    int64_t d = a->head_dim, nkv = a->kv_heads * d, row = row_of(a, i), n = wanted(a);
    int64_t keys = a->causal && !a->slices ? row + 1 : a->seq, kv = h / (a->heads / a->kv_heads), seen = 0;
    const double *q = s->q + (i * a->heads + h) * d;
    double *out = s->a + (i * a->heads + h) * d, largest = -INFINITY, total = 0;
    if (a->chunk > 0) {
        double lse;
        splk_ref_chunk_query one = {q, s->all_k + kv * d, s->all_v + kv * d, nkv, a->seq, d, row, a->chunk,
                                    a->summaries, a->causal, 1 / sqrt((double)d)};
        if (!splk_ref_chunk_attention(&one, out, &lse)) return 0;
        if (a->sdpa_out) memcpy(a->sdpa_out + ((b * a->heads + h) * n + i) * d, out, (size_t)d * sizeof *out);
        if (a->sdpa_lse) a->sdpa_lse[(b * a->heads + h) * n + i] = lse;
        return 1;
    }
    for (int64_t k = 0; k < keys; k++) {
        weight[k] = -INFINITY; /* what is hidden weighs exactly nothing */
        if (a->slices && !splk_ref_shows(a->slices, a->nslices, row, k)) continue;
        weight[k] = dot(q, s->all_k + k * nkv + kv * d, d) / sqrt((double)d);
        if (!(weight[k] <= largest)) largest = weight[k];
        seen++;
    }
    for (int64_t k = 0; k < keys && seen; k++) total += weight[k] = exp(weight[k] - largest);
    for (int64_t j = 0; j < d; j++) out[j] = 0;
    for (int64_t k = 0; k < keys && seen; k++) {
        double w = weight[k] / total;
        if (w == 0) continue;
        if (a->p_attention > 0) {
            int64_t g = ((b * a->heads + h) * a->seq + row) * a->seq + k;
            w *= splk_ref_uniform(a->key_attention, g) < a->p_attention ? 0 : 1 / (1 - a->p_attention);
        }
        for (int64_t j = 0; j < d; j++) out[j] += w * s->all_v[k * nkv + kv * d + j];
    }
    if (a->sdpa_out) memcpy(a->sdpa_out + ((b * a->heads + h) * n + i) * d, out, (size_t)d * sizeof *out);
    if (a->sdpa_lse) a->sdpa_lse[(b * a->heads + h) * n + i] = seen ? largest + log(total) : -INFINITY;
    return 1;
}

/* y = residual + dropout(x + bias) on the wanted rows. */
static void drop_and_add(const spl_ref_block_args *a, int64_t b, spl_rng_key key, const double *x, const double *bias,
                         const double *residual, unsigned char *mask, double *y) {
    int64_t n = wanted(a), e = a->hidden;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < e; c++) {
            double keep = 1;
            if (a->p_hidden > 0) keep = splk_ref_uniform(key, (b * a->seq + row_of(a, i)) * e + c) >= a->p_hidden;
            if (mask) mask[(b * n + i) * e + c] = keep != 0;
            y[i * e + c] = residual[i * e + c] + keep * (x[i * e + c] + (bias ? bias[c] : 0)) / (1 - a->p_hidden);
        }
}

static void keep(double *to, int64_t b, const double *from, int64_t count) { /* item b of a saved output */
    if (to) memcpy(to + b * count, from, (size_t)count * sizeof *to);
}

static void mlp(const spl_ref_block_args *a, int64_t b, const rows_of_item *s) {
    int64_t n = wanted(a), e = a->hidden, f = a->ffn;
    linear(s->h, n, e, a->gated ? a->wg : a->w1, a->gated ? a->bg : a->b1, f, s->mlp, f);
    keep(a->mlp0, b, s->mlp, n * f);
    if (a->gated) {
        linear(s->h, n, e, a->w1, a->b1, f, s->up, f);
        keep(a->mlp0_up, b, s->up, n * f);
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n * f; i++) {
        double x = s->mlp[i], y = x;
        if (a->act == SPL_ACT_GELU_TANH)
            y = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        if (a->act == SPL_ACT_GELU_ERF) y = 0.5 * x * (1 + erf(x / sqrt(2)));
        if (a->act == SPL_ACT_SILU) y = x / (1 + exp(-x));
        s->mlp[i] = a->gated ? y * s->up[i] : y;
    }
}

static int one_item(const spl_ref_block_args *a, int64_t b, const rows_of_item *s) {
    int64_t n = wanted(a), e = a->hidden, d = a->head_dim, failed = 0;
    const double *x = a->x + b * a->seq * e;
    norm(a, x, a->seq, a->ln0_gamma, a->ln0_beta, s->all_h, s->all_mean, s->all_rstd);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = row_of(a, i);
        memcpy(s->h + i * e, s->all_h + row * e, (size_t)e * sizeof *x);
        memcpy(s->x1 + i * e, x + row * e, (size_t)e * sizeof *x);
        if (a->ln0_mean) a->ln0_mean[b * n + i] = s->all_mean[row];
        if (a->ln0_rstd) a->ln0_rstd[b * n + i] = s->all_rstd[row];
    }
    project(a, b, s);
    if (a->rope_theta > 0) {
#pragma omp parallel for schedule(static)
        for (int64_t t = 0; t < a->seq; t++) rope(a, s->all_k + t * a->kv_heads * d, position_of(a, t), a->kv_heads);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) rope(a, s->q + i * a->heads * d, position_of(a, row_of(a, i)), a->heads);
    }
#pragma omp parallel reduction(+ : failed)
    {
        double *weight = malloc((size_t)a->seq * sizeof *weight);
        failed += !weight;
#pragma omp for schedule(dynamic, 8)
        for (int64_t t = 0; t < a->heads * n; t++)
            if (weight) failed += !attend(a, b, s, t / n, t % n, weight);
        free(weight);
    }
    linear(s->a, n, a->heads * d, a->wo, NULL, e, s->linear1, e);
    keep(a->linear1, b, s->linear1, n * e);
    drop_and_add(a, b, a->key_hidden0, s->linear1, a->bo, s->x1, a->mask0, s->x1);
    norm(a, s->x1, n, a->ln1_gamma, a->ln1_beta, s->h, s->mean, s->rstd);
    keep(a->ln1_mean, b, s->mean, n);
    keep(a->ln1_rstd, b, s->rstd, n);
    mlp(a, b, s);
    linear(s->mlp, n, a->ffn, a->w2, NULL, e, s->linear1, e);
    drop_and_add(a, b, a->key_hidden1, s->linear1, a->b2, s->x1, a->mask1, s->x1);
    keep(a->out, b, s->x1, n * e);
    return failed != 0;
}

static spl_status check(const spl_ref_block_args *a) {
    if (a->batch < 0 || a->seq < 0 || a->hidden < 1 || a->heads < 1 || a->kv_heads < 1 || a->head_dim < 1 ||
        a->ffn < 1)
        return spli_error(
            SPL_EARG,
            "reference block: batch %lld, seq %lld, hidden %lld, heads %lld, kv_heads %lld, head_dim %lld, "
            "ffn %lld are not sizes",
            (long long)a->batch, (long long)a->seq, (long long)a->hidden, (long long)a->heads, (long long)a->kv_heads,
            (long long)a->head_dim, (long long)a->ffn);
    if (a->heads % a->kv_heads != 0 || (a->interleaved_qkv && a->heads != a->kv_heads))
        return spli_error(SPL_EARG,
                          "reference block: heads %lld must be a multiple of kv_heads %lld, and equal with one "
                          "interleaved weight",
                          (long long)a->heads, (long long)a->kv_heads);
    if (!a->x || !a->wo || !a->w1 || !a->w2 || (a->gated && !a->wg) ||
        (a->interleaved_qkv ? !a->wqkv : !a->wq || !a->wk || !a->wv))
        return spli_error(SPL_EARG, "reference block: x or a weight that these options need is missing");
    if (!(a->p_attention >= 0 && a->p_attention < 1 && a->p_hidden >= 0 && a->p_hidden < 1))
        return spli_error(SPL_EARG, "reference block: dropout probabilities %g and %g must be in [0, 1)",
                          a->p_attention, a->p_hidden);
    if (a->chunk < 0 || (a->chunk > 0 && (a->summaries < 1 || a->slices || a->p_attention > 0)))
        return spli_error(SPL_EARG,
                          "reference block: chunks of %lld with %lld summaries go with neither slices nor attention "
                          "dropout",
                          (long long)a->chunk, (long long)a->summaries);
    for (int64_t i = 0; a->rows && i < a->nrows; i++)
        if (a->rows[i] < 0 || a->rows[i] >= a->seq)
            return spli_error(SPL_EARG, "reference block: sampled row %lld is outside the sequence of %lld",
                              (long long)a->rows[i], (long long)a->seq);
    return spli_ok();
}

spl_status splk_ref_block(const spl_ref_block_args *a) {
    SPL_TRY(check(a));
    int64_t n = wanted(a), s = a->seq, e = a->hidden, nq = a->heads * a->head_dim, nkv = a->kv_heads * a->head_dim,
            f = a->ffn;
    rows_of_item r;
    struct {
        double **array;
        int64_t rows, cols;
    } arrays[] = {
        {&r.all_h,    s, e  },
        {&r.all_k,    s, nkv},
        {&r.all_v,    s, nkv},
        {&r.all_mean, s, 1  },
        {&r.all_rstd, s, 1  },
        {&r.h,        n, e  },
        {&r.q,        n, nq },
        {&r.a,        n, nq },
        {&r.linear1,  n, e  },
        {&r.x1,       n, e  },
        {&r.mlp,      n, f  },
        {&r.up,       n, f  },
        {&r.mean,     n, 1  },
        {&r.rstd,     n, 1  }
    };
    const int count = sizeof arrays / sizeof arrays[0];
    int failed = 0;
    for (int i = 0; i < count; i++) {
        *arrays[i].array = calloc((size_t)arrays[i].rows + 1, (size_t)arrays[i].cols * sizeof(double));
        failed |= !*arrays[i].array;
    }
    for (int64_t b = 0; b < a->batch && !failed; b++) failed = one_item(a, b, &r);
    for (int i = 0; i < count; i++) free(*arrays[i].array);
    if (failed)
        return spli_error(
            SPL_ENOMEM,
            "reference block: no memory for a sequence of %lld with hidden %lld and ffn %lld; sample rows, "
            "or check at a smaller size",
            (long long)s, (long long)e, (long long)f);
    return spli_ok();
}
