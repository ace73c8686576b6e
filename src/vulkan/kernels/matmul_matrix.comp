#version 450
/* Rows of weights times many rows of activations, both integers (acts.glsl), by cooperative matrices: what matmul.comp
 * and matmul_tiles.comp compute, with the same bits. Integer sums of 32 columns are exact, so that which lane has which
 * result is all that a driver decides; the rest is the arithmetic of one row, in its order.
 *
 * A workgroup has SUB_ROWS x SUB_TOKENS squares of 64 weight rows (32: ROW_FRAGMENTS is 2) and 32 rows of activations,
 * and goes through blocks of 128 columns, SUB_BLOCKS at a time: weights, without their zero point, and activations in shared memory as bytes, the
 * next blocks on their way to registers. A subgroup computes a block of a square, 16 x 16 results at a time. Products of
 * different blocks go through shared memory, where lanes add them to their results in the order of blocks. Scales are
 * loaded as matrices whose rows, or columns, are all the same: a lane has those of its results, wherever they are. */
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 5) const uint WORKGROUP = 128;
layout(local_size_x_id = 5) in;
#include "common.glsl"

#ifndef ROW_FRAGMENTS
#define ROW_FRAGMENTS 4
#endif
#define FRAGMENT 16
#define OF_LANE 8 /* results of a fragment */
#define SQUARE_ROWS (ROW_FRAGMENTS * FRAGMENT)
#define SQUARE_TOKENS (2 * FRAGMENT)
#define RESULTS (ROW_FRAGMENTS * OF_LANE) /* of a column of fragments */
#define TOKENS (SQUARE_TOKENS * SUB_TOKENS)
#define VECTORS 8 /* of 16 bytes: a block's columns as bytes */
#define ROW (VECTORS + 1) /* so that rows begin in different banks */
layout(constant_id = 1) const uint SUB_TOKENS = 2;
layout(constant_id = 4) const uint SUB_ROWS = 2;
layout(constant_id = 7) const uint DEPTH = 32; /* columns of a matrix: 16 or 32 */
layout(constant_id = 8) const uint SUB_BLOCKS = 1; /* more than one with one of SUB_TOKENS */
#include "matmul.glsl"

const uint ROWS = SQUARE_ROWS * SUB_ROWS;
const uint SCALES = GROUP_SHIFT < 7 ? 4 : 1; /* of a row in a block */
/* Loads of a lane, and the most that they may be. */
const uint CODE_VECTORS = ROWS * BITS * SUB_BLOCKS, CODE_LOADS = (CODE_VECTORS + LANES - 1) / LANES;
const uint ACT_VECTORS = TOKENS * VECTORS * PLANES * SUB_BLOCKS, ACT_LOADS = (ACT_VECTORS + LANES - 1) / LANES;
const uint GROUPS = 4 * TOKENS * SUB_BLOCKS, GROUP_LOADS = (GROUPS + LANES - 1) / LANES;
const uint ROW_SCALES = SCALES * ROWS * SUB_BLOCKS, SCALE_LOADS = (ROW_SCALES + LANES - 1) / LANES;
#define MOST_CODES 16
#define MOST_ACTS 16
#define MOST_GROUPS 4
#define MOST_SCALES 8
#define MOST_BLOCKS 4

/* Of each of the blocks. The first one has products, too: 16 columns of a square are fewer words than its weights. */
shared uvec4 weights[SUB_BLOCKS * ROWS * ROW];
shared uvec4 activations[SUB_BLOCKS * PLANES * TOKENS * ROW];
shared int row_scales[ROW_SCALES], act_scales[GROUPS]; /* bits of floats */
shared float factors[TOKENS];                          /* of the norm */
shared uvec2 tile_outs[ROWS / TILE_ROWS];              /* where a tile has its first result */
shared uvec2 tile_infos[ROWS / TILE_ROWS];             /* 2 times the floats to the next token, 1: adds; its rows */
/* With one plane a sum is less than 2^22, and it becomes a float without a conversion: OFFSET has an exponent such that
 * its bits plus the sum are those of OFFSET + sum. */
#define OFFSET 12582912.0 /* 1.5 * 2^23 */

uint first_tile, first_token, blocks;
uint square_row, square_token, sub_block; /* of the subgroup, in the workgroup */

/* ---- A block: from memory to registers, from there to shared memory ---- */

uvec2 codes_from[MOST_CODES], acts_from[MOST_ACTS], groups_from[MOST_GROUPS], scales_from[MOST_SCALES];
uvec4 loaded_codes[MOST_CODES], loaded_acts[MOST_ACTS];
uint loaded_groups[MOST_GROUPS], loaded_scales[MOST_SCALES];

uint row_at(uint row)
{
    return min(first_tile * TILE_ROWS + row, n_tiles * TILE_ROWS - 1);
}

uvec2 acts_at(uint token)
{
    return advance(acts, min(first_token + token, n_tokens - 1), act_row_bytes(n_cols, PLANES));
}

/* A lane's item of n, at a time SUB_BLOCKS of the same rows: they are adjacent in memory. */
uint item(uint u, uint n)
{
    return min(u * LANES + gl_LocalInvocationIndex, n - 1) / SUB_BLOCKS;
}

uint item_block(uint u)
{
    return (u * LANES + gl_LocalInvocationIndex) % SUB_BLOCKS;
}

void find_sources()
{
    const uint scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2, pieces = VECTORS * PLANES;
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++) {
        const uint i = item(u, CODE_VECTORS);
        codes_from[u] = advance(codes, row_at(i / BITS) * BITS + i % BITS, blocks * 16);
    }
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++) {
        const uint i = item(u, ACT_VECTORS);
        acts_from[u] = advance(acts_at(i / pieces), i % pieces, blocks * 16);
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = item(u, GROUPS);
        groups_from[u] = advance(acts_at(i / 4), 1, act_groups_at(blocks, PLANES) + i % 4 * blocks * 8);
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++)
        scales_from[u] = advance(scales, row_at(item(u, ROW_SCALES) / SCALES), scale_words * 4);
}

/* The block of a lane's item; after the last block it is the last one. */
uint block_of(uint u, uint first)
{
    return min(first + item_block(u), blocks - 1);
}

/* The number of a scale in its row. */
uint scale_at(uint u, uint first)
{
    return block_of(u, first) * BLOCK + item(u, ROW_SCALES) % SCALES * GROUP >> GROUP_SHIFT;
}

void load_blocks(uint first)
{
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++)
        loaded_codes[u] = UVec4s(codes_from[u]).at[block_of(u, first)];
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++)
        loaded_acts[u] = UVec4s(acts_from[u]).at[block_of(u, first)];
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++)
        loaded_groups[u] = Addresses(groups_from[u]).at[block_of(u, first)].x;
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++)
        loaded_scales[u] = Words(scales_from[u]).at[scale_at(u, first) / 2];
}

/* Four codes less their zero point, as bytes: number i of those in `word`. */
uint weights_of(uint word, uint i)
{
    const uint at = i % PER_WORD * BITS, ones = 0x01010101, signs = 0x80808080;
    if (BITS == 8)
        return word;
    if (BITS == 1)
        return (~word >> at & ones) * 0xfe + ones;
    return (word >> at & ones * ((1 << BITS) - 1) | signs) - ones * ZERO_POINT ^ signs;
}

void store_blocks(uint first)
{
    const uint lane = gl_LocalInvocationIndex;
    [[unroll]] for (uint u = 0; u < CODE_LOADS; u++) {
        const uint i = item(u, CODE_VECTORS);
        if (u * LANES + lane < CODE_VECTORS)
            [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                uvec4 bytes;
                [[unroll]] for (uint w = 0; w < 4; w++)
                    bytes[w] = weights_of(loaded_codes[u][(4 * v + w) / PER_WORD % 4], 4 * v + w);
                if (v < VECTORS / BITS)
                    weights[(item_block(u) * ROWS + i / BITS) * ROW + i % BITS * (VECTORS / BITS) + v] = bytes;
            }
    }
    [[unroll]] for (uint u = 0; u < ACT_LOADS; u++) {
        const uint i = item(u, ACT_VECTORS), piece = i % (VECTORS * PLANES), token = i / (VECTORS * PLANES);
        if (u * LANES + lane < ACT_VECTORS)
            activations[((item_block(u) * PLANES + piece / VECTORS) * TOKENS + token) * ROW + piece % VECTORS] =
                loaded_acts[u];
    }
    [[unroll]] for (uint u = 0; u < GROUP_LOADS; u++) {
        const uint i = item(u, GROUPS);
        if (u * LANES + lane < GROUPS)
            act_scales[(item_block(u) * 4 + i % 4) * TOKENS + i / 4] = int(loaded_groups[u]);
    }
    [[unroll]] for (uint u = 0; u < SCALE_LOADS; u++) {
        const uint i = item(u, ROW_SCALES);
        if (u * LANES + lane < ROW_SCALES)
            row_scales[(item_block(u) * SCALES + i % SCALES) * ROWS + i / SCALES] =
                floatBitsToInt(half_to_float(loaded_scales[u] >> 16 * (scale_at(u, first) & 1) & 0xffff));
    }
}

/* ---- Products ---- */

/* Parts of a group of 32 columns: planes, and of each of them depths of matrices. */
const uint DEPTHS = GROUP / DEPTH, PARTS = PLANES * DEPTHS;
#define MOST_PARTS 4

/* c: integer sums of fragment r of both columns of fragments. */
void add_part(uint p, uint group, uint r, const icoopmatNV<8, gl_ScopeSubgroup, DEPTH, FRAGMENT> b[2 * MOST_PARTS],
              inout icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> c[2])
{
    if (p >= PARTS)
        return;
    icoopmatNV<8, gl_ScopeSubgroup, FRAGMENT, DEPTH> a;
    coopMatLoadNV(a, weights,
                  (sub_block * ROWS + square_row + r * FRAGMENT) * ROW + (group * GROUP + p % DEPTHS * DEPTH) / 16, ROW,
                  false);
    [[unroll]] for (uint t = 0; t < 2; t++) {
        [[unroll]] for (uint i = 0; i < OF_LANE; i++)
            if (p > 0 && p % DEPTHS == 0)
                c[t][i] = 256 * c[t][i];
        c[t] = coopMatMulAddNV(a, b[2 * p + t], c[t]);
    }
}

/* Adds the products of a group of 32 columns to those of the block, of both columns of fragments: they share the weights'
 * fragments. */
void add_group(uint group, inout float products[2 * RESULTS])
{
    icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> act_scale[2];
    icoopmatNV<8, gl_ScopeSubgroup, DEPTH, FRAGMENT> b[2 * MOST_PARTS];
    [[unroll]] for (uint t = 0; t < 2; t++) {
        const uint token = square_token + t * FRAGMENT;
        coopMatLoadNV(act_scale[t], act_scales, (sub_block * 4 + group) * TOKENS + token, 0, false);
        [[unroll]] for (uint p = 0; p < MOST_PARTS; p++)
            if (p < PARTS)
                coopMatLoadNV(b[2 * p + t], activations,
                              ((sub_block * PLANES + p / DEPTHS) * TOKENS + token) * ROW +
                                  (group * GROUP + p % DEPTHS * DEPTH) / 16,
                              ROW, true);
    }
    [[unroll]] for (uint r = 0; r < ROW_FRAGMENTS; r++) {
        icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> c[2], row_scale;
        [[unroll]] for (uint t = 0; t < 2; t++)
            c[t] = icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT>(PLANES == 1 ? floatBitsToInt(OFFSET) : 0);
        add_part(0, group, r, b, c);
        add_part(1, group, r, b, c);
        add_part(2, group, r, b, c);
        add_part(3, group, r, b, c);
        if (SCALES > 1)
            coopMatLoadNV(row_scale, row_scales, (sub_block * SCALES + group) * ROWS + square_row + r * FRAGMENT, 0,
                          true);
        [[unroll]] for (uint t = 0; t < 2; t++)
            [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
                precise float scale = intBitsToFloat(act_scale[t][i]);
                if (SCALES > 1)
                    scale = scale * intBitsToFloat(row_scale[i]);
                precise const float sum = PLANES == 1 ? intBitsToFloat(c[t][i]) - OFFSET : float(c[t][i]);
                precise const float product = fma(scale, sum, products[t * RESULTS + r * OF_LANE + i]);
                products[t * RESULTS + r * OF_LANE + i] = product;
            }
    }
}

/* The block's products of the square. */
void multiply(out float products[2 * RESULTS])
{
    [[unroll]] for (uint i = 0; i < 2 * RESULTS; i++)
        products[i] = 0;
    [[unroll]] for (uint group = 0; group < 4; group++)
        add_group(group, products);
    [[unroll]] for (uint r = 0; r < ROW_FRAGMENTS; r++) {
        icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> row_scale;
        if (SCALES == 1)
            coopMatLoadNV(row_scale, row_scales, sub_block * ROWS + square_row + r * FRAGMENT, 0, true);
        [[unroll]] for (uint t = 0; t < 2; t++)
            [[unroll]] for (uint i = 0; i < OF_LANE; i++) {
                precise float product = products[t * RESULTS + r * OF_LANE + i];
                if (SCALES == 1)
                    product = intBitsToFloat(row_scale[i]) * product;
                products[t * RESULTS + r * OF_LANE + i] = product;
            }
    }
}

/* ---- Results in shared memory: of 16 columns of a square, [tokens][rows] ---- */

#define TOKEN_VECTORS (SQUARE_ROWS / 4)               /* of 4 rows: a tile */
#define COLUMN_VECTORS (FRAGMENT * TOKEN_VECTORS)     /* of 16 tokens */
const uint LANE_VECTORS = COLUMN_VECTORS / (32 * SUB_BLOCKS); /* that a lane reads */
#define MOST_VECTORS (COLUMN_VECTORS / 32)

/* Where a subgroup's products are; subgroups of a square are adjacent. */
uint column_at(uint subgroup)
{
    return subgroup * COLUMN_VECTORS;
}

void store_column(uint t, const float values[2 * RESULTS])
{
    [[unroll]] for (uint r = 0; r < ROW_FRAGMENTS; r++) {
        icoopmatNV<32, gl_ScopeSubgroup, FRAGMENT, FRAGMENT> c;
        [[unroll]] for (uint i = 0; i < OF_LANE; i++)
            c[i] = floatBitsToInt(values[t * RESULTS + r * OF_LANE + i]);
        coopMatStoreNV(c, weights, column_at(gl_SubgroupID) + r * FRAGMENT / 4, TOKEN_VECTORS, true);
    }
}

/* The number, in the column, of what a lane reads. */
uint vector_at(uint u)
{
    return (u * SUB_BLOCKS + sub_block) * 32 + gl_SubgroupInvocationID;
}

void write_vector(uint t, uint at, vec4 totals)
{
    const uint tile = square_row / 4 + at % TOKEN_VECTORS, token = square_token + t * FRAGMENT + at / TOKEN_VECTORS,
               rows = tile_infos[tile].y, stride = tile_infos[tile].x;
    if (first_token + token >= n_tokens || rows == 0)
        return;
    const uvec2 to = advance(tile_outs[tile], first_token + token, 4 * (stride / 2));
    const bool adds = (stride & 1) != 0;
    precise vec4 result = totals;
    if (IS_NORMED != 0)
        result = result * factors[token];
    if (rows >= 4 && (to.x & 15) == 0) {
        if (adds)
            result = Vec4s(to).at[0] + result;
        Vec4s(to).at[0] = result;
    } else {
        [[unroll]] for (uint r = 0; r < 4; r++)
            if (r < rows)
                Floats(to).at[r] = adds ? Floats(to).at[r] + result[r] : result[r];
    }
}

void write_column(uint t, const vec4 totals[MOST_VECTORS])
{
    [[unroll]] for (uint u = 0; u < MOST_VECTORS; u++)
        if (u < LANE_VECTORS)
            write_vector(t, vector_at(u), totals[u]);
}

/* What the results of a tile and of a token need. */
void prepare_results()
{
    for (uint i = gl_LocalInvocationIndex; i < ROWS / TILE_ROWS; i += LANES) {
        const uint tile = first_tile + i;
        uint o = 0;
        for (uint m = 1; m < OUTS; m++)
            o = tile >= first_tiles[m] ? m : o;
        const uint row = (tile - first_tiles[o]) * TILE_ROWS;
        tile_outs[i] = advance(outs[o], row, 4);
        tile_infos[i] = uvec2(2 * strides[o] + (accumulate >> o & 1),
                              tile < n_tiles && row < n_rows[o] ? n_rows[o] - row : 0);
    }
    for (uint part = gl_LocalInvocationIndex; part < TOKENS * SQUARE_PARTS; part += LANES)
        add_squares(part, first_token, blocks);
    barrier();
    for (uint t = gl_LocalInvocationIndex; t < TOKENS; t += LANES)
        factors[t] = factor_of(t);
}

/* ---- Totals ---- */

/* Of blocks one after the other, a lane adds its own products. */
void add_products(const float products[2 * RESULTS], inout float totals[2 * RESULTS])
{
    [[unroll]] for (uint i = 0; i < 2 * RESULTS; i++) {
        precise const float total = totals[i] + products[i];
        totals[i] = total;
    }
}

/* Adds the products of blocks, in their order. */
void add_columns(uint n, inout vec4 totals[MOST_VECTORS])
{
    [[unroll]] for (uint u = 0; u < MOST_VECTORS; u++) {
        vec4 read[MOST_BLOCKS];
        [[unroll]] for (uint b = 0; b < MOST_BLOCKS; b++)
            if (u < LANE_VECTORS && b < SUB_BLOCKS)
                read[b] = uintBitsToFloat(weights[column_at(gl_SubgroupID - sub_block + b) + vector_at(u)]);
        [[unroll]] for (uint b = 0; b < MOST_BLOCKS; b++)
            if (u < LANE_VECTORS && b < SUB_BLOCKS && b < n) {
                precise const vec4 total = totals[u] + read[b];
                totals[u] = total;
            }
    }
}

/* Moves a lane's totals to where write_column has them. */
void exchange(uint t, const float values[2 * RESULTS], out vec4 totals[MOST_VECTORS])
{
    barrier();
    store_column(t, values);
    barrier();
    [[unroll]] for (uint u = 0; u < MOST_VECTORS; u++)
        totals[u] = uintBitsToFloat(weights[column_at(gl_SubgroupID) + vector_at(u)]);
}

void main()
{
    const uint square = gl_SubgroupID / SUB_BLOCKS;
    first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * (ROWS / TILE_ROWS);
    first_token = gl_WorkGroupID.z * TOKENS;
    blocks = act_blocks(n_cols);
    square_row = square / SUB_TOKENS * SQUARE_ROWS;
    square_token = square % SUB_TOKENS * SQUARE_TOKENS;
    sub_block = gl_SubgroupID % SUB_BLOCKS;
    if (first_tile >= n_tiles)
        return;
    float totals[2 * RESULTS]; /* of the square's two columns of fragments; or as vectors */
    vec4 left[MOST_VECTORS], right[MOST_VECTORS];
    [[unroll]] for (uint i = 0; i < 2 * RESULTS; i++)
        totals[i] = 0;
    [[unroll]] for (uint u = 0; u < MOST_VECTORS; u++)
        left[u] = right[u] = vec4(0);
    find_sources();
    load_blocks(0);
    prepare_results();
    for (uint block = 0; block < blocks; block += SUB_BLOCKS) {
        float products[2 * RESULTS];
        barrier();
        store_blocks(block);
        barrier();
        if (block + SUB_BLOCKS < blocks)
            load_blocks(block + SUB_BLOCKS);
        multiply(products);
        if (SUB_BLOCKS == 1) {
            add_products(products, totals);
        } else {
            barrier();
            store_column(0, products);
            barrier();
            add_columns(blocks - block, left);
            barrier();
            store_column(1, products);
            barrier();
            add_columns(blocks - block, right);
        }
    }
    if (SUB_BLOCKS == 1) {
        exchange(0, totals, left);
        exchange(1, totals, right);
    }
    write_column(0, left);
    write_column(1, right);
}
