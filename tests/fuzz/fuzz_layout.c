/* fuzz_layout.c: libFuzzer target: any text as a layout. The first three bytes choose mesh and shape. What is
 * understood means the same when it is written and read again, and its shards hold every element. */
#include <string.h>
#include "fuzz.h"
#include "spl.h"

static const char *const meshes[] = {"tp=1", "tp=3", "tp=2, cp=2", "dp=2:data, tp=2:tensor, cp=3:ring",
                                     "a=2, b=1, c=2, d=3, e=2, f=5"};
static const int worlds[] = {1, 3, 4, 12, 120};
static const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 13, 64, 1000, 4096, INT64_C(1) << 40, INT64_MAX};

/* Every part lies within the dimension, and where nothing is held twice the parts add up to it. */
static void check_parts(const spl_layout *l, const spl_mesh_spec *spec, int world) {
    enum { MOST = 64 };
    spl_segment segments[MOST];
    for (int d = 0; d < l->ndim; d++) {
        if (l->shape[d] > 4096) continue; /* longer lists of segments tell nothing new */
        int64_t held = 0, copies = 1;
        int overlaps = 0;
        for (int a = 0; a < l->naxes; a++) {
            int here = l->axes[a].place == SPL_SHARD && l->axes[a].dim == d;
            if (!here) copies *= l->axis_size[a];
            overlaps |= here && l->axes[a].cover > 1;
        }
        for (int rank = 0; rank < world; rank++) {
            int coords[SPL_MAX_AXES], rest = rank;
            for (int a = spec->naxes - 1; a >= 0; a--) {
                coords[a] = rest % spec->axes[a].size;
                rest /= spec->axes[a].size;
            }
            int64_t local = spl_layout_local_size(l, coords, d), total = 0;
            int n = spl_layout_segments(l, coords, d, segments, MOST);
            fuzz_require(n >= 0 && local >= 0 && local <= l->shape[d], "a part of the dimension");
            for (int i = 0; i < n && i < MOST; i++) {
                const spl_segment *s = &segments[i];
                fuzz_require(s->length > 0 && s->stride > 0 && s->start >= 0 &&
                             s->start + (s->length - 1) * s->stride < l->shape[d], "a segment within the dimension");
                total += s->length;
            }
            fuzz_require(n > MOST || total == local, "segments of the local size");
            held += local;
        }
        fuzz_require(overlaps ? held >= l->shape[d] * copies : held == l->shape[d] * copies, "every element held");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n < 3) return 0;
    size_t m = bytes[0] % (sizeof meshes / sizeof meshes[0]);
    enum { NSIZES = sizeof sizes / sizeof sizes[0] };
    spl_mesh_spec spec;
    fuzz_require(spl_mesh_parse(meshes[m], worlds[m], &spec).code == SPL_OK, "a mesh of ours");
    int ndim = bytes[1] % (SPL_MAX_DIMS + 1);
    int64_t shape[SPL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) shape[d] = sizes[(bytes[2] + 5 * (size_t)d) % NSIZES];
    char *text = fuzz_text(bytes + 3, n - 3, 4096), again[2048];
    spl_layout layout, reread;
    spl_status s = spl_layout_parse(text, &spec, ndim, shape, &layout);
    if (s.code != SPL_OK) {
        fuzz_require(strlen(s.message) > 20, "a sentence");
    } else {
        int length = spl_layout_format(&layout, again, sizeof again);
        fuzz_require(length > 0 && length < (int)sizeof again && (int)strlen(again) == length, "its length");
        s = spl_layout_parse(again, &spec, ndim, shape, &reread);
        fuzz_require(s.code == SPL_OK && spl_layout_equal(&layout, &reread), "the same again");
        check_parts(&layout, &spec, worlds[m]);
    }
    free(text);
    return 0;
}
