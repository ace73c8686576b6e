/* What the recurrent layers of one session remember; the layout is device/plan.h's qn_recurrent_layer. */
#ifndef QN_CACHE_RECURRENT_H
#define QN_CACHE_RECURRENT_H

#include "device/plan.h"

typedef struct qn_recurrent {
    qn_recurrent_layer *layers; /* [n_layers]; zeroed for layers that are not recurrent */
    float *memory;              /* of all of them */
    size_t n_layers;
    qn_recurrent_shape shape;
    uint64_t total_bytes; /* all of it: states and open chunks */
} qn_recurrent;

/* qn_recurrent_create - zeroed memory for the layers with is_recurrent [n_layers] set. Free with qn_recurrent_free, which takes
 * a zeroed struct too. */
qn_status qn_recurrent_create(qn_recurrent *recurrent, const qn_recurrent_shape *shape, const bool *is_recurrent,
                              size_t n_layers);
void qn_recurrent_free(qn_recurrent *recurrent);

/* qn_recurrent_state_bytes - the states alone, of the layers with is_recurrent [n_layers] set; none, where it is NULL. A token
 * reads them, and every QN_GDN_CHUNK tokens write them. */
uint64_t qn_recurrent_state_bytes(const qn_recurrent_shape *shape, const bool *is_recurrent, size_t n_layers);

/* qn_recurrent_reset - as it was created. */
void qn_recurrent_reset(qn_recurrent *recurrent);

/* qn_recurrent_copy - the contents of one into another of the same shape and layers. */
void qn_recurrent_copy(qn_recurrent *to, const qn_recurrent *from);

/* qn_recurrent_array - the memory of a layer, piece by piece, for saving and restoring it: sets data and count (floats) of part
 * 0, 1, ... and returns false when there are no more, as at once for a layer that is not recurrent. */
bool qn_recurrent_array(const qn_recurrent *recurrent, size_t layer, size_t array, float **data, size_t *count);

/* qn_recurrent_zero_tail - zeros in the rows of the open chunk that a session of `length` tokens does not hold. */
void qn_recurrent_zero_tail(const qn_recurrent *recurrent, size_t length);

#endif
