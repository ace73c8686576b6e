/* Allocation of the key-value cache, and where in it a session's positions lie; its layouts are kernels/attention/attention.h's
 * and kernels/aura/aura.h's. */
#include "cache/kv.h"

#include "base/memory.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"

#include <string.h>

_Static_assert((int)QN_AURA_BLOCK == (int)QN_KEY_BLOCK, "the plan cuts both formats into the same blocks");
_Static_assert(QN_KEY_BLOCK % QN_KV_RUN == 0 && QN_KV_RUN % QN_KEY_TILE == 0, "a run is within a block, and whole tiles");

static const qn_kv_format formats[] = { { "f16", 0, 0 },     { "aura8", 8, 8 },   { "aura6", 6, 6 }, { "aura4", 4, 4 },
                                        { "aura4v3", 4, 3 }, { "aura4v2", 4, 2 }, { "aura3", 3, 3 }, { "aura2", 2, 2 } };

qn_status qn_kv_format_named(const char *name, const qn_kv_format **format)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *format = &formats[i];
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "cache format '%s' is not supported (f16, aura8, aura6, aura4, aura4v3, aura4v2, aura3, aura2)", name);
}

/* The part of a head in a block: keys or values. */
static size_t key_part_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.keys ? qn_aura_key_part_bytes(head_dim, codecs.keys->bits) : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
}

static size_t value_part_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.values ? qn_aura_value_part_bytes(head_dim, codecs.values->bits) : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
}

uint64_t qn_kv_position_bytes(const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim,
                              qn_kv_codecs codecs)
{
    const size_t row_pair = (key_part_bytes(head_dim, codecs) + value_part_bytes(head_dim, codecs)) / QN_KEY_BLOCK;
    uint64_t bytes = 0;
    for (size_t layer = 0; layer < n_layers; layer++)
        if (!is_recurrent || !is_recurrent[layer])
            bytes += (uint64_t)n_kv_heads * row_pair;
    return bytes;
}

static qn_status create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_ctx)
{
    qn_kv_view *view = &kv->view;
    size_t block_bytes, bytes;
    QN_TRY(qn_alloc(&kv->slots, n_layers, sizeof *kv->slots, "key-value cache"));
    for (size_t layer = 0; layer < n_layers; layer++)
        if (!is_recurrent || !is_recurrent[layer])
            kv->slots[layer] = (uint32_t)view->n_slots++;
    if (!qn_mul_size(view->n_slots, view->n_heads * (view->key_bytes + view->value_bytes), &block_bytes) ||
        !qn_mul_size(block_bytes, qn_round_up(n_ctx, QN_KEY_BLOCK) / QN_KEY_BLOCK, &bytes))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    QN_TRY(qn_alloc(&kv->memory, bytes, 1, "key-value cache"));
    /* Not under the first block, which few conversations fill. */
    if (bytes > block_bytes)
        qn_advise_huge(kv->memory + block_bytes, bytes - block_bytes);
    view->memory = kv->memory;
    view->slots = kv->slots;
    return QN_OK;
}

qn_status qn_kv_create(qn_kv *kv, const bool *is_recurrent, size_t n_layers, size_t n_kv_heads, size_t head_dim, size_t n_ctx,
                       qn_kv_codecs codecs)
{
    *kv = (qn_kv){ .view = { .n_heads = n_kv_heads,
                             .key_bytes = key_part_bytes(head_dim, codecs),
                             .value_bytes = value_part_bytes(head_dim, codecs),
                             .key_codec = codecs.keys,
                             .value_codec = codecs.values },
                   .head_dim = head_dim,
                   .position_bytes = qn_kv_position_bytes(is_recurrent, n_layers, n_kv_heads, head_dim, codecs) };
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

/* Where a head's keys or values are, counted in the order of memory: blocks, layers with attention, keys before values, heads.
 * False when its block begins at `length` or later. */
static bool find_head(const qn_kv *kv, size_t index, size_t length, uint8_t **head, bool *is_keys, size_t *held)
{
    const qn_kv_view *view = &kv->view;
    const size_t per_slot = 2 * view->n_heads, per_block = view->n_slots * per_slot;
    const size_t first = per_block ? index / per_block * QN_KEY_BLOCK : 0, within = index % per_slot;
    if (!per_block || first >= length)
        return false;
    *held = length - first < QN_KEY_BLOCK ? length - first : QN_KEY_BLOCK;
    *is_keys = within < view->n_heads;
    *head =
        kv->memory + index / per_slot * view->n_heads * (view->key_bytes + view->value_bytes) +
        (*is_keys ? within * view->key_bytes : view->n_heads * view->key_bytes + (within - view->n_heads) * view->value_bytes);
    return true;
}

bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint8_t **data, size_t *size)
{
    const qn_kv_view *view = &kv->view;
    bool is_keys;
    size_t held;
    if (!view->key_codec) {
        if (!find_head(kv, part, length, data, &is_keys, &held))
            return false;
        *size = (is_keys ? qn_round_up(held, QN_KEY_TILE) : held) * kv->head_dim * sizeof(uint16_t);
        return true;
    }
    /* Codes, then scales. */
    if (!find_head(kv, part / 2, length, data, &is_keys, &held))
        return false;
    const size_t codes = is_keys ? qn_aura_key_code_bytes(kv->head_dim, view->key_codec->bits)
                                 : qn_aura_value_code_bytes(kv->head_dim, view->value_codec->bits);
    if (part % 2)
        *data += codes;
    *size = part % 2 ? held * sizeof(float) : codes / QN_AURA_BLOCK * qn_round_up(held, QN_KV_RUN);
    return true;
}

static void clear_tile(uint8_t *head, size_t first, size_t head_dim)
{
    uint16_t *tile = (uint16_t *)(void *)head + first / QN_KEY_TILE * QN_KEY_TILE * head_dim;
    for (size_t d = 0; d < head_dim; d++)
        memset(tile + d * QN_KEY_TILE + first % QN_KEY_TILE, 0, (QN_KEY_TILE - first % QN_KEY_TILE) * sizeof *tile);
}

static void clear_run(const qn_kv_view *view, uint8_t *head, bool is_keys, size_t first, size_t head_dim)
{
    static const uint8_t zeros[QN_AURA_MAX_DIM];
    for (size_t position = first; position % QN_KV_RUN; position++)
        if (is_keys)
            qn_aura_put_key(head, position, zeros, 0, head_dim, view->key_codec->bits);
        else
            qn_aura_put_value(head, position, zeros, 0, head_dim, view->value_codec->bits);
}

void qn_kv_trim(const qn_kv *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    uint8_t *head;
    bool is_keys;
    size_t held;
    for (size_t i = length / QN_KEY_BLOCK * view->n_slots * 2 * view->n_heads; find_head(kv, i, length, &head, &is_keys, &held);
         i++)
        if (view->key_codec)
            clear_run(view, head, is_keys, held, kv->head_dim);
        else if (is_keys && held % QN_KEY_TILE)
            clear_tile(head, held, kv->head_dim);
}
