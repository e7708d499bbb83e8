/* fuzz_mesh.c: libFuzzer target: any text as a mesh, for a number of ranks that the first byte chooses. What is
 * understood covers exactly the world, and means the same when it is written and read again. */
#include <string.h>
#include "fuzz.h"
#include "spl.h"

static int same(const spl_mesh_spec *a, const spl_mesh_spec *b) {
    int equal = a->naxes == b->naxes;
    for (int i = 0; equal && i < a->naxes; i++) {
        equal = !strcmp(a->axes[i].name, b->axes[i].name) && a->axes[i].size == b->axes[i].size &&
                a->axes[i].role == b->axes[i].role;
    }
    return equal;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static const int worlds[] = {1, 2, 3, 4, 6, 8, 12, 16, 64, 120, 1024, 1000003, 1 << 24, 2147483647};
    if (n == 0) return 0;
    int world = worlds[bytes[0] % (sizeof worlds / sizeof worlds[0])];
    char *text = fuzz_text(bytes + 1, n - 1, 4096), again[1024];
    spl_mesh_spec spec, reread;
    spl_status s = spl_mesh_parse(text, world, &spec);
    if (s.code != SPL_OK) {
        fuzz_require(s.code == SPL_EUSAGE && strlen(s.message) > 20, "a sentence, and exit code 2");
    } else {
        int64_t product = 1;
        fuzz_require(spec.naxes >= 1 && spec.naxes <= SPL_MAX_AXES, "1 to 6 axes");
        for (int i = 0; i < spec.naxes; i++) {
            fuzz_require(spec.axes[i].size >= 1 && spec.axes[i].role < SPL_ROLE_COUNT, "sizes and roles that exist");
            fuzz_require(spl_role_name(spec.axes[i].role), "a name of the role");
            product *= spec.axes[i].size;
        }
        fuzz_require(product == world, "the whole world");
        int length = spl_mesh_format(&spec, again, sizeof again);
        fuzz_require(length > 0 && length < (int)sizeof again && (int)strlen(again) == length, "its length");
        fuzz_require(spl_mesh_parse(again, world, &reread).code == SPL_OK && same(&spec, &reread), "the same again");
        char small[8];
        fuzz_require(spl_mesh_format(&spec, small, sizeof small) == length, "its length, though cut short");
        fuzz_require(strlen(small) < sizeof small, "an end");
    }
    free(text);
    return 0;
}
