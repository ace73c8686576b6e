/* Names and shapes of tensors in checkpoints and in GGUF files. GGUF's names, orders and changes of values are those
 * that llama.cpp's loader and src/model/ expect, from llama.cpp's converter (conversion/llama.py, qwen.py,
 * gguf-py/gguf/tensor_mapping.py). */
#include "convert/targets.h"

#include "base/append.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const qn_mtp_prefixes[QN_MTP_PREFIXES] = { "mtp.", "model.mtp." };

struct list {
    qn_targets *targets;
    qn_config *config;
    qn_checkpoint *checkpoint;
    const char *prefix;    /* prefix of the text model's tensors: "model." */
    char source_block[64]; /* "model.layers.3." */
    char target_block[32]; /* "blk.3." */
};

static const qn_type_info *type_of(const qn_safetensor *t)
{
    static const struct {
        const char *dtype;
        qn_type type;
    } types[] = { { "F32", QN_TYPE_F32 }, { "F16", QN_TYPE_F16 }, { "BF16", QN_TYPE_BF16 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(t->dtype, types[i].dtype) == 0)
            return qn_type_find((uint32_t)types[i].type);
    return NULL;
}

/* Whether a source has the shape of a target. A convolution's source has a dimension of 1 between channels and taps. */
static bool has_shape(const qn_safetensor *t, const qn_target *target)
{
    if (target->is_vector)
        return t->n_dims == 1 && t->dims[0] == target->rows;
    if (t->n_dims == 3 && t->dims[1] == 1)
        return t->dims[0] == target->rows && t->dims[2] == target->columns;
    return t->n_dims == 2 && t->dims[0] == target->rows && t->dims[1] == target->columns;
}

static const char *describe_shape(const qn_safetensor *t, char *text, size_t size)
{
    qn_text_buffer to = qn_append_to(text, size);
    for (uint32_t i = 0; i < t->n_dims; i++)
        qn_append(&to, "%s%llu", i ? ", " : "", (unsigned long long)t->dims[i]);
    return text;
}

/* A matrix that is packed. MLX's converter changes norms and convolutions of Qwen3.5. */
static qn_status resolve_packed(const struct list *l, qn_target *target, const char *name)
{
    QN_TRY(qn_packed_find(l->checkpoint, &l->config->packing, name, target->rows, target->columns, &target->packed,
                          &target->source));
    if (!target->packed)
        return QN_OK;
    target->from = qn_type_find(QN_TYPE_F32);
    target->kept = qn_type_find(l->config->is_f16 ? QN_TYPE_F16 : QN_TYPE_BF16);
    if (l->config->kind == QN_CONFIG_QWEN35 && strcmp(qn_packed_name(target->packed), "MLX") == 0)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: MLX changes other tensors of %s, too, when it packs it: convert the model that it was made "
                       "from",
                       l->checkpoint->folder, l->config->class_name);
    return QN_OK;
}

static qn_status resolve(const struct list *l, qn_target *target, const char *name)
{
    if (!target->is_vector)
        QN_TRY(resolve_packed(l, target, name));
    if (target->packed)
        return QN_OK;
    qn_source *source = qn_checkpoint_find(l->checkpoint, name);
    if (!source)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' of %s is missing", l->checkpoint->folder, name,
                       l->config->class_name);
    const qn_safetensor *t = source->tensor;
    char shape[128];
    if (!has_shape(t, target))
        return qn_fail(QN_ERR_FORMAT,
                       target->is_vector ? "%s: tensor '%s' has the shape [%s], expected [%llu]"
                                         : "%s: tensor '%s' has the shape [%s], expected [%llu, %llu]",
                       qn_safetensors_path(source->file), name, describe_shape(t, shape, sizeof shape),
                       (unsigned long long)target->rows, (unsigned long long)target->columns);
    target->from = type_of(t);
    if (!target->from)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: tensor '%s' has the dtype %s, expected F32, F16, BF16 or, for a matrix, F8_E4M3",
                       qn_safetensors_path(source->file), name, t->dtype);
    target->kept = target->from;
    source->used = true;
    target->source = source;
    return QN_OK;
}

static qn_status new_target(const struct list *l, const char *name, qn_target **out)
{
    qn_targets *all = l->targets;
    QN_TRY(qn_realloc_array(&all->at, &all->capacity, all->n + 1, sizeof *all->at, "tensors"));
    *out = &all->at[all->n++];
    **out = (qn_target){ 0 };
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return QN_OK;
}

/* Appends a tensor with full names. columns = 0: a vector. */
static qn_status add(const struct list *l, const char *name, const char *source, uint64_t rows, uint64_t columns,
                     qn_target **out)
{
    qn_target *t;
    QN_TRY(new_target(l, name, &t));
    t->rows = rows;
    t->columns = columns ? columns : 1;
    t->is_vector = t->stays_f32 = columns == 0;
    if (out)
        *out = t;
    return resolve(l, t, source);
}

/* Appends a tensor with names inside the current block. *out is valid until the next tensor. */
static qn_status add_in_block(const struct list *l, const char *name, const char *source, uint64_t rows,
                              uint64_t columns, qn_target **out)
{
    char target_name[64], source_name[160];
    snprintf(target_name, sizeof target_name, "%s%s", l->target_block, name);
    snprintf(source_name, sizeof source_name, "%s%s", l->source_block, source);
    return add(l, target_name, source_name, rows, columns, out);
}

/* Appends the weights of an RMS norm. Qwen3.5 stores their difference from 1. */
static qn_status add_norm(const struct list *l, const char *name, const char *source, uint64_t n)
{
    qn_target *t;
    QN_TRY(add_in_block(l, name, source, n, 0, &t));
    if (l->config->kind == QN_CONFIG_QWEN35)
        t->change = QN_TARGET_ADD_ONE;
    return QN_OK;
}

/* Returns the order of rows of queries and keys: Llama's rope rotates adjacent elements in GGUF, but elements half a
 * head apart in transformers. */
static qn_reorder rope_order(const qn_config *c)
{
    return c->kind == QN_CONFIG_LLAMA ? (qn_reorder){ 0, 2, c->head_dim / 2, 1 } : (qn_reorder){ 0 };
}

static qn_status add_attention(const struct list *l)
{
    const qn_config *c = l->config;
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    qn_target *t;
    QN_TRY(add_in_block(l, "attn_q.weight", "self_attn.q_proj.weight", c->kind == QN_CONFIG_QWEN35 ? 2 * q : q,
                        c->n_embd, &t));
    t->row_order = rope_order(c);
    QN_TRY(add_in_block(l, "attn_k.weight", "self_attn.k_proj.weight", kv, c->n_embd, &t));
    t->row_order = rope_order(c);
    QN_TRY(add_in_block(l, "attn_v.weight", "self_attn.v_proj.weight", kv, c->n_embd, NULL));
    QN_TRY(add_in_block(l, "attn_output.weight", "self_attn.o_proj.weight", c->n_embd, q, NULL));
    if (c->kind == QN_CONFIG_QWEN2) {
        QN_TRY(add_in_block(l, "attn_q.bias", "self_attn.q_proj.bias", q, 0, NULL));
        QN_TRY(add_in_block(l, "attn_k.bias", "self_attn.k_proj.bias", kv, 0, NULL));
        return add_in_block(l, "attn_v.bias", "self_attn.v_proj.bias", kv, 0, NULL);
    }
    if (c->kind == QN_CONFIG_LLAMA)
        return QN_OK;
    QN_TRY(add_norm(l, "attn_q_norm.weight", "self_attn.q_norm.weight", c->head_dim));
    return add_norm(l, "attn_k_norm.weight", "self_attn.k_norm.weight", c->head_dim);
}

/* Returns the order of value heads, which are grouped by key head in transformers, and tiled in GGUF. */
static qn_reorder value_order(const qn_config *c, uint32_t first, uint32_t unit)
{
    if (c->n_k_heads == c->n_v_heads)
        return (qn_reorder){ 0 };
    return (qn_reorder){ first, c->n_k_heads, c->n_v_heads / c->n_k_heads, unit };
}

static qn_status add_recurrent(const struct list *l)
{
    const qn_config *c = l->config;
    const uint32_t keys = 2 * c->n_k_heads * c->head_k, n_v = c->n_v_heads;
    const uint64_t values = (uint64_t)n_v * c->head_v;
    const qn_reorder heads = value_order(c, 0, 1), elements = value_order(c, 0, c->head_v),
                     after_keys = value_order(c, keys, c->head_v);
    qn_target *t;
    QN_TRY(add_in_block(l, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", keys + values, c->n_embd, &t));
    t->row_order = after_keys;
    QN_TRY(add_in_block(l, "attn_gate.weight", "linear_attn.in_proj_z.weight", values, c->n_embd, &t));
    t->row_order = elements;
    QN_TRY(add_in_block(l, "ssm_conv1d.weight", "linear_attn.conv1d.weight", keys + values, c->taps, &t));
    t->row_order = after_keys;
    t->stays_f32 = true;
    QN_TRY(add_in_block(l, "ssm_dt.bias", "linear_attn.dt_bias", n_v, 0, &t));
    t->row_order = heads;
    QN_TRY(add_in_block(l, "ssm_a", "linear_attn.A_log", n_v, 0, &t));
    t->row_order = heads;
    t->change = QN_TARGET_MINUS_EXP;
    QN_TRY(add_in_block(l, "ssm_beta.weight", "linear_attn.in_proj_b.weight", n_v, c->n_embd, &t));
    t->row_order = heads;
    QN_TRY(add_in_block(l, "ssm_alpha.weight", "linear_attn.in_proj_a.weight", n_v, c->n_embd, &t));
    t->row_order = heads;
    QN_TRY(add_in_block(l, "ssm_norm.weight", "linear_attn.norm.weight", c->head_v, 0, NULL));
    QN_TRY(add_in_block(l, "ssm_out.weight", "linear_attn.out_proj.weight", c->n_embd, values, &t));
    t->column_order = elements;
    return QN_OK;
}

static qn_status add_block(struct list *l, bool is_recurrent)
{
    const qn_config *c = l->config;
    QN_TRY(add_norm(l, "attn_norm.weight", "input_layernorm.weight", c->n_embd));
    QN_TRY(is_recurrent ? add_recurrent(l) : add_attention(l));
    QN_TRY(add_norm(l, c->kind == QN_CONFIG_QWEN35 ? "post_attention_norm.weight" : "ffn_norm.weight",
                    "post_attention_layernorm.weight", c->n_embd));
    QN_TRY(add_in_block(l, "ffn_gate.weight", "mlp.gate_proj.weight", c->n_ff, c->n_embd, NULL));
    QN_TRY(add_in_block(l, "ffn_up.weight", "mlp.up_proj.weight", c->n_ff, c->n_embd, NULL));
    return add_in_block(l, "ffn_down.weight", "mlp.down_proj.weight", c->n_embd, c->n_ff, NULL);
}

/* Returns the prefix of the MTP block's tensors; NULL if there is no such block. */
static const char *find_mtp(const qn_checkpoint *checkpoint)
{
    for (size_t i = 0; i < QN_MTP_PREFIXES; i++)
        if (qn_checkpoint_has_prefix(checkpoint, qn_mtp_prefixes[i]))
            return qn_mtp_prefixes[i];
    return NULL;
}

/* Counts the MTP blocks of a checkpoint whose configuration has none, as those of Qwen3.6 (am17an/llama.cpp, pull
 * request 8): layers.0., layers.1. and so on. */
static qn_status count_mtp(struct list *l, const char *prefix)
{
    enum { MOST = 16 }; /* tensors of others are unknown */
    uint32_t n = 0;
    char layer[64];
    for (; n < MOST; n++) {
        snprintf(layer, sizeof layer, "%slayers.%u.", prefix, (unsigned)n);
        if (!qn_checkpoint_has_prefix(l->checkpoint, layer))
            break;
    }
    l->targets->unnamed_mtp = n > 0;
    return qn_config_set_mtp(l->config, n);
}

/* Adds the block of multi-token prediction: attention, SwiGLU, and the projection that joins the embedding with the
 * last hidden state. */
static qn_status add_mtp(struct list *l)
{
    qn_config *c = l->config;
    const char *prefix = find_mtp(l->checkpoint);
    if (prefix && c->kind == QN_CONFIG_QWEN35 && !c->names_mtp && !c->n_mtp)
        QN_TRY(count_mtp(l, prefix));
    if (c->n_mtp && !prefix) {
        l->targets->dropped_mtp = true; /* transformers saves a model without them but keeps the key */
        c->n_mtp = 0;
    }
    for (uint32_t i = 0; i < c->n_mtp; i++) {
        snprintf(l->target_block, sizeof l->target_block, "blk.%u.", (unsigned)(c->n_layers + i));
        snprintf(l->source_block, sizeof l->source_block, "%slayers.%u.", prefix, (unsigned)i);
        QN_TRY(add_block(l, false));
        if (i > 0)
            continue;
        snprintf(l->source_block, sizeof l->source_block, "%s", prefix);
        QN_TRY(add_in_block(l, "nextn.eh_proj.weight", "fc.weight", c->n_embd, 2 * (uint64_t)c->n_embd, NULL));
        QN_TRY(add_norm(l, "nextn.enorm.weight", "pre_fc_norm_embedding.weight", c->n_embd));
        QN_TRY(add_norm(l, "nextn.hnorm.weight", "pre_fc_norm_hidden.weight", c->n_embd));
        QN_TRY(add_norm(l, "nextn.shared_head_norm.weight", "norm.weight", c->n_embd));
    }
    return QN_OK;
}

static qn_status add_rope_factors(const struct list *l)
{
    qn_target *t;
    if (!qn_config_has_rope_factors(l->config))
        return QN_OK;
    QN_TRY(new_target(l, "rope_freqs.weight", &t));
    t->rows = l->config->n_rot / 2;
    t->columns = 1;
    t->is_vector = t->stays_f32 = true;
    QN_TRY(qn_alloc(&t->values, t->rows, sizeof *t->values, "frequency factors"));
    qn_config_rope_factors(l->config, t->values);
    return QN_OK;
}

/* ---- The tied output matrix ---- */

enum { COMPARED = 1 << 12 }; /* weights compared at a time */

/* Compares as torch.equal: 0 equals -0, and a NaN does not equal itself. */
static bool have_equal_values(const qn_type_info *a, const uint8_t *left, const qn_type_info *b, const uint8_t *right,
                              size_t n)
{
    float x[COMPARED], y[COMPARED];
    a->to_float(left, n, x);
    b->to_float(right, n, y);
    for (size_t i = 0; i < n; i++)
        if (!(x[i] == y[i]))
            return false;
    return true;
}

static qn_status compare(const qn_source *left, const qn_source *right, bool *equal)
{
    const qn_safetensor *t = left->tensor, *u = right->tensor;
    const qn_type_info *a = type_of(t), *b = type_of(u);
    uint8_t x[COMPARED * sizeof(float)], y[COMPARED * sizeof(float)];
    *equal = a && b && t->n_dims == u->n_dims && memcmp(t->dims, u->dims, t->n_dims * sizeof *t->dims) == 0;
    const uint64_t n_weights = *equal ? t->bytes / a->block_bytes : 0;
    for (uint64_t at = 0; at < n_weights && *equal; at += COMPARED) {
        const size_t n = n_weights - at < COMPARED ? (size_t)(n_weights - at) : COMPARED;
        int error = qn_safetensors_read(left->file, t, at * a->block_bytes, x, n * a->block_bytes);
        if (!error)
            error = qn_safetensors_read(right->file, u, at * b->block_bytes, y, n * b->block_bytes);
        if (error)
            return qn_fail(QN_ERR_IO, "%s: tensors '%s' and '%s' cannot be read: %s", qn_safetensors_path(left->file),
                           left->name, right->name, strerror(error));
        *equal = have_equal_values(a, x, b, y, n);
    }
    return QN_OK;
}

/* transformers ties equal matrices only; if the checkpoint has just one of the two, it serves as both. */
static qn_status resolve_tie(const struct list *l, char *embedding, size_t size)
{
    static const char output[] = "lm_head.weight";
    bool equal = true;
    snprintf(embedding, size, "%sembed_tokens.weight", l->prefix);
    const qn_source *in = qn_checkpoint_find(l->checkpoint, embedding),
                    *out = qn_checkpoint_find(l->checkpoint, output);
    if (l->config->tied && !in && out)
        snprintf(embedding, size, "%s", output);
    if (!l->config->tied || !in || !out)
        return QN_OK;
    QN_TRY(compare(in, out, &equal));
    l->config->tied = equal;
    l->targets->dropped_output = equal;
    l->targets->untied_output = !equal;
    return QN_OK;
}

static qn_status add_all(struct list *l)
{
    const qn_config *c = l->config;
    char name[64];
    l->target_block[0] = '\0';
    snprintf(l->source_block, sizeof l->source_block, "%s", l->prefix);
    QN_TRY(resolve_tie(l, name, sizeof name));
    QN_TRY(add(l, "token_embd.weight", name, c->n_vocab, c->n_embd, NULL));
    QN_TRY(add_norm(l, "output_norm.weight", "norm.weight", c->n_embd));
    if (!c->tied)
        QN_TRY(add(l, "output.weight", "lm_head.weight", c->n_vocab, c->n_embd, NULL));
    QN_TRY(add_rope_factors(l));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        snprintf(l->target_block, sizeof l->target_block, "blk.%u.", (unsigned)i);
        snprintf(name, sizeof name, "%slayers.%u.", l->prefix, (unsigned)i);
        snprintf(l->source_block, sizeof l->source_block, "%s", name);
        QN_TRY(add_block(l, c->is_recurrent && c->is_recurrent[i]));
    }
    return add_mtp(l);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Whether a tensor is a scale of what is computed with packed weights: of activations or the KV cache. */
static bool is_activation_scale(const char *name)
{
    static const char *const ends[] = { ".input_scale", ".input_scale_ub", ".output_scale", ".k_scale", ".v_scale" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

/* GPTQ's packers give every matrix a bias, of zeros where the model has none. */
static qn_status is_zero_bias(const struct list *l, const qn_source *s, bool *is_zero)
{
    char codes[160];
    uint8_t bytes[COMPARED];
    const size_t n = strlen(s->name) - (sizeof "bias" - 1);
    *is_zero = ends_with(s->name, ".bias") && qn_print(codes, sizeof codes, "%.*sqweight", (int)n, s->name) &&
               qn_checkpoint_find(l->checkpoint, codes);
    for (uint64_t at = 0; *is_zero && at < s->tensor->bytes; at += sizeof bytes) {
        const uint64_t left = s->tensor->bytes - at;
        const size_t size = left < sizeof bytes ? (size_t)left : sizeof bytes;
        const int error = qn_safetensors_read(s->file, s->tensor, at, bytes, size);
        if (error)
            return qn_fail(QN_ERR_IO, "%s: tensor '%s': %s", qn_safetensors_path(s->file), s->name, strerror(error));
        for (size_t i = 0; i < size; i++)
            *is_zero &= bytes[i] == 0;
    }
    return QN_OK;
}

/* Marks tensors that a GGUF file does not need: the image encoder, an output matrix that equals the embedding, scales
 * of activations, biases of zeros, and frequencies that are computed. */
static qn_status drop_known(const struct list *l)
{
    for (size_t i = 0; i < l->checkpoint->n_sources; i++) {
        qn_source *s = &l->checkpoint->sources[i];
        if (s->used)
            continue;
        const bool vision = l->config->text != l->config->json &&
                            (strncmp(s->name, "model.visual.", 13) == 0 || strncmp(s->name, "visual.", 7) == 0);
        const bool output = l->targets->dropped_output && strncmp(s->name, "lm_head.", 8) == 0;
        const bool activation = !vision && is_activation_scale(s->name);
        bool zero;
        QN_TRY(is_zero_bias(l, s, &zero));
        l->targets->n_vision += vision;
        l->targets->n_activation += activation;
        s->used = vision || output || activation || zero || ends_with(s->name, ".rotary_emb.inv_freq");
    }
    return QN_OK;
}

qn_status qn_targets_list(qn_targets *targets, qn_config *config, qn_checkpoint *checkpoint)
{
    const bool nested = qn_checkpoint_has_prefix(checkpoint, "model.language_model.");
    struct list l = { .targets = targets, .config = config, .checkpoint = checkpoint };
    l.prefix = nested ? "model.language_model." : "model.";
    QN_TRY(add_all(&l));
    QN_TRY(drop_known(&l));
    const qn_source *unused = qn_checkpoint_first_unused(checkpoint);
    if (unused)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' is unknown to %s", qn_safetensors_path(unused->file),
                       unused->name, config->class_name);
    return QN_OK;
}

qn_status qn_targets_list_mtp(qn_targets *targets, qn_config *config, qn_checkpoint *checkpoint)
{
    struct list l = { .targets = targets, .config = config, .checkpoint = checkpoint };
    const char *prefix = find_mtp(checkpoint);
    if (!prefix)
        return qn_fail(QN_ERR_FORMAT, "%s: it has no MTP block: no tensor's name begins with '%s' or '%s'",
                       checkpoint->folder, qn_mtp_prefixes[0], qn_mtp_prefixes[1]);
    config->n_mtp = 1;
    QN_TRY(add_mtp(&l));
    for (size_t i = 0; i < checkpoint->n_sources; i++) {
        const qn_source *s = &checkpoint->sources[i];
        if (!s->used && strncmp(s->name, prefix, strlen(prefix)) == 0 && !is_activation_scale(s->name))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' is unknown in an MTP block of one layer",
                           qn_safetensors_path(s->file), s->name);
    }
    return QN_OK;
}

void qn_targets_free(qn_targets *targets)
{
    for (size_t i = 0; i < targets->n; i++) {
        qn_free(targets->at[i].values);
        qn_packed_free(targets->at[i].packed);
    }
    free(targets->at);
    *targets = (qn_targets){ 0 };
}
