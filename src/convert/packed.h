/* A matrix of a checkpoint that is packed: codes of few bits, scales, and zero points or biases. Its weights are
 * computed in f32: products of a code and a scale are exact but for one rounding. */
#ifndef QN_CONVERT_PACKED_H
#define QN_CONVERT_PACKED_H

#include "convert/checkpoint.h"
#include "convert/packing.h"

typedef struct qn_packed qn_packed;

/* qn_packed_find - finds the tensors of a packed matrix and checks their types and shapes.
 *
 *   name            of the matrix, "model.layers.0.mlp.up_proj.weight"
 *   rows, columns   of the matrix
 *   packed          NULL if the matrix is not packed; else free it with qn_packed_free
 *   weights         the tensor with its codes
 *
 * All of its tensors are marked as used. QN_ERR_FORMAT, with the name, for one that is missing or has another type or
 * shape. */
qn_status qn_packed_find(const qn_checkpoint *checkpoint, const qn_packing *packing, const char *name, uint64_t rows,
                         uint64_t columns, qn_packed **packed, const qn_source **weights);
void qn_packed_free(qn_packed *packed);

/* qn_packed_name - how it is packed, for people: "FP8", "MLX". */
const char *qn_packed_name(const qn_packed *packed);

/* qn_packed_load - reads scales, zero points and biases into memory, and codes that are not stored by rows. Before
 * qn_packed_read; qn_packed_unload frees them. QN_ERR_IO, QN_ERR_MEMORY, or QN_ERR_FORMAT for a group out of range. */
qn_status qn_packed_load(qn_packed *packed);
void qn_packed_unload(qn_packed *packed);

/* qn_packed_read - computes rows [row, row + n) into out [n, columns]. Returns 0 or an errno, as qn_safetensors_read.
 * Any number of threads may call it. */
int qn_packed_read(const qn_packed *packed, uint64_t row, uint64_t n, float *out);

#endif
