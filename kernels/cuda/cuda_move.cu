/* cuda_move.cu: boxes (copies and additions between strided arrays), sums of several arrays, and fills. */
#include "gpu.h"

struct unit16 { uint64_t a, b; };

/* How two elements of a type are added: half precision in f32, rounded once; integers wrap; bool is or. */
SPLK_DEV double splk_add(double a, double b) { return a + b; }
SPLK_DEV float splk_add(float a, float b) { return a + b; }
SPLK_DEV __nv_bfloat16 splk_add(__nv_bfloat16 a, __nv_bfloat16 b) {
    return splk_round<__nv_bfloat16>(splk_load(a) + splk_load(b));
}
SPLK_DEV __half splk_add(__half a, __half b) { return splk_round<__half>(splk_load(a) + splk_load(b)); }
SPLK_DEV uint64_t splk_add(uint64_t a, uint64_t b) { return a + b; }
SPLK_DEV uint32_t splk_add(uint32_t a, uint32_t b) { return a + b; }
SPLK_DEV uint8_t splk_add(uint8_t a, uint8_t b) { return (uint8_t)(a + b); }
SPLK_DEV splk_bool splk_add(splk_bool a, splk_bool b) {
    splk_bool r;
    r.x = (uint8_t)(a.x != 0 || b.x != 0);
    return r;
}

struct place { int64_t dst, src; };

/* Of the index `at` in row-major order over dimensions [from, to). */
SPLK_DEV place splk_place(const splk_box &b, int64_t at, int from, int to) {
    place p = {0, 0};
    for (int d = to - 1; d >= from; d--) {
        int64_t i = at % b.shape[d];
        at /= b.shape[d];
        p.dst += i * b.dst_strides[d];
        p.src += i * b.src_strides[d];
    }
    return p;
}

template <class T, bool ADD> SPLK_KERNEL box_kernel(splk_box b) {
    T *dst = (T *)b.dst;
    const T *src = (const T *)b.src;
    for (int64_t i = splk_first(); i < b.count; i += splk_stride()) {
        place outer = splk_place(b, i, 0, b.parallel);
        for (int64_t j = 0; j < b.inner; j++) { /* more than one only where a destination is reached again */
            place p = splk_place(b, j, b.parallel, b.ndim);
            T x = src[outer.src + p.src];
            T *to = &dst[outer.dst + p.dst];
            if constexpr (ADD) *to = splk_add(*to, x);
            else *to = x;
        }
    }
}

template <class T, bool ADD> static cudaError_t box(cudaStream_t s, const splk_box *b) {
    SPLK_LAUNCH((box_kernel<T, ADD>), splk_blocks(b->count, SPLK_BLOCK), SPLK_BLOCK, 0, s, *b);
    return cudaGetLastError();
}

cudaError_t splk_launch_box(cudaStream_t s, const splk_box *b) {
    if (!b->add) {
        switch (b->unit) {
        case 16: return box<unit16, false>(s, b);
        case 8: return box<uint64_t, false>(s, b);
        case 4: return box<uint32_t, false>(s, b);
        case 2: return box<uint16_t, false>(s, b);
        default: return box<uint8_t, false>(s, b);
        }
    }
    switch (b->dtype) {
    case SPL_F64: return box<double, true>(s, b);
    case SPL_F32: return box<float, true>(s, b);
    case SPL_BF16: return box<__nv_bfloat16, true>(s, b);
    case SPL_F16: return box<__half, true>(s, b);
    case SPL_I64: return box<uint64_t, true>(s, b);
    case SPL_I32: return box<uint32_t, true>(s, b);
    default: return box<uint8_t, true>(s, b);
    }
}

/* ---- sums ---- */

template <class T> struct sum_of { /* the accumulator of a sum of several arrays */
    typedef T type;
    SPLK_DEV_MEMBER static T widen(T x) { return x; }
    SPLK_DEV_MEMBER static T narrow(T x) { return x; }
};
template <> struct sum_of<__nv_bfloat16> {
    typedef float type;
    SPLK_DEV_MEMBER static float widen(__nv_bfloat16 x) { return splk_load(x); }
    SPLK_DEV_MEMBER static __nv_bfloat16 narrow(float x) { return splk_round<__nv_bfloat16>(x); }
};
template <> struct sum_of<__half> {
    typedef float type;
    SPLK_DEV_MEMBER static float widen(__half x) { return splk_load(x); }
    SPLK_DEV_MEMBER static __half narrow(float x) { return splk_round<__half>(x); }
};
template <> struct sum_of<splk_bool> {
    typedef splk_bool type;
    SPLK_DEV_MEMBER static splk_bool widen(splk_bool x) {
        x.x = x.x != 0;
        return x;
    }
    SPLK_DEV_MEMBER static splk_bool narrow(splk_bool x) { return x; }
};

template <class T> SPLK_KERNEL sum_kernel(T *dst, const T *const *srcs, int nsrcs, int64_t n) {
    for (int64_t i = splk_first(); i < n; i += splk_stride()) {
        typename sum_of<T>::type sum = sum_of<T>::widen(srcs[0][i]);
        for (int k = 1; k < nsrcs; k++) sum = splk_add(sum, sum_of<T>::widen(srcs[k][i]));
        dst[i] = sum_of<T>::narrow(sum);
    }
}

template <class T>
static cudaError_t sum(cudaStream_t s, void *dst, const void *const *srcs, int nsrcs, int64_t n) {
    SPLK_LAUNCH(sum_kernel<T>, splk_blocks(n, SPLK_BLOCK), SPLK_BLOCK, 0, s, (T *)dst, (const T *const *)srcs, nsrcs,
                n);
    return cudaGetLastError();
}

cudaError_t splk_launch_sum(cudaStream_t s, void *dst, const void *const *srcs, int nsrcs, int64_t n, spl_dtype t) {
    switch (t) {
    case SPL_F64: return sum<double>(s, dst, srcs, nsrcs, n);
    case SPL_F32: return sum<float>(s, dst, srcs, nsrcs, n);
    case SPL_BF16: return sum<__nv_bfloat16>(s, dst, srcs, nsrcs, n);
    case SPL_F16: return sum<__half>(s, dst, srcs, nsrcs, n);
    case SPL_I64: return sum<uint64_t>(s, dst, srcs, nsrcs, n);
    case SPL_I32: return sum<uint32_t>(s, dst, srcs, nsrcs, n);
    case SPL_BOOL: return sum<splk_bool>(s, dst, srcs, nsrcs, n);
    default: return sum<uint8_t>(s, dst, srcs, nsrcs, n);
    }
}
