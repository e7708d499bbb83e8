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
    spl_tensor *param[SPLI_PARAM_COUNT]; /* NULL where the definition has none */
};

/* ---- block_schedule.c: what the roles of the axes make of each kind of tensor ---- */

typedef enum spli_kind {
    SPLI_RESIDUAL,  /* [batch, seq, hidden] between the halves of a block: norm, dropout, residual */
    SPLI_WHOLE_SEQ, /* [batch, seq, hidden] as the column linears want it */
    SPLI_COLUMN,    /* weight [n, k] or bias [n], split by rows in units (heads, MLP columns) */
    SPLI_ROW,       /* weight [n, k], split by columns in units */
    SPLI_EVERYWHERE /* held by every rank */
} spli_kind;

/* Refuses roles that the block cannot use on this mesh (SPL_EUSAGE: the rule, and a mesh that works). */
spl_status spli_schedule_check(const spl_mesh_spec *mesh);
void spli_schedule_layout(const spl_mesh_spec *mesh, spli_kind kind, int ndim, const int64_t *shape, int64_t unit,
                          int64_t cover, spl_layout *out);

/* Shape, layout kind, unit and cover of a parameter; 0 when the definition has none. */
int spli_param_shape(const spl_block_config *c, spli_param p, int *ndim, int64_t *shape, spli_kind *kind, int64_t *unit,
                     int64_t *cover); /* Tells the random streams of one block apart from those of weights and of user
                                         tensors with the same seed. */
uint64_t spli_block_dropout_instance(const spl_block *b, int which);

#endif
