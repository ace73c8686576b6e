/* Arrays of caches in pages. */
#include "cuda_paged_arrays.h"

enum { ALIGN = 48, SPARE = 2 }; /* offsets are not powers of two; some items are not used */

void qn_paged_new(qn_paged_arrays *p, size_t n_sequences, size_t n_pages, size_t n_heads,
                  const size_t row_bytes[QN_PAGED_ARRAYS])
{
    const size_t n = n_sequences * n_pages;
    *p = (qn_paged_arrays){ .n_sequences = n_sequences,
                            .n_pages = n_pages,
                            .n_heads = n_heads,
                            .item_bytes = ALIGN,
                            .n_items = n + SPARE,
                            .items = qn_new(n + SPARE, sizeof *p->items) };
    for (size_t i = 0; i < QN_PAGED_ARRAYS && row_bytes[i]; i++) {
        p->row_bytes[i] = row_bytes[i];
        p->offsets[i] = p->item_bytes;
        p->item_bytes += (n_heads * QN_PAGE * row_bytes[i] + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    }
    p->host = qn_new(p->n_items, p->item_bytes);
    memset(p->host, 0xff, p->n_items * p->item_bytes);
    for (size_t i = 0; i < p->n_items; i++) {
        const size_t j = qn_random_below(i + 1);
        p->items[i] = p->items[j];
        p->items[j] = (uint32_t)i;
    }
    p->pool = qn_gpu_new(p->n_items * p->item_bytes);
    uint64_t *entries = qn_new(n_sequences * (n_pages + 1), sizeof *entries),
             *tables = qn_new(n_sequences, sizeof *tables);
    for (size_t i = 0; i < n; i++)
        entries[i / n_pages * (n_pages + 1) + i % n_pages] = p->pool + p->items[i] * p->item_bytes;
    p->entries = qn_gpu_copy(entries);
    for (size_t i = 0; i < n_sequences; i++)
        tables[i] = p->entries + i * (n_pages + 1) * sizeof *entries;
    p->tables = qn_gpu_copy(tables);
}

/* The rows of a head in a page on the host, those of the contiguous array, and their bytes. */
struct rows {
    uint8_t *in_page;
    size_t contiguous, bytes;
};

static struct rows rows_of(const qn_paged_arrays *p, size_t array, size_t index, size_t capacity)
{
    const size_t head = index % p->n_heads, page = index / p->n_heads % p->n_pages,
                 sequence = index / p->n_heads / p->n_pages, first = page * QN_PAGE,
                 left = first < capacity ? capacity - first : 0, row = p->row_bytes[array];
    return (struct rows){ .in_page = p->host + p->items[sequence * p->n_pages + page] * p->item_bytes +
                                     p->offsets[array] + head * QN_PAGE * row,
                          .contiguous = ((sequence * p->n_heads + head) * capacity + first) * row,
                          .bytes = (left < QN_PAGE ? left : QN_PAGE) * row };
}

void qn_paged_scatter(qn_paged_arrays *p, size_t i, const void *from, size_t capacity)
{
    for (size_t k = 0; k < p->n_sequences * p->n_pages * p->n_heads; k++) {
        const struct rows r = rows_of(p, i, k, capacity);
        memcpy(r.in_page, (const uint8_t *)from + r.contiguous, r.bytes);
    }
}

void *qn_paged_gather(const qn_paged_arrays *p, size_t i, size_t capacity)
{
    uint8_t *to = qn_new(p->n_sequences * p->n_heads * capacity, p->row_bytes[i]);
    for (size_t k = 0; k < p->n_sequences * p->n_pages * p->n_heads; k++) {
        const struct rows r = rows_of(p, i, k, capacity);
        memcpy(to + r.contiguous, r.in_page, r.bytes);
    }
    return to;
}

void qn_paged_upload(qn_paged_arrays *p)
{
    qn_gpu_write(p->pool, p->host, p->n_items * p->item_bytes);
}

void qn_paged_read(qn_paged_arrays *p)
{
    p->host = qn_gpu_read(p->pool);
    for (size_t i = p->n_items - SPARE; i < p->n_items; i++)
        for (size_t k = 0; k < p->item_bytes; k++)
            if (p->host[p->items[i] * p->item_bytes + k] != 0xff) {
                qn_expect(false, "byte %zu of a page that no sequence has was written", k);
                return;
            }
}

qn_cuda_view qn_paged_tables(const qn_paged_arrays *p)
{
    return (qn_cuda_view){ (void *)(uintptr_t)p->tables, QN_DTYPE_I64, p->n_sequences, 0 };
}
