// Gated DeltaNet for decode of many sequences: qn_gdn_open_step and qn_gdn_open_fold of deltanet_cuda.h, over a state at the
// last multiple of 64 positions and the rows of the open chunk. The recurrence that updates the state with every token is in
// deltanet_step.cu.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. A block has one value head of a sequence, a warp 16 of its values. Four
// lanes hold two rows of the state, of adjacent values, as the accumulators of an MMA: so a fold adds to the registers that S
// k and S q are computed from. The open chunk is in shared memory. Rows are processed in blocks of QN_GDN_OPEN_ROWS; within a
// block, rows follow each other without block barriers, since a value depends on the same value of earlier rows alone.
//
// Decays are sums of log decays from a row of the chunk to a later one. These have one sign, so their f32 sums are as exact as
// differences of sums in double.
#include "kernels/deltanet/inputs.cuh"
#include "kernels/deltanet/tf32.cuh"

#ifndef QN_HEAD_K
#define QN_HEAD_K 128
#endif
#ifndef QN_HEAD_V
#define QN_HEAD_V 128
#endif

#define CHUNK QN_GDN_CHUNK_TOKENS
#define ROWS QN_GDN_OPEN_ROWS
#define THREADS QN_GDN_OPEN_THREADS(QN_HEAD_V)
#define WARPS (THREADS / QN_WARP_SIZE)
#define LANES QN_GDN_ROW_LANES
#define QUADS (QN_HEAD_K / (4 * LANES)) // quads of 4 keys per lane and row of the state
#define WARP_VALUES 16
#define PASS_VALUES (WARPS * WARP_VALUES)
#define PASSES ((QN_HEAD_V + PASS_VALUES - 1) / PASS_VALUES)
#define GROUPS QN_GDN_SCALE_GROUPS(QN_HEAD_V) // of values with a scale in common
#define CHANNELS (2 * QN_HEAD_K + QN_HEAD_V)
// Row strides of the chunk in elements: accesses to 8 rows are free of bank conflicts.
#define KEY_ROW (QN_HEAD_K + 8)
#define VALUE_ROW (QN_HEAD_V + 8)
#define MIN_BLOCKS ((QN_HEAD_K <= 128 ? 512 : 256) / THREADS) // per SM: the state takes up to half of the registers

struct open_smem {
    __align__(16) uint16_t keys[CHUNK * KEY_ROW], values[CHUNK * VALUE_ROW];
    __align__(16) float q[ROWS][QN_HEAD_K], k[ROWS][QN_HEAD_K]; // of the new rows, not normalised
    __align__(16) float v[ROWS][QN_HEAD_V], z[ROWS][QN_HEAD_V], o[ROWS][QN_HEAD_V], v_new[ROWS][QN_HEAD_V];
    __align__(16) float k_scores[ROWS][GROUPS][CHUNK], q_scores[ROWS][GROUPS][CHUNK]; // gated, and for scaled values
    float k_near[ROWS][ROWS], q_near[ROWS][ROWS]; // with earlier rows of the block
    float g[ROWS], beta[ROWS];
    qn_delta_qk_norms norms[WARPS][ROWS];
    float scales[GROUPS][CHUNK], decays[CHUNK];
    float since[CHUNK]; // the sum of g of the rows after this one
    float total;        // the sum of g of the chunk
    uint32_t is_last;   // of the blocks with the same key head
};

static_assert(GROUPS <= WARPS && GROUPS <= LANES, "a warp finishes a group of values, a lane of four stores its scores");
static_assert(sizeof(open_smem) <= QN_GDN_OPEN_BYTES(QN_HEAD_K, QN_HEAD_V), "the launch's shared memory");

// A value head of a sequence, and its places in memory.
struct open_head {
    uint32_t sequence, head, k_head, position;
    bool has_state; // else the state at the chunk's start is zeros
    const float *from;
    float *to;
    unsigned char *open;
};

// The number of rows of the open chunk before the row at `position`.
QN_DEVICE uint32_t open_rows(uint32_t position)
{
    return position ? (position - 1) % CHUNK + 1 : 0;
}

QN_DEVICE open_head locate(const qn_gdn_open_args &a, uint32_t sequence, uint32_t head)
{
    open_head h;
    h.sequence = sequence;
    h.head = head;
    h.k_head = head % a.k_heads;
    h.position = a.positions[sequence];
    h.has_state = h.position > CHUNK;
    const size_t state = a.state_offset + (size_t)head * QN_HEAD_V * QN_HEAD_K * sizeof(float);
    h.from = (const float *)(a.states + a.state_from[sequence] * a.state_stride + state);
    h.to = (float *)(a.states + a.state_to[sequence] * a.state_stride + state);
    h.open = a.open + a.open_slots[sequence] * a.open_stride + a.open_offset;
    return h;
}

QN_DEVICE uint16_t *keys_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (uint16_t *)(h.open + a.layout.keys) + h.k_head * CHUNK * QN_HEAD_K;
}

QN_DEVICE uint16_t *values_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (uint16_t *)(h.open + a.layout.values) + h.head * CHUNK * QN_HEAD_V;
}

QN_DEVICE float *scales_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.scales) + h.head * GROUPS * CHUNK;
}

QN_DEVICE float *decays_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.decays) + h.head * CHUNK;
}

QN_DEVICE float *inputs_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.inputs);
}

// ---- The state in registers ----

// Two adjacent rows of a lane. Quad i of lane t is keys 16 i + 4 t to 16 i + 4 t + 3.
struct state_rows {
    float4 low[QUADS], high[QUADS];
};

QN_DEVICE uint32_t lane_id()
{
    return threadIdx.x % QN_WARP_SIZE;
}

// The first of the lane's two values. Rows of values from QN_HEAD_V on are in no head.
QN_DEVICE uint32_t value_of(int pass)
{
    return pass * PASS_VALUES + threadIdx.x / QN_WARP_SIZE * WARP_VALUES + lane_id() / LANES * 2;
}

QN_DEVICE void load_state(state_rows &s, const float *from, uint32_t value)
{
    const float *row = from && value < QN_HEAD_V ? from + value * QN_HEAD_K : nullptr;
    qn_delta_load_row<LANES, QUADS>(s.low, row);
    qn_delta_load_row<LANES, QUADS>(s.high, row ? row + QN_HEAD_K : nullptr);
}

QN_DEVICE void store_state(float *to, uint32_t value, const state_rows &s)
{
    if (value >= QN_HEAD_V)
        return;
    qn_delta_store_row<LANES, QUADS>(to + value * QN_HEAD_K, s.low);
    qn_delta_store_row<LANES, QUADS>(to + (value + 1) * QN_HEAD_K, s.high);
}

QN_DEVICE uint32_t load_pair(const uint16_t *x)
{
    return *(const uint32_t *)x;
}

// x as the sum of two terms in tf32.
QN_DEVICE void split_tf32(float x, uint32_t &hi, uint32_t &lo)
{
    hi = to_tf32(x) & 0xffffe000u;
    lo = to_tf32(x - __uint_as_float(hi));
}

// Adds the chunk's rows: S = e^total S + v'^T k, each v' with the decay since its row. Rows from `n` on count as zeros. An MMA
// has 8 rows of the chunk, in the order 0 2 4 6 1 3 5 7; its row g is the lower value of lanes 4 g to 4 g + 3 and its row g +
// 8 the higher; its columns are every other key of a pair of quads.
QN_DEVICE void fold(state_rows &s, const open_smem &m, uint32_t n, uint32_t value)
{
    const uint32_t group = lane_id() / LANES, t = lane_id() % LANES;
    const float decay = expf(m.total), *scales = m.scales[value / QN_GDN_SCALE_VALUES];
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        s.low[i] = make_float4(decay * s.low[i].x, decay * s.low[i].y, decay * s.low[i].z, decay * s.low[i].w);
        s.high[i] = make_float4(decay * s.high[i].x, decay * s.high[i].y, decay * s.high[i].z, decay * s.high[i].w);
    }
    if (value >= QN_HEAD_V) // a whole warp
        return;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += 8) {
        const uint32_t row = first + 2 * t;
        const uint16_t *values = m.values + row * VALUE_ROW + value;
        const uint32_t v0 = load_pair(values), v1 = load_pair(values + VALUE_ROW);
        const float f0 = row < n ? expf(m.since[row]) * scales[row] : 0.0f,
                    f1 = row + 1 < n ? expf(m.since[row + 1]) * scales[row + 1] : 0.0f;
        uint32_t hi[4], lo[4];
        split_tf32(f0 * qn_f16_low(v0), hi[0], lo[0]);
        split_tf32(f0 * qn_f16_high(v0), hi[1], lo[1]);
        split_tf32(f1 * qn_f16_low(v1), hi[2], lo[2]);
        split_tf32(f1 * qn_f16_high(v1), hi[3], lo[3]);
        const uint16_t *keys = m.keys + row * KEY_ROW + 2 * group;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const uint32_t k0 = load_pair(keys + 16 * i), k1 = load_pair(keys + KEY_ROW + 16 * i);
            const uint32_t even[2] = { __float_as_uint(qn_f16_low(k0)), __float_as_uint(qn_f16_low(k1)) };
            const uint32_t odd[2] = { __float_as_uint(qn_f16_high(k0)), __float_as_uint(qn_f16_high(k1)) };
            float d_even[4] = { s.low[i].x, s.low[i].z, s.high[i].x, s.high[i].z };
            float d_odd[4] = { s.low[i].y, s.low[i].w, s.high[i].y, s.high[i].w };
            mma_m16n8k8_tf32(d_even, lo, even);
            mma_m16n8k8_tf32(d_odd, lo, odd);
            mma_m16n8k8_tf32(d_even, hi, even);
            mma_m16n8k8_tf32(d_odd, hi, odd);
            s.low[i] = make_float4(d_even[0], d_odd[0], d_even[1], d_odd[1]);
            s.high[i] = make_float4(d_even[2], d_odd[2], d_even[3], d_odd[3]);
        }
    }
}

// ---- The chunk in shared memory ----

// Issues the loads of the first n rows; rows from n on become zeros, so that what a score of zero multiplies is finite.
QN_DEVICE void load_chunk(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    const uint16_t *keys = keys_of(a, h), *values = values_of(a, h);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < CHUNK * QN_HEAD_K / 8; i += THREADS) {
        const uint32_t row = i / (QN_HEAD_K / 8), column = i % (QN_HEAD_K / 8) * 8;
        qn_cp_async_16(m.keys + row * KEY_ROW + column, keys + row * QN_HEAD_K + column, row < n ? 16 : 0);
    }
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < CHUNK * QN_HEAD_V / 8; i += THREADS) {
        const uint32_t row = i / (QN_HEAD_V / 8), column = i % (QN_HEAD_V / 8) * 8;
        qn_cp_async_16(m.values + row * VALUE_ROW + column, values + row * QN_HEAD_V + column, row < n ? 16 : 0);
    }
    qn_cp_async_commit();
}

// Loads scales and log decays of n rows, and adds the decays up from the end. By the last warp; a lane has two rows.
QN_DEVICE void load_decays(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    if (threadIdx.x / QN_WARP_SIZE != WARPS - 1)
        return;
    const uint32_t lane = lane_id(), row = 2 * lane;
    float g[2], sum;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        g[i] = row + i < n ? decays_of(a, h)[row + i] : 0.0f;
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
            m.scales[group][row + i] = row + i < n ? scales_of(a, h)[group * CHUNK + row + i] : 0.0f;
    }
    sum = g[0] + g[1];
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const float after = __shfl_down_sync(QN_FULL_MASK, sum, distance);
        if (lane + distance < QN_WARP_SIZE)
            sum += after;
    }
    const float after = __shfl_down_sync(QN_FULL_MASK, sum, 1);
    m.since[row + 1] = lane + 1 < QN_WARP_SIZE ? after : 0.0f;
    m.since[row] = m.since[row + 1] + g[1];
    m.decays[row] = g[0];
    m.decays[row + 1] = g[1];
    if (lane == 0)
        m.total = sum;
}

QN_DEVICE void prefetch(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    if (bytes)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// Prefetches into L2 what a later block reads: two blocks that fit on an SM leave memory idle while both compute. By one
// thread.
QN_DEVICE void prefetch_block(const qn_gdn_open_args &a)
{
    const uint32_t block = blockIdx.y * a.v_heads + blockIdx.x + a.prefetch_blocks;
    if (!a.prefetch_blocks || block >= a.v_heads * a.sequences)
        return;
    const open_head h = locate(a, block / a.v_heads, block % a.v_heads);
    const uint32_t n = open_rows(h.position);
    if (h.has_state)
        prefetch(h.from, QN_HEAD_V * QN_HEAD_K * sizeof(float));
    prefetch(values_of(a, h), n * QN_HEAD_V * sizeof(uint16_t));
    if (h.head < a.k_heads)
        prefetch(keys_of(a, h), n * QN_HEAD_K * sizeof(uint16_t));
}

// ---- New rows ----

// A block of new rows of a sequence, of the same chunk.
struct open_block {
    uint32_t first;    // its first row among the launch's rows
    uint32_t done;     // the sequence's rows before it
    uint32_t rows;     // 1 to ROWS
    uint32_t position; // of its first row
    uint32_t stored;   // rows of the chunk before it, less than CHUNK
};

QN_DEVICE uint32_t channel_of(const qn_gdn_open_args &a, const open_head &h, uint32_t i)
{
    const uint32_t keys = a.k_heads * QN_HEAD_K;
    return i < QN_HEAD_K       ? h.k_head * QN_HEAD_K + i
           : i < 2 * QN_HEAD_K ? keys + h.k_head * QN_HEAD_K + i - QN_HEAD_K
                               : 2 * keys + h.head * QN_HEAD_V + i - 2 * QN_HEAD_K;
}

QN_DEVICE uint32_t width_of(const qn_gdn_open_args &a)
{
    return 2 * a.k_heads * QN_HEAD_K + a.v_heads * QN_HEAD_V;
}

// Prefetches into L2 the earlier inputs and the weights that the convolution of the first row reads.
QN_DEVICE void prefetch_inputs(const qn_gdn_open_args &a, const open_head &h)
{
    const uint32_t width = width_of(a), ring = QN_GDN_INPUT_ROWS(a.taps);
    for (uint32_t i = threadIdx.x; i < (2 * a.taps - 1) * (CHANNELS / 16); i += THREADS) {
        const uint32_t row = i / (CHANNELS / 16), channel = channel_of(a, h, i % (CHANNELS / 16) * 16);
        const uint32_t slot = (h.position + ring - (row - a.taps + 1)) % ring; // of the input so many rows before
        qn_prefetch_line((row < a.taps ? a.conv + row * width : inputs_of(a, h) + (size_t)slot * width) + channel);
    }
}

// Adds the taps of the inputs `first` down to `last` rows before a row, with all loads in flight. row: index among the
// sequence's rows of this launch; earlier inputs are in the slot.
template <uint32_t first, uint32_t last>
QN_DEVICE float convolve_taps(float sum, const qn_gdn_open_args &a, const open_head &h, const float *input, uint32_t row,
                              uint32_t slot, uint32_t channel)
{
    const uint32_t width = width_of(a), ring = QN_GDN_INPUT_ROWS(a.taps);
    float weights[first - last + 1], inputs[first - last + 1];
#pragma unroll
    for (uint32_t back = first; back + 1 > last; back--) {
        const bool valid = back < a.taps && back <= h.position + row;
        const uint32_t past = slot >= back ? slot - back : slot + ring - back;
        weights[first - back] = valid ? a.conv[(a.taps - 1 - back) * width + channel] : 0;
        inputs[first - back] = !valid        ? 0
                               : back <= row ? *(input - (size_t)back * a.qkv_stride)
                                             : inputs_of(a, h)[(size_t)past * width + channel];
    }
#pragma unroll
    for (uint32_t i = 0; i < first - last + 1; i++)
        sum = fmaf(weights[i], inputs[i], sum);
    return sum;
}

// Convolution, gates, and the loads of z.
QN_DEVICE void load_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, const open_block &b)
{
    const uint32_t ring = QN_GDN_INPUT_ROWS(a.taps), slot0 = b.position % ring;
    for (uint32_t i = threadIdx.x; i < b.rows * CHANNELS; i += THREADS) {
        const uint32_t row = i / CHANNELS, c = i % CHANNELS, channel = channel_of(a, h, c);
        const uint32_t slot = slot0 + row < ring ? slot0 + row : slot0 + row - ring;
        const float *input = a.qkv + (size_t)(b.first + row) * a.qkv_stride + channel;
        float sum = 0;
        if (a.taps > 4)
            sum = convolve_taps<QN_GDN_MAX_TAPS - 1, 4>(sum, a, h, input, b.done + row, slot, channel);
        sum = convolve_taps<3, 0>(sum, a, h, input, b.done + row, slot, channel);
        (c < QN_HEAD_K       ? m.q[row][c]
         : c < 2 * QN_HEAD_K ? m.k[row][c - QN_HEAD_K]
                             : m.v[row][c - 2 * QN_HEAD_K]) = sum * qn_sigmoid(sum);
    }
    for (uint32_t i = threadIdx.x; i < b.rows * QN_HEAD_V; i += THREADS) {
        const uint32_t row = i / QN_HEAD_V, value = i % QN_HEAD_V;
        qn_cp_async_4(&m.z[row][value], a.gate + (size_t)(b.first + row) * a.gate_stride + h.head * QN_HEAD_V + value);
    }
    qn_cp_async_commit();
    if (threadIdx.x >= THREADS - b.rows) { // in the last warp, which has the fewest channels
        const uint32_t row = THREADS - 1 - threadIdx.x;
        const float alpha = a.alpha[(size_t)(b.first + row) * a.alpha_stride + h.head];
        m.g[row] = fminf(qn_delta_log_decay(alpha, a.bias[h.head], a.factor[h.head]), 0.0f);
        m.beta[row] = qn_sigmoid(a.beta[(size_t)(b.first + row) * a.beta_stride + h.head]);
    }
}

// The part of quad i of a row's key that lane t of four has, of the chunk or of the block's own rows.
QN_DEVICE float4 key_quad(const open_smem &m, bool is_stored, uint32_t row, uint32_t quad)
{
    if (!is_stored)
        return *(const float4 *)(m.k[row] + 4 * quad);
    const uint2 pairs = *(const uint2 *)(m.keys + row * KEY_ROW + 4 * quad);
    return make_float4(qn_f16_low(pairs.x), qn_f16_high(pairs.x), qn_f16_low(pairs.y), qn_f16_high(pairs.y));
}

QN_DEVICE uint32_t round_up_8(uint32_t n)
{
    return (n + 7) / 8 * 8;
}

// Scores of the new rows with the chunk's rows, and with the block's rows before them. A warp has 8 rows of the chunk, four
// lanes each: lanes r, r + 8, r + 16 and r + 24 have row r.
QN_DEVICE void compute_scores(open_smem &m, const open_block &b)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, t = lane_id() / 8, n_stored = round_up_8(b.stored);
    for (uint32_t row = 0; row < b.rows; row++) {
        const qn_delta_qk_norms norms = qn_delta_compute_qk_norms<QN_HEAD_K>(m.q[row], m.k[row], true);
        if (lane_id() == 0)
            m.norms[warp][row] = norms;
    }
    __syncwarp();
    for (uint32_t first = warp * 8; first < n_stored + (b.rows > 1 ? 8 : 0); first += WARPS * 8) {
        const bool is_stored = first < n_stored;
        const uint32_t j = is_stored ? first + lane_id() % 8 : lane_id() % 8;
        const uint32_t of = is_stored || j < b.rows ? j : 0;
        float decay = is_stored ? m.since[j] : 0.0f;
        // Of the four lanes with a row, lane t stores the scores for the values of group t.
        const float factor = !is_stored ? m.norms[warp][of].k_inv_norm : t < GROUPS ? m.scales[t][j] : 0.0f;
#pragma unroll 1
        for (uint32_t row = is_stored ? 0 : 1; row < b.rows; row++) {
            float k_dot = 0, q_dot = 0;
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const float4 key = key_quad(m, is_stored, of, i * LANES + t);
                k_dot = qn_delta_dot(key, *(const float4 *)(m.k[row] + 4 * (i * LANES + t)), k_dot);
                q_dot = qn_delta_dot(key, *(const float4 *)(m.q[row] + 4 * (i * LANES + t)), q_dot);
            }
            if (is_stored || j < row)
                decay += m.g[row];
            const float gate = expf(decay) * factor;
            k_dot = qn_lanes_sum<8, QN_WARP_SIZE>(k_dot) * (gate * m.norms[warp][row].k_inv_norm);
            q_dot = qn_lanes_sum<8, QN_WARP_SIZE>(q_dot) * (gate * m.norms[warp][row].q_inv_norm);
            if (t < GROUPS && is_stored) {
                m.k_scores[row][t][j] = j < b.stored ? k_dot : 0.0f;
                m.q_scores[row][t][j] = j < b.stored ? q_dot : 0.0f;
            } else if (t == 0 && j < row) {
                m.k_near[row][j] = k_dot;
                m.q_near[row][j] = q_dot;
            }
        }
    }
}

// Of two adjacent values: a lane's parts of a and b of deltanet_cuda.h.
struct value_sums {
    float k_low, k_high, q_low, q_high;
};

QN_DEVICE void add_pair(value_sums &s, float k_score, float q_score, float low, float high)
{
    s.k_low = fmaf(k_score, low, s.k_low);
    s.k_high = fmaf(k_score, high, s.k_high);
    s.q_low = fmaf(q_score, low, s.q_low);
    s.q_high = fmaf(q_score, high, s.q_high);
}

QN_DEVICE value_sums read_state(const state_rows &s, const float *q, const float *k, float k_factor, float q_factor)
{
    value_sums x = {};
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const float4 key = *(const float4 *)(k + (i * LANES + lane_id() % LANES) * 4);
        const float4 query = *(const float4 *)(q + (i * LANES + lane_id() % LANES) * 4);
        x.k_low = qn_delta_dot(s.low[i], key, x.k_low);
        x.k_high = qn_delta_dot(s.high[i], key, x.k_high);
        x.q_low = qn_delta_dot(s.low[i], query, x.q_low);
        x.q_high = qn_delta_dot(s.high[i], query, x.q_high);
    }
    x.k_low *= k_factor;
    x.k_high *= k_factor;
    x.q_low *= q_factor;
    x.q_high *= q_factor;
    return x;
}

// v' and o of the block's rows, for the lane's two values. A warp needs no other warp's values.
QN_DEVICE void solve_rows(open_smem &m, const state_rows &s, const open_block &b, uint32_t value, float scale)
{
    const uint32_t t = lane_id() % LANES, warp = threadIdx.x / QN_WARP_SIZE, group = value / QN_GDN_SCALE_VALUES;
    if (value >= QN_HEAD_V) // a whole warp
        return;
    float decay = m.total;
#pragma unroll 1
    for (uint32_t row = 0; row < b.rows; row++) {
        const qn_delta_qk_norms norms = m.norms[warp][row];
        decay += m.g[row];
        const float factor = expf(decay), beta = m.beta[row];
        value_sums x = read_state(s, m.q[row], m.k[row], factor * norms.k_inv_norm, factor * norms.q_inv_norm);
#pragma unroll 2
        for (uint32_t j = 2 * t; j < round_up_8(b.stored); j += 8) {
            const float2 k_score = *(const float2 *)(m.k_scores[row][group] + j);
            const float2 q_score = *(const float2 *)(m.q_scores[row][group] + j);
            const uint16_t *values = m.values + j * VALUE_ROW + value;
            const uint32_t v0 = load_pair(values), v1 = load_pair(values + VALUE_ROW);
            add_pair(x, k_score.x, q_score.x, qn_f16_low(v0), qn_f16_high(v0));
            add_pair(x, k_score.y, q_score.y, qn_f16_low(v1), qn_f16_high(v1));
        }
        for (uint32_t j = t; j < row; j += LANES)
            add_pair(x, m.k_near[row][j], m.q_near[row][j], m.v_new[j][value], m.v_new[j][value + 1]);
        const float low = beta * (m.v[row][value] - qn_lanes_sum<1, LANES>(x.k_low)),
                    high = beta * (m.v[row][value + 1] - qn_lanes_sum<1, LANES>(x.k_high));
        const float o_low = fmaf(norms.kq, low, qn_lanes_sum<1, LANES>(x.q_low)),
                    o_high = fmaf(norms.kq, high, qn_lanes_sum<1, LANES>(x.q_high));
        if (t == 0) {
            *(float2 *)(m.v_new[row] + value) = make_float2(low, high);
            *(float2 *)(m.o[row] + value) = make_float2(o_low * scale, o_high * scale);
        }
        __syncwarp();
    }
}

// The power of two that makes amax a number in [2^14, 2^15), and its inverse; both are normal numbers.
QN_DEVICE float2 scale_of(float amax)
{
    uint32_t exponent = __float_as_uint(amax) >> 23;
    exponent = exponent < 15 ? 1 : exponent - 14;
    return make_float2(__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23));
}

// Gated norm of the block's rows, and the rows as the chunk stores them. The first warps have the values, one group each;
// threads from the last one down have pairs of keys.
QN_DEVICE void finish_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, const open_block &b)
{
    const uint32_t repeat = a.v_heads / a.k_heads, group = threadIdx.x / QN_WARP_SIZE;
    const uint32_t out_head = a.grouped ? h.k_head * repeat + h.head / a.k_heads : h.head;
    const uint32_t i = 2 * threadIdx.x; // the first of the lane's two values
    for (uint32_t row = 0; row < b.rows; row++) {
        if (group < GROUPS) {
            float squares = 0;
            for (uint32_t x = lane_id(); x < QN_HEAD_V; x += QN_WARP_SIZE)
                squares = fmaf(m.o[row][x], m.o[row][x], squares);
            const float factor = 1.0f / sqrtf(qn_warp_sum(squares) / QN_HEAD_V + a.eps);
            const float2 v = i < QN_HEAD_V ? *(const float2 *)(m.v_new[row] + i) : make_float2(0, 0);
            const float2 scale = scale_of(qn_warp_max(fmaxf(fabsf(v.x), fabsf(v.y))));
            if (i < QN_HEAD_V) {
                const float2 o = *(const float2 *)(m.o[row] + i), z = *(const float2 *)(m.z[row] + i);
                float *out = a.out + (size_t)(b.first + row) * a.out_stride + out_head * QN_HEAD_V + i;
                out[0] = o.x * factor * a.norm[i] * (z.x * qn_sigmoid(z.x));
                out[1] = o.y * factor * a.norm[i + 1] * (z.y * qn_sigmoid(z.y));
                *(uint32_t *)(m.values + (b.stored + row) * VALUE_ROW + i) = qn_f32_to_f16x2(v.x * scale.y, v.y * scale.y);
            }
            if (lane_id() == 0)
                m.scales[group][b.stored + row] = scale.x;
        }
        const float k_inv_norm = m.norms[threadIdx.x / QN_WARP_SIZE][row].k_inv_norm;
        for (uint32_t key = 2 * (THREADS - 1 - threadIdx.x); key < QN_HEAD_K; key += 2 * THREADS)
            *(uint32_t *)(m.keys + (b.stored + row) * KEY_ROW + key) =
                qn_f32_to_f16x2(m.k[row][key] * k_inv_norm, m.k[row][key + 1] * k_inv_norm);
        for (uint32_t j = threadIdx.x; j <= b.stored + row; j += THREADS)
            m.since[j] = j < b.stored + row ? m.since[j] + m.g[row] : 0.0f;
        if (threadIdx.x == THREADS - 1) {
            m.decays[b.stored + row] = m.g[row];
            m.total += m.g[row];
        }
    }
}

// Stores in the open slot the launch's rows that are in the chunk at its end, and the last inputs. Key heads are stored by the
// block that arrived last: then all blocks with this key head have read the rows and inputs that are overwritten.
QN_DEVICE void store_chunk(const open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t first, uint32_t n,
                           uint32_t stored)
{
    const uint32_t rows = n < stored ? n : stored, begin = stored - rows, width = width_of(a);
    for (uint32_t i = threadIdx.x; i < rows * (QN_HEAD_V / 8); i += THREADS) {
        const uint32_t row = begin + i / (QN_HEAD_V / 8), column = i % (QN_HEAD_V / 8) * 8;
        *(uint4 *)(values_of(a, h) + row * QN_HEAD_V + column) = *(const uint4 *)(m.values + row * VALUE_ROW + column);
    }
    for (uint32_t i = threadIdx.x; m.is_last && i < rows * (QN_HEAD_K / 8); i += THREADS) {
        const uint32_t row = begin + i / (QN_HEAD_K / 8), column = i % (QN_HEAD_K / 8) * 8;
        *(uint4 *)(keys_of(a, h) + row * QN_HEAD_K + column) = *(const uint4 *)(m.keys + row * KEY_ROW + column);
    }
    for (uint32_t row = begin + threadIdx.x; row < stored; row += THREADS) {
        decays_of(a, h)[row] = m.decays[row];
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
            scales_of(a, h)[group * CHUNK + row] = m.scales[group][row];
    }
    const uint32_t ring = QN_GDN_INPUT_ROWS(a.taps);
    for (uint32_t row = n < ring ? 0 : n - ring; row < n; row++) {
        const float *input = a.qkv + (size_t)(first + row) * a.qkv_stride;
        float *to = inputs_of(a, h) + (size_t)((h.position + row) % ring) * width;
        for (uint32_t i = threadIdx.x + (m.is_last ? 0 : 2 * QN_HEAD_K); i < CHANNELS; i += THREADS)
            to[channel_of(a, h, i)] = input[channel_of(a, h, i)];
    }
    if (m.is_last && threadIdx.x == 0)
        a.arrivals[h.sequence * a.k_heads + h.k_head] = 0;
}

// By one thread of each block with the key head, after the block has read what is overwritten. Whether it is the last one.
QN_DEVICE bool arrive(const qn_gdn_open_args &a, const open_head &h)
{
    __threadfence();
    return atomicAdd(a.arrivals + h.sequence * a.k_heads + h.k_head, 1) == a.v_heads / a.k_heads - 1;
}

QN_DEVICE open_block next_block(const open_head &h, uint32_t first, uint32_t done, uint32_t n, uint32_t stored)
{
    open_block b = { first + done, done, n - done, h.position + done, stored };
    b.rows = b.rows < ROWS ? b.rows : ROWS;
    b.rows = b.rows < CHUNK - stored ? b.rows : CHUNK - stored;
    return b;
}

// Folds the full chunk and stores the state, where the next rows find it.
QN_DEVICE void fold_chunk(open_head &h, const open_smem &m, state_rows &s)
{
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        if (PASSES > 1)
            load_state(s, h.has_state ? h.from : nullptr, value_of(pass));
        fold(s, m, CHUNK, value_of(pass));
        store_state(h.to, value_of(pass), s);
    }
    h.from = h.to;
    h.has_state = true;
}

// Grid: value heads (x), sequences (y).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) qn_gdn_open_step(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    open_smem &m = *(open_smem *)shared;
    open_head h = locate(a, blockIdx.y, blockIdx.x);
    const uint32_t first = a.cu_seqlens ? a.cu_seqlens[h.sequence] : h.sequence;
    const uint32_t n = a.cu_seqlens ? a.cu_seqlens[h.sequence + 1] - first : 1;
    if (n == 0)
        return;
    uint32_t stored = open_rows(h.position);
    state_rows s;
    if (PASSES == 1)
        load_state(s, h.has_state ? h.from : nullptr, value_of(0));
    load_chunk(m, a, h, stored);
    load_decays(m, a, h, stored);
    prefetch_inputs(a, h);
    if (threadIdx.x == 0)
        prefetch_block(a);
    bool is_last = false;
    for (uint32_t done = 0; done < n;) {
        if (stored == CHUNK) {
            qn_cp_async_wait<0>();
            __syncthreads();
            fold_chunk(h, m, s);
            __syncthreads(); // all warps have read the chunk
            stored = 0;
            if (threadIdx.x == 0)
                m.total = 0;
        }
        if (done == 0) {
            qn_pdl_wait();
            qn_pdl_trigger();
        }
        const open_block b = next_block(h, first, done, n, stored);
        load_rows(m, a, h, b);
        qn_cp_async_wait<0>();
        __syncthreads();
        if (done + b.rows == n && threadIdx.x == THREADS - 1)
            is_last = arrive(a, h);
        compute_scores(m, b);
        __syncthreads();
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) {
            if (PASSES > 1)
                load_state(s, h.has_state ? h.from : nullptr, value_of(pass));
            solve_rows(m, s, b, value_of(pass), a.scale);
        }
        __syncthreads();
        finish_rows(m, a, h, b);
        if (threadIdx.x == THREADS - 1)
            m.is_last = is_last;
        __syncthreads();
        done += b.rows;
        stored += b.rows;
    }
    store_chunk(m, a, h, first, n, stored);
}

// Grid: value heads (x), sequences (y), layers (z).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) qn_gdn_open_fold(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    open_smem &m = *(open_smem *)shared;
    qn_pdl_wait();
    qn_pdl_trigger();
    open_head h = locate(a, blockIdx.y, blockIdx.x);
    const uint32_t stored = open_rows(h.position);
    const size_t state = (size_t)blockIdx.z * a.v_heads * QN_HEAD_V * QN_HEAD_K;
    h.from += state;
    h.to += state;
    h.open += blockIdx.z * a.layout.bytes;
    state_rows s;
    load_chunk(m, a, h, stored);
    load_decays(m, a, h, stored);
    qn_cp_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        load_state(s, h.has_state ? h.from : nullptr, value_of(pass));
        fold(s, m, stored, value_of(pass));
        store_state(h.to, value_of(pass), s);
    }
}
