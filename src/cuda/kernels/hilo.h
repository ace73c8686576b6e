/* Hi/lo int8 activations of several tokens: the layout QN_ACTS_HILO of matmul/matmul.h, and what a kernel needs to
 * write it from the results of its own (hilo.cuh). Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_HILO_H
#define QN_CUDA_KERNELS_HILO_H

#include "cuda/kernels/launch.h"

enum {
    QN_MMA_N = 8,              /* tokens of one mma: its N */
    QN_ACTS_HILO_COLS = 128,   /* columns of a scale */
    QN_ACTS_HILO_BYTES = 2048, /* of 8 tokens by QN_ACTS_HILO_COLS columns */
    QN_HILO_MAX = 32639        /* 127 * 256 + 127 */
};

/* The Hadamard transform of activations: values times signs, then the transform of each block of columns. */
typedef struct qn_hilo_hadamard {
    QN_GPU_PTR(const float) signs; /* [n_cols] of +-1; 0: none */
    uint32_t block;                /* a power of two that divides n_cols; 0: no transform */
    float scale;                   /* 1 / sqrt(block); 1 without a transform */
} qn_hilo_hadamard;

/* The same integers of up to 8 tokens as bit planes (matmul/matmul.h), of blocks of 4 or 8 tokens by QN_ACTS_HILO_COLS
 * columns: where in a block the upper planes begin, where the columns of negative integers, and what each token has,
 * scale and sums; its bytes. */
enum { QN_PLANES_TOKENS = 4, QN_PLANES_MAX_TOKENS = 8 };
#define QN_PLANES_BLOCK_TOKENS(n) ((n) <= QN_PLANES_TOKENS ? QN_PLANES_TOKENS : QN_PLANES_MAX_TOKENS)
#define QN_PLANES_UPPER(tokens) ((tokens)*256)
#define QN_PLANES_NEGATIVE(tokens) ((tokens)*512)
#define QN_PLANES_INFO(tokens) (QN_PLANES_NEGATIVE(tokens) + 256)
#define QN_PLANES_BLOCK_BYTES(tokens) (QN_PLANES_INFO(tokens) + (tokens)*16)

#endif
