/* Memory of page tables, and copies of items, on a CUDA device. */
#include "cuda/executor/memory.h"

#include "cuda/runtime/provoke.h"

#include <string.h>

/* ---- Page tables: copies are queued in the stream of the steps ---- */

static qn_cuda_event copied_of(const qn_gpu_table_buffers *buffers)
{
    return buffers->copied;
}

static void lock(void *context)
{
    qn_cuda_common *common = context;
    pthread_mutex_lock(&common->stream_lock);
}

static void unlock(void *context)
{
    qn_cuda_common *common = context;
    pthread_mutex_unlock(&common->stream_lock);
}

static qn_status allocate(void *context, size_t bytes, qn_gpu_table_buffers *buffers)
{
    qn_cuda_common *common = context;
    qn_cuda_buffer device;
    qn_cuda_event copied = NULL;
    qn_status status = qn_cuda_alloc(common->cuda, bytes, 1, "page tables on the GPU", &device);
    buffers->address = device.address;
    buffers->bytes = device.bytes;
    if (status == QN_OK)
        status = qn_cuda_alloc_host(common->cuda, bytes, "page tables", (void **)&buffers->host);
    if (status == QN_OK)
        status = qn_cuda_event_create(common->cuda, &copied);
    buffers->copied = copied;
    if (status != QN_OK)
        return status;
    memset(buffers->host, 0, bytes);
    lock(common);
    status = qn_cuda_memset(common->cuda, common->stream, buffers->address, 0, bytes);
    unlock(common);
    return status;
}

static void free_buffers(void *context, qn_gpu_table_buffers *buffers)
{
    qn_cuda *cuda = ((qn_cuda_common *)context)->cuda;
    qn_cuda_buffer device = { buffers->address, buffers->bytes };
    qn_cuda_free(cuda, &device);
    qn_cuda_free_host(cuda, buffers->host);
    qn_cuda_event_free(cuda, copied_of(buffers));
}

static qn_status copy(void *context, const qn_gpu_table_buffers *buffers, size_t offset, size_t bytes)
{
    const qn_cuda_common *common = context;
    return qn_cuda_copy_h2d(common->cuda, common->stream, buffers->address + offset,
                            (const uint8_t *)buffers->host + offset, bytes);
}

static qn_status end_copies(void *context, const qn_gpu_table_buffers *buffers)
{
    const qn_cuda_common *common = context;
    return qn_cuda_event_record(common->cuda, copied_of(buffers), common->stream);
}

static qn_status wait(void *context, const qn_gpu_table_buffers *buffers)
{
    const qn_cuda_common *common = context;
    return qn_cuda_event_synchronize(common->cuda, copied_of(buffers));
}

static void drain(void *context)
{
    const qn_cuda_common *common = context;
    (void)qn_cuda_stream_synchronize(common->cuda, common->stream);
}

static void poison(void *context, const qn_gpu_table_buffers *buffers)
{
    const qn_cuda_common *common = context;
    (void)qn_cuda_poison(common->cuda, common->stream, buffers->address, buffers->bytes);
}

qn_status qn_cuda_kept_tables_init(qn_cuda_common *common, qn_gpu_kept_tables *kept)
{
    const qn_gpu_table_memory memory = { .context = common,
                                         .allocate = allocate,
                                         .free = free_buffers,
                                         .lock = lock,
                                         .unlock = unlock,
                                         .copy = copy,
                                         .end_copies = end_copies,
                                         .wait = wait,
                                         .drain = drain,
                                         .poison = qn_cuda_poisons(common->cuda) ? poison : NULL };
    return qn_gpu_kept_tables_init(&memory, kept);
}

/* ---- Items ---- */

static qn_status read_item(void *context, void *to, uint64_t from, size_t bytes)
{
    qn_cuda_common *common = qn_cuda_caches_common(context);
    lock(common);
    const qn_status status = qn_cuda_download(common->cuda, common->stream, to, from, bytes);
    unlock(common);
    return status;
}

static qn_status write_item(void *context, uint64_t to, const void *from, size_t bytes)
{
    return qn_cuda_caches_upload(context, to, from, bytes);
}

qn_status qn_cuda_memory_create(qn_cuda_caches *caches, qn_gpu_kept_tables *kept_tables, const qn_memory_params *params,
                                qn_memory **out)
{
    const qn_gpu_copies copies = { .context = caches, .read = read_item, .write = write_item };
    const qn_cuda_format *format;
    *out = NULL;
    QN_TRY(qn_cuda_caches_find(caches, params->format, &format));
    return qn_gpu_memory_create(&format->base, kept_tables, &copies, params->n_ctx, out);
}
