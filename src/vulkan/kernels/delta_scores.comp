#version 450
/* What the delta rule of sequences with more than one row (delta.comp) needs that does not depend on the state: the
 * products of a block's keys and queries with the keys of their chunk, times e^(gc_i - gc_j), for each value head. A
 * workgroup has the rows of a block of ROWS positions and a key head, whose products all its value heads share. */
#extension GL_GOOGLE_include_directive : require
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 2) const uint WORKGROUP = 128; /* 8 ROWS */
layout(local_size_x_id = 2) in;
#include "common.glsl"
#include "pages.glsl"
#include "recurrent.glsl"
#include "delta_products.glsl"

layout(push_constant) uniform Args {
    uvec2 qkv, decays, betas, y; /* [rows][width], [rows][v_heads], [rows][v_heads], [rows][v_heads * head_v] */
    uvec2 row_scores;            /* [rows][v_heads][k, q][CHUNK]: of the rows of the chunk up to the row's own */
    uvec2 sequences;
    uvec2 granules;
    uint shift;
    uint state_at, keys_at, values_at, scales_at, decays_at; /* in a state; in an open chunk */
    uint k_heads, v_heads, head_k, head_v;
    float scale;
};

shared vec4 decay_factors[CHUNK * SCORE_ROW]; /* [CHUNK][ROWS]: e^(gc_i - gc_j) */

Sequence s;
uint k_head, width;
uint n_open, n_stored; /* rows of the chunk before the block; those whose keys are in the open chunk */
int row_of_0;          /* the row of the step that the chunk's first row would have */
Place keys;

uvec2 row_key(uint j, bool is_key)
{
    const uvec2 row = advance(qkv, uint(row_of_0 + int(j)), 4 * width);
    return advance(row, ((is_key ? k_heads : 0) + k_head) * head_k, 4);
}

uvec2 row_address(uint r, bool is_key)
{
    return row_key(n_open + r, is_key);
}

bool is_half(uint item)
{
    return item < n_stored;
}

void load_item(uint item, uint at, out uvec4 a, out uvec4 b)
{
    b = uvec4(0);
    if (item < n_stored) {
        a = UVec4s(address_at(keys, 2 * (item * head_k + at))).at[0];
    } else {
        UVec4s from = UVec4s(advance(row_key(item, true), at, 4));
        a = from.at[0];
        b = from.at[1];
    }
}

/* Log decays of the chunk's rows up to the block's last. */
void load_decays(uint v_head, uint n)
{
    for (uint j = lane(); j < n_open + n; j += LANES)
        log_decays[j / 4][j % 4] =
            j < n_stored ? Floats(item_word(granules, shift, s.open, decays_at, v_head * CHUNK + j)).at[0]
                         : Floats(decays).at[uint(row_of_0 + int(j)) * v_heads + v_head];
}

/* A lane has a row j of the chunk, and 8 rows of the block. */
void compute_factors(uint n)
{
    const uint j = lane() % CHUNK, first = lane() / CHUNK * 8, before = n_open + min(first, n);
    precise float decay = 0;
    [[dont_unroll]] for (uint t = 0; t < before; t += 4) {
        const vec4 four = log_decays[t / 4];
        [[unroll]] for (uint c = 0; c < 4; c++)
            decay += t + c > j && t + c < before ? four[c] : 0.0;
    }
    /* Not unrolled: spirv-opt would make fma() of the copies' multiplications and additions. */
    [[dont_unroll]] for (uint r = 0; r < 8; r++) {
        const uint row = n_open + first + r;
        if (first + r < n && row > j)
            decay += log_decays[row / 4][row % 4];
        decay_factors[j * SCORE_ROW + (first + r) / 4][r % 4] = exp_of(decay);
    }
}

void write_scores(uint v_head, uint n)
{
    vec4 factors_of[4]; /* of 4 rows, for each item */
    [[unroll]] for (uint v = 0; v < 4; v++)
        factors_of[v] = decay_factors[(4 * quad + v) * SCORE_ROW + first_row / 4];
    [[unroll]] for (uint r = 0; r < 4; r++) {
        if (first_row + r >= n)
            break;
        const uint row = uint(row_of_0 + int(n_open + first_row + r));
        precise const vec4 score =
            vec4(factors_of[0][r], factors_of[1][r], factors_of[2][r], factors_of[3][r]) * sums[r];
        Vec4s(advance(advance(row_scores, row * v_heads + v_head, 8 * CHUNK), part * CHUNK + 4 * quad, 4)).at[0] = score;
    }
}

void main()
{
    s = Sequences(sequences).at[gl_WorkGroupID.z];
    const uint block = s.position / ROWS + gl_WorkGroupID.y, end = s.position + (s.end - s.begin),
               first = max(block * ROWS, s.position), n = min(block * ROWS + ROWS, end) - first;
    if (s.end - s.begin <= 1 || block * ROWS >= end)
        return;
    const uint chunk = first / CHUNK * CHUNK;
    k_head = gl_WorkGroupID.x;
    width = 2 * k_heads * head_k + v_heads * head_v;
    n_open = first - chunk;
    n_stored = s.position > chunk ? s.position - chunk : 0;
    row_of_0 = int(s.begin) + int(chunk) - int(s.position);
    keys = place_of(granules, shift, advance(advance(s.open, 1, keys_at), k_head * CHUNK * head_k / 2, 4),
                    CHUNK * head_k * 2);
    find_products();
    multiply(n_open + n, n, head_k);
    [[dont_unroll]] for (uint v_head = k_head; v_head < v_heads; v_head += k_heads) {
        load_decays(v_head, n);
        barrier();
        compute_factors(n);
        barrier();
        write_scores(v_head, n);
    }
}
