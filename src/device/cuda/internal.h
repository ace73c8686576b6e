/* A device's own state, shared by the files of this folder. */
#ifndef QN_DEVICE_CUDA_INTERNAL_H
#define QN_DEVICE_CUDA_INTERNAL_H

#include "device/cuda/cuda.h"
#include "device/cuda/driver.h"
#include "device/cuda/pipeline.h"

#include <pthread.h>

/* One module. Its lock is held while its code is looked for, so that others may be found at the same time. */
typedef struct qn_pipeline {
    pthread_mutex_t lock;
    char *source, *defines;
    bool tried;
    qn_status status; /* of trying, with its text in `failure` */
    char failure[QN_ERROR_TEXT_MAX];
    qn_cu_module module;
    qn_origin origin;
    char compiler[QN_COMPILER_MAX];
    double seconds;
    size_t bytes;
} qn_pipeline;

/* One function of a module, under the pipeline's lock but for the names. */
typedef struct qn_kernel {
    uint64_t hash; /* of source, definitions and name: what a launch is looked up by */
    char *name;
    qn_pipeline *pipeline;
    qn_cu_function function;     /* NULL until it was asked for */
    size_t args_bytes;           /* that it takes; 0 where the driver does not tell */
    uint32_t max_dynamic_shared; /* dynamic shared memory that was allowed so far */
} qn_kernel;

/* What an upload goes through: while one piece is on its way the next one is put together. */
enum { QN_MAX_UPLOADS = 4, QN_STAGING_BUFFERS = 2, QN_STAGING_BYTES = 16 << 20 };

typedef struct qn_staging {
    bool busy;
    qn_cu_stream stream;
    void *buffers[QN_STAGING_BUFFERS];
    qn_cu_event copied[QN_STAGING_BUFFERS];
} qn_staging;

struct qn_cuda {
    const qn_cuda_driver *driver;
    qn_cu_device device;
    qn_cu_context context; /* the primary one, held */
    qn_cuda_info info;
    char arch[16];
    void (*on_log)(void *user, const char *line);
    void *user;

    /* where code comes from; empty texts: not from there */
    const qn_gpu_code *code;
    char *cache_folder;
    char *nvcc, *nvrtc; /* NULL: the usual */
    unsigned nvcc_seconds;

    pthread_mutex_t lock; /* of the two arrays and the log */
    qn_pipeline **pipelines;
    size_t n_pipelines, cap_pipelines;
    qn_kernel **kernels;
    size_t n_kernels, cap_kernels;

    pthread_mutex_t staging_lock; /* of which stages are busy */
    pthread_cond_t staging_available;
    qn_staging staging_pool[QN_MAX_UPLOADS];
};

/* qn_cuda_make_current - make the device's context this thread's. */
qn_status qn_cuda_make_current(qn_cuda *device);

/* qn_cuda_log - a line for whoever opened the device. */
void qn_cuda_log(qn_cuda *device, const char *format, ...) QN_PRINTF(2, 3);

/* qn_pipeline_get - the device's entry for a source and definitions, made where there is none; nothing is loaded yet. */
qn_status qn_pipeline_get(qn_cuda *device, const char *source, const char *defines, qn_pipeline **pipeline);

/* qn_pipeline_load - find its code and make it a module, once; a failure is given again to whoever asks again. The caller holds
 * its lock. */
qn_status qn_pipeline_load(qn_cuda *device, qn_pipeline *pipeline);

/* qn_pipelines_load - all of these, several at a time; the first failure, when all have been tried. */
qn_status qn_pipelines_load(qn_cuda *device, qn_pipeline *const *pipelines, size_t n);

/* qn_pipelines_free - modules and functions. */
void qn_pipelines_free(qn_cuda *device);

#endif
