/* philox.h: Philox 4x32-10 (Salmon et al., SC'11) for kernels, one counter at a time or a batch that vectorises. */
#ifndef SPLK_PHILOX_H
#define SPLK_PHILOX_H
#include "backend.h"

enum { SPLK_PHILOX_LANES = 16 };

/* w[word][lane] = the block with counter {lo(block[lane]), hi(block[lane]), 0, 0}. */
static inline void splk_philox_batch(spl_rng_key key, const uint64_t block[SPLK_PHILOX_LANES],
                                     uint32_t w[4][SPLK_PHILOX_LANES]) {
    uint32_t *restrict c0 = w[0], *restrict c1 = w[1], *restrict c2 = w[2], *restrict c3 = w[3];
    for (int i = 0; i < SPLK_PHILOX_LANES; i++) {
        c0[i] = (uint32_t)block[i];
        c1[i] = (uint32_t)(block[i] >> 32);
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < SPLK_PHILOX_LANES; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static inline void splk_philox_block(spl_rng_key key, uint64_t block, uint32_t w[4]) {
    uint64_t blocks[SPLK_PHILOX_LANES] = {block};
    uint32_t all[4][SPLK_PHILOX_LANES];
    splk_philox_batch(key, blocks, all);
    for (int j = 0; j < 4; j++) w[j] = all[j][0];
}

#endif
