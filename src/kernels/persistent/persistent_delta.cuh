// A Gated DeltaNet layer in the persistent decode kernel: the phase that applies convolution, gates and delta rule to
// one token (QN_PHASE_DELTA); the prologue of the output's GEMV, which normalises and gates the heads
// (QN_PROLOGUE_GATED_NORM); and the few rows with fp16 weights (alpha, beta) that a GEMV of 1- or 2-bit weights
// computes in addition. persistent_cuda.h has the interface; grid barriers are in persistent.cu.
#ifndef QN_KERNELS_PERSISTENT_PERSISTENT_DELTA_CUH
#define QN_KERNELS_PERSISTENT_PERSISTENT_DELTA_CUH

#include "kernels/persistent/persistent.cuh"
#include "kernels/delta.cuh"

// ---- The delta rule ----

// A unit is 64 values of a head: 64 rows of the state by 128 keys. Eight lanes hold a row, so that a block holds a unit
// in registers.
#define DELTA_HEAD_DIM 128
#define DELTA_VALUES 64
#define DELTA_LANES 8
#define DELTA_VECS (DELTA_HEAD_DIM / (4 * DELTA_LANES))
#define DELTA_CHANNELS (2 * DELTA_HEAD_DIM + DELTA_VALUES) // channels that a unit convolves: its query, key and values

static_assert(DELTA_VALUES * DELTA_LANES == QN_PERSISTENT_THREADS, "a unit occupies all threads of a block");
static_assert(DELTA_CHANNELS + 2 * QN_WARP_SIZE <= QN_PERSISTENT_THREADS,
              "one thread for each channel, one warp for each gate");

struct delta_shared {
    __align__(16) float inputs[DELTA_CHANNELS];     // q, k, v after the convolution
    float sumsq[2 * DELTA_HEAD_DIM / QN_WARP_SIZE]; // of q and k, one for each warp
    float decay, beta;
};

// A thread's part of a row of the old state, the row's address, and the factors of its update
// S = decay * S + delta_v * k.
struct delta_regs {
    float4 state[DELTA_VECS];
    float *row;
    float decay, delta_v;
};

#define DELTA_DECAY_WARP (DELTA_CHANNELS / QN_WARP_SIZE)
#define DELTA_BETA_WARP (DELTA_DECAY_WARP + 1)

QN_DEVICE uint32_t delta_width(const qn_persistent_delta &s)
{
    return (2 * s.k_heads + s.v_heads) * DELTA_HEAD_DIM;
}

// Index of a unit's channel i among all channels: queries, keys, values.
QN_DEVICE uint32_t delta_channel(const qn_persistent_delta &s, uint32_t unit, uint32_t i)
{
    const uint32_t k_heads = s.k_heads, keys = k_heads * DELTA_HEAD_DIM;
    uint32_t k_head = unit / 2;
    while (k_head >= k_heads) // a few iterations: faster than a division
        k_head -= k_heads;
    return i < DELTA_HEAD_DIM       ? k_head * DELTA_HEAD_DIM + i
           : i < 2 * DELTA_HEAD_DIM ? keys + k_head * DELTA_HEAD_DIM + i - DELTA_HEAD_DIM
                                    : 2 * keys + unit * DELTA_VALUES + i - 2 * DELTA_HEAD_DIM;
}

// Prefetches into L2 the inputs of a block's first unit that no phase of this launch writes: state, convolution
// weights, ring of past inputs. By the whole block.
QN_DEVICE void delta_prefetch(const persistent_session &session, const qn_persistent_delta &s)
{
    const uint32_t unit = blockIdx.x, bytes = DELTA_VALUES * DELTA_HEAD_DIM * sizeof(float), i = threadIdx.x;
    if (unit >= 2 * s.v_heads)
        return;
    if (i == DELTA_CHANNELS)
        prefetch_bytes(session.memory + s.state_offset + (uint64_t)unit * bytes, bytes);
    if (i >= DELTA_CHANNELS)
        return;
    // A warp's 32 channels are 128 bytes, two prefetches of 64: of each tap's weights and of each past input.
    const uint32_t width = delta_width(s), channel = delta_channel(s, unit, i / QN_WARP_SIZE * QN_WARP_SIZE) + i % 2 * 16;
    const float *const rows = i % 4 < 2 ? s.conv : (const float *)(session.memory + s.inputs_offset);
    for (uint32_t tap = i % QN_WARP_SIZE / 4; tap < s.taps; tap += QN_WARP_SIZE / 4)
        qn_prefetch_line(rows + tap * width + channel);
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

QN_DEVICE uint32_t delta_ring_slot(uint32_t position, uint32_t taps)
{
    return taps & (taps - 1) ? position % taps : position & (taps - 1);
}

// One unit, by the whole block: output to s.out, input to the ring. All loads are issued before the first result is
// used. The new state is computed and stored later, by delta_store_state.
QN_DEVICE void delta_unit(const persistent_session &session, const qn_persistent_delta &s, uint32_t unit, delta_shared &m,
                          delta_regs &regs)
{
    const uint32_t i = threadIdx.x, value = i / DELTA_LANES, warp = i / QN_WARP_SIZE, head = unit / 2;
    regs.row = (float *)(session.memory + s.state_offset) + (size_t)(unit * DELTA_VALUES + value) * DELTA_HEAD_DIM;
    qn_delta_load_row<DELTA_LANES, DELTA_VECS>(regs.state, session.position ? regs.row : nullptr);
    if (warp < DELTA_DECAY_WARP) {
        const uint32_t width = delta_width(s), channel = delta_channel(s, unit, i),
                       slot = delta_ring_slot(session.position, s.taps);
        float *const ring = (float *)(session.memory + s.inputs_offset);
        const float *const partials = s.qkv.data + s.qkv_row + channel;
        float v[QN_PERSISTENT_PARTIAL_LOADS], sum = 0;
#pragma unroll
        for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++)
            v[k] = load_cg_if(partials + k * s.qkv.stride, k < s.qkv.n_partials);
        const float sumsq = rms_sumsq(s.qkv), weight = s.conv[(s.taps - 1) * width + channel];
        const float past = qn_delta_convolve_past(s.conv, ring, session.position, slot, s.taps, width, channel);
#pragma unroll
        for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++)
            sum += v[k];
#pragma unroll 1
        for (uint32_t k = QN_PERSISTENT_PARTIAL_LOADS; k < s.qkv.n_partials; k++)
            sum += load_cg(partials + k * s.qkv.stride);
        const float x = sum * rms_scale(s.qkv, sumsq), y = qn_silu_fast(fmaf(weight, x, past));
        m.inputs[i] = y;
        if (warp < 2 * DELTA_HEAD_DIM / QN_WARP_SIZE) {
            const float square = qn_warp_sum(y * y);
            if (i % QN_WARP_SIZE == 0)
                m.sumsq[warp] = square;
        }
        // Several units share a key head: one of them stores its inputs.
        if (i >= 2 * DELTA_HEAD_DIM || (unit % 2 == 0 && head < s.k_heads))
            ring[slot * width + channel] = x;
    } else if (warp == DELTA_DECAY_WARP) {
        const float bias = s.bias[head], factor = s.factor[head], alpha = delta_gate(s.alpha, s.alpha_row + head);
        if (i % QN_WARP_SIZE == 0)
            m.decay = expf(fminf(qn_delta_log_decay(alpha, bias, factor), 0.0f));
    } else if (warp == DELTA_BETA_WARP) {
        const float beta = qn_sigmoid_fast(delta_gate(s.beta, s.beta_row + head));
        if (i % QN_WARP_SIZE == 0)
            m.beta = beta;
    }
    __syncthreads();
    const float *q = m.inputs, *k = q + DELTA_HEAD_DIM, *v = k + DELTA_HEAD_DIM;
    const float4 qq = *(const float4 *)m.sumsq, kk = *(const float4 *)(m.sumsq + DELTA_HEAD_DIM / QN_WARP_SIZE);
    const float q_inv_norm = rsqrtf(qq.x + qq.y + (qq.z + qq.w) + 1e-6f),
                k_inv_norm = rsqrtf(kk.x + kk.y + (kk.z + kk.w) + 1e-6f);
    const float decay = regs.decay = m.decay;
    float k_read, q_read, kq = 0;
    qn_delta_dots<DELTA_LANES, DELTA_VECS>(regs.state, q, k, k_read, q_read);
#pragma unroll
    for (int vec = 0; vec < DELTA_VECS; vec++) {
        const uint32_t at = (vec * DELTA_LANES + i % DELTA_LANES) * 4;
        kq = qn_delta_dot(*(const float4 *)(k + at), *(const float4 *)(q + at), kq);
    }
    k_read = qn_lanes_sum<1, DELTA_LANES>(k_read) * (k_inv_norm * decay);
    q_read = qn_lanes_sum<1, DELTA_LANES>(q_read) * (q_inv_norm * decay);
    kq = qn_lanes_sum<1, DELTA_LANES>(kq) * (q_inv_norm * k_inv_norm);
    const float v_new = m.beta * (v[value] - k_read);
    if (i % DELTA_LANES == 0)
        s.out[unit * DELTA_VALUES + value] = fmaf(v_new, kq, q_read) * s.scale;
    regs.delta_v = v_new * k_inv_norm;
}

// Computes and stores the new state. Reads the unit's key, which is still in shared memory.
QN_DEVICE void delta_store_state(const delta_shared &m, delta_regs &regs)
{
    qn_delta_update<DELTA_LANES, DELTA_VECS>(regs.state, m.inputs + DELTA_HEAD_DIM, regs.decay, regs.delta_v);
    qn_delta_store_row<DELTA_LANES, DELTA_VECS>(regs.row, regs.state);
}

// The phase, by the whole block. The state of the block's last unit is stored by delta_store_deferred.
QN_DEVICE void delta_phase(const persistent_session &session, const qn_persistent_delta &s, uint8_t *scratch, delta_regs &regs)
{
    delta_shared &m = *(delta_shared *)scratch;
    for (uint32_t unit = blockIdx.x; unit < 2 * s.v_heads; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            delta_store_state(m, regs);
            __syncthreads(); // all threads have read the previous unit's inputs
        }
        delta_unit(session, s, unit, m, regs);
    }
}

// Stores the state of the block's last unit after the block's arrival at the grid barrier: no phase of this launch
// reads it, so that other blocks need not wait for it.
QN_DEVICE void delta_store_deferred(const qn_persistent_delta &s, const uint8_t *scratch, delta_regs &regs)
{
    if (blockIdx.x < 2 * s.v_heads)
        delta_store_state(*(const delta_shared *)scratch, regs);
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

// Adds the sums of the 16 warps of a unit, for one row, and stores the partial.
QN_DEVICE void f16_rows_write(const qn_persistent_gemv &s, const float *acc, uint32_t slice, const f16_unit &u, uint32_t row)
{
    float v[4] = {};
#pragma unroll
    for (uint32_t w = 0; w < QN_PERSISTENT_THREADS / QN_WARP_SIZE; w++)
        v[w % 4] += acc[w * QN_TILE_ROWS + row];
    s.f16_out[((slice * s.slice_k_tiles + u.k_tile) * s.n_f16_tiles + u.tile) * QN_TILE_ROWS + row] =
        v[0] + v[1] + (v[2] + v[3]);
}

// The fp16 rows of a block, after the prologue. By the whole block. acts: activations of the slice in f32, not rotated.
// weights: f16_rows_load of the block's first unit, index block_in_slice. The sums of the last unit stay in acc, for
// f16_rows_finish.
QN_DEVICE void f16_rows_gemv(const qn_persistent_gemv &s, const float *acts, uint32_t slice, uint32_t block_in_slice,
                             uint4 weights, float *acc)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    for (uint32_t unit = block_in_slice;;) {
        const f16_unit u = f16_unit_of(s, slice, unit);
        if (unit >= u.count)
            break;
        // Fragment 2r+p: 32-column group r, columns 4t+p and 4t+p+2 of its first half, of rows g and g+8, then of its
        // second half.
        const float *x = acts + u.k_tile * QN_TILE_COLS + warp / 2 * 32 + 4 * t + warp % 2;
        const float x0 = x[0], x1 = x[2], x2 = x[16], x3 = x[18];
        float upper = fmaf(qn_f16_high(weights.x), x1, qn_f16_low(weights.x) * x0);
        float lower = fmaf(qn_f16_high(weights.y), x1, qn_f16_low(weights.y) * x0);
        upper = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(weights.z), x3, fmaf(qn_f16_low(weights.z), x2, upper)));
        lower = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(weights.w), x3, fmaf(qn_f16_low(weights.w), x2, lower)));
        if (t == 0) {
            acc[warp * QN_TILE_ROWS + g] = upper;
            acc[warp * QN_TILE_ROWS + g + 8] = lower;
        }
        unit += s.slice_blocks;
        if (unit >= u.count)
            break;
        weights = f16_rows_load(s, slice, unit);
        __syncthreads();
        if (threadIdx.x < QN_TILE_ROWS)
            f16_rows_write(s, acc, slice, u, threadIdx.x);
        __syncthreads();
    }
}

// Stores the partials of the last unit, after __syncthreads(). By QN_TILE_ROWS threads.
QN_DEVICE void f16_rows_finish(const qn_persistent_gemv &s, const float *acc, uint32_t slice, uint32_t block_in_slice,
                               uint32_t row)
{
    uint32_t unit = block_in_slice;
    const uint32_t count = f16_unit_of(s, slice, unit).count;
    while (unit + s.slice_blocks < count)
        unit += s.slice_blocks;
    if (unit < count)
        f16_rows_write(s, acc, slice, f16_unit_of(s, slice, unit), row);
}

#endif
