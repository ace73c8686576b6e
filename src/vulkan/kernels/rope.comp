#version 450
/* Bias, RMS norm, rope, scale and rotation of a head of a row for each workgroup: of queries, or of keys and values, which
 * are stored in their fp16 page. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"
#include "rotation.glsl"

layout(push_constant) uniform Args {
    uvec2 x, y;          /* [rows][heads of `stride`], [rows][heads of dim]; y 0: the page */
    uvec2 bias, weight;  /* [heads][dim], [dim]; 0: none */
    uvec2 angles;        /* [rows]: cosines [n_rot / 2], sines [n_rot / 2] */
    uvec2 signs, matrix; /* rotation.glsl */
    uvec2 tables, positions, sequences, granules; /* of the page */
    uint shift, at;                               /* at: of the layer's rows in it */
    uint stride, dim, n_rot;
    uint is_interleaved; /* values 2i and 2i+1 are a pair; else i and i + n_rot/2 */
    float eps, scale, factor; /* factor: of the rotation */
};

/* Stores the head in its page. */
void store(uint h, uint row)
{
    const uint sequence = Words(sequences).at[row], position = Words(positions).at[row], bytes = dim * 2;
    if (sequence == 0xffffffff)
        return;
    const uvec2 page = Addresses(Addresses(tables).at[sequence]).at[position / PAGE];
    const Place to = place_of(granules, shift, add_bytes(page, at + (h * PAGE + position % PAGE) * bytes), bytes);
    for (uint i = gl_LocalInvocationIndex; i < dim / 2; i += LANES)
        Words(address_at(to, 4 * i)).at[0] = floats_to_halves(vec2(head[2 * i], head[2 * i + 1]));
}

void main()
{
    const uint h = gl_WorkGroupID.x, n_heads = gl_NumWorkGroups.x, row = gl_WorkGroupID.y,
               lane = gl_LocalInvocationIndex;
    Floats from = Floats(advance(advance(x, row, 4 * n_heads * stride), h, 4 * stride));
    Floats to = Floats(advance(advance(y, row, 4 * n_heads * dim), h, 4 * dim));
    precise float sum = 0;
    for (uint i = lane; i < dim; i += LANES) {
        precise float value = from.at[i];
        if (!is_null(bias))
            value += Floats(bias).at[h * dim + i];
        head[i] = value;
        sum += value * value;
    }
    if (!is_null(weight)) {
        precise const float mean = sum_of_lanes(sum) / float(dim) + eps;
        precise const float factor = 1.0 / sqrt(mean);
        for (uint i = lane; i < dim; i += LANES) {
            precise const float value = head[i] * factor * Floats(weight).at[i];
            head[i] = value;
        }
    }
    barrier();
    const uint pairs = n_rot / 2;
    Floats cosines = Floats(advance(angles, row, 4 * n_rot)), sines = Floats(advance(uvec2(cosines), pairs, 4));
    for (uint i = lane; i < pairs; i += LANES) {
        const uint a = is_interleaved != 0 ? 2 * i : i, b = is_interleaved != 0 ? 2 * i + 1 : i + pairs;
        precise const float first = head[a] * cosines.at[i] - head[b] * sines.at[i];
        precise const float second = head[a] * sines.at[i] + head[b] * cosines.at[i];
        head[a] = first * scale;
        head[b] = second * scale;
    }
    for (uint i = n_rot + lane; i < dim; i += LANES)
        head[i] = head[i] * scale;
    barrier();
    rotate_head(signs, matrix, dim, factor);
    if (is_null(y))
        store(h, row);
    for (uint i = lane; i < dim && !is_null(y); i += LANES)
        to.at[i] = head[i];
}
