/* GEMV for NEON: stored codes are multiplied without unpacking to memory. The same readers unpack super-blocks for GEMM
 * tiles. Compiled once per instruction set by matmul_neon.c and matmul_neondot.c, which define what
 * kernels/matmul/matmul_simd.h requires.
 *
 * Everything is processed by quarters of a super-block, 128 weights: their four groups fill the four lanes of a
 * register. Each type gives eight vectors of codes per quarter. With QN_ACT_1BIT and QN_ACT_2BIT all eight are
 * multiplied into one accumulator, whose lanes are the groups. With QN_ACT_PLAIN vectors 2k and 2k + 1 are group k in
 * ascending order, and the four sums are reduced to one register at the end. */
#ifndef QN_KERNELS_MATMUL_GEMV_NEON_H
#define QN_KERNELS_MATMUL_GEMV_NEON_H

#define HAS_LUT

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed_neon.h"
#include "kernels/matmul/gemm_neon.h"

#include <string.h>

enum { QUARTER_RUNS = 4 };

/* ---- Codes ----
 *
 * Codes are read in the cheapest form that the dot products can correct: Q1_0's are minus the bit, one comparison each;
 * fields 1 and 2 of a 2-bit byte stay in place, 4 and 16 times their value, which costs one shift of a sum instead of
 * shifts of codes; those of 8 bits are signed. */

QN_INLINE int8x16_t signed_bytes(uint8x16_t x)
{
    return vreinterpretq_s8_u8(x);
}

/* Returns a ternary digit of each byte. Digit n of a byte b is floor(3 x / 256) with x = 3^n b mod 256. Computed as ((x
 * + x / 2) / 2) / 64: both halvings stay within bytes and round down, which gives the same digit. */
QN_INLINE int8x16_t top_digit(uint8x16_t x)
{
    return signed_bytes(vshrq_n_u8(vhaddq_u8(x, vshrq_n_u8(x, 1)), 6));
}

QN_INLINE void read_ptq1_0(const uint8_t *p, int8x16_t codes[8])
{
    static const uint8_t power[3][16] = { { 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3 },
                                          { 9, 9, 9, 9, 9, 9, 9, 9, 27, 27, 27, 27, 27, 27, 27, 27 },
                                          { 81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27 } };
    const uint8x16_t sixteen = vld1q_u8(p);
    const uint8x8_t eight = vld1_u8(p + QN_PTQ1_0_TRIT_BYTES);
    uint16_t two;
    memcpy(&two, p + QN_PTQ1_0_TRIT_BYTES * 3 / 2, sizeof two);
    const uint8x16_t twice = vcombine_u8(eight, eight), tail = vcombine_u8(eight, vreinterpret_u8_u16(vdup_n_u16(two)));
    codes[0] = top_digit(sixteen);
    codes[1] = top_digit(vmulq_u8(sixteen, vdupq_n_u8(3)));
    codes[2] = top_digit(vmulq_u8(sixteen, vdupq_n_u8(9)));
    codes[3] = top_digit(vmulq_u8(sixteen, vdupq_n_u8(27)));
    codes[4] = top_digit(vmulq_u8(sixteen, vdupq_n_u8(81)));
    codes[5] = top_digit(vmulq_u8(twice, vld1q_u8(power[0])));
    codes[6] = top_digit(vmulq_u8(twice, vld1q_u8(power[1])));
    codes[7] = top_digit(vmulq_u8(tail, vld1q_u8(power[2])));
}

/* Reads half a block of TQ1_0: digits 0 to 3 of 32 bytes (half 0); or digit 4 of these bytes, five digits of 16 bytes
 * and four of the last 4 (half 1). */
QN_INLINE void read_tq1_0(const uint8_t *block, size_t half, int8x16_t codes[8])
{
    static const uint8_t power[16] = { 1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27 };
    const uint8x16_t first = vld1q_u8(block), second = vld1q_u8(block + 16),
                     more = vld1q_u8(block + QN_TQ1_0_TRIT_BYTES);
    if (half == 0) {
        codes[0] = top_digit(first);
        codes[1] = top_digit(second);
        codes[2] = top_digit(vmulq_u8(first, vdupq_n_u8(3)));
        codes[3] = top_digit(vmulq_u8(second, vdupq_n_u8(3)));
        codes[4] = top_digit(vmulq_u8(first, vdupq_n_u8(9)));
        codes[5] = top_digit(vmulq_u8(second, vdupq_n_u8(9)));
        codes[6] = top_digit(vmulq_u8(first, vdupq_n_u8(27)));
        codes[7] = top_digit(vmulq_u8(second, vdupq_n_u8(27)));
        return;
    }
    uint32_t four;
    memcpy(&four, block + QN_TQ1_0_TRIT_BYTES * 3 / 2, sizeof four);
    codes[0] = top_digit(vmulq_u8(first, vdupq_n_u8(81)));
    codes[1] = top_digit(vmulq_u8(second, vdupq_n_u8(81)));
    codes[2] = top_digit(more);
    codes[3] = top_digit(vmulq_u8(more, vdupq_n_u8(3)));
    codes[4] = top_digit(vmulq_u8(more, vdupq_n_u8(9)));
    codes[5] = top_digit(vmulq_u8(more, vdupq_n_u8(27)));
    codes[6] = top_digit(vmulq_u8(more, vdupq_n_u8(81)));
    codes[7] = top_digit(vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), vld1q_u8(power)));
}

/* Stores the four 2-bit fields of each byte to codes `step` apart. */
QN_INLINE void read_fields(uint8x16_t x, int8x16_t *codes, size_t step)
{
    codes[0] = signed_bytes(vandq_u8(x, vdupq_n_u8(0x03)));
    codes[step] = signed_bytes(vandq_u8(x, vdupq_n_u8(0x0c)));
    codes[2 * step] = signed_bytes(vandq_u8(x, vdupq_n_u8(0x30)));
    codes[3 * step] = signed_bytes(vshrq_n_u8(x, 6));
}

/* Reads two groups of eight bytes at `first` and two at `second`: first halves of the groups to codes 0..3, second
 * halves to 4..7. */
QN_INLINE void read_2bit(const uint8_t *first, const uint8_t *second, int8x16_t codes[8])
{
    const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(first)), b = vreinterpretq_u32_u8(vld1q_u8(second));
    read_fields(vreinterpretq_u8_u32(vuzp1q_u32(a, b)), codes, 1);
    read_fields(vreinterpretq_u8_u32(vuzp2q_u32(a, b)), codes + 4, 1);
}

QN_INLINE void read_nibbles(const uint8_t *p, int8x16_t *low, int8x16_t *high)
{
    const uint8x16_t x = vld1q_u8(p);
    *low = signed_bytes(vandq_u8(x, vdupq_n_u8(15)));
    *high = signed_bytes(vshrq_n_u8(x, 4));
}

/* Replaces nibbles by what they stand for: signed values of IQ4, codes of MXFP4 and NVFP4. */
QN_INLINE void look_up_values(qn_type type, int8x16_t *codes)
{
    const int8x16_t values = block_of(type).max_code < 32
                                 ? vaddq_s8(vld1q_s8(e2m1_values), vdupq_n_s8((int8_t)block_of(type).zero))
                                 : vld1q_s8(iq4_values);
    *codes = vqtbl1q_s8(values, vreinterpretq_u8_s8(*codes));
}

/* Reads the codes of Q2_K and Q3_K: the 2-bit field of group k of a quarter, whose 32 bytes begin at p; Q3_K's third
 * bits are bit 4 half + k of the 32 bytes at `third`. */
QN_INLINE void read_k_fields(const uint8_t *p, const uint8_t *third, size_t half, int8x16_t codes[8])
{
    UNROLL_FULL
    for (size_t h = 0; h < 2; h++) {
        const uint8x16_t low = vld1q_u8(p + 16 * h);
        const uint8x16_t top = third ? vshlq_u8(vld1q_u8(third + 16 * h), vdupq_n_s8(half ? -4 : 0)) : low;
        UNROLL_FULL
        for (size_t k = 0; k < 4; k++) {
            uint8x16_t code = vandq_u8(vshlq_u8(low, vdupq_n_s8((int8_t)(-2 * (int)k))), vdupq_n_u8(3));
            if (third)
                code = vorrq_u8(code, vandq_u8(vshlq_u8(top, vdupq_n_s8((int8_t)(2 - (int)k))), vdupq_n_u8(4)));
            codes[2 * k + h] = signed_bytes(code);
        }
    }
}

/* Returns the block with quarter q of the super-block at p, or the first of its blocks. */
QN_INLINE const uint8_t *quarter_block(qn_type type, const uint8_t *p, size_t q)
{
    const struct block_layout block = block_of(type);
    return p + (block.weights == 256 ? q / 2 : q * (128 / block.weights)) * block.bytes;
}

/* Reads the codes of quarter q of the super-block at p. type is a constant at the calls, here and below. */
QN_INLINE void read_codes(qn_type type, const uint8_t *p, size_t q, int8x16_t codes[8])
{
    const size_t bytes = block_of(type).bytes;
    const uint8_t *block = quarter_block(type, p, q);
    p = block + block_of(type).codes;
    switch (type) {
    case QN_TYPE_Q1_0: {
        const uint8x16_t bits = vld1q_u8(p);
        UNROLL_FULL
        for (int v = 0; v < 8; v++)
            codes[v] = signed_bytes(vtstq_u8(bits, vdupq_n_u8((uint8_t)(1 << v))));
        break;
    }
    case QN_TYPE_Q2_0: read_2bit(p, p + bytes, codes); break;
    case QN_TYPE_PQ2_0:
    case QN_TYPE_OX2_0: read_2bit(p, p + 16, codes); break;
    case QN_TYPE_TQ2_0:
        read_fields(vld1q_u8(p + q % 2 * 32), codes, 2);
        read_fields(vld1q_u8(p + q % 2 * 32 + 16), codes + 1, 2);
        break;
    case QN_TYPE_PTQ1_0: read_ptq1_0(p, codes); break;
    case QN_TYPE_TQ1_0: read_tq1_0(p, q % 2, codes); break;
    case QN_TYPE_Q8_0:
        UNROLL_FULL
        for (size_t k = 0; k < 4; k++) {
            codes[2 * k] = signed_bytes(vld1q_u8(p + bytes * k));
            codes[2 * k + 1] = signed_bytes(vld1q_u8(p + bytes * k + 16));
        }
        break;
    case QN_TYPE_Q4_K:
        UNROLL_FULL
        for (size_t k = 0; k < 2; k++) {
            const uint8_t *pair = p + q % 2 * 64 + k * 32;
            read_nibbles(pair, &codes[4 * k], &codes[4 * k + 2]);
            read_nibbles(pair + 16, &codes[4 * k + 1], &codes[4 * k + 3]);
        }
        break;
    case QN_TYPE_Q2_K: read_k_fields(p + q % 2 * 32, NULL, q % 2, codes); break;
    case QN_TYPE_Q3_K: read_k_fields(p + q % 2 * 32, block + QN_Q3_K_HIGH, q % 2, codes); break;
    default: /* Q4_0, Q4_1, IQ4_NL, MXFP4; IQ4_XS, whose groups lie together; NVFP4_L, of which two do */
        UNROLL_FULL
        for (size_t k = 0; k < 4; k++)
            read_nibbles(type == QN_TYPE_IQ4_XS    ? p + q % 2 * 64 + 16 * k
                         : type == QN_TYPE_NVFP4_L ? p + bytes * (k / 2) + k % 2 * 16
                                                   : p + bytes * k,
                         &codes[2 * k], &codes[2 * k + 1]);
        UNROLL_FULL
        for (size_t v = 0; has_values(type) && v < 8; v++)
            look_up_values(type, &codes[v]);
        break;
    }
}

/* ---- Scales ---- */

QN_INLINE uint16x4_t load_f16(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vdup_n_u16(half);
}

QN_INLINE float32x4_t f16_to_f32(uint16x4_t f16s)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(f16s));
}

/* Loads four fp16 values, `step` bytes apart. */
QN_INLINE uint16x4_t load_4_f16(const uint8_t *p, size_t step)
{
    uint16_t half[4];
    UNROLL_FULL
    for (size_t k = 0; k < 4; k++)
        memcpy(&half[k], p + k * step, sizeof half[k]);
    uint16x4_t f16s = vdup_n_u16(half[0]);
    f16s = vset_lane_u16(half[1], f16s, 1);
    f16s = vset_lane_u16(half[2], f16s, 2);
    return vset_lane_u16(half[3], f16s, 3);
}

/* Converts four unsigned bytes to floats. */
QN_INLINE float32x4_t u8_to_f32(uint32_t bytes)
{
    const uint8x8_t eight = vreinterpret_u8_u32(vdup_n_u32(bytes));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(eight))));
}

/* Reads the scales and minima of groups 4*half .. 4*half+3 of a Q4_K block (layout: unpack_scales in
 * quant/kquants.c). */
QN_INLINE void read_k_scales(const uint8_t *block, size_t half, float32x4_t *scale, float32x4_t *offset)
{
    uint32_t words[3], scales, mins;
    memcpy(words, block + QN_Q4_K_FACTORS, sizeof words);
    if (half) {
        scales = (words[2] & 0x0f0f0f0fu) | (words[0] >> 2 & 0x30303030u);
        mins = (words[2] >> 4 & 0x0f0f0f0fu) | (words[1] >> 2 & 0x30303030u);
    } else {
        scales = words[0] & 0x3f3f3f3fu;
        mins = words[1] & 0x3f3f3f3fu;
    }
    *scale = vmulq_f32(f16_to_f32(load_f16(block + QN_Q4_K_SCALE)), u8_to_f32(scales));
    *offset = vnegq_f32(vmulq_f32(f16_to_f32(load_f16(block + QN_Q4_K_MIN)), u8_to_f32(mins)));
}

QN_INLINE float32x4_t iq4_xs_scales(const uint8_t *block, size_t half)
{
    int32_t factor[4];
    UNROLL_FULL
    for (uint32_t k = 0; k < 4; k++)
        factor[k] = qn_iq4_xs_factor(block, (uint32_t)half * 4 + k);
    return vmulq_f32(f16_to_f32(load_f16(block + QN_IQ4_XS_SCALE)), vcvtq_f32_s32(vld1q_s32(factor)));
}

/* Returns half of the scales of MXFP4, 2^(exponent - 127), since the codes are twice the values. */
QN_INLINE float32x4_t exponent_scales(const uint8_t *p)
{
    uint32_t bits[4];
    UNROLL_FULL
    for (size_t k = 0; k < 4; k++) {
        const uint32_t exponent = p[k * QN_MXFP4_BYTES + QN_MXFP4_SCALE];
        bits[k] = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
    }
    return vreinterpretq_f32_u32(vld1q_u32(bits));
}

/* Returns scales of NVFP4_L: e4m3_value of quant/codebook.c; byte k of four groups, k = 0 of their first 16 values, 1
 * of the last. */
QN_INLINE float32x4_t e4m3_scales(const uint8_t *blocks, size_t k)
{
    uint16_t bits[4];
    float d[4];
    UNROLL_FULL
    for (size_t g = 0; g < 4; g++) {
        const uint8_t *block = blocks + g / 2 * QN_NVFP4_L_BYTES;
        bits[g] = (uint16_t)((block[QN_NVFP4_L_SCALES + g % 2 * 2 + k] & 0x7f) << 7);
        memcpy(&d[g], block + QN_NVFP4_L_SCALE, sizeof d[g]);
    }
    return vmulq_f32(vmulq_f32(f16_to_f32(vld1_u16(bits)), vdupq_n_f32(256)),
                     vmulq_f32(vld1q_f32(d), vdupq_n_f32(0.5f)));
}

/* Types with factors: those of the halves of the groups of quarter q, and Q2_K's offsets. */
struct half_factors {
    int32x4_t lower, upper;
    float32x4_t offset_lower, offset_upper;
};

QN_INLINE struct half_factors read_half_factors(qn_type type, const uint8_t *p, size_t q)
{
    const uint8_t *block = quarter_block(type, p, q);
    struct half_factors f = { 0 };
    int32_t factor[8], min[8];
    UNROLL_FULL
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t at = (uint32_t)(q % 2) * 8 + k;
        factor[k] = type == QN_TYPE_Q3_K ? qn_q3_k_factor(block, at) : block[QN_Q2_K_FACTORS + at] & 15;
        min[k] = type == QN_TYPE_Q3_K ? 0 : block[QN_Q2_K_FACTORS + at] >> 4;
    }
    const int32x4x2_t factors = vld2q_s32(factor), mins = vld2q_s32(min);
    f.lower = factors.val[0];
    f.upper = factors.val[1];
    if (type == QN_TYPE_Q2_K) {
        const float32x4_t minus_dmin = vnegq_f32(f16_to_f32(load_f16(block + QN_Q2_K_MIN)));
        f.offset_lower = vmulq_f32(minus_dmin, vcvtq_f32_s32(mins.val[0]));
        f.offset_upper = vmulq_f32(minus_dmin, vcvtq_f32_s32(mins.val[1]));
    }
    return f;
}

/* Reads the scales of the groups of quarter q, and offsets if the type has them for whole groups. */
QN_INLINE void read_scales(qn_type type, const uint8_t *p, size_t q, float32x4_t *scale, float32x4_t *offset)
{
    const struct block_layout block = block_of(type);
    const uint8_t *at = quarter_block(type, p, q);
    if (type == QN_TYPE_Q4_K) {
        read_k_scales(at, q % 2, scale, offset);
    } else if (type == QN_TYPE_IQ4_XS) {
        *scale = iq4_xs_scales(at, q % 2);
    } else if (type == QN_TYPE_MXFP4) {
        *scale = exponent_scales(at);
    } else if (type == QN_TYPE_NVFP4_L) {
        *scale = e4m3_scales(at, 0);
    } else if (block.weights >= 128) {
        *scale = f16_to_f32(load_f16(at + block.scale));
    } else if (block.weights == 64) {
        *scale = f16_to_f32(vext_u16(load_f16(at + block.scale), load_f16(at + block.bytes + block.scale), 2));
    } else {
        *scale = f16_to_f32(load_4_f16(at + block.scale, block.bytes));
        if (has_offset(type))
            *offset = f16_to_f32(load_4_f16(at + block.min, block.bytes));
    }
}

/* ---- Dot products ---- */

/* Accumulators of byte products before the reduction to groups. Without dot product instructions they are 16 bits wide:
 * a lane sums at most eight products of 1-bit codes or two of other codes before it is widened, at most 2 * 128 *
 * 127. */
#ifdef QN_V16_DOTPROD
typedef int32x4_t dot_acc;
QN_INLINE dot_acc multiply(int8x16_t codes, int8x16_t acts)
{
    return vdotq_s32(vdupq_n_s32(0), codes, acts);
}
QN_INLINE dot_acc multiply_add(dot_acc to, int8x16_t codes, int8x16_t acts)
{
    return vdotq_s32(to, codes, acts);
}
QN_INLINE int32x4_t reduce_each_4(dot_acc x)
{
    return x;
}
QN_INLINE int32x4_t reduce_any(dot_acc x)
{
    return x;
}
QN_INLINE dot_acc add_shifted_2(dot_acc to, dot_acc x)
{
    return vsraq_n_s32(to, x, 2);
}
QN_INLINE dot_acc add_shifted_4(dot_acc to, dot_acc x)
{
    return vsraq_n_s32(to, x, 4);
}
#else
typedef struct dot_acc {
    int16x8_t low, high;
} dot_acc;
QN_INLINE dot_acc multiply(int8x16_t codes, int8x16_t acts)
{
    return (dot_acc){ vmull_s8(vget_low_s8(codes), vget_low_s8(acts)), vmull_high_s8(codes, acts) };
}
QN_INLINE dot_acc multiply_add(dot_acc to, int8x16_t codes, int8x16_t acts)
{
    return (dot_acc){ vmlal_s8(to.low, vget_low_s8(codes), vget_low_s8(acts)), vmlal_high_s8(to.high, codes, acts) };
}
/* Sums the products of each four adjacent bytes into their 32-bit lane. */
QN_INLINE int32x4_t reduce_each_4(dot_acc x)
{
    return vpaddq_s32(vpaddlq_s16(x.low), vpaddlq_s16(x.high));
}
/* Sums all products into the four lanes, in any order. */
QN_INLINE int32x4_t reduce_any(dot_acc x)
{
    return vpadalq_s16(vpaddlq_s16(x.low), x.high);
}
/* Adds x / 4 (x / 16) to `to`; x holds sums of multiples of 4 (16): exact. */
QN_INLINE dot_acc add_shifted_2(dot_acc to, dot_acc x)
{
    return (dot_acc){ vsraq_n_s16(to.low, x.low, 2), vsraq_n_s16(to.high, x.high, 2) };
}
QN_INLINE dot_acc add_shifted_4(dot_acc to, dot_acc x)
{
    return (dot_acc){ vsraq_n_s16(to.low, x.low, 4), vsraq_n_s16(to.high, x.high, 4) };
}
#endif

QN_INLINE dot_acc group_dot(const int8x16_t codes[2], const int8x16_t acts[2])
{
    return multiply_add(multiply(codes[0], acts[0]), codes[1], acts[1]);
}

/* Returns the sum of codes times activations for each group of a quarter. Codes of TQ2_0's groups 1 and 2 are still
 * shifted in their bytes. */
QN_INLINE int32x4_t quarter_dot(qn_act_layout layout, const int8x16_t codes[8], const int8x16_t acts[8])
{
    if (layout == QN_ACT_1BIT) {
        dot_acc sum = multiply(codes[0], acts[0]);
        UNROLL_FULL
        for (int v = 1; v < 8; v++)
            sum = multiply_add(sum, codes[v], acts[v]);
        return reduce_each_4(sum);
    }
    if (layout == QN_ACT_2BIT) {
        dot_acc sum = multiply_add(multiply(codes[0], acts[0]), codes[3], acts[3]);
        sum = multiply_add(multiply_add(sum, codes[4], acts[4]), codes[7], acts[7]);
        sum = add_shifted_2(sum, multiply_add(multiply(codes[1], acts[1]), codes[5], acts[5]));
        return reduce_each_4(add_shifted_4(sum, multiply_add(multiply(codes[2], acts[2]), codes[6], acts[6])));
    }
    int32x4_t group[4];
    UNROLL_FULL
    for (int k = 0; k < 4; k++)
        group[k] = reduce_any(group_dot(codes + 2 * k, acts + 2 * k));
    return vpaddq_s32(vpaddq_s32(group[0], group[1]), vpaddq_s32(group[2], group[3]));
}

/* Computes the sums of codes times activations of the halves of each group of a quarter. */
QN_INLINE void quarter_dot_halves(const int8x16_t codes[8], const int8x16_t acts[8], int32x4_t *lower, int32x4_t *upper)
{
    int32x4_t low[4], high[4];
    UNROLL_FULL
    for (int k = 0; k < 4; k++) {
        low[k] = reduce_any(multiply(codes[2 * k], acts[2 * k]));
        high[k] = reduce_any(multiply(codes[2 * k + 1], acts[2 * k + 1]));
    }
    *lower = vpaddq_s32(vpaddq_s32(low[0], low[1]), vpaddq_s32(low[2], low[3]));
    *upper = vpaddq_s32(vpaddq_s32(high[0], high[1]), vpaddq_s32(high[2], high[3]));
}

/* Corrects sums of codes as read: shifts and zero points, giving the integer dot products. */
QN_INLINE int32x4_t subtract_zero_point(qn_type type, int32x4_t isum, int32x4_t act_sum)
{
    static const int32_t down[4] = { 0, -2, -4, 0 };
    const int zero = block_of(type).max_code > 127 ? 0 : block_of(type).zero; /* codes of 8 bits are read signed */
    if (type == QN_TYPE_Q1_0)
        return vmlsq_s32(vnegq_s32(act_sum), isum, vdupq_n_s32(2)); /* isum is minus the sum of bits */
    if (type == QN_TYPE_TQ2_0)
        isum = vshlq_s32(isum, vld1q_s32(down));
    return zero == 0 ? isum : zero == 1 ? vsubq_s32(isum, act_sum) : vmlsq_s32(isum, act_sum, vdupq_n_s32(zero));
}

/* One super-block of a token's activations, in the layout that the type requires. */
struct act_super {
    const int8_t *codes, *codes_lo;
    const float *scale;
    const int32_t *sum, *sum_upper;
};

/* Reads the eight vectors of activations of quarter q. */
QN_INLINE void read_acts(qn_act_layout layout, const int8_t *codes, size_t q, int8x16_t acts[8])
{
    const bool plain = layout == QN_ACT_PLAIN;
    UNROLL_FULL
    for (size_t v = 0; v < 8; v++)
        acts[v] = vld1q_s8(plain ? codes + q * 128 + v * 16 : codes + q * 16 + v * 64);
}

/* Rows computed together; with more, the accumulators do not fit the registers. */
enum { GEMV_ROWS = 2 };

/* Adds quarter q of a row of NVFP4_L, whose halves of groups have scales of their own. */
QN_INLINE float32x4_t add_scaled_halves(qn_type type, bool hilo, const uint8_t *row, size_t q, const int8x16_t codes[8],
                                        const int8x16_t acts[8], struct act_super token, float32x4_t act_scale,
                                        float32x4_t partial)
{
    const uint8_t *blocks = quarter_block(type, row, q);
    const int32x4_t sum_upper = vld1q_s32(token.sum_upper + q * QUARTER_RUNS);
    const int32x4_t sum_lower = vsubq_s32(vld1q_s32(token.sum + q * QUARTER_RUNS), sum_upper);
    int32x4_t lower, upper;
    quarter_dot_halves(codes, acts, &lower, &upper);
    if (hilo) {
        const int32x4_t base = vdupq_n_s32(QN_HILO_BASE);
        int8x16_t acts_lo[8];
        int32x4_t lo_lower, lo_upper;
        read_acts(QN_ACT_PLAIN, token.codes_lo, q, acts_lo);
        quarter_dot_halves(codes, acts_lo, &lo_lower, &lo_upper);
        lower = vmlaq_s32(lo_lower, lower, base);
        upper = vmlaq_s32(lo_upper, upper, base);
    }
    lower = subtract_zero_point(type, lower, sum_lower);
    upper = subtract_zero_point(type, upper, sum_upper);
    partial = vfmaq_f32(partial, vcvtq_f32_s32(lower), vmulq_f32(e4m3_scales(blocks, 0), act_scale));
    return vfmaq_f32(partial, vcvtq_f32_s32(upper), vmulq_f32(e4m3_scales(blocks, 1), act_scale));
}

/* Adds quarter q of a row of a type with factors. */
QN_INLINE float32x4_t add_halves(qn_type type, const uint8_t *row, size_t q, const int8x16_t codes[8],
                                 const int8x16_t acts[8], struct act_super token, float32x4_t scale,
                                 float32x4_t act_scale, float32x4_t partial)
{
    const struct half_factors f = read_half_factors(type, row, q);
    const int32x4_t sum_upper = vld1q_s32(token.sum_upper + q * QUARTER_RUNS);
    const int32x4_t sum_lower = vsubq_s32(vld1q_s32(token.sum + q * QUARTER_RUNS), sum_upper);
    int32x4_t lower, upper;
    quarter_dot_halves(codes, acts, &lower, &upper);
    lower = subtract_zero_point(type, lower, sum_lower);
    upper = subtract_zero_point(type, upper, sum_upper);
    const int32x4_t isum = vmlaq_s32(vmulq_s32(lower, f.lower), upper, f.upper);
    partial = vfmaq_f32(partial, vcvtq_f32_s32(isum), scale);
    if (has_offset(type)) {
        partial = vfmaq_f32(partial, vcvtq_f32_s32(sum_lower), vmulq_f32(f.offset_lower, act_scale));
        partial = vfmaq_f32(partial, vcvtq_f32_s32(sum_upper), vmulq_f32(f.offset_upper, act_scale));
    }
    return partial;
}

/* Multiplies quarter q of the activations by quarter q of each row. */
QN_INLINE void gemv_quarter(qn_type type, qn_act_layout layout, bool hilo, const uint8_t *const rows[GEMV_ROWS],
                            struct act_super token, size_t q, v16 partial[GEMV_ROWS])
{
    const float32x4_t act_scale = vld1q_f32(token.scale + q * QUARTER_RUNS);
    const int32x4_t act_sum = vld1q_s32(token.sum + q * QUARTER_RUNS);
    int8x16_t acts[8], acts_lo[8];
    read_acts(layout, token.codes, q, acts);
    UNROLL_FULL
    for (size_t r = 0; r < GEMV_ROWS; r++) {
        int8x16_t codes[8];
        float32x4_t scale, offset;
        COMPILER_BARRIER();
        read_codes(type, rows[r], q, codes);
        if (type == QN_TYPE_NVFP4_L) {
            partial[r].q[q] = add_scaled_halves(type, hilo, rows[r], q, codes, acts, token, act_scale, partial[r].q[q]);
            continue;
        }
        read_scales(type, rows[r], q, &scale, &offset);
        if (has_factors(type)) {
            partial[r].q[q] = add_halves(type, rows[r], q, codes, acts, token, vmulq_f32(scale, act_scale), act_scale,
                                         partial[r].q[q]);
            continue;
        }
        int32x4_t isum = quarter_dot(layout, codes, acts);
        if (hilo) { /* loaded again for each row: two sets of activations and one of codes exceed the registers */
            read_acts(layout, token.codes_lo, q, acts_lo);
            isum = vmlaq_s32(quarter_dot(layout, codes, acts_lo), isum, vdupq_n_s32(QN_HILO_BASE));
        }
        isum = subtract_zero_point(type, isum, act_sum);
        float32x4_t *to = &partial[r].q[q];
        *to = vfmaq_f32(*to, vcvtq_f32_s32(isum), vmulq_f32(scale, act_scale));
        if (has_offset(type))
            *to = vfmaq_f32(*to, vcvtq_f32_s32(act_sum), vmulq_f32(offset, act_scale));
    }
}

/* Multiplies rows by one token. A super-block that the row does not fill is copied and padded with zeros: nothing
 * beyond the row is read, and missing groups have scale 0. An odd last row is computed twice. */
QN_INLINE void gemv_format(qn_type type, qn_act_layout layout, bool hilo, const qn_matrix *weights, size_t row_begin,
                           size_t row_end, const qn_acts *acts, size_t token, bool accumulate, float *out)
{
    const size_t super0 = token * acts->n_super, group0 = super0 * QN_SUPER_GROUPS;
    const size_t bytes = super_bytes(type), n_full = weights->row_bytes / bytes, left = weights->row_bytes % bytes;
    uint8_t last[GEMV_ROWS][QN_MAX_SUPER_BYTES];
    if (left)
        memset(last, 0, sizeof last);
    for (size_t row = row_begin; row < row_end; row += GEMV_ROWS) {
        const size_t next = row + 1 < row_end ? 1 : 0;
        const uint8_t *p[GEMV_ROWS] = { weights->data + row * weights->row_bytes,
                                        weights->data + (row + next) * weights->row_bytes };
        v16 partial[GEMV_ROWS] = { v16_set1(0), v16_set1(0) };
        struct act_super act = { .codes = acts->codes[layout] + super0 * QN_SUPER,
                                 .codes_lo = hilo ? acts->codes_lo[layout] + super0 * QN_SUPER : NULL,
                                 .scale = acts->scale + group0,
                                 .sum = acts->sum + group0,
                                 .sum_upper = acts->sum_upper + group0 };
        for (size_t s = 0; s < acts->n_super; s++) {
            UNROLL_FULL
            for (size_t r = 0; r < GEMV_ROWS && s == n_full; r++)
                p[r] = memcpy(last[r], p[r], left);
            gemv_quarter(type, layout, hilo, p, act, 0, partial);
            gemv_quarter(type, layout, hilo, p, act, 1, partial);
            gemv_quarter(type, layout, hilo, p, act, 2, partial);
            gemv_quarter(type, layout, hilo, p, act, 3, partial);
            UNROLL_FULL
            for (size_t r = 0; r < GEMV_ROWS; r++)
                p[r] += bytes;
            act.codes += QN_SUPER;
            if (hilo)
                act.codes_lo += QN_SUPER;
            act.scale += QN_SUPER_GROUPS;
            act.sum += QN_SUPER_GROUPS;
            act.sum_upper += QN_SUPER_GROUPS;
        }
        const float first = v16_sum(partial[0]), second = v16_sum(partial[1]);
        out[row] = accumulate ? out[row] + first : first;
        if (next)
            out[row + 1] = accumulate ? out[row + 1] + second : second;
    }
}

/* ---- Unpacking for GEMM tiles ---- */

/* Converts codes to those that the GEMM expects: unshifted, with the type's zero point; those of 8 bits stay signed. */
QN_INLINE void normalize_codes(qn_type type, qn_act_layout layout, int8x16_t codes[8])
{
    uint8x16_t x[8];
    UNROLL_FULL
    for (int v = 0; v < 8; v++)
        x[v] = vreinterpretq_u8_s8(codes[v]);
    UNROLL_FULL
    for (int v = 0; v < 8; v++) {
        const int field = type == QN_TYPE_TQ2_0 ? v / 2 : v % 4;
        if (type == QN_TYPE_Q1_0)
            x[v] = vandq_u8(x[v], vdupq_n_u8(2));
        else if ((type == QN_TYPE_TQ2_0 || layout == QN_ACT_2BIT) && field == 1)
            x[v] = vshrq_n_u8(x[v], 2);
        else if ((type == QN_TYPE_TQ2_0 || layout == QN_ACT_2BIT) && field == 2)
            x[v] = vshrq_n_u8(x[v], 4);
        codes[v] = signed_bytes(x[v]);
    }
}

/* Interleaves 16 ascending codes of each of four groups: four vectors, each with four codes of every group. */
QN_INLINE void interleave_four(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d, uint8_t *to)
{
    const uint32x4_t a4 = vreinterpretq_u32_s8(a), b4 = vreinterpretq_u32_s8(b);
    const uint32x4_t c4 = vreinterpretq_u32_s8(c), d4 = vreinterpretq_u32_s8(d);
    const uint64x2_t ab0 = vreinterpretq_u64_u32(vzip1q_u32(a4, b4)), ab1 = vreinterpretq_u64_u32(vzip2q_u32(a4, b4));
    const uint64x2_t cd0 = vreinterpretq_u64_u32(vzip1q_u32(c4, d4)), cd1 = vreinterpretq_u64_u32(vzip2q_u32(c4, d4));
    vst1q_u8(to, vreinterpretq_u8_u64(vzip1q_u64(ab0, cd0)));
    vst1q_u8(to + 64, vreinterpretq_u8_u64(vzip2q_u64(ab0, cd0)));
    vst1q_u8(to + 128, vreinterpretq_u8_u64(vzip1q_u64(ab1, cd1)));
    vst1q_u8(to + 192, vreinterpretq_u8_u64(vzip2q_u64(ab1, cd1)));
}

QN_INLINE void unpack_quarter(qn_type type, qn_act_layout layout, const uint8_t *p, size_t q, qn_super_block *out)
{
    int8x16_t codes[8];
    float32x4_t scale, offset;
    COMPILER_BARRIER();
    read_codes(type, p, q, codes);
    normalize_codes(type, layout, codes);
    if (layout == QN_ACT_PLAIN) {
        interleave_four(codes[0], codes[2], codes[4], codes[6], out->codes + 16 * q);
        interleave_four(codes[1], codes[3], codes[5], codes[7], out->codes + 16 * q + 256);
    } else {
        UNROLL_FULL
        for (size_t v = 0; v < 8; v++)
            vst1q_u8(out->codes + 16 * q + 64 * v, vreinterpretq_u8_s8(codes[v]));
    }
    read_scales(type, p, q, &scale, &offset);
    vst1q_f32(out->scale + QUARTER_RUNS * q, scale);
    if (type == QN_TYPE_NVFP4_L)
        vst1q_f32(out->scale_upper + QUARTER_RUNS * q, e4m3_scales(quarter_block(type, p, q), 1));
    if (has_factors(type)) {
        const struct half_factors f = read_half_factors(type, p, q);
        vst1q_s32(out->factor_lower + QUARTER_RUNS * q, f.lower);
        vst1q_s32(out->factor_upper + QUARTER_RUNS * q, f.upper);
        vst1q_f32(out->offset + QUARTER_RUNS * q, f.offset_lower);
        vst1q_f32(out->offset_upper + QUARTER_RUNS * q, f.offset_upper);
    } else if (has_offset(type)) {
        vst1q_f32(out->offset + QUARTER_RUNS * q, offset);
    }
}

QN_INLINE void unpack_format(qn_type type, qn_act_layout layout, const uint8_t *blocks, qn_super_block *out)
{
    for (size_t half = 0; half < 2; half++) { /* types with blocks of 256 weights repeat in each half */
        unpack_quarter(type, layout, blocks, 2 * half, out);
        unpack_quarter(type, layout, blocks, 2 * half + 1, out);
    }
}

/* With the instructions of gemm_i8mm.h, unpacking packed rows pays from 16 tokens on. */
#ifdef QN_V16_I8MM
#define PACKED_MAX_TOKENS 15
#else
#define PACKED_MAX_TOKENS SIZE_MAX
#endif

#define FORMATS(X)                                                                                                     \
    X(q1_0, Q1_0, QN_ACT_1BIT, HILO, { QN_PACKING_BYTES, QN_ACT_LUT, packed_q1_0, PACKED_MAX_TOKENS, false, NULL, 0 }) \
    X(q2_0, Q2_0, QN_ACT_2BIT, HILO, { 0 })                                                                            \
    X(pq2_0, PQ2_0, QN_ACT_2BIT, HILO, { 0 })                                                                          \
    X(ox2_0, OX2_0, QN_ACT_2BIT, HILO, { 0 })                                                                          \
    X(tq2_0, TQ2_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(ptq1_0, PTQ1_0, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(tq1_0, TQ1_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(q4_0, Q4_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_1, Q4_1, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q8_0, Q8_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_k, Q4_K, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q2_k, Q2_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(q3_k, Q3_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(iq4_nl, IQ4_NL, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(iq4_xs, IQ4_XS, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(mxfp4, MXFP4, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(nvfp4_l, NVFP4_L, QN_ACT_PLAIN, HILO, { 0 })

FORMAT_TABLE(FORMATS)

QN_INLINE void matmul_fill_neon(qn_matmul_kernels *kernels)
{
    matmul_fill(kernels, formats, N_FORMATS);
    kernels->gemm = gemm_neon;
    kernels->gemm_float = gemm_float_neon;
    kernels->tile_rows = GEMM_ROWS;
    kernels->tile_tokens = GEMM_TOKENS;
#ifdef QN_V16_I8MM
    kernels->pair_rows = pair_rows_i8mm;
#endif
}

#endif
