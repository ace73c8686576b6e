// The query tile of a thread block and its visible rows, for the kernels of aura_attention.h. A tile is
// QN_ATTENTION_TILE_Q queries of a key-value head: tokens times the heads of a group, in that order. Each is a column
// of the MMAs.
#ifndef QN_CUDA_KERNELS_AURA_QUERY_TILE_CUH
#define QN_CUDA_KERNELS_AURA_QUERY_TILE_CUH

#include "cuda/kernels/aura/aura_attention.h"

#include "cuda/kernels/attend.cuh"
#include "cuda/kernels/typed_rows.cuh"

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
             qn_kv_table(cache.rows.tables, 0) };
}

// Loads a lane's fragment of a row of codes, and the row's scale.
template <int bits, int lanes>
QN_DEVICE void load_row(uint32_t *to, float &scale, const uint64_t *table, const uint8_t *codes, const float *scales,
                        uint32_t row, int lane)
{
    const uint64_t page = qn_kv_page(table, row / QN_PAGE);
    const uint32_t in_page = qn_kv_row_in_page(table, row);
    load_lane_fragment<bits, lanes>(to, codes + page, in_page, lane);
    scale = ((const float *)((const uint8_t *)scales + page))[in_page];
}

// The visible rows of a token's queries: [x, y).
QN_DEVICE uint2 visible_rows(const qn_aura_gpu_queries &q, uint32_t token, uint32_t n_keys)
{
    const uint64_t end = q.causal || q.window ? (uint64_t)q.positions[token] + 1 : 0;
    const uint64_t from = q.window && end > q.window ? end - q.window : 0, to = q.causal && end < n_keys ? end : n_keys;
    return make_uint2((uint32_t)(from < to ? from : to), (uint32_t)to);
}

// What does not depend on the previous kernel: the index of the first value of a warp's query, the one with its index;
// the token of a lane's column, the one with its index; the signs of the queries' rotation.
struct query_place {
    uint64_t at;
    uint32_t token;
    float signs[LANE_VALUES];
};

QN_DEVICE bool rotates_queries(const qn_attention_gpu_codec &codec)
{
    return (DIM & (DIM - 1)) == 0 && codec.signs;
}

QN_DEVICE query_place find_query(const qn_aura_gpu_queries &q, const qn_attention_gpu_codec &codec, const query_tile &tile,
                                 const thread_coord &p)
{
    query_place o = { tile.row(p.warp < tile.n_columns ? p.warp : 0, q.stride), (tile.first + p.lane) / tile.group };
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        o.signs[i] = rotates_queries(codec) ? codec.signs[i * QN_WARP_SIZE + p.lane] : 1;
    return o;
}

// A warp's query, or zeros; the visible rows of a lane's column. In unused columns all rows are visible.
struct warp_query {
    float x[LANE_VALUES];
    uint2 visible;
};

// Issues the loads of a warp's query.
QN_DEVICE warp_query load_query(const qn_aura_gpu_queries &q, const query_tile &tile, const query_place &place, uint32_t n_keys,
                                const thread_coord &p)
{
    warp_query o;
    if (p.warp < TILE_Q)
        read_row<DIM>(o.x, q.queries, place.at, q.dtype, p.lane);
    o.visible = p.lane < tile.n_columns ? visible_rows(q, place.token, n_keys) : make_uint2(0, n_keys);
    return o;
}

// Stores the query as fp16, one warp a column; and the visible rows of all columns.
QN_DEVICE void store_query(shared &s, warp_query &query, const query_place &place, const qn_attention_gpu_codec &codec,
                           const query_tile &tile, float scale, const thread_coord &p)
{
    if (p.warp >= TILE_Q)
        return;
    if (p.warp == 0 && p.lane < TILE_Q) {
        s.biases[p.lane] = 0;
        s.begin[p.lane] = query.visible.x;
        s.end[p.lane] = query.visible.y;
    }
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        query.x[i] = p.warp < tile.n_columns ? query.x[i] * place.signs[i] : 0;
    if (rotates_queries(codec))
        qn_row_hadamard<(DIM & (DIM - 1)) == 0 ? DIM : 64>(query.x, p.lane);
    store_f16_query<QN_KEY_BITS>(s, query.x, scale / codec.gain, p.warp, p.lane);
}

#endif
