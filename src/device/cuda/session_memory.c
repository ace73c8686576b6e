/* A session's memory on a CUDA device: a sequence of the model's pool, and its page tables on the device. */
#include "device/cuda/model.h"

#include "base/memory.h"
#include "device/sequence_memory.h"

#include <stdlib.h>
#include <string.h>

static qn_cuda_memory *cuda_memory_of(qn_memory *memory)
{
    return (qn_cuda_memory *)memory;
}

static const qn_cuda_memory *cuda_memory_of_const(const qn_memory *memory)
{
    return (const qn_cuda_memory *)memory;
}

/* ---- Page tables ---- */

/* One of the two tables: the items that it should have, and its copies on the host and the device. */
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
static qn_status wait_for_copies(qn_cuda_memory *m)
{
    const bool waits = m->has_copied;
    m->has_copied = false;
    return waits ? qn_cuda_event_synchronize(m->model->cuda, m->copied) : QN_OK;
}

/* Queues copies of the entries of pages [begin, end) that differ from what the device has. *n_copies counts them. */
static qn_status copy_entries(qn_cuda_memory *m, const struct table *t, size_t end, size_t n_pages, size_t *n_copies)
{
    for (size_t page = 0, first; page < end; page++) {
        for (first = page; page < end && t->host[page] != entry_of(t, page, n_pages); page++) {
            QN_TRY(wait_for_copies(m));
            t->host[page] = entry_of(t, page, n_pages);
        }
        if (page == first)
            continue;
        QN_TRY(qn_cuda_copy_h2d(m->model->cuda, m->model->stream, t->device + first * sizeof *t->host, t->host + first,
                                (page - first) * sizeof *t->host));
        ++*n_copies;
    }
    return QN_OK;
}

static qn_status copy_tables(qn_cuda_memory *m, size_t n_pages)
{
    const qn_cuda_format *f = m->format;
    const size_t end = n_pages > m->n_set ? n_pages : m->n_set;
    const struct table pages = { m->sequence.pages, f->page_base, f->page_stride, m->host_tables, m->kv_table };
    const struct table f16_pages = { m->sequence.f16_pages, f->f16_page_base, f->f16_page_stride,
                                     m->host_tables + m->table_pages, m->f16_table };
    size_t n_copies = 0;
    QN_TRY(copy_entries(m, &pages, end, n_pages, &n_copies));
    if (m->f16_table)
        QN_TRY(copy_entries(m, &f16_pages, end, n_pages, &n_copies));
    m->n_set = n_pages;
    if (!n_copies)
        return QN_OK;
    QN_TRY(qn_cuda_event_record(m->model->cuda, m->copied, m->model->stream));
    m->has_copied = true;
    return QN_OK;
}

/* After an error it is unknown which entries the device has. No entry compares equal to UINT64_MAX: all are copied again. */
static void drop_tables(qn_cuda_memory *m)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    (void)qn_cuda_stream_synchronize(m->model->cuda, m->model->stream);
    for (size_t i = 0; i < 2 * m->table_pages; i++)
        m->host_tables[i] = UINT64_MAX;
    m->n_set = m->table_pages;
    (void)qn_fail(QN_ERR_IO, "%s", text);
}

/* Lets the tables have the first n_pages pages, for the steps that are queued from now on. */
static qn_status update_tables(qn_cuda_memory *m, size_t n_pages)
{
    if (!m->sequence.cache->pages)
        return QN_OK;
    pthread_mutex_lock(&m->model->stream_lock);
    const qn_status status = copy_tables(m, n_pages);
    if (status != QN_OK)
        drop_tables(m);
    pthread_mutex_unlock(&m->model->stream_lock);
    return status;
}

/* ---- Growth and truncation ---- */

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    QN_TRY(qn_sequence_reserve(&m->sequence, n));
    const qn_status status = update_tables(m, (m->sequence.length + n + QN_PAGE - 1) / QN_PAGE);
    if (status != QN_OK)
        qn_sequence_commit(&m->sequence, 0);
    return status;
}

static void memory_on_append(qn_memory *memory, size_t length)
{
    qn_sequence *s = &cuda_memory_of(memory)->sequence;
    qn_sequence_commit(s, length - s->length);
}

static void memory_truncate(qn_memory *memory, size_t length)
{
    qn_sequence_truncate(&cuda_memory_of(memory)->sequence, (uint32_t)length);
}

static qn_status memory_reset(qn_memory *memory)
{
    memory_truncate(memory, 0);
    return QN_OK;
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return qn_cuda_format_bytes(cuda_memory_of_const(memory)->format, length);
}

static uint64_t memory_serialized_bytes(const qn_memory *memory, const qn_extent *extent)
{
    const qn_cuda_format *f = cuda_memory_of_const(memory)->format;
    return qn_kv_saved_bytes(&f->file_kv, extent) + (f->file_recurrent ? qn_recurrent_bytes(f->file_recurrent) : 0);
}

/* ---- Creation ---- */

static void memory_free(qn_memory *memory)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    qn_cuda *cuda = m->model->cuda;
    (void)wait_for_copies(m);
    qn_sequence_free(&m->sequence);
    qn_cuda_free(cuda, &m->tables);
    qn_cuda_free_host(cuda, m->host_tables);
    qn_cuda_event_free(cuda, m->copied);
    qn_free(m);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open_tokens = qn_memory_open_tokens,
    .prepare = memory_prepare,
    .on_append = memory_on_append,
    .rewind_length = qn_memory_rewind_length,
    .truncate = memory_truncate,
    .reset = memory_reset,
    .copy = qn_memory_copy,
    .checkpoint_new = qn_checkpoint_new,
    .checkpoint_free = qn_checkpoint_free,
    .checkpoint_clear = qn_checkpoint_clear,
    .checkpoint_open_tokens = qn_checkpoint_open_tokens,
    .checkpoint_save = qn_checkpoint_save,
    .checkpoint_restore = qn_checkpoint_restore,
    .checkpoint_copy = qn_checkpoint_copy,
    .serialize = qn_cuda_memory_serialize,
    .deserialize = qn_cuda_memory_deserialize,
    .serialized_bytes = memory_serialized_bytes,
};

static qn_status create_tables(qn_cuda_memory *m)
{
    qn_cuda *cuda = m->model->cuda;
    size_t bytes;
    m->table_pages = m->n_ctx / QN_PAGE + (m->n_ctx % QN_PAGE != 0);
    if (!qn_mul_size(m->table_pages, 2 * sizeof *m->host_tables, &bytes))
        return qn_fail(QN_ERR_MEMORY, "session: %zu positions do not fit in memory", m->n_ctx);
    QN_TRY(qn_cuda_alloc(cuda, bytes, 1, "page tables on the GPU", &m->tables));
    QN_TRY(qn_cuda_alloc_host(cuda, bytes, "page tables", (void **)&m->host_tables));
    QN_TRY(qn_cuda_event_create(cuda, &m->copied));
    m->kv_table = m->tables.address;
    m->f16_table = m->format->attention.pages ? m->kv_table + m->table_pages * sizeof *m->host_tables : 0;
    for (size_t i = 0; i < 2 * m->table_pages; i++)
        m->host_tables[i] = 0;
    return qn_cuda_upload(cuda, m->tables.address, m->host_tables, bytes, NULL, NULL);
}

static qn_status create(qn_cuda_memory *m, qn_kv_codecs codecs)
{
    QN_TRY(qn_cuda_caches_find(m->model->caches, codecs, &m->format));
    QN_TRY(create_tables(m));
    return qn_sequence_create(&m->format->cache, &m->sequence);
}

qn_status qn_cuda_memory_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    const qn_kv_codecs codecs = { params->key_codec, params->value_codec };
    qn_cuda_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cuda_memory){ .base = { .vtable = &vtable, .sequence = &m->sequence },
                           .model = (qn_cuda_model *)device,
                           .n_ctx = params->n_ctx };
    const qn_status status = create(m, codecs);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
