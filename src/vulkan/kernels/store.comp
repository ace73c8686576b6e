#version 450
/* Stores a KV head of a row in its page: a workgroup for each. Values get their bias. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"

layout(push_constant) uniform Args {
    uvec2 keys, values, value_bias;     /* [rows][heads][dim]; bias [heads][dim], 0: none */
    uvec2 tables, positions, sequences; /* of the step's inputs */
    uvec2 granules;
    uint shift;
    uint dim;
    uint key_at, value_at, head_bytes; /* of the layer in a page; of a head's rows */
};

void main()
{
    const uint h = gl_WorkGroupID.x, n_heads = gl_NumWorkGroups.x, row = gl_WorkGroupID.y,
               lane = gl_LocalInvocationIndex;
    const uint sequence = Words(sequences).at[row], position = Words(positions).at[row];
    if (sequence == 0xffffffff)
        return;
    const uvec2 page = Addresses(Addresses(tables).at[sequence]).at[position / PAGE];
    const uint at = h * head_bytes + position % PAGE * dim * 2;
    Floats from_keys = Floats(advance(keys, row * n_heads + h, 4 * dim));
    Floats from_values = Floats(advance(values, row * n_heads + h, 4 * dim));
    for (uint i = lane; i < dim / 2; i += LANES) {
        precise vec2 value = vec2(from_values.at[2 * i], from_values.at[2 * i + 1]);
        if (!is_null(value_bias))
            value += vec2(Floats(value_bias).at[h * dim + 2 * i], Floats(value_bias).at[h * dim + 2 * i + 1]);
        Words(address_in_pool(granules, shift, advance(page, 1, key_at + at + 4 * i))).at[0] =
            floats_to_halves(vec2(from_keys.at[2 * i], from_keys.at[2 * i + 1]));
        Words(address_in_pool(granules, shift, advance(page, 1, value_at + at + 4 * i))).at[0] =
            floats_to_halves(value);
    }
}
