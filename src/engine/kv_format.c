/* Formats of KV caches: which one a model's cache gets, and its codecs. */
#include "engine/internal.h"

#include "base/append.h"
#include "model/kv_bias.h"

#include <string.h>

qn_status qn_kv_check(const char *kv)
{
    const qn_kv_format *format;
    return kv ? qn_kv_format_named(kv, &format) : QN_OK;
}

static bool has_codes(const qn_model *model, unsigned bits)
{
    return qn_aura_check_shape(model->hparams.head_dim, bits) == QN_OK;
}

qn_status qn_model_kv_format(const qn_model *model, const char *name, const qn_kv_format **format)
{
    QN_TRY(qn_kv_format_named(name ? name : "f16", format));
    if ((*format)->key_bits && (!has_codes(model, (*format)->key_bits) || qn_plan_has_large_kv_bias(&model->plan)))
        return qn_kv_format_named("f16", format);
    return QN_OK;
}

void qn_model_log_kv(const qn_model *model, const char *name, const qn_kv_format *format, qn_log_fn on_log, void *user)
{
    const qn_kv_format *requested;
    char line[256], layers[192];
    if (!on_log || !name || qn_kv_format_named(name, &requested) != QN_OK || requested == format)
        return;
    qn_text_buffer to = QN_APPEND_TO(line);
    if (has_codes(model, requested->key_bits)) {
        qn_plan_describe_kv_bias(&model->plan, layers, sizeof layers);
        qn_append(&to, "cache: all layers are stored as %s, not as %s, which would be inaccurate: %s", format->name, name,
                  layers);
    } else {
        qn_append(&to, "cache: heads of %u values cannot be stored as %s; they are stored as %s",
                  (unsigned)model->hparams.head_dim, name, format->name);
    }
    on_log(user, line);
}

static qn_status get_codec(qn_model *model, unsigned bits, const qn_aura_codec **out)
{
    if (bits && !model->codecs[bits])
        QN_TRY(qn_aura_codec_new(&model->codecs[bits], model->hparams.head_dim, bits, QN_KV_SEED));
    *out = model->codecs[bits];
    return QN_OK;
}

qn_status qn_model_kv_codecs(qn_model *model, const qn_kv_format *format, qn_kv_codecs *codecs)
{
    qn_model_lock(model);
    qn_status status = get_codec(model, format->key_bits, &codecs->keys);
    if (status == QN_OK)
        status = get_codec(model, format->value_bits, &codecs->values);
    qn_model_unlock(model);
    return status;
}
