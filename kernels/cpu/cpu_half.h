/* cpu_half.h: bf16 and f16 on the CPU: stored in 16 bits, computed in f32, rounded once.
 *
 * Each slot of the table hands 16-bit work to its splk_half_ twin. A twin widens what it is given into f32 scratch, a
 * piece at a time, and lets the f32 slot compute; so there is one implementation of each formula, and what makes f32
 * faster or more exact serves bf16 and f16 too. Only the residual has a loop of its own: its arrays may be of two types
 * and its dropout belongs to the whole. An embedding copies rows, whatever is in them, and needs no twin. */
#ifndef SPLK_CPU_HALF_H
#define SPLK_CPU_HALF_H
#include "cpu.h"
#include "half.h"

#define splk_widen SPLK_LEVELED(splk_widen)
#define splk_narrow SPLK_LEVELED(splk_narrow)
#define splk_half_gemm SPLK_LEVELED(splk_half_gemm)
#define splk_half_norm SPLK_LEVELED(splk_half_norm)
#define splk_half_act SPLK_LEVELED(splk_half_act)
#define splk_half_residual SPLK_LEVELED(splk_half_residual)
#define splk_half_rope SPLK_LEVELED(splk_half_rope)
#define splk_half_nll SPLK_LEVELED(splk_half_nll)
#define splk_half_attention SPLK_LEVELED(splk_half_attention)

static inline int splk_is_half(spl_dtype t) { return t == SPL_BF16 || t == SPL_F16; }

#pragma GCC visibility push(hidden)

/* cpu_half.c: n elements of bf16, f16 or f32, the first at `at`, `stride` apart, to floats and back; by one thread. */
void splk_widen(float *dst, const void *src, spl_dtype t, int64_t at, int64_t stride, int64_t n);
void splk_narrow(void *dst, spl_dtype t, int64_t at, int64_t stride, const float *src, int64_t n);

spl_status splk_half_norm(void *ctx, spl_queue *q, const spl_norm_args *a);
spl_status splk_half_act(void *ctx, spl_queue *q, const spl_act_args *a);
spl_status splk_half_residual(void *ctx, spl_queue *q, const spl_residual_args *a);
spl_status splk_half_nll(void *ctx, spl_queue *q, const spl_nll_args *a);

/* cpu_half_gemm.c */
spl_status splk_half_gemm(void *ctx, spl_queue *q, const spl_gemm_args *a);

/* cpu_half_heads.c */
spl_status splk_half_rope(void *ctx, spl_queue *q, const spl_rope_args *a);
spl_status splk_half_attention(void *ctx, spl_queue *q, const spl_attn_args *a);

#pragma GCC visibility pop

#endif
