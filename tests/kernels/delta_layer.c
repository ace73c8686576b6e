/* A Gated DeltaNet layer on the host: random inputs, and the result of the CPU's kernels. */
#include "delta_layer.h"

#include "kernels/deltanet/deltanet.h"

float *qn_decay_factors(size_t n)
{
    float *factor = qn_floats_of(n, 0.3f);
    for (size_t h = 0; h < n; h++)
        factor[h] = -0.1f - fabsf(factor[h]);
    return factor;
}

float qn_delta_layer_scale(const struct delta_layer *l)
{
    return 1 / sqrtf((float)l->head_k);
}

void qn_delta_layer_draw(struct delta_layer *l)
{
    const size_t rows = l->sessions * l->tokens;
    l->values = l->v_heads * l->head_v;
    l->width = 2 * l->k_heads * l->head_k + l->values;
    l->qkv = qn_floats_of(rows * l->width, 1);
    l->alpha = qn_floats_of(rows * l->v_heads, 1);
    l->beta_in = qn_floats_of(rows * l->v_heads, 1);
    l->gate = qn_floats_of(rows * l->values, 1);
    l->conv = qn_floats_of(l->taps * l->width, 0.5f);
    l->bias = qn_floats_of(l->v_heads, 1);
    l->factor = qn_decay_factors(l->v_heads);
    l->norm = qn_floats_of(l->head_v, 1);
    l->expected = qn_floats(rows * l->values);
    l->expected_state = qn_floats(l->sessions * l->values * l->head_k);
}

void qn_delta_layer_expect(struct delta_layer *l)
{
    const size_t rows = l->sessions * l->tokens, keys = l->k_heads * l->head_k, n_state = l->values * l->head_k;
    const qn_conv_shape conv = { .batch = l->sessions, .tokens = l->tokens, .channels = l->width, .taps = l->taps };
    const qn_gdn_shape shape = { .batch = l->sessions,
                                 .tokens = l->tokens,
                                 .k_heads = l->k_heads,
                                 .v_heads = l->v_heads,
                                 .head_k = l->head_k,
                                 .head_v = l->head_v,
                                 .mapping = QN_GDN_TILED,
                                 .scale = qn_delta_layer_scale(l),
                                 .normalize = true };
    float *y = qn_floats(rows * l->width), *weights = qn_floats(l->width * l->taps), *q = qn_floats(rows * keys),
          *k = qn_floats(rows * keys);
    float *v = qn_floats(rows * l->values), *o = qn_floats(rows * l->values), *g = qn_floats(rows * l->v_heads);
    float *beta = qn_floats(rows * l->v_heads);
    for (size_t tap = 0; tap < l->taps; tap++)
        for (size_t c = 0; c < l->width; c++)
            weights[c * l->taps + tap] = l->conv[tap * l->width + c];
    qn_assert_ok(qn_conv_scan(&conv, view(l->qkv, rows * l->width), view(weights, l->width * l->taps), (qn_view){ 0 },
                              (qn_view){ 0 }, (qn_view){ 0 }, view(y, rows * l->width)));
    for (size_t row = 0; row < rows; row++) {
        memcpy(q + row * keys, y + row * l->width, keys * sizeof *q);
        memcpy(k + row * keys, y + row * l->width + keys, keys * sizeof *k);
        memcpy(v + row * l->values, y + row * l->width + 2 * keys, l->values * sizeof *v);
        for (size_t h = 0; h < l->v_heads; h++) {
            g[row * l->v_heads + h] = qn_gdn_log_decay(l->alpha[row * l->v_heads + h], l->bias[h], l->factor[h]);
            beta[row * l->v_heads + h] = qn_gdn_beta(l->beta_in[row * l->v_heads + h]);
        }
    }
    memset(l->expected_state, 0, l->sessions * n_state * sizeof *l->expected_state);
    qn_assert_ok(qn_gdn_step(&shape, view(q, rows * keys), view(k, rows * keys), view(v, rows * l->values),
                             view(g, rows * l->v_heads), view(beta, rows * l->v_heads),
                             view(l->expected_state, l->sessions * n_state), view(o, rows * l->values)));
    qn_assert_ok(qn_gated_rms_norm(view(o, rows * l->values), view(l->gate, rows * l->values), view(l->norm, l->head_v),
                                   rows * l->v_heads, l->head_v, QN_DELTA_LAYER_EPS, view(o, rows * l->values)));
    const size_t repeat = l->v_heads / l->k_heads;
    for (size_t row = 0; row < rows; row++) /* reorder: heads that share a key head become adjacent */
        for (size_t h = 0; h < l->v_heads; h++)
            memcpy(l->expected + row * l->values + (h % l->k_heads * repeat + h / l->k_heads) * l->head_v,
                   o + row * l->values + h * l->head_v, l->head_v * sizeof *o);
}
