// Search in a sequence of adjacent ranges whose sizes a kernel computes: which row, piece or page a block works on.
#ifndef QN_CUDA_KERNELS_RANGES_CUH
#define QN_CUDA_KERNELS_RANGES_CUH

#include "cuda/kernels/launch.h"

QN_DEVICE uint64_t qn_warp_sum_u64(uint64_t x)
{
#pragma unroll
    for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(QN_FULL_MASK, (unsigned long long)x, distance);
    return x;
}

// Range `index` begins at `begin`.
struct qn_range {
    uint32_t index;
    uint64_t begin;
};

// The range that contains x, of n adjacent ranges from 0 on of size_of(index) each; index n if none does. By full
// warps: each computes the same.
template <class function> QN_DEVICE qn_range qn_find_range(uint32_t n, uint64_t x, function size_of)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    uint32_t first = 0, last = n, chunk;
    uint64_t begin = 0;
    do {
        chunk = (last - first + QN_WARP_SIZE - 1) / QN_WARP_SIZE;
        const uint32_t mine = first + lane * chunk;
        uint64_t size = 0;
        for (uint32_t i = mine; i < min(mine + chunk, last); i++)
            size += size_of(i);
        uint64_t end = size; // of the lane's chunk
#pragma unroll
        for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
            const uint64_t before = __shfl_up_sync(QN_FULL_MASK, (unsigned long long)end, distance);
            end += lane >= distance ? before : 0;
        }
        const uint32_t later = __ballot_sync(QN_FULL_MASK, begin + end > x);
        if (later == 0)
            return { n, 0 };
        const int at = __ffs(later) - 1;
        begin += __shfl_sync(QN_FULL_MASK, (unsigned long long)(end - size), at);
        first += at * chunk;
        last = min(first + chunk, last);
    } while (chunk > 1);
    return { first, begin };
}

#endif
