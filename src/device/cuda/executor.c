/* Steps on a CUDA device: a graph for a decode step, individual launches otherwise. The launches themselves are in inputs.c,
 * operations.c and sampling.c. */
#include "device/cuda/executor.h"

#include "base/memory.h"
#include "device/cuda/model.h"
#include "device/cuda/read_rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2048 }; /* rows of a prefill step */

static qn_cuda_model *cuda_model_of(qn_device *device)
{
    return (qn_cuda_model *)device;
}

/* ---- A decode step: one row with logits or a sampled token, as a graph ---- */

static qn_status launch_decode(qn_cuda_model *model, const qn_cuda_memory *memory, qn_sample_mode sampler)
{
    QN_TRY(qn_cuda_upload_inputs(model, 1));
    QN_TRY(qn_cuda_run_trunk(model, memory, 1, 0));
    QN_TRY(qn_cuda_run_logits(model, 0, 1));
    return qn_cuda_run_sampler(model, sampler);
}

static qn_status capture_decode(qn_cuda_model *model, qn_cuda_memory *memory, qn_sample_mode sampler)
{
    if (memory->graphs[sampler] && memory->generations[sampler] == model->generation)
        return QN_OK;
    QN_TRY(qn_cuda_capture_begin(model->cuda, model->stream));
    const qn_status status = launch_decode(model, memory, sampler);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        (void)qn_cuda_capture_end(model->cuda, model->stream, NULL);
        return qn_fail(status, "%s", text);
    }
    QN_TRY(qn_cuda_capture_end(model->cuda, model->stream, &memory->graphs[sampler]));
    memory->generations[sampler] = model->generation;
    return QN_OK;
}

static qn_status run_decode(qn_cuda_model *model, qn_cuda_memory *memory, const qn_row *row, float *logits,
                            qn_sample_request *request)
{
    const qn_sample_mode sampler = qn_cuda_sampler_of(model, request);
    QN_TRY(qn_cuda_prepare_decode(model, memory));
    QN_TRY(capture_decode(model, memory, sampler));
    qn_cuda_fill_inputs(model, memory, row, 1);
    QN_TRY(qn_cuda_upload_sampling(model, request));
    QN_TRY(qn_cuda_graph_launch(model->cuda, memory->graphs[sampler], model->stream));
    QN_TRY(qn_cuda_quantize_pages(model, memory, 1, row->position));
    QN_TRY(qn_cuda_stream_synchronize(model->cuda, model->stream));
    if (request)
        return qn_cuda_finish_sampling(model, sampler, request);
    memcpy(logits, model->host_logits, model->plan->n_vocab * sizeof *logits);
    return QN_OK;
}

/* ---- Other steps ---- */

/* Logits of consecutive rows are computed together. */
static qn_status run_logits(qn_cuda_model *model, const uint32_t *rows, size_t n_rows, size_t before, float *logits)
{
    const size_t n_vocab = model->plan->n_vocab;
    for (size_t i = 0, n; i < n_rows; i += n) {
        for (n = 1; n < QN_CUDA_LOGIT_ROWS && i + n < n_rows && rows[i + n] == rows[i] + n;)
            n++;
        QN_TRY(qn_cuda_run_logits(model, rows[i] - before, n));
        QN_TRY(qn_cuda_download(model->cuda, model->stream, logits + i * n_vocab, model->logits.address,
                                n * n_vocab * sizeof *logits));
    }
    return QN_OK;
}

/* Computes a row's logits and samples from them. */
static qn_status run_sampling(qn_cuda_model *model, size_t row, qn_sample_request *request)
{
    const qn_sample_mode sampler = qn_cuda_sampler_of(model, request);
    QN_TRY(qn_cuda_run_logits(model, row, 1));
    QN_TRY(qn_cuda_run_sampler(model, sampler));
    QN_TRY(qn_cuda_stream_synchronize(model->cuda, model->stream));
    return qn_cuda_finish_sampling(model, sampler, request);
}

static qn_status run_rows(qn_cuda_model *model, const qn_step *step, size_t row, size_t n, size_t logit, size_t n_logits)
{
    qn_cuda_memory *memory = (qn_cuda_memory *)step->rows[row].memory;
    const uint32_t first = step->rows[row].position;
    qn_sample_request *requests = step->requests ? step->requests + logit : NULL;
    float *logits = requests ? NULL : step->logits + logit * model->plan->n_vocab;
    if (n == 1 && n_logits == 1)
        return run_decode(model, memory, &step->rows[row], logits, requests);
    if (n == 1)
        QN_TRY(qn_cuda_prepare_decode(model, memory));
    qn_cuda_fill_inputs(model, memory, step->rows + row, n);
    if (n_logits)
        QN_TRY(qn_cuda_upload_sampling(model, requests));
    QN_TRY(qn_cuda_upload_inputs(model, n));
    QN_TRY(qn_cuda_run_trunk(model, memory, n, first));
    if (n == 1)
        QN_TRY(qn_cuda_quantize_pages(model, memory, 1, first));
    if (requests && n_logits)
        return run_sampling(model, step->logit_rows[logit] - row, requests);
    QN_TRY(run_logits(model, step->logit_rows + logit, n_logits, row, logits));
    return qn_cuda_stream_synchronize(model->cuda, model->stream);
}

/* Runs the rows of each session separately; with requests, at most one of a session's rows has logits. */
static qn_status device_run(qn_device *device, const qn_step *step)
{
    for (size_t row = 0, n, logit = 0, n_logits; row < step->n_rows; row += n, logit += n_logits) {
        for (n = 1; row + n < step->n_rows && step->rows[row + n].memory == step->rows[row].memory;)
            n++;
        for (n_logits = 0; logit + n_logits < step->n_logit_rows && step->logit_rows[logit + n_logits] < row + n;)
            n_logits++;
        QN_TRY(run_rows(cuda_model_of(device), step, row, n, logit, n_logits));
    }
    return QN_OK;
}

/* ---- The device ---- */

static void device_free(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    if (model->cuda) {
        qn_cuda_buffers_free(model);
        qn_cuda_weights_free(model);
        if (model->stream)
            qn_cuda_stream_free(model->cuda, model->stream);
        qn_cuda_close(model->cuda);
    }
    qn_free(model->buffers);
    qn_free(model->acts);
    qn_free(model);
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    return qn_cuda_buffers_reserve(cuda_model_of(device), max_rows, max_positions);
}

static qn_status device_upload(qn_device *device, const uint8_t *data, bool *taken)
{
    return qn_cuda_weights_upload(cuda_model_of(device), data, taken);
}

static qn_status device_read_rate(qn_device *device, double *rate)
{
    return qn_cuda_read_rate(cuda_model_of(device)->cuda, cuda_model_of(device)->stream, rate);
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = device_run,
    .memory_new = qn_cuda_session_new,
    .upload = device_upload,
    .read_rate = device_read_rate,
};

/* QN_CUDA=launches: every operation is a separate launch, for comparison with the persistent decode kernel. "chains", the
 * former name of "persistent", is accepted for one version. */
static qn_status read_environment(bool *launches_only)
{
    const char *how = getenv("QN_CUDA");
    *launches_only = how && !strcmp(how, "launches");
    if (how && *how && !*launches_only && strcmp(how, "persistent") && strcmp(how, "chains"))
        return qn_fail(QN_ERR_INVALID, "QN_CUDA is '%.32s', expected persistent or launches", how);
    return QN_OK;
}

static qn_status create(qn_cuda_model *model, const qn_cuda_executor_params *params)
{
    const qn_cuda_params open = { .ordinal = params->ordinal,
                                  .driver = params->driver,
                                  .tools = params->tools,
                                  .on_log = params->base.on_log,
                                  .user = params->base.user };
    const qn_attention_shape *h = &model->plan->heads;
    QN_TRY(read_environment(&model->launches_only));
    QN_TRY(qn_cuda_open(&open, &model->cuda));
    const qn_cuda_info *info = qn_cuda_get_info(model->cuda);
    model->matmul =
        (qn_matmul_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes, .clusters = info->major >= 9 };
    model->persistent_gpu =
        (qn_persistent_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes, .major = info->major };
    model->gdn = (qn_gdn_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes };
    model->attention = (qn_attention_gpu){ .head_dim = h->head_dim,
                                           .n_heads = h->n_heads,
                                           .n_kv_heads = h->n_kv_heads,
                                           .key_bits = 16,
                                           .value_bits = 16,
                                           .n_sms = info->n_sms,
                                           .max_shared_bytes = info->max_shared_bytes };
    QN_TRY(qn_attention_gpu_check(&model->attention));
    QN_TRY(qn_cuda_stream_create(model->cuda, &model->stream));
    QN_TRY(qn_alloc(&model->buffers, model->plan->n_buffers, sizeof *model->buffers, "plan"));
    QN_TRY(qn_alloc(&model->acts, model->plan->n_acts, sizeof *model->acts, "plan"));
    return qn_cuda_weights_create(model);
}

qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out)
{
    qn_cuda_model *model;
    *out = NULL;
    QN_TRY(qn_alloc(&model, 1, sizeof *model, "device"));
    *model = (qn_cuda_model){ .base = { .vtable = &vtable, .layout = " cuda", .batch = BATCH },
                              .plan = params->base.plan,
                              .memory_limit = params->base.memory,
                              .team = params->base.team,
                              .kernels = params->base.kernels };
    snprintf(model->base.name, sizeof model->base.name, "cuda:%d", params->ordinal);
    const qn_status status = create(model, params);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX]; /* device_free may overwrite it */
        memcpy(text, qn_error_text(), sizeof text);
        device_free(&model->base);
        return qn_fail(status, "%s", text);
    }
    *out = &model->base;
    return QN_OK;
}
