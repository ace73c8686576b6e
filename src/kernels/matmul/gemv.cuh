// GEMV of one token in int8 (QN_ACTS_INT8_N1) by tiles of 1 or 2 bits. A fragment is `word & mask`, without shifts, and
// the eight columns of the mma (N) are the eight groups of a k-tile; gemv.cu explains both. The persistent decode kernel
// includes this file for the tile sizes and reduce_store_n1 only: it multiplies by binary MMA (persistent/bit_planes.cuh).
// Defines: QN_BITS, QN_SCALES.
#ifndef QN_KERNELS_MATMUL_GEMV_CUH
#define QN_KERNELS_MATMUL_GEMV_CUH

#include "kernels/matmul/tiles.cuh"

// Per tile and k-tile.
#define QN_TILE_CODE_BYTES (QN_BITS * QN_FRAGMENT_BYTES)
#define QN_TILE_SCALE_BYTES (QN_SCALES * 2 * QN_TILE_ROWS)

// The A fragment of a group, unsigned bytes: its codes times the power of two of their bit position.
QN_DEVICE void mask_fragment(uint32_t a[4], const uint4 *fragments, int group)
{
    const uint4 fragment = fragments[fragment_of_group<QN_BITS>(group)];
    const uint32_t mask = QN_BITS == 1 ? 0x01010101u << group : 0x03030303u << 2 * (group % 4);
    a[0] = fragment.x & mask, a[1] = fragment.y & mask, a[2] = fragment.z & mask, a[3] = fragment.w & mask;
}

// A lane's part of a k-tile's activations. words[p]: B fragments of groups 2p and 2p+1, which are always zero unless
// they belong to the lane's column.
struct acts_n1 {
    uint4 words[4];
    float scale0, scale1, minus_sum; // of groups 2t and 2t+1
};

QN_DEVICE void load_shared_if(uint4 &v, uint32_t address, bool wanted)
{
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(address), "r"((uint32_t)wanted));
}

QN_DEVICE void load_acts_n1(acts_n1 &x, uint32_t shared, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t p = 0; p < 4; p++)
        load_shared_if(x.words[p], shared + 16 * lane, g / 2 == p);
    const uint4 info = load_shared_16(shared + QN_FRAGMENT_BYTES + 16 * t);
    // The inverse of the power of two by which the bit positions of the lane's two groups scale their sums; doubled for
    // 1 bit, whose values are +-1.
    const float bit_scale = QN_BITS == 1 ? 2.0f / (1 << 2 * t) : 1.0f / (1 << 4 * (t % 2));
    x.scale0 = __uint_as_float(info.x) * bit_scale;
    x.scale1 = __uint_as_float(info.y) * (bit_scale * (QN_BITS == 1 ? 0.5f : 0.25f));
    x.minus_sum = __uint_as_float(info.z);
}

// `count` tiles, interleaved: their dependent mma instructions overlap.
template <int count> QN_DEVICE void mma_n1(float (*acc)[2], uint32_t codes, uint32_t scales, const acts_n1 &x)
{
    const int acc_init[4] = { 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000 }; // as float bits: 12582912.0f, 1.5 * 2^23
    uint4 fragments[count][QN_BITS];
    uint32_t scale[count];
    int c[count][4];
#pragma unroll
    for (int m = 0; m < count; m++) {
#pragma unroll
        for (int q = 0; q < QN_BITS; q++)
            fragments[m][q] = load_shared_16(codes + m * QN_TILE_CODE_BYTES + q * QN_FRAGMENT_BYTES);
        scale[m] = load_shared_4(scales + m * QN_TILE_SCALE_BYTES);
    }
#pragma unroll
    for (int group = 0; group < QN_TILE_GROUPS; group++)
#pragma unroll
        for (int m = 0; m < count; m++) {
            uint32_t a[4];
            mask_fragment(a, fragments[m], group);
            const uint4 w = x.words[group / 2];
            mma_m16n8k32_u8_s8(c[m], a, group % 2 ? w.z : w.x, group % 2 ? w.w : w.y, group ? c[m] : acc_init);
        }
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float group0 = __int_as_float(c[m][2 * h]) - 12582912.0f,
                        group1 = __int_as_float(c[m][2 * h + 1]) - 12582912.0f;
            const float sum = fmaf(group0, x.scale0, fmaf(group1, x.scale1, x.minus_sum));
            acc[m][h] = fmaf(h ? qn_f16_high(scale[m]) : qn_f16_low(scale[m]), sum, acc[m][h]);
        }
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
