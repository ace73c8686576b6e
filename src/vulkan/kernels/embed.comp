#version 450
/* Rows of the embedding table, which is tiled as weights are (QN_VK_FORMAT): `piece` values of a row for each workgroup,
 * transformed back where the table is rotated. Tokens are inputs, or those that the step before has sampled. */
#extension GL_GOOGLE_include_directive : require
#define LANES 128
#include "common.glsl"

layout(constant_id = 0) const uint BITS = 1; /* of a weight: 1, 2, 4, 8, 16 */
layout(constant_id = 1) const uint GROUP_SHIFT = 7;
layout(constant_id = 2) const uint IS_ROTATED = 0;
layout(constant_id = 3) const uint MAX_PIECE = 256; /* `piece` */
const int ZERO_POINT = BITS == 4 ? 8 : 1;

layout(push_constant) uniform Args {
    uvec2 codes, scales, y;        /* y: [rows][width] */
    uvec2 inputs, sources, sampled; /* tokens of rows; 0, or 1 + the index in `sampled` of the row's token */
    uvec2 signs;                   /* after the transform; 0: none */
    uint width, piece;
    float factor; /* 1/sqrt(piece), of the transform */
};

#define BLOCK 128

shared float values[MAX_PIECE];

uint blocks()
{
    return (width + BLOCK - 1) / BLOCK;
}

/* A code of a row (kernels.h, qn_vk_format). */
int code_at(Words row, uint column)
{
    const uint per_word = 32 / BITS, word = column % BLOCK / per_word, i = column % per_word;
    const uint code = row.at[(word / 4 * blocks() + column / BLOCK) * 4 + word % 4] >> i % 4 * 8 + i / 4 * BITS;
    if (BITS == 8)
        return bitfieldExtract(int(code), 0, 8);
    return BITS == 1 ? int(2 * (code & 1)) - ZERO_POINT : int(code & (1u << BITS) - 1) - ZERO_POINT;
}

float weight_at(uint token, uint column)
{
    if (BITS == 16) {
        const uint word = Words(advance(codes, token, (width + 1) / 2 * 4)).at[column / 2];
        return half_to_float(word >> column % 2 * 16 & 0xffff);
    }
    const uint scale_words = ((blocks() * BLOCK >> GROUP_SHIFT) + 1) / 2, group = column >> GROUP_SHIFT;
    const float scale =
        half_to_float(Words(advance(scales, token, scale_words * 4)).at[group / 2] >> group % 2 * 16 & 0xffff);
    precise const float weight =
        scale * float(code_at(Words(advance(codes, token, blocks() * BLOCK / 8 * BITS)), column));
    return weight;
}

void transform(uint first, uint n)
{
    const uint lane = gl_LocalInvocationIndex;
    for (uint stride = 1; stride < n; stride *= 2) {
        for (uint i = lane; i < n / 2; i += LANES) {
            const uint at = i / stride * 2 * stride + i % stride;
            precise const float a = values[at] + values[at + stride], b = values[at] - values[at + stride];
            values[at] = a;
            values[at + stride] = b;
        }
        barrier();
    }
    for (uint i = lane; i < n; i += LANES) {
        precise const float value = factor * values[i];
        values[i] = is_null(signs) ? value : Floats(signs).at[first + i] * value;
    }
    barrier();
}

void main()
{
    const uint row = gl_WorkGroupID.y, first = gl_WorkGroupID.x * piece, n = min(piece, width - first),
               source = Words(sources).at[row], lane = gl_LocalInvocationIndex;
    const uint token = source != 0 ? Words(sampled).at[source - 1] : Words(inputs).at[row];
    for (uint i = lane; i < n; i += LANES)
        values[i] = weight_at(token, first + i);
    barrier();
    if (IS_ROTATED != 0)
        transform(first, n);
    Floats to = Floats(advance(y, row, 4 * width));
    for (uint i = lane; i < n; i += LANES)
        to.at[first + i] = values[i];
}
