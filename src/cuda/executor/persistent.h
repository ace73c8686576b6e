/* The decode plan: the operations of a decode step of one row, or of several, as segments. A segment is either an array of
 * phases, which one launch of the persistent decode kernel executes (cuda/kernels/persistent/persistent.h), or one operation
 * that the kernel does not support, which has launches of its own (operations.c). This module only computes addresses and
 * shapes; it calls no driver. */
#ifndef QN_CUDA_EXECUTOR_PERSISTENT_H
#define QN_CUDA_EXECUTOR_PERSISTENT_H

#include "cuda/runtime/runtime.h"
#include "plan/plan.h"
#include "cuda/kernels/persistent/persistent.h"

struct qn_cuda_model;
struct qn_cuda_memory;

/* Number of buffers of split-K partials, each for one GEMV: one is read, one is written, and two wait for a later
 * reader. */
enum { QN_CUDA_PARTIALS = 4 };

/* Device memory of the persistent decode kernel in addition to the plan's buffers: addresses. For up to QN_PERSISTENT_MAX_ROWS
 * rows. */
typedef struct qn_cuda_persistent_workspace {
    qn_tile_layout tiles;                /* of the weights of all GEMV phases; 0 bits: the kernel is not used */
    uint64_t acts, acts_scale, acts_f32; /* of several rows */
    uint64_t x; /* second buffer of the residual stream, which alternates between this and the plan's buffer */
    uint64_t heads, partials, maxima, barrier;
    struct {
        uint64_t data, sumsq, f16_rows;
    } gemv_partials[QN_CUDA_PARTIALS];
} qn_cuda_persistent_workspace;

typedef struct qn_cuda_segment {
    size_t op, n_ops;       /* of the plan */
    bool skip_acts;         /* a launched operation: the next segment's prologue quantises its output */
    size_t phase, n_phases; /* of the plan's; 0 phases: a launched operation */
} qn_cuda_segment;

/* The operations of one row, or of several, up to their logits, in execution order. */
typedef struct qn_cuda_decode_plan {
    qn_cuda_segment *segments;
    size_t n_segments, cap_segments;
    qn_persistent_phase *phases;
    size_t n_phases, cap_phases;
    qn_cuda_buffer memory; /* copy of the phases on the device */
    uint32_t generation;   /* of the buffers whose addresses the phases contain; 0: none yet */
} qn_cuda_decode_plan;

/* qn_cuda_persistent_lay_out - lay out the workspace of this model from `address` on.
 *
 *   model       weights and vectors have their addresses
 *   workspace   written; tiles.bits is 0 if no GEMV of the model is supported
 *   bytes       written: size of the workspace, 0 in that case
 */
qn_status qn_cuda_persistent_lay_out(const struct qn_cuda_model *model, uint64_t address,
                                     qn_cuda_persistent_workspace *workspace, size_t *bytes);

/* qn_cuda_plan_decode - plan a decode step of the sequences of a memory's format: segments and phases, with the buffers'
 * current addresses. n_rows: 1, or any number from 2 to QN_PERSISTENT_MAX_ROWS, which have the same plan.
 * Without the persistent decode kernel, each operation is a segment. Replaces the segments and phases of *decode_plan;
 * its device memory is not changed. */
qn_status qn_cuda_plan_decode(const struct qn_cuda_model *model, const struct qn_cuda_memory *memory, uint32_t n_rows,
                              qn_cuda_decode_plan *decode_plan);

#endif
