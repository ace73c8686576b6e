// Sigmoid and SiLU, exact and fast. The fast forms have an error of a few ulp, and a quarter of the instructions.
#ifndef QN_CUDA_KERNELS_SIGMOID_CUH
#define QN_CUDA_KERNELS_SIGMOID_CUH

#include "cuda/kernels/cuda.cuh"

QN_DEVICE float qn_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

QN_DEVICE float qn_silu(float x)
{
    return x / (1.0f + expf(-x));
}

QN_DEVICE float qn_sigmoid_fast(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

QN_DEVICE float qn_silu_fast(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

// x times the sigmoid of its gate; x itself for a gate of infinity.
QN_DEVICE float qn_gated(float x, float gate)
{
    return x / (1 + __expf(-gate));
}

#endif
