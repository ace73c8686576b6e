/* The plan's operations as launches in the stream: which kernels run, and which buffers they read and write. */
#ifndef QN_CUDA_EXECUTOR_EXECUTOR_H
#define QN_CUDA_EXECUTOR_EXECUTOR_H

#include "cuda/executor/graphs.h"
#include "cuda/executor/step.h"

/* qn_cuda_prepare_decode - plans the launches of a step of one row, or in phases, and uploads its phases, if that is
 * not done yet for the workspace of now; nothing for other steps. */
qn_status qn_cuda_prepare_decode(const qn_cuda_rows_step *s);

/* qn_cuda_run_trunk - all operations before the logits. With a decode plan: after qn_cuda_prepare_decode. */
qn_status qn_cuda_run_trunk(const qn_cuda_rows_step *s);

/* qn_cuda_gather_rows - into workspace->gathered: the n <= QN_CUDA_LOGIT_ROWS rows of the inputs' logit_rows from
 * `first` on.
 * qn_cuda_run_logits - logits of rows [row, row + n), n <= QN_CUDA_LOGIT_ROWS, into workspace->logits. */
qn_status qn_cuda_gather_rows(const qn_cuda_rows_step *s, size_t first, size_t n);
qn_status qn_cuda_run_logits(const qn_cuda_rows_step *s);

/* qn_cuda_has_phases - whether a decode step of n rows, several, is executed by the persistent decode kernel. */
bool qn_cuda_has_phases(const qn_cuda_workspace *workspace, size_t n);

#endif
