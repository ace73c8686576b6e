// Elementwise operations on the GPU.
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/vectors.cuh"

extern "C" __global__ void __launch_bounds__(QN_ELEMENTWISE_GPU_THREADS)
    qn_elementwise_swiglu(const __grid_constant__ qn_elementwise_swiglu_args a)
{
    const uint64_t i = (uint64_t)blockIdx.x * QN_ELEMENTWISE_GPU_THREADS + threadIdx.x;
    qn_pdl_trigger();
    qn_pdl_wait();
    if (i < a.n)
        a.y[i] = qn_silu(a.gate[i]) * a.up[i];
}

extern "C" __global__ void __launch_bounds__(QN_ELEMENTWISE_GPU_THREADS)
    qn_elementwise_swiglu_views(const __grid_constant__ qn_elementwise_swiglu_views_args a)
{
    const uint64_t row = blockIdx.x;
    const uint32_t i = (blockIdx.y * QN_ELEMENTWISE_GPU_THREADS + threadIdx.x) * QN_VECTOR;
    float gate[QN_VECTOR], up[QN_VECTOR];
    qn_pdl_trigger();
    qn_pdl_wait();
    if (i >= a.n)
        return;
    qn_load_vector(gate, a.gate, row * a.gate_stride + i, a.dtype, a.n - i, a.is_aligned);
    qn_load_vector(up, a.up, row * a.up_stride + i, a.dtype, a.n - i, a.is_aligned);
#pragma unroll
    for (int e = 0; e < QN_VECTOR; e++)
        gate[e] = qn_silu_typed(gate[e], a.dtype) * up[e];
    qn_store_vector(a.y, row * a.y_stride + i, a.dtype, a.n - i, a.is_aligned, gate);
}

extern "C" __global__ void __launch_bounds__(QN_ELEMENTWISE_GPU_THREADS)
    qn_elementwise_gather(const __grid_constant__ qn_elementwise_gather_args a)
{
    const uint32_t i = blockIdx.x * QN_ELEMENTWISE_GPU_THREADS + threadIdx.x;
    const uint64_t row = a.rows[blockIdx.y];
    qn_pdl_trigger();
    qn_pdl_wait();
    if (i < a.n)
        a.y[(uint64_t)blockIdx.y * a.n + i] = a.x[row * a.n + i];
}

extern "C" __global__ void __launch_bounds__(QN_ELEMENTWISE_GPU_THREADS)
    qn_elementwise_place(const __grid_constant__ qn_elementwise_place_args a)
{
    const uint32_t i = blockIdx.x * QN_ELEMENTWISE_GPU_THREADS + threadIdx.x;
    qn_pdl_trigger();
    qn_pdl_wait();
    if (i < a.n)
        a.y[(uint64_t)blockIdx.y * a.stride + i] = a.x[(uint64_t)blockIdx.y * a.n + i];
}
