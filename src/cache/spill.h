/* Spilled items: copies in host memory of items of a device's pool, which then use no device memory. The host memory is
 * a pool too, with classes of the same strides.
 *
 * A thread copies to host memory, so that no caller waits for the device, for memcpy or for the first touch of memory.
 * A copy holds a reference to its item until it ends, so the item is neither changed nor freed meanwhile, whatever its
 * owner does. All functions may be called from any thread, qn_spill_free only when no other thread uses the qn_spill.
 * Its lock is taken before the pools' locks. */
#ifndef QN_CACHE_SPILL_H
#define QN_CACHE_SPILL_H

#include "cache/sequence.h"

/* Kinds of items that are spilled: classes of a qn_cache. */
typedef enum qn_item_kind { QN_ITEM_PAGE, QN_ITEM_F16_PAGE, QN_ITEM_STATE, QN_ITEM_KINDS } qn_item_kind;

enum { QN_SPILL_COPIES = 4 }; /* limit of copies to host memory in flight */

/* qn_item_class - returns the class of a kind; NULL if the cache has none. */
qn_pool_class *qn_item_class(const qn_cache *cache, qn_item_kind kind);

typedef struct qn_spill qn_spill;

/* qn_spill_create - creates host memory for spilled items, and the thread that copies.
 *
 *   cache    has copy_out; must outlive the qn_spill
 *   budget   bytes of host memory
 *
 * Free with qn_spill_free, which accepts NULL, after all items have been dropped. It waits for the copy being made. */
qn_status qn_spill_create(const qn_cache *cache, uint64_t budget, qn_spill **out);
void qn_spill_free(qn_spill *spill);

/* ---- To host memory ---- */

/* qn_spill_begin - queues a copy of an item on which the device has completed all work. `owner` is the caller's number
 * for it. The copy is in flight until qn_spill_end returns it or qn_spill_abandon drops it. Returns false if
 * QN_SPILL_COPIES copies are in flight. */
bool qn_spill_begin(qn_spill *spill, qn_item_kind kind, uint32_t item, uint32_t owner);

/* qn_spill_abandon - drops the copy in flight of an owner's item; does nothing if there is none. */
void qn_spill_abandon(qn_spill *spill, qn_item_kind kind, uint32_t owner);

/* A copy that has ended. */
typedef struct qn_spilled {
    qn_item_kind kind;
    uint32_t owner, copy; /* copy: item in host memory if status is QN_OK */
    qn_status status;     /* QN_ERR_MEMORY: the host memory budget is exhausted */
} qn_spilled;

/* qn_spill_end - returns the next copy that has ended in *out; the caller owns the item `copy`. Returns false if none
 * has ended. */
bool qn_spill_end(qn_spill *spill, qn_spilled *out);

/* qn_spill_is_busy - returns whether a copy is in flight, or is still being made after it was abandoned. */
bool qn_spill_is_busy(qn_spill *spill);

/* qn_spill_wait - waits until a copy has ended; returns at once if one has ended already or none is being made. */
void qn_spill_wait(qn_spill *spill);

/* ---- From host memory ---- */

/* qn_spill_in - takes an item with qn_pool_try_take, copies the contents back into it and drops the copy in host
 * memory. After an error the copy stays. */
qn_status qn_spill_in(qn_spill *spill, qn_item_kind kind, uint32_t copy, uint32_t *item);

/* qn_spill_drop - drops a copy in host memory. */
void qn_spill_drop(qn_spill *spill, qn_item_kind kind, uint32_t copy);

/* ---- Memory ---- */

/* qn_spill_fits - returns whether the budget is large enough for one item of this kind, if nothing else is held. */
bool qn_spill_fits(const qn_spill *spill, qn_item_kind kind);

/* qn_spill_has_space - returns whether one more item of this kind fits into the budget now, after all copies in
 * flight. */
bool qn_spill_has_space(qn_spill *spill, qn_item_kind kind);

/* qn_spill_bytes - returns the number of bytes of all copies in host memory, including copies being made. */
uint64_t qn_spill_bytes(qn_spill *spill);

#endif
