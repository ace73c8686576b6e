/* The KV cache on the CPU: allocation, iteration over the memory in use, and truncation. The layout of a block is defined in
 * kernels/attention/attention.h and kernels/aura/aura.h. */
#include "cache/kv.h"

#include "base/memory.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"

#include <string.h>

_Static_assert((int)QN_AURA_BLOCK == (int)QN_KEY_BLOCK, "fp16 and AURA caches have the same block size");
_Static_assert(QN_KEY_BLOCK % QN_KV_PAGE == 0 && QN_KV_PAGE % QN_KEY_TILE == 0,
               "a block is full pages, and a page is full tiles");
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

/* Bytes of one head's keys or values in a block. */
static size_t key_block_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.keys ? qn_aura_key_block_bytes(head_dim, codecs.keys->bits) : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
}

static size_t value_block_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.values ? qn_aura_value_block_bytes(head_dim, codecs.values->bits)
                         : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
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
        (key_block_bytes(shape->head_dim, codecs) + value_block_bytes(shape->head_dim, codecs)) / QN_KEY_BLOCK;
    return (uint64_t)count_kv_layers(shape) * shape->n_heads * kv_row_bytes;
}

/* ---- Allocation ---- */

/* The fp16 pages and key means of an AURA cache. */
static qn_status create_f16_pages(qn_kv *kv, size_t n_batch)
{
    qn_kv_view *view = &kv->view;
    size_t rows;
    view->n_open_pages = (n_batch + QN_KV_PAGE - 1) / QN_KV_PAGE + 1;
    if (!qn_mul_size(view->n_kv_layers, view->n_heads * 2 * kv->head_dim * sizeof(uint16_t), &rows))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu layers of %zu heads do not fit in memory", view->n_kv_layers,
                       view->n_heads);
    QN_TRY(qn_alloc(&kv->f16_pages, (1 + view->n_open_pages) * QN_KV_PAGE, rows, "key-value cache"));
    QN_TRY(qn_alloc(&kv->means, view->n_kv_layers * view->n_heads, kv->head_dim * sizeof *kv->means, "key-value cache"));
    view->f16_pages = kv->f16_pages;
    view->means = kv->means;
    return QN_OK;
}

static qn_status create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch)
{
    qn_kv_view *view = &kv->view;
    size_t block_bytes, bytes;
    QN_TRY(qn_alloc(&kv->kv_index, shape->n_layers, sizeof *kv->kv_index, "key-value cache"));
    for (size_t layer = 0; layer < shape->n_layers; layer++)
        if (!shape->is_recurrent || !shape->is_recurrent[layer])
            kv->kv_index[layer] = (uint32_t)view->n_kv_layers++;
    if (!qn_mul_size(view->n_kv_layers, view->n_heads * (view->key_bytes + view->value_bytes), &block_bytes) ||
        !qn_mul_size(block_bytes, qn_round_up(n_ctx, QN_KEY_BLOCK) / QN_KEY_BLOCK, &bytes))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    QN_TRY(qn_alloc(&kv->memory, bytes, 1, "key-value cache"));
    /* No huge pages under the first block: few sessions fill it. */
    if (bytes > block_bytes)
        qn_advise_huge(kv->memory + block_bytes, bytes - block_bytes);
    view->memory = kv->memory;
    view->kv_index = kv->kv_index;
    return view->key_codec ? create_f16_pages(kv, n_batch) : QN_OK;
}

qn_status qn_kv_create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch, qn_kv_codecs codecs)
{
    *kv = (qn_kv){ .view = { .n_heads = shape->n_heads,
                             .key_bytes = key_block_bytes(shape->head_dim, codecs),
                             .value_bytes = value_block_bytes(shape->head_dim, codecs),
                             .key_codec = codecs.keys,
                             .value_codec = codecs.values },
                   .head_dim = shape->head_dim,
                   .keeps_last_page = codecs.keys && shape->is_recurrent };
    const qn_status status = create(kv, shape, n_ctx, n_batch);
    if (status != QN_OK)
        qn_kv_free(kv);
    return status;
}

void qn_kv_free(qn_kv *kv)
{
    qn_free(kv->memory);
    qn_free(kv->f16_pages);
    qn_free(kv->means);
    qn_free(kv->kv_index);
    *kv = (qn_kv){ 0 };
}

/* ---- Pages of an AURA cache ---- */

/* Quantised positions of a cache of `length` positions: all complete pages but page 0. */
static size_t n_quantized(size_t length)
{
    return length > QN_KV_PAGE ? length / QN_KV_PAGE * QN_KV_PAGE - QN_KV_PAGE : 0;
}

void qn_kv_on_append(qn_kv *kv, size_t length)
{
    if (!kv->view.key_codec || !length)
        return;
    const size_t last = (length - 1) / QN_KV_PAGE, from = last >= kv->view.n_open_pages ? last - kv->view.n_open_pages + 1 : 0;
    kv->first_open_page = (uint32_t)(from > kv->first_open_page ? from : kv->first_open_page);
}

/* The page whose fp16 rows belong to the contents besides page 0: the partial page, or with keeps_last_page the last
 * position's page even if it is complete. */
static size_t open_page(const qn_kv *kv, size_t length)
{
    return (length && kv->keeps_last_page ? length - 1 : length) / QN_KV_PAGE;
}

void qn_kv_on_deserialize(qn_kv *kv, size_t length)
{
    kv->first_open_page = (uint32_t)open_page(kv, length);
}

/* Whether the fp16 page that a cache of `length` positions needs is stored, if fp16 pages >= from are. */
static bool has_f16_page(size_t length, uint32_t from)
{
    const size_t page = length / QN_KV_PAGE;
    return length % QN_KV_PAGE == 0 || page == 0 || page >= from;
}

size_t qn_kv_rewind_length(const qn_kv *kv, size_t length)
{
    return !kv->view.key_codec || has_f16_page(length, kv->first_open_page) ? length : length / QN_KV_PAGE * QN_KV_PAGE;
}

void qn_kv_truncate(qn_kv *kv, size_t length)
{
    const uint32_t page = (uint32_t)(length / QN_KV_PAGE);
    kv->first_open_page = page < kv->first_open_page ? page : kv->first_open_page;
}

/* Elements of one fp16 page, all layers, contiguous. */
static size_t f16_page_elements(const qn_kv *kv)
{
    return kv->view.n_kv_layers * kv->view.n_heads * 2 * QN_KV_PAGE * kv->head_dim;
}

static uint16_t *f16_page_at(const qn_kv *kv, size_t length)
{
    const size_t page = (length - 1) / QN_KV_PAGE, slot = page ? 1 + (page - 1) % kv->view.n_open_pages : 0;
    return kv->f16_pages + slot * f16_page_elements(kv);
}

qn_status qn_kv_checkpoint_new(qn_kv_checkpoint *checkpoint, const qn_kv *kv)
{
    *checkpoint = (qn_kv_checkpoint){ 0 };
    return kv->view.key_codec
               ? qn_alloc(&checkpoint->f16_pages, f16_page_elements(kv), sizeof *checkpoint->f16_pages, "checkpoint")
               : QN_OK;
}

void qn_kv_checkpoint_free(qn_kv_checkpoint *checkpoint)
{
    qn_free(checkpoint->f16_pages);
    *checkpoint = (qn_kv_checkpoint){ 0 };
}

void qn_kv_checkpoint_copy(qn_kv_checkpoint *to, const qn_kv_checkpoint *from, const qn_kv *kv)
{
    if (to->f16_pages)
        memcpy(to->f16_pages, from->f16_pages, f16_page_elements(kv) * sizeof *to->f16_pages);
}

void qn_kv_checkpoint_save(qn_kv_checkpoint *checkpoint, const qn_kv *kv, size_t held)
{
    if (checkpoint->f16_pages)
        memcpy(checkpoint->f16_pages, f16_page_at(kv, held), f16_page_elements(kv) * sizeof *checkpoint->f16_pages);
}

void qn_kv_checkpoint_restore(const qn_kv_checkpoint *checkpoint, qn_kv *kv, size_t held)
{
    if (!checkpoint->f16_pages)
        return;
    memcpy(f16_page_at(kv, held), checkpoint->f16_pages, f16_page_elements(kv) * sizeof *checkpoint->f16_pages);
    kv->first_open_page = (uint32_t)((held - 1) / QN_KV_PAGE);
}

/* ---- Regions ---- */

/* Keys or values of one head in a block or page. */
struct head_rows {
    uint8_t *data;
    bool is_keys;
    size_t held; /* positions in use */
};

/* Finds head_rows number `index` in memory order: blocks, attention layers, keys before values, heads. False when the block
 * begins at `length` or later. */
static bool find_head(const qn_kv *kv, size_t index, size_t length, struct head_rows *f)
{
    const qn_kv_view *view = &kv->view;
    const size_t per_layer = 2 * view->n_heads, per_block = view->n_kv_layers * per_layer;
    const size_t first = per_block ? index / per_block * QN_KEY_BLOCK : 0, within = index % per_layer;
    if (!per_block || first >= length)
        return false;
    f->held = length - first < QN_KEY_BLOCK ? length - first : QN_KEY_BLOCK;
    f->is_keys = within < view->n_heads;
    f->data = kv->memory + index / per_layer * view->n_heads * (view->key_bytes + view->value_bytes) +
              (f->is_keys ? within * view->key_bytes
                          : view->n_heads * view->key_bytes + (within - view->n_heads) * view->value_bytes);
    return true;
}

/* Finds head_rows number `index` of fp16 page 0, then of the open page, in memory order. */
static bool find_f16(const qn_kv *kv, size_t index, size_t length, struct head_rows *f)
{
    const size_t per_page = 2 * kv->view.n_kv_layers * kv->view.n_heads, open_index = open_page(kv, length);
    if (index >= 2 * per_page)
        return false;
    const bool is_first = index < per_page;
    f->held = is_first ? (length < QN_KV_PAGE ? length : QN_KV_PAGE) : open_index ? length - open_index * QN_KV_PAGE : 0;
    f->is_keys = index % 2 == 0;
    f->data = (uint8_t *)((is_first || !f->held ? kv->f16_pages : f16_page_at(kv, length)) +
                          index % per_page * QN_KV_PAGE * kv->head_dim);
    return true;
}

static size_t f16_bytes(const qn_kv *kv, const struct head_rows *f)
{
    return (f->is_keys ? qn_round_up(f->held, QN_KEY_TILE) : f->held) * kv->head_dim * sizeof(uint16_t);
}

/* Even indices: the codes of a head in a block; odd: their scales. */
static bool find_codes(const qn_kv *kv, size_t index, size_t length, uint8_t **data, size_t *size)
{
    const qn_kv_view *view = &kv->view;
    struct head_rows f;
    if (!find_head(kv, index / 2, n_quantized(length), &f))
        return false;
    const size_t codes = f.is_keys ? qn_aura_key_code_bytes(kv->head_dim, view->key_codec->bits)
                                   : qn_aura_value_code_bytes(kv->head_dim, view->value_codec->bits);
    *data = f.data + (index % 2 ? codes : 0);
    *size = index % 2 ? f.held * sizeof(float) : codes / QN_KEY_BLOCK * f.held;
    return true;
}

bool qn_kv_region(const qn_kv *kv, size_t region, size_t length, uint8_t **data, size_t *size)
{
    const size_t n_heads = kv->view.n_kv_layers * kv->view.n_heads, n_f16_regions = 4 * n_heads;
    struct head_rows f;
    if (!kv->view.key_codec) {
        if (!find_head(kv, region, length, &f))
            return false;
        *data = f.data;
        *size = f16_bytes(kv, &f);
        return true;
    }
    if (region == 0) {
        *data = (uint8_t *)kv->means;
        *size = length < QN_KV_PAGE ? 0 : n_heads * kv->head_dim * sizeof *kv->means;
        return true;
    }
    if (region > n_f16_regions)
        return find_codes(kv, region - 1 - n_f16_regions, length, data, size);
    (void)find_f16(kv, region - 1, length, &f);
    *data = f.data;
    *size = f16_bytes(kv, &f);
    return true;
}

void qn_kv_copy(qn_kv *to, const qn_kv *from, size_t length)
{
    uint8_t *data, *source;
    size_t size;
    for (size_t region = 0; qn_kv_region(from, region, length, &source, &size); region++)
        if (qn_kv_region(to, region, length, &data, &size) && size)
            memcpy(data, source, size);
    if (from->f16_pages)
        memcpy(to->f16_pages, from->f16_pages,
               (1 + from->view.n_open_pages) * f16_page_elements(from) * sizeof *from->f16_pages);
    to->first_open_page = from->first_open_page;
}

static void zero_tile_tail(const struct head_rows *f, size_t head_dim)
{
    const size_t first = f->held % QN_KEY_TILE;
    uint16_t *tile = (uint16_t *)(void *)f->data + f->held / QN_KEY_TILE * QN_KEY_TILE * head_dim;
    for (size_t d = 0; f->is_keys && first && d < head_dim; d++)
        memset(tile + d * QN_KEY_TILE + first, 0, (QN_KEY_TILE - first) * sizeof *tile);
}

void qn_kv_zero_tail(const qn_kv *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    struct head_rows f;
    if (!view->key_codec) {
        for (size_t i = length / QN_KEY_BLOCK * view->n_kv_layers * 2 * view->n_heads; find_head(kv, i, length, &f); i++)
            zero_tile_tail(&f, kv->head_dim);
        return;
    }
    for (size_t i = 0; find_f16(kv, i, length, &f); i++)
        zero_tile_tail(&f, kv->head_dim);
}

uint64_t qn_kv_bytes(const qn_kv *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    const uint64_t kv_heads = (uint64_t)view->n_kv_layers * view->n_heads;
    const size_t kv_row_bytes = (view->key_bytes + view->value_bytes) / QN_KEY_BLOCK;
    if (!view->key_codec)
        return kv_heads * kv_row_bytes * length;
    const uint64_t f16_page_bytes = kv_heads * (length - n_quantized(length)) * 2 * kv->head_dim * sizeof *kv->f16_pages;
    return kv_heads * kv_row_bytes * n_quantized(length) + f16_page_bytes +
           (length < QN_KV_PAGE ? 0 : kv_heads * kv->head_dim * sizeof *kv->means);
}
