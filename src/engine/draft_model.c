/* A model that drafts for another one: its file is checked before the other model is loaded, its vocabulary after
 * both. */
#include "engine/internal.h"

#include "device/registry.h"
#include "engine/spec/draft_file.h"

/* The smallest part of the memory of sessions that either model gets. */
static const double LEAST_SHARE = 1.0 / 16;

/* Bytes of one position of a context, with the states of recurrent layers as if the context had 1024. */
static double position_bytes(const qn_plan *plan)
{
    return (double)qn_plan_position_bytes(plan) + (double)qn_plan_state_bytes(plan) / 1024;
}

static double share_of(const qn_plan *model, const qn_plan *draft)
{
    const double of_model = position_bytes(model), of_draft = position_bytes(draft),
                 share = of_model + of_draft > 0 ? of_draft / (of_model + of_draft) : 0.5;
    return share < LEAST_SHARE ? LEAST_SHARE : share > 1 - LEAST_SHARE ? 1 - LEAST_SHARE : share;
}

/* Builds the plan of a draft model's file. The caller frees it with qn_plan_free, before the file. */
static qn_status build(const qn_gguf *file, qn_plan *plan)
{
    qn_hparams hparams;
    qn_draft_kind kind;
    QN_TRY(qn_draft_file_kind(file, &kind));
    return qn_model_build(file, &hparams, plan);
}

qn_status qn_model_read_draft(const char *path, const qn_plan *plan, double *share)
{
    qn_gguf *file;
    qn_plan draft;
    QN_TRY(qn_gguf_open(path, &file));
    const qn_status status = build(file, &draft);
    if (status == QN_OK) {
        *share = 1 - share_of(plan, &draft);
        qn_plan_free(&draft);
    }
    qn_gguf_close(file);
    return status;
}

static qn_draft_vocab vocab_of(const qn_model *model)
{
    return (qn_draft_vocab){ .path = qn_gguf_path(model->file),
                             .tokenizer = model->tokenizer,
                             .n_rows = model->hparams.n_vocab };
}

/* Checks that a model drafts tokens for another one. */
static qn_status check(const qn_model *model, const qn_model *draft)
{
    const qn_draft_vocab of_model = vocab_of(model), of_draft = vocab_of(draft);
    if (draft->plan.rank_head.n_rows || draft->pooling != QN_POOLING_NONE)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: a model for %s, expected one that writes text", of_draft.path,
                       draft->plan.rank_head.n_rows ? "ranking" : "embeddings");
    return qn_draft_vocab_compare(&of_model, &of_draft);
}

qn_status qn_model_check_draft_device(const qn_model *model, const char *path)
{
    qn_device_name name;
    QN_TRY(qn_device_name_parse("device", model->device->name, &name));
    if (qn_device_drafts(&name))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: draft models run on the CPU and on CUDA devices only, and %s runs on %s",
                   path, qn_gguf_path(model->file), model->device->name);
}

qn_status qn_model_take_draft(qn_model *model)
{
    const qn_kv_format *format;
    QN_TRY(check(model, model->draft));
    QN_TRY(qn_model_kv_format(model->draft, NULL, &format));
    return qn_draft_runner_create(model->draft->device, format, model->draft->hparams.n_vocab,
                                  model->draft->hparams.n_ctx_train, &model->draft_runner);
}
