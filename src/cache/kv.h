/* The KV cache of one session on the CPU, in fp16 or as AURA codes. Its layout, and which pages of an AURA cache are fp16, is
 * described at qn_kv_view in cache/view.h. */
#ifndef QN_CACHE_KV_H
#define QN_CACHE_KV_H

#include "cache/view.h"

/* A cache format, by its name in --kv and the API. */
typedef struct qn_kv_format {
    const char *name;
    unsigned key_bits, value_bits; /* 0: f16 */
} qn_kv_format;

/* QN_KV_SEED: seed of the codecs' rotations. Session files hold rotated rows, so another seed needs another file version. */
enum { QN_KV_SEED = 1, QN_KV_MAX_BITS = 8 };

/* qn_kv_format_named - find a format; QN_ERR_UNSUPPORTED, listing the supported ones, if there is none of this name. */
qn_status qn_kv_format_named(const char *name, const qn_kv_format **format);

/* The codecs of keys and values; both NULL: an fp16 cache. */
typedef struct qn_kv_codecs {
    const qn_aura_codec *keys, *values;
} qn_kv_codecs;

/* The attention layers of a model: those with is_recurrent [n_layers] not set, or all layers if it is NULL. */
typedef struct qn_kv_shape {
    const bool *is_recurrent;
    size_t n_layers, n_heads, head_dim; /* n_heads: KV heads */
} qn_kv_shape;

typedef struct qn_kv {
    qn_kv_view view;
    uint8_t *memory;
    uint16_t *f16_pages;
    float *means;
    uint32_t *kv_index;
    size_t head_dim;
    uint32_t first_open_page; /* AURA: the first page after page 0 whose fp16 rows are still stored */
    bool keeps_last_page; /* AURA with recurrent layers: the fp16 rows of the last position's page belong to the contents even
                             when the page is complete, for truncation: recurrent layers cannot recompute tokens */
} qn_kv;

/* qn_kv_create - allocate a cache of n_ctx positions (rounded up to a multiple of QN_KEY_BLOCK) for steps that append up to
 * n_batch positions. The codecs, of dimension head_dim, outlive the cache. Memory pages become resident when first written.
 * QN_ERR_MEMORY when it does not fit. Free with qn_kv_free, which accepts a zeroed struct. */
qn_status qn_kv_create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch, qn_kv_codecs codecs);
void qn_kv_free(qn_kv *kv);

/* qn_kv_on_append - called when the cache holds `length` positions after a step. */
void qn_kv_on_append(qn_kv *kv, size_t length);

/* qn_kv_rewind_length - the greatest length, at most `length`, to which the cache can be truncated without recomputing
 * anything; `length` is at most the number of positions held. The result is less than QN_KV_PAGE below `length`. With
 * recurrent layers it is `length` itself for every length in the page of the last position held. */
size_t qn_kv_rewind_length(const qn_kv *kv, size_t length);

/* qn_kv_truncate - truncate to a result of qn_kv_rewind_length. */
void qn_kv_truncate(qn_kv *kv, size_t length);

/* qn_kv_region - iterate over the memory in use by `length` positions, for copying and saving: sets *data and *size (bytes,
 * sometimes 0) of region 0, 1, ... and returns false after the last. Regions do not depend on the cache's capacity.
 * Regions of fp16 keys are full tiles of QN_KEY_TILE positions; elements of positions >= length are arbitrary, but zero after
 * qn_kv_zero_tail. */
bool qn_kv_region(const qn_kv *kv, size_t region, size_t length, uint8_t **data, size_t *size);

/* qn_kv_zero_tail - zero the elements of positions >= length in the last tiles of fp16 keys. */
void qn_kv_zero_tail(const qn_kv *kv, size_t length);

/* qn_kv_on_deserialize - called when all regions of `length` positions have been filled by the caller. */
void qn_kv_on_deserialize(qn_kv *kv, size_t length);

/* qn_kv_copy - copy the contents, `length` positions, to a cache of the same shape, format and sizes. */
void qn_kv_copy(qn_kv *to, const qn_kv *from, size_t length);

/* A copy of the fp16 rows of one page of an AURA cache, whose slot later positions overwrite. */
typedef struct qn_kv_checkpoint {
    uint16_t *f16_pages; /* NULL: zeroed struct, or checkpoint of an fp16 cache */
} qn_kv_checkpoint;

/* qn_kv_checkpoint_new - allocate a checkpoint of kv; free with qn_kv_checkpoint_free, which accepts a zeroed struct. */
qn_status qn_kv_checkpoint_new(qn_kv_checkpoint *checkpoint, const qn_kv *kv);
void qn_kv_checkpoint_free(qn_kv_checkpoint *checkpoint);

/* qn_kv_checkpoint_save, qn_kv_checkpoint_restore - copy the page of the last of `held` > 0 positions out of a cache that
 * keeps_last_page, and back into it; after restore the cache can be truncated to every length in that page. */
void qn_kv_checkpoint_save(qn_kv_checkpoint *checkpoint, const qn_kv *kv, size_t held);
void qn_kv_checkpoint_restore(const qn_kv_checkpoint *checkpoint, qn_kv *kv, size_t held);

/* qn_kv_checkpoint_copy - copy one checkpoint to another; both were created for caches of kv's sizes. */
void qn_kv_checkpoint_copy(qn_kv_checkpoint *to, const qn_kv_checkpoint *from, const qn_kv *kv);

/* qn_kv_bytes - bytes in use by `length` positions. */
uint64_t qn_kv_bytes(const qn_kv *kv, size_t length);

/* qn_kv_position_bytes - bytes of one position in all attention layers of a cache with this shape and these codecs: of
 * codes if there are codecs, else of fp16 rows. */
uint64_t qn_kv_position_bytes(const qn_kv_shape *shape, qn_kv_codecs codecs);

#endif
