/* block_weights.c: the definition of a block: its config, its parameters, and making both. */
#include "block.h"
#include "layout.h"
#include "rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random streams of one seed: [kind, 24 bits][instance, 32 bits][index, 8 bits]. User tensors count from 0. */
enum { STREAM_WEIGHTS = 1, STREAM_DROPOUT = 2 };

static uint64_t stream(int kind, int instance, int index) {
    return (uint64_t)kind << 40 | (uint64_t)(uint32_t)instance << 8 | (uint64_t)(uint32_t)index;
}

uint64_t spli_block_dropout_instance(const spl_block *b, int which) {
    return stream(STREAM_DROPOUT, b->config.instance, which);
}

spl_rng_key spl_block_dropout_key(const spl_block *b, int which, uint64_t step) {
    return spli_rng_key(b->config.seed, spli_block_dropout_instance(b, which), step);
}

/* ---- parameters ---- */

static const char *const param_names[SPLI_PARAM_COUNT] = {
    "ln0_gamma",          "ln0_beta",           "mha_linear0_weight", "mha_linear0_bias",   "mha_q_weight",
    "mha_q_bias",         "mha_k_weight",       "mha_k_bias",         "mha_v_weight",       "mha_v_bias",
    "mha_linear1_weight", "mha_linear1_bias",   "ln1_gamma",          "ln1_beta",           "mlp_gate_weight",
    "mlp_gate_bias",      "mlp_linear0_weight", "mlp_linear0_bias",   "mlp_linear1_weight", "mlp_linear1_bias",
};

static int vector(int present, int64_t n, spli_kind k, int *ndim, int64_t *shape, spli_kind *kind) {
    *ndim = 1;
    shape[0] = n;
    *kind = k;
    return present;
}

static int matrix(int present, int64_t n, int64_t k, spli_kind how, int *ndim, int64_t *shape, spli_kind *kind) {
    *ndim = 2;
    shape[0] = n;
    shape[1] = k;
    *kind = how;
    return present;
}

int spli_param_shape(const spl_block_config *c, spli_param p, int *ndim, int64_t *shape, spli_kind *kind, int64_t *unit,
                     int64_t *cover) {
    const int separate = c->separate_qkv, layer = c->norm == SPL_NORM_LAYER;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    *unit = *cover = 1;
    switch (p) {
    case SPLI_LN0_GAMMA:
    case SPLI_LN1_GAMMA: return vector(1, c->hidden, SPLI_EVERYWHERE, ndim, shape, kind);
    case SPLI_LN0_BETA:
    case SPLI_LN1_BETA: return vector(layer, c->hidden, SPLI_EVERYWHERE, ndim, shape, kind);
    case SPLI_QKV_WEIGHT:
        *unit = 3 * c->head_dim;
        return matrix(!separate, 3 * q, c->hidden, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_QKV_BIAS:
        *unit = 3 * c->head_dim;
        return vector(!separate && c->qkv_bias, 3 * q, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_Q_WEIGHT: *unit = c->head_dim; return matrix(separate, q, c->hidden, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_Q_BIAS: *unit = c->head_dim; return vector(separate && c->qkv_bias, q, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_K_WEIGHT: /* KV heads go where the query heads are that read them */
    case SPLI_V_WEIGHT:
        *unit = c->head_dim;
        *cover = c->heads / c->kv_heads;
        return matrix(separate, kv, c->hidden, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_K_BIAS:
    case SPLI_V_BIAS:
        *unit = c->head_dim;
        *cover = c->heads / c->kv_heads;
        return vector(separate && c->qkv_bias, kv, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_OUT_WEIGHT: *unit = c->head_dim; return matrix(1, c->hidden, q, SPLI_ROW, ndim, shape, kind);
    case SPLI_OUT_BIAS: return vector(c->out_bias, c->hidden, SPLI_EVERYWHERE, ndim, shape, kind);
    case SPLI_GATE_WEIGHT: return matrix(c->gated, c->ffn, c->hidden, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_GATE_BIAS: return vector(c->gated && c->mlp_bias, c->ffn, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_UP_WEIGHT: return matrix(1, c->ffn, c->hidden, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_UP_BIAS: return vector(c->mlp_bias, c->ffn, SPLI_COLUMN, ndim, shape, kind);
    case SPLI_DOWN_WEIGHT: return matrix(1, c->hidden, c->ffn, SPLI_ROW, ndim, shape, kind);
    case SPLI_DOWN_BIAS: return vector(c->mlp_bias, c->hidden, SPLI_EVERYWHERE, ndim, shape, kind);
    case SPLI_PARAM_COUNT: break;
    }
    return 0;
}

/* ---- the definition ---- */

static spl_status positive(const char *name, int64_t value) {
    if (value > 0) return spli_ok();
    return spli_error(SPL_EUSAGE, "block: %s is %lld; it must be 1 or more", name, (long long)value);
}

static spl_status probability(const char *name, double p) {
    if (p >= 0 && p < 1) return spli_ok(); /* false for NaN too */
    return spli_error(SPL_EUSAGE, "block: %s is %g; a probability from 0 up to, but not including, 1 is needed", name,
                      p);
}

static spl_status complete(spl_block_config *c) {
    int64_t product;
    SPL_TRY(positive("hidden", c->hidden));
    SPL_TRY(positive("heads", c->heads));
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    SPL_TRY(positive("kv_heads", c->kv_heads));
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return spli_error(
                SPL_EUSAGE,
                "block: hidden (%lld) is not a multiple of heads (%lld); change one of them, or give head_dim",
                (long long)c->hidden, (long long)c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    SPL_TRY(positive("head_dim", c->head_dim));
    if (c->ffn == 0) SPL_TRY(spli_mul_size(4, c->hidden, &c->ffn));
    SPL_TRY(positive("ffn", c->ffn));
    if (c->heads % c->kv_heads != 0)
        return spli_error(
            SPL_EUSAGE,
            "block: heads (%lld) is not a multiple of kv_heads (%lld); each KV head serves equally many query heads",
            (long long)c->heads, (long long)c->kv_heads);
    if (!c->separate_qkv && c->kv_heads != c->heads)
        return spli_error(SPL_EUSAGE,
                          "block: a head-interleaved QKV weight needs kv_heads (%lld) equal to heads (%lld); use "
                          "separate projections "
                          "(qkv = \"separate\")",
                          (long long)c->kv_heads, (long long)c->heads);
    if (c->rope_theta < 0 || c->rope_theta != c->rope_theta || isinf(c->rope_theta))
        return spli_error(SPL_EUSAGE,
                          "block: rope_theta is %g; 0 means no RoPE, else a positive number (10000) is needed",
                          c->rope_theta);
    if (c->rope_theta > 0 && c->head_dim % 2 != 0)
        return spli_error(SPL_EUSAGE, "block: RoPE rotates pairs, so head_dim (%lld) must be even",
                          (long long)c->head_dim);
    if (c->eps == 0) c->eps = 1e-5;
    if (!(c->eps > 0) || isinf(c->eps))
        return spli_error(SPL_EUSAGE, "block: eps is %g; a small positive number is needed", c->eps);
    if (!spl_dtype_is_float(c->dtype))
        return spli_error(SPL_EUSAGE, "block: dtype %s cannot be computed in; use f32, f64, bf16 or f16",
                          spl_dtype_name(c->dtype));
    SPL_TRY(probability("dropout_attention", c->dropout_attention));
    SPL_TRY(probability("dropout_hidden", c->dropout_hidden));
    SPL_TRY(spli_mul_size(c->heads, c->head_dim, &product));
    return spli_mul_size(3, product, &product);
}

spl_status spl_block_create(spl_runtime *rt, const spl_block_config *config, spl_block **out) {
    spl_block_config c = *config;
    SPL_TRY(complete(&c));
    spl_block *b = calloc(1, sizeof *b);
    if (!b) return spli_error(SPL_ENOMEM, "out of memory while making a block");
    b->rt = rt;
    b->refs = 1;
    b->config = c;
    if (c.mask) spl_mask_retain(c.mask);
    rt->counters.live_blocks++;
    *out = b;
    return spli_ok();
}

static void release_weights(spl_block *b) {
    for (int i = 0; i < SPLI_PARAM_COUNT; i++) {
        spl_tensor_release(b->param[i]);
        b->param[i] = NULL;
    }
    spl_mesh_release(b->mesh);
    b->mesh = NULL;
}

void spl_block_retain(spl_block *b) { b->refs++; }

void spl_block_release(spl_block *b) {
    if (!b || --b->refs) return;
    release_weights(b);
    spl_mask_release(b->config.mask);
    b->rt->counters.live_blocks--;
    free(b);
}

/* Weights and biases normal with deviation 0.02, gains 1 + the same: nothing is left at a value that hides a fault. */
static spl_status make_param(spl_block *b, spli_param p) {
    int ndim;
    int64_t shape[SPL_MAX_DIMS], unit, cover;
    spli_kind kind;
    spl_layout layout;
    if (!spli_param_shape(&b->config, p, &ndim, shape, &kind, &unit, &cover)) return spli_ok();
    const spli_placing placing = spli_block_placing(b);
    spli_schedule_layout(&placing, kind, ndim, shape, unit, cover, &layout);
    SPL_TRY(spl_tensor_create(b->rt, b->mesh, &layout, b->config.dtype, SPL_MEM_WEIGHTS, &b->param[p]));
    int gain = p == SPLI_LN0_GAMMA || p == SPLI_LN1_GAMMA;
    return spl_tensor_random(b->param[p], SPL_RANDOM_NORMAL, b->config.seed,
                             stream(STREAM_WEIGHTS, b->config.instance, (int)p), gain ? 1 : 0, 0.02);
}

/* All weights of this rank against the memory that there is: filling some of them first would take long. */
static spl_status room_for_params(const spl_block *b) {
    const spli_placing placing = spli_block_placing(b);
    double bytes = 0;
    for (int p = 0; p < SPLI_PARAM_COUNT; p++) {
        int ndim;
        int64_t shape[SPL_MAX_DIMS], unit, cover;
        spli_kind kind;
        spl_layout layout;
        if (!spli_param_shape(&b->config, (spli_param)p, &ndim, shape, &kind, &unit, &cover)) continue;
        spli_schedule_layout(&placing, kind, ndim, shape, unit, cover, &layout);
        SPL_TRY(spl_layout_check(&layout));
        double size = (double)spl_dtype_size(b->config.dtype);
        for (int d = 0; d < ndim; d++) {
            int64_t here = spl_layout_local_size(&layout, b->mesh->coords, d);
            if (here < 0) return spli_error(SPL_ENOMEM, "out of memory while weights are laid out");
            size *= (double)here;
        }
        bytes += size;
    }
    return spli_memory_room(b->rt, SPL_MEM_WEIGHTS, bytes);
}

spl_status spl_block_schedule(spl_block *b, spl_mesh *mesh, const spl_schedule *options) {
    spl_schedule schedule = options ? *options : (spl_schedule){SPL_CONTIGUOUS, 0, 0};
    if (schedule.chunk == 0) schedule.chunk = 1024;
    if (schedule.summaries == 0) schedule.summaries = 1;
    SPL_TRY(spli_schedule_check(&mesh->spec, &schedule, &b->config));
    spl_status status = spli_ok();
    spl_mesh_retain(mesh);
    release_weights(b);
    b->mesh = mesh;
    b->schedule = schedule;
    SPL_GO(room_for_params(b), fail);
    for (int i = 0; i < SPLI_PARAM_COUNT; i++) SPL_GO(make_param(b, (spli_param)i), fail);
    return status;
fail:
    release_weights(b);
    return status;
}

/* ---- asking ---- */

const spl_schedule *spl_block_schedule_of(const spl_block *b) { return &b->schedule; }
const spl_block_config *spl_block_config_of(const spl_block *b) { return &b->config; }
spl_mesh *spl_block_mesh(const spl_block *b) { return b->mesh; }

/* The i-th parameter that this definition has, or SPLI_PARAM_COUNT. */
static spli_param nth(const spl_block *b, int i) {
    int ndim;
    int64_t shape[SPL_MAX_DIMS], unit, cover;
    spli_kind kind;
    for (int p = 0; p < SPLI_PARAM_COUNT; p++)
        if (spli_param_shape(&b->config, (spli_param)p, &ndim, shape, &kind, &unit, &cover) && i-- == 0)
            return (spli_param)p;
    return SPLI_PARAM_COUNT;
}

int spl_block_param_count(const spl_block *b) {
    int n = 0;
    while (nth(b, n) != SPLI_PARAM_COUNT) n++;
    return n;
}

const char *spl_block_param_name(const spl_block *b, int i) {
    spli_param p = nth(b, i);
    if (b->config.gated && p == SPLI_UP_WEIGHT) return "mlp_up_weight"; /* beside a gate it is one of two */
    if (b->config.gated && p == SPLI_UP_BIAS) return "mlp_up_bias";
    return p == SPLI_PARAM_COUNT ? NULL : param_names[p];
}

spl_tensor *spl_block_param(const spl_block *b, int i) {
    spli_param p = nth(b, i);
    return p == SPLI_PARAM_COUNT ? NULL : b->param[p];
}

spl_status spl_block_io_layout(const spl_block *b, int64_t batch, int64_t seq, spl_layout *out) {
    if (!b->mesh) return spli_error(SPL_EARG, "the block has no schedule yet; call block:schedule(mesh) first");
    if (batch < 0 || seq < 0)
        return spli_error(SPL_EUSAGE, "input: batch is %lld and seq %lld; sizes are 0 or more", (long long)batch,
                          (long long)seq);
    int64_t shape[] = {batch, seq, b->config.hidden};
    const spli_placing placing = spli_block_placing(b);
    spli_schedule_layout(&placing, SPLI_RESIDUAL, 3, shape, 0, 0, out);
    spli_mask m; /* refuses a length that the mask does not fit */
    SPL_TRY(spli_block_mask(b, seq, &m));
    spli_mask_free(&m);
    return spli_ok();
}

spli_placing spli_block_placing(const spl_block *b) {
    return (spli_placing){&b->mesh->spec, b->schedule, spl_mask_documents(b->config.mask)};
}

spl_status spli_block_mask(const spl_block *b, int64_t seq, spli_mask *out) {
    if (b->config.mask) return spli_mask_resolve(b->config.mask, seq, seq, out);
    return spli_mask_one(out, seq, seq, b->config.causal ? SPL_SLICE_CAUSAL : SPL_SLICE_FULL);
}

/* (query, key) pairs that a forward pass computes, summaries included; 0 where the mask does not fit. */
static double visible_pairs(const spl_block *b, int64_t seq) {
    const spl_schedule *s = &b->schedule;
    spli_mask m[2] = {{0}, {0}};
    int causal = b->config.causal;
    double pairs = 0;
    if (!b->config.mask && !(b->mesh && spli_schedule_travels(&b->mesh->spec) == SPL_ROLE_HIERARCHICAL))
        return causal ? (double)seq * ((double)seq + 1) / 2 : (double)seq * (double)seq;
    if (!b->mesh || spli_schedule_travels(&b->mesh->spec) != SPL_ROLE_HIERARCHICAL) {
        if (spli_block_mask(b, seq, &m[0]).code == SPL_OK) pairs = (double)spli_mask_pairs(&m[0]);
    } else {
        if (b->config.mask) spli_mask_chunkable(b->config.mask, &causal);
        int64_t total = spli_summary_count(seq, s->chunk, s->summaries);
        if (spli_mask_chunks(seq, s->chunk, causal, &m[0]).code == SPL_OK &&
            spli_mask_summaries(seq, s->chunk, s->summaries, total, causal, &m[1]).code == SPL_OK)
            pairs = (double)spli_mask_pairs(&m[0]) + (double)spli_mask_pairs(&m[1]);
    }
    spli_mask_free(&m[0]);
    spli_mask_free(&m[1]);
    return pairs;
}

void spl_block_flops(const spl_block *b, int64_t batch, int64_t seq, double *gemm, double *attention) {
    const spl_block_config *c = &b->config;
    double rows = (double)batch * (double)seq, weights = 0;
    double pairs = visible_pairs(b, seq);
    for (int p = 0; p < SPLI_PARAM_COUNT; p++) {
        int ndim;
        int64_t shape[SPL_MAX_DIMS], unit, cover;
        spli_kind kind;
        if (spli_param_shape(c, (spli_param)p, &ndim, shape, &kind, &unit, &cover) && ndim == 2)
            weights += (double)shape[0] * (double)shape[1];
    }
    *gemm = 2 * rows * weights;
    *attention = 4 * (double)c->head_dim * pairs * (double)c->heads * (double)batch;
}
