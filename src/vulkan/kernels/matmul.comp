#version 450
/* Rows of weights times rows of activations. A workgroup computes a tile of weight rows for TOKENS rows of activations:
 * its lanes divide the words of codes among them. The order of a result's sums depends on the number of columns alone,
 * so that a row has the same result among any other rows. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

#define TILE_ROWS 4 /* QN_VK_TILE_ROWS */
#define OUTS 4

layout(constant_id = 0) const uint BITS = 1; /* of a weight: 1, 2, 4, 8; 16: fp16 without scales */
layout(constant_id = 1) const uint TOKENS = 1;
const uint PER_WORD = 32 / BITS, RESULTS = TILE_ROWS * TOKENS;
const int ZERO_POINT = BITS == 2 ? 1 : int(1u << BITS - 1);

layout(push_constant) uniform Args {
    uvec2 codes, scales, acts;
    uvec2 outs[OUTS];
    uint first_tiles[OUTS], n_rows[OUTS], strides[OUTS];
    uint n_cols, n_tokens, group_shift; /* group_shift: log2 of the weights of a scale */
    uint accumulate;                    /* bit i: of out i */
};

shared float sums[RESULTS * LANES];

/* Adds a word's weights times the activations from `at` on. */
float word_product(uint word, Floats x, uint at)
{
    precise float sum = 0;
    if (BITS == 16) {
        const vec2 weights = halves_to_floats(word);
        sum = weights.x * x.at[at];
        sum += at + 1 < n_cols ? weights.y * x.at[at + 1] : 0.0;
        return sum;
    }
    Vec4s quads = Vec4s(advance(uvec2(x), at, 4));
    for (uint quad = 0; quad < PER_WORD / 4; quad++) {
        const vec4 values = quads.at[quad];
        for (uint i = 0; i < 4; i++) {
            const uint code = bitfieldExtract(word, int((quad * 4 + i) * BITS), int(BITS));
            if (BITS == 1)
                sum += code != 0 ? values[i] : -values[i];
            else
                sum += float(int(code) - ZERO_POINT) * values[i];
        }
    }
    return sum;
}

void main()
{
    const uint lane = gl_LocalInvocationIndex, tile = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x,
               first_token = gl_WorkGroupID.z * TOKENS;
    const uint n_words = (n_cols + PER_WORD - 1) / PER_WORD, n_scales = n_cols >> group_shift,
               scale_words = (n_scales + 1) / 2;
    uint o = 0;
    for (uint i = 1; i < OUTS; i++)
        o = tile >= first_tiles[i] ? i : o;
    const uint first_row = (tile - first_tiles[o]) * TILE_ROWS;
    if (first_row >= n_rows[o])
        return;
    precise float partial[RESULTS];
    for (uint i = 0; i < RESULTS; i++)
        partial[i] = 0;
    for (uint w = lane; w < n_words; w += LANES) {
        for (uint r = 0; r < TILE_ROWS; r++) {
            const uint row = tile * TILE_ROWS + r, group = w * PER_WORD >> group_shift;
            const uint word = Words(advance(codes, row, 4 * n_words)).at[w];
            float scale = 1;
            if (BITS != 16) {
                const uint pair = Words(advance(scales, row, 4 * scale_words)).at[group / 2];
                scale = half_to_float(pair >> 16 * (group & 1) & 0xffff);
            }
            for (uint t = 0; t < TOKENS; t++)
                if (first_token + t < n_tokens) {
                    Floats x = Floats(advance(acts, first_token + t, 4 * n_cols));
                    partial[r * TOKENS + t] += scale * word_product(word, x, w * PER_WORD);
                }
        }
    }
    for (uint i = 0; i < RESULTS; i++)
        sums[i * LANES + lane] = partial[i];
    barrier();
    for (uint half_ = LANES / 2; half_ > 0; half_ /= 2) {
        if (lane < half_)
            for (uint i = 0; i < RESULTS; i++) {
                precise const float sum = sums[i * LANES + lane] + sums[i * LANES + lane + half_];
                sums[i * LANES + lane] = sum;
            }
        barrier();
    }
    for (uint i = lane; i < RESULTS; i += LANES) {
        const uint row = first_row + i / TOKENS, token = first_token + i % TOKENS;
        if (row >= n_rows[o] || token >= n_tokens)
            continue;
        Floats y = Floats(advance(outs[o], token, 4 * strides[o]));
        precise float sum = sums[i * LANES];
        if ((accumulate >> o & 1) != 0)
            sum = y.at[row] + sum;
        y.at[row] = sum;
    }
}
