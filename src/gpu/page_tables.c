/* The host's side of page tables: tables that are kept for the next sequence, and copies of entries that change. */
#include "gpu/page_tables.h"

#include "base/memory.h"

#include <string.h>

/* Limit of the tables that no sequence uses: those of 1024 sequences of 2^18 positions. */
enum { MAX_KEPT_BYTES = 64 << 20 };

/* ---- Entries ---- */

/* One of the two tables: the items that its entries should point to, and its offset in the buffers, in bytes. */
struct table {
    const uint32_t *items;
    uint64_t base, stride;
    size_t offset;
};

static uint64_t entry_of(const struct table *t, size_t page, size_t n_pages)
{
    return page < n_pages && t->items[page] != QN_NO_ITEM ? t->base + t->items[page] * t->stride : 0;
}

/* Waits until the device has read the entries that were copied last. */
static qn_status wait_for_copies(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    const bool waits = tables->has_copied;
    tables->has_copied = false;
    return waits ? m->wait(m->context, &tables->buffers) : QN_OK;
}

/* Queues copies of the entries of pages [begin, end) that differ from the device's. *n_copies counts them. */
static qn_status copy_entries(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables, const struct table *t,
                              size_t end, size_t n_pages, size_t *n_copies)
{
    uint64_t *host = tables->buffers.host + t->offset / sizeof *host;
    for (size_t page = 0, first; page < end; page++) {
        for (first = page; page < end && host[page] != entry_of(t, page, n_pages); page++) {
            QN_TRY(wait_for_copies(m, tables));
            host[page] = entry_of(t, page, n_pages);
        }
        if (page == first)
            continue;
        QN_TRY(m->copy(m->context, &tables->buffers, t->offset + first * sizeof *host, (page - first) * sizeof *host));
        ++*n_copies;
    }
    return QN_OK;
}

static qn_status copy_tables(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables, const qn_gpu_format *f,
                             const qn_sequence *s, size_t n_pages)
{
    const size_t end = n_pages > tables->n_set ? n_pages : tables->n_set;
    const struct table pages = { s->pages, f->page_base, f->page_stride, 0 };
    const struct table f16_pages = { s->f16_pages, f->f16_page_base, f->f16_page_stride,
                                     tables->n_pages * sizeof *tables->buffers.host };
    size_t n_copies = 0;
    QN_TRY(copy_entries(m, tables, &pages, end, n_pages, &n_copies));
    if (qn_gpu_has_codes(f))
        QN_TRY(copy_entries(m, tables, &f16_pages, end, n_pages, &n_copies));
    tables->n_set = n_pages;
    if (!n_copies)
        return QN_OK;
    QN_TRY(m->end_copies(m->context, &tables->buffers));
    tables->has_copied = true;
    return QN_OK;
}

/* Sets all entries to UINT64_MAX, which no entry equals: the next update copies all of them. */
static void forget_entries(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    m->drain(m->context);
    for (size_t i = 0; i < 2 * tables->n_pages; i++)
        tables->buffers.host[i] = UINT64_MAX;
    tables->n_set = tables->n_pages;
}

/* Forgets the entries after an error, when it is unknown which of them the device has. */
static void drop_entries(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    forget_entries(m, tables);
    (void)qn_fail(QN_ERR_DEVICE, "%s", text);
}

static void poison_entries(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    m->lock(m->context);
    forget_entries(m, tables);
    m->poison(m->context, &tables->buffers);
    m->unlock(m->context);
}

qn_status qn_gpu_page_tables_update(const qn_gpu_kept_tables *kept, qn_gpu_page_tables *tables,
                                    const qn_gpu_format *format, const qn_sequence *sequence, size_t n_pages)
{
    const qn_gpu_table_memory *m = &kept->memory;
    m->lock(m->context);
    const qn_status status = copy_tables(m, tables, format, sequence, n_pages);
    if (status != QN_OK)
        drop_entries(m, tables);
    m->unlock(m->context);
    return status;
}

/* ---- Creation ---- */

static void free_tables(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    (void)wait_for_copies(m, tables);
    m->free(m->context, &tables->buffers);
    qn_free(tables);
}

static qn_status allocate_buffers(const qn_gpu_table_memory *m, qn_gpu_page_tables *tables)
{
    size_t bytes;
    if (!qn_mul_size(tables->n_pages, 2 * sizeof *tables->buffers.host, &bytes))
        return qn_fail(QN_ERR_MEMORY, "session: page tables of %zu pages do not fit in memory", tables->n_pages);
    return m->allocate(m->context, bytes, &tables->buffers);
}

static qn_status create_tables(const qn_gpu_table_memory *m, size_t n_pages, qn_gpu_page_tables **out)
{
    qn_gpu_page_tables *tables;
    QN_TRY(qn_alloc(&tables, 1, sizeof *tables, "session"));
    *tables = (qn_gpu_page_tables){ .n_pages = n_pages };
    const qn_status status = allocate_buffers(m, tables);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        free_tables(m, tables);
        return qn_fail(status, "%s", text);
    }
    *out = tables;
    return QN_OK;
}

/* ---- Tables that are kept ---- */

/* Takes *at out of the list, whose lock is held. */
static qn_gpu_page_tables *remove_at(qn_gpu_kept_tables *kept, qn_gpu_page_tables **at)
{
    qn_gpu_page_tables *tables = *at;
    *at = tables->next;
    if (!*at)
        kept->end = at;
    tables->next = NULL;
    kept->bytes -= tables->buffers.bytes;
    return tables;
}

/* Takes tables of this size out of the list; NULL if there are none. Those given back first are reused first: their
 * copies ended first. */
static qn_gpu_page_tables *find_kept(qn_gpu_kept_tables *kept, size_t n_pages)
{
    qn_gpu_page_tables *tables = NULL, **at;
    pthread_mutex_lock(&kept->lock);
    for (at = &kept->first; *at && (*at)->n_pages != n_pages; at = &(*at)->next)
        ;
    if (*at)
        tables = remove_at(kept, at);
    pthread_mutex_unlock(&kept->lock);
    return tables;
}

qn_status qn_gpu_page_tables_take(qn_gpu_kept_tables *kept, size_t n_pages, qn_gpu_page_tables **out)
{
    *out = find_kept(kept, n_pages);
    if (!*out)
        return create_tables(&kept->memory, n_pages, out);
    (*out)->n_set = n_pages; /* a sequence of another format may have left entries in either table */
    return QN_OK;
}

void qn_gpu_page_tables_give_back(qn_gpu_kept_tables *kept, qn_gpu_page_tables *tables)
{
    qn_gpu_page_tables *old = NULL, *next;
    if (!tables)
        return;
    if (kept->memory.poison)
        poison_entries(&kept->memory, tables);
    pthread_mutex_lock(&kept->lock);
    *kept->end = tables;
    kept->end = &tables->next;
    kept->bytes += tables->buffers.bytes;
    while (kept->bytes > MAX_KEPT_BYTES) {
        next = old;
        old = remove_at(kept, &kept->first);
        old->next = next;
    }
    pthread_mutex_unlock(&kept->lock);
    for (; old; old = next) {
        next = old->next;
        free_tables(&kept->memory, old);
    }
}

qn_status qn_gpu_kept_tables_init(const qn_gpu_table_memory *memory, qn_gpu_kept_tables *kept)
{
    *kept = (qn_gpu_kept_tables){ .memory = *memory, .end = &kept->first };
    const int error = pthread_mutex_init(&kept->lock, NULL);
    if (error)
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    kept->has_lock = true;
    return QN_OK;
}

void qn_gpu_kept_tables_free(qn_gpu_kept_tables *kept)
{
    if (!kept->has_lock)
        return;
    while (kept->first)
        free_tables(&kept->memory, remove_at(kept, &kept->first));
    pthread_mutex_destroy(&kept->lock);
}
