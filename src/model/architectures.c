/* The table of architectures, and reading of the hyperparameters that all of them have. */
#include "model/architectures.h"

#include "base/append.h"
#include "model/dflash.h"
#include "model/keys.h"
#include "model/nextn.h"
#include "model/rank.h"
#include "model/rope.h"
#include "plan/limits.h"

#include <math.h>
#include <stdio.h>
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

static qn_status read_hparams(const qn_gguf *file, const qn_architecture *architecture, qn_hparams *h)
{
    const char *a = architecture->name;
    uint32_t value_dim, n_predict = 0;
    *h = (qn_hparams){ .architecture = a,
                       .rope = architecture->rope,
                       .qk_norm = architecture->qk_norm,
                       .qkv_bias = architecture->qkv_bias };
    QN_TRY(qn_key_u32(file, a, "block_count", true, &h->n_blocks));
    if (architecture->mtp_blocks)
        QN_TRY(qn_key_u32(file, a, "nextn_predict_layers", false, &n_predict));
    QN_TRY(qn_key_u32(file, a, "embedding_length", true, &h->n_embd));
    QN_TRY(qn_key_u32(file, a, "context_length", true, &h->n_ctx_train));
    QN_TRY(qn_key_f32(file, a, "attention.layer_norm_rms_epsilon", true, &h->eps));
    QN_TRY(qn_check_range(file, "block_count", h->n_blocks, 1, 4096));
    QN_TRY(qn_check_range(file, "nextn_predict_layers", n_predict, 0, h->n_blocks - 1));
    h->n_layers = h->n_blocks - n_predict;
    QN_TRY(qn_key_layers_u32(file, a, "feed_forward_length", true, h->n_layers, h->n_blocks, false, &h->n_ff));
    QN_TRY(qn_key_layers_u32(file, a, "attention.head_count", true, h->n_layers, h->n_blocks, architecture->recurrent,
                             &h->n_heads));
    QN_TRY(qn_check_range(file, "embedding_length", h->n_embd, 1, 1 << 20));
    QN_TRY(qn_check_range(file, "feed_forward_length", h->n_ff, 1, 1 << 22));
    QN_TRY(qn_check_range(file, "attention.head_count", h->n_heads, 1, 4096));
    QN_TRY(qn_check_range(file, "context_length", h->n_ctx_train, 1, 1u << 30));
    h->n_kv_heads = h->n_heads;
    h->head_dim = h->n_embd / h->n_heads;
    QN_TRY(qn_key_layers_u32(file, a, "attention.head_count_kv", false, h->n_layers, h->n_blocks,
                             architecture->recurrent, &h->n_kv_heads));
    QN_TRY(qn_key_u32(file, a, "attention.key_length", false, &h->head_dim));
    value_dim = h->head_dim;
    QN_TRY(qn_key_u32(file, a, "attention.value_length", false, &value_dim));
    QN_TRY(qn_check_range(file, "attention.head_count_kv", h->n_kv_heads, 1, h->n_heads));
    QN_TRY(qn_check_range(file, "attention.key_length", h->head_dim, 1, 1024));
    if (h->n_heads % h->n_kv_heads)
        return qn_fail(QN_ERR_FORMAT, "%s: attention.head_count %u is not a multiple of attention.head_count_kv %u",
                       qn_gguf_path(file), (unsigned)h->n_heads, (unsigned)h->n_kv_heads);
    if (h->head_dim % QN_PLAN_HEAD_UNIT || value_dim != h->head_dim)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key and value heads of %u and %u, expected equal multiples of %d",
                       qn_gguf_path(file), (unsigned)h->head_dim, (unsigned)value_dim, QN_PLAN_HEAD_UNIT);
    if (!(h->eps > 0 && h->eps < 1)) /* with 0 the norm of a row of zeros would be NaN */
        return qn_fail(QN_ERR_FORMAT,
                       "%s: attention.layer_norm_rms_epsilon is %g, expected more than 0 and less than 1",
                       qn_gguf_path(file), (double)h->eps);
    if (architecture->rope_sections)
        QN_TRY(qn_rope_read_sections(file, h));
    return qn_rope_read(file, h);
}

/* Rejects a float key unless it is missing, has its neutral value, or is 0, which means off. */
static qn_status reject_factor(const qn_gguf *file, const char *architecture, const char *name, float neutral)
{
    float value = neutral;
    QN_TRY(qn_key_f32(file, architecture, name, false, &value));
    if (value != 0 && fabsf(value - neutral) > 1e-6f * neutral)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%s.%s' is %g, only %g is supported", qn_gguf_path(file),
                       architecture, name, (double)value, (double)neutral);
    return QN_OK;
}

/* Rejects keys that change the computation in ways that are not implemented. */
static qn_status reject_unsupported_features(const qn_gguf *file, const qn_architecture *of, uint32_t head_dim)
{
    const char *architecture = of->name;
    uint32_t n_experts = 0;
    QN_TRY(qn_key_u32(file, architecture, "expert_count", false, &n_experts));
    if (n_experts)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: a mixture of %u experts, quern runs dense models", qn_gguf_path(file),
                       (unsigned)n_experts);
    uint32_t window = 0;
    bool causal = true;
    char key_name[128];
    QN_TRY(reject_factor(file, architecture, "logit_scale", 1));
    QN_TRY(reject_factor(file, architecture, "embedding_scale", 1));
    QN_TRY(reject_factor(file, architecture, "residual_scale", 1));
    QN_TRY(reject_factor(file, architecture, "attention.scale", 1 / sqrtf((float)head_dim)));
    QN_TRY(reject_factor(file, architecture, "attn_logit_softcapping", 0));
    QN_TRY(reject_factor(file, architecture, "final_logit_softcapping", 0));
    if (of->windows)
        return QN_OK;
    QN_TRY(qn_key_u32(file, architecture, "attention.sliding_window", false, &window));
    snprintf(key_name, sizeof key_name, "%s.attention.causal", architecture);
    QN_TRY(qn_gguf_get_bool(file, key_name, false, &causal));
    if (window || !causal)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%s.attention.%s': only full causal attention is supported",
                       qn_gguf_path(file), architecture, window ? "sliding_window" : "causal");
    return QN_OK;
}

qn_status qn_hparams_read(const qn_gguf *file, const qn_architecture *architecture, qn_hparams *h)
{
    QN_TRY(read_hparams(file, architecture, h));
    return reject_unsupported_features(file, architecture, h->head_dim);
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
        status = qn_dflash_build(&build, want.drafter);
    if (status == QN_OK && want.drafter)
        status = qn_plan_validate(plan);
    if (status != QN_OK)
        qn_plan_free(plan);
    qn_weights_close(&weights);
    return status;
}

static qn_status unknown_architecture(const qn_gguf *file, qn_string name)
{
    char known[128];
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
