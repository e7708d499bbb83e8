/* rng.h: Philox 4x32-10 (Salmon et al., SC'11) and how its keys are made. */
#ifndef SPL_RNG_H
#define SPL_RNG_H
#include "backend.h"

/* [local] The block of four words for one counter. */
void spli_philox(const uint32_t counter[4], spl_rng_key key, uint32_t out[4]);
/* [local] The key of one op instance at one step: the first two words of Philox with key `seed` and counter
 * {lo(instance), hi(instance), lo(step), hi(step)}. */
spl_rng_key spli_rng_key(uint64_t seed, uint64_t instance, uint64_t step);

#endif
