#version 450
/* Quantises the keys or values of a head in a page that a step has completed to AURA codes (kernels/aura/aura.h), a
 * position for each lane. Page 0 gets no codes, but the mean of its keys, which is subtracted from all keys. */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"

#define MAX_HEAD 512 /* QN_VK_MAX_HEAD */

layout(constant_id = 0) const uint KEY_BITS = 4;
layout(constant_id = 1) const uint VALUE_BITS = 4;

layout(push_constant) uniform Args {
    uvec2 tables, f16_tables, first_positions, row_begins; /* of the step's inputs; row_begins: [pieces + 1] */
    uvec2 granules;
    uvec2 levels; /* qn_vk_levels */
    uint shift;
    uint dim;
    uint key_at, value_at, key_scales_at, value_scales_at; /* of the layer in a page of codes */
    uint f16_key_at, f16_value_at, means_at;               /* of the layer in an fp16 page */
    uint layer_bytes, f16_layer_bytes;                     /* to the same of the next layer */
    uint n_pieces; /* 0: workgroup i has the page that piece i may have completed; else the i-th page of all */
};

shared float mean[MAX_HEAD];
shared float boundaries[256], codebook[256];

/* The piece and its page that the workgroup quantises; false: none. */
bool find_page(out uint piece, out uint page)
{
    uint before = 0;
    for (piece = n_pieces == 0 ? gl_WorkGroupID.x : 0; n_pieces == 0 || piece < n_pieces; piece++) {
        const uint first = Words(first_positions).at[piece],
                   n = Words(row_begins).at[piece + 1] - Words(row_begins).at[piece],
                   n_pages = (first + n) / PAGE - first / PAGE;
        page = first / PAGE + (n_pieces == 0 ? 0 : gl_WorkGroupID.x - before);
        if (n_pieces == 0)
            return n_pages != 0;
        before += n_pages;
        if (gl_WorkGroupID.x < before)
            return true;
    }
    return false;
}

vec2 row_pair(Place rows, uint row, uint pair)
{
    return halves_to_floats(Words(address_at(rows, (row * dim + 2 * pair) * 2)).at[0]);
}

void find_mean(Place first_keys)
{
    for (uint pair = gl_LocalInvocationIndex; pair < dim / 2; pair += LANES) {
        precise vec2 sum = vec2(0);
        for (uint row = 0; row < PAGE; row++)
            sum += row_pair(first_keys, row, pair);
        mean[2 * pair] = sum.x / float(PAGE);
        mean[2 * pair + 1] = sum.y / float(PAGE);
    }
    barrier();
}

/* Encodes the lane's row. Returns its scale. */
float encode(Place rows, Place codes, bool is_key, uint bits)
{
    const uint lane = gl_LocalInvocationIndex, n_words = (dim * bits + 31) / 32;
    precise float square = 0, decoded = 0;
    for (uint pair = 0; pair < dim / 2; pair++) {
        precise vec2 x = row_pair(rows, lane, pair);
        if (is_key)
            x -= vec2(mean[2 * pair], mean[2 * pair + 1]);
        square += x.x * x.x;
        square += x.y * x.y;
    }
    precise const float norm = sqrt(square);
    const bool is_zero = !(norm > 1e-8);
    uint word = 0, used = 0, to = 0;
    for (uint d = 0; d < dim; d++) {
        precise float x = row_pair(rows, lane, d / 2)[d % 2];
        if (is_key)
            x -= mean[d];
        precise const float unit = is_zero ? 0.0 : x / norm;
        uint code = 0;
        for (uint step = 1u << bits - 1; step > 0; step /= 2)
            code += unit > boundaries[code + step - 1] ? step : 0;
        decoded += codebook[code] * codebook[code];
        word |= code << used;
        used += bits;
        if (used >= 32 || d == dim - 1) {
            Words(address_at(codes, 4 * (lane * n_words + to))).at[0] = word;
            to++;
            used -= 32;
            word = used == 0 || d == dim - 1 ? 0 : code >> bits - used;
        }
    }
    precise const float length_ = sqrt(decoded);
    precise const float scale = length_ > 1e-8 ? norm / length_ : norm;
    return scale;
}

void main()
{
    const uint kv_head = gl_WorkGroupID.y / 2, layer = gl_WorkGroupID.z, lane = gl_LocalInvocationIndex;
    const bool is_key = gl_WorkGroupID.y % 2 == 0;
    const uint bits = is_key ? KEY_BITS : VALUE_BITS, f16_bytes = PAGE * dim * 2,
               bytes = PAGE * 4 * ((dim * bits + 31) / 32);
    uint piece, page;
    if (!find_page(piece, page))
        return;
    Addresses f16_pages = Addresses(Addresses(f16_tables).at[piece]);
    const uint f16_at = layer * f16_layer_bytes, at = layer * layer_bytes;
    if (is_key)
        find_mean(place_of(granules, shift, add_bytes(f16_pages.at[0], f16_at + f16_key_at + kv_head * f16_bytes),
                           f16_bytes));
    if (page == 0) {
        const uvec2 to = add_bytes(f16_pages.at[0], f16_at + means_at + kv_head * dim * 4);
        for (uint i = lane; i < dim && is_key; i += LANES)
            Floats(address_in_pool(granules, shift, advance(to, i, 4))).at[0] = mean[i];
        return;
    }
    for (uint i = lane; i < 256; i += LANES) {
        boundaries[i] = Floats(levels).at[is_key ? i : 512 + i];
        codebook[i] = Floats(levels).at[is_key ? 256 + i : 768 + i];
    }
    barrier();
    const uvec2 of_page = advance(Addresses(Addresses(tables).at[piece]).at[page], 1, at);
    const Place rows = place_of(
        granules, shift,
        add_bytes(f16_pages.at[page], f16_at + (is_key ? f16_key_at : f16_value_at) + kv_head * f16_bytes), f16_bytes);
    const Place codes =
        place_of(granules, shift, add_bytes(of_page, (is_key ? key_at : value_at) + kv_head * bytes), bytes);
    const float scale = encode(rows, codes, is_key, bits);
    const uvec2 scale_at =
        add_bytes(of_page, (is_key ? key_scales_at : value_scales_at) + (kv_head * PAGE + lane) * 4);
    Floats(address_in_pool(granules, shift, scale_at)).at[0] = scale;
}
