/* The limits of another card: the variable, and a device within them. */
#include "cuda/runtime/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qn_status refuse(const char *text)
{
    return qn_fail(
        QN_ERR_INVALID,
        "QN_CUDA_LIMITS is '%.64s', expected a compute capability and limits: 8.9,sms=128,shared=99,memory=24", text);
}

/* Reads a number from 1 to `most` at *at, and moves *at behind it. */
static bool read_number(const char **at, unsigned long most, unsigned long *value)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *value = strtoul(*at, &end, 10);
    *at = end;
    return !errno && *value <= most;
}

static bool read_limit(const char **at, const char *name, unsigned long most, unsigned long *value)
{
    const size_t n = strlen(name);
    if (strncmp(*at, name, n) != 0)
        return false;
    *at += n;
    return read_number(at, most, value) && *value > 0;
}

qn_status qn_cuda_limits_read(qn_cuda_limits *limits)
{
    enum { MAX_MINOR = 9, MAX_MAJOR = 99, MAX_SMS = 1024, MAX_KIB = 1024, MAX_GIB = 4096, KIB = 10, GIB = 30 };
    const char *text = getenv("QN_CUDA_LIMITS"), *at = text;
    unsigned long major = 0, minor = 0, value = 0;
    *limits = (qn_cuda_limits){ 0, 0, UINT32_MAX, UINT32_MAX, UINT64_MAX };
    if (!text || !*text)
        return QN_OK;
    if (!read_number(&at, MAX_MAJOR, &major) || major < 8 || *at++ != '.' || !read_number(&at, MAX_MINOR, &minor))
        return refuse(text);
    limits->major = (int)major;
    limits->minor = (int)minor;
    while (*at) {
        if (*at++ != ',')
            return refuse(text);
        if (read_limit(&at, "sms=", MAX_SMS, &value))
            limits->n_sms = (uint32_t)value;
        else if (read_limit(&at, "shared=", MAX_KIB, &value))
            limits->max_shared_bytes = (uint32_t)value << KIB;
        else if (read_limit(&at, "memory=", MAX_GIB, &value))
            limits->memory_bytes = (uint64_t)value << GIB;
        else
            return refuse(text);
    }
    return QN_OK;
}

void qn_cuda_limits_apply(const qn_cuda_limits *limits, qn_cuda_info *info, char arch[QN_GPU_ARCH_MAX])
{
    const int major = info->major, minor = info->minor;
    qn_gpu_arch(major, minor, arch);
    if (!limits->major)
        return;
    const bool is_later = limits->major > major || (limits->major == major && limits->minor > minor);
    info->major = limits->major;
    info->minor = limits->minor;
    info->n_sms = limits->n_sms < info->n_sms ? limits->n_sms : info->n_sms;
    if (limits->max_shared_bytes < info->max_shared_bytes)
        info->max_shared_bytes = limits->max_shared_bytes;
    if (limits->memory_bytes < info->memory_bytes)
        info->memory_bytes = limits->memory_bytes;
    if (is_later)
        snprintf(arch, QN_GPU_ARCH_MAX, "compute_%d%d/sm_%d%d/%d%d0", major, minor, major, minor, limits->major,
                 limits->minor);
    else
        snprintf(arch, QN_GPU_ARCH_MAX, "compute_%d%d/sm_%d%d", limits->major, limits->minor, major, minor);
}
