/* The private state of a qn_cuda, shared by the files that implement runtime.h and pipeline.h. */
#ifndef QN_CUDA_RUNTIME_CONTEXT_H
#define QN_CUDA_RUNTIME_CONTEXT_H

#include "cuda/runtime/runtime.h"
#include "cuda/runtime/code.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/limits.h"
#include "cuda/runtime/pipeline.h"
#include "cuda/runtime/provoke.h"

#include <pthread.h>

/* One module: the code of one source with one set of definitions. Its own lock is held while its code is found,
 * compiled and loaded, so that pipelines load concurrently; it protects all members but source and defines, which are
 * constant. It is taken before the device's lock. */
typedef struct qn_pipeline {
    pthread_mutex_t lock;
    char *source, *defines;
    bool tried;
    qn_status status; /* of the first attempt to load, with its text in `failure` */
    char failure[QN_ERROR_TEXT_MAX];
    qn_cu_module module;
    qn_origin origin;
    char compiler[QN_COMPILER_MAX];
    double seconds;
    size_t bytes;
} qn_pipeline;

/* One function of a module. The pipeline's lock protects all but hash, variant, name and pipeline, which are
 * constant. */
typedef struct qn_kernel {
    uint64_t hash; /* of variant and name: the lookup key */
    qn_gpu_variant variant;
    char *name;
    qn_pipeline *pipeline;
    qn_cu_function function;     /* NULL until it is loaded */
    size_t args_bytes;           /* size of the argument struct; 0 if the driver does not report it */
    uint32_t max_dynamic_shared; /* current limit of dynamic shared memory */
} qn_kernel;

/* Double-buffered staging of a copy: one buffer is filled while the copy of the other is in flight. A thread that has
 * set `busy` (acquire_staging in allocate.c) is the only one that uses the other members. */
enum { QN_MAX_UPLOADS = 4, QN_STAGING_BUFFERS = 2, QN_STAGING_BYTES = 16 << 20 };

typedef struct qn_staging {
    bool busy;
    qn_cu_stream stream;
    void *buffers[QN_STAGING_BUFFERS];
    qn_cu_event copied[QN_STAGING_BUFFERS];
} qn_staging;

/* Members before `lock` are constant after qn_cuda_open. Entries of the arrays live until the device is closed. */
struct qn_cuda {
    const qn_cuda_driver *driver;
    qn_cu_device device;
    qn_cu_context context;
    bool retained; /* the context is the primary one and was retained by qn_cuda_open */
    qn_cuda_info info;
    char arch[QN_GPU_ARCH_MAX];
    uint64_t memory_limit; /* of QN_CUDA_LIMITS; UINT64_MAX: none */
    void (*on_log)(void *user, const char *line);
    void *user;
    qn_cuda_provoke provoke;

    /* sources of kernel code; an empty string disables one */
    const qn_gpu_code *code;
    char *cache_folder; /* NULL: no cache */
    char *no_cache;     /* reason for no cache, or NULL */
    char *nvcc, *nvrtc; /* NULL: the defaults */
    unsigned nvcc_seconds;

    pthread_mutex_t lock; /* protects both arrays, and calls of on_log */
    qn_pipeline **pipelines;
    size_t n_pipelines, cap_pipelines;
    qn_kernel **kernels;
    size_t n_kernels, cap_kernels;

    pthread_mutex_t staging_lock; /* protects staging_pool[].busy */
    pthread_cond_t staging_available;
    qn_staging staging_pool[QN_MAX_UPLOADS];
};

/* qn_cuda_make_current - Makes the device's context current in this thread, and leaves it current. Before every call of
 * the driver, since any thread may call. */
static inline qn_status qn_cuda_make_current(const qn_cuda *device)
{
    return QN_CU(device->driver, cuCtxSetCurrent, device->context);
}

/* qn_cuda_launch_now - As qn_cuda_launch, without the delay of qn_cuda_delay. */
qn_status qn_cuda_launch_now(qn_cuda *device, qn_cuda_stream stream, const qn_launch *launch, const void *args);

/* qn_cuda_log - Sends a line to qn_cuda_params.on_log. Any thread that does not hold the device's lock. */
void qn_cuda_log(qn_cuda *device, const char *format, ...) QN_PRINTF(2, 3);

/* qn_pipeline_get - Finds the device's entry for a source and definitions; the first call creates it, without loading
 * it. Any thread that does not hold the device's lock. The device owns it. */
qn_status qn_pipeline_get(qn_cuda *device, const char *source, const char *defines, qn_pipeline **pipeline);

/* qn_pipeline_load - Finds or compiles the code and loads it as a module. Only the first call tries; later calls return
 * the same status. The caller holds the pipeline's lock. */
qn_status qn_pipeline_load(qn_cuda *device, qn_pipeline *pipeline);

/* qn_pipelines_load - Loads n pipelines, several concurrently. Tries all of them and returns the first failure. On the
 * calling thread and threads that end before it returns. The caller holds no lock. */
qn_status qn_pipelines_load(qn_cuda *device, qn_pipeline *const *pipelines, size_t n);

/* qn_pipelines_unload - Unloads all modules, in the current context. No other thread may use the device any more. */
void qn_pipelines_unload(qn_cuda *device);

/* qn_pipelines_free - Frees the entries of all pipelines and their kernels, without calling the driver. No other thread
 * may use the device any more. */
void qn_pipelines_free(qn_cuda *device);

#endif
