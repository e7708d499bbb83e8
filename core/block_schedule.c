/* block_schedule.c: what the role of a mesh axis makes of each kind of tensor of a block. A new role is a new row here.
 */
#include "block.h"
#include <stdio.h>
#include <string.h>

/* Where several axes split the sequence, they nest in this order, outermost first. */
enum { NEST_CONTEXT = 0, NEST_ULYSSES = 1, NEST_SEQUENCE = 2 };

static const struct {
    int built;          /* can a block be scheduled on it today */
    int batch;          /* splits the batch of every activation */
    int residual_seq;   /* splits the sequence where rows are independent: norm, dropout, residual */
    int inner;          /* splits heads and MLP columns of the weights */
    int nest;
} rules[SPL_ROLE_COUNT] = {
    [SPL_ROLE_TENSOR] = {.built = 1, .inner = 1},
    [SPL_ROLE_SEQUENCE] = {.built = 1, .residual_seq = 1, .inner = 1, .nest = NEST_SEQUENCE},
    [SPL_ROLE_DATA] = {.built = 1, .batch = 1},
};

spl_status spli_schedule_check(const spl_mesh_spec *mesh) {
    for (int a = 0; a < mesh->naxes; a++) {
        spl_role role = mesh->axes[a].role;
        if (rules[role].built) continue;
        spl_mesh_spec nearest = *mesh;
        char spec[200], now[200];
        for (int i = 0; i < nearest.naxes; i++)
            if (!rules[nearest.axes[i].role].built) nearest.axes[i].role = SPL_ROLE_SEQUENCE;
        spl_mesh_format(&nearest, spec, sizeof spec);
        spl_mesh_format(mesh, now, sizeof now);
        if (role == SPL_ROLE_NONE)
            return spli_error(
                SPL_EUSAGE,
                "axis '%s' of mesh \"%s\" has no role, so a block does not know what to split along it; give it one, "
                "for example \"%s\"",
                mesh->axes[a].name, now, spec);
        return spli_error(
            SPL_EUSAGE,
            "role '%s' of axis '%s' in mesh \"%s\" is not available in this version; a block can use tensor, sequence "
            "and data; the nearest mesh that works is \"%s\"",
            spl_role_name(role), mesh->axes[a].name, now, spec);
    }
    return spli_ok();
}

void spli_schedule_layout(const spl_mesh_spec *mesh, spli_kind kind, int ndim, const int64_t *shape, int64_t unit,
                          int64_t cover, spl_layout *out) {
    spl_layout_replicated(out, mesh, ndim, shape);
    for (int a = 0; a < mesh->naxes; a++) {
        spl_role role = mesh->axes[a].role;
        spl_placement *p = &out->axes[a];
        int activation = kind == SPLI_RESIDUAL || kind == SPLI_WHOLE_SEQ;
        if (activation && rules[role].batch)
            *p = (spl_placement){.place = SPL_SHARD, .dim = 0};
        else if (kind == SPLI_RESIDUAL && rules[role].residual_seq)
            *p = (spl_placement){.place = SPL_SHARD, .dim = 1, .nest = rules[role].nest};
        else if ((kind == SPLI_COLUMN || kind == SPLI_ROW) && rules[role].inner)
            *p = (spl_placement){.place = SPL_SHARD, .dim = kind == SPLI_ROW, .unit = unit, .cover = cover};
    }
}
