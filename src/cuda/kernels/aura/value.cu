// Weighted sums of the values of a cache of AURA codes, one split of the keys a block: bound by reading weights and
// codes. Values whose weights are all below the threshold are not read. A lane loads the weights of one column for four
// of sixteen keys, in the layout of matrix B, and its fragment of these four keys' codes.
#define QN_PAGES 0
#define QN_KEY_BITS QN_BITS
#define QN_VALUE_BITS QN_BITS
#define QN_WARPS QN_AURA_VALUE_WARPS(QN_HEAD_DIM)

#include "cuda/kernels/aura/query_tile.cuh"

#define PREFETCH_VALUES (DIM <= 256) // values of the next tile are prefetched if registers suffice
#define INITIAL_EXPONENT 8

// Space for the reduction over warps: below the tables, which other warps still use, or after them.
#define REDUCE_BYTES (LARGE_SMEM ? QN_ATTENTION_TABLE_BASE - QN_ATTENTION_RESERVED_BYTES - 128 : QN_AURA_VALUE_REDUCE_BYTES)

// Weights of four keys; used: loaded and not below the threshold.
struct four_weights {
    float x[4];
    bool used[4];
};

struct four_values {
    uint32_t words[4][lane_fragment<QN_BITS, 8>::words];
    float scales[4];
};

// The weights of a lane's column (a query), [n_keys], read below tile last_tile.
struct weight_column {
    const float *weights;
    uint32_t n_keys, last_tile;
    bool in_use;
};

// Row i of the four of a lane in a tile.
QN_DEVICE uint32_t row_of(uint32_t tile, int i, const thread_coord &p)
{
    return tile * TILE_KV + i / 2 * 8 + 2 * p.t + i % 2;
}

QN_DEVICE void load_weights(four_weights &w, const weight_column &column, uint32_t tile, const thread_coord &p)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w.used[i] = column.in_use && tile < column.last_tile && row_of(tile, i, p) < column.n_keys;
        w.x[i] = w.used[i] ? column.weights[row_of(tile, i, p)] : 0;
    }
}

// The keys of the tile that any column needs, as a mask: bit 4 t + i is key i of the lanes with index t.
QN_DEVICE uint32_t find_needed_keys(four_weights &w, float skip, const thread_coord &p)
{
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w.used[i] = w.used[i] && !(w.x[i] < skip);
        mine |= w.used[i] ? 1u << (4 * p.t + i) : 0;
    }
    return __reduce_or_sync(QN_FULL_MASK, mine);
}

QN_DEVICE void load_values(four_values &v, const kv_source &from, uint32_t tile, uint32_t needed_mask, const thread_coord &p)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t r = min(row_of(tile, i, p), from.last_row);
        v.scales[i] = 0;
        if (needed_mask == 0xffff || needed_mask >> (4 * p.t + i) & 1)
            load_row<QN_BITS, 8>(v.words[i], v.scales[i], from.table, from.values, from.value_scales, r, p.g);
    }
}

// Power of two that scales the weights of the lane's column, and its inverse. first: no weight has been scaled.
struct weight_scale {
    float up, unit;
    bool first;
};

// fp16 overflows at 2^16: weights are rescaled so that the largest so far is 2^8 to 2^15. max_weight: the lane's.
QN_DEVICE void rescale(weight_scale &scale, float (*acc)[4], float max_weight, const thread_coord &p)
{
    if (!__any_sync(QN_FULL_MASK, max_weight * scale.up >= 32768.0f || (scale.first && max_weight > 0)))
        return;
    max_weight = qn_lanes_max<1, 4>(max_weight);
    float factor = 1;
    if (max_weight * scale.up >= 32768.0f || (scale.first && max_weight > 0)) {
        const uint32_t exponent = __float_as_uint(max_weight) >> 23;
        const bool is_normal = exponent > INITIAL_EXPONENT && exponent < 255;
        const float new_scale = is_normal ? __uint_as_float((254 + INITIAL_EXPONENT - exponent) << 23) : 1;
        factor = scale.first ? 1 : new_scale * scale.unit; // the accumulators are still 0
        scale.up = new_scale;
        scale.unit = is_normal ? __uint_as_float((exponent - INITIAL_EXPONENT) << 23) : 1;
        scale.first = false;
    }
    const float left = __shfl_sync(QN_FULL_MASK, factor, 8 * p.t), right = __shfl_sync(QN_FULL_MASK, factor, 8 * p.t + 4);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        acc[i][0] *= left;
        acc[i][1] *= right;
        acc[i][2] *= left;
        acc[i][3] *= right;
    }
}

// acc += the values of a tile times their weights.
QN_DEVICE void add_tile(float (*acc)[4], weight_scale &scale, const four_weights &w, const four_values &v, uint32_t table,
                        const thread_coord &p)
{
    float x[4], max_weight = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = w.used[i] ? w.x[i] * v.scales[i] : 0;
        max_weight = fmaxf(max_weight, fabsf(x[i]));
    }
    rescale(scale, acc, max_weight, p);
    const uint32_t weights[2] = { qn_f32_to_f16x2(x[0] * scale.up, x[1] * scale.up),
                                  qn_f32_to_f16x2(x[2] * scale.up, x[3] * scale.up) };
    accumulate_values<QN_BITS>(acc, v.words, weights, table);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_value(const __grid_constant__ qn_aura_value_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile queries_of_block = query_tile_at(blockIdx.x, a.n_tokens, a.n_heads, a.cache.n_kv_heads);
    const kv_source from = source_at(a.cache, queries_of_block.kv_head);
    const uint32_t n_keys = a.cache.n_keys, tiles = (n_keys + TILE_KV - 1) / TILE_KV,
                   tiles_per_split = (tiles + gridDim.y - 1) / gridDim.y;
    const uint32_t last_tile = min((blockIdx.y + 1) * tiles_per_split, tiles);
    uint32_t tile = blockIdx.y * tiles_per_split + warp, entry = 0;
    if (threadIdx.x < TABLE_ENTRIES)
        entry = make_table_entry<QN_BITS>(threadIdx.x, a.cache.value_codec);
    qn_pdl_wait();
    qn_pdl_trigger();

    const bool in_use = p.g < queries_of_block.n_columns;
    const weight_column column = { a.weights + (uint64_t)queries_of_block.query(in_use ? p.g : 0) * n_keys, n_keys, last_tile,
                                   in_use };
    four_weights weights_now, weights_next;
    load_weights(weights_now, column, tile, p);
    load_weights(weights_next, column, tile + QN_WARPS, p);
    four_values values, next;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < lane_fragment<QN_BITS, 8>::words; j++)
            values.words[i][j] = next.words[i][j] = 0;
    uint32_t needed_mask = find_needed_keys(weights_now, a.skip, p);
    load_values(values, from, tile, needed_mask, p);
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, entry, entry);
    __syncthreads();

    const uint32_t table = LANE_TABLE(dynamic, lane);
    float acc[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    weight_scale scale = { 1, 1, true };
    for (; tile < last_tile; tile += QN_WARPS) {
        const uint32_t next_mask = find_needed_keys(weights_next, a.skip, p);
        if (PREFETCH_VALUES && next_mask)
            load_values(next, from, tile + QN_WARPS, next_mask, p);
        four_weights weights_later;
        load_weights(weights_later, column, tile + 2 * QN_WARPS, p);
        if (needed_mask)
            add_tile(acc, scale, weights_now, values, table, p);
        if (PREFETCH_VALUES)
            values = next;
        else if (next_mask)
            load_values(values, from, tile + QN_WARPS, next_mask, p);
        weights_now = weights_next;
        weights_next = weights_later;
        needed_mask = next_mask;
    }

    const float factor[2] = { __shfl_sync(QN_FULL_MASK, scale.unit, 8 * p.t) / a.cache.value_codec.gain,
                              __shfl_sync(QN_FULL_MASK, scale.unit, 8 * p.t + 4) / a.cache.value_codec.gain };
    reduce_warps<QN_BITS, REDUCE_BYTES>(
        (float *)(dynamic + (LARGE_SMEM ? 0 : TABLE_BYTES)), acc, factor, queries_of_block.n_columns, p,
        [&](uint32_t column, uint32_t d, const auto &x) {
            store_floats(a.partials + ((uint64_t)queries_of_block.query(column) * gridDim.y + blockIdx.y) * DIM + d, x);
        });
}
