/* Sampling on the host from logits of a GPU, for backends without kernels for it. */
#ifndef QN_GPU_HOST_SAMPLING_H
#define QN_GPU_HOST_SAMPLING_H

#include "base/team.h"
#include "kernels/sample/sample.h"

/* qn_gpu_sample_rows - samples a token for each of n requests from rows of logits [n][n_vocab], which are not changed:
 * calls `prepare`, samples with the team's threads, then calls `check` and copies the logits that it asks for.
 * QN_ERR_MEMORY. */
qn_status qn_gpu_sample_rows(const qn_sample_kernels *kernels, qn_team *team, qn_sample_request *requests, size_t n,
                             const float *logits, size_t n_vocab);

#endif
