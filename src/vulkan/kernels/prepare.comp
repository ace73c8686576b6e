#version 450
/* The activations of a matmul, `piece` values of a row for each workgroup: rows, with an operation before them, and a
 * Hadamard transform of each piece where the weights are rotated (kernels/hadamard/hadamard.h). They are written as
 * integers, as floats, or both. */
#extension GL_GOOGLE_include_directive : require
#define LANES 128
#include "common.glsl"
#include "gates.glsl"

#define NORM 0         /* QN_VK_PREPARE_* */
#define SWIGLU 1
#define GATE 2
#define GATED_NORM 3

layout(constant_id = 0) const uint OPERATION = NORM;
layout(constant_id = 1) const uint IS_ROTATED = 0;
layout(constant_id = 2) const uint MAX_PIECE = 256; /* `piece` */

layout(push_constant) uniform Args {
    uvec2 x, x2, weight, signs, y; /* rows; gates (0: none); [dim] or [width]; [width], 0: none; rows */
    uvec2 codes;                   /* rows of integers; 0: none. y may be 0, too */
    uvec2 rows;                    /* indices of the rows of x to read; 0: all */
    uint width, piece;
    uint dim, repeats; /* of a head; GATED_NORM: value heads of a key head if those are consecutive in the result, else 1 */
    float eps, factor;     /* factor: of the transform */
    uint planes;           /* of the integers */
};

#define MAX_VALUES MAX_PIECE
shared float values[MAX_PIECE];
#include "quantize.glsl"

shared float head_scales[MAX_PIECE / 16 + 2]; /* heads have 16 values or more; at both ends may be parts of heads */

float scale_of(Floats row, uint from, uint n)
{
    precise float sum = 0;
    for (uint i = gl_LocalInvocationIndex; i < n; i += LANES)
        sum += row.at[from + i] * row.at[from + i];
    precise const float mean = sum_of_lanes(sum) / float(n) + eps;
    precise const float scale = 1.0 / sqrt(mean);
    return scale;
}

/* The value head that is head h of the result (plan/operations.def, GATED_NORM). */
uint source_of(uint h)
{
    const uint n_heads = width / dim, groups = n_heads / repeats;
    return h % repeats * groups + h / repeats;
}

void load_values(uint from_row, uint to_row, uint first, uint n)
{
    const uint lane = gl_LocalInvocationIndex;
    Floats a = Floats(advance(x, from_row, 4 * width));
    if (OPERATION == NORM) {
        [[dont_unroll]] for (uint i = lane; i < n; i += LANES) {
            precise const float value = a.at[first + i] * Floats(weight).at[first + i];
            values[i] = value;
        }
    } else if (OPERATION == SWIGLU) {
        Floats b = Floats(advance(x2, to_row, 4 * width));
        [[dont_unroll]] for (uint i = lane; i < n; i += LANES) {
            precise const float value = silu(a.at[first + i]) * b.at[first + i];
            values[i] = value;
        }
    } else if (OPERATION == GATE) {
        Floats b = Floats(advance(x2, to_row, 8 * width)); /* of each head the query, and then the gate */
        [[dont_unroll]] for (uint i = lane; i < n; i += LANES) {
            const uint h = (first + i) / dim;
            precise float value = a.at[first + i];
            if (!is_null(x2))
                value = value * sigmoid(b.at[(2 * h + 1) * dim + (first + i) % dim]);
            values[i] = value;
        }
    } else {
        Floats b = Floats(advance(x2, to_row, 4 * width));
        const uint first_head = first / dim, last_head = (first + n - 1) / dim;
        [[dont_unroll]] for (uint h = first_head; h <= last_head; h++) {
            const float scale = scale_of(a, source_of(h) * dim, dim);
            if (lane == 0)
                head_scales[h - first_head] = scale;
        }
        barrier();
        [[dont_unroll]] for (uint i = lane; i < n; i += LANES) {
            const uint h = (first + i) / dim, d = (first + i) % dim, from = source_of(h) * dim + d;
            precise const float value =
                a.at[from] * head_scales[h - first_head] * Floats(weight).at[d] * silu(b.at[from]);
            values[i] = value;
        }
    }
    barrier();
}

void transform(uint first, uint n)
{
    const uint lane = gl_LocalInvocationIndex;
    for (uint i = lane; i < n && !is_null(signs); i += LANES)
        values[i] = Floats(signs).at[first + i] * values[i];
    barrier();
    for (uint stride = 1; stride < n; stride *= 2) {
        for (uint i = lane; i < n / 2; i += LANES) {
            const uint at = i / stride * 2 * stride + i % stride;
            precise const float a = values[at] + values[at + stride], b = values[at] - values[at + stride];
            values[at] = a;
            values[at + stride] = b;
        }
        barrier();
    }
    for (uint i = lane; i < n; i += LANES) {
        precise const float value = factor * values[i];
        values[i] = value;
    }
}

/* Writes the sums of squares of an RMS norm's input, of the groups of columns [first, first + n), and zeros to the end
 * of the row. */
void write_squares(Floats from, uvec2 row, uint first, uint n)
{
    const uint blocks = act_blocks(width), end = first + n == width ? blocks * BLOCK - first : n;
    Floats squares = Floats(advance(row, 1, act_squares_at(blocks, planes)));
    for (uint group = GROUP * gl_LocalInvocationIndex; group < end; group += GROUP * LANES) {
        precise float sum = 0;
        for (uint i = group; i < min(group + GROUP, n); i++)
            sum += from.at[first + i] * from.at[first + i];
        squares.at[group_at(first + group, blocks)] = sum;
    }
}

/* Floats have the norm's factor, unlike integers (acts.glsl). */
void write_floats(uvec2 row, float factor, uint first, uint n)
{
    for (uint i = gl_LocalInvocationIndex; i < n; i += LANES) {
        precise const float value = OPERATION == NORM ? factor * values[i] : values[i];
        Floats(row).at[first + i] = value;
    }
}

void main()
{
    const uint to_row = gl_WorkGroupID.y, from_row = is_null(rows) ? to_row : Words(rows).at[to_row];
    const uint first = gl_WorkGroupID.x * piece, n = min(piece, width - first);
    load_values(from_row, to_row, first, n);
    if (IS_ROTATED != 0)
        transform(first, n);
    Floats from = Floats(advance(x, from_row, 4 * width));
    if (!is_null(y))
        write_floats(advance(y, to_row, 4 * width), OPERATION == NORM ? scale_of(from, 0, width) : 1.0, first, n);
    if (is_null(codes))
        return;
    const uvec2 row = advance(codes, to_row, act_row_bytes(width, planes));
    if (OPERATION == NORM)
        write_squares(from, row, first, n);
    barrier();
    quantize(row, 1, 0, width, planes, first, n);
}
