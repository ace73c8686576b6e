/* A Gated DeltaNet layer on the host: random inputs, and the result of the CPU's kernels. */
#ifndef QN_CHECK_DELTA_LAYER_H
#define QN_CHECK_DELTA_LAYER_H

#include "check.h"

#include "quern/kernels.h"

static inline qn_view view(const float *x, size_t n)
{
    return (qn_view){ (void *)(uintptr_t)x, QN_DTYPE_F32, n };
}

/* A layer from its projections to the gated norm, and the result of the CPU's kernels. Rows of arrays are in the order
 * of sessions, then tokens. */
struct delta_layer {
    size_t sessions, tokens, k_heads, v_heads, head_k, head_v, taps;
    size_t width, values; /* elements of a row of qkv, of a row of the result */
    float *qkv, *alpha, *beta_in, *gate, *conv, *bias, *factor, *norm;
    float *expected, *expected_state; /* the state after all tokens */
};

#define QN_DELTA_LAYER_EPS 1e-6f

/* qn_delta_layer_draw - Allocates the arrays of a layer with these sizes, and draws inputs and weights. */
void qn_delta_layer_draw(struct delta_layer *layer);

/* qn_delta_layer_expect - Computes the layer's `expected` and `expected_state` with the CPU's kernels. */
void qn_delta_layer_expect(struct delta_layer *layer);
float qn_delta_layer_scale(const struct delta_layer *layer);

/* qn_decay_factors - Returns random factors of the decays of n heads. */
float *qn_decay_factors(size_t n);

#endif
