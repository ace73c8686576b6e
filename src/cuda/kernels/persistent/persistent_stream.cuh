// The weight pipeline of the persistent decode kernel, and the other code shared by both of its kernels (persistent.cu:
// one row; persistent_rows.cu: up to 8): ring buffers, work descriptors, control data of a block, the launch around the
// phases, the grid barrier. Defines: QN_BITS, QN_SCALES, QN_STAGES; KERNEL_ROWS, the most rows of a launch; of one row
// QN_GEMV_WARPS and QN_COLUMNS_FIRST (persistent.h).
//
// Weight pipeline. Every warp but the barrier warp has a ring buffer of QN_STAGES stages in shared memory of its own; a
// stage holds one step, up to STEP_TILES weight tiles of a K tile. The warp issues the cp.async of a step as soon as a
// stage is free and waits only with cp.async.wait_group and __syncwarp: no block barrier, no other warp is involved.
// When all steps of a GEMV are issued, the warp continues with the steps of the next GEMV. This is allowed before the
// grid barrier, because weights never change, and keeps the ring full during barriers, prologues, attention and delta
// phases. At the start of the launch, the ring is filled before qn_pdl_wait, while the previous kernel still runs.
//
// Work descriptors. To run ahead across phases, a warp needs the addresses and tile ranges of the following GEMVs in
// shared memory. control.descriptors is a window of the work descriptors of MAX_DESCRIPTORS GEMVs, the current one
// included. While the block waits at a grid barrier, the scheduler warp computes one more descriptor into the slot of
// the GEMV that is finished; the few words that it needs of the phase were loaded during the barrier before.
//
// Barrier warp. One thread of BARRIER_WARP arrives for the block (red.release) and polls the counter (ld.acquire). The
// warp has no weights and issues no cp.async (it computes prologues and reduces sums of squares like the others): the
// release would wait for its copies in flight (decoding 27B Q1_0 on an
// H200: 446 tok/s with, 461 without; docs/lab/2026-11-gpu.md).
//
// Shared memory: persistent_control; scratch of the current phase; with attention over AURA codes their look-up tables;
// ring buffers of the GEMV warps.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_STREAM_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_STREAM_CUH

#include "cuda/kernels/matmul/gemv.cuh"
#include "cuda/kernels/persistent/persistent_attention.cuh"
#include "cuda/kernels/persistent/persistent_delta.cuh"

// Whether a warp's steps go over the K tiles of a group of row tiles first, so that its sums stay in registers.
#define COLUMNS_FIRST (KERNEL_ROWS > 1 || QN_COLUMNS_FIRST)

enum {
    WARPS = QN_PERSISTENT_THREADS / QN_WARP_SIZE,
    SCHEDULER_WARP = 1,       /* computes work descriptors */
    BARRIER_WARP = WARPS - 1, /* arrives and waits at grid barriers; issues no cp.async */
#ifdef QN_GEMV_WARPS
    GEMV_WARPS = QN_GEMV_WARPS,
#else
    GEMV_WARPS = WARPS - 1,
#endif
    PREFETCH_DISTANCE = 16,   /* phases ahead, of which the struct is prefetched into L2 */
    MAX_DESCRIPTORS = 8,      /* window of work descriptors, in GEMVs */
    STEP_TILES = QN_PERSISTENT_STEP_TILES(QN_BITS),
    CODE_BYTES = QN_TILE_CODE_BYTES,
    SCALE_BYTES = QN_TILE_SCALE_BYTES,
    STEP_BYTES = STEP_TILES * (CODE_BYTES + SCALE_BYTES),
    PHASE_WORDS = sizeof(qn_persistent_phase) / 4
};

// A part of a block's (K tile, row tile) pairs, from (k_tile, tile) on: `remaining` pairs, row tile fastest; or with
// COLUMNS_FIRST `remaining` steps, K tile fastest, and tile is a multiple of STEP_TILES.
struct tile_range {
    uint32_t k_tile, tile, remaining;
};

// The work of a block in a GEMV: k_tiles K tiles of its slice times `tiles` row tiles, and the range of each warp.
struct work_descriptor {
    const uint8_t *codes, *scales; // of the first K tile and row tile
    uint32_t k_stride_tiles;       // tiles from one K tile to the next
    uint32_t tiles, k_tiles, first_tile, slice, block_in_slice;
    uint32_t next_gemv; // index of the phase of the next GEMV
    tile_range warp_ranges[WARPS];
};

struct persistent_control {
    work_descriptor descriptors[MAX_DESCRIPTORS]; // GEMV k of the launch at k % MAX_DESCRIPTORS
    qn_persistent_phase phases[3];                // phase i at i % 3
    persistent_sequence sequences[KERNEL_ROWS];
    float sumsq[WARPS];
    uint32_t n_scheduled;         // GEMVs whose descriptors have been computed
    uint32_t n_finished;          // GEMVs whose phases have ended: also the index of the current GEMV
    uint32_t next_to_schedule;    // index of the phase of the next GEMV to schedule, or n_phases
    uint32_t words[QN_WARP_SIZE]; // load_descriptor_word of that phase
    attention_pages pages;
#if ATTENTION_CODES
    uint32_t index; // of the current phase
#endif
#if KERNEL_ROWS > 1
    uint32_t n_rows;
    qn_persistent_phase row_phase; // the current phase with the addresses of one row
#endif
};

static_assert(sizeof(persistent_control) <= QN_PERSISTENT_CONTROL_BYTES, "QN_PERSISTENT_CONTROL_BYTES is too small");
static_assert(sizeof(qn_persistent_phase) / 4 <= QN_PERSISTENT_THREADS, "one thread copies one word of a phase");
static_assert(sizeof(qn_persistent_phase) % 16 == 0, "cp.async.bulk.prefetch needs multiples of 16 bytes");

// ---- Weight pipeline ----

// The weights of a warp as a stream of steps over all GEMVs of the launch, and the state of its ring buffer. A step is
// up to STEP_TILES consecutive row tiles of one K tile.
struct weight_stream {
    const uint8_t *codes, *scales;
#if !COLUMNS_FIRST
    uint32_t k_stride_tiles, tiles;
#endif
    tile_range at;             // not yet issued
    uint32_t gemv;             // of `at`
    uint32_t issued, consumed; // stages of the ring: the next one to fill, the next one to use
    uint32_t in_flight;        // steps issued and not yet released
    uint32_t shared;           // address of the ring buffer
};

QN_DEVICE void begin_gemv(weight_stream &s, const persistent_control &control, uint32_t warp, uint32_t lane)
{
    const work_descriptor &work = control.descriptors[s.gemv % MAX_DESCRIPTORS];
    s.at = work.warp_ranges[warp];
#if !COLUMNS_FIRST
    s.k_stride_tiles = work.k_stride_tiles;
    s.tiles = work.tiles;
#endif
    const uint64_t tile = (uint64_t)s.at.k_tile * work.k_stride_tiles + s.at.tile;
    s.codes = work.codes + tile * CODE_BYTES + 16 * lane;
    s.scales = work.scales + tile * SCALE_BYTES + 16 * lane;
}

#if COLUMNS_FIRST

// Tiles of the next step, and the stream past them.

QN_DEVICE uint32_t next_count(const weight_stream &s, const persistent_control &control)
{
    return control.descriptors[s.gemv % MAX_DESCRIPTORS].tiles - s.at.tile;
}

QN_DEVICE void advance(weight_stream &s, const persistent_control &control, uint32_t)
{
    const work_descriptor &work = control.descriptors[s.gemv % MAX_DESCRIPTORS];
    int64_t tiles = work.k_stride_tiles;
    s.at.remaining--;
    if (++s.at.k_tile == work.k_tiles) {
        tiles += STEP_TILES - (int64_t)work.k_tiles * work.k_stride_tiles;
        s.at.k_tile = 0;
        s.at.tile += STEP_TILES;
    }
    s.codes += tiles * CODE_BYTES;
    s.scales += tiles * SCALE_BYTES;
}

#else

QN_DEVICE uint32_t next_count(const weight_stream &s, const persistent_control &)
{
    return min(s.at.remaining, s.tiles - s.at.tile);
}

QN_DEVICE void advance(weight_stream &s, const persistent_control &, uint32_t count)
{
    s.codes += count * CODE_BYTES;
    s.scales += count * SCALE_BYTES;
    s.at.remaining -= count;
    s.at.tile += count;
    if (s.at.tile == s.tiles) {
        s.at.tile = 0;
        s.codes += (uint64_t)(s.k_stride_tiles - s.tiles) * CODE_BYTES;
        s.scales += (uint64_t)(s.k_stride_tiles - s.tiles) * SCALE_BYTES;
    }
}

#endif

// Issues the copies of the next step, crossing into the next GEMV where one ends. Returns false, and issues nothing,
// when all steps of the scheduled GEMVs have been issued. By a full warp.
QN_DEVICE bool issue_step(weight_stream &s, const persistent_control &control, uint32_t warp, uint32_t lane)
{
    while (s.at.remaining == 0) {
        if (s.gemv + 1 >= control.n_scheduled)
            return false;
        s.gemv++;
        begin_gemv(s, control, warp, lane);
    }
    uint32_t count = next_count(s, control);
    count = count < STEP_TILES ? count : STEP_TILES;
    const uint32_t to = s.shared + s.issued * STEP_BYTES + 16 * lane;
    copy_weights<STEP_TILES, CODE_BYTES, SCALE_BYTES>(to, s.codes, s.scales, count, 16 * lane, 0);
    qn_cp_async_commit();
    advance(s, control, count);
    s.issued = s.issued + 1 == QN_STAGES ? 0 : s.issued + 1;
    s.in_flight++;
    return true;
}

QN_DEVICE void issue_steps(weight_stream &s, const persistent_control &control, uint32_t warp, uint32_t lane)
{
    while (s.in_flight < QN_STAGES && issue_step(s, control, warp, lane))
        ;
}

// Waits until the copies of the oldest step have completed; returns its shared address.
QN_DEVICE uint32_t wait_for_step(const weight_stream &s)
{
    if (s.in_flight == QN_STAGES)
        qn_cp_async_wait<QN_STAGES - 1>();
    else // the end of the stream: fewer groups in flight than stages
        qn_cp_async_wait<0>();
    __syncwarp();
    return s.shared + s.consumed * STEP_BYTES;
}

QN_DEVICE void release_step(weight_stream &s, const persistent_control &control, uint32_t warp, uint32_t lane)
{
    __syncwarp();
    s.consumed = s.consumed + 1 == QN_STAGES ? 0 : s.consumed + 1;
    s.in_flight--;
    issue_step(s, control, warp, lane);
}

// ---- Work descriptors, by the scheduler warp ----

// The inputs of a work descriptor, one 32-bit word a lane: the words of qn_persistent_gemv from `weights` on, and the
// phase's next_gemv.
enum { DESCRIPTOR_WORDS = 7, NEXT_GEMV_LANE = DESCRIPTOR_WORDS };

#ifndef __CUDACC_RTC__ // NVRTC has no offsetof
static_assert(__builtin_offsetof(qn_persistent_gemv, slice_blocks) ==
                  __builtin_offsetof(qn_persistent_gemv, weights) + 4 * (DESCRIPTOR_WORDS - 1),
              "weights, n_tiles, n_k_tiles, slice_k_tiles, n_slices, slice_blocks");
#endif

QN_DEVICE uint32_t load_descriptor_word(const qn_persistent_args &a, uint32_t index, uint32_t lane)
{
    const uint32_t *words = (const uint32_t *)&a.phases[index].u.gemv.weights;
    return lane < DESCRIPTOR_WORDS ? words[lane] : lane == NEXT_GEMV_LANE ? a.phases[index].next_gemv : 0;
}

#if COLUMNS_FIRST

// The steps of a block. Warp w has steps [first_step(w), first_step(w + 1)).
QN_DEVICE uint32_t block_steps(uint32_t k_tiles, uint32_t tiles)
{
    return (tiles + STEP_TILES - 1) / STEP_TILES * k_tiles;
}

QN_DEVICE uint32_t first_step(uint32_t all, uint32_t warp)
{
    return all * warp / GEMV_WARPS;
}

// The warp of a block that has a step.
QN_DEVICE uint32_t warp_of_step(uint32_t all, uint32_t step)
{
    return ((step + 1) * GEMV_WARPS + all - 1) / all - 1;
}

#endif

// Computes the block's work descriptor of a GEMV from the words of load_descriptor_word. By one warp.
QN_DEVICE void make_work_descriptor(work_descriptor &work, uint32_t word, uint32_t lane)
{
    uint32_t w[DESCRIPTOR_WORDS + 1];
#pragma unroll
    for (int i = 0; i <= DESCRIPTOR_WORDS; i++)
        w[i] = __shfl_sync(QN_FULL_MASK, word, i);
    const uint8_t *weights = (const uint8_t *)((uint64_t)w[1] << 32 | w[0]);
    const uint32_t n_tiles = w[2], n_k_tiles = w[3], slice_k_tiles = w[4], n_slices = w[5], slice_blocks = w[6];
    const uint32_t slice = blockIdx.x / slice_blocks, block_in_slice = blockIdx.x % slice_blocks;
    const bool has_work = slice < n_slices;
    const uint32_t first_k_tile = slice * slice_k_tiles, remaining = n_k_tiles - first_k_tile;
    const uint32_t k_tiles = !has_work ? 0 : remaining < slice_k_tiles ? remaining : slice_k_tiles;
    const uint32_t first_tile = n_tiles * block_in_slice / slice_blocks,
                   tiles = n_tiles * (block_in_slice + 1) / slice_blocks - first_tile;
    if (lane == 0) {
        const uint64_t first = has_work ? (uint64_t)first_k_tile * n_tiles + first_tile : 0;
        work.codes = weights + first * CODE_BYTES;
        work.scales = weights + (uint64_t)n_k_tiles * n_tiles * CODE_BYTES + first * SCALE_BYTES;
        work.k_stride_tiles = n_tiles;
        work.tiles = tiles;
        work.k_tiles = k_tiles;
        work.first_tile = first_tile;
        work.slice = slice;
        work.block_in_slice = block_in_slice;
        work.next_gemv = w[NEXT_GEMV_LANE];
    }
    if (lane < GEMV_WARPS) {
#if COLUMNS_FIRST
        const uint32_t all = block_steps(k_tiles, tiles), from = first_step(all, lane), to = first_step(all, lane + 1);
        work.warp_ranges[lane] = { k_tiles ? from % k_tiles : 0, k_tiles ? from / k_tiles * STEP_TILES : 0, to - from };
#else
        const uint32_t all = k_tiles * tiles, from = all * lane / GEMV_WARPS, to = all * (lane + 1) / GEMV_WARPS;
        work.warp_ranges[lane] = { tiles ? from / tiles : 0, tiles ? from % tiles : 0, to - from };
#endif
    }
    if (lane >= GEMV_WARPS && lane < WARPS)
        work.warp_ranges[lane] = { 0, 0, 0 };
}

// Work descriptors of the first MAX_DESCRIPTORS GEMVs among the first 32 phases, at the start of the launch. By one
// warp. `words` is scratch in shared memory, [MAX_DESCRIPTORS][QN_WARP_SIZE].
QN_DEVICE void schedule_first_gemvs(const qn_persistent_args &a, persistent_control &control, uint32_t *words, uint32_t lane)
{
    uint32_t gemv_mask = __ballot_sync(QN_FULL_MASK, lane < a.n_phases && a.phases[lane].kind == QN_PHASE_GEMV);
    uint32_t n = __popc(gemv_mask);
    n = n < MAX_DESCRIPTORS ? n : MAX_DESCRIPTORS;
    uint32_t lane_words[MAX_DESCRIPTORS];
#pragma unroll
    for (int i = 0; i < MAX_DESCRIPTORS; i++, gemv_mask &= gemv_mask - 1)
        lane_words[i] = gemv_mask ? load_descriptor_word(a, __ffs(gemv_mask) - 1, lane) : 0;
#pragma unroll
    for (int i = 0; i < MAX_DESCRIPTORS; i++)
        words[i * QN_WARP_SIZE + lane] = lane_words[i];
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++)
        make_work_descriptor(control.descriptors[i], words[i * QN_WARP_SIZE + lane], lane);
    __syncwarp();
    control.n_scheduled = n;
    control.n_finished = 0;
    control.next_to_schedule = n ? control.descriptors[n - 1].next_gemv : a.n_phases;
    if (control.next_to_schedule < a.n_phases)
        control.words[lane] = load_descriptor_word(a, control.next_to_schedule, lane);
}

// Computes one more work descriptor if the window has a free slot, and loads the words for the next call.
// `gemv_finished`: the phase that has just ended was a GEMV; its slot is free. By one warp.
QN_DEVICE void schedule_next_gemv(const qn_persistent_args &a, persistent_control &control, bool gemv_finished, uint32_t lane)
{
    const uint32_t n_finished = control.n_finished + gemv_finished;
    __syncwarp();
    if (lane == 0)
        control.n_finished = n_finished;
    const uint32_t n = control.n_scheduled, word = control.words[lane], after = control.words[NEXT_GEMV_LANE];
    if (control.next_to_schedule >= a.n_phases || n - n_finished >= MAX_DESCRIPTORS)
        return;
    const uint32_t next_word = after < a.n_phases ? load_descriptor_word(a, after, lane) : 0;
    make_work_descriptor(control.descriptors[n % MAX_DESCRIPTORS], word, lane);
    __syncwarp();
    control.words[lane] = next_word;
    if (lane == 0) {
        control.n_scheduled = n + 1;
        control.next_to_schedule = after;
    }
}

// ---- Phases in shared memory ----

// Phase i in shared memory. The asm makes the compiler compute the address at each use instead of keeping it: phases
// have no register for it, and a spilled one costs a round trip to L2 after each grid barrier.
QN_DEVICE const qn_persistent_phase &phase_at(const persistent_control &control, uint32_t i)
{
    uint32_t slot;
    asm volatile("mov.u32 %0, %1;" : "=r"(slot) : "r"(i % 3));
    return control.phases[slot];
}

// The index of the current phase, `i`. With attention over codes, which takes all registers, it is in shared memory
// instead of a register that would be spilled in all phases.
QN_DEVICE uint32_t phase_index(const persistent_control &control, uint32_t i)
{
#if ATTENTION_CODES
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(i) : "r"(qn_shared_address(&control.index)) : "memory");
#endif
    return i;
}

// By one thread, and a block barrier before phase i.
QN_DEVICE void set_phase_index(persistent_control &control, uint32_t i)
{
#if ATTENTION_CODES
    control.index = i;
#endif
}

// The block's work in the current GEMV, number gemv_index of the launch.
QN_DEVICE const work_descriptor &work_at(const persistent_control &control, uint32_t gemv_index)
{
#if ATTENTION_CODES
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(gemv_index) : "r"(qn_shared_address(&control.n_finished)) : "memory");
#endif
    return control.descriptors[gemv_index % MAX_DESCRIPTORS];
}

// ---- Grid barrier ----

// One counter for all barriers of a launch: barrier i is complete at (i + 1) * gridDim.x arrivals. All writes that the
// blocks have made before their arrivals are visible after the wait, to loads from L2 (load_cg). One thread arrives for
// its block, after __syncthreads(): persistent.h says why its release covers the writes of the other threads.
QN_DEVICE void grid_barrier_arrive(uint32_t *barrier)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
}

// Ends the launch with an error after MAX_POLLS round trips to L2, about a second: a fault is then no hang, which display
// drivers answer after 2 s by resetting the device (docs/internals/persistent-decode.md). Polls are counted instead of
// time, so that the launch may be preempted for as long as others need.
QN_DEVICE void grid_barrier_wait(const uint32_t *barrier, uint32_t expected)
{
    enum { MAX_POLLS = 1 << 20 };
    uint32_t arrived, polls = 0;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(barrier) : "memory");
        if (++polls == MAX_POLLS)
            __trap();
    } while (arrived < expected);
}

// After the last phase: the last block to arrive resets the counter for the next launch.
QN_DEVICE void grid_barrier_reset(uint32_t *barrier, uint32_t n_phases)
{
    if (atomicAdd(barrier, 1) + 1 == gridDim.x * n_phases)
        *barrier = 0;
}

// The end of a phase in a block: its stores are published.
QN_DEVICE void end_phase(const qn_persistent_args &a, uint32_t i)
{
    __syncthreads();
    if (threadIdx.x == BARRIER_WARP * QN_WARP_SIZE && i + 1 < a.n_phases)
        grid_barrier_arrive(a.barrier);
}

// ---- The launch around its phases ----

QN_DEVICE uint8_t *ring_buffers(uint8_t *scratch)
{
#if ATTENTION_CODES
    return scratch + QN_PERSISTENT_SCRATCH_BYTES + CODE_TABLE_BYTES + QN_PERSISTENT_PARKED_BYTES;
#else
    return scratch + (KERNEL_ROWS > 1 ? QN_PERSISTENT_ROWS_SCRATCH_BYTES : QN_PERSISTENT_SCRATCH_BYTES);
#endif
}

// Everything before the first phase but the sequences of the rows. Weights are in flight afterwards, and results of the
// previous launch are visible.
QN_DEVICE weight_stream begin_launch(const qn_persistent_args &a, persistent_control &control, uint8_t *scratch, uint32_t warp,
                                     uint32_t lane)
{
    if (warp == 0)
        schedule_first_gemvs(a, control, (uint32_t *)scratch, lane);
    if (threadIdx.x < PHASE_WORDS)
        for (uint32_t i = 0; i < 2 && i < a.n_phases; i++)
            ((uint32_t *)(control.phases + i))[threadIdx.x] = ((const uint32_t *)(a.phases + i))[threadIdx.x];
    __syncthreads();
    weight_stream stream = {};
    stream.shared = qn_shared_address(ring_buffers(scratch)) + warp * QN_STAGES * STEP_BYTES;
    if (control.n_scheduled)
        begin_gemv(stream, control, warp, lane);
    issue_steps(stream, control, warp, lane); // phases and weights do not depend on the previous launch
    qn_pdl_wait();
    // All blocks are resident, and hold all registers: blocks of the next kernel begin where one of these has ended.
    // After the wait, so that all work before this launch is complete, whose results they load early.
    qn_pdl_trigger();
    if (threadIdx.x < 2) {
        set_phase_index(control, 0);
        control.pages.first[threadIdx.x] = 1;
        control.pages.last[threadIdx.x] = 0;
    }
    return stream;
}

// Between end_phase of phase i and phase i + 1.
QN_DEVICE void wait_for_phase(const qn_persistent_args &a, uint32_t i, persistent_control &control, weight_stream &stream,
                              uint32_t warp, uint32_t lane)
{
    const uint32_t word = threadIdx.x - 2 * QN_WARP_SIZE;
    if (word < PHASE_WORDS && i + 2 < a.n_phases) // into the slot of phase i - 1
        ((uint32_t *)&control.phases[(i + 2) % 3])[word] = ((const uint32_t *)(a.phases + i + 2))[word];
    if (threadIdx.x == BARRIER_WARP * QN_WARP_SIZE) {
        set_phase_index(control, i + 1);
        grid_barrier_wait(a.barrier, (i + 1) * gridDim.x);
    } else if (warp == SCHEDULER_WARP) {
        schedule_next_gemv(a, control, phase_at(control, i).kind == QN_PHASE_GEMV, lane);
    }
    __syncthreads();
    issue_steps(stream, control, warp, lane);
}

#endif
