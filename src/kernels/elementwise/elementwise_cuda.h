/* Products of elements on the GPU, of rows that stay floats because something else than a product reads them: products' rows
 * are made on their way into activations (kernels/matmul/matmul_cuda.h). Shared by C and CUDA. */
#ifndef QN_KERNELS_ELEMENTWISE_ELEMENTWISE_CUDA_H
#define QN_KERNELS_ELEMENTWISE_ELEMENTWISE_CUDA_H

#include "kernels/launch.h"

enum { QN_ELEMENTWISE_GPU_THREADS = 256 };

/* qn_elementwise_swiglu - y = silu(gate) * up. A thread takes an element. grid: ceil(n / QN_ELEMENTWISE_GPU_THREADS). */
typedef struct qn_elementwise_swiglu_args {
    QN_GPU_PTR(const float) gate; /* [n] */
    QN_GPU_PTR(const float) up;
    QN_GPU_PTR(float) y; /* may be either */
    uint64_t n;
} qn_elementwise_swiglu_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_elementwise_gpu_swiglu - QN_ERR_INVALID for no elements, or more than a launch takes. The args are the caller's. */
qn_status qn_elementwise_gpu_swiglu(size_t n, qn_launch *out);

#endif
#endif
