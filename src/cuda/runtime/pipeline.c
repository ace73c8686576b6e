/* Loading pipelines: tries the sources of code in order until the driver accepts a cubin. */
#include "cuda/runtime/pipeline.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "cuda/runtime/compile.h"
#include "cuda/runtime/context.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void qn_cuda_log(qn_cuda *device, const char *format, ...)
{
    char line[QN_ERROR_TEXT_MAX + 128];
    va_list args;
    if (!device->on_log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    pthread_mutex_lock(&device->lock);
    device->on_log(device->user, line);
    pthread_mutex_unlock(&device->lock);
}

const char *qn_origin_name(qn_origin origin)
{
    static const char *const names[] = { "-", "built in", "cache", "nvcc", "NVRTC" };
    return names[origin];
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- One pipeline ---- */

/* A search for the code of one pipeline, with the reasons why earlier sources failed. On the stack of the thread that
 * holds the pipeline's lock. */
struct search {
    qn_cuda *device;
    qn_pipeline *pipeline;
    qn_gpu_unit unit;
    qn_code_key key;
    bool cached; /* whether there is a cache directory */
    char reasons[QN_ERROR_TEXT_MAX];
};

/* Appends qn_error_text() to the reasons. */
static void add_reason(struct search *s, const char *where)
{
    qn_text_buffer reasons = qn_append_after(s->reasons, sizeof s->reasons);
    qn_append(&reasons, "%s%s%.200s", reasons.length ? "; " : "", where, qn_error_text());
}

/* Whether the data is a cubin, by its ELF header, or a fatbin with a compressed one (QN_CUDA_COMPRESS). */
static bool is_image(const void *data, size_t bytes)
{
    return bytes >= 64 && (!memcmp(data, "\177ELF", 4) || !memcmp(data, "\x50\xed\x55\xba", 4));
}

/* Loads a cubin as the pipeline's module; false, with the error text, if the driver rejects it. cuModuleLoadData gets
 * no size, so only data with the header of an image is passed to it. */
static bool load_image(struct search *s, const void *data, size_t bytes, qn_origin origin, const char *compiler)
{
    qn_pipeline *p = s->pipeline;
    const qn_status status = is_image(data, bytes) ? QN_CU(s->device->driver, cuModuleLoadData, &p->module, data)
                                                   : qn_fail(QN_ERR_FORMAT, "not a cubin (%zu bytes)", bytes);
    if (status)
        return false;
    p->origin = origin;
    p->bytes = bytes;
    snprintf(p->compiler, sizeof p->compiler, "%s", compiler);
    return true;
}

static bool from_built_in(struct search *s)
{
    const qn_gpu_cubin *built =
        qn_gpu_code_cubin(s->device->code, s->pipeline->source, s->pipeline->defines, s->unit.arch);
    if (!built)
        return false;
    if (load_image(s, built->data, (size_t)(built->end - built->data), QN_ORIGIN_BUILT_IN, s->device->code->compiler))
        return true;
    qn_cuda_log(s->device, "%s: the driver rejects the built-in code: %s", s->pipeline->source, qn_error_text());
    add_reason(s, "built in: ");
    return false;
}

static bool from_cache(struct search *s)
{
    void *data;
    size_t bytes;
    char compiler[QN_COMPILER_MAX];
    const qn_status status =
        qn_code_file_read(&qn_cubin_files, s->device->cache_folder, &s->key, &data, &bytes, compiler);
    if (status) {
        qn_cuda_log(s->device, "%s; it is compiled again", qn_error_text());
        add_reason(s, "");
        return false;
    }
    if (!data)
        return false;
    const bool loaded = load_image(s, data, bytes, QN_ORIGIN_CACHE, compiler);
    if (!loaded) {
        char name[QN_CODE_NAME_MAX];
        qn_code_file_name(&qn_cubin_files, &s->key, name);
        qn_cuda_log(s->device, "%s/%s: the driver rejects it (%s); it is compiled again", s->device->cache_folder, name,
                    qn_error_text());
        add_reason(s, "cache: ");
    }
    free(data);
    return loaded;
}

/* Writes a compiled cubin to the cache. A failure is only logged: the kernel is loaded already. */
static void write_cache(struct search *s, const void *data, size_t bytes, const char *compiler)
{
    if (s->cached &&
        qn_code_file_write(&qn_cubin_files, s->device->cache_folder, &s->key, compiler, data, bytes) != QN_OK)
        qn_cuda_log(s->device, "%s; the kernel is not cached", qn_error_text());
}

static bool from_compiler(struct search *s, qn_origin origin, const char *tool)
{
    void *data;
    size_t bytes;
    char compiler[QN_COMPILER_MAX];
    const qn_status status = origin == QN_ORIGIN_NVCC
                                 ? qn_nvcc_compile(tool, s->device->nvcc_seconds, &s->unit, &data, &bytes, compiler)
                                 : qn_nvrtc_compile(tool, &s->unit, &data, &bytes, compiler);
    if (status) {
        add_reason(s, "");
        return false;
    }
    const bool loaded = load_image(s, data, bytes, origin, compiler);
    if (loaded)
        write_cache(s, data, bytes, compiler);
    else
        add_reason(s, origin == QN_ORIGIN_NVCC ? "nvcc's: " : "NVRTC's: ");
    free(data);
    return loaded;
}

static bool from_nvcc(struct search *s)
{
    if (s->device->nvcc)
        return *s->device->nvcc && from_compiler(s, QN_ORIGIN_NVCC, s->device->nvcc);
    char *found;
    if (qn_nvcc_find(&found)) {
        add_reason(s, "");
        return false;
    }
    const bool loaded = found && from_compiler(s, QN_ORIGIN_NVCC, found);
    free(found);
    return loaded;
}

static bool from_nvrtc(struct search *s)
{
    if (s->device->nvrtc && !*s->device->nvrtc)
        return false;
    return from_compiler(s, QN_ORIGIN_NVRTC, s->device->nvrtc);
}

static qn_status search(qn_cuda *device, qn_pipeline *pipeline)
{
    struct search s = { .device = device,
                        .pipeline = pipeline,
                        .unit = { .defines = pipeline->defines, .arch = device->arch },
                        .cached = device->cache_folder && *device->cache_folder };
    const qn_gpu_file *files[QN_GPU_MAX_FILES];
    QN_TRY(qn_cuda_make_current(device));
    if (from_built_in(&s))
        return QN_OK;
    QN_TRY(qn_gpu_code_files(device->code, pipeline->source, files, &s.unit.n_files));
    s.unit.files = files;
    s.key = qn_cubin_key_of(device->arch, pipeline->defines, files, s.unit.n_files);
    if ((s.cached && from_cache(&s)) || from_nvcc(&s) || from_nvrtc(&s))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s%s%s: no code for %s: %s", pipeline->source, *pipeline->defines ? " " : "",
                   pipeline->defines, device->arch,
                   *s.reasons ? s.reasons : "none is built in, and no compiler may be used");
}

qn_status qn_pipeline_load(qn_cuda *device, qn_pipeline *p)
{
    if (!p->tried) {
        const double start = seconds_now();
        p->tried = true;
        p->status = search(device, p);
        p->seconds = seconds_now() - start;
        if (p->status)
            snprintf(p->failure, sizeof p->failure, "%s", qn_error_text());
        else if (p->origin == QN_ORIGIN_NVCC || p->origin == QN_ORIGIN_NVRTC)
            qn_cuda_log(device, "%s%s%s: compiled by %s in %.1f s", p->source, *p->defines ? " " : "", p->defines,
                        p->compiler, p->seconds);
    }
    return p->status ? qn_fail(p->status, "%s", p->failure) : QN_OK;
}

/* ---- The device's pipelines ---- */

/* Adds an entry, without loading it. The caller holds device->lock. */
static qn_status add(qn_cuda *device, const char *source, const char *defines, qn_pipeline **out)
{
    QN_TRY(qn_realloc_array(&device->pipelines, &device->cap_pipelines, device->n_pipelines + 1,
                            sizeof *device->pipelines, "pipelines"));
    qn_pipeline *p = calloc(1, sizeof *p);
    if (p) {
        p->source = strdup(source);
        p->defines = strdup(defines);
    }
    if (!p || !p->source || !p->defines || pthread_mutex_init(&p->lock, NULL) != 0) {
        if (p) {
            free(p->source);
            free(p->defines);
        }
        free(p);
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a pipeline", source);
    }
    device->pipelines[device->n_pipelines++] = *out = p;
    return QN_OK;
}

qn_status qn_pipeline_get(qn_cuda *device, const char *source, const char *defines, qn_pipeline **pipeline)
{
    *pipeline = NULL;
    pthread_mutex_lock(&device->lock);
    for (size_t i = 0; i < device->n_pipelines && !*pipeline; i++)
        if (!strcmp(device->pipelines[i]->source, source) && !strcmp(device->pipelines[i]->defines, defines))
            *pipeline = device->pipelines[i];
    const qn_status status = *pipeline ? QN_OK : add(device, source, defines, pipeline);
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* Pipelines that several threads load: each takes the next one by `next`. */
struct work_queue {
    qn_cuda *device;
    qn_pipeline *const *pipelines;
    size_t n;
    atomic_size_t next;
};

static void *load_worker(void *context)
{
    struct work_queue *work_queue = context;
    for (size_t i; (i = atomic_fetch_add(&work_queue->next, 1)) < work_queue->n;) {
        pthread_mutex_lock(&work_queue->pipelines[i]->lock);
        (void)qn_pipeline_load(work_queue->device, work_queue->pipelines[i]); /* the status is stored in the entry */
        pthread_mutex_unlock(&work_queue->pipelines[i]->lock);
    }
    return NULL;
}

qn_status qn_pipelines_load(qn_cuda *device, qn_pipeline *const *pipelines, size_t n)
{
    enum { MAX_THREADS = 16 };
    struct work_queue work_queue = { .device = device, .pipelines = pipelines, .n = n };
    pthread_t threads[MAX_THREADS];
    const size_t cores = (size_t)qn_cpu_cores(), wanted = n < cores ? n : cores;
    size_t started = 0; /* additional threads; the calling thread works too */
    while (started + 1 < wanted && started < MAX_THREADS &&
           pthread_create(&threads[started], NULL, load_worker, &work_queue) == 0)
        started++;
    load_worker(&work_queue);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < n; i++)
        if (pipelines[i]->status)
            return qn_fail(pipelines[i]->status, "%s", pipelines[i]->failure);
    return QN_OK;
}

qn_status qn_cuda_load_pipelines(qn_cuda *device)
{
    const size_t n = device->code->n_pipelines;
    qn_pipeline **pipelines;
    QN_TRY(qn_alloc(&pipelines, n, sizeof *pipelines, "pipelines"));
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = qn_pipeline_get(device, device->code->pipelines[i].source, device->code->pipelines[i].defines,
                                 &pipelines[i]);
    if (!status)
        status = qn_pipelines_load(device, pipelines, n);
    qn_free(pipelines);
    return status;
}

bool qn_cuda_pipeline(qn_cuda *device, size_t i, qn_pipeline_info *info)
{
    pthread_mutex_lock(&device->lock);
    qn_pipeline *p = i < device->n_pipelines ? device->pipelines[i] : NULL;
    pthread_mutex_unlock(&device->lock);
    if (!p)
        return false;
    pthread_mutex_lock(&p->lock);
    *info = (qn_pipeline_info){ .source = p->source,
                                .defines = p->defines,
                                .origin = p->origin,
                                .seconds = p->seconds,
                                .bytes = p->bytes,
                                .failure = p->status ? p->failure : NULL };
    memcpy(info->compiler, p->compiler, sizeof info->compiler);
    pthread_mutex_unlock(&p->lock);
    return true;
}

void qn_pipelines_unload(qn_cuda *device)
{
    for (size_t i = 0; i < device->n_pipelines; i++)
        if (device->pipelines[i]->module)
            (void)device->driver->cuModuleUnload(device->pipelines[i]->module);
}

void qn_pipelines_free(qn_cuda *device)
{
    for (size_t i = 0; i < device->n_kernels; i++) {
        free(device->kernels[i]->name);
        free(device->kernels[i]);
    }
    for (size_t i = 0; i < device->n_pipelines; i++) {
        qn_pipeline *p = device->pipelines[i];
        pthread_mutex_destroy(&p->lock);
        free(p->source);
        free(p->defines);
        free(p);
    }
    free(device->kernels);
    free(device->pipelines);
}
