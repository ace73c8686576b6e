/* Constants and arguments that the attention kernels over a cache of kernels/kv_cuda.h share: tile sizes, codebooks,
 * look-up tables in shared memory. Shared by C and CUDA; attend.cuh is the device code. */
#ifndef QN_KERNELS_ATTEND_CUDA_H
#define QN_KERNELS_ATTEND_CUDA_H

#include "kernels/kv_cuda.h"

enum {
    QN_ATTENTION_TILE_Q = 8,  /* query heads of a block */
    QN_ATTENTION_TILE_KV = 16 /* positions of a tile */
};

/* Dequantisation of codes. `gain` is a power of two that scales the codebook to an amax of 1 to 2, for precision in
 * fp16 (qn_attention_gpu_gain). */
typedef struct qn_attention_gpu_codec {
    QN_GPU_PTR(const float) codebook; /* [2^bits] */
    QN_GPU_PTR(const float) signs;    /* of the queries' rotation; 0 if they are in the rotated basis already */
    float gain;
} qn_attention_gpu_codec;

#ifndef __CUDACC__

#include <math.h>
#include <stddef.h>

/* Table entries; address of the tables in shared memory if a block may have twice as many bytes. */
enum { QN_ATTENTION_ENTRY_BYTES = 256, QN_ATTENTION_TABLE_BASE = 0x10000 };

/* qn_attention_gpu_table_bytes - bytes of the table for codes of `bits` bits: indexed by two codes of up to 4 bits,
 * else by one. */
static inline size_t qn_attention_gpu_table_bytes(unsigned bits)
{
    return (size_t)QN_ATTENTION_ENTRY_BYTES << (bits <= 4 ? 2 * bits : bits);
}

/* qn_attention_gpu_has_large_smem - whether a block of the device may have so much shared memory; LARGE_SMEM of
 * attend.cuh is the same by architecture. */
static inline bool qn_attention_gpu_has_large_smem(uint32_t max_shared_bytes)
{
    return max_shared_bytes >= 2 * QN_ATTENTION_TABLE_BASE;
}

/* qn_attention_gpu_gain - qn_attention_gpu_codec.gain of a codebook [n]. */
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
