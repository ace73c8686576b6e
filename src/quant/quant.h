/* Weight formats: what each type of DESIGN.md section 4 looks like in memory, how it is decoded and encoded.
 *
 * One file a family: plain.c (F32 F16 BF16), legacy.c (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0), kquants.c (Q4_K Q5_K Q6_K), ternary.c (TQ1_0
 * TQ2_0 PTQ1_0), lowbit.c (Q1_0 Q2_0 PQ2_0 and the OxiBonsai layout). The table in quant.c ties them together. Kernels read the
 * layouts themselves; this room is what they are checked against. */
#ifndef QN_QUANT_QUANT_H
#define QN_QUANT_QUANT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers as in GGUF files, but for QN_TYPE_OX2_0: a layout found under number 42 (DESIGN.md section 4), never written. */
typedef enum qn_type {
    QN_TYPE_F32 = 0,
    QN_TYPE_F16 = 1,
    QN_TYPE_Q4_0 = 2,
    QN_TYPE_Q4_1 = 3,
    QN_TYPE_Q5_0 = 6,
    QN_TYPE_Q5_1 = 7,
    QN_TYPE_Q8_0 = 8,
    QN_TYPE_Q4_K = 12,
    QN_TYPE_Q5_K = 13,
    QN_TYPE_Q6_K = 14,
    QN_TYPE_BF16 = 30,
    QN_TYPE_TQ1_0 = 34,
    QN_TYPE_TQ2_0 = 35,
    QN_TYPE_Q1_0 = 41,
    QN_TYPE_Q2_0 = 42,
    QN_TYPE_PQ2_0 = 142,
    QN_TYPE_PTQ1_0 = 143,
    QN_TYPE_OX2_0 = 1042 /* 32 bytes of codes, then d: 128 weights in 34 bytes */
} qn_type;

/* The integer form that matrix products work on: runs of QN_QUANT_GROUP weights, each with one scale.
 *
 *     weight[i] = scale[r] * factor[r][i % 32 / 16] * (codes[i] - zero) + offset[r],   r = i / 32
 *
 * factor is 1 but for Q6_K, offset 0 but for the types that have a minimum. Exact: scale and offset are what the format stores
 * (for k-quants the float product of the stored parts), so that decode() gives the same weights up to one rounding. */
enum { QN_QUANT_GROUP = 32 };

typedef struct qn_type_info {
    qn_type type;
    const char *name;     /* "q1_0": lower case, as the program prints and accepts it */
    size_t block_weights; /* weights in a block */
    size_t block_bytes;
    /* n_blocks blocks to block_weights*n_blocks floats; source may be unaligned. */
    void (*to_float)(const uint8_t *blocks, size_t n_blocks, float *weights);
    /* The other way; NULL where quern has no encoder. Inputs are finite. */
    void (*from_float)(const float *weights, size_t n_blocks, uint8_t *blocks);
    /* The integer form. codes: one a weight, in the order of the weights; scale (and offset, where has_offset): one a run;
     * factor: two a run, where has_factor. Pointers for absent parts may be NULL. unpack is NULL for F32, F16, BF16; every
     * other type's block is a whole number of runs. */
    void (*unpack)(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset, int8_t *factor);
    uint8_t zero_point; /* subtracted from a code: 1 for ternary, 8 for Q4_0, 128 for Q8_0 (stored signed, unpacked + 128) */
    uint8_t max_code;   /* largest code that can occur: 3, 15, 255 */
    bool has_offset, has_factor;
    /* Index of the first block with a scale (or value) that is infinite or NaN; n_blocks when all are sound. */
    size_t (*find_nonfinite)(const uint8_t *blocks, size_t n_blocks);
} qn_type_info;

/* qn_type_find - the description of a type by number or by name (any case); NULL when there is none. */
const qn_type_info *qn_type_find(uint32_t type);
const qn_type_info *qn_type_find_name(const char *name);

/* qn_types - all of them, for listings and tests. */
const qn_type_info *qn_types(size_t *count);

/* qn_row_bytes - the bytes that a row of `width` weights takes; false when width is not a multiple of the block or overflows.
 */
bool qn_row_bytes(const qn_type_info *info, uint64_t width, size_t *bytes);

#endif
