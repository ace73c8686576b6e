// Hi/lo int8 activations (QN_ACTS_HILO, matmul_cuda.h): the quantisation of a token's 128 columns, with the same bits by
// whichever kernel computes them, and its constants, which other layouts share.
#ifndef QN_KERNELS_MATMUL_HILO_CUH
#define QN_KERNELS_MATMUL_HILO_CUH

#include "kernels/cuda.cuh"
#include "kernels/matmul/matmul_cuda.h"

// The bits of |x|: ordered as the magnitudes are, with infinity and NaN above all numbers.
#define MAGNITUDE(x) (__float_as_uint(x) & 0x7fffffffu)
#define INF_BITS 0x7f800000u

// Groups with a smaller amax are quantised as zeros: 127 / amax would overflow (QN_MIN_GROUP_ABSMAX of matmul.h).
#define MIN_GROUP_ABSMAX 1e-30f

struct hilo_factors {
    float inverse, scale; // values to integers; accumulators of codes times 64 to sums
};

// amax: MAGNITUDE of the columns.
QN_DEVICE hilo_factors hilo_factors_of(uint32_t amax)
{
    const float x = __uint_as_float(amax);
    return { amax < INF_BITS && x >= MIN_GROUP_ABSMAX ? QN_HILO_MAX / x : 0,
             amax < INF_BITS ? x * (1.0f / (64.0f * QN_HILO_MAX)) : QN_NAN };
}

// hi and lo of four values as bytes; zeros for NaN times an inverse of 0.
QN_DEVICE uint2 hilo_words(const float x[4], const float inverse[4])
{
    uint2 words = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int code = __float2int_rn(x[i] * inverse[i]), hi = (code + 128) >> 8, lo = code - 256 * hi;
        words.x |= (uint32_t)(hi & 255) << 8 * i;
        words.y |= (uint32_t)(lo & 255) << 8 * i;
    }
    return words;
}

// The hi byte of column 16 i of a token in its block of 128 columns; lo is 1024 bytes further.
QN_DEVICE uint8_t *hilo_at(uint8_t *acts, uint32_t capacity, uint32_t block, uint32_t token, uint32_t i)
{
    return acts + ((uint64_t)block * (capacity / QN_MMA_N) + token / QN_MMA_N) * QN_ACTS_HILO_BYTES + token % 8 * 128 +
           ((i ^ token % 8) * 16);
}

#endif
