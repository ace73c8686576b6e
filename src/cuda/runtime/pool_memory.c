/* Reserving addresses, and mapping physical memory to them. */
#include "cuda/runtime/pool_memory.h"

#include "cuda/runtime/context.h"

#include <string.h>

static qn_cu_memory_location location_of(const qn_cuda *cuda)
{
    return (qn_cu_memory_location){ .type = QN_CU_MEMORY_ON_DEVICE, .id = cuda->info.ordinal };
}

static qn_cu_memory_properties properties_of(const qn_cuda *cuda)
{
    return (qn_cu_memory_properties){ .type = QN_CU_MEMORY_PINNED, .location = location_of(cuda) };
}

/* ---- qn_pool_memory ---- */

static qn_status reserve(void *context, size_t bytes, uint64_t *address)
{
    const qn_cuda_pool_memory *m = context;
    QN_TRY(qn_cuda_make_current(m->cuda));
    return QN_CU(m->cuda->driver, cuMemAddressReserve, address, bytes, 0, 0, 0);
}

static void unreserve(void *context, uint64_t address, size_t bytes)
{
    const qn_cuda_pool_memory *m = context;
    if (!qn_cuda_make_current(m->cuda))
        (void)m->cuda->driver->cuMemAddressFree(address, bytes);
}

/* Allocates the memory of a granule and maps it. The mapping keeps the memory allocated, so the handle is released at
 * once. */
static qn_status map(const qn_cuda_pool_memory *m, uint64_t address)
{
    const qn_cuda_driver *driver = m->cuda->driver;
    const qn_cu_memory_properties properties = properties_of(m->cuda);
    unsigned long long handle;
    QN_TRY(QN_CU(driver, cuMemCreate, &handle, m->granule, &properties, 0));
    const qn_status status = QN_CU(driver, cuMemMap, address, m->granule, 0, handle, 0);
    (void)driver->cuMemRelease(handle);
    return status;
}

static qn_status make_zeros(const qn_cuda_pool_memory *m, uint64_t address)
{
    const qn_cu_memory_access access = { .location = location_of(m->cuda), .flags = QN_CU_MEMORY_READ_WRITE };
    QN_TRY(QN_CU(m->cuda->driver, cuMemSetAccess, address, m->granule, &access, 1));
    QN_TRY(qn_cuda_memset(m->cuda, m->stream, address, 0, m->granule));
    QN_TRY(qn_cuda_poison_cache(m->cuda, m->stream, address, m->granule));
    QN_TRY(qn_cuda_event_record(m->cuda, m->zeroed, m->stream));
    pthread_mutex_lock(m->work.lock);
    const qn_status status = qn_cuda_stream_wait_event(m->cuda, m->work.stream, m->zeroed);
    pthread_mutex_unlock(m->work.lock);
    return status;
}

/* Waits and unmaps a granule after a failure, because it may still be written. Keeps the error text. */
static void unmap_after_failure(const qn_cuda_pool_memory *m, uint64_t address, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    (void)qn_cuda_stream_synchronize(m->cuda, m->stream);
    (void)m->cuda->driver->cuMemUnmap(address, m->granule);
    (void)qn_fail(status, "%s", text);
}

static qn_status commit(void *context, uint64_t address)
{
    const qn_cuda_pool_memory *m = context;
    QN_TRY(qn_cuda_make_current(m->cuda));
    QN_TRY(map(m, address));
    const qn_status status = make_zeros(m, address);
    if (status)
        unmap_after_failure(m, address, status);
    return status;
}

/* Poisons an item that has become free. The device has completed all work on it. A failure appears in the next call of
 * the driver. */
static void poison_item(void *context, uint64_t address, size_t bytes)
{
    const qn_cuda_pool_memory *m = context;
    (void)qn_cuda_poison_cache(m->cuda, m->stream, address, bytes);
}

static void release(void *context, uint64_t address)
{
    const qn_cuda_pool_memory *m = context;
    if (!qn_cuda_pool_memory_wait(m))
        (void)m->cuda->driver->cuMemUnmap(address, m->granule);
}

qn_status qn_cuda_pool_memory_wait(const qn_cuda_pool_memory *m)
{
    return qn_cuda_event_synchronize(m->cuda, m->zeroed);
}

/* ---- Opening ---- */

/* Chooses the size of granules. Mapping 32 MiB takes the driver about as long as mapping 2 MiB: granules are the
 * largest size with which the budget has at least GRANULES granules. */
static qn_status find_granule(qn_cuda *cuda, uint64_t budget, size_t *granule)
{
    enum { LARGEST = 32 << 20, GRANULES = 1024 };
    const qn_cu_memory_properties properties = properties_of(cuda);
    int supported = 0;
    QN_TRY(qn_cuda_make_current(cuda));
    QN_TRY(QN_CU(cuda->driver, cuDeviceGetAttribute, &supported, QN_CU_DEVICE_VIRTUAL_MEMORY, cuda->device));
    if (!supported)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: has no virtual memory management, which sessions need",
                       cuda->info.name);
    QN_TRY(QN_CU(cuda->driver, cuMemGetAllocationGranularity, granule, &properties, QN_CU_GRANULARITY_MINIMUM));
    if (*granule == 0 || *granule & (*granule - 1))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: memory is mapped in units of %zu bytes, expected a power of two",
                       cuda->info.name, *granule);
    while (*granule < LARGEST && budget / *granule >= 2 * GRANULES)
        *granule *= 2;
    return QN_OK;
}

qn_status qn_cuda_pool_memory_open(qn_cuda *cuda, const qn_cuda_work_stream *work, uint64_t budget,
                                   qn_cuda_pool_memory *context, qn_pool_memory *memory)
{
    *context = (qn_cuda_pool_memory){ .cuda = cuda, .work = *work };
    QN_TRY(find_granule(cuda, budget, &context->granule));
    QN_TRY(qn_cuda_stream_create(cuda, &context->stream));
    QN_TRY(qn_cuda_event_create(cuda, &context->zeroed));
    *memory = (qn_pool_memory){ .context = context,
                                .granule = context->granule,
                                .reserve = reserve,
                                .unreserve = unreserve,
                                .commit = commit,
                                .release = release,
                                .on_free = qn_cuda_poisons(cuda) ? poison_item : NULL };
    return QN_OK;
}

void qn_cuda_pool_memory_close(qn_cuda_pool_memory *context)
{
    if (context->cuda)
        qn_cuda_event_free(context->cuda, context->zeroed);
    if (context->stream)
        qn_cuda_stream_free(context->cuda, context->stream);
    *context = (qn_cuda_pool_memory){ 0 };
}
