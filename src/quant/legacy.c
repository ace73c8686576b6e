/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 weights with one scale, and a minimum in the _1 types. The layouts are
 * ggml's (ggml-common.h): scale, minimum, fifth bits (each if the type has it), then codes. */
#include "quant/families.h"
#include "quant/layout.h"

#include <math.h>

enum { WEIGHTS = 32 };

static void unpack_nibbles(const uint8_t *bytes, uint8_t *codes)
{
    for (uint32_t i = 0; i < WEIGHTS / 2; i++) {
        codes[i] = (uint8_t)qn_code_nibble(bytes, i);
        codes[i + WEIGHTS / 2] = (uint8_t)qn_code_nibble(bytes, i + WEIGHTS / 2);
    }
}

static void add_fifth_bits(const uint8_t *bytes, uint8_t *codes)
{
    uint32_t bits;
    memcpy(&bits, bytes, sizeof bits);
    for (size_t j = 0; j < WEIGHTS; j++)
        codes[j] |= (uint8_t)((bits >> j & 1) << 4);
}

void qn_unpack_q4_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q4_0_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_Q4_0_SCALE);
        unpack_nibbles(blocks + QN_Q4_0_CODES, codes + b * WEIGHTS);
    }
}

void qn_unpack_q4_1(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q4_1_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_Q4_1_SCALE);
        offset[b] = qn_load_f16(blocks + QN_Q4_1_MIN);
        unpack_nibbles(blocks + QN_Q4_1_CODES, codes + b * WEIGHTS);
    }
}

void qn_unpack_q5_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q5_0_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_Q5_0_SCALE);
        unpack_nibbles(blocks + QN_Q5_0_CODES, codes + b * WEIGHTS);
        add_fifth_bits(blocks + QN_Q5_0_HIGH, codes + b * WEIGHTS);
    }
}

void qn_unpack_q5_1(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q5_1_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_Q5_1_SCALE);
        offset[b] = qn_load_f16(blocks + QN_Q5_1_MIN);
        unpack_nibbles(blocks + QN_Q5_1_CODES, codes + b * WEIGHTS);
        add_fifth_bits(blocks + QN_Q5_1_HIGH, codes + b * WEIGHTS);
    }
}

void qn_unpack_q8_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q8_0_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_Q8_0_SCALE);
        for (uint32_t j = 0; j < WEIGHTS; j++)
            codes[b * WEIGHTS + j] = (uint8_t)qn_code_int8(blocks + QN_Q8_0_CODES, j);
    }
}

/* The integer nearest to t, ties upwards, clamped to [0, limit]. Uses double, where adding 0.5 to a float is exact. */
static uint8_t nearest_code(double t, double limit)
{
    const double code = floor(t + 0.5);
    return (uint8_t)(code < 0.0 ? 0.0 : code > limit ? limit : code);
}

static void pack_nibbles(const uint8_t *codes, uint8_t *bytes)
{
    for (size_t j = 0; j < WEIGHTS / 2; j++)
        bytes[j] = (uint8_t)(codes[j] | codes[j + WEIGHTS / 2] << 4);
}

/* Quantises to Q4_0. Scales are ggml's. Codes are rounded with the stored fp16 scale, which is never worse than
 * rounding with the f32 scale. */
void qn_quantize_q4_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += WEIGHTS, blocks += QN_Q4_0_BYTES) {
        float largest = 0.0f;
        for (size_t j = 0; j < WEIGHTS; j++)
            if (fabsf(weights[j]) > fabsf(largest))
                largest = weights[j];
        const uint16_t scale_f16 = qn_f32_to_f16_satfinite(largest / -8.0f);
        const float d = qn_f16_to_f32(scale_f16);
        uint8_t codes[WEIGHTS];
        for (size_t j = 0; j < WEIGHTS; j++)
            codes[j] = d == 0.0f ? 8 : nearest_code((double)weights[j] / d + 8.0, 15.0);
        qn_store_f16(blocks + QN_Q4_0_SCALE, scale_f16);
        pack_nibbles(codes, blocks + QN_Q4_0_CODES);
    }
}

void qn_quantize_q4_1(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += WEIGHTS, blocks += QN_Q4_1_BYTES) {
        float min = weights[0], max = weights[0];
        for (size_t j = 1; j < WEIGHTS; j++) {
            min = weights[j] < min ? weights[j] : min;
            max = weights[j] > max ? weights[j] : max;
        }
        const uint16_t d_f16 = qn_f32_to_f16_satfinite((float)(((double)max - min) / 15.0));
        const uint16_t m_f16 = qn_f32_to_f16_satfinite(min);
        const float d = qn_f16_to_f32(d_f16), m = qn_f16_to_f32(m_f16);
        uint8_t codes[WEIGHTS];
        for (size_t j = 0; j < WEIGHTS; j++)
            codes[j] = d == 0.0f ? 0 : nearest_code(((double)weights[j] - m) / d, 15.0);
        qn_store_f16(blocks + QN_Q4_1_SCALE, d_f16);
        qn_store_f16(blocks + QN_Q4_1_MIN, m_f16);
        pack_nibbles(codes, blocks + QN_Q4_1_CODES);
    }
}

/* Returns the sum of squared errors of a block quantised with step d, or a part of it that is not below `limit`;
 * INFINITY if a code exceeds 127. */
static float q8_error(const float *weights, float d, float limit)
{
    float sum = 0.0f;
    for (size_t j = 0; j < WEIGHTS && sum < limit; j++) {
        const float code = rintf(weights[j] / d), error = weights[j] - d * code;
        sum += fabsf(code) <= 127.0f ? error * error : INFINITY;
    }
    return sum;
}

/* The smallest difference between two weights of a block with at most 16 distinct values: the step of a block that
 * was quantised to 4 bits or fewer before. INFINITY for other blocks. */
static float smallest_step(const float *weights)
{
    float sorted[WEIGHTS], step = INFINITY;
    size_t distinct = 1;
    for (size_t j = 0; j < WEIGHTS; j++) {
        size_t at = j;
        for (; at > 0 && sorted[at - 1] > weights[j]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = weights[j];
    }
    for (size_t j = 1; j < WEIGHTS; j++) {
        const float distance = sorted[j] - sorted[j - 1];
        if (distance <= 1e-3f * (sorted[WEIGHTS - 1] - sorted[0])) /* differences due to rounding are not steps */
            continue;
        distinct++;
        step = distance < step ? distance : step;
    }
    return distinct <= 16 ? step : INFINITY;
}

/* The step is amax / 127, or an integer fraction of the block's own step if that gives a smaller error: 4-bit
 * weights with an offset have 16 equally spaced values, which amax / 127 would miss and such a fraction hits. */
static uint16_t q8_scale(const float *weights, float largest)
{
    enum { MAX_DIVISOR = 24 };
    const float step = smallest_step(weights);
    uint16_t best = qn_f32_to_f16_satfinite(largest / 127.0f);
    float min_error = best ? q8_error(weights, qn_f16_to_f32(best), INFINITY) : 0.0f;
    for (int divisor = 1; divisor <= MAX_DIVISOR && isfinite(step) && min_error > 0.0f; divisor++) {
        const uint16_t scale_f16 = qn_f32_to_f16_satfinite(step / (float)divisor);
        const float d = qn_f16_to_f32(scale_f16),
                    error = d * 127.5f > largest ? q8_error(weights, d, min_error) : INFINITY;
        if (error < min_error) {
            min_error = error;
            best = scale_f16;
        }
    }
    return best;
}

void qn_quantize_q8_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += WEIGHTS, blocks += QN_Q8_0_BYTES) {
        float largest = 0.0f;
        for (size_t j = 0; j < WEIGHTS; j++)
            largest = fabsf(weights[j]) > largest ? fabsf(weights[j]) : largest;
        const uint16_t scale_f16 = q8_scale(weights, largest);
        const float d = qn_f16_to_f32(scale_f16);
        qn_store_f16(blocks + QN_Q8_0_SCALE, scale_f16);
        for (size_t j = 0; j < WEIGHTS; j++) {
            const int magnitude = d == 0.0f ? 0 : nearest_code(fabs((double)weights[j] / d), 127.0);
            blocks[QN_Q8_0_CODES + j] = (uint8_t)(weights[j] < 0.0f ? -magnitude : magnitude);
        }
    }
}
