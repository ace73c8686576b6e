/* The f16 key-value cache of one session. */
#ifndef QN_CACHE_KV_H
#define QN_CACHE_KV_H

#include "device/plan.h"

typedef struct qn_kv {
    qn_kv_view view;
    uint16_t *memory;
    uint32_t *slots;
    size_t head_dim;
    uint64_t position_bytes; /* one position in all layers */
} qn_kv;

/* qn_kv_create - room for n_ctx positions (rounded up to whole key blocks) in the layers with attention, which are those where
 * is_recurrent [n_layers] is not set; all, where it is NULL. Pages become resident as they are written. */
qn_status qn_kv_create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx);
void qn_kv_free(qn_kv *kv);

/* qn_kv_part - the memory that `length` positions take, piece by piece, for copying and saving: sets data and count (halves) of
 * part 0, 1, ... and returns false when there are no more. Parts of caches of the same layers are the same for any capacity.
 * Keys come in whole tiles of QN_KEY_TILE positions: those beyond `length` may hold anything, but after qn_kv_trim zeros. */
bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint16_t **data, size_t *count);

/* qn_kv_trim - zeros where the last tile of keys holds positions from `length` on. */
void qn_kv_trim(const qn_kv *kv, size_t length);

/* qn_kv_position_bytes - bytes that one position takes in all layers with attention, of those that qn_kv_create would make. */
uint64_t qn_kv_position_bytes(const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim);

#endif
