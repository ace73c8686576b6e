// Split-KV attention of query rows of any sequences over caches of fp16 values or AURA codes: the attention of a decode
// step, bound by reading the caches. attend.cuh holds the code of a warp; work.cuh gives a block its splits; this file
// finds their rows in the cache and reduces the warps of a block.
//
// Method: Flash-Decoding (Dao et al., 2023).
#include "kernels/attend.cuh"

#include "kernels/attention/work.cuh"
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

// Writes a split's maxima and sums: one thread a column.
QN_DEVICE void write_maxima(const qn_attention_decode_args &a, const shared &s, const query_tile &query_tile, uint32_t split)
{
    if (threadIdx.x >= query_tile.n_columns)
        return;
    float m = LOWEST, l = 0;
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][threadIdx.x]);
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][threadIdx.x] * qn_exp2(s.m[w][threadIdx.x] - m);
    *(float2 *)&a.maxima[((uint64_t)(query_tile.first_query + threadIdx.x) * a.splits.n + split) * 2] = make_float2(m, l);
}

#define RESERVED (qn_attention_gpu_reserved_bytes(DIM, QN_WARPS, SHARED_LIMIT))

using ring_of_warp = kv_ring<QN_KEY_BITS, QN_VALUE_BITS, RESERVED>;

// Reduces and writes a split. is_last: the rings are empty, and the reduction may overwrite them.
template <int value_bits, bool is_last>
QN_DEVICE void write_split(const qn_attention_decode_args &a, shared &s, const thread_coord &p, const query_tile &query_tile,
                           uint8_t *dynamic, float value_gain, softmax_state &state, const float (*acc)[4], uint32_t split)
{
    float factor[2];
    store_maxima(s, state, p);
    __syncthreads();
    block_factors(factor, s, state, p, value_gain);
    write_maxima(a, s, query_tile, split);
    const auto store = [&](uint32_t column, uint32_t dim, const auto &x) {
        store_floats(a.partials + ((uint64_t)(query_tile.first_query + column) * a.splits.n + split) * DIM + dim, x);
    };
    constexpr int bytes = is_last ? ring_of_warp::reduce_bytes : RESERVED;
    float *buffer = is_last ? ring_of_warp::reduce_buffer(dynamic) : ring_of_warp::reserved_buffer(dynamic);
    reduce_warps<value_bits, bytes>(buffer, acc, factor, query_tile.n_columns, p, store);
}

// ---- A piece of a block's work ----

// Attention of a block's query heads, from queries to partial sums. load_rows issues the loads of the warp's first rows of the
// cache: before the PDL wait if `early`, when the previous kernel must not write them. load_query runs right after the PDL
// wait and issues the loads of the queries; store_query runs after the loads of rows have been issued, rotates the queries and
// stores them in shared memory. attend_rows(queries) processes the warp's rows.
template <class rows_loader, class rows_attention, class query_loader, class query_writer>
QN_DEVICE void attend_piece(const shared &s, const thread_coord &p, bool early, rows_loader load_rows,
                            rows_attention attend_rows, query_loader load_query, query_writer store_query)
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
    load_query_fragment(c, s, p);
    attend_rows(c);
}

// The rows of a warp in the cache (fp16 or codes): splits [first, last) of those of the cache.
QN_DEVICE void find_cache_rows(kv_source &from, kv_range &rows, const qn_attention_decode_args &a,
                               const qn_attention_span &span, uint32_t first, uint32_t last, uint32_t session, uint32_t head)
{
    const qn_attention_gpu_cache &c = a.cache;
    const uint64_t *table = qn_kv_table(c.tables, session);
    from.keys = qn_kv_rows_of(table, c.keys, head, c.key_head_stride, session, c.key_session_stride).first;
    from.values = qn_kv_rows_of(table, c.values, head, c.value_head_stride, session, c.value_session_stride).first;
    from.key_scales = (const float *)qn_kv_rows_of(table, c.key_scales, head, c.scale_head_stride, session,
                                                   c.scale_session_stride)
                          .first;
    from.value_scales = (const float *)qn_kv_rows_of(table, c.value_scales, head, c.scale_head_stride, session,
                                                     c.scale_session_stride)
                            .first;
    from.table = QN_PAGES && table ? table + 1 : table; // rows of codes begin with those of page 1
    rows.begin = span.begin;
    rows.end = span.end;
    rows.tile = span.tile0 + first * span.tiles_per_split + threadIdx.x / QN_WARP_SIZE;
    rows.last_tile = span.tile0 + min(last * span.tiles_per_split, span.tiles);
    rows.step = QN_WARPS;
    rows.first = rows.limit = 0;
    rows.n_parts = last - first;
    rows.part_end = span.tile0 + (first + 1) * span.tiles_per_split;
    rows.part_tiles = span.tiles_per_split;
    from.last_row = min(rows.last_tile * TILE_KV, span.end) - 1;
}

// The rows of a warp in the first and the open page, which are fp16: tiles 0 to 3 are the first page, the others the open page.
QN_DEVICE void find_page_rows(kv_source &from, kv_range &rows, const qn_attention_decode_args &a, uint32_t position,
                              uint32_t session, uint32_t head)
{
    static_assert(QN_WARPS * TILE_KV >= 2 * QN_ATTENTION_PAGE, "a warp has one tile of the fp16 pages");
    const uint32_t page = position / QN_ATTENTION_PAGE;
    const uint64_t *table = qn_kv_table(a.pages.tables, session);
    rows.begin = 0;
    rows.end = (page ? QN_ATTENTION_PAGE : 0) + position % QN_ATTENTION_PAGE + 1;
    rows.tile = threadIdx.x / QN_WARP_SIZE;
    rows.last_tile = (rows.end + TILE_KV - 1) / TILE_KV;
    rows.step = QN_WARPS;
    rows.first = rows.limit = 0;
    const bool in_open = rows.tile >= QN_ATTENTION_PAGE / TILE_KV;
    const uint32_t before = in_open ? QN_ATTENTION_PAGE * DIM * 2 : 0; // bytes of the rows of the first page
    from.keys = qn_kv_f16_page(a.pages, table, a.pages.keys, session, head, in_open ? page : 0, DIM * 2) - before;
    from.values = qn_kv_f16_page(a.pages, table, a.pages.values, session, head, in_open ? page : 0, DIM * 2) - before;
    from.key_scales = from.value_scales = 0;
    from.table = 0;
    from.last_row = rows.end - 1;
}

// A warp's query of a piece of work: the column of the query tile with the warp's index.
struct warp_query {
    float signs[LANE_VALUES], x[LANE_VALUES], mean[LANE_VALUES];

    // What may be loaded before the PDL wait.
    __device__ __forceinline__ void load_signs(const qn_attention_gpu_codec &codec, int lane)
    {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            signs[i] = rotates(codec) ? codec.signs[i * QN_WARP_SIZE + lane] : 1;
    }

    // first: index of the query's first value. means: of the keys, or none. has_query: the tile has such a column.
    __device__ __forceinline__ void load(const qn_attention_decode_args &a, uint64_t first, const float *means, bool has_query,
                                         int lane)
    {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP_SIZE + lane;
            const bool has = has_query && dim < DIM;
            x[i] = has ? qn_load_typed(a.queries, first + dim, a.dtype) : 0;
            mean[i] = QN_PAGES && means && has ? means[dim] : 0;
        }
    }

    // Rotates the query to the basis of the keys, and stores it in the order of fragments of `bits`, with the bias that the
    // mean of the keys adds to its scores.
    template <int bits>
    __device__ __forceinline__ void rotate_and_store(shared &s, const qn_attention_gpu_codec &codec, float scale, float gain,
                                                     const thread_coord &p)
    {
        if (rotates(codec)) {
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                x[i] *= signs[i];
            qn_row_hadamard<(DIM & (DIM - 1)) == 0 ? DIM : 64>(x, p.lane);
        }
        float bias = 0;
#pragma unroll
        for (int i = 0; QN_PAGES && i < LANE_VALUES; i++)
            bias += x[i] * mean[i];
        bias = QN_PAGES ? qn_warp_sum(bias) : 0;
        if (p.warp < TILE_Q) {
            store_f16_query<bits>(s, x, scale / gain, p.warp, p.lane);
            s.biases[p.warp] = bias * scale;
        }
    }

    static __device__ __forceinline__ bool rotates(const qn_attention_gpu_codec &codec)
    {
        return CODES && (DIM & (DIM - 1)) == 0 && codec.signs;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ block_work works[2]; // while a piece is processed, the other one holds what follows it
    static_assert(sizeof s + sizeof works <= qn_attention_gpu_static_bytes(DIM), "launches assume less static memory");

    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const uint32_t group = a.n_heads / a.n_kv_heads, query_tiles = (group + TILE_Q - 1) / TILE_Q;

    // Work that does not depend on the previous kernel: the block's splits, look-up tables, rows of the cache.
    qn_pdl_trigger();
    bool has_table = false;
#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        block_work work;
        work_piece piece;
        qn_attention_span span;
        if (n > 0)
            work = works[n % 2];
        else if (!work.find(a.mask, a.splits, a.n_rows, a.n_kv_heads * query_tiles))
            return;
        if (!work.next(piece, span, a.mask, a.splits, a.n_rows, a.n_kv_heads * query_tiles))
            return;
        if (threadIdx.x == 0)
            works[(n + 1) % 2] = work;
        const uint32_t row = piece.row, head = piece.query_tile / query_tiles,
                       first_column = piece.query_tile % query_tiles * TILE_Q;
        const struct query_tile query_tile = { min(group - first_column, (uint32_t)TILE_Q),
                                               row * a.n_heads + head * group + first_column };
        const uint32_t session = a.mask.sessions ? a.mask.sessions[row] : 0;
        const uint64_t first_value = (uint64_t)row * a.query_stride + (head * group + first_column + warp) * DIM;
        const bool has_query = warp < query_tile.n_columns;
        const bool early = n > 0 || a.pdl_prefetch; // later, the previous kernel has ended
        warp_query query;
        query.load_signs(a.key_codec, lane);
        kv_source from;
        kv_range rows;
        if (CACHE_SPLIT > 0 && piece.first == 0) {
            find_page_rows(from, rows, a, a.mask.positions[row], session, head);
            f16_tile words = {}; // registers that only some warps load would be live in the whole loop
            attend_piece(
                s, p, n > 0 || (early && (rows.tile + 1) * TILE_KV < rows.end),
                [&]() {
                    if (words.prefetches && rows.tile < rows.last_tile) {
                        words.load_keys(from, p, rows.tile);
                        words.load_values(from, p, rows.tile);
                    }
                },
                [&](const query_fragment &c) {
                    softmax_state state;
                    float acc[DIM / 16][4];
                    attend_f16_tile(state, acc, words, c, s, from, rows, p);
                    write_split<16, true>(a, s, p, query_tile, dynamic, a.value_codec.gain, state, acc, 0);
                },
                [&]() { query.load(a, first_value, 0, has_query, lane); },
                [&]() { query.rotate_and_store<16>(s, a.key_codec, a.scale * QN_LOG2E, 1, p); });
            continue;
        }
        if (CODES && !has_table && threadIdx.x < TABLE_ENTRIES)
            store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, make_table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec),
                              make_table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec));
        has_table = true;
        find_cache_rows(from, rows, a, span, piece.first - CACHE_SPLIT, piece.last - CACHE_SPLIT, session, head);
        const float *means =
            QN_PAGES ? qn_kv_means(a.pages, qn_kv_table(a.pages.tables, session), session, head, DIM) : 0;
        // With fp16, the tile of the queries' own position is written by the previous kernel.
        const uint32_t own = (span.end - 1) / TILE_KV;
        const bool reads_own = own < rows.last_tile && own >= rows.tile && (own - rows.tile) % QN_WARPS == 0;
        ring_of_warp ring(from, qn_shared_address(dynamic), warp, lane);
        attend_piece(
            s, p, n > 0 || (early && (QN_PAGES || !reads_own)),
            [&]() { ring.fill(rows.tile, rows.last_tile, rows.step); },
            [&](const query_fragment &c) {
                softmax_state state;
                float acc[DIM / 16][4];
                attend_parts<QN_KEY_BITS, QN_VALUE_BITS, RESERVED, false>(
                    state, acc, ring, c, s, rows, p, LANE_TABLE(dynamic, lane), [&](uint32_t part) {
                        write_split<QN_VALUE_BITS, false>(a, s, p, query_tile, dynamic, 1.0f, state, acc, piece.first + part);
                    });
                write_split<QN_VALUE_BITS, true>(a, s, p, query_tile, dynamic, 1.0f, state, acc, piece.last - 1);
            },
            [&]() { query.load(a, first_value, means, has_query, lane); },
            [&]() {
                query.rotate_and_store<QN_KEY_BITS>(s, a.key_codec, a.scale * QN_LOG2E, CODES ? a.key_codec.gain : 1, p);
            });
    }
}
