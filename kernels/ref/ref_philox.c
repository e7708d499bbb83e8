/* ref_philox.c: Philox 4x32-10 as the paper draws it, one block at a time, and the numbers made from it. */
#include "ref.h"

void splk_ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    const uint64_t multiplier0 = 3528531795u, multiplier1 = 3449720151u; /* 0xD2511F53, 0xCD9E8D57 */
    const uint32_t golden = 2654435769u, root3 = 3144134277u;            /* Weyl steps: golden ratio, sqrt(3) - 1 */
    for (int word = 0; word < 4; word++) out[word] = counter[word];
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t left = multiplier0 * out[0], right = multiplier1 * out[2];
        uint32_t next[4];
        next[0] = (uint32_t)(right / 4294967296u) ^ out[1] ^ (key[0] + round * golden);
        next[1] = (uint32_t)(right % 4294967296u);
        next[2] = (uint32_t)(left / 4294967296u) ^ out[3] ^ (key[1] + round * root3);
        next[3] = (uint32_t)(left % 4294967296u);
        memcpy(out, next, sizeof next);
    }
}

static void block_of(spl_rng_key key, int64_t g, uint32_t out[4]) {
    uint64_t number = (uint64_t)g / 4;
    uint32_t counter[4] = {(uint32_t)(number % 4294967296u), (uint32_t)(number / 4294967296u), 0, 0};
    splk_ref_philox(counter, key.word, out);
}

double splk_ref_uniform(spl_rng_key key, int64_t g) {
    uint32_t words[4];
    block_of(key, g, words);
    return ldexp((double)(words[g % 4] / 256), -24);
}

double splk_ref_normal(spl_rng_key key, int64_t g) {
    uint32_t words[4];
    block_of(key, g, words);
    int even = g % 4 < 2 ? 0 : 2;
    double u1 = ldexp((double)words[even] + 1, -32), u2 = ldexp((double)words[even + 1], -32);
    double r = sqrt(-2 * log(u1)), angle = 2 * acos(-1) * u2;
    return g % 2 == 0 ? r * cos(angle) : r * sin(angle);
}

int64_t splk_ref_global(const spl_index_map *m, int64_t local) {
    int64_t coordinate[SPL_MAX_DIMS], flat = 0;
    for (int d = m->ndim - 1; d >= 0; d--) {
        int64_t at = local % m->local[d];
        local /= m->local[d];
        for (int s = 0; s < m->nsegments[d]; s++) {
            const spl_segment *g = &m->segments[d][s];
            if (at < g->length) {
                coordinate[d] = g->start + at * g->stride;
                break;
            }
            at -= g->length;
        }
    }
    for (int d = 0; d < m->ndim; d++) flat = flat * m->global[d] + coordinate[d];
    return flat;
}
