/* Argmax of rows on the GPU, for quern/cuda.h; the argmax of a session's logits is part of sampling (sample.h). Shared
 * by C and CUDA. */
#ifndef QN_CUDA_KERNELS_SAMPLE_ARGMAX_H
#define QN_CUDA_KERNELS_SAMPLE_ARGMAX_H

#include "cuda/kernels/launch.h"

enum { QN_ARGMAX_THREADS = 1024 };

/* qn_argmax_rows - Index of the largest element of each row; the lowest index of equal elements. The first NaN counts
 * as the largest. A block computes a row: a single row is bound by the read bandwidth of one SM, about 6 us for 150000
 * elements. Grid: n_rows. */
typedef struct qn_argmax_rows_args {
    QN_GPU_PTR(const void) x; /* [n_rows][n], stride elements apart */
    QN_GPU_PTR(void) index;   /* [n_rows] int32 or int64 */
    uint32_t stride, n;
    uint32_t dtype;      /* qn_dtype of x: f32, f16 or bf16 */
    uint32_t is_aligned; /* all rows of x begin at multiples of 16 bytes */
    uint32_t is_wide;    /* index is int64 */
} qn_argmax_rows_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_argmax_gpu_rows - Fills a launch of qn_argmax_rows for n values in each of n_rows rows. The kernel's arguments are
 * given when it is launched (qn_cuda_launch). QN_ERR_INVALID unless n and n_rows are 1 to INT32_MAX. */
qn_status qn_argmax_gpu_rows(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
