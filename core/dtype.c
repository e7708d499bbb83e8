/* dtype.c: sizes and names of element types. */
#include "dtype.h"
#include <string.h>

static const struct {
    const char *name;
    size_t size;
    int is_float;
} types[SPL_DTYPE_COUNT] = {
    [SPL_F64] = {"f64", 8, 1}, [SPL_F32] = {"f32", 4, 1}, [SPL_BF16] = {"bf16", 2, 1}, [SPL_F16] = {"f16", 2, 1},
    [SPL_I64] = {"i64", 8, 0}, [SPL_I32] = {"i32", 4, 0}, [SPL_U8] = {"u8", 1, 0},     [SPL_BOOL] = {"bool", 1, 0},
};

size_t spl_dtype_size(spl_dtype t) { return (unsigned)t < SPL_DTYPE_COUNT ? types[t].size : 0; }

const char *spl_dtype_name(spl_dtype t) { return (unsigned)t < SPL_DTYPE_COUNT ? types[t].name : "unknown"; }

int spl_dtype_is_float(spl_dtype t) { return (unsigned)t < SPL_DTYPE_COUNT && types[t].is_float; }

int spl_dtype_parse(const char *name, spl_dtype *t) {
    for (int i = 0; i < SPL_DTYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0) {
            *t = (spl_dtype)i;
            return 1;
        }
    return 0;
}
