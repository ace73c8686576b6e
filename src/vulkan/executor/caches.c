/* The pool is created with the first memory. Copies of items wait for steps in flight. */
#include "vulkan/executor/caches.h"

#include "base/memory.h"

#include <string.h>

enum { TABLE_ALIGN = 256 };

/* ---- Page tables: mapped memory, of which a step reads the version of its block ---- */

/* Versions are contiguous. is_old: entries on the host have changed since the version was written. */
struct versions {
    qn_vk_buffer buffer;
    bool is_old[QN_VK_BLOCKS];
};

size_t qn_vk_refresh_tables(const qn_gpu_memory *memory, size_t block)
{
    const qn_gpu_table_buffers *buffers = &memory->tables->buffers;
    struct versions *versions = buffers->copied;
    const size_t at = block * buffers->bytes;
    if (versions->is_old[block])
        memcpy(versions->buffer.host + at, buffers->host, buffers->bytes);
    versions->is_old[block] = false;
    return at;
}

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
    struct versions *versions = buffers->copied;
    if (versions)
        qn_vk_free(c->common->vk, &versions->buffer);
    qn_free(versions);
    qn_free(buffers->host);
    *buffers = (qn_gpu_table_buffers){ 0 };
}

static qn_status allocate_tables(void *context, size_t bytes, qn_gpu_table_buffers *buffers)
{
    const qn_vk_caches *c = context;
    struct versions *versions;
    size_t all;
    *buffers = (qn_gpu_table_buffers){ 0 };
    if (!qn_mul_size(bytes, QN_VK_BLOCKS, &all))
        return qn_fail(QN_ERR_MEMORY, "page tables: %zu bytes do not fit in memory", bytes);
    QN_TRY(qn_alloc(&versions, 1, sizeof *versions, "page tables"));
    buffers->copied = versions;
    QN_TRY(qn_alloc(&buffers->host, bytes, 1, "page tables"));
    QN_TRY(qn_vk_alloc(c->common->vk, all, QN_VK_SHARED, "page tables", &versions->buffer));
    memset(versions->buffer.host, 0, versions->buffer.bytes);
    buffers->address = versions->buffer.address;
    buffers->bytes = bytes;
    return QN_OK;
}

static qn_status copy_entries(void *context, const qn_gpu_table_buffers *buffers, size_t offset, size_t bytes)
{
    struct versions *versions = buffers->copied;
    (void)context;
    (void)offset;
    (void)bytes;
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        versions->is_old[i] = true;
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
    qn_vk_drain(((const qn_vk_caches *)context)->common->vk);
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

static qn_status fill_pool(qn_vk_caches *c)
{
    /* States, open chunks; pages of fp16; of each other format, pages and fp16 pages. */
    enum { MAX_FORMATS_OF_CODES = 8, MAX_CLASSES = 3 + 2 * MAX_FORMATS_OF_CODES };
    const uint64_t has = qn_vk_get_info(c->common->vk)->memory_bytes, weights = c->weights->bytes;
    const uint64_t budget =
        c->common->memory_limit ? c->common->memory_limit : qn_gpu_pool_budget(has > weights ? has - weights : 0);
    qn_pool_memory memory;
    QN_TRY(qn_vk_pool_memory_open(c->common->vk, budget, MAX_CLASSES, &c->memory, &memory));
    QN_TRY(qn_pool_create(&memory, budget, qn_gpu_pool_idle(budget), &c->pool));
    return qn_gpu_add_states(c->pool, c->common->plan, &c->states, &c->open_chunks);
}

static void free_pool(qn_vk_caches *c)
{
    qn_pool_free(c->pool);
    qn_vk_pool_memory_close(&c->memory);
    c->pool = NULL;
    c->states = c->open_chunks = NULL;
}

static qn_status create_pool(qn_vk_caches *c)
{
    const qn_status status = c->pool ? QN_OK : fill_pool(c);
    if (status != QN_OK)
        free_pool(c);
    return status;
}

/* ---- Formats ---- */

/* Appends floats at *used; `host` NULL: only counts. Returns their address. */
static uint64_t add_table(const qn_vk_cache_format *f, uint8_t *host, size_t *used, const float *table, size_t count)
{
    const uint64_t address = table ? f->tables.address + *used : 0;
    if (host && table)
        memcpy(host + *used, table, count * sizeof *table);
    *used += table ? qn_round_up(count * sizeof *table, TABLE_ALIGN) : 0;
    return address;
}

static qn_vk_rotation add_rotation(const qn_vk_cache_format *f, uint8_t *host, size_t *used, const qn_aura_codec *codec)
{
    const size_t square = codec->dim * codec->dim;
    return (qn_vk_rotation){ .signs = add_table(f, host, used, codec->signs, codec->dim),
                             .forward = add_table(f, host, used, codec->signs ? NULL : codec->transpose, square),
                             .inverse = add_table(f, host, used, codec->signs ? NULL : codec->rotation, square),
                             .factor = qn_hadamard_scale(codec->dim) };
}

static size_t add_tables(qn_vk_cache_format *f, uint8_t *host)
{
    size_t used = sizeof(qn_vk_levels);
    f->levels = f->tables.address;
    f->key_rotation = add_rotation(f, host, &used, f->base.aura.keys);
    f->value_rotation = add_rotation(f, host, &used, f->base.aura.values);
    return used;
}

static void fill_levels(const qn_aura_codec *codec, float *boundaries, float *codebook)
{
    const size_t n = (size_t)1 << codec->bits;
    memcpy(boundaries, codec->boundaries, (n - 1) * sizeof *boundaries);
    memcpy(codebook, codec->codebook, n * sizeof *codebook);
}

static qn_status create_tables(qn_vk_cache_format *f, qn_vk *vk)
{
    const size_t bytes = add_tables(f, NULL);
    uint8_t *host;
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_ON_DEVICE, "codebooks", &f->tables));
    QN_TRY(qn_alloc(&host, bytes, 1, "codebooks"));
    qn_vk_levels *levels = (qn_vk_levels *)(void *)host;
    fill_levels(f->base.aura.keys, levels->keys.boundaries, levels->keys.codebook);
    fill_levels(f->base.aura.values, levels->values.boundaries, levels->values.codebook);
    (void)add_tables(f, host);
    const qn_status status = qn_vk_write(vk, &f->tables, 0, host, bytes);
    qn_free(host);
    return status;
}

static void free_format(qn_vk_cache_format *f, qn_vk *vk)
{
    qn_vk_free(vk, &f->tables);
    qn_gpu_format_free(&f->base);
    qn_free(f);
}

/* Classes are added last: no later step can fail. */
static qn_status create_format(qn_vk_caches *c, const qn_kv_format *format, qn_vk_cache_format *f)
{
    if (format->is_f32)
        return qn_fail(QN_ERR_UNSUPPORTED, "cache format '%s' is not supported by Vulkan devices, only by the CPU",
                       format->name);
    if (format->key_bits)
        f->codes = (qn_vk_codes){ format->key_bits, format->value_bits };
    QN_TRY(qn_gpu_format_init(c->common->plan, format, c->slots, &f->base));
    f->base.cache = (qn_cache){ .states = c->states,
                                .open_chunks = c->open_chunks,
                                .max_dropped = QN_GDN_DROPPED_ROWS,
                                .copy = copy_item,
                                .copy_out = read_item,
                                .copy_in = write_item,
                                .context = c };
    if (f->base.aura.keys)
        QN_TRY(create_tables(f, c->common->vk));
    return qn_gpu_format_add_pages(c->pool, &f->base);
}

static qn_status add_format(qn_vk_caches *c, const qn_kv_format *format, qn_vk_cache_format **out)
{
    qn_vk_cache_format *f;
    QN_TRY(create_pool(c));
    QN_TRY(qn_alloc(&f, 1, sizeof *f, "session"));
    *f = (qn_vk_cache_format){ .codes = { QN_VK_F16_BITS, QN_VK_F16_BITS } };
    const qn_status status = create_format(c, format, f);
    if (status != QN_OK) {
        free_format(f, c->common->vk);
        return status;
    }
    f->next = c->formats;
    *out = c->formats = f;
    return QN_OK;
}

/* Finds a format; the first call for it creates it. */
static qn_status find_format(qn_vk_caches *c, const qn_kv_format *format, qn_vk_cache_format **out)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&c->lock);
    qn_vk_cache_format *f = c->formats;
    while (f && f->base.format != format)
        f = f->next;
    *out = f;
    if (!f)
        status = add_format(c, format, out);
    pthread_mutex_unlock(&c->lock);
    return status;
}

qn_status qn_vk_memory_create(qn_vk_caches *c, const qn_memory_params *params, qn_memory **out)
{
    const qn_gpu_copies copies = { .context = c, .read = read_item, .write = write_item };
    qn_vk_cache_format *format;
    *out = NULL;
    QN_TRY(find_format(c, params->format, &format));
    return qn_gpu_memory_create(&format->base, &c->kept_tables, &copies, params->n_ctx, out);
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
    for (qn_vk_cache_format *f = c->formats, *next; f; f = next) {
        next = f->next;
        free_format(f, c->common->vk);
    }
    qn_free(c->slots);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->tables_lock);
}
