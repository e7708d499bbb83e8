/* block.h: inside of a transformer block: definition (config), schedule (layouts by role) and weights. */
#ifndef SPL_BLOCK_H
#define SPL_BLOCK_H
#include "attn.h"
#include "op.h"

typedef enum spli_param { /* order = that of spl_block_param */
    SPLI_LN0_GAMMA, SPLI_LN0_BETA,
    SPLI_QKV_WEIGHT, SPLI_QKV_BIAS,                                   /* head-interleaved */
    SPLI_Q_WEIGHT, SPLI_Q_BIAS, SPLI_K_WEIGHT, SPLI_K_BIAS, SPLI_V_WEIGHT, SPLI_V_BIAS, /* separate */
    SPLI_OUT_WEIGHT, SPLI_OUT_BIAS,
    SPLI_LN1_GAMMA, SPLI_LN1_BETA,
    SPLI_GATE_WEIGHT, SPLI_GATE_BIAS, SPLI_UP_WEIGHT, SPLI_UP_BIAS, SPLI_DOWN_WEIGHT, SPLI_DOWN_BIAS,
    SPLI_PARAM_COUNT
} spli_param;

struct spl_block {
    spl_runtime *rt;
    int refs;
    spl_block_config config; /* defaults filled in */
    spl_mesh *mesh;          /* NULL until scheduled */
    spl_schedule schedule;
    spl_tensor *param[SPLI_PARAM_COUNT]; /* NULL where the definition has none */
};

/* ---- block_schedule.c: what the roles of the axes make of each kind of tensor ---- */

typedef enum spli_kind {
    SPLI_RESIDUAL,  /* [batch, seq, hidden] between the halves of a block: norm, dropout, residual */
    SPLI_INNER,     /* [batch, seq, hidden] as the column linears want it */
    SPLI_COLUMN,    /* weight [n, k] or bias [n], split by rows in units (heads, MLP columns) */
    SPLI_ROW,       /* weight [n, k], split by columns in units */
    SPLI_EVERYWHERE /* held by every rank */
} spli_kind;

typedef struct spli_placing { /* what a layout depends on */
    const spl_mesh_spec *mesh;
    spl_schedule schedule;
    const spl_documents *documents; /* NULL: the sequence is one */
} spli_placing;
spli_placing spli_block_placing(const spl_block *b);

/* Refuses what the block cannot do on this mesh (SPL_EUSAGE: the rule, and what works). */
spl_status spli_schedule_check(const spl_mesh_spec *mesh, const spl_schedule *s, const spl_block_config *c);
void spli_schedule_layout(const spli_placing *p, spli_kind kind, int ndim, const int64_t *shape, int64_t unit,
                          int64_t cover, spl_layout *out);
/* Of q, or of k and v with `cover` query heads each, [batch, seq, heads, head_dim], for the attention op, where keys
 * travel in the way of `way`. */
void spli_schedule_attention(const spl_mesh_spec *mesh, spl_role way, const spl_layout *now, int is_kv, int64_t cover,
                             spl_layout *out);
/* The role in whose way keys and values travel: hierarchical, ring, gather or none. */
spl_role spli_schedule_travels(const spl_mesh_spec *mesh);

/* ---- block_weights.c ---- */

/* Shape, layout kind, unit and cover of a parameter; 0 when the definition has none. */
int spli_param_shape(const spl_block_config *c, spli_param p, int *ndim, int64_t *shape, spli_kind *kind, int64_t *unit,
                     int64_t *cover);
/* Tells the random streams of one block apart from those of weights and of user tensors with the same seed. */
uint64_t spli_block_dropout_instance(const spl_block *b, int which);
/* The block's mask for a sequence. */
spl_status spli_block_mask(const spl_block *b, int64_t seq, spli_mask *out);

/* ---- attention.c ---- */

/* q, k, v [batch, seq, heads, head_dim] as the linears give them, RoPE done; out as q was. In the layouts of the
 * schedule: sequence to heads and back, keys travelling, summaries. */
spl_status spli_block_attend(const spl_block *b, spl_tensor *const qkv[3], spli_dropout dropout, spl_tensor **out,
                             spl_tensor **lse);

#endif
