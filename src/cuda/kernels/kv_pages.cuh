// Addresses in the KV caches of cuda/kernels/kv.h, contiguous or in pages: the only place that computes them.
#ifndef QN_CUDA_KERNELS_KV_PAGES_CUH
#define QN_CUDA_KERNELS_KV_PAGES_CUH

#include "cuda/kernels/kv.h"

// The page table of a session, or 0 if the cache is contiguous.
QN_DEVICE const uint64_t *qn_kv_table(const uint64_t *tables, uint32_t session)
{
    return tables ? (const uint64_t *)tables[session] : 0;
}

// The rows of one head in one array of a cache (keys, values, or scales). `first` is the address of row 0, or with a
// page table its offset within a page.
struct qn_kv_rows {
    const uint64_t *table;
    const uint8_t *first;
};

QN_DEVICE qn_kv_rows qn_kv_rows_of(const uint64_t *table, const uint8_t *array, uint32_t head, uint64_t head_stride,
                                   uint32_t session, uint64_t session_stride)
{
    return { table, array + head * head_stride + (table ? 0 : session * session_stride) };
}

// To be added to qn_kv_rows.first for the rows of a page: the page's address, or 0 if the cache is contiguous.
QN_DEVICE uint64_t qn_kv_page(const uint64_t *table, uint32_t page)
{
    return table ? table[page] : 0;
}

// A row's index from there on.
QN_DEVICE uint32_t qn_kv_row_in_page(const uint64_t *table, uint32_t row)
{
    return table ? row % QN_PAGE : row;
}

QN_DEVICE const uint8_t *qn_kv_row(const qn_kv_rows &rows, uint32_t row, uint32_t row_bytes)
{
    return rows.first + qn_kv_page(rows.table, row / QN_PAGE) +
           (uint64_t)qn_kv_row_in_page(rows.table, row) * row_bytes;
}

// The first row of page `page` of AURA codes of `row_bytes` bytes: a contiguous cache has none for page 0.
QN_DEVICE const uint8_t *qn_kv_code_page(const qn_kv_rows &rows, uint32_t page, uint32_t row_bytes)
{
    return rows.table ? rows.first + rows.table[page] : rows.first + (uint64_t)(page - 1) * QN_PAGE * row_bytes;
}

// The first row of page `page` of the fp16 pages of a cache of AURA codes. array: keys or values.
QN_DEVICE const uint8_t *qn_kv_f16_page(const qn_attention_gpu_pages &pages, const uint64_t *table, const uint8_t *array,
                                        uint32_t session, uint32_t head, uint32_t page, uint32_t row_bytes)
{
    const qn_kv_rows rows = qn_kv_rows_of(table, array, head, pages.head, session, pages.session);
    const uint32_t slot = page ? 1 + (page - 1) % pages.n_open_pages : 0;
    return table ? rows.first + table[page] : rows.first + (uint64_t)slot * QN_PAGE * row_bytes;
}

// The mean of the keys of page 0: [head_dim].
QN_DEVICE const float *qn_kv_means(const qn_attention_gpu_pages &pages, const uint64_t *table, uint32_t session, uint32_t head,
                                   uint32_t head_dim)
{
    const uint8_t *means = pages.means + (uint64_t)head * head_dim * 4;
    return (const float *)(table ? means + table[0] : means + session * pages.mean_session_stride);
}

#endif
