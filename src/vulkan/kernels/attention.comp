#version 450
/* Attention of a head of a row over its sequence, page by page with an online softmax: a workgroup for each. A lane has
 * the score of a key, then columns of the values. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"

#define MAX_HEAD 512 /* QN_VK_MAX_HEAD */
#define MAX_PAIRS (MAX_HEAD / 2 / LANES)

layout(push_constant) uniform Args {
    uvec2 queries, y;                   /* [rows][heads][dim] */
    uvec2 tables, positions, sequences; /* of the step's inputs */
    uvec2 granules;
    uint shift;
    uint dim, heads_per_kv;
    uint key_at, value_at, head_bytes; /* of the layer in a page; of a head's rows */
};

shared float query[MAX_HEAD];
shared float weights[PAGE];

float score_of(uvec2 page, uint at)
{
    precise float sum = 0;
    for (uint i = 0; i < dim; i += 8) {
        const uvec4 words = UVec4s(address_in_pool(granules, shift, advance(page, 1, at + 2 * i))).at[0];
        for (uint j = 0; j < 4; j++) {
            const vec2 key = halves_to_floats(words[j]);
            sum += key.x * query[i + 2 * j];
            sum += key.y * query[i + 2 * j + 1];
        }
    }
    return sum;
}

void main()
{
    const uint h = gl_WorkGroupID.x, n_heads = gl_NumWorkGroups.x, row = gl_WorkGroupID.y,
               lane = gl_LocalInvocationIndex;
    const uint sequence = Words(sequences).at[row], last = Words(positions).at[row], at = h / heads_per_kv * head_bytes;
    if (sequence == 0xffffffff)
        return;
    Addresses pages = Addresses(Addresses(tables).at[sequence]);
    Floats from = Floats(advance(queries, row * n_heads + h, 4 * dim));
    Floats to = Floats(advance(y, row * n_heads + h, 4 * dim));
    precise vec2 sums[MAX_PAIRS];
    precise float largest = uintBitsToFloat(0xff800000), total = 0;
    for (uint i = 0; i < MAX_PAIRS; i++)
        sums[i] = vec2(0);
    for (uint i = lane; i < dim; i += LANES)
        query[i] = from.at[i];
    barrier();
    for (uint first = 0; first <= last; first += PAGE) {
        const uvec2 page = pages.at[first / PAGE];
        const uint n = min(PAGE, last - first + 1);
        const float score = lane < n ? score_of(page, key_at + at + 2 * lane * dim) : uintBitsToFloat(0xff800000);
        precise const float most = max(largest, max_of_lanes(score));
        const float kept = exp_of(largest - most), weight = lane < n ? exp_of(score - most) : 0.0;
        weights[lane] = weight;
        largest = most;
        total = total * kept + sum_of_lanes(weight);
        for (uint i = 0; i < MAX_PAIRS; i++) {
            const uint pair = i * LANES + lane;
            if (pair >= dim / 2)
                break;
            precise vec2 sum = sums[i] * kept;
            for (uint j = 0; j < n; j++) {
                const uvec2 word = advance(page, 1, value_at + at + 2 * j * dim + 4 * pair);
                sum += weights[j] * halves_to_floats(Words(address_in_pool(granules, shift, word)).at[0]);
            }
            sums[i] = sum;
        }
        barrier();
    }
    for (uint i = 0; i < MAX_PAIRS; i++) {
        const uint pair = i * LANES + lane;
        if (pair >= dim / 2)
            break;
        precise const vec2 value = sums[i] / total;
        to.at[2 * pair] = value.x;
        to.at[2 * pair + 1] = value.y;
    }
}
