/* The table of weight formats, and the functions that follow from it: dequantisation through the integer form, the
 * scan for non-finite scales, look-up and row sizes. Sizes and offsets come from layout.h. */
#include "quant/families.h"

#include "base/append.h"
#include "base/memory.h"
#include "quant/layout.h"

#include <stdio.h>
#include <strings.h>

enum { MAX_BLOCK = 256 };

/* Dequantises blocks: weight = scale * factor * (code - zero) + offset, in that order. The products are exact in f32
 * (11 + 8 + 5 significant bits at most), so that only the addition rounds, as in ggml. The arguments are constants in
 * every call, so that each type gets a specialised loop. */
static inline void dequantize_packed(qn_unpack_fn *unpack, size_t block_weights, size_t block_bytes, int zero,
                                     bool has_offset, bool has_factor, bool has_half_scale, const uint8_t *blocks,
                                     size_t n_blocks, float *weights)
{
    for (size_t b = 0; b < n_blocks; b++, blocks += block_bytes) {
        uint8_t codes[MAX_BLOCK];
        float scale[2 * MAX_BLOCK / QN_QUANT_GROUP], offset[2 * MAX_BLOCK / QN_QUANT_GROUP];
        int8_t factor[2 * MAX_BLOCK / QN_QUANT_GROUP];
        unpack(blocks, 1, codes, scale, offset, factor);
        for (size_t i = 0; i < block_weights; i++) {
            const float part = scale[i / (has_half_scale ? QN_QUANT_GROUP / 2 : QN_QUANT_GROUP)];
            const float step = has_factor ? part * factor[i / (QN_QUANT_GROUP / 2)] : part;
            const float weight = step * (float)(codes[i] - zero);
            *weights++ = has_offset ? weight + offset[i / (has_factor ? QN_QUANT_GROUP / 2 : QN_QUANT_GROUP)] : weight;
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

/* One line per quantised type, in the order of layout.h: name, enum constant, quantiser, has_factor, file_type. */
#define PACKED_TYPES(X)                                                                                                \
    X(q4_0, Q4_0, qn_quantize_q4_0, false, 2)                                                                          \
    X(q4_1, Q4_1, qn_quantize_q4_1, false, 3)                                                                          \
    X(q5_0, Q5_0, NULL, false, -1)                                                                                     \
    X(q5_1, Q5_1, NULL, false, -1)                                                                                     \
    X(q8_0, Q8_0, qn_quantize_q8_0, false, 7)                                                                          \
    X(q2_k, Q2_K, NULL, true, -1)                                                                                      \
    X(q3_k, Q3_K, NULL, true, -1)                                                                                      \
    X(q4_k, Q4_K, NULL, false, -1)                                                                                     \
    X(q5_k, Q5_K, NULL, false, -1)                                                                                     \
    X(q6_k, Q6_K, NULL, true, -1)                                                                                      \
    X(iq4_nl, IQ4_NL, NULL, false, -1)                                                                                 \
    X(iq4_xs, IQ4_XS, NULL, false, -1)                                                                                 \
    X(tq1_0, TQ1_0, qn_quantize_tq1_0, false, 36)                                                                      \
    X(tq2_0, TQ2_0, qn_quantize_tq2_0, false, 37)                                                                      \
    X(q1_0, Q1_0, qn_quantize_q1_0, false, 40)                                                                         \
    X(q2_0, Q2_0, qn_quantize_q2_0, false, 41)                                                                         \
    X(pq2_0, PQ2_0, qn_quantize_pq2_0, false, -1)                                                                      \
    X(ptq1_0, PTQ1_0, qn_quantize_ptq1_0, false, -1)                                                                   \
    X(ox2_0, OX2_0, NULL, false, -1)

/* Types with a scale that is no fp16 value: the family's file scans it. */
#define PACKED_TYPES_OTHER_SCALE(X)                                                                                    \
    X(mxfp4, MXFP4, NULL, false, -1)                                                                                   \
    X(nvfp4, NVFP4, NULL, false, -1)                                                                                   \
    X(nvfp4_l, NVFP4_L, NULL, false, -1)

#define HAS_OFFSET(ID) (QN_##ID##_MIN != QN_##ID##_SCALE)
#define HAS_HALF_SCALE(ID) (QN_TYPE_##ID == QN_TYPE_NVFP4 || QN_TYPE_##ID == QN_TYPE_NVFP4_L)

#define DEQUANTIZE_FUNCTION(id, ID, quantizer, factor, file)                                                           \
    static void dequantize_##id(const uint8_t *blocks, size_t n_blocks, float *weights)                                \
    {                                                                                                                  \
        dequantize_packed(qn_unpack_##id, QN_##ID##_WEIGHTS, QN_##ID##_BYTES, QN_##ID##_ZERO, HAS_OFFSET(ID), factor,  \
                          HAS_HALF_SCALE(ID), blocks, n_blocks, weights);                                              \
    }

#define FIND_NONFINITE_FUNCTION(id, ID, quantizer, factor, file)                                                       \
    static size_t qn_find_nonfinite_##id(const uint8_t *blocks, size_t n_blocks)                                       \
    {                                                                                                                  \
        return find_nonfinite_scale(blocks, n_blocks, QN_##ID##_BYTES, QN_##ID##_SCALE, QN_##ID##_MIN);                \
    }

#define PACKED_ENTRY(id, ID, quantizer, factor, file)                                                                  \
    { .type = QN_TYPE_##ID,                                                                                            \
      .name = #id,                                                                                                     \
      .block_weights = QN_##ID##_WEIGHTS,                                                                              \
      .block_bytes = QN_##ID##_BYTES,                                                                                  \
      .to_float = dequantize_##id,                                                                                     \
      .from_float = quantizer,                                                                                         \
      .unpack = qn_unpack_##id,                                                                                        \
      .scale_at = QN_##ID##_SCALE,                                                                                     \
      .codes_at = QN_##ID##_CODES,                                                                                     \
      .zero_point = QN_##ID##_ZERO,                                                                                    \
      .max_code = QN_##ID##_MAX_CODE,                                                                                  \
      .has_offset = HAS_OFFSET(ID),                                                                                    \
      .has_factor = factor,                                                                                            \
      .has_half_scale = HAS_HALF_SCALE(ID),                                                                            \
      .file_type = file,                                                                                               \
      .find_nonfinite = qn_find_nonfinite_##id },

#define PLAIN_ENTRY(id, ID, bytes, file)                                                                               \
    { .type = QN_TYPE_##ID,                                                                                            \
      .name = #id,                                                                                                     \
      .block_weights = 1,                                                                                              \
      .block_bytes = bytes,                                                                                            \
      .to_float = qn_dequantize_##id,                                                                                  \
      .from_float = qn_quantize_##id,                                                                                  \
      .file_type = file,                                                                                               \
      .find_nonfinite = qn_find_nonfinite_##id },

PACKED_TYPES(DEQUANTIZE_FUNCTION)
PACKED_TYPES(FIND_NONFINITE_FUNCTION)
PACKED_TYPES_OTHER_SCALE(DEQUANTIZE_FUNCTION)

/* clang-format off */
static const qn_type_info types[] = {
    PLAIN_ENTRY(f32, F32, 4, 0)
    PLAIN_ENTRY(f16, F16, 2, 1)
    PLAIN_ENTRY(bf16, BF16, 2, 32)
    PACKED_TYPES(PACKED_ENTRY)
    PACKED_TYPES_OTHER_SCALE(PACKED_ENTRY)
};
/* clang-format on */

enum { N_TYPES = sizeof types / sizeof types[0] };

bool qn_type_reaches(const qn_type_info *info, const float *weights, size_t n)
{
    const float rounds_beyond = QN_F16_MAX + 16; /* half a step */
    bool reaches = true;
    for (size_t i = 0; i < n && info->type == QN_TYPE_F16; i++)
        reaches &= weights[i] < rounds_beyond && weights[i] > -rounds_beyond;
    return reaches;
}

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

const qn_type_info *qn_type_find_stored(uint32_t type)
{
    return type == QN_TYPE_OX2_0 || type == QN_TYPE_NVFP4_L ? NULL : qn_type_find(type);
}

const qn_type_info *qn_type_find_name(const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

static bool is_writable(const qn_type_info *info, bool with_f32)
{
    return info->from_float != NULL && (with_f32 || info->type != QN_TYPE_F32);
}

qn_status qn_type_find_writable(const char *name, bool with_f32, const qn_type_info **out)
{
    *out = qn_type_find_name(name);
    if (*out && is_writable(*out, with_f32))
        return QN_OK;
    char list[256];
    qn_text_buffer text = QN_APPEND_TO(list);
    for (size_t i = 0; i < N_TYPES; i++)
        if (is_writable(&types[i], with_f32))
            qn_append(&text, " %s", types[i].name);
    return qn_fail(QN_ERR_INVALID, "type '%s': quern cannot quantise to it, expected one of%s", name, list);
}

const qn_type_info *qn_type_for_width(const qn_type_info *info, uint64_t width)
{
    while (width % info->block_weights != 0) {
        if (info->block_weights > 64)
            info = qn_type_find(QN_TYPE_Q2_0);
        else
            info = qn_type_find(info->block_weights > 32 ? QN_TYPE_Q8_0 : QN_TYPE_F16);
    }
    return info;
}

bool qn_row_bytes(const qn_type_info *info, uint64_t width, size_t *bytes)
{
    return width % info->block_weights == 0 && width / info->block_weights <= SIZE_MAX &&
           qn_mul_size((size_t)(width / info->block_weights), info->block_bytes, bytes);
}
