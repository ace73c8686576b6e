/* Kept prefixes: the prefix cache of a scheduler, among those of its model. When the pool is full, whatever takes an
 * item of it evicts from all of them (qn_pool_set_reclaim). Functions may be called from any thread; a memory is used
 * by its own. */
#ifndef QN_ENGINE_KEPT_H
#define QN_ENGINE_KEPT_H

#include "cache/prefix.h"
#include "device/device.h"

#include <pthread.h>

typedef struct qn_kept {
    pthread_mutex_t lock;
    qn_prefix *prefix;
    struct qn_kept *next;
} qn_kept;

/* All of a model, under a lock. */
typedef struct qn_kept_list {
    pthread_mutex_t lock;
    qn_kept *first;
} qn_kept_list;

qn_status qn_kept_list_create(qn_kept_list *list);
void qn_kept_list_free(qn_kept_list *list);

/* qn_kept_host_budget - the default of host_budget: a quarter of the memory that is available, 0 where nothing is
 * known. */
uint64_t qn_kept_host_budget(void);

/* qn_kept_create - an empty prefix cache in the list, which outlives it. The budgets are those of qn_prefix_create.
 * Free with qn_kept_free, which accepts NULL. */
qn_status qn_kept_create(qn_kept_list *list, const qn_cache *cache, uint64_t state_budget, uint64_t host_budget,
                         qn_kept **out);
void qn_kept_free(qn_kept_list *list, qn_kept *kept);

/* qn_kept_adopt, qn_kept_is_spilled, qn_kept_add, qn_kept_state, qn_kept_counts - qn_prefix_adopt and so on, of a
 * memory's sequence. qn_kept_state adds the pages first. For pages and states that are copied back, other prefix caches
 * of the list are evicted too. */
qn_status qn_kept_adopt(qn_kept_list *list, qn_kept *kept, const char *scope, const int32_t *tokens, size_t n,
                        qn_memory *memory, uint32_t *matched);
bool qn_kept_is_spilled(qn_kept *kept, const char *scope, const int32_t *tokens, size_t n);
void qn_kept_add(qn_kept *kept, const char *scope, const int32_t *tokens, const qn_memory *memory);
void qn_kept_state(qn_kept *kept, const char *scope, const int32_t *tokens, const qn_memory *memory,
                   qn_state_kind kind);
qn_prefix_counts qn_kept_counts(qn_kept *kept);

/* qn_kept_evict - qn_prefix_evict of the first in the list that has something to drop. False if none has. The cache is
 * not locked while a copy is waited for. */
bool qn_kept_evict(qn_kept_list *list);

/* qn_kept_evict_ahead - qn_prefix_evict_ahead, for a scheduler to call beside every step. */
void qn_kept_evict_ahead(qn_kept *kept);

/* qn_kept_memory_new - qn_device_vtable.memory_new; kept prefixes are evicted until there is memory also for what a
 * device has outside of the pool. */
qn_status qn_kept_memory_new(qn_kept_list *list, qn_device *device, const qn_memory_params *params, qn_memory **out);

#endif
