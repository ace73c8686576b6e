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

// Of the sum that parts_factor takes the lane's share, by whole warps: what is asked for before parts are added up comes along
// with them.
QN_DEVICE float parts_squares(const qn_chain_parts &p)
{
    float sum = 0;
    for (uint32_t i = threadIdx.x % QN_WARP; p.squares && i < p.n_squares; i += QN_WARP)
        sum += load_fresh(p.squares + i);
    return sum;
}

QN_DEVICE float parts_factor(const qn_chain_parts &p, float squares)
{
    return p.squares ? 1.0f / sqrtf(qn_warp_sum(squares) / (float)p.n_cols + p.eps) : 1;
}

// By whole warps.
QN_DEVICE float parts_factor(const qn_chain_parts &p)
{
    return parts_factor(p, parts_squares(p));
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

// Into the second cache, from where the stage that is next has it in half the time; nobody has touched it since the last token.
// By one thread; p and bytes are multiples of 16.
QN_DEVICE void prefetch_bytes(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// The 64 bytes at p. The lanes of a warp take turns: better for a few than for many.
QN_DEVICE void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

#endif
