/* Arrays of caches in pages: copies from contiguous arrays to the pages of a pool, and back. */
#ifndef QN_CHECK_CUDA_PAGED_ARRAYS_H
#define QN_CHECK_CUDA_PAGED_ARRAYS_H

#include "cuda.h"
#include "cuda/kernels/kv.h"
#include "quern/cuda.h"

enum { QN_PAGED_ARRAYS = 4 };

typedef struct qn_paged_arrays {
    size_t n_sequences, n_pages, n_heads;
    size_t row_bytes[QN_PAGED_ARRAYS], offsets[QN_PAGED_ARRAYS]; /* of an array in a page */
    size_t item_bytes, n_items;
    uint32_t *items; /* [n_sequences][n_pages] */
    uint8_t *host;   /* [n_items][item_bytes] */
    uint64_t pool, entries, tables;
} qn_paged_arrays;

/* qn_paged_new - Allocates pages of poison, in random order, with arrays [n_heads][QN_PAGE] of rows of
 * row_bytes[i] bytes; row_bytes ends with 0. Each page table has one more entry, 0. */
void qn_paged_new(qn_paged_arrays *p, size_t n_sequences, size_t n_pages, size_t n_heads,
                  const size_t row_bytes[QN_PAGED_ARRAYS]);

/* qn_paged_scatter - Copies a contiguous array [n_sequences][n_heads][capacity] of rows to array i, on the host; rows
 * beyond the pages are left out. */
void qn_paged_scatter(qn_paged_arrays *p, size_t i, const void *from, size_t capacity);

/* qn_paged_gather - Returns array i as a contiguous array, the inverse of qn_paged_scatter. */
void *qn_paged_gather(const qn_paged_arrays *p, size_t i, size_t capacity);

/* qn_paged_upload - Copies all pages from the host to the device. */
void qn_paged_upload(qn_paged_arrays *p);

/* qn_paged_read - Copies all pages from the device to the host. */
void qn_paged_read(qn_paged_arrays *p);

/* qn_paged_tables - Returns the view of all page tables. */
qn_cuda_view qn_paged_tables(const qn_paged_arrays *p);

#endif
