// Steps of a Walsh-Hadamard transform, of values that a thread holds in registers: sums and differences at a distance. For the
// rooms that transform (hadamard/) or do so on the way to something else (matmul/hadamard_quantize.cu).
#ifndef QN_KERNELS_BUTTERFLIES_CUH
#define QN_KERNELS_BUTTERFLIES_CUH

#include "kernels/cuda.cuh"

// Between registers, at a distance in registers.
template <int distance, int count> QN_DEVICE void qn_butterflies(float *v)
{
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (i & distance)
            continue;
        const float a = v[i], b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
    }
}

// Between lanes: the lower lane keeps the sum, the upper one the difference.
template <int count> QN_DEVICE void qn_lane_butterflies(float *v, int distance)
{
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < count; i++) {
        const float other = __shfl_xor_sync(QN_FULL_MASK, v[i], distance);
        v[i] = upper ? other - v[i] : v[i] + other;
    }
}

#endif
