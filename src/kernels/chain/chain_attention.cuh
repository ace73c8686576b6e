// Attention of one row inside a chain, over a cache of halves (qn_chain_attention), and the columns of the product that reads
// what it leaves (MERGED). Who meets whom, and when, is chain.cu's.
//
// A warp takes 64 dimensions of 16 positions at a time, straight from memory into registers, both of keys and of values: so a
// few positions are spread over many warps, whose loads are a single trip to memory, and sums take few registers. The warps of
// a tile add up their scores in shared memory. As in attention/decode.cu scores are keys times queries, with the query heads of
// a key-value head as the columns of the matrix unit, and results are values (transposed) times weights; which dimension goes
// to which index of a fragment is free as long as both sides agree, and so chosen that lanes load 16 bytes.
#ifndef QN_KERNELS_CHAIN_CHAIN_ATTENTION_CUH
#define QN_KERNELS_CHAIN_CHAIN_ATTENTION_CUH

#include "kernels/chain/chain.cuh"

#define ATTENTION_KEYS 16   // positions of a tile
#define ATTENTION_COLUMNS 8 // query heads that are taken together
#define ATTENTION_SLICE 64  // dimensions of a warp
#define ATTENTION_MOST_DIM 256
#define ATTENTION_QUADS (ATTENTION_MOST_DIM / 128) // of a head's row, in a lane: dimensions 128q + 4 lane on
#define ATTENTION_WARPS (QN_CHAIN_THREADS / QN_WARP)
#define ATTENTION_LOWEST (-1e30f)
#define ATTENTION_LOG2E 1.4426950408889634f
#define ATTENTION_LARGEST_HALF 65504.0f
#define ATTENTION_NAN_HALF 0x7e00

// threadIdx.x, but asked for here: what follows from it is not worked out ahead of all stages and kept, for which there are no
// registers.
QN_DEVICE uint32_t attention_thread()
{
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

QN_DEVICE float attention_exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What the first part of a stage leaves for the second.
struct attention_making {
    float factors[ATTENTION_COLUMNS];                                           // what a score stands for, in powers of two
    __align__(16) uint16_t queries[ATTENTION_COLUMNS][ATTENTION_MOST_DIM + 32]; // 64 bytes apart: no lanes meet in a bank
    __align__(16) float weights[2][ATTENTION_MOST_DIM];                         // of queries, of keys
    float cosines[ATTENTION_MOST_DIM / 2], sines[ATTENTION_MOST_DIM / 2];
    union {
        float rows[ATTENTION_COLUMNS + 2][ATTENTION_MOST_DIM];
        float4 scores[2][ATTENTION_WARPS][QN_WARP];
    } u;
};

struct attention_shared {
    __align__(16) uint16_t key[ATTENTION_MOST_DIM]; // the row's own
    __align__(16) uint16_t value[ATTENTION_MOST_DIM];
    float2 maxima[ATTENTION_WARPS][ATTENTION_COLUMNS]; // of each group: m, l
    union {
        attention_making making;
        float4 sums[ATTENTION_WARPS - 1][4][QN_WARP]; // of all groups but the first
    } u;
};

static_assert(sizeof(attention_shared) <= QN_CHAIN_SCRATCH, "attention takes more shared memory than stages have");

// A head is 1 << log_slices slices; as many warps are a group, which takes a tile at a time.
QN_DEVICE uint32_t attention_log_slices(const qn_chain_attention &s)
{
    return s.head_dim == 256 ? 2 : s.head_dim == 128 ? 1 : 0;
}

QN_DEVICE uint32_t attention_groups(const qn_chain_attention &s)
{
    return ATTENTION_WARPS >> attention_log_slices(s);
}

// Tiles [first, last) of a key-value head, of n_tiles that there are. Where positions are few, few splits have any: then no
// group of warps takes more than one tile.
struct attention_range {
    uint32_t kv_head, split, position, first, last, n_tiles;
};

QN_DEVICE attention_range attention_range_of(const qn_chain_args &a, const qn_chain_attention &s)
{
    attention_range r;
    r.kv_head = blockIdx.x / s.n_splits;
    r.split = blockIdx.x % s.n_splits;
    r.position = a.positions[0];
    r.n_tiles = r.position / ATTENTION_KEYS + 1;
    const uint32_t share = max((r.n_tiles + s.n_splits - 1) / s.n_splits, attention_groups(s));
    r.first = min(r.split * share, r.n_tiles);
    r.last = min(r.first + share, r.n_tiles);
    return r;
}

// ---- Heads: queries, and the row's own key and value ----

// What rows are normalised and turned with: a thread brings a weight and a cosine or sine.
QN_DEVICE float2 attention_load_turn(const qn_chain_attention &s, uint32_t i)
{
    const uint32_t of_keys = i / ATTENTION_MOST_DIM, d = i % ATTENTION_MOST_DIM, half = s.n_rot / 2;
    const float *weights = of_keys ? s.key_weight : s.query_weight;
    return make_float2(weights && d < s.head_dim ? weights[d] : 1, i < half       ? s.cosines[i]
                                                                   : i < 2 * half ? s.sines[i - half]
                                                                                  : 0);
}

QN_DEVICE void attention_put_turn(attention_making &to, const qn_chain_attention &s, float2 turn, uint32_t i)
{
    const uint32_t half = s.n_rot / 2;
    to.weights[i / ATTENTION_MOST_DIM][i % ATTENTION_MOST_DIM] = turn.x;
    if (i < half)
        to.cosines[i] = turn.y;
    else if (i < 2 * half)
        to.sines[i - half] = turn.y;
}

// Rows of floats: the queries of n heads from `first_head` on, then, with `own`, the row's key and value. Four numbers a thread
// at a time, so that all is a single trip to memory.
QN_DEVICE void attention_gather(float (*rows)[ATTENTION_MOST_DIM], const qn_chain_attention &s, uint32_t kv_head,
                                uint32_t first_head, uint32_t n, bool own, uint32_t thread)
{
    const uint32_t lane = thread % QN_WARP, log_quads = 4 + attention_log_slices(s); // of a row
    const uint32_t count = (n + (own ? 2 : 0)) << log_quads;
    for (uint32_t first = thread - lane; first < count; first += QN_CHAIN_THREADS) {
        const uint32_t i = first + lane, row = i >> log_quads, d = (i & ((1 << log_quads) - 1)) * 4;
        const uint32_t at = row < n    ? s.q_row + (first_head + row) * s.query_stride
                            : row == n ? s.k_row + kv_head * s.head_dim
                                       : s.v_row + kv_head * s.head_dim;
        const float squares = parts_squares(s.qkv);
        const float4 x = i < count ? parts_sum_4(s.qkv, at + d) : float4{};
        const float factor = parts_factor(s.qkv, squares);
        if (i < count)
            *(float4 *)&rows[row][d] = scale_4(x, factor);
    }
}

// Value (q, i) of a lane is dimension 128q + 4 lane + i of a head; what is beyond the head is zeros.
struct attention_row {
    float x[ATTENTION_QUADS][4];
};

QN_DEVICE attention_row attention_take_row(const qn_chain_attention &s, const float *from, uint32_t lane)
{
    attention_row row;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
        const uint32_t d = 128 * q + 4 * lane;
        const float4 v = d < s.head_dim ? *(const float4 *)(from + d) : float4{};
        row.x[q][0] = v.x;
        row.x[q][1] = v.y;
        row.x[q][2] = v.z;
        row.x[q][3] = v.w;
    }
    return row;
}

// A gathered row, normalised, where there are weights, and turned; partners meet in `memory`, where it was. `square`: its sum
// of squares.
QN_DEVICE attention_row attention_make_row(const attention_making &making, const qn_chain_attention &s, const float *weights,
                                           bool normalised, float *memory, uint32_t lane, float &square)
{
    const attention_row plain = attention_take_row(s, memory, lane), weight = attention_take_row(s, weights, lane);
    attention_row row;
    float before = 0, after = 0;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            before += plain.x[q][i] * plain.x[q][i];
            row.x[q][i] = plain.x[q][i] * weight.x[q][i];
            after += row.x[q][i] * row.x[q][i];
        }
    }
#pragma unroll
    for (int distance = QN_WARP / 2; distance > 0; distance /= 2) {
        before += __shfl_xor_sync(QN_ALL_LANES, before, distance);
        after += __shfl_xor_sync(QN_ALL_LANES, after, distance);
    }
    const float scale = normalised ? rsqrtf(before / s.head_dim + s.eps) : 1;
    square = after * scale * scale;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
        const uint32_t d = 128 * q + 4 * lane;
#pragma unroll
        for (int i = 0; i < 4; i++)
            row.x[q][i] *= scale;
        if (d < s.head_dim)
            *(float4 *)(memory + d) = make_float4(row.x[q][0], row.x[q][1], row.x[q][2], row.x[q][3]);
    }
    __syncwarp();
    const uint32_t half = s.n_rot / 2;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t d = 128 * q + 4 * lane + i;
            if (d < s.n_rot) {
                const bool second = s.interleaved ? d % 2 : d >= half;
                const uint32_t pair = s.interleaved ? d / 2 : second ? d - half : d;
                const float other = memory[s.interleaved ? d ^ 1 : second ? d - half : d + half];
                const float cosine = making.cosines[pair], sine = making.sines[pair];
                row.x[q][i] = second ? other * sine + row.x[q][i] * cosine : row.x[q][i] * cosine - other * sine;
            }
        }
    }
    return row;
}

// A query as halves, divided by a power of two near its length, so that halves hold it well.
QN_DEVICE void attention_put_query(attention_making &to, const qn_chain_attention &s, const attention_row &row, float square,
                                   uint32_t column, uint32_t lane)
{
    const uint32_t exponent = __float_as_uint(sqrtf(square)) >> 23;
    const bool ordinary = exponent > 0 && exponent < 254; // else left alone
    const float up = ordinary ? __uint_as_float((254 - exponent) << 23) : 1;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
        const uint32_t d = 128 * q + 4 * lane;
        if (d < s.head_dim)
            *(uint2 *)&to.queries[column][d] = make_uint2(qn_floats_to_halves(row.x[q][0] * up, row.x[q][1] * up),
                                                          qn_floats_to_halves(row.x[q][2] * up, row.x[q][3] * up));
    }
    if (lane == 0)
        to.factors[column] = s.scale * ATTENTION_LOG2E * (ordinary ? __uint_as_float(exponent << 23) : 1);
}

QN_DEVICE uint32_t attention_half(float x, bool bad, uint32_t instead)
{
    return bad ? instead : qn_float_to_half(fminf(fmaxf(x, -ATTENTION_LARGEST_HALF), ATTENTION_LARGEST_HALF));
}

// Halves to the cache and to shared memory: NaN becomes `instead`, and with `all_bad` all do.
QN_DEVICE void attention_store_halves(uint16_t *cache, uint16_t *shared, const qn_chain_attention &s, const attention_row &row,
                                      bool all_bad, uint32_t instead, uint32_t lane)
{
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++) {
        const uint32_t d = 128 * q + 4 * lane;
        uint32_t h[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            h[i] = attention_half(row.x[q][i], all_bad || row.x[q][i] != row.x[q][i], instead);
        if (d < s.head_dim) {
            const uint2 both = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
            *(uint2 *)(cache + d) = both;
            *(uint2 *)(shared + d) = both;
        }
    }
}

// Key and value, by a warp, as qn_rope_heads stores them (rope/rope.cu).
QN_DEVICE void attention_put_own(attention_shared &shared, const qn_chain_attention &s, const attention_range &r,
                                 const attention_row &key, const attention_row &value, uint32_t lane)
{
    // The cache is this stage's to write: its own pointers are not const.
    const uint64_t at = (uint64_t)r.position * s.head_dim;
    uint16_t *keys = (uint16_t *)(s.cache.keys + r.kv_head * s.cache.key_head) + at;
    uint16_t *values = (uint16_t *)(s.cache.values + r.kv_head * s.cache.value_head) + at;
    bool bad = false;
#pragma unroll
    for (int q = 0; q < ATTENTION_QUADS; q++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            bad = bad || value.x[q][i] != value.x[q][i];
    bad = __any_sync(QN_ALL_LANES, bad);
    attention_store_halves(keys, shared.key, s, key, bad, ATTENTION_NAN_HALF, lane);
    attention_store_halves(values, shared.value, s, value, false, 0, lane);
}

// Queries of n heads from `first_head` on, a warp each; further columns are zeros. The row's own key and value by one more.
QN_DEVICE void attention_heads(attention_shared &shared, const qn_chain_attention &s, const attention_range &r,
                               uint32_t first_head, uint32_t n, bool own, uint32_t thread)
{
    const uint32_t warp = thread / QN_WARP, lane = thread % QN_WARP;
    attention_making &making = shared.u.making;
    const float2 turn = attention_load_turn(s, thread);
    attention_gather(making.u.rows, s, r.kv_head, first_head, n, own, thread);
    attention_put_turn(making, s, turn, thread);
    __syncthreads();
    float square = 0;
    if (warp < n) {
        const attention_row query =
            attention_make_row(making, s, making.weights[0], s.query_weight != 0, making.u.rows[warp], lane, square);
        attention_put_query(making, s, query, square, warp, lane);
    } else if (warp < ATTENTION_COLUMNS) {
        attention_put_query(making, s, attention_row{}, 0, warp, lane);
    } else if (warp == ATTENTION_COLUMNS && own) {
        const attention_row value = attention_take_row(s, making.u.rows[n + 1], lane);
        const attention_row key =
            attention_make_row(making, s, making.weights[1], s.key_weight != 0, making.u.rows[n], lane, square);
        attention_put_own(shared, s, r, key, value, lane);
    }
    __syncthreads();
}

// ---- Tiles ----

// A warp's part of a tile: rows g and g+8 of keys, pieces t and t+4 of the slice; rows 2t, 2t+1, 2t+8, 2t+9 of values, piece g.
struct attention_words {
    uint4 k[2][2], v[4];
};

QN_DEVICE uint32_t attention_key_row(uint32_t tile, int i, uint32_t g)
{
    return tile * ATTENTION_KEYS + 8 * i + g;
}

QN_DEVICE uint32_t attention_value_row(uint32_t tile, int i, uint32_t t)
{
    return tile * ATTENTION_KEYS + i / 2 * 8 + 2 * t + i % 2;
}

QN_DEVICE uint4 attention_load_16(const uint8_t *at)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at));
    return x;
}

// `keys`, `values`: of the lane's first piece. What lies from the row's position on is not read, but zeros.
QN_DEVICE void attention_load_keys(attention_words &w, const uint8_t *keys, uint32_t row_bytes, uint32_t tile,
                                   uint32_t position, uint32_t g)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = attention_key_row(tile, i, g);
#pragma unroll
        for (int j = 0; j < 2; j++)
            w.k[i][j] = row < position ? attention_load_16(keys + (uint64_t)row * row_bytes + j * 64) : uint4{};
    }
}

QN_DEVICE void attention_load_values(attention_words &w, const uint8_t *values, uint32_t row_bytes, uint32_t tile,
                                     uint32_t position, uint32_t t)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = attention_value_row(tile, i, t);
        w.v[i] = row < position ? attention_load_16(values + (uint64_t)row * row_bytes) : uint4{};
    }
}

// The row's own key and value where their tile is.
QN_DEVICE void attention_take_own(attention_words &w, const attention_shared &shared, uint32_t tile, uint32_t position,
                                  uint32_t slice, uint32_t g, uint32_t t)
{
    const uint4 *key = (const uint4 *)(shared.key + slice * ATTENTION_SLICE);
    const uint4 *value = (const uint4 *)(shared.value + slice * ATTENTION_SLICE);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (attention_key_row(tile, i, g) == position) {
            w.k[i][0] = key[t];
            w.k[i][1] = key[4 + t];
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (attention_value_row(tile, i, t) == position)
            w.v[i] = value[g];
}

// A warp's sums: value (j, 2e + c) of a lane is dimension 8g + 2j + e of the slice, column 2t + c.
struct attention_sums {
    float v[4][4], m[2], l[2];
};

QN_DEVICE void attention_add_values(attention_sums &sums, const uint4 v[4], const uint32_t weights[2])
{
    const uint32_t x[4][4] = { { v[0].x, v[1].x, v[2].x, v[3].x },
                               { v[0].y, v[1].y, v[2].y, v[3].y },
                               { v[0].z, v[1].z, v[2].z, v[3].z },
                               { v[0].w, v[1].w, v[2].w, v[3].w } };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t a[4] = { __byte_perm(x[j][0], x[j][1], 0x5410), __byte_perm(x[j][0], x[j][1], 0x7632),
                                __byte_perm(x[j][2], x[j][3], 0x5410), __byte_perm(x[j][2], x[j][3], 0x7632) };
        qn_mma_m16n8k16_f16(sums.v[j], a, weights);
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
QN_DEVICE void attention_weigh(attention_sums &sums, uint32_t weights[2], const float x[4])
{
    float weight[4];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float m = fmaxf(sums.m[c], fmaxf(x[c], x[2 + c]));
#pragma unroll
        for (int distance = 4; distance < QN_WARP; distance *= 2)
            m = fmaxf(m, __shfl_xor_sync(QN_ALL_LANES, m, distance));
        const float factor = attention_exp_2(sums.m[c] - m);
        sums.m[c] = m;
        weight[c] = attention_exp_2(x[c] - m);
        weight[2 + c] = attention_exp_2(x[2 + c] - m);
        sums.l[c] = sums.l[c] * factor + (weight[c] + weight[2 + c]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sums.v[j][c] *= factor;
            sums.v[j][2 + c] *= factor;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        weights[i] = attention_transpose(qn_floats_to_halves(weight[2 * i], weight[2 * i + 1]));
}

// Scores of all slices of a tile; between the warps of a group there is a barrier, and two buffers take turns, so that it is
// only one.
QN_DEVICE float4 attention_add_scores(attention_making &making, float4 x, uint32_t turn, uint32_t log_slices, uint32_t warp,
                                      uint32_t lane)
{
    if (log_slices == 0)
        return x;
    const uint32_t slices = 1 << log_slices, group = warp >> log_slices;
    making.u.scores[turn][warp][lane] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(slices * QN_WARP) : "memory");
    x = float4{};
#pragma unroll
    for (uint32_t i = 0; i < ATTENTION_MOST_DIM / ATTENTION_SLICE; i++)
        if (i < slices)
            x = add_4(x, making.u.scores[turn][(group << log_slices) + i][lane]);
    return x;
}

// ---- What is left ----

QN_DEVICE void attention_put_maxima(const qn_chain_attention &s, uint32_t head, uint32_t split, float m, float l)
{
    *(float2 *)(s.maxima + (head * s.n_splits + split) * 2) = make_float2(m, l);
}

// Sums of the groups that had tiles, by the warps of the first.
QN_DEVICE void attention_leave(attention_shared &shared, attention_sums &sums, const qn_chain_attention &s,
                               const attention_range &r, uint32_t first_head, uint32_t n_columns, uint32_t warp, uint32_t lane)
{
    const uint32_t log_slices = attention_log_slices(s), slices = 1 << log_slices;
    const uint32_t group = warp >> log_slices, slice = warp & (slices - 1), g = lane / 4, t = lane % 4;
    const uint32_t n_groups = min(attention_groups(s), r.last - r.first);
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
    if (n_groups > 1) {
        float m[2] = { sums.m[0], sums.m[1] };
        for (uint32_t i = 1; i < n_groups; i++) {
            m[0] = fmaxf(m[0], shared.maxima[i][2 * t].x);
            m[1] = fmaxf(m[1], shared.maxima[i][2 * t + 1].x);
        }
        float factor[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            factor[c] = attention_exp_2(sums.m[c] - m[c]);
            sums.m[c] = m[c];
            sums.l[c] *= factor[c];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sums.v[j][c] *= factor[c];
                sums.v[j][2 + c] *= factor[c];
            }
        }
        for (uint32_t i = 1; i < n_groups; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float2 other = shared.maxima[i][2 * t + c];
                factor[c] = attention_exp_2(other.x - m[c]);
                sums.l[c] += other.y * factor[c];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float4 other = shared.u.sums[((i - 1) << log_slices) + slice][j][lane];
                sums.v[j][0] += other.x * factor[0];
                sums.v[j][1] += other.y * factor[1];
                sums.v[j][2] += other.z * factor[0];
                sums.v[j][3] += other.w * factor[1];
            }
        }
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const uint32_t column = 2 * t + c, head = first_head + column;
        if (column >= n_columns)
            continue;
        float *row = s.partials + (uint64_t)(head * s.n_splits + r.split) * s.head_dim;
        float4 *to = (float4 *)(row + slice * ATTENTION_SLICE + 8 * g);
        to[0] = make_float4(sums.v[0][c], sums.v[0][2 + c], sums.v[1][c], sums.v[1][2 + c]);
        to[1] = make_float4(sums.v[2][c], sums.v[2][2 + c], sums.v[3][c], sums.v[3][2 + c]);
        if (slice == 0 && g == 0)
            attention_put_maxima(s, head, r.split, sums.m[c], sums.l[c]);
    }
}

// ---- The stage ----

// What a block's warps read first of the cache, into the second cache: for when the stage before is still under way.
QN_DEVICE void attention_ahead(const qn_chain_args &a, const qn_chain_attention &s)
{
    static_assert(2 * ATTENTION_KEYS * ATTENTION_WARPS * ATTENTION_SLICE * 2 / 128 == QN_CHAIN_THREADS,
                  "a line for each thread");
    if (blockIdx.x >= s.n_kv_heads * s.n_splits)
        return;
    const attention_range r = attention_range_of(a, s);
    const uint32_t thread = attention_thread();
    const bool of_keys = thread < QN_CHAIN_THREADS / 2;
    const uint64_t row_bytes = 2 * s.head_dim;
    const uint64_t at = r.first * ATTENTION_KEYS * row_bytes + thread % (QN_CHAIN_THREADS / 2) * 128;
    if (at >= min(r.last * ATTENTION_KEYS, r.position) * row_bytes)
        return;
    const uint8_t *line =
        of_keys ? s.cache.keys + r.kv_head * s.cache.key_head : s.cache.values + r.kv_head * s.cache.value_head;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line + at));
}

static __device__ __noinline__ void attention_stage(const qn_chain_args &a, const qn_chain_attention &s, uint8_t *scratch)
{
    if (blockIdx.x >= s.n_kv_heads * s.n_splits)
        return;
    attention_shared &shared = *(attention_shared *)scratch;
    const uint32_t thread = attention_thread(), warp = thread / QN_WARP, lane = thread % QN_WARP, g = lane / 4, t = lane % 4;
    const uint32_t log_slices = attention_log_slices(s), n_groups = attention_groups(s);
    const uint32_t group = warp >> log_slices, slice = warp & ((1 << log_slices) - 1), n_columns = s.n_heads / s.n_kv_heads;
    const attention_range r = attention_range_of(a, s);
    if (r.first == r.last) {
        if (thread < n_columns)
            attention_put_maxima(s, r.kv_head * n_columns + thread, r.split, ATTENTION_LOWEST, 0);
        return;
    }
    const uint32_t row_bytes = 2 * s.head_dim;
    const uint8_t *keys = s.cache.keys + r.kv_head * s.cache.key_head + slice * (ATTENTION_SLICE * 2) + t * 16;
    const uint8_t *values = s.cache.values + r.kv_head * s.cache.value_head + slice * (ATTENTION_SLICE * 2) + g * 16;
    for (uint32_t first = 0; first < n_columns; first += ATTENTION_COLUMNS) {
        const uint32_t first_head = r.kv_head * n_columns + first, n = min(n_columns - first, (uint32_t)ATTENTION_COLUMNS);
        uint32_t tile = r.first + group;
        attention_words w = {};
        if (tile < r.last) {
            attention_load_keys(w, keys, row_bytes, tile, r.position, g);
            attention_load_values(w, values, row_bytes, tile, r.position, t);
        }
        if (first)
            __syncthreads(); // what the columns before left has been read
        attention_heads(shared, s, r, first_head, n, r.last == r.n_tiles && first == 0, thread);
        uint4 query[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            query[j] = *(const uint4 *)&shared.u.making.queries[g][slice * ATTENTION_SLICE + (4 * j + t) * 8];
        const float factors[2] = { shared.u.making.factors[2 * t], shared.u.making.factors[2 * t + 1] };
        attention_sums sums = { {}, { ATTENTION_LOWEST, ATTENTION_LOWEST }, { 0, 0 } };
        for (uint32_t turn = 0; tile < r.last; tile += n_groups, turn ^= 1) {
            const bool is_last = tile + 1 == r.n_tiles, more = tile + n_groups < r.last;
            if (is_last)
                attention_take_own(w, shared, tile, r.position, slice, g, t);
            const float4 score = attention_scores(w.k, query);
            if (more)
                attention_load_keys(w, keys, row_bytes, tile + n_groups, r.position, g);
            const float4 all = attention_add_scores(shared.u.making, score, turn, log_slices, warp, lane);
            float x[4] = { all.x * factors[0], all.y * factors[1], all.z * factors[0], all.w * factors[1] };
            if (is_last) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (attention_key_row(tile, i, g) > r.position)
                        x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
            }
            uint32_t weights[2];
            attention_weigh(sums, weights, x);
            attention_add_values(sums, w.v, weights);
            if (more)
                attention_load_values(w, values, row_bytes, tile + n_groups, r.position, t);
        }
        attention_leave(shared, sums, s, r, first_head, n, warp, lane);
    }
}

// ---- The product after it ----

// Columns first + 4 lane to first + 4 lane + 3 of a MERGED product; `first` is a multiple of 128. Parts are added in rising
// order, those without a position left out; the first few are asked for before it is known how many there are.
QN_DEVICE float4 merged_columns(const qn_chain_product &s, uint32_t first, uint32_t lane)
{
    constexpr uint32_t early = 4;
    const uint32_t width = min(s.head / 4, (uint32_t)QN_WARP); // lanes of a head
    const uint32_t column = first + 4 * lane, base = lane / width * width, mine = lane % width;
    const bool has = column < s.n_cols;
    const uint32_t head = has ? column / s.head : 0, d = column % s.head;
    const float *partials = s.x + (uint64_t)head * s.n_splits * s.head + d;
    const float2 *maxima = (const float2 *)s.maxima + head * s.n_splits;
    float4 x[early], gate = float4{};
    float2 of[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        of[i] = mine + i * width < s.n_splits ? __ldcg(maxima + mine + i * width) : make_float2(ATTENTION_LOWEST, 0);
#pragma unroll
    for (uint32_t i = 0; i < early; i++)
        x[i] = i < s.n_splits ? __ldcg((const float4 *)(partials + i * s.head)) : float4{};
    if (s.gated) {
        const float squares = parts_squares(s.from);
        const float4 sum = has ? parts_sum_4(s.from, s.row + 2 * head * s.head + s.head + d) : gate;
        gate = scale_4(sum, parts_factor(s.from, squares));
    }
    float m = fmaxf(of[0].x, of[1].x);
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        m = fmaxf(m, __shfl_xor_sync(QN_ALL_LANES, m, distance));
    uint32_t n = 0;
    float factors[2], l = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool used = of[i].y != 0;
        factors[i] = used ? attention_exp_2(of[i].x - m) : 0;
        l += of[i].y * factors[i];
        n += __popc(__ballot_sync(QN_ALL_LANES, used) >> base & (width == QN_WARP ? QN_ALL_LANES : (1u << width) - 1));
    }
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        l += __shfl_xor_sync(QN_ALL_LANES, l, distance);
    const float norm = l > 0 || l != l ? 1 / l : 0; // l is NaN where a score is, and so is the result
    float4 y = float4{};
    const auto add = [&](uint32_t i, const float4 &part) {
        const float factor = __shfl_sync(QN_ALL_LANES, i < width ? factors[0] : factors[1], base + i % width);
        if (i < n) {
            y = add_4(y, scale_4(part, factor));
        }
    };
#pragma unroll
    for (uint32_t i = 0; i < early; i++)
        add(i, x[i]);
    for (uint32_t i = early; __any_sync(QN_ALL_LANES, i < n); i += early) {
#pragma unroll
        for (uint32_t j = 0; j < early; j++)
            if (i + j < n)
                x[j] = __ldcg((const float4 *)(partials + (i + j) * s.head));
#pragma unroll
        for (uint32_t j = 0; j < early; j++)
            add(i + j, x[j]);
    }
    const auto end = [&](float sum, float gate_of) { return s.gated ? sum * norm / (1 + __expf(-gate_of)) : sum * norm; };
    return has ? make_float4(end(y.x, gate.x), end(y.y, gate.y), end(y.z, gate.z), end(y.w, gate.w)) : float4{};
}

#endif
