/* Caches in pages for checks of quern/cuda.h: the arrays of contiguous caches, scattered over a pool of pages, and back. */
#ifndef QN_CHECK_CUDA_API_PAGES_H
#define QN_CHECK_CUDA_API_PAGES_H

#include "check/cuda.h"
#include "quern/cuda.h"

enum { QN_API_PAGE = 64, QN_API_PAGE_ARRAYS = 4 };

typedef struct qn_api_pages {
    size_t n_sequences, n_pages, n_heads;
    size_t row_bytes[QN_API_PAGE_ARRAYS], offsets[QN_API_PAGE_ARRAYS]; /* of an array in a page */
    size_t item_bytes, n_items;
    uint32_t *items; /* [n_sequences][n_pages] */
    uint8_t *host;   /* [n_items][item_bytes] */
    qn_gpu_guarded pool, entries, tables;
} qn_api_pages;

/* qn_api_pages_new - pages of poison, in random order, with arrays [n_heads][QN_API_PAGE] of rows of row_bytes[i] bytes; row_bytes
 * ends with 0. One more entry in each page table is 0. */
void qn_api_pages_new(qn_api_pages *p, size_t n_sequences, size_t n_pages, size_t n_heads,
                      const size_t row_bytes[QN_API_PAGE_ARRAYS]);
void qn_api_pages_free(qn_api_pages *p);

/* qn_api_pages_scatter, qn_api_pages_gather - between array i and a contiguous one, [n_sequences][n_heads][capacity] rows, on the
 * host; rows beyond the pages are left out. */
void qn_api_pages_scatter(qn_api_pages *p, size_t i, const void *from, size_t capacity);
void qn_api_pages_gather(const qn_api_pages *p, size_t i, void *to, size_t capacity);

/* qn_api_pages_upload, qn_api_pages_read - all pages between host and device. Guards must be intact. */
void qn_api_pages_upload(qn_api_pages *p);
void qn_api_pages_read(qn_api_pages *p);

/* qn_api_pages_tables - the view of all page tables. */
qn_cuda_view qn_api_pages_tables(const qn_api_pages *p);

#endif
