/* Attention over a cache of half floats.
 *
 * A cache holds, for each layer and key-value head, `capacity` positions (a multiple of QN_KEY_BLOCK):
 *
 *   keys     [capacity/16][head_dim][16] f16   sixteen positions side by side, so that scores come out sixteen at a time
 *   values   [capacity][head_dim] f16
 *
 * Keys are taken in blocks of QN_KEY_BLOCK at absolute positions. Within a block and for one query: a score is the sum over
 * dimensions in rising order, one fused multiply-add each; m the largest visible score; p = e^(score - m); l the canonical sum
 * of p; o the sum of p * value over positions in rising order. Blocks are merged in rising order (qn_attention_kernels.merge).
 * So a query's result depends on its position alone, whichever thread does which block and whatever other queries go along.
 * Method: Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Dao et al., FlashAttention (2022). */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_H
#define QN_KERNELS_ATTENTION_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum { QN_KEY_TILE = 16, QN_KEY_BLOCK = 256, QN_QUERY_TILE = 64, QN_HEAD_UNIT = 16 };

typedef struct qn_attention_kernels {
    /* One position's key and value [head_dim] into a head's part of the cache, as the nearest halves; beyond +-65504 those. A
     * value that is NaN is stored as 0 and makes the key NaN: whoever sees the position gets NaN, and a value that is
     * multiplied by a weight of zero because it must not be seen stays harmless. head_dim is a multiple of QN_HEAD_UNIT. */
    void (*store)(uint16_t *keys, uint16_t *values, size_t position, const float *key, const float *value, size_t head_dim);
    /* Up to QN_QUERY_TILE queries [n_queries, head_dim], already scaled, against one block of a head.
     *   keys, values  the block's first position in the cache
     *   visible       [n_queries] 0 to QN_KEY_BLOCK: how many of the block's positions each query sees; queries with 0 are not
     *                 written
     *   next_keys     whose block comes next, so that memory can be asked for it in time; NULL where that does not matter
     *   out           [n_queries, head_dim] unnormalised; m, l [n_queries]
     *   scores        scratch, [n_queries, QN_KEY_BLOCK] */
    void (*block)(const float *queries, size_t n_queries, const uint16_t *keys, const uint16_t *values, const uint16_t *visible,
                  const uint16_t *next_keys, size_t head_dim, float *out, float *m, float *l, float *scores);
    /* Take a block's (block_out [head_dim], block_m, block_l) into the running (out, m, l). */
    void (*combine)(float *out, float *m, float *l, const float *block_out, float block_m, float block_l, size_t head_dim);
    /* y = x / l for [head_dim]. */
    void (*normalize)(float *y, const float *x, float l, size_t head_dim);
} qn_attention_kernels;

void qn_attention_kernels_init(qn_attention_kernels *kernels, unsigned cpu);

void qn_attention_init_ref(qn_attention_kernels *kernels);
void qn_attention_init_avx2(qn_attention_kernels *kernels);
void qn_attention_init_avx512(qn_attention_kernels *kernels);
void qn_attention_init_neon(qn_attention_kernels *kernels);

#endif
