/* mma.h: every PTX instruction that the kernels use, one small function each. The emulator has a twin of each, with the
 * same fragment layouts (PTX ISA, "Matrix fragments for mma.m16n8k16"), in tests/emu/twins.h. */
#ifndef SPLK_MMA_H
#define SPLK_MMA_H
#include "gpu.h"

#if defined(__CUDACC__)

SPLK_DEV uint32_t splk_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* d += a . b: a [16, 16], b [16, 8], d [16, 8] of f32, spread over the warp */
SPLK_DEV void splk_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
SPLK_DEV void splk_mma(float d[4], const uint32_t a[4], const uint32_t b[2], __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
SPLK_DEV void splk_ldmatrix(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(splk_shared_address(row)) : "memory");
}
SPLK_DEV void splk_ldmatrix_trans(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(splk_shared_address(row)) : "memory");
}

/* 16 bytes from global to shared memory, asynchronously; zeros where `have` is 0 (the source is not read then). */
SPLK_DEV void splk_copy16(void *shared, const void *global, int have) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;"
                 :: "r"(splk_shared_address(shared)), "l"(global), "r"(have ? 16 : 0) : "memory");
}
SPLK_DEV void splk_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most N groups of this thread's copies are under way. */
template <int N> SPLK_DEV void splk_copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

#else
#include "twins.h"
#endif

SPLK_DEV uint32_t splk_pair(float a, float b, __nv_bfloat16) {
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    uint32_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}
SPLK_DEV uint32_t splk_pair(float a, float b, __half) {
    __half2 h = __floats2half2_rn(a, b);
    uint32_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}

#endif
