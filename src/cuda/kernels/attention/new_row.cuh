// Biases, qk_norm, rope and kv_store in decode attention over fp16 (qn_attention_new_rows). Each warp prepares its
// queries. The warp whose tiles end with the row's own position prepares the key and the value too. It stores them in
// the cache, for later launches, and in its ring, which is filled before the previous kernel has ended, with arbitrary
// bytes for this position.
#ifndef QN_CUDA_KERNELS_ATTENTION_NEW_ROW_CUH
#define QN_CUDA_KERNELS_ATTENTION_NEW_ROW_CUH

#include "cuda/kernels/attention/piece.cuh"
#include "cuda/kernels/qk_norm_rope.cuh"

// Values of a head in the registers of a warp (cuda/kernels/row.cuh).
typedef float lane_values[LANE_VALUES];

QN_DEVICE void load_lane_floats(lane_values &x, const float *from, int lane)
{
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] = from && i * QN_WARP_SIZE + lane < DIM ? from[i * QN_WARP_SIZE + lane] : 0;
}

QN_DEVICE void add_bias(lane_values &x, const float *bias, uint32_t head, int lane)
{
    lane_values of_head;
    if (!bias)
        return;
    load_lane_floats(of_head, bias + head * DIM, lane);
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] += of_head[i];
}

// The other element of each pair. Those of pairs that are not adjacent are in the same lane.
QN_DEVICE void find_pairs(lane_values &others, const lane_values &x, const qn_attention_new_rows &n)
{
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        others[i] = n.interleaved ? __shfl_xor_sync(QN_FULL_MASK, x[i], 1) : 0;
#pragma unroll
        for (int apart = 1; apart < LANE_VALUES; apart *= 2)
            if ((i ^ apart) < LANE_VALUES && !n.interleaved && n.n_rot == 2 * QN_WARP_SIZE * apart)
                others[i] = x[(i ^ apart) < LANE_VALUES ? i ^ apart : i];
    }
}

struct rope_angles {
    lane_values cosine, sine;

    __device__ __forceinline__ void load(const qn_attention_new_rows &n, uint32_t row, int lane)
    {
        const uint32_t half = n.n_rot / 2;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const uint32_t d = i * QN_WARP_SIZE + lane, pair = n.interleaved ? d / 2 : d < half ? d : d - half;
            cosine[i] = d < n.n_rot ? n.cosines[(uint64_t)row * half + pair] : 1;
            sine[i] = d < n.n_rot ? n.sines[(uint64_t)row * half + pair] : 0;
        }
    }

    __device__ __forceinline__ void apply(lane_values &x, const qn_attention_new_rows &n, int lane) const
    {
        lane_values others;
        find_pairs(others, x, n);
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const uint32_t d = i * QN_WARP_SIZE + lane;
            const bool second = n.interleaved ? d % 2 : d >= n.n_rot / 2;
            if (d < n.n_rot)
                x[i] = second ? qn_rope_second(others[i], x[i], cosine[i], sine[i])
                              : qn_rope_first(x[i], others[i], cosine[i], sine[i]);
        }
    }
};

// The tile of a row's own position: its last one.
QN_DEVICE uint32_t own_tile(const kv_range &rows)
{
    return (rows.end - 1) / TILE_KV;
}

QN_DEVICE bool reads_own_tile(const kv_range &rows)
{
    const uint32_t own = own_tile(rows);
    return own < rows.last_tile && own >= rows.tile && (own - rows.tile) % QN_WARPS == 0;
}

// Prefetches a norm's weights, [head_dim] or none, into L2: no registers hold them between pieces of work.
QN_DEVICE void prefetch_weights(const float *weights, int lane)
{
    if (weights && lane * QN_WARP_SIZE < DIM)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(weights + lane * QN_WARP_SIZE));
}

// Whether the launch has new rows.
QN_DEVICE bool has_new_rows(const qn_attention_decode_args &a)
{
    return NEW_ROWS && a.new_rows.keys;
}

// The parts of a row that a warp prepares in addition to its queries. All functions are called by full warps. Without
// new rows they do nothing.
struct new_row {
    rope_angles angles;
    lane_values key, value;
    bool stores; // the warp has the key and the value of the row's own position

    // After the PDL wait.
    __device__ __forceinline__ void load(const qn_attention_decode_args &a, const kv_range &rows, uint32_t row, uint32_t head,
                                         int lane)
    {
        const uint64_t at = ((uint64_t)row * a.n_kv_heads + head) * DIM;
        stores = has_new_rows(a) && reads_own_tile(rows) && a.mask.positions[row] + 1 == rows.end;
        if (has_new_rows(a))
            angles.load(a.new_rows, row, lane);
        if (!stores)
            return;
        read_row<DIM>(key, a.new_rows.keys, at, a.dtype, lane);
        read_row<DIM>(value, a.new_rows.values, at, a.dtype, lane);
    }

    __device__ __forceinline__ void prepare(lane_values &x, const qn_attention_new_rows &n, const float *bias,
                                            const float *weight, uint32_t head, int lane) const
    {
        lane_values weights;
        load_lane_floats(weights, weight, lane);
        add_bias(x, bias, head, lane);
        const float mean = qn_warp_sum(qn_sum_of_squares(x)) / DIM;
        if (weight)
            qn_apply_norm(x, weights, mean, n.eps);
        angles.apply(x, n, lane);
    }

    __device__ __forceinline__ void prepare_query(lane_values &x, const qn_attention_decode_args &a, uint32_t head,
                                                  int lane) const
    {
        if (has_new_rows(a))
            prepare(x, a.new_rows, a.new_rows.query_bias, a.new_rows.query_weight, head, lane);
    }

    // After the ring has been filled, before any of its slots is used.
    template <class ring_type>
    __device__ __forceinline__ void store(const qn_attention_new_rows &n, const kv_source &from, const kv_range &rows,
                                          const ring_type &ring, uint32_t head, int lane)
    {
        if (!stores)
            return;
        prepare(key, n, n.key_bias, n.key_weight, head, lane);
        add_bias(value, n.value_bias, head, lane);
        bool is_nan = false;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            is_nan = is_nan || value[i] != value[i];
        is_nan = __any_sync(QN_FULL_MASK, is_nan);
        uint16_t keys[LANE_VALUES], values[LANE_VALUES];
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            keys[i] = is_nan ? QN_F16_NAN : qn_to_f16(key[i], QN_F16_NAN);
            values[i] = qn_to_f16(value[i], 0);
        }
        store_in_cache(keys, from.keys, from.table, rows.end - 1, lane);
        store_in_cache(values, from.values, from.table, rows.end - 1, lane);
        // Group 2 i of the ring has the keys of tile i, group 2 i + 3 its values. Copies of later groups are issued
        // later.
        const uint32_t group = (own_tile(rows) - rows.tile) / QN_WARPS * 2;
        if (group + 3 >= ring_type::slots)
            __threadfence(); // they read L2
        qn_cp_async_wait<0>();
        __syncwarp();
        if (group < ring_type::slots)
            store_in_slot<true>(keys, ring.first + group * ring_type::slot_bytes, rows.end - 1, lane);
        if (group + 3 < ring_type::slots)
            store_in_slot<false>(values, ring.first + (group + 3) * ring_type::slot_bytes, rows.end - 1, lane);
        __syncwarp();
    }

    // The pointers of caches are const for their readers.
    static __device__ __forceinline__ void store_in_cache(const uint16_t (&x)[LANE_VALUES], const uint8_t *first,
                                                          const uint64_t *table, uint32_t position, int lane)
    {
        uint16_t *const to = (uint16_t *)qn_kv_row({ table, first }, position, DIM * 2);
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            if (i * QN_WARP_SIZE + lane < DIM)
                to[i * QN_WARP_SIZE + lane] = x[i];
    }

    template <bool is_keys>
    static __device__ __forceinline__ void store_in_slot(const uint16_t (&x)[LANE_VALUES], uint32_t slot, uint32_t position,
                                                         int lane)
    {
        const uint32_t row = position % TILE_KV;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const uint32_t at = (row * DIM + i * QN_WARP_SIZE + lane) * 2;
            if (i * QN_WARP_SIZE + lane < DIM)
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(slot + (at ^ slot_layout<16, is_keys>::swizzle(row))), "h"(x[i])
                             : "memory");
        }
    }
};

#endif
