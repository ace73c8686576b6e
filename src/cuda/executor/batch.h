/* A batch of rows (gpu/batch.h) as a step on the device. */
#ifndef QN_CUDA_EXECUTOR_BATCH_H
#define QN_CUDA_EXECUTOR_BATCH_H

#include "cuda/executor/model.h"
#include "gpu/batch.h"

typedef struct qn_cuda_batch {
    qn_cuda_model *model;
    qn_gpu_batch part; /* of the caller's step */
    qn_cuda_rows_step step;
    qn_cuda_sampling sampling; /* of all logit rows; with requests */
    bool samples_later;        /* requests are prepared and sampled by qn_cuda_sample_step */
} qn_cuda_batch;

/* qn_cuda_batch_of - Returns the batch of rows, from row `row` of the step on, that can be executed together. Its logit
 * rows start at index `logit` of the step's. */
qn_cuda_batch qn_cuda_batch_of(qn_cuda_model *model, const qn_step *step, size_t row, size_t logit);

/* qn_cuda_batch_prepare - Sets the pieces of a batch and fills its inputs on the host. */
qn_status qn_cuda_batch_prepare(qn_cuda_batch *b);

#endif
