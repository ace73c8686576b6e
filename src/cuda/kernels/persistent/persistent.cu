// The persistent decode kernel: one cooperative launch, one block an SM, one grid barrier after each phase. Read the head
// comment of persistent.h first: it describes phases, split-K GEMVs, the hand-over of partial sums and memory ordering.
// Here are the loop over phases (at the end of the file), the GEMV phase and the other phases of one row.
// persistent_rows.cuh has those of several rows; persistent_stream.cuh the weight pipeline, work descriptors and the grid
// barrier; persistent_prologue.cuh, persistent_delta.cuh and persistent_attention.cuh prologues and the insides of the
// other phases; plane_acts.cuh the activations and the inner product of the GEMV. Defines: QN_BITS, QN_SCALES,
// QN_STAGES; QN_ROWS, the most rows of a launch.
//
// A GEMV phase, in one block:
//
//   1. Prologue (make_activations), all warps: load the inputs of the block's slice of K, reducing the partials of
//      earlier phases in ascending order; norm, SwiGLU, gate or combine; Hadamard transform; quantise to bit planes in
//      shared memory. __syncthreads(). Several rows: two blocks of a slice are a cluster; each makes the activations of
//      every other row and stores them in the shared memory of both, then the cluster synchronises.
//   2. Prefetch the next phase's inputs other than weights and partials into L2 (prefetch_next).
//   3. GEMV (all warps but the barrier warp): each warp multiplies its range of the block's (K tile, row tile) pairs.
//      The weights come from its ring buffer, the sums of each pair go to shared memory. __syncthreads().
//   4. Reduction over the slice's K tiles, in ascending order: the block's partial sums, to global memory
//      (reduce_k_tiles).
//   5. __syncthreads(), arrival at the grid barrier (end_phase), wait, __syncthreads().
//
// Shared memory: persistent_stream.cuh. The ring buffer of the barrier warp is unused.
//
// Registers. Spills are costly beyond their number: the acquire at a grid barrier invalidates L1, so that each spilled
// value costs a round trip to L2 in the next phase.
#define KERNEL_ROWS QN_ROWS

#include "cuda/kernels/persistent/persistent_prologue.cuh"
#if KERNEL_ROWS > 1
#include "cuda/kernels/persistent/persistent_rows.cuh"
#endif
#include "cuda/kernels/persistent/persistent_stream.cuh"
#include "cuda/kernels/persistent/plane_acts.cuh"

// Layout of a GEMV phase's scratch in shared memory. Of a row: bytes of activations, columns, and sums.
struct gemv_shared {
    uint8_t *acts; // activations of the slice as bit planes
    // with fp16 rows: activations in f32, neither rotated nor quantised, then F16_SCRATCH floats a row; else null
    float *acts_f32, *f16_sums;
    // The same memory twice. acc: sums, [k_tiles][tiles][16] for each row; rotated: before that, the Hadamard
    // transform's exchange between warps.
    float *acc, *rotated;
    uint32_t acts_bytes, cols;
};

QN_DEVICE gemv_shared gemv_shared_of(const qn_persistent_gemv &s, uint8_t *scratch)
{
    gemv_shared m = { scratch };
    m.acts_bytes = s.slice_k_tiles * K_TILE_ACTS_BYTES;
    m.cols = s.slice_k_tiles * QN_TILE_COLS;
    float *const after = (float *)(m.acts + KERNEL_ROWS * m.acts_bytes);
    m.acts_f32 = s.n_f16_tiles ? after : nullptr;
    m.f16_sums = after + (s.n_f16_tiles ? KERNEL_ROWS * m.cols : 0);
    m.acc = m.rotated = m.f16_sums + (s.n_f16_tiles ? KERNEL_ROWS * F16_SCRATCH : 0);
    return m;
}

QN_DEVICE uint32_t rows_of(const persistent_control &control)
{
#if KERNEL_ROWS > 1
    return control.n_rows;
#else
    return 1;
#endif
}

QN_DEVICE qn_persistent_gemv gemv_of_row(const qn_persistent_gemv &s, uint32_t row)
{
#if KERNEL_ROWS > 1
    return row_of(s, row);
#else
    return s;
#endif
}

// The prologue of a GEMV: activations of `count` columns from `first` on, the block's slice (full K tiles), as bit
// planes in m.acts. The blocks of a cluster take every other row, and store its activations for both. A unit is WARP_COLS
// columns of a row. Where `rotation` exceeds the columns of a unit, warps exchange values through m.rotated, in a second
// pass. store_x: the sum of squares of each unit of the block's rows goes to control.sumsq.
QN_DEVICE void make_activations(persistent_control &control, const qn_persistent_gemv &s, const gemv_shared &m, uint32_t first,
                                uint32_t count, bool store_x, uint32_t warp, uint32_t lane)
{
    const uint32_t rank = blockIdx.x % CLUSTER, n_rows = (rows_of(control) + CLUSTER - 1 - rank) / CLUSTER;
    const uint32_t rotation = s.rotation, row_units = count / WARP_COLS, units = row_units * n_rows;
    const uint64_t peer = peer_distance(m.acts);
    const float normal = rotation ? rsqrtf((float)rotation) : 1;
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) { // the second: after the exchange between warps
#pragma unroll 1
        for (uint32_t unit = warp; unit < units; unit += WARPS) {
            const uint32_t own_row = KERNEL_ROWS > 1 ? unit / row_units : 0, row = own_row * CLUSTER + rank,
                           at = (unit - own_row * row_units) * WARP_COLS;
            float4 x;
            float *const rotated = m.rotated + row * m.cols;
            if (pass == 0) {
                const uint32_t c = first + at + 4 * lane;
                const bool has_signs = rotation && s.signs && c < s.n_cols;
                const float4 sign = load_cg_4_if(s.signs + c, has_signs);
                float square = 0;
                x = run_prologue(gemv_of_row(s, row), control.sequences[row].position, first + at, store_x, square, lane);
                if (store_x) {
                    square = qn_warp_sum(square);
                    if (lane == 0)
                        control.sumsq[row][at / WARP_COLS] = square;
                }
                if (m.acts_f32)
                    store_for_both((float4 *)(m.acts_f32 + row * m.cols + at + 4 * lane), x, peer);
                if (has_signs)
                    x = make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
                if (rotation)
                    x = hadamard_in_warp(x, rotation, lane);
                if (rotation > WARP_COLS) {
                    *(float4 *)(rotated + at + 4 * lane) = x;
                    continue;
                }
            } else {
                x = hadamard_over_groups(rotated + at / rotation * rotation, at % rotation / WARP_COLS, rotation, 4 * lane);
            }
            quantize_bit_planes(m.acts + row * m.acts_bytes, peer, at, scale_4(x, normal), lane);
        }
        if (rotation <= WARP_COLS)
            break;
        if (pass == 0)
            __syncthreads();
    }
}

// ---- Prefetches for later phases ----

// Prefetches into L2 the inputs of a phase that no phase of this launch writes, during the phase before it. (Loading
// them into registers before the grid barrier was slower: the registers spill.)
QN_DEVICE void prefetch_phase(const persistent_control &control, const qn_persistent_phase &phase)
{
    if (phase.kind == QN_PHASE_DELTA) {
        const uint32_t row_units = delta_units(phase.u.delta);
#pragma unroll 1
        for (uint32_t unit = blockIdx.x; unit < row_units * rows_of(control); unit += gridDim.x)
            delta_prefetch(control.sequences[unit / row_units], phase.u.delta, unit % row_units);
    }
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

// Prefetches the inputs of phase i + 1, and the struct of phase i + PREFETCH_DISTANCE. Called when no thread waits for
// loads: in a GEMV phase after the prologue.
QN_DEVICE void prefetch_next(const qn_persistent_args &a, const persistent_control &control, uint32_t i)
{
    if (threadIdx.x == QN_PERSISTENT_THREADS - 1 && i + PREFETCH_DISTANCE < a.n_phases)
        prefetch_bytes(a.phases + i + PREFETCH_DISTANCE, sizeof *a.phases);
    if (i + 1 < a.n_phases)
        prefetch_phase(control, phase_at(control, i + 1));
}

// ---- GEMV phase ----

// One step: `count` tiles at shared address `step` times the activations of a K tile, of all rows. Sums to `to`,
// [count][16], row_sums apart for each row. Two tiles at a time: with an odd count the last tile is stale data, whose sums
// are not stored.
QN_DEVICE void gemv_step(float *to, uint32_t row_sums, uint32_t step, uint32_t count, const bit_plane_acts (&x)[KERNEL_ROWS],
                         uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + lane / 4 * 4;
    float acc[KERNEL_ROWS][STEP_TILES][2] = {};
#pragma unroll
    for (int first = 0; first < STEP_TILES; first += 2) {
        if (first >= count)
            continue;
        uint4 fragments[2][PLANE_FRAGMENTS];
        uint32_t weight_scales[2][PLANE_FRAGMENTS];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int q = 0; q < PLANE_FRAGMENTS; q++) {
                fragments[m][q] = load_shared_16(codes + (first + m) * CODE_BYTES + q * QN_FRAGMENT_BYTES);
                weight_scales[m][q] = load_plane_weight_scales(scales + (first + m) * SCALE_BYTES, q, lane);
            }
#pragma unroll
        for (int row = 0; row < KERNEL_ROWS; row++)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int q = 0; q < PLANE_FRAGMENTS; q++)
                    bit_plane_mma_fragment(acc[row][first + m], fragments[m][q], weight_scales[m][q], x[row], q, lane);
    }
#pragma unroll
    for (int row = 0; row < KERNEL_ROWS; row++)
        reduce_store_n1<STEP_TILES>(to + row * row_sums, acc[row], count, lane);
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

// Adds the sums of a block's K tiles, acc [n_rows][k_tiles][n] in shared memory, in ascending order of the K tile, and
// stores the block's partial sums to out [n] in global memory, row_stride apart for each row. n is a multiple of 16.
QN_DEVICE void reduce_k_tiles(float *out, uint64_t row_stride, const float *acc, uint32_t k_tiles, uint32_t n, uint32_t n_rows)
{
    enum { LOADS = 8 };
#pragma unroll 1
    for (uint32_t all = 4 * threadIdx.x; all < n * n_rows; all += 4 * QN_PERSISTENT_THREADS) {
        const uint32_t row = KERNEL_ROWS > 1 ? all / n : 0, i = all - row * n;
        uint32_t from = qn_shared_address(acc + row * k_tiles * n + i);
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
        __stcg((float4 *)(out + row * row_stride + i), sum);
    }
}

// The sums of squares of the block's slice and of its rows, by as many warps from the last on.
QN_DEVICE void store_sumsq(const persistent_control &control, const qn_persistent_gemv &s, uint32_t slice, uint32_t units,
                           uint32_t warp, uint32_t lane)
{
    const uint32_t row = WARPS - 1 - warp;
    if (row >= rows_of(control) || row % CLUSTER != blockIdx.x % CLUSTER)
        return;
    const float square = qn_warp_sum(lane < units ? control.sumsq[row][lane] : 0);
    if (lane == 0)
        s.sumsq[row * s.n_slices + slice] = square;
}

// Phase i, a GEMV: see the head comment.
QN_DEVICE void gemv_phase(const qn_persistent_args &a, uint32_t i, persistent_control &control, const qn_persistent_gemv &s,
                          uint8_t *scratch, uint32_t warp, uint32_t lane)
{
    const work_descriptor &work = control.descriptors[control.n_finished % MAX_DESCRIPTORS];
    const uint32_t k_tiles = work.k_tiles;
    if (k_tiles == 0)
        return;
    const bool store_x = s.prologue == QN_PROLOGUE_RMS_NORM && work.block_in_slice < CLUSTER;
    const gemv_shared m = gemv_shared_of(s, scratch);
    uint4 f16_rows = {};
    if (m.acts_f32)
        f16_rows = f16_rows_load(s, work.slice, work.block_in_slice);
    if (CLUSTER > 1 && i && phase_at(control, i - 1).kind == QN_PHASE_DELTA)
        sync_cluster(); // the other block has stored the row of its last unit, which is in the scratch
    make_activations(control, s, m, work.slice * m.cols, k_tiles * QN_TILE_COLS, store_x, warp, lane);
    sync_cluster();
    prefetch_next(a, control, i);
    if (store_x)
        store_sumsq(control, s, work.slice, k_tiles * (QN_TILE_COLS / WARP_COLS), warp, lane);
    if (m.acts_f32)
        f16_rows_gemv(s, m.acts_f32, m.cols, rows_of(control), work.slice, work.block_in_slice, f16_rows, m.f16_sums);

    tile_range at = work.warp_ranges[warp];
    const uint32_t tiles = work.tiles, row_sums = k_tiles * tiles * QN_TILE_ROWS;
    float *to = m.acc + (at.k_tile * tiles + at.tile) * QN_TILE_ROWS;
    bit_plane_acts x[KERNEL_ROWS];
    weight_stream stream = control.streams[warp];
    while (at.remaining) {
        const uint32_t acts = qn_shared_address(m.acts) + at.k_tile * K_TILE_ACTS_BYTES;
#pragma unroll
        for (int row = 0; row < KERNEL_ROWS; row++)
            load_bit_plane_acts(x[row], acts + row * m.acts_bytes, lane);
        uint32_t remaining = min(at.remaining, tiles - at.tile);
        at.remaining -= remaining;
        at.k_tile++;
        at.tile = 0;
        while (remaining) {
            const uint32_t count = remaining < STEP_TILES ? remaining : STEP_TILES;
            gemv_step(to, row_sums, wait_for_step(stream), count, x, lane);
            release_step(stream, control, warp, lane);
            to += count * QN_TILE_ROWS;
            remaining -= count;
        }
    }
    put_stream(control, stream, warp, lane);
    __syncthreads();
    if (m.acts_f32 && threadIdx.x >= QN_PERSISTENT_THREADS - rows_of(control) * QN_TILE_ROWS)
        f16_rows_finish(s, m.f16_sums, work.slice, work.block_in_slice, QN_PERSISTENT_THREADS - 1 - threadIdx.x);
    reduce_k_tiles(s.out + ((uint64_t)work.slice * s.n_tiles + work.first_tile) * QN_TILE_ROWS,
                   (uint64_t)s.n_slices * s.n_tiles * QN_TILE_ROWS, m.acc, k_tiles, tiles * QN_TILE_ROWS, rows_of(control));
}

#if KERNEL_ROWS == 1

// ---- Delta phase ----

// The phase, by the whole block. The row of the block's last unit is stored by delta_store_deferred.
QN_DEVICE void delta_phase(const persistent_control &control, uint32_t i, uint8_t *scratch)
{
    const qn_persistent_delta &s = phase_at(control, i).u.delta;
    delta_shared &m = *(delta_shared *)scratch;
    for (uint32_t unit = blockIdx.x; unit < delta_units(s); unit += gridDim.x) {
        if (unit != blockIdx.x) {
            __syncthreads();
            delta_store_row(control.sequences[0], s, unit - gridDim.x, m);
            __syncthreads(); // all threads have read the previous unit's results
        }
        delta_unit(control.sequences[0], s, unit, m);
    }
}

// Stores the row of the block's last unit after the block's arrival at the grid barrier: no phase of this launch
// reads it, so that other blocks need not wait for it.
QN_DEVICE void delta_store_deferred(const persistent_control &control, uint32_t i, const uint8_t *scratch)
{
    const qn_persistent_delta &s = phase_at(control, i).u.delta;
    uint32_t unit = blockIdx.x;
    while (unit + gridDim.x < delta_units(s))
        unit += gridDim.x;
    if (unit < delta_units(s))
        delta_store_row(control.sequences[0], s, unit, *(const delta_shared *)scratch);
}

// ---- Attention phase ----

// Block u computes unit u.
QN_DEVICE attention_range attention_range_at(const persistent_control &control, const qn_persistent_attention &s, uint32_t unit,
                                             uint32_t &row)
{
    const uint32_t log_splits = 31 - __clz(s.n_splits);
    row = 0;
    return attention_range_of(s, control.sequences[0].position, unit >> log_splits, unit & (s.n_splits - 1), true);
}

QN_DEVICE void attention_phase(persistent_control &control, uint32_t i, uint8_t *scratch)
{
    const qn_persistent_attention &s = phase_at(control, i).u.attention;
    uint32_t row;
    attention_unit(s, attention_range_at(control, s, blockIdx.x, row), control.pages, control.sequences[0].position, scratch);
}

// ---- Store phase ----

QN_DEVICE void store_phase(const qn_persistent_store &s, uint32_t)
{
    const float factor = rms_scale(s.from);
    for (uint32_t k = 0; k < s.n_outs; k++)
        for (uint32_t i = blockIdx.x * QN_PERSISTENT_THREADS + threadIdx.x; i < s.outs[k].n_rows;
             i += gridDim.x * QN_PERSISTENT_THREADS) {
            const float y = factor * reduce_partials(s.from, s.outs[k].row + i);
            s.outs[k].out[i] = s.outs[k].x ? load_cg(s.outs[k].x + i) + y : y;
        }
}

QN_DEVICE void load_sequences(const qn_persistent_args &a, persistent_control &control, uint32_t lane)
{
    if (lane == 0)
        control.sequences[0] = load_sequence(a, 0);
}

#endif

// ---- The kernel ----

extern "C" __global__ void __launch_bounds__(QN_PERSISTENT_THREADS, 1)
    qn_persistent_decode(const __grid_constant__ qn_persistent_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    persistent_control &control = *(persistent_control *)shared;
    uint8_t *scratch = shared + QN_PERSISTENT_CONTROL_BYTES;
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    begin_launch(a, control, scratch, warp, lane);
    if (warp == 0)
        load_sequences(a, control, lane);
    sync_cluster(); // the other block's scratch is free

    for (uint32_t i = 0; i < a.n_phases; i++) {
        const uint32_t kind = phase_at(control, i).kind;
        if (kind != QN_PHASE_GEMV) // a GEMV phase calls it after its prologue
            prefetch_next(a, control, i);
        if (kind == QN_PHASE_GEMV)
            gemv_phase(a, i, control, phase_at(control, i).u.gemv, scratch, warp, lane);
        else if (kind == QN_PHASE_DELTA)
            delta_phase(control, i, scratch);
        else if (kind == QN_PHASE_ATTENTION)
            attention_phase(control, i, scratch);
        else
            store_phase(phase_at(control, i).u.store, rows_of(control));
        end_phase(a, i);
        if (kind == QN_PHASE_DELTA)
            delta_store_deferred(control, i, scratch);
        if (i + 1 == a.n_phases)
            break;
        if (phase_at(control, i + 1).kind == QN_PHASE_ATTENTION) {
            const qn_persistent_attention &s = phase_at(control, i + 1).u.attention;
            uint32_t row;
            const attention_range r = attention_range_at(control, s, blockIdx.x, row);
            if (row < rows_of(control))
                attention_prefetch(s, control.pages, row, r);
        }
        wait_for_phase(a, i, control, warp, lane);
    }
    if (threadIdx.x == 0)
        grid_barrier_reset(a.barrier, a.n_phases);
}
