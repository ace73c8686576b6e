#version 450
/* Mask, bias and penalties of rows of logits, in place, and the largest logit of each slice of a row: a workgroup for
 * each. Also empties the row's bins for sample_histogram.comp. */
#extension GL_GOOGLE_include_directive : require
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 0) const uint WORKGROUP = 128;
layout(local_size_x_id = 0) in;
#include "common.glsl"
#include "sample.glsl"

/* qn_sample_entry */
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Entries {
    uvec4 at[]; /* token, is_recent, n_generated, bits of the bias */
};

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Logits { float at[]; };

bool is_allowed(Params p, uint token)
{
    return is_null(p.allowed) || (Words(p.allowed).at[token / 32] >> token % 32 & 1) != 0;
}

/* qn_sample_adjust */
float adjust(Params p, float logit, uvec4 entry)
{
    precise float x = logit + uintBitsToFloat(entry.w);
    if (entry.y != 0) {
        precise const float product = x * p.repeat;
        x = x > 0 ? divide(x, p.repeat) : product;
    }
    if (entry.z != 0) {
        precise const float penalty = float(entry.z) * p.frequency + p.presence;
        x = x - penalty;
    }
    return x;
}

void main()
{
    const uint slice = gl_WorkGroupID.x, row = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    Params p = params_of(row);
    if (p.kind == 0)
        return;
    const uint of_slice = (n + n_slices - 1) / n_slices, first = slice * of_slice, end = min(first + of_slice, n);
    State state = state_of(row);
    Logits x = Logits(advance(logits, row, 4 * n));
    for (uint i = slice * LANES + lane; i < BINS && p.kind == DRAW; i += n_slices * LANES)
        state.counts[i] = state.low[i] = state.high[i] = 0;
    for (uint i = lane; i < p.n_entries; i += LANES) {
        const uvec4 entry = Entries(p.entries).at[i];
        if (entry.x < first || entry.x >= end)
            continue;
        const float logit = x.at[entry.x];
        if (!is_null(p.raw))
            Floats(p.raw).at[i] = logit;
        if (is_allowed(p, entry.x))
            x.at[entry.x] = adjust(p, logit, entry);
    }
    if (p.n_entries != 0) {
        memoryBarrierBuffer();
        barrier();
    }
    uvec2 best = uvec2(0);
    for (uint i = first + lane; i < end; i += LANES) {
        float logit = x.at[i];
        if (!is_allowed(p, i))
            x.at[i] = logit = LOWEST_LOGIT;
        const uvec2 key = key_of(logit, i);
        best = less64(best, key) ? key : best;
    }
    best = max_of_lanes(best);
    if (lane == 0)
        state.best[slice] = best;
}
