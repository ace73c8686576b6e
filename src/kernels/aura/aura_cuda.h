/* AURA on the GPU: rows to codes and back, and the runs of a session's cache. Shared by C and CUDA.
 *
 * Codes are the packed stream of include/quern/kernels.h, [rows][words] u32, and scales [rows] f32. Arithmetic is float32;
 * where a rotated value lies within its rounding of a boundary, the code may be the neighbour of the one that the CPU has.
 * Attention over such rows is kernels/attention/'s. Defines: QN_HEAD_DIM, QN_BITS, QN_VALUE_BITS. */
#ifndef QN_KERNELS_AURA_AURA_CUDA_H
#define QN_KERNELS_AURA_AURA_CUDA_H

#include "kernels/kv_cuda.h"

enum { QN_AURA_GPU_WARPS = 8 }; /* of a block; a warp takes a row */

/* qn_aura_encode - rows to codes and scales. A row that is not finite, or whose norm float32 does not hold, gets the codes of
 * zeros and a scale of NaN. grid: ceil(n_rows / QN_AURA_GPU_WARPS). */
typedef struct qn_aura_encode_args {
    QN_GPU_PTR(const uint8_t) rows; /* [n_rows][dim] of a type */
    QN_GPU_PTR(uint32_t) codes;
    QN_GPU_PTR(float) scales;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, dtype; /* a qn_dtype: F32, F16 or BF16 */
} qn_aura_encode_args;

/* qn_aura_decode - codes and scales to rows, rotated back where a rotation is given. The same grid. */
typedef struct qn_aura_decode_args {
    QN_GPU_PTR(const uint32_t) codes;
    QN_GPU_PTR(const float) scales;
    QN_GPU_PTR(uint8_t) rows;
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    uint32_t n_rows, dtype;
} qn_aura_decode_args;

/* qn_aura_quantize_page - runs of 64 positions that are complete, from halves to codes: run r's row i becomes code row (r-1)*64 + i,
 * keys less the mean of run 0's, which is written where run 0 is among them. Halves are rotated already. A key that is not
 * finite gets a scale of NaN. grid (runs, key-value heads), QN_AURA_GPU_WARPS warps. QN_BITS is that of keys, QN_VALUE_BITS of
 * values. */
typedef struct qn_aura_quantize_page_args {
    QN_GPU_PTR(const uint8_t)
    f16_keys; /* f16 [1 + n_open_pages][64][dim] a head, as kernels/attention/attention_cuda.h has them */
    QN_GPU_PTR(const uint8_t) f16_values;
    QN_GPU_PTR(uint8_t) keys; /* code rows */
    QN_GPU_PTR(uint8_t) values;
    QN_GPU_PTR(uint8_t) key_scales;
    QN_GPU_PTR(uint8_t) value_scales;
    QN_GPU_PTR(uint8_t) means; /* f32 [heads][dim] */
    uint64_t f16_head;         /* bytes from head to head */
    uint64_t key_head_stride, value_head_stride, scale_head_stride;
    qn_aura_gpu_levels key_levels, value_levels;
    uint32_t first_page, n_open_pages;
} qn_aura_quantize_page_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* The launches; arguments are the caller's to fill. QN_ERR_UNSUPPORTED, naming it, for a size or bits that AURA does not have.
 */
qn_status qn_aura_gpu_encode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);
qn_status qn_aura_gpu_decode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out);
qn_status qn_aura_gpu_quantize_page(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_pages, size_t n_kv_heads,
                                    qn_launch *out);

#endif
#endif
