/* Sizes and offsets of the recurrent layers' data. kernels/deltanet/deltanet.h defines the contents. */
#include "cache/recurrent.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet.h"

#include <string.h>

enum { LINE = QN_ALIGN / sizeof(float) };

static size_t state_count(const qn_recurrent_shape *s)
{
    return s->n_v_heads * s->head_v * s->head_k;
}

static size_t history_count(const qn_recurrent_shape *s)
{
    return (s->taps - 1) * qn_recurrent_width(s);
}

/* Floats of the arrays of an open chunk, in their order. */
enum { CHUNK_ARRAYS = 4 };

static void chunk_counts(const qn_recurrent_shape *s, size_t counts[CHUNK_ARRAYS])
{
    counts[0] = s->n_v_heads * s->head_v * QN_GDN_CHUNK;
    counts[1] = s->n_k_heads * s->head_k * QN_GDN_CHUNK;
    counts[2] = s->n_v_heads * QN_GDN_CHUNK;
    counts[3] = QN_GDN_CHUNK * qn_recurrent_width(s);
}

/* Whether the bytes of n_layers layers fit in a size_t; computed from an upper bound of a layer's arrays. */
static bool check_overflow(const qn_recurrent_shape *s, size_t n_layers)
{
    size_t keys, values, width, state, bytes;
    return qn_mul_size(s->n_k_heads, s->head_k, &keys) && qn_mul_size(s->n_v_heads, s->head_v, &values) &&
           qn_mul_size(keys, 2, &width) && qn_add_size(width, values, &width) &&
           qn_mul_size(width, s->taps + 3 * QN_GDN_CHUNK, &width) && qn_mul_size(values, s->head_k, &state) &&
           qn_add_size(width, state, &bytes) && qn_add_size(bytes, 8 * LINE, &bytes) &&
           qn_mul_size(bytes, sizeof(float), &bytes) && qn_mul_size(bytes, n_layers + 1, &bytes);
}

qn_status qn_recurrent_layout_create(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers,
                                     qn_recurrent_layout *layout)
{
    size_t counts[CHUNK_ARRAYS];
    *layout = (qn_recurrent_layout){ .shape = *shape };
    if (!check_overflow(shape, n_layers))
        return qn_fail(QN_ERR_MEMORY, "recurrent state: %zu heads of %zu by %zu in %zu layers do not fit in memory",
                       shape->n_v_heads, shape->head_k, shape->head_v, n_layers);
    QN_TRY(qn_alloc(&layout->index, n_layers, sizeof *layout->index, "recurrent state"));
    for (size_t i = 0; i < n_layers; i++)
        layout->index[i] = is_recurrent[i] ? (uint32_t)layout->n_layers++ : 0;
    layout->state_stride = qn_round_up(state_count(shape), LINE) + qn_round_up(history_count(shape), LINE);
    chunk_counts(shape, counts);
    for (size_t i = 0; i < CHUNK_ARRAYS; i++)
        layout->chunk_stride += qn_round_up(counts[i], LINE);
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
    qn_recurrent_layer of = { 0 };
    float **const arrays[CHUNK_ARRAYS] = { &of.v_new, &of.keys, &of.log_decay, &of.conv_inputs };
    float *at = view->open_chunk + index * l->chunk_stride;
    size_t counts[CHUNK_ARRAYS];
    chunk_counts(&l->shape, counts);
    for (size_t i = 0; i < CHUNK_ARRAYS; i++) {
        *arrays[i] = at;
        at += qn_round_up(counts[i], LINE);
    }
    if (view->state) {
        of.state = view->state + index * l->state_stride;
        of.history = of.state + qn_round_up(state_count(&l->shape), LINE);
    }
    if (view->state_to) {
        of.state_to = view->state_to + index * l->state_stride;
        of.history_to = of.state_to + qn_round_up(state_count(&l->shape), LINE);
    }
    return of;
}

qn_recurrent_layer qn_recurrent_layer_of(const qn_recurrent_view *view, size_t layer)
{
    return qn_recurrent_layer_at(view, view->layout->index[layer]);
}

float *qn_recurrent_array(const qn_recurrent_view *view, size_t index, size_t array, size_t *count)
{
    const qn_recurrent_shape *s = &view->layout->shape;
    const qn_recurrent_layer of = qn_recurrent_layer_at(view, index);
    float *const arrays[QN_RECURRENT_ARRAYS] = { of.state, of.v_new, of.keys, of.log_decay, of.history, of.conv_inputs };
    size_t chunk[CHUNK_ARRAYS];
    chunk_counts(s, chunk);
    const size_t counts[QN_RECURRENT_ARRAYS] = { state_count(s), chunk[0], chunk[1], chunk[2], history_count(s), chunk[3] };
    *count = counts[array];
    return arrays[array];
}

uint64_t qn_recurrent_layer_bytes(const qn_recurrent_shape *shape)
{
    size_t counts[CHUNK_ARRAYS], count = state_count(shape) + history_count(shape);
    chunk_counts(shape, counts);
    for (size_t i = 0; i < CHUNK_ARRAYS; i++)
        count += counts[i];
    return count * sizeof(float);
}

uint64_t qn_recurrent_state_bytes(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers)
{
    uint64_t bytes = 0;
    for (size_t i = 0; is_recurrent && i < n_layers; i++)
        bytes += is_recurrent[i] ? state_count(shape) * sizeof(float) : 0;
    return bytes;
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
