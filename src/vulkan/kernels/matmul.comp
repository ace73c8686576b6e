#version 450
/* Rows of weights times rows of activations, both integers (acts.glsl). A team of lanes computes a tile of weight rows for
 * up to TOKENS rows of activations: a lane takes a block of 128 columns at a time. Sums of a group of 32 columns are
 * integers, so they are exact; those of a block's groups, and then of all blocks, are added in ascending order. So a
 * result depends neither on the size of teams nor on other rows. */
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "common.glsl"
#include "acts.glsl"

#define TILE_ROWS 4 /* QN_VK_TILE_ROWS */
#define OUTS 4
#define QUADS_OF_GROUP 8
#define MAX_TOTALS 4 /* RESULTS / LANES, at most */

layout(constant_id = 0) const uint BITS = 1; /* of a weight: 1, 2, 4, 8 */
layout(constant_id = 1) const uint TOKENS = 1;
layout(constant_id = 2) const uint GROUP_SHIFT = 7; /* log2 of the weights of a scale */
layout(constant_id = 3) const uint PLANES = 1;      /* of the activations */
layout(constant_id = 4) const uint TEAM = 32;       /* lanes */
const uint TEAMS = LANES / TEAM, SUMS = TILE_ROWS * TOKENS, RESULTS = TEAMS * SUMS;
const uint VECTORS = BITS == 8 ? 2 : 1;                  /* of 16 bytes that are loaded together */
const uint GROUPS = BITS == 1 ? 4 : BITS == 2 ? 2 : 1;   /* of 32 columns in them */
const uint PER_WORD = 8 / BITS;                          /* fours of columns */
const int ZERO_POINT = BITS == 4 ? 8 : BITS == 8 ? 0 : 1; /* codes of 1 bit count as 0 and 2, those of 8 are signed */

layout(push_constant) uniform Args {
    uvec2 codes, scales, acts;
    uvec2 outs[OUTS];
    uint first_tiles[OUTS], n_rows[OUTS], strides[OUTS];
    uint n_cols, n_tokens, n_tiles;
    uint accumulate; /* bit i: of out i */
};

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Codes { ivec4 at[]; };

shared float parts[RESULTS * (TEAM + 1)];

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

void write_result(uint tile, uint r, uint token, float sum)
{
    uint o = 0;
    for (uint i = 1; i < OUTS; i++)
        o = tile >= first_tiles[i] ? i : o;
    const uint row = (tile - first_tiles[o]) * TILE_ROWS + r;
    if (row >= n_rows[o])
        return;
    Floats y = Floats(advance(outs[o], token, 4 * strides[o]));
    precise float result = sum;
    if ((accumulate >> o & 1) != 0)
        result = y.at[row] + sum;
    y.at[row] = result;
}

void main()
{
    const uint lane = gl_LocalInvocationIndex, team = lane / TEAM, member = lane % TEAM,
               first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * TEAMS,
               tile = first_tile + team, first_token = gl_WorkGroupID.z * TOKENS, blocks = act_blocks(n_cols);
    precise float totals[MAX_TOTALS];
    for (uint i = 0; i < MAX_TOTALS; i++)
        totals[i] = 0;
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
                totals[k] += parts[i * (TEAM + 1) + j];
        barrier();
    }
    for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++) {
        const uint to = first_tile + i / SUMS, token = first_token + i % TOKENS;
        if (to < n_tiles && token < n_tokens)
            write_result(to, i % SUMS / TOKENS, token, totals[k]);
    }
}
