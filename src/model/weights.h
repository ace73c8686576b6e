/* Access to tensors by name, with checks of their shapes, and a final check that no tensor is unused. */
#ifndef QN_MODEL_WEIGHTS_H
#define QN_MODEL_WEIGHTS_H

#include "gguf/gguf.h"
#include "model/hadamard.h"
#include "plan/plan.h"
#include "quant/matrix.h"

/* A file, its rotation, and marks for the tensors that have been used. The file outlives it. Used by one thread. */
typedef struct qn_weights {
    const qn_gguf *file;
    qn_rotation rotation;
    uint8_t *uses; /* [n_tensors] bits: looked up, used in a matmul */
    qn_plan *plan; /* gets the matrices of NVFP4 with their scales */
} qn_weights;

/* A matrix of a matmul; its data is in the file's map. */
typedef struct qn_weight {
    qn_matrix matrix;
    bool rotated; /* requires a rotated input */
} qn_weight;

/* qn_weights_open - reads the rotation of the file's weights; marks no tensor as used. Free with qn_weights_close,
 * which also accepts a zeroed struct. */
qn_status qn_weights_open(qn_weights *weights, const qn_gguf *file, qn_plan *plan);
void qn_weights_close(qn_weights *weights);

/* qn_weights_open_plain - does the same for tensors of which none is rotated, whatever keys of rotation the file has.
 */
qn_status qn_weights_open_plain(qn_weights *weights, const qn_gguf *file, qn_plan *plan);

/* qn_weights_matrix - finds a matrix that is used in a matmul.
 *
 *   layer    >= 0: the tensor is "blk.LAYER.NAME"; -1: it is "NAME"
 *   name     name of the tensor
 *   n_cols   expected row length
 *   n_rows   expected number of rows
 *   out      output: the matrix, in the file's map
 *
 * Of NVFP4 also the scale of the tensor "NAME" with "scale" for "weight" is read, if there is one, and given to the
 * plan (qn_plan_add_scaled); "input_scale", of activations in that format, is not needed.
 *
 * QN_ERR_FORMAT if the tensor is missing or has another shape, QN_ERR_UNSUPPORTED for a type without matmul kernels.
 * The next three functions return the same errors. */
qn_status qn_weights_matrix(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows,
                            qn_weight *out);

/* qn_weights_table - finds a matrix whose rows are looked up (embedding table). */
qn_status qn_weights_table(qn_weights *weights, const char *name, size_t n_cols, size_t n_rows, qn_matrix *out);

/* qn_weights_floats - finds an f32 tensor [n_rows, n_cols]; *out points into the map. */
qn_status qn_weights_floats(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows,
                            const float **out);

/* qn_weights_vector - finds an f32 tensor [n]; *out points into the map. If it is missing and `optional`, *out is
 * NULL. */
qn_status qn_weights_vector(qn_weights *weights, int layer, const char *name, size_t n, bool optional,
                            const float **out);

/* qn_weights_has - returns whether the tensor exists. */
bool qn_weights_has(const qn_weights *weights, int layer, const char *name);

/* qn_weights_block - returns N of the name "blk.N.suffix", or UINT32_MAX. */
uint32_t qn_weights_block(qn_string name);

/* qn_weights_check_all_used - returns QN_ERR_UNSUPPORTED, naming the tensor, if a tensor was not looked up, or a
 * rotated one is not used in a matmul. Ignores tensors of blocks first_ignored to end_ignored - 1. */
qn_status qn_weights_check_all_used(const qn_weights *weights, const char *architecture, uint32_t first_ignored,
                                    uint32_t end_ignored);

#endif
