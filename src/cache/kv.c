/* Allocation of the f16 key-value cache, and where in it a session's positions lie; its layout is
 * kernels/attention/attention.h's. */
#include "cache/kv.h"

#include "base/memory.h"
#include "kernels/attention/attention.h"

#include <string.h>

uint64_t qn_kv_position_bytes(const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim)
{
    uint64_t bytes = 0;
    for (size_t layer = 0; layer < n_layers; layer++)
        if (!is_recurrent || !is_recurrent[layer])
            bytes += (uint64_t)n_kv_heads * head_dim * 2 * sizeof(uint16_t);
    return bytes;
}

static qn_status create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_ctx)
{
    size_t block_values, values;
    QN_TRY(qn_alloc(&kv->slots, n_layers, sizeof *kv->slots, "key-value cache"));
    for (size_t layer = 0; layer < n_layers; layer++)
        if (!is_recurrent || !is_recurrent[layer])
            kv->slots[layer] = (uint32_t)kv->view.n_slots++;
    if (!qn_mul_size(kv->view.n_slots * 2, kv->view.n_heads * kv->view.head_values, &block_values) ||
        !qn_mul_size(block_values, qn_round_up(n_ctx, QN_KEY_BLOCK) / QN_KEY_BLOCK, &values))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    QN_TRY(qn_alloc(&kv->memory, values, sizeof(uint16_t), "key-value cache"));
    /* Not under the first block, which few conversations fill. */
    if (values > block_values)
        qn_advise_huge(kv->memory + block_values, (values - block_values) * sizeof(uint16_t));
    kv->view.memory = kv->memory;
    kv->view.slots = kv->slots;
    return QN_OK;
}

qn_status qn_kv_create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx)
{
    *kv = (qn_kv){ .view = { .n_heads = n_kv_heads, .head_values = QN_KEY_BLOCK * head_dim },
                   .head_dim = head_dim,
                   .position_bytes = qn_kv_position_bytes(is_recurrent, n_layers, n_kv_heads, head_dim) };
    const qn_status status = create(kv, is_recurrent, n_layers, n_ctx);
    if (status != QN_OK)
        qn_kv_free(kv);
    return status;
}

void qn_kv_free(qn_kv *kv)
{
    qn_free(kv->memory);
    qn_free(kv->slots);
    *kv = (qn_kv){ 0 };
}

bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint16_t **data, size_t *count)
{
    /* In the order of memory: blocks, layers with attention, keys before values, heads. */
    const qn_kv_view *view = &kv->view;
    const size_t block_parts = view->n_slots * 2 * view->n_heads;
    const size_t block = block_parts ? part / block_parts : 0, first = block * QN_KEY_BLOCK;
    if (!block_parts || first >= length)
        return false;
    const size_t held = length - first < QN_KEY_BLOCK ? length - first : QN_KEY_BLOCK;
    const bool is_keys = part / view->n_heads % 2 == 0;
    *data = kv->memory + part * view->head_values;
    *count = (is_keys ? qn_round_up(held, QN_KEY_TILE) : held) * kv->head_dim;
    return true;
}

void qn_kv_trim(const qn_kv *kv, size_t length)
{
    const size_t first = length % QN_KEY_TILE, n_heads = kv->view.n_heads;
    const size_t block_parts = kv->view.n_slots * 2 * n_heads;
    uint16_t *keys;
    size_t count;
    if (!first)
        return;
    for (size_t part = length / QN_KEY_BLOCK * block_parts; qn_kv_part(kv, part, length, &keys, &count); part++)
        for (size_t d = 0; part / n_heads % 2 == 0 && d < kv->head_dim; d++) {
            uint16_t *tile = keys + count - kv->head_dim * QN_KEY_TILE;
            memset(tile + d * QN_KEY_TILE + first, 0, (QN_KEY_TILE - first) * sizeof *tile);
        }
}
