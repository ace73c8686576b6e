/* Attention on the GPU: what its kernels take and compute. Shared by C and CUDA.
 *
 * The GPU's cache of one layer keeps each key-value head's positions one after another, a row each:
 *
 *   keys, values             [capacity][words] u32, words = ceil(head_dim * bits / 32)
 *   key_scales, value_scales [capacity] f32, with codes only
 *
 * bits is 16 for halves (head_dim of them a row), or 2, 3, 4, 6, 8 for AURA codes: the packed stream and the scales of
 * include/quern/kernels.h. Heads of a cache, and the caches of several sessions, follow one another at strides of the caller's. */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_CUDA_H
#define QN_KERNELS_ATTENTION_ATTENTION_CUDA_H

#include "kernels/launch.h"

/* Where the cache of one layer lies. Row addresses are multiples of 16 bytes where a row is: heads and sessions begin at
 * multiples of 16. Strides are in bytes. */
typedef struct qn_attention_gpu_cache {
    QN_GPU(const uint8_t) keys;
    QN_GPU(const uint8_t) values;
    QN_GPU(const uint8_t) key_scales; /* with codes only */
    QN_GPU(const uint8_t) value_scales;
    uint64_t key_head, value_head, scale_head;          /* from one key-value head to the next */
    uint64_t key_session, value_session, scale_session; /* from one session's cache to the next */
} qn_attention_gpu_cache;

/* How codes become numbers. `gain` is a power of two that brings the codebook to a largest magnitude of 1 to 2, where halves
 * hold it well. */
typedef struct qn_attention_gpu_codec {
    QN_GPU(const float) codebook; /* [2^bits] */
    QN_GPU(const float) signs;    /* [head_dim] +-1 of the rotation y = H (S x); none: rows are rotated elsewhere, or not */
    float gain;
} qn_attention_gpu_codec;

enum {
    QN_ATTENTION_COLUMNS = 8, /* query heads that a block takes together */
    QN_ATTENTION_KEYS = 16    /* positions that a warp takes together */
};

/* qn_attention_decode - one query row each of some sessions, over their caches.
 *
 * A row at position p sees positions up to p, or all n_keys where it is not causal, and of those t with t + window > p where
 * window is not 0. Blocks of a row's key-value head share its positions; the last of them to end merges what they left. The
 * same arguments and grid give the same bits.
 *
 * grid (n_splits, key-value heads * column tiles, n_rows), QN_WARPS warps; a column tile is QN_ATTENTION_COLUMNS query heads of
 * a key-value head. Defines: QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS, QN_WARPS. */
typedef struct qn_attention_decode_args {
    QN_GPU(const float) queries;      /* [n_rows][n_heads][head_dim] */
    QN_GPU(float) out;                /* the same */
    QN_GPU(const uint32_t) positions; /* [n_rows] */
    QN_GPU(const uint32_t) sessions;  /* [n_rows] whose cache; none: 0 for all */
    QN_GPU(const float) sinks;        /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU(float) partials;           /* QN_ATTENTION_DECODE_PARTIAL(head_dim) floats for each block of the grid */
    QN_GPU(uint32_t) tickets;         /* [grid y * grid z], zeros; left so */
    qn_attention_gpu_cache cache;
    qn_attention_gpu_codec key_codec, value_codec; /* with codes only */
    uint32_t n_heads, n_kv_heads;
    uint32_t n_keys; /* of any session: the cache's capacity will do where all is causal */
    uint32_t window, causal;
    float scale; /* of scores */
} qn_attention_decode_args;

/* A block's sums, and the largest score and the sum of weights of each of its columns. */
#define QN_ATTENTION_DECODE_PARTIAL(head_dim) (QN_ATTENTION_COLUMNS * ((head_dim) + 2))

#endif
