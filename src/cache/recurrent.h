/* The state of the recurrent layers of one session on the CPU. The layout is qn_recurrent_layer's in cache/view.h. */
#ifndef QN_CACHE_RECURRENT_H
#define QN_CACHE_RECURRENT_H

#include "cache/view.h"

typedef struct qn_recurrent {
    qn_recurrent_layer *layers; /* [n_layers]; zeroed for layers that are not recurrent */
    float *memory;              /* one allocation for all layers */
    size_t n_layers;
    qn_recurrent_shape shape;
    uint64_t total_bytes; /* states, open chunks and convolution inputs of all layers, without padding */
} qn_recurrent;

/* qn_recurrent_create - allocate zeroed memory for the layers with is_recurrent [n_layers] set; QN_ERR_MEMORY when it
 * does not fit. Free with qn_recurrent_free, which accepts a zeroed struct. */
qn_status qn_recurrent_create(qn_recurrent *recurrent, const qn_recurrent_shape *shape, const bool *is_recurrent,
                              size_t n_layers);
void qn_recurrent_free(qn_recurrent *recurrent);

/* qn_recurrent_state_bytes - bytes of the states, without open chunks, of the layers with is_recurrent [n_layers] set; 0
 * if it is NULL. Every token reads the states; they are written once every QN_GDN_CHUNK tokens. */
uint64_t qn_recurrent_state_bytes(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers);

/* qn_recurrent_reset - zero everything. */
void qn_recurrent_reset(qn_recurrent *recurrent);

/* qn_recurrent_copy - copy the contents to another qn_recurrent of the same shape and layers. */
void qn_recurrent_copy(qn_recurrent *to, const qn_recurrent *from);

/* qn_recurrent_array - iterate over the arrays of a layer, for saving and restoring: sets *data and *count (floats) of
 * array 0, 1, ... and returns false after the last; a layer that is not recurrent has none. */
bool qn_recurrent_array(const qn_recurrent *recurrent, size_t layer, size_t array, float **data, size_t *count);

/* qn_recurrent_zero_tail - zero the rows of the open chunks that are unused in a session of `length` tokens. */
void qn_recurrent_zero_tail(const qn_recurrent *recurrent, size_t length);

#endif
