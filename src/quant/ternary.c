/* TQ1_0, TQ2_0 and PTQ1_0, and the rule by which all ternary formats are quantised.
 *
 * TQ1_0 and PTQ1_0 store five base-3 digits v per byte as ceil(256 v / 243), a fraction of 256: multiplying the byte by
 * 3 carries the next digit out at the top. Digit n of byte b is (3 (b 3^n mod 256)) >> 8. The layouts of TQ1_0 and
 * TQ2_0 are ggml's (ggml-common.h), that of PTQ1_0 is PrismML's. */
#include "quant/families.h"

#include <math.h>

uint16_t qn_ternary_codes(const float *weights, size_t n, bool four_valued, uint8_t *codes)
{
    float largest = 0.0f;
    for (size_t i = 0; i < n; i++)
        largest = fabsf(weights[i]) > largest ? fabsf(weights[i]) : largest;
    if (four_valued && largest > 0.0f) {
        const uint16_t scale_f16 = qn_f32_to_f16_satfinite(largest / 2.0f);
        const float d = qn_f16_to_f32(scale_f16);
        bool exact = d > 0.0f, has_one = false;
        for (size_t i = 0; i < n && exact; i++) {
            const float x = weights[i];
            exact = x == 0.0f || fabsf(x) == d || x == 2.0f * d;
            has_one |= fabsf(x) == d;
        }
        if (exact && has_one) {
            for (size_t i = 0; i < n; i++)
                codes[i] = (uint8_t)(1 + (int)(weights[i] / d));
            return scale_f16;
        }
    }
    const uint16_t scale_f16 = qn_f32_to_f16_satfinite(largest);
    const float d = qn_f16_to_f32(scale_f16);
    /* x/d rounds to 1 from 0.5 on. Comparing with the exact 0.5 d needs no division, and d = 0 gives code 1. */
    const float bound = d > 0.0f ? 0.5f * d : INFINITY;
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(1 + (weights[i] >= bound) - (weights[i] <= -bound));
    return scale_f16;
}

/* Positions of the digits in a block. groups[] are the lengths of consecutive byte ranges: digit n of all bytes of a
 * range encodes consecutive weights, one per byte, before digit n + 1 of the same bytes. Bytes of the last range hold
 * four digits, all others five. */
struct trit_layout {
    size_t weights, bytes, groups[3], scale_at;
};

static const struct trit_layout tq1_0 = { 256, 54, { 32, 16, 4 }, 52 };
static const struct trit_layout ptq1_0 = { 128, 28, { 16, 8, 2 }, 26 };

static void unpack_trits(const struct trit_layout *layout, const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += layout->bytes) {
        for (size_t r = 0; r < layout->weights / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + layout->scale_at);
        const uint8_t *group = blocks;
        for (size_t g = 0; g < 3; group += layout->groups[g++]) {
            unsigned power = 1;
            for (size_t n = 0; n < (g < 2 ? 5 : 4); n++, power *= 3)
                for (size_t j = 0; j < layout->groups[g]; j++)
                    *codes++ = (uint8_t)((group[j] * power & 255) * 3 >> 8);
        }
    }
}

static void quantize_trits(const struct trit_layout *layout, const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += layout->weights, blocks += layout->bytes) {
        uint8_t codes[256];
        qn_store_f16(blocks + layout->scale_at, qn_ternary_codes(weights, layout->weights, false, codes));
        const uint8_t *code = codes;
        uint8_t *out = blocks;
        for (size_t g = 0; g < 3; g++) {
            const size_t width = layout->groups[g], digits = g < 2 ? 5 : 4;
            for (size_t j = 0; j < width; j++) {
                unsigned value = 0;
                for (size_t n = 0; n < 5; n++)
                    value = value * 3 + (n < digits ? code[n * width + j] : 0);
                *out++ = (uint8_t)((value * 256 + 242) / 243); /* rounded up: no digit comes out one too small */
            }
            code += digits * width;
        }
    }
}

void qn_unpack_tq1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_trits(&tq1_0, blocks, n_blocks, codes, scale);
}

void qn_quantize_tq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_trits(&tq1_0, weights, n_blocks, blocks);
}

void qn_unpack_ptq1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_trits(&ptq1_0, blocks, n_blocks, codes, scale);
}

void qn_quantize_ptq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_trits(&ptq1_0, weights, n_blocks, blocks);
}

/* TQ2_0: two halves of 128 weights, 32 bytes each; weight 32l + j of a half is bits 2l and 2l+1 of byte j. The scale is
 * last. */
void qn_unpack_tq2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += 66)
        for (size_t r = 0; r < 8; r++) {
            *scale++ = qn_load_f16(blocks + 64);
            for (size_t j = 0; j < QN_QUANT_GROUP; j++)
                *codes++ = blocks[r / 4 * QN_QUANT_GROUP + j] >> r % 4 * 2 & 3;
        }
}

void qn_quantize_tq2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += 256, blocks += 66) {
        uint8_t codes[256];
        qn_store_f16(blocks + 64, qn_ternary_codes(weights, 256, true, codes));
        memset(blocks, 0, 64);
        for (size_t r = 0; r < 8; r++)
            for (size_t j = 0; j < QN_QUANT_GROUP; j++)
                blocks[r / 4 * QN_QUANT_GROUP + j] |= (uint8_t)(codes[r * QN_QUANT_GROUP + j] << r % 4 * 2);
    }
}
