/* Choosing tokens on the GPU. Shared by C and CUDA. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_CUDA_H
#define QN_KERNELS_SAMPLE_SAMPLE_CUDA_H

#include "kernels/launch.h"

enum { QN_ARGMAX_THREADS = 256, QN_ARGMAX_PIECE = 8192 /* logits of a block */ };

/* qn_sample_argmax - the largest logit of each row, the lowest index of equals; -1 where any is NaN. grid (ceil(n /
 * QN_ARGMAX_PIECE), n_rows). */
typedef struct qn_sample_argmax_args {
    QN_GPU(const float) logits; /* [n_rows][n] */
    QN_GPU(int32_t) tokens;     /* [n_rows] */
    QN_GPU(uint64_t) best;      /* [n_rows] zeros, and left so */
    QN_GPU(uint32_t) tickets;   /* [n_rows] zeros, and left so */
    uint32_t n;
} qn_sample_argmax_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_sample_gpu_argmax - QN_ERR_INVALID for no logits, or more rows or logits than a launch takes. The args' pointers are the
 * caller's. */
qn_status qn_sample_gpu_argmax(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
