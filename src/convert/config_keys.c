/* Writes the GGUF keys of an architecture, with the names and types of llama.cpp's converter (conversion/base.py,
 * qwen.py, llama.py). */
#include "convert/config.h"

#include <stdio.h>

enum { MAX_KEY = 128 };

static const char *key_of(const qn_config *c, const char *name, char key[MAX_KEY])
{
    snprintf(key, MAX_KEY, "%s.%s", c->architecture, name);
    return key;
}

static qn_status add_u32(const qn_config *c, qn_gguf_writer *w, const char *name, uint32_t value)
{
    char key[MAX_KEY];
    return qn_gguf_writer_add_u32(w, key_of(c, name, key), value);
}

static qn_status add_f32(const qn_config *c, qn_gguf_writer *w, const char *name, double value)
{
    char key[MAX_KEY];
    return qn_gguf_writer_add_f32(w, key_of(c, name, key), (float)value);
}

/* Writes the attention factor, which in a file is relative to YaRN's own. llama.cpp reads this key for every
 * architecture, but yarn_attn_factor and yarn_log_multiplier only for a few. */
static qn_status write_attn_factor(const qn_config *c, qn_gguf_writer *w, double own)
{
    return c->rope_attn_factor == own ? QN_OK : add_f32(c, w, "rope.scaling.attn_factor", c->rope_attn_factor / own);
}

static qn_status write_yarn(const qn_config *c, qn_gguf_writer *w)
{
    QN_TRY(add_u32(c, w, "rope.scaling.original_context_length", c->rope_original_ctx));
    if (c->rope_beta_fast != 32)
        QN_TRY(add_f32(c, w, "rope.scaling.yarn_beta_fast", c->rope_beta_fast));
    if (c->rope_beta_slow != 1)
        QN_TRY(add_f32(c, w, "rope.scaling.yarn_beta_slow", c->rope_beta_slow));
    return write_attn_factor(c, w, qn_config_yarn_mscale(c->rope_factor, 1));
}

/* The tensor rope_freqs.weight holds Llama 3's scaling, and YaRN's without truncation; for the latter only the
 * attention factor remains to be written. */
static qn_status write_rope(const qn_config *c, qn_gguf_writer *w)
{
    char key[MAX_KEY];
    QN_TRY(add_f32(c, w, "rope.freq_base", c->rope_base));
    if (c->kind == QN_CONFIG_LLAMA)
        QN_TRY(add_u32(c, w, "rope.dimension_count", c->head_dim));
    if (c->rope_untruncated)
        return write_attn_factor(c, w, 1);
    if (c->rope == QN_CONFIG_ROPE_PLAIN || c->rope == QN_CONFIG_ROPE_LLAMA3)
        return QN_OK;
    QN_TRY(qn_gguf_writer_add_string(w, key_of(c, "rope.scaling.type", key),
                                     c->rope == QN_CONFIG_ROPE_YARN ? "yarn" : "linear"));
    QN_TRY(add_f32(c, w, "rope.scaling.factor", c->rope_factor));
    return c->rope == QN_CONFIG_ROPE_YARN ? write_yarn(c, w) : QN_OK;
}

static qn_status write_qwen35(const qn_config *c, qn_gguf_writer *w)
{
    char key[MAX_KEY];
    int32_t sections[4];
    for (int i = 0; i < 4; i++)
        sections[i] = (int32_t)c->rope_sections[i];
    QN_TRY(add_u32(c, w, "rope.dimension_count", c->n_rot));
    QN_TRY(qn_gguf_writer_add_i32s(w, key_of(c, "rope.dimension_sections", key), sections, 4));
    QN_TRY(add_u32(c, w, "ssm.conv_kernel", c->taps));
    QN_TRY(add_u32(c, w, "ssm.state_size", c->head_k));
    QN_TRY(add_u32(c, w, "ssm.group_count", c->n_k_heads));
    QN_TRY(add_u32(c, w, "ssm.time_step_rank", c->n_v_heads));
    QN_TRY(add_u32(c, w, "ssm.inner_size", c->n_v_heads * c->head_v));
    if (c->n_mtp)
        QN_TRY(add_u32(c, w, "nextn_predict_layers", c->n_mtp));
    QN_TRY(add_u32(c, w, "full_attention_interval", c->interval));
    return qn_gguf_writer_add_bools(w, key_of(c, "attention.recurrent_layers", key), c->is_recurrent,
                                    c->n_layers + c->n_mtp);
}

qn_status qn_config_write(const qn_config *c, qn_gguf_writer *w)
{
    QN_TRY(add_u32(c, w, "block_count", c->n_layers + c->n_mtp));
    QN_TRY(add_u32(c, w, "context_length", c->n_ctx));
    QN_TRY(add_u32(c, w, "embedding_length", c->n_embd));
    QN_TRY(add_u32(c, w, "feed_forward_length", c->n_ff));
    QN_TRY(add_u32(c, w, "attention.head_count", c->n_heads));
    QN_TRY(add_u32(c, w, "attention.head_count_kv", c->n_kv_heads));
    QN_TRY(add_f32(c, w, "attention.layer_norm_rms_epsilon", c->eps));
    if (c->writes_head_dim) {
        QN_TRY(add_u32(c, w, "attention.key_length", c->head_dim));
        QN_TRY(add_u32(c, w, "attention.value_length", c->head_dim));
    }
    if (c->kind == QN_CONFIG_LLAMA)
        QN_TRY(add_u32(c, w, "vocab_size", c->n_vocab));
    QN_TRY(write_rope(c, w));
    return c->kind == QN_CONFIG_QWEN35 ? write_qwen35(c, w) : QN_OK;
}
