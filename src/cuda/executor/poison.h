/* The workspace of steps is poisoned where nobody may read it any more; nothing unless memory is poisoned
 * (provoke.h). */
#ifndef QN_CUDA_EXECUTOR_POISON_H
#define QN_CUDA_EXECUTOR_POISON_H

#include "cuda/executor/step.h"

/* qn_cuda_poison_step - before the inputs of a step are uploaded: the workspace on the device. */
qn_status qn_cuda_poison_step(const qn_cuda_rows_step *s);

/* qn_cuda_poison_part - before the norm with which a part of a layer begins: what the part before it has left. */
qn_status qn_cuda_poison_part(const qn_cuda_rows_step *s);

/* qn_cuda_poison_block - after the results of a step were read: what the host writes and reads of its block. */
void qn_cuda_poison_block(const qn_cuda_workspace *workspace, const qn_cuda_sampler *sampler, size_t block);

#endif
