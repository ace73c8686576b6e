/* Allocation of the f16 key-value cache, and where in it a session's positions lie; its layout is
 * kernels/attention/attention.h's. */
#include "cache/kv.h"

#include "base/memory.h"
#include "kernels/attention/attention.h"

#include <string.h>

static qn_status create_layers(qn_kv *kv, const bool *is_recurrent, size_t layer_values)
{
    QN_TRY(qn_alloc(&kv->keys, kv->n_layers, sizeof *kv->keys, "key-value cache"));
    QN_TRY(qn_alloc(&kv->values, kv->n_layers, sizeof *kv->values, "key-value cache"));
    for (size_t layer = 0; layer < kv->n_layers; layer++) {
        if (is_recurrent && is_recurrent[layer])
            continue;
        QN_TRY(qn_alloc(&kv->keys[layer], layer_values, sizeof(uint16_t), "key-value cache"));
        QN_TRY(qn_alloc(&kv->values[layer], layer_values, sizeof(uint16_t), "key-value cache"));
    }
    return QN_OK;
}

uint64_t qn_kv_position_bytes(const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim)
{
    uint64_t bytes = 0;
    for (size_t layer = 0; layer < n_layers; layer++)
        if (!is_recurrent || !is_recurrent[layer])
            bytes += (uint64_t)n_kv_heads * head_dim * 2 * sizeof(uint16_t);
    return bytes;
}

qn_status qn_kv_create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx)
{
    const size_t capacity = qn_round_up(n_ctx, QN_KEY_BLOCK);
    size_t values;
    *kv = (qn_kv){ .n_layers = n_layers,
                   .n_heads = n_kv_heads,
                   .head_dim = head_dim,
                   .position_bytes = qn_kv_position_bytes(is_recurrent, n_layers, n_kv_heads, head_dim) };
    if (!qn_mul_size(n_kv_heads * head_dim, capacity, &values))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    const qn_status status = create_layers(kv, is_recurrent, values);
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

bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint16_t **data, size_t *count)
{
    /* Layer by layer, head by head, keys before values; layers without attention are empty parts. */
    const size_t layer = part / (2 * kv->n_heads), head = part / 2 % kv->n_heads;
    const bool is_keys = part % 2 == 0;
    if (layer >= kv->n_layers)
        return false;
    uint16_t *memory = is_keys ? kv->keys[layer] : kv->values[layer];
    *data = memory ? memory + head * kv->view.capacity * kv->head_dim : NULL;
    *count = memory ? (is_keys ? qn_round_up(length, QN_KEY_TILE) : length) * kv->head_dim : 0;
    return true;
}

void qn_kv_trim(const qn_kv *kv, size_t length)
{
    const size_t first = length % QN_KEY_TILE;
    uint16_t *keys;
    size_t count;
    if (!first)
        return;
    for (size_t part = 0; qn_kv_part(kv, part, length, &keys, &count); part += 2)
        for (size_t d = 0; count && d < kv->head_dim; d++) {
            uint16_t *tile = keys + count - kv->head_dim * QN_KEY_TILE;
            memset(tile + d * QN_KEY_TILE + first, 0, (QN_KEY_TILE - first) * sizeof *tile);
        }
}
