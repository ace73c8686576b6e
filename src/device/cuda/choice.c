/* How a step ends: with logits for the host, or with a token that is chosen on the device, or where its kernels cannot, from
 * the same logits on the host. */
#include "device/cuda/model.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* Page-locked. */
struct qn_cuda_answer {
    qn_sample_result result;
    int32_t recent[]; /* [n_vocab] */
};

/* ---- Room ---- */

qn_status qn_cuda_choice_place(qn_cuda_model *model)
{
    const size_t n_vocab = model->plan->n_vocab;
    QN_TRY(qn_cuda_alloc(model->cuda, n_vocab, sizeof(int32_t), "step buffer on the GPU", &model->recent));
    QN_TRY(qn_cuda_alloc(model->cuda, 1, sizeof(qn_sample_state), "step buffer on the GPU", &model->sample_state));
    QN_TRY(qn_cuda_fill(model->cuda, model->stream, model->sample_state.address, 0, model->sample_state.bytes));
    QN_TRY(
        qn_cuda_alloc_host(model->cuda, sizeof *model->answer + n_vocab * sizeof(int32_t), "sampler", (void **)&model->answer));
    return qn_alloc(&model->is_recent, n_vocab, sizeof *model->is_recent, "sampler");
}

void qn_cuda_choice_free(qn_cuda_model *model)
{
    qn_cuda_release(model->cuda, &model->recent);
    qn_cuda_release(model->cuda, &model->sample_state);
    qn_cuda_release_host(model->cuda, model->answer);
    qn_free(model->is_recent);
    model->answer = NULL;
    model->is_recent = NULL;
}

/* ---- Before the step ---- */

qn_sample_way qn_cuda_ending_of(const qn_cuda_model *model, const qn_sample_choice *choice)
{
    return choice ? qn_sample_gpu_way(choice, model->plan->n_vocab) : QN_SAMPLE_ON_HOST;
}

/* Each token of the vocabulary once. */
static size_t list_recent(qn_cuda_model *model, const qn_sample_choice *choice)
{
    int32_t *list = model->answer->recent;
    size_t n = 0;
    for (size_t i = 0; choice->penalty != 1 && i < choice->n_recent; i++) {
        const int32_t token = choice->recent[i];
        if (token < 0 || (size_t)token >= model->plan->n_vocab || model->is_recent[token])
            continue;
        model->is_recent[token] = true;
        list[n++] = token;
    }
    for (size_t i = 0; i < n; i++)
        model->is_recent[list[i]] = false;
    return n;
}

qn_status qn_cuda_bring_choice(qn_cuda_model *model, const qn_sample_choice *choice)
{
    qn_cuda_inputs *inputs = (qn_cuda_inputs *)(void *)model->host_inputs;
    if (qn_cuda_ending_of(model, choice) == QN_SAMPLE_ON_HOST)
        return QN_OK;
    const size_t n = list_recent(model, choice);
    inputs->sampling = qn_sample_gpu_params(choice, model->plan->n_vocab);
    inputs->sampling.n_recent = (uint32_t)n;
    model->answer->result = (qn_sample_result){ .token = -1 };
    return n ? qn_cuda_copy_in(model->cuda, model->stream, model->recent.address, model->answer->recent,
                               n * sizeof *model->answer->recent)
             : QN_OK;
}

/* ---- The end of the step ---- */

qn_status qn_cuda_run_ending(qn_cuda_model *model, qn_sample_way ending)
{
    const size_t n = model->plan->n_vocab;
    const qn_sample_args args = { .logits = model->logits.address,
                                  .params = model->inputs + offsetof(qn_cuda_inputs, sampling),
                                  .recent = model->recent.address,
                                  .state = model->sample_state.address,
                                  .result = (uint64_t)(uintptr_t)&model->answer->result,
                                  .n = (uint32_t)n,
                                  .way = ending };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n_launches;
    if (ending == QN_SAMPLE_ON_HOST)
        return qn_cuda_copy_out(model->cuda, model->stream, model->host_logits, model->logits.address, n * sizeof(float));
    QN_TRY(qn_sample_gpu_launches(ending, n, launches, &n_launches));
    for (size_t i = 0; i < n_launches; i++)
        QN_TRY(qn_cuda_launch(model->cuda, model->stream, &launches[i], &args));
    return QN_OK;
}

static qn_status choose_on_host(const qn_cuda_model *model, qn_sample_choice *choice)
{
    void *scratch;
    QN_TRY(qn_alloc(&scratch, qn_sample_scratch_bytes(model->plan->n_vocab), 1, "sampler"));
    qn_sample_choose(&model->kernels->sample, choice, model->host_logits, model->plan->n_vocab, scratch);
    qn_free(scratch);
    return QN_OK;
}

qn_status qn_cuda_take_choice(qn_cuda_model *model, qn_sample_way ending, qn_sample_choice *choice)
{
    if (ending == QN_SAMPLE_ON_HOST)
        return choose_on_host(model, choice);
    choice->best = model->answer->result.best;
    choice->token = model->answer->result.token;
    if (choice->token >= 0 || !qn_sample_is_finite(choice->best))
        return QN_OK;
    qn_sample_choice again = *choice;
    again.penalty = 1; /* is in the logits already */
    QN_TRY(qn_cuda_download(model->cuda, model->stream, model->host_logits, model->logits.address,
                            model->plan->n_vocab * sizeof *model->host_logits));
    QN_TRY(choose_on_host(model, &again));
    choice->token = again.token;
    return QN_OK;
}
