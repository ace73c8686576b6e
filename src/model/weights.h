/* Finding tensors by name and insisting on their shapes, and knowing in the end which of them nobody asked for. */
#ifndef QN_MODEL_WEIGHTS_H
#define QN_MODEL_WEIGHTS_H

#include "gguf/gguf.h"
#include "kernels/matmul/matmul.h"
#include "model/hadamard.h"

/* A file whose tensors are being given their places. */
typedef struct qn_weights {
    const qn_gguf *file;
    qn_rotation rotation;
    uint8_t *uses; /* [n_tensors] what was asked for */
} qn_weights;

typedef struct qn_weight {
    qn_matrix matrix;
    bool rotated; /* expects its input rotated */
} qn_weight;

/* qn_weights_open - read how the file's weights are rotated; no tensor has been asked for. Free with qn_weights_close, which
 * takes a zeroed struct too. */
qn_status qn_weights_open(qn_weights *weights, const qn_gguf *file);
void qn_weights_close(qn_weights *weights);

/* qn_weights_matrix - "NAME" or, with layer >= 0, "blk.LAYER.NAME": a matrix of n_rows rows of n_cols that is going to be
 * multiplied by activations. */
qn_status qn_weights_matrix(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows, qn_weight *out);

/* qn_weights_table - the same for a matrix whose rows are going to be looked up. */
qn_status qn_weights_table(qn_weights *weights, const char *name, size_t n_cols, size_t n_rows, qn_matrix *out);

/* qn_weights_floats - n_rows rows of n_cols f32 values; *out points into the map. */
qn_status qn_weights_floats(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows, const float **out);

/* qn_weights_vector - n f32 values. With `optional`, an absent tensor gives NULL. */
qn_status qn_weights_vector(qn_weights *weights, int layer, const char *name, size_t n, bool optional, const float **out);

/* qn_weights_has - whether such a tensor exists. */
bool qn_weights_has(const qn_weights *weights, int layer, const char *name);

/* qn_weights_check_all_used - QN_ERR_UNSUPPORTED, naming it, for a tensor that nobody asked for, or one with rotated weights that
 * nobody is going to multiply. Tensors of blocks first_ignored to end_ignored - 1 are let pass. */
qn_status qn_weights_check_all_used(const qn_weights *weights, const char *architecture, uint32_t first_ignored,
                                    uint32_t end_ignored);

#endif
