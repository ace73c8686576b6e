/* What architectures are put together from: the stream of rows that layers add to, attention, SwiGLU, the ends. */
#ifndef QN_MODEL_LAYERS_H
#define QN_MODEL_LAYERS_H

#include "model/model.h"
#include "model/weights.h"

/* A plan under construction, and the buffers that its layers share. */
typedef struct qn_build {
    qn_weights *weights;
    const qn_hparams *hparams;
    qn_plan *plan;
    int x;                           /* the stream */
    int queries, q, k, v, attention; /* queries is q where there are no gates */
    int gate, up;
} qn_build;

/* qn_build_begin - rope, shared buffers and the embedding. gated_attention: qn_attention_shape.gated. */
qn_status qn_build_begin(qn_build *build, bool gated_attention);

/* qn_build_attention - norm, attention, and its output added to the stream. */
qn_status qn_build_attention(qn_build *build, uint32_t layer);

/* qn_build_feed_forward - the norm of this name, SwiGLU, and its output added to the stream. */
qn_status qn_build_feed_forward(qn_build *build, uint32_t layer, const char *norm_name);

/* qn_build_head - the last norm and the logits. */
qn_status qn_build_head(qn_build *build);

/* qn_build_matmuls - `writer`, an operation that writes activations, and the products of these with n matrices of the same
 * width, each into its buffer. Fills in what the writer says of activations: those that the matrices read, rotated for rotated
 * weights. `layer` as in the tensors' names, -1 for none. */
qn_status qn_build_matmuls(qn_build *build, qn_op *writer, int layer, const qn_weight *weights, const int *out, size_t n,
                           bool accumulate);

#endif
