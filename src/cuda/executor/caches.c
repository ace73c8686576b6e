/* The layout of items, the tables of codecs, and the pool with its budget. */
#include "cuda/executor/caches.h"

#include "base/memory.h"
#include "cuda/runtime/pool_memory.h"

#include <pthread.h>
#include <string.h>

enum { ALIGN = 256, IDLE_SHARE = 16 };
_Static_assert((int)QN_PAGE == (int)QN_PAGE && (int)QN_PAGE == (int)QN_GDN_CHUNK,
               "pages and chunks are the same on every device");

struct qn_cuda_caches {
    qn_cuda_common *common;
    qn_cuda_pool_memory memory;
    qn_pool *pool; /* NULL until the first format is created */
    qn_pool_class *states, *open_chunks;
    uint32_t *slots;
    size_t n_attention, n_recurrent;
    qn_cuda_format *formats;
    pthread_mutex_t lock; /* protects pool, classes and formats */
    bool has_lock;
};

/* ---- Layout ---- */

/* Appends an array of `heads` times `bytes` at *used, aligned; *at is its offset. False on overflow. */
static bool add_array(size_t *used, size_t heads, size_t bytes, size_t *at)
{
    size_t all;
    *at = *used;
    return qn_mul_size(heads, bytes, &all) && qn_add_size(all, ALIGN - 1, &all) &&
           qn_add_size(*used, all / ALIGN * ALIGN, used);
}

static qn_status lay_out_pages(const qn_attention_gpu *a, size_t n_layers, qn_cuda_kv_layout *l)
{
    const size_t heads = a->n_kv_heads, f16_rows = QN_PAGE * a->head_dim * sizeof(uint16_t),
                 scales = QN_PAGE * sizeof(float);
    size_t bytes, f16_bytes;
    l->key_row = qn_attention_gpu_row_bytes(a->head_dim, a->key_bits);
    l->value_row = qn_attention_gpu_row_bytes(a->head_dim, a->value_bits);
    bool fits = add_array(&l->layer_bytes, heads, QN_PAGE * l->key_row, &l->keys) &&
                add_array(&l->layer_bytes, heads, QN_PAGE * l->value_row, &l->values);
    if (a->pages)
        fits = fits && add_array(&l->layer_bytes, heads, scales, &l->key_scales) &&
               add_array(&l->layer_bytes, heads, scales, &l->value_scales) &&
               add_array(&l->f16_layer_bytes, heads, f16_rows, &l->f16_keys) &&
               add_array(&l->f16_layer_bytes, heads, f16_rows, &l->f16_values) &&
               add_array(&l->f16_layer_bytes, heads, a->head_dim * sizeof(float), &l->means);
    if (fits && qn_mul_size(n_layers, l->layer_bytes, &bytes) && qn_mul_size(n_layers, l->f16_layer_bytes, &f16_bytes))
        return QN_OK;
    return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers of %zu heads do not fit in memory", n_layers,
                   heads);
}

static void lay_out_states(const qn_recurrent_shape *r, qn_cuda_recurrent_layout *l)
{
    l->history = qn_gdn_gpu_history(r->n_v_heads, r->head_k, r->head_v);
    l->state_layer_bytes = qn_gdn_gpu_state_bytes(r->n_k_heads, r->n_v_heads, r->head_k, r->head_v, r->taps);
    l->open = qn_gdn_gpu_open_layout(r->n_k_heads, r->n_v_heads, r->head_k, r->head_v, r->taps);
}

size_t qn_cuda_recurrent_index(const qn_plan *plan, int layer)
{
    size_t index = 0;
    for (int i = 0; i < layer; i++)
        index += plan->is_recurrent[i];
    return index;
}

uint64_t qn_cuda_state_offset(const qn_plan *plan, int layer)
{
    qn_cuda_recurrent_layout l;
    lay_out_states(&plan->recurrent, &l);
    return qn_cuda_recurrent_index(plan, layer) * l.state_layer_bytes;
}

qn_gdn_open_layout qn_cuda_open_layout(const qn_plan *plan, int layer)
{
    qn_cuda_recurrent_layout l;
    lay_out_states(&plan->recurrent, &l);
    const uint64_t offset = qn_cuda_recurrent_index(plan, layer) * l.open.bytes;
    l.open.keys += offset;
    l.open.values += offset;
    l.open.scales += offset;
    l.open.decays += offset;
    l.open.inputs += offset;
    return l.open;
}

void qn_cuda_layer_cache(const qn_cuda_format *format, size_t layer, qn_attention_gpu_cache *cache,
                         qn_attention_gpu_pages *pages)
{
    const qn_cuda_kv_layout *l = &format->kv;
    const uint64_t at = format->slots[layer] * l->layer_bytes, f16_at = format->slots[layer] * l->f16_layer_bytes;
    *cache = (qn_attention_gpu_cache){ .keys = at + l->keys,
                                       .values = at + l->values,
                                       .key_head_stride = QN_PAGE * l->key_row,
                                       .value_head_stride = QN_PAGE * l->value_row };
    *pages = (qn_attention_gpu_pages){ 0 };
    if (!format->attention.pages)
        return;
    cache->key_scales = at + l->key_scales;
    cache->value_scales = at + l->value_scales;
    cache->scale_head_stride = QN_PAGE * sizeof(float);
    *pages = (qn_attention_gpu_pages){ .keys = f16_at + l->f16_keys,
                                       .values = f16_at + l->f16_values,
                                       .means = f16_at + l->means,
                                       .head = QN_PAGE * format->attention.head_dim * sizeof(uint16_t) };
}

uint64_t qn_cuda_format_bytes(const qn_cuda_format *f, size_t length)
{
    const qn_attention_gpu *a = &f->attention;
    const uint64_t heads = (uint64_t)f->n_attention * a->n_kv_heads, f16_row = 2 * a->head_dim * sizeof(uint16_t);
    const uint64_t fixed = f->n_recurrent * (f->recurrent.state_layer_bytes + f->recurrent.open.bytes);
    if (!a->pages)
        return fixed + heads * length * (f->kv.key_row + f->kv.value_row);
    const size_t quantized = length > QN_PAGE ? length / QN_PAGE * QN_PAGE - QN_PAGE : 0;
    return fixed + heads * (quantized * (f->kv.key_row + f->kv.value_row + 2 * sizeof(float)) +
                            (length - quantized) * f16_row + (length < QN_PAGE ? 0 : a->head_dim * sizeof(float)));
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
    const qn_aura_codec *const codecs[2] = { f->aura.keys, f->aura.values };
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

/* Memory left free for workspaces and other processes: a tenth, at least 1 GiB but at most half. */
static uint64_t default_budget(uint64_t available)
{
    const uint64_t gib = (uint64_t)1 << 30, tenth = available / 10, margin = tenth > gib ? tenth : gib;
    return available - (margin < available / 2 ? margin : available / 2);
}

static qn_status create_classes(qn_cuda_caches *c)
{
    qn_cuda_recurrent_layout l;
    if (!c->n_recurrent)
        return QN_OK;
    lay_out_states(&c->common->plan->recurrent, &l);
    QN_TRY(qn_pool_add_class(c->pool, "recurrent state on the GPU", c->n_recurrent * l.state_layer_bytes, &c->states));
    return qn_pool_add_class(c->pool, "open chunk on the GPU", c->n_recurrent * l.open.bytes, &c->open_chunks);
}

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
        budget = default_budget(available);
    }
    const qn_cuda_work_stream work = { c->common->stream, &c->common->stream_lock };
    QN_TRY(qn_cuda_pool_memory_open(c->common->cuda, &work, budget, &c->memory, &memory));
    QN_TRY(qn_pool_create(&memory, budget, budget / IDLE_SHARE, &c->pool));
    return create_classes(c);
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
    qn_aura_codecs_delete(&f->aura);
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

static qn_status add_page_classes(qn_cuda_caches *c, qn_cuda_format *f)
{
    qn_cache *cache = &f->cache;
    if (!f->n_attention)
        return QN_OK;
    QN_TRY(qn_pool_add_class(c->pool, "page of keys and values on the GPU", f->n_attention * f->kv.layer_bytes,
                             &cache->pages));
    f->page_base = qn_pool_base(cache->pages);
    f->page_stride = qn_pool_stride(cache->pages);
    if (!f->attention.pages)
        return QN_OK;
    const qn_status status = qn_pool_add_class(c->pool, "fp16 page of keys and values on the GPU",
                                               f->n_attention * f->kv.f16_layer_bytes, &cache->f16_pages);
    if (status != QN_OK) {
        qn_pool_remove_class(c->pool, cache->pages);
        return status;
    }
    f->f16_page_base = qn_pool_base(cache->f16_pages);
    f->f16_page_stride = qn_pool_stride(cache->f16_pages);
    return QN_OK;
}

/* Classes are added last: no later step can fail. */
static qn_status create_format(qn_cuda_caches *c, qn_cuda_format *f)
{
    const qn_plan *plan = c->common->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    if (f->format->key_bits) {
        f->attention.key_bits = f->format->key_bits;
        f->attention.value_bits = f->format->value_bits;
        f->attention.pages = true;
    }
    QN_TRY(qn_attention_gpu_check(&f->attention));
    QN_TRY(lay_out_pages(&f->attention, f->n_attention, &f->kv));
    QN_TRY(qn_aura_codecs_new(&f->aura, plan->heads.head_dim, f->format->key_bits, f->format->value_bits, QN_KV_SEED));
    f->saved = qn_saved_layout_of(plan, f->format);
    if (f->n_recurrent)
        lay_out_states(r, &f->recurrent);
    f->cache = (qn_cache){ .states = c->states,
                           .open_chunks = c->open_chunks,
                           .folds_whole_chunks =
                               f->n_recurrent && qn_gdn_gpu_has_chunks(r->head_k, r->head_v, &c->common->gdn),
                           .max_dropped = QN_GDN_DROPPED_ROWS,
                           .copy = copy_item,
                           .copy_out = copy_out,
                           .copy_in = copy_in,
                           .context = c };
    if (f->aura.keys)
        QN_TRY(create_tables(f, c->common->cuda));
    return add_page_classes(c, f);
}

static qn_status add_format(qn_cuda_caches *c, const qn_kv_format *format, const qn_cuda_format **out)
{
    qn_cuda_format *f;
    QN_TRY(create_pool(c));
    QN_TRY(qn_alloc(&f, 1, sizeof *f, "session"));
    *f = (qn_cuda_format){ .format = format,
                           .attention = c->common->attention,
                           .codecs = { { .gain = 1 }, { .gain = 1 } },
                           .slots = c->slots,
                           .n_attention = c->n_attention,
                           .n_recurrent = c->n_recurrent };
    const qn_status status = create_format(c, f);
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
    while (f && f->format != format)
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
    const qn_plan *plan = c->common->plan;
    const int error = pthread_mutex_init(&c->lock, NULL);
    if (error)
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    c->has_lock = true;
    QN_TRY(qn_alloc(&c->slots, plan->n_layers, sizeof *c->slots, "device"));
    for (size_t i = 0; i < plan->n_layers; i++)
        c->slots[i] = (uint32_t)(plan->is_recurrent && plan->is_recurrent[i] ? c->n_recurrent++ : c->n_attention++);
    /* Sizes of the GPU's layout are no larger than those of files. */
    return c->n_recurrent ? qn_saved_check_recurrent(&plan->recurrent, plan->n_layers) : QN_OK;
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
