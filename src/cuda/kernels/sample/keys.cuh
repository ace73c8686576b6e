// Keys that order logits and, of equal ones, their indices in descending order, as in sample.h. A NaN is above all
// numbers.
#ifndef QN_CUDA_KERNELS_SAMPLE_KEYS_CUH
#define QN_CUDA_KERNELS_SAMPLE_KEYS_CUH

#include "cuda/kernels/cuda.cuh"

QN_DEVICE uint64_t key_of(float x, uint32_t index)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); // -0 is 0
    const uint32_t ordered = x != x ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)ordered << 32 | (0xffffffffu - index);
}

QN_DEVICE uint32_t index_of(uint64_t key)
{
    return 0xffffffffu - (uint32_t)key;
}

QN_DEVICE uint64_t max_key(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

QN_DEVICE uint64_t warp_max_key(uint64_t key)
{
#pragma unroll
    for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
        key = max_key(key, __shfl_xor_sync(QN_FULL_MASK, key, distance));
    return key;
}

#endif
