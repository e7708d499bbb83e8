/* dtype.h: element types of tensors. */
#ifndef SPL_DTYPE_H
#define SPL_DTYPE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum spl_dtype {
    SPL_F64,
    SPL_F32,
    SPL_BF16,
    SPL_F16,
    SPL_I64,
    SPL_I32,
    SPL_U8,
    SPL_BOOL,
    SPL_DTYPE_COUNT
} spl_dtype;

/* [local] Bytes of one element. */
size_t spl_dtype_size(spl_dtype t);
/* [local] "f64" "f32" "bf16" "f16" "i64" "i32" "u8" "bool". */
const char *spl_dtype_name(spl_dtype t);
/* [local] 1 and *t set when `name` is one of the names above, else 0. */
int spl_dtype_parse(const char *name, spl_dtype *t);
/* [local] 1 for f64, f32, bf16, f16. */
int spl_dtype_is_float(spl_dtype t);

#ifdef __cplusplus
}
#endif
#endif
