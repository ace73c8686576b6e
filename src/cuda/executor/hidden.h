/* Hidden states of rows: the residual stream after the last layer, copied to the caller's arrays. The host computes
 * their norm (gpu/hidden.h): few rows have it, and the kernels' norm is part of the quantisation of activations. */
#ifndef QN_CUDA_EXECUTOR_HIDDEN_H
#define QN_CUDA_EXECUTOR_HIDDEN_H

#include "cuda/executor/step.h"

/* qn_cuda_queue_hidden - Queues the copies, after all launches of the step: before the norm, to `hidden`, or to
 * `normed` of rows that have no `hidden`. The caller's arrays are not pinned, so each copy waits for the step. */
qn_status qn_cuda_queue_hidden(const qn_cuda_rows_step *s);

#endif
