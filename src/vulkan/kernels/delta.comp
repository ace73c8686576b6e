#version 450
/* The gated delta rule with an open chunk (gpu/recurrent_layout.h): a workgroup computes up to 64 values of a value head
 * for all rows of a sequence, chunk by chunk, in blocks of ROWS rows. For row i, with gc the sum of log decays since the
 * chunk's start, keys and v' as the open chunk has them, and S the upper fp16 plane of the state:
 *
 *     a    = e^gc_i S k_i + sum over j < i of e^(gc_i - gc_j) (k_i.k_j) v'_j;     v'_i = beta_i (v_i - a)
 *     o_i  = scale (e^gc_i S q_i + sum over j <= i of e^(gc_i - gc_j) (q_i.k_j) v'_j)
 *
 * A row after a full chunk folds it into the state: S = e^gc_63 S + sum of e^(gc_63 - gc_j) v'_j k_j^T.
 *
 * A sum over keys, or over j, is in ascending order, by one lane, from what memory has: a row's bits depend on its
 * position alone, and not on how rows are divided among steps and blocks. Yang et al., Parallelizing Linear
 * Transformers with the Delta Rule (2024), has the form by chunks. */
#extension GL_GOOGLE_include_directive : require
#define LANES 128
#include "common.glsl"
#include "pages.glsl"
#include "recurrent.glsl"

#define VALUES 64    /* QN_GDN_SCALE_VALUES */
#define KEYS_UNIT 16 /* heads have a multiple of it */
#define LO_SCALE 4096.0

layout(constant_id = 0) const uint ROWS = 16; /* 1 or 16 */
/* Products of the rows of a block, k or q, with 64 items: keys of the chunk, or values of the state. A lane has some
 * rows and some items, of one part: of k, or of q. */
const uint LANE_ROWS = ROWS == 1 ? 1 : 4, LANE_ITEMS = ROWS == 1 ? 1 : 4, ITEM_LANES = 64 / LANE_ITEMS;
/* Keys of all items and rows that are in shared memory at a time; a lane loads units of 8 keys of an item. An item's
 * keys take one float more, so that no two lanes read one bank. */
const uint TILE_KEYS = ROWS == 1 ? 32 : 16, TILE_ROW = TILE_KEYS + 1, LANE_UNITS = 64 * TILE_KEYS / 8 / LANES;

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

shared float tile[64 * TILE_ROW];
shared float row_tile[2 * ROWS * TILE_KEYS]; /* [k, q][ROWS][TILE_KEYS] */
shared float scores[2 * ROWS * CHUNK];    /* [k, q][ROWS][CHUNK], with their decays */
shared float corrected[CHUNK * VALUES];   /* v', as multiples of scales of fp16 values */
shared float value_scales[CHUNK];
shared float log_decays[CHUNK];
shared float factors[CHUNK];              /* of rows of a block: e^gc_i; in a fold, e^(gc_63 - gc_j) */
shared float pending[2 * VALUES];         /* v' of a row, before it is rounded; and of the row before */
shared float largest[2 * ITEM_LANES];

Sequence s;
uint v_head, k_head, first_value, n_values; /* values of the head that the workgroup has */
uint width;
uint n_open;   /* rows of the chunk so far */
uint n_stored; /* of them, rows of earlier steps: their keys are in the open chunk */
int row_of_0;  /* the row of the step that the chunk's first row would have */
uvec2 state; /* of the chunk; read unless it is of zeros */
bool has_state;
uint part, first_row; /* of the lane's products: 0: k, 1: q; its rows of a block */
float sums[LANE_ROWS * LANE_ITEMS];

/* The keys [at, at + 8) of row j of the chunk. */
void load_key(uint j, uint at, out vec4 a, out vec4 b)
{
    if (j < n_stored) {
        const uint word = ((k_head * CHUNK + j) * head_k + at) / 2;
        const uvec4 words = UVec4s(item_word(granules, shift, s.open, keys_at, word)).at[0];
        a = vec4(halves_to_floats(words.x), halves_to_floats(words.y));
        b = vec4(halves_to_floats(words.z), halves_to_floats(words.w));
        return;
    }
    Vec4s from = Vec4s(advance(advance(qkv, uint(row_of_0 + int(j)), 4 * width), (k_heads + k_head) * head_k + at, 4));
    a = from.at[0];
    b = from.at[1];
}

/* The address of 8 keys of a value of the state: of its plane hi, or lo. */
uvec2 state_address(uvec2 item, uint plane, uint value, uint at)
{
    const uint word = (((plane * v_heads + v_head) * head_v + first_value + value) * head_k + at) / 2;
    return item_word(granules, shift, item, state_at, word);
}

/* Rounds towards zero; saturates. */
uint float_to_half_down(float x)
{
    const uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477fe000)
        return sign | 0x7bff;
    if (magnitude < 0x38800000)
        return sign | uint(uintBitsToFloat(magnitude) * 16777216.0);
    return sign | magnitude - 0x38000000 >> 13;
}

/* Splits into the two planes (gpu/state_planes.h). */
void split(float x, out uint hi, out uint lo)
{
    hi = float_to_half(x);
    precise const float rest = (x - half_to_float(hi)) * LO_SCALE;
    lo = float_to_half_down(rest);
}

/* Word 0 of values [8 octet, 8 octet + 8) of row j of the open chunk. */
uvec2 values_address(uint j, uint octet)
{
    return item_word(granules, shift, s.open, values_at, ((v_head * CHUNK + j) * head_v + first_value) / 2 + 4 * octet);
}

uvec2 scale_address(uint j)
{
    const uint groups = (head_v + VALUES - 1) / VALUES;
    return item_word(granules, shift, s.open, scales_at, (v_head * groups + first_value / VALUES) * CHUNK + j);
}

void load_open_rows()
{
    const uint lane = gl_LocalInvocationIndex, octets = n_values / 8;
    if (lane < n_open) {
        log_decays[lane] = Floats(item_word(granules, shift, s.open, decays_at, v_head * CHUNK + lane)).at[0];
        value_scales[lane] = Floats(scale_address(lane)).at[0];
    }
    barrier();
    for (uint i = lane; i < n_open * octets; i += LANES) {
        const uint j = i / octets, octet = i % octets;
        const uvec4 words = UVec4s(values_address(j, octet)).at[0];
        for (uint w = 0; w < 4; w++) {
            precise const vec2 values = halves_to_floats(words[w]) * value_scales[j];
            corrected[j * VALUES + 8 * octet + 2 * w] = values.x;
            corrected[j * VALUES + 8 * octet + 2 * w + 1] = values.y;
        }
    }
    barrier();
}

void store_open_rows()
{
    const uint lane = gl_LocalInvocationIndex, octets = n_values / 8;
    barrier();
    if (lane >= n_stored && lane < n_open)
        Floats(scale_address(lane)).at[0] = value_scales[lane];
    for (uint i = n_stored * octets + lane; i < n_open * octets; i += LANES) {
        const uint j = i / octets, octet = i % octets, at = j * VALUES + 8 * octet;
        const float inverse = uintBitsToFloat((254u << 23) - floatBitsToUint(value_scales[j]));
        uvec4 words;
        for (uint w = 0; w < 4; w++) {
            precise const vec2 values = vec2(corrected[at + 2 * w], corrected[at + 2 * w + 1]) * inverse;
            words[w] = floats_to_halves(values);
        }
        UVec4s(values_address(j, octet)).at[0] = words;
    }
}

/* ---- The fold of a full chunk ---- */

void fold()
{
    const uint lane = gl_LocalInvocationIndex, octets = head_k / 8;
    precise float decay = 0;
    if (lane < CHUNK) {
        for (uint t = lane + 1; t < CHUNK; t++)
            decay += log_decays[t];
        factors[lane] = exp_of(decay);
    }
    precise float all = 0;
    for (uint t = 0; t < CHUNK; t++)
        all += log_decays[t];
    const float whole = exp_of(all);
    barrier();
    for (uint item = lane; item < n_values / 4 * octets; item += LANES) {
        const uint value = item / octets * 4, at = item % octets * 8;
        precise vec4 a[4], b[4];
        for (uint v = 0; v < 4; v++) {
            a[v] = b[v] = vec4(0);
            if (!has_state)
                continue;
            const uvec4 hi = Plane(state_address(state, 0, value + v, at)).at[0],
                        lo = Plane(state_address(state, 1, value + v, at)).at[0];
            a[v] = vec4(halves_to_floats(hi.x), halves_to_floats(hi.y)) +
                   vec4(halves_to_floats(lo.x), halves_to_floats(lo.y)) / LO_SCALE;
            b[v] = vec4(halves_to_floats(hi.z), halves_to_floats(hi.w)) +
                   vec4(halves_to_floats(lo.z), halves_to_floats(lo.w)) / LO_SCALE;
            a[v] = whole * a[v];
            b[v] = whole * b[v];
        }
        for (uint j = 0; j < CHUNK; j++) {
            vec4 key_a, key_b;
            load_key(j, at, key_a, key_b);
            for (uint v = 0; v < 4; v++) {
                precise const float gated = factors[j] * corrected[j * VALUES + value + v];
                a[v] += gated * key_a;
                b[v] += gated * key_b;
            }
        }
        for (uint v = 0; v < 4; v++) {
            uvec4 hi = uvec4(0), lo = uvec4(0);
            for (uint e = 0; e < 8; e++) {
                uint upper, rest;
                split(e < 4 ? a[v][e] : b[v][e - 4], upper, rest);
                hi[e / 2] |= upper << 16 * (e % 2);
                lo[e / 2] |= rest << 16 * (e % 2);
            }
            Plane(state_address(s.to, 0, value + v, at)).at[0] = hi;
            Plane(state_address(s.to, 1, value + v, at)).at[0] = lo;
        }
    }
    state = s.to;
    has_state = true;
    memoryBarrierBuffer();
    barrier();
}

/* ---- Products of a block's rows with items ---- */

void add_product(uint i, float a, float b)
{
    precise const float sum = sums[i] + a * b;
    sums[i] = sum;
}

uint item_of(uint v)
{
    return v * ITEM_LANES + gl_LocalInvocationIndex % ITEM_LANES;
}

/* What a lane has loaded of the next tile, as memory has it: fp16 words, or the bits of floats; and 4 keys of a row. */
uvec4 loaded_a[LANE_UNITS], loaded_b[LANE_UNITS];
vec4 loaded_row;

uint unit_item(uint u)
{
    return (u * LANES + gl_LocalInvocationIndex) / (TILE_KEYS / 8);
}

uint unit_key(uint u)
{
    return (u * LANES + gl_LocalInvocationIndex) % (TILE_KEYS / 8) * 8;
}

void load_tile(bool is_state, uint n_items, uint n, uint tile_at)
{
    const uint quad = gl_LocalInvocationIndex, r = quad / (TILE_KEYS / 4) % ROWS;
    for (uint u = 0; u < LANE_UNITS; u++) {
        const uint item = unit_item(u), at = tile_at + unit_key(u);
        loaded_a[u] = loaded_b[u] = uvec4(0);
        if (item >= n_items || at >= head_k)
            continue;
        if (is_state) {
            loaded_a[u] = Plane(state_address(state, 0, item, at)).at[0];
        } else if (item < n_stored) {
            const uint word = ((k_head * CHUNK + item) * head_k + at) / 2;
            loaded_a[u] = UVec4s(item_word(granules, shift, s.open, keys_at, word)).at[0];
        } else {
            const uvec2 row = advance(qkv, uint(row_of_0 + int(item)), 4 * width);
            UVec4s from = UVec4s(advance(row, (k_heads + k_head) * head_k + at, 4));
            loaded_a[u] = from.at[0];
            loaded_b[u] = from.at[1];
        }
    }
    if (quad < 2 * ROWS * TILE_KEYS / 4 && r < n && tile_at + quad % (TILE_KEYS / 4) * 4 < head_k) {
        const uvec2 row = advance(qkv, uint(row_of_0 + int(n_open + r)), 4 * width);
        const uint head = quad < ROWS * TILE_KEYS / 4 ? k_heads + k_head : k_head;
        loaded_row = Vec4s(advance(row, head * head_k + tile_at + quad % (TILE_KEYS / 4) * 4, 4)).at[0];
    }
}

void store_tile(bool is_state)
{
    const uint quad = gl_LocalInvocationIndex;
    for (uint u = 0; u < LANE_UNITS; u++) {
        const uint item = unit_item(u), to = item * TILE_ROW + unit_key(u);
        const bool is_half = is_state || item < n_stored;
        for (uint w = 0; w < 4; w++) {
            if (is_half) {
                const vec2 pair = halves_to_floats(loaded_a[u][w]);
                tile[to + 2 * w] = pair.x;
                tile[to + 2 * w + 1] = pair.y;
            } else {
                tile[to + w] = uintBitsToFloat(loaded_a[u][w]);
                tile[to + 4 + w] = uintBitsToFloat(loaded_b[u][w]);
            }
        }
    }
    if (quad < 2 * ROWS * TILE_KEYS / 4)
        for (uint e = 0; e < 4; e++)
            row_tile[4 * quad + e] = loaded_row[e];
}

/* sums = products of the lane's rows and items. The next tile is on its way while one is multiplied. */
void multiply(bool is_state, uint n_items, uint n)
{
    const bool is_idle = first_row >= n || item_of(0) >= n_items;
    for (uint i = 0; i < LANE_ROWS * LANE_ITEMS; i++)
        sums[i] = 0;
    load_tile(is_state, n_items, n, 0);
    for (uint tile_at = 0; tile_at < head_k; tile_at += TILE_KEYS) {
        barrier();
        store_tile(is_state);
        barrier();
        if (tile_at + TILE_KEYS < head_k)
            load_tile(is_state, n_items, n, tile_at + TILE_KEYS);
        for (uint first = 0; first < TILE_KEYS; first += KEYS_UNIT) {
            if (is_idle || tile_at + first >= head_k)
                break;
            for (uint key = first; key < first + KEYS_UNIT; key++)
                for (uint r = 0; r < LANE_ROWS; r++) {
                    const float x = row_tile[(part * ROWS + first_row + r) * TILE_KEYS + key];
                    for (uint v = 0; v < LANE_ITEMS; v++)
                        add_product(r * LANE_ITEMS + v, tile[item_of(v) * TILE_ROW + key], x);
                }
        }
    }
}

/* ---- A block of rows: rows [n_open, n_open + n) of the chunk ---- */

/* Scores with all rows up to each row's own; scores with later rows are not used. */
void compute_scores(uint n)
{
    const uint lane = gl_LocalInvocationIndex, j = lane % CHUNK;
    precise float decay = 0;
    for (uint t = j + 1; t <= n_open && t < CHUNK; t++)
        decay += log_decays[t];
    for (uint r = 0; r < n; r++) {
        if (r > 0 && n_open + r > j)
            decay += log_decays[n_open + r];
        scores[(lane / CHUNK * ROWS + r) * CHUNK + j] = exp_of(decay);
    }
    if (lane < n) {
        precise float since = 0;
        for (uint t = 0; t <= n_open + lane; t++)
            since += log_decays[t];
        factors[lane] = exp_of(since);
    }
    multiply(false, n_open + n, n);
    for (uint r = 0; r < LANE_ROWS; r++)
        for (uint v = 0; v < LANE_ITEMS; v++) {
            const uint at = (part * ROWS + first_row + r) * CHUNK + item_of(v);
            precise const float score = scores[at] * sums[r * LANE_ITEMS + v];
            scores[at] = score;
        }
}

void compute_rows(uint n)
{
    const uint lane = gl_LocalInvocationIndex;
    if (has_state)
        multiply(true, n_values, n);
    for (uint i = 0; i < LANE_ROWS * LANE_ITEMS && !has_state; i++)
        sums[i] = 0;
    barrier();
    for (uint r = 0; r < LANE_ROWS; r++)
        for (uint v = 0; v < LANE_ITEMS; v++) {
            precise const float product = factors[first_row + r] * sums[r * LANE_ITEMS + v];
            sums[r * LANE_ITEMS + v] = product;
        }
    for (uint j = 0; j < n_open && first_row < n; j++)
        for (uint r = 0; r < LANE_ROWS; r++)
            for (uint v = 0; v < LANE_ITEMS; v++)
                add_product(r * LANE_ITEMS + v, scores[(part * ROWS + first_row + r) * CHUNK + j],
                            corrected[j * VALUES + item_of(v)]);
    for (uint i = 0; i < n; i++) {
        const uint row = uint(row_of_0 + int(n_open + i)), half_ = i % 2 * VALUES;
        for (uint r = 0; r < LANE_ROWS; r++) {
            if (part != 0 || first_row + r != i)
                continue;
            const float beta = Floats(betas).at[row * v_heads + v_head];
            Floats values = Floats(advance(advance(qkv, row, 4 * width), 2 * k_heads * head_k + v_head * head_v, 4));
            float most = 0;
            for (uint v = 0; v < LANE_ITEMS; v++) {
                const uint value = item_of(v);
                precise const float x =
                    value < n_values ? beta * (values.at[first_value + value] - sums[r * LANE_ITEMS + v]) : 0.0;
                pending[half_ + value] = x;
                most = max(most, abs(x));
            }
            largest[i % 2 * ITEM_LANES + lane % ITEM_LANES] = most;
        }
        barrier();
        float most = 0;
        for (uint v = 0; v < ITEM_LANES; v++)
            most = max(most, largest[i % 2 * ITEM_LANES + v]);
        const uint exponent = floatBitsToUint(most) >> 23, shifted = exponent < 15 ? 1 : exponent - 14;
        const float step_ = uintBitsToFloat(shifted << 23), inverse = uintBitsToFloat(254 - shifted << 23);
        for (uint v = 0; v < LANE_ITEMS; v++) {
            const uint value = item_of(v);
            precise const float scaled = pending[half_ + value] * inverse;
            precise const float rounded = half_to_float(float_to_half(scaled)) * step_;
            for (uint r = 0; r < LANE_ROWS; r++)
                if (first_row + r >= i + 1 - part) /* k of later rows; q of this row, too */
                    add_product(r * LANE_ITEMS + v, scores[(part * ROWS + first_row + r) * CHUNK + n_open + i], rounded);
            if (part == 0 && i >= first_row && i < first_row + LANE_ROWS)
                corrected[(n_open + i) * VALUES + value] = rounded;
        }
        if (lane == 0)
            value_scales[n_open + i] = step_;
    }
    for (uint r = 0; r < LANE_ROWS; r++) {
        if (part == 0 || first_row + r >= n)
            continue;
        Floats to = Floats(advance(y, uint(row_of_0 + int(n_open + first_row + r)) * v_heads + v_head, 4 * head_v));
        for (uint v = 0; v < LANE_ITEMS; v++) {
            precise const float value = scale * sums[r * LANE_ITEMS + v];
            if (item_of(v) < n_values)
                to.at[first_value + item_of(v)] = value;
        }
    }
}

void main()
{
    const uint lane = gl_LocalInvocationIndex, groups = (head_v + VALUES - 1) / VALUES;
    s = Sequences(sequences).at[gl_WorkGroupID.y];
    if (s.begin == s.end)
        return;
    v_head = gl_WorkGroupID.x / groups;
    k_head = v_head % k_heads;
    first_value = gl_WorkGroupID.x % groups * VALUES;
    n_values = min(VALUES, head_v - first_value);
    width = 2 * k_heads * head_k + v_heads * head_v;
    n_open = n_stored = s.position - s.state_position;
    row_of_0 = int(s.begin) - int(n_open);
    part = lane / 64;
    first_row = lane % 64 / ITEM_LANES * LANE_ROWS;
    state = s.from;
    has_state = s.state_position != 0;
    load_open_rows();
    for (uint row = s.begin; row < s.end;) {
        if (n_open == CHUNK) {
            fold();
            n_open = n_stored = 0;
            row_of_0 = int(row);
        }
        const uint n = min(min(ROWS, CHUNK - n_open), s.end - row);
        if (lane < n)
            log_decays[n_open + lane] = Floats(decays).at[(row + lane) * v_heads + v_head];
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
