/* Attention over a KV cache of fp16 or fp32 elements.
 *
 * A cache is stored in pages of QN_PAGE positions, each at its own address. A page holds, for each layer and
 * key-value head,
 *
 *   keys     [QN_PAGE/16][head_dim][16] f16 or f32   sixteen positions interleaved: one vector load serves sixteen
 *            scores
 *   values   [QN_PAGE][head_dim] f16 or f32
 *
 * Keys are processed in blocks of QN_KEY_BLOCK positions (QN_BLOCK_PAGES pages), which begin at absolute positions.
 * Within a block and for one query:
 *
 *   score   sum over dimensions in ascending order, one fused multiply-add each
 *   m       the largest visible score, of positions that are attended to (qn_attention_block.first)
 *   p       e^(score - m); 0 for positions that are not attended to
 *   l       the canonical sum of p (kernels/canon.h)
 *   o       sum of p * value over positions in ascending order
 *
 * Blocks are combined in ascending order (qn_attention_kernels.combine). A query's result therefore depends only on its
 * position, not on the thread that processes a block or on the other queries of a tile.
 *
 * Method: Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Dao et al., FlashAttention
 * (2022). */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_H
#define QN_KERNELS_ATTENTION_ATTENTION_H

#include "plan/page.h"

#include <stddef.h>
#include <stdint.h>

enum {
    QN_KEY_TILE = 16,
    QN_KEY_BLOCK = 256,
    QN_BLOCK_PAGES = QN_KEY_BLOCK / QN_PAGE,
    QN_QUERY_TILE = 64,
    QN_HEAD_UNIT = 16
};

/* The pages of a block of one head, of the kernel's elements. Pages without a position that a query sees are not read,
 * and may be NULL. */
typedef struct qn_attention_block {
    const void *keys[QN_BLOCK_PAGES], *values[QN_BLOCK_PAGES];
    const void *next_keys[QN_BLOCK_PAGES]; /* keys of the block that the caller processes next, prefetched into L2
                                              with this block's data. The first is NULL: no prefetch */
    size_t first; /* positions of the block before it are not attended to: fewer than any query sees */
} qn_attention_block;

/* What depends on the type of the cache's elements. */
typedef struct qn_attention_cache_kernels {
    /* Stores one position's key and value [head_dim] in a head's part of a page, or of adjacent pages, rounded to the
     * nearest fp16 or unrounded, and clamped to the type's finite values. If the value has a NaN, 0 is stored in its
     * place and NaN in the key: queries that attend to the position get NaN, but a masked position, whose value is
     * multiplied by a weight of 0, adds 0. head_dim is a multiple of QN_HEAD_UNIT. */
    void (*store)(void *keys, void *values, size_t position, const float *key, const float *value, size_t head_dim);
    /* Up to QN_QUERY_TILE queries [n_queries, head_dim], already scaled, against one block of a head.
     *   visible       [n_queries] 0 to QN_KEY_BLOCK: number of visible positions of the block; queries with 0 get no
     *                 output
     *   out           [n_queries, head_dim] unnormalised
     *   m, l          [n_queries] largest score, sum of e^(score - m)
     *   scores        scratch, [n_queries, QN_KEY_BLOCK] */
    void (*block)(const float *queries, size_t n_queries, const qn_attention_block *block, const uint16_t *visible,
                  size_t head_dim, float *out, float *m, float *l, float *scores);
} qn_attention_cache_kernels;

typedef struct qn_attention_kernels {
    qn_attention_cache_kernels f16, f32;
    /* Combines a block's (block_out [head_dim], block_m, block_l) with the running (out, m, l). */
    void (*combine)(float *out, float *m, float *l, const float *block_out, float block_m, float block_l,
                    size_t head_dim);
    /* y = x / l for [head_dim]. */
    void (*normalize)(float *y, const float *x, float l, size_t head_dim);
} qn_attention_kernels;

void qn_attention_kernels_init(qn_attention_kernels *kernels, unsigned cpu);

void qn_attention_init_ref(qn_attention_kernels *kernels);
void qn_attention_init_avx2(qn_attention_kernels *kernels);
void qn_attention_init_avx512(qn_attention_kernels *kernels);
void qn_attention_init_neon(qn_attention_kernels *kernels);

#endif
