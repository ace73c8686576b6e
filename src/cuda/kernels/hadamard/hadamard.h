/* Signed block Walsh-Hadamard transform on the GPU: the transform of kernels/hadamard/hadamard.h for many blocks, with
 * butterflies in the same order and therefore the same bits.
 *
 * x holds contiguous blocks of n floats, n a power of two from 1 to QN_HADAMARD_MAX_BLOCK; the result is written to y,
 * which may be x. Both are at multiples of 16 bytes. Values are multiplied by signs_before before the butterflies and
 * by signs_after after them. Each is [n_signs], repeated periodically, so that a matrix of width n_signs has one sign
 * per column; 0: no signs. */
#ifndef QN_CUDA_KERNELS_HADAMARD_HADAMARD_H
#define QN_CUDA_KERNELS_HADAMARD_HADAMARD_H

#include "cuda/kernels/launch.h"

/* A thread block transforms one tile: several blocks of n, or a fraction of a larger one. */
enum {
    QN_HADAMARD_THREADS = 128,
    QN_HADAMARD_PER_THREAD = 16,
    QN_HADAMARD_TILE = QN_HADAMARD_THREADS * QN_HADAMARD_PER_THREAD
};

/* qn_hadamard_tiles - butterflies with strides 1 to n/2, or to QN_HADAMARD_TILE/2 if n is larger than a tile. Grid:
 * tiles (x), rows (y). */
typedef struct qn_hadamard_tiles_args {
    QN_GPU_PTR(float) y;
    QN_GPU_PTR(const float) x;
    QN_GPU_PTR(const float) signs_before;
    QN_GPU_PTR(const float) signs_after; /* 0 if n is larger than a tile: qn_hadamard_cross applies them */
    uint64_t n_values;                   /* of all blocks of a row */
    uint64_t stride;                     /* values from a row to the next */
    uint32_t n, n_signs;
    float scale; /* 1/sqrt(n), rounded to f32; 1 if n is larger than a tile */
} qn_hadamard_tiles_args;

/* qn_hadamard_cross - the remaining butterflies if n is larger than a tile, in place: strides QN_HADAMARD_TILE to n/2.
 * Grid: QN_HADAMARD_TILE / QN_HADAMARD_THREADS (x), blocks of n in a row (y), rows (z). */
typedef struct qn_hadamard_cross_args {
    QN_GPU_PTR(float) y;
    QN_GPU_PTR(const float) signs_after;
    uint64_t stride;
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

/* qn_hadamard_gpu_plan - Plans the transform of n_values floats in blocks of n. QN_ERR_INVALID unless n is a power of
 * two up to QN_HADAMARD_MAX_BLOCK that divides n_values and n_signs, there is at least one block, and x and y are
 * multiples of 16 bytes. pdl is not set in the launches; the caller may set it if no preceding kernel writes the signs,
 * which are loaded before the wait. */
qn_status qn_hadamard_gpu_plan(uint64_t y, uint64_t x, uint64_t signs_before, uint64_t signs_after, size_t n_signs,
                               size_t n, size_t n_values, qn_hadamard_gpu *out);

/* qn_hadamard_gpu_rows - Repeats a plan for n_rows rows of its n_values, `stride` values apart, a multiple of 4.
 * QN_ERR_INVALID for more than 65535 rows, the limit of a grid. */
qn_status qn_hadamard_gpu_rows(qn_hadamard_gpu *plan, size_t n_rows, size_t stride);

#endif
#endif
