// Gated DeltaNet for decode of many sequences: qn_gdn_open_step and qn_gdn_open_fold of deltanet.h, over a state at a
// multiple of 64 positions and the rows of the open chunk.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. An item is one value head of a sequence; a block processes every
// gridDim.x-th, a warp 16 of its values. Four lanes have two rows of the state, of adjacent values: of the plane hi,
// which S k and S q are computed from (gpu/state_planes.h); in a fold the sum of both planes, as the accumulators of an
// MMA. As soon as S k and S q are computed the loads of the next item's state into the same registers are issued: they
// are in flight while this item is completed and the next one prepared. The open chunk is in shared memory. Rows are
// processed in blocks of QN_GDN_OPEN_ROWS; within a block, rows follow each other without block barriers, since a value
// depends only on the same value of earlier rows.
//
// Decays are sums of log decays from a row of the chunk to a later one. These have one sign, so their f32 sums are as
// exact as differences of sums in double.
#include "cuda/kernels/deltanet/open_chunk.cuh"
#include "cuda/kernels/deltanet/tf32.cuh"

// ---- The state in registers ----

// Two adjacent rows of a lane, of the plane hi. Quad i of lane t is keys 16 i + 4 t to 16 i + 4 t + 3.
struct state_rows {
    uint2 low[QUADS], high[QUADS];
};

// The same rows of S.
struct folded_rows {
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

// Each state is read once in a launch: it should not take the place of other data in L2.
QN_DEVICE void load_state(state_rows &s, const open_head &h, int pass)
{
    const uint32_t value = value_of(pass);
    const bool exists = h.has_state && value < QN_HEAD_V;
    const uint2 *row = (const uint2 *)(hi_of(h) + value * QN_HEAD_K) + lane_id() % LANES;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        s.low[i] = exists ? __ldcs(row + i * LANES) : make_uint2(0, 0);
        s.high[i] = exists ? __ldcs(row + QN_HEAD_K / 4 + i * LANES) : make_uint2(0, 0);
    }
}

QN_DEVICE float4 join_quad(const uint2 *hi, const uint2 *lo)
{
    const uint2 x = __ldcs(hi), y = __ldcs(lo);
    const float2 low = qn_gdn_join(x.x, y.x), high = qn_gdn_join(x.y, y.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

QN_DEVICE uint2 split_quad(float4 x, uint2 *lo)
{
    uint2 hi, rest;
    qn_gdn_split(x.x, x.y, hi.x, rest.x);
    qn_gdn_split(x.z, x.w, hi.y, rest.y);
    *lo = rest;
    return hi;
}

// Both planes. plane: as plane_of.
QN_DEVICE void load_folded(folded_rows &s, const open_head &h, size_t plane, uint32_t value)
{
    const bool exists = h.has_state && value < QN_HEAD_V;
    const uint16_t *hi = hi_of(h) + value * QN_HEAD_K + lane_id() % LANES * 4, *lo = hi + plane;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int low = i * LANES * 4, high = low + QN_HEAD_K;
        s.low[i] = exists ? join_quad((const uint2 *)(hi + low), (const uint2 *)(lo + low)) : make_float4(0, 0, 0, 0);
        s.high[i] = exists ? join_quad((const uint2 *)(hi + high), (const uint2 *)(lo + high)) : make_float4(0, 0, 0, 0);
    }
}

// Stores both planes to h.to; hi: as load_state loads it from there.
QN_DEVICE void store_folded(state_rows &hi, const folded_rows &s, const open_head &h, size_t plane, uint32_t value)
{
    uint16_t *to = (uint16_t *)h.to + (h.head * QN_HEAD_V + value) * QN_HEAD_K + lane_id() % LANES * 4;
    if (value >= QN_HEAD_V)
        return;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int low = i * LANES * 4, high = low + QN_HEAD_K;
        *(uint2 *)(to + low) = hi.low[i] = split_quad(s.low[i], (uint2 *)(to + plane + low));
        *(uint2 *)(to + high) = hi.high[i] = split_quad(s.high[i], (uint2 *)(to + plane + high));
    }
}

QN_DEVICE float4 hi_quad(uint2 x)
{
    return make_float4(qn_f16_low(x.x), qn_f16_high(x.x), qn_f16_low(x.y), qn_f16_high(x.y));
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

// Adds the chunk's rows: S = e^total S + v'^T k, each v' with the decay since its row. Rows from `n` on count as zeros.
// An MMA has 8 rows of the chunk, in the order 0 2 4 6 1 3 5 7; its row g is the lower value of lanes 4 g to 4 g + 3
// and its row g + 8 the higher; its columns are every other key of a pair of quads.
QN_DEVICE void fold(folded_rows &s, const open_smem &m, uint32_t n, uint32_t value)
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

// ---- New rows ----

// A block of new rows of a sequence, of the same chunk.
struct open_block {
    uint32_t done;   // the sequence's rows before it
    uint32_t rows;   // 1 to ROWS; 0 of a sequence without rows
    uint32_t stored; // rows of the chunk before it, less than CHUNK
    bool is_last;    // of the sequence
};

QN_DEVICE open_block next_block(const open_head &h, uint32_t done, uint32_t stored)
{
    open_block b = { done, h.n - done, stored == CHUNK ? 0 : stored, false };
    b.rows = b.rows < ROWS ? b.rows : ROWS;
    b.rows = b.rows < CHUNK - b.stored ? b.rows : CHUNK - b.stored;
    b.is_last = done + b.rows == h.n;
    return b;
}

// Convolution of two channels a thread, and gates. Inputs are stored at once unless another block may read the
// overwritten data.
template <bool overlapping>
QN_DEVICE void prepare_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, const open_block &b)
{
    const float *inputs = inputs_in(m), *weights = inputs + (a.taps - 1 + ROWS) * CHANNELS;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < b.rows * (CHANNELS / 2); i += THREADS) {
        const uint32_t row = i / (CHANNELS / 2), c = i % (CHANNELS / 2) * 2;
        float2 sum = make_float2(0, 0), x = sum;
#pragma unroll 4
        for (uint32_t tap = 0; tap < a.taps; tap++) {
            const float2 weight = *(const float2 *)(weights + tap * CHANNELS + c);
            x = *(const float2 *)(inputs + (row + tap) * CHANNELS + c);
            sum = make_float2(fmaf(weight.x, x.x, sum.x), fmaf(weight.y, x.y, sum.y));
        }
        if (!overlapping && (c >= 2 * QN_HEAD_K || h.head < a.k_heads)) {
            const uint32_t slot = (h.position + b.done + row) % QN_GDN_INPUT_ROWS(a.taps);
            *(float2 *)(inputs_of(a, h) + (size_t)slot * width_of(a) + channel_of(a, h, c)) = x;
        }
        float *to = c < QN_HEAD_K       ? m.q[row] + c
                    : c < 2 * QN_HEAD_K ? m.k[row] + (c - QN_HEAD_K)
                                        : m.v[row] + (c - 2 * QN_HEAD_K);
        *(float2 *)to = make_float2(sum.x * qn_sigmoid(sum.x), sum.y * qn_sigmoid(sum.y));
    }
    if (threadIdx.x >= THREADS - b.rows) { // in the last warp, which has the fewest channels
        const uint32_t row = THREADS - 1 - threadIdx.x;
        m.g[row] = fminf(qn_delta_log_decay(m.alpha[row], m.bias, m.factor), 0.0f);
        m.beta[row] = qn_sigmoid(m.beta_in[row]);
    }
}

// The part of quad i of a row's key that lane t of four has, of the chunk or of the block's own rows.
QN_DEVICE float4 key_quad(const open_smem &m, bool is_stored, uint32_t row, uint32_t quad)
{
    if (!is_stored)
        return *(const float4 *)(m.k[row] + 4 * quad);
    return hi_quad(*(const uint2 *)(m.keys + row * KEY_ROW + 4 * quad));
}

// Scores of the new rows with the chunk's rows, and with the block's rows before them; and norms of the new rows. A
// warp has 8 rows of the chunk, four lanes each: lanes r, r + 8, r + 16 and r + 24 have row r.
QN_DEVICE void compute_scores(open_smem &m, const open_block &b)
{
    open_scores &scores = scores_in(m);
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, t = lane_id() / 8, n_stored = round_up_8(b.stored);
    if (WARPS - 1 - warp < b.rows) {
        const uint32_t row = WARPS - 1 - warp;
        const qn_delta_qk_norms norms = qn_delta_compute_qk_norms<QN_HEAD_K>(m.q[row], m.k[row], true);
        if (lane_id() == 0)
            m.norms[row] = norms;
    }
    for (uint32_t first = warp * 8; first < n_stored + (b.rows > 1 ? 8 : 0); first += WARPS * 8) {
        const bool is_stored = first < n_stored;
        const uint32_t j = is_stored ? first + lane_id() % 8 : lane_id() % 8;
        const uint32_t of = is_stored || j < b.rows ? j : 0;
        float decay = is_stored ? m.since[j] : 0.0f;
        // Of the four lanes with a row, lane t stores the scores for the values of group t.
        const float factor = !is_stored ? 1.0f : t < GROUPS ? m.scales[t][j] : 0.0f;
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
            k_dot = qn_lanes_sum<8, QN_WARP_SIZE>(k_dot) * gate;
            q_dot = qn_lanes_sum<8, QN_WARP_SIZE>(q_dot) * gate;
            if (t < GROUPS && is_stored) {
                scores.k[row][t][j] = j < b.stored ? k_dot : 0.0f;
                scores.q[row][t][j] = j < b.stored ? q_dot : 0.0f;
            } else if (t == 0 && j < row) {
                m.k_near[row][j] = k_dot;
                m.q_near[row][j] = q_dot;
            }
        }
    }
}

// Of two adjacent values: a lane's parts of a and b of deltanet.h.
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

// S k and S q of the block's rows, for the lane's two values.
QN_DEVICE void read_state(open_smem &m, const state_rows &s, const open_block &b, uint32_t value)
{
    const uint32_t t = lane_id() % LANES;
    if (value >= QN_HEAD_V) // a whole warp
        return;
#pragma unroll 1
    for (uint32_t row = 0; row < b.rows; row++) {
        value_sums x = {};
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const float4 key = *(const float4 *)(m.k[row] + (i * LANES + t) * 4);
            const float4 query = *(const float4 *)(m.q[row] + (i * LANES + t) * 4);
            const float4 low = hi_quad(s.low[i]), high = hi_quad(s.high[i]);
            x.k_low = qn_delta_dot(low, key, x.k_low);
            x.k_high = qn_delta_dot(high, key, x.k_high);
            x.q_low = qn_delta_dot(low, query, x.q_low);
            x.q_high = qn_delta_dot(high, query, x.q_high);
        }
        const float2 k = make_float2(qn_lanes_sum<1, LANES>(x.k_low), qn_lanes_sum<1, LANES>(x.k_high)),
                     q = make_float2(qn_lanes_sum<1, LANES>(x.q_low), qn_lanes_sum<1, LANES>(x.q_high));
        if (t == 0) {
            *(float2 *)(scores_in(m).state_k[row] + value) = k;
            *(float2 *)(m.o[row] + value) = q;
        }
    }
}

// v' and o of the block's rows, for the lane's two values. A warp needs no other warp's values.
QN_DEVICE void solve_rows(open_smem &m, const open_block &b, uint32_t value, float scale)
{
    const open_scores &scores = scores_in(m);
    const uint32_t t = lane_id() % LANES, group = value / QN_GDN_SCALE_VALUES;
    if (value >= QN_HEAD_V) // a whole warp
        return;
    float decay = m.total;
#pragma unroll 1
    for (uint32_t row = 0; row < b.rows; row++) {
        const qn_delta_qk_norms norms = m.norms[row];
        decay += m.g[row];
        const float factor = t == 0 ? expf(decay) : 0.0f, beta = m.beta[row];
        value_sums x = {};
        add_pair(x, factor, 0, scores.state_k[row][value], scores.state_k[row][value + 1]);
        add_pair(x, 0, factor, m.o[row][value], m.o[row][value + 1]);
#pragma unroll 2
        for (uint32_t j = 2 * t; j < round_up_8(b.stored); j += 8) {
            const float2 k_score = *(const float2 *)(scores.k[row][group] + j);
            const float2 q_score = *(const float2 *)(scores.q[row][group] + j);
            const uint16_t *values = m.values + j * VALUE_ROW + value;
            const uint32_t v0 = load_pair(values), v1 = load_pair(values + VALUE_ROW);
            add_pair(x, k_score.x, q_score.x, qn_f16_low(v0), qn_f16_high(v0));
            add_pair(x, k_score.y, q_score.y, qn_f16_low(v1), qn_f16_high(v1));
        }
        for (uint32_t j = t; j < row; j += LANES) {
            const float k_inv_norm = m.norms[j].k_inv_norm;
            add_pair(x, m.k_near[row][j] * k_inv_norm, m.q_near[row][j] * k_inv_norm, m.v[j][value], m.v[j][value + 1]);
        }
        const float k_low = qn_lanes_sum<1, LANES>(x.k_low) * norms.k_inv_norm,
                    k_high = qn_lanes_sum<1, LANES>(x.k_high) * norms.k_inv_norm,
                    q_low = qn_lanes_sum<1, LANES>(x.q_low) * norms.q_inv_norm,
                    q_high = qn_lanes_sum<1, LANES>(x.q_high) * norms.q_inv_norm;
        if (t == 0) {
            const float low = beta * (m.v[row][value] - k_low), high = beta * (m.v[row][value + 1] - k_high);
            *(float2 *)(m.v[row] + value) = make_float2(low, high);
            *(float2 *)(m.o[row] + value) =
                make_float2(fmaf(norms.kq, low, q_low) * scale, fmaf(norms.kq, high, q_high) * scale);
        }
        __syncwarp();
    }
}

// Gated norm of the block's rows, and the rows as the chunk stores them: in the slot, unless another block may read the
// data that they overwrite; in shared memory, if this block reads them there. The first warps have the values, one
// group each; threads from the last one down have pairs of keys.
template <bool overlapping>
QN_DEVICE void finish_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, const open_block &b, uint32_t z_at)
{
    const uint32_t repeat = a.v_heads / a.k_heads, group = threadIdx.x / QN_WARP_SIZE;
    const uint32_t out_head = a.grouped ? h.k_head * repeat + h.head / a.k_heads : h.head;
    const uint32_t i = 2 * threadIdx.x; // the first of the lane's two values
    const bool to_shared = overlapping || !b.is_last, to_slot = !overlapping;
#pragma unroll 1
    for (uint32_t row = 0; row < b.rows; row++) {
        const uint32_t at = b.stored + row;
        if (group < GROUPS) {
            float squares = 0;
            for (uint32_t x = lane_id(); x < QN_HEAD_V; x += QN_WARP_SIZE)
                squares = fmaf(m.o[row][x], m.o[row][x], squares);
            const float factor = 1.0f / sqrtf(qn_warp_sum(squares) / QN_HEAD_V + a.eps);
            const float2 v = i < QN_HEAD_V ? *(const float2 *)(m.v[row] + i) : make_float2(0, 0);
            const float2 scale = qn_delta_scale_of(qn_warp_max(fmaxf(fabsf(v.x), fabsf(v.y))));
            if (i < QN_HEAD_V) {
                const float2 o = *(const float2 *)(m.o[row] + i), z = *(const float2 *)(m.z[z_at][row] + i);
                float *out = a.out + (size_t)(h.first + b.done + row) * a.out_stride + out_head * QN_HEAD_V + i;
                out[0] = o.x * factor * m.norm[i] * (z.x * qn_sigmoid(z.x));
                out[1] = o.y * factor * m.norm[i + 1] * (z.y * qn_sigmoid(z.y));
                const uint32_t pair = qn_f32_to_f16x2(v.x * scale.y, v.y * scale.y);
                if (to_shared)
                    *(uint32_t *)(m.values + at * VALUE_ROW + i) = pair;
                if (to_slot)
                    *(uint32_t *)(values_of(a, h) + at * QN_HEAD_V + i) = pair;
            }
            if (lane_id() == 0 && to_shared)
                m.scales[group][at] = scale.x;
            if (lane_id() == 0 && to_slot)
                scales_of(a, h)[group * CHUNK + at] = scale.x;
        }
        const float k_inv_norm = m.norms[row].k_inv_norm;
#pragma unroll 1
        for (uint32_t key = 2 * (THREADS - 1 - threadIdx.x); key < QN_HEAD_K; key += 2 * THREADS) {
            const uint32_t pair = qn_f32_to_f16x2(m.k[row][key] * k_inv_norm, m.k[row][key + 1] * k_inv_norm);
            if (to_shared)
                *(uint32_t *)(m.keys + at * KEY_ROW + key) = pair;
            if (to_slot && m.stores_keys)
                *(uint32_t *)(keys_of(a, h) + at * QN_HEAD_K + key) = pair;
        }
#pragma unroll 1
        for (uint32_t j = threadIdx.x; to_shared && j <= at; j += THREADS)
            m.since[j] = j < at ? m.since[j] + m.g[row] : 0.0f;
        if (threadIdx.x == THREADS - 1 && to_shared) {
            m.decays[at] = m.g[row];
            m.total += m.g[row];
        }
        if (threadIdx.x == THREADS - 1 && to_slot)
            decays_of(a, h)[at] = m.g[row];
    }
}

// Stores the inputs before row `row` of the launch with the state there: of the head's values, and of its key head if
// `stores_keys`. A thread has the same channels as in store_chunk, which overwrites inputs, and rows in ascending
// order: both states may be in the same slot.
QN_DEVICE void store_history(const qn_gdn_open_args &a, const open_head &h, uint32_t row, bool stores_keys)
{
    const uint32_t width = width_of(a);
#pragma unroll 1
    for (uint32_t i = 0; i < a.taps - 1; i++) {
        const int32_t at = (int32_t)(row + i) - (int32_t)(a.taps - 1);
        const float *input = at >= 0 ? a.qkv + (size_t)(h.first + at) * a.qkv_stride : past_input(a, h, -at);
        float *to = (float *)(h.to + history_of(a)) + i * width;
#pragma unroll 1
        for (uint32_t c = threadIdx.x + (stores_keys ? 0 : 2 * QN_HEAD_K); c < CHANNELS; c += THREADS)
            to[channel_of(a, h, c)] = (int32_t)h.position + at >= 0 ? input[channel_of(a, h, c)] : 0.0f;
    }
}

// Stores the rows that finish_rows and prepare_rows did not store: in the open slot the launch's rows that are in the
// chunk at its end, and the last inputs; the history of a state that was folded. Those of key heads are stored by the
// block that arrived last: then all blocks with this key head have read the rows and inputs that are overwritten.
QN_DEVICE void store_chunk(const open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t stored)
{
    const uint32_t rows = h.n < stored ? h.n : stored, begin = stored - rows, width = width_of(a);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * (QN_HEAD_V / 8); i += THREADS) {
        const uint32_t row = begin + i / (QN_HEAD_V / 8), column = i % (QN_HEAD_V / 8) * 8;
        *(uint4 *)(values_of(a, h) + row * QN_HEAD_V + column) = *(const uint4 *)(m.values + row * VALUE_ROW + column);
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; m.stores_keys && i < rows * (QN_HEAD_K / 8); i += THREADS) {
        const uint32_t row = begin + i / (QN_HEAD_K / 8), column = i % (QN_HEAD_K / 8) * 8;
        *(uint4 *)(keys_of(a, h) + row * QN_HEAD_K + column) = *(const uint4 *)(m.keys + row * KEY_ROW + column);
    }
#pragma unroll 1
    for (uint32_t row = begin + threadIdx.x; row < stored; row += THREADS) {
        decays_of(a, h)[row] = m.decays[row];
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
            scales_of(a, h)[group * CHUNK + row] = m.scales[group][row];
    }
    const uint32_t ring = QN_GDN_INPUT_ROWS(a.taps);
    if (open_rows(h) + h.n > stored) // a chunk was folded, the last one before the rows that are stored
        store_history(a, h, h.n - stored, m.stores_keys);
#pragma unroll 1
    for (uint32_t row = h.n < ring ? 0 : h.n - ring; row < h.n; row++) {
        const float *input = a.qkv + (size_t)(h.first + row) * a.qkv_stride;
        float *to = inputs_of(a, h) + (size_t)((h.position + row) % ring) * width;
#pragma unroll 1
        for (uint32_t i = threadIdx.x + (m.stores_keys ? 0 : 2 * QN_HEAD_K); i < CHANNELS; i += THREADS)
            to[channel_of(a, h, i)] = input[channel_of(a, h, i)];
    }
    if (m.stores_keys && threadIdx.x == 0)
        a.arrivals[h.sequence * a.k_heads + h.k_head] = 0;
}

// Called by one thread of each block with the key head, after the block has read the data that is to be overwritten.
// Returns whether its block is the last.
QN_DEVICE bool arrive(const qn_gdn_open_args &a, const open_head &h)
{
    __threadfence();
    return atomicAdd(a.arrivals + h.sequence * a.k_heads + h.k_head, 1) == a.v_heads / a.k_heads - 1;
}

// The fold of n rows, from one state slot to the other. s: hi of the last values.
QN_DEVICE void fold_state(state_rows &s, const open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        folded_rows rows;
        load_folded(rows, h, plane_of(a), value_of(pass));
        fold(rows, m, n, value_of(pass));
        store_folded(s, rows, h, plane_of(a), value_of(pass));
    }
}

// Folds the full chunk and stores the state, where the next rows find it.
QN_DEVICE void fold_chunk(open_smem &m, const qn_gdn_open_args &a, open_head &head, state_rows &s)
{
    const open_head h = head;
    fold_state(s, m, a, h, CHUNK);
    __syncthreads(); // all warps have read the chunk
    if (threadIdx.x == 0) {
        m.total = 0;
        head.from = h.to;
        head.has_state = true;
    }
}

// Processes a block of rows up to v' and o. next: the item whose state is loaded after the last use of this one's.
template <bool overlapping>
QN_DEVICE void process_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &head, const open_block &b, state_rows &s,
                            const open_head &next)
{
    prepare_rows<overlapping>(m, a, head, b);
    __syncthreads();
    const open_head h = head;
    if ((b.is_last || !overlapping) && threadIdx.x == THREADS - 1)
        m.stores_keys = overlapping ? arrive(a, h) : h.head < a.k_heads;
    compute_scores(m, b);
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        if (PASSES > 1)
            load_state(s, h, pass);
        read_state(m, s, b, value_of(pass));
    }
    if (PASSES == 1 && !overlapping && b.is_last)
        load_state(s, next, 0);
    __syncthreads();
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++)
        solve_rows(m, b, value_of(pass), a.scale);
    __syncthreads();
}

// What does not depend on the previous kernel.
QN_DEVICE void load_stored(open_smem &m, const qn_gdn_open_args &a, const open_head &h)
{
    load_chunk(m, a, h, open_rows(h), h.n);
    load_past_inputs(m, a, h, 0);
}

QN_DEVICE void load_first_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t z)
{
    load_new_inputs(m, a, h, 0, next_block(h, 0, open_rows(h)).rows, z);
}

QN_DEVICE void load_next_rows(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t done, uint32_t stored,
                              uint32_t z)
{
    load_past_inputs(m, a, h, done);
    load_new_inputs(m, a, h, done, next_block(h, done, stored).rows, z);
}

// Processes item `own` of m.heads. The loads of the next item, or of the next block of rows, are issued as soon as the
// data that they replace has been read.
QN_DEVICE void process_short(open_smem &m, const qn_gdn_open_args &a, state_rows &s, uint32_t item, uint32_t own, uint32_t &z)
{
    const uint32_t n = m.heads[own].n, next = item + gridDim.x;
    uint32_t stored = open_rows(m.heads[own]), done = 0;
    do {
        qn_cp_async_wait<0>();
        __syncthreads();
        if (done == 0 && threadIdx.x / QN_WARP_SIZE == WARPS - 1)
            sum_decays(m);
        if (done == 0 && threadIdx.x == THREADS - 2 * QN_WARP_SIZE) // in a warp with few channels
            m.heads[own ^ 1] = next < a.sequences * a.v_heads ? locate_short(a, next, m.indices[own ^ 1]) : open_head();
        const open_block b = next_block(m.heads[own], done, stored);
        process_rows<false>(m, a, m.heads[own], b, s, m.heads[own ^ 1]);
        done += b.rows;
        stored += b.rows;
        if (!b.is_last) {
            load_next_rows(m, a, m.heads[own], done, stored, z ^ 1);
        } else if (next < a.sequences * a.v_heads) {
            load_stored(m, a, m.heads[own ^ 1]);
            load_first_rows(m, a, m.heads[own ^ 1], z ^ 1);
            load_indices(m.indices[own], a, next + gridDim.x);
        }
        qn_cp_async_commit();
        finish_rows<false>(m, a, m.heads[own], b, z);
        z ^= 1;
    } while (done < n);
}

// Processes an item whose rows overlap, by itself.
QN_DEVICE void process_long(open_smem &m, const qn_gdn_open_args &a, state_rows &s, uint32_t item)
{
    const open_head h = locate(a, item, read_indices(a, item / a.v_heads));
    uint32_t stored = open_rows(h), z = 0;
    if (PASSES == 1 && stored < CHUNK) // a fold loads both planes
        load_state(s, h, 0);
    load_stored(m, a, h);
    qn_pdl_wait();
    load_first_rows(m, a, h, z);
    if (threadIdx.x == 0)
        m.heads[0] = h;
    for (uint32_t done = 0; done < h.n; z ^= 1) {
        qn_cp_async_commit();
        qn_cp_async_wait<0>();
        __syncthreads();
        if (done == 0 && threadIdx.x / QN_WARP_SIZE == WARPS - 1)
            sum_decays(m);
        if (stored == CHUNK) {
            __syncthreads();
            fold_chunk(m, a, m.heads[0], s);
        }
        const open_block b = next_block(m.heads[0], done, stored);
        process_rows<true>(m, a, m.heads[0], b, s, m.heads[0]);
        done += b.rows;
        stored = b.stored + b.rows;
        if (!b.is_last)
            load_next_rows(m, a, m.heads[0], done, stored, z ^ 1);
        finish_rows<true>(m, a, m.heads[0], b, z);
    }
    __syncthreads();
    store_chunk(m, a, m.heads[0], stored);
    __syncthreads();
}

// Grid: blocks that are on the SMs at the same time. Items that fold are processed before the others: if a fold in the
// pipeline's loop could follow the loads of a state, the compiler would have all items wait for these before the branch
// to it.
extern "C" __global__ void __launch_bounds__(THREADS, QN_GDN_OPEN_SM_BLOCKS(QN_HEAD_K, QN_HEAD_V))
    qn_gdn_open_step(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    open_smem &m = *(open_smem *)shared;
    const uint32_t items = a.sequences * a.v_heads;
    state_rows s;
    for (uint32_t i = threadIdx.x; i < QN_HEAD_V; i += THREADS)
        m.norm[i] = a.norm[i];
#pragma unroll 1
    for (uint32_t first = blockIdx.x; first < items; first += gridDim.x * QN_WARP_SIZE) { // a lane has an item
        const uint32_t item = first + lane_id() * gridDim.x;
        const bool is_long = item < items && overlaps(read_indices(a, item / a.v_heads));
#pragma unroll 1
        for (uint32_t left = __ballot_sync(QN_FULL_MASK, is_long); left; left &= left - 1)
            process_long(m, a, s, first + (__ffs(left) - 1) * gridDim.x);
    }
    {
        const open_head h = locate_short(a, blockIdx.x, read_indices(a, blockIdx.x / a.v_heads));
        if (PASSES == 1)
            load_state(s, h, 0);
        load_stored(m, a, h);
        load_indices(m.indices[1], a, blockIdx.x + gridDim.x);
        qn_pdl_wait();
        qn_pdl_trigger();
        load_first_rows(m, a, h, 0);
        qn_cp_async_commit();
        if (threadIdx.x == 0)
            m.heads[0] = h;
        __syncthreads();
    }
    uint32_t z = 0, own = 0; // of m.z; of m.heads and m.indices
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x, own ^= 1)
        process_short(m, a, s, item, own, z);
}

// Grid: value heads of sequences (x), layers (y).
extern "C" __global__ void __launch_bounds__(THREADS, QN_GDN_OPEN_SM_BLOCKS(QN_HEAD_K, QN_HEAD_V))
    qn_gdn_open_fold(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    open_smem &m = *(open_smem *)shared;
    qn_pdl_wait();
    qn_pdl_trigger();
    open_head h = locate(a, blockIdx.x, read_indices(a, blockIdx.x / a.v_heads));
    const uint32_t stored = open_rows(h);
    const size_t layer = blockIdx.y * (history_of(a) + (a.taps - 1) * width_of(a) * sizeof(float));
    h.from += layer;
    h.to += layer;
    h.open += blockIdx.y * a.layout.bytes;
    store_history(a, h, 0, h.head < a.k_heads);
    state_rows s;
    load_chunk(m, a, h, stored, 0);
    qn_cp_async_commit();
    qn_cp_async_wait<0>();
    __syncthreads();
    if (threadIdx.x / QN_WARP_SIZE == WARPS - 1)
        sum_decays(m);
    __syncthreads();
    fold_state(s, m, a, h, stored);
}
