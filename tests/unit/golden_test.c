/* golden_test.c: the whole references (ref_block, ref_attention) against values that NumPy computed once, committed
 * in tests/golden with the formula of their inputs (make_golden.py). Run from the top of the tree, or give the
 * folder. */
#include "backend.h"
#include "tap.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 24 };

typedef struct golden {
    json_t *root, *config;
    double *inputs[MAX_INPUTS];
    int ninputs;
} golden;

static int64_t count_of(json_t *tensor) {
    size_t i;
    json_t *size;
    int64_t n = 1;
    json_array_foreach(json_object_get(tensor, "shape"), i, size) n *= json_integer_value(size);
    return n;
}

static golden load(const char *folder, const char *name) {
    char path[512];
    json_error_t error;
    golden g = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    g.root = json_load_file(path, 0, &error);
    if (!g.root) {
        printf("Bail out! %s: %s\n", path, error.text);
        exit(1);
    }
    g.config = json_object_get(g.root, "config");
    return g;
}

static void unload(golden *g) {
    for (int i = 0; i < g->ninputs; i++) free(g->inputs[i]);
    json_decref(g->root);
}

/* An input by the formula that the file states; NULL when the file has none of this name. */
static const double *input(golden *g, const char *name) {
    json_t *spec = json_object_get(json_object_get(g->root, "inputs"), name);
    if (!spec || g->ninputs == MAX_INPUTS) return NULL;
    int64_t n = count_of(spec);
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(spec, "seed"));
    double scale = json_number_value(json_object_get(spec, "scale")),
           offset = json_number_value(json_object_get(spec, "offset"));
    double *x = g->inputs[g->ninputs++] = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = (seed << 32) + (uint64_t)i + 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        z = z ^ z >> 31;
        x[i] = offset + scale * (2 * ((double)(z >> 11) * 0x1p-53) - 1);
    }
    return x;
}

static int64_t size(const golden *g, const char *key) { return json_integer_value(json_object_get(g->config, key)); }
static double number(const golden *g, const char *key) { return json_number_value(json_object_get(g->config, key)); }
static int is(const golden *g, const char *key, const char *value) {
    json_t *v = json_object_get(g->config, key);
    return json_is_string(v) ? strcmp(json_string_value(v), value) == 0 : json_is_true(v);
}

/* Compares an output of shape [outer, seq, inner] over the sampled rows of the middle dimension. */
static int matches(const golden *g, const char *name, const double *got, int64_t outer, int64_t seq, int64_t inner,
                   const int64_t *rows, int64_t nrows) {
    json_t *want = json_object_get(json_object_get(g->root, "outputs"), name), *data = json_object_get(want, "data");
    double worst = 0;
    if (!want || count_of(want) != outer * seq * inner || (int64_t)json_array_size(data) != outer * seq * inner) {
        tap_note("%s: the file has no such tensor of %lld elements", name, (long long)(outer * seq * inner));
        return 0;
    }
    for (int64_t o = 0; o < outer; o++)
        for (int64_t r = 0; r < nrows; r++)
            for (int64_t i = 0; i < inner; i++) {
                json_t *v = json_array_get(data, (size_t)((o * seq + (rows ? rows[r] : r)) * inner + i));
                double a = got[(o * nrows + r) * inner + i], b = json_is_null(v) ? -INFINITY : json_number_value(v);
                double off = a == b ? 0 : fabs(a - b) / (1 + fabs(b));
                if (!(off <= worst)) worst = off;
            }
    if (!(worst <= 1e-13)) tap_note("%s is off by %g", name, worst);
    return worst <= 1e-13;
}

/* One block, all rows or some of them. */
static void block_case(const char *folder, const char *file, const int64_t *rows, int64_t nrows) {
    golden g = load(folder, file);
    int64_t seq = size(&g, "seq"), n = rows ? nrows : seq;
    int interleaved = is(&g, "interleaved_qkv", ""), good = 1;
    spl_ref_block_args a = {.batch = size(&g, "batch"),
                            .seq = seq,
                            .hidden = size(&g, "hidden"),
                            .heads = size(&g, "heads"),
                            .kv_heads = size(&g, "kv_heads"),
                            .head_dim = size(&g, "head_dim"),
                            .ffn = size(&g, "ffn"),
                            .norm = is(&g, "norm", "layer") ? SPL_NORM_LAYER : SPL_NORM_RMS,
                            .eps = number(&g, "eps"),
                            .interleaved_qkv = interleaved,
                            .act = is(&g, "act", "gelu_tanh")  ? SPL_ACT_GELU_TANH
                                   : is(&g, "act", "gelu_erf") ? SPL_ACT_GELU_ERF
                                                               : SPL_ACT_SILU,
                            .gated = is(&g, "gated", ""),
                            .rope_theta = number(&g, "rope_theta"),
                            .causal = is(&g, "causal", ""),
                            .x = input(&g, "x"),
                            .ln0_gamma = input(&g, "ln0_gamma"),
                            .ln0_beta = input(&g, "ln0_beta"),
                            .ln1_gamma = input(&g, "ln1_gamma"),
                            .ln1_beta = input(&g, "ln1_beta"),
                            .wqkv = input(&g, "wqkv"),
                            .bqkv = input(&g, "bqkv"),
                            .wq = input(&g, "wq"),
                            .bq = input(&g, "bq"),
                            .wk = input(&g, "wk"),
                            .bk = input(&g, "bk"),
                            .wv = input(&g, "wv"),
                            .bv = input(&g, "bv"),
                            .wo = input(&g, "wo"),
                            .bo = input(&g, "bo"),
                            .w1 = input(&g, "w1"),
                            .b1 = input(&g, "b1"),
                            .wg = input(&g, "wg"),
                            .bg = input(&g, "bg"),
                            .w2 = input(&g, "w2"),
                            .b2 = input(&g, "b2"),
                            .rows = rows,
                            .nrows = n};
    int64_t b = a.batch, e = a.hidden, nq = a.heads * a.head_dim, nkv = a.kv_heads * a.head_dim, f = a.ffn;
    struct {
        const char *name;
        double **to;
        int64_t outer, inner;
    } outputs[] = {
        {"ln0_mean",  &a.ln0_mean,  b,           1                        },
        {"ln0_rstd",  &a.ln0_rstd,  b,           1                        },
        {"ln1_mean",  &a.ln1_mean,  b,           1                        },
        {"ln1_rstd",  &a.ln1_rstd,  b,           1                        },
        {"linear0",   &a.linear0,   b,           interleaved ? 3 * nq : nq},
        {"sdpa_out",  &a.sdpa_out,  b * a.heads, a.head_dim               },
        {"sdpa_lse",  &a.sdpa_lse,  b * a.heads, 1                        },
        {"linear1",   &a.linear1,   b,           e                        },
        {"mlp0",      &a.mlp0,      b,           f                        },
        {"out",       &a.out,       b,           e                        },
        {"linear0_k", &a.linear0_k, b,           nkv                      },
        {"linear0_v", &a.linear0_v, b,           nkv                      },
        {"mlp0_up",   &a.mlp0_up,   b,           f                        }
    };
    int count = sizeof outputs / sizeof outputs[0] - (interleaved ? 2 : 0) - (a.gated ? 0 : 1);
    if (interleaved && a.gated) count = 0; /* no golden file has both */
    for (int i = 0; i < count; i++) {
        size_t cells = (size_t)(outputs[i].outer * n * outputs[i].inner);
        *outputs[i].to = malloc(cells * sizeof(double));
        for (size_t c = 0; c < cells; c++) (*outputs[i].to)[c] = NAN;
    }
    a.mask0 = malloc((size_t)(b * n * e));
    a.mask1 = malloc((size_t)(b * n * e));
    spl_status s = splk_reference.block(&a);
    if (!ok(s.code == SPL_OK, "%s: the reference runs on %lld of %lld rows", file, (long long)n, (long long)seq))
        tap_note("%s", s.message);
    for (int i = 0; i < count && s.code == SPL_OK; i++)
        ok(matches(&g, outputs[i].name, *outputs[i].to, outputs[i].outer, seq, outputs[i].inner, rows, n), "%s: %s",
           file, outputs[i].name);
    for (int64_t i = 0; i < b * n * e; i++) good &= a.mask0[i] == 1 && a.mask1[i] == 1;
    ok(good && count > 0, "%s: without dropout the masks are all ones", file);
    for (int i = 0; i < count; i++) free(*outputs[i].to);
    free(a.mask0);
    free(a.mask1);
    unload(&g);
}

static void window_case(const char *folder, const int64_t *rows, int64_t nrows) {
    golden g = load(folder, "window_attention.json");
    json_t *list = json_object_get(g.config, "slices");
    spl_ref_slice slices[8];
    int nslices = (int)json_array_size(list);
    for (int i = 0; i < nslices && i < 8; i++) {
        json_t *s = json_array_get(list, (size_t)i);
        int64_t v[5];
        for (size_t j = 0; j < 5; j++) v[j] = json_integer_value(json_array_get(s, j));
        slices[i] = (spl_ref_slice){v[0], v[1], v[2], v[3], (int)v[4]};
    }
    int64_t b = size(&g, "batch"), h = size(&g, "heads"), sq = size(&g, "seq_q"), d = size(&g, "head_dim"),
            n = rows ? nrows : sq;
    double *out = malloc((size_t)(b * n * h * d) * sizeof *out), *lse = malloc((size_t)(b * h * n) * sizeof *lse);
    spl_ref_attention_args a = {.batch = b,
                                .heads = h,
                                .kv_heads = size(&g, "kv_heads"),
                                .seq_q = sq,
                                .seq_k = size(&g, "seq_k"),
                                .head_dim = d,
                                .q = input(&g, "q"),
                                .k = input(&g, "k"),
                                .v = input(&g, "v"),
                                .scale = number(&g, "scale"),
                                .slices = slices,
                                .nslices = nslices,
                                .rows = rows,
                                .nrows = nrows,
                                .out = out,
                                .lse = lse};
    spl_status s = splk_reference.attention(&a);
    ok(s.code == SPL_OK && matches(&g, "out", out, b, sq, h * d, rows, n), "window: out, %lld of %lld rows",
       (long long)n, (long long)sq);
    ok(matches(&g, "lse", lse, b * h, sq, 1, rows, n), "window: lse, with -inf where a row sees nothing");
    free(out);
    free(lse);
    unload(&g);
}

/* Dropout in the two references agrees with the definition of masks by global index, and its scale. */
static void dropout_case(void) {
    enum { B = 2, S = 3, E = 4 };
    double x[B * S * E], ones[E] = {1, 1, 1, 1}, zero[E * E] = {0}, out[B * S * E], bias[E] = {1, 2, 3, 4};
    unsigned char m0[B * S * E], m1[B * S * E];
    for (int i = 0; i < B * S * E; i++) x[i] = i % 5;
    spl_ref_block_args a = {.batch = B,
                            .seq = S,
                            .hidden = E,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 2,
                            .ffn = E,
                            .norm = SPL_NORM_LAYER,
                            .eps = 1e-5,
                            .act = SPL_ACT_NONE,
                            .p_hidden = 0.4,
                            .key_hidden0 = {{5, 6}},
                            .key_hidden1 = {{7, 8}},
                            .x = x,
                            .ln0_gamma = ones,
                            .ln1_gamma = ones,
                            .wq = zero,
                            .wk = zero,
                            .wv = zero,
                            .wo = zero,
                            .bo = bias,
                            .w1 = zero,
                            .w2 = zero,
                            .b2 = bias,
                            .nrows = S,
                            .mask0 = m0,
                            .mask1 = m1,
                            .out = out};
    int good = splk_reference.block(&a).code == SPL_OK, kept = 0;
    for (int i = 0; i < B * S * E; i++) {
        int keep[2];
        for (int k = 0; k < 2; k++) {
            uint32_t counter[4] = {(uint32_t)i / 4, 0, 0, 0}, words[4];
            splk_reference.philox(counter, (k ? a.key_hidden1 : a.key_hidden0).word, words);
            keep[k] = (words[i % 4] >> 8) * 0x1p-24 >= 0.4;
        }
        good &= m0[i] == keep[0] && m1[i] == keep[1];
        good &= fabs(out[i] - (x[i] + (keep[0] + keep[1]) * bias[i % E] / 0.6)) < 1e-14;
        kept += keep[0] + keep[1];
    }
    ok(good && kept > 10 && kept < 45,
       "hidden dropout: masks by global index, biases dropped with x, kept values over 1 - p");
}

static void refusals(void) {
    double x[4] = {0};
    spl_ref_block_args a = {.batch = 1,
                            .seq = 2,
                            .hidden = 2,
                            .heads = 3,
                            .kv_heads = 2,
                            .head_dim = 1,
                            .ffn = 2,
                            .x = x,
                            .wq = x,
                            .wk = x,
                            .wv = x,
                            .wo = x,
                            .w1 = x,
                            .w2 = x,
                            .nrows = 2};
    ok(splk_reference.block(&a).code == SPL_EARG, "3 heads with 2 KV heads are refused");
    a.heads = a.kv_heads = 2;
    a.rows = (const int64_t[]){0, 2};
    ok(splk_reference.block(&a).code == SPL_EARG, "a sampled row past the sequence is refused");
    a.rows = NULL;
    a.wo = NULL;
    ok(splk_reference.block(&a).code == SPL_EARG, "a missing weight is refused");
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "tests/golden";
    static const char *files[] = {"gpt_block.json", "llama_block.json", "llama_wide_block.json", "erf_block.json"};
    static const int64_t some[] = {3, 0, 4};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        block_case(folder, files[i], NULL, 0);
        block_case(folder, files[i], some, 3);
    }
    window_case(folder, NULL, 0);
    window_case(folder, (const int64_t[]){12, 5, 11, 0}, 4);
    dropout_case();
    refusals();
    return tap_done();
}
