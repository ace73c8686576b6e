/* RMS norm on the GPU, of rows whose consumer reads f32. The norm before a matmul is fused into the quantisation of its
 * activations (cuda/kernels/matmul/matmul.h). Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_NORM_NORM_H
#define QN_CUDA_KERNELS_NORM_NORM_H

#include "cuda/kernels/launch.h"

enum { QN_NORM_GPU_THREADS = 256 };

/* qn_norm_rows - y = x * weight / sqrt(mean(x^2) + eps) for each row. One block per row. Grid: n_rows. */
typedef struct qn_norm_rows_args {
    QN_GPU_PTR(const float) x;      /* [n_rows][n] */
    QN_GPU_PTR(const float) weight; /* [n] */
    QN_GPU_PTR(float) y;            /* [n_rows][n]; may be x */
    uint32_t n;
    float eps;
} qn_norm_rows_args;

/* qn_norm_pair - The inputs of a draft head for multi-token prediction: for each row r
 *
 *   y[r] = norm (embedding[r], embedding_weight), norm (h, hidden_weight)    one after the other
 *
 * where h is the normed hidden state of the row before it: what from[r] points to; norm (x[r - 1], weight) if from[r]
 * is QN_NORM_ROW_BEFORE; zeros if it is 0. With `x`, norm (x[r], weight) is stored at to[r], unless that is 0: no row's
 * `from` may point to what another row stores. A row's h is normed as it is stored. One block per row. Grid: n_rows. */
enum { QN_NORM_ROW_BEFORE = 1 };
enum { QN_NORM_PAIR_THREADS = 1024 }; /* of qn_norm_pair and qn_norm_keep, which have few rows */

typedef struct qn_norm_pair_args {
    QN_GPU_PTR(const float) embedding;        /* [n_rows][n] */
    QN_GPU_PTR(const float) x;                /* [n_rows][n] hidden states before their norm; 0: nothing is stored */
    QN_GPU_PTR(const uint64_t) from;          /* [n_rows] addresses of rows [n] */
    QN_GPU_PTR(const uint64_t) to;            /* [n_rows] */
    QN_GPU_PTR(const float) embedding_weight; /* [n], as are the other weights */
    QN_GPU_PTR(const float) hidden_weight;
    QN_GPU_PTR(const float) weight;
    QN_GPU_PTR(float) y; /* [n_rows][2 n] */
    uint32_t n;
    float eps;
} qn_norm_pair_args;

/* qn_norm_keep - norm (x[r], weight) is stored at to[r]. One block per row. Grid: n_rows. */
typedef struct qn_norm_keep_args {
    QN_GPU_PTR(const float) x;      /* [n_rows][n] */
    QN_GPU_PTR(const float) weight; /* [n] */
    QN_GPU_PTR(const uint64_t) to;  /* [n_rows]; 0: the row is not stored */
    uint32_t n;
    float eps;
} qn_norm_keep_args;

/* qn_norm_views - Norms of rows of views, for quern/cuda.h. Rows of up to QN_NORM_WARP_MAX elements: one warp per row,
 * grid ceil(n_rows / 8). Longer rows: one block per row, grid n_rows. */
enum { QN_NORM_WARP_MAX = 1024 };

typedef enum qn_norm_op {
    QN_NORM_RMS,   /* x * weight / sqrt(mean(x^2) + eps) */
    QN_NORM_GATED, /* QN_NORM_RMS times silu(gate) */
    QN_NORM_L2     /* x / sqrt(sum(x^2) + eps) */
} qn_norm_op;

typedef struct qn_norm_views_args {
    QN_GPU_PTR(const void) x;       /* [n_rows][n], x_stride elements apart */
    QN_GPU_PTR(const void) gate;    /* [n_rows][n], gate_stride; QN_NORM_GATED only */
    QN_GPU_PTR(const float) weight; /* [n], at a multiple of 16 bytes; not for QN_NORM_L2 */
    QN_GPU_PTR(void) y;             /* [n_rows][n], y_stride; may be x or gate */
    uint32_t x_stride, gate_stride, y_stride;
    uint32_t n_rows, n;
    uint32_t op;         /* qn_norm_op */
    uint32_t dtype;      /* qn_dtype of x, gate and y: f32, f16 or bf16 */
    uint32_t is_aligned; /* all rows of x, gate and y begin at multiples of 16 bytes */
    float eps;
} qn_norm_views_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* qn_norm_gpu_rows - Fills a launch of qn_norm_rows; the caller passes the arguments with it. QN_ERR_INVALID unless n
 * and n_rows are 1 to INT32_MAX. */
qn_status qn_norm_gpu_rows(size_t n, size_t n_rows, qn_launch *out);

/* qn_norm_gpu_pair, qn_norm_gpu_keep - The same of qn_norm_pair and qn_norm_keep. */
qn_status qn_norm_gpu_pair(size_t n, size_t n_rows, qn_launch *out);
qn_status qn_norm_gpu_keep(size_t n, size_t n_rows, qn_launch *out);

/* qn_norm_gpu_views - Fills a launch of qn_norm_views. Limits and errors as for qn_norm_gpu_rows. */
qn_status qn_norm_gpu_views(size_t n, size_t n_rows, qn_launch *out);

#endif
#endif
