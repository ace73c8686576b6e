// Gated DeltaNet for decode of many sequences, one row each: qn_gdn_open_row of deltanet_cuda.h. Nothing is folded: the caller
// folds full chunks before the launch.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. A block has one value head of a sequence. It is bound by reading the state: bulk
// copies bring it to shared memory, while the block computes what does not depend on it. The open chunk's keys and values are
// loaded to registers, in the order in which they are used. Three blocks on an SM overlap the loads of one with the work of others.
//
// No block reads what another one writes: the new key, its inputs of the convolution and the new value are in no row that
// the launch reads. A block stores those of its value head; the first value head of a key head also the key's.
#include "kernels/deltanet/open_chunk.cuh"
#include "kernels/mbarrier.cuh"

enum {
    ROW_THREADS = QN_GDN_ROW_THREADS,
    ROW_WARPS = ROW_THREADS / QN_WARP_SIZE,
    PARTS = QN_GDN_ROW_PARTS,                   /* of the state, copied one by one */
    PART_VALUES = QN_HEAD_V / PARTS,            /* rows of the state in a part */
    WARP_ROWS = QN_HEAD_V / ROW_WARPS,          /* rows of the state that a warp reads */
    PART_ROWS = WARP_ROWS / PARTS,
    KEY_LANES = ROW_THREADS / CHUNK,            /* threads of a row of the chunk's keys */
    KEY_PIECES = QN_HEAD_K / 8 / KEY_LANES,     /* of eight keys, of a thread */
    VALUE_SLICES = ROW_THREADS / (QN_HEAD_V / 2), /* threads of a pair of values; each has every VALUE_SLICES-th row */
    SLICE_ROWS = CHUNK / VALUE_SLICES,
    OWN_CHANNELS = (CHANNELS + ROW_THREADS - 1) / ROW_THREADS
};

static_assert(QN_HEAD_K == 4 * QN_WARP_SIZE, "a warp reads a row of the state at a time");
static_assert(2 * WARP_ROWS == QN_WARP_SIZE, "a lane gets one of a warp's sums");

struct row_smem {
    __align__(128) float state[QN_HEAD_V * QN_HEAD_K];
    __align__(16) float channels[CHANNELS]; // q, k, v after the convolution, not normalised
    float state_k[QN_HEAD_V], state_q[QN_HEAD_V];
    float scores_k[GROUPS][CHUNK], scores_q[GROUPS][CHUNK]; // gated, and for scaled values
    float2 sums[VALUE_SLICES][QN_HEAD_V];                   // of a value: with the key's scores, with the query's
    float since[CHUNK], total;
    float squares[ROW_WARPS], largest[ROW_WARPS];
    qn_delta_qk_norms norms;
    float g, beta;
    __align__(8) uint64_t arrived[PARTS];
};

static_assert(sizeof(row_smem) <= QN_GDN_ROW_BYTES(QN_HEAD_K, QN_HEAD_V), "the launch's shared memory");

// ---- The state ----

#if __CUDA_ARCH__ >= 900

QN_DEVICE void copy_part(uint32_t to, const float *from, uint32_t bytes, uint32_t mbarrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(mbarrier)
                 : "memory");
}

#endif

// Issues the loads of the state; zeros if there is none.
QN_DEVICE void load_state(row_smem &m, const open_head &h)
{
    if (!h.has_state) {
        for (uint32_t i = threadIdx.x; i < QN_HEAD_V * QN_HEAD_K / 4; i += ROW_THREADS)
            ((float4 *)m.state)[i] = make_float4(0, 0, 0, 0);
        return;
    }
#if __CUDA_ARCH__ >= 900
    const uint32_t barriers = qn_shared_address(m.arrived), bytes = PART_VALUES * QN_HEAD_K * sizeof(float);
    if (threadIdx.x == 0)
        for (uint32_t part = 0; part < PARTS; part++)
            copy_part(qn_shared_address(m.state) + part * bytes, h.from + part * PART_VALUES * QN_HEAD_K, bytes,
                      barriers + 8 * part);
#else
    for (uint32_t i = threadIdx.x; i < QN_HEAD_V * QN_HEAD_K / 4; i += ROW_THREADS)
        qn_cp_async_16(m.state + 4 * i, h.from + 4 * i, 16);
    qn_cp_async_commit();
#endif
}

QN_DEVICE void wait_for_part(row_smem &m, const open_head &h, uint32_t part)
{
#if __CUDA_ARCH__ >= 900
    if (h.has_state)
        qn_mbarrier_wait(qn_shared_address(m.arrived) + 8 * part, 0);
#else
    if (part == 0) {
        qn_cp_async_wait<0>();
        __syncthreads();
    }
#endif
}

// One step of transposed_sum: lanes that differ in `half` exchange halves.
template <uint32_t half> QN_DEVICE void exchange_halves(float *x)
{
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (uint32_t i = 0; i < half; i++) {
        const float keep = upper ? x[i + half] : x[i], give = upper ? x[i] : x[i + half];
        x[i] = keep + __shfl_xor_sync(QN_FULL_MASK, give, half);
    }
}

// Sums of 32 numbers a lane over the lanes: lane i gets the sum of number i.
QN_DEVICE float transposed_sum(float (&x)[QN_WARP_SIZE])
{
    exchange_halves<16>(x);
    exchange_halves<8>(x);
    exchange_halves<4>(x);
    exchange_halves<2>(x);
    exchange_halves<1>(x);
    return x[0];
}

// S k and S q, for q and k that are not normalised. A warp has PART_ROWS rows of each part.
QN_DEVICE void read_state(row_smem &m, const open_head &h)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    const float4 q = *(const float4 *)(m.channels + 4 * lane), k = *(const float4 *)(m.channels + QN_HEAD_K + 4 * lane);
    float sums[QN_WARP_SIZE]; // S k of row i is number 2 i, S q the next
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++) {
        wait_for_part(m, h, part);
#pragma unroll
        for (uint32_t i = 0; i < PART_ROWS; i++) {
            const float4 s =
                *(const float4 *)(m.state + (part * PART_VALUES + warp * PART_ROWS + i) * QN_HEAD_K + 4 * lane);
            sums[2 * (part * PART_ROWS + i)] = qn_delta_dot(s, k, 0);
            sums[2 * (part * PART_ROWS + i) + 1] = qn_delta_dot(s, q, 0);
        }
    }
    const float sum = transposed_sum(sums);
    const uint32_t row = lane / 2 / PART_ROWS * PART_VALUES + warp * PART_ROWS + lane / 2 % PART_ROWS;
    (lane % 2 ? m.state_q : m.state_k)[row] = sum;
}

// ---- The open chunk ----

// A thread's parts of the chunk.
struct chunk_registers {
    uint4 keys[KEY_PIECES];      // of row threadIdx.x / KEY_LANES
    uint32_t values[SLICE_ROWS]; // pairs of values of rows slice, slice + VALUE_SLICES, ...
};

// The piece of eight keys that a thread reads as its number i.
QN_DEVICE uint32_t key_piece(uint32_t i)
{
    return i * KEY_LANES + threadIdx.x % KEY_LANES;
}

QN_DEVICE void load_chunk_registers(chunk_registers &c, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    const uint32_t row = threadIdx.x / KEY_LANES, pair = threadIdx.x % (QN_HEAD_V / 2), slice = threadIdx.x / (QN_HEAD_V / 2);
    const uint16_t *keys = keys_of(a, h) + row * QN_HEAD_K, *values = values_of(a, h) + 2 * pair;
#pragma unroll
    for (uint32_t i = 0; i < KEY_PIECES; i++)
        c.keys[i] = row < n ? *(const uint4 *)(keys + 8 * key_piece(i)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < SLICE_ROWS; i++) {
        const uint32_t j = slice + i * VALUE_SLICES;
        c.values[i] = j < n ? *(const uint32_t *)(values + j * QN_HEAD_V) : 0;
    }
}

// Sums of log decays from each row of the chunk to its end; by the first warp.
QN_DEVICE void load_decays(row_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    const uint32_t lane = threadIdx.x, row = 2 * lane;
    const float *decays = decays_of(a, h), first = row < n ? decays[row] : 0.0f, last = row + 1 < n ? decays[row + 1] : 0.0f;
    float sum = first + last;
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const float after = __shfl_down_sync(QN_FULL_MASK, sum, distance);
        if (lane + distance < QN_WARP_SIZE)
            sum += after;
    }
    const float after = __shfl_down_sync(QN_FULL_MASK, sum, 1);
    m.since[row + 1] = lane + 1 < QN_WARP_SIZE ? after : 0.0f;
    m.since[row] = m.since[row + 1] + last;
    if (lane == 0)
        m.total = sum;
}

QN_DEVICE void add_dots(uint32_t pair, const float *k, const float *q, float &k_dot, float &q_dot)
{
    const float low = qn_f16_low(pair), high = qn_f16_high(pair);
    k_dot = fmaf(high, k[1], fmaf(low, k[0], k_dot));
    q_dot = fmaf(high, q[1], fmaf(low, q[0], q_dot));
}

// Scores of the new key and query with the chunk's keys. KEY_LANES adjacent threads have a row.
QN_DEVICE void compute_scores(row_smem &m, const chunk_registers &c, uint32_t n, const float (&scales)[GROUPS])
{
    const uint32_t row = threadIdx.x / KEY_LANES;
    float k_dot = 0, q_dot = 0;
#pragma unroll
    for (uint32_t i = 0; i < KEY_PIECES; i++) {
        const float4 *q = (const float4 *)(m.channels + 8 * key_piece(i)), *k = q + QN_HEAD_K / 4;
        const float4 qs[2] = { q[0], q[1] }, ks[2] = { k[0], k[1] };
        add_dots(c.keys[i].x, &ks[0].x, &qs[0].x, k_dot, q_dot);
        add_dots(c.keys[i].y, &ks[0].z, &qs[0].z, k_dot, q_dot);
        add_dots(c.keys[i].z, &ks[1].x, &qs[1].x, k_dot, q_dot);
        add_dots(c.keys[i].w, &ks[1].z, &qs[1].z, k_dot, q_dot);
    }
    k_dot = qn_lanes_sum<1, KEY_LANES>(k_dot);
    q_dot = qn_lanes_sum<1, KEY_LANES>(q_dot);
    if (threadIdx.x % KEY_LANES)
        return;
    const float gate = row < n ? expf(m.since[row] + m.g) : 0.0f;
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; group++) {
        m.scores_k[group][row] = k_dot * (gate * scales[group]);
        m.scores_q[group][row] = q_dot * (gate * scales[group]);
    }
}

// Sums of the chunk's values with the scores, of a pair of values and a slice of the rows.
QN_DEVICE void add_values(row_smem &m, const chunk_registers &c, uint32_t n)
{
    const uint32_t value = threadIdx.x % (QN_HEAD_V / 2) * 2, slice = threadIdx.x / (QN_HEAD_V / 2),
                   group = value / QN_GDN_SCALE_VALUES;
    float2 low = make_float2(0, 0), high = low;
#pragma unroll
    for (uint32_t i = 0; i < SLICE_ROWS; i++) {
        const uint32_t j = slice + i * VALUE_SLICES;
        if (j >= n) // all threads of a warp
            break;
        const float k = m.scores_k[group][j], q = m.scores_q[group][j];
        const float v0 = qn_f16_low(c.values[i]), v1 = qn_f16_high(c.values[i]);
        low = make_float2(fmaf(k, v0, low.x), fmaf(q, v0, low.y));
        high = make_float2(fmaf(k, v1, high.x), fmaf(q, v1, high.y));
    }
    m.sums[slice][value] = low;
    m.sums[slice][value + 1] = high;
}

// ---- The new row ----

// What a thread has of the convolution before the previous kernel has ended: sums over earlier inputs.
struct own_channels {
    float sum[OWN_CHANNELS], weight[OWN_CHANNELS];
};

QN_DEVICE void begin_convolution(own_channels &x, const qn_gdn_open_args &a, const open_head &h)
{
#pragma unroll
    for (uint32_t i = 0; i < OWN_CHANNELS; i++) {
        const uint32_t c = threadIdx.x + i * ROW_THREADS;
        x.sum[i] = x.weight[i] = 0;
        if (c >= CHANNELS)
            continue;
        const uint32_t channel = channel_of(a, h, c);
        for (uint32_t tap = 0; tap + 1 < a.taps; tap++) {
            const uint32_t back = a.taps - 1 - tap;
            if (back <= h.position)
                x.sum[i] = fmaf(a.conv[tap * width_of(a) + channel], past_input(a, h, back)[channel], x.sum[i]);
        }
        x.weight[i] = a.conv[(a.taps - 1) * width_of(a) + channel];
    }
}

QN_DEVICE void finish_convolution(row_smem &m, const own_channels &x, const qn_gdn_open_args &a, const open_head &h)
{
    float *inputs = inputs_of(a, h) + (size_t)(h.position % QN_GDN_INPUT_ROWS(a.taps)) * width_of(a);
#pragma unroll
    for (uint32_t i = 0; i < OWN_CHANNELS; i++) {
        const uint32_t c = threadIdx.x + i * ROW_THREADS;
        if (c >= CHANNELS)
            continue;
        const uint32_t channel = channel_of(a, h, c);
        const float input = a.qkv[(size_t)h.first * a.qkv_stride + channel], sum = fmaf(x.weight[i], input, x.sum[i]);
        m.channels[c] = sum * qn_sigmoid(sum);
        if (c >= 2 * QN_HEAD_K || h.head < a.k_heads)
            inputs[channel] = input;
    }
}

QN_DEVICE void store_key(const row_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t row)
{
    const uint32_t i = 2 * (ROW_THREADS - 1 - threadIdx.x);
    const float *k = m.channels + QN_HEAD_K;
    if (i < QN_HEAD_K && h.head < a.k_heads)
        *(uint32_t *)(keys_of(a, h) + row * QN_HEAD_K + i) =
            qn_f32_to_f16x2(k[i] * m.norms.k_inv_norm, k[i + 1] * m.norms.k_inv_norm);
    if (i == 0)
        decays_of(a, h)[row] = m.g;
}

// v', o, and the gated norm; a thread has a value. z: its gate.
QN_DEVICE void finish_row(row_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t row, float z)
{
    const uint32_t value = threadIdx.x, warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t repeat = a.v_heads / a.k_heads,
                   out_head = a.grouped ? h.k_head * repeat + h.head / a.k_heads : h.head;
    float v = 0, o = 0;
    if (value < QN_HEAD_V) {
        const float decay = expf(m.total + m.g);
        float k_sum = decay * m.state_k[value], q_sum = decay * m.state_q[value];
#pragma unroll
        for (uint32_t slice = 0; slice < VALUE_SLICES; slice++) {
            k_sum += m.sums[slice][value].x;
            q_sum += m.sums[slice][value].y;
        }
        v = m.beta * (m.channels[2 * QN_HEAD_K + value] - k_sum * m.norms.k_inv_norm);
        o = fmaf(m.norms.kq, v, q_sum * m.norms.q_inv_norm) * a.scale;
        const float squares = qn_warp_sum(o * o), largest = qn_warp_max(fabsf(v));
        if (lane == 0) {
            m.squares[warp] = squares;
            m.largest[warp] = largest;
        }
    }
    __syncthreads();
    if (value >= QN_HEAD_V)
        return;
    float squares = 0, largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < QN_HEAD_V / QN_WARP_SIZE; i++) {
        squares += m.squares[i];
        if (i * QN_WARP_SIZE / QN_GDN_SCALE_VALUES == value / QN_GDN_SCALE_VALUES)
            largest = fmaxf(largest, m.largest[i]);
    }
    const float factor = 1.0f / sqrtf(squares / QN_HEAD_V + a.eps);
    a.out[(size_t)h.first * a.out_stride + out_head * QN_HEAD_V + value] =
        o * factor * a.norm[value] * (z * qn_sigmoid(z));
    const float2 scale = qn_delta_scale_of(largest);
    values_of(a, h)[row * QN_HEAD_V + value] = qn_f32_to_f16(v * scale.y);
    if (value % QN_GDN_SCALE_VALUES == 0)
        scales_of(a, h)[value / QN_GDN_SCALE_VALUES * CHUNK + row] = scale.x;
}

// Grid: value heads (x), sequences (y).
extern "C" __global__ void __launch_bounds__(ROW_THREADS, QN_GDN_ROW_SM_BLOCKS)
    qn_gdn_open_row(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    row_smem &m = *(row_smem *)shared;
    const qn_gdn_open_sequence x = read_indices(a, blockIdx.y);
    qn_pdl_trigger();
    if (x.begin == x.end)
        return;
    const open_head h = locate(a, blockIdx.y * a.v_heads + blockIdx.x, x);
    const uint32_t n = open_rows(h);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        for (uint32_t part = 0; part < PARTS; part++)
            qn_mbarrier_init(qn_shared_address(m.arrived) + 8 * part, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
    load_state(m, h);
    chunk_registers chunk;
    own_channels channels;
    float scales[GROUPS];
    load_chunk_registers(chunk, a, h, n);
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; group++)
        scales[group] = threadIdx.x / KEY_LANES < n ? scales_of(a, h)[group * CHUNK + threadIdx.x / KEY_LANES] : 0.0f;
    begin_convolution(channels, a, h);
    if (threadIdx.x < QN_WARP_SIZE)
        load_decays(m, a, h, n);
    qn_pdl_wait();
    finish_convolution(m, channels, a, h);
    if (threadIdx.x == ROW_THREADS - 1) {
        const size_t row = h.first;
        m.g = fminf(qn_delta_log_decay(a.alpha[row * a.alpha_stride + h.head], a.bias[h.head], a.factor[h.head]), 0.0f);
        m.beta = qn_sigmoid(a.beta[row * a.beta_stride + h.head]);
    }
    const float z =
        threadIdx.x < QN_HEAD_V ? a.gate[(size_t)h.first * a.gate_stride + h.head * QN_HEAD_V + threadIdx.x] : 0.0f;
    __syncthreads();
    if (threadIdx.x / QN_WARP_SIZE == ROW_WARPS - 1) {
        const qn_delta_qk_norms norms = qn_delta_compute_qk_norms<QN_HEAD_K>(m.channels, m.channels + QN_HEAD_K, true);
        if (threadIdx.x % QN_WARP_SIZE == 0)
            m.norms = norms;
    }
    compute_scores(m, chunk, n, scales);
    __syncthreads();
    add_values(m, chunk, n);
    store_key(m, a, h, n);
    read_state(m, h);
    __syncthreads();
    finish_row(m, a, h, n, z);
}
