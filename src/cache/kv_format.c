/* The table of cache formats. */
#include "cache/kv_format.h"

#include <string.h>

static const qn_kv_format formats[] = {
    { "f16", 0, 0 },     { "aura8", 8, 8 },   { "aura6", 6, 6 }, { "aura4", 4, 4 },
    { "aura4v3", 4, 3 }, { "aura4v2", 4, 2 }, { "aura3", 3, 3 }, { "aura2", 2, 2 }
};

qn_status qn_kv_format_named(const char *name, const qn_kv_format **format)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *format = &formats[i];
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "cache format '%s' is not supported (f16, aura8, aura6, aura4, aura4v3, aura4v2, aura3, aura2)",
                   name);
}
