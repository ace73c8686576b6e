/* Variants for instruction sets of the functions that dominate the time of converting a checkpoint. All give the
 * same bits as the functions of the table in quant.c, which are the reference. */
#ifndef QN_QUANT_QUANT_KERNELS_H
#define QN_QUANT_QUANT_KERNELS_H

#include "quant/families.h"

#include <math.h>

/* Packs blocks of bf16 or f16 weights (`source`) that the format represents exactly, with the bytes that its
 * quantiser gives. Returns the number of blocks before the first one that it cannot represent; `blocks` is
 * unspecified from there on. */
typedef size_t qn_pack_fn(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks);

typedef struct qn_quant_kernels {
    qn_dequantize_fn *dequantize_bf16;
    qn_find_nonfinite_fn *find_nonfinite_bf16;
    qn_quantize_fn *quantize_q1_0, *quantize_ptq1_0;
    qn_unpack_fn *unpack_q1_0, *unpack_ptq1_0;
    /* The bits of the largest |weights[i] - scales[i / QN_QUANT_GROUP] * (codes[i] - zero_point)| of finite weights
     * and finite products, with codes up to 7; n is a multiple of QN_QUANT_GROUP. The order of magnitudes is that of
     * their bits. */
    uint32_t (*largest_difference)(const float *weights, const uint8_t *codes, const float *scales, int zero_point,
                                   size_t n);
    qn_pack_fn *pack_q1_0, *pack_ptq1_0;
} qn_quant_kernels;

/* qn_quant_kernels_init - fills the table for `cpu` (QN_CPU_* bits); 0: the reference. */
void qn_quant_kernels_init(qn_quant_kernels *kernels, unsigned cpu);

/* qn_quant_type - a copy of a format's entry with the variants as its functions. */
qn_type_info qn_quant_type(const qn_quant_kernels *kernels, const qn_type_info *info);

void qn_quant_init_avx2(qn_quant_kernels *kernels);
void qn_quant_init_avx512(qn_quant_kernels *kernels);

/* ---- For the variants ---- */

/* qn_quantize_mixed_q1_0 - quantises Q1_0 blocks whose weights have several magnitudes: their sums are sequential. */
qn_quantize_fn qn_quantize_mixed_q1_0;

/* qn_exact_scale - whether a magnitude of the weights is a finite fp16 value. *scale: its bits. */
static inline bool qn_exact_scale(qn_type source, uint16_t magnitude, uint16_t *scale)
{
    if (source == QN_TYPE_F16) {
        *scale = magnitude;
        return magnitude < 0x7c00;
    }
    const float d = qn_bf16_to_f32(magnitude);
    *scale = qn_f32_to_f16_satfinite(d);
    return qn_f16_to_f32(*scale) == d;
}

/* qn_ternary_bound - the magnitude from which on a weight rounds to the scale d: x/d rounds to 1 from 0.5 on.
 * Comparing with the exact 0.5 d needs no division; d = 0 gives infinity, so that all codes are 1. */
static inline float qn_ternary_bound(float d)
{
    return d > 0.0f ? 0.5f * d : INFINITY;
}

#endif
