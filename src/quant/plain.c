/* F32, F16 and BF16: a block is one weight. */
#include "quant/families.h"

void qn_dequantize_f32(const uint8_t *blocks, size_t n_blocks, float *weights)
{
    memcpy(weights, blocks, n_blocks * sizeof *weights);
}

void qn_quantize_f32(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    memcpy(blocks, weights, n_blocks * sizeof *weights);
}

void qn_dequantize_f16(const uint8_t *blocks, size_t n_blocks, float *weights)
{
    for (size_t i = 0; i < n_blocks; i++)
        weights[i] = qn_load_f16(blocks + 2 * i);
}

void qn_quantize_f16(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t i = 0; i < n_blocks; i++)
        qn_store_f16(blocks + 2 * i, qn_f32_to_f16_satfinite(weights[i]));
}

void qn_dequantize_bf16(const uint8_t *blocks, size_t n_blocks, float *weights)
{
    for (size_t i = 0; i < n_blocks; i++) {
        uint16_t h;
        memcpy(&h, blocks + 2 * i, sizeof h);
        weights[i] = qn_bf16_to_f32(h);
    }
}

void qn_quantize_bf16(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t i = 0; i < n_blocks; i++) {
        uint16_t h = qn_f32_to_bf16(weights[i]);
        if ((h & 0x7fffu) == 0x7f80u) /* values within half a step of FLT_MAX round to infinity: saturate */
            h--;
        qn_store_f16(blocks + 2 * i, h);
    }
}

/* Tests eight bytes at a time, since loading a model scans every weight. A value is not finite if its exponent is
 * all ones; adding one unit of the exponent to the magnitude then carries into the sign bit, and never beyond it. */
static inline size_t find_nonfinite(const uint8_t *blocks, size_t n, size_t size, uint64_t magnitude,
                                    uint64_t exponent_unit)
{
    enum { WORDS = 64 };
    const size_t per_word = sizeof(uint64_t) / size;
    size_t i = 0;
    for (; n - i >= WORDS * per_word; i += WORDS * per_word) {
        uint64_t carry = 0;
        for (size_t w = 0; w < WORDS; w++) {
            uint64_t word;
            memcpy(&word, blocks + (i + w * per_word) * size, sizeof word);
            carry |= (word & magnitude) + exponent_unit;
        }
        if (carry & ~magnitude)
            break;
    }
    for (; i < n; i++) {
        uint64_t value = 0;
        memcpy(&value, blocks + i * size, size);
        if (((value & magnitude) + exponent_unit) >> (8 * size - 1) & 1)
            return i;
    }
    return n;
}

size_t qn_find_nonfinite_f32(const uint8_t *blocks, size_t n_blocks)
{
    return find_nonfinite(blocks, n_blocks, 4, 0x7fffffff7fffffffu, 0x0080000000800000u);
}

size_t qn_find_nonfinite_f16(const uint8_t *blocks, size_t n_blocks)
{
    return find_nonfinite(blocks, n_blocks, 2, 0x7fff7fff7fff7fffu, 0x0400040004000400u);
}

size_t qn_find_nonfinite_bf16(const uint8_t *blocks, size_t n_blocks)
{
    return find_nonfinite(blocks, n_blocks, 2, 0x7fff7fff7fff7fffu, 0x0080008000800080u);
}
