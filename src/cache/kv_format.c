/* The table of cache formats. */
#include "cache/kv_format.h"

#include <string.h>

static const qn_kv_format formats[] = { { "f32", 0, 0, true },      { "f16", 0, 0, false },
                                        { "aura8", 8, 8, false },   { "aura6", 6, 6, false },
                                        { "aura4", 4, 4, false },   { "aura4v3", 4, 3, false },
                                        { "aura4v2", 4, 2, false }, { "aura3", 3, 3, false },
                                        { "aura2", 2, 2, false } };

qn_status qn_kv_format_named(const char *name, const qn_kv_format **format)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *format = &formats[i];
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "cache format '%s' is not supported (f32, f16, aura8, aura6, aura4, aura4v3, aura4v2, aura3, aura2)",
                   name);
}
