// Activations of a GEMV phase in shared memory, as hi/lo int8, for tensor cores that emulate binary MMA: quantisation of
// 128 columns, the B fragments of a K tile, the inner product. For persistent.cu, in place of plane_acts.cuh. Defines:
// QN_BITS, QN_SCALES.
//
// mma.m16n8k32 with codes as int8 (A) and two columns of B: hi and lo of the row's activations. The other six are
// zeros, in registers of the lanes that would load them. Sums of 128 columns are below 2^30 (codes of up to 128, hi of
// up to 128, times 256).
//
// Layout of a K tile: [hi, lo][t][group][half] words of four columns, those that lane t of a quad has of a 32-column
// group; then the scale of each 128 columns.
#ifndef QN_CUDA_KERNELS_PERSISTENT_BYTE_ACTS_CUH
#define QN_CUDA_KERNELS_PERSISTENT_BYTE_ACTS_CUH

#include "cuda/kernels/matmul/codes_s8.cuh"
#include "cuda/kernels/matmul/gemv.cuh"
#include "cuda/kernels/matmul/hilo.cuh"

enum {
    K_TILE_ACTS_BYTES = QN_PERSISTENT_K_TILE_INT8_BYTES,
    LANE_BYTES = QN_TILE_GROUPS * 8,                           // of a lane's words in a K tile
    SPAN_GROUPS = QN_TILE_GROUPS / QN_SCALES                   // 32-column groups of a weight scale
};

static_assert(2 * QN_TILE_COLS + 8 <= K_TILE_ACTS_BYTES && K_TILE_ACTS_BYTES % 16 == 0, "hi, lo and two scales");

// A lane's B fragments of a K tile, and the scales of its halves. code_mask: CODE_MASK, in a register (codes_s8.cuh).
struct gemv_acts {
    uint32_t words[QN_TILE_GROUPS][2];
    float scale[2];
    uint32_t code_mask;
};

QN_DEVICE void load_acts(gemv_acts &x, uint32_t shared, uint32_t lane)
{
    const uint32_t column = lane / 4, from = shared + (column * 4 + lane % 4) * LANE_BYTES;
#pragma unroll
    for (int pair = 0; pair < QN_TILE_GROUPS / 2; pair++) {
        const uint4 v = column < 2 ? load_shared_16(from + 16 * pair) : make_uint4(0, 0, 0, 0);
        x.words[2 * pair][0] = v.x;
        x.words[2 * pair][1] = v.y;
        x.words[2 * pair + 1][0] = v.z;
        x.words[2 * pair + 1][1] = v.w;
    }
    const float2 scale = load_shared_float2(shared + 2 * QN_TILE_COLS);
    x.scale[0] = scale.x;
    x.scale[1] = scale.y;
    asm volatile("mov.u32 %0, %1;" : "=r"(x.code_mask) : "n"(CODE_MASK)); // the compiler does not see that it is constant
}

// Adds the products of `count` tiles of a K tile, as bit_plane_mma: acc[m] is the lane's part of rows g and g+8 of tile
// m. The lanes t = 0 of each quad have columns hi and lo, and the sums; those of the others are zeros.
template <int count>
QN_DEVICE void acts_mma(float (*acc)[2], uint32_t codes, uint32_t scales, const gemv_acts &x, uint32_t lane)
{
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int span = 0; span < QN_SCALES; span++) {
            const int fragment_index = span * QN_BITS / QN_SCALES;
            const uint4 fragment = load_shared_16(codes + m * QN_TILE_CODE_BYTES + fragment_index * QN_FRAGMENT_BYTES);
            const uint32_t scale = load_shared_4(scales + m * QN_TILE_SCALE_BYTES + span * 2 * QN_TILE_ROWS);
            int sums[4] = {};
#pragma unroll
            for (int j = 0; j < SPAN_GROUPS; j++) {
                uint32_t a[4];
                unpack_group(a, fragment, span * SPAN_GROUPS + j, x.code_mask);
                qn_mma_m16n8k32_s8(sums, a, x.words[span * SPAN_GROUPS + j]);
            }
            const float acts_scale = x.scale[span * 2 / QN_SCALES];
            acc[m][0] = fmaf(code_scale(qn_f16_low(scale)), (float)(256 * sums[0] + sums[1]) * acts_scale, acc[m][0]);
            acc[m][1] = fmaf(code_scale(qn_f16_high(scale)), (float)(256 * sums[2] + sums[3]) * acts_scale, acc[m][1]);
        }
}

// Quantises 128 columns of a slice from `at` on (a multiple of QN_ACTS_HILO_COLS), four a lane, by a full warp. An
// infinity or NaN among them makes the scale NaN, and so every row's sum.
QN_DEVICE void quantize_acts(uint8_t *acts, uint32_t at, float4 x, uint32_t lane)
{
    const hilo_factors f = hilo_factors_of(__reduce_max_sync(QN_FULL_MASK, magnitude(x)));
    const float values[4] = { x.x, x.y, x.z, x.w }, inverse[4] = { f.inverse, f.inverse, f.inverse, f.inverse };
    const uint2 words = hilo_words(values, inverse);
    // Lane 8j + 4h + t has columns 4t to 4t+3 of half h of 32-column group j.
    const uint32_t t = lane % 4, half = at / QN_ACTS_HILO_COLS % 2;
    uint8_t *k_tile = acts + at / QN_TILE_COLS * K_TILE_ACTS_BYTES;
    uint8_t *to = k_tile + t * LANE_BYTES + (half * QN_WARP_SIZE / 4 + lane / 4) * 4;
    *(uint32_t *)to = words.x;
    *(uint32_t *)(to + 4 * LANE_BYTES) = words.y;
    if (lane == 0)
        ((float *)(k_tile + 2 * QN_TILE_COLS))[half] = f.scale;
}

#endif
