/* Biases, qk_norm, rope and kv_store on the GPU, between the q, k, v matmuls and attention. Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_ROPE_ROPE_H
#define QN_CUDA_KERNELS_ROPE_ROPE_H

#include "cuda/kernels/kv.h"

/* Threads per head, heads per block, threads per block. Without AURA's rotation (pages 0) a warp processes a head
 * without block barriers, so that many rows are resident at a time. With the rotation a thread has two values of the
 * head. */
#define QN_ROPE_GPU_TEAM(dim, pages) ((pages) ? ((dim) / 2 + 31) / 32 * 32 : 32)
#define QN_ROPE_GPU_TEAMS(dim, pages) (QN_ROPE_GPU_TEAM(dim, pages) > 64 ? 1 : 128 / QN_ROPE_GPU_TEAM(dim, pages))
#define QN_ROPE_GPU_THREADS(dim, pages) (QN_ROPE_GPU_TEAM(dim, pages) * QN_ROPE_GPU_TEAMS(dim, pages))

/* qn_rope_angles - Cosines and sines of position * frequency for each row, times attn_factor, computed in double like
 * qn_rope_angles of kernels/rope/rope.h. Grid: ceil(n_rot/2 / 64) (x), n_rows (y), 64 threads. */
typedef struct qn_rope_angles_args {
    QN_GPU_PTR(const uint32_t) positions; /* [n_rows] */
    QN_GPU_PTR(const double) frequencies; /* [n_rot/2] */
    QN_GPU_PTR(float) cosines;            /* [n_rows][n_rot/2] */
    QN_GPU_PTR(float) sines;              /* [n_rows][n_rot/2] */
    double attn_factor;
    uint32_t n_rot;
} qn_rope_angles_args;

/* qn_rope_qk_norm_store - Biases, qk_norm, rope and kv_store of n_rows rows: of query heads, of key and value heads, or
 * of both. Biases are added to queries, keys and values. Queries and keys are normalised per head if there is a weight
 * (x * weight / sqrt(mean(x^2) + eps)), then rope is applied; keys and values are stored in the KV cache.
 *
 * An f16 cache stores keys and values rounded to f16, saturated to +-65504. NaN in a value row is stored as 0, and all
 * of the position's key is stored as NaN; NaN in a key stays NaN. In a cache of AURA codes (QN_PAGES) queries, keys and
 * values are first rotated to the codec's basis, and keys and values are stored as f16 in their open page:
 * qn_aura_quantize_page quantises full pages. Rows without a session, and rows at positions beyond the capacity of an
 * f16 cache, are not stored.
 *
 * Grid: ceil(n_rows * (n_heads + n_kv_heads) / QN_ROPE_GPU_TEAMS(head_dim, pages)). Defines: QN_HEAD_DIM, QN_PAGES. */
typedef struct qn_rope_qk_norm_store_args {
    QN_GPU_PTR(const uint8_t) queries;    /* [n_rows][n_heads][query_stride], typed as keys, values and out */
    QN_GPU_PTR(const uint8_t) keys;       /* [n_rows][n_kv_heads][head_dim] */
    QN_GPU_PTR(const uint8_t) values;     /* [n_rows][n_kv_heads][head_dim] */
    QN_GPU_PTR(uint8_t) out;              /* [n_rows][n_heads][head_dim]: queries; may be `queries` with its strides */
    QN_GPU_PTR(const float) query_bias;   /* [n_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) key_bias;     /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) value_bias;   /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) query_weight; /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) key_weight;   /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) cosines;      /* [n_rows][n_rot/2] */
    QN_GPU_PTR(const float) sines;        /* [n_rows][n_rot/2] */
    QN_GPU_PTR(const uint32_t) positions; /* [n_rows]; as sessions and page tables, read before the PDL wait */
    QN_GPU_PTR(const uint32_t)
    sessions; /* [n_rows] index of a row's session, or QN_ATTENTION_NO_SESSION; 0: session 0 for all rows */
    qn_attention_gpu_cache cache; /* f16; without QN_PAGES */
    qn_attention_gpu_pages pages; /* with QN_PAGES */
    qn_aura_gpu_rotation key_rotation, value_rotation;
    uint32_t n_rows, n_heads, n_kv_heads, n_rot;
    uint32_t query_row_stride, key_row_stride, value_row_stride, out_row_stride; /* values from a row to the next */
    uint32_t dtype;                                                              /* a qn_dtype: F32, F16 or BF16 */
    uint32_t capacity;                                                           /* of the f16 cache, of each session */
    uint32_t query_stride; /* head_dim, or 2 * head_dim if each query is followed by its gate */
    uint32_t interleaved;  /* 1: pairs are 2i and 2i+1; 0: i and i + n_rot/2 */
    float eps;
} qn_rope_qk_norm_store_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_rope_gpu_angles - Fills a launch of qn_rope_angles; the caller passes the arguments with it. QN_ERR_INVALID for
 * sizes beyond the limits of a launch. */
qn_status qn_rope_gpu_angles(size_t n_rot, size_t n_rows, qn_launch *out);

/* qn_rope_gpu_qk_norm_store - Fills a launch of qn_rope_qk_norm_store; the caller passes the arguments with it.
 * QN_ERR_INVALID for sizes beyond the limits of a launch; QN_ERR_UNSUPPORTED, naming the head size, if the kernel has
 * no variant for it. */
qn_status qn_rope_gpu_qk_norm_store(size_t head_dim, bool pages, size_t n_rows, size_t n_heads, size_t n_kv_heads,
                                    qn_launch *out);

#endif
#endif
