/* The pool: the device memory of sequences. It has classes of items, each with one item size (a page of keys and
 * values, a recurrent state). All classes share one budget.
 *
 * A class reserves addresses for the largest number of items that the budget could hold, so an item's address is its
 * class's base plus index times stride and never changes. The pool commits memory in granules when an item needs it,
 * lowest indices first, and releases a granule when no item is left in it. Items are reference-counted. All functions
 * may be called from any thread, but qn_pool_free and qn_pool_remove_class only when no other thread uses the pool or
 * the class. The pool has one lock. It does not read or write items: their users do. */
#ifndef QN_CACHE_POOL_H
#define QN_CACHE_POOL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a device provides memory. Addresses are device addresses. The functions are called one at a time, most of them
 * with the pool's lock held: they must not call the pool. */
typedef struct qn_pool_memory {
    void *context;
    size_t granule; /* unit of commit and release, in bytes; a power of two */

    /* Reserves `bytes` of address space, a multiple of the granule. */
    qn_status (*reserve)(void *context, size_t bytes, uint64_t *address);
    void (*unreserve)(void *context, uint64_t address, size_t bytes);

    /* commit: commits one granule, zeroed. release: releases a granule in which no item has a reference. */
    qn_status (*commit)(void *context, uint64_t address);
    void (*release)(void *context, uint64_t address);

    /* Called with an item that has become free, before qn_pool_take can return it again. NULL: not needed. */
    void (*on_free)(void *context, uint64_t address, size_t bytes);
} qn_pool_memory;

typedef struct qn_pool qn_pool;
typedef struct qn_pool_class qn_pool_class;

enum { QN_POOL_ALIGN = 256 }; /* alignment of items, in bytes */

/* qn_pool_create - creates a pool without classes.
 *
 *   memory   copied; its context must outlive the pool
 *   budget   limit of committed bytes, rounded down to granules
 *   idle     limit of the bytes of granules without items that stay committed for reuse
 *
 * QN_ERR_INVALID if the budget is less than one granule. Free with qn_pool_free, which accepts NULL, after all items
 * have been dropped. */
qn_status qn_pool_create(const qn_pool_memory *memory, uint64_t budget, uint64_t idle, qn_pool **out);
void qn_pool_free(qn_pool *pool);

/* qn_pool_add_class - adds a class of items. The pool owns it.
 *
 *   name    name of the items, for error texts ("page of keys and values"); a static string
 *   bytes   bytes of an item, > 0; rounded up to QN_POOL_ALIGN
 *
 * QN_ERR_MEMORY if the addresses of the items cannot be reserved. */
qn_status qn_pool_add_class(qn_pool *pool, const char *name, size_t bytes, qn_pool_class **out);

/* qn_pool_remove_class - removes a class that has no items, and releases its addresses. */
void qn_pool_remove_class(qn_pool *pool, qn_pool_class *class);

/* qn_pool_of - returns the pool of a class. */
qn_pool *qn_pool_of(const qn_pool_class *class);

/* Drops items that no one needs at the moment, such as those of cached prefixes. Returns false if there are none. */
typedef bool (*qn_pool_reclaim_fn)(void *context);

/* qn_pool_set_reclaim - sets the function that qn_pool_take calls, on the calling thread and without the pool's lock,
 * until there is memory or it returns false. It may call all functions of the pool except qn_pool_take. */
void qn_pool_set_reclaim(qn_pool *pool, qn_pool_reclaim_fn reclaim, void *context);

/* qn_pool_take - takes an item with one reference, reclaiming items of others if necessary. The item's contents are
 * arbitrary, but memory that no item has used since it was committed is zero. QN_ERR_MEMORY, with nothing taken, if the
 * budget or the device's memory is exhausted. The caller must hold no lock that the reclaim function takes. */
qn_status qn_pool_take(qn_pool_class *class, uint32_t *item);

/* qn_pool_try_take - qn_pool_take without reclaiming, for callers that hold locks which the reclaim function
 * acquires. */
qn_status qn_pool_try_take(qn_pool_class *class, uint32_t *item);

/* qn_pool_share - adds a reference to an item. */
void qn_pool_share(qn_pool_class *class, uint32_t item);

/* qn_pool_drop - removes a reference from an item; without references the item is free. The device must have completed
 * all work on the item. */
void qn_pool_drop(qn_pool_class *class, uint32_t item);

/* qn_pool_is_shared - returns whether an item has more than one reference. For the owner of the only reference the
 * result stays false until it shares the item; otherwise it may change at any time. */
bool qn_pool_is_shared(qn_pool_class *class, uint32_t item);

/* qn_pool_base - returns the address of item 0. It never changes. */
uint64_t qn_pool_base(const qn_pool_class *class);

/* qn_pool_stride - returns the number of bytes from one item to the next. It never changes. */
size_t qn_pool_stride(const qn_pool_class *class);

static inline uint64_t qn_pool_address(const qn_pool_class *class, uint32_t item)
{
    return qn_pool_base(class) + (uint64_t)item * qn_pool_stride(class);
}

/* qn_pool_granules - returns the number of granules that n items of a class need when the class has no other items. */
uint64_t qn_pool_granules(const qn_pool_class *class, uint64_t n);

/* Memory of a pool, in bytes. */
typedef struct qn_pool_usage {
    uint64_t budget, committed;
    size_t granule;
    uint64_t held; /* bytes of items with references */
    uint64_t left; /* bytes of the budget that no item uses, committed or not */
} qn_pool_usage;

qn_pool_usage qn_pool_get_usage(qn_pool *pool);

/* qn_pool_count - returns the number of items of a class that have references. */
size_t qn_pool_count(qn_pool_class *class);

/* qn_pool_available - returns the number of items of a class that qn_pool_take could still return without reclaiming,
 * if nothing else is taken or dropped. */
size_t qn_pool_available(qn_pool_class *class);

#endif
