/* The list of backends, and the functions over it. Only this file includes the backends' headers. */
#include "device/registry.h"

#include "base/append.h"
#include "base/available.h"
#include "base/cpu.h"
#include "cpu/device.h"
#ifdef QN_HAVE_CUDA
#include "cuda/backend.h"
#endif
#ifdef QN_HAVE_VULKAN
#include "vulkan/backend.h"
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

static qn_status memory_of_cpu(int ordinal, uint64_t *bytes)
{
    (void)ordinal;
    *bytes = qn_available_memory();
    return QN_OK;
}

static qn_status open_cpu(int ordinal, const qn_device_params *params, qn_device **device)
{
    (void)ordinal;
    return qn_cpu_device_create(params, device);
}

static const qn_backend cpu_backend = { .name = "cpu",
                                        .drafts = true,
                                        .count = count_cpu,
                                        .describe = describe_cpu,
                                        .memory = memory_of_cpu,
                                        .open = open_cpu };

/* ---- The list ---- */

/* A backend that a build may lack still has a name, but no functions. */
#ifndef QN_HAVE_CUDA
static const qn_backend qn_cuda_backend = { .name = "cuda", .is_numbered = true, .drafts = true };
#endif
#ifndef QN_HAVE_VULKAN
static const qn_backend qn_vulkan_backend = { .name = "vulkan", .is_numbered = true };
#endif

/* The CPU comes first; "auto" tries the others in this order. */
static const qn_backend *const backends[] = { &cpu_backend, &qn_cuda_backend, &qn_vulkan_backend };

enum { N_BACKENDS = sizeof backends / sizeof *backends };

static bool is_present(const qn_backend *backend)
{
    return backend->open != NULL;
}

/* Whether "auto" may take its devices. */
static bool is_automatic(const qn_backend *backend)
{
    return is_present(backend) && (!backend->is_automatic || backend->is_automatic());
}

static qn_status check_present(const qn_backend *backend)
{
    return is_present(backend) ? QN_OK : qn_fail(QN_ERR_UNSUPPORTED, "this build has no %s devices", backend->name);
}

const qn_backend *qn_device_backend(size_t i)
{
    for (size_t b = 0; b < N_BACKENDS; b++)
        if (is_present(backends[b]) && i-- == 0)
            return backends[b];
    return NULL;
}

/* ---- Names ---- */

static bool parse_name(const qn_backend *backend, const char *text, int *ordinal)
{
    const size_t length = strlen(backend->name);
    *ordinal = 0;
    if (strncmp(text, backend->name, length) != 0)
        return false;
    if (!text[length])
        return true;
    const char *number = text + length + 1;
    const size_t digits = text[length] == ':' ? strspn(number, "0123456789") : 0;
    if (!backend->is_numbered || digits == 0 || digits > MAX_ORDINAL_DIGITS || number[digits])
        return false;
    *ordinal = atoi(number);
    return true;
}

qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name)
{
    *name = (qn_device_name){ .text = text, .source = source };
    if (strcmp(text, "auto") == 0)
        return QN_OK;
    for (size_t b = 0; b < N_BACKENDS; b++)
        if (parse_name(backends[b], text, &name->ordinal)) {
            name->backend = backends[b];
            return QN_OK;
        }
    char known[QN_DEVICE_TEXT_MAX];
    qn_text_buffer to = QN_APPEND_TO(known);
    for (size_t b = 0; b < N_BACKENDS; b++) {
        qn_append(&to, "%s, ", backends[b]->name);
        if (backends[b]->is_numbered)
            qn_append(&to, "%s:N, ", backends[b]->name);
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

/* Returns the name's backend; for "auto", the first one other than the CPU's that has a device, else the CPU's. */
static const qn_backend *backend_of(const qn_device_name *name)
{
    int count;
    for (size_t b = 1; !name->backend && b < N_BACKENDS; b++)
        if (is_automatic(backends[b]) && backends[b]->count(&count) == QN_OK)
            return backends[b];
    return name->backend ? name->backend : &cpu_backend;
}

bool qn_device_drafts(const qn_device_name *name)
{
    return !name->backend || name->backend->drafts;
}

bool qn_device_is_cpu(const qn_device_name *name)
{
    return backend_of(name) == &cpu_backend;
}

/* ---- Devices ---- */

qn_status qn_device_count(const qn_device_name *name, int *count)
{
    const qn_backend *backend = name->backend ? name->backend : &cpu_backend;
    *count = 0;
    QN_TRY(check_present(backend));
    return backend->count(count);
}

qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX])
{
    if (!name->backend)
        return qn_fail(QN_ERR_INVALID, "%s: '%s' is more than one device", name->source, name->text);
    QN_TRY(check_present(name->backend));
    return name->backend->describe(name->ordinal, text);
}

qn_status qn_device_memory(const qn_device_name *name, uint64_t *bytes)
{
    const qn_backend *backend = backend_of(name);
    QN_TRY(check_present(backend));
    return backend->memory(name->ordinal, bytes);
}

/* Says which device "auto" takes, of a backend that has to be asked, or why it does not take it. */
static void log_choice(const qn_backend *backend, const qn_device_params *params, qn_status status)
{
    char line[QN_ERROR_TEXT_MAX + QN_DEVICE_TEXT_MAX];
    qn_text_buffer to = QN_APPEND_TO(line);
    if (!params->on_log || !backend->is_automatic)
        return;
    if (status == QN_OK)
        qn_append(&to, "device auto: %s:0, a discrete GPU", backend->name);
    else
        qn_append(&to, "device auto: not %s:0: %s", backend->name, qn_error_text());
    params->on_log(params->user, line);
}

/* Tries the next backend after QN_ERR_UNSUPPORTED: the device does not exist, or its kernels do not support the
 * plan. */
static qn_status open_auto(const qn_device_params *params, qn_device **device)
{
    for (size_t b = 1; b < N_BACKENDS; b++) {
        if (!is_automatic(backends[b]) || (params->must_draft && !backends[b]->drafts))
            continue;
        const qn_status status = backends[b]->open(0, params, device);
        log_choice(backends[b], params, status);
        if (status == QN_OK || (status != QN_ERR_UNSUPPORTED && !backends[b]->is_automatic))
            return status;
    }
    return cpu_backend.open(0, params, device);
}

qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device)
{
    *device = NULL;
    if (!name->backend)
        return open_auto(params, device);
    QN_TRY(check_present(name->backend));
    return name->backend->open(name->ordinal, params, device);
}
