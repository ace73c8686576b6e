/* A step's inputs: filled on the host, then copied to the device. The host's part is in the step's block
 * (QN_CUDA_BLOCKS), which no step in flight uses. The caller holds stream_lock. */
#ifndef QN_CUDA_EXECUTOR_INPUTS_H
#define QN_CUDA_EXECUTOR_INPUTS_H

#include "cuda/executor/step.h"

/* qn_cuda_fill_inputs - Fills the inputs in the step's block on the host, except logit_rows, which the caller fills.
 * With a draft head, counts the step in its memories (gpu/head_rows.h). */
void qn_cuda_fill_inputs(const qn_cuda_rows_step *s);

/* qn_cuda_upload_inputs - Queues the copy of the inputs to the device, and the embeddings: copied from the host, or
 * dequantised from the table on the device. */
qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s);

/* qn_cuda_embed_again - Queues the embeddings once more, to another buffer of the plan, after the upload and before the
 * step samples. */
qn_status qn_cuda_embed_again(const qn_cuda_rows_step *s, int out);

#endif
