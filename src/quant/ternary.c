/* TQ1_0, TQ2_0 and PTQ1_0, and the quantisation rule of all ternary formats.
 *
 * The layouts of TQ1_0 and TQ2_0 are ggml's (ggml-common.h), that of PTQ1_0 is PrismML's. */
#include "quant/families.h"
#include "quant/layout.h"
#include "quant/quant_kernels.h"

#include <math.h>

/* The largest magnitude; n is a multiple of 16. The order of finite floats' magnitudes is that of their bits;
 * integer loops are vectorised, and several of them hide the latency. */
static float largest_magnitude(const float *weights, size_t n)
{
    enum { LANES = 16 };
    int32_t lanes[LANES] = { 0 }, largest = 0;
    float out;
    for (size_t i = 0; i < n; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            int32_t bits;
            memcpy(&bits, &weights[i + j], sizeof bits);
            bits &= 0x7fffffff;
            lanes[j] = bits > lanes[j] ? bits : lanes[j];
        }
    for (size_t j = 0; j < LANES; j++)
        largest = lanes[j] > largest ? lanes[j] : largest;
    memcpy(&out, &largest, sizeof out);
    return out;
}

/* Whether the weights are among d, 0, -d and 2d, and not all are 0 or 2d. */
static bool is_four_valued(const float *weights, size_t n, float d)
{
    uint32_t n_known = 0, n_ones = 0;
    for (size_t i = 0; i < n; i++) {
        const float x = weights[i];
        const uint32_t one = fabsf(x) == d;
        n_known += (uint32_t)(x == 0.0f) | one | (uint32_t)(x == 2.0f * d);
        n_ones += one;
    }
    return d > 0.0f && n_known == n && n_ones > 0;
}

uint16_t qn_ternary_codes(const float *weights, size_t n, bool four_valued, uint8_t *codes)
{
    const float largest = largest_magnitude(weights, n);
    if (four_valued && largest > 0.0f) {
        const uint16_t scale_f16 = qn_f32_to_f16_satfinite(largest / 2.0f);
        const float d = qn_f16_to_f32(scale_f16);
        if (is_four_valued(weights, n, d)) {
            for (size_t i = 0; i < n; i++)
                codes[i] = (uint8_t)(1 + (int)(weights[i] / d));
            return scale_f16;
        }
    }
    const uint16_t scale_f16 = qn_f32_to_f16_satfinite(largest);
    const float bound = qn_ternary_bound(qn_f16_to_f32(scale_f16));
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(1 + (weights[i] >= bound) - (weights[i] <= -bound));
    return scale_f16;
}

/* The sizes are constants in every call, so that each type gets specialised loops. */
static inline void unpack_trits(const uint8_t *blocks, size_t n_blocks, uint32_t weights, size_t block_bytes,
                                size_t scale_at, uint32_t n_trit_bytes, uint8_t *codes, float *scale)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += block_bytes) {
        for (size_t r = 0; r < weights / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + scale_at);
        qn_trit place;
        for (uint32_t i = 0; i < weights; i += place.width) {
            place = qn_trit_place(i, n_trit_bytes);
            const uint32_t power = qn_power_of_3(place.digit);
            for (uint32_t j = 0; j < place.width; j++)
                *codes++ = (uint8_t)QN_TRIT(blocks[place.byte + j], power);
        }
    }
}

static inline void quantize_trits(const float *weights, size_t n_blocks, uint32_t block_weights, size_t block_bytes,
                                  size_t scale_at, uint32_t n_trit_bytes, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += block_weights, blocks += block_bytes) {
        uint8_t codes[256], values[64] = { 0 };
        qn_trit place;
        qn_store_f16(blocks + scale_at, qn_ternary_codes(weights, block_weights, false, codes));
        for (uint32_t i = 0; i < block_weights; i += place.width) {
            place = qn_trit_place(i, n_trit_bytes);
            const uint32_t place_value = qn_power_of_3(4 - place.digit); /* digit 0 is the highest */
            for (uint32_t j = 0; j < place.width; j++)
                values[place.byte + j] = (uint8_t)(values[place.byte + j] + codes[i + j] * place_value);
        }
        for (size_t j = 0; j < scale_at; j++)
            blocks[j] = (uint8_t)((values[j] * 256 + 242) / 243); /* rounded up, so that no digit comes out too small */
    }
}

void qn_unpack_tq1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_trits(blocks, n_blocks, QN_TQ1_0_WEIGHTS, QN_TQ1_0_BYTES, QN_TQ1_0_SCALE, QN_TQ1_0_TRIT_BYTES, codes, scale);
}

void qn_quantize_tq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_trits(weights, n_blocks, QN_TQ1_0_WEIGHTS, QN_TQ1_0_BYTES, QN_TQ1_0_SCALE, QN_TQ1_0_TRIT_BYTES, blocks);
}

void qn_unpack_ptq1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                      int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_trits(blocks, n_blocks, QN_PTQ1_0_WEIGHTS, QN_PTQ1_0_BYTES, QN_PTQ1_0_SCALE, QN_PTQ1_0_TRIT_BYTES, codes,
                 scale);
}

void qn_quantize_ptq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_trits(weights, n_blocks, QN_PTQ1_0_WEIGHTS, QN_PTQ1_0_BYTES, QN_PTQ1_0_SCALE, QN_PTQ1_0_TRIT_BYTES,
                   blocks);
}

void qn_unpack_tq2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_TQ2_0_BYTES, codes += QN_TQ2_0_WEIGHTS) {
        for (size_t r = 0; r < QN_TQ2_0_WEIGHTS / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + QN_TQ2_0_SCALE);
        for (uint32_t i = 0; i < QN_TQ2_0_WEIGHTS; i++)
            codes[i] = (uint8_t)qn_code_tq2_0(blocks + QN_TQ2_0_CODES, i);
    }
}

void qn_quantize_tq2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += QN_TQ2_0_WEIGHTS, blocks += QN_TQ2_0_BYTES) {
        uint8_t codes[QN_TQ2_0_WEIGHTS], *out = blocks + QN_TQ2_0_CODES;
        qn_store_f16(blocks + QN_TQ2_0_SCALE, qn_ternary_codes(weights, QN_TQ2_0_WEIGHTS, true, codes));
        memset(out, 0, QN_TQ2_0_WEIGHTS / 4);
        for (size_t r = 0; r < 8; r++)
            for (size_t j = 0; j < QN_QUANT_GROUP; j++)
                out[r / 4 * QN_QUANT_GROUP + j] |= (uint8_t)(codes[r * QN_QUANT_GROUP + j] << r % 4 * 2);
    }
}
