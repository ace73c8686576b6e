// The activations of one token (QN_ACTS_HILO_N1) as B operands of the GEMV by tiles of 1 or 2 bits, and its inner
// product. There are two forms of the same integers:
//
//   bit planes   1-bit weights where the device multiplies bits: codes are an A operand as they are stored
//                (bit_planes.cuh)
//   hi/lo int8   else. An A fragment is `word & mask`, with no bit shifted: all codes of a group have the same mask,
//                whose power of two goes into the group's scale. Of the eight columns (N), two are a group's hi and lo,
//                so that the four groups of 128 columns have separate sums. The other columns of a group's B fragment
//                are zeros: four mma into one accumulator compute 128 columns. Accumulators start at the bits of the
//                float 1.5 * 2^23, which makes them floats after one subtraction.
//
// Masks, at two cycles each, take longer than memory with 1-bit weights, but not with 2-bit weights, whose activations
// have one bit less in planes. Defines: QN_BITS, QN_SCALES.
#ifndef QN_CUDA_KERNELS_MATMUL_GEMV_ACTS_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMV_ACTS_CUH

#include "cuda/kernels/matmul/gemv.cuh"

// From sm_100 on, binary mma is emulated: about 100 instructions. The persistent decode kernel chooses by itself.
#ifndef BINARY_MMA
#define BINARY_MMA (QN_BITS == 1 && QN_CUDA_ARCH < 1000)
#endif
#if BINARY_MMA
#include "cuda/kernels/matmul/bit_planes.cuh"
#endif

enum {
    OPERAND_BYTES = QN_FRAGMENT_BYTES, // of a k-tile, then for each weight scale the data of store_scale_info
    PARTS = 2                          // of a k-tile, with an activation scale each
};

static_assert(OPERAND_BYTES + QN_SCALES * 8 <= QN_GEMV_N1_TILE_BYTES, "a k-tile's operands fit");

// ---- Conversion, once a block ----

// What a lane converts of a k-tile: of each of its parts two words, four columns each.
struct stored_acts {
    uint32_t words[PARTS][2];
    float2 scales;
};

QN_DEVICE int add_bytes(uint32_t bytes, int sum)
{
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(0x01010101u));
    return sum;
}

// lane_sums: of the lane's activations in each part, the lower 16 lanes having the first 64 columns.
QN_DEVICE void store_scale_infos(uint8_t *k_tile, const stored_acts &x, const int lane_sums[PARTS], uint32_t lane)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int all = __reduce_add_sync(QN_FULL_MASK, lane_sums[part]);
        const int first = QN_SCALES == 4 ? __reduce_add_sync(QN_FULL_MASK, lane < 16 ? lane_sums[part] : 0) : all;
        if (lane == 0)
            store_scale_info((float2 *)(k_tile + OPERAND_BYTES) + part * (QN_SCALES / 2), part ? x.scales.y : x.scales.x, all,
                             first);
    }
}

#if BINARY_MMA

// Words: hi and lo of the lane's four columns.
QN_DEVICE stored_acts load_stored_acts(const uint8_t *k_tile, uint32_t lane)
{
    const uint32_t *words = (const uint32_t *)k_tile + lane;
    return { { { words[0], words[64] }, { words[32], words[96] } }, *(const float2 *)(k_tile + 2 * QN_TILE_COLS) };
}

// hi minus the sign bits of lo: the high bytes in two's complement.
QN_DEVICE uint32_t high_bytes(uint32_t hi, uint32_t lo)
{
    const uint32_t top = 0x80808080u, negative = lo >> 7 & 0x01010101u;
    return ((hi | top) - negative) ^ (~hi & top);
}

// To [16 planes][2t + h]: bit r of byte i of a word is column 4t + i of half h of group r.
QN_DEVICE void store_operands(uint8_t *k_tile, const stored_acts &x, uint32_t lane)
{
    const uint32_t j = lane / 8, h = lane / 4 % 2, t = lane % 4, nibbles = 0x0f0f0f0fu;
    uint32_t planes[4] = {};
    int sums[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const uint32_t hi = x.words[part][0], lo = x.words[part][1];
        const uint32_t low = gather_planes(lo, lane), high = gather_planes(high_bytes(hi, lo), lane);
        planes[0] |= (low & nibbles) << 4 * part;
        planes[1] |= (low >> 4 & nibbles) << 4 * part;
        planes[2] |= (high & nibbles) << 4 * part;
        planes[3] |= (high >> 4 & nibbles) << 4 * part;
        sums[part] = add_bytes(lo, 256 * add_bytes(hi, 0));
    }
#pragma unroll
    for (uint32_t p = 0; p < 4; p++) // plane 4p + j
        ((uint32_t *)k_tile)[(4 * p + j) * 8 + 2 * t + h] = planes[p];
    store_scale_infos(k_tile, x, sums, lane);
}

#else

// Words: both halves of a group's four columns of a half, hi or lo.
QN_DEVICE stored_acts load_stored_acts(const uint8_t *k_tile, uint32_t lane)
{
    const uint32_t group = lane / 8, is_lo = lane / 4 % 2, t = lane % 4;
    const uint32_t *words = (const uint32_t *)k_tile + 64 * is_lo + 8 * group + t;
    return { { { words[0], words[4] }, { words[32], words[36] } }, *(const float2 *)(k_tile + 2 * QN_TILE_COLS) };
}

// To [4 groups][hi, lo][t]: the words of a group of the first part, then of the group of the second.
QN_DEVICE void store_operands(uint8_t *k_tile, const stored_acts &x, uint32_t lane)
{
    const int factor = lane & 4 ? 1 : 256;
    int sums[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        sums[part] = factor * add_bytes(x.words[part][1], add_bytes(x.words[part][0], 0));
    ((uint4 *)k_tile)[lane] = make_uint4(x.words[0][0], x.words[0][1], x.words[1][0], x.words[1][1]);
    store_scale_infos(k_tile, x, sums, lane);
}

#endif

// ---- Inner product ----

#if BINARY_MMA

typedef bit_plane_acts acts_n1;

// shared: of the k-tile. A lane's column has a plane of one part and zeros of the other.
QN_DEVICE void load_acts_n1(acts_n1 &x, uint32_t shared, uint32_t lane)
{
    const uint32_t part = lane < 16 ? 0x0f0f0f0fu : 0xf0f0f0f0u;
#pragma unroll
    for (int s = 0; s < PLANE_MMAS; s++) {
        const uint2 v = load_shared_8(shared + 128 * s + 8 * (lane % 16));
        x.words[0][s] = make_uint2(v.x & part, v.y & part);
    }
    load_plane_scales(x, 0, shared + OPERAND_BYTES, lane);
}

template <int count>
QN_DEVICE void mma_n1(float (*acc)[2], uint32_t codes, uint32_t scales, const acts_n1 &x, uint32_t lane)
{
    bit_plane_mma<count>(acc, codes, scales, x, lane);
}

#else

// The A fragment of a group, unsigned bytes: its codes times the power of two of their bit position.
QN_DEVICE void mask_fragment(uint32_t a[4], const uint4 *fragments, int group)
{
    const uint4 fragment = fragments[fragment_of_group<QN_BITS>(group)];
    const uint32_t mask = QN_BITS == 1 ? 0x01010101u << group : 0x03030303u << 2 * (group % 4);
    a[0] = fragment.x & mask, a[1] = fragment.y & mask, a[2] = fragment.z & mask, a[3] = fragment.w & mask;
}

// A lane's part of a k-tile's activations. words[r]: B fragments of group r of both parts, which are always zero unless
// the lane's column is one of group r. scale: of group t of each part.
struct acts_n1 {
    uint4 words[4];
    float scale[PARTS], minus_sum[PARTS];
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

// The weight scale of group t of a part.
QN_DEVICE uint32_t weight_scale_index(int part, uint32_t t)
{
    return QN_SCALES == 4 ? 2 * part + t / 2 : part;
}

QN_DEVICE void load_acts_n1(acts_n1 &x, uint32_t shared, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t r = 0; r < 4; r++)
        load_shared_if(x.words[r], shared + 16 * lane, g / 2 == r);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const uint2 info = load_shared_8(shared + OPERAND_BYTES + 8 * weight_scale_index(part, t));
        // Divided by the power of two of the group's bit position.
        const float bit_scale = QN_BITS == 1 ? (part ? 0.0625f : 1.0f) / (1 << t) : 1.0f / (1 << 2 * t);
        x.scale[part] = __uint_as_float(info.x) * bit_scale;
        // once a row and weight scale
        x.minus_sum[part] = t % (QN_SCALES == 4 ? 2 : 4) == 0 ? __uint_as_float(info.y) : 0;
    }
}

// Adds the products of `count` tiles of a k-tile, interleaved: their dependent mma instructions overlap. acc[m] is the
// lane's part of rows g and g+8 of tile m. codes, scales: shared addresses of the lane's words of the first tile.
template <int count>
QN_DEVICE void mma_n1(float (*acc)[2], uint32_t codes, uint32_t scales, const acts_n1 &x, uint32_t lane)
{
    // as float bits: 12582912.0f, 1.5 * 2^23
    const int acc_init[4] = { 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000 };
    uint4 fragments[count][QN_BITS];
    uint32_t scale[count][PARTS];
    int c[count][PARTS][4];
#pragma unroll
    for (int m = 0; m < count; m++) {
#pragma unroll
        for (int q = 0; q < QN_BITS; q++)
            fragments[m][q] = load_shared_16(codes + m * QN_TILE_CODE_BYTES + q * QN_FRAGMENT_BYTES);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            scale[m][part] =
                load_shared_4(scales + m * QN_TILE_SCALE_BYTES + weight_scale_index(part, lane % 4) * 2 * QN_TILE_ROWS);
    }
#pragma unroll
    for (int group = 0; group < QN_TILE_GROUPS; group++)
#pragma unroll
        for (int m = 0; m < count; m++) {
            int *sums = c[m][group / 4];
            uint32_t a[4];
            mask_fragment(a, fragments[m], group);
            const uint4 w = x.words[group % 4];
            mma_m16n8k32_u8_s8(sums, a, group / 4 ? w.z : w.x, group / 4 ? w.w : w.y, group % 4 ? sums : acc_init);
        }
#pragma unroll
    for (int m = 0; m < count; m++)
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float hi = __int_as_float(c[m][part][2 * h]) - 12582912.0f,
                            lo = __int_as_float(c[m][part][2 * h + 1]) - 12582912.0f;
                const float dot = fmaf(fmaf(hi, 256.0f, lo), x.scale[part], x.minus_sum[part]);
                acc[m][h] = fmaf(h ? qn_f16_high(scale[m][part]) : qn_f16_low(scale[m][part]), dot, acc[m][h]);
            }
}

#endif

#endif
