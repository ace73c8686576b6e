#version 450
/* Rows of weights times rows of activations, both integers (acts.glsl). A team of lanes computes a tile of weight rows for
 * up to TOKENS rows of activations: a lane takes a block of 128 columns at a time. Sums of a group of 32 columns are
 * integers, so they are exact; those of a block's groups, and then of all blocks, are added in ascending order. So a
 * result depends neither on the size of teams nor on other rows.
 *
 * An epilogue computes the activations of the next matmul from 32 rows of results or more: those of an RMS norm, or of
 * SwiGLU, for which a workgroup computes the same rows of both matrices. */
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 5) const uint WORKGROUP = 64;
layout(local_size_x_id = 5) in;
#include "common.glsl"

#define TILE_ROWS 4 /* QN_VK_TILE_ROWS */
#define OUTS 4
#define QUADS_OF_GROUP 8
#define NONE 0 /* QN_VK_EPILOGUE_* */
#define NORM 1
#define SWIGLU 2
#define MAX_TOTALS 4 /* RESULTS / LANES, at most */

layout(constant_id = 0) const uint BITS = 1; /* of a weight: 1, 2, 4, 8 */
layout(constant_id = 1) const uint TOKENS = 1;
layout(constant_id = 2) const uint GROUP_SHIFT = 7; /* log2 of the weights of a scale */
layout(constant_id = 3) const uint PLANES = 1;      /* of the activations */
layout(constant_id = 4) const uint TEAM = 32;       /* lanes */
layout(constant_id = 6) const uint IS_NORMED = 0;   /* the activations are those of an RMS norm */
layout(constant_id = 7) const uint EPILOGUE = 0;    /* NONE, NORM, SWIGLU */
layout(constant_id = 8) const uint NEXT_PLANES = 1; /* of the activations that it computes */
const uint TEAMS = LANES / TEAM, SUMS = TILE_ROWS * TOKENS, RESULTS = TEAMS * SUMS,
           ROWS = TEAMS * TILE_ROWS;
const uint VECTORS = BITS == 8 ? 2 : 1;                  /* of 16 bytes that are loaded together */
const uint GROUPS = BITS == 1 ? 4 : BITS == 2 ? 2 : 1;   /* of 32 columns in them */
const uint PER_WORD = 8 / BITS;                          /* fours of columns */
const int ZERO_POINT = BITS == 4 ? 8 : BITS == 8 ? 0 : 1; /* codes of 1 bit count as 0 and 2, those of 8 are signed */

layout(push_constant) uniform Args {
    uvec2 codes, scales, acts;
    uvec2 outs[OUTS]; /* with an epilogue: [2] the activations that it writes, [3] the weight of the norm */
    uint first_tiles[OUTS], n_rows[OUTS], strides[OUTS];
    uint n_cols, n_tokens, n_tiles;
    uint accumulate; /* bit i: of out i */
    float eps;       /* of the norm of the activations */
};

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Codes { ivec4 at[]; };

const uint MAX_VALUES = EPILOGUE == NONE ? 4 : TOKENS * ROWS;
#define SQUARE_PARTS 8

shared float parts[RESULTS * (TEAM + 1)];
shared float square_parts[TOKENS * SQUARE_PARTS];
shared float values[MAX_VALUES];
shared float inputs[MAX_VALUES]; /* of the norm */

#include "quantize.glsl"

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(int a, int b, spirv_literal int format); /* OpSDotKHR; format 0: four int8 */

int dot_of(int a, int b)
{
    return signed_dot(a, b, 0);
}
#else
int dot_of(int a, int b)
{
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(a, i, 8) * bitfieldExtract(b, i, 8);
    return sum;
}
#endif

/* Four codes, as bytes: number i of a group whose words are `words`. */
int codes_of(uint word, uint i)
{
    if (BITS == 8)
        return int(word);
    const uint at = i % PER_WORD * BITS;
    if (BITS == 1)
        return int((at == 0 ? word << 1 : word >> at - 1) & 0x02020202);
    return int(word >> at & (BITS == 2 ? 0x03030303 : 0x0f0f0f0f));
}

/* The products of a block's columns: SUMS of them. */
void multiply(uint tile, uint first_token, uint block, uint blocks, out float products[SUMS])
{
    const uint scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2;
    UVec4s rows = UVec4s(advance(codes, tile, TILE_ROWS * BITS * blocks * 16));
    Words row_scales = Words(advance(scales, tile, TILE_ROWS * scale_words * 4));
    precise float sums[SUMS];
    for (uint i = 0; i < SUMS; i++)
        sums[i] = 0;
    for (uint chunk = 0; chunk < 4 / GROUPS; chunk++) {
        uvec4 loaded[TILE_ROWS * VECTORS];
        for (uint r = 0; r < TILE_ROWS; r++)
            for (uint v = 0; v < VECTORS; v++)
                loaded[r * VECTORS + v] = rows.at[(r * BITS + chunk * VECTORS + v) * blocks + block];
        for (uint g = 0; g < GROUPS; g++) {
            const uint group = chunk * GROUPS + g;
            int quads[TILE_ROWS * QUADS_OF_GROUP];
            float group_scales[TILE_ROWS];
            for (uint r = 0; r < TILE_ROWS; r++) {
                for (uint i = 0; i < QUADS_OF_GROUP; i++) {
                    const uint word = g * BITS + i / PER_WORD;
                    quads[r * QUADS_OF_GROUP + i] = codes_of(loaded[r * VECTORS + word / 4][word % 4], i);
                }
                const uint at = block * BLOCK + group * GROUP >> GROUP_SHIFT;
                if (GROUP_SHIFT < 7)
                    group_scales[r] =
                        half_to_float(row_scales.at[r * scale_words + at / 2] >> 16 * (at & 1) & 0xffff);
            }
            for (uint t = 0; t < TOKENS && first_token + t < n_tokens; t++) {
                const uvec2 row = advance(acts, first_token + t, act_row_bytes(n_cols, PLANES));
                const uvec2 info =
                    Addresses(advance(row, 1, act_groups_at(blocks, PLANES))).at[group * blocks + block];
                const ivec4 first = Codes(row).at[2 * group * blocks + block],
                            second = Codes(row).at[(2 * group + 1) * blocks + block];
                ivec4 first_low = ivec4(0), second_low = ivec4(0);
                if (PLANES == 2) {
                    first_low = Codes(row).at[(8 + 2 * group) * blocks + block];
                    second_low = Codes(row).at[(9 + 2 * group) * blocks + block];
                }
                for (uint r = 0; r < TILE_ROWS; r++) {
                    int sum = 0;
                    for (uint i = 0; i < 4; i++)
                        sum += dot_of(first[i], quads[r * QUADS_OF_GROUP + i]) +
                               dot_of(second[i], quads[r * QUADS_OF_GROUP + 4 + i]);
                    if (PLANES == 2) {
                        sum *= 256;
                        for (uint i = 0; i < 4; i++)
                            sum += dot_of(first_low[i], quads[r * QUADS_OF_GROUP + i]) +
                                   dot_of(second_low[i], quads[r * QUADS_OF_GROUP + 4 + i]);
                    }
                    sum -= ZERO_POINT * int(info.y);
                    precise const float scale =
                        GROUP_SHIFT < 7 ? uintBitsToFloat(info.x) * group_scales[r] : uintBitsToFloat(info.x);
                    sums[r * TOKENS + t] += scale * float(sum);
                }
            }
        }
    }
    for (uint r = 0; r < TILE_ROWS; r++) {
        float scale = 1;
        if (GROUP_SHIFT >= 7) {
            const uint at = block * BLOCK >> GROUP_SHIFT;
            scale = half_to_float(row_scales.at[r * scale_words + at / 2] >> 16 * (at & 1) & 0xffff);
        }
        for (uint t = 0; t < TOKENS; t++) {
            precise const float product = GROUP_SHIFT < 7 ? sums[r * TOKENS + t] : scale * sums[r * TOKENS + t];
            products[r * TOKENS + t] = product;
        }
    }
}

/* ---- Results ---- */

/* A result before the norm's factor: number i of those of the tiles from first_tile on, in the lane i % LANES. */
void compute(uint first_tile, uint first_token, uint blocks, out float totals[MAX_TOTALS])
{
    const uint lane = gl_LocalInvocationIndex, team = lane / TEAM, member = lane % TEAM, tile = first_tile + team;
    precise float sums[MAX_TOTALS];
    for (uint i = 0; i < MAX_TOTALS; i++)
        sums[i] = 0;
    for (uint first = 0; first < blocks; first += TEAM) {
        const uint block = first + member, n = min(TEAM, blocks - first);
        if (tile < n_tiles && block < blocks) {
            float products[SUMS];
            multiply(tile, first_token, block, blocks, products);
            for (uint i = 0; i < SUMS; i++)
                parts[(team * SUMS + i) * (TEAM + 1) + member] = products[i];
        }
        barrier();
        for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++)
            for (uint j = 0; j < n; j++)
                sums[k] += parts[i * (TEAM + 1) + j];
        barrier();
    }
    totals = sums;
}

/* Adds the squares of the norm's input, in parts. */
void add_squares(uint first_token, uint blocks)
{
    const uint lane = gl_LocalInvocationIndex, token = first_token + lane / SQUARE_PARTS;
    if (IS_NORMED == 0 || lane >= TOKENS * SQUARE_PARTS || token >= n_tokens)
        return;
    Floats squares =
        Floats(advance(advance(acts, token, act_row_bytes(n_cols, PLANES)), 1, act_squares_at(blocks, PLANES)));
    precise float sum = 0;
    for (uint i = lane % SQUARE_PARTS; i < 4 * blocks; i += SQUARE_PARTS)
        sum += squares.at[i];
    square_parts[lane] = sum;
}

/* The norm's factor for token t of the workgroup. */
float factor_of(uint t)
{
    if (IS_NORMED == 0)
        return 1;
    precise float sum = 0;
    for (uint i = 0; i < SQUARE_PARTS; i++)
        sum += square_parts[t * SQUARE_PARTS + i];
    precise const float mean = sum / float(n_cols) + eps;
    precise const float factor = 1.0 / sqrt(mean);
    return factor;
}

/* Returns what is stored. */
float write_result(uint tile, uint r, uint token, float sum)
{
    uint o = 0;
    for (uint i = 1; i < OUTS; i++)
        o = tile >= first_tiles[i] ? i : o;
    const uint row = (tile - first_tiles[o]) * TILE_ROWS + r;
    if (row >= n_rows[o])
        return 0;
    Floats y = Floats(advance(outs[o], token, 4 * strides[o]));
    precise float result = sum;
    if ((accumulate >> o & 1) != 0)
        result = y.at[row] + sum;
    y.at[row] = result;
    return result;
}

/* ---- Epilogues ---- */

float silu(float x)
{
    precise const float divisor = 1.0 + exp_of(-x);
    precise const float y = x / divisor;
    return y;
}

/* Writes sums of squares of `inputs` [tokens][ROWS]. */
void write_squares(uint first_token, uint tokens, uint first_row)
{
    const uint blocks = act_blocks(n_rows[0]), n_groups = ROWS / GROUP;
    for (uint item = gl_LocalInvocationIndex; item < tokens * n_groups; item += LANES) {
        const uint t = item / n_groups, group = item % n_groups * GROUP;
        const uvec2 row = advance(outs[2], first_token + t, act_row_bytes(n_rows[0], NEXT_PLANES));
        precise float sum = 0;
        for (uint i = group; i < group + GROUP; i++)
            sum += inputs[t * ROWS + i] * inputs[t * ROWS + i];
        Floats(advance(row, 1, act_squares_at(blocks, NEXT_PLANES))).at[group_at(first_row + group, blocks)] = sum;
    }
}

void main()
{
    const uint first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * TEAMS,
               first_token = gl_WorkGroupID.z * TOKENS, blocks = act_blocks(n_cols), lane = gl_LocalInvocationIndex,
               tokens = min(TOKENS, n_tokens - first_token);
    float totals[MAX_TOTALS];
    add_squares(first_token, blocks);
    compute(first_tile, first_token, blocks, totals);
    for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++) {
        const uint tile = first_tile + i / SUMS, t = i % TOKENS, row = i / SUMS * TILE_ROWS + i % SUMS / TOKENS;
        precise float result = totals[k];
        if (IS_NORMED != 0)
            result = result * factor_of(t);
        if (t >= tokens || tile >= n_tiles)
            continue;
        if (EPILOGUE != SWIGLU)
            result = write_result(tile, i % SUMS / TOKENS, first_token + t, result);
        if (EPILOGUE == NORM) {
            precise const float value = result * Floats(outs[3]).at[first_tile * TILE_ROWS + row];
            inputs[t * ROWS + row] = result;
            values[t * ROWS + row] = value;
        } else if (EPILOGUE == SWIGLU) {
            values[t * ROWS + row] = silu(result);
        }
    }
    if (EPILOGUE == NONE)
        return;
    if (EPILOGUE == SWIGLU) {
        compute(first_tiles[1] + first_tile, first_token, blocks, totals);
        for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++) {
            const uint at = i % TOKENS * ROWS + i / SUMS * TILE_ROWS + i % SUMS / TOKENS;
            precise float result = totals[k];
            if (IS_NORMED != 0)
                result = result * factor_of(i % TOKENS);
            precise const float value = values[at] * result;
            values[at] = value;
        }
    }
    barrier();
    if (EPILOGUE == NORM)
        write_squares(first_token, tokens, first_tile * TILE_ROWS);
    quantize(advance(outs[2], first_token, act_row_bytes(n_rows[0], NEXT_PLANES)), tokens, ROWS, n_rows[0], NEXT_PLANES,
             first_tile * TILE_ROWS, ROWS);
}
