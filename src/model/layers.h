/* Building blocks of architectures: embedding, attention, SwiGLU, the output head, and the residual stream between
 * them. */
#ifndef QN_MODEL_LAYERS_H
#define QN_MODEL_LAYERS_H

#include "model/model.h"
#include "model/weights.h"

/* A plan under construction, and the indices of the buffers shared by its layers. Used by the thread that builds. */
typedef struct qn_build {
    qn_weights *weights;
    const qn_hparams *hparams;
    qn_plan *plan;
    int x;                           /* the residual stream */
    int queries, q, k, v, attention; /* queries: queries and gates if the attention is gated, else the same as q */
    int gate, up;
    qn_attention_shape shape; /* of the layers that are added */
    uint32_t first_layer;     /* layer of the plan that is block 0 of the file */
    uint32_t first_position;  /* positions before it are not attended to */
} qn_build;

/* qn_build_begin - sets rope, allocates the shared buffers and adds the embedding.
 *
 *   gated_attention   qn_attention_shape.gated */
qn_status qn_build_begin(qn_build *build, bool gated_attention);

/* qn_build_buffers - allocates the shared buffers for layers of build->shape. */
qn_status qn_build_buffers(qn_build *build);

/* qn_build_frequencies - computes rope's frequencies [n_rot/2] by the hyperparameters; free with qn_free. factors: as
 * in qn_rope_frequencies. */
qn_status qn_build_frequencies(const qn_hparams *hparams, const float *factors, double **out);

/* qn_build_attention - adds the attention of a block of the file: norm, attention, output projection, residual. */
qn_status qn_build_attention(qn_build *build, uint32_t block);

/* qn_build_feed_forward - adds the feed-forward network of a block: norm, SwiGLU, down projection, residual.
 *
 *   norm_name   name of the norm's tensor */
qn_status qn_build_feed_forward(qn_build *build, uint32_t block, const char *norm_name);

/* qn_build_head - adds the output norm and the logits. */
qn_status qn_build_head(qn_build *build);

/* qn_build_embedding - finds the table of embeddings, and the inverse rotation of its rows. */
qn_status qn_build_embedding(qn_build *build, qn_matrix *table, qn_plan_rotation *inverse);

/* qn_build_output - finds the matrix of the logits: the output matrix, or the embedding table. */
qn_status qn_build_output(qn_build *build, qn_weight *output);

/* qn_build_logits - adds a norm of the residual stream and its product with the matrix of the logits. */
qn_status qn_build_logits(qn_build *build, const float *norm, const qn_weight *output);

/* qn_build_matmuls - adds an operation that writes activations, and the matmul of these with n matrices of the same
 * width.
 *
 *   writer       the operation; the function sets its activations, plain or rotated or both, as the matrices require
 *   layer        index of the layer, -1 for none
 *   weights      [n] the matrices
 *   out          [n] the output buffers; NULL for logits
 *   accumulate   add to the output buffers (residual) */
qn_status qn_build_matmuls(qn_build *build, qn_op *writer, int layer, const qn_weight *weights, const int *out,
                           size_t n, bool accumulate);

#endif
