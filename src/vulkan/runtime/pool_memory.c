/* Granules of a pool, and copies that go across them. */
#include "vulkan/runtime/pool_memory.h"

#include "base/memory.h"

#include <string.h>

enum { SMALLEST_SHIFT = 21, MANY_GRANULES = 1024 }; /* a driver may have no more than 4096 allocations */

/* ---- qn_pool_memory ---- */

static uint64_t *entry_of(const qn_vk_pool_memory *m, size_t granule)
{
    return (uint64_t *)(void *)m->table.host + granule;
}

static qn_status reserve(void *context, size_t bytes, uint64_t *address)
{
    qn_vk_pool_memory *m = context;
    const size_t n = bytes >> m->shift;
    if (n > m->n_granules - m->n_reserved)
        return qn_fail(QN_ERR_MEMORY, "pool: %zu granules for another class, %zu are left", n,
                       m->n_granules - m->n_reserved);
    *address = (uint64_t)m->n_reserved << m->shift;
    m->n_reserved += n;
    return QN_OK;
}

/* Classes are removed in the reverse order, or with the pool. */
static void unreserve(void *context, uint64_t address, size_t bytes)
{
    qn_vk_pool_memory *m = context;
    const size_t first = (size_t)(address >> m->shift), n = bytes >> m->shift;
    if (first + n == m->n_reserved)
        m->n_reserved = first;
}

static void release(void *context, uint64_t address)
{
    qn_vk_pool_memory *m = context;
    const size_t granule = (size_t)(address >> m->shift);
    *entry_of(m, granule) = 0;
    qn_vk_free(m->vk, &m->granules[granule]);
}

static qn_status commit(void *context, uint64_t address)
{
    qn_vk_pool_memory *m = context;
    const size_t granule = (size_t)(address >> m->shift);
    qn_vk_buffer *buffer = &m->granules[granule];
    QN_TRY(qn_vk_alloc(m->vk, (size_t)1 << m->shift, QN_VK_ON_DEVICE, "memory of sessions", buffer));
    const qn_status status = qn_vk_zero(m->vk, buffer);
    if (status != QN_OK) {
        qn_vk_free(m->vk, buffer);
        return status;
    }
    *entry_of(m, granule) = buffer->address;
    return QN_OK;
}

/* ---- Copies: mapped memory is read and written at once, so that steps in flight must have ended ---- */

/* A range within one granule. */
struct part {
    const qn_vk_buffer *granule;
    size_t at, bytes;
};

static struct part part_of(const qn_vk_pool_memory *m, uint64_t address, size_t bytes)
{
    const size_t size = (size_t)1 << m->shift, at = (size_t)(address & (size - 1));
    return (struct part){ &m->granules[address >> m->shift], at, bytes < size - at ? bytes : size - at };
}

qn_status qn_vk_pool_read(const qn_vk_pool_memory *m, void *to, uint64_t from, size_t bytes)
{
    struct part part;
    qn_vk_drain(m->vk);
    for (size_t done = 0; done < bytes; done += part.bytes) {
        part = part_of(m, from + done, bytes - done);
        QN_TRY(qn_vk_read(m->vk, (uint8_t *)to + done, part.granule, part.at, part.bytes));
    }
    return QN_OK;
}

qn_status qn_vk_pool_write(const qn_vk_pool_memory *m, uint64_t to, const void *from, size_t bytes)
{
    struct part part;
    qn_vk_drain(m->vk);
    for (size_t done = 0; done < bytes; done += part.bytes) {
        part = part_of(m, to + done, bytes - done);
        QN_TRY(qn_vk_write(m->vk, part.granule, part.at, (const uint8_t *)from + done, part.bytes));
    }
    return QN_OK;
}

qn_status qn_vk_pool_copy(const qn_vk_pool_memory *m, uint64_t to, uint64_t from, size_t bytes)
{
    uint8_t *host;
    QN_TRY(qn_alloc(&host, bytes, 1, "copy of a session"));
    qn_status status = qn_vk_pool_read(m, host, from, bytes);
    if (status == QN_OK)
        status = qn_vk_pool_write(m, to, host, bytes);
    qn_free(host);
    return status;
}

/* ---- Opening ---- */

qn_status qn_vk_pool_memory_open(qn_vk *vk, uint64_t budget, size_t n_classes, qn_vk_pool_memory *context,
                                 qn_pool_memory *memory)
{
    size_t bytes;
    *context = (qn_vk_pool_memory){ .vk = vk, .shift = SMALLEST_SHIFT };
    while (budget >> context->shift >= 2 * (uint64_t)MANY_GRANULES)
        context->shift++;
    context->n_granules = 1 + n_classes * (size_t)(budget >> context->shift);
    context->n_reserved = 1; /* 0 is no address */
    QN_TRY(qn_alloc(&context->granules, context->n_granules, sizeof *context->granules, "pool"));
    if (!qn_mul_size(context->n_granules, sizeof(uint64_t), &bytes))
        return qn_fail(QN_ERR_MEMORY, "pool: %zu granules do not fit in memory", context->n_granules);
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_SHARED, "table of granules", &context->table));
    memset(context->table.host, 0, context->table.bytes);
    *memory = (qn_pool_memory){ .context = context,
                                .granule = (size_t)1 << context->shift,
                                .reserve = reserve,
                                .unreserve = unreserve,
                                .commit = commit,
                                .release = release };
    return QN_OK;
}

void qn_vk_pool_memory_close(qn_vk_pool_memory *context)
{
    if (context->vk)
        qn_vk_free(context->vk, &context->table);
    qn_free(context->granules);
    *context = (qn_vk_pool_memory){ 0 };
}
