/* device/registry.h with one device, in place of the library's: the engine reaches devices through it alone. */
#include "counting.h"

#include "device/registry.h"

#include <stdio.h>
#include <string.h>

qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name)
{
    *name = (qn_device_name){ .kind = QN_DEVICE_AUTO, .text = text, .source = source };
    return strcmp(text, "counting") == 0 ? QN_OK : qn_fail(QN_ERR_INVALID, "%s: '%s' is not counting", source, text);
}

qn_status qn_device_name_select(const char *option, qn_device_name *name)
{
    return qn_device_name_parse("--device", option ? option : "counting", name);
}

qn_status qn_device_count(qn_device_kind kind, int *count)
{
    (void)kind;
    *count = 1;
    return QN_OK;
}

qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX])
{
    snprintf(text, QN_DEVICE_TEXT_MAX, "%s", name->text);
    return QN_OK;
}

qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device)
{
    (void)name;
    return counting_device_create(params, device);
}
