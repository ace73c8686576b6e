/* Layout of KV caches on the GPU, for the kernels that write and read them. Shared by C and CUDA.
 *
 * For each key-value head, the cache of one layer has one row a position, in the order of positions:
 *
 *   keys, values              [capacity][words] u32, words = ceil(head_dim * bits / 32)
 *   key_scales, value_scales  [capacity] f32, with AURA codes only
 *
 * bits is 16 for fp16 (head_dim values a row), or 2, 3, 4, 6, 8 for AURA codes: packed codes and scales as in
 * include/quern/kernels.h. A cache is either contiguous, with the caller's strides between heads and between sessions,
 * or in pages. The capacity of a contiguous cache is a multiple of 16.
 *
 * A page holds QN_PAGE positions of all heads. A session has a page table, u64 [pages]: the device address of each
 * page. Rows of position p of head h begin at table[p / 64] + keys + h * key_head_stride + (p % 64) * row bytes; values
 * and scales likewise: the fields of the structs below are then byte offsets within a page. Sessions may share pages.
 * Entries of pages that a session does not have are never read as addresses. Kernels read page tables before they wait
 * for the previous launch (programmatic dependent launch, PDL): no launch that may still be running may write them.
 * kv_pages.cuh computes the addresses. */
#ifndef QN_CUDA_KERNELS_KV_H
#define QN_CUDA_KERNELS_KV_H

#include "cuda/kernels/launch.h"
#include "plan/page.h"

/* Addresses of the cache of one layer. Heads, sessions and pages begin at multiples of 16 bytes, so that rows do if
 * their size is a multiple of 16. Strides are in bytes. */
typedef struct qn_attention_gpu_cache {
    QN_GPU_PTR(const uint8_t) keys;
    QN_GPU_PTR(const uint8_t) values;
    QN_GPU_PTR(const uint8_t) key_scales; /* with AURA codes only */
    QN_GPU_PTR(const uint8_t) value_scales;
    uint64_t key_head_stride, value_head_stride, scale_head_stride;          /* between key-value heads */
    uint64_t key_session_stride, value_session_stride, scale_session_stride; /* between sessions */
    QN_GPU_PTR(const uint64_t) tables; /* [n_sessions] addresses of page tables; 0: rows are contiguous */
} qn_attention_gpu_cache;

/* Session index of a row that belongs to no session: nothing is stored for the row, and its attention is zeros. */
#define QN_ATTENTION_NO_SESSION 0xffffffffu

/* The fp16 pages of a cache of AURA codes. A session's first page and its newest pages are kept in fp16, in the rotated
 * basis of the codes: a query in page r reads pages 0 and r in fp16, and the codes of the pages between. The codes of
 * position p are in row p - QN_PAGE of a contiguous cache; with page tables they are in page p / QN_PAGE, and entry 0
 * of the table of codes is not used. The mean of page 0's keys is subtracted from keys before they are quantised. With
 * page tables, page r is entry r of the table of fp16 pages, and the means are in page 0. */
typedef struct qn_attention_gpu_pages {
    QN_GPU_PTR(const uint8_t)
    keys; /* [1 + n_open_pages][QN_PAGE][head_dim] f16: page 0, and page r at 1 + (r-1) % n_open_pages */
    QN_GPU_PTR(const uint8_t) values; /* the same */
    QN_GPU_PTR(const uint8_t) means;  /* [n_kv_heads][head_dim] f32 */
    uint64_t head, session;           /* strides in bytes between key-value heads, and between sessions */
    uint64_t mean_session_stride;
    uint32_t n_open_pages;             /* of a contiguous cache */
    QN_GPU_PTR(const uint64_t) tables; /* [n_sessions] addresses of tables of fp16 pages; 0: as above */
} qn_attention_gpu_pages;

/* The rotation y = P x of rows.
 *
 *   signs     [dim], if P is a Walsh-Hadamard transform after the multiplication by signs
 *   forward   else [dim][dim] row-major, the transpose of P
 *   inverse   and P itself
 *
 * All 0: no rotation. */
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

/* Supported bits of a code. */
static const unsigned qn_kv_code_bits[] = { 2, 3, 4, 6, 8 };
enum { QN_KV_CODE_BITS = sizeof qn_kv_code_bits / sizeof *qn_kv_code_bits };

/* qn_kv_bits_index - Returns the index of `bits` in qn_kv_code_bits, or -1. */
static inline int qn_kv_bits_index(unsigned bits)
{
    for (int i = 0; i < QN_KV_CODE_BITS; i++)
        if (qn_kv_code_bits[i] == bits)
            return i;
    return -1;
}

#endif
#endif
