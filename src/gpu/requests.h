/* Requests of a step's sampling, before the host fills in what the device reads. */
#ifndef QN_GPU_REQUESTS_H
#define QN_GPU_REQUESTS_H

#include "base/team.h"
#include "plan/sampling.h"

/* qn_gpu_prepare_requests - calls `prepare` of each of n requests that has one, on the team's threads. Masks take long:
 * the caller holds no lock that other steps wait for. */
void qn_gpu_prepare_requests(qn_team *team, qn_sample_request *requests, size_t n);

#endif
