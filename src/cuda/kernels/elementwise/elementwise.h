/* Elementwise operations on the GPU, of rows whose consumer reads f32. SwiGLU before a matmul is fused into the
 * quantisation of its activations (cuda/kernels/matmul/matmul.h). Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_ELEMENTWISE_ELEMENTWISE_H
#define QN_CUDA_KERNELS_ELEMENTWISE_ELEMENTWISE_H

#include "cuda/kernels/launch.h"

enum { QN_ELEMENTWISE_GPU_THREADS = 256 };

/* qn_elementwise_swiglu - y = silu(gate) * up. One thread per element. Grid: ceil(n / QN_ELEMENTWISE_GPU_THREADS). */
typedef struct qn_elementwise_swiglu_args {
    QN_GPU_PTR(const float) gate; /* [n] */
    QN_GPU_PTR(const float) up;   /* [n] */
    QN_GPU_PTR(float) y;          /* [n]; may be gate or up */
    uint64_t n;
} qn_elementwise_swiglu_args;

/* qn_elementwise_swiglu_views - SwiGLU of rows of views, for quern/cuda.h. A thread computes eight elements. Grid:
 * n_rows (x), ceil(n / (8 * QN_ELEMENTWISE_GPU_THREADS)) (y). */
typedef struct qn_elementwise_swiglu_views_args {
    QN_GPU_PTR(const void) gate; /* [n_rows][n], gate_stride elements apart */
    QN_GPU_PTR(const void) up;   /* [n_rows][n], up_stride */
    QN_GPU_PTR(void) y;          /* [n_rows][n], y_stride; may be gate or up */
    uint32_t gate_stride, up_stride, y_stride;
    uint32_t n;
    uint32_t dtype;      /* qn_dtype of gate, up and y: f32, f16 or bf16 */
    uint32_t is_aligned; /* all rows begin at multiples of 16 bytes */
} qn_elementwise_swiglu_views_args;

/* qn_elementwise_gather - y[i] = x[rows[i]], rows of n floats. One thread per element. Grid: ceil(n /
 * QN_ELEMENTWISE_GPU_THREADS) (x), n_rows (y). */
typedef struct qn_elementwise_gather_args {
    QN_GPU_PTR(const float) x;       /* [][n] */
    QN_GPU_PTR(const uint32_t) rows; /* [n_rows]; read before the PDL wait */
    QN_GPU_PTR(float) y;             /* [n_rows][n] */
    uint32_t n;
} qn_elementwise_gather_args;

/* qn_elementwise_place - Copies rows of n floats to rows that are `stride` floats apart. One thread per element. Grid:
 * ceil(n / QN_ELEMENTWISE_GPU_THREADS) (x), n_rows (y). */
typedef struct qn_elementwise_place_args {
    QN_GPU_PTR(const float) x; /* [n_rows][n] */
    QN_GPU_PTR(float) y;       /* [n_rows][stride]; the first n of each are written */
    uint32_t n, stride;
} qn_elementwise_place_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_elementwise_gpu_swiglu - Fills a launch of qn_elementwise_swiglu; the caller passes the arguments with it.
 * QN_ERR_INVALID for 0 elements, or more than a grid can cover. */
qn_status qn_elementwise_gpu_swiglu(size_t n, qn_launch *out);

/* qn_elementwise_gpu_swiglu_views - Fills a launch of qn_elementwise_swiglu_views. Errors as for
 * qn_elementwise_gpu_swiglu. */
qn_status qn_elementwise_gpu_swiglu_views(size_t n, size_t n_rows, qn_launch *out);

/* qn_elementwise_gpu_gather - Fills a launch of qn_elementwise_gather, for n_rows rows of n floats. Errors as for
 * qn_elementwise_gpu_swiglu. */
qn_status qn_elementwise_gpu_gather(size_t n, size_t n_rows, qn_launch *out);

/* qn_elementwise_gpu_place - The same of qn_elementwise_place. */
qn_status qn_elementwise_gpu_place(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
