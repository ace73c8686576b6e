// Elementwise operations on the GPU.
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/sigmoid.cuh"

extern "C" __global__ void __launch_bounds__(QN_ELEMENTWISE_GPU_THREADS)
    qn_elementwise_swiglu(const __grid_constant__ qn_elementwise_swiglu_args a)
{
    const uint64_t i = (uint64_t)blockIdx.x * QN_ELEMENTWISE_GPU_THREADS + threadIdx.x;
    qn_pdl_trigger();
    qn_pdl_wait();
    if (i < a.n)
        a.y[i] = qn_silu(a.gate[i]) * a.up[i];
}
