/* A cache format of a model on a GPU: the arrays in each kind of pool item, and their offsets.
 *
 *   page
 *     for each attention layer, those of a block drafter last: keys [n_kv_heads][64][key_row], values
 *     [n_kv_heads][64][value_row]; with AURA codes also key_scales, value_scales [n_kv_heads][64] f32
 *
 *   fp16 page
 *     for each attention layer: keys, values [n_kv_heads][64][head_dim] f16 in the rotated basis; means
 *     [n_kv_heads][head_dim] f32, used in page 0 only
 *
 *   state, open chunk
 *     for each recurrent layer: gpu/recurrent_layout.h
 *
 *   head's rows
 *     of a plan with a draft head: gpu/head_rows.h
 *
 * Arrays of pages begin at multiples of QN_POOL_ALIGN bytes. States and open chunks are the same in all formats. */
#ifndef QN_GPU_FORMAT_H
#define QN_GPU_FORMAT_H

#include "cache/saved_layout.h"
#include "gpu/recurrent_layout.h"
#include "kernels/aura/aura.h"

/* Offsets of an attention layer's arrays, in bytes from the start of the layer's part of an item. */
typedef struct qn_gpu_kv_layout {
    size_t key_row, value_row;                     /* bytes of one position of a head */
    size_t keys, values, key_scales, value_scales; /* in a page */
    size_t layer_bytes;                            /* of a page */
    size_t f16_keys, f16_values, means;            /* in an fp16 page */
    size_t f16_layer_bytes;                        /* of an fp16 page */
} qn_gpu_kv_layout;

/* A layer's arrays in a page and in an fp16 page: offsets from the start of the item, and strides between heads, in
 * bytes. Without codes, those of scales and of fp16 pages are 0. */
typedef struct qn_gpu_layer_cache {
    uint64_t keys, values, key_scales, value_scales;
    uint64_t key_head, value_head, scale_head;
    uint64_t f16_keys, f16_values, means, f16_head; /* f16_head: of keys, and of values */
} qn_gpu_layer_cache;

/* A cache format: shared by all memories with these codecs. A backend's format begins with it. */
typedef struct qn_gpu_format {
    qn_cache cache; /* the backend sets it; qn_gpu_format_add_pages sets the classes of pages */
    const qn_kv_format *format;
    qn_aura_codecs aura;   /* on the host; both NULL: fp16 */
    const uint32_t *slots; /* [n_layers]: a layer's index among the attention or the recurrent layers */
    qn_saved_layout saved; /* in files; and the numbers of layers, heads and dimensions */
    size_t n_head_layers;  /* attention layers of a draft head, the last ones, which files do not have */
    qn_gpu_kv_layout kv;
    /* Of a block drafter's layers, whose heads are not those of the model: in a page after the model's layers. Zeros
     * without one. */
    qn_gpu_kv_layout block_kv;
    size_t block_heads, block_dim;
    qn_gpu_recurrent_layout recurrent;
    qn_pool_class *head_rows; /* NULL without a draft head; the backend sets it */
    size_t head_width;        /* of the hidden states that a draft head reads */
    uint64_t page_base, page_stride, f16_page_base, f16_page_stride; /* of the pool's classes; 0 for none */
} qn_gpu_format;

/* qn_gpu_row_bytes - returns the bytes of one position of a head in the cache, without its scale. bits: 16 for fp16. */
size_t qn_gpu_row_bytes(size_t head_dim, unsigned bits);

/* qn_gpu_layer_slots - returns in *slots [n_layers] the index of each layer among the attention layers, or among the
 * recurrent ones. QN_ERR_MEMORY, also if the states of the recurrent layers do not fit in a size_t. The caller frees
 * it with qn_free. */
qn_status qn_gpu_layer_slots(const qn_plan *plan, uint32_t **slots);

/* qn_gpu_format_init - sets all members of *out but `cache`, head_rows, and the bases and strides. QN_ERR_MEMORY if a
 * page does not fit in memory. Plan, format and slots must outlive it. Free with qn_gpu_format_free, also after an
 * error. */
qn_status qn_gpu_format_init(const qn_plan *plan, const qn_kv_format *format, const uint32_t *slots,
                             qn_gpu_format *out);

/* qn_gpu_format_free - frees what the format owns. Accepts a zeroed struct. */
void qn_gpu_format_free(qn_gpu_format *format);

/* qn_gpu_has_codes - returns whether pages hold AURA codes: page 0 and the open page of a sequence are then fp16
 * pages. */
static inline bool qn_gpu_has_codes(const qn_gpu_format *format)
{
    return format->format->key_bits != 0;
}

/* qn_gpu_same_cache - returns whether sequences of two formats can be in one step. */
bool qn_gpu_same_cache(const qn_gpu_format *a, const qn_gpu_format *b);

/* qn_gpu_format_bytes - returns the bytes in use by `length` positions. */
uint64_t qn_gpu_format_bytes(const qn_gpu_format *format, size_t length);

/* qn_gpu_layer_cache_of - returns the offsets of attention layer `layer` of the model. */
qn_gpu_layer_cache qn_gpu_layer_cache_of(const qn_gpu_format *format, size_t layer);

/* ---- The pool's classes ---- */

/* qn_gpu_pool_budget - returns the budget of a pool for which a device has `available` bytes: what is left for
 * workspaces and other processes is a tenth, at least 1 GiB but at most half. */
uint64_t qn_gpu_pool_budget(uint64_t available);

/* qn_gpu_pool_idle - returns the limit of bytes without items that a pool keeps for reuse (qn_pool_create). */
uint64_t qn_gpu_pool_idle(uint64_t budget);

/* qn_gpu_add_states - adds the classes of states and open chunks of the plan's recurrent layers; without such layers
 * it adds none, and changes neither *states nor *open_chunks. */
qn_status qn_gpu_add_states(qn_pool *pool, const qn_plan *plan, qn_pool_class **states, qn_pool_class **open_chunks);

/* qn_gpu_add_head_rows - adds the class of the rows that a draft head keeps; without one it adds none and does not
 * change *head_rows. */
qn_status qn_gpu_add_head_rows(qn_pool *pool, const qn_plan *plan, qn_pool_class **head_rows);

/* qn_gpu_format_add_pages - adds the format's classes of pages, and sets format->cache.pages and f16_pages, bases and
 * strides. After an error the pool has the classes that it had before. */
qn_status qn_gpu_format_add_pages(qn_pool *pool, qn_gpu_format *format);

#endif
