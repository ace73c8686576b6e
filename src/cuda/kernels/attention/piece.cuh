// Shared by decode attention over fp16 values (decode.cu) and over codes (decode_codes.cu): the query tile of a piece
// of work, a warp's query, and the rows of a warp in the cache.
#ifndef QN_CUDA_KERNELS_ATTENTION_PIECE_CUH
#define QN_CUDA_KERNELS_ATTENTION_PIECE_CUH

#include "cuda/kernels/attend.cuh"

#include "cuda/kernels/attention/work.cuh"
#include "cuda/kernels/typed_rows.cuh"

// Whether launches with new rows are possible (qn_attention_gpu_prepares_rows).
#define NEW_ROWS (!CODES && QN_WARPS > 1 && DIM <= QN_ATTENTION_NEW_ROWS_DIM)

// The query heads of a piece of work (the columns of its MMAs): of key-value head `head`, n_columns from first_query
// on, an index among the query heads of all rows.
struct query_tile {
    uint32_t n_columns, first_query, head, session;
    uint32_t head_stride; // of the queries, in values
    uint64_t first_value;

    __device__ __forceinline__ query_tile(const qn_attention_decode_args &a, uint32_t row, uint32_t index, uint32_t per_head)
    {
        const uint32_t group = a.n_heads / a.n_kv_heads, first_column = index % per_head * TILE_Q;
        head = index / per_head;
        session = a.mask.sessions ? a.mask.sessions[row] : 0;
        n_columns = min(group - first_column, (uint32_t)TILE_Q);
        first_query = row * a.n_heads + head * group + first_column;
        head_stride = NEW_ROWS && a.query_head_stride ? a.query_head_stride : DIM;
        first_value = (uint64_t)row * a.query_stride + (head * group + first_column) * head_stride;
    }
};

// The rows of a warp in the cache (fp16 or codes): splits [first, last) of the cache's splits.
QN_DEVICE void find_cache_rows(kv_source &from, kv_range &rows, const qn_attention_decode_args &a,
                               const qn_attention_span &span, uint32_t first, uint32_t last, uint32_t session, uint32_t head,
                               uint32_t warp)
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
    from.table = QN_PAGES && table ? table + 1 : table; // rows of codes begin with page 1
    rows.begin = span.begin;
    rows.end = span.end;
    rows.tile = span.tile0 + first * span.tiles_per_split + warp;
    rows.last_tile = span.tile0 + min(last * span.tiles_per_split, span.tiles);
    rows.step = QN_WARPS;
    rows.first = rows.limit = 0;
    rows.n_parts = last - first;
    rows.part_end = span.tile0 + (first + 1) * span.tiles_per_split;
    rows.part_tiles = span.tiles_per_split;
    from.last_row = min(rows.last_tile * TILE_KV, span.end) - 1;
}

// A warp's query of a piece of work: a column of the query tile.
struct warp_query {
    float signs[LANE_VALUES], x[LANE_VALUES], mean[LANE_VALUES];

    // What may be loaded before the PDL wait.
    __device__ __forceinline__ void load_signs(const qn_attention_gpu_codec &codec, int lane)
    {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            signs[i] = rotates(codec) ? codec.signs[i * QN_WARP_SIZE + lane] : 1;
    }

    __device__ __forceinline__ void load(const qn_attention_decode_args &a, const query_tile &tile, const float *means,
                                         uint32_t column, int lane)
    {
        load(a, column < tile.n_columns, tile.first_value + column * tile.head_stride, means, lane);
    }

    // has: whether the column has a query, which begins at first_value. means: of the keys, or none.
    __device__ __forceinline__ void load(const qn_attention_decode_args &a, bool has, uint64_t first_value, const float *means,
                                         int lane)
    {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP_SIZE + lane;
            x[i] = has && dim < DIM ? qn_load_typed(a.queries, first_value + dim, a.dtype) : 0;
            mean[i] = QN_PAGES && means && has && dim < DIM ? means[dim] : 0;
        }
    }

    // Rotates the query to the basis of the keys, and stores it in the order of fragments of `bits`, with the bias that
    // the mean of the keys adds to its scores.
    template <int bits>
    __device__ __forceinline__ void rotate_and_store(shared &s, const qn_attention_gpu_codec &codec, float scale, float gain,
                                                     uint32_t column, int lane)
    {
        if (rotates(codec)) {
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                x[i] *= signs[i];
            qn_row_hadamard<(DIM & (DIM - 1)) == 0 ? DIM : 64>(x, lane);
        }
        float bias = 0;
#pragma unroll
        for (int i = 0; QN_PAGES && i < LANE_VALUES; i++)
            bias += x[i] * mean[i];
        bias = QN_PAGES ? qn_warp_sum(bias) : 0;
        if (column < TILE_Q) {
            store_f16_query<bits>(s, x, scale / gain, column, lane);
            s.biases[column] = bias * scale;
        }
    }

    static __device__ __forceinline__ bool rotates(const qn_attention_gpu_codec &codec)
    {
        return CODES && (DIM & (DIM - 1)) == 0 && codec.signs;
    }
};

#endif
