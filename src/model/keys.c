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
