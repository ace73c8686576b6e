/* Which layers' biases are too large for a KV cache of AURA codes.
 *
 * The error of a row's codes is in proportion to the row's norm (kernels/aura/aura.h). A bias makes rows longer, and
 * the error with them, but is the same in all: it tells no key from another. The mean of page 0's keys, which is
 * subtracted before keys are quantised, removes the part of a key bias that rope leaves where it is, in slow pairs. In
 * other pairs the bias is in the codes of each key, and a value bias in those of each value. A query bias makes scores
 * larger, with the errors of the keys' codes, and so the softmax sharper.
 *
 * The rule. Of each head, B is the norm of the bias, of keys that of what the mean leaves of it: the root of the mean
 * square over the positions of the context length used in training. N is the norm without bias that the weights let
 * expect: their input comes from an RMS norm, so the expected square is the sum of the weights' squares, each times the
 * square of the norm's weight. Keys with B = r N have errors of sqrt(1 + r r) times those without bias, and up to
 * sqrt(1 + 3 r r) at the position that is farthest from page 0: for r = 1, at most twice. For values, which do not
 * depend on the position, r = 1.5 is 1.8 times. A query bias adds nothing to the error of codes, but scores grow by
 * sqrt(1 + r r), their errors with them, and a sharper softmax shows more of these: twice with r = 1.2, as measured
 * (docs/lab/2026-11-aura.md). What queries and keys cost is multiplied: r = 0.8 of the one and 0.7 of the other are
 * twice, too. */
#ifndef QN_MODEL_KV_BIAS_H
#define QN_MODEL_KV_BIAS_H

#include "plan/plan.h"

/* A projection to queries, keys or values of n_heads heads. */
typedef struct qn_biased_projection {
    const qn_matrix *weights;
    const float *norm; /* [n_cols] weight of the RMS norm of its input */
    bool rotated;      /* the weights are in a rotated basis: of the norm's squares, each has their mean */
    const float *bias; /* [n_rows] */
    size_t n_heads;
} qn_biased_projection;

/* qn_kv_bias_find - B / N of a layer's queries, keys and values (qkv): of each the largest of its heads. 0 for a bias
 * of zeros. The plan has its shape of heads and its rope.
 *
 *   n_ctx   context length used in training
 *
 * QN_ERR_MEMORY if there is no memory. */
qn_status qn_kv_bias_find(const qn_plan *plan, const qn_biased_projection qkv[3], uint32_t n_ctx, qn_kv_bias *out);

/* qn_kv_bias_is_large - whether a layer's biases are too large for codes. qn_plan_has_large_kv_bias - whether any
 * layer's are: the cache is then fp16, in all layers, because pages have one layout. */
bool qn_kv_bias_is_large(const qn_kv_bias *bias);
bool qn_plan_has_large_kv_bias(const qn_plan *plan);

/* qn_plan_describe_kv_bias - how large the biases are in the layers in which they are too large: "biases of queries,
 * keys and values are up to 0.9, 88 and 0.2 times the norm without them (layers 0, 2-5 of 28)". Cut where it does not
 * fit; empty if there are none. */
void qn_plan_describe_kv_bias(const qn_plan *plan, char *text, size_t size);

#endif
