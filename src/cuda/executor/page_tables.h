/* Page tables on a CUDA device: where kernels find the pages of a sequence. Tables that a sequence no longer needs are
 * kept for the next one, because allocating and freeing memory waits for all work of the device. */
#ifndef QN_CUDA_EXECUTOR_PAGE_TABLES_H
#define QN_CUDA_EXECUTOR_PAGE_TABLES_H

#include "cuda/executor/caches.h"

#include <pthread.h>

/* Both tables of a sequence, of pages and of fp16 pages, u64 [n_pages] each, one after the other. An entry is an
 * address, or 0. Used by one thread at a time. */
typedef struct qn_cuda_page_tables {
    size_t n_pages, n_set; /* entries of a table; those from n_set on are 0 */
    uint64_t *host;        /* pinned: what the device's tables have */
    qn_cuda_buffer device;
    qn_cuda_event copied; /* after the newest copy of entries, which reads `host` */
    bool has_copied;
    struct qn_cuda_page_tables *next;
} qn_cuda_page_tables;

/* Tables of a model that no sequence has, those that were given back first at the front. */
typedef struct qn_cuda_kept_tables {
    qn_cuda_common *common;
    pthread_mutex_t lock; /* protects all */
    bool has_lock;
    qn_cuda_page_tables *first, **end;
    size_t bytes; /* on the device */
} qn_cuda_kept_tables;

/* qn_cuda_kept_tables_init - an empty list. Free with qn_cuda_kept_tables_free, which accepts a zeroed struct, after
 * all tables have been given back. */
qn_status qn_cuda_kept_tables_init(qn_cuda_common *common, qn_cuda_kept_tables *kept);
void qn_cuda_kept_tables_free(qn_cuda_kept_tables *kept);

/* qn_cuda_page_tables_take - tables of n_pages entries: of those that are kept, or new ones. Their entries are
 * arbitrary until the first update. Give back with qn_cuda_page_tables_give_back, which accepts NULL, when all steps
 * that read them have ended. From any thread that does not hold the stream's lock. */
qn_status qn_cuda_page_tables_take(qn_cuda_kept_tables *kept, size_t n_pages, qn_cuda_page_tables **out);
void qn_cuda_page_tables_give_back(qn_cuda_kept_tables *kept, qn_cuda_page_tables *tables);

/* qn_cuda_page_tables_update - let the tables have the first n_pages pages of a sequence, and zeros, for the steps that
 * are queued from now on. Waits for no step unless entries that are still being copied change. Threads as above. */
qn_status qn_cuda_page_tables_update(qn_cuda_common *common, qn_cuda_page_tables *tables, const qn_cuda_format *format,
                                     const qn_sequence *sequence, size_t n_pages);

#endif
