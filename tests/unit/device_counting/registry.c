/* device/registry.h with one backend, in place of the library's: the engine reaches devices through it alone. */
#include "counting.h"

#include "device/registry.h"

#include <stdio.h>
#include <string.h>

static qn_status count(int *n)
{
    *n = 1;
    return QN_OK;
}

static qn_status describe(int ordinal, char text[QN_DEVICE_TEXT_MAX])
{
    snprintf(text, QN_DEVICE_TEXT_MAX, "counting:%d", ordinal);
    return QN_OK;
}

static qn_status memory_of(int ordinal, uint64_t *bytes)
{
    (void)ordinal;
    *bytes = UINT64_MAX;
    return QN_OK;
}

static qn_status open_device(int ordinal, const qn_device_params *params, qn_device **device)
{
    (void)ordinal;
    return counting_device_create(params, device);
}

static const qn_backend backend = {
    .name = "counting", .count = count, .describe = describe, .memory = memory_of, .open = open_device
};

const qn_backend *qn_device_backend(size_t i)
{
    return i ? NULL : &backend;
}

qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name)
{
    *name = (qn_device_name){ .backend = &backend, .text = text, .source = source };
    return strcmp(text, backend.name) == 0 ? QN_OK : qn_fail(QN_ERR_INVALID, "%s: '%s' is not counting", source, text);
}

qn_status qn_device_name_select(const char *option, qn_device_name *name)
{
    return qn_device_name_parse("--device", option ? option : backend.name, name);
}

bool qn_device_drafts(const qn_device_name *name)
{
    return name->backend->drafts;
}

bool qn_device_is_cpu(const qn_device_name *name)
{
    (void)name;
    return false;
}

qn_status qn_device_count(const qn_device_name *name, int *n)
{
    return name->backend->count(n);
}

qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX])
{
    return name->backend->describe(name->ordinal, text);
}

qn_status qn_device_memory(const qn_device_name *name, uint64_t *bytes)
{
    return name->backend->memory(name->ordinal, bytes);
}

qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device)
{
    return name->backend->open(name->ordinal, params, device);
}
