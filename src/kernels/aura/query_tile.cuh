// The query tile of a thread block, its visible rows, and the reduction over its warps, for the kernels of
// aura_attention_cuda.h. A tile is QN_ATTENTION_TILE_Q queries of a key-value head: tokens times the heads of a group,
// in that order. Each is a column of the MMAs.
#ifndef QN_KERNELS_AURA_QUERY_TILE_CUH
#define QN_KERNELS_AURA_QUERY_TILE_CUH

#include "kernels/aura/aura_attention_cuda.h"

#include "kernels/attend.cuh"
#include "kernels/typed_rows.cuh"

struct query_tile {
    uint32_t kv_head, group, first, n_columns, n_heads;

    // Index of a column's query among all queries.
    __device__ __forceinline__ uint32_t query(uint32_t column) const
    {
        const uint32_t i = first + column;
        return i / group * n_heads + kv_head * group + i % group;
    }

    // Index of a column's first value in [tokens][n_heads][dim] with `stride` values from a token to the next.
    __device__ __forceinline__ uint64_t row(uint32_t column, uint32_t stride) const
    {
        const uint32_t i = first + column;
        return (uint64_t)(i / group) * stride + (kv_head * group + i % group) * DIM;
    }
};

QN_DEVICE query_tile query_tile_at(uint32_t index, uint32_t n_tokens, uint32_t n_heads, uint32_t n_kv_heads)
{
    const uint32_t group = n_heads / n_kv_heads, tiles = gridDim.x / n_kv_heads, first = index % tiles * TILE_Q;
    return { index / tiles, group, first, min(n_tokens * group - first, (uint32_t)TILE_Q), n_heads };
}

QN_DEVICE kv_source source_at(const qn_aura_gpu_cache &cache, uint32_t kv_head)
{
    const uint64_t scales = kv_head * cache.rows.scale_head_stride;
    return { cache.rows.keys + kv_head * cache.rows.key_head_stride,
             cache.rows.values + kv_head * cache.rows.value_head_stride,
             (const float *)(cache.rows.key_scales + scales),
             (const float *)(cache.rows.value_scales + scales),
             cache.n_keys - 1,
             0 };
}

// The visible rows of a token's queries: [x, y).
QN_DEVICE uint2 visible_rows(const qn_aura_gpu_queries &q, uint32_t token, uint32_t n_keys)
{
    const uint64_t end = q.causal || q.window ? (uint64_t)q.positions[token] + 1 : 0;
    const uint64_t from = q.window && end > q.window ? end - q.window : 0, to = q.causal && end < n_keys ? end : n_keys;
    return make_uint2((uint32_t)(from < to ? from : to), (uint32_t)to);
}

// Stores a block's queries as fp16, and their visible rows: one warp a column. In unused columns all rows are visible.
QN_DEVICE void store_queries(shared &s, const qn_aura_gpu_queries &q, const qn_attention_gpu_codec &codec,
                             const query_tile &tile, uint32_t n_keys, float scale, const thread_coord &p)
{
    if (p.warp >= TILE_Q)
        return;
    const bool has = p.warp < tile.n_columns;
    const uint32_t column = has ? p.warp : 0;
    float x[LANE_VALUES];
    read_row<DIM>(x, q.queries, tile.row(column, q.stride), q.dtype, p.lane);
    if ((DIM & (DIM - 1)) == 0 && codec.signs) {
        qn_row_signs<DIM>(x, codec.signs, p.lane);
        qn_row_hadamard<DIM>(x, p.lane);
    }
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] = has ? x[i] : 0;
    store_f16_query<QN_KEY_BITS>(s, x, scale / codec.gain, p.warp, p.lane);
    if (p.lane == 0) {
        const uint2 visible = has ? visible_rows(q, (tile.first + column) / tile.group, n_keys) : make_uint2(0, n_keys);
        s.biases[p.warp] = 0;
        s.begin[p.warp] = visible.x;
        s.end[p.warp] = visible.y;
    }
}

// ---- Reduction over the warps of a block ----

// Partial sums are reduced in shared memory, 16 * REDUCE_TILES dimensions at a time, in space next to the tables, which
// are still in use.
#define REDUCE_TILES QN_AURA_REDUCE_TILES(QN_WARPS, LARGE_SMEM)
#define REDUCE_LANE (2 * REDUCE_TILES + 1) // floats of a lane, padded
#define REDUCE_STRIDE QN_AURA_REDUCE_STRIDE(QN_WARPS, LARGE_SMEM)
#define REDUCE_FLOATS (QN_WARPS * TILE_Q * REDUCE_STRIDE)
// With large shared memory the buffer is below the tables at TABLE_BASE, after static shared memory and 1 KiB that the
// system reserves.
#define REDUCE_FITS(static_bytes, results)                                                                                     \
    (!LARGE_SMEM || (REDUCE_FLOATS + (results)) * 4 + (static_bytes) + 1280 <= TABLE_BASE)

// Calls store(column, dim, sum) with the sum over all warps of acc times factor. Ends with a block barrier.
template <int value_bits, class sink>
QN_DEVICE void reduce_warps(float *rows, const float (*acc)[4], const float factor[2], uint32_t n_columns,
                            const thread_coord &p, sink store)
{
#pragma unroll
    for (int first = 0; first < DIM / 16; first += REDUCE_TILES) {
        constexpr int all = DIM / 16;
        const int tiles = min(REDUCE_TILES, all - first), n = 2 * tiles;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (2 * p.t + j < n_columns) {
                float *to = rows + (p.warp * TILE_Q + 2 * p.t + j) * REDUCE_STRIDE + p.g * REDUCE_LANE;
#pragma unroll
                for (int i = 0; i < REDUCE_TILES; i++) {
                    if (first + i < all) {
                        to[2 * i] = acc[first + i < all ? first + i : 0][j] * factor[j];
                        to[2 * i + 1] = acc[first + i < all ? first + i : 0][2 + j] * factor[j];
                    }
                }
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n_columns * 8 * n; i += THREADS) {
            const uint32_t column = i / (8 * n), lane = i % (8 * n) / n, k = i % n;
            const float *of = rows + column * REDUCE_STRIDE + lane * REDUCE_LANE + k;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++)
                sum += of[w * TILE_Q * REDUCE_STRIDE];
            store(column, (uint32_t)lane_fragment<value_bits, 8>::dim_of(2 * first + k, lane), sum);
        }
        __syncthreads();
    }
}

#endif
