/* Weight formats: how each type is stored in a GGUF file, and conversion to and from f32. Reading and writing files is
 * gguf/'s task.
 *
 * One file per family: plain.c (F32 F16 BF16), legacy.c (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0), kquants.c (Q2_K Q3_K Q4_K Q5_K
 * Q6_K), codebook.c (IQ4_NL IQ4_XS MXFP4 NVFP4), ternary.c (TQ1_0 TQ2_0 PTQ1_0), lowbit.c (Q1_0 Q2_0 PQ2_0 OX2_0).
 * quant.c holds the table of all of them. The matmul kernels read the stored layouts themselves; this module is the
 * reference they are compared with.
 *
 * Stored blocks. d is the fp16 scale, m the fp16 minimum, codes lowest bits first unless said otherwise. Sizes, offsets
 * and the order of the codes are in layout.h, which the CUDA kernels read too.
 *
 *   type         id    parts of a block                                weight
 *   F32 F16 BF16 0 1 30  the value                                     value
 *   Q4_0         2     d, nibbles                                      d (code - 8)
 *   Q4_1         3     d, m, nibbles                                   d code + m
 *   Q5_0         6     d, fifth bits, nibbles                          d (code - 16)
 *   Q5_1         7     d, m, fifth bits, nibbles                       d code + m
 *   Q8_0         8     d, signed bytes                                 d code
 *   Q2_K         10    kquants.c: 4-bit scale and minimum per 16       d scale code - dmin min
 *   Q3_K         11    kquants.c: 6-bit scale per 16 weights           d (scale - 32) (code - 4)
 *   Q4_K Q5_K    12 13 kquants.c: 6-bit scale and minimum per group    d scale code - dmin min
 *   Q6_K         14    kquants.c: int8 scale per 16 weights            d scale (code - 32)
 *   IQ4_NL       20    codebook.c: d, nibbles                          d value[code]
 *   IQ4_XS       23    codebook.c: 6-bit scale per 32 weights          d (scale - 32) value[code]
 *   MXFP4        39    codebook.c: exponent, nibbles                   2^(exponent - 127) value[code]
 *   NVFP4        40    codebook.c: float of 8 bits per 16, nibbles     scale value[code]
 *   NVFP4_L      40 *  as NVFP4 with the tensor's scale, in memory     d scale value[code]
 *   TQ1_0        34    base-3 digits, five per byte, d                 d (code - 1)
 *   TQ2_0        35    2-bit codes, d                                  d (code - 1)
 *   Q1_0         41    d, sign bits: 1 is +d, 0 is -d                  d (code - 1), code 0 or 2
 *   Q2_0         42    d, 2-bit codes                                  d (code - 1)
 *   PQ2_0        142   as Q2_0, in larger blocks                       d (code - 1)
 *   PTQ1_0       143   as TQ1_0, in smaller blocks                     d (code - 1)
 *   OX2_0        42 *  2-bit codes, d                                  d (code - 1)
 *
 * (*) Files store OX2_0 under id 42; q2_layout.h distinguishes it from Q2_0 and PQ2_0. NVFP4_L is not in files: loading
 * a model makes it of NVFP4, whose tensors have a scale in a tensor of their own (model/weights.c).
 *
 * A new format needs: an entry in qn_type; a line in layout.h, and there the code of a weight if C and CUDA both
 * read it; an unpack function (and a quantiser, if files of it are to be written) in a family file, declared in
 * families.h; a line in the table of quant.c; its formula in tests/unit/quant/test_quant.c. Dequantisation, the scan
 * for non-finite scales, the golden tests and `quern quantize` follow from the table, and so do a CPU GEMM (unpacked
 * to qn_super_block, kernels/matmul/matmul.h) and a GPU matmul (dequantised to fp16 at load,
 * cuda/kernels/matmul/matmul.h). Both headers list what a dedicated kernel needs. */
#ifndef QN_QUANT_QUANT_H
#define QN_QUANT_QUANT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ids as in GGUF files, except QN_TYPE_OX2_0 and QN_TYPE_NVFP4_L, which quern never writes. */
typedef enum qn_type {
    QN_TYPE_F32 = 0,
    QN_TYPE_F16 = 1,
    QN_TYPE_Q4_0 = 2,
    QN_TYPE_Q4_1 = 3,
    QN_TYPE_Q5_0 = 6,
    QN_TYPE_Q5_1 = 7,
    QN_TYPE_Q8_0 = 8,
    QN_TYPE_Q2_K = 10,
    QN_TYPE_Q3_K = 11,
    QN_TYPE_Q4_K = 12,
    QN_TYPE_Q5_K = 13,
    QN_TYPE_Q6_K = 14,
    QN_TYPE_IQ4_NL = 20,
    QN_TYPE_IQ4_XS = 23,
    QN_TYPE_BF16 = 30,
    QN_TYPE_TQ1_0 = 34,
    QN_TYPE_TQ2_0 = 35,
    QN_TYPE_MXFP4 = 39,
    QN_TYPE_NVFP4 = 40,
    QN_TYPE_Q1_0 = 41,
    QN_TYPE_Q2_0 = 42,
    QN_TYPE_PQ2_0 = 142,
    QN_TYPE_PTQ1_0 = 143,
    QN_TYPE_NVFP4_L = 1040,
    QN_TYPE_OX2_0 = 1042
} qn_type;

/* The integer form, with which the matmul kernels compute: groups of QN_QUANT_GROUP weights with one scale each.
 *
 *     weight[i] = scale[r] * factor[r][i % 32 / 16] * (codes[i] - zero_point) + offset[r],   r = i / 32
 *
 * A type with half scales, NVFP4, has scale[r][i % 32 / 16] instead. factor is 1 except for Q2_K, Q3_K and Q6_K. offset
 * is 0 except for types with a minimum; a type with both, Q2_K, has an offset for each factor, offset[r][i % 32 / 16].
 * Scale and offset are exactly the stored ones (for k-quants, the f32 product of the two stored factors), so that
 * to_float() returns the same weights up to one rounding. */
enum { QN_QUANT_GROUP = 32 };

typedef struct qn_type_info {
    qn_type type;
    const char *name;     /* "q1_0": lower case, as the CLI prints and accepts it */
    size_t block_weights; /* weights per block */
    size_t block_bytes;
    /* Dequantises n_blocks blocks to block_weights * n_blocks floats; blocks may be unaligned. */
    void (*to_float)(const uint8_t *blocks, size_t n_blocks, float *weights);
    /* Quantises finite weights; NULL for types that quern cannot write. */
    void (*from_float)(const float *weights, size_t n_blocks, uint8_t *blocks);
    /* Unpacks to the integer form. codes: one byte per weight, in the order of the weights. scale: one per group, or
     * two if has_half_scale. offset, if has_offset: one per group, or two if has_factor. factor, if has_factor: two per
     * group. Pointers for absent outputs may be NULL. unpack is NULL for F32, F16 and BF16; block_weights of every
     * other type is a multiple of QN_QUANT_GROUP. */
    void (*unpack)(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor);
    size_t scale_at, codes_at; /* byte offsets in a block (layout.h); 0 for F32, F16 and BF16 */
    uint8_t zero_point;        /* subtracted from a code: 1 for ternary, 8 for Q4_0, 128 for Q8_0 (signed + 128) */
    uint8_t max_code;          /* largest code that can occur: 3, 15, 255 */
    bool has_offset, has_factor, has_half_scale;
    int file_type; /* llama.cpp's general.file_type for a file of this type; -1: none, or quern writes no such files */
    /* Index of the first block with an infinite or NaN scale (or value); n_blocks if all are finite. */
    size_t (*find_nonfinite)(const uint8_t *blocks, size_t n_blocks);
} qn_type_info;

/* qn_type_find - the table entry of a type by id; NULL if unknown. */
const qn_type_info *qn_type_find(uint32_t type);

/* qn_type_find_stored - as qn_type_find, but NULL for the types that have no id in files: OX2_0 and NVFP4_L. */
const qn_type_info *qn_type_find_stored(uint32_t type);

/* qn_type_find_name - the table entry of a type by name, case-insensitive; NULL if unknown. */
const qn_type_info *qn_type_find_name(const char *name);

/* qn_type_find_writable - finds a type that quern can write, by name; f32 only with `with_f32`. QN_ERR_INVALID, with
 * the names of all such types, for any other name. */
qn_status qn_type_find_writable(const char *name, bool with_f32, const qn_type_info **out);

/* qn_type_for_width - the type itself if rows of `width` weights are multiples of its block; otherwise the next type
 * with smaller blocks that quern writes, which has more bits. All current GGUF readers support these types. */
const qn_type_info *qn_type_for_width(const qn_type_info *info, uint64_t width);

/* qn_type_is_low_bit - whether it is a type of 1 or 2 bits. Only models that were trained with such weights can be
 * stored in it. */
static inline bool qn_type_is_low_bit(const qn_type_info *info)
{
    return info->block_bytes * 8 < info->block_weights * 3;
}

/* qn_type_reaches - whether a type can represent magnitudes as large as the weights'; F16 saturates, and the other
 * types are large enough for any model. */
bool qn_type_reaches(const qn_type_info *info, const float *weights, size_t n);

/* qn_types - the whole table, for listings and tests. */
const qn_type_info *qn_types(size_t *count);

/* The largest magnitude of a tensor's scale with which all its weights are finite floats. */
#define QN_NVFP4_MAX_SCALE 1e35f

/* qn_nvfp4_load - makes n_blocks blocks of NVFP4_L of blocks of NVFP4 and the scale of their tensor. */
void qn_nvfp4_load(const uint8_t *blocks, size_t n_blocks, float scale, uint8_t *loaded);

/* qn_row_bytes - the number of bytes of a row of `width` weights. False if width is not a multiple of the block
 * size, or on overflow. */
bool qn_row_bytes(const qn_type_info *info, uint64_t width, size_t *bytes);

#endif
