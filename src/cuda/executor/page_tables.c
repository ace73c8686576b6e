/* Page tables on a CUDA device: tables that are kept for the next sequence, and copies of entries that change. */
#include "cuda/executor/page_tables.h"

#include "base/memory.h"
#include "cuda/runtime/provoke.h"

#include <string.h>

/* Tables of 1024 sequences of 2^18 positions. */
enum { MAX_KEPT_BYTES = 64 << 20 };

/* ---- Entries ---- */

/* One of the two tables: the items that its entries should point to, and its copies on the host and the device. */
struct table {
    const uint32_t *items;
    uint64_t base, stride;
    uint64_t *host, device;
};

static uint64_t entry_of(const struct table *t, size_t page, size_t n_pages)
{
    return page < n_pages && t->items[page] != QN_NO_ITEM ? t->base + t->items[page] * t->stride : 0;
}

/* Waits until the device has read the entries that were copied last. */
static qn_status wait_for_copies(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    const bool waits = tables->has_copied;
    tables->has_copied = false;
    return waits ? qn_cuda_event_synchronize(common->cuda, tables->copied) : QN_OK;
}

/* Queues copies of the entries of pages [begin, end) that differ from the device's. *n_copies counts them. */
static qn_status copy_entries(qn_cuda_common *common, qn_cuda_page_tables *tables, const struct table *t, size_t end,
                              size_t n_pages, size_t *n_copies)
{
    for (size_t page = 0, first; page < end; page++) {
        for (first = page; page < end && t->host[page] != entry_of(t, page, n_pages); page++) {
            QN_TRY(wait_for_copies(common, tables));
            t->host[page] = entry_of(t, page, n_pages);
        }
        if (page == first)
            continue;
        QN_TRY(qn_cuda_copy_h2d(common->cuda, common->stream, t->device + first * sizeof *t->host, t->host + first,
                                (page - first) * sizeof *t->host));
        ++*n_copies;
    }
    return QN_OK;
}

static qn_status copy_tables(qn_cuda_common *common, qn_cuda_page_tables *tables, const qn_cuda_format *f,
                             const qn_sequence *s, size_t n_pages)
{
    const size_t end = n_pages > tables->n_set ? n_pages : tables->n_set,
                 bytes = tables->n_pages * sizeof *tables->host;
    const struct table pages = { s->pages, f->page_base, f->page_stride, tables->host, tables->device.address };
    const struct table f16_pages = { s->f16_pages, f->f16_page_base, f->f16_page_stride, tables->host + tables->n_pages,
                                     tables->device.address + bytes };
    size_t n_copies = 0;
    QN_TRY(copy_entries(common, tables, &pages, end, n_pages, &n_copies));
    if (f->attention.pages)
        QN_TRY(copy_entries(common, tables, &f16_pages, end, n_pages, &n_copies));
    tables->n_set = n_pages;
    if (!n_copies)
        return QN_OK;
    QN_TRY(qn_cuda_event_record(common->cuda, tables->copied, common->stream));
    tables->has_copied = true;
    return QN_OK;
}

/* No entry compares equal to UINT64_MAX: all are copied again. */
static void forget_entries(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    (void)qn_cuda_stream_synchronize(common->cuda, common->stream);
    for (size_t i = 0; i < 2 * tables->n_pages; i++)
        tables->host[i] = UINT64_MAX;
    tables->n_set = tables->n_pages;
}

/* After an error it is unknown which entries the device has. */
static void drop_entries(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    forget_entries(common, tables);
    (void)qn_fail(QN_ERR_DEVICE, "%s", text);
}

/* Limit of the tables that no sequence uses. */
static void poison_entries(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    pthread_mutex_lock(&common->stream_lock);
    forget_entries(common, tables);
    (void)qn_cuda_poison(common->cuda, common->stream, tables->device.address, tables->device.bytes);
    pthread_mutex_unlock(&common->stream_lock);
}

qn_status qn_cuda_page_tables_update(qn_cuda_common *common, qn_cuda_page_tables *tables, const qn_cuda_format *format,
                                     const qn_sequence *sequence, size_t n_pages)
{
    pthread_mutex_lock(&common->stream_lock);
    const qn_status status = copy_tables(common, tables, format, sequence, n_pages);
    if (status != QN_OK)
        drop_entries(common, tables);
    pthread_mutex_unlock(&common->stream_lock);
    return status;
}

/* ---- Creation ---- */

static void free_tables(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    (void)wait_for_copies(common, tables);
    qn_cuda_free(common->cuda, &tables->device);
    qn_cuda_free_host(common->cuda, tables->host);
    qn_cuda_event_free(common->cuda, tables->copied);
    qn_free(tables);
}

static qn_status fill_tables(qn_cuda_common *common, qn_cuda_page_tables *tables)
{
    size_t bytes;
    if (!qn_mul_size(tables->n_pages, 2 * sizeof *tables->host, &bytes))
        return qn_fail(QN_ERR_MEMORY, "session: page tables of %zu pages do not fit in memory", tables->n_pages);
    QN_TRY(qn_cuda_alloc(common->cuda, bytes, 1, "page tables on the GPU", &tables->device));
    QN_TRY(qn_cuda_alloc_host(common->cuda, bytes, "page tables", (void **)&tables->host));
    QN_TRY(qn_cuda_event_create(common->cuda, &tables->copied));
    memset(tables->host, 0, bytes);
    pthread_mutex_lock(&common->stream_lock);
    const qn_status status = qn_cuda_memset(common->cuda, common->stream, tables->device.address, 0, bytes);
    pthread_mutex_unlock(&common->stream_lock);
    return status;
}

static qn_status create_tables(qn_cuda_common *common, size_t n_pages, qn_cuda_page_tables **out)
{
    qn_cuda_page_tables *tables;
    QN_TRY(qn_alloc(&tables, 1, sizeof *tables, "session"));
    *tables = (qn_cuda_page_tables){ .n_pages = n_pages };
    const qn_status status = fill_tables(common, tables);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        free_tables(common, tables);
        return qn_fail(status, "%s", text);
    }
    *out = tables;
    return QN_OK;
}

/* ---- Tables that are kept ---- */

/* Takes *at out of the list, whose lock is held. */
static qn_cuda_page_tables *remove_at(qn_cuda_kept_tables *kept, qn_cuda_page_tables **at)
{
    qn_cuda_page_tables *tables = *at;
    *at = tables->next;
    if (!*at)
        kept->end = at;
    tables->next = NULL;
    kept->bytes -= tables->device.bytes;
    return tables;
}

/* The tables given back first are reused first: their copies ended first. */
static qn_cuda_page_tables *find_kept(qn_cuda_kept_tables *kept, size_t n_pages)
{
    qn_cuda_page_tables *tables = NULL, **at;
    pthread_mutex_lock(&kept->lock);
    for (at = &kept->first; *at && (*at)->n_pages != n_pages; at = &(*at)->next)
        ;
    if (*at)
        tables = remove_at(kept, at);
    pthread_mutex_unlock(&kept->lock);
    return tables;
}

qn_status qn_cuda_page_tables_take(qn_cuda_kept_tables *kept, size_t n_pages, qn_cuda_page_tables **out)
{
    *out = find_kept(kept, n_pages);
    if (!*out)
        return create_tables(kept->common, n_pages, out);
    (*out)->n_set = n_pages; /* a sequence of another format may have left entries in either table */
    return QN_OK;
}

void qn_cuda_page_tables_give_back(qn_cuda_kept_tables *kept, qn_cuda_page_tables *tables)
{
    qn_cuda_page_tables *old = NULL, *next;
    if (!tables)
        return;
    if (qn_cuda_poisons(kept->common->cuda))
        poison_entries(kept->common, tables);
    pthread_mutex_lock(&kept->lock);
    *kept->end = tables;
    kept->end = &tables->next;
    kept->bytes += tables->device.bytes;
    while (kept->bytes > MAX_KEPT_BYTES) {
        next = old;
        old = remove_at(kept, &kept->first);
        old->next = next;
    }
    pthread_mutex_unlock(&kept->lock);
    for (; old; old = next) {
        next = old->next;
        free_tables(kept->common, old);
    }
}

qn_status qn_cuda_kept_tables_init(qn_cuda_common *common, qn_cuda_kept_tables *kept)
{
    *kept = (qn_cuda_kept_tables){ .common = common, .end = &kept->first };
    const int error = pthread_mutex_init(&kept->lock, NULL);
    if (error)
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    kept->has_lock = true;
    return QN_OK;
}

void qn_cuda_kept_tables_free(qn_cuda_kept_tables *kept)
{
    if (!kept->has_lock)
        return;
    while (kept->first)
        free_tables(kept->common, remove_at(kept, &kept->first));
    pthread_mutex_destroy(&kept->lock);
}
