// One token in int8 against tiles of 1 or 2 bits: an operand of the matrix unit is `word & mask`, and the unit's eight columns
// are the eight runs of a chunk (matmul_decode.cu says more). For that source and for chain/. Defines: QN_BITS, QN_SCALES.
#ifndef QN_KERNELS_MATMUL_ONE_ROW_CUH
#define QN_KERNELS_MATMUL_ONE_ROW_CUH

#include "kernels/matmul/tiles.cuh"

// Of a tile's chunk.
#define QN_ROW_CODE_BYTES (QN_BITS * QN_TILE_SET)
#define QN_ROW_SCALE_BYTES (QN_SCALES * 2 * QN_TILE_ROWS)

// The operand of a run, of unsigned bytes: its codes times a power of two.
QN_DEVICE void mask_words(uint32_t a[4], const uint4 *sets, int run)
{
    const uint4 set = sets[set_of_run<QN_BITS>(run)];
    const uint32_t mask = QN_BITS == 1 ? 0x01010101u << run : 0x03030303u << 2 * (run % 4);
    a[0] = set.x & mask, a[1] = set.y & mask, a[2] = set.z & mask, a[3] = set.w & mask;
}

// What a lane keeps of a chunk's activations. Of the operand words of run 2p and 2p+1, words[p], half belong to other columns
// than the lane's and are zeros for good.
struct row_acts {
    uint4 words[4];
    float scale0, scale1, less; // of runs 2t and 2t+1
};

QN_DEVICE void load_if(uint4 &v, uint32_t address, bool wanted)
{
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(address), "r"((uint32_t)wanted));
}

QN_DEVICE void load_row_acts(row_acts &x, uint32_t shared, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t p = 0; p < 4; p++)
        load_if(x.words[p], shared + 16 * lane, g / 2 == p);
    const uint4 info = load_shared_16(shared + QN_TILE_SET + 16 * t);
    // What the places of the lane's two runs in a byte have multiplied their sums by; a bit counts double, since it is +-1.
    const float place = QN_BITS == 1 ? 2.0f / (1 << 2 * t) : 1.0f / (1 << 4 * (t % 2));
    x.scale0 = __uint_as_float(info.x) * place;
    x.scale1 = __uint_as_float(info.y) * (place * (QN_BITS == 1 ? 0.5f : 0.25f));
    x.less = __uint_as_float(info.z);
}

// `count` tiles side by side: their chains overlap in the matrix unit.
template <int count> QN_DEVICE void row_product(float (*sums)[2], uint32_t codes, uint32_t scales, const row_acts &x)
{
    const int first_sum[4] = { 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000 }; // the bits of 12582912.0f
    uint4 sets[count][QN_BITS];
    uint32_t scale[count];
    int c[count][4];
#pragma unroll
    for (int m = 0; m < count; m++) {
#pragma unroll
        for (int q = 0; q < QN_BITS; q++)
            sets[m][q] = load_shared_16(codes + m * QN_ROW_CODE_BYTES + q * QN_TILE_SET);
        scale[m] = load_shared_4(scales + m * QN_ROW_SCALE_BYTES);
    }
#pragma unroll
    for (int run = 0; run < QN_TILE_RUNS; run++)
#pragma unroll
        for (int m = 0; m < count; m++) {
            uint32_t a[4];
            mask_words(a, sets[m], run);
            const uint4 w = x.words[run / 2];
            multiply_u8_s8(c[m], a, run % 2 ? w.z : w.x, run % 2 ? w.w : w.y, run ? c[m] : first_sum);
        }
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float run0 = __int_as_float(c[m][2 * h]) - 12582912.0f, run1 = __int_as_float(c[m][2 * h + 1]) - 12582912.0f;
            const float sum = fmaf(run0, x.scale0, fmaf(run1, x.scale1, x.less));
            sums[m][h] = fmaf(qn_half_to_float((uint16_t)(h ? scale[m] >> 16 : scale[m])), sum, sums[m][h]);
        }
}

// A group's sums from the registers of a warp to [tile][16 rows]. Lanes t of a row hold parts of the same sums: they are added
// on the way to one lane each, a tile to a lane.
template <int group> QN_DEVICE void put_row_sums(float *to, float (*sums)[2], uint32_t count, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
    const bool odd = t & 1, upper = t & 2;
    float kept[group / 2][2];
#pragma unroll
    for (int m = 0; m < group / 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float give = odd ? sums[m][h] : sums[m + group / 2][h], keep = odd ? sums[m + group / 2][h] : sums[m][h];
            kept[m][h] = keep + __shfl_xor_sync(QN_ALL_LANES, give, 1);
        }
    if (group == 4) {
        const uint32_t m = 2 * (t & 1) + (t >> 1);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float give = upper ? kept[0][h] : kept[group / 2 - 1][h], keep = upper ? kept[group / 2 - 1][h] : kept[0][h];
            const float sum = keep + __shfl_xor_sync(QN_ALL_LANES, give, 2);
            if (m < count)
                to[m * QN_TILE_ROWS + g + 8 * h] = sum;
        }
    } else { // two tiles: a lane has one row half of its tile
        const float give = upper ? kept[0][0] : kept[0][1], keep = upper ? kept[0][1] : kept[0][0];
        const float sum = keep + __shfl_xor_sync(QN_ALL_LANES, give, 2);
        if ((t & 1) < count)
            to[(t & 1) * QN_TILE_ROWS + g + (upper ? 8 : 0)] = sum;
    }
}

#endif
