/* The pool is created with the first memory. Copies wait: no work is in flight when memories are used. */
#include "vulkan/executor/caches.h"

#include "base/memory.h"

#include <string.h>

/* ---- Page tables: mapped memory that the device reads ---- */

static void lock_tables(void *context)
{
    pthread_mutex_lock(&((qn_vk_caches *)context)->tables_lock);
}

static void unlock_tables(void *context)
{
    pthread_mutex_unlock(&((qn_vk_caches *)context)->tables_lock);
}

static void free_tables(void *context, qn_gpu_table_buffers *buffers)
{
    const qn_vk_caches *c = context;
    qn_vk_buffer *device = buffers->copied;
    if (device)
        qn_vk_free(c->common->vk, device);
    qn_free(device);
    qn_free(buffers->host);
    *buffers = (qn_gpu_table_buffers){ 0 };
}

/* `copied` has the buffer on the device: copies are complete when they return. */
static qn_status allocate_tables(void *context, size_t bytes, qn_gpu_table_buffers *buffers)
{
    const qn_vk_caches *c = context;
    qn_vk_buffer *device;
    *buffers = (qn_gpu_table_buffers){ 0 };
    QN_TRY(qn_alloc(&device, 1, sizeof *device, "page tables"));
    buffers->copied = device;
    QN_TRY(qn_alloc(&buffers->host, bytes, 1, "page tables"));
    QN_TRY(qn_vk_alloc(c->common->vk, bytes, QN_VK_SHARED, "page tables", device));
    memset(device->host, 0, device->bytes);
    buffers->address = device->address;
    buffers->bytes = bytes;
    return QN_OK;
}

static qn_status copy_entries(void *context, const qn_gpu_table_buffers *buffers, size_t offset, size_t bytes)
{
    const qn_vk_buffer *device = buffers->copied;
    (void)context;
    memcpy(device->host + offset, (const uint8_t *)buffers->host + offset, bytes);
    return QN_OK;
}

static qn_status is_complete(void *context, const qn_gpu_table_buffers *buffers)
{
    (void)context;
    (void)buffers;
    return QN_OK;
}

static void drain(void *context)
{
    (void)context;
}

/* ---- Items ---- */

static qn_status read_item(void *context, void *to, uint64_t from, size_t bytes)
{
    return qn_vk_pool_read(&((const qn_vk_caches *)context)->memory, to, from, bytes);
}

static qn_status write_item(void *context, uint64_t to, const void *from, size_t bytes)
{
    return qn_vk_pool_write(&((const qn_vk_caches *)context)->memory, to, from, bytes);
}

static qn_status copy_item(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    return qn_vk_pool_copy(&((const qn_vk_caches *)context)->memory, to, from, bytes);
}

/* ---- The pool ---- */

static qn_status fill_pool(qn_vk_caches *c, const qn_kv_format *format)
{
    enum { CLASSES = 3 /* pages, states, open chunks */ };
    const uint64_t has = qn_vk_get_info(c->common->vk)->memory_bytes, weights = c->weights->bytes;
    const uint64_t budget =
        c->common->memory_limit ? c->common->memory_limit : qn_gpu_pool_budget(has > weights ? has - weights : 0);
    qn_pool_memory memory;
    QN_TRY(qn_vk_pool_memory_open(c->common->vk, budget, CLASSES, &c->memory, &memory));
    QN_TRY(qn_pool_create(&memory, budget, qn_gpu_pool_idle(budget), &c->pool));
    QN_TRY(qn_gpu_format_init(c->common->plan, format, c->slots, &c->f16));
    c->f16.cache = (qn_cache){ .max_dropped = QN_GDN_DROPPED_ROWS,
                               .copy = copy_item,
                               .copy_out = read_item,
                               .copy_in = write_item,
                               .context = c };
    QN_TRY(qn_gpu_add_states(c->pool, c->common->plan, &c->f16.cache.states, &c->f16.cache.open_chunks));
    return qn_gpu_format_add_pages(c->pool, &c->f16);
}

static void free_pool(qn_vk_caches *c)
{
    qn_pool_free(c->pool);
    qn_vk_pool_memory_close(&c->memory);
    qn_gpu_format_free(&c->f16);
    c->pool = NULL;
    c->f16 = (qn_gpu_format){ 0 };
}

static qn_status create_pool(qn_vk_caches *c, const qn_kv_format *format)
{
    const qn_status status = c->pool ? QN_OK : fill_pool(c, format);
    if (status != QN_OK)
        free_pool(c);
    return status;
}

qn_status qn_vk_memory_create(qn_vk_caches *c, const qn_memory_params *params, qn_memory **out)
{
    const qn_gpu_copies copies = { .context = c, .read = read_item, .write = write_item };
    *out = NULL;
    if (params->format->is_f32 || params->format->key_bits)
        return qn_fail(QN_ERR_UNSUPPORTED, "cache format '%s' is not supported by Vulkan devices, only f16",
                       params->format->name);
    pthread_mutex_lock(&c->lock);
    const qn_status status = create_pool(c, params->format);
    pthread_mutex_unlock(&c->lock);
    QN_TRY(status);
    return qn_gpu_memory_create(&c->f16, &c->kept_tables, &copies, params->n_ctx, out);
}

/* ---- Creation ---- */

qn_status qn_vk_caches_create(const qn_vk_common *common, const qn_vk_weights *weights, qn_vk_caches *c)
{
    const qn_gpu_table_memory tables = { .context = c,
                                         .allocate = allocate_tables,
                                         .free = free_tables,
                                         .lock = lock_tables,
                                         .unlock = unlock_tables,
                                         .copy = copy_entries,
                                         .end_copies = is_complete,
                                         .wait = is_complete,
                                         .drain = drain };
    c->common = common;
    c->weights = weights;
    if (pthread_mutex_init(&c->lock, NULL))
        return qn_fail(QN_ERR_MEMORY, "device: no mutex");
    if (pthread_mutex_init(&c->tables_lock, NULL)) {
        pthread_mutex_destroy(&c->lock);
        return qn_fail(QN_ERR_MEMORY, "device: no mutex");
    }
    c->has_locks = true;
    QN_TRY(qn_gpu_kept_tables_init(&tables, &c->kept_tables));
    return qn_gpu_layer_slots(common->plan, &c->slots);
}

void qn_vk_caches_free(qn_vk_caches *c)
{
    if (!c->has_locks)
        return;
    qn_gpu_kept_tables_free(&c->kept_tables);
    free_pool(c);
    qn_free(c->slots);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->tables_lock);
}
