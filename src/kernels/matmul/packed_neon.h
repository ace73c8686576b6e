/* Part of matmul_neon.c and matmul_neondot.c: GEMM of packed Q1_0 (packed.h, QN_PACKING_BYTES). A vector is one byte of
 * 16 rows, and all of them use the same table. Instructions per weight and token, counted under an emulator with rows
 * of 2048: 0.18; with stored codes 0.37 (0.28 with dot products) for one token, and 0.32 (0.19) for 48 tokens by GEMM
 * tiles. */
#ifndef QN_KERNELS_MATMUL_PACKED_NEON_H
#define QN_KERNELS_MATMUL_PACKED_NEON_H

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed.h"
#include "kernels/matmul/gemm_neon.h"

/* Fills the look-up tables of the groups of a super-block, [QN_SUPER] codes. The tables of a group of 32: for each byte
 * of its word of weight bits, for its low and then its high nibble, the sums of all subsets of four codes, as
 * [sum & 31, sum >> 5][16 entries]: both halves are small enough to be added in bytes. */
static void fill_lut(const int8_t *codes, uint8_t *lut)
{
    static const int16_t bits[3][8] = { { 0, 1, 0, 1, 0, 1, 0, 1 },
                                        { 0, 0, 1, 1, 0, 0, 1, 1 },
                                        { 0, 0, 0, 0, 1, 1, 1, 1 } };
    const int16x8_t bit0 = vld1q_s16(bits[0]), bit1 = vld1q_s16(bits[1]), bit2 = vld1q_s16(bits[2]),
                    low = vdupq_n_s16(31);
    for (size_t four = 0; four < QN_SUPER / 4; four++, codes += 4, lut += 32) {
        const int16x8_t first = vmlaq_n_s16(vmlaq_n_s16(vmulq_n_s16(bit0, codes[0]), bit1, codes[1]), bit2, codes[2]);
        const int16x8_t last = vaddq_s16(first, vdupq_n_s16(codes[3]));
        vst1q_s8((int8_t *)lut, vmovn_high_s16(vmovn_s16(vandq_s16(first, low)), vandq_s16(last, low)));
        vst1q_s8((int8_t *)lut + 16, vshrn_high_n_s16(vshrn_n_s16(first, 5), last, 5));
    }
}

enum { PACK_VECTORS = QN_PANEL_ROWS / 16 };

typedef float panel_partial[QN_LANES][QN_PANEL_ROWS];

QN_INLINE void panel_accumulate(float *partial, float32x4_t isum, float32x4_t scale)
{
    vst1q_f32(partial, vfmaq_f32(vld1q_f32(partial), isum, scale));
}

/* Pins an addition to its position: gcc gathers the terms of integer sums first, more than there are registers. */
QN_INLINE uint8x16_t add_pinned(uint8x16_t a, uint8x16_t b)
{
    uint8x16_t sum = vaddq_u8(a, b);
    __asm__("" : "+w"(sum));
    return sum;
}

/* Adds a group's sums of eight rows of one vector, even and odd slots. Integers below 2^15 in the upper half of a lane
 * are converted to float as fixed-point numbers with 16 fractional bits. */
QN_INLINE void panel_accumulate_8(float *partial, int16x8_t isum, const float *scale, float act_scale)
{
    const int32x4_t both = vreinterpretq_s32_s16(isum);
    const float32x4_t even = vcvtq_n_f32_s32(vshlq_n_s32(both, 16), 16), odd = vcvtq_f32_s32(vshrq_n_s32(both, 16));
    panel_accumulate(partial, even, vmulq_n_f32(vld1q_f32(scale), act_scale));
    panel_accumulate(partial + 16, odd, vmulq_n_f32(vld1q_f32(scale + 16), act_scale));
}

/* Multiplies a group by one token; p points to its word's bytes of 64 rows. The dot product is 2S - act_sum; S is the
 * sum of the activation codes whose weight bit is set. */
QN_INLINE void panel_group_1bit(const uint8_t *p, const float *scale, const uint8_t *lut, float act_scale,
                                int32_t act_sum, float *partial)
{
    const uint8x16_t nibble = vdupq_n_u8(15);
    uint8x16_t low[PACK_VECTORS], high[PACK_VECTORS];
    QN_UNROLLED
    for (int byte = 0; byte < 4; byte++) {
        const uint8x16_t t0 = vld1q_u8(lut + 64 * byte), t1 = vld1q_u8(lut + 64 * byte + 16);
        const uint8x16_t t2 = vld1q_u8(lut + 64 * byte + 32), t3 = vld1q_u8(lut + 64 * byte + 48);
        QN_UNROLLED
        for (int v = 0; v < PACK_VECTORS; v++) {
            const uint8x16_t bytes = vld1q_u8(p + QN_PANEL_ROWS * byte + 16 * v);
            const uint8x16_t a = vandq_u8(bytes, nibble), b = vshrq_n_u8(bytes, 4);
            const uint8x16_t l = vaddq_u8(vqtbl1q_u8(t0, a), vqtbl1q_u8(t2, b));
            const uint8x16_t h = vaddq_u8(vqtbl1q_u8(t1, a), vqtbl1q_u8(t3, b));
            low[v] = byte ? add_pinned(low[v], l) : l;
            high[v] = byte ? add_pinned(high[v], h) : h;
        }
    }
    const int16x8_t minus_sum = vdupq_n_s16((int16_t)-act_sum);
    const uint8x16_t two = vdupq_n_u8(2);
    const int8x16_t sixty_four = vdupq_n_s8(64);
    QN_UNROLLED
    for (int v = 0; v < PACK_VECTORS; v++) {
        COMPILER_BARRIER();
        const uint16x8_t start = vreinterpretq_u16_s16(minus_sum);
        const int8x16_t up = vreinterpretq_s8_u8(high[v]);
        const int16x8_t first = vreinterpretq_s16_u16(vmlal_u8(start, vget_low_u8(low[v]), vget_low_u8(two)));
        const int16x8_t second = vreinterpretq_s16_u16(vmlal_high_u8(start, low[v], two));
        panel_accumulate_8(partial + 4 * v, vmlal_s8(first, vget_low_s8(up), vget_low_s8(sixty_four)), scale + 4 * v,
                           act_scale);
        panel_accumulate_8(partial + 4 * v + 32, vmlal_high_s8(second, up, sixty_four), scale + 4 * v + 32, act_scale);
    }
}

QN_INLINE void panel_store(const panel_partial partial, bool accumulate, float *out)
{
    for (size_t row = 0; row < QN_PANEL_ROWS; row += 4) {
        float32x4_t sum[QN_LANES];
        QN_UNROLLED
        for (int i = 0; i < QN_LANES; i++)
            sum[i] = vld1q_f32(partial[i] + row);
        QN_UNROLLED
        for (int width = QN_LANES / 2; width; width /= 2)
            QN_UNROLLED
        for (int i = 0; i < width; i++)
            sum[i] = vaddq_f32(sum[i], sum[i + width]);
        vst1q_f32(out + row, accumulate ? vaddq_f32(vld1q_f32(out + row), sum[0]) : sum[0]);
    }
}

static void packed_q1_0(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                        size_t n_tokens, bool accumulate, float *out, size_t out_stride)
{
    const size_t n_blocks = weights->stored.row_bytes / weights->stored.type->block_bytes,
                 group_bytes = 4 * QN_PANEL_ROWS;
    const size_t block_bytes = 4 * group_bytes + 2 * QN_PANEL_ROWS;
    panel_partial partial;
    float scale[QN_PANEL_ROWS];
    for (size_t end = row + n_rows; row < end; row += QN_PANEL_ROWS)
        for (size_t t = first; t < first + n_tokens; t++) {
            const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
            memset(partial, 0, sizeof partial);
            for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
                const uint8_t *scales_f16 = p + 4 * group_bytes;
                for (size_t i = 0; i < QN_PANEL_ROWS; i += 4)
                    vst1q_f32(scale + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(scales_f16 + 2 * i))));
                for (size_t r = 0; r < 4; r++) {
                    const size_t group = 4 * block + r, at = t * acts->n_super * QN_SUPER_GROUPS + group;
                    panel_group_1bit(p + r * group_bytes, scale, acts->lut + at * QN_GROUP_LUT_BYTES, acts->scale[at],
                                     acts->sum[at], partial[group % QN_LANES]);
                }
            }
            panel_store(partial, accumulate, out + t * out_stride + row);
        }
}

#endif
