#version 450
/* RMS norm of a row for each workgroup. Rows to read are listed, or are all. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(push_constant) uniform Args {
    uvec2 x, weight, y, rows;
    uint n;
    float eps;
};

void main()
{
    const uint to = gl_WorkGroupID.x, from = is_null(rows) ? to : Words(rows).at[to], lane = gl_LocalInvocationIndex;
    Floats input_row = Floats(advance(x, from, 4 * n)), output_row = Floats(advance(y, to, 4 * n));
    precise float sum = 0;
    for (uint i = lane; i < n; i += LANES)
        sum += input_row.at[i] * input_row.at[i];
    precise const float mean = sum_of_lanes(sum) / float(n) + eps;
    precise const float scale = 1.0 / sqrt(mean);
    for (uint i = lane; i < n; i += LANES) {
        precise const float value = input_row.at[i] * scale * Floats(weight).at[i];
        output_row.at[i] = value;
    }
}
