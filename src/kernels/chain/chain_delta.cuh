// A Gated DeltaNet layer within a chain: the stage that takes a token through convolution, gates and delta rule; the columns of
// the output's product, which are its heads normalised and gated; and the few rows of halves (alpha, beta) that stand beside a
// product of few bits. chain_cuda.h has the contracts. When stages begin, and what is between them, is chain.cu's.
#ifndef QN_KERNELS_CHAIN_CHAIN_DELTA_CUH
#define QN_KERNELS_CHAIN_CHAIN_DELTA_CUH

#include "kernels/chain/chain.cuh"
#include "kernels/delta.cuh"

// ---- The delta rule ----

// A unit is 64 values of a head. Eight lanes share a value's 128 keys, so that a block has all of its unit in registers.
#define DELTA_HEAD 128
#define DELTA_VALUES 64
#define DELTA_LANES 8
#define DELTA_RUNS (DELTA_HEAD / (4 * DELTA_LANES))
#define DELTA_CHANNELS (2 * DELTA_HEAD + DELTA_VALUES) // that a unit convolves: its query, its key, its values

static_assert(DELTA_VALUES * DELTA_LANES == QN_CHAIN_THREADS, "a unit takes a block's threads");
static_assert(DELTA_CHANNELS + 2 * QN_WARP <= QN_CHAIN_THREADS, "a channel is a thread's, a gate a warp's");

struct delta_memory {
    __align__(16) float inputs[DELTA_CHANNELS]; // q, k, v
    float decay, beta;
};

// What a thread has of its unit besides the stage's inputs: its part of the state, and of its channel the
// convolution of earlier inputs and the weight of this one. In the warp that makes the decay they are its bias and factor.
struct delta_held {
    float4 state[DELTA_RUNS];
    float past, weight;
    float *row;       // where the state is
    float *input;     // where the channel's input is kept, if this unit keeps it
    uint32_t channel; // a query's, a key's or a value's; of the warps that make gates: the head
};

#define DELTA_DECAY_WARP (DELTA_CHANNELS / QN_WARP)
#define DELTA_BETA_WARP (DELTA_DECAY_WARP + 1)

QN_DEVICE uint32_t delta_width(const qn_chain_delta &s)
{
    return (2 * s.k_heads + s.v_heads) * DELTA_HEAD;
}

// Channel i of a unit among all.
QN_DEVICE uint32_t delta_channel(const qn_chain_delta &s, uint32_t unit, uint32_t i)
{
    const uint32_t k_head = unit / 2 % s.k_heads * DELTA_HEAD, keys = s.k_heads * DELTA_HEAD;
    return i < DELTA_HEAD       ? k_head + i
           : i < 2 * DELTA_HEAD ? keys + k_head + i - DELTA_HEAD
                                : 2 * keys + unit * DELTA_VALUES + i - 2 * DELTA_HEAD;
}

// Brings what delta_ahead reads of a block's first unit nearer. By the whole block.
QN_DEVICE void delta_prefetch(const qn_chain_args &a, const qn_chain_delta &s)
{
    const uint32_t unit = blockIdx.x, bytes = DELTA_VALUES * DELTA_HEAD * sizeof(float), i = threadIdx.x;
    if (unit >= 2 * s.v_heads)
        return;
    const unsigned char *memory = (const unsigned char *)a.memory[0];
    if (i == DELTA_CHANNELS)
        prefetch_bytes(memory + s.state_offset + (uint64_t)unit * bytes, bytes);
    if (i >= DELTA_CHANNELS)
        return;
    // Each warp the lines of its channels, in halves, of each tap's weights and inputs.
    const uint32_t width = delta_width(s), channel = delta_channel(s, unit, i / QN_WARP * QN_WARP) + i % 2 * 16;
    const float *const rows = i % 4 < 2 ? s.conv : (const float *)(memory + s.inputs_offset);
    for (uint32_t tap = i % QN_WARP / 4; tap < s.taps; tap += QN_WARP / 4)
        prefetch_line(rows + tap * width + channel);
}

// Asks for what a unit needs and no stage of this launch writes.
QN_DEVICE void delta_ahead(const qn_chain_args &a, const qn_chain_delta &s, uint32_t unit, delta_held &held)
{
    if (unit >= 2 * s.v_heads)
        return;
    const uint32_t i = threadIdx.x, position = a.positions[0];
    unsigned char *memory = (unsigned char *)a.memory[0];
    float *ring = (float *)(memory + s.inputs_offset);
    held.row = (float *)(memory + s.state_offset) + (size_t)(unit * DELTA_VALUES + i / DELTA_LANES) * DELTA_HEAD;
    qn_delta_load_row<DELTA_LANES, DELTA_RUNS>(held.state, position ? held.row : nullptr);
    held.channel = unit / 2;
    held.input = nullptr;
    held.past = held.weight = 0;
    if (i < DELTA_CHANNELS) {
        const uint32_t width = delta_width(s), head = unit / 2;
        held.channel = delta_channel(s, unit, i);
        held.weight = s.conv[(s.taps - 1) * width + held.channel];
        held.past = qn_delta_convolve_past(s.conv, ring, position, s.taps, width, held.channel);
        // Of the units that share a key head, one keeps its inputs.
        const bool keeps = i >= 2 * DELTA_HEAD || (unit % 2 == 0 && head < s.k_heads);
        held.input = keeps ? ring + position % s.taps * width + held.channel : nullptr;
    } else if (i / QN_WARP == DELTA_DECAY_WARP) {
        held.past = s.bias[held.channel];
        held.weight = s.factor[held.channel];
    }
}

// A number of parts by a whole warp, which asks for 32 of them at once: of a few rows of halves there are many.
QN_DEVICE float delta_gate(const qn_chain_parts &p, uint32_t i)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    const float squares = parts_squares(p);
    float sum = 0;
    for (uint32_t first = 0; first < p.n_parts; first += QN_WARP) {
        const float v = first + lane < p.n_parts ? load_fresh(p.data + (uint64_t)(first + lane) * p.stride + i) : 0;
        for (uint32_t begin = 0; begin < QN_WARP && first + begin < p.n_parts; begin += 8)
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                sum += __shfl_sync(QN_ALL_LANES, v, begin + k);
    }
    return sum * parts_factor(p, squares);
}

// Leaves the new state in `held`.
QN_DEVICE void delta_unit(const qn_chain_delta &s, uint32_t unit, delta_memory &m, delta_held &held)
{
    const uint32_t i = threadIdx.x, value = i / DELTA_LANES, warp = i / QN_WARP;
    if (i < DELTA_CHANNELS) {
        const float squares = parts_squares(s.qkv), sum = parts_sum(s.qkv, s.qkv_row + held.channel),
                    x = sum * parts_factor(s.qkv, squares);
        m.inputs[i] = qn_delta_convolve(held.past, held.weight, x);
        if (held.input)
            *held.input = x;
    } else if (warp == DELTA_DECAY_WARP) {
        const float alpha = delta_gate(s.alpha, s.alpha_row + held.channel);
        m.decay = expf(fminf(qn_delta_decay(alpha, held.past, held.weight), 0.0f));
    } else if (warp == DELTA_BETA_WARP) {
        m.beta = qn_delta_sigmoid(delta_gate(s.beta, s.beta_row + held.channel));
    }
    __syncthreads();
    const float *q = m.inputs, *k = q + DELTA_HEAD, *v = k + DELTA_HEAD;
    const qn_delta_keys keys = qn_delta_keys_of<DELTA_HEAD>(q, k, true);
    const float o = qn_delta_row<DELTA_LANES, DELTA_RUNS>(held.state, q, k, keys, m.decay, m.beta, v[value]) * s.scale;
    if (i % DELTA_LANES == 0)
        s.out[unit * DELTA_VALUES + value] = o;
}

QN_DEVICE void delta_keep(const delta_held &held)
{
    qn_delta_store_row<DELTA_LANES, DELTA_RUNS>(held.row, held.state);
}

// The stage, by the whole block. Leaves the state of the block's last unit to delta_behind.
QN_DEVICE void delta_stage(const qn_chain_args &a, const qn_chain_delta &s, uint8_t *scratch, delta_held &held)
{
    delta_memory &m = *(delta_memory *)scratch;
    for (uint32_t unit = blockIdx.x; unit < 2 * s.v_heads; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            delta_keep(held);
            __syncthreads(); // everybody has read the last unit's inputs
        }
        delta_ahead(a, s, unit, held);
        delta_unit(s, unit, m, held);
    }
}

// What no stage of this launch reads is written when the block has said that its results are there.
QN_DEVICE void delta_behind(const qn_chain_delta &s, const delta_held &held)
{
    if (blockIdx.x < 2 * s.v_heads)
        delta_keep(held);
}

// ---- Heads normalised and gated ----

// Columns first + 4*lane on of a GATED product, by whole warps; heads of 64, 128 or 256 values.
QN_DEVICE float4 gated_columns(const qn_chain_product &s, uint32_t first, uint32_t lane)
{
    const uint32_t c = first + 4 * lane, repeat = s.grouped ? s.n_heads / s.n_k_heads : 1, place = c / s.head;
    const uint32_t head = s.grouped ? place % repeat * s.n_k_heads + place / repeat : place;
    const uint32_t within = c % s.head, i = head * s.head + within;
    const bool there = c < s.n_cols;
    float4 x = {}, z = {}, weight = {};
    const float gate_squares = parts_squares(s.from);
    float squares = 0;
    if (there) {
        x = load_fresh_4(s.x + i);
        weight = *(const float4 *)(s.weight + within);
        if (s.head == 256) { // the other half is another call's
            const float4 other = load_fresh_4(s.x + (i ^ 128));
            squares = qn_delta_dot(other, other, 0);
        }
        z = parts_sum_4(s.from, s.row + i);
    }
    const float gate = parts_factor(s.from, gate_squares);
    squares = qn_delta_lanes_sum<16>(qn_delta_dot(x, x, 0) + squares);
    if (s.head > 64)
        squares += __shfl_xor_sync(QN_ALL_LANES, squares, 16);
    const float factor = 1.0f / sqrtf(squares / s.head + s.eps);
    z.x *= gate, z.y *= gate, z.z *= gate, z.w *= gate;
    x.x *= factor * weight.x * (z.x * qn_delta_sigmoid(z.x));
    x.y *= factor * weight.y * (z.y * qn_delta_sigmoid(z.y));
    x.z *= factor * weight.z * (z.z * qn_delta_sigmoid(z.z));
    x.w *= factor * weight.w * (z.w * qn_delta_sigmoid(z.w));
    return x;
}

// ---- Rows of halves beside a product ----

// A unit is a tile's chunk: sixteen sets of 512 bytes, one for each warp, 16 bytes for each thread. Unit u of a slice is for
// its block u modulo their number.
struct half_unit {
    uint32_t chunk, tile, count; // chunk: of the slice; count: units of the slice
};

QN_DEVICE half_unit half_unit_of(const qn_chain_product &s, uint32_t slice, uint32_t unit)
{
    const uint32_t left = s.n_chunks - slice * s.slice_chunks;
    half_unit u;
    u.count = (left < s.slice_chunks ? left : s.slice_chunks) * s.half_tiles;
    u.chunk = s.half_tiles ? unit / s.half_tiles : 0;
    u.tile = unit - u.chunk * s.half_tiles;
    return u;
}

QN_DEVICE const uint8_t *half_tile_of(const qn_chain_product &s, uint32_t slice, const half_unit &u)
{
    const uint64_t tile = (uint64_t)(slice * s.slice_chunks + u.chunk) * s.half_tiles + u.tile;
    return s.halves + tile * (16 * QN_TILE_SET);
}

QN_DEVICE uint4 half_rows_ahead(const qn_chain_product &s, uint32_t slice, uint32_t unit)
{
    const half_unit u = half_unit_of(s, slice, unit);
    if (unit >= u.count)
        return make_uint4(0, 0, 0, 0);
    return __ldg((const uint4 *)half_tile_of(s, slice, u) + threadIdx.x);
}

// Brings what half_rows_ahead reads of a block's first unit nearer. By one thread.
QN_DEVICE void half_rows_prefetch(const qn_chain_product &s, uint32_t slice, uint32_t unit)
{
    const half_unit u = half_unit_of(s, slice, unit);
    if (unit < u.count)
        prefetch_bytes(half_tile_of(s, slice, u), 16 * QN_TILE_SET);
}

QN_DEVICE float half_low(uint32_t word)
{
    return qn_half_to_float((uint16_t)word);
}

QN_DEVICE float half_high(uint32_t word)
{
    return qn_half_to_float((uint16_t)(word >> 16));
}

#define HALF_SUMS (QN_CHAIN_THREADS / QN_WARP * QN_TILE_ROWS) // floats that half_rows wants as scratch

// By the whole block, after the slice's columns are there: floats, not rotated. weights: what half_rows_ahead brought of the
// block's first unit, number block_of_slice.
QN_DEVICE void half_rows(const qn_chain_product &s, const float *columns, uint32_t slice, uint32_t block_of_slice,
                         uint4 weights, float *sums)
{
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
    for (uint32_t unit = block_of_slice;; unit += s.slice_blocks) {
        const half_unit u = half_unit_of(s, slice, unit);
        if (unit >= u.count)
            break;
        if (unit != block_of_slice) {
            weights = half_rows_ahead(s, slice, unit);
            __syncthreads(); // the last unit's sums have been read
        }
        // Set 2r+p: run r, columns 4t+p and 4t+p+2 of its first half, of rows g and g+8, then of its second half.
        const float *x = columns + u.chunk * QN_TILE_COLS + warp / 2 * 32 + 4 * t + warp % 2;
        const float x0 = x[0], x1 = x[2], x2 = x[16], x3 = x[18];
        float upper = fmaf(half_high(weights.x), x1, half_low(weights.x) * x0);
        float lower = fmaf(half_high(weights.y), x1, half_low(weights.y) * x0);
        upper = qn_delta_lanes_sum<4>(fmaf(half_high(weights.z), x3, fmaf(half_low(weights.z), x2, upper)));
        lower = qn_delta_lanes_sum<4>(fmaf(half_high(weights.w), x3, fmaf(half_low(weights.w), x2, lower)));
        if (t == 0) {
            sums[warp * QN_TILE_ROWS + g] = upper;
            sums[warp * QN_TILE_ROWS + g + 8] = lower;
        }
        __syncthreads();
        if (threadIdx.x < QN_TILE_ROWS) {
            float sum = 0;
#pragma unroll
            for (uint32_t w = 0; w < QN_CHAIN_THREADS / QN_WARP; w++)
                sum += sums[w * QN_TILE_ROWS + threadIdx.x];
            s.half_out[((slice * s.slice_chunks + u.chunk) * s.half_tiles + u.tile) * QN_TILE_ROWS + threadIdx.x] = sum;
        }
    }
}

#endif
