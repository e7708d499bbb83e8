/* mesh.c: named axes over the ranks, their notation, and one communicator an axis. */
#include "runtime.h"
#include "tensor.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_names[SPL_ROLE_COUNT] = {
    "", "tensor", "sequence", "data", "ulysses", "ring", "gather", "hierarchical", "fsdp", "pipeline",
};

const char *spl_role_name(spl_role r) { return (unsigned)r < SPL_ROLE_COUNT ? role_names[r] : "unknown"; }

/* ---- notation: axis=SIZE[:role], ... ---- */

static void skip_space(const char **s) {
    while (isspace((unsigned char)**s)) ++*s;
}

static spl_status not_understood(const char *text, const char *at) {
    return spli_error(SPL_EUSAGE,
                      "mesh '%.120s' is not understood at '%.40s'; write axes as name=SIZE:role separated by commas, "
                      "for example \"dp=2:data, tp=*:sequence\"",
                      text, *at ? at : "its end");
}

/* Edit distance of short words, to suggest the nearest role. */
static int distance(const char *a, const char *b) {
    int row[SPL_NAME_BYTES + 1], n = (int)strlen(b);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static spl_status parse_role(const char *text, const char *word, spl_role *out) {
    int nearest = 1;
    for (int r = 1; r < SPL_ROLE_COUNT; r++) {
        if (!strcmp(word, role_names[r])) {
            *out = (spl_role)r;
            return spli_ok();
        }
        if (distance(word, role_names[r]) < distance(word, role_names[nearest])) nearest = r;
    }
    int near = distance(word, role_names[nearest]) <= (int)strlen(role_names[nearest]) / 3;
    return spli_error(SPL_EUSAGE,
                      "mesh '%.120s' has the unknown role '%.31s'%s%s%s roles are tensor, sequence, data, "
                      "ulysses, ring, gather, hierarchical, fsdp and pipeline",
                      text, word, near ? "; did you mean '" : ";", near ? role_names[nearest] : "",
                      near ? "'? The" : "");
}

static spl_status parse_axis(const char *text, const char **s, spl_axis *axis) {
    const char *at = *s;
    size_t n = 0;
    memset(axis, 0, sizeof *axis);
    while (isalnum((unsigned char)**s) || **s == '_') {
        if (n + 1 == sizeof axis->name)
            return spli_error(SPL_EUSAGE, "mesh '%.120s' has an axis name of more than %d letters", text,
                              SPL_NAME_BYTES - 1);
        axis->name[n++] = *(*s)++;
    }
    skip_space(s);
    if (!n || isdigit((unsigned char)axis->name[0]) || **s != '=') return not_understood(text, at);
    ++*s;
    skip_space(s);
    at = *s;
    if (**s == '*') {
        ++*s;
        axis->size = 0; /* what is left of the world */
    } else {
        char *end;
        long size = strtol(*s, &end, 10);
        if (end == *s) return not_understood(text, at);
        if (size < 1 || size > 1 << 24)
            return spli_error(SPL_EUSAGE,
                              "mesh '%.120s' gives axis '%s' the size %.*s; sizes are 1 or more, or * for what is left "
                              "of the world",
                              text, axis->name, (int)(end - *s < 20 ? end - *s : 20), *s);
        axis->size = (int)size;
        *s = end;
    }
    skip_space(s);
    if (**s == ':') {
        char word[SPL_NAME_BYTES];
        size_t k = 0;
        ++*s;
        skip_space(s);
        at = *s;
        while (isalnum((unsigned char)**s) || **s == '_' || **s == '-') {
            if (k + 1 < sizeof word) word[k++] = **s;
            ++*s;
        }
        word[k] = 0;
        if (!k) return not_understood(text, at);
        SPL_TRY(parse_role(text, word, &axis->role));
        skip_space(s);
    }
    return spli_ok();
}

spl_status spl_mesh_parse(const char *text, int world, spl_mesh_spec *out) {
    const char *s = text;
    int star = -1;
    int64_t product = 1;
    memset(out, 0, sizeof *out);
    skip_space(&s);
    if (!*s) return spli_error(SPL_EUSAGE, "the mesh is empty; name at least one axis, for example \"tp=*:sequence\"");
    for (;;) {
        if (out->naxes == SPL_MAX_AXES)
            return spli_error(SPL_EUSAGE, "mesh '%.120s' has more than %d axes", text, SPL_MAX_AXES);
        spl_axis *axis = &out->axes[out->naxes];
        SPL_TRY(parse_axis(text, &s, axis));
        for (int a = 0; a < out->naxes; a++)
            if (!strcmp(out->axes[a].name, axis->name))
                return spli_error(SPL_EUSAGE, "mesh '%.120s' names axis '%s' twice; give each axis its own name", text,
                                  axis->name);
        if (axis->size == 0) {
            if (star >= 0)
                return spli_error(SPL_EUSAGE,
                                  "mesh '%.120s' has two axes of size *; only one can take what is left of the world",
                                  text);
            star = out->naxes;
        } else {
            product *= axis->size;
            if (product > 1 << 24) return spli_error(SPL_EUSAGE, "mesh '%.120s' has more than 16,777,216 ranks", text);
        }
        out->naxes++;
        if (!*s) break;
        if (*s != ',') return not_understood(text, s);
        s++;
        skip_space(&s);
    }
    if (star >= 0) {
        if (world % product != 0)
            return spli_error(
                SPL_EUSAGE,
                "mesh '%.120s' cannot fill %d rank%s: its other axes multiply to %lld, which does not divide "
                "%d; change a size or the number of ranks",
                text, world, world == 1 ? "" : "s", (long long)product, world);
        if (world / product > 1 << 24)
            return spli_error(SPL_EUSAGE, "mesh '%.120s' gives axis '%s' %lld ranks, more than 16,777,216", text,
                              out->axes[star].name, (long long)(world / product));
        out->axes[star].size = (int)(world / product);
    } else if (product != world) {
        return spli_error(SPL_EUSAGE,
                          "mesh '%.120s' has %lld rank%s, but there %s %d; start %lld, or let one axis be * "
                          "(\"%s=*\")",
                          text, (long long)product, product == 1 ? "" : "s", world == 1 ? "is" : "are", world,
                          (long long)product, out->axes[out->naxes - 1].name);
    }
    return spli_ok();
}

int spl_mesh_format(const spl_mesh_spec *spec, char *out, size_t n) {
    size_t used = 0;
    if (n) *out = 0;
    for (int a = 0; spec && a < spec->naxes; a++) {
        const spl_axis *x = &spec->axes[a];
        int w = snprintf(used < n ? out + used : NULL, used < n ? n - used : 0, "%s%s=%d%s%s", a ? ", " : "", x->name,
                         x->size, x->role ? ":" : "", spl_role_name(x->role));
        used += w > 0 ? (size_t)w : 0;
    }
    return (int)used;
}

/* ---- places ---- */

int spli_mesh_member(const spl_mesh_spec *spec, const int *coords) {
    int rank = 0;
    for (int a = 0; a < spec->naxes; a++) rank = rank * spec->axes[a].size + coords[a];
    return rank;
}

void spli_mesh_coords(const spl_mesh_spec *spec, int rank, int *coords) {
    for (int a = spec->naxes - 1; a >= 0; a--) {
        coords[a] = rank % spec->axes[a].size;
        rank /= spec->axes[a].size;
    }
}

/* ---- the object ---- */

static void mesh_free(spl_mesh *m) {
    for (int a = 0; a < m->spec.naxes; a++)
        if (m->comm[a]) m->comm[a]->ops->close(m->comm[a]);
    for (int r = 0; r < SPL_ROLE_COUNT; r++)
        if (m->joined[r]) m->joined[r]->ops->close(m->joined[r]);
    m->rt->counters.live_meshes--;
    free(m);
}

/* Axes of more than one rank with this role, in mesh order. */
static int axes_of(const spl_mesh_spec *spec, spl_role role, int *axes) {
    int n = 0;
    for (int a = 0; a < spec->naxes; a++)
        if (spec->axes[a].role == role && spec->axes[a].size > 1) axes[n++] = a;
    return n;
}

/* The comm of this rank's group along the given axes; the last varies fastest, so ranks rise. */
static spl_status open_group(spl_mesh *m, const int *axes, int naxes, int *members, spl_comm **out) {
    char name[4 * SPL_NAME_BYTES] = "";
    int at[SPL_MAX_AXES], n = 1;
    memcpy(at, m->coords, sizeof at);
    for (int i = 0; i < naxes; i++) {
        n *= m->spec.axes[axes[i]].size;
        snprintf(name + strlen(name), sizeof name - strlen(name), "%s%s", i ? "*" : "", m->spec.axes[axes[i]].name);
    }
    for (int c = 0; c < n; c++) {
        for (int i = naxes - 1, rest = c; i >= 0; rest /= m->spec.axes[axes[i--]].size)
            at[axes[i]] = rest % m->spec.axes[axes[i]].size;
        members[c] = spli_mesh_member(&m->spec, at);
    }
    /* Groups along the same axes differ in their members, so they may share an id: it is the same on every rank. */
    return spli_comm_group(m->rt, members, n, name, m->rt->next_comm_id++, out);
}

spl_status spli_mesh_group(const spl_mesh *m, spl_role role, const int *axes, int naxes, spl_comm **out) {
    int own[SPL_MAX_AXES];
    *out = naxes == 1 ? m->comm[axes[0]] : NULL;
    for (int r = 0; naxes > 1 && r < SPL_ROLE_COUNT && !*out; r++)
        if (m->joined[r] && axes_of(&m->spec, (spl_role)r, own) == naxes &&
            !memcmp(own, axes, (size_t)naxes * sizeof *axes))
            *out = m->joined[r];
    if (*out) return spli_ok();
    return spli_error(
        SPL_EARG,
        "the sequence is split along %d axes that do not all have the role %s; give them that role in the "
        "mesh, or use one axis",
        naxes, role ? spl_role_name(role) : "ring or gather");
}

spl_status spl_mesh_create(spl_runtime *rt, const spl_mesh_spec *spec, spl_mesh **out) {
    int64_t ranks = 1;
    for (int a = 0; a < spec->naxes; a++) ranks *= spec->axes[a].size;
    if (spec->naxes < 1 || spec->naxes > SPL_MAX_AXES || ranks != rt->size)
        return spli_error(SPL_EUSAGE, "a mesh of %lld ranks was asked for, but there are %d", (long long)ranks,
                          rt->size);
    spl_mesh *m = calloc(1, sizeof *m);
    int *members = malloc(sizeof(int) * (size_t)rt->size);
    spl_status status = spli_ok();
    if (!m || !members) {
        free(m);
        free(members);
        return spli_error(SPL_ENOMEM, "out of memory while making a mesh");
    }
    m->rt = rt;
    m->refs = 1;
    m->spec = *spec;
    rt->counters.live_meshes++;
    spli_mesh_coords(spec, rt->rank, m->coords);
    for (int a = 0; a < spec->naxes; a++) SPL_GO(open_group(m, &a, 1, members, &m->comm[a]), done);
    static const spl_role travelled[] = {SPL_ROLE_RING, SPL_ROLE_GATHER, SPL_ROLE_HIERARCHICAL};
    for (int r = 0; r < 3; r++) {
        int axes[SPL_MAX_AXES], n = axes_of(spec, travelled[r], axes);
        if (n > 1) SPL_GO(open_group(m, axes, n, members, &m->joined[travelled[r]]), done);
    }
    *out = m;
done:
    free(members);
    if (status.code != SPL_OK) mesh_free(m);
    return status;
}

void spl_mesh_retain(spl_mesh *m) { m->refs++; }

void spl_mesh_release(spl_mesh *m) {
    if (m && --m->refs == 0) mesh_free(m);
}

const spl_mesh_spec *spl_mesh_spec_of(const spl_mesh *m) { return &m->spec; }

int spl_mesh_coord(const spl_mesh *m, int axis) { return m->coords[axis]; }

int spl_mesh_find(const spl_mesh *m, const char *axis) {
    for (int a = 0; a < m->spec.naxes; a++)
        if (!strcmp(m->spec.axes[a].name, axis)) return a;
    return -1;
}

/* ---- hosts ---- */

/* Different hosts among n ranks, `stride` apart. */
static int hosts_among(const int *host_of, int64_t first, int64_t stride, int64_t n) {
    int different = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t before = 0;
        while (before < i && host_of[first + before * stride] != host_of[first + i * stride]) before++;
        different += before == i;
    }
    return different;
}

int spl_mesh_spans(const spl_mesh_spec *spec, const int *host_of, int axis) {
    int64_t ranks = 1, stride = 1;
    const int64_t size = spec->axes[axis].size;
    int most = 1;
    for (int a = 0; a < spec->naxes; a++) ranks *= spec->axes[a].size;
    for (int a = axis + 1; a < spec->naxes; a++) stride *= spec->axes[a].size;
    for (int64_t r = 0; r < ranks; r++) {
        if (r / stride % size != 0) continue; /* the first of each group */
        int n = hosts_among(host_of, r, stride, size);
        if (n > most) most = n;
    }
    return most;
}

int spl_mesh_hosts(const spl_mesh *m, int axis) {
    const spl_runtime *rt = m->rt;
    if (!rt->host_of) return 1;
    return axis < 0 ? hosts_among(rt->host_of, 0, 1, rt->size) : spl_mesh_spans(&m->spec, rt->host_of, axis);
}
