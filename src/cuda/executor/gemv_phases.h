/* Selects the matmuls that can be GEMV phases of the persistent decode kernel, partitions them, and lays out the memory
 * that the kernel needs in addition to the plan's buffers. Computes addresses and shapes only. */
#ifndef QN_CUDA_EXECUTOR_GEMV_PHASES_H
#define QN_CUDA_EXECUTOR_GEMV_PHASES_H

#include "cuda/executor/weights.h"

/* The GEMV phase of a MATMUL operation, without its prologue. */
typedef struct qn_cuda_gemv_phase {
    const qn_cuda_gemm *main, *f16_rows; /* f16_rows may be NULL */
    qn_persistent_gemv phase;
} qn_cuda_gemv_phase;

/* qn_cuda_find_gemv - Returns whether operation `at` is a MATMUL that can be a GEMV phase: one GEMM in the tile layout
 * `tiles`, and at most one other with fp16 weights and few rows. If so, writes the phase to *out. */
bool qn_cuda_find_gemv(const qn_cuda_weights *weights, const qn_tile_layout *tiles, uint32_t n_rows, size_t at,
                       qn_cuda_gemv_phase *out);

/* Number of buffers of split-K partials, one for each GEMV: one is read, one is written, and two wait for a later
 * reader. */
enum { QN_CUDA_PARTIALS = 4 };

/* Addresses of the device memory that the persistent decode kernel needs in addition to the plan's buffers, for up to
 * QN_PERSISTENT_MAX_ROWS rows. */
typedef struct qn_cuda_persistent_workspace {
    qn_tile_layout tiles;                /* of the weights of all GEMV phases; 0 bits: the kernel is not used */
    uint64_t x; /* second buffer of the residual stream, which alternates between this and the plan's buffer */
    uint64_t heads, partials, maxima, barrier;
    struct {
        uint64_t data, sumsq, f16_rows;
    } gemv_partials[QN_CUDA_PARTIALS];
} qn_cuda_persistent_workspace;

/* qn_cuda_persistent_lay_out - Lays out the persistent decode kernel's workspace from `address` on.
 *
 *   weights     with their device addresses
 *   workspace   written; tiles.bits is 0 if no GEMV of the model is supported
 *   bytes       written: size of the workspace, 0 in that case
 */
qn_status qn_cuda_persistent_lay_out(const qn_cuda_weights *weights, uint64_t address,
                                     qn_cuda_persistent_workspace *workspace, size_t *bytes);

#endif
