// Attention over a cache of AURA codes: pass 1 of flash decoding, block of keys by block, and a single pass over all of them.
// What a warp does is attend.cuh's; pass2.cu merges what pass 1 leaves.
//
// Method: Dao et al., Flash-Decoding (2023).
#define QN_RUNS 0
#define QN_WARPS QN_AURA_FLASH_WARPS(QN_HEAD_DIM)

#include "kernels/aura/queries.cuh"

#define LN2 0.6931471805599453f

// Rows that any of the columns sees, and those that all of them see.
struct outline {
    uint32_t begin, end, all_begin, all_end;
};

QN_DEVICE outline outline_of(const shared &s, uint32_t n_columns)
{
    outline o = { 0xffffffffu, 0, 0, 0xffffffffu };
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS; i++) {
        if (i < n_columns && s.begin[i] < s.end[i]) {
            o.begin = min(o.begin, s.begin[i]);
            o.end = max(o.end, s.end[i]);
        }
        o.all_begin = max(o.all_begin, s.begin[i]);
        o.all_end = min(o.all_end, s.end[i]);
    }
    return o;
}

// The part of rows [first, limit) that is one warp's of `team`, where the next such part begins at `next`.
QN_DEVICE portion_of_rows part_of(const outline &o, uint32_t first, uint32_t limit, uint32_t next, uint32_t member,
                                  uint32_t team)
{
    const uint32_t begin = max(first, o.begin), end = min(limit, o.end);
    portion_of_rows r;
    r.begin = max(first, o.all_begin);
    r.end = min(limit, o.all_end);
    r.tile = begin / KEYS + member;
    r.last_tile = begin < end ? (end + KEYS - 1) / KEYS : 0;
    r.step = team;
    r.first = first;
    r.limit = limit;
    r.next = max(next, o.begin) / KEYS + member;
    return r;
}

// Sums of a warp over its lanes: l relative to the largest score, which is the first of the two.
QN_DEVICE void close(float2 m_and_l[2], const running &state)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float top = state.top[j], l = state.l[j];
#pragma unroll
        for (int distance = 4; distance < QN_WARP; distance *= 2) {
            top = fmaxf(top, __shfl_xor_sync(QN_ALL_LANES, top, distance));
            l += __shfl_xor_sync(QN_ALL_LANES, l, distance);
        }
        m_and_l[j] = make_float2(top, l * qn_exp_2(state.m[j] - top));
    }
}

// A column's largest score and sum, over the warps of a block.
QN_DEVICE float2 merge_column(const shared &s, int column)
{
    float m = LOWEST, l = 0;
#pragma unroll
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][column]);
#pragma unroll
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][column] * qn_exp_2(s.m[w][column] - m);
    return make_float2(m, l);
}

QN_DEVICE void put_maxima(shared &s, const float2 m_and_l[2], const place &p)
{
    if (p.g != 0)
        return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        s.m[p.warp][2 * p.t + j] = m_and_l[j].x;
        s.l[p.warp][2 * p.t + j] = m_and_l[j].y;
    }
}

static_assert(SUMS_FIT(sizeof(shared), COLUMNS *DIM), "sums reach into tables");

struct entries {
    uint32_t key, value;
};

QN_DEVICE entries ask_entries(const qn_aura_gpu_cache &cache)
{
    entries e = { 0, 0 };
    if (threadIdx.x < TABLE_ENTRIES) {
        e.key = table_entry<QN_KEY_BITS>(threadIdx.x, cache.key_codec);
        e.value = table_entry<QN_VALUE_BITS>(threadIdx.x, cache.value_codec);
    }
    return e;
}

QN_DEVICE float *rows_of_sums(uint8_t *dynamic)
{
    return (float *)(dynamic + (FAR ? 0 : TABLE_ENTRIES << ENTRY_SHIFT));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_flash_pass1(const __grid_constant__ qn_aura_flash_pass1_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ float lengths[COLUMNS];
    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const place p = { warp, lane, lane / 4, lane % 4 };
    const column_tile tile = take_tile(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const source from = take_source(a.cache, tile.kv_head);
    const uint32_t teams = QN_WARPS / a.team, n_teams = gridDim.y * teams, member = warp % a.team;
    const entries e = ask_entries(a.cache);
    qn_wait_for_previous();
    qn_let_next_begin();
    put_columns(s, a.queries, a.cache.key_codec, tile, a.cache.n_keys, a.queries.scale * LOG2E, p);
    if (threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, e.key, e.value);
    __syncthreads();

    const outline o = outline_of(s, tile.n_columns);
    const uint32_t table = TABLES(dynamic) + 4 * lane;
    columns c;
    take_columns(c, s, p);
    const auto rows_of = [&](uint32_t b) {
        const uint32_t next = b + n_teams < a.n_blocks ? (b + n_teams) * a.block : 0;
        return part_of(o, b * a.block, min((b + 1) * a.block, a.cache.n_keys), next, member, a.team);
    };
    tile_words<QN_KEY_BITS, QN_VALUE_BITS> words;
    uint32_t b = blockIdx.y * teams + warp / a.team;
    if (words.ahead && b < a.n_blocks) {
        const uint32_t first = rows_of(b).tile;
        words.load_keys(from, p, first);
        words.load_values(from, p, first);
    }
    for (; b < a.n_blocks; b += n_teams) {
        running state;
        float sums[DIM / 16][4];
        attend<QN_KEY_BITS, QN_VALUE_BITS, true, false>(state, sums, words, c, s, from, rows_of(b), p, table);
        float2 m_and_l[2];
        close(m_and_l, state);
        const float unit = state.value_unit / a.cache.value_codec.gain;
        if (a.team == 1) {
            using dims = portion<QN_VALUE_BITS, 8>;
            constexpr int width = dims::run % 4 == 0 ? 4 : 2; // values that lie next to each other
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t column = 2 * p.t + j;
                if (column >= tile.n_columns)
                    continue;
                const uint64_t at = (uint64_t)tile.query(column) * a.n_blocks + b;
                const float factor = qn_exp_2(state.m[j] - m_and_l[j].x) * unit;
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
                        x[k] = sums[(i + k) / 2][(i + k) % 2 * 2 + j] * factor;
                    if (width == 4)
                        *(float4 *)(to + dims::dim_of(i, p.g)) = make_float4(x[0], x[1], x[2], x[3]);
                    else
                        *(float2 *)(to + dims::dim_of(i, p.g)) = make_float2(x[0], x[1]);
                }
            }
            continue;
        }
        put_maxima(s, m_and_l, p);
        __syncthreads();
        const float factor[2] = { qn_exp_2(state.m[0] - merge_column(s, 2 * p.t).x) * unit,
                                  qn_exp_2(state.m[1] - merge_column(s, 2 * p.t + 1).x) * unit };
        if (threadIdx.x < tile.n_columns) {
            const float2 all = merge_column(s, threadIdx.x);
            const uint64_t at = (uint64_t)tile.query(threadIdx.x) * a.n_blocks + b;
            lengths[threadIdx.x] = a.l[at] = all.y;
            if (all.y != 0)
                a.m[at] = all.x * LN2;
        }
        sum_warps<QN_VALUE_BITS>(rows_of_sums(dynamic), sums, factor, tile.n_columns, p,
                                 [&](uint32_t column, uint32_t d, float x) {
                                     if (lengths[column] != 0)
                                         a.partials[((uint64_t)tile.query(column) * a.n_blocks + b) * DIM + d] = x;
                                 });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_attention(const __grid_constant__ qn_aura_attention_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const place p = { warp, lane, lane / 4, lane % 4 };
    const column_tile tile = take_tile(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const source from = take_source(a.cache, tile.kv_head);
    const entries e = ask_entries(a.cache);
    qn_wait_for_previous();
    qn_let_next_begin();
    put_columns(s, a.queries, a.cache.key_codec, tile, a.cache.n_keys, a.queries.scale * LOG2E, p);
    if (threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, e.key, e.value);
    __syncthreads();

    const portion_of_rows rows = part_of(outline_of(s, tile.n_columns), 0, a.cache.n_keys, 0, warp, QN_WARPS);
    columns c;
    running state;
    float sums[DIM / 16][4];
    tile_words<QN_KEY_BITS, QN_VALUE_BITS> words;
    take_columns(c, s, p);
    if (words.ahead) {
        words.load_keys(from, p, rows.tile);
        words.load_values(from, p, rows.tile);
    }
    attend<QN_KEY_BITS, QN_VALUE_BITS, true, false>(state, sums, words, c, s, from, rows, p, TABLES(dynamic) + 4 * lane);
    float2 m_and_l[2];
    close(m_and_l, state);
    put_maxima(s, m_and_l, p);
    __syncthreads();
    const float unit = state.value_unit / a.cache.value_codec.gain;
    const float factor[2] = { qn_exp_2(state.m[0] - merge_column(s, 2 * p.t).x) * unit,
                              qn_exp_2(state.m[1] - merge_column(s, 2 * p.t + 1).x) * unit };
    float *results = rows_of_sums(dynamic) + SUM_FLOATS; // [COLUMNS][DIM]
    sum_warps<QN_VALUE_BITS>(rows_of_sums(dynamic), sums, factor, tile.n_columns, p,
                             [&](uint32_t column, uint32_t d, float x) { results[column * DIM + d] = x; });
    if (warp >= tile.n_columns)
        return;
    const uint32_t query = tile.query(warp);
    const float2 all = merge_column(s, warp);
    float l = all.y, factor_of_all = 1;
    if (a.sinks) {
        const float sink = a.sinks[query % a.queries.n_heads] * LOG2E, m = fmaxf(all.x, sink);
        factor_of_all = qn_exp_2(all.x - m);
        l = l * factor_of_all + qn_exp_2(sink - m);
    }
    float y[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        y[i] = all.y != 0 && i * QN_WARP + lane < DIM ? results[warp * DIM + i * QN_WARP + lane] * factor_of_all / l : 0;
    qn_row_rotate_back<DIM>(y, a.rotation, lane);
    write_row<DIM>(a.out, query, a.dtype, y, lane);
}
