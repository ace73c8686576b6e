#version 450
/* Rope (rope.glsl): a head of a row for each workgroup. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"
#include "rotation.glsl"
#include "rope.glsl"

layout(push_constant) uniform Args {
    Rope rope;
};

void main()
{
    rope_head(rope, gl_WorkGroupID.x, gl_NumWorkGroups.x, gl_WorkGroupID.y);
}
