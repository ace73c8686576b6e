/* Opening and closing a device; streams and events. Memory is in allocate.c, kernels are in kernel.c, launches and
 * graphs in launch.c. */
#include "cuda/runtime/runtime.h"

#include "cuda/runtime/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVCC_SECONDS = 600 };

qn_status qn_cuda_count(const qn_cuda_driver *driver, int *count)
{
    *count = 0;
    if (!driver)
        QN_TRY(qn_cuda_driver_load(&driver));
    QN_TRY(QN_CU(driver, cuDeviceGetCount, count));
    return *count > 0 ? QN_OK
                      : qn_fail(QN_ERR_UNSUPPORTED, "the NVIDIA driver is installed, but no device is visible to it");
}

/* ---- Opening ---- */

static qn_status attribute(const qn_cuda_driver *driver, qn_cu_device device, int which, int *value)
{
    return QN_CU(driver, cuDeviceGetAttribute, value, which, device);
}

/* The driver's handle of a device, and its properties. */
static qn_status find_device(const qn_cuda_driver *driver, int ordinal, qn_cu_device *device, qn_cuda_info *info)
{
    int count, sms, l2, shared, cooperative;
    QN_TRY(qn_cuda_count(driver, &count));
    if (ordinal < 0 || ordinal >= count)
        return qn_fail(QN_ERR_INVALID, "CUDA device %d: there are %d, numbered from 0", ordinal, count);
    QN_TRY(QN_CU(driver, cuDeviceGet, device, ordinal));
    *info = (qn_cuda_info){ .ordinal = ordinal };
    QN_TRY(QN_CU(driver, cuDeviceGetName, info->name, (int)sizeof info->name, *device));
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_MAJOR, &info->major));
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_MINOR, &info->minor));
    if (info->major < 8)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: has compute capability %d.%d, quern needs 8.0 or later", info->name,
                       info->major, info->minor);
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_MULTIPROCESSORS, &sms));
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_L2_BYTES, &l2));
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_SHARED_OPTIN, &shared));
    QN_TRY(attribute(driver, *device, QN_CU_DEVICE_COOPERATIVE_LAUNCH, &cooperative));
    QN_TRY(QN_CU(driver, cuDeviceTotalMem, &info->memory_bytes, *device));
    QN_TRY(QN_CU(driver, cuDriverGetVersion, &info->driver_version));
    info->n_sms = (uint32_t)sms;
    info->l2_bytes = (size_t)l2;
    info->max_shared_bytes = (uint32_t)shared;
    info->cooperative = cooperative != 0;
    return QN_OK;
}

qn_status qn_cuda_read_info(const qn_cuda_driver *driver, int ordinal, qn_cuda_info *info)
{
    qn_cu_device device;
    qn_cuda_limits limits;
    char arch[QN_GPU_ARCH_MAX];
    if (!driver)
        QN_TRY(qn_cuda_driver_load(&driver));
    QN_TRY(qn_cuda_limits_read(&limits));
    QN_TRY(find_device(driver, ordinal, &device, info));
    qn_cuda_limits_apply(&limits, info, arch);
    return QN_OK;
}

static qn_status copy_text(const char *text, char **copy)
{
    if (!text)
        return QN_OK;
    *copy = strdup(text);
    return *copy ? QN_OK : qn_fail(QN_ERR_MEMORY, "no memory for the name '%s'", text);
}

/* The cache directory, or the reason why there is no cache. */
static qn_status find_cache(qn_cuda *device, const char *folder)
{
    QN_TRY(folder ? copy_text(folder, &device->cache_folder) : qn_code_folder(&device->cache_folder));
    if (!device->cache_folder)
        return copy_text("neither XDG_CACHE_HOME nor HOME is an absolute path", &device->no_cache);
    if (!*device->cache_folder || qn_code_check_folder(device->cache_folder) == QN_OK)
        return QN_OK;
    QN_TRY(copy_text(qn_error_text(), &device->no_cache));
    qn_cuda_log(device, "%s; compiled kernels are not cached", device->no_cache);
    free(device->cache_folder);
    device->cache_folder = NULL;
    return QN_OK;
}

static qn_status copy_tools(qn_cuda *device, const qn_cuda_tools *tools)
{
    device->code = tools->code ? tools->code : qn_gpu_code_built_in();
    device->nvcc_seconds = tools->nvcc_seconds ? tools->nvcc_seconds : NVCC_SECONDS;
    QN_TRY(copy_text(tools->nvcc, &device->nvcc));
    QN_TRY(copy_text(tools->nvrtc, &device->nvrtc));
    return find_cache(device, tools->cache_folder);
}

static qn_status open_device(qn_cuda *device, const qn_cuda_params *params)
{
    static const qn_cuda_tools defaults = { 0 };
    qn_cuda_limits limits;
    device->driver = params->driver;
    if (!device->driver)
        QN_TRY(qn_cuda_driver_load(&device->driver));
    QN_TRY(qn_cuda_provoke_read(&device->provoke));
    QN_TRY(qn_cuda_limits_read(&limits));
    QN_TRY(find_device(device->driver, params->ordinal, &device->device, &device->info));
    qn_cuda_limits_apply(&limits, &device->info, device->arch);
    device->memory_limit = limits.memory_bytes;
    QN_TRY(copy_tools(device, params->tools ? params->tools : &defaults));
    device->context = params->context;
    if (!params->context) {
        QN_TRY(QN_CU(device->driver, cuDevicePrimaryCtxRetain, &device->context, device->device));
        device->retained = true;
    }
    return qn_cuda_make_current(device);
}

qn_status qn_cuda_open(const qn_cuda_params *params, qn_cuda **out)
{
    static const qn_cuda_params defaults = { 0 };
    *out = NULL;
    if (!params)
        params = &defaults;
    qn_cuda *device = calloc(1, sizeof *device);
    if (!device || pthread_mutex_init(&device->lock, NULL) != 0 ||
        pthread_mutex_init(&device->staging_lock, NULL) != 0 ||
        pthread_cond_init(&device->staging_available, NULL) != 0) {
        free(device);
        return qn_fail(QN_ERR_MEMORY, "no memory for a CUDA device");
    }
    device->on_log = params->on_log;
    device->user = params->user;
    const qn_status status = open_device(device, params);
    if (status)
        qn_cuda_close(device);
    else
        *out = device;
    return status;
}

static void free_staging(const qn_cuda_driver *driver, qn_staging *staging)
{
    for (size_t i = 0; i < QN_STAGING_BUFFERS; i++) {
        if (staging->buffers[i])
            (void)driver->cuMemFreeHost(staging->buffers[i]);
        if (staging->copied[i])
            (void)driver->cuEventDestroy(staging->copied[i]);
    }
    if (staging->stream)
        (void)driver->cuStreamDestroy(staging->stream);
}

static void release_context(qn_cuda *device)
{
    const qn_cuda_driver *driver = device->driver;
    qn_cu_context current = NULL;
    (void)driver->cuCtxGetCurrent(&current);
    if (driver->cuCtxSetCurrent(device->context) == QN_CU_SUCCESS) {
        (void)driver->cuCtxSynchronize(); /* no running kernel may use the freed memory */
        qn_pipelines_unload(device);
        for (size_t i = 0; i < QN_MAX_UPLOADS; i++)
            free_staging(driver, &device->staging_pool[i]);
        (void)driver->cuCtxSetCurrent(device->retained && current == device->context ? NULL : current);
    }
    if (device->retained)
        (void)driver->cuDevicePrimaryCtxRelease(device->device);
}

void qn_cuda_abandon(qn_cuda *device)
{
    if (!device)
        return;
    qn_pipelines_free(device);
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->staging_lock);
    pthread_cond_destroy(&device->staging_available);
    free(device->cache_folder);
    free(device->no_cache);
    free(device->nvcc);
    free(device->nvrtc);
    free(device);
}

void qn_cuda_close(qn_cuda *device)
{
    if (device && device->context)
        release_context(device);
    qn_cuda_abandon(device);
}

const qn_cuda_info *qn_cuda_get_info(const qn_cuda *device)
{
    return &device->info;
}

const char *qn_cuda_arch(const qn_cuda *device)
{
    return device->arch;
}

const char *qn_cuda_cache_folder(const qn_cuda *device)
{
    return device->cache_folder && *device->cache_folder ? device->cache_folder : NULL;
}

const char *qn_cuda_no_cache(const qn_cuda *device)
{
    return device->no_cache ? device->no_cache : "";
}

/* ---- Streams and events ---- */

qn_status qn_cuda_stream_create(qn_cuda *device, qn_cuda_stream *stream)
{
    *stream = NULL;
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuStreamCreate, stream, QN_CU_STREAM_NON_BLOCKING);
}

void qn_cuda_stream_free(qn_cuda *device, qn_cuda_stream stream)
{
    if (stream && !qn_cuda_make_current(device))
        (void)device->driver->cuStreamDestroy(stream);
}

qn_status qn_cuda_stream_synchronize(qn_cuda *device, qn_cuda_stream stream)
{
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuStreamSynchronize, stream);
}

qn_status qn_cuda_stream_wait_event(qn_cuda *device, qn_cuda_stream stream, qn_cuda_event event)
{
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuStreamWaitEvent, stream, event, 0);
}

qn_status qn_cuda_event_create(qn_cuda *device, qn_cuda_event *event)
{
    *event = NULL;
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuEventCreate, event, 0);
}

void qn_cuda_event_free(qn_cuda *device, qn_cuda_event event)
{
    if (event && !qn_cuda_make_current(device))
        (void)device->driver->cuEventDestroy(event);
}

qn_status qn_cuda_event_record(qn_cuda *device, qn_cuda_event event, qn_cuda_stream stream)
{
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuEventRecord, event, stream);
}

qn_status qn_cuda_event_synchronize(qn_cuda *device, qn_cuda_event event)
{
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuEventSynchronize, event);
}

qn_status qn_cuda_event_seconds(qn_cuda *device, qn_cuda_event begin, qn_cuda_event end, double *seconds)
{
    float milliseconds = 0;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(QN_CU(device->driver, cuEventElapsedTime, &milliseconds, begin, end));
    *seconds = (double)milliseconds * 1e-3;
    return QN_OK;
}
