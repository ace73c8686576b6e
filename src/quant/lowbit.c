/* Q1_0 (1 bit per weight: the sign), Q2_0, PQ2_0 and OX2_0 (2 bits per weight): the formats of Bonsai models. Codes are
 * in the order of the weights, lowest bits first. quant.h has the block layouts. */
#include "quant/families.h"

#include <math.h>

void qn_unpack_q1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += 18, codes += 128) {
        for (size_t r = 0; r < 128 / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks);
        for (size_t i = 0; i < 128; i++)
            codes[i] = (uint8_t)((blocks[2 + i / 8] >> i % 8 & 1) << 1);
    }
}

void qn_quantize_q1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += 128, blocks += 18) {
        double sum = 0.0;
        memset(blocks, 0, 18);
        for (size_t i = 0; i < 128; i++) {
            sum += fabs((double)weights[i]);
            blocks[2 + i / 8] |= (uint8_t)((weights[i] >= 0.0f) << i % 8);
        }
        qn_store_f16(blocks, qn_f32_to_f16_satfinite((float)(sum / 128.0)));
    }
}

static inline void unpack_2bit(const uint8_t *blocks, size_t n_blocks, size_t weights, size_t scale_at, size_t codes_at,
                               uint8_t *codes, float *scale)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += weights / 4 + 2, codes += weights) {
        for (size_t r = 0; r < weights / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + scale_at);
        for (size_t i = 0; i < weights; i++)
            codes[i] = blocks[codes_at + i / 4] >> i % 4 * 2 & 3;
    }
}

static inline void quantize_2bit(const float *weights, size_t n_blocks, size_t block_weights, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += block_weights) {
        uint8_t codes[128];
        qn_store_f16(blocks, qn_ternary_codes(weights, block_weights, true, codes));
        blocks += 2;
        for (size_t i = 0; i < block_weights; i += 4)
            *blocks++ = (uint8_t)(codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 | codes[i + 3] << 6);
    }
}

void qn_unpack_q2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, 64, 0, 2, codes, scale);
}

void qn_quantize_q2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_2bit(weights, n_blocks, 64, blocks);
}

void qn_unpack_pq2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, 128, 0, 2, codes, scale);
}

void qn_quantize_pq2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_2bit(weights, n_blocks, 128, blocks);
}

void qn_unpack_ox2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, 128, 32, 0, codes, scale);
}
