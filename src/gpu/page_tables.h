/* Page tables on a GPU: the addresses at which kernels find the pages of a sequence. Tables that a sequence no longer
 * needs are kept for the next one, because allocating and freeing memory may wait for all work of the device. */
#ifndef QN_GPU_PAGE_TABLES_H
#define QN_GPU_PAGE_TABLES_H

#include "gpu/format.h"

#include <pthread.h>

/* Memory of the tables of one sequence. */
typedef struct qn_gpu_table_buffers {
    uint64_t *host;   /* memory that copies to the device read while the host goes on */
    uint64_t address; /* on the device */
    size_t bytes;     /* of each */
    void *copied;     /* the backend's: how it waits for the copies of these tables */
} qn_gpu_table_buffers;

/* How a backend provides the memory of tables. All work of the device that reads tables is queued in one order, by
 * threads that hold a lock: copy, end_copies, drain and poison are called between `lock` and `unlock`, and allocate and
 * free never are. */
typedef struct qn_gpu_table_memory {
    void *context;

    /* Allocates `bytes` bytes on the device and as many on the host, and fills both with zeros, on the device before
     * all work queued later. After an error the caller calls `free`. */
    qn_status (*allocate)(void *context, size_t bytes, qn_gpu_table_buffers *buffers);

    /* Frees buffers that no queued work accesses. Accepts what a failed `allocate` has left. */
    void (*free)(void *context, qn_gpu_table_buffers *buffers);

    void (*lock)(void *context);
    void (*unlock)(void *context);

    /* Queues a copy of `bytes` bytes at this offset, from the host to the device. */
    qn_status (*copy)(void *context, const qn_gpu_table_buffers *buffers, size_t offset, size_t bytes);

    /* end_copies is called after the copies of an update; `wait` then waits until the device has read what they
     * copy. */
    qn_status (*end_copies)(void *context, const qn_gpu_table_buffers *buffers);
    qn_status (*wait)(void *context, const qn_gpu_table_buffers *buffers);

    /* Waits for all queued work, also if it failed. */
    void (*drain)(void *context);

    /* NULL, or queues filling the device's tables with values that are no addresses, so that a read of entries that
     * were not updated fails each time. */
    void (*poison)(void *context, const qn_gpu_table_buffers *buffers);
} qn_gpu_table_memory;

/* The two tables of a sequence, for pages and then for fp16 pages: u64 [n_pages] each, contiguous. An entry is an
 * address, or 0. Used by one thread at a time. */
typedef struct qn_gpu_page_tables {
    size_t n_pages, n_set; /* entries of a table; those from n_set on are 0 */
    qn_gpu_table_buffers buffers;
    bool has_copied; /* the newest copies of entries may not have been read */
    struct qn_gpu_page_tables *next;
} qn_gpu_page_tables;

/* Tables of a model that no sequence uses, the longest unused at the front. */
typedef struct qn_gpu_kept_tables {
    qn_gpu_table_memory memory;
    pthread_mutex_t lock; /* protects all below */
    bool has_lock;
    qn_gpu_page_tables *first, **end;
    size_t bytes; /* on the device */
} qn_gpu_kept_tables;

/* qn_gpu_kept_tables_init - initialises an empty list. *memory is copied; its context must outlive the list. Free with
 * qn_gpu_kept_tables_free. */
qn_status qn_gpu_kept_tables_init(const qn_gpu_table_memory *memory, qn_gpu_kept_tables *kept);

/* qn_gpu_kept_tables_free - frees the list and its tables, after all tables have been given back. Accepts a zeroed
 * struct. */
void qn_gpu_kept_tables_free(qn_gpu_kept_tables *kept);

/* qn_gpu_page_tables_take - takes tables of n_pages entries from the kept ones, or allocates new ones. Their entries
 * are arbitrary until the first update. Give back with qn_gpu_page_tables_give_back. From any thread that does not hold
 * the lock of queued work, as for the functions below. */
qn_status qn_gpu_page_tables_take(qn_gpu_kept_tables *kept, size_t n_pages, qn_gpu_page_tables **out);

/* qn_gpu_page_tables_give_back - keeps the tables for another sequence, when all steps that read them have ended.
 * Accepts NULL. */
void qn_gpu_page_tables_give_back(qn_gpu_kept_tables *kept, qn_gpu_page_tables *tables);

/* qn_gpu_page_tables_update - sets the tables to the first n_pages pages of a sequence, followed by zeros, for all
 * steps queued after this call. Waits for a step only if an entry changes that is still being copied. */
qn_status qn_gpu_page_tables_update(const qn_gpu_kept_tables *kept, qn_gpu_page_tables *tables,
                                    const qn_gpu_format *format, const qn_sequence *sequence, size_t n_pages);

#endif
