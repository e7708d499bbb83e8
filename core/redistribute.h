/* redistribute.h: what the files of redistribution share. */
#ifndef SPL_REDISTRIBUTE_H
#define SPL_REDISTRIBUTE_H
#include "tensor.h"

/* [local] dst[i] = the sum over P parts of n bf16 or f16 numbers each, which follow each other, in their order and in
 * f32. */
spl_status spli_sum_widened(spl_runtime *rt, float *dst, const void *parts, spl_dtype t, int P, int64_t n);

/* [collective] `from`, a pending sum over `naxes` axes, becomes a finished tensor of `layout` and `dtype`, which differ
 * from from's in nothing but that (and f32 where from is bf16 or f16, or the other way round). */
spl_status spli_all_reduce_axes(spl_tensor *from, const int *axes, int naxes, const spl_layout *layout,
                                spl_dtype dtype, spl_tensor **out);

#endif
