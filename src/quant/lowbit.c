/* Q1_0 (1 bit per weight: the sign), Q2_0, PQ2_0 and OX2_0 (2 bits per weight): the formats of Bonsai models. Codes are
 * in the order of the weights, lowest bits first. layout.h has the block layouts. */
#include "quant/families.h"
#include "quant/layout.h"
#include "quant/quant_kernels.h"

#include <math.h>

/* Spreads the bits of a byte to the bytes of a word, as 0 or 1: byte k keeps only bit k, which a carry moves to its
 * highest bit. */
static inline uint64_t spread_bits(uint8_t byte)
{
    const uint64_t single = byte * 0x0101010101010101u & 0x8040201008040201u;
    return (single + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}

void qn_unpack_q1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q1_0_BYTES, codes += QN_Q1_0_WEIGHTS) {
        for (size_t r = 0; r < QN_Q1_0_WEIGHTS / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + QN_Q1_0_SCALE);
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS / 8; i++) {
            const uint64_t spread = spread_bits(blocks[QN_Q1_0_CODES + i]) << 1;
            memcpy(codes + 8 * i, &spread, sizeof spread);
        }
    }
}

/* Computes the mean magnitudes of n blocks. Each sum is in the order of its weights; interleaving several blocks hides
 * the latency of additions. n is a constant in every call. */
static inline void mean_magnitudes(const float *weights, size_t n, float *means)
{
    enum { MAX = 4 };
    double sums[MAX] = { 0.0 };
    for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i++)
        for (size_t b = 0; b < n; b++)
            sums[b] += fabs((double)weights[b * QN_Q1_0_WEIGHTS + i]);
    for (size_t b = 0; b < n; b++)
        means[b] = (float)(sums[b] / QN_Q1_0_WEIGHTS);
}

/* The inverse of spread_bits: the multiplication moves bit 8k to bit 56 + k. */
static inline uint8_t gather_bits(uint64_t spread)
{
    return (uint8_t)(spread * 0x0102040810204080u >> 56);
}

static void store_q1_0(const float *weights, float scale, uint8_t *block)
{
    uint8_t codes[QN_Q1_0_WEIGHTS];
    for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i++)
        codes[i] = weights[i] >= 0.0f;
    for (size_t i = 0; i < QN_Q1_0_WEIGHTS / 8; i++) {
        uint64_t spread;
        memcpy(&spread, codes + 8 * i, sizeof spread);
        block[QN_Q1_0_CODES + i] = gather_bits(spread);
    }
    qn_store_f16(block + QN_Q1_0_SCALE, qn_f32_to_f16_satfinite(scale));
}

/* The magnitude of all weights of a block; negative if they differ. It equals their mean: sums of up to 128 times a
 * float are exact in a double. */
static inline float only_magnitude(const float *weights)
{
    int32_t first, differ = 0;
    float magnitude;
    memcpy(&first, weights, sizeof first);
    first &= 0x7fffffff;
    for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i++) {
        int32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        differ |= (bits & 0x7fffffff) ^ first;
    }
    memcpy(&magnitude, &first, sizeof magnitude);
    return differ ? -1.0f : magnitude;
}

void qn_quantize_mixed_q1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float mean;
        mean_magnitudes(weights + b * QN_Q1_0_WEIGHTS, 1, &mean);
        store_q1_0(weights + b * QN_Q1_0_WEIGHTS, mean, blocks + b * QN_Q1_0_BYTES);
    }
}

void qn_quantize_q1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    float means[4];
    for (size_t b = 0, n; b < n_blocks; b += n) {
        n = n_blocks - b < 4 ? 1 : 4;
        bool known = true;
        for (size_t i = 0; i < n; i++) {
            means[i] = only_magnitude(weights + (b + i) * QN_Q1_0_WEIGHTS);
            known = known && means[i] >= 0.0f;
        }
        if (!known && n == 4)
            mean_magnitudes(weights + b * QN_Q1_0_WEIGHTS, 4, means);
        else if (!known)
            mean_magnitudes(weights + b * QN_Q1_0_WEIGHTS, 1, means);
        for (size_t i = 0; i < n; i++)
            store_q1_0(weights + (b + i) * QN_Q1_0_WEIGHTS, means[i], blocks + (b + i) * QN_Q1_0_BYTES);
    }
}

/* The sizes are constants in every call, so that each type gets a specialised loop. */
static inline void unpack_2bit(const uint8_t *blocks, size_t n_blocks, size_t weights, size_t block_bytes,
                               size_t scale_at, size_t codes_at, uint8_t *codes, float *scale)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += block_bytes, codes += weights) {
        for (size_t r = 0; r < weights / QN_QUANT_GROUP; r++)
            *scale++ = qn_load_f16(blocks + scale_at);
        for (uint32_t i = 0; i < weights; i++)
            codes[i] = (uint8_t)qn_code_2bit(blocks + codes_at, i);
    }
}

static inline void quantize_2bit(const float *weights, size_t n_blocks, size_t block_weights, size_t block_bytes,
                                 size_t scale_at, size_t codes_at, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += block_weights, blocks += block_bytes) {
        uint8_t codes[QN_PQ2_0_WEIGHTS], *out = blocks + codes_at;
        qn_store_f16(blocks + scale_at, qn_ternary_codes(weights, block_weights, true, codes));
        for (size_t i = 0; i < block_weights; i += 4)
            *out++ = (uint8_t)(codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 | codes[i + 3] << 6);
    }
}

void qn_unpack_q2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, QN_Q2_0_WEIGHTS, QN_Q2_0_BYTES, QN_Q2_0_SCALE, QN_Q2_0_CODES, codes, scale);
}

void qn_quantize_q2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_2bit(weights, n_blocks, QN_Q2_0_WEIGHTS, QN_Q2_0_BYTES, QN_Q2_0_SCALE, QN_Q2_0_CODES, blocks);
}

void qn_unpack_pq2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, QN_PQ2_0_WEIGHTS, QN_PQ2_0_BYTES, QN_PQ2_0_SCALE, QN_PQ2_0_CODES, codes, scale);
}

void qn_quantize_pq2_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    quantize_2bit(weights, n_blocks, QN_PQ2_0_WEIGHTS, QN_PQ2_0_BYTES, QN_PQ2_0_SCALE, QN_PQ2_0_CODES, blocks);
}

void qn_unpack_ox2_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    (void)offset, (void)factor;
    unpack_2bit(blocks, n_blocks, QN_OX2_0_WEIGHTS, QN_OX2_0_BYTES, QN_OX2_0_SCALE, QN_OX2_0_CODES, codes, scale);
}
