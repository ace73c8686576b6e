/* The kernels: their arguments, as the shaders declare them, and their launches. Addresses are those of the device; 0
 * is none where a comment says so. Rows are contiguous unless a stride is an argument. */
#ifndef QN_VULKAN_KERNELS_KERNELS_H
#define QN_VULKAN_KERNELS_KERNELS_H

#include "quant/quant.h"
#include "vulkan/runtime/runtime.h"

enum {
    QN_VK_TILE_ROWS = 4,   /* weight rows of a workgroup of matmul */
    QN_VK_MATMUL_OUTS = 4, /* matrices of a launch */
    QN_VK_MAX_HEAD = 512,  /* values of a head */
    QN_VK_HEAD_UNIT = 16   /* heads have a multiple of it: they are read as 16 bytes of fp16 */
};

/* y = RMS norm of rows of x; rows: u32 indices of the rows to read, 0: all. */
typedef struct qn_vk_norm_args {
    uint64_t x, weight, y, rows;
    uint32_t n;
    float eps;
} qn_vk_norm_args;

/* y = silu(gate) * up, of n rows of width. */
typedef struct qn_vk_swiglu_args {
    uint64_t gate, up, y;
    uint32_t n, width;
} qn_vk_swiglu_args;

/* Rows of heads: x [rows][heads][stride] to y [rows][heads][dim], with bias [heads][dim] (0: none), RMS norm of weight
 * [dim] (0: none), rope by angles [rows]: cosines [n_rot/2], sines [n_rot/2]; then times scale. y may be x. */
typedef struct qn_vk_rope_args {
    uint64_t x, y, bias, weight, angles;
    uint32_t stride, dim, n_rot, is_interleaved;
    float eps, scale;
} qn_vk_rope_args;

/* Where a layer's keys and values are in the pages of fp16 rows, and where these are: page tables of the step's
 * sequences, the granules of the pool (vulkan/runtime/pool_memory.h). */
typedef struct qn_vk_store_args {
    uint64_t keys, values, value_bias;     /* [rows][heads][dim]; bias [heads][dim], 0: none */
    uint64_t tables, positions, sequences; /* gpu/inputs.h */
    uint64_t granules;
    uint32_t shift;
    uint32_t dim;
    uint32_t key_at, value_at, head_bytes;
} qn_vk_store_args;

typedef struct qn_vk_attention_args {
    uint64_t queries, y; /* [rows][heads][dim] */
    uint64_t tables, positions, sequences;
    uint64_t granules;
    uint32_t shift;
    uint32_t dim, heads_per_kv;
    uint32_t key_at, value_at, head_bytes;
} qn_vk_attention_args;

/* Weights of up to four matrices of one format and one input, in tiles of rows. Each matrix begins with a tile. */
typedef struct qn_vk_matmul_args {
    uint64_t codes, scales, acts;
    uint64_t outs[QN_VK_MATMUL_OUTS];
    uint32_t first_tiles[QN_VK_MATMUL_OUTS]; /* UINT32_MAX after the last matrix */
    uint32_t n_rows[QN_VK_MATMUL_OUTS], strides[QN_VK_MATMUL_OUTS];
    uint32_t n_cols, n_tokens, group_shift;
    uint32_t accumulate; /* bit i: adds to out i */
} qn_vk_matmul_args;

/* The format of weights on a device. A row is words of codes, the first in the lowest bits, and fp16 scales, two in a
 * word, each of 2^group_shift weights: weight = scale * (code - zero point). With 16 bits, codes are fp16 weights
 * without scales. */
typedef struct qn_vk_format {
    uint32_t bits; /* 1, 2, 4, 8, 16 */
    uint32_t group_shift;
} qn_vk_format;

/* qn_vk_format_of - returns the format for a type: fp16 for types that have no other. */
qn_vk_format qn_vk_format_of(const qn_type_info *type);

/* qn_vk_code_words, qn_vk_scale_words - return the words of a row of n_cols weights. */
size_t qn_vk_code_words(const qn_vk_format *format, size_t n_cols);
size_t qn_vk_scale_words(const qn_vk_format *format, size_t n_cols);

/* qn_vk_pack_row - packs a row of a matrix of a type. scratch: [n_cols] floats. */
void qn_vk_pack_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint32_t *codes,
                    uint32_t *scales);

/* The launches. n_rows > 0, and n_tiles of qn_vk_matmul > 0. */
qn_vk_launch qn_vk_norm(size_t n_rows);
qn_vk_launch qn_vk_swiglu(size_t n_rows, size_t width);
qn_vk_launch qn_vk_rope(size_t n_rows, size_t n_heads);
qn_vk_launch qn_vk_store(size_t n_rows, size_t n_heads);
qn_vk_launch qn_vk_attention(size_t n_rows, size_t n_heads);
qn_vk_launch qn_vk_matmul(const qn_vk_format *format, size_t n_tiles, size_t n_tokens);

/* qn_vk_kernel - returns the i-th shader; NULL after the last. */
const qn_vk_shader *qn_vk_kernel(size_t i);

#endif
