// What the kernels that quantise activations share: the operation fused before the matmul, and hi/lo int8. Defines:
// QN_OP.
#ifndef QN_CUDA_KERNELS_MATMUL_ACTS_CUH
#define QN_CUDA_KERNELS_MATMUL_ACTS_CUH

#include "cuda/kernels/hilo.cuh"
#include "cuda/kernels/matmul/matmul.h"
#include "cuda/kernels/sigmoid.cuh"

// QN_OP of one element. other: its norm weight or its second factor; scale: 1 / RMS of the row.
QN_DEVICE float apply_op(float x, float other, float scale)
{
#if QN_OP == QN_ACTS_OP_RMS_NORM
    return x * scale * other;
#elif QN_OP == QN_ACTS_OP_SWIGLU
    return qn_silu(x) * other;
#else
    return x;
#endif
}

// Quantises 128 columns of QN_ACTS_HILO_N1, from `column` (a multiple of 128) on, four a lane, by a full warp.
QN_DEVICE void write_hilo_n1(uint8_t *acts, uint32_t column, float4 v)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, part = column / QN_ACTS_HILO_COLS % 2;
    const hilo_factors f = hilo_factors_of(__reduce_max_sync(QN_FULL_MASK, magnitude(v)));
    const float values[4] = { v.x, v.y, v.z, v.w }, inverse[4] = { f.inverse, f.inverse, f.inverse, f.inverse };
    const uint2 words = hilo_words(values, inverse);
    uint8_t *k_tile = acts + (uint64_t)(column / QN_TILE_COLS) * QN_ACTS_N1_TILE_BYTES;
    uint32_t *to = (uint32_t *)k_tile + 32 * part + lane;
    to[0] = words.x;
    to[64] = words.y;
    if (lane == 0)
        ((float *)(k_tile + 2 * QN_TILE_COLS))[part] = 64.0f * f.scale;
}

#endif
