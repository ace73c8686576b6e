#version 450
/* Causal convolution and SiLU of a head of a row, of q, k or v, for each workgroup. Heads of q and k are divided by
 * their l2 norm; keys are rounded to fp16, as the open chunk has them. With a value head come its log decay and beta.
 * Inputs before the step are in the open chunk, or in the history of the state. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "gates.glsl"
#include "pages.glsl"
#include "recurrent.glsl"

#define MAX_HEAD 256 /* QN_VK_MAX_RECURRENT_HEAD */

layout(push_constant) uniform Args {
    uvec2 qkv, y;                /* [rows][width] */
    uvec2 alpha, beta;           /* [rows][v_heads]: overwritten by log decays and betas */
    uvec2 weights, bias, factor; /* [taps][width], [v_heads] (0: none), [v_heads] */
    uvec2 sequence_of, sequences;
    uvec2 granules;
    uint shift;
    uint history_at, inputs_at; /* in a state; in an open chunk */
    uint k_heads, v_heads, head_k, head_v, taps;
};

shared float head[MAX_HEAD];

float input_of(Sequence s, uint row, uint back, uint channel, uint width)
{
    if (row - s.begin >= back)
        return Floats(advance(qkv, row - back, 4 * width)).at[channel];
    const uint position = s.position + (row - s.begin);
    if (position < back)
        return 0.0;
    const uint from = position - back, kept = taps - 1;
    if (from >= s.state_position)
        return Floats(item_word(granules, shift, s.open, inputs_at, from % (kept + DROPPED) * width + channel)).at[0];
    return Floats(item_word(granules, shift, s.from, history_at,
                            (from + kept - s.state_position) * width + channel)).at[0];
}

void main()
{
    const uint h = gl_WorkGroupID.x, row = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    const uint width = 2 * k_heads * head_k + v_heads * head_v;
    const uint sequence = Words(sequence_of).at[row];
    const bool is_value = h >= 2 * k_heads, is_key = h >= k_heads && !is_value;
    const uint dim = is_value ? head_v : head_k,
               first = is_value ? 2 * k_heads * head_k + (h - 2 * k_heads) * head_v : h * head_k;
    if (sequence == 0xffffffff)
        return;
    const Sequence s = Sequences(sequences).at[sequence];
    Floats to = Floats(advance(y, row, 4 * width));
    precise float squares = 0;
    for (uint i = lane; i < dim; i += LANES) {
        precise float sum = 0;
        for (uint t = 0; t < taps; t++)
            sum += Floats(advance(weights, t, 4 * width)).at[first + i] *
                   input_of(s, row, taps - 1 - t, first + i, width);
        const float value = silu(sum);
        head[i] = value;
        squares += value * value;
    }
    precise float norm = 1;
    if (!is_value) {
        norm = sqrt(sum_of_lanes(squares) + 1e-6);
        norm = 1.0 / norm;
    }
    for (uint i = lane; i < dim; i += LANES) {
        precise const float value = head[i] * norm;
        to.at[first + i] = is_key ? half_to_float(float_to_half(value)) : value;
    }
    if (is_value && lane == 0) {
        const uint v_head = h - 2 * k_heads, at = row * v_heads + v_head;
        precise const float x = Floats(alpha).at[at] + (is_null(bias) ? 0.0 : Floats(bias).at[v_head]);
        precise const float decay = softplus(x) * Floats(factor).at[v_head];
        Floats(alpha).at[at] = decay;
        Floats(beta).at[at] = sigmoid(Floats(beta).at[at]);
    }
}
