/* Where the code of a kernel comes from. For a source, a set of definitions and the device's architecture, in this order:
 *
 *   built in   a cubin that nvcc made when quern was built
 *   cache      a cubin that was compiled on this machine before: $XDG_CACHE_HOME/quern, else ~/.cache/quern
 *   nvcc       the compiler of this machine, run now; cached
 *   NVRTC      the compiler library in this process; cached
 *
 * What the driver does not take, and what is damaged or cannot be had, is passed over for the next. A cache file that is no
 * good is replaced, and the device's log says so; a cache that cannot be written costs the caching alone. Any number of threads
 * and processes may do this at once. */
#ifndef QN_DEVICE_CUDA_PIPELINE_H
#define QN_DEVICE_CUDA_PIPELINE_H

#include "device/cuda/code.h"
#include "device/cuda/cubin_file.h"
#include "device/cuda/cuda.h"

/* What a device compiles with. Zeros stand for the user's own; texts are copied. */
typedef struct qn_cuda_tools {
    const char *cache_folder; /* NULL: the user's; "": none */
    const char *nvcc;         /* path; NULL: that of qn_nvcc_find; "": none */
    const char *nvrtc;        /* library; NULL: the usual ones; "": none */
    unsigned nvcc_seconds;    /* how long nvcc may take; 0: ten minutes */
    const qn_gpu_code *code;  /* kept by address; NULL: what this binary carries */
} qn_cuda_tools;

typedef enum qn_origin {
    QN_ORIGIN_NONE, /* not asked for yet, or not to be had */
    QN_ORIGIN_BUILT_IN,
    QN_ORIGIN_CACHE,
    QN_ORIGIN_NVCC,
    QN_ORIGIN_NVRTC
} qn_origin;

/* qn_origin_name - "built in", "cache", "nvcc", "NVRTC", "-". */
const char *qn_origin_name(qn_origin origin);

typedef struct qn_pipeline_info {
    const char *source, *defines;
    qn_origin origin;
    char compiler[QN_COMPILER_MAX]; /* what made it */
    double seconds;                 /* until it was ready to be launched */
    size_t bytes;                   /* of the cubin */
    const char *failure;            /* why it is not to be had, or NULL */
} qn_pipeline_info;

/* qn_cuda_load_pipelines - get every pipeline of the code's list ready, several at a time. The first failure, when all have
 * been tried. */
qn_status qn_cuda_load_pipelines(qn_cuda *device);

/* qn_cuda_pipeline - the i-th pipeline that was asked for so far; false past the last. Texts live as long as the device. */
bool qn_cuda_pipeline(qn_cuda *device, size_t i, qn_pipeline_info *info);

/* qn_cuda_arch - what the device is given code for: "sm_90a". */
const char *qn_cuda_arch(const qn_cuda *device);

/* qn_cuda_cache_folder - where compiled kernels are kept, or NULL where they are not. */
const char *qn_cuda_cache_folder(const qn_cuda *device);

#endif
