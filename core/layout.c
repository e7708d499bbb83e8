/* layout.c: who holds what: segments of each dimension at each place of a mesh.
 *
 * A dimension of n elements is n / unit units, each standing for `cover` fine units (1 unless query heads share KV
 * heads). The list of all fine units is split by the axes that shard the dimension, outermost first; each split works
 * on positions in the list that the outer axes left, so any nesting and any scheme compose. At the end fine units
 * become units (each once, in order of first need: this is where shards of different ranks may overlap) and units
 * become elements. */
#include "layout.h"
#include <stdlib.h>
#include <string.h>

/* ---- lists of segments ---- */

void spli_segments_free(spli_segments *s) {
    free(s->at);
    memset(s, 0, sizeof *s);
}

int64_t spli_segments_total(const spl_segment *s, int n) {
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += s[i].length;
    return total;
}

/* Appends, joining it to the last segment where that is the same progression carried on. */
static void append(spli_segments *s, spl_segment next, int join_strided) {
    if (next.length <= 0 || s->failed) return;
    if (next.length == 1) next.stride = 1;
    if (s->n > 0) {
        spl_segment *last = &s->at[s->n - 1];
        int64_t gap = next.start - (last->start + (last->length - 1) * last->stride);
        int last_fits = last->length == 1 || last->stride == gap;
        int next_fits = next.length == 1 || next.stride == gap;
        if (gap > 0 && last_fits && next_fits && (gap == 1 || join_strided)) {
            last->stride = gap;
            last->length += next.length;
            return;
        }
    }
    if (s->n == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 8;
        spl_segment *at = realloc(s->at, (size_t)capacity * sizeof *at);
        if (!at) {
            s->failed = 1;
            return;
        }
        s->at = at;
        s->capacity = capacity;
    }
    s->at[s->n++] = next;
}

static spl_status finished(spli_segments *s) {
    if (!s->failed) return spli_ok();
    spli_segments_free(s);
    return spli_error(SPL_ENOMEM, "out of memory while listing the segments of a shard");
}

/* Appends the elements of `list` at the positions of `p`. */
static void select_positions(const spli_segments *list, spl_segment p, spli_segments *out) {
    int64_t offset = 0;
    for (int i = 0; i < list->n && p.length > 0; i++) {
        spl_segment s = list->at[i];
        int64_t end = offset + s.length;
        if (p.start < end) { /* how many positions of p fall into this segment */
            int64_t count = (end - p.start - 1) / p.stride + 1;
            if (count > p.length) count = p.length;
            append(out, (spl_segment){s.start + (p.start - offset) * s.stride, count,
                                      count > 1 ? s.stride * p.stride : 1}, 1);
            p.length -= count;
            if (p.length > 0) p.start += count * p.stride; /* else it may lie past the last number */
        }
        offset = end;
    }
}

spl_status spli_segments_part(const spl_segment *s, int n, int64_t begin, int64_t end, spli_segments *out) {
    int64_t offset = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n && offset < end; offset += s[i++].length) {
        int64_t from = begin > offset ? begin - offset : 0;
        int64_t to = end - offset < s[i].length ? end - offset : s[i].length;
        if (from < to) append(out, (spl_segment){s[i].start + from * s[i].stride, to - from, s[i].stride}, 1);
    }
    return finished(out);
}

spl_status spli_segments_restart(const spl_segment *s, int n, const spl_documents *documents, spli_segments *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        spl_segment rest = s[i];
        int d = 0; /* the document that the rest begins in */
        for (int low = 0, high = documents ? documents->n : 0; low < high;) {
            int middle = (low + high) / 2;
            if (documents->begins[middle] <= rest.start) d = middle, low = middle + 1;
            else high = middle;
        }
        while (documents && d + 1 < documents->n && rest.length > 0) {
            int64_t until = documents->begins[d + 1] - rest.start, count = (until + rest.stride - 1) / rest.stride;
            if (count > rest.length) count = rest.length;
            if (count > 0) append(out, (spl_segment){rest.start - documents->begins[d], count, rest.stride}, 0);
            if (count > 0) rest.start += count * rest.stride, rest.length -= count;
            d++;
        }
        if (documents) rest.start -= documents->begins[d];
        append(out, rest, 0);
    }
    return finished(out);
}

int64_t spli_split(int64_t n, int64_t parts, int64_t c, int64_t *start) {
    int64_t each = n / parts, more = n % parts;
    *start = c * each + (c < more ? c : more);
    return each + (c < more);
}

void spl_layout_retain(const spl_layout *l) {
    for (int a = 0; a < l->naxes; a++)
        if (l->axes[a].documents) ((spl_documents *)l->axes[a].documents)->refs++;
}

void spl_layout_release(const spl_layout *l) {
    for (int a = 0; a < l->naxes; a++) {
        spl_documents *d = (spl_documents *)l->axes[a].documents;
        if (d && --d->refs == 0) free(d);
    }
}

/* Chunks c and 2P-1-c of 2P: under a causal mask each part has the same work. Of a document, the chunks that are one
 * longer begin at chunk `turn`, so that short documents do not all favour the same part. */
static void zigzag_positions(int64_t begin, int64_t n, int parts, int c, int64_t turn, spli_segments *out) {
    int64_t chunks = 2 * (int64_t)parts, each = n / chunks, more = n % chunks;
    for (int half = 0; half < 2; half++) {
        int64_t chunk = half ? chunks - 1 - c : c, longer = 0; /* longer chunks before this one */
        int64_t end = turn + more;
        longer += chunk > turn ? (chunk < end ? chunk : end) - turn : 0;
        if (end > chunks) longer += chunk < end - chunks ? chunk : end - chunks; /* round the end */
        int is_longer = (chunk - turn + chunks) % chunks < more;
        append(out, (spl_segment){begin + chunk * each + longer, each + is_longer, 1}, 0);
    }
}

/* Positions of the part at c that an axis takes of a list of n. */
static void positions_of(const spl_placement *p, int64_t n, int parts, int c, spli_segments *out) {
    int64_t start, length, turn = 0;
    out->n = 0;
    switch (p->scheme) {
    case SPL_ZIGZAG:
        if (!p->documents) zigzag_positions(0, n, parts, c, 0, out);
        for (int i = 0; p->documents && i < p->documents->n; i++) {
            int64_t begin = p->documents->begins[i], end = i + 1 < p->documents->n ? p->documents->begins[i + 1] : n;
            zigzag_positions(begin, end - begin, parts, c, turn, out);
            turn = (turn + (end - begin)) % (2 * (int64_t)parts);
        }
        break;
    case SPL_STRIPED:
        append(out, (spl_segment){c, c < n ? (n - c - 1) / parts + 1 : 0, parts}, 1);
        break;
    case SPL_CONTIGUOUS:
        length = spli_split(n, parts, c, &start);
        append(out, (spl_segment){start, length, 1}, 1);
        break;
    }
}

int spli_layout_nesting(const spl_layout *l, int dim, int *axes) {
    int n = 0;
    for (int a = 0; a < l->naxes; a++) {
        if (l->axes[a].place != SPL_SHARD || l->axes[a].dim != dim) continue;
        int at = n++;
        while (at > 0 && l->axes[axes[at - 1]].nest > l->axes[a].nest) axes[at] = axes[at - 1], at--;
        axes[at] = a;
    }
    return n;
}

int spli_layout_sharded(const spl_layout *l, int dim) {
    for (int a = 0; a < l->naxes; a++)
        if (l->axes[a].place == SPL_SHARD && l->axes[a].dim == dim && l->axis_size[a] > 1) return 1;
    return 0;
}

/* Fine units to units, each once, in order of first need. */
static void coarsen(const spli_segments *fine, int64_t cover, int64_t units, spli_segments *out) {
    unsigned char *seen = calloc((size_t)(units > 0 ? units : 1), 1);
    if (!seen) {
        out->failed = 1;
        return;
    }
    for (int i = 0; i < fine->n; i++) {
        spl_segment s = fine->at[i];
        if (s.stride <= cover && s.length > 0) { /* no unit is stepped over, however many fine ones there are */
            int64_t first = s.start / cover, last = (s.start + (s.length - 1) * s.stride) / cover;
            s = (spl_segment){first * cover, last - first + 1, cover};
        }
        for (int64_t j = 0; j < s.length; j++) {
            int64_t u = (s.start + j * s.stride) / cover;
            if (!seen[u]) append(out, (spl_segment){u, 1, 1}, 0);
            seen[u] = 1;
        }
    }
    free(seen);
}

spl_status spli_layout_segments(const spl_layout *l, const int *coords, int dim, int skip, spli_segments *out) {
    int axes[SPL_MAX_AXES], naxes = spli_layout_nesting(l, dim, axes);
    int64_t unit = naxes ? spli_unit(&l->axes[axes[0]]) : 1, cover = naxes ? spli_cover(&l->axes[axes[0]]) : 1;
    int64_t units = l->shape[dim] / unit + (l->shape[dim] % unit != 0); /* a last, shorter one only where ragged */
    spli_segments list = {0}, next = {0}, positions = {0};
    append(&list, (spl_segment){0, units * cover, 1}, 1);
    for (int k = 0; k < naxes; k++) {
        int a = axes[k];
        if (a == skip) continue;
        positions_of(&l->axes[a], spli_segments_total(list.at, list.n), l->axis_size[a], coords[a], &positions);
        next.n = 0;
        next.failed |= positions.failed;
        for (int i = 0; i < positions.n; i++) select_positions(&list, positions.at[i], &next);
        spli_segments swap = list;
        list = next;
        next = swap;
        list.failed |= next.failed;
    }
    if (cover > 1) {
        next.n = 0;
        coarsen(&list, cover, units, &next);
        spli_segments swap = list;
        list = next;
        next = swap;
        list.failed |= next.failed;
    }
    memset(out, 0, sizeof *out);
    for (int i = 0; i < list.n; i++) {
        spl_segment s = list.at[i];
        if (unit == 1)
            append(out, s, cover == 1);
        else if (s.stride == 1)
            append(out, (spl_segment){s.start * unit, s.length * unit, 1}, 0);
        else
            for (int64_t j = 0; j < s.length; j++)
                append(out, (spl_segment){(s.start + j * s.stride) * unit, unit, 1}, 0);
    }
    if (out->n && !out->failed) { /* what a last unit has not */
        spl_segment *last = &out->at[out->n - 1];
        int64_t over = last->start + (last->length - 1) * last->stride + 1 - l->shape[dim];
        if (over > 0 && unit > 1) last->length -= over;
    }
    out->failed |= list.failed;
    spli_segments_free(&list);
    spli_segments_free(&next);
    spli_segments_free(&positions);
    return finished(out);
}

int spl_layout_segments(const spl_layout *l, const int *coords, int dim, spl_segment *out, int max) {
    spli_segments s;
    if (spli_layout_segments(l, coords, dim, -1, &s).code != SPL_OK) return -1;
    for (int i = 0; i < s.n && i < max; i++) out[i] = s.at[i];
    int n = s.n;
    spli_segments_free(&s);
    return n;
}

int64_t spl_layout_local_size(const spl_layout *l, const int *coords, int dim) {
    spli_segments s;
    if (spli_layout_segments(l, coords, dim, -1, &s).code != SPL_OK) return -1;
    int64_t total = spli_segments_total(s.at, s.n);
    spli_segments_free(&s);
    return total;
}

/* ---- where two lists meet ---- */

/* First index i >= 0 with a.start + i*a.stride >= x. */
static int64_t first_at_least(spl_segment a, int64_t x) {
    return x <= a.start ? 0 : (x - a.start - 1) / a.stride + 1;
}

int spli_segments_meet(const spl_segment *a, int na, const spl_segment *b, int nb, spli_run **out) {
    int n = 0, capacity = 0;
    *out = NULL;
    int64_t b_offset = 0;
    for (int j = 0; j < nb; b_offset += b[j].length, j++) {
        int64_t a_offset = 0;
        for (int i = 0; i < na; a_offset += a[i].length, i++) {
            int64_t ia = first_at_least(a[i], b[j].start), a_last = a[i].start + (a[i].length - 1) * a[i].stride;
            int64_t b_last = b[j].start + (b[j].length - 1) * b[j].stride;
            int64_t last = a_last < b_last ? a_last : b_last;
            /* Walk a until it falls on b's progression; at most b's stride steps are needed. */
            int64_t x = a[i].start + ia * a[i].stride, tries = 0;
            while (x <= last && (x - b[j].start) % b[j].stride != 0 && tries++ < b[j].stride) x += a[i].stride;
            if (a[i].length == 0 || b[j].length == 0 || x > last || (x - b[j].start) % b[j].stride != 0) continue;
            int64_t g = a[i].stride, h = b[j].stride;
            while (h) { int64_t t = g % h; g = h, h = t; }
            int64_t step = a[i].stride / g * b[j].stride;
            if (n == capacity) {
                capacity = capacity ? 2 * capacity : 4;
                spli_run *grown = realloc(*out, (size_t)capacity * sizeof **out);
                if (!grown) {
                    free(*out);
                    *out = NULL;
                    return -1;
                }
                *out = grown;
            }
            (*out)[n++] =
                (spli_run){a_offset + (x - a[i].start) / a[i].stride, b_offset + (x - b[j].start) / b[j].stride,
                           (last - x) / step + 1, step / a[i].stride, step / b[j].stride};
        }
    }
    return n;
}

/* The segments of member c less those of lower members (the lowest holder owns). Only a cover makes holdings overlap,
 * and then segments have stride 1. */
static spl_status owned_segments(const spl_layout *l, int *at, int axis, int c, int dim, spli_segments *out) {
    at[axis] = c;
    SPL_TRY(spli_layout_segments(l, at, dim, -1, out));
    if (l->axes[axis].place != SPL_SHARD || l->axes[axis].dim != dim || spli_cover(&l->axes[axis]) == 1)
        return spli_ok();
    for (int lower = 0; lower < c; lower++) {
        spli_segments theirs, rest = {0};
        at[axis] = lower;
        spl_status status = spli_layout_segments(l, at, dim, -1, &theirs);
        if (status.code != SPL_OK) {
            spli_segments_free(out);
            return status;
        }
        for (int i = 0; i < out->n; i++) {
            int64_t begin = out->at[i].start, end = begin + out->at[i].length;
            for (int j = 0; j < theirs.n; j++) { /* ascending, as units are */
                int64_t b = theirs.at[j].start, e = b + theirs.at[j].length;
                if (e <= begin || b >= end) continue;
                if (b > begin) append(&rest, (spl_segment){begin, b - begin, 1}, 0);
                begin = e < end ? e : end;
            }
            append(&rest, (spl_segment){begin, end - begin, 1}, 0);
        }
        rest.failed |= out->failed;
        spli_segments_free(&theirs);
        spli_segments_free(out);
        *out = rest;
    }
    return finished(out);
}

/* The position in list s of global index x, which it holds; segments of stride 1. */
static int64_t position_of(const spli_segments *s, int64_t x) {
    int64_t offset = 0;
    for (int k = 0; k < s->n; offset += s->at[k++].length)
        if (x >= s->at[k].start && x < s->at[k].start + s->at[k].length) return offset + x - s->at[k].start;
    return -1;
}

static int64_t index_at(const spli_segments *s, int64_t position) {
    int k = 0;
    while (position >= s->at[k].length) position -= s->at[k++].length;
    return s->at[k].start + position * s->at[k].stride;
}

spl_status spli_layout_transfer(const spl_layout *from, const spl_layout *to, const int *coords, int axis, int i, int j,
                                int dim, spli_run **runs, int *nruns) {
    int at[SPL_MAX_AXES];
    spli_segments held = {0}, owned = {0}, wanted = {0};
    spl_status status = spli_ok();
    memcpy(at, coords, sizeof at);
    *runs = NULL;
    *nruns = 0;
    at[axis] = j;
    SPL_GO(spli_layout_segments(to, at, dim, -1, &wanted), done);
    SPL_GO(owned_segments(from, at, axis, i, dim, &owned), done);
    int n = spli_segments_meet(owned.at, owned.n, wanted.at, wanted.n, runs);
    if (n < 0) SPL_GO(spli_error(SPL_ENOMEM, "out of memory while planning a redistribution"), done);
    at[axis] = i;
    SPL_GO(spli_layout_segments(from, at, dim, -1, &held), done);
    if (spli_segments_total(held.at, held.n) != spli_segments_total(owned.at, owned.n))
        for (int r = 0; r < n; r++) (*runs)[r].a = position_of(&held, index_at(&owned, (*runs)[r].a));
    *nruns = n;
done:
    if (status.code != SPL_OK) {
        free(*runs);
        *runs = NULL;
    }
    spli_segments_free(&held);
    spli_segments_free(&owned);
    spli_segments_free(&wanted);
    return status;
}

/* ---- checking and comparing ---- */

void spl_layout_replicated(spl_layout *l, const spl_mesh_spec *mesh, int ndim, const int64_t *shape) {
    memset(l, 0, sizeof *l);
    l->ndim = ndim;
    l->naxes = mesh ? mesh->naxes : 0;
    for (int d = 0; d < ndim; d++) l->shape[d] = shape[d];
    for (int a = 0; a < l->naxes; a++) {
        l->axis_size[a] = mesh->axes[a].size;
        memcpy(l->axis_name[a], mesh->axes[a].name, SPL_NAME_BYTES);
    }
}

/* A shard is kept as a list of segments; what would make an endless one is refused. Where units stay apart there is one
 * a unit, and a cover looks at each unit. */
static spl_status countable(const spl_layout *l, int a) {
    enum { MOST = 1 << 24 };
    const spl_placement *p = &l->axes[a];
    int64_t units = l->shape[p->dim] / spli_unit(p);
    int apart = p->scheme == SPL_STRIPED && spli_unit(p) > 1 && l->axis_size[a] > 1;
    if (spli_cover(p) == 1 && !apart) return spli_ok();
    if (units / (apart ? l->axis_size[a] : 1) <= MOST) return spli_ok();
    return spli_error(SPL_EARG,
                      "axis '%s' shards dimension %d of size %lld %s in units of %lld: %lld units on each rank are "
                      "more than can be listed (%d); use larger units or a contiguous shard",
                      l->axis_name[a], p->dim + 1, (long long)l->shape[p->dim], apart ? "striped" : "with a cover",
                      (long long)spli_unit(p), (long long)(units / (apart ? l->axis_size[a] : 1)), (int)MOST);
}

spl_status spl_layout_check(const spl_layout *l) {
    if (l->ndim < 0 || l->ndim > SPL_MAX_DIMS)
        return spli_error(SPL_EARG, "a tensor of %d dimensions was asked for; 0 to %d are possible", l->ndim,
                          SPL_MAX_DIMS);
    for (int d = 0; d < l->ndim; d++)
        if (l->shape[d] < 0)
            return spli_error(SPL_EARG, "dimension %d has size %lld; sizes are 0 or more", d + 1,
                              (long long)l->shape[d]);
    for (int a = 0; a < l->naxes; a++) {
        const spl_placement *p = &l->axes[a];
        if (p->place != SPL_SHARD) continue;
        if (p->dim < 0 || p->dim >= l->ndim)
            return spli_error(SPL_EARG, "axis '%s' shards dimension %d, but the tensor has dimensions 1 to %d",
                              l->axis_name[a], p->dim + 1, l->ndim);
        if (p->documents && (p->scheme != SPL_ZIGZAG || spli_unit(p) > 1 || spli_cover(p) > 1))
            return spli_error(SPL_EARG, "axis '%s' splits documents; that needs the scheme zigzag and units of 1",
                              l->axis_name[a]);
        if (p->unit < 0 || p->cover < 0 || (!p->ragged && l->shape[p->dim] % spli_unit(p) != 0))
            return spli_error(SPL_EARG,
                              "axis '%s' shards dimension %d of size %lld in units of %lld, which do not divide it",
                              l->axis_name[a], p->dim + 1, (long long)l->shape[p->dim], (long long)spli_unit(p));
        int64_t fine;
        if (__builtin_mul_overflow(l->shape[p->dim] / spli_unit(p), spli_cover(p), &fine))
            return spli_error(SPL_EARG, "axis '%s': a cover of %lld on dimension %d is more than can be counted",
                              l->axis_name[a], (long long)spli_cover(p), p->dim + 1);
        SPL_TRY(countable(l, a));
        for (int b = 0; b < a; b++) {
            const spl_placement *o = &l->axes[b];
            if (o->place == SPL_SHARD && o->dim == p->dim &&
                (spli_unit(o) != spli_unit(p) || spli_cover(o) != spli_cover(p) || o->ragged != p->ragged))
                return spli_error(SPL_EARG, "axes '%s' and '%s' split dimension %d in different units (%lld and %lld); "
                                  "axes that share a dimension split the same units", l->axis_name[b], l->axis_name[a],
                                  p->dim + 1, (long long)spli_unit(o), (long long)spli_unit(p));
        }
    }
    return spli_ok();
}

static int same_documents(const spl_documents *a, const spl_documents *b) {
    if (!a || !b) return a == b;
    return a->n == b->n && !memcmp(a->begins, b->begins, (size_t)a->n * sizeof *a->begins);
}

/* Does axis a do the same in both? An axis of one rank never does anything. */
static int same_placement(const spl_layout *x, const spl_layout *y, int a) {
    const spl_placement *p = &x->axes[a], *q = &y->axes[a];
    if (x->axis_size[a] == 1) return 1;
    if (p->place != q->place) return 0;
    return p->place != SPL_SHARD || (p->dim == q->dim && p->scheme == q->scheme && spli_unit(p) == spli_unit(q) &&
                                     spli_cover(p) == spli_cover(q) && p->ragged == q->ragged &&
                                     same_documents(p->documents, q->documents));
}

/* Axes (of more than one rank) that split the dimension, outermost first. */
static int real_nesting(const spl_layout *l, int dim, int *axes) {
    int n = spli_layout_nesting(l, dim, axes), kept = 0;
    for (int i = 0; i < n; i++)
        if (l->axis_size[axes[i]] > 1) axes[kept++] = axes[i];
    return kept;
}

int spl_layout_equal(const spl_layout *a, const spl_layout *b) {
    if (a->ndim != b->ndim || a->naxes != b->naxes) return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    for (int x = 0; x < a->naxes; x++)
        if (a->axis_size[x] != b->axis_size[x] || strcmp(a->axis_name[x], b->axis_name[x]) || !same_placement(a, b, x))
            return 0;
    for (int d = 0; d < a->ndim; d++) {
        int p[SPL_MAX_AXES], q[SPL_MAX_AXES], n = real_nesting(a, d, p);
        if (n != real_nesting(b, d, q) || memcmp(p, q, sizeof(int) * (size_t)n)) return 0;
    }
    return 1;
}

/* ---- paths between layouts ---- */

/* The axes that split `dim` now, and whether they are, in order, the first of those that shall. Where they are, they
 * take over the wanted nest numbers, so that axes still to come sort behind them. */
static int is_wanted_prefix(spl_layout *now, const spl_layout *to, int dim, int *count, int *next) {
    int p[SPL_MAX_AXES], q[SPL_MAX_AXES], np = real_nesting(now, dim, p), nq = real_nesting(to, dim, q);
    *count = np;
    *next = -1;
    if (np > nq) return 0;
    for (int i = 0; i < np; i++)
        if (p[i] != q[i] || !same_placement(now, to, p[i])) return 0;
    for (int i = 0; i < np; i++) now->axes[p[i]].nest = to->axes[p[i]].nest;
    *next = np < nq ? q[np] : -1;
    return 1;
}

static int innermost(const spl_layout *l, int dim) {
    int axes[SPL_MAX_AXES], n = real_nesting(l, dim, axes);
    return n ? axes[n - 1] : -1;
}

/* An axis may leave a dimension when no other splits inside it, and may enter one when it is the next to come there. */
static int can_change(spl_layout *now, const spl_layout *to, int axis) {
    const spl_placement *from = &now->axes[axis], *want = &to->axes[axis];
    int count, next;
    if (from->place == SPL_SHARD && innermost(now, from->dim) != axis) return 0;
    if (want->place != SPL_SHARD) return 1;
    if (from->place == SPL_SHARD && from->dim == want->dim) { /* another scheme: judge the dimension without it */
        spl_layout without = *now;
        without.axes[axis] = (spl_placement){0};
        return is_wanted_prefix(&without, to, want->dim, &count, &next) && next == axis;
    }
    return is_wanted_prefix(now, to, want->dim, &count, &next) && next == axis;
}

/* Cheaper changes first: those that leave less data on each rank for what follows. */
static int cost(const spl_placement *from, const spl_placement *to) {
    if (from->place == SPL_REPLICATE) return 0; /* slice, or a sum that waits: nothing moves */
    if (from->place == SPL_PARTIAL) return to->place == SPL_SHARD ? 1 : 3; /* reduce-scatter, all-reduce */
    return to->place == SPL_SHARD ? 2 : 4;                                 /* all-to-all, all-gather */
}

static void take_step(spl_layout *now, int axis, spl_placement to, spli_layout_step *steps, int *n) {
    now->axes[axis] = to;
    steps[*n].axis = axis;
    steps[*n].layout = *now;
    ++*n;
}

int spli_layout_path(const spl_layout *from, const spl_layout *to, spli_layout_step *steps) {
    spl_layout now = *from;
    int n = 0;
    for (int a = 0; a < now.naxes;
         a++) /* an axis of one rank does nothing; on the way it must not bring in other units either */
        if (now.axis_size[a] == 1) now.axes[a] = (spl_placement){0};
    while (n < SPLI_MAX_STEPS) {
        int undo = -1, best = -1, count, next;
        for (int d = 0; d < now.ndim; d++)
            if (!is_wanted_prefix(&now, to, d, &count, &next) && undo < 0) undo = innermost(&now, d);
        for (int a = 0; a < now.naxes; a++)
            if (!same_placement(&now, to, a) && can_change(&now, to, a) &&
                (best < 0 || cost(&now.axes[a], &to->axes[a]) < cost(&now.axes[best], &to->axes[best])))
                best = a;
        if (best >= 0)
            take_step(&now, best, to->axes[best], steps, &n);
        else if (undo >= 0)
            take_step(&now, undo, (spl_placement){0}, steps, &n);
        else
            break; /* arrived */
    }
    if (n > 0) steps[n - 1].layout = *to; /* the same holdings */
    return n;
}
