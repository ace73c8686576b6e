/* The layout of states and open chunks of the recurrent layers on the CPU, in floats. */
#ifndef QN_CPU_RECURRENT_LAYOUT_H
#define QN_CPU_RECURRENT_LAYOUT_H

#include "cache/saved_layout.h"
#include "cpu/view.h"

/* Constant after creation; any thread may read it. */
typedef struct qn_recurrent_layout {
    qn_recurrent_shape shape;
    uint32_t *index;                   /* [n_layers of the model] a recurrent layer's index among the recurrent ones */
    size_t n_layers;                   /* recurrent layers */
    size_t state_stride, chunk_stride; /* floats of one layer, multiples of a cache line */
    size_t history;                    /* offset in a layer's state */
    size_t chunk[4];                   /* offsets in a layer's open chunk: v_new, keys, log_decay, conv_inputs */
} qn_recurrent_layout;

/* One layer's part of a state, and of an open chunk: pointers into the pool items of a sequence, as long as its view is
 * valid. */
typedef struct qn_recurrent_layer {
    float *state, *state_to;     /* [n_v_heads][head_k][head_v] at state_position; NULL as in qn_recurrent_view */
    float *history, *history_to; /* [taps-1][qn_recurrent_width]: the convolution's inputs q, k, v at the positions
                                    before state_position; NULL if the state is */
    float *v_new;                /* [n_v_heads][QN_GDN_CHUNK][head_v]: corrected values v' of the open chunk */
    float *keys;                 /* [n_k_heads][head_k][QN_GDN_CHUNK]: keys of the open chunk, one token a column */
    float *log_decay;            /* [n_v_heads][QN_GDN_CHUNK]: g of the open chunk */
    float *conv_inputs;          /* [QN_GDN_CHUNK][qn_recurrent_width]: the convolution's inputs of the open chunk */
} qn_recurrent_layer;

/* qn_recurrent_layout_create - creates the layout for the layers with is_recurrent [n_layers] set. QN_ERR_MEMORY if
 * sizes overflow. Free with qn_recurrent_layout_free, which accepts a zeroed struct. */
qn_status qn_recurrent_layout_create(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers,
                                     qn_recurrent_layout *layout);
void qn_recurrent_layout_free(qn_recurrent_layout *layout);

/* qn_recurrent_state_item_bytes - returns the bytes of a state of all layers. */
size_t qn_recurrent_state_item_bytes(const qn_recurrent_layout *layout);

/* qn_recurrent_chunk_item_bytes - returns the bytes of an open chunk of all layers. */
size_t qn_recurrent_chunk_item_bytes(const qn_recurrent_layout *layout);

/* qn_recurrent_array - returns an array of recurrent layer `index`, and its number of floats in *count. State and
 * history are NULL if the view has no state. */
float *qn_recurrent_array(const qn_recurrent_view *view, size_t index, qn_saved_array array, size_t *count);

/* qn_recurrent_layer_of - returns the data of layer `layer` of the model in a sequence. */
qn_recurrent_layer qn_recurrent_layer_of(const qn_recurrent_view *view, size_t layer);

/* qn_recurrent_layer_at - returns the data of recurrent layer `index` in a sequence. */
qn_recurrent_layer qn_recurrent_layer_at(const qn_recurrent_view *view, size_t index);

/* qn_recurrent_zero_tail - zeroes the rows of the open chunk that a sequence of `length` tokens does not use. */
void qn_recurrent_zero_tail(const qn_recurrent_view *view, size_t length);

#endif
