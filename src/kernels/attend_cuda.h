/* What the kernels that attend to a cache of kernels/kv_cuda.h have in common, as their launches know it: tiles, codebooks and
 * look-up tables in shared memory. Shared by C and CUDA; attend.cuh is the code. */
#ifndef QN_KERNELS_ATTEND_CUDA_H
#define QN_KERNELS_ATTEND_CUDA_H

#include "kernels/kv_cuda.h"

enum {
    QN_ATTENTION_TILE_Q = 8,  /* query heads that a block takes together */
    QN_ATTENTION_TILE_KV = 16 /* positions that a warp takes together */
};

/* How codes become numbers. `gain` is a power of two that brings the codebook to a largest magnitude of 1 to 2, where halves
 * hold it well (qn_attention_gpu_gain). */
typedef struct qn_attention_gpu_codec {
    QN_GPU_PTR(const float) codebook; /* [2^bits] */
    QN_GPU_PTR(const float) signs;    /* of queries' rotation, where they are not rotated already */
    float gain;
} qn_attention_gpu_codec;

#ifndef __CUDACC__

#include <math.h>
#include <stddef.h>

/* Where tables begin in the shared memory of a block that may have twice as much. */
enum { QN_ATTENTION_ENTRY_BYTES = 256, QN_ATTENTION_TABLE_BASE = 0x10000 };

/* qn_attention_gpu_table_bytes - of the entries for codes of `bits` bits: two codes where they are small, else one. */
static inline size_t qn_attention_gpu_table_bytes(unsigned bits)
{
    return (size_t)QN_ATTENTION_ENTRY_BYTES << (bits <= 4 ? 2 * bits : bits);
}

/* qn_attention_gpu_has_large_smem - whether a block of the device may have that much, as attend.cuh tells by the architecture.
 */
static inline bool qn_attention_gpu_has_large_smem(uint32_t max_shared_bytes)
{
    return max_shared_bytes >= 2 * QN_ATTENTION_TABLE_BASE;
}

/* qn_attention_gpu_gain - for a codebook [n]: qn_attention_gpu_codec.gain. */
static inline float qn_attention_gpu_gain(const float *codebook, size_t n)
{
    float largest = 0;
    int exponent;
    for (size_t i = 0; i < n; i++)
        largest = fabsf(codebook[i]) > largest ? fabsf(codebook[i]) : largest;
    if (!(largest > 1e-30f && largest < 1e30f))
        return 1;
    frexpf(largest, &exponent); /* largest is 0.5 to 1 times 2^exponent */
    return ldexpf(1, 1 - exponent);
}

#endif
#endif
