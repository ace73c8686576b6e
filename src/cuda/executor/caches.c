/* The tables of codecs, the arguments of kernels for a layer's cache, and the pool. */
#include "cuda/executor/caches.h"

#include "base/memory.h"
#include "cuda/runtime/pool_memory.h"

#include <pthread.h>
#include <string.h>

enum { ALIGN = 256 };

struct qn_cuda_caches {
    qn_cuda_common *common;
    qn_cuda_pool_memory memory;
    qn_pool *pool; /* NULL until the first format is created */
    qn_pool_class *states, *open_chunks, *head_rows;
    uint32_t *slots;
    qn_cuda_format *formats;
    pthread_mutex_t lock; /* protects pool, classes and formats */
    bool has_lock;
};

void qn_cuda_layer_cache(const qn_cuda_format *format, size_t layer, qn_attention_gpu_cache *cache,
                         qn_attention_gpu_pages *pages)
{
    const qn_gpu_layer_cache l = qn_gpu_layer_cache_of(&format->base, layer);
    *cache = (qn_attention_gpu_cache){ .keys = l.keys,
                                       .values = l.values,
                                       .key_scales = l.key_scales,
                                       .value_scales = l.value_scales,
                                       .key_head_stride = l.key_head,
                                       .value_head_stride = l.value_head,
                                       .scale_head_stride = l.scale_head };
    *pages =
        (qn_attention_gpu_pages){ .keys = l.f16_keys, .values = l.f16_values, .means = l.means, .head = l.f16_head };
}

/* ---- Codecs ---- */

static void add_table(qn_cuda_format *f, uint8_t *host, size_t *used, const float *table, size_t count,
                      uint64_t *address)
{
    if (host && table)
        memcpy(host + *used, table, count * sizeof *table);
    *address = table ? f->tables.address + *used : 0;
    *used += table ? qn_round_up(count * sizeof *table, ALIGN) : 0;
}

static size_t add_tables(qn_cuda_format *f, uint8_t *host)
{
    const qn_aura_codec *const codecs[2] = { f->base.aura.keys, f->base.aura.values };
    size_t used = 0;
    for (size_t i = 0; i < 2; i++) {
        const qn_aura_codec *codec = codecs[i];
        qn_cuda_codec *to = &f->codecs[i];
        const size_t levels = (size_t)1 << codec->bits, square = codec->dim * codec->dim;
        add_table(f, host, &used, codec->boundaries, levels - 1, &to->levels.boundaries);
        add_table(f, host, &used, codec->codebook, levels, &to->levels.codebook);
        add_table(f, host, &used, codec->signs, codec->dim, &to->rotation.signs);
        add_table(f, host, &used, codec->signs ? NULL : codec->transpose, square, &to->rotation.forward);
        add_table(f, host, &used, codec->signs ? NULL : codec->rotation, square, &to->rotation.inverse);
        to->gain = qn_attention_gpu_gain(codec->codebook, levels);
    }
    return used;
}

static qn_status create_tables(qn_cuda_format *f, qn_cuda *cuda)
{
    uint8_t *host;
    const size_t bytes = add_tables(f, NULL);
    QN_TRY(qn_cuda_alloc(cuda, bytes, 1, "codebooks on the GPU", &f->tables));
    QN_TRY(qn_alloc(&host, bytes, 1, "codebooks"));
    (void)add_tables(f, host);
    const qn_status status = qn_cuda_upload(cuda, f->tables.address, host, bytes, NULL, NULL);
    qn_free(host);
    return status;
}

/* ---- The pool ---- */

static void free_pool(qn_cuda_caches *c)
{
    qn_pool_free(c->pool);
    qn_cuda_pool_memory_close(&c->memory);
    c->pool = NULL;
}

static qn_status fill_pool(qn_cuda_caches *c)
{
    qn_pool_memory memory;
    size_t available;
    uint64_t budget = c->common->memory_limit;
    if (!budget) {
        QN_TRY(qn_cuda_available_memory(c->common->cuda, &available));
        budget = qn_gpu_pool_budget(available);
    }
    if (c->common->memory_share > 0)
        budget = (uint64_t)((double)budget * c->common->memory_share);
    const qn_cuda_work_stream work = { c->common->stream, &c->common->stream_lock };
    QN_TRY(qn_cuda_pool_memory_open(c->common->cuda, &work, budget, &c->memory, &memory));
    QN_TRY(qn_pool_create(&memory, budget, qn_gpu_pool_idle(budget), &c->pool));
    QN_TRY(qn_gpu_add_head_rows(c->pool, c->common->plan, &c->head_rows));
    return qn_gpu_add_states(c->pool, c->common->plan, &c->states, &c->open_chunks);
}

/* Called when the weights are on the device. */
static qn_status create_pool(qn_cuda_caches *c)
{
    const qn_status status = c->pool ? QN_OK : fill_pool(c);
    if (status != QN_OK)
        free_pool(c);
    return status;
}

/* ---- Formats ---- */

static void free_format(qn_cuda_format *f, qn_cuda *cuda)
{
    qn_cuda_free(cuda, &f->tables);
    qn_gpu_format_free(&f->base);
    qn_free(f);
}

/* Copies are queued in the model's stream, in order with steps. */
static qn_status copy_item(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    qn_cuda_common *common = ((const qn_cuda_caches *)context)->common;
    pthread_mutex_lock(&common->stream_lock);
    qn_status status = qn_cuda_copy_d2d(common->cuda, common->stream, to, from, bytes);
    if (status == QN_OK)
        status = qn_cuda_stream_synchronize(common->cuda, common->stream);
    pthread_mutex_unlock(&common->stream_lock);
    return status;
}

/* Spilled items: no step writes an item that is shared or that no sequence holds, so that these copies need not wait
 * for steps. */
static qn_status copy_out(void *context, void *to, uint64_t from, size_t bytes)
{
    const qn_cuda_caches *c = context;
    return qn_cuda_download_staged(c->common->cuda, to, from, bytes);
}

static qn_status copy_in(void *context, uint64_t to, const void *from, size_t bytes)
{
    return qn_cuda_caches_upload(context, to, from, bytes);
}

qn_status qn_cuda_caches_upload(const qn_cuda_caches *c, uint64_t to, const void *from, size_t bytes)
{
    QN_TRY(qn_cuda_pool_memory_wait(&c->memory));
    return qn_cuda_upload(c->common->cuda, to, from, bytes, NULL, NULL);
}

/* Classes are added last: no later step can fail. */
static qn_status create_format(qn_cuda_caches *c, const qn_kv_format *format, qn_cuda_format *f)
{
    const qn_plan *plan = c->common->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    if (format->is_f32)
        return qn_fail(QN_ERR_UNSUPPORTED, "cache format '%s' is not supported on a GPU, only on the CPU",
                       format->name);
    if (format->key_bits) {
        f->attention.key_bits = format->key_bits;
        f->attention.value_bits = format->value_bits;
        f->attention.pages = true;
    }
    QN_TRY(qn_attention_gpu_check(&f->attention));
    QN_TRY(qn_gpu_format_init(plan, format, c->slots, &f->base));
    f->base.cache = (qn_cache){ .states = c->states,
                                .open_chunks = c->open_chunks,
                                .folds_whole_chunks = f->base.saved.n_recurrent &&
                                                      qn_gdn_gpu_has_chunks(r->head_k, r->head_v, &c->common->gdn),
                                .max_dropped = QN_GDN_DROPPED_ROWS,
                                .copy = copy_item,
                                .copy_out = copy_out,
                                .copy_in = copy_in,
                                .context = c };
    f->base.head_rows = c->head_rows;
    if (f->base.aura.keys)
        QN_TRY(create_tables(f, c->common->cuda));
    return qn_gpu_format_add_pages(c->pool, &f->base);
}

static qn_status add_format(qn_cuda_caches *c, const qn_kv_format *format, const qn_cuda_format **out)
{
    qn_cuda_format *f;
    QN_TRY(create_pool(c));
    QN_TRY(qn_alloc(&f, 1, sizeof *f, "session"));
    *f = (qn_cuda_format){ .attention = c->common->attention, .codecs = { { .gain = 1 }, { .gain = 1 } } };
    const qn_status status = create_format(c, format, f);
    if (status != QN_OK) {
        free_format(f, c->common->cuda);
        return status;
    }
    f->next = c->formats;
    *out = c->formats = f;
    return QN_OK;
}

qn_status qn_cuda_caches_find(qn_cuda_caches *c, const qn_kv_format *format, const qn_cuda_format **out)
{
    pthread_mutex_lock(&c->lock);
    qn_status status = QN_OK;
    const qn_cuda_format *f = c->formats;
    while (f && f->base.format != format)
        f = f->next;
    *out = f;
    if (!f)
        status = add_format(c, format, out);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- Creation ---- */

static qn_status create(qn_cuda_caches *c)
{
    const int error = pthread_mutex_init(&c->lock, NULL);
    if (error)
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    c->has_lock = true;
    return qn_gpu_layer_slots(c->common->plan, &c->slots);
}

qn_status qn_cuda_caches_create(qn_cuda_common *common, qn_cuda_caches **out)
{
    qn_cuda_caches *c;
    *out = NULL;
    QN_TRY(qn_alloc(&c, 1, sizeof *c, "device"));
    c->common = common;
    const qn_status status = create(c);
    if (status != QN_OK) {
        qn_cuda_caches_free(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

qn_cuda_common *qn_cuda_caches_common(const qn_cuda_caches *c)
{
    return c->common;
}

void qn_cuda_caches_free(qn_cuda_caches *c)
{
    if (!c)
        return;
    free_pool(c);
    for (qn_cuda_format *f = c->formats, *next; f; f = next) {
        next = f->next;
        free_format(f, c->common->cuda);
    }
    if (c->has_lock)
        pthread_mutex_destroy(&c->lock);
    qn_free(c->slots);
    qn_free(c);
}
