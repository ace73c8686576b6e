/* GEMM tiles for the int8 matrix multiplication of ARMv8.6 (smmla): eight rows by four or two tokens. Part of
 * matmul_i8mm.c.
 *
 * smmla multiplies eight codes of each of two rows by those of two tokens, into a register of four sums. So the codes
 * of two rows lie together: pair_rows rearranges unpacked rows once, for all tokens. Activations are read in
 * QN_ACT_PLAIN and paired in registers. One of the sixteen partial sums is computed at a time over all of K: eight
 * integer accumulators, eight float ones and eight operands of tokens leave eight of 32 registers for rows and scales.
 *
 * Types of which the halves of groups have sums of their own have tiles of gemm_neon.h. */
#ifndef QN_KERNELS_MATMUL_GEMM_I8MM_H
#define QN_KERNELS_MATMUL_GEMM_I8MM_H

#include "kernels/matmul/matmul_simd.h"

enum { I8MM_ROWS = 8, I8MM_TOKENS = 4, ROW_PAIRS = I8MM_ROWS / 2, GROUP_CHUNKS = QN_QUANT_GROUP / 8 };

static bool has_pairs(const qn_type_info *type)
{
    return !type->has_factor && !type->has_half_scale;
}

/* Two rows of a super-block after pair_rows, in the place of both. Codes are signed, without zero point: chunk c of
 * group g is [8 codes of the first row][8 of the second]. Of the first eight groups they are in the first row's place,
 * of the last eight in the second's. Scales are [16 groups][s s t t] for the rows' scales s and t, in the first row's
 * place; offsets so in the second's. */
QN_INLINE uint8_t *pair_chunk(qn_super_block *first, qn_super_block *second, size_t group, size_t chunk)
{
    return (group < 8 ? first : second)->codes + group % 8 * (2 * QN_QUANT_GROUP) + 16 * chunk;
}

/* Byte tables that sort a group whose quads of codes follow one another, as in the layout of a type, and the same for
 * half a group. */
static const uint8_t sort_1bit[32] = { 0, 4, 8,  12, 16, 20, 24, 28, 1, 5, 9,  13, 17, 21, 25, 29,
                                       2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31 };
static const uint8_t sort_2bit[16] = { 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15 };

/* Reads the codes of a row's super-block, subtracts the zero point and sorts them: [512], ascending. */
static void sort_codes(const qn_type_info *type, const qn_super_block *row, int8_t *codes)
{
    const qn_act_layout layout = qn_act_layout_of(type);
    const uint8x16_t zero = vdupq_n_u8(type->max_code > 127 ? 0 : (uint8_t)type->zero_point);
    const uint8x16_t two = vld1q_u8(sort_2bit);
    const uint8x16x2_t one = { { vld1q_u8(sort_1bit), vld1q_u8(sort_1bit + 16) } };
    for (size_t q = 0; q < 4; q++)
        for (size_t half = 0; half < 2; half++) {
            /* A transposition of quads: four vectors with a quad of each group to half of each group. */
            uint32x4_t x[4], y[4];
            for (size_t v = 0; v < 4; v++)
                x[v] = vreinterpretq_u32_u8(vsubq_u8(vld1q_u8(row->codes + 16 * q + 64 * (4 * half + v)), zero));
            for (size_t v = 0; v < 2; v++) {
                y[2 * v] = vzip1q_u32(x[v], x[v + 2]);
                y[2 * v + 1] = vzip2q_u32(x[v], x[v + 2]);
            }
            x[0] = vzip1q_u32(y[0], y[2]);
            x[1] = vzip2q_u32(y[0], y[2]);
            x[2] = vzip1q_u32(y[1], y[3]);
            x[3] = vzip2q_u32(y[1], y[3]);
            for (size_t g = 0; g < 4; g++) {
                const uint8x16_t sixteen = vreinterpretq_u8_u32(x[g]);
                vst1q_s8(codes + QN_QUANT_GROUP * (4 * q + g) + 16 * half,
                         vreinterpretq_s8_u8(layout == QN_ACT_2BIT ? vqtbl1q_u8(sixteen, two) : sixteen));
            }
        }
    for (size_t at = 0; layout == QN_ACT_1BIT && at < QN_SUPER; at += QN_QUANT_GROUP) {
        const uint8x16x2_t group = { { vreinterpretq_u8_s8(vld1q_s8(codes + at)),
                                       vreinterpretq_u8_s8(vld1q_s8(codes + at + 16)) } };
        vst1q_s8(codes + at, vreinterpretq_s8_u8(vqtbl2q_u8(group, one.val[0])));
        vst1q_s8(codes + at + 16, vreinterpretq_s8_u8(vqtbl2q_u8(group, one.val[1])));
    }
}

/* As pair_rows of qn_matmul_kernels. Rows from n_rows on are zeros. */
static void pair_rows_i8mm(const qn_type_info *type, qn_super_block *rows, size_t n_rows, size_t n_super)
{
    for (size_t r = 0; has_pairs(type) && r < I8MM_ROWS; r += 2)
        for (size_t s = 0; s < n_super; s++) {
            int8_t codes[2][QN_SUPER] = { 0 };
            float scale[2][QN_SUPER_GROUPS] = { 0 }, offset[2][QN_SUPER_GROUPS] = { 0 };
            qn_super_block *row[2] = { &rows[r * n_super + s], &rows[(r + 1) * n_super + s] };
            for (size_t i = 0; i < 2 && r + i < n_rows; i++) {
                sort_codes(type, row[i], codes[i]);
                memcpy(scale[i], row[i]->scale, sizeof scale[i]);
                if (type->has_offset)
                    memcpy(offset[i], row[i]->offset, sizeof offset[i]);
            }
            for (size_t g = 0; g < QN_SUPER_GROUPS; g++) {
                for (size_t chunk = 0; chunk < GROUP_CHUNKS; chunk++) {
                    const size_t at = QN_QUANT_GROUP * g + 8 * chunk;
                    vst1q_s8((int8_t *)pair_chunk(row[0], row[1], g, chunk),
                             vcombine_s8(vld1_s8(codes[0] + at), vld1_s8(codes[1] + at)));
                }
                for (size_t i = 0; i < 4; i++) {
                    row[0]->pair[g][i] = scale[i / 2][g];
                    row[1]->pair[g][i] = offset[i / 2][g];
                }
            }
        }
}

/* The activations of a tile: its tokens, the last ones again for those that it lacks. */
struct tile_tokens {
    const int8_t *codes[I8MM_TOKENS], *codes_lo[I8MM_TOKENS];
    const float *scale[I8MM_TOKENS];
    const int32_t *sum[I8MM_TOKENS];
};

/* Adds the dot products of a group. */
QN_INLINE void pair_codes(const int8_t *const *rows, const int8_t *const *tokens, size_t token_pairs,
                          int32x4_t sum[ROW_PAIRS][I8MM_TOKENS / 2])
{
    int8x16_t act[GROUP_CHUNKS][I8MM_TOKENS / 2];
    UNROLL_FULL
    for (size_t t = 0; t < token_pairs; t++)
        UNROLL_FULL
    for (size_t chunk = 0; chunk < GROUP_CHUNKS; chunk += 2) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(tokens[2 * t] + 8 * chunk));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(tokens[2 * t + 1] + 8 * chunk));
        act[chunk][t] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        act[chunk + 1][t] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
    UNROLL_FULL
    for (size_t r = 0; r < ROW_PAIRS; r++)
        UNROLL_FULL
    for (size_t chunk = 0; chunk < GROUP_CHUNKS; chunk++) {
        const int8x16_t row = vld1q_s8(rows[r] + 16 * chunk);
        UNROLL_FULL
        for (size_t t = 0; t < token_pairs; t++)
            sum[r][t] = vmmlaq_s32(sum[r][t], row, act[chunk][t]);
    }
}

/* Computes partial sum g of a tile: groups g, g + 16 and so on. */
QN_INLINE void pair_partial(const qn_super_block *rows, size_t n_super, size_t g, const struct tile_tokens *tokens,
                            size_t token_pairs, bool offset, bool hilo, float32x4_t partial[ROW_PAIRS][I8MM_TOKENS / 2])
{
    const int8_t *codes[ROW_PAIRS], *act[I8MM_TOKENS], *act_lo[I8MM_TOKENS];
    const float *scale[ROW_PAIRS];
    UNROLL_FULL
    for (size_t r = 0; r < ROW_PAIRS; r++) {
        const qn_super_block *first = rows + 2 * r * n_super;
        codes[r] = (const int8_t *)first[g < 8 ? 0 : n_super].codes + g % 8 * (2 * QN_QUANT_GROUP);
        scale[r] = first->pair[g];
        UNROLL_FULL
        for (size_t t = 0; t < token_pairs; t++)
            partial[r][t] = vdupq_n_f32(0);
    }
    UNROLL_FULL
    for (size_t t = 0; t < 2 * token_pairs; t++) {
        act[t] = tokens->codes[t] + g * QN_QUANT_GROUP;
        act_lo[t] = hilo ? tokens->codes_lo[t] + g * QN_QUANT_GROUP : NULL;
    }
    for (size_t s = 0, group = g; s < n_super; s++, group += QN_SUPER_GROUPS) {
        int32x4_t sum[ROW_PAIRS][I8MM_TOKENS / 2];
        float32x4_t act_scale[I8MM_TOKENS / 2], act_sum[I8MM_TOKENS / 2];
        UNROLL_FULL
        for (size_t t = 0; t < token_pairs; t++) {
            const float32x2_t two = { tokens->scale[2 * t][group], tokens->scale[2 * t + 1][group] };
            const int32x2_t sums = { tokens->sum[2 * t][group], tokens->sum[2 * t + 1][group] };
            act_scale[t] = vcombine_f32(two, two);
            act_sum[t] = vcvtq_f32_s32(vcombine_s32(sums, sums));
            UNROLL_FULL
            for (size_t r = 0; r < ROW_PAIRS; r++)
                sum[r][t] = vdupq_n_s32(0);
        }
        pair_codes(codes, act, token_pairs, sum);
        if (hilo) {
            UNROLL_FULL
            for (size_t r = 0; r < ROW_PAIRS; r++)
                UNROLL_FULL
            for (size_t t = 0; t < token_pairs; t++)
                sum[r][t] = vmulq_s32(sum[r][t], vdupq_n_s32(QN_HILO_BASE));
            pair_codes(codes, act_lo, token_pairs, sum);
        }
        UNROLL_FULL
        for (size_t r = 0; r < ROW_PAIRS; r++) {
            const float32x4_t row_scale = vld1q_f32(scale[r]);
            UNROLL_FULL
            for (size_t t = 0; t < token_pairs; t++) {
                partial[r][t] = vfmaq_f32(partial[r][t], vcvtq_f32_s32(sum[r][t]), vmulq_f32(row_scale, act_scale[t]));
                if (offset)
                    partial[r][t] =
                        vfmaq_f32(partial[r][t], act_sum[t],
                                  vmulq_f32(vld1q_f32(rows[(2 * r + 1) * n_super + s].pair[g]), act_scale[t]));
            }
            codes[r] += sizeof *rows;
            scale[r] += sizeof *rows / sizeof(float);
        }
        UNROLL_FULL
        for (size_t t = 0; t < 2 * token_pairs; t++) {
            act[t] += QN_SUPER;
            act_lo[t] += hilo ? QN_SUPER : 0;
        }
    }
}

QN_INLINE void pair_tile(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens,
                         size_t token_pairs, bool offset, bool hilo, float *out)
{
    const size_t n_super = acts->n_super;
    float32x4_t partial[QN_LANES][ROW_PAIRS][I8MM_TOKENS / 2];
    struct tile_tokens tokens;
    for (size_t t = 0; t < 2 * token_pairs; t++) {
        const size_t super0 = (first + (t < n_tokens ? t : n_tokens - 1)) * n_super;
        tokens.codes[t] = acts->codes[QN_ACT_PLAIN] + super0 * QN_SUPER;
        tokens.codes_lo[t] = hilo ? acts->codes_lo[QN_ACT_PLAIN] + super0 * QN_SUPER : NULL;
        tokens.scale[t] = acts->scale + super0 * QN_SUPER_GROUPS;
        tokens.sum[t] = acts->sum + super0 * QN_SUPER_GROUPS;
    }
    for (size_t g = 0; g < QN_LANES; g++) {
        float32x4_t sum[ROW_PAIRS][I8MM_TOKENS / 2];
        pair_partial(rows, n_super, g, &tokens, token_pairs, offset, hilo, sum);
        memcpy(partial[g], sum, sizeof sum);
    }
    for (size_t r = 0; r < ROW_PAIRS; r++)
        for (size_t t = 0; t < token_pairs; t++) {
            for (size_t width = QN_LANES / 2; width; width /= 2)
                for (size_t i = 0; i < width; i++)
                    partial[i][r][t] = vaddq_f32(partial[i][r][t], partial[i + width][r][t]);
            float sum[4]; /* [2 rows][2 tokens] */
            vst1q_f32(sum, partial[0][r][t]);
            for (size_t i = 0; i < 4; i++)
                if (2 * r + i / 2 < n_rows && 2 * t + i % 2 < n_tokens)
                    out[(2 * t + i % 2) * I8MM_ROWS + 2 * r + i / 2] = sum[i];
        }
}

/* One function per variant: its arguments are compile-time constants. */
#define PAIR_VARIANT(suffix, offset, hilo)                                                                             \
    static void pairs_##suffix(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, size_t first,           \
                               size_t n_tokens, float *out)                                                            \
    {                                                                                                                  \
        if (n_tokens > 2)                                                                                              \
            pair_tile(rows, n_rows, acts, first, n_tokens, 2, offset, hilo, out);                                      \
        else                                                                                                           \
            pair_tile(rows, n_rows, acts, first, n_tokens, 1, offset, hilo, out);                                      \
    }

PAIR_VARIANT(plain, false, false)
PAIR_VARIANT(offset, true, false)
PAIR_VARIANT(plain_hilo, false, true)
PAIR_VARIANT(offset_hilo, true, true)

static void gemm_pairs(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                       size_t first, size_t n_tokens, float *out)
{
    if (type->has_offset)
        (acts->hilo ? pairs_offset_hilo : pairs_offset)(rows, n_rows, acts, first, n_tokens, out);
    else
        (acts->hilo ? pairs_plain_hilo : pairs_plain)(rows, n_rows, acts, first, n_tokens, out);
}

#endif
