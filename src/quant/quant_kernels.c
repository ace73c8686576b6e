/* The table of variants: the reference, selection by the CPU, and formats that use variants. */
#include "quant/quant_kernels.h"

#include "base/cpu.h"
#include "quant/layout.h"

enum { PACKED_WEIGHTS = QN_Q1_0_WEIGHTS }; /* weights of a block of Q1_0 and of PTQ1_0; both have zero point 1 */
_Static_assert(QN_PTQ1_0_WEIGHTS == QN_Q1_0_WEIGHTS && QN_Q1_0_ZERO == 1 && QN_PTQ1_0_ZERO == 1,
               "blocks of packed types");

/* The order of floats' magnitudes is that of their bits. Several maxima hide the latency, and integer loops are
 * vectorised. */
static uint32_t largest_difference_ref(const float *weights, const uint8_t *codes, const float *scales, int zero_point,
                                       size_t n)
{
    int32_t largest[QN_QUANT_GROUP] = { 0 };
    for (size_t g = 0; g < n / QN_QUANT_GROUP; g++)
        for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
            const size_t at = g * QN_QUANT_GROUP + i;
            const float difference = weights[at] - scales[g] * (float)(codes[at] - zero_point);
            const int32_t magnitude = (int32_t)(qn_f32_bits(difference) & 0x7fffffff);
            largest[i] = magnitude > largest[i] ? magnitude : largest[i];
        }
    for (size_t i = 1; i < QN_QUANT_GROUP; i++)
        largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    return (uint32_t)largest[0];
}

/* The functions and sizes are constants in every call. */
static inline size_t pack(qn_quantize_fn *quantize, qn_unpack_fn *unpack, size_t block_bytes, qn_type source,
                          const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    const qn_type_info *from = qn_type_find((uint32_t)source);
    for (size_t b = 0; b < n_blocks; b++, weights += PACKED_WEIGHTS * from->block_bytes, blocks += block_bytes) {
        float x[PACKED_WEIGHTS], scales[PACKED_WEIGHTS / QN_QUANT_GROUP];
        uint8_t codes[PACKED_WEIGHTS];
        if (from->find_nonfinite(weights, PACKED_WEIGHTS) < PACKED_WEIGHTS)
            return b;
        from->to_float(weights, PACKED_WEIGHTS, x);
        quantize(x, 1, blocks);
        unpack(blocks, 1, codes, scales, NULL, NULL);
        if (largest_difference_ref(x, codes, scales, 1, PACKED_WEIGHTS))
            return b;
    }
    return n_blocks;
}

static size_t pack_q1_0_ref(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    return pack(qn_quantize_q1_0, qn_unpack_q1_0, QN_Q1_0_BYTES, source, weights, n_blocks, blocks);
}

static size_t pack_ptq1_0_ref(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    return pack(qn_quantize_ptq1_0, qn_unpack_ptq1_0, QN_PTQ1_0_BYTES, source, weights, n_blocks, blocks);
}

void qn_quant_kernels_init(qn_quant_kernels *kernels, unsigned cpu)
{
    *kernels = (qn_quant_kernels){
        .dequantize_bf16 = qn_dequantize_bf16,
        .find_nonfinite_bf16 = qn_find_nonfinite_bf16,
        .quantize_q1_0 = qn_quantize_q1_0,
        .quantize_ptq1_0 = qn_quantize_ptq1_0,
        .unpack_q1_0 = qn_unpack_q1_0,
        .unpack_ptq1_0 = qn_unpack_ptq1_0,
        .largest_difference = largest_difference_ref,
        .pack_q1_0 = pack_q1_0_ref,
        .pack_ptq1_0 = pack_ptq1_0_ref,
    };
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_quant_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_quant_init_avx512(kernels);
#endif
    (void)cpu;
}

qn_type_info qn_quant_type(const qn_quant_kernels *kernels, const qn_type_info *info)
{
    qn_type_info type = *info;
    if (info->type == QN_TYPE_BF16) {
        type.to_float = kernels->dequantize_bf16;
        type.find_nonfinite = kernels->find_nonfinite_bf16;
    } else if (info->type == QN_TYPE_Q1_0) {
        type.from_float = kernels->quantize_q1_0;
        type.unpack = kernels->unpack_q1_0;
    } else if (info->type == QN_TYPE_PTQ1_0) {
        type.from_float = kernels->quantize_ptq1_0;
        type.unpack = kernels->unpack_ptq1_0;
    }
    return type;
}
