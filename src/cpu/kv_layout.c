/* Sizes and offsets of pages. kernels/attention/attention.h and kernels/aura/aura.h define the layout of a head's rows
 * in a page. */
#include "cpu/kv_layout.h"

#include "base/memory.h"
#include "base/status.h"
#include "kernels/attention/attention.h"

_Static_assert((int)QN_SAVED_KEY_TILE == (int)QN_KEY_TILE && (int)QN_SAVED_BLOCK_PAGES == (int)QN_BLOCK_PAGES,
               "session files have the layout of the CPU's pages");

/* Returns the bytes of one head's keys, or of its values, in a page without codes. */
static size_t float_page_bytes(size_t head_dim, bool is_f32)
{
    return QN_PAGE * head_dim * (is_f32 ? sizeof(float) : sizeof(uint16_t));
}

/* Returns the bytes of one head's keys in a page. */
static size_t key_page_bytes(size_t head_dim, const qn_aura_codec *codec, bool is_f32)
{
    return codec ? qn_aura_key_page_bytes(head_dim, codec->bits) : float_page_bytes(head_dim, is_f32);
}

/* Returns the bytes of one head's values in a page. */
static size_t value_page_bytes(size_t head_dim, const qn_aura_codec *codec, bool is_f32)
{
    return codec ? qn_aura_value_page_bytes(head_dim, codec->bits) : float_page_bytes(head_dim, is_f32);
}

static qn_status create(qn_kv_layout *layout, const qn_plan *plan, size_t first, size_t end)
{
    qn_kv_view *view = &layout->view;
    QN_TRY(qn_alloc(&layout->kv_index, plan->n_layers, sizeof *layout->kv_index, "key-value cache"));
    for (size_t layer = first; layer < end; layer++)
        if (!plan->is_recurrent || !plan->is_recurrent[layer])
            layout->kv_index[layer] = (uint32_t)view->n_kv_layers++;
    view->kv_index = layout->kv_index;
    size_t f16_bytes = 0;
    const size_t f16_head = layout->head_dim * (2 * QN_PAGE * sizeof(uint16_t) + sizeof(float));
    if (!qn_mul_size(view->n_kv_layers, view->n_heads * (view->key_bytes + view->value_bytes), &view->page_stride) ||
        (view->key_codec && !qn_mul_size(view->n_kv_layers, view->n_heads * f16_head, &f16_bytes)))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: pages of %zu layers of %zu heads do not fit in memory",
                       view->n_kv_layers, view->n_heads);
    view->f16_stride = f16_bytes;
    return QN_OK;
}

qn_status qn_kv_layout_create(qn_kv_layout *layout, const qn_plan *plan, size_t first, size_t end,
                              const qn_aura_codecs *codecs, bool is_f32)
{
    const qn_attention_shape *heads = qn_plan_heads(plan, first);
    const size_t head_dim = heads->head_dim;
    *layout = (qn_kv_layout){ .view = { .n_heads = heads->n_kv_heads,
                                        .key_bytes = key_page_bytes(head_dim, codecs->keys, is_f32),
                                        .value_bytes = value_page_bytes(head_dim, codecs->values, is_f32),
                                        .is_f32 = is_f32,
                                        .key_codec = codecs->keys,
                                        .value_codec = codecs->values },
                              .head_dim = head_dim };
    const qn_status status = create(layout, plan, first, end);
    if (status != QN_OK)
        qn_kv_layout_free(layout);
    return status;
}

void qn_kv_layout_free(qn_kv_layout *layout)
{
    qn_free(layout->kv_index);
    *layout = (qn_kv_layout){ 0 };
}

void *qn_kv_region(const qn_kv_view *view, const qn_saved_region *r)
{
    switch (r->part) {
    case QN_SAVED_MEANS: return view->f16_pages + view->f16_table[0] * view->f16_stride + qn_kv_f16_bytes(view);
    case QN_SAVED_KEYS:
        return view->key_codec ? qn_kv_f16_keys(view, r->layer, r->page, r->head)
                               : qn_kv_keys(view, r->layer, r->page, r->head);
    case QN_SAVED_VALUES:
        return view->key_codec ? qn_kv_f16_values(view, r->layer, r->page, r->head)
                               : qn_kv_values(view, r->layer, r->page, r->head);
    case QN_SAVED_KEY_CODES: return qn_kv_keys(view, r->layer, r->page, r->head);
    case QN_SAVED_VALUE_CODES: return qn_kv_values(view, r->layer, r->page, r->head);
    case QN_SAVED_KEY_SCALES:
        return (uint8_t *)qn_kv_keys(view, r->layer, r->page, r->head) +
               qn_aura_key_code_bytes(view->key_codec->dim, view->key_codec->bits);
    case QN_SAVED_VALUE_SCALES:
        return (uint8_t *)qn_kv_values(view, r->layer, r->page, r->head) +
               qn_aura_value_code_bytes(view->value_codec->dim, view->value_codec->bits);
    }
    return NULL;
}

uint64_t qn_kv_bytes(const qn_kv_layout *layout, size_t length)
{
    const qn_kv_view *view = &layout->view;
    const uint64_t kv_heads = (uint64_t)view->n_kv_layers * view->n_heads;
    const size_t kv_row_bytes = (view->key_bytes + view->value_bytes) / QN_PAGE, coded = qn_kv_coded_positions(length);
    if (!view->key_codec)
        return kv_heads * kv_row_bytes * length;
    const uint64_t f16_page_bytes = kv_heads * (length - coded) * 2 * layout->head_dim * sizeof(uint16_t);
    return kv_heads * kv_row_bytes * coded + f16_page_bytes +
           (length < QN_PAGE ? 0 : kv_heads * layout->head_dim * sizeof(float));
}
