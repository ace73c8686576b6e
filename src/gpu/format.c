/* The layout of items, and their classes in the pool. */
#include "gpu/format.h"

#include "base/memory.h"
#include "gpu/head_rows.h"

enum { IDLE_SHARE = 16, F16_BITS = 16 };

/* ---- Layout ---- */

size_t qn_gpu_row_bytes(size_t head_dim, unsigned bits)
{
    return (head_dim * bits + 31) / 32 * sizeof(uint32_t);
}

/* Appends an array of `heads` times `bytes` at *used, aligned; *at is its offset. Returns false on overflow. */
static bool add_array(size_t *used, size_t heads, size_t bytes, size_t *at)
{
    size_t all;
    *at = *used;
    return qn_mul_size(heads, bytes, &all) && qn_add_size(all, QN_POOL_ALIGN - 1, &all) &&
           qn_add_size(*used, all / QN_POOL_ALIGN * QN_POOL_ALIGN, used);
}

/* Returns the number of attention layers, with those of a draft head, which files do not have. A block drafter's are
 * not among them: they have a layout of their own. */
static size_t attention_layers(const qn_gpu_format *f)
{
    return f->saved.n_attention + (f->block_heads ? 0 : f->n_head_layers);
}

/* Returns the bytes of the layers of a block drafter in a page. */
static size_t block_bytes(const qn_gpu_format *f)
{
    return f->block_heads ? f->n_head_layers * f->block_kv.layer_bytes : 0;
}

/* Lays out the layers of a block drafter, whose pages are fp16. */
static qn_status lay_out_block(qn_gpu_format *f)
{
    qn_gpu_kv_layout *l = &f->block_kv;
    size_t bytes;
    l->key_row = l->value_row = qn_gpu_row_bytes(f->block_dim, F16_BITS);
    if (add_array(&l->layer_bytes, f->block_heads, QN_PAGE * l->key_row, &l->keys) &&
        add_array(&l->layer_bytes, f->block_heads, QN_PAGE * l->value_row, &l->values) &&
        qn_mul_size(f->n_head_layers, l->layer_bytes, &bytes))
        return QN_OK;
    return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers of %zu heads of a drafter do not fit in memory",
                   f->n_head_layers, f->block_heads);
}

static qn_status lay_out_pages(qn_gpu_format *f)
{
    const qn_saved_layout *s = &f->saved;
    qn_gpu_kv_layout *l = &f->kv;
    const size_t heads = s->n_heads, f16_rows = QN_PAGE * s->head_dim * sizeof(uint16_t),
                 scales = QN_PAGE * sizeof(float);
    size_t bytes, f16_bytes;
    l->key_row = qn_gpu_row_bytes(s->head_dim, s->key_bits ? s->key_bits : F16_BITS);
    l->value_row = qn_gpu_row_bytes(s->head_dim, s->key_bits ? s->value_bits : F16_BITS);
    bool fits = add_array(&l->layer_bytes, heads, QN_PAGE * l->key_row, &l->keys) &&
                add_array(&l->layer_bytes, heads, QN_PAGE * l->value_row, &l->values);
    if (s->key_bits)
        fits = fits && add_array(&l->layer_bytes, heads, scales, &l->key_scales) &&
               add_array(&l->layer_bytes, heads, scales, &l->value_scales) &&
               add_array(&l->f16_layer_bytes, heads, f16_rows, &l->f16_keys) &&
               add_array(&l->f16_layer_bytes, heads, f16_rows, &l->f16_values) &&
               add_array(&l->f16_layer_bytes, heads, s->head_dim * sizeof(float), &l->means);
    if (fits && qn_mul_size(attention_layers(f), l->layer_bytes, &bytes) &&
        qn_mul_size(attention_layers(f), l->f16_layer_bytes, &f16_bytes) && qn_add_size(bytes, block_bytes(f), &bytes))
        return QN_OK;
    return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers of %zu heads do not fit in memory",
                   attention_layers(f), heads);
}

/* The same for a layer of a block drafter, the i-th. */
static qn_gpu_layer_cache block_layer_cache(const qn_gpu_format *f, size_t i)
{
    const qn_gpu_kv_layout *l = &f->block_kv;
    const uint64_t at = attention_layers(f) * f->kv.layer_bytes + i * l->layer_bytes;
    return (qn_gpu_layer_cache){ .keys = at + l->keys,
                                 .values = at + l->values,
                                 .key_head = QN_PAGE * l->key_row,
                                 .value_head = QN_PAGE * l->value_row };
}

qn_gpu_layer_cache qn_gpu_layer_cache_of(const qn_gpu_format *f, size_t layer)
{
    const qn_gpu_kv_layout *l = &f->kv;
    if (f->slots[layer] >= attention_layers(f))
        return block_layer_cache(f, f->slots[layer] - attention_layers(f));
    const uint64_t at = f->slots[layer] * l->layer_bytes, f16_at = f->slots[layer] * l->f16_layer_bytes;
    qn_gpu_layer_cache c = { .keys = at + l->keys,
                             .values = at + l->values,
                             .key_head = QN_PAGE * l->key_row,
                             .value_head = QN_PAGE * l->value_row };
    if (!qn_gpu_has_codes(f))
        return c;
    c.key_scales = at + l->key_scales;
    c.value_scales = at + l->value_scales;
    c.scale_head = QN_PAGE * sizeof(float);
    c.f16_keys = f16_at + l->f16_keys;
    c.f16_values = f16_at + l->f16_values;
    c.means = f16_at + l->means;
    c.f16_head = QN_PAGE * f->saved.head_dim * sizeof(uint16_t);
    return c;
}

uint64_t qn_gpu_format_bytes(const qn_gpu_format *f, size_t length)
{
    const qn_saved_layout *s = &f->saved;
    const uint64_t heads = (uint64_t)attention_layers(f) * s->n_heads, f16_row = 2 * s->head_dim * sizeof(uint16_t);
    const uint64_t head = f->head_rows ? QN_GPU_HEAD_ROWS * f->head_width * sizeof(float) : 0,
                   fixed = s->n_recurrent * (f->recurrent.state_layer_bytes + f->recurrent.open.bytes) + head;
    if (!qn_gpu_has_codes(f))
        return fixed + heads * length * (f->kv.key_row + f->kv.value_row) + block_bytes(f) / QN_PAGE * length;
    const size_t coded = qn_kv_coded_positions(length);
    return fixed + heads * (coded * (f->kv.key_row + f->kv.value_row + 2 * sizeof(float)) + (length - coded) * f16_row +
                            (length < QN_PAGE ? 0 : s->head_dim * sizeof(float)));
}

bool qn_gpu_same_cache(const qn_gpu_format *a, const qn_gpu_format *b)
{
    return a->format->key_bits == b->format->key_bits && a->format->value_bits == b->format->value_bits;
}

/* ---- Creation ---- */

qn_status qn_gpu_layer_slots(const qn_plan *plan, uint32_t **slots)
{
    uint32_t n_attention = 0, n_recurrent = 0;
    QN_TRY(qn_alloc(slots, plan->n_layers, sizeof **slots, "device"));
    for (size_t i = 0; i < plan->n_layers; i++)
        (*slots)[i] = plan->is_recurrent && plan->is_recurrent[i] ? n_recurrent++ : n_attention++;
    /* Sizes of the GPU's layout are no larger than those of files. */
    const qn_status status = n_recurrent ? qn_saved_check_recurrent(&plan->recurrent, plan->n_layers) : QN_OK;
    if (status != QN_OK) {
        qn_free(*slots);
        *slots = NULL;
    }
    return status;
}

qn_status qn_gpu_format_init(const qn_plan *plan, const qn_kv_format *format, const uint32_t *slots, qn_gpu_format *out)
{
    *out = (qn_gpu_format){ .format = format,
                            .slots = slots,
                            .saved = qn_saved_layout_of(plan, format),
                            .n_head_layers = plan->head.n_layers,
                            .head_width = qn_gpu_head_width(plan),
                            .block_heads = plan->head.block ? plan->head.heads.n_kv_heads : 0,
                            .block_dim = plan->head.block ? plan->head.heads.head_dim : 0 };
    if (plan->head.block && format->key_bits)
        return qn_fail(QN_ERR_UNSUPPORTED, "cache format '%s' is not supported with a block drafter on a GPU, only f16",
                       format->name);
    if (plan->head.block)
        QN_TRY(lay_out_block(out));
    QN_TRY(lay_out_pages(out));
    if (out->saved.n_recurrent)
        out->recurrent = qn_gpu_recurrent_layout_of(&plan->recurrent);
    return qn_aura_codecs_new(&out->aura, plan->heads.head_dim, format->key_bits, format->value_bits, QN_KV_SEED);
}

void qn_gpu_format_free(qn_gpu_format *format)
{
    qn_aura_codecs_delete(&format->aura);
}

/* ---- The pool's classes ---- */

uint64_t qn_gpu_pool_budget(uint64_t available)
{
    const uint64_t gib = (uint64_t)1 << 30, tenth = available / 10, margin = tenth > gib ? tenth : gib;
    return available - (margin < available / 2 ? margin : available / 2);
}

uint64_t qn_gpu_pool_idle(uint64_t budget)
{
    return budget / IDLE_SHARE;
}

qn_status qn_gpu_add_states(qn_pool *pool, const qn_plan *plan, qn_pool_class **states, qn_pool_class **open_chunks)
{
    const size_t n = qn_gpu_recurrent_index(plan, (int)plan->n_layers);
    if (!n)
        return QN_OK;
    const qn_gpu_recurrent_layout l = qn_gpu_recurrent_layout_of(&plan->recurrent);
    QN_TRY(qn_pool_add_class(pool, "recurrent state on the GPU", n * l.state_layer_bytes, states));
    return qn_pool_add_class(pool, "open chunk on the GPU", n * l.open.bytes, open_chunks);
}

qn_status qn_gpu_add_head_rows(qn_pool *pool, const qn_plan *plan, qn_pool_class **head_rows)
{
    size_t bytes;
    if (!qn_gpu_head_width(plan))
        return QN_OK;
    if (!qn_mul_size(qn_gpu_head_width(plan), QN_GPU_HEAD_ROWS * sizeof(float), &bytes))
        return qn_fail(QN_ERR_MEMORY, "draft head: rows of %zu do not fit in memory", qn_gpu_head_width(plan));
    return qn_pool_add_class(pool, "hidden states of a draft head on the GPU", bytes, head_rows);
}

qn_status qn_gpu_format_add_pages(qn_pool *pool, qn_gpu_format *f)
{
    const size_t n = attention_layers(f);
    qn_cache *cache = &f->cache;
    if (!n)
        return QN_OK;
    QN_TRY(qn_pool_add_class(pool, "page of keys and values on the GPU", n * f->kv.layer_bytes + block_bytes(f),
                             &cache->pages));
    f->page_base = qn_pool_base(cache->pages);
    f->page_stride = qn_pool_stride(cache->pages);
    if (!qn_gpu_has_codes(f))
        return QN_OK;
    const qn_status status = qn_pool_add_class(pool, "fp16 page of keys and values on the GPU",
                                               n * f->kv.f16_layer_bytes, &cache->f16_pages);
    if (status != QN_OK) {
        qn_pool_remove_class(pool, cache->pages);
        cache->pages = NULL;
        f->page_base = f->page_stride = 0;
        return status;
    }
    f->f16_page_base = qn_pool_base(cache->f16_pages);
    f->f16_page_stride = qn_pool_stride(cache->f16_pages);
    return QN_OK;
}
