#version 450
/* Merges the partials of a head of a row in the order of its splits, and rotates the result back: a workgroup for each.
 * Without partials, only rotates results. They may also be written as the activations of a matmul, with output gates. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"
#include "rotation.glsl"
#include "splits.glsl"
#include "gates.glsl"

#define values head
#define MAX_VALUES MAX_HEAD
#include "quantize.glsl"

#define MAX_PAIRS (MAX_HEAD / 2 / LANES)

layout(push_constant) uniform Args {
    uvec2 partials, y;          /* partials of the rows from `row` on, 0: none; [rows][heads][dim] */
    uvec2 positions, sequences; /* of the step's inputs */
    uvec2 signs, matrix;        /* rotation.glsl */
    uvec2 codes, gates;         /* rows of integers, 0: none; [rows][heads]: [dim] queries, [dim] gates, 0: none */
    uint planes;
    uint row;                   /* the first */
    uint dim, n_splits;         /* n_splits: of the partials of a head */
    float factor;
};

void merge(uvec2 first, uint n)
{
    const uint lane = gl_LocalInvocationIndex;
    precise vec2 sums[MAX_PAIRS];
    precise float total = 0;
    float most = LOWEST;
    for (uint i = 0; i < MAX_PAIRS; i++)
        sums[i] = vec2(0);
    for (uint split = 0; split < n; split++) {
        Floats partial = Floats(advance(first, split, 4 * (dim + PARTIAL_EXTRA)));
        const float m = partial.at[dim];
        const vec2 factors = merge_factors(most, m);
        for (uint i = 0; i < MAX_PAIRS; i++) {
            const uint pair = i * LANES + lane;
            if (pair >= dim / 2)
                break;
            precise const vec2 sum =
                sums[i] * factors.x + vec2(partial.at[2 * pair], partial.at[2 * pair + 1]) * factors.y;
            sums[i] = sum;
        }
        total = total * factors.x + partial.at[dim + 1] * factors.y;
        most = max(most, m);
    }
    for (uint i = 0; i < MAX_PAIRS; i++) {
        const uint pair = i * LANES + lane;
        if (pair >= dim / 2)
            break;
        precise const vec2 value = sums[i] / total;
        head[2 * pair] = value.x;
        head[2 * pair + 1] = value.y;
    }
}

void main()
{
    const uint h = gl_WorkGroupID.x, n_heads = gl_NumWorkGroups.x, own_row = row + gl_WorkGroupID.y,
               lane = gl_LocalInvocationIndex;
    if (Words(sequences).at[own_row] == 0xffffffff)
        return;
    Floats to = Floats(advance(y, own_row * n_heads + h, 4 * dim));
    if (is_null(partials)) {
        for (uint i = lane; i < dim; i += LANES)
            head[i] = to.at[i];
    } else {
        const uint n_pages = Words(positions).at[own_row] / PAGE + 1, per_split = pages_per_split(n_pages);
        merge(advance(partials, (gl_WorkGroupID.y * n_heads + h) * n_splits, 4 * (dim + PARTIAL_EXTRA)),
              (n_pages + per_split - 1) / per_split);
    }
    barrier();
    rotate_heads_back(signs, matrix, dim, dim, factor);
    for (uint i = lane; i < dim; i += LANES)
        to.at[i] = head[i];
    if (is_null(codes))
        return;
    Floats gate = Floats(advance(gates, (own_row * n_heads + h) * 2 + 1, 4 * dim));
    for (uint i = lane; i < dim && !is_null(gates); i += LANES) {
        precise const float value = head[i] * sigmoid(gate.at[i]);
        head[i] = value;
    }
    barrier();
    const uint width = n_heads * dim;
    quantize(advance(codes, own_row, act_row_bytes(width, planes)), 1, 0, width, planes, h * dim, dim);
}
