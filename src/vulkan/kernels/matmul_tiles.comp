#version 450
/* Rows of weights times many rows of activations, both integers (acts.glsl): what matmul.comp computes, with the same
 * bits. A workgroup computes SUB_ROWS x SUB_TOKENS squares of 32 weight rows and 32 rows of activations, which have 32
 * lanes each, block after block of 128 columns: weights as bytes and activations in shared memory, the next block on
 * its way to registers.
 *
 * A square is 2 x 2 fragments of 16 x 16 results, of which a lane has 8 of each. Devices with cooperative matrices have
 * matmul_matrix.comp. */
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 5) const uint WORKGROUP = 128;
layout(local_size_x_id = 5) in;
#include "common.glsl"

#define TOKENS (SQUARE * SUB_TOKENS)
#define SQUARE 32 /* QN_VK_SQUARE */
#define FRAGMENT 16
#define FRAGMENTS 2 /* of a square, in each direction */
#define OF_LANE 8   /* results of a fragment */
#define VECTORS 8   /* of 16 bytes: a block's columns as bytes */
#define ROW (VECTORS + 1) /* so that rows begin in different banks */
layout(constant_id = 1) const uint SUB_TOKENS = 1;
layout(constant_id = 4) const uint SUB_ROWS = 4;
#include "matmul.glsl"

const uint ROWS = SQUARE * SUB_ROWS;
const uint SCALES = GROUP_SHIFT < 7 ? 4 : 1; /* of a row in a block */
const uint CODE_VECTORS = ROWS * BITS, CODE_LOADS = (CODE_VECTORS + LANES - 1) / LANES;
const uint ACT_VECTORS = TOKENS * VECTORS * PLANES, ACT_LOADS = (ACT_VECTORS + LANES - 1) / LANES;
const uint GROUP_LOADS = (4 * TOKENS + LANES - 1) / LANES, SCALE_LOADS = (SCALES * ROWS + LANES - 1) / LANES;

shared uvec4 weights[ROWS * ROW];
shared uvec4 activations[PLANES * TOKENS * ROW];
shared float row_scales[SCALES * ROWS];
/* Scales, and what integer sums begin with: the zero point's part. With one plane the sum is less than 2^22, and it
 * becomes a float without a conversion: OFFSET has an exponent such that its bits plus the sum are those of
 * OFFSET + sum. */
shared uvec2 act_groups[4 * TOKENS];
#define OFFSET 12582912.0 /* 1.5 * 2^23 */

uint first_tile, first_token, blocks, square_row, square_token; /* of the lane's square, in the workgroup */
uint row_of[OF_LANE], token_of[OF_LANE];                        /* of a lane's results, in a fragment */

/* ---- A block: from memory to registers, from there to shared memory ---- */

uvec4 loaded_codes[CODE_LOADS], loaded_acts[ACT_LOADS];
uvec2 loaded_groups[GROUP_LOADS];
float loaded_scales[SCALE_LOADS];

uint row_at(uint row)
{
    return min(first_tile * TILE_ROWS + row, n_tiles * TILE_ROWS - 1);
}

uvec2 acts_at(uint token)
{
    return advance(acts, min(first_token + token, n_tokens - 1), act_row_bytes(n_cols, PLANES));
}

void load_block(uint block)
{
    const uint lane = gl_LocalInvocationIndex, scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2;
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++) {
        const uint i = min(u * LANES + lane, CODE_VECTORS - 1);
        loaded_codes[u] = UVec4s(advance(codes, row_at(i / BITS), BITS * blocks * 16)).at[i % BITS * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++) {
        const uint i = min(u * LANES + lane, ACT_VECTORS - 1), pieces = VECTORS * PLANES;
        loaded_acts[u] = UVec4s(acts_at(i / pieces)).at[i % pieces * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = min(u * LANES + lane, 4 * TOKENS - 1);
        const uvec2 infos = advance(acts_at(i / 4), 1, act_groups_at(blocks, PLANES));
        loaded_groups[u] = Addresses(infos).at[i % 4 * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++) {
        const uint i = min(u * LANES + lane, SCALES * ROWS - 1),
                   at = block * BLOCK + i % SCALES * GROUP >> GROUP_SHIFT;
        const uint word = Words(advance(scales, row_at(i / SCALES), scale_words * 4)).at[at / 2];
        loaded_scales[u] = half_to_float(word >> 16 * (at & 1) & 0xffff);
    }
}

void store_block()
{
    const uint lane = gl_LocalInvocationIndex;
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++) {
        const uint i = u * LANES + lane;
        if (i >= CODE_VECTORS)
            break;
        [[unroll]] for (uint v = 0; v < VECTORS / BITS; v++) {
            uvec4 bytes;
            [[unroll]] for (uint w = 0; w < 4; w++) {
                const uint quad = 4 * v + w;
                bytes[w] = uint(codes_of(loaded_codes[u][quad / PER_WORD], quad));
            }
            weights[i / BITS * ROW + i % BITS * (VECTORS / BITS) + v] = bytes;
        }
    }
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++) {
        const uint i = u * LANES + lane, piece = i % (VECTORS * PLANES);
        if (i < ACT_VECTORS)
            activations[(piece / VECTORS * TOKENS + i / (VECTORS * PLANES)) * ROW + piece % VECTORS] = loaded_acts[u];
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = u * LANES + lane;
        if (i < 4 * TOKENS) {
            const int zero = -ZERO_POINT * int(loaded_groups[u].y) + (PLANES == 1 ? floatBitsToInt(OFFSET) : 0);
            act_groups[i % 4 * TOKENS + i / 4] = uvec2(loaded_groups[u].x, uint(zero));
        }
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++) {
        const uint i = u * LANES + lane;
        if (i < SCALES * ROWS)
            row_scales[i % SCALES * ROWS + i / SCALES] = loaded_scales[u];
    }
}

/* ---- Integer sums of a group of 32 columns: of the lane's results of the square's fragments of column t ---- */

#define RESULTS (FRAGMENTS * OF_LANE)

#define LANE_ROWS 4 /* of a fragment; OF_LANE / LANE_ROWS tokens */

void find_places()
{
    const uint lane = gl_LocalInvocationIndex % SQUARE, square = gl_LocalInvocationIndex / SQUARE;
    [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
        row_of[i] = lane % 4 + 4 * (i % LANE_ROWS);
        token_of[i] = lane / 4 * (OF_LANE / LANE_ROWS) + i / LANE_ROWS;
    }
    square_row = square / SUB_TOKENS * SQUARE;
    square_token = square % SUB_TOKENS * SQUARE;
}

void add_sums(uint group, uint t, const int zeros[OF_LANE], out int sums[RESULTS])
{
    [[unroll]] for (uint i = 0; i < RESULTS; i++)
        sums[i] = PLANES == 2 ? 0 : zeros[i % OF_LANE];
    for (uint plane = 0; plane < PLANES; plane++) {
        [[unroll]] for (uint i = 0; i < RESULTS && plane > 0; i++)
            sums[i] = 256 * sums[i] + zeros[i % OF_LANE];
        for (uint v = 2 * group; v < 2 * group + 2; v++) {
            ivec4 w[FRAGMENTS * LANE_ROWS];
            [[unroll]] for (uint r = 0; r < FRAGMENTS * LANE_ROWS; r++)
                w[r] = ivec4(weights[(square_row + r / LANE_ROWS * FRAGMENT + row_of[r % LANE_ROWS]) * ROW + v]);
            [[unroll]] for (uint i = 0; i < OF_LANE; i += LANE_ROWS) {
                const ivec4 x = ivec4(
                    activations[(plane * TOKENS + square_token + t * FRAGMENT + token_of[i]) * ROW + v]);
                [[unroll]] for (uint r = 0; r < FRAGMENTS * LANE_ROWS; r++)
                    [[unroll]] for (uint q = 0; q < 4; q++)
                        sums[r / LANE_ROWS * OF_LANE + i + r % LANE_ROWS] += dot_of(x[q], w[r][q]);
            }
        }
    }
}

/* ---- Results ---- */

void add_group(uint group, uint t, inout float products[RESULTS])
{
    float scales_of[OF_LANE];
    int zeros[OF_LANE], sums[RESULTS];
    [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
        const uvec2 info = act_groups[group * TOKENS + square_token + t * FRAGMENT + token_of[i]];
        scales_of[i] = uintBitsToFloat(info.x);
        zeros[i] = int(info.y);
    }
    add_sums(group, t, zeros, sums);
    [[unroll]] for (uint r = 0; r < FRAGMENTS; r++)
        [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
            precise float scale = scales_of[i];
            if (SCALES > 1)
                scale = scale * row_scales[group * ROWS + square_row + r * FRAGMENT + row_of[i]];
            precise const float sum =
                PLANES == 1 ? intBitsToFloat(sums[r * OF_LANE + i]) - OFFSET : float(sums[r * OF_LANE + i]);
            precise const float product = fma(scale, sum, products[r * OF_LANE + i]);
            products[r * OF_LANE + i] = product;
        }
}

/* Adds the block's products of the square's fragments of column t. */
void add_block(uint t, inout float totals[RESULTS])
{
    float products[RESULTS];
    [[unroll]] for (uint i = 0; i < RESULTS; i++)
        products[i] = 0;
    [[unroll]] for (uint group = 0; group < 4; group++)
        add_group(group, t, products);
    [[unroll]] for (uint i = 0; i < RESULTS; i++) {
        precise float product = products[i];
        if (SCALES == 1)
            product = row_scales[square_row + i / OF_LANE * FRAGMENT + row_of[i % OF_LANE]] * product;
        precise const float total = totals[i] + product;
        totals[i] = total;
    }
}

void write(uint t, const float totals[RESULTS])
{
    [[unroll]] for (uint i = 0; i < RESULTS; i++) {
        const uint row = square_row + i / OF_LANE * FRAGMENT + row_of[i % OF_LANE], tile = first_tile + row / TILE_ROWS,
                   token = square_token + t * FRAGMENT + token_of[i % OF_LANE];
        bool adds = false;
        uvec2 to = uvec2(0);
        if (tile < n_tiles && first_token + token < n_tokens)
            to = address_of(tile, row % TILE_ROWS, first_token + token, adds);
        if (!is_null(to)) {
            precise float result = totals[i];
            if (IS_NORMED != 0)
                result = result * factor_of(token);
            if (adds)
                result = Floats(to).at[0] + result;
            Floats(to).at[0] = result;
        }
    }
}

void main()
{
    first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * (ROWS / TILE_ROWS);
    first_token = gl_WorkGroupID.z * TOKENS;
    blocks = act_blocks(n_cols);
    if (first_tile >= n_tiles)
        return;
    float left[RESULTS], right[RESULTS]; /* totals of the square's two columns of fragments */
    for (uint i = 0; i < RESULTS; i++)
        left[i] = right[i] = 0;
    for (uint part = gl_LocalInvocationIndex; part < TOKENS * SQUARE_PARTS; part += LANES)
        add_squares(part, first_token, blocks);
    find_places();
    load_block(0);
    for (uint block = 0; block < blocks; block++) {
        barrier();
        store_block();
        barrier();
        if (block + 1 < blocks)
            load_block(block + 1);
        add_block(0, left);
        add_block(1, right);
    }
    write(0, left);
    write(1, right);
}
