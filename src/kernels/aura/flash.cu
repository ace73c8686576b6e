// Attention over a cache of AURA codes: pass 1 of flash decoding, which processes each block of keys separately, and
// attention in a single pass. attend.cuh holds the code of a warp; pass2.cu combines the results of pass 1.
//
// Method: Dao et al., Flash-Decoding (2023).
#define QN_PAGES 0
#define QN_WARPS QN_AURA_FLASH_WARPS(QN_HEAD_DIM)

#include "kernels/aura/query_tile.cuh"

#define LN2 0.6931471805599453f

// Rows visible to any of the tile's queries, and rows visible to all of them.
struct row_bounds {
    uint32_t begin, end, all_begin, all_end;
};

QN_DEVICE row_bounds row_bounds_of(const shared &s, uint32_t n_columns)
{
    row_bounds o = { 0xffffffffu, 0, 0, 0xffffffffu };
#pragma unroll
    for (uint32_t i = 0; i < TILE_Q; i++) {
        if (i < n_columns && s.begin[i] < s.end[i]) {
            o.begin = min(o.begin, s.begin[i]);
            o.end = max(o.end, s.end[i]);
        }
        o.all_begin = max(o.all_begin, s.begin[i]);
        o.all_end = min(o.all_end, s.end[i]);
    }
    return o;
}

// The rows of [first, limit) that warp `member` of the warps that share them processes; the next range begins at
// `next`.
QN_DEVICE kv_range warp_rows(const row_bounds &o, uint32_t first, uint32_t limit, uint32_t next, uint32_t member,
                             uint32_t warps_per_block)
{
    const uint32_t begin = max(first, o.begin), end = min(limit, o.end);
    kv_range r;
    r.begin = max(first, o.all_begin);
    r.end = min(limit, o.all_end);
    r.tile = begin / TILE_KV + member;
    r.last_tile = begin < end ? (end + TILE_KV - 1) / TILE_KV : 0;
    r.step = warps_per_block;
    r.first = first;
    r.limit = limit;
    r.next = max(next, o.begin) / TILE_KV + member;
    return r;
}

// Reduces over the lanes of a warp: the largest score, and l relative to it.
QN_DEVICE void reduce_lanes(float2 m_and_l[2], const softmax_state &state)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float true_max = state.true_max[j], l = state.l[j];
#pragma unroll
        for (int distance = 4; distance < QN_WARP_SIZE; distance *= 2) {
            true_max = fmaxf(true_max, __shfl_xor_sync(QN_FULL_MASK, true_max, distance));
            l += __shfl_xor_sync(QN_FULL_MASK, l, distance);
        }
        m_and_l[j] = make_float2(true_max, l * qn_exp2(state.m[j] - true_max));
    }
}

// A query's largest score and l, over the warps of a block.
QN_DEVICE float2 combine_warps(const shared &s, int column)
{
    float m = LOWEST, l = 0;
#pragma unroll
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][column]);
#pragma unroll
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][column] * qn_exp2(s.m[w][column] - m);
    return make_float2(m, l);
}

QN_DEVICE void store_maxima(shared &s, const float2 m_and_l[2], const thread_coord &p)
{
    if (p.g != 0)
        return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        s.m[p.warp][2 * p.t + j] = m_and_l[j].x;
        s.l[p.warp][2 * p.t + j] = m_and_l[j].y;
    }
}

static_assert(REDUCE_FITS(sizeof(shared), TILE_Q *DIM), "the reduction buffer overlaps the tables");

struct table_entries {
    uint32_t key, value;
};

QN_DEVICE table_entries load_table_entries(const qn_aura_gpu_cache &cache)
{
    table_entries e = { 0, 0 };
    if (threadIdx.x < TABLE_ENTRIES) {
        e.key = make_table_entry<QN_KEY_BITS>(threadIdx.x, cache.key_codec);
        e.value = make_table_entry<QN_VALUE_BITS>(threadIdx.x, cache.value_codec);
    }
    return e;
}

QN_DEVICE float *reduce_buffer(uint8_t *dynamic)
{
    return (float *)(dynamic + (LARGE_SMEM ? 0 : TABLE_ENTRIES << ENTRY_SHIFT));
}

// The results of a warp that processes a block of keys alone: partials, maxima and sums.
QN_DEVICE void write_block(const qn_aura_flash_pass1_args &a, const query_tile &tile, const softmax_state &state,
                           const float (*acc)[4], const float2 m_and_l[2], float unit, uint32_t block, const thread_coord &p)
{
    using dims = lane_fragment<QN_VALUE_BITS, 8>;
    constexpr int width = dims::run % 4 == 0 ? 4 : 2; // contiguous output elements of a lane
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t column = 2 * p.t + j;
        if (column >= tile.n_columns)
            continue;
        const uint64_t at = (uint64_t)tile.query(column) * a.n_blocks + block;
        const float factor = qn_exp2(state.m[j] - m_and_l[j].x) * unit;
        if (p.g == 0)
            a.l[at] = m_and_l[j].y;
        if (m_and_l[j].y == 0)
            continue;
        if (p.g == 0)
            a.m[at] = m_and_l[j].x * LN2;
        float *to = a.partials + at * DIM;
#pragma unroll
        for (int i = 0; i < DIM / 8; i += width) {
            float x[4];
#pragma unroll
            for (int k = 0; k < width; k++)
                x[k] = acc[(i + k) / 2][(i + k) % 2 * 2 + j] * factor;
            if (width == 4)
                *(float4 *)(to + dims::dim_of(i, p.g)) = make_float4(x[0], x[1], x[2], x[3]);
            else
                *(float2 *)(to + dims::dim_of(i, p.g)) = make_float2(x[0], x[1]);
        }
    }
}

// The results of all warps of the block, which share a block of keys. exp_sums: shared memory.
QN_DEVICE void reduce_and_write_block(const qn_aura_flash_pass1_args &a, shared &s, float *exp_sums, float *buffer,
                                      const query_tile &tile, const softmax_state &state, const float (*acc)[4],
                                      const float2 m_and_l[2], float unit, uint32_t block, const thread_coord &p)
{
    store_maxima(s, m_and_l, p);
    __syncthreads();
    const float factor[2] = { qn_exp2(state.m[0] - combine_warps(s, 2 * p.t).x) * unit,
                              qn_exp2(state.m[1] - combine_warps(s, 2 * p.t + 1).x) * unit };
    if (threadIdx.x < tile.n_columns) {
        const float2 block_ml = combine_warps(s, threadIdx.x);
        const uint64_t at = (uint64_t)tile.query(threadIdx.x) * a.n_blocks + block;
        exp_sums[threadIdx.x] = a.l[at] = block_ml.y;
        if (block_ml.y != 0)
            a.m[at] = block_ml.x * LN2;
    }
    reduce_warps<QN_VALUE_BITS>(buffer, acc, factor, tile.n_columns, p, [&](uint32_t column, uint32_t d, float x) {
        if (exp_sums[column] != 0)
            a.partials[((uint64_t)tile.query(column) * a.n_blocks + block) * DIM + d] = x;
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_flash_pass1(const __grid_constant__ qn_aura_flash_pass1_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ float exp_sums[TILE_Q];
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile tile = query_tile_at(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const kv_source from = source_at(a.cache, tile.kv_head);
    const uint32_t teams_per_block = QN_WARPS / a.warps_per_block, n_teams = gridDim.y * teams_per_block,
                   member = warp % a.warps_per_block;
    const table_entries e = load_table_entries(a.cache);
    qn_pdl_wait();
    qn_pdl_trigger();
    store_queries(s, a.queries, a.cache.key_codec, tile, a.cache.n_keys, a.queries.scale * QN_LOG2E, p);
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, e.key, e.value);
    __syncthreads();

    const row_bounds o = row_bounds_of(s, tile.n_columns);
    const uint32_t table = TABLE_ADDRESS(dynamic) + 4 * lane;
    query_fragment c;
    load_query_fragment(c, s, p);
    const auto rows_of = [&](uint32_t b) {
        const uint32_t next = b + n_teams < a.n_blocks ? (b + n_teams) * a.block : 0;
        return warp_rows(o, b * a.block, min((b + 1) * a.block, a.cache.n_keys), next, member, a.warps_per_block);
    };
    kv_tile<QN_KEY_BITS, QN_VALUE_BITS> words;
    uint32_t b = blockIdx.y * teams_per_block + warp / a.warps_per_block;
    if (words.prefetches && b < a.n_blocks) {
        const uint32_t first = rows_of(b).tile;
        words.load_keys(from, p, first);
        words.load_values(from, p, first);
    }
    for (; b < a.n_blocks; b += n_teams) {
        softmax_state state;
        float acc[DIM / 16][4];
        attend<QN_KEY_BITS, QN_VALUE_BITS, true, false>(state, acc, words, c, s, from, rows_of(b), p, table);
        float2 m_and_l[2];
        reduce_lanes(m_and_l, state);
        const float unit = state.value_scale_unit / a.cache.value_codec.gain;
        if (a.warps_per_block == 1)
            write_block(a, tile, state, acc, m_and_l, unit, b, p);
        else
            reduce_and_write_block(a, s, exp_sums, reduce_buffer(dynamic), tile, state, acc, m_and_l, unit, b, p);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_attention(const __grid_constant__ qn_aura_attention_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile tile = query_tile_at(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const kv_source from = source_at(a.cache, tile.kv_head);
    const table_entries e = load_table_entries(a.cache);
    qn_pdl_wait();
    qn_pdl_trigger();
    store_queries(s, a.queries, a.cache.key_codec, tile, a.cache.n_keys, a.queries.scale * QN_LOG2E, p);
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, e.key, e.value);
    __syncthreads();

    const kv_range rows = warp_rows(row_bounds_of(s, tile.n_columns), 0, a.cache.n_keys, 0, warp, QN_WARPS);
    query_fragment c;
    softmax_state state;
    float acc[DIM / 16][4];
    kv_tile<QN_KEY_BITS, QN_VALUE_BITS> words;
    load_query_fragment(c, s, p);
    if (words.prefetches) {
        words.load_keys(from, p, rows.tile);
        words.load_values(from, p, rows.tile);
    }
    attend<QN_KEY_BITS, QN_VALUE_BITS, true, false>(state, acc, words, c, s, from, rows, p, TABLE_ADDRESS(dynamic) + 4 * lane);
    float2 m_and_l[2];
    reduce_lanes(m_and_l, state);
    store_maxima(s, m_and_l, p);
    __syncthreads();
    const float unit = state.value_scale_unit / a.cache.value_codec.gain;
    const float factor[2] = { qn_exp2(state.m[0] - combine_warps(s, 2 * p.t).x) * unit,
                              qn_exp2(state.m[1] - combine_warps(s, 2 * p.t + 1).x) * unit };
    float *results = reduce_buffer(dynamic) + REDUCE_FLOATS; // [TILE_Q][DIM]
    reduce_warps<QN_VALUE_BITS>(reduce_buffer(dynamic), acc, factor, tile.n_columns, p,
                                [&](uint32_t column, uint32_t d, float x) { results[column * DIM + d] = x; });
    if (warp >= tile.n_columns)
        return;
    const uint32_t query = tile.query(warp);
    const float2 block_ml = combine_warps(s, warp);
    float l = block_ml.y, sink_factor = 1;
    if (a.sinks) {
        const float sink = a.sinks[query % a.queries.n_heads] * QN_LOG2E, m = fmaxf(block_ml.x, sink);
        sink_factor = qn_exp2(block_ml.x - m);
        l = l * sink_factor + qn_exp2(sink - m);
    }
    float y[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        y[i] = block_ml.y != 0 && i * QN_WARP_SIZE + lane < DIM
                   ? results[warp * DIM + i * QN_WARP_SIZE + lane] * sink_factor / l
                   : 0;
    qn_row_rotate_inverse<DIM>(y, a.rotation, lane);
    write_row<DIM>(a.out, tile.row(warp, a.out_stride), a.dtype, y, lane);
}
