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

#define VALUES 64   /* QN_GDN_SCALE_VALUES */
#define TILE_KEYS 16
#define TILE_ROW 17 /* floats of a value's keys in shared memory: no two values in one bank */
#define LO_SCALE 4096.0

layout(constant_id = 0) const uint ROWS = 16; /* 1 or 16 */
/* A lane has some rows and some values of a block, of S k and its sums, or of S q. */
const uint LANE_ROWS = ROWS == 1 ? 1 : 4, LANE_VALUES = ROWS == 1 ? 1 : 4, VALUE_LANES = VALUES / LANE_VALUES;

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

shared float tile[VALUES * TILE_ROW];
shared float scores[2 * ROWS * CHUNK];    /* [k, q][ROWS][CHUNK], with their decays */
shared float corrected[CHUNK * VALUES];   /* v', as multiples of scales of fp16 values */
shared float value_scales[CHUNK];
shared float log_decays[CHUNK];
shared float factors[CHUNK];              /* of rows of a block: e^gc_i; in a fold, e^(gc_63 - gc_j) */
shared float pending[2 * VALUES];         /* v' of a row, before it is rounded; and of the row before */
shared float largest[2 * VALUES];

Sequence s;
uint v_head, k_head, first_value, n_values; /* values of the head that the workgroup has */
uint width;
uint n_open;   /* rows of the chunk so far */
uint n_stored; /* of them, rows of earlier steps: their keys are in the open chunk */
int row_of_0;  /* the row of the step that the chunk's first row would have */
uvec2 state;   /* of the chunk; read unless it is of zeros */
bool has_state;

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

void load_open_rows()
{
    const uint lane = gl_LocalInvocationIndex, groups = (head_v + VALUES - 1) / VALUES, words = n_values / 2;
    const uint scales = (v_head * groups + first_value / VALUES) * CHUNK;
    if (lane < n_open) {
        log_decays[lane] = Floats(item_word(granules, shift, s.open, decays_at, v_head * CHUNK + lane)).at[0];
        value_scales[lane] = Floats(item_word(granules, shift, s.open, scales_at, scales + lane)).at[0];
    }
    barrier();
    for (uint i = lane; i < n_open * words; i += LANES) {
        const uint j = i / words, pair = i % words;
        const uint word = ((v_head * CHUNK + j) * head_v + first_value) / 2 + pair;
        precise const vec2 values =
            halves_to_floats(Words(item_word(granules, shift, s.open, values_at, word)).at[0]) * value_scales[j];
        corrected[j * VALUES + 2 * pair] = values.x;
        corrected[j * VALUES + 2 * pair + 1] = values.y;
    }
    barrier();
}

void store_open_rows()
{
    const uint lane = gl_LocalInvocationIndex, groups = (head_v + VALUES - 1) / VALUES, words = n_values / 2;
    const uint scales = (v_head * groups + first_value / VALUES) * CHUNK;
    barrier();
    if (lane >= n_stored && lane < n_open)
        Floats(item_word(granules, shift, s.open, scales_at, scales + lane)).at[0] = value_scales[lane];
    for (uint i = n_stored * words + lane; i < n_open * words; i += LANES) {
        const uint j = i / words, pair = i % words;
        const uint word = ((v_head * CHUNK + j) * head_v + first_value) / 2 + pair;
        const float inverse = uintBitsToFloat((254u << 23) - floatBitsToUint(value_scales[j]));
        precise const vec2 values =
            vec2(corrected[j * VALUES + 2 * pair], corrected[j * VALUES + 2 * pair + 1]) * inverse;
        Words(item_word(granules, shift, s.open, values_at, word)).at[0] = floats_to_halves(values);
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

/* ---- A block of rows: rows [n_open, n_open + n) of the chunk ---- */

/* Scores with all rows up to each row's own. A lane has a row j of the chunk, and k or q of the block's rows. */
void compute_scores(uint n)
{
    const uint j = gl_LocalInvocationIndex % CHUNK, part = gl_LocalInvocationIndex / CHUNK;
    const uint x_at = (part == 0 ? k_heads + k_head : k_head) * head_k;
    precise float sums[ROWS];
    for (uint r = 0; r < ROWS; r++)
        sums[r] = 0;
    for (uint at = 0; at < head_k && j < n_open + n; at += 8) {
        vec4 key_a, key_b;
        load_key(j, at, key_a, key_b);
        for (uint r = 0; r < n; r++) {
            Vec4s x = Vec4s(advance(advance(qkv, uint(row_of_0 + int(n_open + r)), 4 * width), x_at + at, 4));
            const vec4 a = x.at[0], b = x.at[1];
            for (uint e = 0; e < 4; e++)
                sums[r] += a[e] * key_a[e];
            for (uint e = 0; e < 4; e++)
                sums[r] += b[e] * key_b[e];
        }
    }
    precise float decay = 0;
    for (uint t = j + 1; t <= n_open && t < CHUNK; t++)
        decay += log_decays[t];
    for (uint r = 0; r < n; r++) {
        const uint i = n_open + r;
        if (r > 0 && i > j)
            decay += log_decays[i];
        precise const float score = exp_of(decay) * sums[r];
        scores[(part * ROWS + r) * CHUNK + j] = score;
    }
    if (part == 0 && j < n) {
        precise float since = 0;
        for (uint t = 0; t <= n_open + j; t++)
            since += log_decays[t];
        factors[j] = exp_of(since);
    }
}

uint value_of(uint v)
{
    return v * VALUE_LANES + gl_LocalInvocationIndex % VALUE_LANES;
}

void compute_rows(uint n)
{
    const uint lane = gl_LocalInvocationIndex, part = lane / 64, first_row = lane % 64 / VALUE_LANES * LANE_ROWS;
    const uint x_at = (part == 0 ? k_heads + k_head : k_head) * head_k;
    precise float sums[LANE_ROWS * LANE_VALUES];
    for (uint i = 0; i < LANE_ROWS * LANE_VALUES; i++)
        sums[i] = 0;
    for (uint tile_at = 0; tile_at < head_k && has_state; tile_at += TILE_KEYS) {
        const uint value = lane / 2, at = lane % 2 * 8;
        barrier();
        if (value < n_values) {
            const uvec4 words = Plane(state_address(state, 0, value, tile_at + at)).at[0];
            for (uint w = 0; w < 4; w++) {
                const vec2 pair = halves_to_floats(words[w]);
                tile[value * TILE_ROW + at + 2 * w] = pair.x;
                tile[value * TILE_ROW + at + 2 * w + 1] = pair.y;
            }
        }
        barrier();
        for (uint r = 0; r < LANE_ROWS && first_row + r < n; r++) {
            const uint row = uint(row_of_0 + int(n_open + first_row + r));
            Vec4s x = Vec4s(advance(advance(qkv, row, 4 * width), x_at + tile_at, 4));
            for (uint quad = 0; quad < TILE_KEYS / 4; quad++) {
                const vec4 keys = x.at[quad];
                for (uint v = 0; v < LANE_VALUES; v++)
                    for (uint e = 0; e < 4; e++)
                        sums[r * LANE_VALUES + v] += tile[value_of(v) * TILE_ROW + 4 * quad + e] * keys[e];
            }
        }
    }
    barrier();
    for (uint r = 0; r < LANE_ROWS && first_row + r < n; r++)
        for (uint v = 0; v < LANE_VALUES; v++)
            sums[r * LANE_VALUES + v] = factors[first_row + r] * sums[r * LANE_VALUES + v];
    for (uint j = 0; j < n_open; j++)
        for (uint r = 0; r < LANE_ROWS; r++)
            for (uint v = 0; v < LANE_VALUES; v++)
                sums[r * LANE_VALUES + v] +=
                    scores[(part * ROWS + first_row + r) * CHUNK + j] * corrected[j * VALUES + value_of(v)];
    for (uint i = 0; i < n; i++) {
        const uint row = uint(row_of_0 + int(n_open + i)), half_ = i % 2 * VALUES;
        const bool has_row = i / LANE_ROWS * LANE_ROWS == first_row;
        if (part == 0 && has_row) {
            const float beta = Floats(betas).at[row * v_heads + v_head];
            Floats values = Floats(advance(advance(qkv, row, 4 * width), 2 * k_heads * head_k + v_head * head_v, 4));
            float most = 0;
            for (uint v = 0; v < LANE_VALUES; v++) {
                const uint value = value_of(v);
                precise const float x =
                    value < n_values ? beta * (values.at[first_value + value] - sums[i % LANE_ROWS * LANE_VALUES + v])
                                     : 0.0;
                pending[half_ + value] = x;
                most = max(most, abs(x));
            }
            largest[half_ + lane % VALUE_LANES] = most;
        }
        barrier();
        float most = 0;
        for (uint v = 0; v < VALUE_LANES; v++)
            most = max(most, largest[half_ + v]);
        const uint exponent = floatBitsToUint(most) >> 23, shifted = exponent < 15 ? 1 : exponent - 14;
        const float step_ = uintBitsToFloat(shifted << 23), inverse = uintBitsToFloat(254 - shifted << 23);
        for (uint v = 0; v < LANE_VALUES; v++) {
            const uint value = value_of(v);
            precise const float scaled = pending[half_ + value] * inverse;
            precise const float rounded = half_to_float(float_to_half(scaled)) * step_;
            for (uint r = 0; r < LANE_ROWS; r++)
                if (first_row + r >= i + 1 - part) /* k of later rows; q of this row, too */
                    sums[r * LANE_VALUES + v] += scores[(part * ROWS + first_row + r) * CHUNK + n_open + i] * rounded;
            if (part == 0 && has_row)
                corrected[(n_open + i) * VALUES + value] = rounded;
        }
        if (lane == 0)
            value_scales[n_open + i] = step_;
    }
    for (uint r = 0; r < LANE_ROWS && part == 1 && first_row + r < n; r++) {
        Floats to = Floats(advance(y, uint(row_of_0 + int(n_open + first_row + r)) * v_heads + v_head, 4 * head_v));
        for (uint v = 0; v < LANE_VALUES; v++) {
            precise const float value = scale * sums[r * LANE_VALUES + v];
            if (value_of(v) < n_values)
                to.at[first_value + value_of(v)] = value;
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
