#version 450
/* silu(gate) * up. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(push_constant) uniform Args {
    uvec2 gate, up, y;
    uint n, width; /* n rows of width */
};

void main()
{
    const uint i = gl_WorkGroupID.x * LANES + gl_LocalInvocationIndex;
    if (i >= width)
        return;
    for (uint row = gl_WorkGroupID.y; row < n; row += gl_NumWorkGroups.y) {
        const float g = Floats(advance(gate, row, 4 * width)).at[i];
        precise const float divisor = 1.0 + exp_of(-g);
        precise const float value = g / divisor * Floats(advance(up, row, 4 * width)).at[i];
        Floats(advance(y, row, 4 * width)).at[i] = value;
    }
}
