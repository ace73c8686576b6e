// Conversions between f32 and the two planes of a state (gpu/state_planes.h), in kernels.
#ifndef QN_CUDA_KERNELS_DELTANET_STATE_PLANES_CUH
#define QN_CUDA_KERNELS_DELTANET_STATE_PLANES_CUH

#include "cuda/kernels/cuda.cuh"
#include "gpu/state_planes.h"

QN_DEVICE float qn_gdn_saturate(float x)
{
    return x > QN_GDN_PLANE_MAX ? QN_GDN_PLANE_MAX : x < -QN_GDN_PLANE_MAX ? -QN_GDN_PLANE_MAX : x;
}

// hi of two adjacent elements, for kernels that only read S. qn_gdn_split gives the pair, for storing both planes.
QN_DEVICE uint32_t qn_gdn_hi_of(float x, float y)
{
    return qn_f32_to_f16x2(qn_gdn_saturate(x), qn_gdn_saturate(y));
}

QN_DEVICE void qn_gdn_split(float x, float y, uint32_t &hi, uint32_t &lo)
{
    hi = qn_gdn_hi_of(x, y);
    const float low = qn_gdn_saturate((x - qn_f16_low(hi)) * QN_GDN_LO_SCALE),
                high = qn_gdn_saturate((y - qn_f16_high(hi)) * QN_GDN_LO_SCALE);
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(lo) : "f"(high), "f"(low));
}

QN_DEVICE float2 qn_gdn_join(uint32_t hi, uint32_t lo)
{
    return make_float2(fmaf(qn_f16_low(lo), 1 / QN_GDN_LO_SCALE, qn_f16_low(hi)),
                       fmaf(qn_f16_high(lo), 1 / QN_GDN_LO_SCALE, qn_f16_high(hi)));
}

#endif
