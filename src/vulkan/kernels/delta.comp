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

#include "delta_products.glsl"

#define SUB_ROWS 16 /* of a block, whose v' are computed one after the other */

const uint FOLD_QUADS = ROWS / 2; /* fours of keys that are folded at a time */

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

/* Other lanes of the workgroup read what a lane has written. */
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Plane { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer PlaneWords { uvec2 at[]; };

shared vec4 scores[2 * CHUNK * SCORE_ROW];              /* [k, q][CHUNK][ROWS], with their decays; in a fold, keys */
shared vec4 corrected[CHUNK * VALUES / 4];              /* v', as multiples of scales of fp16 values */
shared float value_scales[CHUNK];
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

/* ---- Rows that the open chunk has ---- */

void load_open_rows()
{
    const uint octets = n_values / 8;
    if (lane() < n_open) {
        log_decays[lane() / 4][lane() % 4] =
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

/* What a lane has loaded: keys of rows, and 4 values of 4 keys of both planes. */
#define LANE_FOLD_KEYS 4 /* fours; CHUNK FOLD_QUADS are 4 for each lane */
vec4 fold_keys[LANE_FOLD_KEYS];
uvec2 fold_hi[4], fold_lo[4];

/* The keys [first, first + 4 FOLD_QUADS) of all rows, and of the state. */
void load_fold(uint first, Place lo_from)
{
    const uint value = lane() / FOLD_QUADS * 4, at = first + lane() % FOLD_QUADS * 4;
    [[unroll]] for (uint u = 0; u < LANE_FOLD_KEYS; u++) {
        const uint i = u * LANES + lane(), j = i / FOLD_QUADS, key = min(first + i % FOLD_QUADS * 4, head_k - 4);
        fold_keys[u] = j < n_stored ? floats_of(Addresses(address_at(keys, 2 * (j * head_k + key))).at[0])
                                    : Vec4s(advance(row_key(j, true), key, 4)).at[0];
    }
    if (has_state && at < head_k && value < n_values)
        [[unroll]] for (uint v = 0; v < 4; v++) {
            fold_hi[v] = PlaneWords(address_at(state, 2 * ((value + v) * head_k + at))).at[0];
            fold_lo[v] = PlaneWords(address_at(lo_from, 2 * ((value + v) * head_k + at))).at[0];
        }
}

/* As [rows][FOLD_QUADS]. */
void store_fold_keys()
{
    [[unroll]] for (uint u = 0; u < LANE_FOLD_KEYS; u++)
        scores[u * LANES + lane()] = fold_keys[u];
}

/* Splits 4 values into the two planes, as split(), without branches. */
void split_four(vec4 x, out uvec2 hi, out uvec2 lo)
{
    const uvec4 bits = floatBitsToUint(x), magnitude = bits & 0x7fffffff;
    precise const vec4 shifted = uintBitsToFloat(magnitude) + 0.5;
    uvec4 upper = mix(magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1) >> 13,
                      floatBitsToUint(shifted) - 0x3f000000, lessThan(magnitude, uvec4(0x38800000)));
    upper = bits >> 16 & 0x8000 | mix(upper, uvec4(0x7bff), greaterThanEqual(magnitude, uvec4(0x477fe000)));
    hi = uvec2(upper.x | upper.y << 16, upper.z | upper.w << 16);
    precise const vec4 rest = (x - floats_of(hi)) * LO_SCALE;
    const uvec4 rest_bits = floatBitsToUint(rest), size = rest_bits & 0x7fffffff;
    precise const vec4 denormal = uintBitsToFloat(min(size, uvec4(0x38800000))) * 16777216.0;
    uvec4 lower = mix(size - 0x38000000 >> 13, uvec4(denormal), lessThan(size, uvec4(0x38800000)));
    lower = rest_bits >> 16 & 0x8000 | mix(lower, uvec4(0x7bff), greaterThanEqual(size, uvec4(0x477fe000)));
    lo = uvec2(lower.x | lower.y << 16, lower.z | lower.w << 16);
}

/* a: 4 values of 4 keys of the state. */
void fold_square(uint value, uint at, uint fold_quad, vec4 a[4], Place hi_to, Place lo_to)
{
    for (uint first = 0; first < CHUNK; first += 4)
        [[unroll]] for (uint j = first; j < first + 4; j++) {
            const vec4 key = scores[j * FOLD_QUADS + fold_quad], gated = corrected[j * QUADS + value / 4];
            [[unroll]] for (uint v = 0; v < 4; v++) {
                precise const vec4 sum = fma(vec4(gated[v]), key, a[v]);
                a[v] = sum;
            }
        }
    [[unroll]] for (uint v = 0; v < 4; v++) {
        const uint bytes = 2 * ((value + v) * head_k + at);
        uvec2 hi, lo;
        split_four(a[v], hi, lo);
        PlaneWords(address_at(hi_to, bytes)).at[0] = hi;
        PlaneWords(address_at(lo_to, bytes)).at[0] = lo;
    }
}

void fold()
{
    precise float decay = 0, all = 0;
    [[dont_unroll]] for (uint t = 0; t < CHUNK; t += 4) {
        const vec4 four = log_decays[t / 4];
        [[unroll]] for (uint c = 0; c < 4; c++) {
            decay += t + c > lane() ? four[c] : 0.0;
            all += four[c];
        }
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
    const uint value = lane() / FOLD_QUADS * 4;
    load_fold(0, lo_from);
    for (uint first = 0; first < head_k; first += 4 * FOLD_QUADS) {
        const uint at = first + lane() % FOLD_QUADS * 4;
        vec4 a[4];
        barrier();
        store_fold_keys();
        barrier();
        [[unroll]] for (uint v = 0; v < 4; v++) {
            precise vec4 old = vec4(0);
            if (has_state) {
                old = floats_of(fold_hi[v]) + floats_of(fold_lo[v]) / LO_SCALE;
                old = whole * old;
            }
            a[v] = old;
        }
        if (first + 4 * FOLD_QUADS < head_k)
            load_fold(first + 4 * FOLD_QUADS, lo_from);
        if (at < head_k && value < n_values)
            fold_square(value, at, lane() % FOLD_QUADS, a, hi_to, lo_to);
    }
    state = hi_to;
    is_folded = true;
    has_state = true;
    memoryBarrierBuffer();
    barrier();
}

/* ---- A block of rows: rows [n_open, n_open + n) of the chunk ---- */

uvec2 row_address(uint r, bool is_key)
{
    return row_key(n_open + r, is_key);
}

/* Items are values of the state. */
bool is_half(uint item)
{
    return true;
}

void load_item(uint item, uint at, out uvec4 a, out uvec4 b)
{
    a = Plane(address_at(state, 2 * (item * head_k + at))).at[0];
    b = uvec4(0);
}

/* The index of the scores of item j with the lane's rows. */
uint score_at(uint j)
{
    return (part * CHUNK + j) * SCORE_ROW + first_row / 4;
}

#define LANE_SCORES 4 /* fours of scores of a row: 2 CHUNK ROWS scores are 16 for each lane */
vec4 loaded_scores[LANE_SCORES];

void load_scores(uint n)
{
    [[unroll]] for (uint u = 0; u < LANE_SCORES; u++) {
        const uint i = u * LANES + lane(), row = uint(row_of_0 + int(n_open + min(i % ROWS, n - 1)));
        loaded_scores[u] = Vec4s(advance(row_scores, row * v_heads + v_head, 8 * CHUNK)).at[i / ROWS];
    }
}

/* Scores with later rows are not used. */
void store_scores()
{
    [[unroll]] for (uint u = 0; u < LANE_SCORES; u++) {
        const uint i = u * LANES + lane(), r = i % ROWS;
        [[unroll]] for (uint v = 0; v < 4; v++)
            scores[(i / ROWS * 4 + v) * SCORE_ROW + r / 4][r % 4] = loaded_scores[u][v];
    }
}

void compute_factors(uint n)
{
    precise float since = 0;
    [[dont_unroll]] for (uint t = 0; t < n_open + n; t += 4) {
        const vec4 four = log_decays[t / 4];
        [[unroll]] for (uint c = 0; c < 4; c++)
            since += t + c <= n_open + lane() ? four[c] : 0.0;
    }
    if (lane() < n)
        factors[lane()] = exp_of(since);
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

/* v' of row i of the block, before it is rounded, by the lanes that have its sums; r: i % 4. */
void compute_pending(uint i, uint r)
{
    const uint half_ = r % 2;
    precise vec4 x = vec4(0);
    float most = 0;
    if (4 * quad < n_values) {
        x = row_betas[r] * (row_values[r] - sums[r]);
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

/* Adds row i's v', rounded, to the sums of later rows among those that are chained; r: i % 4. */
void add_row(uint i, uint r)
{
    const uint half_ = r % 2;
    const bool is_own = i - r == first_row;
    vec4 most = largest[half_ * QUADS / 4];
    [[unroll]] for (uint m = 1; m < QUADS / 4; m++)
        most = max(most, largest[half_ * QUADS / 4 + m]);
    const int exponent = floatBitsToInt(max(max(most.x, most.y), max(most.z, most.w))) & 0x7f800000,
              shifted = max(exponent - (14 << 23), 1 << 23);
    const float step_ = intBitsToFloat(shifted), inverse = intBitsToFloat((254 << 23) - shifted);
    precise const vec4 scaled = pending[half_ * QUADS + quad] * inverse;
    precise const vec4 rounded = rounded_to_halves(scaled) * step_;
    const vec4 score = scores[score_at(n_open + i)];
    [[unroll]] for (uint q = 0; q < 4; q++) {
        precise const vec4 sum = fma(vec4(score[q]), rounded, sums[q]);
        sums[q] = first_row + q > i ? sum : sums[q];
    }
    if (is_own) {
        corrected[(n_open + i) * QUADS + quad] = rounded;
        if (quad == 0)
            value_scales[n_open + i] = step_;
    }
}

/* Adds v' of rows [begin, end) of the block to the sums of later rows, and of the rows' own queries. */
void add_rows(uint begin, uint end)
{
    if (first_row + 4 <= begin + 1 - part)
        return;
    for (uint i = begin; i < end; i++) {
        const vec4 score = scores[score_at(n_open + i)], value = corrected[(n_open + i) * QUADS + quad];
        [[unroll]] for (uint r = 0; r < 4; r++) {
            precise const vec4 sum = fma(vec4(score[r]), value, sums[r]);
            sums[r] = first_row + r + part > i ? sum : sums[r];
        }
    }
}

void compute_rows(uint n)
{
    if (part == 0)
        load_row_values(n);
    if (has_state)
        multiply(n_values, n, head_k);
    store_scores();
    barrier();
    [[unroll]] for (uint r = 0; r < 4; r++) {
        precise const vec4 product = has_state ? factors[first_row + r] * sums[r] : vec4(0);
        sums[r] = product;
    }
    for (uint j = 0; j < n_open && first_row < n; j++)
        add_products(scores[score_at(j)], corrected[j * QUADS + quad]);
    for (uint first = 0; first < n; first += SUB_ROWS) {
        const uint end = min(first + SUB_ROWS, n);
        const bool is_chained = part == 0 && first_row / SUB_ROWS == first / SUB_ROWS;
        [[dont_unroll]] for (uint four = first; four < end; four += 4)
            [[unroll]] for (uint r = 0; r < 4; r++)
                if (four + r < end) {
                    if (part == 0 && four == first_row)
                        compute_pending(four + r, r);
                    barrier();
                    if (is_chained)
                        add_row(four + r, r);
                }
        barrier();
        if (!is_chained)
            add_rows(first, end);
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
    find_products();
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
            log_decays[(n_open + lane()) / 4][(n_open + lane()) % 4] =
                Floats(decays).at[(row + lane()) * v_heads + v_head];
        load_scores(n);
        barrier();
        compute_factors(n);
        compute_rows(n);
        barrier();
        row += n;
        n_open += n;
    }
    store_open_rows();
}
