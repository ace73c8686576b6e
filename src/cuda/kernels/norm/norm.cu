// RMS norm of f32 rows: a block reads its row twice, the second time from L1.
#include "cuda/kernels/norm/norm.h"

enum { WARPS = QN_NORM_GPU_THREADS / QN_WARP_SIZE };

extern "C" __global__ void __launch_bounds__(QN_NORM_GPU_THREADS) qn_norm_rows(const __grid_constant__ qn_norm_rows_args a)
{
    __shared__ float sums[WARPS];
    const float *x = a.x + (uint64_t)blockIdx.x * a.n;
    float *y = a.y + (uint64_t)blockIdx.x * a.n;
    qn_pdl_trigger();
    qn_pdl_wait();
    float square = 0;
    for (uint32_t i = threadIdx.x; i < a.n; i += QN_NORM_GPU_THREADS)
        square = fmaf(x[i], x[i], square);
    square = qn_warp_sum(square);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        sums[threadIdx.x / QN_WARP_SIZE] = square;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    const float scale = 1.0f / sqrtf(sum / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += QN_NORM_GPU_THREADS)
        y[i] = x[i] * scale * a.weight[i];
}
