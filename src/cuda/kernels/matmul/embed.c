/* The launch of embed.cu. */
#include "cuda/kernels/matmul/embed.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/matmul/variants.def"

#include <math.h>

enum { MAX_ROWS = 65535 }; /* of a grid */

bool qn_matmul_gpu_can_embed(const qn_type_info *type, size_t block)
{
    return !qn_matmul_gpu_tile_layout(type).as_f16 && block <= QN_EMBED_TILE;
}

qn_status qn_matmul_gpu_embed(const qn_tiled_matrix *matrix, size_t first_tile, uint64_t tokens, uint64_t signs,
                              size_t block, size_t n_rows, uint64_t out, qn_launch *launch, qn_matmul_embed_args *args)
{
    block = block ? block : 1;
    if (n_rows == 0 || n_rows > MAX_ROWS || block > QN_EMBED_TILE || (block & (block - 1)) || matrix->n_cols % block)
        return qn_fail(QN_ERR_INVALID,
                       "embedding on the GPU: %zu rows of %zu in blocks of %zu, expected 1 to %d rows and blocks of a "
                       "power of two up to %d",
                       n_rows, matrix->n_cols, block, MAX_ROWS, QN_EMBED_TILE);
    *launch =
        (qn_launch){ .variant.source = &embed_source,
                     .function = "qn_matmul_embed",
                     .grid = { (uint32_t)((matrix->n_cols + QN_EMBED_TILE - 1) / QN_EMBED_TILE), (uint32_t)n_rows, 1 },
                     .block = { QN_EMBED_THREADS, 1, 1 },
                     .args_bytes = sizeof *args };
    *args = (qn_matmul_embed_args){ .weights = matrix->address,
                                    .tokens = tokens,
                                    .out = out,
                                    .signs = signs,
                                    .n_tiles = (uint32_t)matrix->n_tiles,
                                    .n_k_tiles = (uint32_t)((matrix->n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS),
                                    .first_tile = (uint32_t)first_tile,
                                    .n_cols = (uint32_t)matrix->n_cols,
                                    .bits = matrix->tiles.bits,
                                    .n_scales = matrix->tiles.n_scales,
                                    .has_offset = matrix->tiles.has_offset,
                                    .block = (uint32_t)block,
                                    .scale = (float)(1 / sqrt((double)block)) };
    return QN_OK;
}
