// Butterfly stages of a Walsh-Hadamard transform on values in registers: sums and differences of values `distance`
// apart (the stride). For hadamard/, and for kernels that fuse the transform (matmul/hadamard_quantize.cu,
// persistent/).
#ifndef QN_CUDA_KERNELS_BUTTERFLIES_CUH
#define QN_CUDA_KERNELS_BUTTERFLIES_CUH

#include "cuda/kernels/cuda.cuh"

// Between registers; distance in registers.
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

// Between lanes, distance in lanes: the lower lane keeps the sum, the upper lane the difference.
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
