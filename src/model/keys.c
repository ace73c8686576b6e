/* Reads keys that begin with the architecture's name. */
#include "model/keys.h"

#include "base/status.h"

#include <stdio.h>

qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    return qn_gguf_get_u32(file, key, required, out);
}

qn_status qn_key_layers_u32(const qn_gguf *file, const char *architecture, const char *name, bool required,
                            uint32_t n_layers, uint32_t n_blocks, bool zeros, uint32_t *out)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    const qn_gguf_kv *list = qn_gguf_find(file, key);
    if (!list || list->type != QN_GGUF_ARRAY)
        return qn_gguf_get_u32(file, key, required, out);
    if (list->count != n_layers && list->count != n_blocks)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' has %llu elements, expected %u, one per layer", qn_gguf_path(file),
                       key, (unsigned long long)list->count, (unsigned)n_layers);
    int32_t common = -1, value;
    for (uint32_t i = 0, first = 0; i < n_layers; i++) {
        QN_TRY(qn_gguf_array_i32(file, list, i, &value));
        if (value < 0)
            return qn_fail(QN_ERR_FORMAT, "%s: key '%s': element %u is %d, expected no negative number",
                           qn_gguf_path(file), key, (unsigned)i, (int)value);
        if (zeros && value == 0)
            continue;
        if (common < 0) {
            common = value;
            first = i;
        }
        if (value != common)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: key '%s' is %d in layer %u and %d in layer %u: layers of different shapes are not "
                           "supported",
                           qn_gguf_path(file), key, (int)common, (unsigned)first, (int)value, (unsigned)i);
    }
    if (common < 0)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is 0 in all layers", qn_gguf_path(file), key);
    *out = (uint32_t)common;
    return QN_OK;
}

qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    return qn_gguf_get_f32(file, key, required, out);
}

qn_status qn_check_range(const qn_gguf *file, const char *what, uint32_t value, uint32_t low, uint32_t high)
{
    if (value < low || value > high)
        return qn_fail(QN_ERR_FORMAT, "%s: %s is %u, expected %u to %u", qn_gguf_path(file), what, (unsigned)value,
                       (unsigned)low, (unsigned)high);
    return QN_OK;
}
