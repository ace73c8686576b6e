/* Kernels: finding the function of a launch, its limits and its size of arguments, and launching it. */
#include "cuda/runtime/runtime.h"

#include "base/memory.h"
#include "cuda/runtime/context.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The most shared memory of a block, static and dynamic, without opt-in; the lowest compute capability with PDL. */
enum { DEFAULT_MAX_SHARED = 48 << 10, PDL_SINCE = 9 };

/* ---- From names to functions ---- */

static uint64_t kernel_hash(const qn_launch *launch)
{
    return XXH3_64bits_withSeed(launch->function, strlen(launch->function),
                                XXH3_64bits(&launch->variant, sizeof launch->variant));
}

/* The entry of a launch's function; NULL: none. The caller holds device->lock. */
static qn_kernel *find_kernel(qn_cuda *device, uint64_t hash, const qn_launch *launch)
{
    for (size_t i = 0; i < device->n_kernels; i++) {
        qn_kernel *k = device->kernels[i];
        if (k->hash == hash && !strcmp(k->name, launch->function) &&
            !memcmp(&k->variant, &launch->variant, sizeof k->variant))
            return k;
    }
    return NULL;
}

/* Adds an entry, without loading the function. The caller holds device->lock. */
static qn_status add_kernel(qn_cuda *device, uint64_t hash, qn_pipeline *pipeline, const qn_launch *launch,
                            qn_kernel **out)
{
    QN_TRY(qn_realloc_array(&device->kernels, &device->cap_kernels, device->n_kernels + 1, sizeof *device->kernels,
                            "kernels"));
    qn_kernel *kernel = calloc(1, sizeof *kernel);
    char *copy = strdup(launch->function);
    if (!kernel || !copy) {
        free(kernel);
        free(copy);
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a kernel", launch->function);
    }
    *kernel = (qn_kernel){
        .hash = hash,
        .variant = launch->variant,
        .name = copy,
        .pipeline = pipeline,
    };
    device->kernels[device->n_kernels++] = *out = kernel;
    return QN_OK;
}

/* The pipeline of a launch. */
static qn_status get_pipeline(qn_cuda *device, const qn_launch *launch, qn_pipeline **pipeline)
{
    char defines[QN_GPU_DEFINES_MAX];
    qn_gpu_defines(&launch->variant, defines);
    return qn_pipeline_get(device, launch->variant.source->file, defines, pipeline);
}

static qn_status get_kernel(qn_cuda *device, const qn_launch *launch, qn_kernel **kernel)
{
    const uint64_t hash = kernel_hash(launch);
    pthread_mutex_lock(&device->lock);
    *kernel = find_kernel(device, hash, launch);
    pthread_mutex_unlock(&device->lock);
    if (*kernel)
        return QN_OK;
    qn_pipeline *pipeline;
    QN_TRY(get_pipeline(device, launch, &pipeline));
    pthread_mutex_lock(&device->lock);
    *kernel = find_kernel(device, hash, launch);
    const qn_status status = *kernel ? QN_OK : add_kernel(device, hash, pipeline, launch, kernel);
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* Loads the function and the size of its argument struct: with a smaller struct on the host, the driver would read
 * beyond it. The caller holds the pipeline's lock. */
static qn_status load_function(qn_cuda *device, qn_kernel *kernel)
{
    const qn_cuda_driver *driver = device->driver;
    qn_cu_function function;
    size_t offset = 0, bytes = 0;
    int static_shared;
    QN_TRY(qn_pipeline_load(device, kernel->pipeline));
    QN_TRY(QN_CU(driver, cuModuleGetFunction, &function, kernel->pipeline->module, kernel->name));
    QN_TRY(QN_CU(driver, cuFuncGetAttribute, &static_shared, QN_CU_FUNCTION_SHARED, function));
    if (driver->cuFuncGetParamInfo) {
        QN_TRY(QN_CU(driver, cuFuncGetParamInfo, function, 0, &offset, &bytes));
        kernel->args_bytes = bytes;
    }
    /* The same carveout between L1 and shared memory for all kernels: an SM changes it only when it is idle, which
     * would prevent the overlap of launches (PDL). */
    if (device->info.major >= PDL_SINCE)
        QN_TRY(QN_CU(driver, cuFuncSetAttribute, function, QN_CU_FUNCTION_SHARED_CARVEOUT, 100));
    if (static_shared >= 0 && static_shared < DEFAULT_MAX_SHARED)
        kernel->max_dynamic_shared = DEFAULT_MAX_SHARED - (uint32_t)static_shared;
    kernel->function = function;
    return QN_OK;
}

/* Loads the kernel's function if necessary, checks the size of its arguments, and raises its limit of shared memory to
 * that of the launch. The caller holds the pipeline's lock. */
static qn_status prepare(qn_cuda *device, qn_kernel *kernel, const qn_launch *launch)
{
    if (!kernel->function)
        QN_TRY(load_function(device, kernel));
    if (kernel->args_bytes && kernel->args_bytes != launch->args_bytes)
        return qn_fail(QN_ERR_INVALID, "its arguments have %zu bytes, the launch has %u", kernel->args_bytes,
                       launch->args_bytes);
    if (launch->shared_bytes <= kernel->max_dynamic_shared)
        return QN_OK;
    if (launch->shared_bytes > device->info.max_shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED, "%u bytes of shared memory per block, this device has %u",
                       launch->shared_bytes, device->info.max_shared_bytes);
    QN_TRY(QN_CU(device->driver, cuFuncSetAttribute, kernel->function, QN_CU_FUNCTION_MAX_DYNAMIC_SHARED,
                 (int)launch->shared_bytes));
    kernel->max_dynamic_shared = launch->shared_bytes;
    return QN_OK;
}

/* Prefixes the error text with the kernel's name. */
static qn_status of_kernel(qn_status status, const qn_launch *launch)
{
    char defines[QN_GPU_DEFINES_MAX];
    if (!status)
        return QN_OK;
    qn_gpu_defines(&launch->variant, defines);
    return qn_fail(status, "%s (%s%s%s): %s", launch->function, launch->variant.source->file, *defines ? " " : "",
                   defines, qn_error_text());
}

static qn_status ready(qn_cuda *device, const qn_launch *launch, qn_cu_function *function)
{
    qn_kernel *kernel;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(get_kernel(device, launch, &kernel));
    pthread_mutex_lock(&kernel->pipeline->lock);
    const qn_status status = prepare(device, kernel, launch);
    *function = kernel->function;
    pthread_mutex_unlock(&kernel->pipeline->lock);
    return of_kernel(status, launch);
}

qn_status qn_cuda_prepare(qn_cuda *device, const qn_launch *launch)
{
    qn_cu_function function;
    return ready(device, launch, &function);
}

bool qn_cuda_is_prepared(qn_cuda *device, const qn_launch *launch)
{
    pthread_mutex_lock(&device->lock);
    qn_kernel *kernel = find_kernel(device, kernel_hash(launch), launch);
    pthread_mutex_unlock(&device->lock);
    if (!kernel)
        return false;
    pthread_mutex_lock(&kernel->pipeline->lock);
    const bool prepared = kernel->function && launch->shared_bytes <= kernel->max_dynamic_shared;
    pthread_mutex_unlock(&kernel->pipeline->lock);
    return prepared;
}

qn_status qn_cuda_prepare_all(qn_cuda *device, const qn_launch *launches, size_t n)
{
    qn_pipeline **pipelines;
    QN_TRY(qn_alloc(&pipelines, n, sizeof *pipelines, "pipelines"));
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = get_pipeline(device, &launches[i], &pipelines[i]);
    if (!status)
        status = qn_pipelines_load(device, pipelines, n);
    qn_free(pipelines);
    for (size_t i = 0; i < n && !status; i++)
        status = qn_cuda_prepare(device, &launches[i]);
    return status;
}

/* Whether the launch uses PDL (programmatic dependent launch). Not while memory is poisoned: a memset cannot trigger
 * the next kernel. */
static bool is_programmatic(const qn_cuda *device, const qn_launch *launch)
{
    return launch->pdl && device->info.major >= PDL_SINCE && !device->provoke.poisons;
}

qn_status qn_cuda_launch_now(qn_cuda *device, qn_cuda_stream stream, const qn_launch *launch, const void *args)
{
    qn_cu_function function;
    QN_TRY(ready(device, launch, &function));
    qn_cu_launch_attribute attributes[3];
    unsigned n = 0;
    if (is_programmatic(device, launch))
        attributes[n++] = (qn_cu_launch_attribute){ .id = QN_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.on = 1 };
    if (launch->cooperative)
        attributes[n++] = (qn_cu_launch_attribute){ .id = QN_CU_LAUNCH_COOPERATIVE, .value.on = 1 };
    if (launch->cluster > 1)
        attributes[n++] =
            (qn_cu_launch_attribute){ .id = QN_CU_LAUNCH_CLUSTER, .value.cluster = { 1, 1, launch->cluster } };
    const qn_cu_launch_config config = {
        .grid = { launch->grid[0], launch->grid[1], launch->grid[2] },
        .block = { launch->block[0], launch->block[1], launch->block[2] },
        .shared_bytes = launch->shared_bytes,
        .stream = stream,
        .attributes = attributes,
        .n_attributes = n,
    };
    void *parameters[1];
    memcpy(parameters, &args, sizeof args); /* the driver only reads *args, but its prototype lacks const */
    return of_kernel(QN_CU(device->driver, cuLaunchKernelEx, &config, function, parameters, NULL), launch);
}

qn_status qn_cuda_kernel_get_info(qn_cuda *device, const qn_launch *launch, qn_cuda_kernel_info *info)
{
    const qn_cuda_driver *driver = device->driver;
    qn_cu_function function;
    QN_TRY(ready(device, launch, &function));
    QN_TRY(QN_CU(driver, cuFuncGetAttribute, &info->registers, QN_CU_FUNCTION_REGISTERS, function));
    QN_TRY(QN_CU(driver, cuFuncGetAttribute, &info->static_shared_bytes, QN_CU_FUNCTION_SHARED, function));
    QN_TRY(QN_CU(driver, cuFuncGetAttribute, &info->local_bytes, QN_CU_FUNCTION_LOCAL, function));
    QN_TRY(QN_CU(driver, cuFuncGetAttribute, &info->max_threads, QN_CU_FUNCTION_MAX_THREADS, function));
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    info->blocks_per_sm = 0;
    if (threads == 0 || threads > (uint64_t)info->max_threads)
        return QN_OK;
    return QN_CU(driver, cuOccupancyMaxActiveBlocksPerMultiprocessor, &info->blocks_per_sm, function, (int)threads,
                 launch->shared_bytes);
}
