/* lreference.c: spl.reference.block and .attention: the fp64 truth of kernels/ref on tensors of this rank alone, and
 * spl.compare, which measures a result against it. Arrays go in by the names of spl_ref_block_args; sizes are checked
 * here, since the reference itself takes plain pointers. Everything lives in userdata, so that no error leaks. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "lspl.h"

enum { MOST_ARRAYS = 32 };

static int64_t size_field(lua_State *L, int at, const char *function, const char *key) {
    int64_t v = lspl_field_integer(L, at, function, key, -1);
    if (v < 0 || v > INT32_MAX) {
        lspl_raisef(L, SPL_EARG, "%s: %s is needed, an integer from 0 to 2147483647", function, key);
    }
    return v;
}

static int64_t times(lua_State *L, const char *function, const int64_t *shape, int ndim) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(n, shape[i], &n)) lspl_raisef(L, SPL_ENOMEM, "%s: the sizes overflow", function);
    }
    if (n > INT64_MAX / 8) lspl_raisef(L, SPL_ENOMEM, "%s: the sizes overflow", function);
    return n;
}

/* The tensor under `key` as doubles (a userdata stays on the stack), or NULL where it is absent and may be. */
static const double *array_field(lua_State *L, int at, const char *function, const char *key, int64_t count,
                                 int needed) {
    luaL_checkstack(L, 6, "arrays of the reference");
    if (lspl_raw_field(L, at, key) == LUA_TNIL) {
        if (needed) lspl_bad_argument(L, function, key, "a tensor", -1);
        lua_pop(L, 1);
        return NULL;
    }
    spl_tensor *t = lspl_check_tensor(L, -1, function, key);
    if (spl_tensor_mesh(t)) {
        lspl_raisef(L, SPL_EARG, "%s: %s is spread over a mesh; the reference takes whole tensors: gather() it",
                    function, key);
    }
    if (spl_tensor_local_count(t) != count) {
        lspl_raisef(L, SPL_EARG, "%s: %s has %lld elements; the sizes given need %lld", function, key,
                    (long long)spl_tensor_local_count(t), (long long)count);
    }
    const double *values = lspl_read_doubles(L, t);
    lua_remove(L, -2);
    return values;
}

static spl_rng_key key_field(lua_State *L, int at, const char *function, const char *key) {
    spl_rng_key k = {{0, 0}};
    if (lspl_raw_field(L, at, key) != LUA_TNIL) {
        if (!lua_istable(L, -1)) lspl_bad_argument(L, function, key, "the two words of spl.rng_key, {w0, w1},", -1);
        for (int i = 0; i < 2; i++) {
            lua_rawgeti(L, -1, i + 1);
            k.word[i] = (uint32_t)lspl_integer(L, -1, function, key);
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
    return k;
}

/* Sampled rows, counted from 1 in Lua: a userdata on the stack; NULL and seq where absent. */
static const int64_t *rows_field(lua_State *L, int at, const char *function, int64_t seq, int64_t *nrows) {
    *nrows = seq;
    if (lspl_raw_field(L, at, "rows") == LUA_TNIL) {
        lua_pop(L, 1);
        return NULL;
    }
    if (!lua_istable(L, -1)) lspl_bad_argument(L, function, "rows", "a list of sequence rows", -1);
    *nrows = (int64_t)lua_rawlen(L, -1);
    int64_t *rows = lua_newuserdatauv(L, sizeof *rows * (size_t)(*nrows ? *nrows : 1), 0);
    for (int64_t i = 0; i < *nrows; i++) {
        lua_rawgeti(L, -2, (lua_Integer)i + 1);
        int64_t row = lspl_integer(L, -1, function, "rows");
        if (row < 1 || row > seq) {
            lspl_raisef(L, SPL_EARG, "%s: row %lld of a sequence of %lld; rows count from 1", function, (long long)row,
                        (long long)seq);
        }
        rows[i] = row - 1;
        lua_pop(L, 1);
    }
    lua_remove(L, -2);
    return rows;
}

/* A list of {q_begin=, q_end=, k_begin=, k_end=, kind=}: half-open ranges counted from 0, as in backend.h. */
static const spl_ref_slice *slices_field(lua_State *L, int at, const char *f, int64_t seq_q, int64_t seq_k, int *n) {
    static const char *const kinds[] = {"full", "causal", "inverse", "both", NULL};
    static const char *const fields[] = {"q_begin", "q_end", "k_begin", "k_end", "kind", NULL};
    luaL_checkstack(L, 8, "slices");
    if (lspl_raw_field(L, at, "slices") == LUA_TNIL) { /* everything sees everything */
        spl_ref_slice *one = lua_newuserdatauv(L, sizeof *one, 0);
        *one = (spl_ref_slice){0, seq_q, 0, seq_k, 0};
        *n = 1;
        return one;
    }
    if (!lua_istable(L, -1)) lspl_bad_argument(L, f, "slices", "a list of slices", -1);
    *n = (int)lua_rawlen(L, -1);
    spl_ref_slice *s = lua_newuserdatauv(L, sizeof *s * (size_t)(*n ? *n : 1), 0);
    for (int i = 0; i < *n; i++) {
        lua_rawgeti(L, -2, i + 1);
        lspl_known_fields(L, -1, f, fields);
        s[i].q_begin = lspl_field_integer(L, -1, f, "q_begin", 0);
        s[i].q_end = lspl_field_integer(L, -1, f, "q_end", seq_q);
        s[i].k_begin = lspl_field_integer(L, -1, f, "k_begin", 0);
        s[i].k_end = lspl_field_integer(L, -1, f, "k_end", seq_k);
        s[i].kind = lspl_field_choice(L, -1, f, "kind", kinds, 0);
        if (s[i].q_begin < 0 || s[i].q_end > seq_q || s[i].k_begin < 0 || s[i].k_end > seq_k) {
            lspl_raisef(L, SPL_EARG, "%s: slice %d reaches outside the %lld queries or %lld keys", f, i + 1,
                        (long long)seq_q, (long long)seq_k);
        }
        lua_pop(L, 1);
    }
    return s;
}

/* Positions for RoPE, counted from 0: a userdata on the stack; NULL where absent. */
static const int64_t *positions_field(lua_State *L, int at, const char *function, int64_t seq) {
    if (lspl_raw_field(L, at, "positions") == LUA_TNIL) {
        lua_pop(L, 1);
        return NULL;
    }
    if (!lua_istable(L, -1) || (int64_t)lua_rawlen(L, -1) != seq) {
        lspl_bad_argument(L, function, "positions", "a list of as many positions as the sequence has tokens", -1);
    }
    int64_t *list = lua_newuserdatauv(L, sizeof *list * (size_t)(seq ? seq : 1), 0);
    for (int64_t i = 0; i < seq; i++) {
        lua_rawgeti(L, -2, (lua_Integer)i + 1);
        list[i] = lspl_integer(L, -1, function, "positions");
        lua_pop(L, 1);
    }
    lua_remove(L, -2);
    return list;
}

/* One array that the reference writes: where its pointer goes, its shape and, after the call, its values. */
typedef struct output {
    const char *name;
    void *host;
    spl_dtype dtype; /* of the host array and of the tensor that is made of it: f64, or bool for masks */
    int ndim;
    int64_t shape[4];
} output;

static void *push_output(lua_State *L, const char *function, output *o, const char *name, spl_dtype dtype, int ndim,
                         int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
    *o = (output){name, NULL, dtype, ndim, {s0, s1, s2, s3}};
    size_t bytes = (size_t)times(L, function, o->shape, ndim) * spl_dtype_size(dtype);
    luaL_checkstack(L, 4, "arrays of the reference");
    o->host = lua_newuserdatauv(L, bytes ? bytes : 1, 0);
    return o->host;
}

/* The table of results, one tensor a name. */
static int push_results(lua_State *L, const output *outputs, int n) {
    lua_createtable(L, 0, n);
    for (int i = 0; i < n; i++) {
        const output *o = &outputs[i];
        spl_tensor **t = lspl_new_tensor(L);
        LSPL_ALLOCATE(L, spl_tensor_create_local(lspl_runtime(L), o->ndim, o->shape, o->dtype, t));
        lspl_check(L, spl_tensor_write(*t, o->host, o->dtype));
        lua_setfield(L, -2, o->name);
    }
    return 1;
}

/* spl.reference.block{...} -> {out = , ln0_mean = , ...} [local] */
static int reference_block(lua_State *L) {
    static const char f[] = "reference.block";
    static const char *const options[] = {
        "batch", "seq", "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "eps", "interleaved_qkv", "act",
        "gated", "rope_theta", "causal", "slices", "positions", "chunk", "summaries", "p_attention",
        "p_hidden", "key_attention", "key_hidden0", "key_hidden1",
        "rows", "x", "ln0_gamma", "ln0_beta", "ln1_gamma", "ln1_beta", "wqkv", "bqkv", "wq", "bq", "wk", "bk", "wv",
        "bv", "wo", "bo", "w1", "b1", "wg", "bg", "w2", "b2", NULL};
    static const char *const norms[] = {"layer", "rms", NULL};
    static const char *const acts[] = {"none", "gelu_tanh", "gelu_erf", "silu", NULL};
    const int at = 1;
    lspl_enter(L, 1);
    lspl_known_fields(L, at, f, options);
    spl_ref_block_args a;
    memset(&a, 0, sizeof a);
    a.batch = size_field(L, at, f, "batch");
    a.seq = size_field(L, at, f, "seq");
    a.hidden = size_field(L, at, f, "hidden");
    a.heads = size_field(L, at, f, "heads");
    a.kv_heads = size_field(L, at, f, "kv_heads");
    a.head_dim = size_field(L, at, f, "head_dim");
    a.ffn = size_field(L, at, f, "ffn");
    a.norm = (spl_norm_kind)lspl_field_choice(L, at, f, "norm", norms, SPL_NORM_LAYER);
    a.eps = lspl_field_number(L, at, f, "eps", 1e-5);
    a.interleaved_qkv = lspl_field_boolean(L, at, f, "interleaved_qkv", 1);
    a.act = (spl_activation)lspl_field_choice(L, at, f, "act", acts, SPL_ACT_GELU_TANH);
    a.gated = lspl_field_boolean(L, at, f, "gated", 0);
    a.rope_theta = lspl_field_number(L, at, f, "rope_theta", 0.0);
    a.causal = lspl_field_boolean(L, at, f, "causal", 1);
    if (lspl_raw_field(L, at, "slices") != LUA_TNIL) a.slices = slices_field(L, at, f, a.seq, a.seq, &a.nslices);
    else lua_pop(L, 1);
    a.positions = positions_field(L, at, f, a.seq);
    a.chunk = lspl_field_integer(L, at, f, "chunk", 0);
    a.summaries = lspl_field_integer(L, at, f, "summaries", 1);
    a.p_attention = lspl_field_number(L, at, f, "p_attention", 0.0);
    a.p_hidden = lspl_field_number(L, at, f, "p_hidden", 0.0);
    a.key_attention = key_field(L, at, f, "key_attention");
    a.key_hidden0 = key_field(L, at, f, "key_hidden0");
    a.key_hidden1 = key_field(L, at, f, "key_hidden1");
    if (a.kv_heads < 1 || a.heads % a.kv_heads) {
        lspl_raisef(L, SPL_EARG, "%s: %lld heads cannot share %lld KV heads evenly", f, (long long)a.heads,
                    (long long)a.kv_heads);
    }
    const int64_t b = a.batch, h = a.hidden, d = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim, ffn = a.ffn;
    const int whole = a.interleaved_qkv, split = !whole;
    const struct {
        const char *name;
        size_t offset;
        int64_t rows, cols;
        int used, needed;
    } arrays[] = {{"ln0_gamma", offsetof(spl_ref_block_args, ln0_gamma), 1, h, 1, 1},
                  {"ln0_beta", offsetof(spl_ref_block_args, ln0_beta), 1, h, 1, 0},
                  {"ln1_gamma", offsetof(spl_ref_block_args, ln1_gamma), 1, h, 1, 1},
                  {"ln1_beta", offsetof(spl_ref_block_args, ln1_beta), 1, h, 1, 0},
                  {"wqkv", offsetof(spl_ref_block_args, wqkv), 3 * d, h, whole, 1},
                  {"bqkv", offsetof(spl_ref_block_args, bqkv), 1, 3 * d, whole, 0},
                  {"wq", offsetof(spl_ref_block_args, wq), d, h, split, 1},
                  {"bq", offsetof(spl_ref_block_args, bq), 1, d, split, 0},
                  {"wk", offsetof(spl_ref_block_args, wk), kv, h, split, 1},
                  {"bk", offsetof(spl_ref_block_args, bk), 1, kv, split, 0},
                  {"wv", offsetof(spl_ref_block_args, wv), kv, h, split, 1},
                  {"bv", offsetof(spl_ref_block_args, bv), 1, kv, split, 0},
                  {"wo", offsetof(spl_ref_block_args, wo), h, d, 1, 1},
                  {"bo", offsetof(spl_ref_block_args, bo), 1, h, 1, 0},
                  {"w1", offsetof(spl_ref_block_args, w1), ffn, h, 1, 1},
                  {"b1", offsetof(spl_ref_block_args, b1), 1, ffn, 1, 0},
                  {"wg", offsetof(spl_ref_block_args, wg), ffn, h, a.gated, 1},
                  {"bg", offsetof(spl_ref_block_args, bg), 1, ffn, a.gated, 0},
                  {"w2", offsetof(spl_ref_block_args, w2), h, ffn, 1, 1},
                  {"b2", offsetof(spl_ref_block_args, b2), 1, h, 1, 0}};
    a.x = array_field(L, at, f, "x", times(L, f, (int64_t[]){b, a.seq, h}, 3), 1);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        int64_t count = times(L, f, (int64_t[]){arrays[i].rows, arrays[i].cols}, 2);
        const double *values = NULL;
        if (arrays[i].used) values = array_field(L, at, f, arrays[i].name, count, arrays[i].needed);
        memcpy((char *)&a + arrays[i].offset, &values, sizeof values);
    }
    a.rows = rows_field(L, at, f, a.seq, &a.nrows);

    output out[MOST_ARRAYS];
    int n = 0;
    const int64_t r = a.nrows;
    a.ln0_mean = push_output(L, f, &out[n++], "ln0_mean", SPL_F64, 2, b, r, 1, 1);
    a.ln0_rstd = push_output(L, f, &out[n++], "ln0_rstd", SPL_F64, 2, b, r, 1, 1);
    a.ln1_mean = push_output(L, f, &out[n++], "ln1_mean", SPL_F64, 2, b, r, 1, 1);
    a.ln1_rstd = push_output(L, f, &out[n++], "ln1_rstd", SPL_F64, 2, b, r, 1, 1);
    a.linear0 = push_output(L, f, &out[n++], "linear0", SPL_F64, 3, b, r, whole ? 3 * d : d, 1);
    if (split) {
        a.linear0_k = push_output(L, f, &out[n++], "linear0_k", SPL_F64, 3, b, r, kv, 1);
        a.linear0_v = push_output(L, f, &out[n++], "linear0_v", SPL_F64, 3, b, r, kv, 1);
    }
    a.sdpa_out = push_output(L, f, &out[n++], "sdpa_out", SPL_F64, 4, b, a.heads, r, a.head_dim);
    a.sdpa_lse = push_output(L, f, &out[n++], "sdpa_lse", SPL_F64, 3, b, a.heads, r, 1);
    a.linear1 = push_output(L, f, &out[n++], "linear1", SPL_F64, 3, b, r, h, 1);
    a.mlp0 = push_output(L, f, &out[n++], "mlp0", SPL_F64, 3, b, r, ffn, 1);
    if (a.gated) a.mlp0_up = push_output(L, f, &out[n++], "mlp0_up", SPL_F64, 3, b, r, ffn, 1);
    a.mask0 = push_output(L, f, &out[n++], "mask0", SPL_BOOL, 3, b, r, h, 1);
    a.mask1 = push_output(L, f, &out[n++], "mask1", SPL_BOOL, 3, b, r, h, 1);
    a.out = push_output(L, f, &out[n++], "out", SPL_F64, 3, b, r, h, 1);
    lspl_check(L, splk_reference.block(&a));
    return push_results(L, out, n);
}

/* spl.reference.attention{...} -> {out = [b, n, heads, head_dim], lse = [b, heads, n]} [local] */
static int reference_attention(lua_State *L) {
    static const char f[] = "reference.attention";
    static const char *const options[] = {"batch", "heads", "kv_heads", "seq_q", "seq_k",     "head_dim", "q",
                                          "k",     "v",     "scale",    "p",     "key",       "slices",   "rows",
                                          "chunk", "summaries", "causal", NULL};
    const int at = 1;
    lspl_enter(L, 1);
    lspl_known_fields(L, at, f, options);
    spl_ref_attention_args a;
    memset(&a, 0, sizeof a);
    a.batch = size_field(L, at, f, "batch");
    a.heads = size_field(L, at, f, "heads");
    a.kv_heads = size_field(L, at, f, "kv_heads");
    a.seq_q = size_field(L, at, f, "seq_q");
    a.seq_k = size_field(L, at, f, "seq_k");
    a.head_dim = size_field(L, at, f, "head_dim");
    if (a.kv_heads < 1 || a.heads % a.kv_heads) {
        lspl_raisef(L, SPL_EARG, "%s: %lld heads cannot share %lld KV heads evenly", f, (long long)a.heads,
                    (long long)a.kv_heads);
    }
    a.scale = lspl_field_number(L, at, f, "scale", a.head_dim ? 1.0 / sqrt((double)a.head_dim) : 1.0);
    a.p = lspl_field_number(L, at, f, "p", 0.0);
    a.key = key_field(L, at, f, "key");
    int64_t nq = times(L, f, (int64_t[]){a.batch, a.seq_q, a.heads, a.head_dim}, 4);
    int64_t nk = times(L, f, (int64_t[]){a.batch, a.seq_k, a.kv_heads, a.head_dim}, 4);
    a.q = array_field(L, at, f, "q", nq, 1);
    a.k = array_field(L, at, f, "k", nk, 1);
    a.v = array_field(L, at, f, "v", nk, 1);
    a.slices = slices_field(L, at, f, a.seq_q, a.seq_k, &a.nslices);
    a.chunk = lspl_field_integer(L, at, f, "chunk", 0);
    a.summaries = lspl_field_integer(L, at, f, "summaries", 1);
    a.causal = lspl_field_boolean(L, at, f, "causal", 1);
    a.rows = rows_field(L, at, f, a.seq_q, &a.nrows);
    output out[2];
    a.out = push_output(L, f, &out[0], "out", SPL_F64, 4, a.batch, a.nrows, a.heads, a.head_dim);
    a.lse = push_output(L, f, &out[1], "lse", SPL_F64, 3, a.batch, a.heads, a.nrows, 1);
    lspl_check(L, splk_reference.attention(&a));
    return push_results(L, out, 2);
}

/* spl.reference.judged() -> name of the backend whose results a check here would judge, is it a reference, has it
 * values */
static int reference_judged(lua_State *L) {
    const spl_backend_ops *b = spli_backend_find(spl_backend_name(lspl_runtime(L)));
    lua_pushstring(L, b->name);
    lua_pushboolean(L, b->is_reference);
    lua_pushboolean(L, b->has_memory);
    return 3;
}

/* ---- measuring */

typedef struct measure {
    double diff_squares, ref_squares, max_abs;
    int64_t count, wrong;
    double tolerance, rms; /* the scale of all elements ... */
    int64_t vector;        /* ... or, when > 0, its least: each vector of that length has its own root mean square */
} measure;

static double root_mean_square(const double *x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += isfinite(x[i]) ? x[i] * x[i] : 0;
    return n > 0 ? sqrt(squares / (double)n) : 0;
}

static void measure_row(measure *m, const double *a, const double *b, int64_t n) {
    double tolerance = m->tolerance, rms = m->rms;
    for (int64_t i = 0; i < n; i++) {
        if (m->vector > 0 && i % m->vector == 0) {
            rms = root_mean_square(b + i, m->vector);
            if (rms < m->rms) rms = m->rms;
        }
        m->count++;
        if (isfinite(b[i])) m->ref_squares += b[i] * b[i]; /* an infinite lse must not swamp the norm */
        if (a[i] == b[i]) continue;                        /* infinities of one sign included */
        double diff = fabs(a[i] - b[i]);
        m->diff_squares += diff * diff; /* NaN and infinity stay visible */
        if (!(diff <= m->max_abs)) m->max_abs = diff;
        if (!isfinite(diff) || !(diff <= tolerance * (fabs(b[i]) + rms))) m->wrong++;
    }
}

/* spl.compare(actual, reference [, {tolerance=, rms=, least_rms=, dim=, rows=}]) -> {count, wrong, diff_squares,
 * ref_squares, max_abs}: wrong counts |a - b| > tolerance * (|b| + rms), and NaN; rms is a number, or "vector": that of
 * the reference's vector, along the last dimension, in which the element stands, or least_rms where that is larger.
 * With rows, row i of the reference stands for row rows[i] of the actual tensor along dim. [local] */
static int compare(lua_State *L) {
    static const char f[] = "compare";
    static const char *const options[] = {"tolerance", "rms", "least_rms", "dim", "rows", NULL};
    lspl_enter(L, 3);
    spl_tensor *a = lspl_check_tensor(L, 1, f, "actual"), *b = lspl_check_tensor(L, 2, f, "reference");
    if (spl_tensor_mesh(a) || spl_tensor_mesh(b)) {
        lspl_raisef(L, SPL_EARG, "compare: takes tensors of this rank alone; gather() or to_local() them first");
    }
    measure m = {0};
    int64_t nrows = 0;
    const int64_t *rows = NULL;
    int dim = 0, ndim = spl_tensor_ndim(a);
    if (!lua_isnil(L, 3)) {
        lspl_known_fields(L, 3, f, options);
        m.tolerance = lspl_field_number(L, 3, f, "tolerance", 0.0);
        int by_vector = lspl_raw_field(L, 3, "rms") == LUA_TSTRING && strcmp(lua_tostring(L, -1), "vector") == 0;
        lua_pop(L, 1);
        if (by_vector) m.rms = lspl_field_number(L, 3, f, "least_rms", 0.0);
        if (by_vector && ndim > 0) m.vector = spl_tensor_shape(b)[spl_tensor_ndim(b) - 1];
        else if (!by_vector) m.rms = lspl_field_number(L, 3, f, "rms", 0.0);
        if (lspl_raw_field(L, 3, "dim") != LUA_TNIL) dim = lspl_dim(L, -1, f, "dim", ndim);
        lua_pop(L, 1);
        rows = rows_field(L, 3, f, ndim ? spl_tensor_shape(a)[dim] : 0, &nrows);
    }
    int same = ndim == spl_tensor_ndim(b);
    for (int i = 0; same && i < ndim; i++) {
        int64_t wanted = rows && i == dim ? nrows : spl_tensor_shape(a)[i];
        same = spl_tensor_shape(b)[i] == wanted;
    }
    if (!same) lspl_raisef(L, SPL_EARG, "compare: the tensors have different shapes");
    if (m.vector > 0 && rows && dim == ndim - 1)
        lspl_raisef(L, SPL_EARG, "compare: rows along the last dimension cut its vectors; give rms as a number");
    if (!rows) {
        const double *x = lspl_read_doubles(L, a), *y = lspl_read_doubles(L, b);
        measure_row(&m, x, y, spl_tensor_local_count(a));
    }
    for (int64_t i = 0; rows && i < nrows; i++) {
        spl_tensor **x = lspl_new_tensor(L), **y = lspl_new_tensor(L);
        lspl_check(L, spl_tensor_narrow(a, dim, rows[i], 1, x));
        lspl_check(L, spl_tensor_narrow(b, dim, i, 1, y));
        const double *xs = lspl_read_doubles(L, *x), *ys = lspl_read_doubles(L, *y);
        measure_row(&m, xs, ys, spl_tensor_local_count(*x));
        spl_tensor_release(*x);
        spl_tensor_release(*y);
        *x = *y = NULL;
        lua_pop(L, 4);
    }
    lua_createtable(L, 0, 5);
    lua_pushinteger(L, (lua_Integer)m.count);
    lua_setfield(L, -2, "count");
    lua_pushinteger(L, (lua_Integer)m.wrong);
    lua_setfield(L, -2, "wrong");
    lua_pushnumber(L, m.diff_squares);
    lua_setfield(L, -2, "diff_squares");
    lua_pushnumber(L, m.ref_squares);
    lua_setfield(L, -2, "ref_squares");
    lua_pushnumber(L, m.max_abs);
    lua_setfield(L, -2, "max_abs");
    lspl_record(L);
    return 1;
}

void lspl_open_reference(lua_State *L) {
    static const luaL_Reg functions[] = {{"block", reference_block},
                                         {"attention", reference_attention},
                                         {"judged", reference_judged},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    lua_setfield(L, -2, "reference");
    lua_pushcfunction(L, compare);
    lua_setfield(L, -2, "compare");
}
