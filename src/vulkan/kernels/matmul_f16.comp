#version 450
/* Rows of fp16 weights times rows of floats. A workgroup computes a tile of weight rows for TOKENS rows of activations:
 * its lanes divide the words of codes among them. The order of a result's sums depends on the number of columns alone,
 * so that a row has the same result among any other rows. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

#define TILE_ROWS 4 /* QN_VK_TILE_ROWS */
#define OUTS 4

#define PER_WORD 2

layout(constant_id = 0) const uint TOKENS = 1;
const uint RESULTS = TILE_ROWS * TOKENS;

layout(push_constant) uniform Args {
    uvec2 codes, scales, acts;
    uvec2 outs[OUTS];
    uint first_tiles[OUTS], n_rows[OUTS], strides[OUTS];
    uint n_cols, n_tokens, n_tiles;
    uint accumulate; /* bit i: of out i */
};

shared float sums[RESULTS * LANES];

/* Adds a word's weights times the activations from `at` on. */
float word_product(uint word, Floats x, uint at)
{
    const vec2 weights = halves_to_floats(word);
    precise float sum = weights.x * x.at[at];
    sum += at + 1 < n_cols ? weights.y * x.at[at + 1] : 0.0;
    return sum;
}

void main()
{
    const uint lane = gl_LocalInvocationIndex, tile = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x,
               first_token = gl_WorkGroupID.z * TOKENS;
    const uint n_words = (n_cols + PER_WORD - 1) / PER_WORD;
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
            const uint word = Words(advance(codes, tile * TILE_ROWS + r, 4 * n_words)).at[w];
            for (uint t = 0; t < TOKENS; t++)
                if (first_token + t < n_tokens) {
                    Floats x = Floats(advance(acts, first_token + t, 4 * n_cols));
                    partial[r * TOKENS + t] += word_product(word, x, w * PER_WORD);
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
