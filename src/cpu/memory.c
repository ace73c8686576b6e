/* The CPU's qn_memory_vtable, implemented with sequences: pages in reserved address space, views for the operations,
 * files. */
#include "cpu/memory.h"

#include "base/address_space.h"
#include "base/available.h"
#include "base/memory.h"
#include "cache/host_memory.h"

#include <pthread.h>
#include <string.h>

/* Members but `formats` are constant after creation. */
struct qn_cpu_caches {
    const qn_plan *plan;
    qn_pool *pool;
    qn_recurrent_layout recurrent;
    qn_pool_class *states, *open_chunks;
    qn_cpu_format *formats;
    pthread_mutex_t lock; /* protects `formats` */
    bool has_lock;
};

/* ---- Views ---- */

static void *item_at(const qn_pool_class *class, uint32_t item)
{
    return item == QN_NO_ITEM ? NULL : (void *)(uintptr_t)qn_pool_address(class, item);
}

static void *base_of(const qn_pool_class *class, size_t *stride)
{
    *stride = class ? qn_pool_stride(class) : 0;
    return class ? (void *)(uintptr_t)qn_pool_base(class) : NULL;
}

/* The view of a part of the pages: of the draft head, which is after the trunk's, or of that. */
static qn_kv_view kv_view_of(const qn_cpu_memory *m, bool is_head)
{
    const qn_cache *cache = m->sequence.cache;
    const qn_kv_view *trunk = &m->format->layout.view;
    qn_kv_view view = is_head ? m->format->head.view : *trunk;
    view.pages = base_of(cache->pages, &view.page_stride);
    view.f16_pages = base_of(cache->f16_pages, &view.f16_stride);
    if (is_head && view.pages)
        view.pages += trunk->page_stride;
    if (is_head && view.f16_pages)
        view.f16_pages += trunk->f16_stride;
    view.table = m->sequence.pages;
    view.f16_table = m->sequence.f16_pages;
    return view;
}

static qn_recurrent_view recurrent_view_of(const qn_cpu_memory *m, size_t n)
{
    const qn_sequence *s = &m->sequence;
    const qn_cache *cache = s->cache;
    if (!cache->states)
        return (qn_recurrent_view){ 0 };
    return (qn_recurrent_view){ .layout = m->format->recurrent,
                                .state = item_at(cache->states, s->state),
                                .state_to = n && qn_sequence_folds(s, n) ? item_at(cache->states, s->state_to) : NULL,
                                .open_chunk = item_at(cache->open_chunks, s->open_chunk),
                                .state_position = s->state_position };
}

void qn_cpu_view(qn_cpu_memory *m, size_t n)
{
    m->kv = kv_view_of(m, false);
    m->head_kv = kv_view_of(m, true);
    m->recurrent = recurrent_view_of(m, n);
}

/* ---- The memory ---- */

const float *qn_cpu_hidden_row(const qn_cpu_memory *m, size_t position, bool is_draft)
{
    const qn_cpu_hidden *h = m->hidden;
    const size_t slot = position % QN_CPU_HIDDEN;
    if (is_draft && h->draft_position == position && position >= m->sequence.length)
        return h->draft;
    return h->positions[slot] == position ? h->rows + slot * h->width : NULL;
}

static qn_status create_hidden(const qn_plan *plan, qn_cpu_hidden **out)
{
    qn_cpu_hidden *h;
    *out = NULL;
    if (!plan->head.draft || plan->head.block)
        return QN_OK;
    QN_TRY(qn_alloc(&h, 1, sizeof *h, "session"));
    h->width = plan->buffers[plan->ops[plan->head.draft].pair.hidden].width;
    h->draft_position = UINT32_MAX;
    for (size_t i = 0; i < QN_CPU_HIDDEN; i++)
        h->positions[i] = UINT32_MAX;
    const qn_status status = qn_alloc(&h->rows, QN_CPU_HIDDEN + 1, h->width * sizeof *h->rows, "session");
    if (status != QN_OK) {
        qn_free(h);
        return status;
    }
    h->draft = h->rows + QN_CPU_HIDDEN * h->width;
    *out = h;
    return QN_OK;
}

static void memory_free(qn_memory *memory)
{
    qn_cpu_hidden *hidden = ((qn_cpu_memory *)memory)->hidden;
    if (hidden)
        qn_free(hidden->rows);
    qn_free(hidden);
    qn_sequence_free(memory->sequence);
    qn_free(memory);
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    const qn_cpu_format *f = ((const qn_cpu_memory *)memory)->format;
    return qn_kv_bytes(&f->layout, length) + qn_kv_bytes(&f->head, length) +
           f->saved.n_recurrent * qn_saved_layer_bytes(&f->saved.recurrent);
}

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    QN_TRY(qn_sequence_reserve(memory->sequence, n));
    qn_cpu_view((qn_cpu_memory *)memory, n);
    return QN_OK;
}

/* ---- Serialisation ---- */

/* Calls on_region for each array of each recurrent layer. If the sequence has no state, `zeros` stands for the arrays
 * of state and history. */
static qn_status for_each_array(const qn_cpu_memory *m, qn_memory_region_fn on_region, void *context)
{
    const qn_recurrent_view view = recurrent_view_of(m, 0);
    const size_t n_arrays = m->format->saved.n_recurrent * QN_SAVED_ARRAYS;
    size_t counts[QN_SAVED_ARRAYS], count;
    float *zeros = NULL;
    qn_status status = QN_OK;
    if (!n_arrays)
        return QN_OK;
    qn_saved_counts(&view.layout->shape, counts);
    const size_t most =
        counts[QN_SAVED_STATE] > counts[QN_SAVED_HISTORY] ? counts[QN_SAVED_STATE] : counts[QN_SAVED_HISTORY];
    if (!view.state)
        QN_TRY(qn_alloc(&zeros, most, sizeof *zeros, "session"));
    for (size_t i = 0; status == QN_OK && i < n_arrays; i++) {
        float *array = qn_recurrent_array(&view, i / QN_SAVED_ARRAYS, (qn_saved_array)(i % QN_SAVED_ARRAYS), &count);
        status = on_region(context, array ? array : zeros, count * sizeof *array);
    }
    qn_free(zeros);
    return status;
}

/* Passes a region to on_region; passes a copy if unused positions must become zeros, because the page may be shared. */
static qn_status serialize_region(const qn_saved_layout *saved, const qn_saved_region *region, void *data,
                                  qn_memory_region_fn on_region, void *context)
{
    uint8_t *copy;
    if (region->part != QN_SAVED_KEYS || region->held % QN_SAVED_KEY_TILE == 0)
        return on_region(context, data, region->bytes);
    QN_TRY(qn_alloc(&copy, region->bytes, 1, "session"));
    memcpy(copy, data, region->bytes);
    qn_saved_zero_tail(saved, region, copy);
    const qn_status status = on_region(context, copy, region->bytes);
    qn_free(copy);
    return status;
}

static qn_status serialize_kv(const qn_cpu_memory *m, bool is_head, qn_memory_region_fn on_region, void *context)
{
    const qn_saved_layout *saved = is_head ? &m->format->saved_head : &m->format->saved;
    const qn_extent extent = qn_sequence_extent(&m->sequence);
    const qn_kv_view kv = kv_view_of(m, is_head);
    qn_saved_region region;
    for (size_t i = 0; qn_saved_find_region(saved, &extent, i, &region); i++)
        if (region.bytes)
            QN_TRY(serialize_region(saved, &region, qn_kv_region(&kv, &region), on_region, context));
    return QN_OK;
}

static qn_status memory_serialize(const qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_cpu_memory *m = (const qn_cpu_memory *)memory;
    const qn_extent extent = qn_sequence_extent(&m->sequence);
    const qn_recurrent_view recurrent = recurrent_view_of(m, 0);
    QN_TRY(serialize_kv(m, false, on_region, context));
    if (recurrent.layout)
        qn_recurrent_zero_tail(&recurrent, extent.length);
    return for_each_array(m, on_region, context);
}

static qn_status memory_serialize_head(const qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_cpu_memory *m = (const qn_cpu_memory *)memory;
    const size_t length = m->sequence.length, width = m->hidden ? m->hidden->width : 0;
    float *row;
    QN_TRY(serialize_kv(m, true, on_region, context));
    if (!length || !width)
        return QN_OK;
    const float *kept = qn_cpu_hidden_row(m, length - 1, false);
    QN_TRY(qn_alloc(&row, width, sizeof *row, "session")); /* zeros where it is not known */
    if (kept)
        memcpy(row, kept, width * sizeof *row);
    const qn_status status = on_region(context, row, width * sizeof *row);
    qn_free(row);
    return status;
}

/* Zeroes what the draft head has stored for the rows, in case a file does not have it. */
static void zero_draft_layer(const qn_cpu_memory *m, size_t layer)
{
    const qn_sequence *s = &m->sequence;
    const qn_kv_view kv = kv_view_of(m, true);
    for (size_t page = 0; page * QN_PAGE < s->length; page++) {
        if (s->pages[page] != QN_NO_ITEM)
            memset(qn_kv_keys(&kv, layer, page, 0), 0, kv.n_heads * (kv.key_bytes + kv.value_bytes));
        if (!kv.key_codec || s->f16_pages[page] == QN_NO_ITEM)
            continue;
        memset(qn_kv_f16_keys(&kv, layer, page, 0), 0, kv.n_heads * 2 * QN_PAGE * kv.key_codec->dim * sizeof(uint16_t));
        if (!page)
            memset(qn_kv_key_mean(&kv, layer, 0), 0, kv.n_heads * kv.key_codec->dim * sizeof(float));
    }
}

static qn_status deserialize_kv(const qn_cpu_memory *m, bool is_head, const qn_extent *extent,
                                qn_memory_region_fn on_region, void *context)
{
    const qn_saved_layout *saved = is_head ? &m->format->saved_head : &m->format->saved;
    const qn_kv_view kv = kv_view_of(m, is_head);
    qn_saved_region region;
    for (size_t i = 0; qn_saved_find_region(saved, extent, i, &region); i++)
        if (region.bytes)
            QN_TRY(on_region(context, qn_kv_region(&kv, &region), region.bytes));
    return QN_OK;
}

static qn_status memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn on_region,
                                    void *context)
{
    const qn_cpu_memory *m = (const qn_cpu_memory *)memory;
    QN_TRY(qn_sequence_restore(memory->sequence, extent));
    for (size_t layer = m->format->saved.n_layers; layer < m->format->n_layers; layer++)
        zero_draft_layer(m, layer);
    QN_TRY(deserialize_kv(m, false, extent, on_region, context));
    return for_each_array(m, on_region, context);
}

static qn_status memory_deserialize_head(qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_cpu_memory *m = (const qn_cpu_memory *)memory;
    const qn_extent extent = qn_sequence_extent(&m->sequence);
    qn_cpu_hidden *hidden = m->hidden;
    QN_TRY(deserialize_kv(m, true, &extent, on_region, context));
    if (!extent.length || !hidden)
        return QN_OK;
    const uint32_t position = extent.length - 1;
    const size_t slot = position % QN_CPU_HIDDEN;
    hidden->positions[slot] = position;
    return on_region(context, hidden->rows + slot * hidden->width, hidden->width * sizeof *hidden->rows);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .prepare = memory_prepare,
    .serialize = memory_serialize,
    .deserialize = memory_deserialize,
    .serialize_head = memory_serialize_head,
    .deserialize_head = memory_deserialize_head,
};

/* ---- The pool ---- */

static qn_status copy_item(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    (void)context;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return QN_OK;
}

/* Budget if the system's available memory is unknown. */
static const uint64_t DEFAULT_BUDGET = (uint64_t)4 << 30;

enum { IDLE_SHARE = 16, MAX_CLASSES = 4 };

/* Returns half of the memory that remains once the weights are in memory. If addresses are limited, all classes must
 * fit in half of the addresses. */
static uint64_t default_budget(const qn_plan *plan)
{
    const uint64_t available = qn_available_memory(), weights = qn_plan_weight_bytes(plan),
                   addresses = qn_available_addresses();
    uint64_t budget = available == UINT64_MAX ? DEFAULT_BUDGET : available > weights ? (available - weights) / 2 : 0;
    if (addresses != UINT64_MAX && budget > addresses / (2 * MAX_CLASSES))
        budget = addresses / (2 * MAX_CLASSES);
    return budget > QN_COMMIT_GRANULE ? budget : QN_COMMIT_GRANULE;
}

static qn_status create_pool(qn_cpu_caches *c, uint64_t budget, double share)
{
    const qn_pool_memory memory = qn_host_pool_memory();
    budget = budget ? budget : default_budget(c->plan);
    budget = share > 0 ? (uint64_t)((double)budget * share) : budget;
    QN_TRY(qn_pool_create(&memory, budget, budget / IDLE_SHARE, &c->pool));
    if (!c->plan->recurrent.n_v_heads)
        return QN_OK;
    QN_TRY(qn_recurrent_layout_create(&c->plan->recurrent, c->plan->is_recurrent, c->plan->n_layers, &c->recurrent));
    QN_TRY(qn_pool_add_class(c->pool, "recurrent state", qn_recurrent_state_item_bytes(&c->recurrent), &c->states));
    return qn_pool_add_class(c->pool, "open chunk", qn_recurrent_chunk_item_bytes(&c->recurrent), &c->open_chunks);
}

qn_status qn_cpu_caches_create(const qn_plan *plan, uint64_t budget, double share, qn_cpu_caches **out)
{
    qn_cpu_caches *c;
    *out = NULL;
    QN_TRY(qn_alloc(&c, 1, sizeof *c, "device"));
    c->plan = plan;
    const int error = pthread_mutex_init(&c->lock, NULL);
    c->has_lock = !error;
    const qn_status status =
        error ? qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error)) : create_pool(c, budget, share);
    if (status != QN_OK) {
        qn_cpu_caches_free(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

static void free_format(qn_cpu_format *format)
{
    qn_kv_layout_free(&format->layout);
    qn_kv_layout_free(&format->head);
    qn_aura_codecs_delete(&format->codecs);
    qn_aura_codecs_delete(&format->head_codecs);
    qn_free(format);
}

void qn_cpu_caches_free(qn_cpu_caches *c)
{
    if (!c)
        return;
    qn_pool_free(c->pool);
    for (qn_cpu_format *format = c->formats, *next; format; format = next) {
        next = format->next;
        free_format(format);
    }
    qn_recurrent_layout_free(&c->recurrent);
    if (c->has_lock)
        pthread_mutex_destroy(&c->lock);
    qn_free(c);
}

/* ---- Formats and memories ---- */

/* Creates the layouts of both parts of a page, and their codecs. */
static qn_status create_layouts(const qn_plan *plan, qn_cpu_format *f)
{
    const qn_kv_format *of = f->format;
    const size_t n_trunk = qn_plan_trunk_layers(plan);
    const unsigned head_bits = qn_kv_head_bits(of);
    QN_TRY(qn_aura_codecs_new(&f->codecs, plan->heads.head_dim, of->key_bits, of->value_bits, QN_KV_SEED));
    if (plan->head.n_layers)
        QN_TRY(qn_aura_codecs_new(&f->head_codecs, plan->head.heads.head_dim, head_bits, head_bits, QN_KV_SEED));
    QN_TRY(qn_kv_layout_create(&f->layout, plan, 0, n_trunk, &f->codecs, of->is_f32));
    return qn_kv_layout_create(&f->head, plan, n_trunk, plan->n_layers, &f->head_codecs, of->is_f32);
}

/* The caller of this function and the next holds the lock. */
static qn_status create_format(const qn_cpu_caches *c, qn_cpu_format *f)
{
    size_t page, f16_page;
    QN_TRY(create_layouts(c->plan, f));
    if (!qn_add_size(f->layout.view.page_stride, f->head.view.page_stride, &page) ||
        !qn_add_size(f->layout.view.f16_stride, f->head.view.f16_stride, &f16_page))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers do not fit in memory", c->plan->n_layers);
    f->saved = qn_saved_layout_of(c->plan, f->format);
    f->saved_head = qn_saved_layout_of_head(c->plan, f->format);
    f->n_layers = c->plan->n_layers;
    f->recurrent = c->states ? &c->recurrent : NULL;
    f->cache =
        (qn_cache){ .states = c->states, .open_chunks = c->open_chunks, .max_dropped = QN_PAGE, .copy = copy_item };
    if (!page)
        return QN_OK;
    QN_TRY(qn_pool_add_class(c->pool, "page of keys and values", page, &f->cache.pages));
    if (!f->codecs.keys)
        return QN_OK;
    const qn_status status = qn_pool_add_class(c->pool, "fp16 page of keys and values", f16_page, &f->cache.f16_pages);
    if (status != QN_OK)
        qn_pool_remove_class(c->pool, f->cache.pages);
    return status;
}

static qn_status add_format(qn_cpu_caches *c, const qn_kv_format *format, const qn_cpu_format **out)
{
    qn_cpu_format *f;
    QN_TRY(qn_alloc(&f, 1, sizeof *f, "session"));
    f->format = format;
    const qn_status status = create_format(c, f);
    if (status != QN_OK) {
        free_format(f);
        return status;
    }
    f->next = c->formats;
    *out = c->formats = f;
    return QN_OK;
}

static qn_status find_format(qn_cpu_caches *c, const qn_kv_format *format, const qn_cpu_format **out)
{
    pthread_mutex_lock(&c->lock);
    qn_status status = QN_OK;
    const qn_cpu_format *f = c->formats;
    while (f && f->format != format)
        f = f->next;
    *out = f;
    if (!f)
        status = add_format(c, format, out);
    pthread_mutex_unlock(&c->lock);
    return status;
}

qn_status qn_cpu_memory_new(qn_cpu_caches *c, const qn_memory_params *params, qn_memory **out)
{
    const qn_cpu_format *format;
    qn_cpu_memory *m;
    *out = NULL;
    QN_TRY(find_format(c, params->format, &format));
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cpu_memory){ .base = { .vtable = &vtable, .sequence = &m->sequence }, .format = format };
    qn_status status = create_hidden(c->plan, &m->hidden);
    if (status == QN_OK)
        status = qn_sequence_create(&format->cache, &m->sequence);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
