/* Pseudo-random numbers of the unit tests: the same in every run. */
#ifndef QN_TESTS_HELPER_RANDOM_H
#define QN_TESTS_HELPER_RANDOM_H

#include "helper_assert.h"

/* xorshift64; a test with its own seed assigns it. */
static uint64_t random_state = 88172645463325252u;

static inline uint64_t random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static inline uint32_t random_u32(void)
{
    return (uint32_t)(random_u64() >> 32);
}

static inline float random_float(void) /* in [-1, 1) */
{
    return (float)(int32_t)random_u32() * 0x1p-31f;
}

static inline float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

/* A number from -1 to 1 that depends only on its index. */
static inline float number_at(uint32_t i)
{
    i = (i + 1) * 2654435761u;
    i = (i ^ i >> 15) * 2246822519u;
    return (float)((i ^ i >> 13) >> 8) / (float)(1 << 23) - 1;
}

#endif
