/* The plan's operations as launches in the stream: which kernels run, and which buffers they read and write. All
 * functions but qn_cuda_has_phases queue work: the caller holds stream_lock. decode.h captures them in graphs. */
#ifndef QN_CUDA_EXECUTOR_EXECUTOR_H
#define QN_CUDA_EXECUTOR_EXECUTOR_H

#include "cuda/executor/graphs.h"
#include "cuda/executor/step.h"

/* qn_cuda_prepare_decode - Plans a step of one row, or one with in_phases, and uploads its phases. Does nothing if the
 * plan is of the current workspace, and for other steps. */
qn_status qn_cuda_prepare_decode(const qn_cuda_rows_step *s);

/* qn_cuda_run_trunk - Launches all operations of the trunk before the logits, then the pairs of a draft head, which
 * leave what the logits read. Call qn_cuda_prepare_decode before it. */
qn_status qn_cuda_run_trunk(const qn_cuda_rows_step *s);

/* qn_cuda_run_draft - Launches all operations of a draft step before the logits. */
qn_status qn_cuda_run_draft(const qn_cuda_rows_step *s);

/* qn_cuda_gather_rows - Copies rows logit_rows[first, first + n) of the last layer's output to workspace->gathered;
 * n <= QN_CUDA_LOGIT_ROWS. logit_rows is an array of the step's inputs. */
qn_status qn_cuda_gather_rows(const qn_cuda_rows_step *s, size_t first, size_t n);

/* qn_cuda_run_logits - Computes the logits of rows [s->row, s->row + s->n) into workspace->logits;
 * s->n <= QN_CUDA_LOGIT_ROWS. */
qn_status qn_cuda_run_logits(const qn_cuda_rows_step *s);

/* qn_cuda_has_phases - Returns whether the persistent decode kernel executes a decode step of n > 1 rows; false for
 * n = 1. */
bool qn_cuda_has_phases(const qn_cuda_workspace *workspace, size_t n);

#endif
