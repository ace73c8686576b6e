// Split-KV attention of query rows of any sequences over caches of fp16 values: the attention of a decode step, bound
// by reading the caches. attend.cuh holds the code of a warp; work.cuh gives a block its splits; this file reduces the
// warps of a block; combine.cuh combines the splits of a row; new_row.cuh does the work before attention (qk_norm,
// rope, kv_store) if no separate launch does it. decode_codes.cu is the same over AURA codes.
//
// A row of a few hundred positions takes a block little longer than the latencies at its beginning and end. So blocks
// are small and an SM runs several; a block finds its next piece of work while the first rows of the current piece are
// in flight, and issues the loads of its rows before it reduces the current piece.
//
// Method: Flash-Decoding (Dao et al., 2023).
#define QN_KEY_BITS 16
#define QN_VALUE_BITS 16
#define QN_PAGES 0
#define BLOCKS ((int)qn_attention_gpu_blocks(DIM, 16, QN_WARPS, SHARED_LIMIT))

#include "cuda/kernels/attention/combine.cuh"
#include "cuda/kernels/attention/new_row.cuh"

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
QN_DEVICE void block_factors(float factor[2], const shared &s, const softmax_state &state, const thread_coord &p)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m = LOWEST;
#pragma unroll
        for (int w = 0; w < QN_WARPS; w++)
            m = fmaxf(m, s.m[w][2 * p.t + j]);
        factor[j] = qn_exp2(state.m[j] - m);
    }
}

// The maximum and the sum of weights of a column over the warps.
QN_DEVICE float2 column_maxima(const shared &s, uint32_t column)
{
    float m = LOWEST, l = 0;
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][column]);
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][column] * qn_exp2(s.m[w][column] - m);
    return make_float2(m, l);
}

// The factor that makes the sums of a row's only split, which are relative to the maximum of the block, its results.
QN_DEVICE float result_factor(const qn_attention_decode_args &a, const shared &s, uint32_t head, uint32_t column)
{
    const float2 maxima = column_maxima(s, column);
    const float sink = sink_of(a, head), m = fmaxf(maxima.x, sink), factor = qn_exp2(maxima.x - m);
    return factor * normalizing_factor(maxima.y * factor + (a.sinks ? qn_exp2(sink - m) : 0));
}

#define RESERVED (qn_attention_gpu_reserved_bytes(DIM, 16, QN_WARPS, 1, BLOCK_LIMIT))

using ring_of_warp = kv_ring<16, 16, RESERVED>;

// A piece of work, its splits, and its queries.
struct decode_piece {
    work_piece piece;
    uint32_t n_splits; // of the row
    query_tile tile;
};

// Data shared by the warps of a block, in addition to their queries.
struct block_state {
    float factors[TILE_Q]; // result_factor of each column
    block_work work;       // the work after the next piece
    work_piece piece;      // the next piece
    qn_attention_span span;
    uint64_t page; // its first
    bool has_next, arrived;
};

// Reduces and writes a split, after store_maxima and a barrier. is_only: the row has no other, and its result is
// written. buffer: `bytes` bytes, for the reduction.
template <int bytes>
QN_DEVICE void write_split(const qn_attention_decode_args &a, shared &s, block_state &b, const thread_coord &p,
                           const decode_piece &work, float *buffer, softmax_state &state, const float (*acc)[4],
                           uint32_t split, bool is_only)
{
    const query_tile &tile = work.tile;
    const uint32_t head = tile.first_query - work.piece.row * a.n_heads, column = threadIdx.x;
    float factor[2];
    block_factors(factor, s, state, p);
    if (column < tile.n_columns) {
        if (is_only)
            b.factors[column] = result_factor(a, s, head + column, column);
        else
            *(float2 *)&a.maxima[((uint64_t)(tile.first_query + column) * a.splits.n + split) * 2] = column_maxima(s, column);
    }
    reduce_warps<16, bytes>(
        buffer, acc, factor, tile.n_columns, p,
        [&](uint32_t from, uint32_t dim, auto &gates) {
#pragma unroll
            for (int i = 0; i < (int)(sizeof gates / sizeof *gates); i++)
                gates[i] = QN_INFINITY;
            if (is_only && a.gates)
                load_floats(gates, a.gates + ((uint64_t)(tile.first_query + from) * 2 + 1) * DIM + dim);
        },
        [&](uint32_t to, uint32_t dim, auto &x, auto &gates) {
            const uint64_t query = tile.first_query + to;
            if (!is_only) {
                store_floats(a.partials + (query * a.splits.n + split) * DIM + dim, x);
                return;
            }
#pragma unroll
            for (int i = 0; i < (int)(sizeof x / sizeof *x); i++)
                qn_store_typed(a.out, (uint64_t)work.piece.row * a.out_stride + (head + to) * DIM + dim + i, a.dtype,
                               qn_gated(x[i] * b.factors[to], gates[i]));
        });
}

// The same of the last split of a piece: without a next piece the ring is empty, and has space for all accumulators at
// once.
QN_DEVICE void write_last_split(const qn_attention_decode_args &a, shared &s, block_state &b, const thread_coord &p,
                                const decode_piece &work, uint8_t *dynamic, softmax_state &state, const float (*acc)[4],
                                bool has_next)
{
    const uint32_t split = work.piece.last - 1;
    const bool is_only = work.n_splits == 1;
    if (has_next)
        write_split<RESERVED>(a, s, b, p, work, ring_of_warp::reserved_buffer(dynamic), state, acc, split, is_only);
    else
        write_split<ring_of_warp::reduce_bytes>(a, s, b, p, work, ring_of_warp::reduce_buffer(dynamic), state, acc, split,
                                                is_only);
}

// Combines the splits of a query tile if this block has written the last of them.
QN_DEVICE void combine_piece(const qn_attention_decode_args &a, block_state &b, const decode_piece &work, uint32_t n_query_tiles,
                             const thread_coord &p)
{
    if (threadIdx.x == 0)
        b.arrived = arrive(a, work.piece, work.n_splits, n_query_tiles);
    __syncthreads();
    const uint32_t head = work.tile.first_query - work.piece.row * a.n_heads;
    for (uint32_t column = p.warp; b.arrived && column < work.tile.n_columns; column += QN_WARPS)
        combine_splits(a, work.piece.row, head + column, work.n_splits, p.lane);
}

// Finds the piece of work after the current one. By warp 0. Reading the address of its first page loads its page table
// into L1.
QN_DEVICE void find_next(const qn_attention_decode_args &a, block_state &b, uint32_t n_query_tiles, int lane)
{
    block_work work = b.work;
    work_piece piece;
    qn_attention_span span;
    const bool has = work.next(piece, span, a.mask, a.splits, a.n_rows, n_query_tiles);
    __syncwarp();
    if (lane > 0)
        return;
    b.has_next = has;
    if (!has)
        return;
    const uint32_t row = (span.tile0 + piece.first * span.tiles_per_split) * TILE_KV;
    const uint64_t *table = qn_kv_table(a.cache.tables, a.mask.sessions ? a.mask.sessions[piece.row] : 0);
    b.page = row < span.end ? qn_kv_page(table, row / QN_PAGE) : 0;
    b.work = work;
    b.piece = piece;
    b.span = span;
}

#define COLUMNS ((TILE_Q + QN_WARPS - 1) / QN_WARPS) // of a warp

struct warp_queries {
    warp_query of[COLUMNS];

    __device__ __forceinline__ void load(const qn_attention_decode_args &a, const query_tile &tile, const thread_coord &p)
    {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            of[i].load(a, tile, 0, i * QN_WARPS + p.warp, p.lane);
    }

    __device__ __forceinline__ void store(shared &s, const qn_attention_decode_args &a, const decode_piece &work,
                                          const new_row &prepared, const thread_coord &p)
    {
        const uint32_t head = work.tile.first_query - work.piece.row * a.n_heads;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (i * QN_WARPS + p.warp < work.tile.n_columns)
                prepared.prepare_query(of[i].x, a, head + i * QN_WARPS + p.warp, p.lane);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            of[i].template rotate_and_store<16>(s, a.key_codec, a.scale * QN_LOG2E, 1, i * QN_WARPS + p.warp, p.lane);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ block_state b;
    static_assert(sizeof s + sizeof b <= qn_attention_gpu_static_bytes(DIM), "launches assume less static memory");

    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const uint32_t group = a.n_heads / a.n_kv_heads, query_tiles = (group + TILE_Q - 1) / TILE_Q,
                   n_query_tiles = a.n_kv_heads * query_tiles;

    // Work that does not depend on the previous kernel: the block's splits, rows of the cache.
    qn_pdl_trigger();
    block_work work;
    work_piece piece;
    qn_attention_span span;
    bool has_work = work.find(a.mask, a.splits, a.n_rows, n_query_tiles, blockIdx.x, gridDim.x) &&
                    work.next(piece, span, a.mask, a.splits, a.n_rows, n_query_tiles);
    if (!has_work) {
        qn_pdl_wait();
        write_rows_without_session(a);
        return;
    }
    if (threadIdx.x == 0)
        b.work = work;
    decode_piece current = { piece, span.active_splits, query_tile(a, piece.row, piece.query_tile, query_tiles) };
    kv_source from;
    kv_range rows;
    find_cache_rows(from, rows, a, span, piece.first, piece.last, current.tile.session, current.tile.head, warp);
    // The row of the queries' own position is written by the previous kernel, or by this one, to the ring too.
    const bool early = a.pdl_prefetch && (has_new_rows(a) || !reads_own_tile(rows));
    ring_of_warp ring(from, qn_shared_address(dynamic), warp, lane);
    warp_queries queries;
    new_row prepared;
    if (early)
        ring.fill(rows.tile, rows.last_tile, rows.step);
    if (has_new_rows(a)) {
        prefetch_weights(a.new_rows.query_weight, lane);
        prefetch_weights(a.new_rows.key_weight, lane);
    }
    qn_pdl_wait();
    queries.load(a, current.tile, p);
    prepared.load(a, rows, current.piece.row, current.tile.head, lane);
    if (!early)
        ring.fill(rows.tile, rows.last_tile, rows.step);
    write_rows_without_session(a);
#pragma unroll 1
    while (has_work) {
        queries.store(s, a, current, prepared, p);
        __syncthreads();
        prepared.store(a.new_rows, from, rows, ring, current.tile.head, lane);
        if (warp == 0)
            find_next(a, b, n_query_tiles, lane);
        query_fragment c;
        load_query_fragment(c, s, p);
        softmax_state state;
        float acc[DIM / 16][4];
        attend_parts<16, 16, RESERVED, false>(state, acc, ring, c, s, rows, p, 0, [&](uint32_t part) {
            store_maxima(s, state, p);
            __syncthreads();
            write_split<RESERVED>(a, s, b, p, current, ring_of_warp::reserved_buffer(dynamic), state, acc,
                                  current.piece.first + part, false);
        });
        store_maxima(s, state, p);
        __syncthreads();
        const decode_piece done = current;
        has_work = b.has_next;
        if (has_work) {
            const work_piece next = b.piece;
            const qn_attention_span next_span = b.span;
            current = { next, next_span.active_splits, query_tile(a, next.row, next.query_tile, query_tiles) };
            find_cache_rows(from, rows, a, next_span, next.first, next.last, current.tile.session, current.tile.head, warp);
            ring = ring_of_warp(from, qn_shared_address(dynamic), warp, lane);
            ring.fill(rows.tile, rows.last_tile, rows.step);
            queries.load(a, current.tile, p);
            prepared.load(a, rows, current.piece.row, current.tile.head, lane);
        }
        write_last_split(a, s, b, p, done, dynamic, state, acc, has_work);
        if (done.n_splits > 1)
            combine_piece(a, b, done, n_query_tiles, p);
    }
}
