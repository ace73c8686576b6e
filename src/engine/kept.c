/* Prefix caches of a model under their locks, and eviction on behalf of any of its sequences. */
#include "engine/kept.h"

#include "base/address_space.h"
#include "base/available.h"
#include "base/memory.h"

#include <string.h>

static qn_status create_lock(pthread_mutex_t *lock)
{
    const int error = pthread_mutex_init(lock, NULL);
    return error ? qn_fail(QN_ERR_MEMORY, "prefix cache: no mutex: %s", strerror(error)) : QN_OK;
}

qn_status qn_kept_list_create(qn_kept_list *list)
{
    list->first = NULL;
    return create_lock(&list->lock);
}

void qn_kept_list_free(qn_kept_list *list)
{
    pthread_mutex_destroy(&list->lock);
}

enum { HOST_SHARE = 4, ADDRESSES_SHARE = 8 };

/* A quarter of the available memory. If the address space is limited, all kinds of items must fit in a part of it. */
uint64_t qn_kept_host_budget(void)
{
    const uint64_t available = qn_available_memory(), addresses = qn_available_addresses();
    const uint64_t share = available == UINT64_MAX ? 0 : available / HOST_SHARE;
    const uint64_t budget = share < addresses / ADDRESSES_SHARE ? share : addresses / ADDRESSES_SHARE;
    return budget < QN_COMMIT_GRANULE ? 0 : budget; /* the least that a pool takes */
}

static bool reclaim(void *list)
{
    return qn_kept_evict(list);
}

qn_status qn_kept_create(qn_kept_list *list, const qn_cache *cache, uint64_t state_budget, uint64_t host_budget,
                         qn_kept **out)
{
    qn_kept *kept;
    *out = NULL;
    QN_TRY(qn_alloc(&kept, 1, sizeof *kept, "prefix cache"));
    qn_status status = create_lock(&kept->lock);
    if (status != QN_OK) {
        qn_free(kept);
        return status;
    }
    status = qn_prefix_create(cache, state_budget, host_budget, &kept->prefix);
    if (status != QN_OK) {
        pthread_mutex_destroy(&kept->lock);
        qn_free(kept);
        return status;
    }
    qn_pool_set_reclaim(qn_pool_of(cache->pages ? cache->pages : cache->states), reclaim, list);
    pthread_mutex_lock(&list->lock);
    kept->next = list->first;
    *out = list->first = kept;
    pthread_mutex_unlock(&list->lock);
    return QN_OK;
}

void qn_kept_free(qn_kept_list *list, qn_kept *kept)
{
    if (!kept)
        return;
    pthread_mutex_lock(&list->lock);
    qn_kept **link = &list->first;
    while (*link != kept)
        link = &(*link)->next;
    *link = kept->next;
    pthread_mutex_unlock(&list->lock);
    qn_prefix_free(kept->prefix);
    pthread_mutex_destroy(&kept->lock);
    qn_free(kept);
}

/* Evicts something from a cache; false if it has nothing. The cache is not locked during a copy, because its scheduler
 * uses it. The caller holds the list's lock, so that the cache is not freed meanwhile. */
static bool evict_from(qn_kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    const qn_evicted evicted = qn_prefix_begin_evict(kept->prefix);
    pthread_mutex_unlock(&kept->lock);
    if (evicted != QN_EVICTED_LATER)
        return evicted == QN_EVICTED;
    qn_prefix_wait(kept->prefix);
    pthread_mutex_lock(&kept->lock);
    (void)qn_prefix_end_copies(kept->prefix);
    pthread_mutex_unlock(&kept->lock);
    return true;
}

/* Evicts something from the first prefix cache that has something, but not from `but`. False: there is nothing. */
static bool evict_but(qn_kept_list *list, const qn_kept *but)
{
    bool evicted = false;
    pthread_mutex_lock(&list->lock);
    for (qn_kept *kept = list->first; kept && !evicted; kept = kept->next)
        evicted = kept != but && evict_from(kept);
    pthread_mutex_unlock(&list->lock);
    return evicted;
}

qn_status qn_kept_adopt(qn_kept_list *list, qn_kept *kept, const char *scope, qn_row_ids ids, size_t n,
                        qn_memory *memory, uint32_t *matched)
{
    qn_status status;
    do {
        pthread_mutex_lock(&kept->lock);
        status = qn_prefix_adopt(kept->prefix, scope, ids, n, memory->sequence, matched);
        pthread_mutex_unlock(&kept->lock);
    } while (status == QN_ERR_MEMORY && evict_but(list, kept));
    return status;
}

bool qn_kept_is_spilled(qn_kept *kept, const char *scope, qn_row_ids ids, size_t n)
{
    pthread_mutex_lock(&kept->lock);
    const bool is_spilled = qn_prefix_is_spilled(kept->prefix, scope, ids, n);
    pthread_mutex_unlock(&kept->lock);
    return is_spilled;
}

void qn_kept_add(qn_kept *kept, const char *scope, qn_row_ids ids, const qn_memory *memory)
{
    pthread_mutex_lock(&kept->lock);
    qn_prefix_add(kept->prefix, scope, ids, memory->sequence);
    pthread_mutex_unlock(&kept->lock);
}

void qn_kept_state(qn_kept *kept, const char *scope, qn_row_ids ids, const qn_memory *memory, qn_state_kind kind)
{
    pthread_mutex_lock(&kept->lock);
    qn_prefix_add(kept->prefix, scope, ids, memory->sequence);
    qn_prefix_keep_state(kept->prefix, scope, ids, memory->sequence, kind);
    pthread_mutex_unlock(&kept->lock);
}

qn_prefix_counts qn_kept_counts(qn_kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    const qn_prefix_counts counts = qn_prefix_get_counts(kept->prefix);
    pthread_mutex_unlock(&kept->lock);
    return counts;
}

bool qn_kept_evict(qn_kept_list *list)
{
    return evict_but(list, NULL);
}

void qn_kept_evict_ahead(qn_kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    qn_prefix_evict_ahead(kept->prefix);
    pthread_mutex_unlock(&kept->lock);
}

qn_status qn_kept_memory_new(qn_kept_list *list, qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    for (;;) {
        char text[QN_ERROR_TEXT_MAX];
        const qn_status status = device->vtable->memory_new(device, params, out);
        if (status != QN_ERR_MEMORY)
            return status;
        memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
        if (!qn_kept_evict(list))
            return qn_fail(status, "%s", text); /* that of a page that could not be spilled is not the caller's */
    }
}
