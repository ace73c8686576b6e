/* A portable pseudorandom number generator: SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators,
 * 2014). Not cryptographically secure. */
#ifndef QN_BASE_SPLITMIX_H
#define QN_BASE_SPLITMIX_H

#include <stdint.h>

/* qn_splitmix - the next number; updates the state. Any initial state is valid. */
static inline uint64_t qn_splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
