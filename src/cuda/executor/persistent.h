/* The decode plan: the operations of a decode step of one row, or of several, as segments. A segment is either an array
 * of phases, which one launch of the persistent decode kernel executes (cuda/kernels/persistent/persistent.h), or one
 * operation that the kernel does not support, which has launches of its own (executor.c). This module only computes
 * addresses and shapes; it calls no driver. */
#ifndef QN_CUDA_EXECUTOR_PERSISTENT_H
#define QN_CUDA_EXECUTOR_PERSISTENT_H

#include "cuda/executor/caches.h"
#include "cuda/executor/workspace.h"
#include "gpu/inputs.h"

typedef struct qn_cuda_segment {
    size_t op, n_ops;       /* of the plan */
    bool skip_acts;         /* a launched operation: the next segment's prologue quantises its output */
    size_t phase, n_phases; /* of the plan's; 0 phases: a launched operation */
} qn_cuda_segment;

/* The operations of the trunk for one row, or for several, up to their logits, in execution order. */
typedef struct qn_cuda_decode_plan {
    qn_cuda_segment *segments;
    size_t n_segments, cap_segments;
    qn_persistent_phase *phases;
    size_t n_phases, cap_phases;
    qn_cuda_buffer memory; /* copy of the phases on the device */
    uint32_t generation;   /* of the workspace whose addresses the phases contain; 0: none yet */
} qn_cuda_decode_plan;

/* qn_cuda_plan_decode - Plans a decode step of sequences of this format: replaces the segments and phases of
 * *decode_plan, with the buffers' current addresses, and does not change its device memory. Without the persistent
 * decode kernel, each operation is a segment.
 *
 *   n_rows   1, or 2 to QN_PERSISTENT_MAX_ROWS, which all give the same plan */
qn_status qn_cuda_plan_decode(const qn_cuda_workspace *workspace, const qn_cuda_format *format, uint32_t n_rows,
                              qn_cuda_decode_plan *decode_plan);

/* qn_cuda_has_code_phases - Returns whether attention of one row over this format, which has AURA codes, is in phases:
 * its launches are then qn_persistent_gpu_launch_codes. */
bool qn_cuda_has_code_phases(const qn_cuda_workspace *workspace, const qn_cuda_format *format);

/* qn_cuda_persistent_codes - Returns what these phases share, an argument of the launches. */
qn_persistent_codes qn_cuda_persistent_codes(const qn_cuda_workspace *workspace, const qn_cuda_format *format);

#endif
