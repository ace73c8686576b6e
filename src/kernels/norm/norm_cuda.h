/* RMS norm on the GPU, of rows that stay floats because something else than a product reads them: products' rows are normalised
 * on their way into activations (kernels/matmul/matmul_cuda.h). Shared by C and CUDA. */
#ifndef QN_KERNELS_NORM_NORM_CUDA_H
#define QN_KERNELS_NORM_NORM_CUDA_H

#include "kernels/launch.h"

enum { QN_NORM_GPU_THREADS = 256 };

/* qn_norm_rows - y = x * weight / sqrt(mean(x^2) + eps), row by row. A block takes a row. grid: n_rows. */
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

/* qn_norm_gpu_rows - QN_ERR_INVALID for no rows or no values, or more than a launch takes. The args are the caller's. */
qn_status qn_norm_gpu_rows(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
