/* Poisons the parts of the workspace that no later work may read. Does nothing unless poisoning is enabled
 * (provoke.h). */
#ifndef QN_CUDA_EXECUTOR_POISON_H
#define QN_CUDA_EXECUTOR_POISON_H

#include "cuda/executor/step.h"

/* qn_cuda_poison_step - Poisons the workspace on the device. Call it before the inputs of a step are uploaded. */
qn_status qn_cuda_poison_step(const qn_cuda_rows_step *s);

/* qn_cuda_poison_part - Poisons the buffers that the previous part of a layer has left. Call it before the norm at the
 * start of a part. */
qn_status qn_cuda_poison_part(const qn_cuda_rows_step *s);

/* qn_cuda_poison_block - Poisons the inputs, results and logits of a block on the host. Call it after the results of
 * the block's step were read. */
void qn_cuda_poison_block(const qn_cuda_workspace *workspace, const qn_cuda_sampler *sampler, size_t block);

#endif
