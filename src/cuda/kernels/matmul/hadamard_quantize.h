/* One token's activations for rotated weights: the operation QN_OP (matmul.h), the signed Walsh-Hadamard transform
 * of the row's blocks, and quantisation to QN_ACTS_HILO_N1, in one launch instead of three. Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_MATMUL_HADAMARD_QUANTIZE_H
#define QN_CUDA_KERNELS_MATMUL_HADAMARD_QUANTIZE_H

#include "cuda/kernels/matmul/matmul.h"

enum { QN_HADAMARD_QUANTIZE_THREADS = 128 };

/* qn_hadamard_quantize - A thread block transforms and quantises QN_BLOCK values (512, 1024 or 2048); the row is a
 * multiple of QN_BLOCK. grid: n_cols / QN_BLOCK. Defines: QN_BLOCK, QN_OP. */
typedef struct qn_hadamard_quantize_args {
    QN_GPU_PTR(const float) x;      /* [n_cols], like the following inputs; 16-byte aligned */
    QN_GPU_PTR(const float) x2;     /* QN_ACTS_OP_SWIGLU: the second factor */
    QN_GPU_PTR(const float) weight; /* QN_ACTS_OP_RMS_NORM */
    QN_GPU_PTR(const float) signs;  /* +-1, applied before the transform, or null */
    QN_GPU_PTR(uint8_t) out;        /* QN_ACTS_HILO_N1 */
    uint32_t n_cols;
    float eps;
    float scale; /* 1/sqrt(QN_BLOCK) */
} qn_hadamard_quantize_args;

#ifndef __CUDACC__

/* qn_matmul_gpu_has_hadamard_quantize - Returns whether there is a kernel for blocks of `block` values. */
bool qn_matmul_gpu_has_hadamard_quantize(size_t block);

/* qn_matmul_gpu_hadamard_quantize - Fills a launch and its arguments. acts have the layout QN_ACTS_HILO_N1; op, x, x2,
 * weight and eps as for qn_matmul_gpu_quantize; signs [n_cols] or 0. QN_ERR_INVALID unless there is a kernel for
 * `block`, n_cols is a multiple of it, and all addresses are multiples of 16. */
qn_status qn_matmul_gpu_hadamard_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight,
                                          float eps, uint64_t signs, size_t block, qn_launch *launch,
                                          qn_hadamard_quantize_args *args);

#endif
#endif
