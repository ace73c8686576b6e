#version 450
/* Causal convolution and SiLU of a head of a row, of q, k or v, for each workgroup. Heads of q and k are divided by
 * their l2 norm; keys are rounded to fp16, as the open chunk has them. With a value head come its log decay and beta.
 * Inputs before the step are in the open chunk, or in the history of the state. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "gates.glsl"
#include "pages.glsl"
#include "recurrent.glsl"

layout(constant_id = 0) const uint TAPS = 4;

layout(push_constant) uniform Args {
    uvec2 qkv, y;                /* [rows][width] */
    uvec2 alpha, beta;           /* [rows][v_heads]: overwritten by log decays and betas */
    uvec2 weights, bias, factor; /* [taps][width], [v_heads] (0: none), [v_heads] */
    uvec2 sequence_of, sequences;
    uvec2 granules;
    uint shift;
    uint history_at, inputs_at; /* in a state; in an open chunk */
    uint k_heads, v_heads, head_k, head_v;
};

#include "conv.glsl"

void main()
{
    const uint h = gl_WorkGroupID.x, row = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    const uint width = 2 * k_heads * head_k + v_heads * head_v;
    const bool is_value = h >= 2 * k_heads, is_key = h >= k_heads && !is_value;
    const uint dim = is_value ? head_v : head_k,
               first = is_value ? 2 * k_heads * head_k + (h - 2 * k_heads) * head_v : h * head_k;
    const uint channel = first + 4 * lane, v_head = h - 2 * k_heads, at = row * v_heads + v_head;
    const bool is_active = 4 * lane < dim, has_gates = is_value && lane == 0;
    const uint sequence = Words(sequence_of).at[row];
    if (sequence == 0xffffffff)
        return;
    const Sequence s = Sequences(sequences).at[sequence];
    float alpha_ = 0, beta_ = 0, bias_ = 0, factor_ = 0;
    if (has_gates) {
        alpha_ = Floats(alpha).at[at];
        beta_ = Floats(beta).at[at];
        factor_ = Floats(factor).at[v_head];
        bias_ = is_null(bias) ? 0.0 : Floats(bias).at[v_head];
    }
    vec4 value = vec4(0);
    precise float squares = 0;
    if (is_active) {
        value = convolve(s, row, channel, width);
        squares = squares_of(value);
    }
    precise float norm = 1;
    if (!is_value) {
        norm = sqrt(sum_of_lanes(squares) + 1e-6);
        norm = 1.0 / norm;
    }
    if (is_active) {
        precise vec4 result = value * norm;
        for (uint i = 0; i < 4 && is_key; i++)
            result[i] = half_to_float(float_to_half(result[i]));
        Vec4s(advance(y, row * width + channel, 4)).at[0] = result;
    }
    if (has_gates) {
        Floats(alpha).at[at] = log_decay_of(alpha_, bias_, factor_);
        Floats(beta).at[at] = sigmoid(beta_);
    }
}
