/* Items that have been spilled: copies in host memory of items of a device's pool, which then take no memory of the device.
 * The host memory is a pool too, with classes of the same strides. All functions may be called from any thread. */
#ifndef QN_CACHE_SPILL_H
#define QN_CACHE_SPILL_H

#include "cache/sequence.h"

/* The classes of a qn_cache whose items are spilled. */
typedef enum qn_item_kind { QN_ITEM_PAGE, QN_ITEM_F16_PAGE, QN_ITEM_STATE, QN_ITEM_KINDS } qn_item_kind;

/* qn_item_class - the class of a kind; NULL if the cache has none. */
qn_pool_class *qn_item_class(const qn_cache *cache, qn_item_kind kind);

typedef struct qn_spill qn_spill;

/* qn_spill_create - host memory for items of a qn_cache that has copy_out, and outlives it. budget: bytes. Free with
 * qn_spill_free, which accepts NULL, after all items have been dropped. */
qn_status qn_spill_create(const qn_cache *cache, uint64_t budget, qn_spill **out);
void qn_spill_free(qn_spill *spill);

/* qn_spill_out - copy an item to host memory; the caller then drops the item. QN_ERR_MEMORY if the budget is exhausted.
 *
 * qn_spill_in - take an item with qn_pool_try_take, copy it back and drop the copy in host memory. After an error the copy
 * stays. */
qn_status qn_spill_out(qn_spill *spill, qn_item_kind kind, uint32_t item, uint32_t *copy);
qn_status qn_spill_in(qn_spill *spill, qn_item_kind kind, uint32_t copy, uint32_t *item);

/* qn_spill_drop - drop a copy. */
void qn_spill_drop(qn_spill *spill, qn_item_kind kind, uint32_t copy);

/* qn_spill_fits - whether the budget suffices for one item. qn_spill_bytes - bytes of all copies. */
bool qn_spill_fits(const qn_spill *spill, qn_item_kind kind);
uint64_t qn_spill_bytes(const qn_spill *spill);

#endif
