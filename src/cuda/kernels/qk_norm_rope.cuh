// Arithmetic of qk_norm, rope and kv_store on values in registers, with the same bits wherever a row is processed: in
// rope/rope.cu, and in decode attention that prepares its rows itself (attention/new_row.cuh).
#ifndef QN_CUDA_KERNELS_QK_NORM_ROPE_CUH
#define QN_CUDA_KERNELS_QK_NORM_ROPE_CUH

#include "cuda/kernels/cuda.cuh"

#define QN_F16_MAX 65504.0f
#define QN_F16_NAN 0x7e00

template <int n> QN_DEVICE float qn_sum_of_squares(const float (&x)[n])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < n; i++)
        sum = fmaf(x[i], x[i], sum);
    return sum;
}

// mean: of the squares of the head.
template <int n> QN_DEVICE void qn_apply_norm(float (&x)[n], const float (&weights)[n], float mean, float eps)
{
    const float scale = rsqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = x[i] * scale * weights[i];
}

// The elements of a pair after rope. Explicit fused operations: compilers contract expressions differently.
QN_DEVICE float qn_rope_first(float first, float second, float cosine, float sine)
{
    return fmaf(first, cosine, -__fmul_rn(second, sine));
}

QN_DEVICE float qn_rope_second(float first, float second, float cosine, float sine)
{
    return fmaf(second, cosine, __fmul_rn(first, sine));
}

// x rounded to f16, saturated to +-QN_F16_MAX; `nan` for NaN.
QN_DEVICE uint16_t qn_to_f16(float x, uint16_t nan)
{
    return x != x ? nan : qn_f32_to_f16(fminf(fmaxf(x, -QN_F16_MAX), QN_F16_MAX));
}

#endif
