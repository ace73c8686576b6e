/* The table of architectures, and the building of plans. */
#include "model/architectures.h"

#include "base/append.h"
#include "model/dflash.h"
#include "model/nextn.h"
#include "model/rank.h"
#include "model/role.h"

#include <string.h>

static const qn_architecture table[] = {
    { .name = "llama", .rope = QN_ROPE_TYPE_NORM, .build = qn_dense_build },
    { .name = "qwen2", .rope = QN_ROPE_TYPE_NEOX, .qkv_bias = true, .build = qn_dense_build },
    { .name = "qwen3", .rope = QN_ROPE_TYPE_NEOX, .qk_norm = true, .rank_head = true, .build = qn_dense_build },
    { .name = "qwen35",
      .rope = QN_ROPE_TYPE_NEOX,
      .qk_norm = true,
      .recurrent = true,
      .mtp_blocks = true,
      .rope_sections = true,
      .build = qn_qwen35_build },
};

enum { N_ARCHITECTURES = sizeof table / sizeof table[0] };

/* Sets n_vocab: it is the number of rows of the embedding table; keys with a vocabulary size are ignored. */
static qn_status read_vocabulary(const qn_gguf *file, qn_hparams *h)
{
    const qn_gguf_tensor *table_tensor = qn_gguf_find_tensor(file, "token_embd.weight");
    if (!table_tensor)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor 'token_embd.weight' is missing", qn_gguf_path(file));
    if (table_tensor->dims[1] > INT32_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor 'token_embd.weight' has %llu rows, at most %d are allowed",
                       qn_gguf_path(file), (unsigned long long)table_tensor->dims[1], INT32_MAX);
    h->n_vocab = (uint32_t)table_tensor->dims[1];
    return QN_OK;
}

/* What is built after the model's layers: its own draft head, if there is one, or that of a drafter's file. */
struct wanted_head {
    qn_model_head *own;
    const qn_gguf *drafter;
};

/* Adds the model's own draft head. Without one the plan is as it was. */
static void add_own_head(qn_build *build, qn_model_head *head)
{
    const qn_plan before = *build->plan;
    const bool has_block = build->hparams->n_blocks > build->hparams->n_layers;
    qn_status status = has_block ? qn_nextn_build(build) : qn_nextn_missing(build);
    if (status == QN_OK)
        status = qn_plan_validate(build->plan);
    *head = (qn_model_head){ .is_there = status == QN_OK, .is_broken = status != QN_OK && has_block };
    if (status == QN_OK)
        return;
    memcpy(head->why, qn_error_text(), strlen(qn_error_text()) + 1);
    qn_plan_drop_after(build->plan, &before);
}

/* Adds the draft head of a drafter's file. */
static qn_status add_drafter(qn_build *build, const qn_architecture *architecture, const qn_gguf *file)
{
    const bool is_block = !qn_dflash_is_drafter(file) && qn_file_is_mtp_block(file);
    if (is_block && !architecture->mtp_blocks)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: a block for multi-token prediction, which models of the architecture '%s' (%s) do not have",
                       qn_gguf_path(file), architecture->name, qn_gguf_path(build->weights->file));
    QN_TRY(is_block ? qn_nextn_build_from(build, file) : qn_dflash_build(build, file));
    return qn_plan_validate(build->plan);
}

static qn_status build_plan(const qn_gguf *file, const qn_architecture *architecture, const qn_hparams *h,
                            qn_plan *plan, struct wanted_head want)
{
    qn_weights weights;
    QN_TRY(qn_weights_open(&weights, file, plan));
    qn_build build = { .weights = &weights, .hparams = h, .plan = plan };
    qn_status status = architecture->build(&build);
    if (status == QN_OK && architecture->rank_head)
        status = qn_rank_build(&build);
    if (status == QN_OK)
        status = qn_weights_check_all_used(&weights, h->architecture, h->n_layers, h->n_blocks);
    if (status == QN_OK)
        status = qn_plan_validate(plan);
    if (status == QN_OK && want.own)
        add_own_head(&build, want.own);
    if (status == QN_OK && want.drafter)
        status = add_drafter(&build, architecture, want.drafter);
    if (status != QN_OK)
        qn_plan_free(plan);
    qn_weights_close(&weights);
    return status;
}

static qn_status unknown_architecture(const qn_gguf *file, qn_string name)
{
    char known[128];
    if (qn_dflash_is_drafter(file))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: a drafter for a model (architecture 'dflash'), not a model: it is for "
                       "--draft-model",
                       qn_gguf_path(file));
    qn_text_buffer text = QN_APPEND_TO(known);
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        qn_append(&text, "%s%s", i ? ", " : "", table[i].name);
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: architecture '%.*s' is not supported (%s)", qn_gguf_path(file),
                   (int)(name.length < 64 ? name.length : 64), name.data, known);
}

static qn_status build(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan, struct wanted_head want)
{
    qn_string name;
    *plan = (qn_plan){ 0 };
    *hparams = (qn_hparams){ 0 };
    QN_TRY(qn_gguf_get_string(file, "general.architecture", true, &name));
    for (int i = 0; i < N_ARCHITECTURES; i++) {
        if (!qn_string_equals(name, table[i].name))
            continue;
        QN_TRY(qn_hparams_read(file, &table[i], hparams));
        QN_TRY(read_vocabulary(file, hparams));
        return build_plan(file, &table[i], hparams, plan, want);
    }
    return unknown_architecture(file, name);
}

qn_status qn_model_build(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan)
{
    return build(file, hparams, plan, (struct wanted_head){ 0 });
}

qn_status qn_model_build_with_head(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan, qn_model_head *head)
{
    *head = (qn_model_head){ 0 };
    return build(file, hparams, plan, (struct wanted_head){ .own = head });
}

qn_status qn_model_build_with_drafter(const qn_gguf *file, const qn_gguf *drafter, qn_hparams *hparams, qn_plan *plan)
{
    return build(file, hparams, plan, (struct wanted_head){ .drafter = drafter });
}
