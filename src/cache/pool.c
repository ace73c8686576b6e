/* Items, granules and budget of a pool. */
#include "cache/pool.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The pool's lock protects all members but pool, name, stride, base and the limits, which are constant. */
struct qn_pool_class {
    qn_pool *pool;
    const char *name;
    size_t stride;
    uint64_t base;
    size_t max_items, n_granules; /* limits of the reserved addresses */
    size_t first_free;            /* all items below have references */
    size_t n_held;
    uint32_t *references; /* [cap_references] reference counts of items; items beyond have none */
    size_t cap_references;
    uint32_t *items_in;   /* [n_granules] items with references that touch a granule */
    uint8_t *committed;   /* [n_granules] */
    size_t committed_end; /* end of the last committed granule */
};

/* `lock` protects all members but memory, budget and idle_limit, which are constant. Static functions are called with
 * the lock held, but for reclaim() and those that create or free. */
struct qn_pool {
    qn_pool_memory memory;
    uint64_t budget, committed, idle_limit;
    uint64_t idle; /* bytes of committed granules without items */
    qn_pool_reclaim_fn reclaim;
    void *reclaim_context;
    pthread_mutex_t lock;
    qn_pool_class **classes;
    size_t n_classes, cap_classes;
};

/* The granules that an item touches: [first, end). */
struct granules {
    size_t first, end;
};

static struct granules granules_of(const qn_pool_class *class, size_t item)
{
    const size_t granule = class->pool->memory.granule, at = item * class->stride;
    return (struct granules){ at / granule, (at + class->stride - 1) / granule + 1 };
}

static uint64_t granule_address(const qn_pool_class *class, size_t granule)
{
    return class->base + (uint64_t)granule * class->pool->memory.granule;
}

/* ---- Granules ---- */

static void release_granule(qn_pool_class *class, size_t granule)
{
    qn_pool *pool = class->pool;
    pool->memory.release(pool->memory.context, granule_address(class, granule));
    class->committed[granule] = 0;
    pool->committed -= pool->memory.granule;
    pool->idle -= pool->memory.granule;
}

/* Releases committed granules without items, from the end of each class, until at most `idle` bytes of them remain.
 * Keeps granules [keep.first, keep.end) of class `of`. The caller holds the lock. */
static void release_idle(qn_pool *pool, uint64_t idle, const qn_pool_class *of, struct granules keep)
{
    for (size_t i = 0; i < pool->n_classes && pool->idle > idle; i++) {
        qn_pool_class *class = pool->classes[i];
        size_t granule = class->committed_end;
        while (granule-- > 0 && pool->idle > idle) {
            const bool kept = class == of && granule >= keep.first && granule < keep.end;
            if (class->committed[granule] && !class->items_in[granule] && !kept)
                release_granule(class, granule);
        }
        while (class->committed_end > 0 && !class->committed[class->committed_end - 1])
            class->committed_end--;
    }
}

static qn_status commit_granule(qn_pool_class *class, size_t granule, struct granules keep)
{
    qn_pool *pool = class->pool;
    const uint64_t bytes = pool->memory.granule, most = pool->budget - bytes;
    if (pool->committed > most)
        release_idle(pool, pool->idle - (pool->committed - most), class, keep);
    qn_status status = pool->memory.commit(pool->memory.context, granule_address(class, granule));
    if (status == QN_ERR_MEMORY) { /* the device has less than the budget */
        const uint64_t before = pool->committed;
        release_idle(pool, 0, class, keep);
        if (pool->committed < before)
            status = pool->memory.commit(pool->memory.context, granule_address(class, granule));
    }
    QN_TRY(status);
    class->committed[granule] = 1;
    class->committed_end = granule + 1 > class->committed_end ? granule + 1 : class->committed_end;
    pool->committed += bytes;
    pool->idle += bytes;
    return QN_OK;
}

/* Commits the granules of an item. Those committed before a failure stay committed, idle. The caller holds the lock. */
static qn_status commit_item(qn_pool_class *class, size_t item)
{
    const struct granules g = granules_of(class, item);
    for (size_t i = g.first; i < g.end; i++)
        if (!class->committed[i])
            QN_TRY(commit_granule(class, i, g));
    return QN_OK;
}

static void hold_granules(qn_pool_class *class, size_t item)
{
    const struct granules g = granules_of(class, item);
    for (size_t i = g.first; i < g.end; i++)
        if (class->items_in[i]++ == 0)
            class->pool->idle -= class->pool->memory.granule;
}

static void let_go_of_granules(qn_pool_class *class, size_t item)
{
    const struct granules g = granules_of(class, item);
    for (size_t i = g.first; i < g.end; i++)
        if (--class->items_in[i] == 0)
            class->pool->idle += class->pool->memory.granule;
    release_idle(class->pool, class->pool->idle_limit, NULL, (struct granules){ 0 });
}

/* ---- Items ---- */

static size_t next_free(const qn_pool_class *class, size_t item)
{
    while (item < class->cap_references && class->references[item])
        item++;
    return item;
}

/* Returns the bytes that taking a free item would use: its granules from `from` on that no other item touches,
 * committed or not. The caller holds the lock. */
static uint64_t cost_of(const qn_pool_class *class, size_t item, size_t from)
{
    const struct granules g = granules_of(class, item);
    uint64_t cost = 0;
    for (size_t i = g.first > from ? g.first : from; i < g.end; i++)
        cost += class->items_in[i] ? 0 : class->pool->memory.granule;
    return cost;
}

/* Returns the bytes of the budget that are not held by items. The caller holds the lock. */
static uint64_t bytes_left(const qn_pool *pool)
{
    return pool->budget - pool->committed + pool->idle;
}

static bool is_beyond_committed(const qn_pool_class *class, size_t item)
{
    return granules_of(class, item).first >= class->committed_end;
}

/* Finds the lowest free item that fits in the budget. The caller holds the lock. */
static qn_status find_item(const qn_pool_class *class, size_t *out)
{
    const qn_pool *pool = class->pool;
    for (size_t item = next_free(class, class->first_free); item < class->max_items;
         item = next_free(class, item + 1)) {
        *out = item;
        if (cost_of(class, item, 0) <= bytes_left(pool))
            return QN_OK;
        if (is_beyond_committed(class, item))
            break;
    }
    return qn_fail(QN_ERR_MEMORY, "%s: %zu are in use, and %llu of %llu MiB of memory", class->name, class->n_held,
                   (unsigned long long)((pool->committed - pool->idle) >> 20),
                   (unsigned long long)(pool->budget >> 20));
}

static qn_status take(qn_pool_class *class, uint32_t *out)
{
    const size_t before = class->cap_references;
    size_t item = 0;
    QN_TRY(find_item(class, &item));
    QN_TRY(commit_item(class, item));
    QN_TRY(qn_realloc_array(&class->references, &class->cap_references, item + 1, sizeof *class->references, "pool"));
    memset(class->references + before, 0, (class->cap_references - before) * sizeof *class->references);
    hold_granules(class, item);
    class->references[item] = 1;
    class->first_free = next_free(class, class->first_free);
    class->n_held++;
    *out = (uint32_t)item;
    return QN_OK;
}

void qn_pool_set_reclaim(qn_pool *pool, qn_pool_reclaim_fn reclaim, void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->reclaim = reclaim;
    pool->reclaim_context = context;
    pthread_mutex_unlock(&pool->lock);
}

qn_status qn_pool_try_take(qn_pool_class *class, uint32_t *item)
{
    pthread_mutex_lock(&class->pool->lock);
    const qn_status status = take(class, item);
    pthread_mutex_unlock(&class->pool->lock);
    return status;
}

/* Calls the reclaim function, without the lock. Returns whether it dropped anything. Preserves the error text. */
static bool reclaim(qn_pool *pool)
{
    char text[QN_ERROR_TEXT_MAX];
    pthread_mutex_lock(&pool->lock);
    const qn_pool_reclaim_fn function = pool->reclaim;
    void *context = pool->reclaim_context;
    pthread_mutex_unlock(&pool->lock);
    if (!function)
        return false;
    memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
    const bool reclaimed = function(context);
    (void)qn_fail(QN_ERR_MEMORY, "%s", text);
    return reclaimed;
}

qn_status qn_pool_take(qn_pool_class *class, uint32_t *item)
{
    qn_status status;
    do
        status = qn_pool_try_take(class, item);
    while (status == QN_ERR_MEMORY && reclaim(class->pool));
    return status;
}

void qn_pool_share(qn_pool_class *class, uint32_t item)
{
    pthread_mutex_lock(&class->pool->lock);
    class->references[item]++;
    pthread_mutex_unlock(&class->pool->lock);
}

void qn_pool_drop(qn_pool_class *class, uint32_t item)
{
    pthread_mutex_lock(&class->pool->lock);
    if (--class->references[item] == 0) {
        const qn_pool_memory *memory = &class->pool->memory;
        if (memory->on_free)
            memory->on_free(memory->context, qn_pool_address(class, item), class->stride);
        class->n_held--;
        class->first_free = item < class->first_free ? item : class->first_free;
        let_go_of_granules(class, item);
    }
    pthread_mutex_unlock(&class->pool->lock);
}

bool qn_pool_is_shared(qn_pool_class *class, uint32_t item)
{
    pthread_mutex_lock(&class->pool->lock);
    const bool shared = class->references[item] > 1;
    pthread_mutex_unlock(&class->pool->lock);
    return shared;
}

qn_pool *qn_pool_of(const qn_pool_class *class)
{
    return class->pool;
}

uint64_t qn_pool_base(const qn_pool_class *class)
{
    return class->base;
}

size_t qn_pool_stride(const qn_pool_class *class)
{
    return class->stride;
}

uint64_t qn_pool_granules(const qn_pool_class *class, uint64_t n)
{
    return n ? granules_of(class, (size_t)n - 1).end : 0;
}

qn_pool_usage qn_pool_get_usage(qn_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    qn_pool_usage usage = {
        .budget = pool->budget, .committed = pool->committed, .granule = pool->memory.granule, .left = bytes_left(pool)
    };
    for (size_t i = 0; i < pool->n_classes; i++)
        usage.held += (uint64_t)pool->classes[i]->n_held * pool->classes[i]->stride;
    pthread_mutex_unlock(&pool->lock);
    return usage;
}

size_t qn_pool_count(qn_pool_class *class)
{
    pthread_mutex_lock(&class->pool->lock);
    const size_t n = class->n_held;
    pthread_mutex_unlock(&class->pool->lock);
    return n;
}

static size_t count_available(const qn_pool_class *class)
{
    uint64_t left = bytes_left(class->pool);
    size_t n = 0, paid_end = 0; /* granules below paid_end are held, or counted for an earlier item */
    for (size_t item = next_free(class, class->first_free); item < class->max_items;
         item = next_free(class, item + 1)) {
        const uint64_t cost = cost_of(class, item, paid_end);
        if (cost <= left) {
            left -= cost;
            paid_end = granules_of(class, item).end;
            n++;
        } else if (is_beyond_committed(class, item)) {
            break;
        }
    }
    return n;
}

size_t qn_pool_available(qn_pool_class *class)
{
    pthread_mutex_lock(&class->pool->lock);
    const size_t n = count_available(class);
    pthread_mutex_unlock(&class->pool->lock);
    return n;
}

/* ---- Pools and classes ---- */

qn_status qn_pool_create(const qn_pool_memory *memory, uint64_t budget, uint64_t idle, qn_pool **out)
{
    qn_pool *pool;
    *out = NULL;
    if (budget < memory->granule || budget > SIZE_MAX / 2)
        return qn_fail(QN_ERR_INVALID, "memory: %llu bytes, expected at least %zu", (unsigned long long)budget,
                       memory->granule);
    QN_TRY(qn_alloc(&pool, 1, sizeof *pool, "pool"));
    *pool = (qn_pool){ .memory = *memory, .budget = budget / memory->granule * memory->granule, .idle_limit = idle };
    const int error = pthread_mutex_init(&pool->lock, NULL);
    if (error) {
        qn_free(pool);
        return qn_fail(QN_ERR_MEMORY, "pool: no mutex: %s", strerror(error));
    }
    *out = pool;
    return QN_OK;
}

static void free_class(qn_pool_class *class)
{
    qn_pool *pool = class->pool;
    for (size_t i = 0; class->committed && i < class->committed_end; i++)
        if (class->committed[i])
            release_granule(class, i);
    if (class->base)
        pool->memory.unreserve(pool->memory.context, class->base, class->n_granules * pool->memory.granule);
    qn_free(class->items_in);
    qn_free(class->committed);
    free(class->references);
    qn_free(class);
}

void qn_pool_remove_class(qn_pool *pool, qn_pool_class *class)
{
    pthread_mutex_lock(&pool->lock);
    size_t at = 0;
    while (pool->classes[at] != class)
        at++;
    pool->classes[at] = pool->classes[--pool->n_classes];
    free_class(class);
    pthread_mutex_unlock(&pool->lock);
}

void qn_pool_free(qn_pool *pool)
{
    if (!pool)
        return;
    for (size_t i = 0; i < pool->n_classes; i++)
        free_class(pool->classes[i]);
    pthread_mutex_destroy(&pool->lock);
    free(pool->classes);
    qn_free(pool);
}

static qn_status create_class(qn_pool *pool, const char *name, size_t bytes, qn_pool_class *class)
{
    *class = (qn_pool_class){ .pool = pool, .name = name };
    if (bytes > SIZE_MAX / 4)
        return qn_fail(QN_ERR_MEMORY, "%s: %zu bytes do not fit in memory", name, bytes);
    class->stride = qn_round_up(bytes, QN_POOL_ALIGN);
    class->max_items = pool->budget / class->stride < UINT32_MAX ? (size_t)(pool->budget / class->stride) : UINT32_MAX;
    class->n_granules = (size_t)(pool->budget / pool->memory.granule);
    QN_TRY(qn_alloc(&class->items_in, class->n_granules, sizeof *class->items_in, "pool"));
    QN_TRY(qn_alloc(&class->committed, class->n_granules, sizeof *class->committed, "pool"));
    return pool->memory.reserve(pool->memory.context, class->n_granules * pool->memory.granule, &class->base);
}

static qn_status add_class(qn_pool *pool, const char *name, size_t bytes, qn_pool_class **out)
{
    qn_pool_class *class;
    QN_TRY(qn_realloc_array(&pool->classes, &pool->cap_classes, pool->n_classes + 1, sizeof(qn_pool_class *), "pool"));
    QN_TRY(qn_alloc(&class, 1, sizeof *class, "pool"));
    const qn_status status = create_class(pool, name, bytes, class);
    if (status != QN_OK) {
        free_class(class);
        return status;
    }
    pool->classes[pool->n_classes++] = *out = class;
    return QN_OK;
}

qn_status qn_pool_add_class(qn_pool *pool, const char *name, size_t bytes, qn_pool_class **out)
{
    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    const qn_status status = add_class(pool, name, bytes, out);
    pthread_mutex_unlock(&pool->lock);
    return status;
}
