/* Finding tensors by name and insisting on their shapes. */
#ifndef QN_MODEL_WEIGHTS_H
#define QN_MODEL_WEIGHTS_H

#include "gguf/gguf.h"
#include "kernels/matmul/matmul.h"

/* qn_weights_matrix - "NAME" or, with layer >= 0, "blk.LAYER.NAME": a matrix of n_rows rows of n_cols. */
qn_status qn_weights_matrix(const qn_gguf *file, int layer, const char *name, size_t n_cols, size_t n_rows, qn_matrix *out);

/* qn_weights_vector - n f32 values; *out points into the map. With `optional`, an absent tensor gives NULL. */
qn_status qn_weights_vector(const qn_gguf *file, int layer, const char *name, size_t n, bool optional, const float **out);

/* qn_weights_has - whether such a tensor exists. */
bool qn_weights_has(const qn_gguf *file, int layer, const char *name);

#endif
