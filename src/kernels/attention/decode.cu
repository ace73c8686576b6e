// Split-KV attention of query rows of any sequences over caches of fp16 values: the attention of a decode step, bound by
// reading the caches. attend.cuh holds the code of a warp; work.cuh gives a block its splits; this file reduces the warps of a
// block. decode_codes.cu is the same over AURA codes.
//
// Method: Flash-Decoding (Dao et al., 2023).
#define QN_KEY_BITS 16
#define QN_VALUE_BITS 16
#define QN_PAGES 0

#include "kernels/attention/piece.cuh"

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

#define RESERVED (qn_attention_gpu_reserved_bytes(DIM, 16, QN_WARPS, 1, SHARED_LIMIT))

using ring_of_warp = kv_ring<16, 16, RESERVED>;

// Reduces and writes a split. is_last: the rings are empty, and the reduction may overwrite them.
template <bool is_last>
QN_DEVICE void write_split(const qn_attention_decode_args &a, shared &s, const thread_coord &p, const query_tile &query_tile,
                           uint8_t *dynamic, softmax_state &state, const float (*acc)[4], uint32_t split)
{
    float factor[2];
    store_maxima(s, state, p);
    __syncthreads();
    block_factors(factor, s, state, p);
    write_maxima(a, s, query_tile, split);
    const auto store = [&](uint32_t column, uint32_t dim, const auto &x) {
        store_floats(a.partials + ((uint64_t)(query_tile.first_query + column) * a.splits.n + split) * DIM + dim, x);
    };
    constexpr int bytes = is_last ? ring_of_warp::reduce_bytes : RESERVED;
    float *buffer = is_last ? ring_of_warp::reduce_buffer(dynamic) : ring_of_warp::reserved_buffer(dynamic);
    reduce_warps<16, bytes>(buffer, acc, factor, query_tile.n_columns, p, store);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    __shared__ block_work works[2]; // while a piece is processed, the other one holds what follows it
    static_assert(sizeof s + sizeof works <= qn_attention_gpu_static_bytes(DIM), "launches assume less static memory");

    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const uint32_t group = a.n_heads / a.n_kv_heads, query_tiles = (group + TILE_Q - 1) / TILE_Q;

    // Work that does not depend on the previous kernel: the block's splits, rows of the cache.
    qn_pdl_trigger();
#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        block_work work;
        work_piece piece;
        qn_attention_span span;
        if (n > 0)
            work = works[n % 2];
        else if (!work.find(a.mask, a.splits, a.n_rows, a.n_kv_heads * query_tiles, blockIdx.x, gridDim.x))
            return;
        if (!work.next(piece, span, a.mask, a.splits, a.n_rows, a.n_kv_heads * query_tiles))
            return;
        if (threadIdx.x == 0)
            works[(n + 1) % 2] = work;
        const query_tile tile(a, piece.row, piece.query_tile, query_tiles);
        warp_query query;
        kv_source from;
        kv_range rows;
        find_cache_rows(from, rows, a, span, piece.first, piece.last, tile.session, tile.head, warp);
        // The previous kernel writes the tile of the queries' own position.
        const uint32_t own = (span.end - 1) / TILE_KV;
        const bool reads_own = own < rows.last_tile && own >= rows.tile && (own - rows.tile) % QN_WARPS == 0,
                   early = n > 0 || (a.pdl_prefetch && !reads_own); // later, the previous kernel has ended
        ring_of_warp ring(from, qn_shared_address(dynamic), warp, lane);
        if (early)
            ring.fill(rows.tile, rows.last_tile, rows.step);
        qn_pdl_wait();
        query.load(a, tile, 0, p);
        if (!early)
            ring.fill(rows.tile, rows.last_tile, rows.step);
        query.rotate_and_store<16>(s, a.key_codec, a.scale * QN_LOG2E, 1, p);
        __syncthreads();
        query_fragment c;
        load_query_fragment(c, s, p);
        softmax_state state;
        float acc[DIM / 16][4];
        attend_parts<16, 16, RESERVED, false>(state, acc, ring, c, s, rows, p, 0, [&](uint32_t part) {
            write_split<false>(a, s, p, tile, dynamic, state, acc, piece.first + part);
        });
        write_split<true>(a, s, p, tile, dynamic, state, acc, piece.last - 1);
    }
}
