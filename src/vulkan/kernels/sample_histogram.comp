#version 450
/* Counts the tokens of rows, and their weights, in bins of their distance to the largest logit. Sums are of integers, so
 * their order does not matter. */
#extension GL_GOOGLE_include_directive : require
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 0) const uint WORKGROUP = 128;
layout(local_size_x_id = 0) in;
#include "common.glsl"
#include "sample.glsl"

shared uint counts_of_group[BINS], low_of_group[BINS], high_of_group[BINS];

void main()
{
    const uint slice = gl_WorkGroupID.x, row = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    Params p = params_of(row);
    if (p.kind != DRAW)
        return;
    const uvec2 best = max_of_slices(row);
    if (!is_finite_key(best))
        return;
    const Scale s = scale_of(p, best);
    const uint of_slice = (n + n_slices - 1) / n_slices, first = slice * of_slice, end = min(first + of_slice, n);
    Floats x = Floats(advance(logits, row, 4 * n));
    for (uint i = lane; i < BINS; i += LANES)
        counts_of_group[i] = low_of_group[i] = high_of_group[i] = 0;
    barrier();
    for (uint i = first + lane; i < end; i += LANES) {
        const float logit = x.at[i];
        const uint bin = bin_of(s, logit);
        if (bin >= BINS)
            continue;
        const uvec2 weight = units_of(s, raw_weight(s, logit));
        const uint before = atomicAdd(low_of_group[bin], weight.x);
        atomicAdd(counts_of_group[bin], 1);
        atomicAdd(high_of_group[bin], weight.y + uint(before + weight.x < before));
    }
    barrier();
    State state = state_of(row);
    for (uint i = lane; i < BINS; i += LANES) {
        if (counts_of_group[i] == 0)
            continue;
        const uint low = low_of_group[i], before = atomicAdd(state.low[i], low);
        atomicAdd(state.counts[i], counts_of_group[i]);
        atomicAdd(state.high[i], high_of_group[i] + uint(before + low < before));
    }
}
