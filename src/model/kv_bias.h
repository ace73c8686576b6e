/* Finds layers whose biases are too large for a KV cache of AURA codes.
 *
 * The quantisation error of a row is proportional to the row's norm (kernels/aura/aura.h). A bias increases the norm,
 * and so the error, but it is the same in all rows and does not help to tell one key from another. The mean of page 0's
 * keys, which is subtracted before keys are quantised, removes the part of a key bias in slow pairs, which rope hardly
 * rotates. In other pairs, the codes of every key contain the bias; the codes of every value contain the value bias. A
 * query bias increases the scores and, in proportion, the errors that come from the keys' codes, and so makes the
 * softmax sharper.
 *
 * The rule. For each head, B is the norm of the bias; for keys, the norm of the part that remains after the mean is
 * subtracted, as root mean square over the positions of the context length used in training. N is the norm expected
 * from the weights without the bias: their input comes from an RMS norm, so the expected square is the sum of the
 * squared weights, each times the square of the norm's weight. Keys with B = r N have errors of sqrt(1 + r r) times the
 * errors without bias, and up to sqrt(1 + 3 r r) at the position farthest from page 0: for r = 1, at most twice. Values
 * do not depend on the position: r = 1.5 gives 1.8 times. A query bias adds no quantisation error, but the scores grow
 * by sqrt(1 + r r), their errors too, and a sharper softmax is more sensitive to errors: twice with r = 1.2, as
 * measured (docs/lab/2026-11-aura.md). The factors of queries and keys multiply: r = 0.8 for one and 0.7 for the other
 * also give twice the error. */
#ifndef QN_MODEL_KV_BIAS_H
#define QN_MODEL_KV_BIAS_H

#include "plan/plan.h"

/* A projection to queries, keys or values of n_heads heads. */
typedef struct qn_biased_projection {
    const qn_matrix *weights;
    const float *norm; /* [n_cols] weight of the RMS norm that computes the input */
    bool rotated;      /* the weights are in a rotated basis: the mean of the norm's squares stands for each of them */
    const float *bias; /* [n_rows] */
    size_t n_heads;
} qn_biased_projection;

/* qn_kv_bias_find - computes B / N of a layer's queries, keys and values (qkv): for each, the largest of its heads; 0
 * for a bias of zeros. The plan must already have its head shape and its rope frequencies.
 *
 *   n_ctx   context length used in training
 *
 * QN_ERR_MEMORY. */
qn_status qn_kv_bias_find(const qn_plan *plan, const qn_biased_projection qkv[3], uint32_t n_ctx, qn_kv_bias *out);

/* qn_kv_bias_is_large - returns whether a layer's biases are too large for codes. */
bool qn_kv_bias_is_large(const qn_kv_bias *bias);

/* qn_plan_has_large_kv_bias - returns whether any layer's biases are too large for codes. The cache is then fp16 in all
 * layers, because pages have one layout. */
bool qn_plan_has_large_kv_bias(const qn_plan *plan);

/* qn_plan_describe_kv_bias - describes the biases of the layers in which they are too large: "biases of queries, keys
 * and values are up to 0.9, 88 and 0.2 times the norm without them (layers 0, 2-5 of 28)". The text is cut if it does
 * not fit, and empty if there are no such layers. */
void qn_plan_describe_kv_bias(const qn_plan *plan, char *text, size_t size);

#endif
