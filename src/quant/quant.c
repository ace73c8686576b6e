/* The table of weight formats, and the functions that follow from it alone: dequantisation through the integer form,
 * the scan for non-finite scales, look-up and row sizes. The layouts are in the family files. */
#include "quant/families.h"

#include "base/memory.h"

#include <strings.h>

enum { MAX_BLOCK = 256 };

/* weight = scale * factor * (code - zero) + offset, in that order. The products are exact in f32 (11 + 8 + 5
 * significant bits at most), so that only the addition rounds, as in ggml. Called with constant arguments: each type
 * gets a specialised loop. */
static inline void dequantize_packed(qn_unpack_fn *unpack, size_t block_weights, size_t block_bytes, int zero, bool has_offset,
                                     bool has_factor, const uint8_t *blocks, size_t n_blocks, float *weights)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += block_bytes) {
        uint8_t codes[MAX_BLOCK];
        float scale[MAX_BLOCK / QN_QUANT_GROUP], offset[MAX_BLOCK / QN_QUANT_GROUP];
        int8_t factor[2 * MAX_BLOCK / QN_QUANT_GROUP];
        unpack(blocks, 1, codes, scale, offset, factor);
        for (size_t i = 0; i < block_weights; i++) {
            const float step =
                has_factor ? scale[i / QN_QUANT_GROUP] * factor[i / (QN_QUANT_GROUP / 2)] : scale[i / QN_QUANT_GROUP];
            const float weight = step * (float)(codes[i] - zero);
            *weights++ = has_offset ? weight + offset[i / QN_QUANT_GROUP] : weight;
        }
    }
}

/* Tests the fp16 values at byte offsets `first` and `second` of each block; both are the same for types with a single
 * scale. */
static inline size_t find_nonfinite_scale(const uint8_t *blocks, size_t n_blocks, size_t block_bytes, size_t first,
                                          size_t second)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += block_bytes) {
        uint16_t h[2];
        memcpy(&h[0], blocks + first, sizeof h[0]);
        memcpy(&h[1], blocks + second, sizeof h[1]);
        if ((h[0] & 0x7c00u) == 0x7c00u || (h[1] & 0x7c00u) == 0x7c00u)
            return b;
    }
    return n_blocks;
}

/* One line per quantised type: name, enum constant, quantiser, weights and bytes per block, zero point, largest code,
 * has_offset, has_factor, and the byte offsets of the block's one or two fp16 values. */
#define PACKED_TYPES(X)                                                                                                        \
    X(q4_0, Q4_0, qn_quantize_q4_0, 32, 18, 8, 15, false, false, 0, 0)                                                         \
    X(q4_1, Q4_1, qn_quantize_q4_1, 32, 20, 0, 15, true, false, 0, 2)                                                          \
    X(q5_0, Q5_0, NULL, 32, 22, 16, 31, false, false, 0, 0)                                                                    \
    X(q5_1, Q5_1, NULL, 32, 24, 0, 31, true, false, 0, 2)                                                                      \
    X(q8_0, Q8_0, qn_quantize_q8_0, 32, 34, 128, 255, false, false, 0, 0)                                                      \
    X(q4_k, Q4_K, NULL, 256, 144, 0, 15, true, false, 0, 2)                                                                    \
    X(q5_k, Q5_K, NULL, 256, 176, 0, 31, true, false, 0, 2)                                                                    \
    X(q6_k, Q6_K, NULL, 256, 210, 32, 63, false, true, 208, 208)                                                               \
    X(tq1_0, TQ1_0, qn_quantize_tq1_0, 256, 54, 1, 2, false, false, 52, 52)                                                    \
    X(tq2_0, TQ2_0, qn_quantize_tq2_0, 256, 66, 1, 3, false, false, 64, 64)                                                    \
    X(q1_0, Q1_0, qn_quantize_q1_0, 128, 18, 1, 2, false, false, 0, 0)                                                         \
    X(q2_0, Q2_0, qn_quantize_q2_0, 64, 18, 1, 3, false, false, 0, 0)                                                          \
    X(pq2_0, PQ2_0, qn_quantize_pq2_0, 128, 34, 1, 3, false, false, 0, 0)                                                      \
    X(ptq1_0, PTQ1_0, qn_quantize_ptq1_0, 128, 28, 1, 2, false, false, 26, 26)                                                 \
    X(ox2_0, OX2_0, NULL, 128, 34, 1, 3, false, false, 32, 32)

#define PACKED_FUNCTIONS(id, ID, quantizer, weights_, bytes, zero_, max_code_, offset, factor, first, second)                  \
    static void dequantize_##id(const uint8_t *blocks, size_t n_blocks, float *weights)                                        \
    {                                                                                                                          \
        dequantize_packed(qn_unpack_##id, weights_, bytes, zero_, offset, factor, blocks, n_blocks, weights);                  \
    }                                                                                                                          \
    static size_t find_nonfinite_##id(const uint8_t *blocks, size_t n_blocks)                                                  \
    {                                                                                                                          \
        return find_nonfinite_scale(blocks, n_blocks, bytes, first, second);                                                   \
    }

#define PACKED_ENTRY(id, ID, quantizer, weights_, bytes, zero_, max_code_, offset, factor, first, second)                      \
    { .type = QN_TYPE_##ID,                                                                                                    \
      .name = #id,                                                                                                             \
      .block_weights = weights_,                                                                                               \
      .block_bytes = bytes,                                                                                                    \
      .to_float = dequantize_##id,                                                                                             \
      .from_float = quantizer,                                                                                                 \
      .unpack = qn_unpack_##id,                                                                                                \
      .zero_point = zero_,                                                                                                     \
      .max_code = max_code_,                                                                                                   \
      .has_offset = offset,                                                                                                    \
      .has_factor = factor,                                                                                                    \
      .find_nonfinite = find_nonfinite_##id },

#define PLAIN_ENTRY(id, ID, bytes)                                                                                             \
    { .type = QN_TYPE_##ID,                                                                                                    \
      .name = #id,                                                                                                             \
      .block_weights = 1,                                                                                                      \
      .block_bytes = bytes,                                                                                                    \
      .to_float = qn_dequantize_##id,                                                                                          \
      .from_float = qn_quantize_##id,                                                                                          \
      .find_nonfinite = qn_find_nonfinite_##id },

PACKED_TYPES(PACKED_FUNCTIONS)

/* clang-format off */
static const qn_type_info types[] = {
    PLAIN_ENTRY(f32, F32, 4)
    PLAIN_ENTRY(f16, F16, 2)
    PLAIN_ENTRY(bf16, BF16, 2)
    PACKED_TYPES(PACKED_ENTRY)
};
/* clang-format on */

enum { N_TYPES = sizeof types / sizeof types[0] };

const qn_type_info *qn_types(size_t *count)
{
    *count = N_TYPES;
    return types;
}

const qn_type_info *qn_type_find(uint32_t type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if ((uint32_t)types[i].type == type)
            return &types[i];
    return NULL;
}

const qn_type_info *qn_type_find_name(const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

bool qn_row_bytes(const qn_type_info *info, uint64_t width, size_t *bytes)
{
    return width % info->block_weights == 0 && width / info->block_weights <= SIZE_MAX &&
           qn_mul_size((size_t)(width / info->block_weights), info->block_bytes, bytes);
}
