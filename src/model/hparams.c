/* Reads the hyperparameters that all architectures have. */
#include "model/hparams.h"

#include "model/keys.h"
#include "model/rope.h"
#include "plan/limits.h"

#include <math.h>
#include <stdio.h>

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
