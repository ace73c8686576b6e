// Causal depthwise convolution over time: scans of many tokens, and steps of one token of each sequence (conv.h).
#include "cuda/kernels/conv/conv.h"
#include "cuda/kernels/vectors.cuh"

enum {
    THREADS = QN_CONV_GPU_THREADS,
    CHANNELS = QN_CHANNELS, /* of a thread */
    TOKENS = 4              /* rows of a thread whose loads are in flight together */
};

// ---- Sequences ----

// The low word of a 64-bit length is all of it: rows are counted in 32 bits.
QN_DEVICE uint32_t sequence_start(const qn_conv_args &a, uint32_t sequence)
{
    return a.cu_seqlens ? a.cu_seqlens[(uint64_t)sequence << a.wide_seqlens] : sequence * a.tokens;
}

// The sequence of a row, or a.sequences for a row after the last one. Called by all threads of the block.
QN_DEVICE uint32_t sequence_of(const qn_conv_args &a, uint32_t row)
{
    if (!a.cu_seqlens)
        return row / a.tokens;
    uint32_t n = 0;
    for (uint32_t first = 0; first < a.sequences; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        n += __syncthreads_count(i < a.sequences && sequence_start(a, i + 1) <= row);
    }
    return n;
}

// A sequence's rows and its state; is_skipped: nothing of it is read or written.
struct conv_sequence {
    uint32_t begin, end;
    uint64_t state;
    bool is_skipped;
};

QN_DEVICE conv_sequence load_sequence(const qn_conv_args &a, uint32_t index)
{
    const int32_t state = a.state_indices ? a.state_indices[index] : (int32_t)index;
    return { sequence_start(a, index), sequence_start(a, index + 1), (uint64_t)state, state < 0 };
}

// ---- Rows ----

QN_DEVICE void load_channels(float x[CHANNELS], const void *from, uint64_t at, uint32_t dtype)
{
    if constexpr (CHANNELS == QN_VECTOR)
        qn_load_vector(x, from, at, dtype, QN_VECTOR, true);
    else
        x[0] = qn_load_typed(from, at, dtype);
}

QN_DEVICE void store_channels(void *to, uint64_t at, uint32_t dtype, const float x[CHANNELS])
{
    if constexpr (CHANNELS == QN_VECTOR)
        qn_store_vector(to, at, dtype, QN_VECTOR, true, x);
    else
        qn_store_typed(to, at, dtype, x[0]);
}

// The first channel of a thread; a.channels or more if it has none.
QN_DEVICE uint32_t first_channel()
{
    return (blockIdx.y * THREADS + threadIdx.x) * CHANNELS;
}

QN_DEVICE uint64_t state_at(const qn_conv_args &a, uint64_t stride, uint64_t state, uint32_t row, uint32_t channel)
{
    return state * stride + (uint64_t)row * a.channels + channel;
}

QN_DEVICE void load_input(float x[CHANNELS], const qn_conv_args &a, uint32_t row, uint32_t channel)
{
    load_channels(x, a.x, (uint64_t)row * a.x_stride + channel, a.dtype);
}

// The input that is `back` rows before row `row` of a sequence; before its first row, the inputs of its initial state.
QN_DEVICE void load_previous(float x[CHANNELS], const qn_conv_args &a, const conv_sequence &s, uint32_t row, uint32_t back,
                             uint32_t channel)
{
    if (row - s.begin >= back)
        return load_input(x, a, row - back, channel);
    const uint32_t before = back - (row - s.begin); // rows before the sequence
    if (a.initial)
        return load_channels(x, a.initial, state_at(a, a.initial_stride, s.state, a.taps - 1 - before, channel), a.dtype);
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        x[i] = 0;
}

// ---- Filters ----

template <int taps> struct conv_filter {
    float weights[taps][CHANNELS], bias[CHANNELS];
};

template <int taps> QN_DEVICE void load_filter(conv_filter<taps> &f, const qn_conv_args &a, uint32_t channel)
{
    float all[taps * CHANNELS]; // channel by channel, as in memory
#pragma unroll
    for (int i = 0; i < taps; i++)
        load_channels(all + i * CHANNELS, a.weights, (uint64_t)channel * taps + i * CHANNELS, QN_TYPED_F32);
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        f.bias[i] = 0;
#pragma unroll
        for (int t = 0; t < taps; t++)
            f.weights[t][i] = all[i * taps + t];
    }
    if (a.bias)
        load_channels(f.bias, a.bias, channel, QN_TYPED_F32);
}

// The output of the row whose window, oldest first, begins at inputs.
template <int taps>
QN_DEVICE void store_output(const qn_conv_args &a, const conv_filter<taps> &f, const float (*inputs)[CHANNELS], uint32_t row,
                            uint32_t channel)
{
    float y[CHANNELS];
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        y[i] = f.bias[i];
#pragma unroll
        for (int t = 0; t < taps; t++)
            y[i] = fmaf(f.weights[t][i], inputs[t][i], y[i]);
        if (a.silu)
            y[i] = qn_silu_fast(y[i]);
    }
    store_channels(a.y, (uint64_t)row * a.y_stride + channel, a.dtype, y);
}

// ---- Scan ----

// The inputs of TOKENS rows of a thread as they are in memory: all their loads are in flight together.
struct raw_inputs {
    qn_raw_vector vectors[CHANNELS == QN_VECTOR ? TOKENS : 1];
    float values[CHANNELS == 1 ? TOKENS : 1];
};

QN_DEVICE void load_raw_inputs(raw_inputs &raw, const qn_conv_args &a, uint32_t row, uint32_t end, uint32_t channel)
{
#pragma unroll
    for (uint32_t i = 0; i < TOKENS; i++) {
        if (row + i >= end)
            continue;
        const uint64_t at = (uint64_t)(row + i) * a.x_stride + channel;
        if constexpr (CHANNELS == QN_VECTOR)
            qn_load_raw(raw.vectors[i], a.x, at, a.dtype);
        else
            raw.values[i] = qn_load_typed(a.x, at, a.dtype);
    }
}

QN_DEVICE void unpack_raw_inputs(float (*inputs)[CHANNELS], const raw_inputs &raw, uint32_t dtype)
{
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        if constexpr (CHANNELS == QN_VECTOR)
            qn_unpack_raw(inputs[i], raw.vectors[i], dtype);
        else
            inputs[i][0] = raw.values[i];
    }
}

// Rows [row, end) of a sequence. The next inputs are loaded while outputs are computed.
template <int taps>
QN_DEVICE void scan_rows(const qn_conv_args &a, const conv_filter<taps> &f, const conv_sequence &s, uint32_t row, uint32_t end,
                         uint32_t channel)
{
    float inputs[taps - 1 + TOKENS][CHANNELS];
    raw_inputs raw = {};
    load_raw_inputs(raw, a, row, end, channel);
#pragma unroll
    for (int i = 0; i < taps - 1; i++)
        load_previous(inputs[i], a, s, row, taps - 1 - i, channel);
    for (; row < end; row += TOKENS) {
        unpack_raw_inputs(inputs + taps - 1, raw, a.dtype);
        load_raw_inputs(raw, a, row + TOKENS, end, channel);
#pragma unroll
        for (uint32_t i = 0; i < TOKENS; i++)
            if (row + i < end)
                store_output(a, f, inputs + i, row + i, channel);
#pragma unroll
        for (int i = 0; i < taps - 1; i++)
#pragma unroll
            for (int e = 0; e < CHANNELS; e++)
                inputs[i][e] = inputs[TOKENS + i][e];
    }
}

// The rows of a block, from sequence `sequence` on.
template <int taps> QN_DEVICE void scan_block(const qn_conv_args &a, uint32_t sequence, uint32_t channel)
{
    uint32_t row = blockIdx.x * a.block_tokens;
    const uint32_t end = a.rows - row < a.block_tokens ? a.rows : row + a.block_tokens;
    conv_filter<taps> f;
    load_filter(f, a, channel);
    for (; row < end && sequence < a.sequences; sequence++) {
        const conv_sequence s = load_sequence(a, sequence);
        const uint32_t stop = s.end < end ? s.end : end;
        if (row < stop && !s.is_skipped)
            scan_rows<taps>(a, f, s, row, stop, channel);
        row = row < stop ? stop : row;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_conv_scan(const __grid_constant__ qn_conv_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t sequence = sequence_of(a, blockIdx.x * a.block_tokens);
    const uint32_t channel = first_channel();
    if (channel >= a.channels)
        return;
    switch (a.taps) {
    case 1: scan_block<1>(a, sequence, channel); break;
    case 2: scan_block<2>(a, sequence, channel); break;
    case 3: scan_block<3>(a, sequence, channel); break;
    case 4: scan_block<4>(a, sequence, channel); break;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_conv_scan_long(const __grid_constant__ qn_conv_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t sequence = sequence_of(a, blockIdx.x * a.block_tokens);
    const uint32_t channel = first_channel();
    if (channel >= a.channels)
        return;
    switch (a.taps) {
    case 5: scan_block<5>(a, sequence, channel); break;
    case 6: scan_block<6>(a, sequence, channel); break;
    case 7: scan_block<7>(a, sequence, channel); break;
    case 8: scan_block<8>(a, sequence, channel); break;
    }
}

// ---- States ----

// A thread reads all rows of its channels before it writes one: final may be initial.
extern "C" __global__ void __launch_bounds__(THREADS) qn_conv_final(const __grid_constant__ qn_conv_args a)
{
    float rows[QN_CONV_GPU_MAX_TAPS - 1][CHANNELS];
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t channel = first_channel();
    const conv_sequence s = load_sequence(a, blockIdx.x);
    if (channel >= a.channels || s.is_skipped)
        return;
#pragma unroll
    for (uint32_t i = 0; i < QN_CONV_GPU_MAX_TAPS - 1; i++)
        if (i < a.taps - 1)
            load_previous(rows[i], a, s, s.end, a.taps - 1 - i, channel);
#pragma unroll
    for (uint32_t i = 0; i < QN_CONV_GPU_MAX_TAPS - 1; i++)
        if (i < a.taps - 1)
            store_channels(a.final, state_at(a, a.final_stride, s.state, i, channel), a.dtype, rows[i]);
}

template <int taps> QN_DEVICE void step(const qn_conv_args &a, const conv_sequence &s, uint32_t channel)
{
    conv_filter<taps> f;
    float inputs[taps][CHANNELS];
    load_filter(f, a, channel);
#pragma unroll
    for (int i = 0; i < taps - 1; i++)
        load_channels(inputs[i], a.initial, state_at(a, a.initial_stride, s.state, i, channel), a.dtype);
    load_input(inputs[taps - 1], a, s.begin, channel);
    store_output(a, f, inputs, s.begin, channel);
#pragma unroll
    for (int i = 0; i < taps - 1; i++)
        store_channels(a.initial, state_at(a, a.initial_stride, s.state, i, channel), a.dtype, inputs[i + 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_conv_step(const __grid_constant__ qn_conv_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t channel = first_channel();
    const conv_sequence s = load_sequence(a, blockIdx.x);
    if (channel >= a.channels || s.is_skipped)
        return;
    switch (a.taps) {
    case 1: step<1>(a, s, channel); break;
    case 2: step<2>(a, s, channel); break;
    case 3: step<3>(a, s, channel); break;
    case 4: step<4>(a, s, channel); break;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_conv_step_long(const __grid_constant__ qn_conv_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t channel = first_channel();
    const conv_sequence s = load_sequence(a, blockIdx.x);
    if (channel >= a.channels || s.is_skipped)
        return;
    switch (a.taps) {
    case 5: step<5>(a, s, channel); break;
    case 6: step<6>(a, s, channel); break;
    case 7: step<7>(a, s, channel); break;
    case 8: step<8>(a, s, channel); break;
    }
}
