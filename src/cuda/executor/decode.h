/* Decode steps as CUDA graphs. The caller holds stream_lock, for the whole of a capture too. */
#ifndef QN_CUDA_EXECUTOR_DECODE_H
#define QN_CUDA_EXECUTOR_DECODE_H

#include "cuda/executor/step.h"

/* qn_cuda_launch_decode - Queues a decode step as a graph, captured on first use; one in_turn as launches. The step's
 * number of rows is a bucket, unless it verifies, and its inputs are in its block on the host. The graph leaves the
 * logits in workspace->logits.
 *
 *   sampling        for one row of the model: the graph ends with this sampler; NULL: without a sampler
 *   copies_logits   for one row of the model: the graph ends with the copy of the logits to workspace->host_logits */
qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits);

#endif
