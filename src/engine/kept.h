/* Kept prefixes: the prefix cache of a scheduler, among those of its model. When the pool is full, allocating an item
 * evicts from all of the model's prefix caches (qn_pool_set_reclaim). Functions may be called from any thread that
 * holds no lock of this header; a memory is used only by its own thread. Locks are taken in this order: the list's, a
 * cache's, the pool's. */
#ifndef QN_ENGINE_KEPT_H
#define QN_ENGINE_KEPT_H

#include "cache/prefix.h"
#include "device/device.h"

#include <pthread.h>

/* The prefix cache of one scheduler. */
typedef struct qn_kept {
    pthread_mutex_t lock; /* held during all calls with `prefix` but qn_prefix_wait */
    qn_prefix *prefix;
    struct qn_kept *next; /* under the list's lock */
} qn_kept;

/* All prefix caches of a model. */
typedef struct qn_kept_list {
    pthread_mutex_t lock; /* protects the list; held while one of its caches evicts, so that none is freed then */
    qn_kept *first;
} qn_kept_list;

qn_status qn_kept_list_create(qn_kept_list *list);
void qn_kept_list_free(qn_kept_list *list);

/* qn_kept_host_budget - Returns the default of host_budget: a quarter of the available memory, 0 if that is unknown. */
uint64_t qn_kept_host_budget(void);

/* qn_kept_create - Creates an empty prefix cache in the list, which must outlive the cache, as must `cache`. The
 * budgets are those of qn_prefix_create. Free with qn_kept_free, which accepts NULL; no other thread may then use the
 * cache, except to evict from it. */
qn_status qn_kept_create(qn_kept_list *list, const qn_cache *cache, uint64_t state_budget, uint64_t host_budget,
                         qn_kept **out);
void qn_kept_free(qn_kept_list *list, qn_kept *kept);

/* qn_kept_adopt, qn_kept_is_spilled, qn_kept_add, qn_kept_state, qn_kept_counts - qn_prefix_adopt and so on, of a
 * memory's sequence. qn_kept_state adds the pages first. For pages and states that are copied back, other prefix caches
 * of the list are evicted too. */
qn_status qn_kept_adopt(qn_kept_list *list, qn_kept *kept, const char *scope, qn_row_ids ids, size_t n,
                        qn_memory *memory, uint32_t *matched);
bool qn_kept_is_spilled(qn_kept *kept, const char *scope, qn_row_ids ids, size_t n);
void qn_kept_add(qn_kept *kept, const char *scope, qn_row_ids ids, const qn_memory *memory);
void qn_kept_state(qn_kept *kept, const char *scope, qn_row_ids ids, const qn_memory *memory, qn_state_kind kind);
qn_prefix_counts qn_kept_counts(qn_kept *kept);

/* qn_kept_evict - Calls qn_prefix_evict for the first cache in the list with something to evict. Returns false if there
 * is none. The cache is not locked while waiting for a copy. */
bool qn_kept_evict(qn_kept_list *list);

/* qn_kept_evict_ahead - qn_prefix_evict_ahead; a scheduler calls it during every step. */
void qn_kept_evict_ahead(qn_kept *kept);

/* qn_kept_memory_new - Calls qn_device_vtable.memory_new, evicting kept prefixes until the device also has enough
 * memory outside of the pool. */
qn_status qn_kept_memory_new(qn_kept_list *list, qn_device *device, const qn_memory_params *params, qn_memory **out);

#endif
