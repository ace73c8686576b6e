// Activations of a GEMV phase in shared memory, as hi/lo int8, for tensor cores that emulate binary MMA: quantisation of
// 128 columns to the operands of matmul/gemv_acts.cuh, whose inner product this is. For persistent.cu, in place of
// plane_acts.cuh. Defines: QN_BITS, QN_SCALES.
#ifndef QN_CUDA_KERNELS_PERSISTENT_BYTE_ACTS_CUH
#define QN_CUDA_KERNELS_PERSISTENT_BYTE_ACTS_CUH

#define BINARY_MMA 0

#include "cuda/kernels/matmul/gemv_acts.cuh"
#include "cuda/kernels/hilo.cuh"

enum { K_TILE_ACTS_BYTES = QN_PERSISTENT_K_TILE_INT8_BYTES(QN_SCALES) };

static_assert(OPERAND_BYTES + QN_SCALES * 8 == K_TILE_ACTS_BYTES, "operands of a K tile, then the data of its weight scales");

typedef acts_n1 gemv_acts;

QN_DEVICE void load_acts(gemv_acts &x, uint32_t shared, uint32_t lane)
{
    x = {};
    load_acts_n1(x, shared, lane);
}

template <int count>
QN_DEVICE void acts_mma(float (*acc)[2], uint32_t codes, uint32_t scales, const gemv_acts &x, uint32_t lane)
{
    mma_n1<count>(acc, codes, scales, x, lane);
}

// Quantises 128 columns of a slice from `at` on (a multiple of QN_ACTS_HILO_COLS), four a lane, by a full warp. An
// infinity or NaN among them makes the scale NaN, and so every row's sum.
QN_DEVICE void quantize_acts(uint8_t *acts, uint32_t at, float4 x, uint32_t lane)
{
    const hilo_factors f = hilo_factors_of(__reduce_max_sync(QN_FULL_MASK, magnitude(x)));
    const float values[4] = { x.x, x.y, x.z, x.w }, inverse[4] = { f.inverse, f.inverse, f.inverse, f.inverse };
    const uint2 words = hilo_words(values, inverse);
    const int lane_sum = add_bytes(words.y, 256 * add_bytes(words.x, 0)), all = __reduce_add_sync(QN_FULL_MASK, lane_sum);
    const int first = QN_SCALES == 4 ? __reduce_add_sync(QN_FULL_MASK, lane < 16 ? lane_sum : 0) : all;
    // Lane 8j + 4h + t has columns 4t to 4t+3 of half h of 32-column group j: word h of the part in [j][hi, lo][t].
    const uint32_t j = lane / 8, h = lane / 4 % 2, t = lane % 4, part = at / QN_ACTS_HILO_COLS % PARTS;
    uint8_t *k_tile = acts + at / QN_TILE_COLS * K_TILE_ACTS_BYTES;
    uint32_t *to = (uint32_t *)k_tile + (8 * j + t) * 4 + 2 * part + h;
    to[0] = words.x;
    to[16] = words.y;
    if (lane == 0)
        store_scale_info((float2 *)(k_tile + OPERAND_BYTES) + part * (QN_SCALES / 2), 64 * f.scale, all, first);
}

#endif
