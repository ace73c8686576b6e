/* Divides requests among threads; the checks follow on the caller's. */
#include "gpu/host_sampling.h"

#include "base/memory.h"

#include <string.h>

struct sampling {
    const qn_sample_kernels *kernels;
    qn_sample_request *requests;
    const float *logits;
    size_t n_vocab, scratch_bytes;
    uint8_t *scratch; /* [threads] */
};

static void sample_range(void *context, size_t begin, size_t end, int thread)
{
    const struct sampling *s = context;
    for (size_t i = begin; i < end; i++) {
        qn_sample_request *request = &s->requests[i];
        if (request->prepare)
            request->prepare(request->user, request);
        qn_sample_token(s->kernels, request, s->logits + i * s->n_vocab, s->n_vocab,
                        s->scratch + (size_t)thread * s->scratch_bytes);
    }
}

qn_status qn_gpu_sample_rows(const qn_sample_kernels *kernels, qn_team *team, qn_sample_request *requests, size_t n,
                             const float *logits, size_t n_vocab)
{
    struct sampling s = { .kernels = kernels,
                          .requests = requests,
                          .logits = logits,
                          .n_vocab = n_vocab,
                          .scratch_bytes = qn_round_up(qn_sample_scratch_bytes(n_vocab), QN_ALIGN) };
    QN_TRY(qn_alloc(&s.scratch, (size_t)qn_team_size(team), s.scratch_bytes, "sampler"));
    qn_team_divide(team, n, 1, sample_range, &s);
    qn_free(s.scratch);
    for (size_t i = 0; i < n; i++) {
        const qn_sample_request *request = &requests[i];
        float *copy = request->check && request->token >= 0 ? request->check(request->user, request->token) : NULL;
        if (copy)
            memcpy(copy, logits + i * n_vocab, n_vocab * sizeof *copy);
    }
    return QN_OK;
}
