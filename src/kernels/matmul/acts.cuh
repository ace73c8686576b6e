// What the kernels that quantise activations share: the operation fused before the matmul, and hi/lo int8. Defines: QN_OP.
#ifndef QN_KERNELS_MATMUL_ACTS_CUH
#define QN_KERNELS_MATMUL_ACTS_CUH

#include "kernels/matmul/matmul_cuda.h"
#include "kernels/sigmoid.cuh"

// The bits of |x|: ordered as the magnitudes are, with infinity and NaN above all numbers.
#define MAGNITUDE(x) (__float_as_uint(x) & 0x7fffffffu)
#define INF_BITS 0x7f800000u

// What has a smaller amax is quantised as zeros: the factor would overflow (QN_MIN_GROUP_ABSMAX of matmul.h).
#define MIN_GROUP_ABSMAX 1e-30f

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

QN_DEVICE uint32_t magnitude(float4 v)
{
    return max(max(MAGNITUDE(v.x), MAGNITUDE(v.y)), max(MAGNITUDE(v.z), MAGNITUDE(v.w)));
}

// Words of hi and lo of four columns; a byte each.
struct hilo_words {
    uint32_t hi, lo;
};

QN_DEVICE hilo_words quantize_hilo(float4 v, float inverse)
{
    const int codes[4] = { __float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse), __float2int_rn(v.z * inverse),
                           __float2int_rn(v.w * inverse) };
    hilo_words words = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int hi = (codes[i] + 128) >> 8, lo = codes[i] - 256 * hi;
        words.hi |= (uint32_t)(hi & 255) << 8 * i;
        words.lo |= (uint32_t)(lo & 255) << 8 * i;
    }
    return words;
}

// Quantises 128 columns of QN_ACTS_HILO_N1, from `column` (a multiple of 128) on, four a lane, by a full warp.
QN_DEVICE void write_hilo_n1(uint8_t *acts, uint32_t column, float4 v)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, part = column / QN_ACTS_HILO_COLS % 2;
    const uint32_t bits = __reduce_max_sync(QN_FULL_MASK, magnitude(v));
    const float amax = __uint_as_float(bits);
    const bool finite = bits < INF_BITS, zero = !finite || amax < MIN_GROUP_ABSMAX;
    const hilo_words words = quantize_hilo(zero ? make_float4(0, 0, 0, 0) : v, zero ? 0 : QN_HILO_MAX / amax);
    uint8_t *k_tile = acts + (uint64_t)(column / QN_TILE_COLS) * QN_ACTS_N1_TILE_BYTES;
    uint32_t *to = (uint32_t *)k_tile + 32 * part + lane;
    to[0] = words.hi;
    to[64] = words.lo;
    if (lane == 0)
        ((float *)(k_tile + 2 * QN_TILE_COLS))[part] = finite ? (zero ? 0 : amax * (1.0f / QN_HILO_MAX)) : QN_NAN;
}

#endif
