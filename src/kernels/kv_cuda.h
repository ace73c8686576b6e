/* Key-value caches on the GPU, as the rooms that fill and read them know them. Shared by C and CUDA.
 *
 * A cache of one layer keeps each key-value head's positions one after another, a row each:
 *
 *   keys, values             [capacity][words] u32, words = ceil(head_dim * bits / 32)
 *   key_scales, value_scales [capacity] f32, with codes only
 *
 * bits is 16 for halves (head_dim of them a row), or 2, 3, 4, 6, 8 for AURA codes: the packed stream and the scales of
 * include/quern/kernels.h. Heads of a cache, and the caches of several sessions, follow one another at strides of the caller's;
 * capacity is a multiple of 16. */
#ifndef QN_KERNELS_KV_CUDA_H
#define QN_KERNELS_KV_CUDA_H

#include "kernels/launch.h"

/* Where the cache of one layer lies. Row addresses are multiples of 16 bytes where a row is: heads and sessions begin at
 * multiples of 16. Strides are in bytes. */
typedef struct qn_attention_gpu_cache {
    QN_GPU_PTR(const uint8_t) keys;
    QN_GPU_PTR(const uint8_t) values;
    QN_GPU_PTR(const uint8_t) key_scales; /* with codes only */
    QN_GPU_PTR(const uint8_t) value_scales;
    uint64_t key_head_stride, value_head_stride, scale_head_stride;          /* from one key-value head to the next */
    uint64_t key_session_stride, value_session_stride, scale_session_stride; /* from one session's cache to the next */
} qn_attention_gpu_cache;

/* A session's cache of codes keeps its first and its newest run of QN_ATTENTION_PAGE positions as halves, rotated as codes are:
 * a query of run r reads halves of run 0 and of run r, and codes of the runs between. Codes of position p are in row p -
 * QN_ATTENTION_PAGE. The mean of run 0's keys is taken from keys before they become codes. */
enum { QN_ATTENTION_PAGE = 64 };

typedef struct qn_attention_gpu_pages {
    QN_GPU_PTR(const uint8_t)
    keys; /* [1 + n_open_pages][QN_ATTENTION_PAGE][head_dim] f16: run 0, and run r at 1 + (r-1) % n_open_pages */
    QN_GPU_PTR(const uint8_t) values; /* the same */
    QN_GPU_PTR(const uint8_t) means;  /* [n_kv_heads][head_dim] f32 */
    uint64_t head, session;           /* bytes from one key-value head, or session, to the next */
    uint64_t mean_session_stride;
    uint32_t n_open_pages;
} qn_attention_gpu_pages;

/* The rotation y = P x of rows: signs [dim] where P is a Walsh-Hadamard transform after signs; else `forward`, the transpose of
 * P, and `back`, P itself, both [dim][dim] row by row; all none: no rotation. */
typedef struct qn_aura_gpu_rotation {
    QN_GPU_PTR(const float) signs;
    QN_GPU_PTR(const float) forward;
    QN_GPU_PTR(const float) inverse;
} qn_aura_gpu_rotation;

typedef struct qn_aura_gpu_levels {
    QN_GPU_PTR(const float) boundaries; /* [2^bits - 1] */
    QN_GPU_PTR(const float) codebook;   /* [2^bits] */
} qn_aura_gpu_levels;

#ifndef __CUDACC__

#include <stddef.h>

/* Bits that codes may have. */
static const unsigned qn_kv_code_bits[] = { 2, 3, 4, 6, 8 };
enum { QN_KV_CODE_BITS = sizeof qn_kv_code_bits / sizeof *qn_kv_code_bits };

/* qn_kv_bits_index - where in qn_kv_code_bits, or -1. */
static inline int qn_kv_bits_index(unsigned bits)
{
    for (int i = 0; i < QN_KV_CODE_BITS; i++)
        if (qn_kv_code_bits[i] == bits)
            return i;
    return -1;
}

#endif
#endif
