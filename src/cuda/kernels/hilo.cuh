// Hi/lo int8 activations (hilo.h): the Hadamard transform and quantisation of a token's 128 columns by
// a warp, with the same bits by whichever kernel computes them, and its constants, which other layouts share.
#ifndef QN_CUDA_KERNELS_HILO_CUH
#define QN_CUDA_KERNELS_HILO_CUH

#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/hilo.h"
#include "cuda/kernels/planes.cuh"

// The bits of |x|: ordered as the magnitudes are, with infinity and NaN above all numbers.
#define MAGNITUDE(x) (__float_as_uint(x) & 0x7fffffffu)
#define INF_BITS 0x7f800000u

// Groups with a smaller amax are quantised as zeros: 127 / amax would overflow (QN_MIN_GROUP_ABSMAX of matmul.h).
#define MIN_GROUP_ABSMAX 1e-30f

struct hilo_factors {
    float inverse, scale; // values to integers; accumulators of codes times 64 to sums
};

// amax: MAGNITUDE of the columns.
QN_DEVICE hilo_factors hilo_factors_of(uint32_t amax)
{
    const float x = __uint_as_float(amax);
    return { amax < INF_BITS && x >= MIN_GROUP_ABSMAX ? QN_HILO_MAX / x : 0,
             amax < INF_BITS ? x * (1.0f / (64.0f * QN_HILO_MAX)) : QN_NAN };
}

// hi and lo of four values as bytes; zeros for NaN times an inverse of 0.
QN_DEVICE uint2 hilo_words(const float x[4], const float inverse[4])
{
    uint2 words = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int code = __float2int_rn(x[i] * inverse[i]), hi = (code + 128) >> 8, lo = code - 256 * hi;
        words.x |= (uint32_t)(hi & 255) << 8 * i;
        words.y |= (uint32_t)(lo & 255) << 8 * i;
    }
    return words;
}

// The hi byte of column 16 i of a token in its block of 128 columns; lo is 1024 bytes further.
QN_DEVICE uint8_t *hilo_at(uint8_t *acts, uint32_t capacity, uint32_t block, uint32_t token, uint32_t i)
{
    return acts + ((uint64_t)block * (capacity / QN_MMA_N) + token / QN_MMA_N) * QN_ACTS_HILO_BYTES + token % 8 * 128 +
           ((i ^ token % 8) * 16);
}

// ---- A warp's 128 columns of a token, 4 i to 4 i + 3 in lane i ----

QN_DEVICE uint32_t magnitude(float4 v)
{
    return max(max(MAGNITUDE(v.x), MAGNITUDE(v.y)), max(MAGNITUDE(v.z), MAGNITUDE(v.w)));
}

// v times signs[column] to signs[column + 3]; column is a multiple of four. signs: null for none. What the butterflies
// add is rounded before, by whichever kernel: no product is contracted with their additions.
QN_DEVICE float4 apply_signs(float4 v, const float *signs, uint32_t column, uint32_t n_cols)
{
    const float4 s = signs && column < n_cols ? __ldg((const float4 *)(signs + column)) : make_float4(1, 1, 1, 1);
    return make_float4(__fmul_rn(v.x, s.x), __fmul_rn(v.y, s.y), __fmul_rn(v.z, s.z), __fmul_rn(v.w, s.w));
}

// Butterflies of blocks of up to 128 columns, or the butterflies of larger blocks within 128 columns. block: a power of
// two, or 0 for none.
QN_DEVICE float4 warp_hadamard(float4 x, uint32_t block)
{
    float v[4] = { x.x, x.y, x.z, x.w };
    if (block > 1)
        qn_butterflies<1, 4>(v);
    if (block > 2)
        qn_butterflies<2, 4>(v);
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2)
        if (block > 4 * distance)
            qn_lane_butterflies<4>(v, distance);
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The sum of squares, in one order: columns 8 apart first, then by the bits of the column's number from the lowest on.
QN_DEVICE float sum_of_squares_128(float4 x)
{
    float square[4] = { __fmul_rn(x.x, x.x), __fmul_rn(x.y, x.y), __fmul_rn(x.z, x.z), __fmul_rn(x.w, x.w) };
#pragma unroll
    for (int i = 0; i < 4; i++)
        square[i] = __fadd_rn(square[i], __shfl_xor_sync(QN_FULL_MASK, square[i], 2));
    const float sum = __fadd_rn(__fadd_rn(square[0], square[1]), __fadd_rn(square[2], square[3]));
    return qn_lanes_sum<4, 32>(qn_lanes_sum<1, 2>(sum));
}

// A warp's 128 columns of a token, quantised: hi and lo of the lane's four, and the scale.
struct hilo_columns {
    uint32_t hi, lo;
    float scale;
};

// factor: of the Hadamard transform, which v lacks; 1 without.
QN_DEVICE hilo_columns quantize_hilo(float4 v, float factor)
{
    const hilo_factors f = hilo_factors_of(__reduce_max_sync(QN_FULL_MASK, magnitude(v)));
    const float values[4] = { v.x, v.y, v.z, v.w }, inverse[4] = { f.inverse, f.inverse, f.inverse, f.inverse };
    const uint2 words = hilo_words(values, inverse);
    return { words.x, words.y, f.scale * factor };
}

// Words of planes for weights of two bits: planes at the low bits of codes, and at the high bits, which count double, the
// plane below, of the lane before; that of lanes 24 to 31 is of the next four planes.
QN_DEVICE void pair_bits(uint32_t (&planes)[4])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, before = (lane + 24) % QN_WARP_SIZE;
    uint32_t last = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        planes[i] = spread_nibbles(planes[i]);
        const uint32_t of_before = __shfl_sync(QN_FULL_MASK, planes[i], before);
        planes[i] |= (lane < 8 ? last : of_before) << 1;
        last = of_before;
    }
}

// By all lanes of a warp or by none. tokens: of a block, 4 or 8.
QN_DEVICE void write_planes(uint8_t *acts, uint32_t bits, uint32_t tokens, uint32_t block, uint32_t token,
                            const hilo_columns &x)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, j = lane / 8, h = lane / 4 % 2, t = lane % 4,
                   in_group = token % QN_PLANES_TOKENS, group = token / QN_PLANES_TOKENS;
    uint8_t *const of_block = acts + (uint64_t)block * QN_PLANES_BLOCK_BYTES(tokens),
                   *const half = of_block + 128 * h + 4 * t,
                   *const to = half + (j % 2 ? QN_PLANES_UPPER(tokens) : 0) + 1024 * group + (2 * in_group + j / 2) * 16;
    // hi less the sign of lo: the high bytes of the integers.
    const uint32_t below = x.lo >> 7 & 0x01010101u, high = ((x.hi | 0x80808080u) - below) ^ (~x.hi & 0x80808080u),
                   of_lo = gather_planes(x.lo, lane), of_high = gather_planes(high, lane);
    const int sum = 256 * __dp4a((int)x.hi, 0x01010101, 0) + __dp4a((int)x.lo, 0x01010101, 0);
    const int first = __reduce_add_sync(QN_FULL_MASK, lane < 16 ? sum : 0),
              second = __reduce_add_sync(QN_FULL_MASK, lane < 16 ? 0 : sum);
    uint32_t planes[4] = { of_lo & 0x0f0f0f0fu, of_lo >> 4 & 0x0f0f0f0fu, of_high & 0x0f0f0f0fu, of_high >> 4 & 0x0f0f0f0fu };
    uint32_t negative = planes[3] << 4 * (block % 2); // of lanes 24 to 31
    if (bits == 2) {
        negative = spread_nibbles(planes[3]);
        negative |= negative << 1;
        pair_bits(planes);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) // with one bit, bit j of a byte is group j of the k-tile
        *(uint32_t *)(to + 256 * i) = bits == 1 ? planes[i] << 4 * (block % 2) : planes[i];
    if (j == 3)
        *(uint32_t *)(half + QN_PLANES_NEGATIVE(tokens) + (2 * in_group + group) * 16) = negative;
    if (lane == 0)
        *(uint4 *)(of_block + QN_PLANES_INFO(tokens) + 16 * token) =
            make_uint4(__float_as_uint(64 * x.scale), (uint32_t)first, (uint32_t)second, (uint32_t)(first + second));
}

// Quantises and, if `stored`, writes codes and scale, or planes; all lanes agree on `stored`.
QN_DEVICE void write_hilo(uint8_t *acts, float *scale, uint32_t capacity, uint32_t planes, uint32_t n_tokens, uint32_t block,
                          uint32_t token, float4 v, float factor, bool stored)
{
    const hilo_columns x = quantize_hilo(v, factor);
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    if (planes) {
        if (stored)
            write_planes(acts, planes, QN_PLANES_BLOCK_TOKENS(n_tokens), block, token, x);
        return;
    }
    uint8_t *to = hilo_at(acts, capacity, block, token, lane / 4) + 4 * (lane % 4);
    if (stored) {
        *(uint32_t *)to = x.hi;
        *(uint32_t *)(to + 1024) = x.lo;
    }
    if (stored && lane == 0)
        scale[(uint64_t)block * capacity + token] = x.scale;
}

#endif
