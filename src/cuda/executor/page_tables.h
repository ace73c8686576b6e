/* Page tables on a CUDA device: the addresses at which kernels find the pages of a sequence. Tables that a sequence no
 * longer needs are kept for the next one, because allocating and freeing memory waits for all work of the device. */
#ifndef QN_CUDA_EXECUTOR_PAGE_TABLES_H
#define QN_CUDA_EXECUTOR_PAGE_TABLES_H

#include "cuda/executor/caches.h"

#include <pthread.h>

/* The two tables of a sequence, for pages and then for fp16 pages: u64 [n_pages] each, contiguous. An entry is an
 * address, or 0. Used by one thread at a time. */
typedef struct qn_cuda_page_tables {
    size_t n_pages, n_set; /* entries of a table; those from n_set on are 0 */
    uint64_t *host;        /* pinned: copy of the device's tables */
    qn_cuda_buffer device;
    qn_cuda_event copied; /* after the newest copy of entries, which reads `host` */
    bool has_copied;
    struct qn_cuda_page_tables *next;
} qn_cuda_page_tables;

/* Tables of a model that no sequence uses, the longest unused at the front. */
typedef struct qn_cuda_kept_tables {
    qn_cuda_common *common;
    pthread_mutex_t lock; /* protects all */
    bool has_lock;
    qn_cuda_page_tables *first, **end;
    size_t bytes; /* on the device */
} qn_cuda_kept_tables;

/* qn_cuda_kept_tables_init - Initialises an empty list. Free with qn_cuda_kept_tables_free. */
qn_status qn_cuda_kept_tables_init(qn_cuda_common *common, qn_cuda_kept_tables *kept);

/* qn_cuda_kept_tables_free - Frees the list and its tables, after all tables have been given back. Accepts a zeroed
 * struct. */
void qn_cuda_kept_tables_free(qn_cuda_kept_tables *kept);

/* qn_cuda_page_tables_take - Takes tables of n_pages entries from the kept ones, or allocates new ones. Their entries
 * are arbitrary until the first update. Give back with qn_cuda_page_tables_give_back. From any thread that does not
 * hold the stream's lock. */
qn_status qn_cuda_page_tables_take(qn_cuda_kept_tables *kept, size_t n_pages, qn_cuda_page_tables **out);

/* qn_cuda_page_tables_give_back - Keeps the tables for another sequence, when all steps that read them have ended.
 * Accepts NULL. From any thread that does not hold the stream's lock. */
void qn_cuda_page_tables_give_back(qn_cuda_kept_tables *kept, qn_cuda_page_tables *tables);

/* qn_cuda_page_tables_update - Sets the tables to the first n_pages pages of a sequence, followed by zeros, for all
 * steps queued after this call. Waits for a step only if an entry changes that is still being copied. From any thread
 * that does not hold the stream's lock. */
qn_status qn_cuda_page_tables_update(qn_cuda_common *common, qn_cuda_page_tables *tables, const qn_cuda_format *format,
                                     const qn_sequence *sequence, size_t n_pages);

#endif
