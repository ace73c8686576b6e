#version 450
/* Rows of weights times two to eight rows of activations, both integers (acts.glsl); gemv.comp has one row. A team of
 * lanes computes a tile of weight rows for up to TOKENS rows of activations: a lane takes a block of 128 columns at a
 * time. Sums of a group of 32 columns are integers, so they are exact; those of a block's groups, and then of all blocks,
 * are added in ascending order. So a result depends neither on the size of teams nor on other rows.
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

#define QUADS_OF_GROUP 8
#define NONE 0 /* QN_VK_EPILOGUE_* */
#define NORM 1
#define SWIGLU 2

layout(constant_id = 1) const uint TOKENS = 2;
layout(constant_id = 4) const uint TEAM = 32;       /* lanes */
layout(constant_id = 7) const uint EPILOGUE = 0;    /* NONE, NORM, SWIGLU */
layout(constant_id = 8) const uint NEXT_PLANES = 1; /* of the activations that it computes */
layout(constant_id = 9) const uint PASSES = 1;      /* blocks of a lane whose products are added together */
#include "matmul.glsl"

const uint TEAMS = LANES / TEAM, SUMS = TILE_ROWS * TOKENS, RESULTS = TEAMS * SUMS,
           ROWS = TEAMS * TILE_ROWS;
const uint TOTALS = (RESULTS + LANES - 1) / LANES;       /* results of a lane */
const uint VECTORS = BITS == 8 ? 2 : 1;                  /* of 16 bytes that are loaded together */
const uint GROUPS = BITS == 1 ? 4 : BITS == 2 ? 2 : 1;   /* of 32 columns in them */

const uint MAX_VALUES = EPILOGUE == NONE ? 4 : TOKENS * ROWS;

/* Of a result, a multiple of READ; and one, so that lanes read different banks. */
const uint PARTS = PASSES * TEAM + 1;

shared float parts[RESULTS * PARTS];
shared float values[MAX_VALUES];
shared float inputs[MAX_VALUES]; /* of the norm */

#include "gates.glsl"
#include "quantize.glsl"

/* The products of a block's columns: SUMS of them. */
void multiply(uint tile, uint first_token, uint block, uint blocks, out float products[SUMS])
{
    const uint scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2;
    UVec4s rows = UVec4s(advance(codes, tile, TILE_ROWS * BITS * blocks * 16));
    Words row_scales = Words(advance(scales, tile, TILE_ROWS * scale_words * 4));
    precise float sums[SUMS];
    for (uint i = 0; i < SUMS; i++)
        sums[i] = 0;
    uint scale_words_of[TILE_ROWS];
    for (uint r = 0; r < TILE_ROWS && GROUP_SHIFT >= 7; r++)
        scale_words_of[r] = row_scales.at[r * scale_words + (block * BLOCK >> GROUP_SHIFT) / 2];
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
            for (uint t = 0; t < TOKENS; t++) {
                if (first_token + t >= n_tokens)
                    break;
                const uvec2 row = advance(acts, first_token + t, act_row_bytes(n_cols, PLANES)),
                            info = Addresses(advance(row, 1, act_groups_at(blocks, PLANES))).at[group * blocks + block];
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
                    sums[r * TOKENS + t] = fma(scale, float(sum), sums[r * TOKENS + t]);
                }
            }
        }
    }
    for (uint r = 0; r < TILE_ROWS; r++) {
        float scale = 1;
        if (GROUP_SHIFT >= 7)
            scale = half_to_float(scale_words_of[r] >> 16 * ((block * BLOCK >> GROUP_SHIFT) & 1) & 0xffff);
        for (uint t = 0; t < TOKENS; t++) {
            precise const float product = GROUP_SHIFT < 7 ? sums[r * TOKENS + t] : scale * sums[r * TOKENS + t];
            products[r * TOKENS + t] = product;
        }
    }
}

/* ---- Results ---- */

/* A result before the norm's factor: number i of those of the tiles from first_tile on, in the lane i % LANES. */
void compute(uint first_tile, uint first_token, uint blocks, out float totals[TOTALS])
{
    const uint lane = gl_LocalInvocationIndex, team = lane / TEAM, member = lane % TEAM, tile = first_tile + team;
    precise float sums[TOTALS];
    for (uint i = 0; i < TOTALS; i++)
        sums[i] = 0;
    for (uint first = 0; first < blocks; first += PASSES * TEAM) {
        const uint passes = min(PASSES, (blocks - first + TEAM - 1) / TEAM);
        [[dont_unroll]] for (uint pass = 0; pass < passes; pass++) {
            const uint block = first + pass * TEAM + member;
            float products[SUMS];
            for (uint i = 0; i < SUMS; i++)
                products[i] = 0;
            if (tile < n_tiles && block < blocks)
                multiply(tile, first_token, block, blocks, products);
            for (uint i = 0; i < SUMS; i++)
                parts[(team * SUMS + i) * PARTS + pass * TEAM + member] = products[i];
        }
        barrier();
        for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++)
            [[dont_unroll]] for (uint j = 0; j < passes * TEAM; j += READ) {
                float read[READ];
                for (uint q = 0; q < READ; q++)
                    read[q] = parts[i * PARTS + j + q];
                for (uint q = 0; q < READ; q++)
                    sums[k] += read[q];
            }
        barrier();
    }
    for (uint k = 0; k < TOTALS; k++)
        totals[k] = sums[k];
}

/* Where results go, and what they are added to, before anything is computed: the loads are not waited for. */
void load_results(uint first_tile, uint first_token, out uvec2 to[TOTALS], out bool adds[TOTALS],
                  out float before[TOTALS], out float norm_weights[TOTALS])
{
    for (uint k = 0; k < TOTALS; k++) {
        const uint i = gl_LocalInvocationIndex + k * LANES, tile = first_tile + i / SUMS, r = i % SUMS / TOKENS,
                   token = first_token + i % TOKENS;
        adds[k] = false;
        to[k] = uvec2(0);
        before[k] = norm_weights[k] = 0;
        if (EPILOGUE == SWIGLU || i >= RESULTS || tile >= n_tiles || token >= n_tokens)
            continue;
        to[k] = address_of(tile, r, token, adds[k]);
        if (adds[k] && !is_null(to[k]))
            before[k] = Floats(to[k]).at[0];
        if (EPILOGUE == NORM)
            norm_weights[k] = Floats(outs[3]).at[tile * TILE_ROWS + r];
    }
}

/* ---- Epilogues ---- */

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

/* Code that a launch executes once comes from memory: it costs more than its execution. So loops over blocks and
 * matrices are not unrolled. */
void main()
{
    /* One but with SWIGLU; compilers do not know it. */
    const uint matrices = EPILOGUE == SWIGLU ? 1 + min(first_tiles[1], 1) : 1;
    const uint first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * TEAMS,
               first_token = gl_WorkGroupID.z * TOKENS, blocks = act_blocks(n_cols), lane = gl_LocalInvocationIndex,
               tokens = min(TOKENS, n_tokens - first_token);
    float totals[TOTALS];
    uvec2 to[TOTALS];
    bool adds[TOTALS];
    float before[TOTALS], norm_weights[TOTALS];
    load_results(first_tile, first_token, to, adds, before, norm_weights);
    for (uint part = lane; part < TOKENS * SQUARE_PARTS; part += LANES)
        add_squares(part, first_token, blocks);
    [[dont_unroll]] for (uint m = 0; m < matrices; m++) {
        compute(m * first_tiles[1] + first_tile, first_token, blocks, totals);
        for (uint i = lane, k = 0; i < RESULTS; i += LANES, k++) {
            const uint tile = first_tile + i / SUMS, t = i % TOKENS,
                       at = t * ROWS + i / SUMS * TILE_ROWS + i % SUMS / TOKENS;
            precise float result = totals[k];
            if (IS_NORMED != 0)
                result = result * factor_of(t);
            if (t >= tokens || tile >= n_tiles)
                continue;
            if (EPILOGUE != SWIGLU && !is_null(to[k])) {
                result = adds[k] ? before[k] + result : result;
                Floats(to[k]).at[0] = result;
            }
            if (EPILOGUE == NORM) {
                precise const float value = result * norm_weights[k];
                inputs[at] = result;
                values[at] = value;
            } else if (EPILOGUE == SWIGLU) {
                precise const float value = m == 0 ? silu(result) : values[at] * result;
                values[at] = value;
            }
        }
    }
    if (EPILOGUE == NONE)
        return;
    barrier();
    if (EPILOGUE == NORM)
        write_squares(first_token, tokens, first_tile * TILE_ROWS);
    quantize(advance(outs[2], first_token, act_row_bytes(n_rows[0], NEXT_PLANES)), tokens, ROWS, n_rows[0], NEXT_PLANES,
             first_tile * TILE_ROWS, ROWS);
}
