/* Signed block Walsh-Hadamard transform on the GPU: what hadamard.h describes, for many blocks at once, in the same order of
 * butterflies and so with the same bits.
 *
 * Blocks of n floats, n a power of two from 1 to QN_HADAMARD_MAX_BLOCK, lie one after another at x and go to y, which may be x.
 * Both begin at multiples of 16 bytes. Values are multiplied before by signs_before and after by signs_after, each
 * [n_signs] and repeated, or null: a row of a matrix whose width is n_signs has one sign a column. */
#ifndef QN_KERNELS_HADAMARD_HADAMARD_CUDA_H
#define QN_KERNELS_HADAMARD_HADAMARD_CUDA_H

#include "kernels/launch.h"

/* A thread block has so many threads, which transform a tile: whole blocks, or a part of a larger one. */
enum {
    QN_HADAMARD_THREADS = 128,
    QN_HADAMARD_PER_THREAD = 16,
    QN_HADAMARD_TILE = QN_HADAMARD_THREADS * QN_HADAMARD_PER_THREAD
};

/* qn_hadamard_tiles - butterflies at distances 1 to n/2, or to QN_HADAMARD_TILE/2 where n is larger. Grid: tiles. */
typedef struct qn_hadamard_tiles_args {
    QN_GPU_PTR(float) y;
    QN_GPU_PTR(const float) x;
    QN_GPU_PTR(const float) signs_before;
    QN_GPU_PTR(const float) signs_after; /* null where n is larger than a tile: then it is not the end */
    uint64_t n_values;                   /* of all blocks */
    uint32_t n, n_signs;
    float scale; /* 1/sqrt(n), rounded to float32; 1 where it is not the end */
} qn_hadamard_tiles_args;

/* qn_hadamard_cross - the butterflies that are left where n is larger than a tile, in place. Grid: values a tile apart by
 * QN_HADAMARD_THREADS, blocks of n. */
typedef struct qn_hadamard_cross_args {
    QN_GPU_PTR(float) y;
    QN_GPU_PTR(const float) signs_after;
    uint32_t n, n_signs;
    float scale;
} qn_hadamard_cross_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* The launches of a transform, in order. */
typedef struct qn_hadamard_gpu {
    qn_launch tiles, cross;
    qn_hadamard_tiles_args tiles_args;
    qn_hadamard_cross_args cross_args;
    bool has_cross;
} qn_hadamard_gpu;

/* qn_hadamard_gpu_plan - n_values floats in blocks of n. QN_ERR_INVALID unless n is a power of two up to QN_HADAMARD_MAX_BLOCK
 * that divides n_values and n_signs, there is at least one block, and x and y begin at multiples of 16. Launches may be
 * made dependent: signs are read before the kernels wait, x and y after. */
qn_status qn_hadamard_gpu_plan(uint64_t y, uint64_t x, uint64_t signs_before, uint64_t signs_after, size_t n_signs, size_t n,
                               size_t n_values, qn_hadamard_gpu *out);

#endif
#endif
