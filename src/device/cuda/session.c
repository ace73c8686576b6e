/* A session's memory on a CUDA device: the KV cache (rows as in kernels/kv_cuda.h), and the recurrent layers' state after
 * the last token. Every token overwrites that state, so recurrent sessions can be rewound only to a checkpoint or to
 * length 0. qn_kv_view in cache/view.h describes the fp16 pages and codes of an AURA cache. */
#include "device/cuda/model.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, PAGE = QN_ATTENTION_PAGE };
_Static_assert((int)PAGE == (int)QN_KV_PAGE, "pages are the same on every device");

typedef struct cuda_checkpoint {
    const qn_cuda_memory *of;
    qn_cuda_buffer recurrent, f16_pages; /* f16_pages: AURA, the fp16 page of the last position, layer by layer */
    uint32_t first_open_page;
} cuda_checkpoint;

static qn_cuda_memory *cuda_memory_of(qn_memory *memory)
{
    return (qn_cuda_memory *)memory;
}

static const qn_cuda_memory *cuda_memory_of_const(const qn_memory *memory)
{
    return (const qn_cuda_memory *)memory;
}

/* ---- Layout ---- */

static size_t n_quantized(size_t length)
{
    return length > PAGE ? length / PAGE * PAGE - PAGE : 0;
}

/* Appends an array of `heads` times `bytes` at *used, aligned; *at is its offset. False on overflow. */
static bool add_array(size_t *used, size_t heads, size_t bytes, size_t *at)
{
    size_t all;
    *at = *used;
    return qn_mul_size(heads, bytes, &all) && qn_add_size(all, ALIGN - 1, &all) &&
           qn_add_size(*used, all / ALIGN * ALIGN, used);
}

static qn_status lay_out(qn_cuda_memory *m, size_t n_batch)
{
    const qn_attention_gpu *a = &m->attention;
    qn_cuda_kv_layout *l = &m->kv;
    const size_t row = a->head_dim * sizeof(uint16_t);
    l->capacity = qn_round_up(m->n_ctx, PAGE);
    l->key_row = qn_attention_gpu_row_bytes(a->head_dim, a->key_bits);
    l->value_row = qn_attention_gpu_row_bytes(a->head_dim, a->value_bits);
    bool fits = add_array(&l->layer_bytes, a->n_kv_heads, l->capacity * l->key_row, &l->keys) &&
                add_array(&l->layer_bytes, a->n_kv_heads, l->capacity * l->value_row, &l->values);
    if (a->pages) {
        l->n_open_pages = (uint32_t)((n_batch + PAGE - 1) / PAGE + 1);
        l->f16_head = (1 + (size_t)l->n_open_pages) * PAGE * row;
        fits = fits && add_array(&l->layer_bytes, a->n_kv_heads, l->capacity * sizeof(float), &l->key_scales) &&
               add_array(&l->layer_bytes, a->n_kv_heads, l->capacity * sizeof(float), &l->value_scales) &&
               add_array(&l->layer_bytes, a->n_kv_heads, l->f16_head, &l->f16_keys) &&
               add_array(&l->layer_bytes, a->n_kv_heads, l->f16_head, &l->f16_values) &&
               add_array(&l->layer_bytes, a->n_kv_heads, a->head_dim * sizeof(float), &l->means);
    }
    return fits ? QN_OK : qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", m->n_ctx);
}

void qn_cuda_session_cache(const qn_cuda_memory *memory, size_t layer, qn_attention_gpu_cache *cache,
                           qn_attention_gpu_pages *pages)
{
    const qn_cuda_kv_layout *l = &memory->kv;
    const uint64_t at = memory->cache.address + memory->slots[layer] * l->layer_bytes;
    *cache = (qn_attention_gpu_cache){ .keys = at + l->keys,
                                       .values = at + l->values,
                                       .key_head_stride = l->capacity * l->key_row,
                                       .value_head_stride = l->capacity * l->value_row };
    *pages = (qn_attention_gpu_pages){ 0 };
    if (!memory->attention.pages)
        return;
    cache->key_scales = at + l->key_scales;
    cache->value_scales = at + l->value_scales;
    cache->scale_head_stride = l->capacity * sizeof(float);
    *pages = (qn_attention_gpu_pages){ .keys = at + l->f16_keys,
                                       .values = at + l->f16_values,
                                       .means = at + l->means,
                                       .head = l->f16_head,
                                       .n_open_pages = l->n_open_pages };
}

/* ---- fp16 pages of an AURA cache, managed as in cache/kv.c ---- */

static bool has_f16_page(size_t length, uint32_t from)
{
    const size_t page = length / PAGE;
    return length % PAGE == 0 || page == 0 || page >= from;
}

static size_t page_slot(const qn_cuda_memory *m, size_t page)
{
    return page ? 1 + (page - 1) % m->kv.n_open_pages : 0;
}

/* The cache is allocated for n_ctx positions. */
static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    (void)memory;
    (void)n;
    return QN_OK;
}

static void memory_on_append(qn_memory *memory, size_t length)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    if (!m->attention.pages || !length)
        return;
    const size_t last = (length - 1) / PAGE, from = last >= m->kv.n_open_pages ? last - m->kv.n_open_pages + 1 : 0;
    m->first_open_page = (uint32_t)(from > m->first_open_page ? from : m->first_open_page);
}

static size_t memory_rewind_length(const qn_memory *memory, size_t length)
{
    const qn_cuda_memory *m = cuda_memory_of_const(memory);
    return !m->attention.pages || has_f16_page(length, m->first_open_page) ? length : length / PAGE * PAGE;
}

static void memory_truncate(qn_memory *memory, size_t length)
{
    const uint32_t page = (uint32_t)(length / PAGE);
    cuda_memory_of(memory)->first_open_page =
        page < cuda_memory_of(memory)->first_open_page ? page : cuda_memory_of(memory)->first_open_page;
}

/* Only the state after the last token is stored. */
static size_t memory_open_tokens(size_t held)
{
    return held ? 1 : 0;
}

/* ---- Regions: the memory in use by some positions, in this device's order ---- */

/* Called for `bytes` bytes at offset `at` of a buffer: m->cache or m->recurrent. */
typedef qn_status (*region_fn)(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes);

static qn_status for_each_head(const qn_cuda_memory *m, size_t offset, size_t head_bytes, size_t bytes, region_fn on_region,
                               void *context)
{
    for (size_t head = 0; bytes && head < m->attention.n_kv_heads; head++)
        QN_TRY(on_region(context, &m->cache, offset + head * head_bytes, bytes));
    return QN_OK;
}

static qn_status for_each_region_of_layer(const qn_cuda_memory *m, size_t at, size_t length, region_fn on_region, void *context)
{
    const qn_cuda_kv_layout *l = &m->kv;
    const size_t rows = m->attention.pages ? n_quantized(length) : length, row = m->attention.head_dim * sizeof(uint16_t);
    QN_TRY(for_each_head(m, at + l->keys, l->capacity * l->key_row, rows * l->key_row, on_region, context));
    QN_TRY(for_each_head(m, at + l->values, l->capacity * l->value_row, rows * l->value_row, on_region, context));
    if (!m->attention.pages)
        return QN_OK;
    const size_t first = length < PAGE ? length : PAGE, open_tokens = length < PAGE ? 0 : length % PAGE;
    const size_t open_at = page_slot(m, length / PAGE) * PAGE * row, scales = l->capacity * sizeof(float);
    QN_TRY(for_each_head(m, at + l->key_scales, scales, rows * sizeof(float), on_region, context));
    QN_TRY(for_each_head(m, at + l->value_scales, scales, rows * sizeof(float), on_region, context));
    QN_TRY(for_each_head(m, at + l->f16_keys, l->f16_head, first * row, on_region, context));
    QN_TRY(for_each_head(m, at + l->f16_values, l->f16_head, first * row, on_region, context));
    QN_TRY(for_each_head(m, at + l->f16_keys + open_at, l->f16_head, open_tokens * row, on_region, context));
    QN_TRY(for_each_head(m, at + l->f16_values + open_at, l->f16_head, open_tokens * row, on_region, context));
    return for_each_head(m, at + l->means, m->attention.head_dim * sizeof(float),
                         length < PAGE ? 0 : m->attention.head_dim * sizeof(float), on_region, context);
}

static qn_status for_each_region(const qn_cuda_memory *m, size_t length, region_fn on_region, void *context)
{
    for (size_t slot = 0; slot < m->n_slots; slot++)
        QN_TRY(for_each_region_of_layer(m, slot * m->kv.layer_bytes, length, on_region, context));
    for (size_t slot = 0; slot < m->n_recurrent; slot++)
        QN_TRY(on_region(context, &m->recurrent, slot * m->layer_bytes, m->layer_bytes));
    return QN_OK;
}

static qn_status count_bytes(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    (void)of;
    (void)at;
    *(uint64_t *)context += bytes;
    return QN_OK;
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    uint64_t bytes = 0;
    (void)for_each_region(cuda_memory_of_const(memory), length, count_bytes, &bytes);
    return bytes;
}

/* Regions copied through a host buffer. */
struct transfer {
    const qn_cuda_memory *m;
    bool filling;
    void *host;
    size_t host_bytes;
    qn_memory_region_fn on_region;
    void *context;
};

static qn_status transfer_region(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    struct transfer *t = context;
    qn_cuda *cuda = t->m->model->cuda;
    if (bytes > t->host_bytes) {
        qn_free(t->host);
        t->host_bytes = 0;
        QN_TRY(qn_alloc(&t->host, bytes, 1, "session"));
        t->host_bytes = bytes;
    }
    if (!t->filling)
        QN_TRY(qn_cuda_download(cuda, t->m->stream, t->host, of->address + at, bytes));
    QN_TRY(t->on_region(t->context, t->host, bytes));
    return t->filling ? qn_cuda_upload(cuda, of->address + at, t->host, bytes, NULL, NULL) : QN_OK;
}

static qn_status transfer(const qn_cuda_memory *m, size_t length, bool filling, qn_memory_region_fn on_region, void *context)
{
    struct transfer t = { .m = m, .filling = filling, .on_region = on_region, .context = context };
    const qn_status status = for_each_region(m, length, transfer_region, &t);
    qn_free(t.host);
    return status;
}

static qn_status memory_serialize(const qn_memory *memory, size_t length, qn_memory_region_fn on_region, void *context)
{
    return transfer(cuda_memory_of_const(memory), length, false, on_region, context);
}

static qn_status memory_deserialize(qn_memory *memory, size_t length, qn_memory_region_fn on_region, void *context)
{
    cuda_memory_of(memory)->first_open_page = (uint32_t)(length / PAGE);
    return transfer(cuda_memory_of(memory), length, true, on_region, context);
}

/* ---- Copies ---- */

struct copy {
    const qn_cuda_memory *to, *from;
};

/* Both memories have the same layout. */
static qn_status copy_region(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    const struct copy *c = context;
    const qn_cuda_buffer *to = of == &c->from->cache ? &c->to->cache : &c->to->recurrent;
    return qn_cuda_copy_d2d(c->to->model->cuda, c->to->stream, to->address + at, of->address + at, bytes);
}

/* Copies the fp16 rows, still stored, of complete pages too: after a truncation into such a page, recomputing its rows in
 * different steps would give different bits. */
static qn_status copy_f16_pages(struct copy *c, size_t length)
{
    const qn_cuda_memory *m = c->from;
    const size_t page_bytes = PAGE * m->attention.head_dim * sizeof(uint16_t);
    for (size_t slot = 0; slot < m->n_slots; slot++)
        for (size_t page = m->first_open_page > 1 ? m->first_open_page : 1; page < length / PAGE; page++) {
            const size_t at = slot * m->kv.layer_bytes + page_slot(m, page) * page_bytes;
            QN_TRY(for_each_head(m, at + m->kv.f16_keys, m->kv.f16_head, page_bytes, copy_region, c));
            QN_TRY(for_each_head(m, at + m->kv.f16_values, m->kv.f16_head, page_bytes, copy_region, c));
        }
    return QN_OK;
}

static qn_status memory_copy(qn_memory *to, const qn_memory *from, size_t length)
{
    qn_cuda_memory *m = cuda_memory_of(to);
    struct copy c = { m, cuda_memory_of_const(from) };
    QN_TRY(for_each_region(c.from, length, copy_region, &c));
    if (m->attention.pages)
        QN_TRY(copy_f16_pages(&c, length));
    m->first_open_page = c.from->first_open_page;
    return qn_cuda_stream_synchronize(m->model->cuda, m->stream);
}

static qn_status memory_reset(qn_memory *memory)
{
    (void)memory; /* kernels do not read the state at position 0 */
    return QN_OK;
}

/* ---- Checkpoints ---- */

static size_t page_bytes(const qn_cuda_memory *m)
{
    return PAGE * m->attention.head_dim * sizeof(uint16_t);
}

static void checkpoint_free(qn_memory_checkpoint *of)
{
    cuda_checkpoint *checkpoint = (cuda_checkpoint *)of;
    if (!checkpoint)
        return;
    qn_cuda_free(checkpoint->of->model->cuda, &checkpoint->recurrent);
    qn_cuda_free(checkpoint->of->model->cuda, &checkpoint->f16_pages);
    qn_free(checkpoint);
}

/* The buffers are kept for reuse. */
static void checkpoint_clear(qn_memory_checkpoint *checkpoint)
{
    (void)checkpoint;
}

static qn_status checkpoint_new(const qn_memory *memory, qn_memory_checkpoint **out)
{
    const qn_cuda_memory *m = cuda_memory_of_const(memory);
    qn_cuda *cuda = m->model->cuda;
    cuda_checkpoint *checkpoint;
    *out = NULL;
    QN_TRY(qn_alloc(&checkpoint, 1, sizeof *checkpoint, "checkpoint"));
    checkpoint->of = m;
    qn_status status = qn_cuda_alloc(cuda, m->n_recurrent, m->layer_bytes, "checkpoint on the GPU", &checkpoint->recurrent);
    if (status == QN_OK && m->attention.pages)
        status = qn_cuda_alloc(cuda, m->n_slots * 2 * m->attention.n_kv_heads, page_bytes(m), "checkpoint on the GPU",
                               &checkpoint->f16_pages);
    if (status != QN_OK) {
        checkpoint_free((qn_memory_checkpoint *)checkpoint);
        return status;
    }
    *out = (qn_memory_checkpoint *)checkpoint;
    return QN_OK;
}

/* Copies the fp16 page of position held-1 to or from the checkpoint. */
static qn_status copy_page(const qn_cuda_memory *m, const qn_cuda_buffer *f16_pages, size_t held, bool to_checkpoint)
{
    const qn_cuda_kv_layout *l = &m->kv;
    const size_t bytes = page_bytes(m), heads = m->attention.n_kv_heads;
    if (!m->attention.pages)
        return QN_OK;
    const size_t in_head = page_slot(m, (held - 1) / PAGE) * bytes;
    uint64_t there = f16_pages->address;
    for (size_t i = 0; i < m->n_slots * 2 * heads; i++, there += bytes) {
        const size_t offset = i / heads % 2 ? l->f16_values : l->f16_keys;
        const uint64_t here = m->cache.address + i / (2 * heads) * l->layer_bytes + offset + i % heads * l->f16_head + in_head;
        QN_TRY(qn_cuda_copy_d2d(m->model->cuda, m->stream, to_checkpoint ? there : here, to_checkpoint ? here : there, bytes));
    }
    return QN_OK;
}

static qn_status checkpoint_save(qn_memory_checkpoint *of, const qn_memory *memory, size_t held)
{
    const qn_cuda_memory *m = cuda_memory_of_const(memory);
    cuda_checkpoint *checkpoint = (cuda_checkpoint *)of;
    checkpoint->first_open_page = m->first_open_page;
    QN_TRY(
        qn_cuda_copy_d2d(m->model->cuda, m->stream, checkpoint->recurrent.address, m->recurrent.address, m->recurrent.bytes));
    QN_TRY(copy_page(m, &checkpoint->f16_pages, held, true));
    return qn_cuda_stream_synchronize(m->model->cuda, m->stream);
}

static qn_status checkpoint_restore(const qn_memory_checkpoint *of, qn_memory *memory, size_t held)
{
    const cuda_checkpoint *checkpoint = (const cuda_checkpoint *)of;
    qn_cuda_memory *m = cuda_memory_of(memory);
    const uint32_t page = (uint32_t)((held - 1) / PAGE);
    QN_TRY(
        qn_cuda_copy_d2d(m->model->cuda, m->stream, m->recurrent.address, checkpoint->recurrent.address, m->recurrent.bytes));
    QN_TRY(copy_page(m, &checkpoint->f16_pages, held, false));
    m->first_open_page = page > checkpoint->first_open_page ? page : checkpoint->first_open_page;
    return qn_cuda_stream_synchronize(m->model->cuda, m->stream);
}

static qn_status checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from, const qn_memory *memory)
{
    const qn_cuda_memory *m = cuda_memory_of_const(memory);
    cuda_checkpoint *copy = (cuda_checkpoint *)to;
    const cuda_checkpoint *checkpoint = (const cuda_checkpoint *)from;
    copy->first_open_page = checkpoint->first_open_page;
    QN_TRY(qn_cuda_copy_d2d(m->model->cuda, m->stream, copy->recurrent.address, checkpoint->recurrent.address,
                            m->recurrent.bytes));
    if (m->attention.pages)
        QN_TRY(qn_cuda_copy_d2d(m->model->cuda, m->stream, copy->f16_pages.address, checkpoint->f16_pages.address,
                                checkpoint->f16_pages.bytes));
    return qn_cuda_stream_synchronize(m->model->cuda, m->stream);
}

/* ---- Codecs ---- */

static void add_table(qn_cuda_memory *m, uint8_t *host, size_t *used, const float *table, size_t count, uint64_t *address)
{
    if (host && table)
        memcpy(host + *used, table, count * sizeof *table);
    *address = table ? m->tables.address + *used : 0;
    *used += table ? qn_round_up(count * sizeof *table, ALIGN) : 0;
}

static size_t add_tables(qn_cuda_memory *m, uint8_t *host, const qn_aura_codec *const codecs[2])
{
    size_t used = 0;
    for (size_t i = 0; i < 2; i++) {
        const qn_aura_codec *codec = codecs[i];
        qn_cuda_codec *to = &m->codecs[i];
        const size_t levels = (size_t)1 << codec->bits, square = codec->dim * codec->dim;
        add_table(m, host, &used, codec->boundaries, levels - 1, &to->levels.boundaries);
        add_table(m, host, &used, codec->codebook, levels, &to->levels.codebook);
        add_table(m, host, &used, codec->signs, codec->dim, &to->rotation.signs);
        add_table(m, host, &used, codec->signs ? NULL : codec->transpose, square, &to->rotation.forward);
        add_table(m, host, &used, codec->signs ? NULL : codec->rotation, square, &to->rotation.inverse);
        to->gain = qn_attention_gpu_gain(codec->codebook, levels);
    }
    return used;
}

static qn_status create_tables(qn_cuda_memory *m, const qn_aura_codec *const codecs[2])
{
    uint8_t *host;
    const size_t bytes = add_tables(m, NULL, codecs);
    QN_TRY(qn_cuda_alloc(m->model->cuda, bytes, 1, "codebooks on the GPU", &m->tables));
    QN_TRY(qn_alloc(&host, bytes, 1, "codebooks"));
    (void)add_tables(m, host, codecs);
    const qn_status status = qn_cuda_upload(m->model->cuda, m->tables.address, host, bytes, NULL, NULL);
    qn_free(host);
    return status;
}

/* ---- Creation ---- */

static void memory_free(qn_memory *memory)
{
    qn_cuda_memory *m = cuda_memory_of(memory);
    qn_cuda *cuda = m->model->cuda;
    atomic_fetch_sub(&m->model->memory, m->bytes);
    for (int sampler = 0; sampler < QN_SAMPLE_MODES; sampler++)
        qn_cuda_graph_free(cuda, m->graphs[sampler]);
    qn_cuda_free(cuda, &m->decode_plan.memory);
    qn_cuda_free(cuda, &m->cache);
    qn_cuda_free(cuda, &m->recurrent);
    qn_cuda_free(cuda, &m->tables);
    if (m->stream)
        qn_cuda_stream_free(cuda, m->stream);
    free(m->decode_plan.segments);
    free(m->decode_plan.phases);
    qn_free(m->slots);
    qn_free(m);
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open_tokens = memory_open_tokens,
    .prepare = memory_prepare,
    .on_append = memory_on_append,
    .rewind_length = memory_rewind_length,
    .truncate = memory_truncate,
    .reset = memory_reset,
    .copy = memory_copy,
    .checkpoint_new = checkpoint_new,
    .checkpoint_free = checkpoint_free,
    .checkpoint_clear = checkpoint_clear,
    .checkpoint_save = checkpoint_save,
    .checkpoint_restore = checkpoint_restore,
    .checkpoint_copy = checkpoint_copy,
    .serialize = memory_serialize,
    .deserialize = memory_deserialize,
    .serialized_bytes = memory_bytes,
};

/* Counts the bytes of the cache and the states against the limit. */
static qn_status take_bytes(qn_cuda_memory *m)
{
    const uint64_t limit = m->model->memory_limit;
    size_t bytes;
    if (!qn_mul_size(m->n_slots, m->kv.layer_bytes, &bytes) || !qn_add_size(bytes, m->n_recurrent * m->layer_bytes, &bytes))
        return qn_fail(QN_ERR_MEMORY, "session: %zu positions do not fit in memory", m->n_ctx);
    const uint64_t before = atomic_fetch_add(&m->model->memory, bytes);
    m->bytes = bytes;
    if (limit && (bytes > limit || before > limit - bytes))
        return qn_fail(QN_ERR_MEMORY, "session: %llu MiB for %zu tokens, but %llu of %llu MiB of memory are in use",
                       (unsigned long long)(bytes >> 20), m->n_ctx, (unsigned long long)(before >> 20),
                       (unsigned long long)(limit >> 20));
    return QN_OK;
}

/* Zeroed, because kernels read full tiles, whose end may never have been written. */
static qn_status alloc_zeros(qn_cuda_memory *m, size_t count, size_t size, qn_cuda_buffer *buffer)
{
    QN_TRY(qn_cuda_alloc(m->model->cuda, count, size, "session on the GPU", buffer));
    return qn_cuda_memset(m->model->cuda, m->stream, buffer->address, 0, buffer->bytes);
}

static qn_status create(qn_cuda_memory *m, const qn_memory_params *params)
{
    const qn_plan *plan = m->model->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    const qn_aura_codec *const codecs[2] = { params->key_codec, params->value_codec };
    QN_TRY(qn_alloc(&m->slots, params->n_layers, sizeof *m->slots, "session"));
    for (size_t i = 0; i < params->n_layers; i++)
        m->slots[i] = (uint32_t)(plan->is_recurrent && plan->is_recurrent[i] ? m->n_recurrent++ : m->n_slots++);
    if (codecs[0]) {
        m->attention.key_bits = codecs[0]->bits;
        m->attention.value_bits = codecs[1]->bits;
        m->attention.pages = true;
    }
    QN_TRY(qn_attention_gpu_check(&m->attention));
    QN_TRY(lay_out(m, params->n_batch));
    if (m->n_recurrent)
        m->layer_bytes =
            qn_round_up(qn_gdn_gpu_state_bytes(r->n_k_heads, r->n_v_heads, r->head_k, r->head_v, r->taps) +
                            qn_gdn_gpu_open_layout(r->n_k_heads, r->n_v_heads, r->head_k, r->head_v, r->taps).bytes,
                        ALIGN);
    QN_TRY(take_bytes(m));
    QN_TRY(qn_cuda_stream_create(m->model->cuda, &m->stream));
    QN_TRY(alloc_zeros(m, m->n_slots, m->kv.layer_bytes, &m->cache));
    if (m->n_recurrent)
        QN_TRY(alloc_zeros(m, m->n_recurrent, m->layer_bytes, &m->recurrent));
    if (codecs[0])
        QN_TRY(create_tables(m, codecs));
    return qn_cuda_stream_synchronize(m->model->cuda, m->stream);
}

qn_status qn_cuda_session_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    qn_cuda_model *model = (qn_cuda_model *)device;
    qn_cuda_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cuda_memory){ .base.vtable = &vtable,
                           .model = model,
                           .n_ctx = params->n_ctx,
                           .n_layers = params->n_layers,
                           .attention = model->attention,
                           .codecs = { { .gain = 1 }, { .gain = 1 } } };
    const qn_status status = create(m, params);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
