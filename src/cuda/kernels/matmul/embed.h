/* Embedding on the GPU: rows of a tiled matrix (matmul.h), which is also the output matrix if a model has one table
 * for both. Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_MATMUL_EMBED_H
#define QN_CUDA_KERNELS_MATMUL_EMBED_H

#include "cuda/kernels/matmul/matmul.h"

enum { QN_EMBED_THREADS = 256, QN_EMBED_PER_THREAD = 8, QN_EMBED_TILE = QN_EMBED_THREADS * QN_EMBED_PER_THREAD };

/* qn_matmul_embed - out[r] = S H z, with z the table's row tokens[r], H the Walsh-Hadamard transform of blocks of
 * `block` values, S the signs (kernels/hadamard/hadamard.h has the order of operations; the bits equal the CPU's). With
 * a block of 1, out[r] is z, or S z.
 *
 * grid (ceil(n_cols / QN_EMBED_TILE), n_rows). The first block also copies n_words unrelated 32-bit words, which saves
 * a step of one row a separate copy of its inputs: `from`, `tokens` and `sources` may be pinned host memory.
 *
 * A row with a source has the token sampled[source - 1] instead; row 0 of the table if that is -1. */
typedef struct qn_matmul_embed_args {
    QN_GPU_PTR(const uint8_t) weights; /* the tiled matrix */
    QN_GPU_PTR(const int32_t) tokens;
    QN_GPU_PTR(const uint32_t) sources; /* [n_rows], 0: the row has no source; or null: no row has one */
    QN_GPU_PTR(const int32_t) sampled;  /* device memory */
    QN_GPU_PTR(float) out;              /* [n_rows][n_cols] */
    QN_GPU_PTR(const float) signs;      /* [n_cols], or null */
    QN_GPU_PTR(const uint32_t) from;
    QN_GPU_PTR(uint32_t) to;
    uint32_t n_words;
    uint32_t n_tiles, n_k_tiles; /* of the tiled matrix */
    uint32_t first_tile;         /* of the table */
    uint32_t n_cols, bits, n_scales, has_offset;
    uint32_t block; /* a power of two up to QN_EMBED_TILE that divides n_cols */
    float scale;    /* 1/sqrt(block), rounded to float32 */
} qn_matmul_embed_args;

#ifndef __CUDACC__

/* qn_matmul_gpu_can_embed - Returns whether rows of this type, rotated in blocks of `block` (0: not rotated), can be
 * embedded from tiles. */
bool qn_matmul_gpu_can_embed(const qn_type_info *type, size_t block);

/* qn_matmul_gpu_embed - Fills a launch that embeds n_rows tokens from the table that starts at tile first_tile, and its
 * arguments. The caller sets from, to and n_words if the launch copies words, and sources and sampled if rows have
 * sources. QN_ERR_INVALID if n_rows is 0 or beyond a grid's limit, or if `block` is not as in qn_matmul_embed_args. */
qn_status qn_matmul_gpu_embed(const qn_tiled_matrix *matrix, size_t first_tile, uint64_t tokens, uint64_t signs,
                              size_t block, size_t n_rows, uint64_t out, qn_launch *launch, qn_matmul_embed_args *args);

#endif
#endif
