/* The pool of a model on a GPU, and its cache formats: the arrays in each kind of pool item, and their offsets.
 *
 *   page         for each attention layer: keys [n_kv_heads][64][key_row], values [n_kv_heads][64][value_row]; with
 *                AURA codes also key_scales, value_scales [n_kv_heads][64] f32
 *   fp16 page    for each attention layer: keys, values [n_kv_heads][64][head_dim] f16 in the rotated basis; means
 *                [n_kv_heads][head_dim] f32, used in page 0 only
 *   state        for each recurrent layer: S [v_heads, head_v, head_k] in two planes of f16
 *                (cuda/kernels/deltanet/state_planes.h);
 *                history [taps-1, width] f32, the inputs of the convolution at the positions before state_position
 *   open chunk   for each recurrent layer: the arrays of qn_gdn_open_layout
 *
 * Arrays of pages begin at multiples of 256 bytes. States and open chunks are the same in all formats. */
#ifndef QN_CUDA_EXECUTOR_CACHES_H
#define QN_CUDA_EXECUTOR_CACHES_H

#include "cache/saved_layout.h"
#include "cuda/executor/internal.h"
#include "cuda/kernels/aura/aura.h"
#include "kernels/aura/aura.h"

typedef struct qn_cuda_caches qn_cuda_caches;

/* Offsets of an attention layer's arrays, in bytes from the start of the layer's part of an item. */
typedef struct qn_cuda_kv_layout {
    size_t key_row, value_row;                     /* bytes of one position of a head */
    size_t keys, values, key_scales, value_scales; /* in a page */
    size_t layer_bytes;                            /* of a page */
    size_t f16_keys, f16_values, means;            /* in an fp16 page */
    size_t f16_layer_bytes;                        /* of an fp16 page */
} qn_cuda_kv_layout;

/* Offsets of a recurrent layer's arrays, in bytes from the start of the layer's part of an item. S is at the start of
 * its part of a state. */
typedef struct qn_cuda_recurrent_layout {
    size_t history, state_layer_bytes; /* in a state */
    qn_gdn_open_layout open;           /* in an open chunk: open.bytes for each layer */
} qn_cuda_recurrent_layout;

/* A codec's tables on the device. */
typedef struct qn_cuda_codec {
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    float gain;
} qn_cuda_codec;

/* A cache format: shared by all memories with these codecs. */
typedef struct qn_cuda_format {
    qn_cache cache;
    const qn_kv_format *format;
    qn_aura_codecs aura;             /* on the host; both NULL: fp16 */
    qn_attention_gpu attention;      /* shape, and bits of this format */
    qn_cuda_codec codecs[2];         /* of keys, of values */
    qn_cuda_buffer tables;           /* of the codecs */
    const uint32_t *slots;           /* [n_layers]: a layer's index among the attention or the recurrent layers */
    size_t n_attention, n_recurrent; /* layers */
    qn_cuda_kv_layout kv;
    qn_cuda_recurrent_layout recurrent;
    uint64_t page_base, page_stride, f16_page_base, f16_page_stride; /* of the pool's classes; 0 for none */
    qn_saved_layout saved;
    struct qn_cuda_format *next;
} qn_cuda_format;

/* qn_cuda_caches_create - Creates the caches of common->plan, without formats and without a pool: the pool is created
 * with the first format, when the weights are on the device. Free with qn_cuda_caches_free. */
qn_status qn_cuda_caches_create(qn_cuda_common *common, qn_cuda_caches **out);

/* qn_cuda_caches_common - Returns the `common` given to qn_cuda_caches_create. */
qn_cuda_common *qn_cuda_caches_common(const qn_cuda_caches *caches);

/* qn_cuda_caches_free - Frees the caches, after all memories. Accepts NULL. */
void qn_cuda_caches_free(qn_cuda_caches *caches);

/* qn_cuda_caches_find - Finds a cache format on the device; the first call for a format creates it. The caches own
 * *out. From any thread. */
qn_status qn_cuda_caches_find(qn_cuda_caches *caches, const qn_kv_format *format, const qn_cuda_format **out);

/* qn_cuda_caches_upload - Writes `bytes` bytes to an address in the pool that no queued work accesses. Waits for the
 * copy. From any thread that does not hold the lock of the model's stream. */
qn_status qn_cuda_caches_upload(const qn_cuda_caches *caches, uint64_t to, const void *from, size_t bytes);

/* qn_cuda_format_bytes - Returns the bytes in use by `length` positions. */
uint64_t qn_cuda_format_bytes(const qn_cuda_format *format, size_t length);

/* qn_cuda_layer_cache - Sets the kernel arguments of an attention layer's cache: offsets from the start of a page's
 * item, and strides between heads within it. *pages (fp16 pages) is zeroed unless the format has AURA codes. The caller
 * sets `tables`. */
void qn_cuda_layer_cache(const qn_cuda_format *format, size_t layer, qn_attention_gpu_cache *cache,
                         qn_attention_gpu_pages *pages);

/* qn_cuda_recurrent_index - Returns the number of recurrent layers before `layer`, which is the index of a recurrent
 * layer among them. */
size_t qn_cuda_recurrent_index(const qn_plan *plan, int layer);

/* qn_cuda_state_offset - Returns the offset of a recurrent layer's part of a state, in bytes. */
uint64_t qn_cuda_state_offset(const qn_plan *plan, int layer);

/* qn_cuda_open_layout - Returns the layout of a recurrent layer's part of an open chunk. Offsets are from the start of
 * the item. */
qn_gdn_open_layout qn_cuda_open_layout(const qn_plan *plan, int layer);

#endif
