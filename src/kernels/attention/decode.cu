// Split-KV attention of single query rows over a cache of fp16 values or AURA codes: the attention of a decode step,
// bound by reading the cache. attend.cuh holds the code of a warp; this file assigns cache rows to blocks and reduces
// the warps of a block.
//
// Method: Flash-Decoding (Dao et al., 2023).
#include "kernels/attend.cuh"

#include "kernels/attention/split.cuh"
#include "kernels/typed_rows.cuh"

// A warp stores its partial sums in rows of floats. Padding within a row and between rows avoids most bank conflicts.
QN_DEVICE constexpr int padded_index(int dim)
{
    return dim + dim / 32;
}

template <int value_bits> QN_DEVICE constexpr int row_stride()
{
    constexpr int apart = lane_fragment<value_bits, 8>::run / 8;
    return (padded_index(DIM) + 15) / 16 * 16 + (apart > 0 ? apart : 1);
}

// The query heads of a block (the columns of its MMAs): their number, and the index of the first among the query heads
// of all rows.
struct query_tile {
    uint32_t n_columns, first_query;
};

// ---- Reduction over the warps of a block ----

// Stores the maxima and sums of a warp: s.m, s.l.
QN_DEVICE void store_maxima(shared &s, softmax_state &state, const thread_coord &p)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        state.l[i] = qn_lanes_sum<4, QN_WARP_SIZE>(state.l[i]);
        if (p.g == 0) {
            s.m[p.warp][2 * p.t + i] = state.m[i];
            s.l[p.warp][2 * p.t + i] = state.l[i];
        }
    }
}

// Stores the outputs of a warp, relative to the maximum of the block: rows[warp][column].
template <int value_bits>
QN_DEVICE void store_warp_rows(float *rows, const shared &s, const softmax_state &state, const float (*acc)[4],
                               const query_tile &query_tile, const thread_coord &p, float value_gain)
{
    using value_portion = lane_fragment<value_bits, 8>;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int column = 2 * p.t + j;
        if (column < query_tile.n_columns) {
            float m = LOWEST;
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++)
                m = fmaxf(m, s.m[w][column]);
            const float factor = qn_exp2(state.m[j] - m) * state.value_scale_unit * value_gain;
            float *to = rows + (p.warp * TILE_Q + column) * row_stride<value_bits>();
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
                to[padded_index(value_portion::dim_of(i, p.g))] = acc[i / 2][i % 2 * 2 + j] * factor;
        }
    }
}

// Writes the split's maxima and sums: one thread a column.
QN_DEVICE void write_maxima(const qn_attention_decode_args &a, const shared &s, const query_tile &query_tile)
{
    if (threadIdx.x >= query_tile.n_columns)
        return;
    float m = LOWEST, l = 0;
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][threadIdx.x]);
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][threadIdx.x] * qn_exp2(s.m[w][threadIdx.x] - m);
    *(float2 *)&a.maxima[((uint64_t)(query_tile.first_query + threadIdx.x) * gridDim.x + blockIdx.x) * 2] = make_float2(m, l);
}

// Writes the split's outputs, the sums of all warps' rows.
template <int value_bits>
QN_DEVICE void write_partials(const qn_attention_decode_args &a, const float *rows, const query_tile &query_tile)
{
    constexpr int stride = row_stride<value_bits>();
    for (int i = threadIdx.x; i < query_tile.n_columns * DIM; i += THREADS) {
        const int column = i / DIM, dim = i % DIM;
        const float *of = rows + column * stride + padded_index(dim);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < QN_WARPS; w++)
            sum += of[w * TILE_Q * stride];
        a.partials[((uint64_t)(query_tile.first_query + column) * gridDim.x + blockIdx.x) * DIM + dim] = sum;
    }
}

// ---- A block ----

// Attention of a block's query heads over its split, from queries to partial sums. With `early`, the first tile is
// loaded before the PDL wait; its rows must not be written by the previous kernel. load_query runs right after the PDL
// wait and issues the loads of the queries; store_query runs after the first tile's loads have been issued, rotates the
// queries and stores them in shared memory.
template <int key_bits, int value_bits, bool single_tile, class load_queries, class store_queries>
QN_DEVICE void attend_block(const qn_attention_decode_args &a, shared &s, const kv_source &from, const kv_range &span,
                            const thread_coord &p, const query_tile &query_tile, uint8_t *dynamic, float value_gain, bool early,
                            load_queries load_query, store_queries store_query)
{
    kv_tile<key_bits, value_bits> words;
    const bool any = words.prefetches && span.tile < span.last_tile;
    if (any && early) {
        words.load_keys(from, p, span.tile);
        words.load_values(from, p, span.tile);
    }
    qn_pdl_wait();
    load_query();
    if (any && !early) {
        words.load_keys(from, p, span.tile);
        words.load_values(from, p, span.tile);
    }
    store_query();
    __syncthreads();
    query_fragment c;
    softmax_state state;
    float acc[DIM / 16][4];
    load_query_fragment(c, s, p);
    attend<key_bits, value_bits, false, single_tile>(state, acc, words, c, s, from, span, p,
                                                     TABLE_ADDRESS(dynamic) + 4 * p.lane);
    store_maxima(s, state, p);
    __syncthreads();                // the look-up tables are no longer needed; `rows` overwrites them
    float *rows = (float *)dynamic; // [QN_WARPS][TILE_Q][row_stride]
    store_warp_rows<value_bits>(rows, s, state, acc, query_tile, p, value_gain);
    write_maxima(a, s, query_tile);
    __syncthreads();
    write_partials<value_bits>(a, rows, query_tile);
}

template <int bits>
QN_DEVICE void store_query_column(shared &s, const float query[LANE_VALUES], float bias, float scale, float gain,
                                  const thread_coord &p)
{
    if (p.warp < TILE_Q) {
        store_f16_query<bits>(s, query, scale / gain, p.warp, p.lane);
        s.biases[p.warp] = bias * scale;
    }
}

// The rows of a warp in the cache (fp16 or codes): split `split` of the span.
QN_DEVICE void find_cache_rows(kv_source &from, kv_range &rows, const qn_attention_decode_args &a,
                               const qn_attention_span &span, uint32_t split, uint32_t session, uint32_t head)
{
    from.keys = a.cache.keys + session * a.cache.key_session_stride + head * a.cache.key_head_stride;
    from.values = a.cache.values + session * a.cache.value_session_stride + head * a.cache.value_head_stride;
    const uint64_t scales = session * a.cache.scale_session_stride + head * a.cache.scale_head_stride;
    from.key_scales = (const float *)(a.cache.key_scales + scales);
    from.value_scales = (const float *)(a.cache.value_scales + scales);
    rows.begin = span.begin;
    rows.end = span.end;
    rows.tile = span.tile0 + split * span.tiles_per_split + threadIdx.x / QN_WARP_SIZE;
    rows.last_tile = span.tile0 + min((split + 1) * span.tiles_per_split, span.tiles);
    from.last_row = min(rows.last_tile * TILE_KV, span.end) - 1;
    from.row_gap = 0;
}

// The rows of a warp in the first and the open page, which are fp16.
QN_DEVICE void find_page_rows(kv_source &from, kv_range &rows, const qn_attention_decode_args &a, uint32_t position,
                              uint32_t session, uint32_t head)
{
    static_assert(QN_WARPS * TILE_KV >= 2 * QN_ATTENTION_PAGE, "a warp has one tile of the fp16 pages");
    const uint32_t page = position / QN_ATTENTION_PAGE;
    const uint64_t at = session * a.pages.session + head * a.pages.head;
    from.keys = a.pages.keys + at;
    from.values = a.pages.values + at;
    from.key_scales = from.value_scales = 0;
    rows.begin = 0;
    rows.end = (page ? QN_ATTENTION_PAGE : 0) + position % QN_ATTENTION_PAGE + 1;
    rows.tile = threadIdx.x / QN_WARP_SIZE;
    rows.last_tile = (rows.end + TILE_KV - 1) / TILE_KV;
    from.last_row = rows.end - 1;
    from.row_gap = page ? (page - 1) % a.pages.n_open_pages * QN_ATTENTION_PAGE : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[]; // look-up tables, later overwritten by the partial sums of the warps
    __shared__ shared s;

    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t group = a.n_heads / a.n_kv_heads, query_tiles = (group + TILE_Q - 1) / TILE_Q;
    const uint32_t head = blockIdx.y / query_tiles, first_column = blockIdx.y % query_tiles * TILE_Q;
    const uint32_t row = blockIdx.z;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const struct query_tile query_tile = { min(group - first_column, (uint32_t)TILE_Q),
                                           row * a.n_heads + head * group + first_column };
    const bool is_codes = CODES && !(QN_PAGES && blockIdx.x == 0);

    // Work that does not depend on the previous kernel: look-up tables, and the split's range of rows.
    qn_pdl_trigger();
    const uint32_t position = a.mask.positions ? a.mask.positions[row] : 0, session = a.sessions ? a.sessions[row] : 0;
    const bool rotates = CODES && (DIM & (DIM - 1)) == 0 && a.key_codec.signs;
    float signs[LANE_VALUES], query[LANE_VALUES], mean[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        signs[i] = rotates ? a.key_codec.signs[i * QN_WARP_SIZE + lane] : 1;
    if (is_codes && threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, make_table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec),
                          make_table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec));
    const qn_attention_span span = qn_attention_span_of(a.mask, position, gridDim.x);
    if (blockIdx.x >= span.active_splits)
        return;

    const auto load_query = [&]() {
        const uint64_t first_value = (uint64_t)row * a.query_stride + (head * group + first_column + warp) * DIM;
        const float *means = (const float *)(a.pages.means + session * a.pages.mean_session_stride + head * (DIM * 4));
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP_SIZE + lane;
            const bool has = warp < query_tile.n_columns && dim < DIM;
            query[i] = has ? qn_load_typed(a.queries, first_value + dim, a.dtype) : 0;
            mean[i] = QN_PAGES && is_codes && has ? means[dim] : 0;
        }
    };
    // Rotates the queries to the basis of the keys. Returns the bias that the mean of the keys adds to scores.
    const auto rotate_queries = [&]() {
        if (rotates) {
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                query[i] *= signs[i];
            qn_row_hadamard<DIM>(query, lane);
        }
        float bias = 0;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            bias += query[i] * mean[i];
        return QN_PAGES ? qn_warp_sum(bias) : 0;
    };

    kv_source from;
    kv_range rows;
    rows.step = QN_WARPS;
    rows.first = rows.limit = rows.next = 0;
    if (is_codes || !QN_PAGES) {
        find_cache_rows(from, rows, a, span, blockIdx.x - (QN_PAGES ? 1 : 0), session, head);
        const bool early = a.pdl_prefetch && (QN_PAGES || (rows.tile + 1) * TILE_KV < span.end);
        attend_block<QN_KEY_BITS, QN_VALUE_BITS, false>(
            a, s, from, rows, p, query_tile, dynamic, 1.0f, early, load_query, [&]() {
                store_query_column<QN_KEY_BITS>(s, query, rotate_queries(), a.scale * QN_LOG2E, CODES ? a.key_codec.gain : 1,
                                                p);
            });
    } else {
        find_page_rows(from, rows, a, position, session, head);
        const bool early = a.pdl_prefetch && (rows.tile + 1) * TILE_KV < rows.end;
        attend_block<16, 16, true>(a, s, from, rows, p, query_tile, dynamic, a.value_codec.gain, early, load_query,
                                   [&]() { store_query_column<16>(s, query, rotate_queries(), a.scale * QN_LOG2E, 1, p); });
    }
}
