// Attention over a cache of AURA codes: pass 1 of flash decoding, which processes each block of keys separately, and
// attention in a single pass. attend.cuh holds the code of a warp; pass2.cu combines the results of pass 1.
//
// Method: Dao et al., Flash-Decoding (2023).
#define QN_PAGES 0
#define QN_WARPS QN_AURA_FLASH_WARPS(QN_HEAD_DIM)

#include "cuda/kernels/aura/query_tile.cuh"

#define LN2 0.6931471805599453f

// Rows visible to any of the tile's queries, and rows visible to all of them.
struct row_bounds {
    uint32_t begin, end, all_begin, all_end;
};

// By a full warp. Not from shared memory: so copies of the cache are issued before queries are stored.
QN_DEVICE row_bounds row_bounds_of(uint2 rows, uint32_t n_columns, int lane)
{
    const bool has = lane < n_columns;
    const bool any = has && rows.x < rows.y;
    return { __reduce_min_sync(QN_FULL_MASK, any ? rows.x : 0xffffffffu), __reduce_max_sync(QN_FULL_MASK, any ? rows.y : 0),
             __reduce_max_sync(QN_FULL_MASK, rows.x), __reduce_min_sync(QN_FULL_MASK, rows.y) };
}

// The rows of [first, limit) that warp `member` of the warps that share them processes.
QN_DEVICE kv_range warp_rows(const row_bounds &o, uint32_t first, uint32_t limit, uint32_t member, uint32_t warps_per_block)
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

// The values of a thread's entry of the tables. They are loaded before the PDL wait, and stored after the copies of the
// cache have been issued: a block that starts when the previous kernel has ended would otherwise issue them later.
struct table_values {
    float2 key, value;
};

QN_DEVICE table_values load_tables(const qn_aura_gpu_cache &cache)
{
    const uint32_t i = threadIdx.x % TABLE_ENTRIES;
    return { load_table_values<QN_KEY_BITS>(i, cache.key_codec), load_table_values<QN_VALUE_BITS>(i, cache.value_codec) };
}

QN_DEVICE void store_tables(const table_values &x, const qn_aura_gpu_cache &cache, uint8_t *dynamic)
{
    const float key_gain = cache.key_codec.gain, value_gain = cache.value_codec.gain;
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, qn_f32_to_f16x2(x.key.x * key_gain, x.key.y * key_gain),
                          qn_f32_to_f16x2(x.value.x * value_gain, x.value.y * value_gain));
}

// The reduction over warps is in the larger space of the ring buffers, which are empty then.
using ring_of_warp = kv_ring<QN_KEY_BITS, QN_VALUE_BITS, 0>;

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

// The results of all warps of the block, which share a block of keys. outputs: shared memory.
QN_DEVICE void reduce_and_write_block(const qn_aura_flash_pass1_args &a, shared &s, float **outputs, float *buffer,
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
        a.l[at] = block_ml.y;
        outputs[threadIdx.x] = block_ml.y != 0 ? a.partials + at * DIM : 0;
        if (block_ml.y != 0)
            a.m[at] = block_ml.x * LN2;
    }
    reduce_warps<QN_VALUE_BITS, ring_of_warp::reduce_bytes>(buffer, acc, factor, tile.n_columns, p,
                                                            [&](uint32_t column, uint32_t d, const auto &x) {
                                                                if (outputs[column])
                                                                    store_floats(outputs[column] + d, x);
                                                            });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_flash_pass1(const __grid_constant__ qn_aura_flash_pass1_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ float *outputs[TILE_Q];
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile tile = query_tile_at(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    ring_of_warp ring(source_at(a.cache, tile.kv_head), qn_shared_address(dynamic), warp, lane);
    const uint32_t teams_per_block = QN_WARPS / a.warps_per_block, n_teams = gridDim.y * teams_per_block,
                   member = warp % a.warps_per_block;
    const query_place place = find_query(a.queries, a.cache.key_codec, tile, p);
    const table_values tables = load_tables(a.cache);
    qn_pdl_wait();
    qn_pdl_trigger();

    warp_query query = load_query(a.queries, tile, place, a.cache.n_keys, p);
    const row_bounds o = row_bounds_of(query.visible, tile.n_columns, lane);
    const auto rows_of = [&](uint32_t b) {
        return warp_rows(o, b * a.block, min((b + 1) * a.block, a.cache.n_keys), member, a.warps_per_block);
    };
    uint32_t b = blockIdx.y * teams_per_block + warp / a.warps_per_block;
    kv_range rows = rows_of(b);
    if (b < a.n_blocks)
        ring.fill(rows.tile, rows.last_tile, rows.step);
    store_tables(tables, a.cache, dynamic);
    store_query(s, query, place, a.cache.key_codec, tile, a.queries.scale * QN_LOG2E, p);
    __syncthreads();

    query_fragment c;
    load_query_fragment(c, s, p);
    while (b < a.n_blocks) {
        softmax_state state;
        float acc[DIM / 16][4];
        attend<QN_KEY_BITS, QN_VALUE_BITS, true>(state, acc, ring, c, s, rows, p, LANE_TABLE(dynamic, lane));
        const uint32_t block = b;
        b += n_teams;
        rows = rows_of(b);
        const bool alone = a.warps_per_block == 1;
        if (alone && b < a.n_blocks)
            ring.fill(rows.tile, rows.last_tile, rows.step);
        float2 m_and_l[2];
        reduce_lanes(m_and_l, state);
        const float unit = state.value_scale_unit / a.cache.value_codec.gain;
        if (alone) {
            write_block(a, tile, state, acc, m_and_l, unit, block, p);
            continue;
        }
        reduce_and_write_block(a, s, outputs, ring_of_warp::reduce_buffer(dynamic), tile, state, acc, m_and_l, unit, block, p);
        if (b < a.n_blocks)
            ring.fill(rows.tile, rows.last_tile, rows.step);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_attention(const __grid_constant__ qn_aura_attention_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile tile = query_tile_at(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    ring_of_warp ring(source_at(a.cache, tile.kv_head), qn_shared_address(dynamic), warp, lane);
    const query_place place = find_query(a.queries, a.cache.key_codec, tile, p);
    const table_values tables = load_tables(a.cache);
    qn_pdl_wait();
    qn_pdl_trigger();

    warp_query query = load_query(a.queries, tile, place, a.cache.n_keys, p);
    const kv_range rows = warp_rows(row_bounds_of(query.visible, tile.n_columns, lane), 0, a.cache.n_keys, warp, QN_WARPS);
    ring.fill(rows.tile, rows.last_tile, rows.step);
    store_tables(tables, a.cache, dynamic);
    store_query(s, query, place, a.cache.key_codec, tile, a.queries.scale * QN_LOG2E, p);
    __syncthreads();

    query_fragment c;
    softmax_state state;
    float acc[DIM / 16][4];
    load_query_fragment(c, s, p);
    attend<QN_KEY_BITS, QN_VALUE_BITS, true>(state, acc, ring, c, s, rows, p, LANE_TABLE(dynamic, lane));
    float2 m_and_l[2];
    reduce_lanes(m_and_l, state);
    store_maxima(s, m_and_l, p);
    __syncthreads();
    const float unit = state.value_scale_unit / a.cache.value_codec.gain;
    const float factor[2] = { qn_exp2(state.m[0] - combine_warps(s, 2 * p.t).x) * unit,
                              qn_exp2(state.m[1] - combine_warps(s, 2 * p.t + 1).x) * unit };
    float *results = ring_of_warp::reduce_buffer(dynamic); // [TILE_Q][DIM], before the buffer of the reduction
    reduce_warps<QN_VALUE_BITS, ring_of_warp::reduce_bytes - TILE_Q * DIM * 4>(
        results + TILE_Q * DIM, acc, factor, tile.n_columns, p,
        [&](uint32_t column, uint32_t d, const auto &x) { store_floats(results + column * DIM + d, x); });
    if (warp >= tile.n_columns)
        return;
    const uint32_t index = tile.query(warp);
    const float2 block_ml = combine_warps(s, warp);
    float l = block_ml.y, sink_factor = 1;
    if (a.sinks) {
        const float sink = a.sinks[index % a.queries.n_heads] * QN_LOG2E, m = fmaxf(block_ml.x, sink);
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
