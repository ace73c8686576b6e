/* Interface between the family files and the table in quant.c, and the conversions that the families share. Private to
 * src/quant: other modules use the table (quant.h). */
#ifndef QN_QUANT_FAMILIES_H
#define QN_QUANT_FAMILIES_H

#include "base/f16.h"
#include "quant/quant.h"

#include <string.h>

typedef void qn_dequantize_fn(const uint8_t *blocks, size_t n_blocks, float *weights);
typedef void qn_quantize_fn(const float *weights, size_t n_blocks, uint8_t *blocks);
typedef void qn_unpack_fn(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                          int8_t *factor);
typedef size_t qn_find_nonfinite_fn(const uint8_t *blocks, size_t n_blocks);

qn_dequantize_fn qn_dequantize_f32, qn_dequantize_f16, qn_dequantize_bf16;
qn_quantize_fn qn_quantize_f32, qn_quantize_f16, qn_quantize_bf16;
qn_find_nonfinite_fn qn_find_nonfinite_f32, qn_find_nonfinite_f16, qn_find_nonfinite_bf16;

qn_unpack_fn qn_unpack_q4_0, qn_unpack_q4_1, qn_unpack_q5_0, qn_unpack_q5_1, qn_unpack_q8_0;
qn_quantize_fn qn_quantize_q4_0, qn_quantize_q4_1, qn_quantize_q8_0;

qn_unpack_fn qn_unpack_q2_k, qn_unpack_q3_k, qn_unpack_q4_k, qn_unpack_q5_k, qn_unpack_q6_k;

qn_unpack_fn qn_unpack_iq4_nl, qn_unpack_iq4_xs, qn_unpack_mxfp4, qn_unpack_nvfp4, qn_unpack_nvfp4_l;
qn_find_nonfinite_fn qn_find_nonfinite_mxfp4, qn_find_nonfinite_nvfp4, qn_find_nonfinite_nvfp4_l;

qn_unpack_fn qn_unpack_tq1_0, qn_unpack_tq2_0, qn_unpack_ptq1_0;
qn_quantize_fn qn_quantize_tq1_0, qn_quantize_tq2_0, qn_quantize_ptq1_0;

qn_unpack_fn qn_unpack_q1_0, qn_unpack_q2_0, qn_unpack_pq2_0, qn_unpack_ox2_0;
qn_quantize_fn qn_quantize_q1_0, qn_quantize_q2_0, qn_quantize_pq2_0;

static inline float qn_load_f16(const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, sizeof h);
    return qn_f16_to_f32(h);
}

static inline void qn_store_f16(uint8_t *at, uint16_t h)
{
    memcpy(at, &h, sizeof h);
}

/* qn_f32_to_f16_satfinite - the nearest finite fp16 value: magnitudes beyond 65504 become 65504. An infinite scale
 * would turn its whole block into NaN. */
static inline uint16_t qn_f32_to_f16_satfinite(float x)
{
    const uint16_t h = qn_f32_to_f16(x);
    return (h & 0x7fffu) > 0x7bffu ? (uint16_t)((h & 0x8000u) | 0x7bffu) : h;
}

/* qn_ternary_codes - writes codes 0, 1, 2 for n weights (zero point 1). Returns their scale d = max |x| as fp16 bits.
 * code = round(x/d) + 1.
 *
 * four_valued: the format also has code 3, which is +2d. A block that is exactly {-1, 0, 1, 2} times half its
 * maximum keeps its four values, which the rule would round to three; any other block follows the rule. */
uint16_t qn_ternary_codes(const float *weights, size_t n, bool four_valued, uint8_t *codes);

#endif
