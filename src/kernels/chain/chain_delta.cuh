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

// What a thread knows of its unit before the stage's inputs are there: its part of the state, and of its channel the
// convolution of earlier inputs and the weight of this one. Of the thread that makes the decay they are its bias and factor.
struct delta_held {
    float4 state[DELTA_RUNS];
    float past, weight;
};

struct delta_place {
    uint32_t head, k_head, half, width, channel; // channel: the thread's, where it has one
    float *state, *ring;                         // of the thread's value; of the session
};

QN_DEVICE delta_place delta_place_of(const qn_chain_args &a, const qn_chain_delta &s, uint32_t unit)
{
    delta_place p;
    const uint32_t i = threadIdx.x, keys = s.k_heads * DELTA_HEAD;
    unsigned char *memory = (unsigned char *)a.memory[0];
    p.head = unit / 2;
    p.half = unit % 2;
    p.k_head = p.head % s.k_heads;
    p.width = 2 * keys + s.v_heads * DELTA_HEAD;
    p.channel = i < DELTA_HEAD       ? p.k_head * DELTA_HEAD + i
                : i < 2 * DELTA_HEAD ? keys + p.k_head * DELTA_HEAD + i - DELTA_HEAD
                                     : 2 * keys + unit * DELTA_VALUES + i - 2 * DELTA_HEAD;
    p.state = (float *)(memory + s.state_offset) + (size_t)(unit * DELTA_VALUES + i / DELTA_LANES) * DELTA_HEAD;
    p.ring = (float *)(memory + s.inputs_offset);
    return p;
}

#define DELTA_DECAY_THREAD DELTA_CHANNELS
#define DELTA_BETA_THREAD (DELTA_CHANNELS + QN_WARP)

// Asks for what a unit needs and no stage of this launch writes. By the whole block, at any time before the stage.
QN_DEVICE void delta_ahead(const qn_chain_args &a, const qn_chain_delta &s, uint32_t unit, delta_held &held)
{
    if (unit >= 2 * s.v_heads)
        return;
    const delta_place p = delta_place_of(a, s, unit);
    const uint32_t position = a.positions[0];
    qn_delta_load_row<DELTA_LANES, DELTA_RUNS>(held.state, position ? p.state : nullptr);
    held.past = held.weight = 0;
    if (threadIdx.x < DELTA_CHANNELS) {
        held.weight = s.conv[(s.taps - 1) * p.width + p.channel];
        held.past = qn_delta_convolve_past(s.conv, p.ring, position, s.taps, p.width, p.channel);
    } else if (threadIdx.x == DELTA_DECAY_THREAD) {
        held.past = s.bias[p.head];
        held.weight = s.factor[p.head];
    }
}

QN_DEVICE void delta_unit(const qn_chain_args &a, const qn_chain_delta &s, uint32_t unit, delta_memory &m, delta_held &held)
{
    const delta_place p = delta_place_of(a, s, unit);
    const uint32_t value = threadIdx.x / DELTA_LANES;
    if (threadIdx.x < DELTA_CHANNELS) {
        const float x = parts_sum(s.qkv, s.qkv_row + p.channel) * parts_factor(s.qkv);
        // Of the units that share a key head, one keeps its inputs.
        if (threadIdx.x >= 2 * DELTA_HEAD || (p.half == 0 && p.head < s.k_heads))
            p.ring[a.positions[0] % s.taps * p.width + p.channel] = x;
        m.inputs[threadIdx.x] = qn_delta_convolve(held.past, held.weight, x);
    } else if (threadIdx.x == DELTA_DECAY_THREAD) {
        const float alpha = parts_sum(s.alpha, s.alpha_row + p.head) * parts_factor(s.alpha);
        m.decay = expf(fminf(qn_delta_decay(alpha, held.past, held.weight), 0.0f));
    } else if (threadIdx.x == DELTA_BETA_THREAD) {
        m.beta = qn_delta_sigmoid(parts_sum(s.beta, s.beta_row + p.head) * parts_factor(s.beta));
    }
    __syncthreads();
    const float *q = m.inputs, *k = q + DELTA_HEAD, *v = k + DELTA_HEAD;
    const qn_delta_keys keys = qn_delta_keys_of<DELTA_HEAD>(q, k, true);
    const float o = qn_delta_row<DELTA_LANES, DELTA_RUNS>(held.state, q, k, keys, m.decay, m.beta, v[value]) * s.scale;
    if (threadIdx.x % DELTA_LANES == 0)
        s.out[unit * DELTA_VALUES + value] = o;
    qn_delta_store_row<DELTA_LANES, DELTA_RUNS>(p.state, held.state);
}

// The stage, by the whole block. held: what delta_ahead brought of the block's first unit, number blockIdx.x.
QN_DEVICE void delta_stage(const qn_chain_args &a, const qn_chain_delta &s, uint8_t *scratch, delta_held &held)
{
    delta_memory &m = *(delta_memory *)scratch;
    for (uint32_t unit = blockIdx.x; unit < 2 * s.v_heads; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            delta_ahead(a, s, unit, held);
            __syncthreads(); // everybody has read the last unit's inputs
        }
        delta_unit(a, s, unit, m, held);
    }
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
    float squares = 0;
    if (there) {
        x = __ldcg((const float4 *)(s.x + i));
        weight = *(const float4 *)(s.weight + within);
        if (s.head == 256) { // the other half is another call's
            const float4 other = __ldcg((const float4 *)(s.x + (i ^ 128)));
            squares = qn_delta_dot(other, other, 0);
        }
        z = parts_sum_4(s.from, s.row + i);
    }
    const float gate = parts_factor(s.from);
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

QN_DEVICE uint4 half_rows_ahead(const qn_chain_product &s, uint32_t slice, uint32_t unit)
{
    const half_unit u = half_unit_of(s, slice, unit);
    if (unit >= u.count)
        return make_uint4(0, 0, 0, 0);
    const uint64_t tile = (uint64_t)(slice * s.slice_chunks + u.chunk) * s.half_tiles + u.tile;
    return __ldg((const uint4 *)(s.halves + tile * (16 * QN_TILE_SET)) + threadIdx.x);
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
