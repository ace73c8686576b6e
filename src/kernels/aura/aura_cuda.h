/* AURA's codec on the GPU: encodes and decodes rows, encodes rows into a cache, and quantises pages of a session's cache.
 * Shared by C and CUDA.
 *
 * Codes are the packed stream of include/quern/kernels.h, [rows][words] u32, and scales [rows] f32. Arithmetic is
 * float32: if a rotated value is within rounding of a boundary, its code may differ by 1 from the CPU's. Attention over
 * such rows is in kernels/attention/. Defines: QN_HEAD_DIM, QN_BITS, QN_VALUE_BITS. */
#ifndef QN_KERNELS_AURA_AURA_CUDA_H
#define QN_KERNELS_AURA_AURA_CUDA_H

#include "kernels/kv_cuda.h"

enum { QN_AURA_GPU_WARPS = 8 }; /* warps of a block; one row a warp */

/* qn_aura_encode - encodes rows as codes and scales. A row that is not finite, or whose norm overflows float32, gets
 * the codes of zeros and a scale of NaN. grid: ceil(n_rows / QN_AURA_GPU_WARPS). */
typedef struct qn_aura_encode_args {
    QN_GPU_PTR(const uint8_t) rows; /* [n_rows][dim], typed, `stride` values from a row to the next */
    QN_GPU_PTR(uint32_t) codes;
    QN_GPU_PTR(float) scales;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, stride, dtype; /* dtype: a qn_dtype, F32, F16 or BF16 */
} qn_aura_encode_args;

/* qn_aura_decode - decodes codes and scales to rows, rotated back if a rotation is set. The same grid. */
typedef struct qn_aura_decode_args {
    QN_GPU_PTR(const uint32_t) codes;
    QN_GPU_PTR(const float) scales;
    QN_GPU_PTR(uint8_t) rows;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, stride, dtype;
} qn_aura_decode_args;

/* qn_aura_store - encodes keys and values of tokens, and stores codes and scales at the tokens' positions: of a head in
 * row head * capacity + position. Rows as for qn_aura_encode. A token whose position is not below the capacity is not
 * stored. grid (ceil(n_tokens * n_kv_heads / QN_AURA_GPU_WARPS), 2): keys, then values. */
typedef struct qn_aura_store_side {
    QN_GPU_PTR(const uint8_t) rows; /* [n_tokens][n_kv_heads][dim], typed, `stride` values from a token to the next */
    QN_GPU_PTR(uint32_t) codes;     /* [n_kv_heads][capacity][words] */
    QN_GPU_PTR(float) scales;       /* [n_kv_heads][capacity] */
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t stride, dtype;
} qn_aura_store_side;

typedef struct qn_aura_store_args {
    QN_GPU_PTR(const uint32_t) positions; /* [n_tokens] */
    qn_aura_store_side keys, values;      /* codes of QN_BITS and QN_VALUE_BITS */
    uint32_t n_tokens, n_kv_heads, capacity;
} qn_aura_store_args;

/* qn_aura_quantize_page - quantises complete pages of 64 positions from fp16 to codes. Row i of page p becomes code row
 * (p-1)*64 + i. The mean of page 0's keys is subtracted from keys; page 0 gets no codes: if it is among the pages, its
 * mean is written. The fp16 rows are rotated already. Rows that are not finite get a scale of NaN.
 *
 * With tables, the pages are those that the rows of a step complete, of many sequences, which the kernel finds itself: its
 * launch does not depend on positions. Fields are as in kernels/kv_cuda.h: byte offsets from a page's item to the arrays of
 * the first of the layers. Sequences without rows have no pages.
 *
 * grid (pages, key-value heads), with tables (pages, key-value heads * layers, sequences), where pages is at least the number
 * that any sequence completes; QN_AURA_GPU_WARPS warps. QN_BITS is the width of key codes, QN_VALUE_BITS of value
 * codes. */
typedef struct qn_aura_quantize_page_args {
    QN_GPU_PTR(const uint8_t)
    f16_keys; /* f16 [1 + n_open_pages][64][dim] a head, as in kernels/kv_cuda.h */
    QN_GPU_PTR(const uint8_t) f16_values;
    QN_GPU_PTR(uint8_t) keys; /* code rows */
    QN_GPU_PTR(uint8_t) values;
    QN_GPU_PTR(uint8_t) key_scales;
    QN_GPU_PTR(uint8_t) value_scales;
    QN_GPU_PTR(uint8_t) means; /* f32 [heads][dim] */
    uint64_t f16_head;         /* bytes from one head to the next */
    uint64_t key_head_stride, value_head_stride, scale_head_stride;
    qn_aura_gpu_levels key_levels, value_levels;
    uint32_t first_page, n_open_pages;          /* without tables */
    uint32_t n_kv_heads;                        /* with tables, as all that follows */
    uint64_t layer_stride, f16_layer_stride;    /* from a layer's arrays in an item to the next one's; of codes, of fp16 rows */
    QN_GPU_PTR(const uint64_t) tables;          /* [sequences] addresses of page tables: of codes; or 0 */
    QN_GPU_PTR(const uint64_t) f16_tables;      /* of fp16 pages */
    QN_GPU_PTR(const uint32_t) first_positions; /* [sequences]: of the first row of the step */
    QN_GPU_PTR(const uint32_t) cu_seqlens;      /* [sequences + 1]: rows of the step */
} qn_aura_quantize_page_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* Fill the launches; the caller fills their arguments. QN_ERR_UNSUPPORTED, naming the value, for a size or bits that
 * AURA does not have. */
qn_status qn_aura_gpu_encode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);
qn_status qn_aura_gpu_decode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);
qn_status qn_aura_gpu_store(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_tokens, size_t n_kv_heads,
                            qn_launch *out);
qn_status qn_aura_gpu_quantize_page(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_pages, size_t n_kv_heads,
                                    qn_launch *out);

#endif
#endif
