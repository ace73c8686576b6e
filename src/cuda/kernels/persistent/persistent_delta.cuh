// A Gated DeltaNet layer in the persistent decode kernel: the phase that applies convolution, gates and delta rule to
// one token (QN_PHASE_DELTA); the prologue of the output's GEMV, which normalises and gates the heads
// (QN_PROLOGUE_GATED_NORM); and the few rows with fp16 weights (alpha, beta) that a GEMV of 1- or 2-bit weights
// computes in addition. persistent.h has the interface; grid barriers are in persistent.cu.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_DELTA_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_DELTA_CUH

#include "cuda/kernels/persistent/persistent.cuh"
#include "cuda/kernels/delta.cuh"
#include "cuda/kernels/deltanet/state_planes.cuh"

// ---- The delta rule, over the state and the open chunk (deltanet.h) ----

// A unit is the values of one scale, 64 of a head, or with several rows a head's 128: as many rows of the state by 128
// keys, and its part of the 64 rows of the open chunk. (The blocks outnumber the heads of one row; two rows would need
// two units of half a head in a block, and the time of both.) Eight lanes hold a row of the state of each scale, and the
// key of a row of the chunk: a block holds both in registers.
#define DELTA_HEAD_DIM 128
#define DELTA_SCALES (KERNEL_ROWS > 1 ? 2 : 1) // of a unit's values
#define DELTA_HEAD_UNITS (2 / DELTA_SCALES)
#define DELTA_VALUES (64 * DELTA_SCALES)
#define DELTA_LANES 8
#define DELTA_VECS (DELTA_HEAD_DIM / (4 * DELTA_LANES))
#define DELTA_CHANNELS (2 * DELTA_HEAD_DIM + DELTA_VALUES) // channels that a unit convolves: its query, key and values
// of values in shared memory: eight rows are free of bank conflicts
#define DELTA_VALUE_ROW (DELTA_VALUES + 8)

static_assert(QN_GDN_SCALE_VALUES * DELTA_LANES == QN_PERSISTENT_THREADS, "the values of a scale occupy a block");
static_assert(QN_GDN_SCALE_VALUES == QN_GDN_CHUNK, "eight lanes have a row of the state and a row of the chunk");

struct delta_shared {
    __align__(16) uint16_t values[QN_GDN_CHUNK * DELTA_VALUE_ROW]; // v' of the chunk's rows, scaled
    __align__(16) float inputs[DELTA_CHANNELS];                           // q, k, v after the convolution
    // of the row's key and query, gated, for scaled values
    float2 scores[DELTA_SCALES][QN_GDN_CHUNK];
    // decay since the row, times the scale of its values
    float factors[DELTA_SCALES][QN_GDN_CHUNK];
    __align__(16) float v_new[DELTA_VALUES];                              // v' of the new row
    float sumsq[2 * DELTA_HEAD_DIM / QN_WARP_SIZE];                       // of q and k, one for each warp
    float g, decay, beta;                                                 // of the new row; decay = e^g
    float state_decay;                                                    // since the state, before the new row
};

static_assert(sizeof(delta_shared) <= QN_PERSISTENT_SCRATCH_BYTES(1), "QN_PERSISTENT_SCRATCH_BYTES is too small");

// Roles of warps before the first block barrier: a thread for each channel of the convolution, then a warp for each
// gate, and one for the decays of the chunk. After the phase, two warps store the new row.
enum {
    DELTA_DECAY_WARP = DELTA_CHANNELS / QN_WARP_SIZE,
    DELTA_BETA_WARP,
    DELTA_CHUNK_WARP,
    DELTA_STORE_VALUES_WARP = 8, // neither of these has a role at grid barriers
    DELTA_STORE_KEY_WARP
};

static_assert((DELTA_CHUNK_WARP + 1) * QN_WARP_SIZE <= QN_PERSISTENT_THREADS, "a warp for each role");

QN_DEVICE uint32_t delta_width(const qn_persistent_delta &s)
{
    return (2 * s.k_heads + s.v_heads) * DELTA_HEAD_DIM;
}

QN_DEVICE uint32_t delta_units(const qn_persistent_delta &s)
{
    return DELTA_HEAD_UNITS * s.v_heads;
}

QN_DEVICE uint32_t delta_k_head(const qn_persistent_delta &s, uint32_t unit)
{
    uint32_t k_head = unit / DELTA_HEAD_UNITS;
    while (k_head >= s.k_heads) // a few iterations: faster than a division
        k_head -= s.k_heads;
    return k_head;
}

// Index of a unit's channel i among all channels: queries, keys, values.
QN_DEVICE uint32_t delta_channel(const qn_persistent_delta &s, uint32_t unit, uint32_t i)
{
    const uint32_t keys = s.k_heads * DELTA_HEAD_DIM, k_head = delta_k_head(s, unit);
    return i < DELTA_HEAD_DIM       ? k_head * DELTA_HEAD_DIM + i
           : i < 2 * DELTA_HEAD_DIM ? keys + k_head * DELTA_HEAD_DIM + i - DELTA_HEAD_DIM
                                    : 2 * keys + unit * DELTA_VALUES + i - 2 * DELTA_HEAD_DIM;
}

// Rows of the open chunk before the new one.
QN_DEVICE uint32_t delta_open_rows(const persistent_sequence &sequence)
{
    return sequence.position - sequence.state_position;
}

// Whether a unit stores the row of its key head, which several units share.
QN_DEVICE bool delta_stores_key(const qn_persistent_delta &s, uint32_t unit)
{
    return unit % DELTA_HEAD_UNITS == 0 && unit / DELTA_HEAD_UNITS < s.k_heads;
}

// From a unit's values on, in the plane hi of the state.
QN_DEVICE const uint16_t *delta_state(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    return (const uint16_t *)(sequence.state + s.state_offset) + unit * (DELTA_VALUES * DELTA_HEAD_DIM);
}

// After both planes.
QN_DEVICE const float *delta_history(const persistent_sequence &sequence, const qn_persistent_delta &s)
{
    return (const float *)(sequence.state + s.state_offset) + s.v_heads * (DELTA_HEAD_DIM * DELTA_HEAD_DIM);
}

QN_DEVICE uint16_t *delta_keys(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    return (uint16_t *)(sequence.open + s.open.keys) + delta_k_head(s, unit) * QN_GDN_CHUNK * DELTA_HEAD_DIM;
}

// Rows of a head, DELTA_HEAD_DIM apart, from the unit's values on.
QN_DEVICE uint16_t *delta_values(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    return (uint16_t *)(sequence.open + s.open.values) + unit / DELTA_HEAD_UNITS * (QN_GDN_CHUNK * DELTA_HEAD_DIM) +
           unit % DELTA_HEAD_UNITS * DELTA_VALUES;
}

QN_DEVICE float *delta_scales(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    return (float *)(sequence.open + s.open.scales) + unit * (DELTA_SCALES * QN_GDN_CHUNK);
}

QN_DEVICE float *delta_decays(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    return (float *)(sequence.open + s.open.decays) + unit / DELTA_HEAD_UNITS * QN_GDN_CHUNK;
}

// The inputs of the convolution at a position, a row of all channels.
QN_DEVICE float *delta_inputs(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t position)
{
    const uint32_t ring = QN_GDN_INPUT_ROWS(s.taps), row = ring & (ring - 1) ? position % ring : position & (ring - 1);
    return (float *)(sequence.open + s.open.inputs) + row * delta_width(s);
}

// The same, `back` positions before the row's position: in the open chunk, or before the state.
QN_DEVICE const float *delta_past_inputs(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t back)
{
    const uint32_t open_rows = delta_open_rows(sequence);
    if (back <= open_rows)
        return delta_inputs(sequence, s, sequence.position - back);
    return delta_history(sequence, s) + (s.taps - 1 + open_rows - back) * delta_width(s);
}

// Prefetches into L2 the inputs of a unit that no phase of this launch writes: state, rows of the chunk,
// convolution weights, past inputs. By the whole block.
QN_DEVICE void delta_prefetch(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit)
{
    const uint32_t i = threadIdx.x;
    if (unit >= delta_units(s))
        return;
    // The two units of a head prefetch half of its rows each.
    const uint32_t rows = delta_open_rows(sequence), half = DELTA_HEAD_UNITS == 2 ? (rows + 1) / 2 : rows,
                   first = unit % DELTA_HEAD_UNITS ? half : 0, row_bytes = DELTA_HEAD_DIM * sizeof(uint16_t),
                   bytes = (unit % DELTA_HEAD_UNITS ? rows - half : half) * row_bytes;
    if (i == DELTA_CHANNELS && sequence.state_position)
        prefetch_bytes(delta_state(sequence, s, unit), DELTA_VALUES * DELTA_HEAD_DIM * sizeof(uint16_t));
    if (i == DELTA_CHANNELS + QN_WARP_SIZE && bytes)
        prefetch_bytes(delta_values(sequence, s, unit / DELTA_HEAD_UNITS * DELTA_HEAD_UNITS) + first * DELTA_HEAD_DIM, bytes);
    if (i == DELTA_CHANNELS + 2 * QN_WARP_SIZE && bytes && unit / DELTA_HEAD_UNITS < s.k_heads)
        prefetch_bytes(delta_keys(sequence, s, unit) + first * DELTA_HEAD_DIM, bytes);
    if (i >= DELTA_CHANNELS)
        return;
    // A warp's 32 channels are 128 bytes, two prefetches of 64: of each tap's weights and of each past input.
    const uint32_t channel = delta_channel(s, unit, i / QN_WARP_SIZE * QN_WARP_SIZE) + i % 2 * 16;
    for (uint32_t tap = i % QN_WARP_SIZE / 4; tap < s.taps; tap += QN_WARP_SIZE / 4) {
        if (i % 4 < 2)
            qn_prefetch_line(s.conv + tap * delta_width(s) + channel);
        else if (tap && tap <= sequence.position)
            qn_prefetch_line(delta_past_inputs(sequence, s, tap) + channel);
    }
}

// Element i of alpha or beta, reduced by a full warp with 32 loads in flight: fp16 rows have one partial for each K
// tile.
QN_DEVICE float delta_gate(const qn_persistent_partials &p, uint32_t i)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    const float *const partials = p.data + (uint64_t)lane * p.stride + i;
    float v = lane < p.n_partials ? load_cg(partials) : 0, sum = 0;
    const float sumsq = rms_sumsq(p);
    for (uint32_t first = 0;;) {
        for (uint32_t begin = 0; begin < QN_WARP_SIZE && first + begin < p.n_partials; begin += 8)
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                sum += __shfl_sync(QN_FULL_MASK, v, begin + k);
        first += QN_WARP_SIZE;
        if (first >= p.n_partials)
            break;
        v = first + lane < p.n_partials ? load_cg(partials + (uint64_t)first * p.stride) : 0;
    }
    return sum * rms_scale(p, sumsq);
}

// A channel's taps for the inputs of `first` down to `last` positions ago; zeros where there are none.
template <uint32_t first, uint32_t last> struct delta_taps {
    float weights[first - last + 1], inputs[first - last + 1];
};

template <uint32_t first, uint32_t last>
QN_DEVICE void delta_issue_taps(delta_taps<first, last> &taps, const persistent_sequence &sequence, const qn_persistent_delta &s,
                                uint32_t channel)
{
#pragma unroll
    for (uint32_t back = first; back >= last; back--) {
        const bool exists = back < s.taps && back <= sequence.position;
        taps.weights[first - back] = exists ? s.conv[(s.taps - 1 - back) * delta_width(s) + channel] : 0;
        taps.inputs[first - back] = exists ? delta_past_inputs(sequence, s, back)[channel] : 0;
    }
}

template <uint32_t first, uint32_t last> QN_DEVICE float delta_add_taps(float sum, const delta_taps<first, last> &taps)
{
#pragma unroll
    for (uint32_t i = 0; i <= first - last; i++)
        sum = fmaf(taps.weights[i], taps.inputs[i], sum);
    return sum;
}

// What a thread loads for its part of a row of the state for each scale; of the key of a row of the chunk, and of the
// values of that row.
struct delta_regs {
    uint2 state[DELTA_SCALES][DELTA_VECS], key[DELTA_VECS];
    uint4 values[DELTA_SCALES];
};

QN_DEVICE void delta_load_state(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit,
                                delta_regs &regs)
{
    const uint32_t value = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES;
    const uint16_t *row = delta_state(sequence, s, unit) + value * DELTA_HEAD_DIM;
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++, row += QN_GDN_SCALE_VALUES * DELTA_HEAD_DIM)
#pragma unroll
        for (int vec = 0; vec < DELTA_VECS; vec++)
            regs.state[h][vec] =
                sequence.state_position ? *(const uint2 *)(row + (vec * DELTA_LANES + lane) * 4) : make_uint2(0, 0);
}

QN_DEVICE void delta_load_chunk(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit,
                                delta_regs &regs)
{
    const uint32_t row = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES;
    const bool exists = row < delta_open_rows(sequence);
    const uint16_t *const key = delta_keys(sequence, s, unit) + row * DELTA_HEAD_DIM,
                   *const values = delta_values(sequence, s, unit) + row * DELTA_HEAD_DIM;
#pragma unroll
    for (int vec = 0; vec < DELTA_VECS; vec++)
        regs.key[vec] = exists ? *(const uint2 *)(key + (vec * DELTA_LANES + lane) * 4) : make_uint2(0, 0);
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++)
        regs.values[h] = exists ? *(const uint4 *)(values + h * QN_GDN_SCALE_VALUES + 8 * lane) : make_uint4(0, 0, 0, 0);
}

// Convolution of a thread's channel. Stores the input in the open chunk. The loads of the chunk's rows are issued after
// the loads of the convolution, whose results are used first.
QN_DEVICE void delta_convolve(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit, delta_shared &m,
                              delta_regs &regs)
{
    const uint32_t i = threadIdx.x, channel = delta_channel(s, unit, i);
    const float *const partials = s.qkv.data + s.qkv_row + channel;
    delta_taps<QN_GDN_MAX_TAPS - 1, 4> far = {};
    delta_taps<3, 1> near;
    float v[QN_PERSISTENT_PARTIAL_LOADS], sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++)
        v[k] = load_cg_if(partials + k * s.qkv.stride, k < s.qkv.n_partials);
    const float sumsq = rms_sumsq(s.qkv), weight = s.conv[(s.taps - 1) * delta_width(s) + channel];
    if (s.taps > 4)
        delta_issue_taps(far, sequence, s, channel);
    delta_issue_taps(near, sequence, s, channel);
    delta_load_chunk(sequence, s, unit, regs);
#pragma unroll
    for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++)
        sum += v[k];
#pragma unroll 1
    for (uint32_t k = QN_PERSISTENT_PARTIAL_LOADS; k < s.qkv.n_partials; k++)
        sum += load_cg(partials + k * s.qkv.stride);
    const float x = sum * rms_scale(s.qkv, sumsq), past = delta_add_taps(delta_add_taps(0, far), near),
                y = qn_silu_fast(fmaf(weight, x, past));
    m.inputs[i] = y;
    if (i < 2 * DELTA_HEAD_DIM) {
        const float square = qn_warp_sum(y * y);
        if (i % QN_WARP_SIZE == 0)
            m.sumsq[i / QN_WARP_SIZE] = square;
    }
    if (i >= 2 * DELTA_HEAD_DIM || delta_stores_key(s, unit))
        delta_inputs(sequence, s, sequence.position)[channel] = x;
}

// Decays of the chunk's rows. They are sums of log decays of one sign. By one warp; a lane has two rows.
QN_DEVICE void delta_chunk_factors(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit,
                                   delta_shared &m)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, row = 2 * lane, rows = delta_open_rows(sequence);
    const float *const decays = delta_decays(sequence, s, unit), *const scales = delta_scales(sequence, s, unit);
    const bool has_first = row < rows, has_second = row + 1 < rows;
    const float first = has_first ? decays[row] : 0, second = has_second ? decays[row + 1] : 0;
    float first_scale[DELTA_SCALES], second_scale[DELTA_SCALES];
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++) {
        first_scale[h] = has_first ? scales[h * QN_GDN_CHUNK + row] : 0;
        second_scale[h] = has_second ? scales[h * QN_GDN_CHUNK + row + 1] : 0;
    }
    float sum = first + second; // of this lane's rows and those after it
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const float after = __shfl_down_sync(QN_FULL_MASK, sum, distance);
        sum += lane + distance < QN_WARP_SIZE ? after : 0;
    }
    float after = __shfl_down_sync(QN_FULL_MASK, sum, 1);
    after = lane + 1 < QN_WARP_SIZE ? after : 0;
    const float first_decay = expf(after + second), second_decay = expf(after);
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++) {
        m.factors[h][row] = first_decay * first_scale[h];
        m.factors[h][row + 1] = second_decay * second_scale[h];
    }
    if (lane == 0)
        m.state_decay = expf(sum);
}

// Everything of a unit up to the first block barrier, after which its results are in shared memory.
QN_DEVICE void delta_prepare(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit, delta_shared &m,
                             delta_regs &regs)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, head = unit / DELTA_HEAD_UNITS;
    delta_load_state(sequence, s, unit, regs);
    if (warp < DELTA_DECAY_WARP) {
        delta_convolve(sequence, s, unit, m, regs);
    } else {
        delta_load_chunk(sequence, s, unit, regs);
        if (warp == DELTA_DECAY_WARP) {
            const float bias = s.bias[head], factor = s.factor[head], alpha = delta_gate(s.alpha, s.alpha_row + head);
            const float g = fminf(qn_delta_log_decay(alpha, bias, factor), 0.0f);
            if (lane == 0) {
                m.g = g;
                m.decay = expf(g);
            }
        } else if (warp == DELTA_BETA_WARP) {
            const float beta = qn_sigmoid_fast(delta_gate(s.beta, s.beta_row + head));
            if (lane == 0)
                m.beta = beta;
        } else if (warp == DELTA_CHUNK_WARP) {
            delta_chunk_factors(sequence, s, unit, m);
        }
    }
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++)
        *(uint4 *)(m.values + threadIdx.x / DELTA_LANES * DELTA_VALUE_ROW + h * QN_GDN_SCALE_VALUES +
                   threadIdx.x % DELTA_LANES * 8) = regs.values[h];
    __syncthreads();
}

// A lane's part of a row of keys, of the state or of the chunk.
QN_DEVICE float4 delta_quad(uint2 x)
{
    return make_float4(qn_f16_low(x.x), qn_f16_high(x.x), qn_f16_low(x.y), qn_f16_high(x.y));
}

// Its part of the dot products with the new key and query, which are not normalised.
QN_DEVICE float2 delta_dots(const delta_shared &m, const uint2 (&row)[DELTA_VECS])
{
    const float *q = m.inputs, *k = q + DELTA_HEAD_DIM;
    float2 dots = make_float2(0, 0);
#pragma unroll
    for (int vec = 0; vec < DELTA_VECS; vec++) {
        const uint32_t at = (vec * DELTA_LANES + threadIdx.x % DELTA_LANES) * 4;
        const float4 x = delta_quad(row[vec]);
        dots.x = qn_delta_dot(x, *(const float4 *)(k + at), dots.x);
        dots.y = qn_delta_dot(x, *(const float4 *)(q + at), dots.y);
    }
    return dots;
}

// The scores of a row of the chunk, gated. Warps without rows have none.
QN_DEVICE void delta_score_row(delta_shared &m, const delta_regs &regs, uint32_t rows)
{
    const uint32_t row = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES;
    if (threadIdx.x / QN_WARP_SIZE * (QN_WARP_SIZE / DELTA_LANES) >= rows)
        return;
    const float2 dots = delta_dots(m, regs.key);
    const float k_dot = qn_lanes_sum<1, DELTA_LANES>(dots.x), q_dot = qn_lanes_sum<1, DELTA_LANES>(dots.y);
    if (lane < DELTA_SCALES) {
        const float factor = m.factors[lane][row] * m.decay;
        m.scores[lane][row] = make_float2(k_dot * factor, q_dot * factor);
    }
}

// One unit, by the whole block: output to s.out, input to the open chunk. The new row is stored later, by
// delta_store_row.
QN_DEVICE void delta_unit(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit, delta_shared &m)
{
    const uint32_t value = threadIdx.x / DELTA_LANES, lane = threadIdx.x % DELTA_LANES, rows = delta_open_rows(sequence);
    delta_regs regs;
    delta_prepare(sequence, s, unit, m, regs);
    if (rows > 0) {
        delta_score_row(m, regs, rows);
        __syncthreads();
    }
    const float *q = m.inputs, *k = q + DELTA_HEAD_DIM, *v = k + DELTA_HEAD_DIM;
    const float4 qq = *(const float4 *)m.sumsq, kk = *(const float4 *)(m.sumsq + DELTA_HEAD_DIM / QN_WARP_SIZE);
    const float q_inv_norm = rsqrtf(qq.x + qq.y + (qq.z + qq.w) + 1e-6f),
                k_inv_norm = rsqrtf(kk.x + kk.y + (kk.z + kk.w) + 1e-6f);
    const float state_decay = m.state_decay * m.decay;
    float kq = 0;
#pragma unroll
    for (int vec = 0; vec < DELTA_VECS; vec++) {
        const uint32_t at = (vec * DELTA_LANES + lane) * 4;
        kq = qn_delta_dot(*(const float4 *)(k + at), *(const float4 *)(q + at), kq);
    }
    kq = qn_lanes_sum<1, DELTA_LANES>(kq) * (q_inv_norm * k_inv_norm);
    float k_read[DELTA_SCALES], q_read[DELTA_SCALES];
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++) {
        const float2 reads = delta_dots(m, regs.state[h]);
        k_read[h] = reads.x * state_decay;
        q_read[h] = reads.y * state_decay;
    }
#pragma unroll 4
    for (uint32_t row = lane; row < rows; row += DELTA_LANES) {
#pragma unroll
        for (int h = 0; h < DELTA_SCALES; h++) {
            const float2 score = m.scores[h][row];
            const float x = qn_f16_to_f32(m.values[row * DELTA_VALUE_ROW + h * QN_GDN_SCALE_VALUES + value]);
            k_read[h] = fmaf(score.x, x, k_read[h]);
            q_read[h] = fmaf(score.y, x, q_read[h]);
        }
    }
#pragma unroll
    for (int h = 0; h < DELTA_SCALES; h++) {
        const uint32_t of_unit = h * QN_GDN_SCALE_VALUES + value;
        k_read[h] = qn_lanes_sum<1, DELTA_LANES>(k_read[h]) * k_inv_norm;
        q_read[h] = qn_lanes_sum<1, DELTA_LANES>(q_read[h]) * q_inv_norm;
        const float v_new = m.beta * (v[of_unit] - k_read[h]);
        if (lane == 0) {
            s.out[unit * DELTA_VALUES + of_unit] = fmaf(v_new, kq, q_read[h]) * s.scale;
            m.v_new[of_unit] = v_new;
        }
    }
}

// Stores the new row in the open chunk, after a block barrier: v' with its scale, key and decay. Reads results of
// delta_unit, which are still in shared memory.
QN_DEVICE void delta_store_row(const persistent_sequence &sequence, const qn_persistent_delta &s, uint32_t unit,
                               const delta_shared &m)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, row = delta_open_rows(sequence);
    if (warp == DELTA_STORE_VALUES_WARP) {
#pragma unroll
        for (int h = 0; h < DELTA_SCALES; h++) {
            const uint32_t of_unit = h * QN_GDN_SCALE_VALUES + 2 * lane;
            const float2 v = *(const float2 *)(m.v_new + of_unit);
            const float2 scale = qn_delta_scale_of(qn_warp_max(fmaxf(fabsf(v.x), fabsf(v.y))));
            *(uint32_t *)(delta_values(sequence, s, unit) + row * DELTA_HEAD_DIM + of_unit) =
                qn_f32_to_f16x2(v.x * scale.y, v.y * scale.y);
            if (lane == 0)
                delta_scales(sequence, s, unit)[h * QN_GDN_CHUNK + row] = scale.x;
        }
        if (lane == 0 && unit % DELTA_HEAD_UNITS == 0)
            delta_decays(sequence, s, unit)[row] = m.g;
    } else if (warp == DELTA_STORE_KEY_WARP && delta_stores_key(s, unit)) {
        const float4 kk = *(const float4 *)(m.sumsq + DELTA_HEAD_DIM / QN_WARP_SIZE),
                     k = scale_4(*(const float4 *)(m.inputs + DELTA_HEAD_DIM + 4 * lane),
                                 rsqrtf(kk.x + kk.y + (kk.z + kk.w) + 1e-6f));
        *(uint2 *)(delta_keys(sequence, s, unit) + row * DELTA_HEAD_DIM + 4 * lane) =
            make_uint2(qn_f32_to_f16x2(k.x, k.y), qn_f32_to_f16x2(k.z, k.w));
    }
}

// ---- Prologue of the output's GEMV: gated norm ----

// Columns first + 4*lane to first + 4*lane + 3 of QN_PROLOGUE_GATED_NORM, by full warps; heads of 64, 128 or 256
// values.
QN_DEVICE float4 prologue_gated_norm(const qn_persistent_gemv &s, uint32_t first, uint32_t lane)
{
    const uint32_t c = first + 4 * lane, repeat = s.grouped ? s.n_heads / s.n_k_heads : 1, slot = c / s.head;
    const uint32_t head = s.grouped ? slot % repeat * s.n_k_heads + slot / repeat : slot;
    const uint32_t within = c % s.head, i = head * s.head + within;
    const bool in_range = c < s.n_cols;
    const float gate_sumsq = rms_sumsq(s.from);
    float4 x = {}, other_half = {}, weight = {}, z = {};
    if (in_range) {
        x = load_cg_4(s.x + i);
        if (s.head == 256) // the call's 128 columns are half a head: the sum of squares needs both
            other_half = load_cg_4(s.x + (i ^ 128));
        weight = *(const float4 *)(s.weight + within);
        z = reduce_partials_4(s.from, s.row + i);
    }
    const float gate = rms_scale(s.from, gate_sumsq);
    float sumsq = qn_delta_dot(other_half, other_half, 0);
    sumsq = qn_lanes_sum<1, 16>(qn_delta_dot(x, x, 0) + sumsq);
    if (s.head > 64)
        sumsq += __shfl_xor_sync(QN_FULL_MASK, sumsq, 16);
    const float factor = rsqrtf(__fdividef(sumsq, (float)s.head) + s.eps);
    z.x *= gate, z.y *= gate, z.z *= gate, z.w *= gate;
    x.x *= factor * weight.x * qn_silu_fast(z.x);
    x.y *= factor * weight.y * qn_silu_fast(z.y);
    x.z *= factor * weight.z * qn_silu_fast(z.z);
    x.w *= factor * weight.w * qn_silu_fast(z.w);
    return x;
}

// ---- Rows with fp16 weights, in a GEMV phase ----

// A unit is one row tile by one K tile: sixteen fragments of 512 bytes, one a warp, 16 bytes a thread. Block u %
// slice_blocks of the slice computes unit u.
struct f16_unit {
    uint32_t k_tile, tile, count; // k_tile: index within the slice; count: units of the slice
};

QN_DEVICE f16_unit f16_unit_of(const qn_persistent_gemv &s, uint32_t slice, uint32_t unit)
{
    const uint32_t left = s.n_k_tiles - slice * s.slice_k_tiles;
    f16_unit u;
    u.count = (left < s.slice_k_tiles ? left : s.slice_k_tiles) * s.n_f16_tiles;
    u.k_tile = s.n_f16_tiles ? unit / s.n_f16_tiles : 0;
    u.tile = unit - u.k_tile * s.n_f16_tiles;
    return u;
}

QN_DEVICE const uint8_t *f16_tile_of(const qn_persistent_gemv &s, uint32_t slice, const f16_unit &u)
{
    const uint64_t tile = (uint64_t)(slice * s.slice_k_tiles + u.k_tile) * s.n_f16_tiles + u.tile;
    return s.f16_rows + tile * (16 * QN_FRAGMENT_BYTES);
}

QN_DEVICE uint4 f16_rows_load(const qn_persistent_gemv &s, uint32_t slice, uint32_t unit)
{
    const f16_unit u = f16_unit_of(s, slice, unit);
    if (unit >= u.count)
        return make_uint4(0, 0, 0, 0);
    return __ldg((const uint4 *)f16_tile_of(s, slice, u) + threadIdx.x);
}

// Prefetches into L2 the weights that f16_rows_load reads of a block's first unit. By one thread.
QN_DEVICE void f16_rows_prefetch(const qn_persistent_gemv &s, uint32_t slice, uint32_t unit)
{
    const f16_unit u = f16_unit_of(s, slice, unit);
    if (unit < u.count)
        prefetch_bytes(f16_tile_of(s, slice, u), 16 * QN_FRAGMENT_BYTES);
}

#define F16_SCRATCH (QN_PERSISTENT_THREADS / QN_WARP_SIZE * QN_TILE_ROWS) // floats of scratch for f16_rows_gemv

// Adds the sums of the 16 warps of a unit, for one row of its weights.
QN_DEVICE float f16_sum_warps(const float *acc, uint32_t row)
{
    float v[4] = {};
#pragma unroll
    for (uint32_t w = 0; w < QN_PERSISTENT_THREADS / QN_WARP_SIZE; w++)
        v[w % 4] += acc[w * QN_TILE_ROWS + row];
    return v[0] + v[1] + (v[2] + v[3]);
}

QN_DEVICE void f16_rows_write(const qn_persistent_gemv &s, const float *acc, uint32_t slice, const f16_unit &u, uint32_t token,
                              uint32_t row)
{
    const uint32_t unit = (token * s.n_k_tiles + slice * s.slice_k_tiles + u.k_tile) * s.n_f16_tiles + u.tile;
    s.f16_out[unit * QN_TILE_ROWS + row] = f16_sum_warps(acc + token * F16_SCRATCH, row);
}

// The fp16 rows of a block, after the prologue. By the whole block. acts: activations of the slice in f32, not rotated,
// `stride` floats for each of n_tokens rows of activations. weights: f16_rows_load of the block's first unit, index
// block_in_slice. acc: [n_tokens][F16_SCRATCH]; the sums of the last unit stay there, for f16_rows_finish.
QN_DEVICE void f16_rows_gemv(const qn_persistent_gemv &s, const float *acts, uint32_t stride, uint32_t n_tokens, uint32_t slice,
                             uint32_t block_in_slice, uint4 weights, float *acc)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    for (uint32_t unit = block_in_slice;;) {
        const f16_unit u = f16_unit_of(s, slice, unit);
        if (unit >= u.count)
            break;
        // Fragment 2r+p: 32-column group r, columns 4t+p and 4t+p+2 of its first half, of rows g and g+8, then of its
        // second half.
        const float *x = acts + u.k_tile * QN_TILE_COLS + warp / 2 * 32 + 4 * t + warp % 2;
        float *to = acc + warp * QN_TILE_ROWS + g;
#pragma unroll 1
        for (uint32_t token = 0; token < n_tokens; token++, x += stride, to += F16_SCRATCH) {
            const float x0 = x[0], x1 = x[2], x2 = x[16], x3 = x[18];
            float upper = fmaf(qn_f16_high(weights.x), x1, qn_f16_low(weights.x) * x0);
            float lower = fmaf(qn_f16_high(weights.y), x1, qn_f16_low(weights.y) * x0);
            upper = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(weights.z), x3, fmaf(qn_f16_low(weights.z), x2, upper)));
            lower = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(weights.w), x3, fmaf(qn_f16_low(weights.w), x2, lower)));
            if (t == 0) {
                to[0] = upper;
                to[8] = lower;
            }
        }
        unit += s.slice_blocks;
        if (unit >= u.count)
            break;
        weights = f16_rows_load(s, slice, unit);
        __syncthreads();
        if (threadIdx.x < n_tokens * QN_TILE_ROWS)
            f16_rows_write(s, acc, slice, u, threadIdx.x / QN_TILE_ROWS, threadIdx.x % QN_TILE_ROWS);
        __syncthreads();
    }
}

// Stores the partials of the last unit, after __syncthreads(). By n_tokens * QN_TILE_ROWS threads.
QN_DEVICE void f16_rows_finish(const qn_persistent_gemv &s, const float *acc, uint32_t slice, uint32_t block_in_slice,
                               uint32_t i)
{
    uint32_t unit = block_in_slice;
    const uint32_t count = f16_unit_of(s, slice, unit).count;
    while (unit + s.slice_blocks < count)
        unit += s.slice_blocks;
    if (unit < count)
        f16_rows_write(s, acc, slice, f16_unit_of(s, slice, unit), i / QN_TILE_ROWS, i % QN_TILE_ROWS);
}

#endif
