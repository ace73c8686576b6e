/* Which matrices of a plan are stored together on a GPU: concatenated in tiles in one buffer, and multiplied in one
 * launch. The backend has the layout of a tile. */
#ifndef QN_GPU_TILING_H
#define QN_GPU_TILING_H

#include "plan/plan.h"

typedef struct qn_gpu_tiling {
    size_t tile_rows; /* rows of a matrix in a tile; every matrix begins with a tile */
    /* Returns the same number for two types if their matrices can be in one buffer: their tiles have one layout. */
    uint32_t (*layout_of)(const qn_type_info *type);
    bool embeds; /* rows of the plan's embedding table are read from tiles: the table is tiled */
} qn_gpu_tiling;

/* Matrices of an operation that have the same activations and tile layout. */
typedef struct qn_gpu_gemm {
    int acts;
    uint32_t layout; /* qn_gpu_tiling.layout_of */
    size_t n_cols, n_tiles;
    size_t n_matrices;
    size_t matrices[QN_OP_MATRICES];    /* indices in the operation, ascending */
    size_t first_tiles[QN_OP_MATRICES]; /* the first tile of each */
} qn_gpu_gemm;

/* qn_gpu_output_of_table - returns the operation whose matrix is the embedding table, if embeddings are tied; else
 * NULL. */
const qn_op *qn_gpu_output_of_table(const qn_plan *plan);

/* qn_gpu_tiled_matrices - returns the matrices that are tiled for an operation of the plan. The embedding table is
 * tiled once: with tied embeddings for the output. A draft head has no tiles of a table. */
qn_op_matrices qn_gpu_tiled_matrices(const qn_gpu_tiling *tiling, const qn_plan *plan, const qn_op *op);

/* qn_gpu_group_matrices - groups matrices of an operation, in the order of their first ones. Returns the number of
 * GEMMs. */
size_t qn_gpu_group_matrices(const qn_gpu_tiling *tiling, const qn_op_matrices *matrices,
                             qn_gpu_gemm gemms[QN_OP_MATRICES]);

/* qn_gpu_may_fuse - returns whether the plan allows the only GEMM of operation `at`, a MATMUL, to compute the
 * activations of the matmul that is operation at + 2, and with them operation at + 1: it is a NORM or a SWIGLU of what
 * the GEMM computes. Gate and up are not stored then: no operation of another kind reads them. */
bool qn_gpu_may_fuse(const qn_plan *plan, size_t at, const qn_gpu_gemm *gemm);

#endif
