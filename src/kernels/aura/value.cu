// Sums of the values of a cache of AURA codes by weights that are given, a part of the keys a block: bound by reading weights
// and codes. Values whose weights are all below the threshold are not read. A lane takes the weights of a column for four keys
// of sixteen, as matrix B wants them, and a part of these four keys' codes.
#define QN_RUNS 0
#define QN_KEY_BITS QN_BITS
#define QN_VALUE_BITS QN_BITS
#define QN_WARPS QN_AURA_VALUE_WARPS(QN_HEAD_DIM)

#include "kernels/aura/queries.cuh"

#define AHEAD (DIM <= 256) // values of the next keys are asked for while these are used, where there is room
#define EXPONENT_AT_FIRST 8

static_assert(SUMS_FIT(0, 0), "sums reach into tables");

// Weights of four keys, and which of them count.
struct four_weights {
    float x[4];
    bool counts[4];
};

struct four_values {
    uint32_t words[4][portion<QN_BITS, 8>::words];
    float scales[4];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_value(const __grid_constant__ qn_aura_value_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const place p = { warp, lane, lane / 4, lane % 4 };
    const column_tile columns_of_block = take_tile(blockIdx.x, a.n_tokens, a.n_heads, a.cache.n_kv_heads);
    const source from = take_source(a.cache, columns_of_block.kv_head);
    const uint32_t n_keys = a.cache.n_keys, tiles = (n_keys + KEYS - 1) / KEYS, share = (tiles + gridDim.y - 1) / gridDim.y;
    const uint32_t last_tile = min((blockIdx.y + 1) * share, tiles);
    uint32_t tile = blockIdx.y * share + warp, entry = 0;
    if (threadIdx.x < TABLE_ENTRIES)
        entry = table_entry<QN_BITS>(threadIdx.x, a.cache.value_codec);
    qn_wait_for_previous();
    qn_let_next_begin();

    const bool in_use = p.g < columns_of_block.n_columns;
    const float *of_column = a.weights + (uint64_t)columns_of_block.query(in_use ? p.g : 0) * n_keys;
    const auto row_of = [&](uint32_t at, int i) { return at * KEYS + i / 2 * 8 + 2 * p.t + i % 2; };
    const auto load_weights = [&](four_weights &w, uint32_t at) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.counts[i] = in_use && at < last_tile && row_of(at, i) < n_keys;
            w.x[i] = w.counts[i] ? of_column[row_of(at, i)] : 0;
        }
    };
    // Which of the four are read, for any column: bit i for key i.
    const auto needed = [&](four_weights &w) {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.counts[i] = w.counts[i] && !(w.x[i] < a.skip);
            mine |= w.counts[i] ? 1u << (4 * p.t + i) : 0;
        }
        return __reduce_or_sync(QN_ALL_LANES, mine);
    };
    const auto load_values = [&](four_values &v, uint32_t at, uint32_t which) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t r = min(row_of(at, i), from.last_row);
            v.scales[i] = 0;
            if (which == 0xffff || which >> (4 * p.t + i) & 1) {
                load_portion<QN_BITS, 8>(v.words[i], from.values, r, p.g);
                v.scales[i] = from.value_scales[r];
            }
        }
    };

    four_weights now, then;
    load_weights(now, tile);
    load_weights(then, tile + QN_WARPS);
    four_values values, next;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < portion<QN_BITS, 8>::words; j++)
            values.words[i][j] = next.words[i][j] = 0;
    uint32_t which = needed(now);
    load_values(values, tile, which);
    if (threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, entry, entry);
    __syncthreads();

    const uint32_t table = TABLES(dynamic) + 4 * lane;
    float sums[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    float up = 1, unit = 1; // of this lane's column: a power of two that its weights are taken by, and its inverse
    bool first = true;
    const auto add = [&](const four_weights &w, const four_values &v) {
        float x[4], largest = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = w.counts[i] ? w.x[i] * v.scales[i] : 0;
            largest = fmaxf(largest, fabsf(x[i]));
        }
        // Halves hold up to 2^16: moved so that the largest so far is 2^8 to 2^15.
        if (__any_sync(QN_ALL_LANES, largest * up >= 32768.0f || (first && largest > 0))) {
            largest = fmaxf(largest, __shfl_xor_sync(QN_ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(QN_ALL_LANES, largest, 2));
            float factor = 1;
            if (largest * up >= 32768.0f || (first && largest > 0)) {
                const uint32_t exponent = __float_as_uint(largest) >> 23;
                const bool ordinary = exponent > EXPONENT_AT_FIRST && exponent < 255;
                const float fitting = ordinary ? __uint_as_float((254 + EXPONENT_AT_FIRST - exponent) << 23) : 1;
                factor = first ? 1 : fitting * unit; // nothing is in the sums yet
                up = fitting;
                unit = ordinary ? __uint_as_float((exponent - EXPONENT_AT_FIRST) << 23) : 1;
                first = false;
            }
            const float left = __shfl_sync(QN_ALL_LANES, factor, 8 * p.t),
                        right = __shfl_sync(QN_ALL_LANES, factor, 8 * p.t + 4);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                sums[i][0] *= left;
                sums[i][1] *= right;
                sums[i][2] *= left;
                sums[i][3] *= right;
            }
        }
        const uint32_t weights[2] = { qn_floats_to_halves(x[0] * up, x[1] * up), qn_floats_to_halves(x[2] * up, x[3] * up) };
        add_values<QN_BITS>(sums, v.words, weights, table);
    };
    for (; tile < last_tile; tile += QN_WARPS) {
        const uint32_t which_next = needed(then);
        if (AHEAD && which_next)
            load_values(next, tile + QN_WARPS, which_next);
        four_weights later;
        load_weights(later, tile + 2 * QN_WARPS);
        if (which)
            add(now, values);
        if (AHEAD)
            values = next;
        else if (which_next)
            load_values(values, tile + QN_WARPS, which_next);
        now = then;
        then = later;
        which = which_next;
    }

    const float factor[2] = { __shfl_sync(QN_ALL_LANES, unit, 8 * p.t) / a.cache.value_codec.gain,
                              __shfl_sync(QN_ALL_LANES, unit, 8 * p.t + 4) / a.cache.value_codec.gain };
    sum_warps<QN_BITS>((float *)(dynamic + (FAR ? 0 : TABLE_ENTRIES << ENTRY_SHIFT)), sums, factor, columns_of_block.n_columns,
                       p, [&](uint32_t column, uint32_t d, float x) {
                           a.partials[((uint64_t)columns_of_block.query(column) * gridDim.y + blockIdx.y) * DIM + d] = x;
                       });
}
