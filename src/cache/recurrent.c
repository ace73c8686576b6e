/* Allocation and copying of the state of recurrent layers. kernels/deltanet/deltanet.h defines the contents. */
#include "cache/recurrent.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet.h"

#include <string.h>

enum { N_ARRAYS = 5 };

/* One array of a layer: the pointer to it in qn_recurrent_layer, and its size in floats. */
struct array {
    float **memory;
    size_t count;
};

/* Array number `array` of a layer. check_overflow() has made sure that the multiplications do not overflow. */
static struct array array_of(const qn_recurrent_shape *s, qn_recurrent_layer *layer, size_t array)
{
    const size_t values = s->n_v_heads * s->head_v;
    const struct array arrays[N_ARRAYS] = {
        { &layer->state, values * s->head_k },
        { &layer->v_new, values * QN_GDN_CHUNK },
        { &layer->keys, s->n_k_heads * s->head_k * QN_GDN_CHUNK },
        { &layer->log_decay, s->n_v_heads * QN_GDN_CHUNK },
        { &layer->conv_inputs, (s->taps - 1 + QN_GDN_CHUNK) * qn_recurrent_width(s) },
    };
    return arrays[array];
}

/* Whether the bytes of all arrays of all layers fit in a size_t; computed from an upper bound of a layer's arrays. */
static bool check_overflow(const qn_recurrent_shape *s, size_t n_layers)
{
    size_t keys, values, width, state, bytes;
    return qn_mul_size(s->n_k_heads, s->head_k, &keys) && qn_mul_size(s->n_v_heads, s->head_v, &values) &&
           qn_mul_size(keys, 2, &width) && qn_add_size(width, values, &width) &&
           qn_mul_size(width, s->taps + 3 * QN_GDN_CHUNK, &width) && qn_mul_size(values, s->head_k, &state) &&
           qn_add_size(width, state, &bytes) && qn_mul_size(bytes, sizeof(float), &bytes) &&
           qn_mul_size(bytes, n_layers + 1, &bytes);
}

/* One allocation for all layers, so that it can use huge pages; every array is aligned to a cache line. */
static qn_status create_layers(qn_recurrent *recurrent, const bool *is_recurrent)
{
    const size_t line = QN_ALIGN / sizeof(float);
    size_t count = 0, n_recurrent = 0;
    QN_TRY(qn_alloc(&recurrent->layers, recurrent->n_layers, sizeof *recurrent->layers, "recurrent state"));
    for (size_t i = 0; i < recurrent->n_layers; i++)
        n_recurrent += is_recurrent[i];
    for (size_t p = 0; p < N_ARRAYS; p++)
        count += n_recurrent * qn_round_up(array_of(&recurrent->shape, recurrent->layers, p).count, line);
    QN_TRY(qn_alloc(&recurrent->memory, count, sizeof(float), "recurrent state"));
    qn_advise_huge(recurrent->memory, count * sizeof(float));
    float *memory = recurrent->memory;
    for (size_t i = 0; i < recurrent->n_layers; i++)
        for (size_t p = 0; is_recurrent[i] && p < N_ARRAYS; p++) {
            const struct array array = array_of(&recurrent->shape, &recurrent->layers[i], p);
            *array.memory = memory;
            memory += qn_round_up(array.count, line);
            recurrent->total_bytes += array.count * sizeof(float);
        }
    return QN_OK;
}

qn_status qn_recurrent_create(qn_recurrent *recurrent, const qn_recurrent_shape *shape, const bool *is_recurrent,
                              size_t n_layers)
{
    *recurrent = (qn_recurrent){ .n_layers = n_layers, .shape = *shape };
    if (!check_overflow(shape, n_layers)) {
        recurrent->n_layers = 0;
        return qn_fail(QN_ERR_MEMORY, "recurrent state: %zu heads of %zu by %zu in %zu layers do not fit in memory",
                       shape->n_v_heads, shape->head_k, shape->head_v, n_layers);
    }
    const qn_status status = create_layers(recurrent, is_recurrent);
    if (status != QN_OK)
        qn_recurrent_free(recurrent);
    return status;
}

uint64_t qn_recurrent_state_bytes(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers)
{
    uint64_t bytes = 0;
    for (size_t i = 0; is_recurrent && i < n_layers; i++)
        bytes += is_recurrent[i] ? shape->n_v_heads * shape->head_k * shape->head_v * sizeof(float) : 0;
    return bytes;
}

void qn_recurrent_free(qn_recurrent *recurrent)
{
    qn_free(recurrent->memory);
    qn_free(recurrent->layers);
    *recurrent = (qn_recurrent){ 0 };
}

bool qn_recurrent_array(const qn_recurrent *recurrent, size_t layer, size_t array, float **data, size_t *count)
{
    if (array >= N_ARRAYS || !recurrent->layers[layer].state)
        return false;
    const struct array p = array_of(&recurrent->shape, &recurrent->layers[layer], array);
    *data = *p.memory;
    *count = p.count;
    return true;
}

void qn_recurrent_reset(qn_recurrent *recurrent)
{
    float *data;
    size_t count;
    for (size_t i = 0; i < recurrent->n_layers; i++)
        for (size_t p = 0; qn_recurrent_array(recurrent, i, p, &data, &count); p++)
            memset(data, 0, count * sizeof *data);
}

void qn_recurrent_copy(qn_recurrent *to, const qn_recurrent *from)
{
    float *data, *source;
    size_t count;
    for (size_t i = 0; i < from->n_layers; i++)
        for (size_t p = 0; qn_recurrent_array(from, i, p, &source, &count); p++)
            if (qn_recurrent_array(to, i, p, &data, &count))
                memcpy(data, source, count * sizeof *data);
}

void qn_recurrent_zero_tail(const qn_recurrent *recurrent, size_t length)
{
    const qn_recurrent_shape *s = &recurrent->shape;
    const size_t open_tokens = qn_recurrent_open_tokens(length), n_zeroed = QN_GDN_CHUNK - open_tokens,
                 width = qn_recurrent_width(s);
    for (size_t i = 0; i < recurrent->n_layers; i++) {
        const qn_recurrent_layer *layer = &recurrent->layers[i];
        if (!layer->state)
            continue;
        for (size_t h = 0; h < s->n_v_heads; h++) {
            memset(layer->v_new + (h * QN_GDN_CHUNK + open_tokens) * s->head_v, 0, n_zeroed * s->head_v * sizeof(float));
            memset(layer->log_decay + h * QN_GDN_CHUNK + open_tokens, 0, n_zeroed * sizeof(float));
        }
        for (size_t row = 0; row < s->n_k_heads * s->head_k; row++)
            memset(layer->keys + row * QN_GDN_CHUNK + open_tokens, 0, n_zeroed * sizeof(float));
        memset(layer->conv_inputs + (s->taps - 1 + open_tokens) * width, 0, n_zeroed * width * sizeof(float));
    }
}
