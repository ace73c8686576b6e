#version 450
/* Stores a KV head of a row in its fp16 page: a workgroup for each. Values get their bias and, for a cache of codes,
 * their rotation; keys have been rotated. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"
#include "rotation.glsl"

layout(push_constant) uniform Args {
    uvec2 keys, values, value_bias;     /* [rows][heads][dim]; keys 0: none; bias [heads][dim], 0: none */
    uvec2 tables, positions, sequences; /* of the step's inputs */
    uvec2 signs, matrix;                /* rotation.glsl */
    uvec2 granules;
    uint shift;
    uint dim;
    uint key_at, value_at; /* of the layer in a page */
    float factor;
};

void main()
{
    const uint h = gl_WorkGroupID.x, n_heads = gl_NumWorkGroups.x, row = gl_WorkGroupID.y,
               lane = gl_LocalInvocationIndex;
    const uint sequence = Words(sequences).at[row], position = Words(positions).at[row];
    if (sequence == 0xffffffff)
        return;
    Floats from_keys = Floats(advance(keys, row * n_heads + h, 4 * dim));
    Floats from_values = Floats(advance(values, row * n_heads + h, 4 * dim));
    for (uint i = lane; i < dim; i += LANES) {
        precise float value = from_values.at[i];
        if (!is_null(value_bias))
            value += Floats(value_bias).at[h * dim + i];
        head[i] = value;
    }
    barrier();
    rotate_head(signs, matrix, dim, factor);
    const uvec2 page = Addresses(Addresses(tables).at[sequence]).at[position / PAGE];
    const uint bytes = dim * 2, at = (h * PAGE + position % PAGE) * bytes;
    const Place key = place_of(granules, shift, advance(page, 1, key_at + at), bytes),
                value = place_of(granules, shift, advance(page, 1, value_at + at), bytes);
    for (uint i = lane; i < dim / 2; i += LANES) {
        if (!is_null(keys))
            Words(address_at(key, 4 * i)).at[0] = floats_to_halves(vec2(from_keys.at[2 * i], from_keys.at[2 * i + 1]));
        Words(address_at(value, 4 * i)).at[0] = floats_to_halves(vec2(head[2 * i], head[2 * i + 1]));
    }
}
