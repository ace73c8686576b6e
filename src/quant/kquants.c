/* Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: blocks of 256 weights with a small integer scale per 32 weights (Q2_K, Q3_K, Q6_K: per
 * 16).
 * Dequantisation only. The layouts are ggml's (ggml-common.h):
 *
 *   Q2_K   16 B of 4-bit scales and minima, 64 B of 2-bit fields, d, dmin
 *   Q3_K   32 B of third bits, 64 B of 2-bit fields, 12 B of 6-bit scales, d
 *   Q4_K   d, dmin, 12 B of 6-bit scales and minima, 128 B of nibbles
 *   Q5_K   d, dmin, 12 B of 6-bit scales and minima, 32 B of fifth bits, 128 B of nibbles
 *   Q6_K   128 B of low nibbles, 64 B of upper 2-bit fields, 16 int8 scales, d */
#include "quant/families.h"
#include "quant/layout.h"

enum { WEIGHTS = 256, GROUPS = WEIGHTS / QN_QUANT_GROUP };

/* Unpacks scales and minima. Twelve bytes hold eight 6-bit scales and eight 6-bit minima. Groups 0 to 3: low six bits
 * of bytes 0 to 3 (scales) and 4 to 7 (minima). Groups 4 to 7: the low four bits are the nibbles of bytes 8 to 11 (low:
 * scale, high: minimum), the top two bits are the top bits of bytes 0 to 7. */
static void unpack_scales(const uint8_t bytes[12], uint8_t scale[GROUPS], uint8_t min[GROUPS])
{
    for (size_t r = 0; r < 4; r++) {
        scale[r] = bytes[r] & 63;
        min[r] = bytes[r + 4] & 63;
        scale[r + 4] = (uint8_t)((bytes[r + 8] & 15) | bytes[r] >> 6 << 4);
        min[r + 4] = (uint8_t)(bytes[r + 8] >> 4 | bytes[r + 4] >> 6 << 4);
    }
}

/* The common part of Q4_K and Q5_K: d, dmin and factors, at the same offsets in both. Each pair of groups is 32
 * bytes of nibbles, with the even group in the low ones. `fifth` (NULL for Q4_K): bit r of byte j is the fifth bit
 * of weight j of group r. */
_Static_assert(QN_Q4_K_SCALE == QN_Q5_K_SCALE && QN_Q4_K_MIN == QN_Q5_K_MIN && QN_Q4_K_FACTORS == QN_Q5_K_FACTORS,
               "Q4_K and Q5_K begin alike");
static void unpack_groups(const uint8_t *block, const uint8_t *fifth, const uint8_t *nibbles, uint8_t *codes,
                          float *scale, float *offset)
{
    const float d = qn_load_f16(block + QN_Q4_K_SCALE), dmin = qn_load_f16(block + QN_Q4_K_MIN);
    uint8_t scales[GROUPS], mins[GROUPS];
    unpack_scales(block + QN_Q4_K_FACTORS, scales, mins);
    for (size_t r = 0; r < GROUPS; r++) {
        scale[r] = d * scales[r];
        offset[r] = -(dmin * mins[r]);
        const uint8_t *bytes = nibbles + r / 2 * QN_QUANT_GROUP;
        for (size_t j = 0; j < QN_QUANT_GROUP; j++) {
            const int high = fifth ? (fifth[j] >> r & 1) << 4 : 0;
            codes[r * QN_QUANT_GROUP + j] = (uint8_t)((bytes[j] >> r % 2 * 4 & 15) | high);
        }
    }
}

void qn_unpack_q4_k(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q4_K_BYTES)
        unpack_groups(blocks, NULL, blocks + QN_Q4_K_CODES, codes + b * WEIGHTS, scale + b * GROUPS,
                      offset + b * GROUPS);
}

void qn_unpack_q5_k(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q5_K_BYTES)
        unpack_groups(blocks, blocks + QN_Q5_K_HIGH, blocks + QN_Q5_K_CODES, codes + b * WEIGHTS, scale + b * GROUPS,
                      offset + b * GROUPS);
}

/* Each half of the block is four groups of 32: groups 0 and 1 in the low nibbles of 64 bytes, 2 and 3 in the high
 * nibbles. The top two bits of weight j of group r are bits 2r and 2r+1 of byte j of 32 further bytes. */
void qn_unpack_q6_k(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q6_K_BYTES) {
        memcpy(factor + b * 2 * GROUPS, blocks + QN_Q6_K_FACTORS, 2 * GROUPS);
        for (size_t r = 0; r < GROUPS; r++) {
            const uint8_t *low = blocks + QN_Q6_K_CODES + r / 4 * 64 + r % 2 * QN_QUANT_GROUP;
            const uint8_t *high = blocks + QN_Q6_K_HIGH + r / 4 * QN_QUANT_GROUP;
            scale[b * GROUPS + r] = qn_load_f16(blocks + QN_Q6_K_SCALE);
            for (size_t j = 0; j < QN_QUANT_GROUP; j++) {
                const int four = low[j] >> r % 4 / 2 * 4 & 15;
                const int two = high[j] >> r % 4 * 2 & 3;
                codes[b * WEIGHTS + r * QN_QUANT_GROUP + j] = (uint8_t)(four | two << 4);
            }
        }
    }
}

void qn_unpack_q2_k(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q2_K_BYTES) {
        const float d = qn_load_f16(blocks + QN_Q2_K_SCALE), dmin = qn_load_f16(blocks + QN_Q2_K_MIN);
        for (size_t r = 0; r < GROUPS; r++)
            scale[b * GROUPS + r] = d;
        for (size_t k = 0; k < 2 * GROUPS; k++) {
            const uint8_t both = blocks[QN_Q2_K_FACTORS + k];
            factor[b * 2 * GROUPS + k] = (int8_t)(both & 15);
            offset[b * 2 * GROUPS + k] = -(dmin * (float)(both >> 4));
        }
        for (uint32_t i = 0; i < WEIGHTS; i++)
            codes[b * WEIGHTS + i] = (uint8_t)qn_code_tq2_0(blocks + QN_Q2_K_CODES, i);
    }
}

void qn_unpack_q3_k(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q3_K_BYTES) {
        const float d = qn_load_f16(blocks + QN_Q3_K_SCALE);
        for (size_t r = 0; r < GROUPS; r++)
            scale[b * GROUPS + r] = d;
        for (uint32_t k = 0; k < 2 * GROUPS; k++)
            factor[b * 2 * GROUPS + k] = (int8_t)qn_q3_k_factor(blocks, k);
        for (uint32_t i = 0; i < WEIGHTS; i++)
            codes[b * WEIGHTS + i] = (uint8_t)qn_code_q3_k(blocks, i);
    }
}
