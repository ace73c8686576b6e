/* The end of a step: logits are copied to the host, or a token is sampled on the device; requests that the kernels do not
 * support are sampled on the host from the same logits. */
#include "device/cuda/model.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* In pinned memory. */
struct qn_cuda_sample_output {
    qn_sample_params params;
    qn_sample_result result;
    int32_t recent[]; /* [n_vocab] */
};

/* ---- Buffers ---- */

qn_status qn_cuda_sampling_alloc(qn_cuda_model *model)
{
    const size_t n_vocab = model->plan->n_vocab;
    QN_TRY(qn_cuda_alloc(model->cuda, n_vocab, sizeof(int32_t), "step buffer on the GPU", &model->recent));
    QN_TRY(qn_cuda_alloc(model->cuda, 1, sizeof(qn_sample_state), "step buffer on the GPU", &model->sample_state));
    QN_TRY(qn_cuda_memset(model->cuda, model->stream, model->sample_state.address, 0, model->sample_state.bytes));
    QN_TRY(qn_cuda_alloc_host(model->cuda, sizeof *model->sample_output + n_vocab * sizeof(int32_t), "sampler",
                              (void **)&model->sample_output));
    return qn_alloc(&model->is_recent, n_vocab, sizeof *model->is_recent, "sampler");
}

void qn_cuda_sampling_free(qn_cuda_model *model)
{
    qn_cuda_free(model->cuda, &model->recent);
    qn_cuda_free(model->cuda, &model->sample_state);
    qn_cuda_free_host(model->cuda, model->sample_output);
    qn_free(model->is_recent);
    model->sample_output = NULL;
    model->is_recent = NULL;
}

/* ---- Before the step ---- */

static qn_sample_mode mode_of(const qn_cuda_model *model, const qn_sample_request *requests, size_t n)
{
    return n == 1 ? qn_sample_gpu_mode(&requests->sampling, model->plan->n_vocab) : QN_SAMPLE_HOST;
}

/* Lists the recent tokens without duplicates and without tokens outside the vocabulary; none if there is no penalty. */
static size_t list_recent(qn_cuda_model *model, const qn_sample_request *request)
{
    int32_t *list = model->sample_output->recent;
    size_t n = 0;
    for (size_t i = 0; request->sampling.repeat_penalty != 1 && i < request->n_recent; i++) {
        const int32_t token = request->recent[i];
        if (token < 0 || (size_t)token >= model->plan->n_vocab || model->is_recent[token])
            continue;
        model->is_recent[token] = true;
        list[n++] = token;
    }
    for (size_t i = 0; i < n; i++)
        model->is_recent[list[i]] = false;
    return n;
}

qn_status qn_cuda_upload_sampling(qn_cuda_model *model, const qn_sample_request *requests, size_t n, qn_cuda_sampling *what)
{
    *what = (qn_cuda_sampling){ .mode = mode_of(model, requests, n), .n = n };
    if (what->mode == QN_SAMPLE_HOST)
        return QN_OK;
    const size_t n_recent = list_recent(model, requests);
    model->sample_output->params = qn_sample_gpu_params(requests, model->plan->n_vocab);
    model->sample_output->params.n_recent = (uint32_t)n_recent;
    model->sample_output->result = (qn_sample_result){ .token = -1 };
    return n_recent ? qn_cuda_copy_h2d(model->cuda, model->stream, model->recent.address, model->sample_output->recent,
                                       n_recent * sizeof *model->sample_output->recent)
                    : QN_OK;
}

/* ---- The end of the step ---- */

qn_status qn_cuda_run_sampler(qn_cuda_model *model, const qn_cuda_sampling *what)
{
    const size_t n = model->plan->n_vocab;
    const qn_sample_args args = { .logits = model->logits.address,
                                  .params = (uint64_t)(uintptr_t)&model->sample_output->params,
                                  .recent = model->recent.address,
                                  .state = model->sample_state.address,
                                  .result = (uint64_t)(uintptr_t)&model->sample_output->result,
                                  .n = (uint32_t)n,
                                  .mode = what->mode };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n_launches;
    if (what->mode == QN_SAMPLE_HOST)
        return QN_OK;
    QN_TRY(qn_sample_gpu_launches(what->mode, n, launches, &n_launches));
    for (size_t i = 0; i < n_launches; i++)
        QN_TRY(qn_cuda_launch(model->cuda, model->stream, &launches[i], &args));
    return QN_OK;
}

static qn_status sample_on_host(const qn_cuda_model *model, qn_sample_request *request, size_t row)
{
    const size_t n = model->plan->n_vocab;
    void *scratch;
    QN_TRY(qn_cuda_download(model->cuda, model->stream, model->host_logits, model->logits.address + row * n * sizeof(float),
                            n * sizeof *model->host_logits));
    QN_TRY(qn_alloc(&scratch, qn_sample_scratch_bytes(n), 1, "sampler"));
    qn_sample_token(&model->kernels->sample, request, model->host_logits, n, scratch);
    qn_free(scratch);
    return QN_OK;
}

qn_status qn_cuda_finish_sampling(qn_cuda_model *model, const qn_cuda_sampling *what, qn_sample_request *requests)
{
    for (size_t i = 0; what->mode == QN_SAMPLE_HOST && i < what->n; i++)
        QN_TRY(sample_on_host(model, &requests[i], i));
    if (what->mode == QN_SAMPLE_HOST)
        return QN_OK;
    requests->best = model->sample_output->result.best;
    requests->token = model->sample_output->result.token;
    if (requests->token >= 0 || !qn_sample_is_finite(requests->best))
        return QN_OK;
    qn_sample_request again = *requests;
    again.sampling.repeat_penalty = 1; /* the device has applied it to the logits */
    QN_TRY(sample_on_host(model, &again, 0));
    requests->token = again.token;
    return QN_OK;
}
