/* Writes values as integers (acts.glsl). The file that includes it has the array `values` in shared memory. */
#include "acts.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Groups { uvec2 at[]; };

#define HALF_GROUP 4 /* words of four integers in 16 columns */

shared uint largest_of[MAX_VALUES / 4]; /* of four values: the bits of the largest magnitude, then the sum of integers */

ivec4 integers_of(vec4 x, float factor)
{
    precise const vec4 rounded = floor(x * factor + 0.5);
    return ivec4(rounded);
}

uint pack(ivec4 x)
{
    return x.x & 0xff | (x.y & 0xff) << 8 | (x.z & 0xff) << 16 | (x.w & 0xff) << 24;
}

/* Quantises n values of a row of `width`, of which they are those from `first` on: a multiple of 32, as is n but at the
 * end of the row. A group with a value that is not finite gets the scale NaN. */
void quantize(uvec2 row, uint width, uint planes, uint first, uint n)
{
    const uint lane = gl_LocalInvocationIndex, blocks = act_blocks(width);
    const uint end = first + n == width ? blocks * BLOCK - first : n, fours = end / 4;
    const float most = planes == 2 ? 32512.0 : 127.0;
    for (uint i = lane; i < fours; i += LANES) {
        uint largest = 0;
        for (uint j = 4 * i; j < 4 * i + 4; j++) {
            values[j] = j < n ? values[j] : 0.0;
            largest = max(largest, floatBitsToUint(values[j]) & 0x7fffffff);
        }
        largest_of[i] = largest;
    }
    barrier();
    for (uint from = 0; from < fours; from += LANES) {
        const uint i = from + lane, group = i / 8 * 8, column = first + 4 * i, block = column / BLOCK;
        ivec4 x = ivec4(0);
        uint largest = 0;
        if (i < fours) {
            for (uint j = group; j < group + 8; j++)
                largest = max(largest, largest_of[j]);
            precise const float factor = most / uintBitsToFloat(largest);
            if (largest > 0x0da24260 && largest < 0x7f800000) /* 1e-30, infinity */
                x = integers_of(vec4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]), factor);
            x = clamp(x, -int(most), int(most));
            const uint word = ((column % BLOCK / 16) * blocks + block) * HALF_GROUP + i % HALF_GROUP;
            if (planes == 2) {
                const ivec4 high = x + 128 >> 8;
                Words(row).at[word] = pack(high);
                Words(advance(row, blocks, BLOCK)).at[word] = pack(x - 256 * high);
            } else {
                Words(row).at[word] = pack(x);
            }
        }
        barrier();
        if (i < fours)
            largest_of[i] = uint(x.x + x.y + x.z + x.w);
        barrier();
        if (i < fours && i == group) {
            uint sum = 0;
            for (uint j = group; j < group + 8; j++)
                sum += largest_of[j];
            precise const float scale = uintBitsToFloat(largest) / most;
            const float kept = largest >= 0x7f800000 ? uintBitsToFloat(0x7fc00000) : scale;
            Groups(advance(row, 1, act_groups_at(blocks, planes))).at[column % BLOCK / GROUP * blocks + block] =
                uvec2(largest > 0x0da24260 ? floatBitsToUint(kept) : 0, sum);
        }
    }
}
