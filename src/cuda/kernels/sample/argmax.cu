// The index of the largest element of each row, for quern/cuda.h: a block a row.
#include "cuda/kernels/sample/argmax.h"
#include "cuda/kernels/sample/keys.cuh"
#include "cuda/kernels/vectors.cuh"

enum { WARPS = QN_ARGMAX_THREADS / QN_WARP_SIZE };

extern "C" __global__ void __launch_bounds__(QN_ARGMAX_THREADS) qn_argmax_rows(const __grid_constant__ qn_argmax_rows_args a)
{
    __shared__ uint64_t warp_keys[WARPS];
    const uint64_t row = (uint64_t)blockIdx.x * a.stride;
    uint64_t best = 0; // below the key of any element
    qn_pdl_trigger();
    qn_pdl_wait();
#pragma unroll 2
    for (uint32_t i = QN_VECTOR * threadIdx.x; i < a.n; i += QN_VECTOR * QN_ARGMAX_THREADS) {
        float x[QN_VECTOR];
        qn_load_vector(x, a.x, row + i, a.dtype, a.n - i, a.is_aligned);
#pragma unroll
        for (uint32_t e = 0; e < QN_VECTOR; e++)
            if (i + e < a.n)
                best = max_key(best, key_of(x[e], i + e));
    }
    best = warp_max_key(best);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        warp_keys[threadIdx.x / QN_WARP_SIZE] = best;
    __syncthreads();
    if (threadIdx.x >= QN_WARP_SIZE)
        return;
    best = warp_max_key(warp_keys[threadIdx.x % WARPS]);
    if (threadIdx.x == 0 && a.is_wide)
        ((int64_t *)a.index)[blockIdx.x] = index_of(best);
    else if (threadIdx.x == 0)
        ((int32_t *)a.index)[blockIdx.x] = (int32_t)index_of(best);
}
