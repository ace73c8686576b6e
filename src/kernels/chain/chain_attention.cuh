// Attention of one row inside a chain, over a cache of halves (qn_chain_attention), and the columns of the product that reads
// what it leaves (MERGED). Who meets whom, and when, is chain.cu's.
//
// A warp takes 64 dimensions of 16 positions at a time, straight from memory into registers, both of keys and of values: so a
// few positions are spread over many warps, whose loads are a single trip to memory, and sums take few registers. The warps of
// a tile add up their scores in shared memory. As in attention/decode.cu scores are keys times queries, with the query heads of
// a key-value head as the columns of the matrix unit, and results are values (transposed) times weights; which dimension goes
// to which index of a fragment is free as long as both sides agree, and so chosen that lanes load 16 bytes.
//
// With few positions instructions are what takes time: every one of them is issued for sixteen warps, and comes from far away
// once a layer. So loops stay loops where that is fewer.
#ifndef QN_KERNELS_CHAIN_CHAIN_ATTENTION_CUH
#define QN_KERNELS_CHAIN_CHAIN_ATTENTION_CUH

#include "kernels/chain/chain.cuh"

#define ATTENTION_KEYS 16 // positions of a tile
#define ATTENTION_COLUMNS QN_CHAIN_MOST_GROUP
#define ATTENTION_LOG_SLICE 6 // dimensions of a warp
#define ATTENTION_SLICE (1 << ATTENTION_LOG_SLICE)
#define ATTENTION_WARPS (QN_CHAIN_THREADS / QN_WARP)
#define ATTENTION_MOST_DIM 256
#define ATTENTION_LOWEST (-1e30f)
#define ATTENTION_PARTS 5 // that products of norms mostly leave, or fewer
#define ATTENTION_LOG2E 1.4426950408889634f
#define ATTENTION_LARGEST_HALF 65504.0f
#define ATTENTION_NAN_HALF 0x7e00
// Bytes from a group's tile to its next: as many tiles as there are groups further on, whatever the size of heads.
#define ATTENTION_STEP (ATTENTION_WARPS * ATTENTION_KEYS * ATTENTION_SLICE * 2)

// What the first part of a stage leaves for the second.
struct attention_making {
    float factors[ATTENTION_COLUMNS];                                           // what a score stands for, in powers of two
    __align__(16) uint16_t queries[ATTENTION_COLUMNS][ATTENTION_MOST_DIM + 32]; // 64 bytes apart: no lanes meet in a bank
    float2 squares[ATTENTION_COLUMNS + 2][2];                                   // of a row's halves, before and after weights
    union {
        float rows[ATTENTION_COLUMNS + 2][ATTENTION_MOST_DIM];
        float4 scores[2][ATTENTION_WARPS][QN_WARP];
    } u;
};

struct attention_shared {
    __align__(16) uint16_t own[2][ATTENTION_MOST_DIM]; // the row's own key and value
    float2 maxima[ATTENTION_WARPS][ATTENTION_COLUMNS]; // of each group: m, l
    union {
        attention_making making;
        float4 sums[ATTENTION_WARPS - 1][4][QN_WARP]; // of all groups but the first
    } u;
};

static_assert(sizeof(attention_shared) <= QN_CHAIN_SCRATCH, "attention takes more shared memory than stages have");

// A head is 1 << log_slices slices; as many warps are a group, which takes a tile at a time.
QN_DEVICE uint32_t attention_log_slices(uint32_t head_dim)
{
    return head_dim >> (ATTENTION_LOG_SLICE + 1); // 64, 128, 256: 0, 1, 2
}

// Tiles of a split, where positions up to `position` are shared out: few of them to many splits, since adding up what the warps
// of a block have costs more than another split.
QN_DEVICE uint32_t attention_share(uint32_t position, uint32_t n_splits)
{
    return (position / ATTENTION_KEYS + n_splits) >> (31 - __clz(n_splits));
}

struct attention_range {
    uint32_t kv_head, split, first, last, n_tiles; // of tiles; nothing to do where first is last
};

QN_DEVICE attention_range attention_range_of(const qn_chain_attention &s, uint32_t position)
{
    attention_range r;
    const uint32_t share = attention_share(position, s.n_splits);
    r.kv_head = blockIdx.x >> (31 - __clz(s.n_splits));
    r.split = blockIdx.x & (s.n_splits - 1);
    r.n_tiles = position / ATTENTION_KEYS + 1;
    r.first = min(r.split * share, r.n_tiles);
    r.last = r.kv_head < s.n_kv_heads ? min(r.first + share, r.n_tiles) : r.first;
    return r;
}

// ---- Heads: queries, and the row's own key and value ----

QN_DEVICE float attention_dot(float4 x)
{
    return x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
}

// The cosines and sines of four dimensions from d on, which are two numbers each where pairs are neighbours. Nothing is waited
// for here.
QN_DEVICE void attention_load_turn(float4 &cosine, float4 &sine, const qn_chain_attention &s, uint32_t d)
{
    const uint32_t half = s.n_rot / 2;
    if (s.interleaved) {
        *(float2 *)&cosine = *(const float2 *)(s.cosines + d / 2);
        *(float2 *)&sine = *(const float2 *)(s.sines + d / 2);
    } else {
        const uint32_t pair = d < half ? d : d - half;
        cosine = *(const float4 *)(s.cosines + pair);
        sine = *(const float4 *)(s.sines + pair);
    }
}

QN_DEVICE uint32_t attention_half(float x, bool bad, uint32_t instead)
{
    return bad || x != x ? instead : qn_float_to_half(fminf(fmaxf(x, -ATTENTION_LARGEST_HALF), ATTENTION_LARGEST_HALF));
}

// The queries of n heads from `first_head` on, as halves divided by a power of two near their length, and with `own` the row's
// key and value, as qn_rope_heads stores them (rope/rope.cu). A thread takes four dimensions of a row; the first rows are the
// key and the value.
QN_DEVICE void attention_heads(attention_shared &shared, const qn_chain_attention &s, const attention_range &r,
                               uint32_t position, uint32_t first_head, uint32_t n, bool own)
{
    attention_making &making = shared.u.making;
    const uint32_t log_quads = 4 + attention_log_slices(s.head_dim);
    const uint32_t n_own = own ? 2 : 0, count = (n + n_own) << log_quads, half_rot = s.n_rot / 2;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i - threadIdx.x < count; i += QN_CHAIN_THREADS) {
        const uint32_t row = i >> log_quads, d = (i & ((1 << log_quads) - 1)) * 4, column = row - n_own;
        const bool has = i < count, is_query = row >= n_own, is_value = !is_query && row == 1;
        const float *weights = is_query ? s.query_weight : is_value ? 0 : s.key_weight;
        const bool turns = has && d < s.n_rot && !is_value;
        const uint32_t at = is_query   ? s.q_row + (first_head + column) * s.query_stride
                            : is_value ? s.v_row + r.kv_head * s.head_dim
                                       : s.k_row + r.kv_head * s.head_dim;
        float squares = parts_squares(s.qkv);
        float4 weight = { 1, 1, 1, 1 }, cosine = {}, sine = {};
        if (weights)
            weight = *(const float4 *)(weights + d);
        if (turns)
            attention_load_turn(cosine, sine, s, d);
        parts_ahead_4<ATTENTION_PARTS> parts;
        ask_for_parts_4(parts, s.qkv, at + d, 0, has);
        float4 x = sum_parts_4(parts, s.qkv, at + d, has);
        float before = attention_dot(x);
        x = make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
        float after = attention_dot(x);
#pragma unroll
        for (int distance = QN_WARP / 2; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(QN_ALL_LANES, squares, distance);
            const float more_before = __shfl_xor_sync(QN_ALL_LANES, before, distance);
            const float more_after = __shfl_xor_sync(QN_ALL_LANES, after, distance);
            before += distance < 1 << log_quads ? more_before : 0;
            after += distance < 1 << log_quads ? more_after : 0;
        }
        if (has) {
            *(float4 *)&making.u.rows[row][d] = x;
            if (d % 128 == 0)
                making.squares[row][d / 128] = make_float2(before, after);
        }
        __syncthreads();
        if (!has)
            continue;
        if (turns) {
            float4 other = make_float4(-x.y, x.x, -x.w, x.z);
            if (s.interleaved) {
                cosine = make_float4(cosine.x, cosine.x, cosine.y, cosine.y);
                sine = make_float4(sine.x, sine.x, sine.y, sine.y);
            } else {
                other = d < half_rot ? scale_4(*(const float4 *)&making.u.rows[row][d + half_rot], -1)
                                     : *(const float4 *)&making.u.rows[row][d - half_rot];
            }
            x = make_float4(x.x * cosine.x + other.x * sine.x, x.y * cosine.y + other.y * sine.y,
                            x.z * cosine.z + other.z * sine.z, x.w * cosine.w + other.w * sine.w);
        }
        float2 sums = making.squares[row][0];
        if (s.head_dim > 128) {
            sums.x += making.squares[row][1].x;
            sums.y += making.squares[row][1].y;
        }
        float scale = parts_factor_of(s.qkv, squares);
        if (weights)
            scale *= rsqrtf(__fdividef(sums.x * scale * scale, (float)s.head_dim) + s.eps);
        if (is_query) {
            // The length's exponent: half of that of its square.
            const uint32_t exponent = ((__float_as_uint(sums.y * scale * scale) >> 23) + 127) / 2;
            if (d == 0)
                making.factors[column] = s.scale * ATTENTION_LOG2E * __uint_as_float(exponent << 23);
            x = scale_4(x, scale * __uint_as_float((254 - exponent) << 23));
            *(uint2 *)&making.queries[column][d] = make_uint2(qn_floats_to_halves(x.x, x.y), qn_floats_to_halves(x.z, x.w));
        } else {
            // A value that is NaN is stored as 0, and the key as NaN: of squares only NaN makes NaN.
            const uint32_t instead = is_value ? 0 : ATTENTION_NAN_HALF;
            float value_squares = making.squares[1][0].x;
            if (s.head_dim > 128)
                value_squares += making.squares[1][1].x;
            const bool bad = !is_value && value_squares != value_squares;
            x = scale_4(x, scale);
            const uint2 halves = make_uint2(attention_half(x.x, bad, instead) | attention_half(x.y, bad, instead) << 16,
                                            attention_half(x.z, bad, instead) | attention_half(x.w, bad, instead) << 16);
            // The cache is this stage's to write: its own pointers are not const.
            uint8_t *cache = (uint8_t *)(is_value ? s.cache.values + r.kv_head * s.cache.value_head
                                                  : s.cache.keys + r.kv_head * s.cache.key_head);
            *(uint2 *)(cache + ((uint64_t)position * s.head_dim + d) * 2) = halves;
            *(uint2 *)&shared.own[row][d] = halves;
        }
    }
    __syncthreads();
}

// ---- Tiles ----

// A warp's part of a tile: rows g and g+8 of keys, pieces t and t+4 of the slice; rows 2t, 2t+1, 2t+8, 2t+9 of values, piece g.
struct attention_words {
    uint4 k[2][2], v[4];
};

QN_DEVICE uint4 attention_load_16(const uint8_t *at)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at));
    return x;
}

QN_DEVICE void attention_load_keys(attention_words &w, const uint8_t *at, uint32_t row_bytes)
{
    w.k[0][0] = attention_load_16(at);
    w.k[0][1] = attention_load_16(at + 64);
    w.k[1][0] = attention_load_16(at + 8 * row_bytes);
    w.k[1][1] = attention_load_16(at + 8 * row_bytes + 64);
}

QN_DEVICE void attention_load_values(attention_words &w, const uint8_t *at, uint32_t row_bytes)
{
    w.v[0] = attention_load_16(at);
    w.v[1] = attention_load_16(at + row_bytes);
    w.v[2] = attention_load_16(at + 8 * row_bytes);
    w.v[3] = attention_load_16(at + 9 * row_bytes);
}

// The last tile: the row's own key and value, which are row `last` of it, and nothing of values behind them, where there may be
// anything.
QN_DEVICE void attention_take_own(attention_words &w, const attention_shared &shared, uint32_t last, uint32_t slice, uint32_t g,
                                  uint32_t t)
{
    const uint4 *key = (const uint4 *)(shared.own[0] + slice * ATTENTION_SLICE);
    const uint4 value = ((const uint4 *)(shared.own[1] + slice * ATTENTION_SLICE))[g];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (8 * i + g == last) {
            w.k[i][0] = key[t];
            w.k[i][1] = key[4 + t];
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = i / 2 * 8 + 2 * t + i % 2;
        if (row == last)
            w.v[i] = value;
        else if (row > last)
            w.v[i] = uint4{};
    }
}

// A warp's sums: value (j, 2e + c) of a lane is dimension 8g + 2j + e of the slice, column 2t + c.
struct attention_sums {
    float v[4][4], m[2], l[2];
};

QN_DEVICE void attention_scale_sums(attention_sums &sums, int c, float factor)
{
    sums.l[c] *= factor;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sums.v[j][c] *= factor;
        sums.v[j][2 + c] *= factor;
    }
}

QN_DEVICE void attention_add_values(attention_sums &sums, const uint4 v[4], const uint32_t probs[2])
{
    const uint32_t x[4][4] = { { v[0].x, v[1].x, v[2].x, v[3].x },
                               { v[0].y, v[1].y, v[2].y, v[3].y },
                               { v[0].z, v[1].z, v[2].z, v[3].z },
                               { v[0].w, v[1].w, v[2].w, v[3].w } };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t a[4] = { __byte_perm(x[j][0], x[j][1], 0x5410), __byte_perm(x[j][0], x[j][1], 0x7632),
                                __byte_perm(x[j][2], x[j][3], 0x5410), __byte_perm(x[j][2], x[j][3], 0x7632) };
        qn_mma_m16n8k16_f16(sums.v[j], a, probs);
    }
}

// Scores of the warp's slice of keys: rows g and g+8, columns 2t and 2t+1.
QN_DEVICE float4 attention_scores(const uint4 (&k)[2][2], const uint4 query[2])
{
    float x[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t low[4] = { k[0][j].x, k[1][j].x, k[0][j].y, k[1][j].y }, low_query[2] = { query[j].x, query[j].y };
        const uint32_t high[4] = { k[0][j].z, k[1][j].z, k[0][j].w, k[1][j].w }, high_query[2] = { query[j].z, query[j].w };
        qn_mma_m16n8k16_f16(x[j], low, low_query);
        qn_mma_m16n8k16_f16(x[j], high, high_query);
    }
    return make_float4(x[0][0] + x[1][0], x[0][1] + x[1][1], x[0][2] + x[1][2], x[0][3] + x[1][3]);
}

QN_DEVICE uint32_t attention_transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Scores in powers of two, -infinity where nothing is seen, to weights as the second product takes them.
QN_DEVICE void attention_weigh(attention_sums &sums, uint32_t probs[2], const float x[4])
{
    float weight[4];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float m = fmaxf(sums.m[c], fmaxf(x[c], x[2 + c]));
#pragma unroll
        for (int distance = 4; distance < QN_WARP; distance *= 2)
            m = fmaxf(m, __shfl_xor_sync(QN_ALL_LANES, m, distance));
        attention_scale_sums(sums, c, qn_exp_2(sums.m[c] - m));
        sums.m[c] = m;
        weight[c] = qn_exp_2(x[c] - m);
        weight[2 + c] = qn_exp_2(x[2 + c] - m);
        sums.l[c] += weight[c] + weight[2 + c];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        probs[i] = attention_transpose(qn_floats_to_halves(weight[2 * i], weight[2 * i + 1]));
}

// Scores of all slices of a tile; between the warps of a group there is a barrier, and two buffers take turns, so that it is
// only one.
QN_DEVICE float4 attention_add_scores(attention_making &making, float4 x, uint32_t turn, uint32_t log_slices, uint32_t warp,
                                      uint32_t lane)
{
    if (log_slices == 0)
        return x;
    const uint32_t slices = 1 << log_slices, group = warp >> log_slices;
    const float4(*scores)[QN_WARP] = making.u.scores[turn] + (group << log_slices);
    making.u.scores[turn][warp][lane] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(slices * QN_WARP) : "memory");
    x = add_4(scores[0][lane], scores[1][lane]);
    if (slices > 2)
        x = add_4(x, add_4(scores[2][lane], scores[3][lane]));
    return x;
}

// ---- What is left ----

// Sums of the groups that had tiles, by the warps of the first.
QN_DEVICE void attention_leave(attention_shared &shared, attention_sums &sums, const qn_chain_attention &s,
                               const attention_range &r, uint32_t first_head, uint32_t n, uint32_t n_groups, uint32_t warp,
                               uint32_t lane)
{
    const uint32_t log_slices = attention_log_slices(s.head_dim), slices = 1 << log_slices;
    const uint32_t group = warp >> log_slices, slice = warp & (slices - 1), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int distance = 4; distance < QN_WARP; distance *= 2)
            sums.l[c] += __shfl_xor_sync(QN_ALL_LANES, sums.l[c], distance);
    if (n_groups > 1) {
        if (slice == 0 && g == 0)
            *(float4 *)&shared.maxima[group][2 * t] = make_float4(sums.m[0], sums.l[0], sums.m[1], sums.l[1]);
        __syncthreads(); // scores have been read
        if (group > 0 && group < n_groups) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                shared.u.sums[warp - slices][j][lane] = make_float4(sums.v[j][0], sums.v[j][1], sums.v[j][2], sums.v[j][3]);
        }
        __syncthreads();
    }
    if (group > 0)
        return;
    float m[2] = { sums.m[0], sums.m[1] };
#pragma unroll 1
    for (uint32_t i = 1; i < n_groups; i++) {
        const float4 both = *(const float4 *)&shared.maxima[i][2 * t]; // m and l of two columns
        m[0] = fmaxf(m[0], both.x);
        m[1] = fmaxf(m[1], both.z);
    }
    attention_scale_sums(sums, 0, qn_exp_2(sums.m[0] - m[0]));
    attention_scale_sums(sums, 1, qn_exp_2(sums.m[1] - m[1]));
#pragma unroll 1
    for (uint32_t i = 1; i < n_groups; i++) {
        const float4 both = *(const float4 *)&shared.maxima[i][2 * t];
        const float factors[2] = { qn_exp_2(both.x - m[0]), qn_exp_2(both.z - m[1]) };
        sums.l[0] += both.y * factors[0];
        sums.l[1] += both.w * factors[1];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 other = shared.u.sums[((i - 1) << log_slices) + slice][j][lane];
            sums.v[j][0] += other.x * factors[0];
            sums.v[j][1] += other.y * factors[1];
            sums.v[j][2] += other.z * factors[0];
            sums.v[j][3] += other.w * factors[1];
        }
    }
    const uint32_t part = (first_head + 2 * t) * s.n_splits + r.split;
    float *to = s.partials + (uint64_t)part * s.head_dim + slice * ATTENTION_SLICE + 8 * g, *maxima = s.maxima + 2 * part;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (2 * t + c < n) {
            *(float4 *)to = make_float4(sums.v[0][c], sums.v[0][2 + c], sums.v[1][c], sums.v[1][2 + c]);
            *(float4 *)(to + 4) = make_float4(sums.v[2][c], sums.v[2][2 + c], sums.v[3][c], sums.v[3][2 + c]);
            if (slice == 0 && g == 0)
                *(float2 *)maxima = make_float2(m[c], sums.l[c]);
        }
        to += s.n_splits * s.head_dim;
        maxima += 2 * s.n_splits;
    }
}

// ---- The stage ----

// What a block's warps read first of the cache, into the second cache: for when the stage before is still under way. By one
// thread of each of two warps.
QN_DEVICE void attention_ahead(const qn_chain_attention &s, uint32_t position)
{
    constexpr uint32_t most = 4 * ATTENTION_STEP; // four tiles of each group
    if (threadIdx.x % QN_WARP || threadIdx.x > QN_WARP)
        return;
    const attention_range r = attention_range_of(s, position);
    const uint32_t tile_bytes = ATTENTION_KEYS * 2 * s.head_dim, bytes = min((r.last - r.first) * tile_bytes, most);
    if (bytes)
        prefetch_bytes(
            (threadIdx.x ? s.cache.values + r.kv_head * s.cache.value_head : s.cache.keys + r.kv_head * s.cache.key_head) +
                (uint64_t)r.first * tile_bytes,
            bytes);
}

QN_DEVICE void attention_stage(const qn_chain_attention &s, uint32_t position, uint8_t *scratch)
{
    attention_shared &shared = *(attention_shared *)scratch;
    const attention_range r = attention_range_of(s, position);
    if (r.first == r.last)
        return;
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
    const uint32_t log_slices = attention_log_slices(s.head_dim), row_bytes = 2 * s.head_dim;
    const uint32_t group = warp >> log_slices, slice = warp & ((1 << log_slices) - 1);
    const uint32_t n = (uint32_t)__fdividef(s.n_heads + 0.5f, s.n_kv_heads), first_head = r.kv_head * n;
    const uint32_t n_groups = ATTENTION_WARPS >> log_slices;
    uint32_t tile = r.first + group;
    const uint8_t *keys = s.cache.keys + r.kv_head * s.cache.key_head + slice * (ATTENTION_SLICE * 2) + t * 16 +
                          (uint64_t)(tile * ATTENTION_KEYS + g) * row_bytes;
    const uint8_t *values = s.cache.values + r.kv_head * s.cache.value_head + slice * (ATTENTION_SLICE * 2) + g * 16 +
                            (uint64_t)(tile * ATTENTION_KEYS + 2 * t) * row_bytes;
    attention_words w = {};
    if (tile < r.last) {
        attention_load_keys(w, keys, row_bytes);
        attention_load_values(w, values, row_bytes);
    }
    attention_heads(shared, s, r, position, first_head, n, r.last == r.n_tiles);
    uint4 query[2];
#pragma unroll
    for (int j = 0; j < 2; j++)
        query[j] = *(const uint4 *)&shared.u.making.queries[g][slice * ATTENTION_SLICE + (4 * j + t) * 8];
    const float2 factors = *(const float2 *)&shared.u.making.factors[2 * t];
    attention_sums sums = { {}, { ATTENTION_LOWEST, ATTENTION_LOWEST }, { 0, 0 } };
#pragma unroll 1
    for (uint32_t turn = 0; tile < r.last; tile += n_groups, turn ^= 1) {
        const bool is_last = tile + 1 == r.n_tiles, more = tile + n_groups < r.last;
        if (is_last)
            attention_take_own(w, shared, position % ATTENTION_KEYS, slice, g, t);
        const float4 score = attention_scores(w.k, query);
        keys += ATTENTION_STEP;
        values += ATTENTION_STEP;
        if (more)
            attention_load_keys(w, keys, row_bytes);
        const float4 all = attention_add_scores(shared.u.making, score, turn, log_slices, warp, lane);
        float x[4] = { all.x * factors.x, all.y * factors.y, all.z * factors.x, all.w * factors.y };
        if (is_last) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (8 * i + g > position % ATTENTION_KEYS)
                    x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
        }
        uint32_t probs[2];
        attention_weigh(sums, probs, x);
        attention_add_values(sums, w.v, probs);
        if (more)
            attention_load_values(w, values, row_bytes);
    }
    attention_leave(shared, sums, s, r, first_head, n, min(n_groups, r.last - r.first), warp, lane);
}

// ---- The product after it ----

// Parts of a head that are on their way at once; the second half only where there are so many.
#define MERGED_AHEAD 8

QN_DEVICE void merged_load(float4 x[MERGED_AHEAD], const float *partials, uint32_t stride, uint32_t n)
{
#pragma unroll
    for (uint32_t i = 0; i < MERGED_AHEAD / 2; i++)
        x[i] = load_fresh_4_if(partials + i * stride, i < n);
    if (n > MERGED_AHEAD / 2) {
#pragma unroll
        for (uint32_t i = MERGED_AHEAD / 2; i < MERGED_AHEAD; i++)
            x[i] = load_fresh_4_if(partials + i * stride, i < n);
    }
}

// Columns first + 4 lane to first + 4 lane + 3 of a MERGED product; `first` is a multiple of 128. Parts are added in rising
// order.
QN_DEVICE float4 merged_columns(const qn_chain_product &s, uint32_t position, uint32_t first, uint32_t lane)
{
    const uint32_t width = min(s.head / 4, (uint32_t)QN_WARP), log_head = 31 - __clz(s.head); // width: lanes of a head
    const uint32_t share = attention_share(position, s.n_splits), mine = lane % width;
    const uint32_t n = (uint32_t)__fdividef(position / ATTENTION_KEYS + share + 0.5f, share); // parts that there are
    const uint32_t column = first + 4 * lane;
    const bool has = column < s.n_cols;
    const uint32_t head = has ? column >> log_head : 0, d = column & (s.head - 1);
    const uint32_t gate_at = s.row + 2 * head * s.head + s.head + d;
    const float *partials = s.x + (uint64_t)head * s.n_splits * s.head + d;
    const float2 *maxima = (const float2 *)s.maxima + head * s.n_splits;
    // All is asked for before any of it is waited for.
    float2 of[2] = { { ATTENTION_LOWEST, 0 }, { ATTENTION_LOWEST, 0 } };
    if (mine < n)
        of[0] = __ldcg(maxima + mine);
    if (mine + width < n)
        of[1] = __ldcg(maxima + mine + width);
    float4 x[MERGED_AHEAD] = {}, y = {};
    merged_load(x, partials, s.head, n);
    parts_ahead_4<ATTENTION_PARTS> gates = {};
    float squares = 0;
    if (s.gated) {
        squares = parts_squares(s.from);
        ask_for_parts_4(gates, s.from, gate_at, 0, has);
    }
    float m = fmaxf(of[0].x, of[1].x);
#pragma unroll 1
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        m = fmaxf(m, __shfl_xor_sync(QN_ALL_LANES, m, distance));
    const float factors[2] = { qn_exp_2(of[0].x - m), qn_exp_2(of[1].x - m) };
    float l = of[0].y * factors[0] + of[1].y * factors[1];
#pragma unroll 1
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        l += __shfl_xor_sync(QN_ALL_LANES, l, distance);
    const auto add = [&](uint32_t i, const float4 &part) {
        const float factor = __shfl_sync(QN_ALL_LANES, i < width ? factors[0] : factors[1], i, width);
        if (i < n)
            y = add_4(y, scale_4(part, factor));
    };
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += MERGED_AHEAD) {
        if (i > 0)
            merged_load(x, partials + i * s.head, s.head, n - i);
#pragma unroll
        for (uint32_t k = 0; k < MERGED_AHEAD / 2; k++)
            add(i + k, x[k]);
        if (n - i > MERGED_AHEAD / 2) {
#pragma unroll
            for (uint32_t k = MERGED_AHEAD / 2; k < MERGED_AHEAD; k++)
                add(i + k, x[k]);
        }
    }
    y = scale_4(y, __fdividef(1, l));
    if (s.gated) {
        const float4 gate = scale_4(sum_parts_4(gates, s.from, gate_at, has), -parts_factor(s.from, squares));
        y.x = __fdividef(y.x, 1 + __expf(gate.x));
        y.y = __fdividef(y.y, 1 + __expf(gate.y));
        y.z = __fdividef(y.z, 1 + __expf(gate.z));
        y.w = __fdividef(y.w, 1 + __expf(gate.w));
    }
    return has ? y : float4{};
}

#endif
