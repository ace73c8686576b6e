/* The key-value cache of one session, in halves or as AURA codes. How a cache of codes is made up of both is said at
 * qn_kv_view, device/plan.h. */
#ifndef QN_CACHE_KV_H
#define QN_CACHE_KV_H

#include "device/plan.h"

/* A format by the name that users give it. */
typedef struct qn_kv_format {
    const char *name;
    unsigned key_bits, value_bits; /* 0: f16 */
} qn_kv_format;

/* Of the rotations. Files of sessions hold rotated rows, so another seed would be another version of such files. */
enum { QN_KV_SEED = 1, QN_KV_MAX_BITS = 8 };

/* qn_kv_format_named - QN_ERR_UNSUPPORTED, naming all there are, for another name. */
qn_status qn_kv_format_named(const char *name, const qn_kv_format **format);

/* What the rows of a cache are encoded with; both NULL: halves. */
typedef struct qn_kv_codecs {
    const qn_aura_codec *keys, *values;
} qn_kv_codecs;

/* The attention layers of a model: those where is_recurrent [n_layers] is not set; all, where it is NULL. */
typedef struct qn_kv_shape {
    const bool *is_recurrent;
    size_t n_layers, n_heads, head_dim; /* heads of keys and values */
} qn_kv_shape;

typedef struct qn_kv {
    qn_kv_view view;
    uint8_t *memory;
    uint16_t *f16_pages;
    float *means;
    uint32_t *kv_index;
    size_t head_dim;
    uint32_t first_open_page; /* the first run, but for run 0, whose halves are held; of a cache of codes */
    bool
        keeps_last_page; /* halves of the last position's run are a part of what is held even when the run is complete, for going
                           back: of a cache of codes beside recurrent layers, which cannot compute anything again */
} qn_kv;

/* qn_kv_create - room for n_ctx positions (rounded up to whole key blocks), which steps of up to n_batch append to. Codecs, of
 * head_dim, outlive the cache. Pages become resident as they are written. */
qn_status qn_kv_create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch, qn_kv_codecs codecs);
void qn_kv_free(qn_kv *kv);

/* qn_kv_on_append - the cache has become that of `length` positions. */
void qn_kv_on_append(qn_kv *kv, size_t length);

/* qn_kv_rewind_length - the greatest length, not above `length`, which is not above what is held, to which the cache can go back with
 * nothing to be computed again. Less than QN_KV_PAGE below it; `length` itself in the run of the last position that is held,
 * where there are recurrent layers. */
size_t qn_kv_rewind_length(const qn_kv *kv, size_t length);

/* qn_kv_truncate - go back to a length that qn_kv_rewind_length gave. */
void qn_kv_truncate(qn_kv *kv, size_t length);

/* qn_kv_region - the memory that `length` positions take, piece by piece, for copying and saving: sets data and size (bytes, a
 * few are 0) of part 0, 1, ... and returns false when there are no more. Parts of caches of the same layers and format are the
 * same for any capacity. Halves of keys come in whole tiles of QN_KEY_TILE positions: those beyond `length` may hold anything,
 * but after qn_kv_zero_tail zeros. */
bool qn_kv_region(const qn_kv *kv, size_t region, size_t length, uint8_t **data, size_t *size);

/* qn_kv_zero_tail - zeros where the last tiles of halves of keys have positions from `length` on. */
void qn_kv_zero_tail(const qn_kv *kv, size_t length);

/* qn_kv_on_deserialize - parts of `length` positions have been written from elsewhere. */
void qn_kv_on_deserialize(qn_kv *kv, size_t length);

/* qn_kv_copy - the contents of one, of `length` positions, into another of the same shape, format and sizes. */
void qn_kv_copy(qn_kv *to, const qn_kv *from, size_t length);

/* A copy of the halves of one run, which later positions would take the place of. */
typedef struct qn_kv_checkpoint {
    uint16_t *f16_pages; /* NULL: none yet, or a cache of halves */
} qn_kv_checkpoint;

/* qn_kv_checkpoint_new - memory for one; free with qn_kv_checkpoint_free, which takes a zeroed struct too. */
qn_status qn_kv_checkpoint_new(qn_kv_checkpoint *checkpoint, const qn_kv *kv);
void qn_kv_checkpoint_free(qn_kv_checkpoint *checkpoint);

/* qn_kv_checkpoint_save - copy the run that the last of `held` > 0 positions is in, of a cache that keeps_last_page; qn_kv_checkpoint_restore -
 * copy it back, from when the cache was of `held` positions, so that it can go back to all lengths in the run. */
void qn_kv_checkpoint_save(qn_kv_checkpoint *checkpoint, const qn_kv *kv, size_t held);
void qn_kv_checkpoint_restore(const qn_kv_checkpoint *checkpoint, qn_kv *kv, size_t held);

/* qn_kv_checkpoint_copy - one copy into another of the same cache's sizes. */
void qn_kv_checkpoint_copy(qn_kv_checkpoint *to, const qn_kv_checkpoint *from, const qn_kv *kv);

/* qn_kv_bytes - bytes that `length` positions take. */
uint64_t qn_kv_bytes(const qn_kv *kv, size_t length);

/* qn_kv_position_bytes - bytes that one position takes in all layers with attention, of a cache that qn_kv_create would make:
 * as codes, where there are codecs. */
uint64_t qn_kv_position_bytes(const qn_kv_shape *shape, qn_kv_codecs codecs);

#endif
