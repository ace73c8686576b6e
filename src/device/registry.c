/* The table of devices, and the functions over it. A build without cuda (QN_KERNELS_ONLY) parses the name of a CUDA
 * device and has none. */
#include "device/registry.h"

#include "base/append.h"
#include "base/cpu.h"
#include "cpu/device.h"
#ifdef QN_HAVE_CUDA
#include "cuda/runtime/runtime.h"
#include "cuda/executor/device.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINAL_DIGITS = 3 };

/* ---- The CPU ---- */

static qn_status count_cpu(int *count)
{
    *count = 1;
    return QN_OK;
}

static qn_status describe_cpu(int ordinal, char *text)
{
    (void)ordinal;
    unsigned features;
    QN_TRY(qn_cpu_features(&features));
    snprintf(text, QN_DEVICE_TEXT_MAX, "cpu, %s", qn_cpu_name(features));
    return QN_OK;
}

static qn_status open_cpu(int ordinal, const qn_device_params *params, qn_device **device)
{
    (void)ordinal;
    return qn_cpu_device_create(params, device);
}

/* ---- CUDA devices ---- */

#ifdef QN_HAVE_CUDA

static qn_status count_cuda(int *count)
{
    return qn_cuda_count(NULL, count);
}

static qn_status describe_cuda(int ordinal, char *text)
{
    qn_cuda_info info;
    QN_TRY(qn_cuda_read_info(NULL, ordinal, &info));
    snprintf(text, QN_DEVICE_TEXT_MAX, "cuda:%d, %s, compute capability %d.%d, %u multiprocessors, %.1f GiB, driver %d.%d",
             ordinal, info.name, info.major, info.minor, (unsigned)info.n_sms, (double)info.memory_bytes / 0x1p30,
             info.driver_version / 1000, info.driver_version % 1000 / 10);
    return QN_OK;
}

static qn_status open_cuda(int ordinal, const qn_device_params *params, qn_device **device)
{
    return qn_cuda_executor_create(&(qn_cuda_executor_params){ .base = *params, .ordinal = ordinal }, device);
}

#else

static qn_status no_cuda(void)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "this build has no CUDA devices");
}

static qn_status count_cuda(int *count)
{
    *count = 0;
    return no_cuda();
}

static qn_status describe_cuda(int ordinal, char *text)
{
    (void)ordinal, (void)text;
    return no_cuda();
}

static qn_status open_cuda(int ordinal, const qn_device_params *params, qn_device **device)
{
    (void)ordinal, (void)params;
    *device = NULL;
    return no_cuda();
}

#endif

/* ---- The table ---- */

static const struct device_row {
    const char *name;
    bool numbered; /* ":N" may follow the name */
    qn_status (*count)(int *count);
    qn_status (*describe)(int ordinal, char *text);
    qn_status (*open)(int ordinal, const qn_device_params *params, qn_device **device);
} devices[] = {
    [QN_DEVICE_CPU] = { "cpu", false, count_cpu, describe_cpu, open_cpu },
    [QN_DEVICE_CUDA] = { "cuda", true, count_cuda, describe_cuda, open_cuda },
};

enum { N_DEVICES = sizeof devices / sizeof devices[0] };
_Static_assert((int)N_DEVICES == (int)QN_DEVICE_AUTO, "every kind but QN_DEVICE_AUTO has a row");

/* ---- Names ---- */

static bool parse_row(const struct device_row *row, const char *text, int *ordinal)
{
    const size_t length = strlen(row->name);
    *ordinal = 0;
    if (strncmp(text, row->name, length) != 0)
        return false;
    if (!text[length])
        return true;
    const char *number = text + length + 1;
    const size_t digits = text[length] == ':' ? strspn(number, "0123456789") : 0;
    if (!row->numbered || digits == 0 || digits > MAX_ORDINAL_DIGITS || number[digits])
        return false;
    *ordinal = atoi(number);
    return true;
}

qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name)
{
    *name = (qn_device_name){ .kind = QN_DEVICE_AUTO, .text = text, .source = source };
    if (strcmp(text, "auto") == 0)
        return QN_OK;
    for (int kind = 0; kind < N_DEVICES; kind++)
        if (parse_row(&devices[kind], text, &name->ordinal)) {
            name->kind = (qn_device_kind)kind;
            return QN_OK;
        }
    char known[QN_DEVICE_TEXT_MAX];
    qn_text_buffer to = QN_APPEND_TO(known);
    for (int kind = 0; kind < N_DEVICES; kind++) {
        qn_append(&to, "%s, ", devices[kind].name);
        if (devices[kind].numbered)
            qn_append(&to, "%s:N, ", devices[kind].name);
    }
    return qn_fail(QN_ERR_INVALID, "%s: '%s' is not one of %sauto", source, text, known);
}

qn_status qn_device_name_select(const char *option, qn_device_name *name)
{
    const char *variable = getenv("QN_DEVICE");
    if (option || !variable || !*variable)
        return qn_device_name_parse("--device", option ? option : "auto", name);
    return qn_device_name_parse("the environment variable QN_DEVICE", variable, name);
}

/* ---- Devices ---- */

qn_status qn_device_count(qn_device_kind kind, int *count)
{
    return devices[kind == QN_DEVICE_AUTO ? QN_DEVICE_CPU : kind].count(count);
}

qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX])
{
    if (name->kind == QN_DEVICE_AUTO)
        return qn_fail(QN_ERR_INVALID, "%s: '%s' is more than one device", name->source, name->text);
    return devices[name->kind].describe(name->ordinal, text);
}

qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device)
{
    if (name->kind != QN_DEVICE_AUTO)
        return devices[name->kind].open(name->ordinal, params, device);
    /* QN_ERR_UNSUPPORTED: there is no GPU, or its kernels do not support the plan. */
    const qn_status status = devices[QN_DEVICE_CUDA].open(0, params, device);
    return status == QN_ERR_UNSUPPORTED ? devices[QN_DEVICE_CPU].open(0, params, device) : status;
}
