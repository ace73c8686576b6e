/* Writes values as integers (acts.glsl). The file that includes it has the array `values` in shared memory. */
#include "acts.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Groups { uvec2 at[]; };

#define HALF_GROUP 4        /* words of four integers in 16 columns */
#define LEAST 0x0da24260    /* 1e-30: values are 0 where none is larger */
#define INFINITE 0x7f800000

/* Of four values: the bits of the largest magnitude, then the sum of integers. After the values of a row's end come up
 * to three groups of zeros. */
shared uint largest_of[(MAX_VALUES + BLOCK - GROUP) / 4];

ivec4 integers_of(vec4 x, float factor)
{
    precise const vec4 rounded = floor(x * factor + 0.5);
    return ivec4(rounded);
}

uint pack(ivec4 x)
{
    return x.x & 0xff | (x.y & 0xff) << 8 | (x.z & 0xff) << 16 | (x.w & 0xff) << 24;
}

/* The index of the scale, and of the sum of squares, of the group of a column. */
uint group_at(uint column, uint blocks)
{
    return column % BLOCK / GROUP * blocks + column / BLOCK;
}

/* Quantises n values of each of n_rows rows of `width`: values [n_rows][stride], from column `first` on. n and first are
 * multiples of 32, but n at the end of the row. A group with a value that is not finite gets the scale NaN. */
void quantize(uvec2 rows, uint n_rows, uint stride, uint width, uint planes, uint first, uint n)
{
    const uint blocks = act_blocks(width), end = first + n == width ? blocks * BLOCK - first : n, fours = end / 4;
    const float most = planes == 2 ? 32512.0 : 127.0;
    for (uint item = gl_LocalInvocationIndex; item < n_rows * fours; item += LANES) {
        const uint at = item / fours * stride, i = item % fours;
        uint largest = 0;
        for (uint j = 4 * i; j < 4 * i + 4; j++)
            if (j < n)
                largest = max(largest, floatBitsToUint(values[at + j]) & 0x7fffffff);
        largest_of[item] = largest;
    }
    barrier();
    for (uint from = 0; from < n_rows * fours; from += LANES) {
        const uint item = from + gl_LocalInvocationIndex, leader = item / 8 * 8, at = item / fours * stride,
                   i = item % fours, column = first + 4 * i, block = column / BLOCK;
        const uvec2 row = advance(rows, item / fours, act_row_bytes(width, planes));
        const bool is_active = item < n_rows * fours;
        ivec4 x = ivec4(0);
        uint largest = 0;
        if (is_active) {
            for (uint j = leader; j < leader + 8; j++)
                largest = max(largest, largest_of[j]);
            vec4 four = vec4(0);
            for (uint j = 0; j < 4; j++)
                if (4 * i + j < n)
                    four[j] = values[at + 4 * i + j];
            precise const float factor = most / uintBitsToFloat(largest);
            if (largest > LEAST && largest < INFINITE)
                x = clamp(integers_of(four, factor), -int(most), int(most));
            const uint word = (column % BLOCK / 16 * blocks + block) * HALF_GROUP + i % HALF_GROUP;
            if (planes == 2) {
                const ivec4 high = x + 128 >> 8;
                Words(row).at[word] = pack(high);
                Words(advance(row, blocks, BLOCK)).at[word] = pack(x - 256 * high);
            } else {
                Words(row).at[word] = pack(x);
            }
        }
        barrier();
        if (is_active)
            largest_of[item] = uint(x.x + x.y + x.z + x.w);
        barrier();
        if (is_active && item == leader) {
            uint sum = 0;
            for (uint j = leader; j < leader + 8; j++)
                sum += largest_of[j];
            precise const float scale = uintBitsToFloat(largest) / most;
            Groups(advance(row, 1, act_groups_at(blocks, planes))).at[group_at(column, blocks)] = uvec2(
                largest >= INFINITE ? 0x7fc00000 : largest > LEAST ? floatBitsToUint(scale) : 0, sum);
        }
    }
}
