/* The end of a step: logits are copied to the host, or a token is sampled on the device; requests that the kernels do not
 * support are sampled on the host from the same logits. */
#include "device/cuda/model.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* In pinned memory. */
struct qn_cuda_sample_output {
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

qn_sample_mode qn_cuda_sampler_of(const qn_cuda_model *model, const qn_sample_request *request)
{
    return request ? qn_sample_gpu_mode(&request->sampling, model->plan->n_vocab) : QN_SAMPLE_HOST;
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

qn_status qn_cuda_upload_sampling(qn_cuda_model *model, const qn_sample_request *request)
{
    qn_cuda_inputs *inputs = (qn_cuda_inputs *)(void *)model->host_inputs;
    if (qn_cuda_sampler_of(model, request) == QN_SAMPLE_HOST)
        return QN_OK;
    const size_t n = list_recent(model, request);
    inputs->sampling = qn_sample_gpu_params(request, model->plan->n_vocab);
    inputs->sampling.n_recent = (uint32_t)n;
    model->sample_output->result = (qn_sample_result){ .token = -1 };
    return n ? qn_cuda_copy_h2d(model->cuda, model->stream, model->recent.address, model->sample_output->recent,
                                n * sizeof *model->sample_output->recent)
             : QN_OK;
}

/* ---- The end of the step ---- */

qn_status qn_cuda_run_sampler(qn_cuda_model *model, qn_sample_mode sampler)
{
    const size_t n = model->plan->n_vocab;
    const qn_sample_args args = { .logits = model->logits.address,
                                  .params = model->inputs + offsetof(qn_cuda_inputs, sampling),
                                  .recent = model->recent.address,
                                  .state = model->sample_state.address,
                                  .result = (uint64_t)(uintptr_t)&model->sample_output->result,
                                  .n = (uint32_t)n,
                                  .mode = sampler };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n_launches;
    if (sampler == QN_SAMPLE_HOST)
        return qn_cuda_copy_d2h(model->cuda, model->stream, model->host_logits, model->logits.address, n * sizeof(float));
    QN_TRY(qn_sample_gpu_launches(sampler, n, launches, &n_launches));
    for (size_t i = 0; i < n_launches; i++)
        QN_TRY(qn_cuda_launch(model->cuda, model->stream, &launches[i], &args));
    return QN_OK;
}

static qn_status sample_on_host(const qn_cuda_model *model, qn_sample_request *request)
{
    void *scratch;
    QN_TRY(qn_alloc(&scratch, qn_sample_scratch_bytes(model->plan->n_vocab), 1, "sampler"));
    qn_sample_token(&model->kernels->sample, request, model->host_logits, model->plan->n_vocab, scratch);
    qn_free(scratch);
    return QN_OK;
}

qn_status qn_cuda_finish_sampling(qn_cuda_model *model, qn_sample_mode sampler, qn_sample_request *request)
{
    if (sampler == QN_SAMPLE_HOST)
        return sample_on_host(model, request);
    request->best = model->sample_output->result.best;
    request->token = model->sample_output->result.token;
    if (request->token >= 0 || !qn_sample_is_finite(request->best))
        return QN_OK;
    qn_sample_request again = *request;
    again.sampling.repeat_penalty = 1; /* the device has applied it to the logits */
    QN_TRY(qn_cuda_download(model->cuda, model->stream, model->host_logits, model->logits.address,
                            model->plan->n_vocab * sizeof *model->host_logits));
    QN_TRY(sample_on_host(model, &again));
    request->token = again.token;
    return QN_OK;
}
