/* The rows of the caller's step that are executed together. */
#ifndef QN_CUDA_EXECUTOR_BATCH_H
#define QN_CUDA_EXECUTOR_BATCH_H

#include "cuda/executor/model.h"

/* Rows of up to QN_GPU_MAX_SEQUENCES sequences of one cache format: a part of the caller's step. They are not executed
 * in the caller's order: pieces of few rows come first. */
typedef struct qn_cuda_batch {
    qn_cuda_model *model;
    qn_cuda_rows_step step;
    const qn_row *rows;
    size_t n_rows;
    const uint32_t *logit_rows;  /* [n_logits] row numbers in the caller's step: `first` more than in `rows` */
    size_t first, n_logits;      /* first: index of rows[0] in the caller's step */
    float *logits;               /* [n_logits, n_vocab], or NULL */
    qn_sample_request *requests; /* [n_logits], or NULL */
    qn_cuda_sampling sampling;   /* of all logit rows; with requests */
    bool samples_later;          /* requests are prepared and sampled by qn_cuda_sample_step */
} qn_cuda_batch;

/* qn_cuda_batch_of - Returns the batch of rows, from row `row` of the step on, that can be executed together. Its logit
 * rows start at index `logit` of the step's. */
qn_cuda_batch qn_cuda_batch_of(qn_cuda_model *model, const qn_step *step, size_t row, size_t logit);

/* qn_cuda_batch_prepare - Sets the pieces of a batch and fills its inputs on the host. */
qn_status qn_cuda_batch_prepare(qn_cuda_batch *b);

#endif
