/* Reads the keys of rotary position embedding. plan/rope.h computes frequencies and components of pairs,
 * kernels/rope/rope.h the angles. */
#include "model/rope.h"

#include "base/real.h"
#include "model/keys.h"

#include <stdio.h>

/* Reads a float key in [low, high]. If it is missing, *out is not changed. */
static qn_status read_number(const qn_gguf *file, const char *architecture, const char *name, double low, double high,
                             float *out)
{
    QN_TRY(qn_key_f32(file, architecture, name, false, out));
    if (!((double)*out >= low && (double)*out <= high))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s.%s' is %g, expected %g to %g", qn_gguf_path(file), architecture,
                       name, (double)*out, low, high);
    return QN_OK;
}

static bool has_key(const qn_gguf *file, const char *architecture, const char *name)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    return qn_gguf_find(file, key) != NULL;
}

/* Reads the scaling factor; 1 if the file has none. The older key is read if the newer one is missing. Some converters
 * write a factor of 0 without a type for no scaling. */
static qn_status read_factor(const qn_gguf *file, const char *a, bool has_type, double *out)
{
    static const char newer[] = "rope.scaling.factor", older[] = "rope.scale_linear";
    const char *name = has_key(file, a, newer) ? newer : older;
    float factor = 1;
    QN_TRY(qn_key_f32(file, a, name, false, &factor));
    if (factor == 0 && !has_type)
        factor = 1;
    else
        QN_TRY(read_number(file, a, name, 1e-6, 1e6, &factor));
    *out = (double)factor;
    return QN_OK;
}

/* Reads YaRN's factor of cosines and sines: (1 + 0.1 ln(factor)) / (1 + multiplier * 0.1 ln(factor)), with
 * yarn_log_multiplier, default 0. yarn_attn_factor replaces the whole expression, like attention_factor in Hugging
 * Face's configuration, from which converters copy it. */
static qn_status read_yarn_attn_factor(const qn_gguf *file, const char *a, qn_rope_scaling *scaling)
{
    const double step = scaling->factor > 1 ? 0.1 * qn_real_log(scaling->factor) : 0;
    float multiplier = 0, attn_factor;
    QN_TRY(read_number(file, a, "rope.scaling.yarn_log_multiplier", 0, 100, &multiplier));
    attn_factor = scaling->ext_factor > 0 ? (float)((1 + step) / (1 + (double)multiplier * step)) : 1;
    QN_TRY(read_number(file, a, "rope.scaling.yarn_attn_factor", 0.01, 100, &attn_factor));
    scaling->attn_factor *= (double)attn_factor;
    return QN_OK;
}

static qn_status read_yarn(const qn_gguf *file, qn_hparams *h)
{
    static const char original[] = "rope.scaling.original_context_length", ext[] = "rope.scaling.yarn_ext_factor";
    const char *a = h->architecture;
    uint32_t original_ctx = h->n_ctx_train;
    float ext_factor = -1, fast = 32, slow = 1; /* -1: llama.cpp's value of an ext_factor that is not set */
    QN_TRY(qn_key_f32(file, a, ext, false, &ext_factor));
    if (ext_factor == -1)
        ext_factor = 1;
    else
        QN_TRY(read_number(file, a, ext, 0, 1, &ext_factor));
    QN_TRY(qn_key_u32(file, a, original, false, &original_ctx));
    QN_TRY(qn_check_range(file, original, original_ctx, 1, 1u << 30));
    QN_TRY(read_number(file, a, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &fast));
    QN_TRY(read_number(file, a, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &slow));
    if (fast < slow)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: key '%s.rope.scaling.yarn_beta_fast' is %g, expected at least yarn_beta_slow, %g",
                       qn_gguf_path(file), a, (double)fast, (double)slow);
    if (!(h->rope_base > 1))
        return qn_fail(QN_ERR_FORMAT, "%s: rope.freq_base is %g, expected more than 1 with scaling of type yarn",
                       qn_gguf_path(file), (double)h->rope_base);
    h->rope_scaling.ext_factor = (double)ext_factor;
    qn_rope_yarn_ramp(&h->rope_scaling, (double)h->rope_base, h->n_rot, original_ctx, (double)fast, (double)slow);
    return read_yarn_attn_factor(file, a, &h->rope_scaling);
}

/* Reads the keys of position scaling. A factor without a type is linear scaling. attn_factor applies to all types. */
static qn_status read_scaling(const qn_gguf *file, qn_hparams *h)
{
    const char *a = h->architecture;
    char key[128];
    qn_string type = { "", 0 };
    float attn_factor = 1;
    h->rope_scaling = QN_ROPE_UNSCALED;
    snprintf(key, sizeof key, "%s.rope.scaling.type", a);
    QN_TRY(qn_gguf_get_string(file, key, false, &type));
    const bool yarn = qn_string_equals(type, "yarn"), none = qn_string_equals(type, "none");
    if (type.length && !none && !yarn && !qn_string_equals(type, "linear"))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: %s is '%.*s', expected none, linear or yarn", qn_gguf_path(file), key,
                       (int)(type.length < 64 ? type.length : 64), type.data);
    QN_TRY(read_number(file, a, "rope.scaling.attn_factor", 0.01, 100, &attn_factor));
    h->rope_scaling.attn_factor = (double)attn_factor;
    if (none)
        return QN_OK;
    QN_TRY(read_factor(file, a, type.length > 0, &h->rope_scaling.factor));
    return yarn && h->rope_scaling.factor != 1 ? read_yarn(file, h) : QN_OK;
}

qn_status qn_rope_read(const qn_gguf *file, qn_hparams *h)
{
    const char *a = h->architecture;
    h->n_rot = h->head_dim;
    h->rope_base = 10000;
    QN_TRY(qn_key_u32(file, a, "rope.dimension_count", false, &h->n_rot));
    QN_TRY(qn_key_f32(file, a, "rope.freq_base", false, &h->rope_base));
    if (h->n_rot % 2 || h->n_rot < 2 || h->n_rot > h->head_dim)
        return qn_fail(QN_ERR_FORMAT, "%s: rope.dimension_count is %u, expected an even number of 2 to %u",
                       qn_gguf_path(file), (unsigned)h->n_rot, (unsigned)h->head_dim);
    if (!(h->rope_base > 0))
        return qn_fail(QN_ERR_FORMAT, "%s: rope.freq_base is %g, expected more than 0", qn_gguf_path(file),
                       (double)h->rope_base);
    return read_scaling(file, h);
}

qn_status qn_rope_read_sections(const qn_gguf *file, qn_hparams *h)
{
    char key[128];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", h->architecture);
    const qn_gguf_kv *list = qn_gguf_find(file, key);
    if (!list)
        return QN_OK;
    if (list->type != QN_GGUF_ARRAY || list->count < 3 || list->count > QN_ROPE_COMPONENTS)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is not an array of 3 or %d numbers of pairs", qn_gguf_path(file),
                       key, QN_ROPE_COMPONENTS);
    h->rope_sections = (qn_rope_sections){ .interleaved = true };
    for (uint64_t i = 0; i < list->count; i++) {
        int32_t pairs;
        QN_TRY(qn_gguf_array_i32(file, list, i, &pairs));
        if (pairs < 0)
            return qn_fail(QN_ERR_FORMAT, "%s: key '%s': element %llu is %d, expected at least 0", qn_gguf_path(file),
                           key, (unsigned long long)i, (int)pairs);
        h->rope_sections.pairs[i] = (uint32_t)pairs;
    }
    h->has_rope_sections = true;
    return QN_OK;
}
