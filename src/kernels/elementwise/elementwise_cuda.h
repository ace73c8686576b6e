/* Elementwise operations on the GPU, of rows whose consumer reads f32. SwiGLU in front of a matmul is fused into the
 * quantisation of its activations (kernels/matmul/matmul_cuda.h). Shared by C and CUDA. */
#ifndef QN_KERNELS_ELEMENTWISE_ELEMENTWISE_CUDA_H
#define QN_KERNELS_ELEMENTWISE_ELEMENTWISE_CUDA_H

#include "kernels/launch.h"

enum { QN_ELEMENTWISE_GPU_THREADS = 256 };

/* qn_elementwise_swiglu - y = silu(gate) * up. One thread per element. Grid: ceil(n / QN_ELEMENTWISE_GPU_THREADS). */
typedef struct qn_elementwise_swiglu_args {
    QN_GPU_PTR(const float) gate; /* [n] */
    QN_GPU_PTR(const float) up;   /* [n] */
    QN_GPU_PTR(float) y;          /* [n]; may be gate or up */
    uint64_t n;
} qn_elementwise_swiglu_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_elementwise_gpu_swiglu - fill the launch; the caller passes the arguments with it. QN_ERR_INVALID for 0 elements, or more
 * than a grid can cover. */
qn_status qn_elementwise_gpu_swiglu(size_t n, qn_launch *out);

#endif
#endif
