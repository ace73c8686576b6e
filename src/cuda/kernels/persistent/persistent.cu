// The persistent decode kernel of one row: one cooperative launch, one block an SM, one grid barrier after each phase.
// Read the head comment of persistent.h first: it describes phases, split-K GEMVs, the hand-over of partial sums and
// memory ordering. Here are the loop over phases (at the end of the file), the GEMV and store phases.
// persistent_stream.cuh has the weight pipeline, work descriptors and the grid barrier; persistent_prologue.cuh,
// persistent_delta.cuh and persistent_attention.cuh prologues and the other phases; plane_acts.cuh and byte_acts.cuh the
// activations and the inner product of the GEMV, by binary MMA and by int8 MMA. persistent.h lists the configurations.
//
// A GEMV phase, in one block:
//
//   1. Prologue (make_activations), all warps: load the inputs of the block's slice of K, reducing the partials of
//      earlier phases in ascending order; norm, SwiGLU, gate or combine; Hadamard transform; quantise to bit planes in
//      shared memory. __syncthreads().
//   2. Prefetch the inputs of the next phase, if that is a GEMV, other than weights and partials into L2 (prefetch_next).
//   3. GEMV (GEMV warps): each warp multiplies its range of the block's (K tile, row tile) pairs. The weights come from
//      its ring buffer, the sums go to shared memory: of each pair, or with COLUMNS_FIRST of each segment, a warp's part
//      of the K tiles of a group of STEP_TILES row tiles. __syncthreads().
//   4. Reduction over the slice's K tiles, in ascending order: the block's partial sums, to global memory
//      (reduce_k_tiles, reduce_segments).
//   5. __syncthreads(), arrival at the grid barrier (end_phase), prefetches for a delta rule or attention
//      (prefetch_while_waiting), wait, __syncthreads().
//
// Shared memory: persistent_stream.cuh.
//
// Registers. Spills are costly beyond their number: the acquire at a grid barrier invalidates L1, so that each spilled
// value costs a round trip to L2 in the next phase.
#define KERNEL_ROWS 1
#ifdef QN_KEY_BITS // only for the configuration of large shared memory
#define QN_COLUMNS_FIRST 0
#define QN_BIT_PLANES 1
#endif

#include "cuda/kernels/persistent/persistent_prologue.cuh"
#include "cuda/kernels/persistent/persistent_stream.cuh"
#if QN_BIT_PLANES
#include "cuda/kernels/persistent/plane_acts.cuh"
#else
#include "cuda/kernels/persistent/byte_acts.cuh"
#endif

// Layout of a GEMV phase's scratch in shared memory.
struct gemv_shared {
    uint8_t *acts;   // quantised activations of the slice
    // with fp16 rows: activations in f32, neither rotated nor quantised, then F16_SCRATCH floats; else null
    float *acts_f32;
    // The same memory twice. acc: sums, [k_tiles][tiles][16], or segments; rotated: before that, the Hadamard transform's
    // exchange between warps.
    float *acc, *rotated;
};

// The prologue of a GEMV: activations of `count` columns from `first` on, the block's slice (full K tiles), quantised in
// m.acts. Where `rotation` exceeds the WARP_COLS columns of a warp, warps exchange values through m.rotated,
// in a second pass. store_x: the sum of squares of each warp's columns goes to control.sumsq.
QN_DEVICE void make_activations(persistent_control &control, const qn_persistent_gemv &s, const gemv_shared &m, uint32_t first,
                                uint32_t count, bool store_x, uint32_t warp, uint32_t lane)
{
    const uint32_t rotation = s.rotation;
    const float normal = rotation ? rsqrtf((float)rotation) : 1;
    float square = 0;
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) { // the second: after the exchange between warps
#pragma unroll 1
        for (uint32_t at = warp * WARP_COLS; at < count; at += WARPS * WARP_COLS) {
            float4 x;
            if (pass == 0) {
                const uint32_t c = first + at + 4 * lane;
                const bool has_signs = rotation && s.signs && c < s.n_cols;
                const float4 sign = load_cg_4_if(s.signs + c, has_signs);
                x = run_prologue(s, control.sequences[0].position, first + at, store_x, square, lane);
                if (m.acts_f32)
                    *(float4 *)(m.acts_f32 + at + 4 * lane) = x;
                if (has_signs)
                    x = make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
                if (rotation)
                    x = hadamard_in_warp(x, rotation, lane);
                if (rotation > WARP_COLS) {
                    *(float4 *)(m.rotated + at + 4 * lane) = x;
                    continue;
                }
            } else {
                x = hadamard_over_groups(m.rotated + at / rotation * rotation, at % rotation / WARP_COLS, rotation, 4 * lane);
            }
            quantize_acts(m.acts, at, scale_4(x, normal), lane);
        }
        if (rotation <= WARP_COLS)
            break;
        if (pass == 0)
            __syncthreads();
    }
    if (store_x) {
        square = qn_warp_sum(square);
        if (lane == 0)
            control.sumsq[warp] = square;
    }
}

// ---- Prefetches for later phases ----

// Prefetches into L2 the inputs of a GEMV phase that no phase of this launch writes, during the phase before it. (Loading
// them into registers before the grid barrier was slower: the registers spill.)
QN_DEVICE void prefetch_gemv(const qn_persistent_phase &phase)
{
    if (phase.kind != QN_PHASE_GEMV || threadIdx.x != QN_PERSISTENT_THREADS - 1)
        return;
    const qn_persistent_gemv &s = phase.u.gemv;
    const uint32_t slice = blockIdx.x / s.slice_blocks, first = slice * s.slice_k_tiles * QN_TILE_COLS;
    if (slice >= s.n_slices)
        return;
    const uint32_t bytes = min(s.slice_k_tiles * QN_TILE_COLS, s.n_cols - first) * sizeof(float);
    if (s.prologue == QN_PROLOGUE_RMS_NORM)
        prefetch_bytes(s.weight + first, bytes);
    if (s.rotation && s.signs)
        prefetch_bytes(s.signs + first, bytes);
    if (s.n_f16_tiles)
        f16_rows_prefetch(s, slice, blockIdx.x % s.slice_blocks);
}

// Prefetches the inputs of phase i + 1 if it is a GEMV, and the struct of phase i + PREFETCH_DISTANCE. Called when no
// thread waits for loads: in a GEMV phase after the prologue.
QN_DEVICE void prefetch_next(const qn_persistent_args &a, const persistent_control &control, uint32_t i)
{
    if (threadIdx.x == QN_PERSISTENT_THREADS - 1 && i + PREFETCH_DISTANCE < a.n_phases)
        prefetch_bytes(a.phases + i + PREFETCH_DISTANCE, sizeof *a.phases);
    if (i + 1 < a.n_phases)
        prefetch_gemv(phase_at(control, i + 1));
}

// The block's part of an attention phase: block u computes unit u.
QN_DEVICE attention_range block_range(const qn_persistent_attention &s, uint32_t position)
{
    const uint32_t log_splits = 31 - __clz(s.n_splits);
    return attention_range_of(s, position, blockIdx.x >> log_splits, blockIdx.x & (s.n_splits - 1), true);
}

// Prefetches the inputs of phase i + 1 if it is a delta rule or attention, in the time of the grid barrier before it, by
// many threads: in the phase before, their MMA loops would begin later.
QN_DEVICE void prefetch_while_waiting(const qn_persistent_args &a, persistent_control &control, uint32_t i)
{
    const qn_persistent_phase &next = phase_at(control, i + 1);
    const persistent_sequence &sequence = control.sequences[0];
    if (next.kind == QN_PHASE_DELTA)
        delta_prefetch(sequence, next.u.delta, blockIdx.x);
    if (next.kind == QN_PHASE_ATTENTION)
        attention_prefetch(next.u.attention, a.codes, control.pages, 0, block_range(next.u.attention, sequence.position),
                           sequence.position);
}

// ---- GEMV phase ----

// Adds the products of one step, `count` tiles at shared address `step` times the activations of a K tile, to acc. Two
// tiles at a time: with an odd count the last tile is stale data, whose sums are not stored.
QN_DEVICE void gemv_step(float (&acc)[STEP_TILES][2], uint32_t step, uint32_t count, const gemv_acts &x, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + lane / 4 * 4;
#pragma unroll
    for (int m = 0; m < STEP_TILES; m += 2)
        if (m < count)
            acts_mma<2>(acc + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
}

#if COLUMNS_FIRST

enum { SEGMENT_FLOATS = STEP_TILES * QN_TILE_ROWS };

// The warp's range. Its segment of the group of tiles that begins at tile t is at index t / STEP_TILES + warp: both
// ascend.
QN_DEVICE void multiply_range(const work_descriptor &work, const persistent_control &control, const gemv_shared &m,
                              weight_stream &stream, uint32_t warp, uint32_t lane)
{
    tile_range at = work.warp_ranges[warp];
    float acc[STEP_TILES][2] = {};
#pragma unroll 1
    while (at.remaining) {
        const uint32_t count = work.tiles - at.tile;
        gemv_acts x;
        load_acts(x, qn_shared_address(m.acts) + at.k_tile * K_TILE_ACTS_BYTES, lane);
        gemv_step(acc, wait_for_step(stream), count, x, lane);
        release_step(stream, control, warp, lane);
        at.k_tile++;
        at.remaining--;
        if (at.k_tile == work.k_tiles || !at.remaining) {
            reduce_store_n1<STEP_TILES>(m.acc + (at.tile / STEP_TILES + warp) * SEGMENT_FLOATS, acc, count, lane);
#pragma unroll
            for (int i = 0; i < STEP_TILES; i++)
                acc[i][0] = acc[i][1] = 0;
            at.k_tile = 0;
            at.tile += STEP_TILES;
        }
    }
}

// Adds the segments of each group of tiles, in ascending order of K, and stores the block's partial sums to out.
QN_DEVICE void reduce_segments(float *out, const float *segments, const work_descriptor &work)
{
    enum { GROUP_QUADS = SEGMENT_FLOATS / 4 };
    const uint32_t k_tiles = work.k_tiles, quads = work.tiles * (QN_TILE_ROWS / 4), all = block_steps(k_tiles, work.tiles);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < quads; i += QN_PERSISTENT_THREADS) {
        const uint32_t group = i / GROUP_QUADS, last = warp_of_step(all, (group + 1) * k_tiles - 1);
        float4 sum = {};
#pragma unroll 1
        for (uint32_t warp = warp_of_step(all, group * k_tiles); warp <= last; warp++)
            if (work.warp_ranges[warp].remaining)
                sum = add_4(sum, *(const float4 *)(segments + (group + warp) * SEGMENT_FLOATS + i % GROUP_QUADS * 4));
        __stcg((float4 *)(out + 4 * i), sum);
    }
}

#else

// The warp's range: the sums of each (K tile, row tile) pair.
QN_DEVICE void multiply_range(const work_descriptor &work, const persistent_control &control, const gemv_shared &m,
                              weight_stream &stream, uint32_t warp, uint32_t lane)
{
    const uint32_t tiles = work.tiles;
    tile_range at = work.warp_ranges[warp];
    float *to = m.acc + (at.k_tile * tiles + at.tile) * QN_TILE_ROWS;
    gemv_acts x;
    while (at.remaining) {
        load_acts(x, qn_shared_address(m.acts) + at.k_tile * K_TILE_ACTS_BYTES, lane);
        uint32_t remaining = min(at.remaining, tiles - at.tile);
        at.remaining -= remaining;
        at.k_tile++;
        at.tile = 0;
        while (remaining) {
            const uint32_t count = remaining < STEP_TILES ? remaining : STEP_TILES;
            float acc[STEP_TILES][2] = {};
            gemv_step(acc, wait_for_step(stream), count, x, lane);
            reduce_store_n1<STEP_TILES>(to, acc, count, lane);
            release_step(stream, control, warp, lane);
            to += count * QN_TILE_ROWS;
            remaining -= count;
        }
    }
}

QN_DEVICE float4 load_shared_4_if(uint32_t address, bool pred)
{
    float4 x = {};
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "r"(address), "r"((uint32_t)pred)
                 : "memory");
    return x;
}

// Adds the sums of a block's K tiles, acc [k_tiles][n] in shared memory, in ascending order of the K tile, and stores
// the block's partial sums to out [n] in global memory. n is a multiple of 16.
QN_DEVICE void reduce_k_tiles(float *out, const float *acc, uint32_t k_tiles, uint32_t n)
{
    enum { LOADS = 8 };
#pragma unroll 1
    for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * QN_PERSISTENT_THREADS) {
        uint32_t from = qn_shared_address(acc + i);
        float4 sum = {};
#pragma unroll 1
        for (uint32_t first = 0; first < k_tiles; first += LOADS) {
            float4 v[LOADS];
#pragma unroll
            for (uint32_t c = 0; c < LOADS; c++, from += 4 * n)
                v[c] = load_shared_4_if(from, first + c < k_tiles);
#pragma unroll
            for (uint32_t c = 0; c < LOADS; c++)
                sum = add_4(sum, v[c]);
        }
        __stcg((float4 *)(out + i), sum);
    }
}

#endif

QN_DEVICE gemv_shared gemv_shared_of(const qn_persistent_gemv &s, uint8_t *scratch)
{
    gemv_shared m = { scratch, (float *)(scratch + s.slice_k_tiles * K_TILE_ACTS_BYTES) };
    m.acc = m.rotated = m.acts_f32 + (s.n_f16_tiles ? s.slice_k_tiles * QN_TILE_COLS + F16_SCRATCH : 0);
    if (!s.n_f16_tiles)
        m.acts_f32 = nullptr;
    return m;
}

// The end of a GEMV phase, after the sums of all warps.
QN_DEVICE void finish_gemv(const qn_persistent_gemv &s, const gemv_shared &m, const work_descriptor &work)
{
    float *out = s.out + ((uint64_t)work.slice * s.n_tiles + work.first_tile) * QN_TILE_ROWS;
    __syncthreads();
    if (m.acts_f32 && threadIdx.x >= QN_PERSISTENT_THREADS - QN_TILE_ROWS)
        f16_rows_finish(s, m.acts_f32 + s.slice_k_tiles * QN_TILE_COLS, work.slice, work.block_in_slice,
                        QN_PERSISTENT_THREADS - 1 - threadIdx.x);
#if COLUMNS_FIRST
    reduce_segments(out, m.acc, work);
#else
    reduce_k_tiles(out, m.acc, work.k_tiles, work.tiles * QN_TILE_ROWS);
#endif
}

// Phase i, a GEMV: see the head comment. gemv_index counts the GEMVs of the launch.
QN_DEVICE void gemv_phase(const qn_persistent_args &a, uint32_t i, persistent_control &control, const qn_persistent_gemv &s,
                          uint8_t *scratch, weight_stream &stream, uint32_t gemv_index, uint32_t warp, uint32_t lane)
{
    const work_descriptor &work = work_at(control, gemv_index);
    const uint32_t k_tiles = work.k_tiles;
    if (k_tiles == 0)
        return;
    const bool store_x = s.prologue == QN_PROLOGUE_RMS_NORM && work.block_in_slice == 0;
    const gemv_shared m = gemv_shared_of(s, scratch);
    uint4 f16_rows = {};
    if (m.acts_f32)
        f16_rows = f16_rows_load(s, work.slice, work.block_in_slice);
    make_activations(control, s, m, work.slice * s.slice_k_tiles * QN_TILE_COLS, k_tiles * QN_TILE_COLS, store_x, warp, lane);
    __syncthreads();
    prefetch_next(a, control, phase_index(control, i));
    if (store_x && warp == WARPS - 1) {
        const float square = qn_warp_sum(lane < WARPS ? control.sumsq[lane] : 0);
        if (lane == 0)
            s.sumsq[work_at(control, gemv_index).slice] = square;
    }
#if ATTENTION_CODES // computed again: kept, they would be spilled, and their loads queue behind the weights in flight
    const qn_persistent_gemv &same = phase_at(control, phase_index(control, i)).u.gemv;
    const work_descriptor &same_work = work_at(control, gemv_index);
    const gemv_shared same_m = gemv_shared_of(same, scratch);
    if (same_m.acts_f32)
        f16_rows_gemv(same, same_m.acts_f32, same_work.slice, same_work.block_in_slice, f16_rows,
                      same_m.acts_f32 + same.slice_k_tiles * QN_TILE_COLS);
    multiply_range(same_work, control, same_m, stream, warp, lane);
    const qn_persistent_gemv &last = phase_at(control, phase_index(control, i)).u.gemv;
    finish_gemv(last, gemv_shared_of(last, scratch), work_at(control, gemv_index));
#else
    if (m.acts_f32)
        f16_rows_gemv(s, m.acts_f32, work.slice, work.block_in_slice, f16_rows, m.acts_f32 + s.slice_k_tiles * QN_TILE_COLS);
    multiply_range(work, control, m, stream, warp, lane);
    finish_gemv(s, m, work);
#endif
}

// ---- Delta phase ----

// The phase, by the whole block. The row of the block's last unit is stored by delta_store_deferred.
QN_DEVICE void delta_phase(const persistent_sequence &sequence, const qn_persistent_delta &s, uint8_t *scratch)
{
    delta_shared &m = *(delta_shared *)scratch;
    for (uint32_t unit = blockIdx.x; unit < 2 * s.v_heads; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            __syncthreads();
            delta_store_row(sequence, s, unit - gridDim.x, m);
            __syncthreads(); // all threads have read the previous unit's results
        }
        delta_unit(sequence, s, unit, m);
    }
}

// Stores the row of the block's last unit after the block's arrival at the grid barrier: no phase of this launch
// reads it, so that other blocks need not wait for it.
QN_DEVICE void delta_store_deferred(const persistent_sequence &sequence, const qn_persistent_delta &s, const uint8_t *scratch)
{
    uint32_t unit = blockIdx.x;
    while (unit + gridDim.x < 2 * s.v_heads)
        unit += gridDim.x;
    if (unit < 2 * s.v_heads)
        delta_store_row(sequence, s, unit, *(const delta_shared *)scratch);
}

// ---- Attention phase ----

#if ATTENTION_CODES

// The state of a warp's weight stream, in shared memory while attention needs the registers.
QN_DEVICE weight_stream &parked_stream(uint8_t *scratch, uint32_t warp)
{
    return ((weight_stream *)(scratch + QN_PERSISTENT_SCRATCH_BYTES + CODE_TABLE_BYTES))[warp];
}

static_assert(WARPS * sizeof(weight_stream) <= QN_PERSISTENT_PARKED_BYTES, "QN_PERSISTENT_PARKED_BYTES is too small");

QN_DEVICE void park_stream(uint8_t *scratch, const weight_stream &stream, uint32_t warp, uint32_t lane)
{
    if (lane == 0)
        parked_stream(scratch, warp) = stream;
    __syncwarp();
}

QN_DEVICE void unpark_stream(weight_stream &stream, uint8_t *scratch, uint32_t warp, uint32_t lane)
{
    stream = parked_stream(scratch, warp);
    stream.codes += 16 * lane; // the other fields are the same in all lanes
    stream.scales += 16 * lane;
}

#endif

QN_DEVICE void attention_phase(const persistent_control &control, const qn_persistent_attention &s,
                               const qn_persistent_codes &codes, const attention_range &r, uint8_t *scratch,
                               weight_stream &stream, uint32_t warp, uint32_t lane)
{
    const uint32_t position = control.sequences[0].position;
#if ATTENTION_CODES
    park_stream(scratch, stream, warp, lane);
    if (attention_is_codes(r))
        codes_unit(s, codes, r, control.pages, position, scratch);
    else
        attention_unit(s, codes, r, control.pages, attention_f16_position(position), scratch);
    unpark_stream(stream, scratch, warp, lane);
#else
    attention_unit(s, codes, r, control.pages, position, scratch);
#endif
}

// ---- Store phase ----

QN_DEVICE void store_phase(const qn_persistent_store &s)
{
    const float factor = rms_scale(s.from);
    for (uint32_t k = 0; k < s.n_outs; k++)
        for (uint32_t i = blockIdx.x * QN_PERSISTENT_THREADS + threadIdx.x; i < s.outs[k].n_rows;
             i += gridDim.x * QN_PERSISTENT_THREADS) {
            const float y = factor * reduce_partials(s.from, s.outs[k].row + i);
            s.outs[k].out[i] = s.outs[k].x ? load_cg(s.outs[k].x + i) + y : y;
        }
}

// ---- The kernel ----

extern "C" __global__ void __launch_bounds__(QN_PERSISTENT_THREADS, 1)
    qn_persistent_decode(const __grid_constant__ qn_persistent_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    persistent_control &control = *(persistent_control *)shared;
    uint8_t *scratch = shared + QN_PERSISTENT_CONTROL_BYTES;
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
#if ATTENTION_CODES
    fill_tables(scratch + QN_PERSISTENT_SCRATCH_BYTES, a.codes.keys, a.codes.values);
#endif
    weight_stream stream = begin_launch(a, control, scratch, warp, lane);
    if (threadIdx.x == 0)
        control.sequences[0] = load_sequence(a, 0);
    __syncthreads();

    for (uint32_t i = 0; i < a.n_phases; i++) {
        i = phase_index(control, i);
        const uint32_t kind = phase_at(control, i).kind;
        if (kind != QN_PHASE_GEMV) // a GEMV phase calls it after its prologue
            prefetch_next(a, control, i);
        if (kind == QN_PHASE_DELTA) {
            delta_phase(control.sequences[0], phase_at(control, i).u.delta, scratch);
            i = phase_index(control, i);
            end_phase(a, i);
            delta_store_deferred(control.sequences[0], phase_at(control, i).u.delta, scratch);
        } else {
            if (kind == QN_PHASE_GEMV)
                gemv_phase(a, i, control, phase_at(control, i).u.gemv, scratch, stream, control.n_finished, warp, lane);
            else if (kind == QN_PHASE_ATTENTION)
                attention_phase(control, phase_at(control, i).u.attention, a.codes,
                                block_range(phase_at(control, i).u.attention, control.sequences[0].position), scratch,
                                stream, warp, lane);
            else if (kind == QN_PHASE_STORE)
                store_phase(phase_at(control, i).u.store);
            i = phase_index(control, i);
            end_phase(a, i);
        }
        if (i + 1 == a.n_phases)
            break;
        prefetch_while_waiting(a, control, i);
        wait_for_phase(a, i, control, stream, warp, lane);
    }
    if (threadIdx.x == 0)
        grid_barrier_reset(a.barrier, a.n_phases);
}
