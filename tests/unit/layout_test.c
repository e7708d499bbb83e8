/* layout_test.c: layouts against a slow model that keeps plain lists of indices, and whole redistributions simulated
 * for all ranks of a mesh with the transfers that core works out: exact placement, not round trips. */
#include "layout.h"
#include "tap.h"
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;
static int rnd(int n) { /* xorshift, 0..n-1 */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int)(state % (uint64_t)n);
}

enum { MAX_N = 512, MAX_RANKS = 64 };

/* ---- the model: a list of fine units, cut axis by axis ---- */

static int model_list(const spl_layout *l, const int *coords, int dim, int *out) {
    int order[SPL_MAX_AXES], k = 0;
    for (int a = 0; a < l->naxes; a++)
        if (l->axes[a].place == SPL_SHARD && l->axes[a].dim == dim) order[k++] = a;
    for (int i = 0; i < k; i++)
        for (int j = i + 1; j < k; j++)
            if (l->axes[order[j]].nest < l->axes[order[i]].nest ||
                (l->axes[order[j]].nest == l->axes[order[i]].nest && order[j] < order[i])) {
                int t = order[i];
                order[i] = order[j], order[j] = t;
            }
    int unit = k && l->axes[order[0]].unit > 1 ? (int)l->axes[order[0]].unit : 1;
    int cover = k && l->axes[order[0]].cover > 1 ? (int)l->axes[order[0]].cover : 1;
    int n = (int)l->shape[dim] / unit * cover, list[MAX_N * 8], part[MAX_N * 8];
    for (int i = 0; i < n; i++) list[i] = i;
    for (int i = 0; i < k; i++) {
        int a = order[i], P = l->axis_size[a], c = coords[a], m = 0,
            chunks = l->axes[a].scheme == SPL_ZIGZAG ? 2 * P : P;
        for (int part_no = 0; part_no < chunks && l->axes[a].scheme != SPL_STRIPED; part_no++) {
            int mine = part_no == c || (chunks == 2 * P && part_no == 2 * P - 1 - c);
            int begin = 0;
            for (int q = 0; q < part_no; q++) begin += n / chunks + (q < n % chunks);
            for (int e = 0; mine && e < n / chunks + (part_no < n % chunks); e++) part[m++] = list[begin + e];
        }
        for (int e = 0; l->axes[a].scheme == SPL_STRIPED && e < n; e++)
            if (e % P == c) part[m++] = list[e];
        memcpy(list, part, sizeof(int) * (size_t)m);
        n = m;
    }
    char seen[MAX_N] = {0};
    int count = 0;
    for (int i = 0; i < n; i++) {
        int u = list[i] / cover;
        if (cover > 1 && seen[u]) continue;
        seen[u] = 1;
        for (int e = 0; e < unit; e++) out[count++] = u * unit + e;
    }
    return count;
}

static int expand(const spl_segment *s, int n, int *out) {
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < s[i].length; j++) out[count++] = (int)(s[i].start + j * s[i].stride);
    return count;
}

static void random_layout(spl_layout *l, int naxes, const int *sizes, int ndim, const int64_t *shape, const int *unit,
                          const int *cover, int partials) {
    memset(l, 0, sizeof *l);
    l->ndim = ndim, l->naxes = naxes;
    for (int d = 0; d < ndim; d++) l->shape[d] = shape[d];
    for (int a = 0; a < naxes; a++) {
        l->axis_size[a] = sizes[a];
        snprintf(l->axis_name[a], SPL_NAME_BYTES, "a%d", a);
        int what = rnd(partials ? 4 : 3);
        if (what == 0) continue;
        if (what == 3) {
            l->axes[a].place = SPL_PARTIAL;
            continue;
        }
        int d = rnd(ndim);
        l->axes[a] = (spl_placement){.place = SPL_SHARD,
                                     .dim = d,
                                     .scheme = (spl_scheme)rnd(3),
                                     .unit = unit[d],
                                     .cover = cover[d],
                                     .nest = rnd(3)};
    }
}

static void coords_of(const spl_layout *l, int rank, int *c) {
    for (int a = l->naxes - 1; a >= 0; a--) c[a] = rank % l->axis_size[a], rank /= l->axis_size[a];
}

static int ranks_of(const spl_layout *l) {
    int n = 1;
    for (int a = 0; a < l->naxes; a++) n *= l->axis_size[a];
    return n;
}

static void test_segments(void) {
    int wrong = 0, cases = 0, merged = 1;
    for (int round = 0; round < 3000; round++) {
        int naxes = 1 + rnd(3), sizes[3], unit[2] = {1 + rnd(3), 1}, cover[2] = {1 + rnd(3) * rnd(2), 1};
        int64_t shape[2] = {unit[0] * rnd(24), rnd(30)};
        for (int a = 0; a < naxes; a++) sizes[a] = 1 + rnd(4);
        spl_layout l;
        random_layout(&l, naxes, sizes, 2, shape, unit, cover, 0);
        if (spl_layout_check(&l).code != SPL_OK) wrong++;
        for (int r = 0; r < ranks_of(&l); r++)
            for (int d = 0; d < 2; d++) {
                int coords[SPL_MAX_AXES], want[MAX_N * 8], got[MAX_N * 8];
                spl_segment s[MAX_N];
                coords_of(&l, r, coords);
                int n = spl_layout_segments(&l, coords, d, s, MAX_N), nw = model_list(&l, coords, d, want),
                    ng = expand(s, n, got);
                cases++;
                if (nw != ng || memcmp(want, got, sizeof(int) * (size_t)nw)) wrong++;
                if (spl_layout_local_size(&l, coords, d) != nw) wrong++;
                for (int i = 1; i < n; i++)
                    if (s[i].start == s[i - 1].start + s[i - 1].length && s[i].stride == 1 && s[i - 1].stride == 1)
                        merged = 0;
            }
    }
    ok(wrong == 0, "segments equal the model's lists in %d random shards (%d wrong)", cases, wrong);
    ok(merged, "neighbouring segments are joined");
}

static void test_known(void) {
    spl_mesh_spec mesh = {.naxes = 1, .axes = {{"tp", 3, SPL_ROLE_NONE}}};
    int64_t shape[] = {4 * 8};
    spl_layout l;
    spl_segment s[4];
    spl_layout_replicated(&l, &mesh, 1, shape);
    l.axes[0] =
        (spl_placement){.place = SPL_SHARD, .unit = 8, .cover = 2}; /* 8 query heads, 4 KV heads of 8, 3 ranks */
    int c = 0;
    ok(spl_layout_segments(&l, &c, 0, s, 4) == 1 && s[0].start == 0 && s[0].length == 16,
       "KV heads of rank 0 are {0,1}");
    c = 1;
    ok(spl_layout_segments(&l, &c, 0, s, 4) == 1 && s[0].start == 8 && s[0].length == 16,
       "KV heads of rank 1 are {1,2}");
    c = 2;
    ok(spl_layout_segments(&l, &c, 0, s, 4) == 1 && s[0].start == 24 && s[0].length == 8, "KV heads of rank 2 are {3}");
    int64_t eight[] = {8};
    mesh.axes[0].size = 2;
    spl_layout_replicated(&l, &mesh, 1, eight);
    l.axes[0] = (spl_placement){.place = SPL_SHARD, .scheme = SPL_ZIGZAG};
    c = 0;
    ok(spl_layout_segments(&l, &c, 0, s, 4) == 2 && s[0].start == 0 && s[0].length == 2 && s[1].start == 6 &&
           s[1].length == 2,
       "zigzag of 8 on 2 ranks: rank 0 holds 0,1,6,7");
    c = 1;
    ok(spl_layout_segments(&l, &c, 0, s, 4) == 1 && s[0].start == 2 && s[0].length == 4,
       "zigzag of 8 on 2 ranks: rank 1 holds 2..5");
    int total = 0, most = 0, least = 1 << 30;
    mesh.axes[0].size = 4;
    int64_t odd[] = {2999};
    for (c = 0; c < 4; c++) {
        spl_layout_replicated(&l, &mesh, 1, odd);
        l.axes[0] = (spl_placement){.place = SPL_SHARD};
        int n = (int)spl_layout_local_size(&l, &c, 0);
        total += n, most = n > most ? n : most, least = n < least ? n : least;
    }
    ok(total == 2999 && most == 750 && least == 749, "2999 on 4 ranks: 750, 750, 750, 749");
}

/* ---- redistribution of a 2-d tensor, all ranks at once ---- */

typedef struct part {
    int rows, cols;
    double *v;
} part;

static part make_part(const spl_layout *l, const int *coords) {
    part p = {(int)spl_layout_local_size(l, coords, 0), (int)spl_layout_local_size(l, coords, 1), NULL};
    p.v = calloc((size_t)(p.rows * p.cols + 1), sizeof *p.v);
    return p;
}

/* The value of (i, j) as a rank at coords holds it: whole, or its share of a sum. Shares add up to the value. */
static double share(const spl_layout *l, const int *coords, int i, int j, int ragged) {
    double v = 1000 * i + j + 1;
    for (int a = 0; a < l->naxes; a++) {
        if (l->axes[a].place != SPL_PARTIAL) continue;
        int P = l->axis_size[a];
        if (ragged)
            v = coords[a] == P - 1 ? v - (P - 1) * 0.5 * (i + 1)
                                   : 0.5 * (i + 1); /* every member holds a part of the sum */
        else if (coords[a] != 0)
            v = 0;
    }
    return v;
}

static void step(const spl_layout *from, const spl_layout *to, int axis, part *parts, int ranks) {
    part *next = calloc((size_t)ranks, sizeof *next);
    spl_place before = from->axes[axis].place, after = to->axes[axis].place;
    for (int r = 0; r < ranks; r++) {
        int coords[SPL_MAX_AXES];
        coords_of(from, r, coords);
        int me = coords[axis], P = from->axis_size[axis];
        next[r] = make_part(to, coords);
        for (int i = 0; i < P; i++) {
            int at[SPL_MAX_AXES], sums = before == SPL_PARTIAL && after != SPL_PARTIAL;
            if (before == SPL_REPLICATE && (after == SPL_PARTIAL ? i != 0 || me != 0 : i != me)) continue;
            if (before == SPL_SHARD && after == SPL_PARTIAL && i != me) continue;
            memcpy(at, coords, sizeof at);
            at[axis] = i;
            int source = 0;
            for (int a = 0; a < from->naxes; a++) source = source * from->axis_size[a] + at[a];
            spli_run *runs[2];
            int n[2];
            for (int d = 0; d < 2; d++)
                if (spli_layout_transfer(from, to, coords, axis, i, me, d, &runs[d], &n[d]).code != SPL_OK) abort();
            for (int x = 0; x < n[0]; x++)
                for (int y = 0; y < n[1]; y++)
                    for (int64_t p = 0; p < runs[0][x].length; p++)
                        for (int64_t q = 0; q < runs[1][y].length; q++) {
                            double v = parts[source].v[(runs[0][x].a + p * runs[0][x].a_step) * parts[source].cols +
                                                       runs[1][y].a + q * runs[1][y].a_step];
                            double *dst = &next[r].v[(runs[0][x].b + p * runs[0][x].b_step) * next[r].cols +
                                                     runs[1][y].b + q * runs[1][y].b_step];
                            *dst = sums ? *dst + v : *dst != 0 ? 1e300 : v; /* an element that comes twice is a fault */
                        }
            free(runs[0]);
            free(runs[1]);
        }
    }
    for (int r = 0; r < ranks; r++) free(parts[r].v);
    memcpy(parts, next, sizeof *next * (size_t)ranks);
    free(next);
}

static void test_paths(void) {
    int wrong = 0, cases = 0, longest = 0, strays = 0, idle = 0;
    for (int round = 0; round < 4000; round++) {
        int naxes = 1 + rnd(3), sizes[3], unit[2] = {1 + rnd(3), 1}, cover[2] = {1 + rnd(3) * rnd(2), 1};
        int64_t shape[2] = {unit[0] * rnd(9), rnd(11)};
        for (int a = 0; a < naxes; a++) sizes[a] = 1 + rnd(3);
        spl_layout from, to, now;
        random_layout(&from, naxes, sizes, 2, shape, unit, cover, 1);
        random_layout(&to, naxes, sizes, 2, shape, unit, cover, 1);
        int ranks = ranks_of(&from), coords[SPL_MAX_AXES], rows[MAX_N * 8], cols[MAX_N * 8];
        part parts[MAX_RANKS];
        for (int r = 0; r < ranks; r++) {
            coords_of(&from, r, coords);
            parts[r] = make_part(&from, coords);
            model_list(&from, coords, 0, rows), model_list(&from, coords, 1, cols);
            for (int i = 0; i < parts[r].rows; i++)
                for (int j = 0; j < parts[r].cols; j++)
                    parts[r].v[i * parts[r].cols + j] = share(&from, coords, rows[i], cols[j], 1);
        }
        spli_layout_step steps[SPLI_MAX_STEPS];
        int n = spli_layout_path(&from, &to, steps);
        if (n > longest) longest = n;
        if (n >= SPLI_MAX_STEPS) strays++;
        if (n == 0 && !spl_layout_equal(&from, &to)) strays++;
        if (n > 0 && spl_layout_equal(&from, &to)) idle++;
        now = from;
        for (int s = 0; s < n; s++) {
            step(&now, &steps[s].layout, steps[s].axis, parts, ranks);
            now = steps[s].layout;
        }
        /* Pending sums: what all members hold must add up; elsewhere the value itself. */
        double *sum = calloc((size_t)(shape[0] * shape[1] + 1), sizeof *sum);
        int *copies = calloc((size_t)(shape[0] * shape[1] + 1), sizeof *copies);
        for (int r = 0; r < ranks; r++) {
            coords_of(&to, r, coords);
            int nr = model_list(&to, coords, 0, rows), nc = model_list(&to, coords, 1, cols), partial = 0, first = 1;
            cases++;
            if (nr != parts[r].rows || nc != parts[r].cols) {
                wrong++;
                continue;
            }
            for (int a = 0; a < to.naxes; a++)
                if (to.axes[a].place == SPL_PARTIAL && to.axis_size[a] > 1)
                    partial = 1, first = first && coords[a] == 0;
            for (int i = 0; i < nr; i++)
                for (int j = 0; j < nc; j++) {
                    double v = parts[r].v[i * nc + j], want = 1000 * rows[i] + cols[j] + 1;
                    sum[rows[i] * shape[1] + cols[j]] += v;
                    if (first) copies[rows[i] * shape[1] + cols[j]]++;
                    if (!partial && v != want) wrong++;
                }
        }
        for (int i = 0; i < shape[0] * shape[1]; i++) {
            double want = (1000 * (i / shape[1]) + i % shape[1] + 1) * copies[i];
            if (copies[i] == 0 || (sum[i] - want > 1e-9 * want || want - sum[i] > 1e-9 * want)) {
                /* With a cover and a pending sum an element may be placed at one of several holders only. */
                int overlapping = 0;
                for (int a = 0; a < to.naxes; a++)
                    if (to.axes[a].place == SPL_PARTIAL && to.axis_size[a] > 1) overlapping = cover[0] > 1;
                if (!overlapping || copies[i] == 0) wrong++;
            }
        }
        for (int r = 0; r < ranks; r++) free(parts[r].v);
        free(sum);
        free(copies);
    }
    ok(wrong == 0, "every element is where the target layout wants it, once, on %d ranks of random meshes (%d wrong)",
       cases, wrong);
    ok(strays == 0, "every path arrives (%d did not; longest %d steps)", strays, longest);
    ok(idle == 0, "equal layouts need no step (%d did)", idle);
}

static void test_meet(void) {
    int wrong = 0;
    for (int round = 0; round < 20000; round++) {
        spl_segment a = {rnd(20), rnd(12), 1 + rnd(6)}, b = {rnd(20), rnd(12), 1 + rnd(6)};
        spli_run *runs;
        int n = spli_segments_meet(&a, 1, &b, 1, &runs), hits = 0, found = 0;
        for (int64_t i = 0; i < a.length; i++)
            for (int64_t j = 0; j < b.length; j++) hits += a.start + i * a.stride == b.start + j * b.stride;
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < runs[r].length; i++) {
                int64_t pa = runs[r].a + i * runs[r].a_step, pb = runs[r].b + i * runs[r].b_step;
                found += pa < a.length && pb < b.length && a.start + pa * a.stride == b.start + pb * b.stride;
            }
        if (hits != found) wrong++;
        free(runs);
    }
    ok(wrong == 0, "progressions meet exactly where brute force says");
}

static void test_text(void) {
    spl_mesh_spec mesh = {.naxes = 2, .axes = {{"cp", 2, SPL_ROLE_NONE}, {"tp", 3, SPL_ROLE_NONE}}};
    int64_t shape[] = {4, 12};
    spl_layout l, again;
    char text[200];
    const char *good[] = {"replicate", "cp=shard(1,zigzag), tp=shard(2,unit:4)", "cp=partial, tp=shard(1,striped)",
                          "cp=shard(2,unit:2,cover:3,nest:2), tp=shard(2,unit:2,cover:3,nest:1)"};
    for (int i = 0; i < 4; i++) {
        spl_status s = spl_layout_parse(good[i], &mesh, 2, shape, &l);
        spl_layout_format(&l, text, sizeof text);
        ok(s.code == SPL_OK && !strcmp(text, good[i]) &&
               spl_layout_parse(text, &mesh, 2, shape, &again).code == SPL_OK && spl_layout_equal(&l, &again),
           "'%s' reads and writes alike", good[i]);
    }
    const char *bad[] = {"tp",
                         "tp=",
                         "xx=partial",
                         "tp=shard",
                         "tp=shard(3)",
                         "tp=shard(0)",
                         "tp=shard(1,foo)",
                         "tp=shard(2,unit:5)",
                         "tp=partial, tp=partial",
                         "tp=shard(1",
                         "cp=shard(2,unit:2),tp=shard(2)",
                         "tp=shard(1,unit:0)",
                         "tp=partial x"};
    for (int i = 0; i < 13; i++) {
        spl_status s = spl_layout_parse(bad[i], &mesh, 2, shape, &l);
        ok(s.code == SPL_EARG && strlen(s.message) > 10, "'%s' is refused: %s", bad[i],
           s.code ? s.message : "(accepted)");
    }
}

/* Chunks that do not divide the sequence: the last is shorter, and every index is held once. */
static void test_ragged(void) {
    int wrong = 0;
    for (int64_t n = 0; n < 40; n++)
        for (int64_t unit = 1; unit < 9; unit++)
            for (int P = 1; P < 6; P++) {
                spl_layout l = {.ndim = 1, .naxes = 1, .shape = {n}, .axis_size = {P}, .axes = {{.place = SPL_SHARD}}};
                int held[64] = {0};
                int64_t units = (n + unit - 1) / unit, before = 0;
                l.axes[0].unit = unit, l.axes[0].ragged = 1;
                wrong += spl_layout_check(&l).code != SPL_OK;
                for (int c = 0; c < P; c++) {
                    spl_segment s[64];
                    int got[64], count = expand(s, spl_layout_segments(&l, &c, 0, s, 64), got);
                    int64_t mine = units / P + (c < units % P), begin = before * unit, end = (before + mine) * unit;
                    if (end > n) end = n;
                    if (begin > n) begin = n;
                    wrong += count != end - begin || (count && got[0] != begin);
                    for (int i = 0; i < count; i++) held[got[i]]++;
                    before += mine;
                }
                for (int64_t i = 0; i < n; i++) wrong += held[i] != 1;
            }
    ok(wrong == 0, "shards of whole chunks, the last one shorter (%d wrong)", wrong);
}

/* Zigzag of documents: each index once, order kept, work of each document as even as its length allows. */
static void test_documents(void) {
    union {
        spl_documents list;
        char room[sizeof(spl_documents) + 8 * sizeof(int64_t)];
    } d;
    int wrong = 0;
    for (int round = 0; round < 2000; round++) {
        int P = 1 + rnd(5), docs = 1 + rnd(6);
        int64_t n = 0, ends[8] = {0};
        d.list.n = docs;
        for (int i = 0; i < docs; i++) d.list.begins[i] = n, n += 1 + rnd(20), ends[i] = n;
        spl_layout l = {.ndim = 1,
                        .naxes = 1,
                        .shape = {n},
                        .axis_size = {P},
                        .axes = {{.place = SPL_SHARD, .scheme = SPL_ZIGZAG, .documents = &d.list}}};
        int held[256] = {0}, total[8] = {0};
        wrong += spl_layout_check(&l).code != SPL_OK;
        for (int c = 0; c < P; c++) {
            spl_segment s[64];
            int got[256], count = expand(s, spl_layout_segments(&l, &c, 0, s, 64), got), of[8] = {0};
            for (int i = 0; i < count; i++) {
                int doc = 0;
                while (got[i] >= ends[doc]) doc++;
                held[got[i]]++, of[doc]++;
                wrong += i > 0 && got[i] <= got[i - 1];
            }
            for (int i = 0; i < docs; i++) { /* two chunks, each of the floor or the ceiling of the even share */
                int64_t length = ends[i] - d.list.begins[i], each = length / (2 * P);
                wrong += of[i] < 2 * each || of[i] > 2 * (each + (length % (2 * P) != 0));
            }
            total[c] = count;
        }
        for (int64_t i = 0; i < n; i++) wrong += held[i] != 1;
        for (int a = 0; a < P; a++)
            for (int b = 0; b < P; b++) wrong += total[a] - total[b] > 2; /* what is left over goes round */
        spli_segments s = {0}, back;
        int c = rnd(P);
        if (spli_layout_segments(&l, &c, 0, -1, &s).code != SPL_OK) wrong++;
        if (spli_segments_restart(s.at, s.n, &d.list, &back).code != SPL_OK) wrong++;
        int got[256], places[256], count = expand(s.at, s.n, got);
        wrong += expand(back.at, back.n, places) != count;
        for (int i = 0; i < count; i++) {
            int doc = 0;
            while (got[i] >= ends[doc]) doc++;
            wrong += places[i] != got[i] - d.list.begins[doc];
        }
        spli_segments_free(&s), spli_segments_free(&back);
    }
    ok(wrong == 0, "zigzag of documents, and positions in them (%d wrong)", wrong);
}

int main(void) {
    test_segments();
    test_known();
    test_meet();
    test_paths();
    test_text();
    test_ragged();
    test_documents();
    return tap_done();
}
