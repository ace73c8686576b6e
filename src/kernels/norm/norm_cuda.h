/* RMS norm on the GPU, of rows whose consumer reads f32. The norm in front of a matmul is fused into the quantisation of its
 * activations (kernels/matmul/matmul_cuda.h). Shared by C and CUDA. */
#ifndef QN_KERNELS_NORM_NORM_CUDA_H
#define QN_KERNELS_NORM_NORM_CUDA_H

#include "kernels/launch.h"

enum { QN_NORM_GPU_THREADS = 256 };

/* qn_norm_rows - y = x * weight / sqrt(mean(x^2) + eps) for each row. One block per row. Grid: n_rows. */
typedef struct qn_norm_rows_args {
    QN_GPU_PTR(const float) x;      /* [n_rows][n] */
    QN_GPU_PTR(const float) weight; /* [n] */
    QN_GPU_PTR(float) y;            /* [n_rows][n]; may be x */
    uint32_t n;
    float eps;
} qn_norm_rows_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_norm_gpu_rows - fill the launch; the caller passes the arguments with it. QN_ERR_INVALID unless n and n_rows are 1 to
 * INT32_MAX. */
qn_status qn_norm_gpu_rows(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
