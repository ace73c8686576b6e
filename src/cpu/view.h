/* The memory layout of a session's KV cache and recurrent state, as the CPU's operations see it. kv_layout.h and
 * recurrent_layout.h compute sizes and offsets; cache/sequence.h decides which pool items a sequence has. */
#ifndef QN_CPU_VIEW_H
#define QN_CPU_VIEW_H

#include "cache/sequence.h"
#include "kernels/aura/aura.h"
#include "kernels/deltanet/deltanet.h"

#include <stddef.h>
#include <stdint.h>

_Static_assert((int)QN_PAGE == (int)QN_PAGE && (int)QN_PAGE == (int)QN_GDN_CHUNK,
               "pages of both kinds of caches and chunks of the delta rule cover the same positions");

/* A part of a sequence's KV cache, as the operations read and write it: the layers of the trunk, or after them in each
 * page those of the draft head, whose heads may be others.
 *
 * Page r holds positions [r, r+1) * QN_PAGE. Tables give the index of each page's memory, which holds all attention
 * layers. Within a page each head has its keys and its values, in the layout of kernels/attention/attention.h (fp16 or
 * fp32) or of kernels/aura/aura.h (AURA codes, if there are codecs).
 *
 * Quantisation error matters most at the positions that queries attend to most: the first and the newest. The rows of a
 * page of an AURA cache are therefore first stored in fp16, in the codecs' rotated basis; a complete page is quantised,
 * except page 0. A query at a position of page r reads fp16 rows of pages 0 and r, and codes of the pages between them,
 * no matter how the tokens were split into steps. Attention to codes works in blocks that begin at page 1: block b is
 * pages 1 + 4b to 4 + 4b. The mean of page 0's keys is subtracted from keys before they are quantised: much of a key is
 * common to all keys of a head, and a term common to all scores of a query does not change its softmax.
 * docs/lab/2026-11-aura.md has the measured gain of each of these. */
typedef struct qn_kv_view {
    uint8_t *pages; /* the part's first page; page_stride apart, each [n_kv_layers]: keys [n_heads][key_bytes], values
                     * [n_heads][value_bytes]
                     */
    size_t page_stride;
    const uint32_t *table;                        /* [r]: index of page r in `pages`; with codes, page 0 has none */
    const uint32_t *kv_index;                     /* [n_layers]: a layer's index among the attention layers */
    size_t n_kv_layers, n_heads;                  /* attention layers; KV heads of each */
    size_t key_bytes, value_bytes;                /* of one head in one page; multiples of 64 */
    bool is_f32;                                  /* type of a cache without codes */
    const qn_aura_codec *key_codec, *value_codec; /* both NULL: no codes, and none of the fields below */
    uint8_t *f16_pages; /* f16_stride apart, each [n_kv_layers][n_heads]: QN_PAGE keys, then QN_PAGE values; after all
                           of them [n_kv_layers][n_heads][dim] f32: the means of the page's keys in the rotated basis,
                           used only in page 0 */
    size_t f16_stride;
    const uint32_t *f16_table; /* [r]: index of page r in f16_pages; valid for page 0 and for pages being filled */
} qn_kv_view;

/* qn_kv_keys - returns the keys of a head in a page: fp16 rows, fp32 rows or codes. */
static inline void *qn_kv_keys(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    return view->pages + view->table[page] * view->page_stride +
           view->kv_index[layer] * view->n_heads * (view->key_bytes + view->value_bytes) + head * view->key_bytes;
}

/* qn_kv_values - returns the values of a head in a page: fp16 rows, fp32 rows or codes. */
static inline void *qn_kv_values(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    return (uint8_t *)qn_kv_keys(view, layer, page, 0) + view->n_heads * view->key_bytes + head * view->value_bytes;
}

/* qn_kv_f16_keys - returns the fp16 keys of a head in a page of an AURA cache. */
static inline uint16_t *qn_kv_f16_keys(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    uint16_t *rows = (uint16_t *)(void *)(view->f16_pages + view->f16_table[page] * view->f16_stride);
    return rows + (view->kv_index[layer] * view->n_heads + head) * 2 * QN_PAGE * view->key_codec->dim;
}

/* qn_kv_f16_values - returns the fp16 values of a head in a page of an AURA cache. */
static inline uint16_t *qn_kv_f16_values(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    return qn_kv_f16_keys(view, layer, page, head) + QN_PAGE * view->key_codec->dim;
}

/* qn_kv_f16_bytes - returns the bytes of the fp16 rows of a page of an AURA cache, which is the offset of the means. */
static inline size_t qn_kv_f16_bytes(const qn_kv_view *view)
{
    return view->n_kv_layers * view->n_heads * 2 * QN_PAGE * view->key_codec->dim * sizeof(uint16_t);
}

/* qn_kv_key_mean - returns the mean key [dim] of page 0 of a head of an AURA cache. */
static inline float *qn_kv_key_mean(const qn_kv_view *view, size_t layer, size_t head)
{
    uint8_t *means = view->f16_pages + view->f16_table[0] * view->f16_stride + qn_kv_f16_bytes(view);
    return (float *)(void *)means + (view->kv_index[layer] * view->n_heads + head) * view->key_codec->dim;
}

/* A sequence's recurrent layers, as the operations read and write them in a step (kernels/deltanet/deltanet.h). The
 * state is the one at state_position, a multiple of QN_GDN_CHUNK. The open chunk holds the tokens since then, up to
 * QN_GDN_CHUNK of them; truncating a sequence drops rows of it. The first token after a full open chunk folds it into
 * the state. recurrent_layout.h has the layout of both. */
typedef struct qn_recurrent_view {
    const struct qn_recurrent_layout *layout;
    float *state;      /* states of all layers; NULL: zeros, at state_position 0 */
    float *state_to;   /* NULL if the step does not fold; else the new state, which may be `state` */
    float *open_chunk; /* of all layers */
    uint32_t state_position;
} qn_recurrent_view;

#endif
