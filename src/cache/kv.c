/* Allocation of the f16 key-value cache; its layout is kernels/attention/attention.h's. */
#include "cache/kv.h"

#include "base/memory.h"
#include "kernels/attention/attention.h"

static qn_status create_layers(qn_kv *kv, size_t head_values)
{
    QN_TRY(qn_alloc(&kv->keys, kv->n_layers, sizeof *kv->keys, "key-value cache"));
    QN_TRY(qn_alloc(&kv->values, kv->n_layers, sizeof *kv->values, "key-value cache"));
    for (size_t layer = 0; layer < kv->n_layers; layer++) {
        QN_TRY(qn_alloc(&kv->keys[layer], head_values, sizeof(uint16_t), "key-value cache"));
        QN_TRY(qn_alloc(&kv->values[layer], head_values, sizeof(uint16_t), "key-value cache"));
    }
    return QN_OK;
}

qn_status qn_kv_create(qn_kv *kv, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx)
{
    const size_t capacity = qn_round_up(n_ctx, QN_KEY_BLOCK);
    size_t values;
    *kv = (qn_kv){ .n_layers = n_layers, .position_bytes = (uint64_t)n_layers * n_kv_heads * head_dim * 2 * sizeof(uint16_t) };
    if (!qn_mul_size(n_kv_heads * head_dim, capacity, &values))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    const qn_status status = create_layers(kv, values);
    if (status != QN_OK) {
        qn_kv_free(kv);
        return status;
    }
    kv->view = (qn_kv_view){ .keys = kv->keys, .values = kv->values, .capacity = capacity };
    return QN_OK;
}

void qn_kv_free(qn_kv *kv)
{
    for (size_t layer = 0; layer < kv->n_layers; layer++) {
        if (kv->keys)
            qn_free(kv->keys[layer]);
        if (kv->values)
            qn_free(kv->values[layer]);
    }
    qn_free(kv->keys);
    qn_free(kv->values);
    *kv = (qn_kv){ 0 };
}
