/* The f16 key-value cache of one session. */
#ifndef QN_CACHE_KV_H
#define QN_CACHE_KV_H

#include "device/plan.h"

typedef struct qn_kv {
    qn_kv_view view;
    uint16_t **keys, **values; /* [n_layers], each [n_kv_heads, capacity * head_dim] */
    size_t n_layers;
    uint64_t position_bytes; /* one position in all layers */
} qn_kv;

/* qn_kv_create - room for n_ctx positions (rounded up to whole key blocks). Pages become resident as they are written. */
qn_status qn_kv_create(qn_kv *kv, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx);
void qn_kv_free(qn_kv *kv);

#endif
