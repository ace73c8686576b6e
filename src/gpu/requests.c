/* Calls each request's `prepare`, several at a time. */
#include "gpu/requests.h"

static void prepare_range(void *context, size_t begin, size_t end, int thread)
{
    qn_sample_request *requests = context;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        if (requests[i].prepare)
            requests[i].prepare(requests[i].user, &requests[i]);
}

void qn_gpu_prepare_requests(qn_team *team, qn_sample_request *requests, size_t n)
{
    size_t n_prepared = 0;
    for (size_t i = 0; i < n; i++)
        n_prepared += requests[i].prepare != NULL;
    if (n_prepared > 1)
        qn_team_divide(team, n, 1, prepare_range, requests);
    else if (n_prepared)
        prepare_range(requests, 0, n, 0);
}
