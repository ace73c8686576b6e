/* Rows of a table, as a model embeds its tokens, from an area of tiles (matmul_cuda.h): that of the output matrix, where a
 * model has one table for both. Shared by C and CUDA. */
#ifndef QN_KERNELS_MATMUL_EMBED_CUDA_H
#define QN_KERNELS_MATMUL_EMBED_CUDA_H

#include "kernels/matmul/matmul_cuda.h"

enum { QN_EMBED_THREADS = 256, QN_EMBED_PER_THREAD = 8, QN_EMBED_TILE = QN_EMBED_THREADS * QN_EMBED_PER_THREAD };

/* qn_matmul_embed - out[r] = S H z, z the table's row tokens[r]: H transforms blocks of `block` values, S are signs
 * (hadamard.h has the order of operations; bits are the same as the CPU's). With a block of 1 that is z.
 *
 * grid (ceil(n_cols / QN_EMBED_TILE), n_rows). The first block copies n_words words that are something else, which saves a step
 * of one row a copy of its own: `from` and `tokens` may be page-locked memory of the host. */
typedef struct qn_matmul_embed_args {
    QN_GPU_PTR(const uint8_t) weights; /* the area */
    QN_GPU_PTR(const int32_t) tokens;
    QN_GPU_PTR(float) out;         /* [n_rows][n_cols] */
    QN_GPU_PTR(const float) signs; /* [n_cols], or none */
    QN_GPU_PTR(const uint32_t) from;
    QN_GPU_PTR(uint32_t) to;
    uint32_t n_words;
    uint32_t n_tiles, n_k_tiles; /* of the area */
    uint32_t first_tile;         /* of the table */
    uint32_t n_cols, bits, n_scales, has_offset;
    uint32_t block; /* a power of two up to QN_EMBED_TILE that divides n_cols */
    float scale;    /* 1/sqrt(block), rounded to float32 */
} qn_matmul_embed_args;

#ifndef __CUDACC__

/* qn_matmul_gpu_can_embed - whether rows of this type, with such a rotation (0: none), are to be had from tiles as they are. */
bool qn_matmul_gpu_can_embed(const qn_type_info *type, size_t block);

/* qn_matmul_gpu_embed - rows from tile first_tile of an area on. QN_ERR_INVALID for no rows, more than a grid has, or a
 * rotation that is not as above. The caller sets what is copied, if anything. */
qn_status qn_matmul_gpu_embed(const qn_tiled_matrix *matrix, size_t first_tile, uint64_t tokens, uint64_t signs, size_t block,
                              size_t n_rows, uint64_t out, qn_launch *launch, qn_matmul_embed_args *args);

#endif
#endif
