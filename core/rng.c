/* rng.c: Philox 4x32-10, a counter-based generator: any element's draw can be made anywhere, in any order. */
#include "rng.h"

void spli_philox(const uint32_t counter[4], spl_rng_key key, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* Weyl sequence of the key schedule */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

spl_rng_key spli_rng_key(uint64_t seed, uint64_t instance, uint64_t step) {
    uint32_t counter[4] = {(uint32_t)instance, (uint32_t)(instance >> 32), (uint32_t)step, (uint32_t)(step >> 32)};
    spl_rng_key from_seed = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    uint32_t out[4];
    spli_philox(counter, from_seed, out);
    return (spl_rng_key){{out[0], out[1]}};
}
