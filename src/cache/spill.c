/* A pool in host memory beside the device's, and copies between both. */
#include "cache/spill.h"

#include "base/memory.h"
#include "cache/host_memory.h"

enum { IDLE_SHARE = 16 };

struct qn_spill {
    const qn_cache *cache;
    qn_pool *pool;
    qn_pool_class *classes[QN_ITEM_KINDS]; /* NULL where the cache has none */
};

qn_pool_class *qn_item_class(const qn_cache *cache, qn_item_kind kind)
{
    qn_pool_class *const classes[QN_ITEM_KINDS] = { cache->pages, cache->f16_pages, cache->states };
    return classes[kind];
}

static qn_status add_classes(qn_spill *s)
{
    for (qn_item_kind kind = 0; kind < QN_ITEM_KINDS; kind++) {
        const qn_pool_class *class = qn_item_class(s->cache, kind);
        if (class)
            QN_TRY(qn_pool_add_class(s->pool, "spilled item", qn_pool_stride(class), &s->classes[kind]));
    }
    return QN_OK;
}

qn_status qn_spill_create(const qn_cache *cache, uint64_t budget, qn_spill **out)
{
    const qn_pool_memory memory = qn_host_pool_memory();
    qn_spill *s;
    *out = NULL;
    QN_TRY(qn_alloc(&s, 1, sizeof *s, "prefix cache"));
    s->cache = cache;
    qn_status status = qn_pool_create(&memory, budget, budget / IDLE_SHARE, &s->pool);
    if (status == QN_OK)
        status = add_classes(s);
    if (status != QN_OK) {
        qn_spill_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

void qn_spill_free(qn_spill *s)
{
    if (!s)
        return;
    qn_pool_free(s->pool);
    qn_free(s);
}

static void *address_of(const qn_spill *s, qn_item_kind kind, uint32_t copy)
{
    return (void *)(uintptr_t)qn_pool_address(s->classes[kind], copy);
}

qn_status qn_spill_out(qn_spill *s, qn_item_kind kind, uint32_t item, uint32_t *copy)
{
    const qn_pool_class *class = qn_item_class(s->cache, kind);
    uint32_t to;
    QN_TRY(qn_pool_take(s->classes[kind], &to));
    const qn_status status =
        s->cache->copy_out(s->cache->context, address_of(s, kind, to), qn_pool_address(class, item), qn_pool_stride(class));
    if (status != QN_OK) {
        qn_spill_drop(s, kind, to);
        return status;
    }
    *copy = to;
    return QN_OK;
}

qn_status qn_spill_in(qn_spill *s, qn_item_kind kind, uint32_t copy, uint32_t *item)
{
    qn_pool_class *class = qn_item_class(s->cache, kind);
    uint32_t to;
    QN_TRY(qn_pool_try_take(class, &to));
    const qn_status status =
        s->cache->copy_in(s->cache->context, qn_pool_address(class, to), address_of(s, kind, copy), qn_pool_stride(class));
    if (status != QN_OK) {
        qn_pool_drop(class, to);
        return status;
    }
    qn_spill_drop(s, kind, copy);
    *item = to;
    return QN_OK;
}

void qn_spill_drop(qn_spill *s, qn_item_kind kind, uint32_t copy)
{
    qn_pool_drop(s->classes[kind], copy);
}

bool qn_spill_fits(const qn_spill *s, qn_item_kind kind)
{
    return qn_pool_stride(s->classes[kind]) <= qn_pool_get_usage(s->pool).budget;
}

uint64_t qn_spill_bytes(const qn_spill *s)
{
    return qn_pool_get_usage(s->pool).held;
}
