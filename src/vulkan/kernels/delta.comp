#version 450
/* The gated delta rule with an open chunk (gpu/recurrent_layout.h): a workgroup computes up to 64 values of a value head
 * for all rows of a sequence with more than one, chunk by chunk, in blocks of ROWS rows. For row i, with gc the sum of
 * log decays since the chunk's start, keys and v' as the open chunk has them, and S the upper fp16 plane of the state:
 *
 *     a    = e^gc_i S k_i + sum over j < i of e^(gc_i - gc_j) (k_i.k_j) v'_j;     v'_i = beta_i (v_i - a)
 *     o_i  = scale (e^gc_i S q_i + sum over j <= i of e^(gc_i - gc_j) (q_i.k_j) v'_j)
 *
 * A row after a full chunk folds it into the state: S = e^gc_63 S + sum of e^(gc_63 - gc_j) v'_j k_j^T.
 *
 * A sum over keys, or over j, is in ascending order, by one lane, from what memory has: a row's bits depend on its
 * position alone, and not on how rows are divided among steps and blocks; delta_row.comp has single rows. Yang et al.,
 * Parallelizing Linear Transformers with the Delta Rule (2024), has the form by chunks. */
#extension GL_GOOGLE_include_directive : require
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 2) const uint WORKGROUP = 128; /* 8 ROWS */
layout(local_size_x_id = 2) in;
#include "common.glsl"
#include "pages.glsl"
#include "recurrent.glsl"
#include "delta.glsl"

layout(constant_id = 0) const uint ROWS = 16; /* 16 or 32 */
/* Products of the rows of a block, k or q, with 64 items: keys of the chunk, or values of the state. A lane has 4 rows,
 * of k or of q, and 4 items. */
#define QUADS 16        /* of items */
#define TILE_KEYS 16    /* of all items and rows that are in shared memory at a time; heads have a multiple of it */
#define TILE_ROW 17     /* fours of items, and one, so that lanes write different banks */
const uint ROW_QUADS = ROWS / 4, SCORE_ROW = ROW_QUADS + (ROWS > 16 ? 1 : 0);
const uint UNITS = 64 * TILE_KEYS / 8, LANE_UNITS = UNITS / LANES + (UNITS % LANES == 0 ? 0 : 1); /* 8 keys of an item */
const uint FOLD_QUADS = ROWS / 2; /* fours of keys that are folded at a time */

layout(push_constant) uniform Args {
    uvec2 qkv, decays, betas, y; /* [rows][width], [rows][v_heads], [rows][v_heads], [rows][v_heads * head_v] */
    uvec2 sequences;
    uvec2 granules;
    uint shift;
    uint state_at, keys_at, values_at, scales_at, decays_at; /* in a state; in an open chunk */
    uint k_heads, v_heads, head_k, head_v;
    float scale;
};

/* Other lanes of the workgroup read what a lane has written. */
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Plane { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer PlaneWords { uvec2 at[]; };

shared vec4 tile[TILE_KEYS * TILE_ROW];                 /* [keys][items] */
shared vec4 row_tile[TILE_KEYS * (2 * ROW_QUADS + 1)];  /* [keys][k rows, q rows] */
shared vec4 scores[2 * CHUNK * SCORE_ROW];              /* [k, q][CHUNK][ROWS], with their decays; in a fold, keys */
shared vec4 corrected[CHUNK * VALUES / 4];              /* v', as multiples of scales of fp16 values */
shared float value_scales[CHUNK];
shared float log_decays[CHUNK];
shared float factors[CHUNK];                            /* of rows of a block: e^gc_i; in a fold, e^(gc_63 - gc_j) */
shared vec4 pending[2 * QUADS];                         /* v' of a row, before it is rounded; and of the row before */
shared vec4 largest[2 * QUADS / 4];

Sequence s;
uint v_head, k_head, first_value, n_values; /* values of the head that the workgroup has */
uint width;
uint n_open;   /* rows of the chunk so far */
uint n_stored; /* of them, rows of earlier steps: their keys are in the open chunk */
int row_of_0;  /* the row of the step that the chunk's first row would have */
Place state;   /* hi plane of the workgroup's values; read unless it is of zeros */
bool has_state, is_folded; /* into s.to, in this step */
Place keys, values, scales;
uint part, first_row, quad; /* of the lane's products: 0: k, 1: q; its rows of a block; its items */
vec4 sums[4];               /* [rows][items] */

uint lane()
{
    return gl_LocalInvocationIndex;
}

/* The address of the row `j` of the chunk, which is one of the step, of its key. */
uvec2 row_key(uint j, bool is_key)
{
    const uvec2 row = advance(qkv, uint(row_of_0 + int(j)), 4 * width);
    return advance(row, ((is_key ? k_heads : 0) + k_head) * head_k, 4);
}

/* The place of plane hi, or lo, of the workgroup's values in a state. */
Place plane_of(uvec2 item, uint plane)
{
    const uint word = ((plane * v_heads + v_head) * head_v + first_value) * head_k / 2;
    return place_of(granules, shift, advance(advance(item, 1, state_at), word, 4), n_values * head_k * 2);
}

void find_places()
{
    const uint groups = (head_v + VALUES - 1) / VALUES, word = k_head * CHUNK * head_k / 2,
               value_word = (v_head * CHUNK * head_v + first_value) / 2;
    keys = place_of(granules, shift, advance(advance(s.open, 1, keys_at), word, 4), CHUNK * head_k * 2);
    values = place_of(granules, shift, advance(advance(s.open, 1, values_at), value_word, 4),
                      ((CHUNK - 1) * head_v + n_values) * 2);
    scales = place_of(granules, shift,
                      advance(advance(s.open, 1, scales_at), (v_head * groups + first_value / VALUES) * CHUNK, 4),
                      CHUNK * 4);
    if (has_state)
        state = plane_of(s.from, 0);
}

vec4 floats_of(uvec2 halves)
{
    return vec4(halves_to_floats(halves.x), halves_to_floats(halves.y));
}

/* ---- Rows that the open chunk has ---- */

void load_open_rows()
{
    const uint octets = n_values / 8;
    if (lane() < n_open) {
        log_decays[lane()] =
            Floats(item_word(granules, shift, s.open, decays_at, v_head * CHUNK + lane())).at[0];
        value_scales[lane()] = Floats(address_at(scales, 4 * lane())).at[0];
    }
    barrier();
    for (uint i = lane(); i < n_open * octets; i += LANES) {
        const uint j = i / octets, octet = i % octets;
        const uvec4 words = UVec4s(address_at(values, 2 * (j * head_v + 8 * octet))).at[0];
        precise const vec4 a = floats_of(words.xy) * value_scales[j], b = floats_of(words.zw) * value_scales[j];
        corrected[j * QUADS + 2 * octet] = a;
        corrected[j * QUADS + 2 * octet + 1] = b;
    }
    barrier();
}

void store_open_rows()
{
    const uint octets = n_values / 8;
    barrier();
    if (lane() >= n_stored && lane() < n_open)
        Floats(address_at(scales, 4 * lane())).at[0] = value_scales[lane()];
    for (uint i = n_stored * octets + lane(); i < n_open * octets; i += LANES) {
        const uint j = i / octets, octet = i % octets, at = j * QUADS + 2 * octet;
        const float inverse = uintBitsToFloat((254u << 23) - floatBitsToUint(value_scales[j]));
        precise const vec4 a = corrected[at] * inverse, b = corrected[at + 1] * inverse;
        UVec4s(address_at(values, 2 * (j * head_v + 8 * octet))).at[0] =
            uvec4(floats_to_halves(a.xy), floats_to_halves(a.zw), floats_to_halves(b.xy), floats_to_halves(b.zw));
    }
}

/* ---- The fold of a full chunk ---- */

/* Writes the keys [first, first + 4 FOLD_QUADS) of all rows to `scores`, as [rows][FOLD_QUADS]. */
void load_fold_keys(uint first)
{
    for (uint i = lane(); i < CHUNK * FOLD_QUADS; i += LANES) {
        const uint j = i / FOLD_QUADS, at = min(first + i % FOLD_QUADS * 4, head_k - 4);
        scores[i] = j < n_stored ? floats_of(Addresses(address_at(keys, 2 * (j * head_k + at))).at[0])
                                 : Vec4s(advance(row_key(j, true), at, 4)).at[0];
    }
}

/* Of 4 values and 4 keys. */
void fold_square(uint value, uint at, uint fold_quad, float whole, Place hi_from, Place lo_from, Place hi_to,
                 Place lo_to)
{
    precise vec4 a[4];
    [[unroll]] for (uint v = 0; v < 4; v++) {
        a[v] = vec4(0);
        if (has_state) {
            const uint bytes = 2 * ((value + v) * head_k + at);
            a[v] = floats_of(PlaneWords(address_at(hi_from, bytes)).at[0]) +
                   floats_of(PlaneWords(address_at(lo_from, bytes)).at[0]) / LO_SCALE;
            a[v] = whole * a[v];
        }
    }
    for (uint j = 0; j < CHUNK; j++) {
        const vec4 key = scores[j * FOLD_QUADS + fold_quad], gated = corrected[j * QUADS + value / 4];
        [[unroll]] for (uint v = 0; v < 4; v++)
            a[v] = fma(vec4(gated[v]), key, a[v]);
    }
    [[unroll]] for (uint v = 0; v < 4; v++) {
        const uint bytes = 2 * ((value + v) * head_k + at);
        uvec2 hi, lo;
        split(a[v], hi, lo);
        PlaneWords(address_at(hi_to, bytes)).at[0] = hi;
        PlaneWords(address_at(lo_to, bytes)).at[0] = lo;
    }
}

void fold()
{
    precise float decay = 0, all = 0;
    for (uint t = 0; t < CHUNK; t++) {
        decay += t > lane() ? log_decays[t] : 0.0;
        all += log_decays[t];
    }
    if (lane() < CHUNK)
        factors[lane()] = exp_of(decay);
    const float whole = exp_of(all);
    const Place hi_to = plane_of(s.to, 0), lo_to = plane_of(s.to, 1);
    Place lo_from = lo_to;
    if (has_state)
        lo_from = plane_of(is_folded ? s.to : s.from, 1);
    barrier();
    for (uint i = lane(); i < CHUNK * QUADS; i += LANES) {
        precise const vec4 gated = factors[i / QUADS] * corrected[i];
        corrected[i] = gated;
    }
    for (uint first = 0; first < head_k; first += 4 * FOLD_QUADS) {
        barrier();
        load_fold_keys(first);
        barrier();
        for (uint i = lane(); i < n_values / 4 * FOLD_QUADS; i += LANES) {
            const uint at = first + i % FOLD_QUADS * 4;
            if (at < head_k)
                fold_square(i / FOLD_QUADS * 4, at, i % FOLD_QUADS, whole, state, lo_from, hi_to, lo_to);
        }
    }
    state = hi_to;
    is_folded = true;
    has_state = true;
    memoryBarrierBuffer();
    barrier();
}

/* ---- Products of a block's rows with items ---- */

/* What a lane has loaded of the next tile, as memory has it: fp16 words, or the bits of floats; and 4 keys of a row. */
uvec4 loaded_a[LANE_UNITS], loaded_b[LANE_UNITS];
vec4 loaded_row;

uint unit_item(uint u)
{
    return (u * LANES + lane()) % 64;
}

uint unit_key(uint u)
{
    return (u * LANES + lane()) / 64 * 8;
}

/* A lane has 4 keys of one of the 2 ROWS rows; a tile has as many fours of them as there are lanes. */
void load_tile(bool is_state, uint n_items, uint n, uint tile_at)
{
    const uint r = lane() % ROWS, at = tile_at + lane() / (2 * ROWS) * 4;
    const bool is_key = lane() % (2 * ROWS) < ROWS;
    [[unroll]] for (uint u = 0; u < LANE_UNITS; u++) {
        const uint item = min(unit_item(u), n_items - 1), unit_at = tile_at + unit_key(u);
        if (unit_key(u) >= TILE_KEYS)
            continue;
        if (is_state) {
            loaded_a[u] = Plane(address_at(state, 2 * (item * head_k + unit_at))).at[0];
        } else if (item < n_stored) {
            loaded_a[u] = UVec4s(address_at(keys, 2 * (item * head_k + unit_at))).at[0];
        } else {
            UVec4s from = UVec4s(advance(row_key(item, true), unit_at, 4));
            loaded_a[u] = from.at[0];
            loaded_b[u] = from.at[1];
        }
    }
    loaded_row = Vec4s(advance(row_key(n_open + min(r, n - 1), is_key), at, 4)).at[0];
}

void store_tile(bool is_state)
{
    [[unroll]] for (uint u = 0; u < LANE_UNITS; u++) {
        const uint item = unit_item(u);
        const bool is_half = is_state || item < n_stored;
        const vec4 a = is_half ? floats_of(loaded_a[u].xy) : uintBitsToFloat(loaded_a[u]),
                   b = is_half ? floats_of(loaded_a[u].zw) : uintBitsToFloat(loaded_b[u]);
        [[unroll]] for (uint w = 0; w < 4 && unit_key(u) < TILE_KEYS; w++) {
            tile[(unit_key(u) + w) * TILE_ROW + item / 4][item % 4] = a[w];
            tile[(unit_key(u) + 4 + w) * TILE_ROW + item / 4][item % 4] = b[w];
        }
    }
    const uint row = lane() % (2 * ROWS), at = lane() / (2 * ROWS) * 4;
    [[unroll]] for (uint w = 0; w < 4; w++)
        row_tile[(at + w) * (2 * ROW_QUADS + 1) + row / 4][row % 4] = loaded_row[w];
}

void add_products(vec4 rows, vec4 items)
{
    [[unroll]] for (uint r = 0; r < 4; r++) {
        precise const vec4 sum = fma(vec4(rows[r]), items, sums[r]);
        sums[r] = sum;
    }
}

/* sums = products of the lane's rows and items. The next tile is on its way while one is multiplied. */
void multiply(bool is_state, uint n_items, uint n)
{
    const bool is_idle = first_row >= n || 4 * quad >= n_items;
    [[unroll]] for (uint r = 0; r < 4; r++)
        sums[r] = vec4(0);
    load_tile(is_state, n_items, n, 0);
    for (uint tile_at = 0; tile_at < head_k; tile_at += TILE_KEYS) {
        barrier();
        store_tile(is_state);
        barrier();
        if (tile_at + TILE_KEYS < head_k)
            load_tile(is_state, n_items, n, tile_at + TILE_KEYS);
        if (!is_idle)
            [[unroll]] for (uint key = 0; key < TILE_KEYS; key++)
                add_products(row_tile[key * (2 * ROW_QUADS + 1) + part * ROW_QUADS + first_row / 4],
                             tile[key * TILE_ROW + quad]);
    }
}

/* ---- A block of rows: rows [n_open, n_open + n) of the chunk ---- */

/* The index of the scores of item j with the lane's rows. */
uint score_at(uint j)
{
    return (part * CHUNK + j) * SCORE_ROW + first_row / 4;
}

/* Scores with all rows up to each row's own; scores with later rows are not used. */
void compute_scores(uint n)
{
    const uint j = lane() % CHUNK, first = lane() / CHUNK * 8;
    precise float decay = 0;
    for (uint t = 1; t <= n_open; t++)
        decay += t > j ? log_decays[t] : 0.0;
    for (uint r = 0; r < first + 8; r++) {
        if (r > 0 && r < n && n_open + r > j)
            decay += log_decays[n_open + r];
        if (r >= first) {
            const float factor = exp_of(decay);
            scores[j * SCORE_ROW + r / 4][r % 4] = factor;
            scores[(CHUNK + j) * SCORE_ROW + r / 4][r % 4] = factor;
        }
    }
    if (lane() < n) {
        precise float since = 0;
        for (uint t = 0; t <= n_open + lane(); t++)
            since += log_decays[t];
        factors[lane()] = exp_of(since);
    }
    multiply(false, n_open + n, n);
    [[unroll]] for (uint v = 0; v < 4; v++) {
        const uint at = score_at(4 * quad + v);
        precise const vec4 score = scores[at] * vec4(sums[0][v], sums[1][v], sums[2][v], sums[3][v]);
        scores[at] = score;
    }
}

vec4 row_values[4]; /* v of the lane's rows of k; and their betas */
float row_betas[4];

void load_row_values(uint n)
{
    const uint at = 2 * k_heads * head_k + v_head * head_v + first_value + min(4 * quad, n_values - 4);
    [[unroll]] for (uint r = 0; r < 4; r++) {
        const uint row = uint(row_of_0 + int(n_open + min(first_row + r, n - 1)));
        row_values[r] = Vec4s(advance(advance(qkv, row, 4 * width), at, 4)).at[0];
        row_betas[r] = Floats(betas).at[row * v_heads + v_head];
    }
}

/* v' of row i of the block, before it is rounded, by the lanes that have its sums. */
void compute_pending(uint i)
{
    const uint half_ = i % 2;
    precise vec4 x = vec4(0);
    vec4 sum = sums[0], v = row_values[0];
    float beta = row_betas[0], most = 0;
    [[unroll]] for (uint r = 1; r < 4; r++) {
        sum = i % 4 == r ? sums[r] : sum;
        v = i % 4 == r ? row_values[r] : v;
        beta = i % 4 == r ? row_betas[r] : beta;
    }
    if (4 * quad < n_values) {
        x = beta * (v - sum);
        most = max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w)));
    }
    pending[half_ * QUADS + quad] = x;
    largest[half_ * QUADS / 4 + quad / 4][quad % 4] = most;
}

/* The values of the fp16 nearest to x, which is less than 65504, without the branches of their conversion. */
vec4 rounded_to_halves(vec4 x)
{
    const uvec4 bits = floatBitsToUint(x), magnitude = bits & 0x7fffffff,
                normal = magnitude + 0xfff + (magnitude >> 13 & 1) & ~0x1fff;
    precise const vec4 denormal = (uintBitsToFloat(magnitude) + 0.5) - 0.5; /* multiples of 2^-24 */
    return uintBitsToFloat(bits & 0x80000000 |
                           mix(normal, floatBitsToUint(denormal), lessThan(magnitude, uvec4(0x38800000))));
}

/* Adds row i's v', rounded, to the sums of later rows. */
void add_row(uint i)
{
    const uint half_ = i % 2, next = i + 1 - part; /* the first row that has it: of k a later one; of q row i itself */
    const bool is_own = part == 0 && i / 4 * 4 == first_row;
    if (first_row + 4 <= next && !is_own)
        return;
    vec4 most = largest[half_ * QUADS / 4];
    [[unroll]] for (uint m = 1; m < QUADS / 4; m++)
        most = max(most, largest[half_ * QUADS / 4 + m]);
    const uint exponent = floatBitsToUint(max(max(most.x, most.y), max(most.z, most.w))) >> 23,
               shifted = exponent < 15 ? 1 : exponent - 14;
    const float step_ = uintBitsToFloat(shifted << 23), inverse = uintBitsToFloat(254 - shifted << 23);
    precise const vec4 scaled = pending[half_ * QUADS + quad] * inverse;
    precise const vec4 rounded = rounded_to_halves(scaled) * step_;
    const vec4 score = scores[score_at(n_open + i)];
    [[unroll]] for (uint r = 0; r < 4; r++)
        if (first_row + r >= next) {
            precise const vec4 sum = fma(vec4(score[r]), rounded, sums[r]);
            sums[r] = sum;
        }
    if (is_own)
        corrected[(n_open + i) * QUADS + quad] = rounded;
    if (is_own && quad == 0)
        value_scales[n_open + i] = step_;
}

void compute_rows(uint n)
{
    if (part == 0)
        load_row_values(n);
    if (has_state)
        multiply(true, n_values, n);
    [[unroll]] for (uint r = 0; r < 4; r++) {
        precise const vec4 product = has_state ? factors[first_row + r] * sums[r] : vec4(0);
        sums[r] = product;
    }
    barrier();
    for (uint j = 0; j < n_open && first_row < n; j++)
        add_products(scores[score_at(j)], corrected[j * QUADS + quad]);
    for (uint i = 0; i < n; i++) {
        if (part == 0 && i / 4 * 4 == first_row)
            compute_pending(i);
        barrier();
        add_row(i);
    }
    [[unroll]] for (uint r = 0; r < 4; r++) {
        if (part == 0 || first_row + r >= n || 4 * quad >= n_values)
            continue;
        const uint row = uint(row_of_0 + int(n_open + first_row + r));
        precise const vec4 result = scale * sums[r];
        Vec4s(advance(y, (row * v_heads + v_head) * head_v + first_value + 4 * quad, 4)).at[0] = result;
    }
}

void main()
{
    const uint groups = (head_v + VALUES - 1) / VALUES;
    s = Sequences(sequences).at[gl_WorkGroupID.y];
    if (s.end - s.begin <= 1)
        return;
    v_head = gl_WorkGroupID.x / groups;
    k_head = v_head % k_heads;
    first_value = gl_WorkGroupID.x % groups * VALUES;
    n_values = min(VALUES, head_v - first_value);
    width = 2 * k_heads * head_k + v_heads * head_v;
    n_open = n_stored = s.position - s.state_position;
    row_of_0 = int(s.begin) - int(n_open);
    part = lane() / (4 * ROWS);
    first_row = lane() % (4 * ROWS) / QUADS * 4;
    quad = lane() % QUADS;
    has_state = s.state_position != 0;
    is_folded = false;
    find_places();
    load_open_rows();
    for (uint row = s.begin; row < s.end;) {
        if (n_open == CHUNK) {
            fold();
            n_open = n_stored = 0;
            row_of_0 = int(row);
        }
        const uint n = min(min(ROWS, CHUNK - n_open), s.end - row);
        if (lane() < n)
            log_decays[n_open + lane()] = Floats(decays).at[(row + lane()) * v_heads + v_head];
        barrier();
        compute_scores(n);
        barrier();
        compute_rows(n);
        barrier();
        row += n;
        n_open += n;
    }
    store_open_rows();
}
