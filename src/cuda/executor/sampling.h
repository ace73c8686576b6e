/* Sampling at the end of a step: the tokens of rows from their logits in the workspace. */
#ifndef QN_CUDA_EXECUTOR_SAMPLING_H
#define QN_CUDA_EXECUTOR_SAMPLING_H

#include "cuda/executor/workspace.h"
#include "cuda/kernels/sample/sample.h"

typedef struct qn_cuda_sampler qn_cuda_sampler;

/* What a step samples: its launches depend on nothing else. */
typedef struct qn_cuda_sampling {
    qn_sample_mode mode; /* the most general one that a row needs; QN_SAMPLE_NONE: no token is sampled */
    size_t first, n;     /* rows that are sampled together, of the step's */
    size_t params;       /* offset of the step's parameters in its inputs */
    size_t block;        /* of the step */
} qn_cuda_sampling;

/* qn_cuda_sampler_create - the sampler of a workspace, for steps of up to max_rows rows, of which logit_rows are
 * sampled together. Free with qn_cuda_sampler_free, which accepts NULL. */
qn_status qn_cuda_sampler_create(qn_cuda_workspace *workspace, size_t max_rows, size_t logit_rows,
                                 qn_cuda_sampler **out);
void qn_cuda_sampler_free(qn_cuda_sampler *sampler);

/* qn_cuda_fill_sampling - the parameters of requests [n] into the inputs of what->block, at offset what->params; the
 * step's inputs are uploaded afterwards. Masks, bias and penalties, if there are any, by one copy that is queued in
 * the stream. Not during a capture, and not before the step that used them last has ended. Sets the other members of
 * *what. */
qn_status qn_cuda_fill_sampling(qn_cuda_sampler *sampler, const qn_sample_request *requests, size_t n,
                                qn_cuda_sampling *what);

/* qn_cuda_fill_sampling_later - the same when the step's inputs were uploaded: the parameters are copied too. */
qn_status qn_cuda_fill_sampling_later(qn_cuda_sampler *sampler, const qn_sample_request *requests, size_t n,
                                      qn_cuda_sampling *what);

/* qn_cuda_prepare_requests - calls `prepare` of the requests that have it, on the team's threads. */
void qn_cuda_prepare_requests(const qn_cuda_common *common, qn_sample_request *requests, size_t n);

/* qn_cuda_run_sampler - launches: sample from the first what->n rows of the logits, to which mask, bias and penalties
 * are applied in place. */
qn_status qn_cuda_run_sampler(const qn_cuda_sampler *sampler, const qn_cuda_sampling *what);

/* qn_cuda_finish_sampling - after the stream is synchronised: sets the results of requests [n] of a step, those from
 * what->first on. Rows with filters of qn_sample_is_on_host are sampled on the host, from the logits: no step follows
 * them. */
qn_status qn_cuda_finish_sampling(qn_cuda_sampler *sampler, const qn_cuda_sampling *what, qn_sample_request *requests);

/* qn_cuda_poison_sampling - lists and results of a block, whose step was finished (provoke.h). */
void qn_cuda_poison_sampling(const qn_cuda_sampler *sampler, size_t block);

/* qn_cuda_sampled_tokens - device address of the tokens [max_rows] of the last step that sampled, by request; -1: not
 * sampled. */
uint64_t qn_cuda_sampled_tokens(const qn_cuda_sampler *sampler);

#endif
