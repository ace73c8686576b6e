// What the stages of a chain share: numbers that the stage before has left in parts.
#ifndef QN_KERNELS_CHAIN_CHAIN_CUH
#define QN_KERNELS_CHAIN_CHAIN_CUH

#include "kernels/chain/chain_cuda.h"

// Parts that are on their way at once: a way to the second cache and back takes longer than adding them.
#define QN_CHAIN_PARTS_AHEAD 8

// All that other blocks have written in this launch comes from the second cache: the first one may have what was there before.
QN_DEVICE float load_fresh(const float *p)
{
    return __ldcg(p);
}

QN_DEVICE float4 load_fresh_4(const float *p)
{
    return __ldcg((const float4 *)p);
}

QN_DEVICE float4 add_4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

QN_DEVICE float4 scale_4(float4 a, float f)
{
    return make_float4(a.x * f, a.y * f, a.z * f, a.w * f);
}

// By any thread.
QN_DEVICE float parts_factor(const qn_chain_parts &p)
{
    if (!p.squares)
        return 1;
    float sum = 0;
    for (uint32_t first = 0; first < p.n_squares; first += QN_CHAIN_PARTS_AHEAD) {
        float v[QN_CHAIN_PARTS_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            v[k] = first + k < p.n_squares ? load_fresh(p.squares + first + k) : 0;
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            sum += v[k];
    }
    return 1.0f / sqrtf(sum / (float)p.n_cols + p.eps);
}

// Numbers i to i+3 of parts (i a multiple of 4), not yet times the factor.
QN_DEVICE float4 parts_sum_4(const qn_chain_parts &p, uint32_t i)
{
    float4 sum = {};
    for (uint32_t first = 0; first < p.n_parts; first += QN_CHAIN_PARTS_AHEAD) {
        float4 v[QN_CHAIN_PARTS_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            v[k] = first + k < p.n_parts ? load_fresh_4(p.data + (uint64_t)(first + k) * p.stride + i) : float4{};
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            sum = add_4(sum, v[k]);
    }
    return sum;
}

QN_DEVICE float parts_sum(const qn_chain_parts &p, uint32_t i)
{
    float sum = 0;
    for (uint32_t first = 0; first < p.n_parts; first += QN_CHAIN_PARTS_AHEAD) {
        float v[QN_CHAIN_PARTS_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            v[k] = first + k < p.n_parts ? load_fresh(p.data + (uint64_t)(first + k) * p.stride + i) : 0;
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            sum += v[k];
    }
    return sum;
}

#endif
