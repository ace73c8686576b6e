/* Heads on the GPU, between the products that make them and attention: norm, rotary embedding, and the cache. Shared by C and
 * CUDA. */
#ifndef QN_KERNELS_ROPE_ROPE_CUDA_H
#define QN_KERNELS_ROPE_ROPE_CUDA_H

#include "kernels/kv_cuda.h"

/* Threads that take a head, two values each; heads of a block, and its threads. */
#define QN_ROPE_GPU_TEAM(dim) (((dim) / 2 + 31) / 32 * 32)
#define QN_ROPE_GPU_TEAMS(dim) (QN_ROPE_GPU_TEAM(dim) > 64 ? 1 : 128 / QN_ROPE_GPU_TEAM(dim))
#define QN_ROPE_GPU_THREADS(dim) (QN_ROPE_GPU_TEAM(dim) * QN_ROPE_GPU_TEAMS(dim))

/* qn_rope_angles - cosines and sines of rows: of position * frequency, times attn_factor, computed in double as qn_rope_angles
 * of rope.h does. grid (ceil(n_rot/2 / 64), n_rows), 64 threads. */
typedef struct qn_rope_angles_args {
    QN_GPU_PTR(const uint32_t) positions;
    QN_GPU_PTR(const double) frequencies; /* [n_rot/2] */
    QN_GPU_PTR(float) cosines;            /* [n_rows][n_rot/2] */
    QN_GPU_PTR(float) sines;
    double attn_factor;
    uint32_t n_rot;
} qn_rope_angles_args;

/* qn_rope_qk_norm_store - for each row: queries and keys are normalised where there is a weight for it (x * weight / sqrt(mean(x^2) +
 * eps), per head), and turned; keys and values go into the cache.
 *
 * A cache of halves takes them as the nearest halves, of +-65504 where they are beyond; a value that is NaN is stored as 0 and
 * makes the key NaN. In a cache of codes (QN_PAGES) rows and queries are rotated first, and go to the halves of their run:
 * qn_aura_quantize_page makes codes of complete runs. grid: ceil(n_rows * (n_heads + n_kv_heads) / QN_ROPE_GPU_TEAMS(head_dim)).
 * Defines: QN_HEAD_DIM, QN_PAGES. */
typedef struct qn_rope_qk_norm_store_args {
    QN_GPU_PTR(const float) queries; /* [n_rows][n_heads][query_stride] */
    QN_GPU_PTR(const float) keys;    /* [n_rows][n_kv_heads][head_dim] */
    QN_GPU_PTR(const float) values;
    QN_GPU_PTR(float) out;                /* [n_rows][n_heads][head_dim]; may be queries where query_stride is head_dim */
    QN_GPU_PTR(const float) query_weight; /* [head_dim], or none */
    QN_GPU_PTR(const float) key_weight;
    QN_GPU_PTR(const float) cosines; /* [n_rows][n_rot/2] */
    QN_GPU_PTR(const float) sines;
    QN_GPU_PTR(const uint32_t) positions; /* [n_rows] */
    QN_GPU_PTR(const uint32_t) sessions;  /* [n_rows]; none: 0 */
    qn_attention_gpu_cache cache;         /* of halves */
    qn_attention_gpu_pages pages;         /* with QN_PAGES */
    qn_aura_gpu_rotation key_rotation, value_rotation;
    uint32_t n_rows, n_heads, n_kv_heads, n_rot;
    uint32_t query_stride; /* head_dim, or 2 * head_dim where each query is followed by its gate */
    uint32_t interleaved;  /* pairs are 2i and 2i+1, else i and i + n_rot/2 */
    float eps;
} qn_rope_qk_norm_store_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* The launches; arguments are the caller's to fill. */
qn_status qn_rope_gpu_angles(size_t n_rot, size_t n_rows, qn_launch *out);
/* QN_ERR_UNSUPPORTED, naming it, for a head size that the kernel does not have. */
qn_status qn_rope_gpu_qk_norm_store(size_t head_dim, bool pages, size_t n_rows, size_t n_heads, size_t n_kv_heads,
                                    qn_launch *out);

#endif
#endif
