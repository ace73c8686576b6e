/* Allocation and copying of what recurrent layers remember. What the numbers mean is kernels/deltanet/deltanet.h's business. */
#include "cache/recurrent.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet.h"

#include <string.h>

enum { N_PARTS = 5 };

/* One of the arrays of a layer. */
struct part {
    float **memory;
    size_t count;
};

/* The five arrays of a layer and how many floats each has; create() has checked that the products do not overflow. */
static struct part part_of(const qn_recurrent_shape *s, qn_recurrent_layer *layer, size_t part)
{
    const size_t values = s->n_v_heads * s->head_v;
    const struct part parts[N_PARTS] = {
        { &layer->state, values * s->head_k },
        { &layer->corrected, values * QN_GDN_CHUNK },
        { &layer->keys, s->n_k_heads * s->head_k * QN_GDN_CHUNK },
        { &layer->decay, s->n_v_heads * QN_GDN_CHUNK },
        { &layer->inputs, (s->taps - 1 + QN_GDN_CHUNK) * qn_recurrent_width(s) },
    };
    return parts[part];
}

/* The largest array of a layer is no larger than this bound, and all five of all layers fit a size_t. */
static bool sizes_fit(const qn_recurrent_shape *s, size_t n_layers)
{
    size_t keys, values, width, state, bytes;
    return qn_mul_size(s->n_k_heads, s->head_k, &keys) && qn_mul_size(s->n_v_heads, s->head_v, &values) &&
           qn_mul_size(keys, 2, &width) && qn_add_size(width, values, &width) &&
           qn_mul_size(width, s->taps + 3 * QN_GDN_CHUNK, &width) && qn_mul_size(values, s->head_k, &state) &&
           qn_add_size(width, state, &bytes) && qn_mul_size(bytes, sizeof(float), &bytes) &&
           qn_mul_size(bytes, n_layers + 1, &bytes);
}

/* All layers in one block, so that larger pages serve them; every array begins at a cache line. */
static qn_status create_layers(qn_recurrent *recurrent, const bool *is_recurrent)
{
    const size_t line = QN_ALIGN / sizeof(float);
    size_t count = 0, n_recurrent = 0;
    QN_TRY(qn_alloc(&recurrent->layers, recurrent->n_layers, sizeof *recurrent->layers, "recurrent state"));
    for (size_t i = 0; i < recurrent->n_layers; i++)
        n_recurrent += is_recurrent[i];
    for (size_t p = 0; p < N_PARTS; p++)
        count += n_recurrent * qn_round_up(part_of(&recurrent->shape, recurrent->layers, p).count, line);
    QN_TRY(qn_alloc(&recurrent->memory, count, sizeof(float), "recurrent state"));
    qn_advise_huge(recurrent->memory, count * sizeof(float));
    float *memory = recurrent->memory;
    for (size_t i = 0; i < recurrent->n_layers; i++)
        for (size_t p = 0; is_recurrent[i] && p < N_PARTS; p++) {
            const struct part part = part_of(&recurrent->shape, &recurrent->layers[i], p);
            *part.memory = memory;
            memory += qn_round_up(part.count, line);
            recurrent->total_bytes += part.count * sizeof(float);
        }
    return QN_OK;
}

qn_status qn_recurrent_create(qn_recurrent *recurrent, const qn_recurrent_shape *shape, const bool *is_recurrent,
                              size_t n_layers)
{
    *recurrent = (qn_recurrent){ .n_layers = n_layers, .shape = *shape };
    if (!sizes_fit(shape, n_layers)) {
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

bool qn_recurrent_part(const qn_recurrent *recurrent, size_t layer, size_t part, float **data, size_t *count)
{
    if (part >= N_PARTS || !recurrent->layers[layer].state)
        return false;
    const struct part p = part_of(&recurrent->shape, &recurrent->layers[layer], part);
    *data = *p.memory;
    *count = p.count;
    return true;
}

void qn_recurrent_reset(qn_recurrent *recurrent)
{
    float *data;
    size_t count;
    for (size_t i = 0; i < recurrent->n_layers; i++)
        for (size_t p = 0; qn_recurrent_part(recurrent, i, p, &data, &count); p++)
            memset(data, 0, count * sizeof *data);
}

void qn_recurrent_copy(qn_recurrent *to, const qn_recurrent *from)
{
    float *data, *source;
    size_t count;
    for (size_t i = 0; i < from->n_layers; i++)
        for (size_t p = 0; qn_recurrent_part(from, i, p, &source, &count); p++)
            if (qn_recurrent_part(to, i, p, &data, &count))
                memcpy(data, source, count * sizeof *data);
}

void qn_recurrent_trim(const qn_recurrent *recurrent, size_t length)
{
    const qn_recurrent_shape *s = &recurrent->shape;
    const size_t open = qn_recurrent_open(length), gone = QN_GDN_CHUNK - open, width = qn_recurrent_width(s);
    for (size_t i = 0; i < recurrent->n_layers; i++) {
        const qn_recurrent_layer *layer = &recurrent->layers[i];
        if (!layer->state)
            continue;
        for (size_t h = 0; h < s->n_v_heads; h++) {
            memset(layer->corrected + (h * QN_GDN_CHUNK + open) * s->head_v, 0, gone * s->head_v * sizeof(float));
            memset(layer->decay + h * QN_GDN_CHUNK + open, 0, gone * sizeof(float));
        }
        for (size_t row = 0; row < s->n_k_heads * s->head_k; row++)
            memset(layer->keys + row * QN_GDN_CHUNK + open, 0, gone * sizeof(float));
        memset(layer->inputs + (s->taps - 1 + open) * width, 0, gone * width * sizeof(float));
    }
}
