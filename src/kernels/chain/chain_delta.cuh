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
    float squares[2 * DELTA_HEAD / QN_WARP];    // of q's and k's warps
    float decay, beta;
};

// A thread's part of the old state, where it is kept, and what becomes of it.
struct delta_held {
    float4 state[DELTA_RUNS];
    float *row;
    float decay, times; // of the key
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
    const uint32_t k_heads = s.k_heads, keys = k_heads * DELTA_HEAD;
    uint32_t k_head = unit / 2;
    while (k_head >= k_heads) // a few times: sooner than a division
        k_head -= k_heads;
    return i < DELTA_HEAD       ? k_head * DELTA_HEAD + i
           : i < 2 * DELTA_HEAD ? keys + k_head * DELTA_HEAD + i - DELTA_HEAD
                                : 2 * keys + unit * DELTA_VALUES + i - 2 * DELTA_HEAD;
}

// Brings nearer what a block's first unit needs and no stage of this launch writes. By the whole block.
QN_DEVICE void delta_prefetch(const chain_session &session, const qn_chain_delta &s)
{
    const uint32_t unit = blockIdx.x, bytes = DELTA_VALUES * DELTA_HEAD * sizeof(float), i = threadIdx.x;
    if (unit >= 2 * s.v_heads)
        return;
    if (i == DELTA_CHANNELS)
        prefetch_bytes(session.memory + s.state_offset + (uint64_t)unit * bytes, bytes);
    if (i >= DELTA_CHANNELS)
        return;
    // Each warp the lines of its channels, in halves, of each tap's weights and inputs.
    const uint32_t width = delta_width(s), channel = delta_channel(s, unit, i / QN_WARP * QN_WARP) + i % 2 * 16;
    const float *const rows = i % 4 < 2 ? s.conv : (const float *)(session.memory + s.inputs_offset);
    for (uint32_t tap = i % QN_WARP / 4; tap < s.taps; tap += QN_WARP / 4)
        prefetch_line(rows + tap * width + channel);
}

// A gate's number by a whole warp, which asks for 32 parts at once: of a few rows of halves there are many.
QN_DEVICE float delta_gate(const qn_chain_parts &p, uint32_t i)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    const float *const parts = p.data + (uint64_t)lane * p.stride + i;
    float v = lane < p.n_parts ? load_fresh(parts) : 0, sum = 0;
    const float squares = parts_squares(p);
    for (uint32_t first = 0;;) {
        for (uint32_t begin = 0; begin < QN_WARP && first + begin < p.n_parts; begin += 8)
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                sum += __shfl_sync(QN_ALL_LANES, v, begin + k);
        first += QN_WARP;
        if (first >= p.n_parts)
            break;
        v = first + lane < p.n_parts ? load_fresh(parts + (uint64_t)first * p.stride) : 0;
    }
    return sum * parts_factor(p, squares);
}

QN_DEVICE uint32_t delta_place_in_ring(uint32_t position, uint32_t taps)
{
    return taps & (taps - 1) ? position % taps : position & (taps - 1);
}

// All loads are asked for before the first is waited for. The new state is left to delta_keep.
QN_DEVICE void delta_unit(const chain_session &session, const qn_chain_delta &s, uint32_t unit, delta_memory &m,
                          delta_held &held)
{
    const uint32_t i = threadIdx.x, value = i / DELTA_LANES, warp = i / QN_WARP, head = unit / 2;
    held.row = (float *)(session.memory + s.state_offset) + (size_t)(unit * DELTA_VALUES + value) * DELTA_HEAD;
    qn_delta_load_row<DELTA_LANES, DELTA_RUNS>(held.state, session.position ? held.row : nullptr);
    if (warp < DELTA_DECAY_WARP) {
        const uint32_t width = delta_width(s), channel = delta_channel(s, unit, i),
                       place = delta_place_in_ring(session.position, s.taps);
        float *const ring = (float *)(session.memory + s.inputs_offset);
        const float *const parts = s.qkv.data + s.qkv_row + channel;
        float v[QN_CHAIN_PARTS_AHEAD], sum = 0;
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            v[k] = load_fresh_if(parts + k * s.qkv.stride, k < s.qkv.n_parts);
        const float squares = parts_squares(s.qkv), weight = s.conv[(s.taps - 1) * width + channel];
        const float past = qn_delta_convolve_past(s.conv, ring, session.position, place, s.taps, width, channel);
#pragma unroll
        for (uint32_t k = 0; k < QN_CHAIN_PARTS_AHEAD; k++)
            sum += v[k];
#pragma unroll 1
        for (uint32_t k = QN_CHAIN_PARTS_AHEAD; k < s.qkv.n_parts; k++)
            sum += load_fresh(parts + k * s.qkv.stride);
        const float x = sum * parts_factor(s.qkv, squares), y = silu(fmaf(weight, x, past));
        m.inputs[i] = y;
        if (warp < 2 * DELTA_HEAD / QN_WARP) {
            const float square = qn_warp_sum(y * y);
            if (i % QN_WARP == 0)
                m.squares[warp] = square;
        }
        // Of the units that share a key head, one keeps its inputs.
        if (i >= 2 * DELTA_HEAD || (unit % 2 == 0 && head < s.k_heads))
            ring[place * width + channel] = x;
    } else if (warp == DELTA_DECAY_WARP) {
        const float bias = s.bias[head], factor = s.factor[head], alpha = delta_gate(s.alpha, s.alpha_row + head);
        if (i % QN_WARP == 0)
            m.decay = expf(fminf(qn_delta_decay(alpha, bias, factor), 0.0f));
    } else if (warp == DELTA_BETA_WARP) {
        const float beta = sigmoid(delta_gate(s.beta, s.beta_row + head));
        if (i % QN_WARP == 0)
            m.beta = beta;
    }
    __syncthreads();
    const float *q = m.inputs, *k = q + DELTA_HEAD, *v = k + DELTA_HEAD;
    const float4 qq = *(const float4 *)m.squares, kk = *(const float4 *)(m.squares + DELTA_HEAD / QN_WARP);
    const float q_norm = rsqrtf(qq.x + qq.y + (qq.z + qq.w) + 1e-6f), k_norm = rsqrtf(kk.x + kk.y + (kk.z + kk.w) + 1e-6f);
    const float decay = held.decay = m.decay;
    float recalled, read, kq = 0;
    qn_delta_dots<DELTA_LANES, DELTA_RUNS>(held.state, q, k, recalled, read);
#pragma unroll
    for (int run = 0; run < DELTA_RUNS; run++) {
        const uint32_t at = (run * DELTA_LANES + i % DELTA_LANES) * 4;
        kq = qn_delta_dot(*(const float4 *)(k + at), *(const float4 *)(q + at), kq);
    }
    recalled = qn_delta_lanes_sum<DELTA_LANES>(recalled) * (k_norm * decay);
    read = qn_delta_lanes_sum<DELTA_LANES>(read) * (q_norm * decay);
    kq = qn_delta_lanes_sum<DELTA_LANES>(kq) * (q_norm * k_norm);
    const float corrected = m.beta * (v[value] - recalled);
    if (i % DELTA_LANES == 0)
        s.out[unit * DELTA_VALUES + value] = fmaf(corrected, kq, read) * s.scale;
    held.times = corrected * k_norm;
}

// The new state into its place. Reads the unit's key, still in the stage's shared memory.
QN_DEVICE void delta_keep(const delta_memory &m, delta_held &held)
{
    qn_delta_update<DELTA_LANES, DELTA_RUNS>(held.state, m.inputs + DELTA_HEAD, held.decay, held.times);
    qn_delta_store_row<DELTA_LANES, DELTA_RUNS>(held.row, held.state);
}

// The stage, by the whole block. Leaves the state of the block's last unit to delta_behind.
QN_DEVICE void delta_stage(const chain_session &session, const qn_chain_delta &s, uint8_t *scratch, delta_held &held)
{
    delta_memory &m = *(delta_memory *)scratch;
    for (uint32_t unit = blockIdx.x; unit < 2 * s.v_heads; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            delta_keep(m, held);
            __syncthreads(); // everybody has read the last unit's inputs
        }
        delta_unit(session, s, unit, m, held);
    }
}

// What no stage of this launch reads is made and written when the block has said that its results are there, before the next
// stage.
QN_DEVICE void delta_behind(const qn_chain_delta &s, const uint8_t *scratch, delta_held &held)
{
    if (blockIdx.x < 2 * s.v_heads)
        delta_keep(*(const delta_memory *)scratch, held);
}

// ---- Heads normalised and gated ----

// Columns first + 4*lane on of a GATED product, by whole warps; heads of 64, 128 or 256 values.
QN_DEVICE float4 gated_columns(const qn_chain_product &s, uint32_t first, uint32_t lane)
{
    const uint32_t c = first + 4 * lane, repeat = s.grouped ? s.n_heads / s.n_k_heads : 1, place = c / s.head;
    const uint32_t head = s.grouped ? place % repeat * s.n_k_heads + place / repeat : place;
    const uint32_t within = c % s.head, i = head * s.head + within;
    const bool there = c < s.n_cols;
    const float gate_squares = parts_squares(s.from);
    float4 x = {}, other = {}, weight = {}, z = {};
    if (there) {
        x = load_fresh_4(s.x + i);
        if (s.head == 256) // the other half is another call's
            other = load_fresh_4(s.x + (i ^ 128));
        weight = *(const float4 *)(s.weight + within);
        z = parts_sum_4(s.from, s.row + i);
    }
    const float gate = parts_factor(s.from, gate_squares);
    float squares = qn_delta_dot(other, other, 0);
    squares = qn_delta_lanes_sum<16>(qn_delta_dot(x, x, 0) + squares);
    if (s.head > 64)
        squares += __shfl_xor_sync(QN_ALL_LANES, squares, 16);
    const float factor = rsqrtf(__fdividef(squares, (float)s.head) + s.eps);
    z.x *= gate, z.y *= gate, z.z *= gate, z.w *= gate;
    x.x *= factor * weight.x * silu(z.x);
    x.y *= factor * weight.y * silu(z.y);
    x.z *= factor * weight.z * silu(z.z);
    x.w *= factor * weight.w * silu(z.w);
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

// Of a unit's warps the sums, added up.
QN_DEVICE void half_rows_write(const qn_chain_product &s, const float *sums, uint32_t slice, const half_unit &u, uint32_t row)
{
    float v[4] = {};
#pragma unroll
    for (uint32_t w = 0; w < QN_CHAIN_THREADS / QN_WARP; w++)
        v[w % 4] += sums[w * QN_TILE_ROWS + row];
    s.half_out[((slice * s.slice_chunks + u.chunk) * s.half_tiles + u.tile) * QN_TILE_ROWS + row] = v[0] + v[1] + (v[2] + v[3]);
}

// By the whole block, after the slice's columns are there: floats, not rotated. weights: what half_rows_ahead brought of the
// block's first unit, number block_of_slice. Leaves the last unit's sums to half_rows_finish.
QN_DEVICE void half_rows(const qn_chain_product &s, const float *columns, uint32_t slice, uint32_t block_of_slice,
                         uint4 weights, float *sums)
{
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
    for (uint32_t unit = block_of_slice;;) {
        const half_unit u = half_unit_of(s, slice, unit);
        if (unit >= u.count)
            break;
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
        unit += s.slice_blocks;
        if (unit >= u.count)
            break;
        weights = half_rows_ahead(s, slice, unit);
        __syncthreads();
        if (threadIdx.x < QN_TILE_ROWS)
            half_rows_write(s, sums, slice, u, threadIdx.x);
        __syncthreads();
    }
}

// After the block has met. By QN_TILE_ROWS threads.
QN_DEVICE void half_rows_finish(const qn_chain_product &s, const float *sums, uint32_t slice, uint32_t block_of_slice,
                                uint32_t row)
{
    uint32_t unit = block_of_slice;
    const uint32_t count = half_unit_of(s, slice, unit).count;
    while (unit + s.slice_blocks < count)
        unit += s.slice_blocks;
    if (unit < count)
        half_rows_write(s, sums, slice, half_unit_of(s, slice, unit), row);
}

#endif
