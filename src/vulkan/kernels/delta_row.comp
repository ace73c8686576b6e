#version 450
/* The gated delta rule of the sequences that have one row in the step, which delta.comp leaves out: it computes the same,
 * to the bit, for the least latency. A workgroup has up to 64 values of a value head. All that it reads is on its way
 * before anything is computed: keys of the open chunk, the state and v' of earlier rows. In decode steps it also has
 * the row's convolution and gates; and the last workgroup of a head computes the gated norm of its results, and
 * quantises them.
 *
 * A lane has a sum for k or for q, in the order of delta.comp: of an item's keys, which are fp16 words in shared
 * memory; an item is a row of the chunk, and then a value of the state. */
#extension GL_GOOGLE_include_directive : require
#define LANES 128
#include "common.glsl"
#include "arrive.glsl"
#include "gates.glsl"
#include "pages.glsl"
#include "recurrent.glsl"
#include "delta.glsl"

layout(constant_id = 0) const uint TAPS = 4;

#define TILE_OCTETS 16                /* of keys of all items, in shared memory at a time */
#define ITEM_VECTORS (TILE_OCTETS + 1) /* so that lanes with different items read different banks */
#define UNITS 8                       /* of 8 keys, that a lane loads */

layout(push_constant) uniform Args {
    uvec2 qkv, decays, betas, y; /* [rows][width], [rows][v_heads], [rows][v_heads], [rows][v_heads * head_v] */
    /* 0: qkv, decays and betas are those of conv.comp. Else they are its inputs, and keys are written to `convolved`. */
    uvec2 convolved;
    uvec2 weights; /* of the convolution, as in conv.comp */
    uvec2 layer;
    uvec2 sequences;
    uvec2 granules;
    uint shift;
    uint state_at, history_at, keys_at, values_at, scales_at, decays_at, inputs_at; /* in a state; in an open chunk */
    uint heads, dims; /* of keys, and of values times 2^16: their numbers and sizes */
    float scale;
    float eps;    /* of the gated norm, */
    uint results; /* and: planes of its integers; times 2^16, value heads of a key head if those are consecutive, else 1 */
};

/* Of the layer, with `convolved`: bias and factor as in conv.comp; inputs of the gated norm as in prepare.comp, where its
 * integers go, and how many workgroups of a head have arrived [rows][v_heads]; signs and factor of a Hadamard transform of
 * each head. gate 0: no norm; factor 0: no transform. */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Layer {
    uvec2 bias, factor, gate, norm, codes, arrived, signs;
    float transform_factor;
};

/* Results that another workgroup reads. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Results { float at[]; };

/* A state that this workgroup has written. */
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Written { uvec4 at[]; };

shared uvec4 tile[CHUNK * ITEM_VECTORS];
shared uvec4 old_values[CHUNK * VALUES / 8]; /* v' / scale of earlier rows, as the open chunk has them */
shared vec4 row_keys[2 * MAX_KEYS / 4];      /* k, then q */
shared vec4 log_decays[CHUNK / 4];
shared float value_scales[CHUNK];
shared float scores[2 * CHUNK]; /* of k, of q; in a fold: e^(gc_63 - gc_j) */
shared float pending[VALUES];   /* v' of the row; without value: 0 */
shared vec4 new_values[VALUES / 4]; /* v of the row */

#define MAX_HEAD MAX_KEYS
#include "rotation.glsl"
#define values head /* of the gated norm */
#define MAX_VALUES MAX_KEYS
#include "quantize.glsl"

#include "conv.glsl"

Sequence s;
uint k_heads, v_heads, head_k, head_v;
uint v_head, k_head, first_value, n_values;
uint row, n_open; /* rows of the chunk before this one */
Place keys, values_of_open, scales, log_decays_of, state;

uint lane()
{
    return gl_LocalInvocationIndex;
}

/* The place of `bytes` bytes from byte `at` of an item on. */
Place part_of(uvec2 item, uint at, uint words_before, uint bytes)
{
    return place_of(granules, shift, advance(advance(item, 1, at), words_before, 4), bytes);
}

/* Plane hi, or lo, of the workgroup's values. */
Place plane_of(uvec2 item, uint plane)
{
    return part_of(item, state_at, ((plane * v_heads + v_head) * head_v + first_value) * head_k / 2,
                   n_values * head_k * 2);
}

void find_places()
{
    const uint groups = (head_v + VALUES - 1) / VALUES;
    keys = part_of(s.open, keys_at, k_head * CHUNK * head_k / 2, CHUNK * head_k * 2);
    values_of_open = part_of(s.open, values_at, (v_head * CHUNK * head_v + first_value) / 2,
                     ((CHUNK - 1) * head_v + n_values) * 2);
    scales = part_of(s.open, scales_at, (v_head * groups + first_value / VALUES) * CHUNK, CHUNK * 4);
    log_decays_of = part_of(s.open, decays_at, v_head * CHUNK, CHUNK * 4);
}

/* ---- Items: rows of the chunk, or values of the state ---- */

uint unit_item(uint u)
{
    return (u * LANES + lane()) / TILE_OCTETS;
}

uint unit_octet()
{
    return lane() % TILE_OCTETS;
}

/* Loads the keys [tile_at, tile_at + 8 * TILE_OCTETS) of n items, those that there are. Others are items that exist. */
void load_items(Place from, uint n, uint tile_at, out uvec4 loaded[UNITS])
{
    const uint at = min(tile_at + 8 * unit_octet(), head_k - 8);
    [[unroll]] for (uint u = 0; u < UNITS; u++)
        loaded[u] = UVec4s(address_at(from, 2 * (min(unit_item(u), n - 1) * head_k + at))).at[0];
}

void store_items(const uvec4 loaded[UNITS], uint n)
{
    [[unroll]] for (uint u = 0; u < UNITS; u++)
        if (unit_item(u) < n)
            tile[unit_item(u) * ITEM_VECTORS + unit_octet()] = loaded[u];
}

/* Adds the products of the tile's keys of an item with those of k or q. */
void add_products(uint item, uint part, uint tile_at, inout float sum)
{
    const uint octets = min(TILE_OCTETS, (head_k - tile_at) / 8), at = part * (MAX_KEYS / 4) + tile_at / 4;
    precise float total = sum;
    uvec4 words = tile[item * ITEM_VECTORS];
    vec4 x = row_keys[at], z = row_keys[at + 1];
    [[dont_unroll]] for (uint o = 1; o <= octets; o++) {
        const vec4 a = vec4(halves_to_floats(words.x), halves_to_floats(words.y)),
                   b = vec4(halves_to_floats(words.z), halves_to_floats(words.w)), of_a = x, of_b = z;
        const uint next = min(o, octets - 1);
        words = tile[item * ITEM_VECTORS + next];
        x = row_keys[at + 2 * next];
        z = row_keys[at + 2 * next + 1];
        [[unroll]] for (uint i = 0; i < 4; i++)
            total = fma(a[i], of_a[i], total);
        [[unroll]] for (uint i = 0; i < 4; i++)
            total = fma(b[i], of_b[i], total);
    }
    sum = total;
}

/* The row's own key, which is a multiple of fp16 values. */
void store_own_key(uint tile_at)
{
    const uint octet = lane(), at = tile_at / 4 + 2 * octet;
    if (octet >= TILE_OCTETS || tile_at + 8 * octet >= head_k)
        return;
    const vec4 a = row_keys[at], b = row_keys[at + 1];
    tile[n_open * ITEM_VECTORS + octet] = uvec4(floats_to_halves(a.xy), floats_to_halves(a.zw), floats_to_halves(b.xy),
                                                floats_to_halves(b.zw));
}

/* v' of row j, of values [4 i, 4 i + 4). */
vec4 values_of(uint j, uint i)
{
    const uvec4 words = old_values[j * (VALUES / 8) + i / 2];
    const uvec2 pair = (i & 1) == 0 ? words.xy : words.zw;
    precise const vec4 x = vec4(halves_to_floats(pair.x), halves_to_floats(pair.y)) * value_scales[j];
    return x;
}

float value_of(uint j, uint value)
{
    const uint word = old_values[j * (VALUES / 8) + value / 8][value / 2 % 4];
    precise const float x = half_to_float(value % 2 == 0 ? word & 0xffff : word >> 16) * value_scales[j];
    return x;
}

/* ---- The fold of a full chunk ---- */

/* Of the tile's keys: a lane has 8 keys of 4 values, and of the 4 values 32 after them. */
void fold_tile(uint tile_at, float whole, bool has_state, Place hi_from, Place lo_from, Place hi_to, Place lo_to)
{
    const uint first = lane() / TILE_OCTETS * 4, at = tile_at + 8 * unit_octet();
    precise vec4 a[8], b[8];
    if (at >= head_k)
        return;
    [[unroll]] for (uint v = 0; v < 8; v++) {
        const uint value = first + v % 4 + v / 4 * 32;
        a[v] = b[v] = vec4(0);
        if (!has_state || value >= n_values)
            continue;
        const uvec4 hi = UVec4s(address_at(hi_from, 2 * (value * head_k + at))).at[0],
                    lo = UVec4s(address_at(lo_from, 2 * (value * head_k + at))).at[0];
        a[v] = whole * (vec4(halves_to_floats(hi.x), halves_to_floats(hi.y)) +
                        vec4(halves_to_floats(lo.x), halves_to_floats(lo.y)) / LO_SCALE);
        b[v] = whole * (vec4(halves_to_floats(hi.z), halves_to_floats(hi.w)) +
                        vec4(halves_to_floats(lo.z), halves_to_floats(lo.w)) / LO_SCALE);
    }
    for (uint j = 0; j < CHUNK; j++) {
        const uvec4 words = tile[j * ITEM_VECTORS + unit_octet()];
        const vec4 key_a = vec4(halves_to_floats(words.x), halves_to_floats(words.y)),
                   key_b = vec4(halves_to_floats(words.z), halves_to_floats(words.w));
        precise const vec4 gated[2] = { scores[j] * values_of(j, first / 4), scores[j] * values_of(j, first / 4 + 8) };
        [[unroll]] for (uint v = 0; v < 8; v++) {
            a[v] = fma(vec4(gated[v / 4][v % 4]), key_a, a[v]);
            b[v] = fma(vec4(gated[v / 4][v % 4]), key_b, b[v]);
        }
    }
    [[unroll]] for (uint v = 0; v < 8; v++) {
        const uint value = first + v % 4 + v / 4 * 32;
        uvec2 hi[2], lo[2];
        if (value >= n_values)
            continue;
        split(a[v], hi[0], lo[0]);
        split(b[v], hi[1], lo[1]);
        Written(address_at(hi_to, 2 * (value * head_k + at))).at[0] = uvec4(hi[0], hi[1]);
        Written(address_at(lo_to, 2 * (value * head_k + at))).at[0] = uvec4(lo[0], lo[1]);
    }
}

float log_decay(uint t)
{
    return log_decays[t / 4][t % 4];
}

/* The chunk's decays are those of 64 rows. */
void fold(bool has_state)
{
    precise float decay = 0, all = 0;
    for (uint t = 0; t < CHUNK; t++) {
        decay += t > lane() ? log_decay(t) : 0.0;
        all += log_decay(t);
    }
    if (lane() < CHUNK)
        scores[lane()] = exp_of(decay);
    const float whole = exp_of(all);
    const Place hi_from = plane_of(s.from, 0), lo_from = plane_of(s.from, 1), hi_to = plane_of(s.to, 0),
                lo_to = plane_of(s.to, 1);
    for (uint tile_at = 0; tile_at < head_k; tile_at += 8 * TILE_OCTETS) {
        uvec4 loaded[UNITS];
        load_items(keys, CHUNK, tile_at, loaded);
        barrier();
        store_items(loaded, CHUNK);
        barrier();
        fold_tile(tile_at, whole, has_state, hi_from, lo_from, hi_to, lo_to);
    }
    memoryBarrierBuffer();
    barrier();
}

/* ---- The row ---- */

/* The first channel of four of the row: of the key, then of the query, then of the workgroup's values. */
uint channel_of(uint four)
{
    const uint of_head = head_k / 4, values_at_ = 2 * k_heads * head_k + v_head * head_v + first_value;
    const uint of_keys = (four < of_head ? k_heads + k_head : k_head) * head_k + 4 * (four % of_head);
    return four < 2 * of_head ? of_keys : values_at_ + 4 * (four - 2 * of_head);
}

void keep_channels(uint four, vec4 x)
{
    const uint of_head = head_k / 4;
    if (four < 2 * of_head)
        row_keys[four / of_head * (MAX_KEYS / 4) + four % of_head] = x;
    else
        new_values[four - 2 * of_head] = x;
}

/* Writes the row's key, query and values to shared memory: what conv.comp computes, with the same order of sums. One
 * workgroup stores the key for append.comp. */
void convolve_row(uint width)
{
    const uint quad = lane() % (LANES / 2);
    const bool is_key = lane() < LANES / 2, is_active = 4 * quad < head_k;
    [[dont_unroll]] for (uint four = lane(); four < (2 * head_k + n_values) / 4; four += LANES)
        keep_channels(four, convolve(s, row, channel_of(four), width));
    barrier();
    vec4 value = vec4(0);
    if (is_active)
        value = row_keys[lane()];
    lanes[lane()] = squares_of(value);
    barrier();
    [[dont_unroll]] for (uint half_ = LANES / 4; half_ > 0; half_ /= 2) {
        if (quad < half_) {
            precise const float sum = lanes[lane()] + lanes[lane() + half_];
            lanes[lane()] = sum;
        }
        barrier();
    }
    precise const float norm = 1.0 / sqrt(lanes[is_key ? 0 : LANES / 2] + 1e-6);
    precise vec4 result = value * norm;
    for (uint i = 0; i < 4 && is_key; i++)
        result[i] = half_to_float(float_to_half(result[i]));
    if (is_active)
        row_keys[lane()] = result;
    if (is_active && is_key && v_head == k_head && first_value == 0)
        Vec4s(advance(convolved, row * width + channel_of(quad), 4)).at[0] = result;
}

/* What conv.comp has computed. */
void load_convolved(uint width)
{
    for (uint four = lane(); four < (2 * head_k + n_values) / 4; four += LANES)
        keep_channels(four, Vec4s(advance(qkv, row * width + channel_of(four), 4)).at[0]);
}

/* What is read of the row, and of earlier rows' values and decays, to shared memory. */
void load_row(uint width)
{
    const uint octets = n_values / 8;
    uvec4 loaded[CHUNK * VALUES / 8 / LANES];
    [[unroll]] for (uint u = 0; u < CHUNK * VALUES / 8 / LANES; u++) {
        const uint j = (u * LANES + lane()) / (VALUES / 8), octet = min(lane() % (VALUES / 8), octets - 1);
        loaded[u] = UVec4s(address_at(values_of_open, 2 * (min(j, max(n_open, 1) - 1) * head_v + 8 * octet))).at[0];
    }
    float log_decay_ = 0, value_scale = 0;
    if (lane() < CHUNK) {
        log_decay_ = Floats(address_at(log_decays_of, 4 * lane())).at[0];
        value_scale = Floats(address_at(scales, 4 * lane())).at[0];
    }
    if (is_null(convolved))
        load_convolved(width);
    else
        convolve_row(width);
    [[unroll]] for (uint u = 0; u < CHUNK * VALUES / 8 / LANES; u++)
        old_values[u * LANES + lane()] = loaded[u];
    if (lane() < CHUNK) {
        log_decays[lane() / 4][lane() % 4] = log_decay_;
        value_scales[lane()] = value_scale;
    }
    barrier();
}

/* The sum of the log decays of rows [first, n_open]. */
float decay_from(uint first)
{
    precise float sum = 0;
    [[dont_unroll]] for (uint t = 0; t <= n_open; t += 4) {
        const vec4 four = log_decays[t / 4];
        [[unroll]] for (uint i = 0; i < 4; i++)
            sum += t + i >= first && t + i <= n_open ? four[i] : 0.0;
    }
    return sum;
}

/* Writes the scores of the rows up to this one, with their decays. */
void compute_scores(uint item, uint part, uvec4 loaded[UNITS])
{
    const float decay = decay_from(item + 1);
    float sum = 0;
    for (uint tile_at = 0; tile_at < head_k; tile_at += 8 * TILE_OCTETS) {
        if (tile_at > 0)
            load_items(keys, max(n_open, 1), tile_at, loaded);
        barrier();
        store_items(loaded, n_open);
        store_own_key(tile_at);
        barrier();
        if (item <= n_open)
            add_products(item, part, tile_at, sum);
    }
    precise const float score = exp_of(decay) * sum;
    scores[part * CHUNK + item] = score;
}

/* Returns the product of the state with k or q. */
float multiply_state(uint item, uint part, uvec4 loaded[UNITS])
{
    float sum = 0;
    for (uint tile_at = 0; tile_at < head_k; tile_at += 8 * TILE_OCTETS) {
        if (tile_at > 0)
            load_items(state, n_values, tile_at, loaded);
        barrier();
        store_items(loaded, n_values);
        barrier();
        if (item < n_values)
            add_products(item, part, tile_at, sum);
    }
    return sum;
}

/* Rounds v' of the row, which `pending` has, and stores it in the open chunk. Returns the rounded value. */
float store_values(uint item)
{
    float most = 0;
    const uint n = VALUES * min(v_heads, 1); /* drivers unroll loops whose ends they know, and code comes from memory */
    [[dont_unroll]] for (uint v = 0; v < n; v += 8)
        [[unroll]] for (uint i = 0; i < 8; i++)
            most = max(most, abs(pending[v + i]));
    const uint exponent = floatBitsToUint(most) >> 23, shifted = exponent < 15 ? 1 : exponent - 14;
    const float step_ = uintBitsToFloat(shifted << 23), inverse = uintBitsToFloat(254 - shifted << 23);
    precise const float scaled = pending[item] * inverse;
    precise const float rounded = half_to_float(float_to_half(scaled)) * step_;
    barrier();
    if (lane() < VALUES)
        pending[item] = rounded;
    barrier();
    if (lane() < n_values / 2) {
        precise const vec2 pair = vec2(pending[2 * lane()], pending[2 * lane() + 1]) * inverse;
        Words(address_at(values_of_open, 2 * (n_open * head_v + 2 * lane()))).at[0] = floats_to_halves(pair);
    }
    if (lane() == 0)
        Floats(address_at(scales, 4 * n_open)).at[0] = step_;
    return rounded;
}

/* ---- The gated norm ---- */

/* The head's results as prepare.comp computes them, to the bit: a lane has values `lane` and LANES + lane. */
void norm_head(uvec2 to, const float weight[2], const float gate[2])
{
    const uint repeats = results >> 16, groups = v_heads / repeats, planes = results & 0xffff,
               first = ((v_head % groups) * repeats + v_head / groups) * head_v, width = v_heads * head_v;
    float x[2] = { 0, 0 };
    precise float sum = 0;
    for (uint i = 0; i < 2; i++)
        if (i * LANES + lane() < head_v) {
            x[i] = Results(advance(y, row * v_heads + v_head, 4 * head_v)).at[i * LANES + lane()];
            sum += x[i] * x[i];
        }
    precise const float mean = sum_of_lanes(sum) / float(head_v) + eps;
    precise const float factor = 1.0 / sqrt(mean);
    for (uint i = 0; i < 2; i++)
        if (i * LANES + lane() < head_v) {
            precise const float value = x[i] * factor * weight[i] * silu(gate[i]);
            values[i * LANES + lane()] = value;
        }
    barrier();
    Layer l = Layer(layer);
    if (l.transform_factor != 0) {
        if (!is_null(l.signs))
            multiply_by_signs(advance(l.signs, first, 4), head_v, head_v);
        transform_heads(head_v, head_v, l.transform_factor);
    }
    quantize(advance(to, row, act_row_bytes(width, planes)), 1, 0, width, planes, first, head_v);
}

void main()
{
    k_heads = heads & 0xffff;
    v_heads = heads >> 16;
    head_k = dims & 0xffff;
    head_v = dims >> 16;
    const uint groups = (head_v + VALUES - 1) / VALUES, item = lane() % CHUNK, part = lane() / CHUNK;
    s = Sequences(sequences).at[gl_WorkGroupID.y];
    if (s.end - s.begin != 1)
        return;
    v_head = gl_WorkGroupID.x / groups;
    k_head = v_head % k_heads;
    first_value = gl_WorkGroupID.x % groups * VALUES;
    n_values = min(VALUES, head_v - first_value);
    row = s.begin;
    n_open = s.position - s.state_position;
    const bool folds = n_open == CHUNK;
    const uint width = 2 * k_heads * head_k + v_heads * head_v;
    float beta = Floats(betas).at[row * v_heads + v_head], own_decay = Floats(decays).at[row * v_heads + v_head],
          factor_ = 0, bias_ = 0;
    uvec2 norm_to = uvec2(0), arrived = uvec2(0);
    float norm_weight[2] = { 0, 0 }, norm_gate[2] = { 0, 0 };
    if (!is_null(convolved)) {
        Layer l = Layer(layer);
        factor_ = Floats(l.factor).at[v_head];
        bias_ = is_null(l.bias) ? 0.0 : Floats(l.bias).at[v_head];
        arrived = l.arrived;
        norm_to = is_null(l.gate) ? uvec2(0) : l.codes;
        for (uint i = 0; i < 2 && !is_null(l.gate); i++) {
            const uint at = min(i * LANES + lane(), head_v - 1);
            norm_weight[i] = Floats(l.norm).at[at];
            norm_gate[i] = Floats(advance(l.gate, row * v_heads + v_head, 4 * head_v)).at[at];
        }
    }
    const bool has_state = s.state_position != 0;
    uvec4 loaded_keys[UNITS], loaded_state[UNITS];
    find_places();
    if (has_state)
        state = plane_of(s.from, 0);
    load_items(keys, max(n_open, 1), 0, loaded_keys);
    if (has_state)
        load_items(state, n_values, 0, loaded_state);
    load_row(width);
    if (!is_null(convolved)) {
        own_decay = log_decay_of(own_decay, bias_, factor_);
        beta = sigmoid(beta);
    }
    if (folds) {
        fold(has_state);
        n_open = 0;
        state = plane_of(s.to, 0);
        for (uint u = 0; u < UNITS; u++)
            loaded_state[u] = Written(address_at(state, 2 * (min(unit_item(u), n_values - 1) * head_k +
                                                            min(8 * unit_octet(), head_k - 8)))).at[0];
    }
    if (lane() == 0)
        log_decays[n_open / 4][n_open % 4] = own_decay;
    barrier();
    compute_scores(item, part, loaded_keys);
    const float since = decay_from(0);
    precise float sum = 0;
    if (has_state || folds)
        sum = multiply_state(item, part, loaded_state);
    barrier();
    sum = exp_of(since) * sum;
    for (uint j = 0; j < n_open; j++)
        sum = fma(scores[part * CHUNK + j], value_of(j, item), sum);
    if (part == 0) {
        precise const float v = item < n_values ? beta * (new_values[item / 4][item % 4] - sum) : 0.0;
        pending[item] = v;
    }
    barrier();
    const float rounded = store_values(item);
    if (part == 1 && item < n_values) {
        sum = fma(scores[CHUNK + n_open], rounded, sum);
        precise const float result = scale * sum;
        Results(advance(y, row * v_heads + v_head, 4 * head_v)).at[first_value + item] = result;
    }
    if (!is_null(norm_to) && is_last_of(arrived, row * v_heads + v_head, groups))
        norm_head(norm_to, norm_weight, norm_gate);
}
