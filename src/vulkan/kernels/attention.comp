#version 450
/* Attention of a tile of queries, page by page with an online softmax: queries of one KV head whose positions are in one
 * page, so that a workgroup reads the keys and values of a page once for all of them. A lane has a key, then columns of
 * the values. The arithmetic of a query does not depend on the others of its tile.
 *
 * Splits: a workgroup has a tile of the query heads of a row, and one split of the pages; it writes a partial, which
 * combine.comp merges, or, for a single row, the last workgroup of the tile. Else a workgroup has rows of a piece and
 * all splits, and writes results.
 *
 * In a cache of codes page 0 and the page of the query's position are fp16; all is in the rotated basis, and codes of
 * keys lack the mean of page 0's keys (docs/internals/caches.md). */
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "pages.glsl"
#include "splits.glsl"

#define F16 16
#define UNITS_AHEAD 8 /* 16 bytes of a key, which are in flight */
#define KEYS_AHEAD 12 /* likewise, of which the values are */

layout(constant_id = 0) const uint DIM = 64;
layout(constant_id = 1) const uint QUERIES = 4; /* of a tile, at most 8 */
layout(constant_id = 2) const uint KEY_BITS = F16;
layout(constant_id = 3) const uint VALUE_BITS = F16;
layout(constant_id = 4) const uint HAS_SPLITS = 1;
layout(constant_id = 5) const uint COMBINES = 0; /* splits: their last workgroup writes activations of a matmul */
const uint PAIRS = (DIM / 2 + LANES - 1) / LANES; /* of dimensions, of a lane */
const uint VALUES_AHEAD = KEYS_AHEAD * PAIRS;
#define TOGETHER 4 /* splits whose partials are loaded together */
const uint TOGETHER_QUERIES = TOGETHER * QUERIES, TOGETHER_PAIRS = TOGETHER_QUERIES * PAIRS;

layout(push_constant) uniform Args {
    uvec2 queries, y;                   /* [rows][heads][dim]; y: with splits, partials from row `row` on */
    uvec2 tables, f16_tables;           /* of the step's inputs; without codes both are the same */
    uvec2 positions, sequences;         /* likewise, with splits */
    uvec2 granules;
    uvec2 levels;                       /* qn_vk_levels */
    uint shift;
    uint heads_per_kv, n_heads;
    uint key_at, value_at, key_scales_at, value_scales_at; /* of the layer in a page of codes */
    uint f16_key_at, f16_value_at, means_at;               /* of the layer in an fp16 page */
    uint row;                                              /* the first */
    /* Without splits: of the piece. With: position and sequence are the address of Combine. */
    uint n_rows, position, sequence;
    uint n_splits;                                         /* of the partials of a head */
};

/* qn_vk_combination: what combine.comp reads, and how many splits of a tile have been written. */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Combine {
    uvec2 arrived;      /* [tiles] */
    uvec2 signs, matrix; /* rotation.glsl */
    uvec2 codes, gates; /* a row of integers; [heads]: [dim] queries, [dim] gates, 0: none */
    uint planes;
    float factor;
};

layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer Partials { vec2 at[]; };

const uint COMBINED = COMBINES != 0 ? QUERIES * DIM : 4;
#define MAX_HEAD COMBINED
#include "rotation.glsl"
#define values head
#define MAX_VALUES COMBINED
#include "arrive.glsl"
#include "gates.glsl"
#include "quantize.glsl"
#undef values

const uint TEAM = 8; /* lanes that have a query's scores */

shared vec4 tile[QUERIES * DIM / 4];
shared uint query_at[QUERIES]; /* row * n_heads + head */
shared uint visible[QUERIES];  /* positions of the page of the query's own position */
shared float scores[QUERIES * PAGE];
shared vec4 weights[PAGE * QUERIES / 4]; /* of queries 4i to 4i + 3, times the scales of values */
shared float value_scales[PAGE], team_sums[LANES];
shared float maxima[QUERIES], totals[QUERIES], kept[QUERIES], mean_scores[QUERIES];
shared float all_maxima[QUERIES], all_totals[QUERIES]; /* of all splits so far */
shared float codebooks[512];                           /* of keys, then of values from 256 on */

vec2 sums[PAIRS * QUERIES], all_sums[PAIRS * QUERIES];

/* One: drivers unroll loops whose ends they know, and code comes from memory. */
uint unknown_one()
{
    return min(n_heads, 1);
}

/* ---- Rows of keys and values ---- */

uint row_words(uint bits)
{
    return (DIM * bits + 31) / 32;
}

/* The words of a key that a lane reads at a time. */
uint unit_words(uint bits)
{
    return bits == 3 || bits == 6 ? 3 : DIM * bits % 128 == 0 ? 4 : 1;
}

uint word_at(Place rows, uint offset)
{
    return Words(address_at(rows, offset)).at[0];
}

uvec4 load_unit(Place rows, uint row, uint word, uint bits)
{
    const uint end = row_words(bits), at = 4 * (row * end + word);
    if (unit_words(bits) == 4)
        return UVec4s(address_at(rows, at)).at[0];
    uvec4 unit = uvec4(word_at(rows, at), 0, 0, 0);
    if (unit_words(bits) == 3) {
        unit.y = word + 1 < end ? word_at(rows, at + 4) : 0;
        unit.z = word + 2 < end ? word_at(rows, at + 8) : 0;
    }
    return unit;
}

float value_of(uvec4 unit, uint i, uint bits, uint codebook)
{
    const uint at = i * bits, word = at / 32, shift_ = at % 32;
    uint code = unit[word] >> shift_;
    if (shift_ + bits > 32)
        code |= unit[word + 1] << 32 - shift_;
    return codebooks[codebook + (code & (1u << bits) - 1)];
}

/* Values [4i, 4i + 4) of a unit. */
vec4 quad_of(uvec4 unit, uint i, uint bits, uint codebook)
{
    if (bits == F16)
        return vec4(halves_to_floats(unit[2 * i]), halves_to_floats(unit[2 * i + 1]));
    return vec4(value_of(unit, 4 * i, bits, codebook), value_of(unit, 4 * i + 1, bits, codebook),
                value_of(unit, 4 * i + 2, bits, codebook), value_of(unit, 4 * i + 3, bits, codebook));
}

/* Whether values 2 * pair and 2 * pair + 1 may be in two words. */
bool is_split(uint bits)
{
    return 32 % (2 * bits) != 0;
}

/* The words of values 2 * pair and 2 * pair + 1 of a row. */
uvec2 load_pair(Place rows, uint row, uint pair, uint bits)
{
    const uint word = row * row_words(bits) + 2 * pair * bits / 32, last = PAGE * row_words(bits) - 1;
    return uvec2(word_at(rows, 4 * word), is_split(bits) ? word_at(rows, 4 * min(word + 1, last)) : 0);
}

vec2 pair_of(uvec2 words, uint pair, uint bits, uint codebook)
{
    if (bits == F16)
        return halves_to_floats(words.x);
    const uint shift_ = 2 * pair * bits % 32, mask = (1u << bits) - 1;
    uint codes = words.x >> shift_;
    if (shift_ + 2 * bits > 32)
        codes |= words.y << 32 - shift_;
    return vec2(codebooks[codebook + (codes & mask)], codebooks[codebook + (codes >> bits & mask)]);
}

/* ---- A page ---- */

struct Page {
    Place keys, values;
    uvec2 key_scales, value_scales; /* of codes: addresses of the lane's */
    uint n;                         /* positions that a query of the tile attends to */
};

/* The scores of the lane's key. */
void write_scores(Page page, uint bits, bool is_own)
{
    const uint lane = gl_LocalInvocationIndex;
    precise float dots[QUERIES];
    for (uint q = 0; q < QUERIES; q++)
        dots[q] = 0;
    const uint step = unit_words(bits), quads = step * 32 / bits / 4, last = (row_words(bits) - 1) / step * step;
    uvec4 units[UNITS_AHEAD];
    for (uint i = 0; i < UNITS_AHEAD; i++)
        units[i] = load_unit(page.keys, lane, min(i * step, last), bits);
    const uint words = row_words(bits) * unknown_one();
    [[dont_unroll]] for (uint word = 0, first = 0; word < words; word += step, first += quads) {
        const uvec4 unit = units[0];
        for (uint i = 0; i + 1 < UNITS_AHEAD; i++)
            units[i] = units[i + 1];
        units[UNITS_AHEAD - 1] = load_unit(page.keys, lane, min(word + UNITS_AHEAD * step, last), bits);
        for (uint i = 0; i < quads; i++) {
            if (DIM * bits % (32 * step) != 0 && 4 * (first + i) >= DIM)
                break;
            const vec4 key = quad_of(unit, i, bits, 0);
            for (uint q = 0; q < QUERIES; q++) {
                const vec4 x = tile[q * (DIM / 4) + first + i];
                precise float dot_ = fma(key.x, x.x, dots[q]);
                dot_ = fma(key.y, x.y, dot_);
                dot_ = fma(key.z, x.z, dot_);
                dot_ = fma(key.w, x.w, dot_);
                dots[q] = dot_;
            }
        }
    }
    const bool has_codes = bits != F16;
    const float scale = has_codes ? Floats(page.key_scales).at[0] : 1.0;
    value_scales[lane] = has_codes ? Floats(page.value_scales).at[0] : 1.0;
    for (uint q = 0; q < QUERIES; q++) {
        precise const float score = has_codes ? dots[q] * scale + mean_scores[q] : dots[q];
        scores[q * PAGE + lane] = is_own && lane >= visible[q] ? LOWEST : score;
    }
    barrier();
}

/* Weights of the page's keys, by TEAM lanes for each query. */
void write_weights()
{
    const uint lane = gl_LocalInvocationIndex, q = lane / TEAM, of_team = lane % TEAM;
    float most = LOWEST, before = LOWEST;
    precise float sum = 0;
    if (q < QUERIES) {
        for (uint i = 0; i < PAGE / TEAM; i++)
            most = max(most, scores[q * PAGE + i * TEAM + of_team]);
        before = maxima[q];
    }
    lanes[lane] = most;
    barrier();
    if (q < QUERIES) {
        most = before;
        for (uint i = 0; i < TEAM; i++)
            most = max(most, lanes[q * TEAM + i]);
        for (uint i = 0; i < PAGE / TEAM; i++) {
            const uint key = i * TEAM + of_team;
            precise const float difference = scores[q * PAGE + key] - most, weight = exp_of(difference);
            precise const float scaled = weight * value_scales[key];
            sum += weight;
            weights[(key * QUERIES + q) / 4][q % 4] = scaled;
        }
        team_sums[lane] = sum;
    }
    barrier();
    if (q < QUERIES && of_team == 0) {
        precise const float difference = before - most, factor = exp_of(difference);
        sum = team_sums[lane];
        for (uint i = 1; i < TEAM; i++)
            sum += team_sums[lane + i];
        precise const float total = totals[q] * factor + sum;
        totals[q] = total;
        kept[q] = factor;
        maxima[q] = most;
    }
    barrier();
}

/* Whether the lane has pair i of its pairs of dimensions. */
bool has_pair(uint i)
{
    return DIM / 2 % LANES == 0 || i * LANES + gl_LocalInvocationIndex < DIM / 2;
}

/* The words of the lane's values of four keys. */
void load_keys(Place rows, uint key, uint bits, uint at, inout uvec2 loaded[VALUES_AHEAD])
{
    for (uint k = 0; k < 4; k++)
        for (uint i = 0; i < PAIRS; i++)
            loaded[(at + k) * PAIRS + i] =
                load_pair(rows, min(key, PAGE - 4) + k, min(i * LANES + gl_LocalInvocationIndex, DIM / 2 - 1), bits);
}

/* The weights of keys from n on are 0. */
void add_values(Page page, uint bits)
{
    uvec2 loaded[VALUES_AHEAD];
    for (uint at = 0; at < KEYS_AHEAD; at += 4)
        load_keys(page.values, at, bits, at, loaded);
    for (uint i = 0; i < PAIRS * QUERIES; i++) {
        precise const vec2 sum = sums[i] * kept[i % QUERIES];
        sums[i] = sum;
    }
    [[dont_unroll]] for (uint key = 0; key < page.n; key += 4) {
        for (uint i = 0; i < PAIRS; i++) {
            const uint pair = i * LANES + gl_LocalInvocationIndex;
            const vec2 a = pair_of(loaded[i], pair, bits, 256), b = pair_of(loaded[PAIRS + i], pair, bits, 256),
                       c = pair_of(loaded[2 * PAIRS + i], pair, bits, 256),
                       d = pair_of(loaded[3 * PAIRS + i], pair, bits, 256);
            for (uint four = 0; four < QUERIES / 4; four++) {
                const uint at = key * (QUERIES / 4) + four;
                const vec4 of_a = weights[at], of_b = weights[at + QUERIES / 4], of_c = weights[at + 2 * (QUERIES / 4)],
                           of_d = weights[at + 3 * (QUERIES / 4)];
                for (uint q = 0; q < 4; q++) {
                    precise vec2 sum = fma(vec2(of_a[q]), a, sums[i * QUERIES + 4 * four + q]);
                    sum = fma(vec2(of_b[q]), b, sum);
                    sum = fma(vec2(of_c[q]), c, sum);
                    sum = fma(vec2(of_d[q]), d, sum);
                    sums[i * QUERIES + 4 * four + q] = sum;
                }
            }
        }
        for (uint i = 0; i < (KEYS_AHEAD - 4) * PAIRS; i++)
            loaded[i] = loaded[i + 4 * PAIRS];
        load_keys(page.values, key + KEYS_AHEAD, bits, KEYS_AHEAD - 4, loaded);
    }
}

/* ---- Tiles ---- */

uint kv_head, own_page, tile_positions, sequence_of_tile; /* tile_positions: of the own page */

uvec2 page_entry(uvec2 of_step, uint page)
{
    return Addresses(Addresses(of_step).at[sequence_of_tile]).at[page];
}

Page f16_page(uint index)
{
    const uint bytes = PAGE * DIM * 2;
    const uvec2 at = page_entry(f16_tables, index);
    Page page;
    page.keys = place_of(granules, shift, add_bytes(at, f16_key_at + kv_head * bytes), bytes);
    page.values = place_of(granules, shift, add_bytes(at, f16_value_at + kv_head * bytes), bytes);
    page.key_scales = page.value_scales = uvec2(0);
    page.n = index == own_page ? tile_positions : PAGE;
    return page;
}

Page page_of_codes(uint index)
{
    const uint key_bytes = PAGE * 4 * row_words(KEY_BITS), value_bytes = PAGE * 4 * row_words(VALUE_BITS),
               scale = (kv_head * PAGE + gl_LocalInvocationIndex) * 4;
    const uvec2 at = page_entry(tables, index);
    Page page;
    page.keys = place_of(granules, shift, add_bytes(at, key_at + kv_head * key_bytes), key_bytes);
    page.values = place_of(granules, shift, add_bytes(at, value_at + kv_head * value_bytes), value_bytes);
    page.key_scales = address_in_pool(granules, shift, add_bytes(at, key_scales_at + scale));
    page.value_scales = address_in_pool(granules, shift, add_bytes(at, value_scales_at + scale));
    page.n = PAGE;
    return page;
}

void add_page(uint index)
{
    if (KEY_BITS == F16 || index == 0 || index == own_page) {
        const Page page = f16_page(index);
        write_scores(page, F16, index == own_page);
        write_weights();
        add_values(page, F16);
    } else {
        const Page page = page_of_codes(index);
        write_scores(page, KEY_BITS, false);
        write_weights();
        add_values(page, VALUE_BITS);
    }
}

/* Sets the tile, whose query q is query first + q of n: heads_per_kv of each row. */
void begin_tile(uint first, uint n, uint first_row, uint first_visible)
{
    const uint lane = gl_LocalInvocationIndex;
    for (uint i = lane; i < QUERIES * DIM / 4; i += LANES) {
        const uint q = first + i / (DIM / 4), from_row = first_row + q / heads_per_kv,
                   h = kv_head * heads_per_kv + q % heads_per_kv;
        vec4 x = vec4(0);
        if (q < n)
            x = Vec4s(advance(queries, from_row * n_heads + h, 4 * DIM)).at[i % (DIM / 4)];
        tile[i] = x;
    }
    if (lane < QUERIES) {
        const uint q = min(first + lane, n - 1);
        query_at[lane] = (first_row + q / heads_per_kv) * n_heads + kv_head * heads_per_kv + q % heads_per_kv;
        visible[lane] = first_visible + q / heads_per_kv;
        all_maxima[lane] = maxima[lane] = LOWEST;
        all_totals[lane] = totals[lane] = 0;
    }
    for (uint i = 0; i < PAIRS * QUERIES; i++)
        sums[i] = all_sums[i] = vec2(0);
    if (KEY_BITS != F16)
        for (uint i = lane; i < 256; i += LANES) {
            codebooks[i] = Floats(levels).at[256 + i];
            codebooks[256 + i] = Floats(levels).at[768 + i];
        }
    barrier();
    tile_positions = visible[QUERIES - 1]; /* the most */
}

/* The scores of the queries with the mean of page 0's keys. */
void begin_codes()
{
    const uint lane = gl_LocalInvocationIndex, q = lane / TEAM, of_team = lane % TEAM;
    const uvec2 at = add_bytes(page_entry(f16_tables, 0), means_at + kv_head * DIM * 4);
    precise float sum = 0;
    for (uint i = of_team; i < DIM / 4 && q < QUERIES; i += TEAM) {
        const vec4 mean = Vec4s(address_in_pool(granules, shift, advance(at, i, 16))).at[0], x = tile[q * (DIM / 4) + i];
        sum += mean.x * x.x;
        sum += mean.y * x.y;
        sum += mean.z * x.z;
        sum += mean.w * x.w;
    }
    team_sums[lane] = sum;
    barrier();
    if (q < QUERIES && of_team == 0) {
        for (uint i = 1; i < TEAM; i++)
            sum += team_sums[lane + i];
        mean_scores[q] = sum;
    }
    barrier();
}

void write_partial(uint n, uint split)
{
    const uint lane = gl_LocalInvocationIndex;
    /* Indices of `sums` are constants, in registers: so the loop does not end at n. */
    [[unroll]] for (uint q = 0; q < QUERIES; q++) {
        if (q >= n)
            continue;
        const uvec2 to = advance(y, (query_at[q] - row * n_heads) * n_splits + split, 4 * (DIM + PARTIAL_EXTRA));
        for (uint i = 0; i < PAIRS; i++) {
            const uint pair = i * LANES + lane;
            if (!has_pair(i))
                continue;
            Partials(to).at[pair] = sums[i * QUERIES + q];
        }
        if (lane == 0)
            Partials(to).at[DIM / 2] = vec2(maxima[q], totals[q]);
    }
}

/* ---- The last workgroup of a tile's splits ---- */

/* Merges the tile's partials in the order of splits into `sums` and `total`: what combine.comp computes. */
void merge_partials(uint n_used, out float total[QUERIES])
{
    float most[QUERIES];
    for (uint i = 0; i < PAIRS * QUERIES; i++)
        sums[i] = vec2(0);
    for (uint q = 0; q < QUERIES; q++) {
        total[q] = 0;
        most[q] = LOWEST;
    }
    [[dont_unroll]] for (uint first = 0; first < n_used; first += TOGETHER) {
        vec2 loaded[TOGETHER_PAIRS], ends[TOGETHER_QUERIES];
        for (uint s = 0; s < TOGETHER; s++)
            for (uint q = 0; q < QUERIES; q++) {
                const uint split = (query_at[q] - row * n_heads) * n_splits + min(first + s, n_used - 1);
                Partials from = Partials(advance(y, split, 4 * (DIM + PARTIAL_EXTRA)));
                for (uint i = 0; i < PAIRS; i++)
                    loaded[(s * PAIRS + i) * QUERIES + q] =
                        from.at[min(i * LANES + gl_LocalInvocationIndex, DIM / 2 - 1)];
                ends[s * QUERIES + q] = from.at[DIM / 2];
            }
        for (uint s = 0; s < TOGETHER; s++)
            for (uint q = 0; q < QUERIES && first + s < n_used; q++) {
                const vec2 end = ends[s * QUERIES + q], factors = merge_factors(most[q], end.x);
                for (uint i = 0; i < PAIRS; i++) {
                    precise const vec2 sum =
                        sums[i * QUERIES + q] * factors.x + loaded[(s * PAIRS + i) * QUERIES + q] * factors.y;
                    sums[i * QUERIES + q] = sum;
                }
                precise const float both = total[q] * factors.x + end.y * factors.y;
                total[q] = both;
                most[q] = max(most[q], end.x);
            }
    }
}

/* Writes the activations of n heads of a row. A single split is not merged. */
void combine(Combine c, uint n, uint n_used)
{
    const uint lane = gl_LocalInvocationIndex, first = query_at[0] - row * n_heads;
    float total[QUERIES];
    for (uint q = 0; q < QUERIES; q++)
        total[q] = totals[q];
    if (n_used > 1)
        merge_partials(n_used, total);
    [[unroll]] for (uint q = 0; q < QUERIES; q++)
        for (uint i = 0; i < PAIRS; i++) {
            const uint pair = i * LANES + lane;
            if (q >= n || !has_pair(i))
                continue;
            precise const vec2 value = sums[i * QUERIES + q] / total[q];
            head[q * DIM + 2 * pair] = value.x;
            head[q * DIM + 2 * pair + 1] = value.y;
        }
    barrier();
    rotate_heads_back(c.signs, c.matrix, DIM, n * DIM, c.factor);
    for (uint i = lane; i < n * DIM && !is_null(c.gates); i += LANES) {
        Floats gate = Floats(advance(c.gates, (first + i / DIM) * 2 + 1, 4 * DIM));
        precise const float value = head[i] * sigmoid(gate.at[i % DIM]);
        head[i] = value;
    }
    barrier();
    quantize(c.codes, 1, 0, n_heads * DIM, c.planes, first * DIM, n * DIM);
}

void finish_split(uint n)
{
    const uint per_split = pages_per_split(own_page + 1), n_used = (own_page + per_split) / per_split;
    Combine c = Combine(uvec2(position, sequence));
    if (n_used > 1) {
        write_partial(n, gl_WorkGroupID.z);
        if (!is_last_of(c.arrived, gl_WorkGroupID.x, n_used))
            return;
    }
    combine(c, n, n_used);
}

/* ---- All splits ---- */

/* Merges the split, and begins the next one. */
void merge_split()
{
    const uint lane = gl_LocalInvocationIndex;
    for (uint q = 0; q < QUERIES; q++) {
        const vec2 factors = merge_factors(all_maxima[q], maxima[q]);
        for (uint i = 0; i < PAIRS; i++) {
            precise const vec2 sum = all_sums[i * QUERIES + q] * factors.x + sums[i * QUERIES + q] * factors.y;
            all_sums[i * QUERIES + q] = sum;
            sums[i * QUERIES + q] = vec2(0);
        }
    }
    barrier();
    if (lane < QUERIES) {
        const vec2 factors = merge_factors(all_maxima[lane], maxima[lane]);
        precise const float total = all_totals[lane] * factors.x + totals[lane] * factors.y;
        all_totals[lane] = total;
        all_maxima[lane] = max(all_maxima[lane], maxima[lane]);
        maxima[lane] = LOWEST;
        totals[lane] = 0;
    }
    barrier();
}

void write_results(uint n)
{
    [[unroll]] for (uint q = 0; q < QUERIES; q++) {
        if (q >= n)
            continue;
        Floats to = Floats(advance(y, query_at[q], 4 * DIM));
        for (uint i = 0; i < PAIRS; i++) {
            const uint pair = i * LANES + gl_LocalInvocationIndex;
            if (!has_pair(i))
                continue;
            precise const vec2 value = all_sums[i * QUERIES + q] / all_totals[q];
            to.at[2 * pair] = value.x;
            to.at[2 * pair + 1] = value.y;
        }
    }
}

/* ---- Workgroups ---- */

/* Returns whether the workgroup has a split. */
bool begin_split(uint first, out uint page, out uint end)
{
    const uint own_row = row + gl_WorkGroupID.y;
    sequence_of_tile = Words(sequences).at[own_row];
    if (sequence_of_tile == 0xffffffff)
        return false;
    const uint at = Words(positions).at[own_row];
    own_page = at / PAGE;
    const uint per_split = pages_per_split(own_page + 1);
    page = gl_WorkGroupID.z * per_split;
    end = min(page + per_split, own_page + 1);
    if (page >= end)
        return false;
    begin_tile(first, heads_per_kv, own_row, at % PAGE + 1);
    return true;
}

/* Returns whether the workgroup has a tile; n: of its queries. */
bool begin_rows(out uint n)
{
    own_page = position / PAGE + gl_WorkGroupID.z;
    sequence_of_tile = sequence;
    const uint begin = max(position, own_page * PAGE), end = min(position + n_rows, (own_page + 1) * PAGE),
               first = gl_WorkGroupID.x * QUERIES, all = (end - begin) * heads_per_kv;
    if (first >= all)
        return false;
    n = min(QUERIES, all - first);
    begin_tile(first, all, row + begin - position, begin % PAGE + 1);
    return true;
}

void run(uint page, uint end, uint n)
{
    if (KEY_BITS != F16 && own_page > 1)
        begin_codes();
    const uint per_split = pages_per_split(own_page + 1);
    for (; page < end; page++) {
        add_page(page);
        if (HAS_SPLITS == 0 && ((page + 1) % per_split == 0 || page == own_page))
            merge_split();
    }
    if (COMBINES != 0)
        finish_split(n);
    else if (HAS_SPLITS != 0)
        write_partial(n, gl_WorkGroupID.z);
    else
        write_results(n);
}

void main()
{
    const uint tiles = (heads_per_kv + QUERIES - 1) / QUERIES, first = gl_WorkGroupID.x % tiles * QUERIES;
    uint page = 0, end = 0, n = min(QUERIES, heads_per_kv - first);
    kv_head = HAS_SPLITS != 0 ? gl_WorkGroupID.x / tiles : gl_WorkGroupID.y;
    if (HAS_SPLITS != 0 ? begin_split(first, page, end) : begin_rows(n))
        run(page, HAS_SPLITS != 0 ? end : own_page + 1, n);
}
