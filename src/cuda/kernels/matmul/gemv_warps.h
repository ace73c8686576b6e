/* Warps of a block of qn_matmul_gemv over fp16 activations, and which of these they keep in registers. */
#ifndef QN_CUDA_KERNELS_MATMUL_GEMV_WARPS_H
#define QN_CUDA_KERNELS_MATMUL_GEMV_WARPS_H

#include "cuda/kernels/matmul/matmul.h"

/* The most warps of a block. Rings of weights of 8 bits leave no shared memory for more than twelve. */
#define QN_GEMV_WARPS(bits) ((bits) == 8 ? 12 : (int)QN_GEMV_MAX_WARPS)
/* Twelve warps have registers for the activations of two k-tiles: a warp with no more of them loads them once, not for
 * each of its tiles. */
#define QN_GEMV_KEPT_TILES(bits) ((bits) == 8 ? 2 : 1)

#endif
