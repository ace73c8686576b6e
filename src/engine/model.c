/* Loading a model, its properties, and the text functions of the public interface. */
#include "engine/calls.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/params.h"
#include "base/process.h"
#include "device/registry.h"
#include "engine/spec/draft_file.h"
#include "engine/spec/drafter.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *qn_version(void)
{
    return QN_VERSION;
}

double qn_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void log_line(const qn_model_params *params, const char *line)
{
    if (params->on_log)
        params->on_log(params->user, line);
}

/* Returns an error's text without the file's path, which clients of a server must not learn. */
static const char *without_path(const qn_model *model, const char *text)
{
    const char *path = qn_gguf_path(model->file);
    const size_t n = strlen(path);
    return !strncmp(text, path, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

static qn_status load_tokenizer(qn_model *model, const qn_model_params *params)
{
    const qn_status status = qn_tokenizer_create(model->file, &model->tokenizer);
    if (status == QN_ERR_UNSUPPORTED && !params->vocab_only) {
        const char *text = without_path(model, qn_error_text());
        (void)qn_print(model->no_tokenizer, sizeof model->no_tokenizer, "%s", text);
        return QN_OK;
    }
    if (status != QN_OK)
        return status;
    if (!params->vocab_only && qn_tokenizer_n_vocab(model->tokenizer) > model->hparams.n_vocab)
        return qn_fail(QN_ERR_FORMAT, "%s: %zu tokens in the vocabulary, but only %u rows in token_embd.weight",
                       qn_gguf_path(model->file), qn_tokenizer_n_vocab(model->tokenizer),
                       (unsigned)model->hparams.n_vocab);
    return qn_chat_template_create(model->file, model->tokenizer, params->chat_template, &model->chat);
}

static qn_status copy_name(qn_model *model)
{
    qn_string name = { "", 0 };
    const qn_gguf_kv *kv = qn_gguf_find(model->file, "general.name");
    if (kv && kv->type == QN_GGUF_STRING)
        QN_TRY(qn_gguf_get_string(model->file, "general.name", false, &name));
    QN_TRY(qn_alloc(&model->name, name.length + 1, 1, "model name"));
    memcpy(model->name, name.data, name.length);
    return QN_OK;
}

/* Sets n_params and the type of most weights. */
static void count_weights(qn_model *model)
{
    uint64_t most = 0;
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    model->quantisation = "";
    for (size_t t = 0; t < n_types; t++) {
        uint64_t weights = 0;
        for (size_t i = 0; i < qn_gguf_n_tensors(model->file); i++) {
            const qn_gguf_tensor *tensor = qn_gguf_tensor_at(model->file, i);
            if (tensor->type == (uint32_t)types[t].type)
                weights += tensor->bytes / types[t].block_bytes * types[t].block_weights;
        }
        model->n_params += weights;
        if (weights > most)
            model->quantisation = types[t].name;
        most = weights > most ? weights : most;
    }
}

static qn_status load_tensor(qn_model *model, const qn_gguf *file, const qn_gguf_tensor *tensor)
{
    bool uploaded;
    QN_TRY(model->device->vtable->upload(model->device, tensor->data, &uploaded));
    if (uploaded)
        qn_gguf_drop_pages(file, tensor);
    return QN_OK;
}

/* Files with a block for multi-token prediction alone may repeat tensors of the model, which are not used. */
static bool is_repeated(const qn_model *model, const qn_gguf *file, const qn_gguf_tensor *tensor)
{
    return file == model->drafter && !model->plan.head.block && qn_weights_block(tensor->name) == UINT32_MAX;
}

static size_t count_bytes(const qn_model *model, const qn_gguf *file)
{
    size_t bytes = 0;
    for (size_t i = 0; file && i < qn_gguf_n_tensors(file); i++)
        if (!is_repeated(model, file, qn_gguf_tensor_at(file, i)))
            bytes += qn_gguf_tensor_at(file, i)->bytes;
    return bytes;
}

/* Prepares the weights of a file tensor by tensor, so that at most one tensor is in memory twice. */
static qn_status prepare_file(qn_model *model, const qn_gguf *file, const qn_model_params *params, size_t *done)
{
    const size_t total = count_bytes(model, model->file) + count_bytes(model, model->drafter);
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *tensor = qn_gguf_tensor_at(file, i);
        if (is_repeated(model, file, tensor))
            continue;
        if (!params->skip_weight_scan)
            QN_TRY(qn_scan_tensor(file, tensor, model->team, params->on_progress, params->user, done, total));
        QN_TRY(load_tensor(model, file, tensor));
        QN_TRY(qn_gguf_check_whole(file));
        if (tensor->type == QN_TYPE_NVFP4)
            qn_gguf_drop_pages(file, tensor);
    }
    return QN_OK;
}

static qn_status prepare_weights(qn_model *model, const qn_model_params *params)
{
    size_t done = 0;
    QN_TRY(prepare_file(model, model->file, params, &done));
    if (model->drafter)
        QN_TRY(prepare_file(model, model->drafter, params, &done));
    for (size_t i = 0; i < model->plan.n_scaled; i++) {
        bool uploaded;
        QN_TRY(model->device->vtable->upload(model->device, model->plan.scaled[i].loaded, &uploaded));
    }
    return QN_OK;
}

static qn_status create_locks(qn_model *model, const qn_model_params *params)
{
    if (pthread_mutex_init(&model->lock, NULL) || pthread_mutex_init(&model->turn, NULL))
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a lock", qn_gguf_path(model->file));
    QN_TRY(qn_kept_list_create(&model->kept));
    model->has_lock = true;
    const double pass_cost = (double)qn_plan_draft_bytes(&model->plan) / (double)qn_plan_weight_bytes(&model->plan);
    QN_TRY(qn_drafting_create(model->device->vtable->launch ? QN_GPU_ROW_COST : QN_CPU_ROW_COST, pass_cost,
                              &model->drafting));
    model->drafting->has_drafter = model->drafter;
    const uint64_t draft_bytes = qn_plan_draft_bytes(&model->plan);
    model->drafting->head.share = draft_bytes ? (double)qn_plan_pair_bytes(&model->plan) / (double)draft_bytes : 0;
    model->drafting->head.is_asked = params->draft == QN_DRAFT_MTP || params->draft == QN_DRAFT_DFLASH;
    return QN_OK;
}

/* More threads than processors make each step wait for threads that do not run. */
static void note_threads(const qn_model_params *params)
{
    char line[160];
    const double quota = qn_cpu_quota();
    if (params->n_threads > qn_cpu_threads())
        (void)qn_print(line, sizeof line, "threads: %d on %d processors: they wait for each other", params->n_threads,
                       qn_cpu_threads());
    else if (quota > 0 && params->n_threads >= quota + 1)
        (void)qn_print(line, sizeof line, "threads: %d with a quota of %.3g processors: they are stopped often",
                       params->n_threads, quota);
    else
        return;
    log_line(params, line);
}

/* Opens the drafter's file. A small model is closed again: it is loaded after this one. */
static qn_status open_drafter(qn_model *model, const qn_model_params *params, qn_draft_kind *kind)
{
    const char *path = params->draft_model;
    QN_TRY(qn_gguf_open(path, &model->drafter));
    QN_TRY(qn_draft_file_kind(model->drafter, kind));
    if (params->draft != QN_DRAFT_AUTO && params->draft != *kind)
        return qn_fail(QN_ERR_INVALID, "%s: a drafter for draft %s, given with draft %s", path, qn_draft_name(*kind),
                       qn_draft_name(params->draft));
    if (*kind == QN_DRAFT_MODEL) {
        qn_gguf_close(model->drafter);
        model->drafter = NULL;
    }
    return QN_OK;
}

static const char not_on_device[] =
    "blocks for multi-token prediction run on the CPU and on CUDA devices only (device cpu or cuda)";

/* Builds the plan of a model with a drafter: one that is no small model becomes its draft head. */
static qn_status build_beside_drafter(qn_model *model, const qn_model_params *params, const qn_device_name *device)
{
    char line[QN_ERROR_TEXT_MAX];
    qn_draft_kind kind;
    QN_TRY(open_drafter(model, params, &kind));
    (void)qn_print(model->head.why, sizeof model->head.why, "the model was loaded with a drafter instead");
    if (kind == QN_DRAFT_MODEL)
        return qn_model_build(model->file, &model->hparams, &model->plan);
    if (kind == QN_DRAFT_MTP && !qn_device_drafts(device))
        return qn_fail(QN_ERR_UNSUPPORTED, "draft: mtp: %s", not_on_device);
    if (kind == QN_DRAFT_DFLASH && !qn_device_drafts(device))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "draft: dflash: block drafters run on the CPU and on CUDA devices only (device cpu or cuda)");
    QN_TRY(qn_model_build_with_drafter(model->file, model->drafter, &model->hparams, &model->plan));
    model->head.is_there = kind == QN_DRAFT_MTP;
    if (kind == QN_DRAFT_MTP && model->hparams.n_blocks > model->hparams.n_layers) {
        (void)qn_print(line, sizeof line, "drafts: mtp: the block of %s, not the model's own", params->draft_model);
        log_line(params, line);
    }
    return QN_OK;
}

/* Why a model has no draft head that could have one. */
static const char *why_without(qn_draft_kind draft)
{
    return draft == QN_DRAFT_MTP    ? not_on_device
           : draft == QN_DRAFT_AUTO ? "the model was loaded without its block for multi-token prediction, which takes "
                                      "draft mtp on a CUDA device"
                                    : "the model was loaded without its block for multi-token prediction";
}

/* Builds the plan of a model without a drafter, with the model's own draft head if it is wanted and can be used: on a
 * GPU only if it is asked for, because every step computes its pairs. */
static qn_status build_alone(qn_model *model, const qn_model_params *params, const qn_device_name *device)
{
    char line[QN_ERROR_TEXT_MAX + 32];
    qn_model_head *head = &model->head;
    const bool is_wanted = params->draft == QN_DRAFT_MTP ? qn_device_drafts(device)
                                                         : params->draft == QN_DRAFT_AUTO && qn_device_is_cpu(device);
    if (params->draft == QN_DRAFT_DFLASH || params->draft == QN_DRAFT_MODEL)
        return qn_model_check_draft(model, params->draft);
    if (is_wanted) {
        QN_TRY(qn_model_build_with_head(model->file, &model->hparams, &model->plan, head));
        if (head->is_broken && params->draft == QN_DRAFT_AUTO) {
            (void)qn_print(line, sizeof line, "drafts: without mtp: %s", head->why);
            log_line(params, line);
        }
    } else {
        QN_TRY(qn_model_build(model->file, &model->hparams, &model->plan));
        (void)qn_print(head->why, sizeof head->why, "%s", why_without(params->draft));
    }
    return params->draft == QN_DRAFT_MTP ? qn_model_check_draft(model, QN_DRAFT_MTP) : QN_OK;
}

static qn_status build_plan(qn_model *model, const qn_model_params *params)
{
    qn_device_name name;
    QN_TRY(qn_draft_check(params->draft));
    QN_TRY(qn_device_name_parse("device", params->device ? params->device : "auto", &name));
    return params->draft_model ? build_beside_drafter(model, params, &name) : build_alone(model, params, &name);
}

qn_status qn_model_check_draft(const qn_model *model, qn_draft_kind kind)
{
    QN_TRY(qn_draft_check(kind));
    if (kind == QN_DRAFT_MODEL && !model->draft)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "draft: model needs a draft model, which was not loaded with this model (--draft-model)");
    if (kind == QN_DRAFT_MTP && !model->head.is_there)
        return qn_fail(QN_ERR_UNSUPPORTED, "draft: mtp: %s", without_path(model, model->head.why));
    if (kind == QN_DRAFT_DFLASH && !model->plan.head.block)
        return qn_fail(QN_ERR_UNSUPPORTED, "draft: dflash: the model was loaded without a drafter (--draft-model)");
    return QN_OK;
}

static qn_status create_team(qn_model *model, const qn_model_params *params)
{
    if (model->is_draft)
        return QN_OK;
    note_threads(params);
    const int best = qn_cpu_best_threads() < QN_TEAM_MAX ? qn_cpu_best_threads() : QN_TEAM_MAX;
    QN_TRY(qn_team_create(params->n_threads ? params->n_threads : best, &model->team));
    if (!params->n_threads)
        qn_team_adapt(model->team);
    return QN_OK;
}

static qn_status load_weights(qn_model *model, const qn_model_params *params)
{
    QN_TRY(build_plan(model, params));
    QN_TRY(qn_cpu_features(&model->cpu));
    if (params->draft_model && !model->drafter)
        QN_TRY(qn_model_read_draft(params->draft_model, &model->plan, &model->memory_share));
    QN_TRY(create_team(model, params));
    QN_TRY(qn_plan_load_scaled(&model->plan, model->team));
    QN_TRY(qn_model_open_device(model, params));
    QN_TRY(prepare_weights(model, params));
    count_weights(model);
    return create_locks(model, params);
}

static qn_status load(qn_model *model, const char *path, const qn_model_params *params)
{
    QN_TRY(qn_gguf_open(path, &model->file));
    if (!params->vocab_only)
        QN_TRY(load_weights(model, params));
    QN_TRY(load_tokenizer(model, params));
    if (model->tokenizer && qn_tokenizer_note(model->tokenizer))
        log_line(params, qn_tokenizer_note(model->tokenizer));
    QN_TRY(copy_name(model));
    QN_TRY(qn_model_find_pooling(model));
    QN_TRY(qn_model_find_infill(model));
    QN_TRY(qn_ranking_find(model->file, &model->plan, model->tokenizer, &model->ranking));
    if (qn_gguf_q2_layout(model->file))
        log_line(params, qn_gguf_q2_layout(model->file));
    if (model->drafter)
        QN_TRY(qn_gguf_check_unchanged(model->drafter));
    return qn_gguf_check_unchanged(model->file);
}

static void fill_info(qn_model *model)
{
    const qn_hparams *h = &model->hparams;
    const uint32_t vocab = model->tokenizer ? (uint32_t)qn_tokenizer_n_vocab(model->tokenizer) : 0;
    model->info = (qn_model_info){
        .name = model->name,
        .architecture = h->architecture ? h->architecture : "",
        .quantisation = model->quantisation ? model->quantisation : "",
        .n_vocab = h->architecture ? h->n_vocab : vocab,
        .n_layers = h->n_layers,
        .n_embd = h->n_embd,
        .n_ctx_train = h->n_ctx_train,
        .n_params = model->n_params,
        .file_bytes = qn_gguf_file_size(model->file),
        .bytes_per_token = qn_plan_weight_bytes(&model->plan),
        .cache_bytes_per_position = qn_plan_position_bytes(&model->plan),
        .recurrent_bytes = qn_plan_state_bytes(&model->plan),
        .n_threads = model->team ? qn_team_size(model->team) : 0,
        .cpu = qn_cpu_name(model->cpu),
        .device = model->device ? model->device->name : "",
        .tokeniser = model->tokenizer ? qn_tokenizer_name(model->tokenizer) : "",
        .bos = model->tokenizer ? qn_tokenizer_bos(model->tokenizer) : QN_NO_TOKEN,
        .eos = model->tokenizer ? qn_tokenizer_eos(model->tokenizer) : QN_NO_TOKEN,
        .adds_bos = model->tokenizer && qn_tokenizer_adds_bos(model->tokenizer),
        .adds_eos = model->tokenizer && qn_tokenizer_adds_eos(model->tokenizer),
    };
}

static qn_status create(qn_model *of, const char *path, const qn_model_params *params, double share, qn_model **out);

/* Loads the draft model, on the device and the team of the model. */
static qn_status load_draft(qn_model *model, const qn_model_params *params)
{
    const qn_model_params own = { .size = sizeof own,
                                  .device = model->device->name,
                                  .memory = params->memory,
                                  .skip_weight_scan = params->skip_weight_scan,
                                  .on_progress = params->on_progress,
                                  .on_log = params->on_log,
                                  .user = params->user,
                                  .draft = QN_DRAFT_OFF };
    QN_TRY(qn_model_check_draft_device(model, params->draft_model));
    QN_TRY(create(model, params->draft_model, &own, 1 - model->memory_share, &model->draft));
    return qn_model_take_draft(model);
}

/* of: NULL, or the model whose draft model this is, with its share of the memory. */
static qn_status create(qn_model *of, const char *path, const qn_model_params *params, double share, qn_model **out)
{
    qn_model *model;
    *out = NULL;
    QN_TRY(qn_alloc(&model, 1, sizeof *model, "model"));
    model->process = getpid();
    model->is_draft = of;
    model->team = of ? of->team : NULL;
    model->memory_share = share;
    qn_status status = qn_grammars_create(&model->grammars);
    if (status == QN_OK)
        status = load(model, path, params);
    if (status == QN_OK && params->draft_model && !model->drafter)
        status = load_draft(model, params);
    if (status != QN_OK) {
        qn_model_free(model);
        return status;
    }
    fill_info(model);
    qn_model_find_chat_format(model, &model->chat_format);
    *out = model;
    return QN_OK;
}

qn_status qn_model_load(const char *path, const qn_model_params *params, qn_model **out)
{
    qn_model_params own = QN_MODEL_PARAMS_INIT;
    *out = NULL;
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_model_params, params, &own));
    params = &own;
    if (params->n_threads < 0 || params->n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "threads: %d, expected 0 to %d", params->n_threads, QN_TEAM_MAX);
    if (params->draft_model && params->vocab_only)
        return qn_fail(QN_ERR_INVALID, "draft_model: it is given with vocab_only");
    return create(NULL, path, params, 0, out);
}

void qn_model_free(qn_model *model)
{
    if (!model || qn_model_check_process(model, __func__) || qn_callbacks_of().model == model)
        return;
    qn_draft_runner_free(model->draft_runner);
    qn_model_free(model->draft);
    if (model->device)
        model->device->vtable->free(model->device);
    if (!model->is_draft)
        qn_team_free(model->team);
    qn_plan_free(&model->plan);
    qn_ranking_free(&model->ranking);
    qn_chat_template_free(model->chat);
    qn_tokenizer_free(model->tokenizer);
    qn_grammars_free(model->grammars);
    qn_drafting_free(model->drafting);
    qn_free(model->name);
    if (model->has_lock) {
        qn_kept_list_free(&model->kept);
        pthread_mutex_destroy(&model->turn);
        pthread_mutex_destroy(&model->lock);
    }
    qn_gguf_close(model->drafter);
    qn_gguf_close(model->file);
    qn_free(model);
}

const qn_model_info *qn_model_get_info(const qn_model *model)
{
    return &model->info;
}

qn_status qn_model_check(const qn_model *model)
{
    if (model->drafter)
        QN_TRY(qn_gguf_check_whole(model->drafter));
    return qn_gguf_check_whole(model->file);
}
