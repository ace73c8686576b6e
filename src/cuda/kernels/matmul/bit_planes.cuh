// Inner product of 1- and 2-bit weights with activations in bit planes, by binary MMA: mma.m16n8k256 b1 (AND, then
// popcount). For one token, in gemv_acts.cuh and in the persistent decode kernel, which lay out and quantise
// activations each in their own way. Defines: QN_BITS, QN_SCALES.
//
// Operand A (16 x 256 bits) is a 512-byte fragment of weight codes exactly as it is stored (matmul.h): no
// unpacking. The 8 columns of operand B are bit planes of the activations, which are 16-bit integers (15-bit with 2-bit
// weights) with one scale for each 128 columns. An MMA thus yields popcount(codes AND plane) of 16 rows and 8 planes. A
// lane combines its planes as sum over p of 2^p * count(p), the sign plane with a negative weight, and multiplies by
// the scales.
//
// Order of K within a fragment. Lane 4g + t holds four 32-bit words of A: rows g and g+8 of the first halves (16
// columns) of the 32-column groups, then of the second halves. In a word, bit 8i + f*QN_BITS is column 4t + i of that
// half of the fragment's group f. Two bits a weight: the next bit is the code's high bit, which counts double. Operand
// B has at this position the activation's next lower plane, so that column p of B pairs the low bit with plane p and
// the high bit with plane p - 1.
//
// Scales of weights. If a fragment has two scales (PLANE_SCALES 2), four columns of B hold planes in the groups of the
// first scale and zeros elsewhere, the other four the same for the second scale. PLANE_MMAS such MMAs cover all 16
// planes.
#ifndef QN_CUDA_KERNELS_MATMUL_BIT_PLANES_CUH
#define QN_CUDA_KERNELS_MATMUL_BIT_PLANES_CUH

#include "cuda/kernels/matmul/gemv.cuh"
#include "cuda/kernels/planes.cuh"

enum {
    PLANES = 16,
    PLANE_FRAGMENTS = QN_BITS,                  // fragments (512 bytes) of a tile and K tile
    PLANE_SCALES = QN_SCALES / PLANE_FRAGMENTS, // weight scales of a fragment, 1 or 2
    PLANES_PER_MMA = 8 / PLANE_SCALES,
    PLANE_MMAS = PLANES / PLANES_PER_MMA
};

// A lane's B fragments of a K tile, and for each A fragment: activation scale times the weight of the lane's lowest
// plane; minus the scaled sum of activations (the codes' zero point is 1, or 1/2 for 1-bit codes), in one lane of each
// row and scale.
struct bit_plane_acts {
    uint2 words[PLANE_FRAGMENTS][PLANE_MMAS];
    float scale[PLANE_FRAGMENTS], minus_sum[PLANE_FRAGMENTS];
};

// Sets scale and minus_sum of fragment q from a weight scale's activation scale and correction for the zero point
// (store_scale_info of gemv.cuh): float2 at shared address `info` for each weight scale of the k-tile.
QN_DEVICE void load_plane_scales(bit_plane_acts &x, int q, uint32_t info, uint32_t lane)
{
    const uint32_t t = lane % 4, lowest_plane = 2 * t % PLANES_PER_MMA;
    const uint32_t scale_index = q * PLANE_SCALES + (PLANE_SCALES == 2 ? t / 2 : 0);
    const uint2 v = load_shared_8(info + 8 * scale_index);
    x.scale[q] = __uint_as_float(v.x) * (float)(1 << lowest_plane);
    x.minus_sum[q] = lowest_plane == 0 ? __uint_as_float(v.y) : 0;
}

QN_DEVICE void mma_m16n8k256_b1(int c[4], const uint4 &a, uint2 b, const int start[4])
{
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(start[0]), "r"(start[1]), "r"(start[2]),
          "r"(start[3]));
}

// Adds the products of `count` tiles of a K tile: acc[m] is the lane's part of rows g and g+8 of tile m; the four lanes
// of a row are to be added. codes, scales: shared addresses of the lane's words of the first tile; scales of rows g and
// g+8 are adjacent.
template <int count>
QN_DEVICE void bit_plane_mma(float (*acc)[2], uint32_t codes, uint32_t scales, const bit_plane_acts &x, uint32_t lane)
{
    // 0x4b400000 are the bits of 12582912.0f: read as a float, the accumulator is that plus the integer sum.
    const int zeros[4] = {}, magic[4] = { 0x4b400000, 0, 0x4b400000, 0 };
    const uint32_t t = lane % 4;
    // Weight of the lane's odd plane relative to its even one; -2 if it is the sign plane.
    const int sign_weight = 2 * t % PLANES_PER_MMA == PLANES_PER_MMA - 2 ? -2 : 2;
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int q = 0; q < PLANE_FRAGMENTS; q++) {
            const uint4 fragment = load_shared_16(codes + m * QN_TILE_CODE_BYTES + q * QN_FRAGMENT_BYTES);
            const uint32_t scale_index = q * PLANE_SCALES + (PLANE_SCALES == 2 ? t / 2 : 0);
            const uint32_t scale = load_shared_4(scales + m * QN_TILE_SCALE_BYTES + scale_index * 2 * QN_TILE_ROWS);
            int c[PLANE_MMAS][4];
#pragma unroll
            for (int s = 0; s < PLANE_MMAS; s++)
                mma_m16n8k256_b1(c[s], fragment, x.words[q][s], s ? zeros : magic);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int sum = c[PLANE_MMAS - 1][2 * h] + sign_weight * c[PLANE_MMAS - 1][2 * h + 1];
#pragma unroll
                for (int s = PLANE_MMAS - 2; s >= 0; s--)
                    sum = (sum << PLANES_PER_MMA) + (c[s][2 * h] + 2 * c[s][2 * h + 1]);
                const float fragment_dot = fmaf(__int_as_float(sum) - 12582912.0f, x.scale[q], x.minus_sum[q]);
                acc[m][h] = fmaf(h ? qn_f16_high(scale) : qn_f16_low(scale), fragment_dot, acc[m][h]);
            }
        }
}

#endif
