/* CUDA devices for the registry: counting, describing and opening them, and the kernels that are compiled for them. */
#include "cuda/backend.h"

#include "base/append.h"
#include "cuda/executor/device.h"
#include "cuda/runtime/pipeline.h"
#include "cuda/runtime/runtime.h"

#include <stdio.h>
#include <string.h>

/* ---- Devices ---- */

static qn_status count(int *n)
{
    return qn_cuda_count(NULL, n);
}

static qn_status describe(int ordinal, char text[QN_DEVICE_TEXT_MAX])
{
    qn_cuda_info info;
    QN_TRY(qn_cuda_read_info(NULL, ordinal, &info));
    snprintf(text, QN_DEVICE_TEXT_MAX,
             "cuda:%d, %s, compute capability %d.%d, %u multiprocessors, %.1f GiB, driver %d.%d", ordinal, info.name,
             info.major, info.minor, (unsigned)info.n_sms, (double)info.memory_bytes / 0x1p30,
             info.driver_version / 1000, info.driver_version % 1000 / 10);
    return QN_OK;
}

static qn_status memory_of(int ordinal, uint64_t *bytes)
{
    qn_cuda_info info;
    QN_TRY(qn_cuda_read_info(NULL, ordinal, &info));
    *bytes = info.memory_bytes;
    return QN_OK;
}

static qn_status open_device(int ordinal, const qn_device_params *params, qn_device **device)
{
    return qn_cuda_executor_create(&(qn_cuda_executor_params){ .base = *params, .ordinal = ordinal }, device);
}

/* ---- Kernels of this program ---- */

static bool built_in(size_t i, qn_built_in_kernel *kernel)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    if (i >= code->n_pipelines)
        return false;
    *kernel = (qn_built_in_kernel){ .source = code->pipelines[i].source, .defines = code->pipelines[i].defines };
    qn_text_buffer to = QN_APPEND_TO(kernel->built_for);
    for (size_t c = 0; c < code->n_cubins; c++)
        if (!strcmp(code->cubins[c].source, kernel->source) && !strcmp(code->cubins[c].defines, kernel->defines))
            qn_append(&to, "%s%s", to.length ? " " : "", code->cubins[c].arch);
    return true;
}

static const char *compiler(void)
{
    return qn_gpu_code_built_in()->compiler;
}

static void describe_built_in(char text[QN_DEVICE_TEXT_MAX])
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    qn_text_buffer to = qn_append_to(text, QN_DEVICE_TEXT_MAX);
    for (size_t i = 0; i < code->n_cubins; i++) {
        size_t first = 0;
        while (strcmp(code->cubins[first].arch, code->cubins[i].arch) != 0)
            first++;
        if (first == i)
            qn_append(&to, "%s%s", to.length ? " " : "", code->cubins[i].arch);
    }
    if (to.length)
        qn_append(&to, " by %s", code->compiler);
}

/* ---- Kernels of a device ---- */

static qn_cuda *cuda_of(const qn_device_kernels *kernels)
{
    return (qn_cuda *)(uintptr_t)kernels;
}

static qn_status open_kernels(int ordinal, void (*on_log)(void *user, const char *line), void *user,
                              qn_device_kernels **kernels)
{
    const qn_cuda_params params = { .ordinal = ordinal, .on_log = on_log, .user = user };
    qn_cuda *cuda = NULL;
    const qn_status status = qn_cuda_open(&params, &cuda);
    *kernels = (qn_device_kernels *)cuda;
    return status;
}

static void close_kernels(qn_device_kernels *kernels)
{
    qn_cuda_close(cuda_of(kernels));
}

static const char *arch(const qn_device_kernels *kernels)
{
    return qn_cuda_arch(cuda_of(kernels));
}

static const char *cache_folder(const qn_device_kernels *kernels, const char **why_none)
{
    *why_none = qn_cuda_no_cache(cuda_of(kernels));
    return qn_cuda_cache_folder(cuda_of(kernels));
}

static qn_status load(qn_device_kernels *kernels)
{
    return qn_cuda_load_pipelines(cuda_of(kernels));
}

static bool loaded(const qn_device_kernels *kernels, size_t i, qn_loaded_kernel *kernel)
{
    qn_pipeline_info info;
    if (!qn_cuda_pipeline(cuda_of(kernels), i, &info))
        return false;
    *kernel = (qn_loaded_kernel){ .source = info.source,
                                  .defines = info.defines,
                                  .origin = qn_origin_name(info.origin),
                                  .failure = info.failure,
                                  .seconds = info.seconds,
                                  .bytes = info.bytes };
    snprintf(kernel->compiler, sizeof kernel->compiler, "%s", info.compiler);
    return true;
}

static qn_status clear_cache(char **folder, size_t *n_files, uint64_t *bytes)
{
    *n_files = 0;
    *bytes = 0;
    QN_TRY(qn_code_folder(folder));
    return *folder ? qn_code_file_clear(*folder, n_files, bytes) : QN_OK;
}

/* ---- The backend ---- */

static const qn_backend_kernels kernels = { .devices = "NVIDIA GPUs",
                                            .built_in = built_in,
                                            .describe_built_in = describe_built_in,
                                            .compiler = compiler,
                                            .open = open_kernels,
                                            .close = close_kernels,
                                            .arch = arch,
                                            .cache_folder = cache_folder,
                                            .load = load,
                                            .loaded = loaded,
                                            .clear_cache = clear_cache };

const qn_backend qn_cuda_backend = { .name = "cuda",
                                     .is_numbered = true,
                                     .drafts = true,
                                     .count = count,
                                     .describe = describe,
                                     .memory = memory_of,
                                     .open = open_device,
                                     .kernels = &kernels };
