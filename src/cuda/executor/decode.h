/* Decode steps as CUDA graphs. */
#ifndef QN_CUDA_EXECUTOR_DECODE_H
#define QN_CUDA_EXECUTOR_DECODE_H

#include "cuda/executor/step.h"

/* qn_cuda_launch_decode - queue a decode step, of a number of rows that is a bucket, as a graph, which is captured if
 * that was not done yet. The inputs are in the step's block on the host. It leaves the logits in workspace->logits.
 * For one row, the graph may end with the sampler (not NULL), or with the copy of the logits to
 * workspace->host_logits. */
qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits);

#endif
