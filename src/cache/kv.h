/* The key-value cache of one session, in halves or as AURA codes. */
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

typedef struct qn_kv {
    qn_kv_view view;
    uint8_t *memory;
    uint32_t *slots;
    size_t head_dim;
    uint64_t position_bytes; /* one position in all layers */
} qn_kv;

/* qn_kv_create - room for n_ctx positions (rounded up to whole key blocks) in the layers with attention, which are those where
 * is_recurrent [n_layers] is not set; all, where it is NULL. Codecs, of head_dim, outlive the cache. Pages become resident as
 * they are written. */
qn_status qn_kv_create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx,
                       qn_kv_codecs codecs);
void qn_kv_free(qn_kv *kv);

/* qn_kv_part - the memory that `length` positions take, piece by piece, for copying and saving: sets data and size (bytes) of
 * part 0, 1, ... and returns false when there are no more. Parts of caches of the same layers and format are the same for any
 * capacity. Halves of keys come in whole tiles of QN_KEY_TILE positions and codes in whole runs of QN_KV_RUN: those beyond
 * `length` may hold anything, but after qn_kv_trim zeros. */
bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint8_t **data, size_t *size);

/* qn_kv_trim - zeros where the last tile of keys, or run of codes, holds positions from `length` on. */
void qn_kv_trim(const qn_kv *kv, size_t length);

/* qn_kv_position_bytes - bytes that one position takes in all layers with attention, of those that qn_kv_create would make. */
uint64_t qn_kv_position_bytes(const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim,
                              qn_kv_codecs codecs);

#endif
