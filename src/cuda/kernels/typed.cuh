// Elements of arrays whose type is known at run time.
#ifndef QN_CUDA_KERNELS_TYPED_CUH
#define QN_CUDA_KERNELS_TYPED_CUH

#include "cuda/kernels/cuda.cuh"

// Values of qn_dtype; any other value is bf16.
#define QN_TYPED_F32 0u
#define QN_TYPED_F16 1u

QN_DEVICE float qn_load_typed(const void *x, uint64_t at, uint32_t dtype)
{
    return dtype == QN_TYPED_F32   ? ((const float *)x)[at]
           : dtype == QN_TYPED_F16 ? qn_f16_to_f32(((const uint16_t *)x)[at])
                                   : qn_bf16_to_f32(((const uint16_t *)x)[at]);
}

QN_DEVICE void qn_store_typed(void *to, uint64_t at, uint32_t dtype, float x)
{
    if (dtype == QN_TYPED_F32)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = dtype == QN_TYPED_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
}

#endif
