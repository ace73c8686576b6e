/* A portable pseudorandom number generator: SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number
 * generators, 2014). Not cryptographically secure. */
#ifndef QN_BASE_SPLITMIX_H
#define QN_BASE_SPLITMIX_H

#include <stdint.h>

#define QN_SPLITMIX_STEP 0x9e3779b97f4a7c15u

/* qn_splitmix - the next number; updates the state. Any initial state is valid. */
static inline uint64_t qn_splitmix(uint64_t *state)
{
    uint64_t z = *state += QN_SPLITMIX_STEP;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* qn_splitmix_before - the state n numbers ago. */
static inline uint64_t qn_splitmix_before(uint64_t state, uint64_t n)
{
    return state - n * QN_SPLITMIX_STEP;
}

#endif
