/* What the KV cache and the recurrent state of a session look like to the operations of the CPU: the layout in memory. kv.h and
 * recurrent.h allocate it. */
#ifndef QN_CACHE_VIEW_H
#define QN_CACHE_VIEW_H

#include "kernels/aura/aura.h"
#include "kernels/deltanet/deltanet.h"
#include "plan/plan.h"

#include <stddef.h>
#include <stdint.h>

/* Positions of a page: the unit in which an AURA cache is quantised. */
enum { QN_KV_PAGE = 64 };

/* A session's KV cache, as the operations read and write it.
 *
 * Memory is ordered by blocks of QN_KEY_BLOCK positions, and within a block by layer, so that it fills from the front and
 * huge pages waste little of it. Within a block each head has its keys and its values, in the layout of
 * kernels/attention/attention.h (fp16) or of kernels/aura/aura.h (AURA codes, if there are codecs).
 *
 * Quantisation error matters most at the positions that queries attend to most: the first and the newest. An AURA cache is
 * therefore divided into pages; page r is positions [r, r+1) * QN_KV_PAGE. The rows of a page are stored in fp16 first,
 * in the codecs' rotated basis; a complete page is quantised, except page 0. A query at a position of page r reads fp16
 * rows of pages 0 and r, and codes of the pages between them, however the tokens were split into steps. Because page 0
 * has no codes, the codes of position p are stored at position p - QN_KV_PAGE. The mean of page 0's keys is subtracted
 * from keys before they are quantised: much of a key is common to all keys of a head, and a term common to all scores of
 * a query does not change its softmax. docs/lab/2026-11-aura.md has the measured gain of each of these. */
typedef struct qn_kv_view {
    uint8_t *memory;               /* [blocks][n_kv_layers]: keys [n_heads][key_bytes], values [n_heads][value_bytes] */
    const uint32_t *kv_index;      /* [n_layers]: a layer's index among the attention layers */
    size_t n_kv_layers, n_heads;   /* attention layers; KV heads of each */
    size_t key_bytes, value_bytes; /* of one head in one block; multiples of 64 */
    const qn_aura_codec *key_codec, *value_codec; /* both NULL: an fp16 cache, without the fields below */
    uint16_t
        *f16_pages; /* [1 + n_open_pages][n_kv_layers][n_heads]: QN_KV_PAGE keys, then QN_KV_PAGE values. Slot 0 holds page 0,
                       slot 1 + (r-1) % n_open_pages page r */
    size_t n_open_pages; /* pages that one step can write to, plus one */
    float *means;        /* [n_kv_layers][n_heads][head_dim]: mean keys of page 0, in the rotated basis */
} qn_kv_view;

/* qn_kv_keys, qn_kv_values - the keys or values of a head in a block: fp16 rows or codes. */
static inline void *qn_kv_keys(const qn_kv_view *view, size_t layer, size_t block, size_t head)
{
    return view->memory +
           (block * view->n_kv_layers + view->kv_index[layer]) * view->n_heads * (view->key_bytes + view->value_bytes) +
           head * view->key_bytes;
}

static inline void *qn_kv_values(const qn_kv_view *view, size_t layer, size_t block, size_t head)
{
    return (uint8_t *)qn_kv_keys(view, layer, block, 0) + view->n_heads * view->key_bytes + head * view->value_bytes;
}

/* qn_kv_f16_keys, qn_kv_f16_values - the fp16 keys or values of a head in a page of an AURA cache. */
static inline uint16_t *qn_kv_f16_keys(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    const size_t slot = page ? 1 + (page - 1) % view->n_open_pages : 0;
    return view->f16_pages +
           ((slot * view->n_kv_layers + view->kv_index[layer]) * view->n_heads + head) * 2 * QN_KV_PAGE * view->key_codec->dim;
}

static inline uint16_t *qn_kv_f16_values(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    return qn_kv_f16_keys(view, layer, page, head) + QN_KV_PAGE * view->key_codec->dim;
}

/* qn_kv_key_mean - the mean key [head_dim] of a head of an AURA cache. */
static inline float *qn_kv_key_mean(const qn_kv_view *view, size_t layer, size_t head)
{
    return view->means + (view->kv_index[layer] * view->n_heads + head) * view->key_codec->dim;
}

/* The state of a Gated DeltaNet layer of a session with `length` tokens (kernels/deltanet/deltanet.h). The open chunk
 * holds the tokens at positions >= c0 = (length-1) / QN_GDN_CHUNK * QN_GDN_CHUNK, none when length is 0. A session can
 * therefore be truncated to any length above c0 by dropping rows of the open chunk. */
typedef struct qn_recurrent_layer {
    float *state;       /* [n_v_heads][head_k][head_v]: the state before position c0 */
    float *v_new;       /* [n_v_heads][QN_GDN_CHUNK][head_v]: corrected values v' of the open chunk */
    float *keys;        /* [n_k_heads][head_k][QN_GDN_CHUNK]: keys of the open chunk, one token a column */
    float *log_decay;   /* [n_v_heads][QN_GDN_CHUNK]: g of the open chunk */
    float *conv_inputs; /* [taps-1 + QN_GDN_CHUNK][qn_recurrent_width]: inputs q, k, v of the convolution at positions
                           >= c0-(taps-1); zeros before position 0 */
} qn_recurrent_layer;

/* qn_recurrent_open_tokens - tokens in the open chunk of a session of `length` tokens: 1 to QN_GDN_CHUNK, 0 when length is 0.
 * It is also the number of lengths, `length` included, that the session can be truncated to by dropping rows. */
static inline size_t qn_recurrent_open_tokens(size_t length)
{
    return length ? (length - 1) % QN_GDN_CHUNK + 1 : 0;
}

#endif
