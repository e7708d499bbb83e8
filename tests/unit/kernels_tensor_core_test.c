/* kernels_tensor_core_test.c: attention of bf16 and f16 where rows lie on boundaries that tensor cores ask for:
 * head_dim up to 128, pieces of every kind, grouped heads, dropout, merging, against the reference. Probabilities may
 * be rounded to the data's type before the second product: the bound is a few of its units, not half of one. */
#include "kernels_common.h"

enum { BATCH = 2, HEADS = 3, KV = 2, PIECES = 4 };

typedef struct shape {
    const char *name;
    int64_t sq, sk;
    int npieces;
    spl_attn_piece pieces[PIECES];
} shape;

static const shape shapes[] = {
    {"causal", 150, 150, 1, {{.nq = 150, .nk = 150, .q_stride = 1, .k_stride = 1, .has_upper = 1}}},
    {"full, short", 3, 70, 1, {{.nq = 3, .nk = 70, .q_stride = 1, .k_stride = 1}}},
    {"zigzag: two chunks of queries against two of keys", 80, 90, 3,
     {{.nq = 40, .nk = 45, .q_stride = 1, .k_stride = 1, .has_upper = 1, .upper = 3},
      {.q0 = 40, .nq = 40, .k0 = 45, .nk = 45, .q_start = 200, .q_stride = 1, .k_start = 190, .k_stride = 1,
       .has_upper = 1},
      {.q0 = 40, .nq = 40, .nk = 45, .q_start = 200, .q_stride = 1, .k_stride = 1}}},
    {"striped with a window", 130, 140, 1,
     {{.nq = 130, .nk = 140, .q_start = 2, .q_stride = 3, .k_start = 1, .k_stride = 3, .has_upper = 1, .has_lower = 1,
       .lower = -100}}},
    {"rows that see nothing", 70, 20, 1, {{.q0 = 30, .nq = 9, .nk = 20, .q_stride = 1, .k_stride = 1}}},
    {"nothing at all", 20, 20, 0, {{0}}},
};
enum { NSHAPES = sizeof shapes / sizeof shapes[0] };

/* n numbers of type t on a boundary of 64 bytes, and what they are in double. */
typedef struct numbers {
    array stored;
    double *wide;
    int64_t n;
    spl_dtype t;
} numbers;

static numbers numbers_make(spl_dtype t, int64_t n, double scale) {
    numbers x = {array_make((size_t)n * spl_dtype_size(t), 0), malloc((size_t)(n + 1) * 8), n, t};
    if (!x.wide) exit(1);
    for (int64_t i = 0; i < n; i++) x.wide[i] = scale * random_unit();
    ref.ops->cast(ref.ctx, ref.queue, x.stored.data, t, x.wide, SPL_F64, n);
    ref.ops->cast(ref.ctx, ref.queue, x.wide, SPL_F64, x.stored.data, t, n);
    return x;
}

static int numbers_close(const numbers *x, double tolerance, const char *what) {
    double squares = 0, *got = malloc((size_t)(x->n + 1) * 8);
    int64_t finite = 0;
    int good = array_intact(&x->stored);
    if (!got) exit(1);
    ref.ops->cast(ref.ctx, ref.queue, got, SPL_F64, x->stored.data, x->t, x->n);
    for (int64_t i = 0; i < x->n; i++)
        if (isfinite(x->wide[i])) squares += x->wide[i] * x->wide[i], finite++;
    double rms = finite ? sqrt(squares / (double)finite) : 0;
    for (int64_t i = 0; i < x->n && good; i++) {
        good = same_number(got[i], x->wide[i], tolerance * (fabs(x->wide[i]) + rms));
        if (!good) tap_note("%s[%lld]: got %.9g, ref %.9g, rms %g", what, (long long)i, got[i], x->wide[i], rms);
    }
    free(got);
    return good;
}

static void numbers_free(numbers *x) {
    array_free(&x->stored);
    free(x->wide);
}

static int run(spl_dtype t, spl_dtype out_dtype, const shape *s, int64_t dim, int merge, double p) {
    static const int32_t kv_of_head[HEADS] = {0, 1, 1};
    static const spl_segment batch[] = {{3, 2, 4}}, heads[] = {{1, 3, 1}};
    const int64_t nq = BATCH * s->sq * HEADS * dim, nk = BATCH * s->sk * KV * dim;
    const double unit = t == SPL_BF16 ? 0x1p-8 : 0x1p-11;
    numbers q = numbers_make(t, nq, 2), k = numbers_make(t, nk, 2), v = numbers_make(t, nk, 2),
            out = numbers_make(out_dtype, nq, 1), lse = numbers_make(SPL_F32, BATCH * HEADS * s->sq, 2);
    spl_attn_args a = {.dtype = t, .out_dtype = out_dtype, .batch = BATCH, .heads = HEADS, .kv_heads = KV, .sq = s->sq,
                       .sk = s->sk, .head_dim = dim, .kv_of_head = kv_of_head, .scale = 1 / sqrt((double)dim),
                       .pieces = s->pieces, .npieces = s->npieces, .merge = merge, .p = p, .key = {{5, 6}},
                       .batch_segments = batch, .nbatch_segments = 1, .head_segments = heads, .nhead_segments = 1,
                       .heads_global = 9, .seq_q_global = 4000, .seq_k_global = 4000};
    const int64_t of_q[4] = {s->sq * HEADS * dim, HEADS * dim, dim, 1}, of_k[4] = {s->sk * KV * dim, KV * dim, dim, 1};
    memcpy(a.q_strides, of_q, sizeof of_q), memcpy(a.out_strides, of_q, sizeof of_q);
    memcpy(a.k_strides, of_k, sizeof of_k), memcpy(a.v_strides, of_k, sizeof of_k);
    spl_attn_args b = a;
    a.q = q.stored.data, a.k = k.stored.data, a.v = v.stored.data, a.out = out.stored.data, a.lse = lse.stored.data;
    b.dtype = SPL_F64, b.q = q.wide, b.k = k.wide, b.v = v.wide, b.out = out.wide, b.lse = lse.wide;
    int good = BOTH(attention, &a, &b) && numbers_close(&out, 2.5 * unit, "out") && numbers_close(&lse, 2e-6, "lse") &&
               array_intact(&q.stored) && array_intact(&k.stored) && array_intact(&v.stored);
    numbers_free(&q), numbers_free(&k), numbers_free(&v), numbers_free(&out), numbers_free(&lse);
    return good;
}

int main(void) {
    static const int64_t dims[] = {64, 128, 32, 40};
    open_side(&cpu, "cpu", 2);
    open_side(&ref, "ref", 2);
    const int few = getenv("SPL_TEST_SHORT") != NULL; /* under slow tools: every other shape, half the cases of each */
    for (int i = 0; i < NSHAPES; i += few ? 2 : 1) {
        const shape *s = &shapes[i];
        const int even = !few || i % 4 == 0, odd = !few || i % 4 == 2;
        if (even)
            ok(run(SPL_BF16, SPL_BF16, s, dims[i % 4], 0, 0), "bf16, head_dim %d: %s", (int)dims[i % 4], s->name);
        if (odd)
            ok(run(SPL_BF16, SPL_F32, s, dims[(i + 1) % 4], 1, 0), "bf16 merged into f32, head_dim %d: %s",
               (int)dims[(i + 1) % 4], s->name);
        if (even)
            ok(run(SPL_F16, SPL_F16, s, dims[(i + 2) % 4], i % 2, 0), "f16, head_dim %d: %s", (int)dims[(i + 2) % 4],
               s->name);
        if (odd)
            ok(run(SPL_BF16, SPL_BF16, s, dims[(i + 3) % 4], 0, 0.2), "bf16 with dropout, head_dim %d: %s",
               (int)dims[(i + 3) % 4], s->name);
    }
    close_side(&cpu);
    close_side(&ref);
    return tap_done();
}
