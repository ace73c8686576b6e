/* The origins of kernel code. For a source, a set of definitions and the device's architecture, quern tries in this
 * order:
 *
 *   built in   a cubin that nvcc compiled when quern was built
 *   cache      a cubin compiled on this machine before: $XDG_CACHE_HOME/quern, else ~/.cache/quern
 *   nvcc       the installed compiler, run now; the result is cached
 *   NVRTC      the compiler library, in this process; the result is cached
 *
 * If one is missing, damaged or rejected by the driver, the next is tried. An invalid cache file is replaced, with a
 * line in the device's log; if the cache cannot be written, the kernel is used without being cached. Files and
 * directories that other users own or may write to are not used. Threads and processes may share a cache. */
#ifndef QN_CUDA_RUNTIME_PIPELINE_H
#define QN_CUDA_RUNTIME_PIPELINE_H

#include "cuda/runtime/code.h"
#include "cuda/runtime/cubin_key.h"
#include "cuda/runtime/runtime.h"

/* Sources of kernel code for a device. Zero fields select the defaults; strings are copied. */
typedef struct qn_cuda_tools {
    const char *cache_folder; /* cache directory; NULL: the user's (qn_code_folder); "": none */
    const char *nvcc;         /* path; NULL: qn_nvcc_find finds it; "": none */
    const char *nvrtc;        /* library; NULL: the usual names; "": none */
    unsigned nvcc_seconds;    /* time limit of nvcc; 0: ten minutes */
    const qn_gpu_code *code;  /* not copied, outlives the device; NULL: qn_gpu_code_built_in() */
} qn_cuda_tools;

typedef enum qn_origin {
    QN_ORIGIN_NONE, /* not loaded yet, or unavailable */
    QN_ORIGIN_BUILT_IN,
    QN_ORIGIN_CACHE,
    QN_ORIGIN_NVCC,
    QN_ORIGIN_NVRTC
} qn_origin;

/* qn_origin_name - Returns "built in", "cache", "nvcc", "NVRTC" or "-". */
const char *qn_origin_name(qn_origin origin);

typedef struct qn_pipeline_info {
    const char *source, *defines;
    qn_origin origin;
    char compiler[QN_COMPILER_MAX]; /* name and version, "nvcc 13.0.88" */
    double seconds;                 /* time to find or compile it, and to load it */
    size_t bytes;                   /* of the cubin */
    const char *failure;            /* error text if it is unavailable, else NULL */
} qn_pipeline_info;

/* qn_cuda_load_pipelines - Loads every pipeline of the code's list, several concurrently. Tries all of them and returns
 * the first failure. */
qn_status qn_cuda_load_pipelines(qn_cuda *device);

/* qn_cuda_pipeline - Describes the device's pipeline entry number i in *info; returns false past the last. Any thread.
 * The strings live as long as the device. */
bool qn_cuda_pipeline(qn_cuda *device, size_t i, qn_pipeline_info *info);

/* qn_cuda_arch - Returns the architecture that code for this device is compiled for: "sm_90a". */
const char *qn_cuda_arch(const qn_cuda *device);

/* qn_cuda_cache_folder - Returns the cache directory, or NULL if compiled kernels are not cached. */
const char *qn_cuda_cache_folder(const qn_cuda *device);

/* qn_cuda_no_cache - Returns the reason if compiled kernels are not cached: the user has no cache directory, or others
 * may write to it. */
const char *qn_cuda_no_cache(const qn_cuda *device);

#endif
