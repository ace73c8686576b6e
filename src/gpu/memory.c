/* A session's memory on a GPU: a sequence of the model's pool, and its page tables on the device. */
#include "gpu/memory.h"

#include "base/memory.h"

static qn_gpu_memory *gpu_memory_of(qn_memory *memory)
{
    return (qn_gpu_memory *)memory;
}

static const qn_gpu_memory *gpu_memory_of_const(const qn_memory *memory)
{
    return (const qn_gpu_memory *)memory;
}

/* ---- Growth and truncation ---- */

static qn_status update_tables(qn_gpu_memory *m, size_t n_pages)
{
    return m->sequence.cache->pages
               ? qn_gpu_page_tables_update(m->kept_tables, m->tables, m->format, &m->sequence, n_pages)
               : QN_OK;
}

/* Takes the item of the rows that are kept for the draft head. */
static qn_status take_head_rows(qn_gpu_memory *m)
{
    qn_pool_class *class = m->format->head_rows;
    if (!class || m->head_item != QN_NO_ITEM)
        return QN_OK;
    QN_TRY(qn_pool_take(class, &m->head_item));
    m->head_rows.address = qn_pool_address(class, m->head_item);
    return QN_OK;
}

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    qn_gpu_memory *m = gpu_memory_of(memory);
    QN_TRY(take_head_rows(m));
    QN_TRY(qn_sequence_reserve(&m->sequence, n));
    const qn_status status = update_tables(m, (m->sequence.length + n + QN_PAGE - 1) / QN_PAGE);
    if (status != QN_OK)
        qn_sequence_commit(&m->sequence, 0);
    return status;
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return qn_gpu_format_bytes(gpu_memory_of_const(memory)->format, length);
}

/* ---- Session files ---- */

static qn_status memory_serialize(const qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_gpu_memory *m = gpu_memory_of_const(memory);
    return qn_gpu_save(m->format, memory->sequence, &m->copies, on_region, context);
}

static qn_status memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn on_region,
                                    void *context)
{
    const qn_gpu_memory *m = gpu_memory_of_const(memory);
    return qn_gpu_load(m->format, memory->sequence, extent, &m->copies, on_region, context);
}

/* ---- Creation ---- */

static void memory_free(qn_memory *memory)
{
    qn_gpu_memory *m = gpu_memory_of(memory);
    qn_sequence_free(&m->sequence);
    if (m->head_item != QN_NO_ITEM)
        qn_pool_drop(m->format->head_rows, m->head_item);
    qn_gpu_page_tables_give_back(m->kept_tables, m->tables);
    qn_free(m);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .prepare = memory_prepare,
    .serialize = memory_serialize,
    .deserialize = memory_deserialize,
};

static qn_status create(qn_gpu_memory *m, size_t n_ctx)
{
    const size_t n_pages = n_ctx / QN_PAGE + (n_ctx % QN_PAGE != 0);
    QN_TRY(qn_gpu_page_tables_take(m->kept_tables, n_pages, &m->tables));
    m->kv_table = m->tables->buffers.address;
    m->f16_table = qn_gpu_has_codes(m->format) ? m->kv_table + n_pages * sizeof *m->tables->buffers.host : 0;
    return qn_sequence_create(&m->format->cache, &m->sequence);
}

qn_status qn_gpu_memory_create(const qn_gpu_format *format, qn_gpu_kept_tables *kept_tables,
                               const qn_gpu_copies *copies, size_t n_ctx, qn_memory **out)
{
    qn_gpu_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_gpu_memory){ .base = { .vtable = &vtable, .sequence = &m->sequence },
                          .format = format,
                          .kept_tables = kept_tables,
                          .copies = *copies,
                          .head_item = QN_NO_ITEM };
    const qn_status status = create(m, n_ctx);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
