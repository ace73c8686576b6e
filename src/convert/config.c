/* Reads config.json. Missing keys have the defaults of transformers' configuration classes. */
#include "convert/config.h"

#include "base/memory.h"
#include "base/real.h"
#include "gguf/json_decode.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

enum { MAX_CONFIG_BYTES = 4 << 20, MAX_BLOCKS = 4096 };

static const struct class_row {
    const char *class_name, *architecture;
    qn_config_kind kind;
    uint32_t n_vocab, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_ctx; /* defaults; 0: derived from other values */
} classes[] = {
    { "LlamaForCausalLM", "llama", QN_CONFIG_LLAMA, 32000, 4096, 11008, 32, 0, 0, 2048 },
    { "Qwen2ForCausalLM", "qwen2", QN_CONFIG_QWEN2, 151936, 4096, 22016, 32, 32, 0, 32768 },
    { "Qwen3ForCausalLM", "qwen3", QN_CONFIG_QWEN3, 151936, 4096, 22016, 32, 32, 128, 32768 },
    { "Qwen3_5ForCausalLM", "qwen35", QN_CONFIG_QWEN35, 248320, 4096, 12288, 16, 4, 256, 32768 },
    { "Qwen3_5ForConditionalGeneration", "qwen35", QN_CONFIG_QWEN35, 248320, 4096, 12288, 16, 4, 256, 32768 },
};

/* Returns the value of a key in the text model's part, else in the whole file. NULL if it is missing or null. */
static const json_t *find(const qn_config *c, const char *key)
{
    const json_t *value = json_object_get(c->text, key);
    if (!value)
        value = json_object_get(c->json, key);
    return json_is_null(value) ? NULL : value;
}

static qn_status get_u32(const qn_config *c, const json_t *object, const char *key, uint32_t fallback, uint32_t low,
                         uint32_t high, uint32_t *out)
{
    const json_t *value = object ? json_object_get(object, key) : find(c, key);
    char found[QN_JSON_FOUND_BYTES];
    *out = fallback;
    if (!value || json_is_null(value)) {
        if (fallback < low)
            return qn_fail(QN_ERR_FORMAT, "%s: '%s' is missing", c->path, key);
        return QN_OK;
    }
    const double number = json_number_value(value); /* integers up to `high` are exact */
    if (!json_is_number(value) || !(number >= low && number <= high) || number != floor(number))
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %s, expected an integer of %u to %u", c->path, key,
                       qn_json_found(value, found), (unsigned)low, (unsigned)high);
    *out = (uint32_t)number;
    return QN_OK;
}

static qn_status get_number(const qn_config *c, const json_t *object, const char *key, double fallback, double low,
                            double high, double *out)
{
    const json_t *value = object ? json_object_get(object, key) : find(c, key);
    char found[QN_JSON_FOUND_BYTES];
    *out = fallback;
    if (!value || json_is_null(value))
        return QN_OK;
    *out = json_number_value(value);
    if (!json_is_number(value) || !(*out >= low && *out <= high))
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %s, expected a number of %g to %g", c->path, key,
                       qn_json_found(value, found), low, high);
    return QN_OK;
}

static qn_status find_class(qn_config *c, const struct class_row **row)
{
    const char *name = json_string_value(json_array_get(json_object_get(c->json, "architectures"), 0));
    if (!name)
        return qn_fail(QN_ERR_FORMAT, "%s: 'architectures' does not name a class", c->path);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(name, classes[i].class_name) == 0) {
            *row = &classes[i];
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: the class '%.60s' is not supported (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
                   "Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration)",
                   c->path, name);
}

/* Reads a flag; a missing one is false. */
static qn_status get_flag(const qn_config *c, const json_t *value, const char *key, bool *out)
{
    char found[QN_JSON_FOUND_BYTES];
    *out = json_is_true(value);
    if (!value || json_is_null(value) || json_is_boolean(value))
        return QN_OK;
    return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %s, expected true or false", c->path, key, qn_json_found(value, found));
}

/* Refuses layers with sliding-window attention. Qwen3.5's layer types are checked with its list. */
static qn_status reject_layer_types(const qn_config *c)
{
    const json_t *types = c->kind == QN_CONFIG_QWEN35 ? NULL : find(c, "layer_types");
    char found[QN_JSON_FOUND_BYTES];
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: 'layer_types': entry %zu is %s, only \"full_attention\" is supported", c->path, i,
                           qn_json_found(json_array_get(types, i), found));
    }
    return QN_OK;
}

/* Refuses settings that change the computation in unsupported ways. */
static qn_status reject_unsupported(const qn_config *c)
{
    static const char *const flags[] = { "attention_bias", "mlp_bias", "use_sliding_window" };
    bool is_set;
    const char *activation = json_string_value(find(c, "hidden_act"));
    if (activation && strcmp(activation, "silu") != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: hidden_act is '%.40s', only silu is supported", c->path, activation);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        QN_TRY(get_flag(c, find(c, flags[i]), flags[i], &is_set));
        if (is_set)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: '%s' is true, which is not supported", c->path, flags[i]);
    }
    QN_TRY(reject_layer_types(c));
    if (json_is_false(find(c, "is_causal")))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: 'is_causal' is false, only causal attention is supported", c->path);
    return QN_OK;
}

static qn_status read_packing(qn_config *c)
{
    const json_t *packing = find(c, "quantization_config"), *dtype = find(c, "dtype");
    const char *name = json_string_value(dtype ? dtype : find(c, "torch_dtype"));
    c->is_f16 = name && strcmp(name, "float16") == 0;
    return qn_packing_read(&c->packing, c->path, packing ? packing : find(c, "quantization"));
}

static qn_status read_shape(qn_config *c, const struct class_row *row)
{
    QN_TRY(get_u32(c, NULL, "vocab_size", row->n_vocab, 1, 1 << 24, &c->n_vocab));
    QN_TRY(get_u32(c, NULL, "hidden_size", row->n_embd, 1, 1 << 20, &c->n_embd));
    QN_TRY(get_u32(c, NULL, "intermediate_size", row->n_ff, 1, 1 << 22, &c->n_ff));
    QN_TRY(get_u32(c, NULL, "num_hidden_layers", 32, 1, MAX_BLOCKS, &c->n_layers));
    QN_TRY(get_u32(c, NULL, "num_attention_heads", row->n_heads, 1, 4096, &c->n_heads));
    QN_TRY(get_u32(c, NULL, "num_key_value_heads", row->n_kv_heads ? row->n_kv_heads : c->n_heads, 1, 4096,
                   &c->n_kv_heads));
    QN_TRY(get_u32(c, NULL, "head_dim", row->head_dim ? row->head_dim : c->n_embd / c->n_heads, 1, 1024, &c->head_dim));
    QN_TRY(get_u32(c, NULL, "max_position_embeddings", row->n_ctx, 1, 1u << 30, &c->n_ctx));
    QN_TRY(get_number(c, NULL, "rms_norm_eps", 1e-6, 1e-30, 0.5, &c->eps));
    c->writes_head_dim = c->kind != QN_CONFIG_QWEN2 || find(c, "head_dim");
    c->n_rot = c->head_dim;
    /* In a model with two configurations, transformers ties the weights by the outer one. */
    const json_t *tied = json_object_get(c->json, "tie_word_embeddings");
    QN_TRY(get_flag(c, tied ? tied : json_object_get(c->text, "tie_word_embeddings"), "tie_word_embeddings", &c->tied));
    if (c->head_dim % 2)
        return qn_fail(QN_ERR_FORMAT, "%s: 'head_dim' is %u, expected an even number", c->path, (unsigned)c->head_dim);
    return QN_OK;
}

/* ---- Rope ---- */

enum {
    PLAIN = 1 << QN_CONFIG_ROPE_PLAIN,
    LINEAR = 1 << QN_CONFIG_ROPE_LINEAR,
    YARN = 1 << QN_CONFIG_ROPE_YARN,
    LLAMA3 = 1 << QN_CONFIG_ROPE_LLAMA3,
    ALL = PLAIN | LINEAR | YARN | LLAMA3
};

/* The keys of a rope block in transformers (RopeParameters, modeling_rope_utils.py), and the types that use them.
 * The last two are from other programs; transformers behaves as if they were 1. */
static const struct rope_key {
    const char *name;
    unsigned types;
    bool is_one;
} rope_keys[] = {
    { "rope_type", ALL, false },
    { "type", ALL, false },
    { "rope_theta", ALL, false },
    { "partial_rotary_factor", ALL, false },
    { "mrope_section", ALL, false },
    { "mrope_interleaved", ALL, false },
    { "factor", LINEAR | YARN | LLAMA3, false },
    { "original_max_position_embeddings", YARN | LLAMA3, false },
    { "attention_factor", YARN, false },
    { "beta_fast", YARN, false },
    { "beta_slow", YARN, false },
    { "mscale", YARN, false },
    { "mscale_all_dim", YARN, false },
    { "truncate", YARN, false },
    { "low_freq_factor", LLAMA3, false },
    { "high_freq_factor", LLAMA3, false },
    { "short_factor", 0, false },
    { "long_factor", 0, false },
    { "extrapolation_factor", ALL, true },
    { "attn_factor", ALL, true },
};

static qn_status check_rope_key(qn_config *c, const char *block, const char *name, const json_t *value)
{
    const struct rope_key *key = NULL;
    for (size_t i = 0; i < sizeof rope_keys / sizeof *rope_keys; i++)
        if (strcmp(name, rope_keys[i].name) == 0)
            key = &rope_keys[i];
    if (!key)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: '%s' has the unknown key '%.60s', which may change the model", c->path,
                       block, name);
    if (key->is_one && !(json_is_number(value) && json_number_value(value) == 1))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: '%s' of '%s' is not 1, and transformers does not know the key", c->path,
                       name, block);
    if (!(key->types & 1u << c->rope) && !c->rope_ignored)
        c->rope_ignored = key->name;
    return QN_OK;
}

static qn_status find_rope_type(qn_config *c)
{
    const json_t *value = json_object_get(c->rope_json, "rope_type");
    value = value ? value : json_object_get(c->rope_json, "type"); /* the older spelling */
    const char *type = json_string_value(value);
    char found[QN_JSON_FOUND_BYTES];
    if (value && !type)
        return qn_fail(QN_ERR_FORMAT, "%s: rope_type is %s, expected a string", c->path, qn_json_found(value, found));
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)
        return QN_OK;
    if (strcmp(type, "linear") == 0)
        c->rope = QN_CONFIG_ROPE_LINEAR;
    else if (strcmp(type, "yarn") == 0)
        c->rope = QN_CONFIG_ROPE_YARN;
    else if (strcmp(type, "llama3") == 0 && c->kind == QN_CONFIG_LLAMA)
        c->rope = QN_CONFIG_ROPE_LLAMA3;
    else
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: rope_type is '%.40s', which is not supported for %s", c->path, type,
                       c->class_name);
    return QN_OK;
}

double qn_config_yarn_mscale(double factor, double multiplier)
{
    return factor > 1 ? 0.1 * multiplier * qn_real_log(factor) + 1 : 1;
}

/* Reads YaRN's values by transformers' rules: an explicit attention factor wins; otherwise mscale and mscale_all_dim,
 * if both are present and not 0. Betas of 0 mean their defaults. */
static qn_status read_yarn(qn_config *c)
{
    const json_t *rope = c->rope_json, *truncate = json_object_get(rope, "truncate");
    double mscale, mscale_all_dim;
    char found[QN_JSON_FOUND_BYTES];
    if (c->rope_base <= 1)
        return qn_fail(QN_ERR_FORMAT, "%s: 'rope_theta' is %g, expected more than 1 with rope_type yarn", c->path,
                       c->rope_base);
    QN_TRY(get_number(c, rope, "mscale", 0, 0, 1e3, &mscale));
    QN_TRY(get_number(c, rope, "mscale_all_dim", 0, 0, 1e3, &mscale_all_dim));
    const double implied =
        mscale != 0 && mscale_all_dim != 0
            ? qn_config_yarn_mscale(c->rope_factor, mscale) / qn_config_yarn_mscale(c->rope_factor, mscale_all_dim)
            : qn_config_yarn_mscale(c->rope_factor, 1);
    QN_TRY(get_number(c, rope, "attention_factor", implied, 0.01, 100, &c->rope_attn_factor));
    QN_TRY(get_number(c, rope, "beta_fast", 0, 0, 1e6, &c->rope_beta_fast));
    QN_TRY(get_number(c, rope, "beta_slow", 0, 0, 1e6, &c->rope_beta_slow));
    if (c->rope_beta_fast == 0)
        c->rope_beta_fast = 32;
    if (c->rope_beta_slow == 0)
        c->rope_beta_slow = 1;
    if (c->rope_beta_fast < c->rope_beta_slow)
        return qn_fail(QN_ERR_FORMAT, "%s: 'beta_fast' is %g, expected at least 'beta_slow', %g", c->path,
                       c->rope_beta_fast, c->rope_beta_slow);
    if (truncate && !json_is_null(truncate) && !json_is_boolean(truncate))
        return qn_fail(QN_ERR_FORMAT, "%s: 'truncate' is %s, expected true or false", c->path,
                       qn_json_found(truncate, found));
    c->rope_untruncated = truncate && !json_is_true(truncate); /* Python: null is false */
    return QN_OK;
}

static qn_status read_scaling(qn_config *c)
{
    const json_t *rope = c->rope_json;
    QN_TRY(get_number(c, rope, "factor", 0, 1e-6, 1e6, &c->rope_factor));
    if (c->rope_factor == 0)
        return qn_fail(QN_ERR_FORMAT, "%s: rope_type needs a 'factor', which is missing", c->path);
    if (c->rope == QN_CONFIG_ROPE_LINEAR)
        return QN_OK;
    QN_TRY(get_u32(c, rope, "original_max_position_embeddings", c->n_ctx, 1, 1u << 30, &c->rope_original_ctx));
    QN_TRY(
        get_u32(c, NULL, "original_max_position_embeddings", c->rope_original_ctx, 1, 1u << 30, &c->rope_original_ctx));
    if (c->rope == QN_CONFIG_ROPE_YARN)
        return read_yarn(c);
    QN_TRY(get_number(c, rope, "low_freq_factor", 1, 1e-3, 1e6, &c->rope_low_factor));
    return get_number(c, rope, "high_freq_factor", 4, 1e-3, 1e6, &c->rope_high_factor);
}

/* Refuses partial rotation, except of Qwen3.5: other classes rotate whole heads. */
static qn_status reject_partial(const qn_config *c, const json_t *object)
{
    double partial;
    QN_TRY(get_number(c, object, "partial_rotary_factor", 1, 0, 1, &partial));
    return partial == 1 || c->kind == QN_CONFIG_QWEN35
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED, "%s: 'partial_rotary_factor' is %g, which is not supported for %s",
                         c->path, partial, c->class_name);
}

static qn_status read_rope(qn_config *c)
{
    static const char newer[] = "rope_parameters", older[] = "rope_scaling";
    const char *block = json_object_size(find(c, older)) || (find(c, older) && !find(c, newer)) ? older : newer, *name;
    json_t *value;
    char found[QN_JSON_FOUND_BYTES];
    c->rope_json = find(c, block);
    QN_TRY(get_number(c, NULL, "rope_theta", 10000, 1e-6, 1e30, &c->rope_base));
    QN_TRY(reject_partial(c, NULL));
    if (!c->rope_json)
        return QN_OK;
    if (!json_is_object(c->rope_json))
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %s, expected an object", c->path, block,
                       qn_json_found(c->rope_json, found));
    QN_TRY(find_rope_type(c));
    json_object_foreach((json_t *)c->rope_json, name, value)
    {
        if (!json_is_null(value))
            QN_TRY(check_rope_key(c, block, name, value));
    }
    QN_TRY(reject_partial(c, c->rope_json));
    QN_TRY(get_number(c, c->rope_json, "rope_theta", c->rope_base, 1e-6, 1e30, &c->rope_base));
    return c->rope == QN_CONFIG_ROPE_PLAIN ? QN_OK : read_scaling(c);
}

/* Sets the interval from the first attention layer, if the other layers follow it; otherwise leaves it. */
static void find_interval(qn_config *c)
{
    uint32_t first = 0;
    while (first < c->n_layers && c->is_recurrent[first])
        first++;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->is_recurrent[i] != ((i + 1) % (first + 1) != 0))
            return;
    c->interval = first + 1;
}

static qn_status read_layer_types(qn_config *c)
{
    const json_t *types = find(c, "layer_types");
    char found[QN_JSON_FOUND_BYTES];
    QN_TRY(get_u32(c, NULL, "full_attention_interval", 4, 1, UINT32_MAX, &c->interval));
    QN_TRY(qn_alloc(&c->is_recurrent, c->n_layers + c->n_mtp, sizeof *c->is_recurrent, "kinds of layers"));
    if (types && json_array_size(types) != c->n_layers)
        return qn_fail(QN_ERR_FORMAT, "%s: 'layer_types' has %zu entries for %u layers", c->path,
                       json_array_size(types), (unsigned)c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        c->is_recurrent[i] = type ? strcmp(type, "linear_attention") == 0 : (i + 1) % c->interval != 0;
        if (types && (!type || (!c->is_recurrent[i] && strcmp(type, "full_attention") != 0)))
            return qn_fail(QN_ERR_FORMAT,
                           "%s: 'layer_types': entry %u is %s, expected \"linear_attention\" or \"full_attention\"",
                           c->path, (unsigned)i, qn_json_found(json_array_get(types, i), found));
    }
    if (types)
        find_interval(c);
    return QN_OK;
}

static qn_status read_qwen35(qn_config *c)
{
    double partial;
    QN_TRY(get_u32(c, NULL, "linear_num_key_heads", 16, 1, 4096, &c->n_k_heads));
    QN_TRY(get_u32(c, NULL, "linear_num_value_heads", 32, 1, 4096, &c->n_v_heads));
    QN_TRY(get_u32(c, NULL, "linear_key_head_dim", 128, 1, 1024, &c->head_k));
    QN_TRY(get_u32(c, NULL, "linear_value_head_dim", 128, 1, 1024, &c->head_v));
    QN_TRY(get_u32(c, NULL, "linear_conv_kernel_dim", 4, 2, 64, &c->taps));
    c->names_mtp = find(c, "mtp_num_hidden_layers") != NULL;
    QN_TRY(get_u32(c, NULL, "mtp_num_hidden_layers", 0, 0, MAX_BLOCKS - c->n_layers, &c->n_mtp));
    if (c->n_v_heads % c->n_k_heads)
        return qn_fail(QN_ERR_FORMAT, "%s: linear_num_value_heads %u is not a multiple of linear_num_key_heads %u",
                       c->path, (unsigned)c->n_v_heads, (unsigned)c->n_k_heads);
    QN_TRY(get_number(c, NULL, "partial_rotary_factor", 0.25, 0, 1, &partial));
    QN_TRY(get_number(c, c->rope_json ? c->rope_json : c->text, "partial_rotary_factor", partial, 0, 1, &partial));
    c->n_rot = (uint32_t)(c->head_dim * partial);
    if (c->n_rot < 2 || c->n_rot % 2)
        return qn_fail(QN_ERR_FORMAT, "%s: partial_rotary_factor %g of %u elements is not an even number", c->path,
                       partial, (unsigned)c->head_dim);
    /* llama.cpp requires the sections, which matter only for images; these are transformers' defaults. */
    memcpy(c->rope_sections, (uint32_t[4]){ 11, 11, 10, 0 }, sizeof c->rope_sections);
    const json_t *sections = json_object_get(c->rope_json, "mrope_section");
    if (sections) {
        memset(c->rope_sections, 0, sizeof c->rope_sections);
        for (size_t i = 0; i < 4 && i < json_array_size(sections); i++)
            c->rope_sections[i] = (uint32_t)(json_integer_value(json_array_get(sections, i)) & INT32_MAX);
    }
    return read_layer_types(c);
}

qn_status qn_config_read(qn_config *c, const char *path)
{
    const struct class_row *row = NULL;
    c->path = path;
    QN_TRY(qn_json_read(path, MAX_CONFIG_BYTES, true, &c->json));
    QN_TRY(find_class(c, &row));
    c->kind = row->kind;
    c->class_name = row->class_name;
    c->architecture = row->architecture;
    const json_t *text = json_object_get(c->json, "text_config");
    c->text = json_is_object(text) ? text : c->json;
    QN_TRY(reject_unsupported(c));
    QN_TRY(read_packing(c));
    QN_TRY(read_shape(c, row));
    QN_TRY(read_rope(c));
    return c->kind == QN_CONFIG_QWEN35 ? read_qwen35(c) : QN_OK;
}

qn_status qn_config_set_mtp(qn_config *c, uint32_t n_mtp)
{
    bool *kinds;
    QN_TRY(qn_alloc(&kinds, c->n_layers + n_mtp, sizeof *kinds, "kinds of layers"));
    memcpy(kinds, c->is_recurrent, c->n_layers * sizeof *kinds);
    qn_free(c->is_recurrent);
    c->is_recurrent = kinds;
    c->n_mtp = n_mtp;
    return QN_OK;
}

void qn_config_free(qn_config *c)
{
    json_decref(c->json);
    qn_free(c->is_recurrent);
    *c = (qn_config){ 0 };
}

bool qn_config_has_rope_factors(const qn_config *c)
{
    return c->rope == QN_CONFIG_ROPE_LLAMA3 || c->rope_untruncated;
}

/* Sources of the rule: Meta's Llama 3.1 and transformers (modeling_rope_utils.py). */
static double llama3_factor(const qn_config *c, double wave)
{
    const double low = c->rope_original_ctx / c->rope_low_factor, high = c->rope_original_ctx / c->rope_high_factor;
    const double smooth =
        (c->rope_original_ctx / wave - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    if (wave < high)
        return 1;
    return wave > low ? c->rope_factor : 1 / ((1 - smooth) / c->rope_factor + smooth);
}

/* Returns the (fractional) index of the pair that makes `turns` rotations over the training context. */
static double yarn_pair(const qn_config *c, double turns)
{
    const double two_pi = 2 * pi;
    return c->n_rot * qn_real_log(c->rope_original_ctx / (turns * two_pi)) / (2 * qn_real_log(c->rope_base));
}

static double yarn_factor(const qn_config *c, double pair)
{
    const double begin = fmax(yarn_pair(c, c->rope_beta_fast), 0),
                 end = fmin(yarn_pair(c, c->rope_beta_slow), c->n_rot - 1.0);
    const double length = end == begin ? 0.001 : end - begin, ramp = fmin(fmax((pair - begin) / length, 0), 1);
    return 1 / (ramp / c->rope_factor + 1 - ramp);
}

void qn_config_rope_factors(const qn_config *c, float *factors)
{
    for (uint32_t i = 0; i < c->n_rot / 2; i++)
        factors[i] = (float)(c->rope == QN_CONFIG_ROPE_LLAMA3
                                 ? llama3_factor(c, 2 * pi * qn_real_pow(c->rope_base, 2.0 * i / c->n_rot))
                                 : yarn_factor(c, i));
}
