/* A session's memory on a CUDA device: a sequence of the model's pool, and its page tables on the device. */
#include "cuda/executor/memory.h"

#include "base/memory.h"

static qn_cuda_memory *cuda_memory_of(qn_memory *memory)
{
    return (qn_cuda_memory *)memory;
}

static const qn_cuda_memory *cuda_memory_of_const(const qn_memory *memory)
{
    return (const qn_cuda_memory *)memory;
}

/* ---- Growth and truncation ---- */

static qn_status update_tables(qn_cuda_memory *m, size_t n_pages)
{
    return m->sequence.cache->pages ? qn_cuda_page_tables_update(m->common, m->tables, m->format, &m->sequence, n_pages)
                                    : QN_OK;
}

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    QN_TRY(qn_sequence_reserve(&m->sequence, n));
    const qn_status status = update_tables(m, (m->sequence.length + n + QN_PAGE - 1) / QN_PAGE);
    if (status != QN_OK)
        qn_sequence_commit(&m->sequence, 0);
    return status;
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return qn_cuda_format_bytes(cuda_memory_of_const(memory)->format, length);
}

/* ---- Creation ---- */

static void memory_free(qn_memory *memory)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    qn_sequence_free(&m->sequence);
    qn_cuda_page_tables_give_back(m->kept_tables, m->tables);
    qn_free(m);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .prepare = memory_prepare,
    .serialize = qn_cuda_memory_serialize,
    .deserialize = qn_cuda_memory_deserialize,
};

static qn_status create_tables(qn_cuda_memory *m)
{
    const size_t n_pages = m->n_ctx / QN_PAGE + (m->n_ctx % QN_PAGE != 0);
    QN_TRY(qn_cuda_page_tables_take(m->kept_tables, n_pages, &m->tables));
    m->kv_table = m->tables->device.address;
    m->f16_table = m->format->attention.pages ? m->kv_table + n_pages * sizeof *m->tables->host : 0;
    return QN_OK;
}

static qn_status create(qn_cuda_memory *m, const qn_kv_format *format)
{
    QN_TRY(qn_cuda_caches_find(m->caches, format, &m->format));
    QN_TRY(create_tables(m));
    return qn_sequence_create(&m->format->cache, &m->sequence);
}

qn_status qn_cuda_memory_create(qn_cuda_caches *caches, qn_cuda_kept_tables *kept_tables,
                                const qn_memory_params *params, qn_memory **out)
{
    qn_cuda_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cuda_memory){ .base = { .vtable = &vtable, .sequence = &m->sequence },
                           .common = qn_cuda_caches_common(caches),
                           .caches = caches,
                           .kept_tables = kept_tables,
                           .n_ctx = params->n_ctx };
    const qn_status status = create(m, params->format);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
