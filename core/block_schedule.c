/* block_schedule.c: what the role of a mesh axis makes of each kind of tensor of a block. A new role is a new row here.
 */
#include "block.h"
#include <stdio.h>
#include <string.h>

/* Where several axes split the sequence, they nest in this order, outermost first. Keys that are gathered before they
 * travel round a ring are whole within the ring's list, so gather stands inside ring. */
enum { NEST_RING = 0, NEST_GATHER = 1, NEST_ULYSSES = 2, NEST_SEQUENCE = 3 };

static const struct {
    int built;        /* can a block be scheduled on it today */
    int batch;        /* splits the batch of every activation */
    int seq;          /* splits the sequence where rows are independent: norm, dropout, residual */
    int seq_in;       /* and also inside the linears */
    int heads;        /* splits the heads of attention, once the sequence was split */
    int travels;      /* keys and values travel along it */
    int schemes;      /* takes any scheme; else contiguous only */
    int whole_chunks; /* splits the sequence between chunks only */
    int inner;        /* splits heads and MLP columns of the weights */
    int nest;
} rules[SPL_ROLE_COUNT] = {
    [SPL_ROLE_TENSOR] = {.built = 1, .inner = 1},
    [SPL_ROLE_SEQUENCE] = {.built = 1, .seq = 1, .inner = 1, .nest = NEST_SEQUENCE},
    [SPL_ROLE_DATA] = {.built = 1, .batch = 1},
    [SPL_ROLE_ULYSSES] = {.built = 1, .seq = 1, .seq_in = 1, .heads = 1, .schemes = 1, .nest = NEST_ULYSSES},
    [SPL_ROLE_RING] = {.built = 1, .seq = 1, .seq_in = 1, .travels = 1, .schemes = 1, .nest = NEST_RING},
    [SPL_ROLE_GATHER] = {.built = 1, .seq = 1, .seq_in = 1, .travels = 1, .schemes = 1, .nest = NEST_GATHER},
    [SPL_ROLE_HIERARCHICAL] = {.built = 1, .seq = 1, .seq_in = 1, .travels = 1, .whole_chunks = 1, .nest = NEST_RING},
};

static int has_role(const spl_mesh_spec *mesh, spl_role role) {
    for (int a = 0; a < mesh->naxes; a++)
        if (mesh->axes[a].role == role) return 1;
    return 0;
}

/* The role whose way keys and values travel; NONE: they do not. */
static spl_role travelling(const spl_mesh_spec *mesh) {
    static const spl_role order[] = {SPL_ROLE_HIERARCHICAL, SPL_ROLE_RING, SPL_ROLE_GATHER};
    for (int i = 0; i < 3; i++)
        if (has_role(mesh, order[i])) return order[i];
    return SPL_ROLE_NONE;
}

spl_role spli_schedule_travels(const spl_mesh_spec *mesh) { return travelling(mesh); }

/* ---- refusing ---- */

/* The mesh with every axis of role `from` in role `to`. */
static const char *with_role(const spl_mesh_spec *mesh, spl_role from, spl_role to, char *out, size_t n) {
    spl_mesh_spec nearest = *mesh;
    for (int i = 0; i < nearest.naxes; i++)
        if (nearest.axes[i].role == from) nearest.axes[i].role = to;
    spl_mesh_format(&nearest, out, n);
    return out;
}

static spl_status check_roles(const spl_mesh_spec *mesh, const char *now) {
    char spec[200];
    for (int a = 0; a < mesh->naxes; a++) {
        spl_role role = mesh->axes[a].role;
        if (rules[role].built) continue;
        if (role == SPL_ROLE_NONE)
            return spli_error(
                SPL_EUSAGE,
                "axis '%s' of mesh \"%s\" has no role, so a block does not know what to split along it; give it one, "
                "for example \"%s\"",
                mesh->axes[a].name, now, with_role(mesh, role, SPL_ROLE_SEQUENCE, spec, sizeof spec));
        return spli_error(
            SPL_EUSAGE,
            "role '%s' of axis '%s' in mesh \"%s\" is not available in this version; a block can use tensor, sequence, "
            "data, ring, ulysses, gather and hierarchical; the nearest mesh that works is \"%s\"",
            spl_role_name(role), mesh->axes[a].name, now,
            with_role(mesh, role, role == SPL_ROLE_FSDP ? SPL_ROLE_DATA : SPL_ROLE_SEQUENCE, spec, sizeof spec));
    }
    for (spl_role exact = SPL_ROLE_RING; exact <= SPL_ROLE_GATHER; exact++)
        if (has_role(mesh, SPL_ROLE_HIERARCHICAL) && has_role(mesh, exact))
            return spli_error(SPL_EUSAGE,
                              "mesh \"%s\" has both hierarchical and %s axes: what is outside a query's chunk is "
                              "either summarised or "
                              "seen exactly; the nearest mesh that works is \"%s\"",
                              now, spl_role_name(exact),
                              with_role(mesh, SPL_ROLE_HIERARCHICAL, exact, spec, sizeof spec));
    return spli_ok();
}

static spl_status check_scheme(const spl_mesh_spec *mesh, const spl_schedule *s, const char *now) {
    static const char *const names[] = {"contiguous", "zigzag", "striped"};
    int any = 0;
    if ((unsigned)s->scheme > SPL_STRIPED) return spli_error(SPL_EARG, "there is no scheme %d", (int)s->scheme);
    if (s->scheme == SPL_CONTIGUOUS) return spli_ok();
    for (int a = 0; a < mesh->naxes; a++) any |= rules[mesh->axes[a].role].schemes;
    if (any && !has_role(mesh, SPL_ROLE_HIERARCHICAL)) return spli_ok();
    if (has_role(mesh, SPL_ROLE_HIERARCHICAL))
        return spli_error(SPL_EUSAGE,
                          "scheme %s cannot be used in mesh \"%s\": hierarchical keeps chunks whole, in order; use "
                          "scheme = \"contiguous\", or the role ring in its place",
                          names[s->scheme], now);
    return spli_error(
        SPL_EUSAGE,
        "scheme %s was given, but no axis of mesh \"%s\" deals out the sequence by a scheme (ring, ulysses "
        "and gather do); use scheme = \"contiguous\", or a mesh such as \"cp=*:ring\"",
        names[s->scheme], now);
}

static spl_status check_hierarchical(const spl_mesh_spec *mesh, const spl_schedule *s, const spl_block_config *c,
                                     const char *now) {
    int causal;
    char mask[80], spec[200];
    if (!has_role(mesh, SPL_ROLE_HIERARCHICAL)) return spli_ok();
    if (s->chunk < 1 || s->summaries < 1 || s->summaries > s->chunk)
        return spli_error(
            SPL_EUSAGE,
            "hierarchical attention was given chunks of %lld tokens with %lld summaries each; both are 1 or "
            "more, and summaries at most as many as tokens",
            (long long)s->chunk, (long long)s->summaries);
    if (c->mask && !spli_mask_chunkable(c->mask, &causal)) {
        spl_mask_format(c->mask, mask, sizeof mask);
        return spli_error(
            SPL_EUSAGE,
            "the mask %s cannot be used in mesh \"%s\": hierarchical knows the masks causal and full; the "
            "nearest mesh that works is \"%s\"",
            mask, now, with_role(mesh, SPL_ROLE_HIERARCHICAL, SPL_ROLE_RING, spec, sizeof spec));
    }
    if (c->dropout_attention > 0)
        return spli_error(
            SPL_EUSAGE,
            "attention dropout (%g) cannot be used in mesh \"%s\": a summary stands for many keys; set it "
            "to 0, or use \"%s\"",
            c->dropout_attention, now, with_role(mesh, SPL_ROLE_HIERARCHICAL, SPL_ROLE_RING, spec, sizeof spec));
    return spli_ok();
}

spl_status spli_schedule_check(const spl_mesh_spec *mesh, const spl_schedule *s, const spl_block_config *c) {
    char now[200];
    spl_mesh_format(mesh, now, sizeof now);
    SPL_TRY(check_roles(mesh, now));
    SPL_TRY(check_scheme(mesh, s, now));
    return check_hierarchical(mesh, s, c, now);
}

/* ---- layouts ---- */

/* How an axis splits the sequence. Axes along which keys travel all deal it out by the scheme, one inside the other; so
 * does ulysses where there is no such axis, else it takes stretches of the list that they left. */
static spl_placement of_sequence(const spli_placing *p, spl_role role, int first) {
    spl_placement out = {.place = SPL_SHARD, .dim = 1, .nest = rules[role].nest};
    int scheme = rules[role].schemes && (rules[role].travels || travelling(p->mesh) == SPL_ROLE_NONE);
    if (has_role(p->mesh, SPL_ROLE_HIERARCHICAL)) out.unit = p->schedule.chunk, out.ragged = 1;
    if (scheme) out.scheme = p->schedule.scheme;
    if (scheme && first && out.scheme == SPL_ZIGZAG) out.documents = p->documents;
    return out;
}

/* The outermost axis of more than one rank that splits the sequence, or -1. */
static int outermost(const spl_mesh_spec *mesh) {
    int best = -1;
    for (int a = 0; a < mesh->naxes; a++) {
        spl_role role = mesh->axes[a].role;
        if (rules[role].seq && mesh->axes[a].size > 1 &&
            (best < 0 || rules[role].nest < rules[mesh->axes[best].role].nest))
            best = a;
    }
    return best;
}

void spli_schedule_layout(const spli_placing *p, spli_kind kind, int ndim, const int64_t *shape, int64_t unit,
                          int64_t cover, spl_layout *out) {
    const int first = outermost(p->mesh);
    spl_layout_replicated(out, p->mesh, ndim, shape);
    for (int a = 0; a < p->mesh->naxes; a++) {
        spl_role role = p->mesh->axes[a].role;
        spl_placement *to = &out->axes[a];
        int activation = kind == SPLI_RESIDUAL || kind == SPLI_INNER;
        if (activation && rules[role].batch)
            *to = (spl_placement){.place = SPL_SHARD, .dim = 0};
        else if (activation && (kind == SPLI_INNER ? rules[role].seq_in : rules[role].seq))
            *to = of_sequence(p, role, a == first);
        else if ((kind == SPLI_COLUMN || kind == SPLI_ROW) && rules[role].inner)
            *to = (spl_placement){.place = SPL_SHARD, .dim = kind == SPLI_ROW, .unit = unit, .cover = cover};
    }
}

void spli_schedule_attention(const spl_mesh_spec *mesh, spl_role way, const spl_layout *now, int is_kv, int64_t cover,
                             spl_layout *out) {
    *out = *now;
    for (int a = 0; a < mesh->naxes; a++) {
        spl_role role = mesh->axes[a].role;
        if (rules[role].heads)
            out->axes[a] = (spl_placement){.place = SPL_SHARD, .dim = 2, .cover = cover, .nest = 1};
        else if (is_kv && rules[role].travels && role != way && has_role(mesh, way))
            out->axes[a] = (spl_placement){0}; /* gathered before the rest goes round the ring */
    }
}
