// Norms of rows of views, of f32, fp16 or bf16: a warp or a block reads its row twice, the second time from L1.
#include "cuda/kernels/norm/norm.h"
#include "cuda/kernels/vectors.cuh"

enum { WARPS = QN_NORM_GPU_THREADS / QN_WARP_SIZE };

// Processes a row by `threads` threads; this thread has number `thread`. All elements are read before the first is
// written.
template <uint32_t threads> QN_DEVICE void norm_row(const qn_norm_views_args &a, uint32_t row, uint32_t thread)
{
    const uint64_t x_row = (uint64_t)row * a.x_stride, gate_row = (uint64_t)row * a.gate_stride,
                   y_row = (uint64_t)row * a.y_stride;
    float square = 0;
    for (uint32_t i = QN_VECTOR * thread; i < a.n; i += QN_VECTOR * threads) {
        float x[QN_VECTOR];
        qn_load_vector(x, a.x, x_row + i, a.dtype, a.n - i, a.is_aligned);
#pragma unroll
        for (int e = 0; e < QN_VECTOR; e++)
            square = fmaf(x[e], x[e], square);
    }
    const float sum = threads == QN_WARP_SIZE ? qn_warp_sum(square) : qn_block_sum<WARPS>(square);
    const float scale = 1.0f / sqrtf((a.op == QN_NORM_L2 ? sum : sum / (float)a.n) + a.eps);
    for (uint32_t i = QN_VECTOR * thread; i < a.n; i += QN_VECTOR * threads) {
        const uint32_t count = a.n - i;
        float x[QN_VECTOR], factor[QN_VECTOR];
        qn_load_vector(x, a.x, x_row + i, a.dtype, count, a.is_aligned);
#pragma unroll
        for (int e = 0; e < QN_VECTOR; e++)
            x[e] *= scale;
        if (a.op != QN_NORM_L2) {
            qn_load_vector(factor, a.weight, i, QN_TYPED_F32, count, true);
#pragma unroll
            for (int e = 0; e < QN_VECTOR; e++)
                x[e] *= factor[e];
        }
        if (a.op == QN_NORM_GATED) {
            qn_load_vector(factor, a.gate, gate_row + i, a.dtype, count, a.is_aligned);
#pragma unroll
            for (int e = 0; e < QN_VECTOR; e++)
                x[e] *= qn_silu_typed(factor[e], a.dtype);
        }
        qn_store_vector(a.y, y_row + i, a.dtype, count, a.is_aligned, x);
    }
}

extern "C" __global__ void __launch_bounds__(QN_NORM_GPU_THREADS)
    qn_norm_views_by_warps(const __grid_constant__ qn_norm_views_args a)
{
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / QN_WARP_SIZE;
    qn_pdl_trigger();
    qn_pdl_wait();
    if (row < a.n_rows)
        norm_row<QN_WARP_SIZE>(a, row, threadIdx.x % QN_WARP_SIZE);
}

extern "C" __global__ void __launch_bounds__(QN_NORM_GPU_THREADS)
    qn_norm_views_by_blocks(const __grid_constant__ qn_norm_views_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    norm_row<QN_NORM_GPU_THREADS>(a, blockIdx.x, threadIdx.x);
}
