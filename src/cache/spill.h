/* Items that have been spilled: copies in host memory of items of a device's pool, which then take no memory of the
 * device. The host memory is a pool too, with classes of the same strides.
 *
 * A thread copies to host memory, so that no one waits for the device, for memcpy or for memory that is touched for the
 * first time. A copy holds a reference to its item until it has ended: the item is neither changed nor freed meanwhile,
 * whatever its owner does with it. All functions may be called from any thread. */
#ifndef QN_CACHE_SPILL_H
#define QN_CACHE_SPILL_H

#include "cache/sequence.h"

/* The classes of a qn_cache whose items are spilled. */
typedef enum qn_item_kind { QN_ITEM_PAGE, QN_ITEM_F16_PAGE, QN_ITEM_STATE, QN_ITEM_KINDS } qn_item_kind;

enum { QN_SPILL_COPIES = 4 }; /* to host memory, in flight at a time */

/* qn_item_class - the class of a kind; NULL if the cache has none. */
qn_pool_class *qn_item_class(const qn_cache *cache, qn_item_kind kind);

typedef struct qn_spill qn_spill;

/* qn_spill_create - host memory for items of a qn_cache that has copy_out, and outlives it. budget: bytes. Free with
 * qn_spill_free, which accepts NULL, after all items have been dropped; it waits for the copy that is being made. */
qn_status qn_spill_create(const qn_cache *cache, uint64_t budget, qn_spill **out);
void qn_spill_free(qn_spill *spill);

/* ---- To host memory ---- */

/* qn_spill_begin - queue a copy of an item, on which the device has completed its work. `owner` is the caller's name
 * for it. The copy is in flight until qn_spill_end has returned it, or qn_spill_abandon dropped it. False if
 * QN_SPILL_COPIES are. */
bool qn_spill_begin(qn_spill *spill, qn_item_kind kind, uint32_t item, uint32_t owner);

/* qn_spill_abandon - drop the copy in flight of an owner's item. */
void qn_spill_abandon(qn_spill *spill, qn_item_kind kind, uint32_t owner);

/* A copy that has ended. */
typedef struct qn_spilled {
    qn_item_kind kind;
    uint32_t owner, copy; /* copy: in host memory; of status QN_OK */
    qn_status status;     /* QN_ERR_MEMORY: the budget is exhausted */
} qn_spilled;

/* qn_spill_end - the next copy that has ended. False if there is none. */
bool qn_spill_end(qn_spill *spill, qn_spilled *out);

/* qn_spill_is_busy - whether a copy is in flight, or is still being made after it was abandoned. qn_spill_wait - wait
 * until one of them has ended, if there are any. */
bool qn_spill_is_busy(qn_spill *spill);
void qn_spill_wait(qn_spill *spill);

/* ---- From host memory ---- */

/* qn_spill_in - take an item with qn_pool_try_take, copy it back and drop the copy in host memory. After an error the
 * copy stays. */
qn_status qn_spill_in(qn_spill *spill, qn_item_kind kind, uint32_t copy, uint32_t *item);

/* qn_spill_drop - drop a copy. */
void qn_spill_drop(qn_spill *spill, qn_item_kind kind, uint32_t copy);

/* ---- Memory ---- */

/* qn_spill_fits - whether the budget suffices for one item. qn_spill_has_space - for one more. qn_spill_bytes - bytes
 * of all copies, also of those that are being made. */
bool qn_spill_fits(const qn_spill *spill, qn_item_kind kind);
bool qn_spill_has_space(qn_spill *spill, qn_item_kind kind);
uint64_t qn_spill_bytes(qn_spill *spill);

#endif
