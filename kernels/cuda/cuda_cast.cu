/* cuda_cast.cu: conversions between any two element types, and filling with a value.
 *
 * Float to float rounds once, to nearest even. Float to integer truncates toward zero, saturates, and takes NaN as 0;
 * integer to smaller integer saturates; anything to bool is x != 0 (NaN is true). */
#include "gpu.h"
#include "convert.h"

template <class TO, class FROM> SPLK_KERNEL cast_kernel(TO *dst, const FROM *src, int64_t n) {
    for (int64_t i = splk_first(); i < n; i += splk_stride()) splk_store(&dst[i], splk_value(src[i]));
}

template <class TO, class FROM> static cudaError_t cast(cudaStream_t s, void *dst, const void *src, int64_t n) {
    SPLK_LAUNCH((cast_kernel<TO, FROM>), splk_blocks(n, SPLK_BLOCK), SPLK_BLOCK, 0, s, (TO *)dst, (const FROM *)src, n);
    return cudaGetLastError();
}

template <class TO>
static cudaError_t cast_to(cudaStream_t s, void *dst, const void *src, spl_dtype from, int64_t n) {
    switch (from) {
    case SPL_F64: return cast<TO, double>(s, dst, src, n);
    case SPL_F32: return cast<TO, float>(s, dst, src, n);
    case SPL_BF16: return cast<TO, __nv_bfloat16>(s, dst, src, n);
    case SPL_F16: return cast<TO, __half>(s, dst, src, n);
    case SPL_I64: return cast<TO, int64_t>(s, dst, src, n);
    case SPL_I32: return cast<TO, int32_t>(s, dst, src, n);
    case SPL_BOOL: return cast<TO, splk_bool>(s, dst, src, n);
    default: return cast<TO, uint8_t>(s, dst, src, n);
    }
}

cudaError_t splk_launch_cast(cudaStream_t s, void *dst, spl_dtype to, const void *src, spl_dtype from, int64_t n) {
    switch (to) {
    case SPL_F64: return cast_to<double>(s, dst, src, from, n);
    case SPL_F32: return cast_to<float>(s, dst, src, from, n);
    case SPL_BF16: return cast_to<__nv_bfloat16>(s, dst, src, from, n);
    case SPL_F16: return cast_to<__half>(s, dst, src, from, n);
    case SPL_I64: return cast_to<int64_t>(s, dst, src, from, n);
    case SPL_I32: return cast_to<int32_t>(s, dst, src, from, n);
    case SPL_BOOL: return cast_to<splk_bool>(s, dst, src, from, n);
    default: return cast_to<uint8_t>(s, dst, src, from, n);
    }
}

/* ---- fills ---- */

template <class T> SPLK_KERNEL fill_kernel(T *dst, int64_t n, double value) {
    for (int64_t i = splk_first(); i < n; i += splk_stride()) splk_store(&dst[i], value);
}

template <class T> static cudaError_t fill(cudaStream_t s, void *dst, int64_t n, double value) {
    SPLK_LAUNCH(fill_kernel<T>, splk_blocks(n, SPLK_BLOCK), SPLK_BLOCK, 0, s, (T *)dst, n, value);
    return cudaGetLastError();
}

cudaError_t splk_launch_fill(cudaStream_t s, void *dst, spl_dtype t, int64_t n, double value) {
    switch (t) {
    case SPL_F64: return fill<double>(s, dst, n, value);
    case SPL_F32: return fill<float>(s, dst, n, value);
    case SPL_BF16: return fill<__nv_bfloat16>(s, dst, n, value);
    case SPL_F16: return fill<__half>(s, dst, n, value);
    case SPL_I64: return fill<int64_t>(s, dst, n, value);
    case SPL_I32: return fill<int32_t>(s, dst, n, value);
    case SPL_BOOL: return fill<splk_bool>(s, dst, n, value);
    default: return fill<uint8_t>(s, dst, n, value);
    }
}
