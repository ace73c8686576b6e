// Shared by the GEMV of one token (gemv.cu) and the persistent decode kernel, by tiles of 1 or 2 bits: tile sizes, the
// correction for the codes' zero point, the reduction of a row over lanes. Defines: QN_BITS, QN_SCALES.
#ifndef QN_CUDA_KERNELS_MATMUL_GEMV_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMV_CUH

#include "cuda/kernels/matmul/tiles.cuh"

// Per tile and k-tile.
#define QN_TILE_CODE_BYTES (QN_BITS * QN_FRAGMENT_BYTES)
#define QN_TILE_SCALE_BYTES (QN_SCALES * 2 * QN_TILE_ROWS)

QN_DEVICE uint2 load_shared_8(uint32_t address)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}

// For the weight scales of 128 columns of activations with this scale: the factor of the sum of codes times
// activations, and the correction for the zero point (1, or 1/2 for 1-bit codes). all: the sum of the activations;
// first: that of 64 columns.
QN_DEVICE void store_scale_info(float2 *info, float scale, int all, int first)
{
    const float bit_scale = QN_BITS == 1 ? 2 * scale : scale; // 1-bit codes are 2 code - 1
    info[0] = make_float2(bit_scale, -(scale * (float)first));
    if (QN_SCALES == 4)
        info[1] = make_float2(bit_scale, -(scale * (float)(all - first)));
}

// Reduces a step's accumulators over the four lanes t of each row, and stores them as [tile][16 rows]: each lane ends
// up with other rows or tiles.
template <int step_tiles> QN_DEVICE void reduce_store_n1(float *to, float (*acc)[2], uint32_t count, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
    const bool odd = t & 1, upper = t & 2;
    float partial[step_tiles / 2][2];
#pragma unroll
    for (int m = 0; m < step_tiles / 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float send = odd ? acc[m][h] : acc[m + step_tiles / 2][h],
                        keep = odd ? acc[m + step_tiles / 2][h] : acc[m][h];
            partial[m][h] = keep + __shfl_xor_sync(QN_FULL_MASK, send, 1);
        }
    if (step_tiles == 4) {
        const uint32_t m = 2 * (t & 1) + (t >> 1);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float send = upper ? partial[0][h] : partial[step_tiles / 2 - 1][h],
                        keep = upper ? partial[step_tiles / 2 - 1][h] : partial[0][h];
            const float sum = keep + __shfl_xor_sync(QN_FULL_MASK, send, 2);
            if (m < count)
                to[m * QN_TILE_ROWS + g + 8 * h] = sum;
        }
    } else { // two tiles: a lane has one of the rows g, g+8 of its tile
        const float send = upper ? partial[0][0] : partial[0][1], keep = upper ? partial[0][1] : partial[0][0];
        const float sum = keep + __shfl_xor_sync(QN_FULL_MASK, send, 2);
        if ((t & 1) < count)
            to[(t & 1) * QN_TILE_ROWS + g + (upper ? 8 : 0)] = sum;
    }
}

#endif
