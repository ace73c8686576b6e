/* A step's inputs on their way to the device. */
#ifndef QN_CUDA_EXECUTOR_INPUTS_H
#define QN_CUDA_EXECUTOR_INPUTS_H

#include "cuda/executor/step.h"

/* qn_cuda_fill_inputs - all but logit_rows, which are the caller's, into the step's block on the host.
 *
 * qn_cuda_upload_inputs - to the device, and embeddings from the host or from the table on the device. */
void qn_cuda_fill_inputs(const qn_cuda_rows_step *s);
qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s);

#endif
