/* QN_CUDA_LIMITS: this device with the limits of another card, so that the code for cards that are not here can be
 * checked and measured. "8.9,sms=128,shared=99,memory=24" is an RTX 4090:
 *
 *   8.9          compute capability, 8.0 or later: which kernels, variants and instructions are used
 *   sms=128      multiprocessors that launches are planned for; larger grids run on all of the device's
 *   shared=99    KiB of shared memory of a block
 *   memory=24    GiB of device memory
 *
 * nvcc compiles kernels from the instruction set of that capability for this device; or, for a later capability than
 * the device's, from the device's own, without what is its architecture's alone (sm_90a: no wgmma), and with
 * QN_CUDA_ARCH defined, which chooses the later one's code.
 *
 * Each is optional but the first; the device's own limits remain. Read when a device is opened or described. */
#ifndef QN_CUDA_RUNTIME_LIMITS_H
#define QN_CUDA_RUNTIME_LIMITS_H

#include "cuda/runtime/code.h"
#include "cuda/runtime/runtime.h"

typedef struct qn_cuda_limits {
    int major, minor;                 /* 0.0: none are given */
    uint32_t n_sms, max_shared_bytes; /* UINT32_MAX: none */
    uint64_t memory_bytes;            /* UINT64_MAX: none */
} qn_cuda_limits;

/* qn_cuda_limits_read - Reads the variable. QN_ERR_INVALID for other values. */
qn_status qn_cuda_limits_read(qn_cuda_limits *limits);

/* qn_cuda_limits_apply - Replaces the properties of a device by those within the limits.
 *
 *   arch   what kernels are compiled for (compile.h): "compute_89/sm_90" under limits */
void qn_cuda_limits_apply(const qn_cuda_limits *limits, qn_cuda_info *info, char arch[QN_GPU_ARCH_MAX]);

#endif
