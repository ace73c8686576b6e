/* The layout of pages on the CPU, and the regions of a sequence's cache. The layout of a head's rows in a page is defined in
 * kernels/attention/attention.h and kernels/aura/aura.h. */
#include "cache/kv.h"

#include "base/memory.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"

#include <string.h>

_Static_assert((int)QN_KV_PAGE == (int)QN_GDN_CHUNK, "a page and a chunk of the delta rule cover the same positions");

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

/* Bytes of one head's keys or values in a page. */
static size_t key_page_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.keys ? qn_aura_key_page_bytes(head_dim, codecs.keys->bits) : QN_KV_PAGE * head_dim * sizeof(uint16_t);
}

static size_t value_page_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.values ? qn_aura_value_page_bytes(head_dim, codecs.values->bits) : QN_KV_PAGE * head_dim * sizeof(uint16_t);
}

static size_t count_kv_layers(const qn_kv_shape *shape)
{
    size_t n = 0;
    for (size_t layer = 0; layer < shape->n_layers; layer++)
        n += !shape->is_recurrent || !shape->is_recurrent[layer];
    return n;
}

uint64_t qn_kv_position_bytes(const qn_kv_shape *shape, qn_kv_codecs codecs)
{
    const size_t kv_row_bytes =
        (key_page_bytes(shape->head_dim, codecs) + value_page_bytes(shape->head_dim, codecs)) / QN_KV_PAGE;
    return (uint64_t)count_kv_layers(shape) * shape->n_heads * kv_row_bytes;
}

/* ---- Layout ---- */

static qn_status create(qn_kv_layout *layout, const qn_kv_shape *shape)
{
    qn_kv_view *view = &layout->view;
    QN_TRY(qn_alloc(&layout->kv_index, shape->n_layers, sizeof *layout->kv_index, "key-value cache"));
    for (size_t layer = 0; layer < shape->n_layers; layer++)
        if (!shape->is_recurrent || !shape->is_recurrent[layer])
            layout->kv_index[layer] = (uint32_t)view->n_kv_layers++;
    view->kv_index = layout->kv_index;
    size_t f16_bytes = 0;
    const size_t f16_head = shape->head_dim * (2 * QN_KV_PAGE * sizeof(uint16_t) + sizeof(float));
    if (!qn_mul_size(view->n_kv_layers, view->n_heads * (view->key_bytes + view->value_bytes), &view->page_stride) ||
        (view->key_codec && !qn_mul_size(view->n_kv_layers, view->n_heads * f16_head, &f16_bytes)))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers of %zu heads do not fit in memory",
                       view->n_kv_layers, view->n_heads);
    view->f16_stride = f16_bytes;
    return QN_OK;
}

qn_status qn_kv_layout_create(qn_kv_layout *layout, const qn_kv_shape *shape, qn_kv_codecs codecs)
{
    *layout = (qn_kv_layout){ .view = { .n_heads = shape->n_heads,
                                        .key_bytes = key_page_bytes(shape->head_dim, codecs),
                                        .value_bytes = value_page_bytes(shape->head_dim, codecs),
                                        .key_codec = codecs.keys,
                                        .value_codec = codecs.values },
                              .head_dim = shape->head_dim };
    const qn_status status = create(layout, shape);
    if (status != QN_OK)
        qn_kv_layout_free(layout);
    return status;
}

void qn_kv_layout_free(qn_kv_layout *layout)
{
    qn_free(layout->kv_index);
    *layout = (qn_kv_layout){ 0 };
}

/* ---- Regions ---- */

/* Keys or values of one head in a page. */
struct head_rows {
    uint8_t *data; /* NULL without positions in use, and in a view without memory */
    bool is_keys;
    size_t page;
    size_t held; /* positions in use */
};

/* The number of positions of `page` that a cache of `length` positions holds. */
static size_t held_of(size_t page, size_t length)
{
    const size_t first = page * QN_KV_PAGE;
    return length <= first ? 0 : length - first < QN_KV_PAGE ? length - first : QN_KV_PAGE;
}

/* Finds head_rows number `index`, in the order of qn_kv_region, of `length` positions that begin at `first_page`. False when
 * the block begins at `length` or later. */
static bool find_head(const qn_kv_view *view, size_t index, size_t first_page, size_t length, struct head_rows *f)
{
    const size_t per_layer = 2 * view->n_heads * QN_BLOCK_PAGES, per_block = view->n_kv_layers * per_layer;
    const size_t block = per_block ? index / per_block : 0, layer = per_block ? index % per_block / per_layer : 0;
    const size_t page = block * QN_BLOCK_PAGES + index % QN_BLOCK_PAGES, within = index % per_layer / QN_BLOCK_PAGES;
    if (!per_block || block * QN_KEY_BLOCK >= length)
        return false;
    *f = (struct head_rows){ .page = first_page + page, .held = held_of(page, length), .is_keys = within < view->n_heads };
    if (!f->held || !view->pages)
        return true;
    f->data = view->pages + view->table[f->page] * view->page_stride +
              layer * view->n_heads * (view->key_bytes + view->value_bytes) +
              (f->is_keys ? within * view->key_bytes
                          : view->n_heads * view->key_bytes + (within - view->n_heads) * view->value_bytes);
    return true;
}

/* Quantised positions of a cache of `length` positions: all complete pages but page 0. */
static size_t n_quantized(size_t length)
{
    return length > QN_KV_PAGE ? length / QN_KV_PAGE * QN_KV_PAGE - QN_KV_PAGE : 0;
}

static uint8_t *f16_page(const qn_kv_view *view, size_t page)
{
    return view->f16_pages + view->f16_table[page] * view->f16_stride;
}

/* Finds head_rows number `index` of fp16 page 0, then of the open page, in memory order. */
static bool find_f16(const qn_kv_layout *layout, const qn_kv_view *view, size_t index, const qn_extent *extent,
                     struct head_rows *f)
{
    const size_t per_page = 2 * view->n_kv_layers * view->n_heads, length = extent->length,
                 open_index = (length - extent->has_last_page) / QN_KV_PAGE;
    if (index >= 2 * per_page)
        return false;
    const bool is_first = index < per_page;
    *f = (struct head_rows){ .page = is_first ? 0 : open_index,
                             .held = is_first || open_index ? held_of(is_first ? 0 : open_index, length) : 0,
                             .is_keys = index % 2 == 0 };
    if (!f->held || !view->pages)
        return true;
    f->data = f16_page(view, f->page) + index % per_page * QN_KV_PAGE * layout->head_dim * sizeof(uint16_t);
    return true;
}

static qn_kv_region f16_region(const qn_kv_layout *layout, const struct head_rows *f)
{
    const size_t rows = f->is_keys ? qn_round_up(f->held, QN_KEY_TILE) : f->held;
    return (qn_kv_region){ .data = f->data,
                           .bytes = rows * layout->head_dim * sizeof(uint16_t),
                           .page = f->page,
                           .is_f16 = layout->view.key_codec != NULL,
                           .tail = f->is_keys ? f->held % QN_KEY_TILE : 0 };
}

/* For each head in a block: the codes of its pages, then their scales. */
static bool find_codes(const qn_kv_layout *layout, const qn_kv_view *view, size_t index, size_t length, qn_kv_region *region)
{
    const size_t head = index / (2 * QN_BLOCK_PAGES), page = index % QN_BLOCK_PAGES;
    const bool is_scales = index / QN_BLOCK_PAGES % 2;
    struct head_rows f;
    if (!find_head(view, head * QN_BLOCK_PAGES + page, 1, n_quantized(length), &f))
        return false;
    const size_t codes = f.is_keys ? qn_aura_key_code_bytes(layout->head_dim, view->key_codec->bits)
                                   : qn_aura_value_code_bytes(layout->head_dim, view->value_codec->bits);
    *region = (qn_kv_region){ .page = f.page,
                              .data = f.data && is_scales ? f.data + codes : f.data,
                              .bytes = is_scales ? f.held * sizeof(float) : codes / QN_KV_PAGE * f.held };
    return true;
}

bool qn_kv_find_region(const qn_kv_layout *layout, const qn_kv_view *view, size_t index, const qn_extent *extent,
                       qn_kv_region *region)
{
    const size_t n_heads = view->n_kv_layers * view->n_heads, n_f16_regions = 4 * n_heads, length = extent->length;
    struct head_rows f;
    if (!length)
        return false;
    if (view->key_codec && index == 0) {
        const bool has_mean = length >= QN_KV_PAGE;
        *region = (qn_kv_region){ .data = has_mean && view->pages ? f16_page(view, 0) + qn_kv_f16_bytes(view) : NULL,
                                  .bytes = has_mean ? n_heads * layout->head_dim * sizeof(float) : 0,
                                  .is_f16 = true };
        return true;
    }
    if (view->key_codec && index > n_f16_regions)
        return find_codes(layout, view, index - 1 - n_f16_regions, length, region);
    if (view->key_codec ? !find_f16(layout, view, index - 1, extent, &f) : !find_head(view, index, 0, length, &f))
        return false;
    *region = f16_region(layout, &f);
    return true;
}

uint64_t qn_kv_saved_bytes(const qn_kv_layout *layout, const qn_extent *extent)
{
    qn_kv_region region;
    uint64_t bytes = 0;
    for (size_t i = 0; qn_kv_find_region(layout, &layout->view, i, extent, &region); i++)
        bytes += region.bytes;
    return bytes;
}

void qn_kv_zero_tail(const qn_kv_layout *layout, const qn_kv_region *region, uint8_t *copy)
{
    uint16_t *tile = (uint16_t *)(void *)(copy + region->bytes) - QN_KEY_TILE * layout->head_dim;
    for (size_t d = 0; region->tail && d < layout->head_dim; d++)
        memset(tile + d * QN_KEY_TILE + region->tail, 0, (QN_KEY_TILE - region->tail) * sizeof *tile);
}

uint64_t qn_kv_bytes(const qn_kv_layout *layout, size_t length)
{
    const qn_kv_view *view = &layout->view;
    const uint64_t kv_heads = (uint64_t)view->n_kv_layers * view->n_heads;
    const size_t kv_row_bytes = (view->key_bytes + view->value_bytes) / QN_KV_PAGE;
    if (!view->key_codec)
        return kv_heads * kv_row_bytes * length;
    const uint64_t f16_page_bytes = kv_heads * (length - n_quantized(length)) * 2 * layout->head_dim * sizeof(uint16_t);
    return kv_heads * kv_row_bytes * n_quantized(length) + f16_page_bytes +
           (length < QN_KV_PAGE ? 0 : kv_heads * layout->head_dim * sizeof(float));
}
