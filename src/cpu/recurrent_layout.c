/* Sizes and offsets of the recurrent layers' data. kernels/deltanet/deltanet.h defines the contents. */
#include "cpu/recurrent_layout.h"

#include "base/memory.h"

#include <string.h>

enum { LINE = QN_ALIGN / sizeof(float) };

/* Arrays of an open chunk, in their order in memory. */
enum { CHUNK_ARRAYS = 4 };
static const qn_saved_array chunk_arrays[CHUNK_ARRAYS] = { QN_SAVED_V_NEW, QN_SAVED_OPEN_KEYS, QN_SAVED_LOG_DECAY,
                                                           QN_SAVED_CONV_INPUTS };

qn_status qn_recurrent_layout_create(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers,
                                     qn_recurrent_layout *layout)
{
    size_t counts[QN_SAVED_ARRAYS];
    *layout = (qn_recurrent_layout){ .shape = *shape };
    QN_TRY(qn_saved_check_recurrent(shape, n_layers));
    QN_TRY(qn_alloc(&layout->index, n_layers, sizeof *layout->index, "recurrent state"));
    for (size_t i = 0; i < n_layers; i++)
        layout->index[i] = is_recurrent[i] ? (uint32_t)layout->n_layers++ : 0;
    qn_saved_counts(shape, counts);
    layout->history = qn_round_up(counts[QN_SAVED_STATE], LINE);
    layout->state_stride = layout->history + qn_round_up(counts[QN_SAVED_HISTORY], LINE);
    for (size_t i = 0; i < CHUNK_ARRAYS; i++) {
        layout->chunk[i] = layout->chunk_stride;
        layout->chunk_stride += qn_round_up(counts[chunk_arrays[i]], LINE);
    }
    return QN_OK;
}

void qn_recurrent_layout_free(qn_recurrent_layout *layout)
{
    qn_free(layout->index);
    *layout = (qn_recurrent_layout){ 0 };
}

size_t qn_recurrent_state_item_bytes(const qn_recurrent_layout *layout)
{
    return layout->n_layers * layout->state_stride * sizeof(float);
}

size_t qn_recurrent_chunk_item_bytes(const qn_recurrent_layout *layout)
{
    return layout->n_layers * layout->chunk_stride * sizeof(float);
}

qn_recurrent_layer qn_recurrent_layer_at(const qn_recurrent_view *view, size_t index)
{
    const qn_recurrent_layout *l = view->layout;
    float *chunk = view->open_chunk + index * l->chunk_stride;
    qn_recurrent_layer of = { .v_new = chunk + l->chunk[0],
                              .keys = chunk + l->chunk[1],
                              .log_decay = chunk + l->chunk[2],
                              .conv_inputs = chunk + l->chunk[3] };
    if (view->state) {
        of.state = view->state + index * l->state_stride;
        of.history = of.state + l->history;
    }
    if (view->state_to) {
        of.state_to = view->state_to + index * l->state_stride;
        of.history_to = of.state_to + l->history;
    }
    return of;
}

qn_recurrent_layer qn_recurrent_layer_of(const qn_recurrent_view *view, size_t layer)
{
    return qn_recurrent_layer_at(view, view->layout->index[layer]);
}

float *qn_recurrent_array(const qn_recurrent_view *view, size_t index, qn_saved_array array, size_t *count)
{
    const qn_recurrent_layer of = qn_recurrent_layer_at(view, index);
    float *const arrays[QN_SAVED_ARRAYS] = {
        [QN_SAVED_STATE] = of.state,         [QN_SAVED_V_NEW] = of.v_new,     [QN_SAVED_OPEN_KEYS] = of.keys,
        [QN_SAVED_LOG_DECAY] = of.log_decay, [QN_SAVED_HISTORY] = of.history, [QN_SAVED_CONV_INPUTS] = of.conv_inputs
    };
    size_t counts[QN_SAVED_ARRAYS];
    qn_saved_counts(&view->layout->shape, counts);
    *count = counts[array];
    return arrays[array];
}

void qn_recurrent_zero_tail(const qn_recurrent_view *view, size_t length)
{
    const qn_recurrent_shape *s = &view->layout->shape;
    const size_t open_tokens = length - view->state_position, n_zeroed = QN_GDN_CHUNK - open_tokens,
                 width = qn_recurrent_width(s);
    for (size_t i = 0; i < view->layout->n_layers; i++) {
        const qn_recurrent_layer layer = qn_recurrent_layer_at(view, i);
        for (size_t h = 0; h < s->n_v_heads; h++) {
            memset(layer.v_new + (h * QN_GDN_CHUNK + open_tokens) * s->head_v, 0, n_zeroed * s->head_v * sizeof(float));
            memset(layer.log_decay + h * QN_GDN_CHUNK + open_tokens, 0, n_zeroed * sizeof(float));
        }
        for (size_t row = 0; row < s->n_k_heads * s->head_k; row++)
            memset(layer.keys + row * QN_GDN_CHUNK + open_tokens, 0, n_zeroed * sizeof(float));
        memset(layer.conv_inputs + open_tokens * width, 0, n_zeroed * width * sizeof(float));
    }
}
