/* Order and sizes of a sequence's regions and arrays in session files. */
#include "cache/saved_layout.h"

#include "base/memory.h"

#include <string.h>

qn_saved_layout qn_saved_layout_of(const qn_plan *plan, const qn_kv_format *format)
{
    qn_saved_layout l = { .is_recurrent = plan->is_recurrent,
                          .n_layers = qn_plan_trunk_layers(plan),
                          .n_heads = plan->heads.n_kv_heads,
                          .head_dim = plan->heads.head_dim,
                          .key_bits = format->key_bits,
                          .value_bits = format->value_bits,
                          .is_f32 = format->is_f32,
                          .recurrent = plan->recurrent };
    for (size_t i = 0; i < l.n_layers; i++)
        l.n_recurrent += l.is_recurrent && l.is_recurrent[i];
    l.n_attention = l.n_layers - l.n_recurrent;
    return l;
}

qn_saved_layout qn_saved_layout_of_head(const qn_plan *plan, const qn_kv_format *format)
{
    return (qn_saved_layout){ .first_layer = qn_plan_trunk_layers(plan),
                              .n_layers = plan->head.n_layers,
                              .n_attention = plan->head.n_layers,
                              .n_heads = plan->head.heads.n_kv_heads,
                              .head_dim = plan->head.heads.head_dim,
                              .key_bits = qn_kv_head_bits(format),
                              .value_bits = qn_kv_head_bits(format),
                              .is_f32 = format->is_f32 };
}

/* ---- KV cache ---- */

/* Returns the layer of the model that is attention layer `index`. */
static size_t attention_layer(const qn_saved_layout *l, size_t index)
{
    size_t layer = 0;
    for (size_t n = 0; layer < l->n_layers; layer++)
        if (!(l->is_recurrent && l->is_recurrent[layer]) && n++ == index)
            break;
    return l->first_layer + layer;
}

/* Returns the number of positions of `page` that a cache of `length` positions holds. */
static size_t held_in(size_t page, size_t length)
{
    const size_t first = page * QN_PAGE;
    return length <= first ? 0 : length - first < QN_PAGE ? length - first : QN_PAGE;
}

/* Finds region `index` in blocks of the pages from first_page on, which hold `length` positions. Returns false if the
 * block begins at `length` or later. */
static bool find_in_block(const qn_saved_layout *l, size_t index, size_t first_page, size_t length, qn_saved_region *r)
{
    const size_t per_layer = 2 * l->n_heads * QN_SAVED_BLOCK_PAGES, per_block = l->n_attention * per_layer;
    const size_t block = per_block ? index / per_block : 0,
                 within = per_block ? index % per_layer / QN_SAVED_BLOCK_PAGES : 0;
    const size_t page = block * QN_SAVED_BLOCK_PAGES + index % QN_SAVED_BLOCK_PAGES;
    if (!per_block || block * QN_SAVED_BLOCK_PAGES * QN_PAGE >= length)
        return false;
    *r = (qn_saved_region){ .part = within < l->n_heads ? QN_SAVED_KEYS : QN_SAVED_VALUES,
                            .layer = attention_layer(l, index % per_block / per_layer),
                            .head = within % l->n_heads,
                            .page = first_page + page,
                            .held = held_in(page, length) };
    return true;
}

/* Finds region `index` of the fp16 rows: first page 0, then the open page. */
static bool find_f16(const qn_saved_layout *l, size_t index, const qn_extent *extent, qn_saved_region *r)
{
    const size_t per_page = 2 * l->n_attention * l->n_heads, length = extent->length,
                 open_page = (length - extent->has_last_page) / QN_PAGE;
    if (index >= 2 * per_page)
        return false;
    const bool is_first = index < per_page;
    const size_t head = index % per_page / 2;
    *r = (qn_saved_region){ .part = index % 2 ? QN_SAVED_VALUES : QN_SAVED_KEYS,
                            .layer = attention_layer(l, head / l->n_heads),
                            .head = head % l->n_heads,
                            .page = is_first ? 0 : open_page,
                            .held = is_first || open_page ? held_in(is_first ? 0 : open_page, length) : 0 };
    return true;
}

/* Finds region `index` of the blocks of codes: for each head, the codes of its pages, then their scales. */
static bool find_codes(const qn_saved_layout *l, size_t index, size_t length, qn_saved_region *r)
{
    const size_t head = index / (2 * QN_SAVED_BLOCK_PAGES), page = index % QN_SAVED_BLOCK_PAGES;
    const bool is_scales = index / QN_SAVED_BLOCK_PAGES % 2;
    if (!find_in_block(l, head * QN_SAVED_BLOCK_PAGES + page, 1, qn_kv_coded_positions(length), r))
        return false;
    if (r->part == QN_SAVED_KEYS)
        r->part = is_scales ? QN_SAVED_KEY_SCALES : QN_SAVED_KEY_CODES;
    else
        r->part = is_scales ? QN_SAVED_VALUE_SCALES : QN_SAVED_VALUE_CODES;
    return true;
}

/* Returns the bytes of a region in the file. Pages of codes are complete, or not held at all. */
static size_t region_bytes(const qn_saved_layout *l, const qn_saved_region *r)
{
    if (!r->held)
        return 0;
    switch (r->part) {
    case QN_SAVED_MEANS: return l->n_attention * l->n_heads * l->head_dim * sizeof(float);
    case QN_SAVED_KEYS: return qn_round_up(r->held, QN_SAVED_KEY_TILE) * l->head_dim * qn_saved_element_bytes(l);
    case QN_SAVED_VALUES: return r->held * l->head_dim * qn_saved_element_bytes(l);
    case QN_SAVED_KEY_CODES: return QN_PAGE * ((l->head_dim * l->key_bits + 31) / 32) * sizeof(uint32_t);
    case QN_SAVED_VALUE_CODES: return QN_PAGE * l->head_dim * l->value_bits / 8;
    case QN_SAVED_KEY_SCALES:
    case QN_SAVED_VALUE_SCALES: return r->held * sizeof(float);
    }
    return 0;
}

static bool find_region(const qn_saved_layout *l, const qn_extent *extent, size_t index, qn_saved_region *r)
{
    const size_t n_f16_regions = 4 * l->n_attention * l->n_heads;
    if (!extent->length)
        return false;
    if (!l->key_bits)
        return find_in_block(l, index, 0, extent->length, r);
    if (index > n_f16_regions)
        return find_codes(l, index - 1 - n_f16_regions, extent->length, r);
    if (index)
        return find_f16(l, index - 1, extent, r);
    *r = (qn_saved_region){ .part = QN_SAVED_MEANS, .held = extent->length >= QN_PAGE ? QN_PAGE : 0 };
    return true;
}

bool qn_saved_find_region(const qn_saved_layout *l, const qn_extent *extent, size_t index, qn_saved_region *r)
{
    if (!find_region(l, extent, index, r))
        return false;
    r->bytes = region_bytes(l, r);
    return true;
}

void qn_saved_zero_tail(const qn_saved_layout *l, const qn_saved_region *r, void *data)
{
    const size_t end = qn_round_up(r->held, QN_SAVED_KEY_TILE), bytes = qn_saved_element_bytes(l);
    for (size_t d = 0; r->part == QN_SAVED_KEYS && r->held < end && d < l->head_dim; d++)
        memset((uint8_t *)data + qn_saved_key_at(l->head_dim, r->held, d) * bytes, 0, (end - r->held) * bytes);
}

/* ---- Recurrent layers ---- */

void qn_saved_counts(const qn_recurrent_shape *s, size_t counts[QN_SAVED_ARRAYS])
{
    counts[QN_SAVED_STATE] = s->n_v_heads * s->head_v * s->head_k;
    counts[QN_SAVED_V_NEW] = s->n_v_heads * s->head_v * QN_PAGE;
    counts[QN_SAVED_OPEN_KEYS] = s->n_k_heads * s->head_k * QN_PAGE;
    counts[QN_SAVED_LOG_DECAY] = s->n_v_heads * QN_PAGE;
    counts[QN_SAVED_HISTORY] = (s->taps - 1) * qn_recurrent_width(s);
    counts[QN_SAVED_CONV_INPUTS] = QN_PAGE * qn_recurrent_width(s);
}

uint64_t qn_saved_layer_bytes(const qn_recurrent_shape *shape)
{
    size_t counts[QN_SAVED_ARRAYS];
    uint64_t count = 0;
    qn_saved_counts(shape, counts);
    for (size_t i = 0; i < QN_SAVED_ARRAYS; i++)
        count += counts[i];
    return count * sizeof(float);
}

/* Uses an upper bound: all arrays of a layer, each with a cache line of padding. */
qn_status qn_saved_check_recurrent(const qn_recurrent_shape *s, size_t n_layers)
{
    size_t keys, values, width, state, bytes;
    if (qn_mul_size(s->n_k_heads, s->head_k, &keys) && qn_mul_size(s->n_v_heads, s->head_v, &values) &&
        qn_mul_size(keys, 2, &width) && qn_add_size(width, values, &width) &&
        qn_mul_size(width, s->taps + 3 * QN_PAGE, &width) && qn_mul_size(values, s->head_k, &state) &&
        qn_add_size(width, state, &bytes) && qn_add_size(bytes, 8 * QN_ALIGN / sizeof(float), &bytes) &&
        qn_mul_size(bytes, sizeof(float), &bytes) && qn_mul_size(bytes, n_layers + 1, &bytes))
        return QN_OK;
    return qn_fail(QN_ERR_MEMORY, "recurrent state: %zu heads of %zu by %zu in %zu layers do not fit in memory",
                   s->n_v_heads, s->head_k, s->head_v, n_layers);
}

/* ---- Both ---- */

uint64_t qn_saved_kv_bytes(const qn_saved_layout *layout, const qn_extent *extent)
{
    qn_saved_region region;
    uint64_t bytes = 0;
    for (size_t i = 0; qn_saved_find_region(layout, extent, i, &region); i++)
        bytes += region.bytes;
    return bytes;
}

uint64_t qn_saved_bytes(const qn_saved_layout *layout, const qn_extent *extent)
{
    return qn_saved_kv_bytes(layout, extent) + layout->n_recurrent * qn_saved_layer_bytes(&layout->recurrent);
}
