#version 450
/* What rows leave in their sequence's open chunk, when no head reads it any more in this step: keys, log decays, inputs
 * of the convolution; and the history of a state that the step has written. Workgroups of a sequence: one for each 64
 * channels, then one for each key head, then one for each value head. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "gates.glsl"
#include "pages.glsl"
#include "recurrent.glsl"

layout(push_constant) uniform Args {
    uvec2 qkv, convolved; /* [rows][width] */
    uvec2 decays;         /* [rows][v_heads] */
    uvec2 bias, factor;   /* factor 0: decays are those of conv.comp; else its alpha */
    uvec2 sequences;
    uvec2 granules;
    uint shift;
    uint history_at, keys_at, decays_at, inputs_at; /* in a state; in an open chunk */
    uint k_heads, v_heads, head_k, head_v, taps;
};

/* Each lane has a channel: it reads its inputs before it overwrites them. */
void append_inputs(Sequence s, uint channel, uint width)
{
    const uint kept = taps - 1, n = kept + DROPPED, end = s.position + (s.end - s.begin);
    const uint state = state_position_after(s.state_position, end);
    if (channel >= width)
        return;
    for (uint i = 0; i < kept && state != s.state_position; i++) {
        const uint from = state - kept + i;
        const uvec2 at = from >= s.position
                             ? advance(qkv, (s.begin + (from - s.position)) * width + channel, 4)
                             : item_word(granules, shift, s.open, inputs_at, from % n * width + channel);
        Floats(item_word(granules, shift, s.to, history_at, i * width + channel)).at[0] = Floats(at).at[0];
    }
    for (uint position = max(s.position + n, end) - n; position < end; position++)
        Floats(item_word(granules, shift, s.open, inputs_at, position % n * width + channel)).at[0] =
            Floats(qkv).at[(s.begin + (position - s.position)) * width + channel];
}

void append_keys(Sequence s, uint k_head, uint first, uint n, uint width)
{
    const uint words = head_k / 2;
    for (uint i = gl_LocalInvocationIndex; i < n * words; i += LANES) {
        const uint position = first + i / words, word = i % words;
        Floats from = Floats(advance(convolved, (s.begin + (position - s.position)) * width, 4));
        const uint channel = (k_heads + k_head) * head_k + 2 * word;
        Words(item_word(granules, shift, s.open, keys_at, (k_head * CHUNK + position % CHUNK) * words + word)).at[0] =
            floats_to_halves(vec2(from.at[channel], from.at[channel + 1]));
    }
}

void main()
{
    const uint group = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    const Sequence s = Sequences(sequences).at[gl_WorkGroupID.y];
    const uint width = 2 * k_heads * head_k + v_heads * head_v, channel_groups = (width + LANES - 1) / LANES;
    if (s.begin == s.end)
        return;
    const uint end = s.position + (s.end - s.begin);
    const uint first = max(s.position, state_position_after(s.state_position, end)), n = end - first;
    if (group < channel_groups) {
        append_inputs(s, group * LANES + lane, width);
    } else if (group < channel_groups + k_heads) {
        append_keys(s, group - channel_groups, first, n, width);
    } else if (lane < n) {
        const uint v_head = group - channel_groups - k_heads, position = first + lane;
        float decay = Floats(decays).at[(s.begin + (position - s.position)) * v_heads + v_head];
        if (!is_null(factor))
            decay = log_decay_of(decay, is_null(bias) ? 0.0 : Floats(bias).at[v_head], Floats(factor).at[v_head]);
        Floats(item_word(granules, shift, s.open, decays_at, v_head * CHUNK + position % CHUNK)).at[0] = decay;
    }
}
