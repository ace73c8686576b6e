/* The pool: the memory of a device for what sequences keep. It consists of classes of items of one size each (a page of
 * keys and values, a recurrent state), and all classes share one budget.
 *
 * A class reserves addresses for as many items as the budget could hold, so that an item's address is its class's base
 * plus index times stride and never changes. Memory is committed in granules when an item needs it, lowest indices
 * first, and released when a granule has no items. Items are reference-counted. All functions may be called from any
 * thread. */
#ifndef QN_CACHE_POOL_H
#define QN_CACHE_POOL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a device provides memory. Addresses are of the device. */
typedef struct qn_pool_memory {
    void *context;
    size_t granule; /* unit of commit and release, in bytes; a power of two */

    /* Reserves `bytes` of address space, a multiple of the granule. */
    qn_status (*reserve)(void *context, size_t bytes, uint64_t *address);
    void (*unreserve)(void *context, uint64_t address, size_t bytes);

    /* Commits one granule, zeroed; releases it. A granule is released only when no item in it has a reference. */
    qn_status (*commit)(void *context, uint64_t address);
    void (*release)(void *context, uint64_t address);

    /* Gets an item that is free, before it can be taken again; NULL: not needed. */
    void (*on_free)(void *context, uint64_t address, size_t bytes);
} qn_pool_memory;

typedef struct qn_pool qn_pool;
typedef struct qn_pool_class qn_pool_class;

enum { QN_POOL_ALIGN = 256 }; /* of items, in bytes */

/* qn_pool_create - a pool without classes.
 *
 *   memory   copied; its context outlives the pool
 *   budget   bytes that may be committed
 *   idle     bytes of granules without items that stay committed for reuse
 *
 * Free with qn_pool_free, which accepts NULL, after all items have been dropped. */
qn_status qn_pool_create(const qn_pool_memory *memory, uint64_t budget, uint64_t idle, qn_pool **out);
void qn_pool_free(qn_pool *pool);

/* qn_pool_add_class - a class of items of `bytes` > 0 bytes, rounded up to QN_POOL_ALIGN; owned by the pool.
 *
 *   name   of the items, for error texts ("page of keys and values"); a static string
 *
 * QN_ERR_MEMORY if its addresses cannot be reserved. */
qn_status qn_pool_add_class(qn_pool *pool, const char *name, size_t bytes, qn_pool_class **out);

/* qn_pool_remove_class - remove a class that has no items, and its addresses. */
void qn_pool_remove_class(qn_pool *pool, qn_pool_class *class);

/* qn_pool_of - the pool of a class. */
qn_pool *qn_pool_of(const qn_pool_class *class);

/* Drops items that nobody needs at once, such as those of kept prefixes. False if there are none. */
typedef bool (*qn_pool_reclaim_fn)(void *context);

/* qn_pool_set_reclaim - qn_pool_take calls `reclaim`, without the pool's lock, until there is memory or it returns
 * false. It may call all functions of the pool but qn_pool_take. */
void qn_pool_set_reclaim(qn_pool *pool, qn_pool_reclaim_fn reclaim, void *context);

/* qn_pool_take - an item with one reference. Its contents are arbitrary, but memory that no item has used since it was
 * committed is zero. QN_ERR_MEMORY, with nothing changed, if the budget or the device's memory is exhausted.
 *
 * qn_pool_try_take - the same without reclaiming: for callers that hold locks which the reclaim function acquires. */
qn_status qn_pool_take(qn_pool_class *class, uint32_t *item);
qn_status qn_pool_try_take(qn_pool_class *class, uint32_t *item);

/* qn_pool_share, qn_pool_drop - add a reference; remove one. An item without references is free. The device has
 * completed all work on an item that is dropped. */
void qn_pool_share(qn_pool_class *class, uint32_t item);
void qn_pool_drop(qn_pool_class *class, uint32_t item);

/* qn_pool_is_shared - whether an item has more than one reference. */
bool qn_pool_is_shared(qn_pool_class *class, uint32_t item);

/* qn_pool_base, qn_pool_stride - the address of item 0, and the bytes from one item to the next. Constant. */
uint64_t qn_pool_base(const qn_pool_class *class);
size_t qn_pool_stride(const qn_pool_class *class);

static inline uint64_t qn_pool_address(const qn_pool_class *class, uint32_t item)
{
    return qn_pool_base(class) + (uint64_t)item * qn_pool_stride(class);
}

/* qn_pool_granules - granules that n items of a class take when no others are held. */
uint64_t qn_pool_granules(const qn_pool_class *class, uint64_t n);

/* What a pool holds, in bytes. */
typedef struct qn_pool_usage {
    uint64_t budget, committed;
    size_t granule;
    uint64_t held; /* by items */
    uint64_t left; /* of granules without items, committed or not */
} qn_pool_usage;

qn_pool_usage qn_pool_get_usage(qn_pool *pool);

/* qn_pool_count - items of a class with references. */
size_t qn_pool_count(qn_pool_class *class);

/* qn_pool_available - the number of items of a class that qn_pool_take could still give if nothing else changes. */
size_t qn_pool_available(qn_pool_class *class);

#endif
