/* A model's weights on the device: matrices in tiles, each packed once as it is uploaded, and all vectors in one
 * buffer. */
#ifndef QN_CUDA_EXECUTOR_WEIGHTS_H
#define QN_CUDA_EXECUTOR_WEIGHTS_H

#include "cuda/executor/internal.h"
#include "gpu/tiling.h"

/* Matrices in one buffer, which one launch multiplies. */
typedef struct qn_cuda_gemm {
    qn_gpu_gemm group;
    qn_tiled_matrix tiled_matrix; /* one out for each matrix of the group, without its address */
    qn_cuda_buffer memory;        /* empty if it is another operation's, as of a draft head's output matrix */
    /* The last launch, cached for its number of rows: finding a launch takes longer than launching it. */
    qn_matmul_launch launch;
    size_t launch_rows;         /* 0: none */
    bool launch_in_phases;      /* qn_cuda_rows_step.in_phases */
    uint32_t launch_generation; /* of the workspace whose addresses it contains */
} qn_cuda_gemm;

typedef struct qn_cuda_op {
    qn_cuda_gemm gemms[QN_OP_MATRICES];
    size_t n_gemms;
    qn_op_addresses vectors;
    bool fuses_next; /* for 2 to QN_FEW_MAX_TOKENS rows the GEMM computes the activations of the next operation */
    int next_acts;   /* index of these activations, if fuses_next */
} qn_cuda_op;

/* The embedding table in tiles; with tied embeddings, the output matrix. */
typedef struct qn_cuda_table {
    const qn_tiled_matrix *tiled_matrix; /* NULL: the host dequantises the rows */
    size_t first_tile;
    uint64_t signs;
} qn_cuda_table;

typedef struct qn_cuda_weights {
    const qn_cuda_common *common;
    qn_cuda_op *ops;        /* [plan->n_ops] */
    size_t same_rows;       /* the most rows of a pass whose matmuls compute every row by the same operations */
    qn_cuda_buffer vectors; /* norm weights, convolution taps, signs, frequencies of rope */
    uint64_t frequencies, drafter_frequencies; /* drafter_frequencies: of a block drafter */
    uint64_t *signs;                           /* [plan->n_acts]: signs of the activations' rotations; 0: none */
    qn_cuda_table table;
    qn_cuda_buffer staging; /* rows of the matrix that is being uploaded, before they are packed into tiles */
} qn_cuda_weights;

/* Returns a number that is the same for tile layouts that differ at most in the layout of stored rows. */
static inline uint32_t qn_cuda_tiles_key(const qn_tile_layout *tiles)
{
    return tiles->bits | tiles->n_scales << 8 | tiles->has_offset << 16;
}

/* Returns whether two tile layouts are the same. */
static inline bool qn_cuda_same_tiles(const qn_tile_layout *a, const qn_tile_layout *b)
{
    return qn_cuda_tiles_key(a) == qn_cuda_tiles_key(b);
}

/* qn_cuda_weights_create - Allocates the weights of common->plan, without contents, in *weights, which is zeroed. Free
 * with qn_cuda_weights_free, also after an error. */
qn_status qn_cuda_weights_create(const qn_cuda_common *common, qn_cuda_weights *weights);

/* qn_cuda_weights_free - Frees the weights. Accepts a zeroed struct. */
void qn_cuda_weights_free(qn_cuda_weights *weights);

/* qn_cuda_weights_upload - Implements qn_device_vtable.upload; *taken is its *uploaded. */
qn_status qn_cuda_weights_upload(qn_cuda_weights *weights, const uint8_t *data, bool *taken);

/* qn_cuda_weights_end_upload - Frees the memory that only uploads need. */
void qn_cuda_weights_end_upload(qn_cuda_weights *weights);

/* qn_cuda_reads_rows - Returns whether a matmul of 2 to QN_FEW_MAX_TOKENS rows reads the input of the norm `writer`
 * instead of the activations that the norm would write (qn_matmul_gemv_norm). */
bool qn_cuda_reads_rows(const qn_cuda_weights *weights, const qn_op *writer, const qn_cuda_gemm *gemm);

#endif
