#version 450
/* Rows of weights times one row of activations, both integers (acts.glsl): what matmul.comp computes of a row, to the
 * bit, for the least latency. A team of lanes computes four rows of weights, with SwiGLU four rows of both matrices. A lane
 * takes a block of 128 columns at a time, row after row, and has the codes of the next four rows (fewer with codes of 4 or 8 bits) in flight: so one copy of
 * the code that multiplies is enough, which matters because it comes from memory (see `main` of matmul.comp). */
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 5) const uint WORKGROUP = 64;
layout(local_size_x_id = 5) in;
#include "common.glsl"

#define NONE 0 /* QN_VK_EPILOGUE_* */
#define NORM 1
#define SWIGLU 2
#define HEADS 3
#define TOKENS 1

layout(constant_id = 1) const uint ROTATED = 0;     /* values of a Hadamard transform before an epilogue quantises; 0: none */
layout(constant_id = 4) const uint TEAM = 32;       /* lanes: a multiple of READ */
layout(constant_id = 7) const uint EPILOGUE = 0;    /* NONE, NORM, SWIGLU, HEADS */
layout(constant_id = 8) const uint NEXT_PLANES = 1; /* of the activations that it computes */
layout(constant_id = 9) const uint PASSES = 1;      /* blocks of a lane whose products are added together */
#include "matmul.glsl"

const uint TEAMS = LANES / TEAM, MATRICES = EPILOGUE == SWIGLU ? 2 : 1, LANE_ROWS = MATRICES * TILE_ROWS,
           RESULTS = TEAMS * LANE_ROWS, ROWS = TEAMS * TILE_ROWS;
const uint MAX_VALUES = EPILOGUE == NONE    ? 4
                        : EPILOGUE == HEADS ? 512 /* QN_VK_MAX_HEAD */
                        : ROTATED > ROWS    ? ROTATED
                                            : ROWS;
const uint PARTS = PASSES * TEAM + 1; /* of a result; and one, so that lanes read different banks */

shared float parts[RESULTS * PARTS];
shared float inputs[ROWS]; /* of the norm; the results of the second matrix */

#include "arrive.glsl"
#include "gates.glsl"
#include "pages.glsl"
#define MAX_HEAD MAX_VALUES
#include "rotation.glsl"
#include "rope.glsl"
#define values head
#include "quantize.glsl"

/* ---- Products ---- */

uvec2 codes_at, scales_at; /* of the team's rows */
uint blocks, scale_words;  /* of a row */

/* A row of the team, from the first one of the first matrix. */
uint row_of(uint r)
{
    return r % TILE_ROWS + r / TILE_ROWS * first_tiles[1] * TILE_ROWS;
}

/* The codes of the next rows, and their scales: the first of them is computed next. */
const uint AHEAD = BITS > 2 ? 8 / BITS : 4;
const uint ACTS = 8 * PLANES; /* vectors of a block of activations */
uvec4 codes_ahead[AHEAD * BITS];
uvec2 scales_ahead[AHEAD];

/* Begins to load row r of a block as the i-th of the next rows. */
void load(uint i, uint r, uint block)
{
    const uint row = row_of(r), at = row * scale_words + (block * BLOCK >> GROUP_SHIFT) / 2;
    for (uint v = 0; v < BITS; v++)
        codes_ahead[i * BITS + v] = UVec4s(codes_at).at[(row * BITS + v) * blocks + block];
    scales_ahead[i] = uvec2(Words(scales_at).at[at], GROUP_SHIFT < 6 ? Words(scales_at).at[at + 1] : 0);
}

void advance_rows()
{
    for (uint i = 0; i < (AHEAD - 1) * BITS; i++)
        codes_ahead[i] = codes_ahead[i + BITS];
    for (uint i = 0; i + 1 < AHEAD; i++)
        scales_ahead[i] = scales_ahead[i + 1];
}

/* Codes of one bit or two are used where they are in a byte, so they count 2^(BITS * (i % STEPS)) times; sums of each kind
 * are then added. Only one shift in STEPS is needed. */
const uint STEPS = BITS < 4 ? 4 / BITS : 1;
const uint MASK = BITS == 1 ? 0x01010101 : BITS == 2 ? 0x03030303 : 0x0f0f0f0f;

int scaled_codes(uint word, uint i)
{
    if (BITS == 8)
        return int(word);
    const uint of_word = i % PER_WORD;
    return int((of_word < STEPS ? word : word >> 4) & MASK << of_word % STEPS * BITS);
}

/* The sum of the products of 32 columns, 4 times for codes of one bit or two. */
int multiply(uint group, ivec4 first, ivec4 second)
{
    int sums[4] = { 0, 0, 0, 0 };
    for (uint i = 0; i < 8; i++) {
        const uint word = group * BITS + i / PER_WORD;
        sums[i % STEPS] += dot_of(i < 4 ? first[i] : second[i - 4], scaled_codes(codes_ahead[word / 4][word % 4], i));
    }
    if (STEPS == 4)
        return 8 * sums[0] + 4 * sums[1] + 2 * sums[2] + sums[3];
    return STEPS == 2 ? 4 * sums[0] + sums[1] : sums[0];
}

/* The sum of the products of a block's columns of the first of the next rows. */
float multiply_row(ivec4 x[ACTS], uvec2 groups[4], uint block)
{
    precise float sum = 0;
    for (uint g = 0; g < 4; g++) {
        int products = multiply(g, x[2 * g], x[2 * g + 1]);
        if (PLANES == 2)
            products = 256 * products + multiply(g, x[8 * (PLANES - 1) + 2 * g], x[8 * (PLANES - 1) + 2 * g + 1]);
        if (STEPS > 1)
            products >>= 2;
        products -= ZERO_POINT * int(groups[g].y);
        const uint at = block * BLOCK + g * GROUP >> GROUP_SHIFT, first = (block * BLOCK >> GROUP_SHIFT) / 2;
        precise float scale = uintBitsToFloat(groups[g].x);
        if (GROUP_SHIFT < 7)
            scale = scale * half_to_float(scales_ahead[0][at / 2 - first] >> 16 * (at & 1) & 0xffff);
        sum = fma(scale, float(products), sum);
    }
    if (GROUP_SHIFT >= 7)
        sum = half_to_float(scales_ahead[0].x >> 16 * ((block * BLOCK >> GROUP_SHIFT) & 1) & 0xffff) * sum;
    return sum;
}

/* Writes the products of the lane's rows with a block. */
void multiply_block(uint block, uint part)
{
    ivec4 x[ACTS];
    uvec2 groups[4];
    for (uint i = 0; i < AHEAD; i++)
        load(i, i, block);
    for (uint i = 0; i < ACTS; i++)
        x[i] = Codes(acts).at[i * blocks + block];
    for (uint i = 0; i < 4; i++)
        groups[i] = Addresses(advance(acts, 1, act_groups_at(blocks, PLANES))).at[i * blocks + block];
    const uint rows = LANE_ROWS * n_tokens; /* one token: drivers unroll loops whose ends they know */
    [[dont_unroll]] for (uint r = 0; r < rows; r++) {
        parts[part + r * PARTS] = multiply_row(x, groups, block);
        advance_rows();
        if (r + AHEAD < rows)
            load(AHEAD - 1, r + AHEAD, block);
    }
}

/* Returns the lane's result before the norm's factor: number r of those of its team is in the lanes r, LANE_ROWS + r... */
float compute(bool is_active, uint team, uint member)
{
    const uint lane = gl_LocalInvocationIndex;
    precise float sum = 0;
    for (uint first = 0; first < blocks; first += PASSES * TEAM) {
        const uint passes = min(PASSES, (blocks - first + TEAM - 1) / TEAM);
        [[dont_unroll]] for (uint pass = 0; pass < passes; pass++) {
            const uint block = first + pass * TEAM + member, part = team * LANE_ROWS * PARTS + pass * TEAM + member;
            if (is_active && block < blocks)
                multiply_block(block, part);
            else
                [[dont_unroll]] for (uint r = 0; r < LANE_ROWS * n_tokens; r++)
                    parts[part + r * PARTS] = 0;
        }
        barrier();
        [[dont_unroll]] for (uint j = 0; j < passes * TEAM && lane < RESULTS; j += READ) {
            float read[READ];
            for (uint q = 0; q < READ; q++)
                read[q] = parts[lane * PARTS + j + q];
            for (uint q = 0; q < READ; q++)
                sum += read[q];
        }
        barrier();
    }
    return sum;
}

/* ---- Results ---- */

/* Writes sums of squares of `inputs`. */
void write_squares(uint first_row)
{
    const uint next_blocks = act_blocks(n_rows[0]), group = GROUP * gl_LocalInvocationIndex;
    if (group >= ROWS)
        return;
    precise float sum = 0;
    [[dont_unroll]] for (uint i = group; i < group + GROUP * n_tokens; i++)
        sum += inputs[i] * inputs[i];
    Floats(advance(outs[2], 1, act_squares_at(next_blocks, NEXT_PLANES))).at[group_at(first_row + group, next_blocks)] =
        sum;
}

/* ---- The last workgroup ---- */

/* qn_vk_heads: of queries, keys and values, which are the matrices; counters of rows / ROWS. */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Heads {
    Rope of[3];
    uvec2 arrived;
};

/* The workgroup that finishes a head computes its rope. Rows of a head after its first `dim` are gates. */
void finish_head(uint first_tile)
{
    const uint o = first_tile >= first_tiles[2] ? 2 : first_tile >= first_tiles[1] ? 1 : 0,
               first_row = (first_tile - first_tiles[o]) * TILE_ROWS;
    Heads heads = Heads(outs[3]);
    const uint stride = heads.of[o].stride, dim = heads.of[o].dim, h = first_row / stride;
    if (first_row % stride < dim &&
        is_last_of(heads.arrived, (first_tiles[o] * TILE_ROWS + h * stride) / ROWS, dim / ROWS))
        rope_head(heads.of[o], h, n_rows[o] / stride, 0);
}

/* qn_vk_rotated: of activations; counters of blocks of ROTATED. */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Rotated {
    uvec2 arrived;
    uvec2 y;     /* a row of floats, before the transform */
    uvec2 signs; /* 0: none */
    float factor;
};

/* The workgroup that finishes a block transforms and quantises it: what prepare.comp computes. */
void finish_block(uint first_row)
{
    const uint lane = gl_LocalInvocationIndex, first = first_row / ROTATED * ROTATED;
    Rotated r = Rotated(outs[1]);
    if (lane < ROWS)
        Results(r.y).at[first_row + lane] = values[lane];
    if (!is_last_of(r.arrived, first_row / ROTATED, ROTATED / ROWS))
        return;
    for (uint i = lane; i < ROTATED; i += LANES)
        values[i] = Results(r.y).at[first + i];
    barrier();
    if (!is_null(r.signs))
        multiply_by_signs(advance(r.signs, first, 4), ROTATED, ROTATED);
    transform_heads(ROTATED, ROTATED, r.factor);
    quantize(outs[2], 1, 0, n_rows[0], NEXT_PLANES, first, ROTATED);
}

void main()
{
    const uint lane = gl_LocalInvocationIndex, team = lane / TEAM,
               first_tile = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * TEAMS,
               tiles = EPILOGUE == SWIGLU ? first_tiles[1] : n_tiles, /* of a team, and of the lane's result: */
               r = lane % LANE_ROWS, tile = first_tile + lane / LANE_ROWS, at = lane / LANE_ROWS * TILE_ROWS + r % TILE_ROWS;
    const bool has_result = lane < RESULTS && tile < tiles;
    uvec2 to = uvec2(0);
    bool adds = false;
    float before = 0, norm_weight = 0;
    blocks = act_blocks(n_cols);
    scale_words = ((blocks * BLOCK >> GROUP_SHIFT) + 1) / 2;
    codes_at = advance(codes, first_tile + team, TILE_ROWS * BITS * blocks * 16);
    scales_at = advance(scales, first_tile + team, TILE_ROWS * scale_words * 4);
    /* Loads that are not waited for. */
    if (EPILOGUE != SWIGLU && has_result) {
        to = address_of(tile, r, 0, adds);
        if (adds && !is_null(to))
            before = Floats(to).at[0];
        if (EPILOGUE == NORM)
            norm_weight = Floats(outs[3]).at[tile * TILE_ROWS + r];
    }
    for (uint part = lane; part < SQUARE_PARTS; part += LANES)
        add_squares(part, 0, blocks);
    precise float result = compute(first_tile + team < tiles, team, lane % TEAM);
    if (IS_NORMED != 0)
        result = result * factor_of(0);
    if (has_result && !is_null(to)) {
        result = adds ? before + result : result;
        Results(to).at[0] = result;
    }
    if (EPILOGUE == HEADS)
        finish_head(first_tile);
    if (EPILOGUE == NONE || EPILOGUE == HEADS)
        return;
    if (has_result && (EPILOGUE == NORM || r >= TILE_ROWS))
        inputs[at] = result;
    if (EPILOGUE == SWIGLU)
        barrier();
    if (has_result && r < TILE_ROWS) {
        precise const float value = EPILOGUE == NORM ? result * norm_weight : silu(result) * inputs[at];
        values[at] = value;
    }
    barrier();
    if (EPILOGUE == NORM)
        write_squares(first_tile * TILE_ROWS);
    if (ROTATED != 0)
        finish_block(first_tile * TILE_ROWS);
    else
        quantize(outs[2], 1, ROWS, n_rows[0], NEXT_PLANES, first_tile * TILE_ROWS, ROWS);
}
