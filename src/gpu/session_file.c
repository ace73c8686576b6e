/* Conversion between a GPU's items and session files: items are copied to the host one by one, or layer by layer, and
 * converted there. */
#include "gpu/session_file.h"

#include "base/f16.h"
#include "base/memory.h"
#include "gpu/state_planes.h"

#include <math.h>
#include <string.h>

enum { MIN_EXPONENT = -126 };

/* Items as on the device, and a region as in the file. */
struct transfer {
    const qn_gpu_format *f;
    const qn_sequence *sequence;
    const qn_gpu_copies *copies;
    qn_extent extent;
    bool fills; /* true: from a file to the device */
    qn_memory_region_fn on_region;
    void *context;
    uint8_t *pages;             /* [QN_SAVED_BLOCK_PAGES], of the current block */
    uint8_t *f16_pages;         /* [2] of a cache of codes: page 0, and the last one */
    size_t first_page, n_pages; /* in `pages` */
    uint8_t *region;
    size_t region_bytes;
};

/* ---- The device ---- */

/* Copies a part of an item to the host's copy, or from there. */
static qn_status copy_item(const struct transfer *t, uint64_t address, void *copy, size_t bytes)
{
    return t->fills ? t->copies->write(t->copies->context, address, copy, bytes)
                    : t->copies->read(t->copies->context, copy, address, bytes);
}

static void copy_values(const struct transfer *t, void *device, void *file, size_t bytes)
{
    memcpy(t->fills ? device : file, t->fills ? file : device, bytes);
}

/* ---- Rows of a head in a page ---- */

/* Converts the fp16 keys of a head in a page: on the device they are row by row. */
static void convert_keys_f16(const struct transfer *t, uint16_t *rows, size_t held)
{
    const size_t dim = t->f->saved.head_dim;
    uint16_t *keys = (uint16_t *)(void *)t->region;
    for (size_t p = 0; p < held; p++)
        for (size_t d = 0; d < dim; d++) {
            uint16_t *key = &keys[qn_saved_key_at(dim, p, d)];
            *(t->fills ? &rows[p * dim + d] : key) = t->fills ? *key : rows[p * dim + d];
        }
}

/* Converts the codes of a head in a page: on the device they are rows of the packed stream. The functions of codes also
 * read or write a scale, after the region. */
static void convert_codes(const struct transfer *t, bool is_keys, uint8_t *rows)
{
    const qn_aura_codec *codec = is_keys ? t->f->aura.keys : t->f->aura.values;
    const size_t row = is_keys ? t->f->kv.key_row : t->f->kv.value_row;
    uint8_t codes[QN_AURA_MAX_DIM];
    float unused = 0;
    for (size_t p = 0; p < QN_PAGE; p++) {
        uint32_t *words = (uint32_t *)(void *)(rows + p * row);
        if (t->fills) {
            (is_keys ? qn_aura_load_key : qn_aura_load_value)(t->region, p, codes, &unused, codec->dim, codec->bits);
            qn_aura_pack(words, codes, codec->dim, codec->bits);
        } else {
            qn_aura_unpack(codes, words, codec->dim, codec->bits);
            (is_keys ? qn_aura_store_key : qn_aura_store_value)(t->region, p, codes, unused, codec->dim, codec->bits);
        }
    }
}

/* Converts the means of all layers and heads, which are one region. */
static void convert_means(const struct transfer *t)
{
    const qn_saved_layout *saved = &t->f->saved;
    const size_t bytes = saved->n_heads * saved->head_dim * sizeof(float);
    uint8_t *file = t->region;
    for (size_t layer = 0; layer < saved->n_layers; layer++) {
        if (saved->is_recurrent && saved->is_recurrent[layer])
            continue;
        copy_values(t, t->f16_pages + qn_gpu_layer_cache_of(t->f, layer).means, file, bytes);
        file += bytes;
    }
}

/* Returns whether a region is in the blocks' pages: fp16 rows of a cache of codes are in fp16 pages. */
static bool is_in_block(const struct transfer *t, const qn_saved_region *r)
{
    return !qn_gpu_has_codes(t->f) ||
           (r->part != QN_SAVED_MEANS && r->part != QN_SAVED_KEYS && r->part != QN_SAVED_VALUES);
}

static uint8_t *page_of(const struct transfer *t, const qn_saved_region *r)
{
    return is_in_block(t, r) ? t->pages + (r->page - t->first_page) * t->f->page_stride
                             : t->f16_pages + (r->page ? t->f->f16_page_stride : 0);
}

static void convert_f16(const struct transfer *t, const qn_saved_region *r, const qn_gpu_layer_cache *c)
{
    const bool is_keys = r->part == QN_SAVED_KEYS;
    const size_t at = qn_gpu_has_codes(t->f) ? (is_keys ? c->f16_keys : c->f16_values) + r->head * c->f16_head
                      : is_keys              ? c->keys + r->head * c->key_head
                                             : c->values + r->head * c->value_head;
    uint8_t *rows = page_of(t, r) + at;
    if (is_keys)
        convert_keys_f16(t, (uint16_t *)(void *)rows, r->held);
    else
        copy_values(t, rows, t->region, r->bytes);
}

static void convert_region(const struct transfer *t, const qn_saved_region *r)
{
    uint8_t *page = page_of(t, r);
    if (r->part == QN_SAVED_MEANS) {
        convert_means(t);
        return;
    }
    const qn_gpu_layer_cache c = qn_gpu_layer_cache_of(t->f, r->layer);
    const size_t scales = r->head * c.scale_head;
    switch (r->part) {
    case QN_SAVED_KEY_CODES: convert_codes(t, true, page + c.keys + r->head * c.key_head); break;
    case QN_SAVED_VALUE_CODES: convert_codes(t, false, page + c.values + r->head * c.value_head); break;
    case QN_SAVED_KEY_SCALES: copy_values(t, page + c.key_scales + scales, t->region, r->bytes); break;
    case QN_SAVED_VALUE_SCALES: copy_values(t, page + c.value_scales + scales, t->region, r->bytes); break;
    default: convert_f16(t, r, &c); break;
    }
}

/* ---- Pages ---- */

/* Copies the fp16 pages of a cache of codes: page 0, and the last one if it has fp16 rows. */
static qn_status copy_f16_pages(const struct transfer *t)
{
    const qn_sequence *s = t->sequence;
    const size_t last = (t->extent.length - t->extent.has_last_page) / QN_PAGE, bytes = t->f->f16_page_stride;
    if (!s->cache->f16_pages || !t->extent.length)
        return QN_OK;
    QN_TRY(copy_item(t, qn_pool_address(s->cache->f16_pages, s->f16_pages[0]), t->f16_pages, bytes));
    return last && (t->extent.length % QN_PAGE || t->extent.has_last_page)
               ? copy_item(t, qn_pool_address(s->cache->f16_pages, s->f16_pages[last]), t->f16_pages + bytes, bytes)
               : QN_OK;
}

static qn_status copy_block(const struct transfer *t)
{
    const qn_sequence *s = t->sequence;
    for (size_t i = 0; i < t->n_pages; i++)
        QN_TRY(copy_item(t, qn_pool_address(s->cache->pages, s->pages[t->first_page + i]),
                         t->pages + i * t->f->page_stride, t->f->page_stride));
    return QN_OK;
}

/* Loads the block of a page into `pages`: the blocks of codes begin at page 1. */
static qn_status enter_block(struct transfer *t, size_t page)
{
    const bool codes = qn_gpu_has_codes(t->f);
    const size_t first = (page - codes) / QN_SAVED_BLOCK_PAGES * QN_SAVED_BLOCK_PAGES + codes,
                 end = codes ? t->extent.length / QN_PAGE : (t->extent.length + QN_PAGE - 1) / QN_PAGE;
    if (t->n_pages && first == t->first_page)
        return QN_OK;
    if (t->fills)
        QN_TRY(copy_block(t));
    memset(t->pages, 0, QN_SAVED_BLOCK_PAGES * t->f->page_stride);
    t->first_page = first;
    t->n_pages = end - first < QN_SAVED_BLOCK_PAGES ? end - first : QN_SAVED_BLOCK_PAGES;
    return t->fills ? QN_OK : copy_block(t);
}

static qn_status transfer_region(struct transfer *t, const qn_saved_region *r)
{
    if (is_in_block(t, r))
        QN_TRY(enter_block(t, r->page));
    if (t->fills) {
        QN_TRY(t->on_region(t->context, t->region, r->bytes));
        convert_region(t, r);
        return QN_OK;
    }
    memset(t->region, 0, t->region_bytes);
    convert_region(t, r);
    return t->on_region(t->context, t->region, r->bytes);
}

static qn_status transfer_pages(struct transfer *t)
{
    qn_saved_region region;
    if (!t->fills)
        QN_TRY(copy_f16_pages(t));
    for (size_t i = 0; qn_saved_find_region(&t->f->saved, &t->extent, i, &region); i++)
        if (region.bytes)
            QN_TRY(transfer_region(t, &region));
    if (!t->fills)
        return QN_OK;
    QN_TRY(copy_block(t));
    return copy_f16_pages(t);
}

static qn_status allocate_pages(struct transfer *t)
{
    qn_saved_region region;
    for (size_t i = 0; qn_saved_find_region(&t->f->saved, &t->extent, i, &region); i++)
        t->region_bytes = region.bytes > t->region_bytes ? region.bytes : t->region_bytes;
    t->region_bytes += QN_PAGE * sizeof(float); /* scales after codes */
    QN_TRY(qn_alloc(&t->region, t->region_bytes, 1, "session"));
    QN_TRY(qn_alloc(&t->pages, QN_SAVED_BLOCK_PAGES, t->f->page_stride, "session"));
    return qn_alloc(&t->f16_pages, 2, t->f->f16_page_stride, "session");
}

static void free_pages(struct transfer *t)
{
    qn_free(t->region);
    qn_free(t->pages);
    qn_free(t->f16_pages);
}

/* ---- Recurrent layers ---- */

/* A layer in the file, and on the device. */
struct layers {
    float *memory;
    size_t counts[QN_SAVED_ARRAYS];
    float *file[QN_SAVED_ARRAYS]; /* in `memory` */
    uint8_t *state, *open;        /* parts of items */
    bool has_state;
};

/* Returns the array at this offset of the open chunk. */
static void *open_at(const struct layers *l, size_t at)
{
    return l->open + at;
}

/* Converts a head's S: [keys][values] in the file, [values][keys] in the planes hi and lo of the device. */
static void convert_head_state(const struct transfer *t, float *file, uint16_t *hi, uint16_t *lo)
{
    const qn_recurrent_shape *s = &t->f->saved.recurrent;
    for (size_t value = 0; value < s->head_v; value++)
        for (size_t key = 0; key < s->head_k; key++) {
            float *x = &file[key * s->head_v + value];
            const size_t at = value * s->head_k + key;
            if (t->fills)
                qn_gdn_split(*x, &hi[at], &lo[at]);
            else
                *x = qn_gdn_join(hi[at], lo[at]);
        }
}

static void convert_state(const struct transfer *t, const struct layers *l)
{
    const qn_recurrent_shape *s = &t->f->saved.recurrent;
    const size_t head = s->head_k * s->head_v;
    uint16_t *planes = (uint16_t *)(void *)l->state;
    if (!l->has_state)
        return;
    for (size_t h = 0; h < s->n_v_heads; h++)
        convert_head_state(t, l->file[QN_SAVED_STATE] + h * head, planes + h * head,
                           planes + (s->n_v_heads + h) * head);
    copy_values(t, l->state + t->f->recurrent.history, l->file[QN_SAVED_HISTORY],
                l->counts[QN_SAVED_HISTORY] * sizeof(float));
}

/* Returns the power of two that scales the largest of some values into (2^14, 2^15]: with it, values that come from
 * fp16 are exact again. */
static float scale_of(const float *values, size_t n)
{
    float amax = 0;
    int exponent;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(values[i]));
    const bool is_power = frexpf(amax, &exponent) == 0.5f;
    exponent -= is_power ? 16 : 15;
    return ldexpf(1, amax == 0 || exponent < MIN_EXPONENT ? MIN_EXPONENT : exponent);
}

/* Converts v' of a row of a head. */
static void convert_values(const struct transfer *t, const struct layers *l, float *v_new, size_t head, size_t row)
{
    const size_t n = t->f->saved.recurrent.head_v, n_groups = QN_GDN_SCALE_GROUPS(n);
    uint16_t *values = (uint16_t *)open_at(l, t->f->recurrent.open.values) + (head * QN_PAGE + row) * n;
    float *scales = open_at(l, t->f->recurrent.open.scales);
    for (size_t group = 0; group < n_groups; group++) {
        const size_t begin = group * QN_GDN_SCALE_VALUES,
                     end = begin + QN_GDN_SCALE_VALUES < n ? begin + QN_GDN_SCALE_VALUES : n;
        float *scale = &scales[(head * n_groups + group) * QN_PAGE + row];
        if (t->fills)
            *scale = scale_of(v_new + begin, end - begin);
        for (size_t i = begin; i < end; i++)
            if (t->fills)
                values[i] = qn_f32_to_f16(v_new[i] / *scale);
            else
                v_new[i] = qn_f16_to_f32(values[i]) * *scale;
    }
}

static void convert_keys(const struct transfer *t, const struct layers *l, float *keys, size_t head, size_t row)
{
    const size_t n = t->f->saved.recurrent.head_k;
    uint16_t *of_row = (uint16_t *)open_at(l, t->f->recurrent.open.keys) + (head * QN_PAGE + row) * n;
    for (size_t i = 0; i < n; i++) {
        float *key = &keys[(head * n + i) * QN_PAGE + row];
        if (t->fills)
            of_row[i] = qn_f32_to_f16(*key);
        else
            *key = qn_f16_to_f32(of_row[i]);
    }
}

static void convert_inputs(const struct transfer *t, const struct layers *l)
{
    const qn_recurrent_shape *s = &t->f->saved.recurrent;
    const size_t width = qn_recurrent_width(s), past = s->taps - 1, ring = QN_GDN_INPUT_ROWS(s->taps);
    const size_t length = t->extent.length, begin = t->extent.state_position,
                 first = t->extent.shortest > past ? t->extent.shortest - past : 0;
    float *inputs = open_at(l, t->f->recurrent.open.inputs);
    for (size_t p = first > begin ? first : begin; p < length; p++)
        copy_values(t, inputs + p % ring * width, l->file[QN_SAVED_CONV_INPUTS] + (p - begin) * width,
                    width * sizeof(float));
}

static void convert_layer(const struct transfer *t, const struct layers *l)
{
    const qn_recurrent_shape *s = &t->f->saved.recurrent;
    const size_t n_open = t->extent.length - t->extent.state_position;
    float *decays = open_at(l, t->f->recurrent.open.decays);
    convert_state(t, l);
    for (size_t row = 0; row < n_open; row++) {
        for (size_t h = 0; h < s->n_v_heads; h++) {
            const size_t at = h * QN_PAGE + row;
            convert_values(t, l, l->file[QN_SAVED_V_NEW] + at * s->head_v, h, row);
            copy_values(t, &decays[at], &l->file[QN_SAVED_LOG_DECAY][at], sizeof *decays);
        }
        for (size_t h = 0; h < s->n_k_heads; h++)
            convert_keys(t, l, l->file[QN_SAVED_OPEN_KEYS], h, row);
    }
    convert_inputs(t, l);
}

static qn_status transfer_arrays(const struct transfer *t, const struct layers *l)
{
    for (size_t array = 0; array < QN_SAVED_ARRAYS; array++)
        QN_TRY(t->on_region(t->context, l->file[array], l->counts[array] * sizeof(float)));
    return QN_OK;
}

/* Copies a layer's parts of the items of the sequence. */
static qn_status copy_layer(const struct transfer *t, const struct layers *l, size_t index)
{
    const qn_sequence *s = t->sequence;
    const size_t state_bytes = t->f->recurrent.state_layer_bytes, open_bytes = t->f->recurrent.open.bytes;
    if (l->has_state)
        QN_TRY(copy_item(t, qn_pool_address(s->cache->states, s->state) + index * state_bytes, l->state, state_bytes));
    return copy_item(t, qn_pool_address(s->cache->open_chunks, s->open_chunk) + index * open_bytes, l->open,
                     open_bytes);
}

static qn_status transfer_layer(const struct transfer *t, const struct layers *l, size_t index)
{
    if (!t->fills) {
        memset(l->memory, 0, (size_t)qn_saved_layer_bytes(&t->f->saved.recurrent));
        QN_TRY(copy_layer(t, l, index));
        convert_layer(t, l);
        return transfer_arrays(t, l);
    }
    memset(l->state, 0, t->f->recurrent.state_layer_bytes + t->f->recurrent.open.bytes);
    QN_TRY(transfer_arrays(t, l));
    convert_layer(t, l);
    return copy_layer(t, l, index);
}

static qn_status transfer_layers(const struct transfer *t, struct layers *l)
{
    const qn_gpu_recurrent_layout *r = &t->f->recurrent;
    QN_TRY(qn_alloc(&l->memory, (size_t)qn_saved_layer_bytes(&t->f->saved.recurrent), 1, "session"));
    QN_TRY(qn_alloc(&l->state, r->state_layer_bytes + r->open.bytes, 1, "session"));
    l->open = l->state + r->state_layer_bytes;
    float *at = l->memory;
    for (size_t array = 0; array < QN_SAVED_ARRAYS; array++) {
        l->file[array] = at;
        at += l->counts[array];
    }
    for (size_t i = 0; i < t->f->saved.n_recurrent; i++)
        QN_TRY(transfer_layer(t, l, i));
    return QN_OK;
}

static qn_status transfer_recurrent(const struct transfer *t)
{
    struct layers l = { .has_state = t->extent.state_position != 0 };
    if (!t->f->saved.n_recurrent)
        return QN_OK;
    qn_saved_counts(&t->f->saved.recurrent, l.counts);
    const qn_status status = transfer_layers(t, &l);
    qn_free(l.memory);
    qn_free(l.state);
    return status;
}

/* ---- Both directions ---- */

static qn_status transfer(struct transfer *t)
{
    qn_status status = allocate_pages(t);
    if (status == QN_OK)
        status = transfer_pages(t);
    if (status == QN_OK)
        status = transfer_recurrent(t);
    free_pages(t);
    return status;
}

qn_status qn_gpu_save(const qn_gpu_format *format, const qn_sequence *sequence, const qn_gpu_copies *copies,
                      qn_memory_region_fn on_region, void *context)
{
    struct transfer t = { .f = format,
                          .sequence = sequence,
                          .copies = copies,
                          .extent = qn_sequence_extent(sequence),
                          .on_region = on_region,
                          .context = context };
    return transfer(&t);
}

qn_status qn_gpu_load(const qn_gpu_format *format, qn_sequence *sequence, const qn_extent *extent,
                      const qn_gpu_copies *copies, qn_memory_region_fn on_region, void *context)
{
    struct transfer t = { .f = format,
                          .sequence = sequence,
                          .copies = copies,
                          .extent = *extent,
                          .fills = true,
                          .on_region = on_region,
                          .context = context };
    QN_TRY(qn_sequence_restore(sequence, extent));
    return transfer(&t);
}
