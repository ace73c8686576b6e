/* Chooses the format of a model's KV cache. */
#include "engine/internal.h"

#include "base/append.h"
#include "model/kv_bias.h"
#include "plan/limits.h"

#include <string.h>

qn_status qn_kv_check(const char *kv)
{
    const qn_kv_format *format;
    return kv ? qn_kv_format_named(kv, &format) : QN_OK;
}

qn_status qn_model_kv_format(const qn_model *model, const char *name, const qn_kv_format **format)
{
    QN_TRY(qn_kv_format_named(name ? name : "f16", format));
    if ((*format)->key_bits && (!qn_aura_has_dim(model->hparams.head_dim) || qn_plan_has_large_kv_bias(&model->plan)))
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
    if (qn_aura_has_dim(model->hparams.head_dim)) {
        qn_plan_describe_kv_bias(&model->plan, layers, sizeof layers);
        qn_append(&to, "cache: all layers are stored as %s, not as %s, which would be inaccurate: %s", format->name,
                  name, layers);
    } else {
        qn_append(&to, "cache: heads of %u values cannot be stored as %s; they are stored as %s",
                  (unsigned)model->hparams.head_dim, name, format->name);
    }
    on_log(user, line);
}
