/* Sampling at the end of a step: the tokens of rows from their logits in the workspace. Used by the thread that runs
 * steps, which holds stream_lock (internal.h). */
#ifndef QN_CUDA_EXECUTOR_SAMPLING_H
#define QN_CUDA_EXECUTOR_SAMPLING_H

#include "cuda/executor/workspace.h"
#include "cuda/kernels/sample/sample.h"

typedef struct qn_cuda_sampler qn_cuda_sampler;

/* The sampling of a step: its sampler launches depend on nothing else. */
typedef struct qn_cuda_sampling {
    qn_sample_mode mode; /* the most general one that a row needs; QN_SAMPLE_NONE: no token is sampled */
    size_t first, n;     /* rows of the step that are sampled together */
    size_t params;       /* offset of the step's parameters in its inputs */
    size_t block;        /* of the step */
} qn_cuda_sampling;

/* qn_cuda_sampler_create - Creates the sampler of a workspace. Free with qn_cuda_sampler_free.
 *
 *   max_rows     most rows of a step
 *   logit_rows   most rows that are sampled together */
qn_status qn_cuda_sampler_create(qn_cuda_workspace *workspace, size_t max_rows, size_t logit_rows,
                                 qn_cuda_sampler **out);

/* qn_cuda_sampler_free - Frees a sampler. Accepts NULL. */
void qn_cuda_sampler_free(qn_cuda_sampler *sampler);

/* qn_cuda_fill_sampling - Writes the parameters of requests [n] to the inputs of what->block, at offset what->params,
 * and sets the other members of *what. The caller uploads the step's inputs afterwards. Masks, bias and penalties, if
 * any, are copied by one copy queued in the stream. Not during a capture, and not before the last step that used them
 * has ended. */
qn_status qn_cuda_fill_sampling(qn_cuda_sampler *sampler, const qn_sample_request *requests, size_t n,
                                qn_cuda_sampling *what);

/* qn_cuda_fill_sampling_later - As qn_cuda_fill_sampling, for a step whose inputs were already uploaded: queues a copy
 * of the parameters too. */
qn_status qn_cuda_fill_sampling_later(qn_cuda_sampler *sampler, const qn_sample_request *requests, size_t n,
                                      qn_cuda_sampling *what);

/* qn_cuda_run_sampler - Launches the sampling of the first what->n rows of the logits. Mask, bias and penalties change
 * the logits in place. */
qn_status qn_cuda_run_sampler(const qn_cuda_sampler *sampler, const qn_cuda_sampling *what);

/* qn_cuda_finish_sampling - Sets the results of the step's requests [what->first, what->first + what->n), after the
 * step's work has ended on the device. Calls `check` of the requests, on the calling thread, with stream_lock held.
 * Rows for which qn_sample_is_on_host is true are sampled on the host from the logits: no step may have been launched
 * after theirs. */
qn_status qn_cuda_finish_sampling(qn_cuda_sampler *sampler, const qn_cuda_sampling *what, qn_sample_request *requests);

/* qn_cuda_poison_sampling - Poisons the sampling lists and results of a block whose step has finished (provoke.h). */
void qn_cuda_poison_sampling(const qn_cuda_sampler *sampler, size_t block);

/* qn_cuda_sampled_tokens - Returns the device address of the tokens [max_rows] of the last step that sampled, in the
 * order of its requests; -1: not sampled. */
uint64_t qn_cuda_sampled_tokens(const qn_cuda_sampler *sampler);

#endif
