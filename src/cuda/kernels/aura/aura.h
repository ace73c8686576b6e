/* AURA's codec on the GPU: encodes and decodes rows, encodes rows into a cache, and quantises pages of a session's
 * cache. Shared by C and CUDA.
 *
 * Codes are the packed stream of include/quern/kernels.h, [rows][words] u32, and scales [rows] f32. Arithmetic is
 * float32: if a rotated value is within rounding of a boundary, its code may differ by 1 from the CPU's. Attention over
 * such rows is in cuda/kernels/attention/. Defines: QN_HEAD_DIM, QN_BITS, QN_VALUE_BITS. */
#ifndef QN_CUDA_KERNELS_AURA_AURA_H
#define QN_CUDA_KERNELS_AURA_AURA_H

#include "cuda/kernels/kv.h"

enum { QN_AURA_GPU_WARPS = 8 }; /* warps of a block; one row a warp */

/* qn_aura_encode - Encodes rows as codes and scales. A row that is not finite, or whose norm overflows float32, gets
 * the codes of zeros and a scale of NaN. grid: ceil(n_rows / QN_AURA_GPU_WARPS). */
typedef struct qn_aura_encode_args {
    QN_GPU_PTR(const uint8_t) rows; /* [n_rows][dim], typed, `stride` values from a row to the next */
    QN_GPU_PTR(uint32_t) codes;
    QN_GPU_PTR(float) scales;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, stride, dtype; /* dtype: a qn_dtype, F32, F16 or BF16 */
} qn_aura_encode_args;

/* qn_aura_decode - Decodes codes and scales to rows, rotated back if a rotation is set. grid as for qn_aura_encode. */
typedef struct qn_aura_decode_args {
    QN_GPU_PTR(const uint32_t) codes;
    QN_GPU_PTR(const float) scales;
    QN_GPU_PTR(uint8_t) rows;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, stride, dtype;
} qn_aura_decode_args;

/* qn_aura_store - Encodes keys and values of tokens, and stores codes and scales at the tokens' positions in the cache
 * of session 0. Rows as for qn_aura_encode. A token whose position is not below the capacity is not stored. grid
 * (ceil(n_tokens * n_kv_heads / QN_AURA_GPU_WARPS), 2): keys, then values. */
typedef struct qn_aura_store_side {
    QN_GPU_PTR(const uint8_t) rows; /* [n_tokens][n_kv_heads][dim], typed, `stride` values from a token to the next */
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t stride, dtype;
} qn_aura_store_side;

typedef struct qn_aura_store_args {
    QN_GPU_PTR(const uint32_t) positions; /* [n_tokens] */
    qn_attention_gpu_cache cache;         /* is written */
    qn_aura_store_side keys, values;      /* codes of QN_BITS and QN_VALUE_BITS */
    uint32_t n_tokens, n_kv_heads, capacity;
} qn_aura_store_args;

/* qn_aura_quantize_page - Quantises the pages of 64 positions that a step has completed from fp16 to codes, after their
 * rows have been stored. The fp16 rows are already rotated. The mean of page 0's keys is subtracted from keys. Page 0
 * itself gets no codes: if it is among the pages, its mean is written. Rows that are not finite get a scale of NaN.
 *
 * Pieces as in qn_attention_prefill. grid (pages, key-value heads, layers), QN_AURA_GPU_WARPS warps. n rows in k pieces
 * complete at most n / 64 + k pages; blocks beyond the number of completed pages end at once. QN_BITS is the width of
 * key codes, QN_VALUE_BITS of value codes. */
typedef struct qn_aura_quantize_page_args {
    qn_attention_gpu_cache cache; /* is written */
    qn_attention_gpu_pages pages; /* is read, except means */
    QN_GPU_PTR(const uint32_t)
    cu_seqlens;                           /* [n_pieces + 1] rows of each piece; 0: pages first_page, ... of session 0 */
    QN_GPU_PTR(const uint32_t) positions; /* [n_pieces] of the first row of each piece */
    QN_GPU_PTR(const uint32_t) sessions;  /* [n_pieces] index of the session of each piece; none: the piece's index */
    qn_aura_gpu_levels key_levels, value_levels;
    uint64_t layer_stride, f16_layer_stride; /* bytes from the arrays of a layer to those of the next, in cache and in
                                                pages */
    uint32_t n_pieces, first_page;
} qn_aura_quantize_page_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_aura_gpu_encode - Fills a launch of qn_aura_encode; the caller fills its arguments. QN_ERR_UNSUPPORTED, naming the
 * value, for a head size or bits that AURA does not have; the three functions below likewise. */
qn_status qn_aura_gpu_encode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);

/* qn_aura_gpu_decode - Fills a launch of qn_aura_decode. */
qn_status qn_aura_gpu_decode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);

/* qn_aura_gpu_store - Fills a launch of qn_aura_store. */
qn_status qn_aura_gpu_store(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_tokens, size_t n_kv_heads,
                            qn_launch *out);

/* qn_aura_gpu_quantize_page - Fills a launch of qn_aura_quantize_page for n_pages pages. */
qn_status qn_aura_gpu_quantize_page(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_pages,
                                    size_t n_kv_heads, size_t n_layers, qn_launch *out);

#endif
#endif
