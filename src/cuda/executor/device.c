/* The CUDA device: the parts of a model on it, and the table of its functions. Steps are in steps.c. */
#include "cuda/executor/device.h"

#include "base/memory.h"
#include "cuda/executor/read_rate.h"
#include "cuda/executor/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2048 /* rows of a prefill step */, MANY_POSITIONS = 1 << 20 };

static qn_cuda_model *cuda_model_of(qn_device *device)
{
    return (qn_cuda_model *)device;
}

/* ---- The device ---- */

static void free_workspace(qn_cuda_model *model)
{
    qn_cuda_sampler_free(model->sampler);
    model->sampler = NULL;
    qn_cuda_workspace_release(&model->workspace);
}

static void device_free(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    qn_cuda *cuda = model->common.cuda;
    if (cuda) {
        qn_gpu_kept_tables_free(&model->kept_tables);
        qn_cuda_caches_free(model->caches);
        qn_cuda_graphs_free(cuda, model->graphs);
        qn_cuda_sampler_free(model->sampler);
        qn_cuda_workspace_free(&model->workspace);
        qn_cuda_weights_free(&model->weights);
        qn_cuda_flights_free(cuda, &model->flights);
        if (model->common.stream)
            qn_cuda_stream_free(cuda, model->common.stream);
        qn_cuda_close(cuda);
    }
    pthread_mutex_destroy(&model->common.stream_lock);
    qn_free(model);
}

/* Reserves the workspace, and the sampler with it. All weights are on the device. The caller holds stream_lock. */
static qn_status reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    qn_cuda_workspace *w = &model->workspace;
    if (max_rows <= w->max_rows && max_positions <= w->max_positions)
        return QN_OK;
    max_rows = qn_gpu_bucket(max_rows > w->max_rows ? max_rows : w->max_rows);
    max_positions = max_positions > w->max_positions ? max_positions : w->max_positions;
    free_workspace(model);
    qn_cuda_weights_end_upload(&model->weights);
    QN_TRY(qn_cuda_workspace_reserve(w, max_rows, max_positions));
    const qn_status status = qn_cuda_sampler_create(w, max_rows, QN_CUDA_LOGIT_ROWS, &model->sampler);
    if (status != QN_OK)
        free_workspace(model);
    return status;
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    qn_cuda_model *model = cuda_model_of(device);
    const bool deterministic = model->common.deterministic;
    if (deterministic) { /* attention is split by max_positions, up to a largest number of splits */
        max_rows = max_rows > 2 ? max_rows : 2;
        max_positions = max_positions > MANY_POSITIONS ? max_positions : MANY_POSITIONS;
    }
    pthread_mutex_lock(&model->common.stream_lock);
    const qn_status status = reserve(model, max_rows, max_positions);
    /* The host needs tokens to dequantise their embeddings; `deterministic` steps are several batches. */
    device->ahead = model->weights.table.tiled_matrix && !deterministic ? QN_GPU_MAX_SEQUENCES : 0;
    pthread_mutex_unlock(&model->common.stream_lock);
    return status;
}

static qn_status device_memory_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    qn_cuda_model *model = cuda_model_of(device);
    return qn_cuda_memory_create(model->caches, &model->kept_tables, params, out);
}

static qn_status device_upload(qn_device *device, const uint8_t *data, bool *taken)
{
    return qn_cuda_weights_upload(&cuda_model_of(device)->weights, data, taken);
}

static qn_status device_read_rate(qn_device *device, double *rate)
{
    qn_cuda_common *common = &cuda_model_of(device)->common;
    pthread_mutex_lock(&common->stream_lock);
    const qn_status status = qn_cuda_read_rate(common->cuda, common->stream, rate);
    pthread_mutex_unlock(&common->stream_lock);
    return status;
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = qn_cuda_run_step,
    .launch = qn_cuda_launch_step,
    .sample = qn_cuda_sample_step,
    .finish = qn_cuda_finish_step,
    .memory_new = device_memory_new,
    .upload = device_upload,
    .read_rate = device_read_rate,
};

/* Reads QN_CUDA. QN_CUDA=launches: every operation is a separate launch, for comparison with the persistent decode
 * kernel; QN_CUDA=persistent: that kernel, wherever it is possible. */
static qn_status read_environment(qn_cuda_common *common)
{
    const char *how = getenv("QN_CUDA");
    common->launches_only = how && !strcmp(how, "launches");
    common->in_phases = how && !strcmp(how, "persistent");
    if (how && *how && !common->launches_only && !common->in_phases)
        return qn_fail(QN_ERR_INVALID, "QN_CUDA is '%.32s', expected persistent or launches", how);
    return QN_OK;
}

/* Attention of layers of this shape over fp16 caches. */
static qn_attention_gpu attention_of(const qn_cuda_common *common, const qn_attention_shape *h)
{
    const qn_cuda_info *info = qn_cuda_get_info(common->cuda);
    return (qn_attention_gpu){ .head_dim = h->head_dim,
                               .n_heads = h->n_heads,
                               .n_kv_heads = h->n_kv_heads,
                               .key_bits = 16,
                               .value_bits = 16,
                               .deterministic = common->deterministic,
                               .n_sms = info->n_sms,
                               .max_shared_bytes = info->max_shared_bytes };
}

/* Sets the device properties that kernel launches depend on. */
static qn_status describe_device(qn_cuda_common *common)
{
    const qn_cuda_info *info = qn_cuda_get_info(common->cuda);
    common->matmul = (qn_matmul_gpu){ .n_sms = info->n_sms,
                                      .max_shared_bytes = info->max_shared_bytes,
                                      .clusters = info->major >= 9,
                                      .wgmma = info->major == 9 };
    common->persistent_gpu = (qn_persistent_gpu){ .n_sms = info->n_sms,
                                                  .max_shared_bytes = info->max_shared_bytes,
                                                  .major = info->major,
                                                  .cooperative = info->cooperative };
    common->gdn = (qn_gdn_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes };
    common->attention = attention_of(common, &common->plan->heads);
    if (common->plan->head.block) {
        common->block_attention = attention_of(common, &common->plan->head.heads);
        QN_TRY(qn_attention_gpu_check(&common->block_attention));
    }
    return qn_attention_gpu_check(&common->attention);
}

static qn_status check_head(const qn_plan *plan)
{
    const qn_matrix *table = qn_op_table_of(&plan->ops[plan->head.block ? plan->head.draft : plan->head.pairs]);
    if (plan->head.chain)
        return qn_fail(QN_ERR_UNSUPPORTED, "device: a block drafter with a Markov head runs on the CPU only");
    if (plan->head.draft && table->data != plan->ops[0].embed.table.data)
        return qn_fail(QN_ERR_UNSUPPORTED, "device: a %s with an embedding table of its own runs on the CPU only",
                       plan->head.block ? "block drafter" : "block for multi-token prediction");
    return QN_OK;
}

/* Checks that the device supports the plan: steps begin with the tokens' embeddings, and rows have no others. */
static qn_status check_plan(const qn_plan *plan)
{
    QN_TRY(check_head(plan));
    for (size_t i = 0; i < plan->n_ops; i++)
        if ((plan->ops[i].kind == QN_OP_EMBED) != (i == 0 || (plan->head.block && i == plan->head.draft)) ||
            plan->ops[i].kind == QN_OP_INPUT)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "device: operation %zu of the plan is %s: on a GPU it begins with its only embed, without "
                           "input",
                           i, qn_op_desc_of(plan->ops[i].kind)->name);
    return QN_OK;
}

static qn_status create(qn_cuda_model *model, const qn_cuda_executor_params *params)
{
    const qn_cuda_params open = { .ordinal = params->ordinal,
                                  .driver = params->driver,
                                  .tools = params->tools,
                                  .on_log = params->base.on_log,
                                  .user = params->base.user };
    qn_cuda_common *common = &model->common;
    QN_TRY(check_plan(common->plan));
    QN_TRY(read_environment(common));
    QN_TRY(qn_cuda_open(&open, &common->cuda));
    QN_TRY(describe_device(common));
    QN_TRY(qn_cuda_stream_create(common->cuda, &common->stream));
    QN_TRY(qn_cuda_flights_create(common->cuda, &model->flights));
    QN_TRY(qn_cuda_kept_tables_init(common, &model->kept_tables));
    QN_TRY(qn_cuda_caches_create(common, &model->caches));
    QN_TRY(qn_cuda_weights_create(common, &model->weights));
    return qn_cuda_workspace_init(common, &model->weights, &model->workspace);
}

qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out)
{
    qn_cuda_model *model;
    *out = NULL;
    QN_TRY(qn_alloc(&model, 1, sizeof *model, "device"));
    *model = (qn_cuda_model){ .base = { .vtable = &vtable,
                                        .batch = BATCH,
                                        .prompt_multiple = QN_GDN_CHUNK,
                                        .row_features = QN_ROW_HIDDEN,
                                        .drafts = params->base.plan->head.draft > 0 },
                              .common = { .plan = params->base.plan,
                                          .deterministic = params->base.deterministic,
                                          .memory_limit = params->base.memory,
                                          .memory_share = params->base.memory_share,
                                          .team = params->base.team } };
    qn_hadamard_kernels_init(&model->common.hadamard, params->base.cpu);
    qn_sample_kernels_init(&model->common.sample, params->base.cpu);
    model->base.piece = params->base.deterministic ? QN_GDN_CHUNK : 0;
    snprintf(model->base.name, sizeof model->base.name, "cuda:%d", params->ordinal);
    const int error = pthread_mutex_init(&model->common.stream_lock, NULL);
    if (error) {
        qn_free(model);
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    }
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
