#version 450
/* Rows of weights times many rows of activations, both integers (acts.glsl): what matmul.comp computes, with the same
 * bits. A workgroup computes SUB_ROWS x SUB_TOKENS squares of 32 weight rows and 32 rows of activations, which have 32
 * lanes each, block after block of 128 columns: weights as bytes and activations in shared memory, the next block on
 * its way to registers.
 *
 * A square is 2 x 2 fragments of 16 x 16 results, of which a lane has 8 of each. With MATRIX their integer sums are
 * computed by cooperative matrices: these are exact, so that which lane has which result is all that a driver decides.
 * Else a lane computes its results by dot products. All other arithmetic is the same. */
#extension GL_GOOGLE_include_directive : require
#ifdef MATRIX
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model
#elif defined DOT
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
#define FRAGMENTS 2 /* of a square, one below the other; and */
#define COLUMNS 2   /* side by side */
#define OF_LANE 8   /* results of a fragment */
#define VECTORS 8   /* of 16 bytes: a block's columns as bytes */
#define ROW (VECTORS + 1) /* so that rows begin in different banks */
layout(constant_id = 1) const uint SUB_TOKENS = 1;
layout(constant_id = 4) const uint SUB_ROWS = 4;
layout(constant_id = 7) const uint DEPTH = 32; /* columns of a matrix: 16 or 32 */
#define MOST_SLICES 4
layout(constant_id = 8) const uint SLICES = 1; /* blocks that are computed at a time: 1, or MOST_SLICES of one square */
#include "matmul.glsl"

const uint ROWS = SQUARE * SUB_ROWS, SQUARES = SUB_ROWS * SUB_TOKENS;
const uint ALL_ROWS = SLICES * ROWS, ALL_TOKENS = SLICES * TOKENS;
const uint SCALES = GROUP_SHIFT < 7 ? 4 : 1; /* of a row in a block */
const uint CODE_VECTORS = ALL_ROWS * BITS, CODE_LOADS = (CODE_VECTORS + LANES - 1) / LANES;
const uint ACT_VECTORS = ALL_TOKENS * VECTORS * PLANES, ACT_LOADS = (ACT_VECTORS + LANES - 1) / LANES;
const uint GROUP_LOADS = (4 * ALL_TOKENS + LANES - 1) / LANES, SCALE_LOADS = (SCALES * ALL_ROWS + LANES - 1) / LANES;

shared uvec4 weights[ALL_ROWS * ROW]; /* and then products, where there are slices */
shared uvec4 activations[PLANES * ALL_TOKENS * ROW];
shared float row_scales[SCALES * ALL_ROWS];
/* Scales, and what integer sums begin with: the zero point's part. With one plane the sum is less than 2^22, and it
 * becomes a float without a conversion: OFFSET has an exponent such that its bits plus the sum are those of
 * OFFSET + sum. */
shared uvec2 act_groups[4 * ALL_TOKENS];
#define OFFSET 12582912.0 /* 1.5 * 2^23 */
#ifdef MATRIX
shared int places[FRAGMENT * FRAGMENT];
#endif

uint first_tile, first_token, blocks;
uint slice, square, square_row, square_token; /* of the lane; where its square's rows are in the arrays of all slices */
/* Of a lane's results, in a fragment. All indices of these and of results are constants: else they were no registers. */
uint row_of[OF_LANE], token_of[OF_LANE];

/* ---- A block: from memory to registers, from there to shared memory ---- */

uvec4 loaded_codes[CODE_LOADS], loaded_acts[ACT_LOADS];
uvec2 loaded_groups[GROUP_LOADS];
float loaded_scales[SCALE_LOADS];

uint row_at(uint row)
{
    return min(first_tile * TILE_ROWS + row % ROWS, n_tiles * TILE_ROWS - 1);
}

uvec2 acts_at(uint token)
{
    return advance(acts, min(first_token + token % TOKENS, n_tokens - 1), act_row_bytes(n_cols, PLANES));
}

uint block_of(uint first, uint of_slice)
{
    return SLICES == 1 ? first : min(first + of_slice, blocks - 1);
}

/* Loads a block of each slice, from `first` on. */
void load_blocks(uint first)
{
    const uint lane = gl_LocalInvocationIndex, scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2;
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++) {
        const uint i = min(u * LANES + lane, CODE_VECTORS - 1), block = block_of(first, i / BITS / ROWS);
        loaded_codes[u] = UVec4s(advance(codes, row_at(i / BITS), BITS * blocks * 16)).at[i % BITS * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++) {
        const uint i = min(u * LANES + lane, ACT_VECTORS - 1), pieces = VECTORS * PLANES,
                   block = block_of(first, i / pieces / TOKENS);
        loaded_acts[u] = UVec4s(acts_at(i / pieces)).at[i % pieces * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = min(u * LANES + lane, 4 * ALL_TOKENS - 1), block = block_of(first, i / 4 / TOKENS);
        const uvec2 infos = advance(acts_at(i / 4), 1, act_groups_at(blocks, PLANES));
        loaded_groups[u] = Addresses(infos).at[i % 4 * blocks + block];
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++) {
        const uint i = min(u * LANES + lane, SCALES * ALL_ROWS - 1), block = block_of(first, i / SCALES / ROWS),
                   at = block * BLOCK + i % SCALES * GROUP >> GROUP_SHIFT;
        const uint word = Words(advance(scales, row_at(i / SCALES), scale_words * 4)).at[at / 2];
        loaded_scales[u] = half_to_float(word >> 16 * (at & 1) & 0xffff);
    }
}

void store_blocks()
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
            activations[(piece / VECTORS * ALL_TOKENS + i / (VECTORS * PLANES)) * ROW + piece % VECTORS] =
                loaded_acts[u];
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = u * LANES + lane;
        if (i < 4 * ALL_TOKENS) {
            const int zero = -ZERO_POINT * int(loaded_groups[u].y) + (PLANES == 1 ? floatBitsToInt(OFFSET) : 0);
            act_groups[i % 4 * ALL_TOKENS + i / 4] = uvec2(loaded_groups[u].x, uint(zero));
        }
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++) {
        const uint i = u * LANES + lane;
        if (i < SCALES * ALL_ROWS)
            row_scales[i % SCALES * ALL_ROWS + i / SCALES] = loaded_scales[u];
    }
}

/* ---- Integer sums of a group of 32 columns: of the lane's results, [columns of fragments][rows of them][OF_LANE] ---- */

#define RESULTS (FRAGMENTS * OF_LANE) /* of a column */

void find_square(uint group)
{
    slice = group / SQUARES;
    square = group % SQUARES;
    square_row = slice * ROWS + square / SUB_TOKENS * SQUARE;
    square_token = slice * TOKENS + square % SUB_TOKENS * SQUARE;
}

#ifdef MATRIX
void find_places()
{
    icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> at;
    for (uint i = gl_LocalInvocationIndex; i < FRAGMENT * FRAGMENT; i += LANES)
        places[i] = int(i);
    barrier();
    coopMatLoadNV(at, places, 0, FRAGMENT, false);
    [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
        row_of[i] = uint(at[i]) / FRAGMENT;
        token_of[i] = uint(at[i]) % FRAGMENT;
    }
    find_square(gl_SubgroupID);
}

/* zeros: what sums begin with, of both columns of fragments, which share the fragments of weights. */
void add_sums(uint group, const int zeros[COLUMNS * OF_LANE], out int sums[COLUMNS * RESULTS])
{
    icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> c[COLUMNS * FRAGMENTS];
    [[unroll]] for (uint plane = 0; plane < PLANES; plane++) {
        [[unroll]] for (uint f = 0; f < COLUMNS * FRAGMENTS; f++)
            [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
                const int zero = plane + 1 == PLANES ? zeros[f / FRAGMENTS * OF_LANE + i] : 0;
                c[f][i] = plane > 0 ? 256 * c[f][i] + zero : zero;
            }
        [[unroll]] for (uint k = 0; k < GROUP / DEPTH; k++) {
            icoopmatNV<8, gl_ScopeSubgroup, FRAGMENT, DEPTH> a[FRAGMENTS];
            const uint at = (group * GROUP + k * DEPTH) / 16;
            [[unroll]] for (uint r = 0; r < FRAGMENTS; r++)
                coopMatLoadNV(a[r], weights, (square_row + r * FRAGMENT) * ROW + at, ROW, false);
            [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
                icoopmatNV<8, gl_ScopeSubgroup, DEPTH, FRAGMENT> b;
                coopMatLoadNV(b, activations, (plane * ALL_TOKENS + square_token + t * FRAGMENT) * ROW + at, ROW, true);
                [[unroll]] for (uint r = 0; r < FRAGMENTS; r++)
                    c[t * FRAGMENTS + r] = coopMatMulAddNV(a[r], b, c[t * FRAGMENTS + r]);
            }
        }
    }
    [[unroll]] for (uint f = 0; f < COLUMNS * FRAGMENTS; f++)
        [[unroll]] for (uint i = 0; i < OF_LANE; i++)
            sums[f * OF_LANE + i] = c[f][i];
}
#else
#define LANE_ROWS 4 /* of a fragment; OF_LANE / LANE_ROWS tokens */

void find_places()
{
    const uint lane = gl_LocalInvocationIndex % SQUARE;
    [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
        row_of[i] = lane % 4 + 4 * (i % LANE_ROWS);
        token_of[i] = lane / 4 * (OF_LANE / LANE_ROWS) + i / LANE_ROWS;
    }
    find_square(gl_LocalInvocationIndex / SQUARE);
}

void add_sums(uint group, const int zeros[COLUMNS * OF_LANE], out int sums[COLUMNS * RESULTS])
{
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++)
        sums[i] = PLANES == 2 ? 0 : zeros[i / RESULTS * OF_LANE + i % OF_LANE];
    for (uint plane = 0; plane < PLANES; plane++) {
        [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS && plane > 0; i++)
            sums[i] = 256 * sums[i] + zeros[i / RESULTS * OF_LANE + i % OF_LANE];
        for (uint v = 2 * group; v < 2 * group + 2; v++) {
            ivec4 w[FRAGMENTS * LANE_ROWS];
            [[unroll]] for (uint r = 0; r < FRAGMENTS * LANE_ROWS; r++)
                w[r] = ivec4(weights[(square_row + r / LANE_ROWS * FRAGMENT + row_of[r % LANE_ROWS]) * ROW + v]);
            [[unroll]] for (uint i = 0; i < COLUMNS * OF_LANE; i += LANE_ROWS) {
                const uint token = square_token + i / OF_LANE * FRAGMENT + token_of[i % OF_LANE];
                const ivec4 x = ivec4(activations[(plane * ALL_TOKENS + token) * ROW + v]);
                [[unroll]] for (uint r = 0; r < FRAGMENTS * LANE_ROWS; r++)
                    [[unroll]] for (uint q = 0; q < 4; q++)
                        sums[i / OF_LANE * RESULTS + r / LANE_ROWS * OF_LANE + i % OF_LANE + r % LANE_ROWS] +=
                            dot_of(x[q], w[r][q]);
            }
        }
    }
}
#endif

/* ---- Results ---- */

void add_group(uint group, inout float products[COLUMNS * RESULTS])
{
    float scales_of[COLUMNS * OF_LANE];
    int zeros[COLUMNS * OF_LANE], sums[COLUMNS * RESULTS];
    [[unroll]] for (uint i = 0; i < COLUMNS * OF_LANE; i++) {
        const uint token = square_token + i / OF_LANE * FRAGMENT + token_of[i % OF_LANE];
        const uvec2 info = act_groups[group * ALL_TOKENS + token];
        scales_of[i] = uintBitsToFloat(info.x);
        zeros[i] = int(info.y);
    }
    add_sums(group, zeros, sums);
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++) {
        precise float scale = scales_of[i / RESULTS * OF_LANE + i % OF_LANE];
        if (SCALES > 1)
            scale = scale *
                    row_scales[group * ALL_ROWS + square_row + i % RESULTS / OF_LANE * FRAGMENT + row_of[i % OF_LANE]];
        precise const float sum = PLANES == 1 ? intBitsToFloat(sums[i]) - OFFSET : float(sums[i]);
        precise const float product = fma(scale, sum, products[i]);
        products[i] = product;
    }
}

/* The block's products of the lane's results. */
void multiply(out float products[COLUMNS * RESULTS])
{
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++)
        products[i] = 0;
    [[unroll]] for (uint group = 0; group < 4; group++)
        add_group(group, products);
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS && SCALES == 1; i++) {
        precise const float product =
            row_scales[square_row + i % RESULTS / OF_LANE * FRAGMENT + row_of[i % OF_LANE]] * products[i];
        products[i] = product;
    }
}

/* Writes result i of the lane. */
void write(uint i, float total)
{
    const uint row = square_row - slice * ROWS + i % RESULTS / OF_LANE * FRAGMENT + row_of[i % OF_LANE],
               tile = first_tile + row / TILE_ROWS,
               token = square_token - slice * TOKENS + i / RESULTS * FRAGMENT + token_of[i % OF_LANE];
    bool adds = false;
    uvec2 to = uvec2(0);
    if (tile < n_tiles && first_token + token < n_tokens)
        to = address_of(tile, row % TILE_ROWS, first_token + token, adds);
    if (is_null(to))
        return;
    precise float result = total;
    if (IS_NORMED != 0)
        result = result * factor_of(token);
    if (adds)
        result = Floats(to).at[0] + result;
    Floats(to).at[0] = result;
}

void compute_blocks()
{
    float totals[COLUMNS * RESULTS], products[COLUMNS * RESULTS];
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++)
        totals[i] = 0;
    for (uint block = 0; block < blocks; block++) {
        barrier();
        store_blocks();
        barrier();
        if (block + 1 < blocks)
            load_blocks(block + 1);
        multiply(products);
        [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++) {
            precise const float total = totals[i] + products[i];
            totals[i] = total;
        }
    }
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++)
        write(i, totals[i]);
}

#ifdef MATRIX
/* ---- Slices: SLICES lanes have the same results of a square, each of its own blocks ---- */

const uint OF_SLICE = COLUMNS * RESULTS / MOST_SLICES; /* of a lane's results: it adds the products of all slices */

/* Four of a lane's products. */
uint product_at(uint of_slice, uint four)
{
    return of_slice * ROWS * ROW + (square * RESULTS / 2 + four) * SQUARE + gl_LocalInvocationIndex % SQUARE;
}

/* Products are in place of weights; of a block that there is not they are 0. */
void store_products(bool is_block)
{
    float products[COLUMNS * RESULTS];
    multiply(products);
    barrier();
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i += 4) {
        const vec4 four = vec4(products[i], products[i + 1], products[i + 2], products[i + 3]);
        weights[product_at(slice, i / 4)] = is_block ? floatBitsToUint(four) : uvec4(0);
    }
    barrier();
}

void compute_slices()
{
    float totals[OF_SLICE];
    [[unroll]] for (uint i = 0; i < OF_SLICE; i++)
        totals[i] = 0;
    for (uint block = 0; block < blocks; block += MOST_SLICES) {
        barrier();
        store_blocks();
        barrier();
        if (block + MOST_SLICES < blocks)
            load_blocks(block + MOST_SLICES);
        store_products(block + slice < blocks);
        [[unroll]] for (uint i = 0; i < OF_SLICE; i += 4)
            [[unroll]] for (uint s = 0; s < MOST_SLICES; s++) {
                const vec4 products = uintBitsToFloat(weights[product_at(s, (slice * OF_SLICE + i) / 4)]);
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    precise const float total = totals[i + j] + products[j];
                    totals[i + j] = total;
                }
            }
    }
    [[unroll]] for (uint i = 0; i < COLUMNS * RESULTS; i++)
        if (i / OF_SLICE == slice)
            write(i, totals[i % OF_SLICE]);
}

#endif

void main()
{
    first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * (ROWS / TILE_ROWS);
    first_token = gl_WorkGroupID.z * TOKENS;
    blocks = act_blocks(n_cols);
    if (first_tile >= n_tiles)
        return;
    for (uint part = gl_LocalInvocationIndex; part < TOKENS * SQUARE_PARTS; part += LANES)
        add_squares(part, first_token, blocks);
    find_places();
    load_blocks(0);
#ifdef MATRIX
    if (SLICES > 1) {
        compute_slices();
        return;
    }
#endif
    compute_blocks();
}
