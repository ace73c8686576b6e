// Split-KV attention of single query rows over a cache of fp16 values or AURA codes: the attention of a decode step,
// bound by reading the cache. attend.cuh holds the code of a warp; this file assigns cache rows to blocks and reduces
// the warps of a block.
//
// Method: Flash-Decoding (Dao et al., 2023).
#include "kernels/attend.cuh"

#include "kernels/attention/split.cuh"
#include "kernels/typed_rows.cuh"

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

// Factors of a lane's two columns that make the outputs of its warp relative to the maximum of the block.
QN_DEVICE void block_factors(float factor[2], const shared &s, const softmax_state &state, const thread_coord &p,
                             float value_gain)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m = LOWEST;
#pragma unroll
        for (int w = 0; w < QN_WARPS; w++)
            m = fmaxf(m, s.m[w][2 * p.t + j]);
        factor[j] = qn_exp2(state.m[j] - m) * state.value_scale_unit * value_gain;
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

// ---- A block ----

using ring_of_warp = kv_ring<QN_KEY_BITS, QN_VALUE_BITS>;

// Attention of a block's query heads over its split, from queries to partial sums. load_rows issues the loads of the warp's
// first rows of the cache: before the PDL wait if `early`, when the previous kernel must not write them. load_query runs
// right after the PDL wait and issues the loads of the queries; store_query runs after the loads of rows have been issued,
// rotates the queries and stores them in shared memory. attend_rows(state, acc, queries) processes the warp's rows.
template <int value_bits, class rows_loader, class rows_attention, class query_loader, class query_writer>
QN_DEVICE void attend_block(const qn_attention_decode_args &a, shared &s, const thread_coord &p, const query_tile &query_tile,
                            uint8_t *dynamic, float value_gain, bool early, rows_loader load_rows, rows_attention attend_rows,
                            query_loader load_query, query_writer store_query)
{
    if (early)
        load_rows();
    qn_pdl_wait();
    load_query();
    if (!early)
        load_rows();
    store_query();
    __syncthreads();
    query_fragment c;
    softmax_state state;
    float acc[DIM / 16][4], factor[2];
    load_query_fragment(c, s, p);
    attend_rows(state, acc, c);
    store_maxima(s, state, p);
    __syncthreads(); // the rings are no longer needed: the reduction overwrites them
    block_factors(factor, s, state, p, value_gain);
    write_maxima(a, s, query_tile);
    reduce_warps<value_bits, ring_of_warp::reduce_bytes>(
        ring_of_warp::reduce_buffer(dynamic), acc, factor, query_tile.n_columns, p,
        [&](uint32_t column, uint32_t dim, const auto &x) {
            store_floats(a.partials + ((uint64_t)(query_tile.first_query + column) * gridDim.x + blockIdx.x) * DIM + dim, x);
        });
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
    extern __shared__ __align__(128) uint8_t dynamic[];
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
    rows.first = rows.limit = 0;
    if (is_codes || !QN_PAGES) {
        find_cache_rows(from, rows, a, span, blockIdx.x - (QN_PAGES ? 1 : 0), session, head);
        // With fp16, the tile of the queries' own position is written by the previous kernel.
        const uint32_t own = (span.end - 1) / TILE_KV;
        const bool reads_own = own < rows.last_tile && (own - rows.tile) % QN_WARPS == 0;
        ring_of_warp ring(from, qn_shared_address(dynamic), warp, lane);
        attend_block<QN_VALUE_BITS>(
            a, s, p, query_tile, dynamic, 1.0f, a.pdl_prefetch && (QN_PAGES || !reads_own),
            [&]() { ring.fill(rows.tile, rows.last_tile, rows.step); },
            [&](softmax_state &state, float(*acc)[4], const query_fragment &c) {
                attend<QN_KEY_BITS, QN_VALUE_BITS, false>(state, acc, ring, c, s, rows, p, LANE_TABLE(dynamic, lane));
            },
            load_query,
            [&]() {
                store_query_column<QN_KEY_BITS>(s, query, rotate_queries(), a.scale * QN_LOG2E, CODES ? a.key_codec.gain : 1,
                                                p);
            });
    } else {
        find_page_rows(from, rows, a, position, session, head);
        f16_tile words;
        attend_block<16>(
            a, s, p, query_tile, dynamic, a.value_codec.gain, a.pdl_prefetch && (rows.tile + 1) * TILE_KV < rows.end,
            [&]() {
                if (words.prefetches && rows.tile < rows.last_tile) {
                    words.load_keys(from, p, rows.tile);
                    words.load_values(from, p, rows.tile);
                }
            },
            [&](softmax_state &state, float(*acc)[4], const query_fragment &c) {
                attend_f16_tile(state, acc, words, c, s, from, rows, p);
            },
            load_query, [&]() { store_query_column<16>(s, query, rotate_queries(), a.scale * QN_LOG2E, 1, p); });
    }
}
