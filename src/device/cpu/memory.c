/* The CPU's qn_memory_vtable, on top of sequences: pages in reserved address space, views for the operations, files. */
#include "device/cpu/memory.h"

#include "base/address_space.h"
#include "base/available.h"
#include "base/memory.h"
#include "cache/host_memory.h"
#include "device/sequence_memory.h"

#include <pthread.h>
#include <string.h>

/* The classes and the layout of one cache format. The recurrent layers' are the same in all. */
typedef struct cpu_cache {
    qn_cache base;
    qn_kv_layout layout;
    struct cpu_cache *next;
} cpu_cache;

struct qn_cpu_caches {
    const qn_plan *plan;
    qn_pool *pool;
    qn_recurrent_layout recurrent;
    qn_pool_class *states, *open_chunks;
    cpu_cache *caches;
    pthread_mutex_t lock; /* protects `caches` */
    bool has_lock;
};

static qn_cpu_memory *cpu_of(qn_memory *memory)
{
    return (qn_cpu_memory *)memory;
}

static const qn_cpu_memory *cpu_of_const(const qn_memory *memory)
{
    return (const qn_cpu_memory *)memory;
}

/* ---- Views ---- */

static void *item_at(const qn_pool_class *class, uint32_t item)
{
    return item == QN_NO_ITEM ? NULL : (void *)(uintptr_t)qn_pool_address(class, item);
}

/* The views for appending n rows, or of the present contents for n = 0. */
static void update_views(qn_cpu_memory *m, size_t n)
{
    const qn_sequence *s = &m->sequence;
    const qn_cache *cache = s->cache;
    m->kv.table = s->pages;
    m->kv.f16_table = s->f16_pages;
    if (!cache->states)
        return;
    m->recurrent.state = item_at(cache->states, s->state);
    m->recurrent.state_to = n && qn_sequence_folds(s, n) ? item_at(cache->states, s->state_to) : NULL;
    m->recurrent.open_chunk = item_at(cache->open_chunks, s->open_chunk);
    m->recurrent.state_position = s->state_position;
}

static void begin_views(qn_cpu_memory *m, const qn_recurrent_layout *recurrent)
{
    const qn_cache *cache = m->sequence.cache;
    m->kv = m->layout->view;
    if (cache->pages) {
        m->kv.pages = (uint8_t *)(uintptr_t)qn_pool_base(cache->pages);
        m->kv.page_stride = qn_pool_stride(cache->pages);
    }
    if (cache->f16_pages) {
        m->kv.f16_pages = (uint8_t *)(uintptr_t)qn_pool_base(cache->f16_pages);
        m->kv.f16_stride = qn_pool_stride(cache->f16_pages);
    }
    m->recurrent.layout = recurrent;
    m->base.sequence = &m->sequence;
    m->base.cache = &m->kv;
    m->base.recurrent = cache->states ? &m->recurrent : NULL;
    update_views(m, 0);
}

/* ---- Growth and truncation ---- */

static void memory_free(qn_memory *memory)
{
    qn_sequence_free(&cpu_of(memory)->sequence);
    qn_free(memory);
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    const qn_cpu_memory *m = cpu_of_const(memory);
    const qn_recurrent_layout *r = m->recurrent.layout;
    return qn_kv_bytes(m->layout, length) + (r ? qn_recurrent_bytes(r) : 0);
}

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    const qn_status status = qn_sequence_reserve(&cpu_of(memory)->sequence, n);
    update_views(cpu_of(memory), status == QN_OK ? n : 0); /* page tables may have moved in either case */
    return status;
}

static void memory_on_append(qn_memory *memory, size_t length)
{
    qn_sequence *s = &cpu_of(memory)->sequence;
    qn_sequence_commit(s, length - s->length);
    update_views(cpu_of(memory), 0);
}

static void memory_truncate(qn_memory *memory, size_t length)
{
    qn_sequence_truncate(&cpu_of(memory)->sequence, (uint32_t)length);
    update_views(cpu_of(memory), 0);
}

static qn_status memory_reset(qn_memory *memory)
{
    memory_truncate(memory, 0);
    return QN_OK;
}

/* ---- Serialisation ---- */

/* An array of a layer that has no state is zeros: read from and written to `zeros` of as many floats. */
static qn_status for_each_array(const qn_cpu_memory *m, qn_memory_region_fn on_region, void *context)
{
    const qn_recurrent_layout *layout = m->recurrent.layout;
    float *zeros = NULL;
    size_t count, most = 0;
    qn_status status = QN_OK;
    if (!layout)
        return QN_OK;
    for (size_t array = 0; array < QN_RECURRENT_ARRAYS; array++)
        if (layout->n_layers && !qn_recurrent_array(&m->recurrent, 0, array, &count))
            most = count > most ? count : most;
    QN_TRY(qn_alloc(&zeros, most, sizeof *zeros, "session"));
    for (size_t i = 0; status == QN_OK && i < layout->n_layers * QN_RECURRENT_ARRAYS; i++) {
        float *array = qn_recurrent_array(&m->recurrent, i / QN_RECURRENT_ARRAYS, i % QN_RECURRENT_ARRAYS, &count);
        status = on_region(context, array ? array : zeros, count * sizeof *array);
    }
    qn_free(zeros);
    return status;
}

/* Writes a region, from a copy if positions that are not in use must be zeros: its page may be shared. */
static qn_status serialize_region(const qn_cpu_memory *m, const qn_kv_region *region, qn_memory_region_fn on_region,
                                  void *context)
{
    uint8_t *copy;
    if (!region->tail)
        return on_region(context, region->data, region->bytes);
    QN_TRY(qn_alloc(&copy, region->bytes, 1, "session"));
    memcpy(copy, region->data, region->bytes);
    qn_kv_zero_tail(m->layout, region, copy);
    const qn_status status = on_region(context, copy, region->bytes);
    qn_free(copy);
    return status;
}

static qn_status memory_serialize(const qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_cpu_memory *m = cpu_of_const(memory);
    const qn_extent extent = qn_sequence_extent(&m->sequence);
    qn_kv_region region;
    for (size_t i = 0; qn_kv_find_region(m->layout, &m->kv, i, &extent, &region); i++)
        QN_TRY(serialize_region(m, &region, on_region, context));
    if (m->recurrent.layout)
        qn_recurrent_zero_tail(&m->recurrent, extent.length);
    return for_each_array(m, on_region, context);
}

static qn_status memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn on_region, void *context)
{
    qn_cpu_memory *m = cpu_of(memory);
    qn_kv_region region;
    const qn_status status = qn_sequence_restore(&m->sequence, extent);
    update_views(m, 0);
    QN_TRY(status);
    for (size_t i = 0; qn_kv_find_region(m->layout, &m->kv, i, extent, &region); i++)
        QN_TRY(on_region(context, region.data, region.bytes));
    return for_each_array(m, on_region, context);
}

static uint64_t memory_serialized_bytes(const qn_memory *memory, const qn_extent *extent)
{
    const qn_cpu_memory *m = cpu_of_const(memory);
    return qn_kv_saved_bytes(m->layout, extent) + (m->recurrent.layout ? qn_recurrent_bytes(m->recurrent.layout) : 0);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open_tokens = qn_memory_open_tokens,
    .prepare = memory_prepare,
    .on_append = memory_on_append,
    .rewind_length = qn_memory_rewind_length,
    .truncate = memory_truncate,
    .reset = memory_reset,
    .copy = qn_memory_copy,
    .checkpoint_new = qn_checkpoint_new,
    .checkpoint_free = qn_checkpoint_free,
    .checkpoint_clear = qn_checkpoint_clear,
    .checkpoint_open_tokens = qn_checkpoint_open_tokens,
    .checkpoint_save = qn_checkpoint_save,
    .checkpoint_restore = qn_checkpoint_restore,
    .checkpoint_copy = qn_checkpoint_copy,
    .serialize = memory_serialize,
    .deserialize = memory_deserialize,
    .serialized_bytes = memory_serialized_bytes,
};

/* ---- The pool ---- */

static qn_status copy_item(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    (void)context;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return QN_OK;
}

/* Where nothing is known of the system. */
static const uint64_t DEFAULT_BUDGET = (uint64_t)4 << 30;

enum { IDLE_SHARE = 16, MAX_CLASSES = 4 };

/* Half of what is left once the weights are in memory. If addresses are limited, all classes must fit in half of them. */
static uint64_t default_budget(const qn_plan *plan)
{
    const uint64_t available = qn_available_memory(), weights = qn_plan_weight_bytes(plan),
                   addresses = qn_available_addresses();
    uint64_t budget = available == UINT64_MAX ? DEFAULT_BUDGET : available > weights ? (available - weights) / 2 : 0;
    if (addresses != UINT64_MAX && budget > addresses / (2 * MAX_CLASSES))
        budget = addresses / (2 * MAX_CLASSES);
    return budget > QN_COMMIT_GRANULE ? budget : QN_COMMIT_GRANULE;
}

static qn_status create_pool(qn_cpu_caches *c, uint64_t budget)
{
    const qn_pool_memory memory = qn_host_pool_memory();
    budget = budget ? budget : default_budget(c->plan);
    QN_TRY(qn_pool_create(&memory, budget, budget / IDLE_SHARE, &c->pool));
    if (!c->plan->recurrent.n_v_heads)
        return QN_OK;
    QN_TRY(qn_recurrent_layout_create(&c->plan->recurrent, c->plan->is_recurrent, c->plan->n_layers, &c->recurrent));
    QN_TRY(qn_pool_add_class(c->pool, "recurrent state", qn_recurrent_state_item_bytes(&c->recurrent), &c->states));
    return qn_pool_add_class(c->pool, "open chunk", qn_recurrent_chunk_item_bytes(&c->recurrent), &c->open_chunks);
}

qn_status qn_cpu_caches_create(const qn_plan *plan, uint64_t budget, qn_cpu_caches **out)
{
    qn_cpu_caches *c;
    *out = NULL;
    QN_TRY(qn_alloc(&c, 1, sizeof *c, "device"));
    c->plan = plan;
    const int error = pthread_mutex_init(&c->lock, NULL);
    c->has_lock = !error;
    const qn_status status = error ? qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error)) : create_pool(c, budget);
    if (status != QN_OK) {
        qn_cpu_caches_free(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

static void free_cache(cpu_cache *cache)
{
    qn_kv_layout_free(&cache->layout);
    qn_free(cache);
}

void qn_cpu_caches_free(qn_cpu_caches *c)
{
    if (!c)
        return;
    qn_pool_free(c->pool);
    for (cpu_cache *cache = c->caches, *next; cache; cache = next) {
        next = cache->next;
        free_cache(cache);
    }
    qn_recurrent_layout_free(&c->recurrent);
    if (c->has_lock)
        pthread_mutex_destroy(&c->lock);
    qn_free(c);
}

/* ---- Caches and memories ---- */

static qn_status create_cache(const qn_cpu_caches *c, qn_kv_codecs codecs, cpu_cache *cache)
{
    const qn_plan *plan = c->plan;
    const qn_kv_shape shape = { plan->is_recurrent, plan->n_layers, plan->heads.n_kv_heads, plan->heads.head_dim };
    QN_TRY(qn_kv_layout_create(&cache->layout, &shape, codecs));
    cache->base =
        (qn_cache){ .states = c->states, .open_chunks = c->open_chunks, .max_dropped = QN_GDN_CHUNK, .copy = copy_item };
    if (!cache->layout.view.page_stride)
        return QN_OK;
    QN_TRY(qn_pool_add_class(c->pool, "page of keys and values", cache->layout.view.page_stride, &cache->base.pages));
    if (!codecs.keys)
        return QN_OK;
    const qn_status status =
        qn_pool_add_class(c->pool, "fp16 page of keys and values", cache->layout.view.f16_stride, &cache->base.f16_pages);
    if (status != QN_OK)
        qn_pool_remove_class(c->pool, cache->base.pages);
    return status;
}

static qn_status new_cache(qn_cpu_caches *c, qn_kv_codecs codecs, const cpu_cache **out)
{
    cpu_cache *cache;
    QN_TRY(qn_alloc(&cache, 1, sizeof *cache, "session"));
    const qn_status status = create_cache(c, codecs, cache);
    if (status != QN_OK) {
        free_cache(cache);
        return status;
    }
    cache->next = c->caches;
    *out = c->caches = cache;
    return QN_OK;
}

static qn_status find_cache(qn_cpu_caches *c, qn_kv_codecs codecs, const cpu_cache **out)
{
    pthread_mutex_lock(&c->lock);
    qn_status status = QN_OK;
    const cpu_cache *cache = c->caches;
    while (cache && (cache->layout.view.key_codec != codecs.keys || cache->layout.view.value_codec != codecs.values))
        cache = cache->next;
    *out = cache;
    if (!cache)
        status = new_cache(c, codecs, out);
    pthread_mutex_unlock(&c->lock);
    return status;
}

qn_status qn_cpu_memory_new(qn_cpu_caches *c, const qn_memory_params *params, qn_memory **out)
{
    const qn_kv_codecs codecs = { params->key_codec, params->value_codec };
    const cpu_cache *cache;
    qn_cpu_memory *m;
    *out = NULL;
    QN_TRY(find_cache(c, codecs, &cache));
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cpu_memory){ .base = { .vtable = &vtable, .sequence = &m->sequence }, .layout = &cache->layout };
    const qn_status status = qn_sequence_create(&cache->base, &m->sequence);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    begin_views(m, cache->base.states ? &c->recurrent : NULL);
    *out = &m->base;
    return QN_OK;
}
