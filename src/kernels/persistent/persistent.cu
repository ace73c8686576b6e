// The persistent decode kernel: one cooperative launch, one block an SM, one grid barrier after each phase. Read the
// head comment of persistent_cuda.h first: it describes phases, split-K GEMVs, the hand-over of partial sums and memory
// ordering. Here are the loop over phases (at the end of the file), the weight pipeline, work descriptors, the GEMV and
// store phases. persistent_delta.cuh and persistent_attention.cuh have the other phases, plane_acts.cuh the activations and
// matmul/bit_planes.cuh the inner product of the GEMV.
//
// A GEMV phase, in one block:
//
//   1. Prologue (make_activations), all warps: load the inputs of the block's slice of K, reducing the partials of earlier
//      phases in ascending order; norm, SwiGLU, gate or combine; Hadamard transform; quantise to bit planes in shared
//      memory. __syncthreads().
//   2. Prefetch the next phase's inputs other than weights and partials into L2 (prefetch_next).
//   3. GEMV (all warps but the barrier warp): each warp multiplies its range of the block's (K tile, row tile) pairs. The
//      weights come from its ring buffer, the sums of each pair go to shared memory. __syncthreads().
//   4. Reduction over the slice's K tiles, in ascending order: the block's partial sums, to global memory
//      (reduce_k_tiles).
//   5. __syncthreads(), arrival at the grid barrier (end_phase), wait, __syncthreads().
//
// Weight pipeline. Every warp but the barrier warp has a ring buffer of QN_STAGES stages in shared memory of its own; a
// stage holds one step, up to STEP_TILES weight tiles of a K tile. The warp issues the cp.async of a step as soon as a
// stage is free and waits only with cp.async.wait_group and __syncwarp: no block barrier, no other warp is involved.
// When all steps of a GEMV are issued, the warp continues with those of the next GEMV. This is allowed before the grid
// barrier, because weights never change, and keeps the ring full during barriers, prologues, attention and delta
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
// Shared memory: persistent_control; scratch of the current phase; ring buffers, [WARPS][QN_STAGES][STEP_BYTES], of which
// the barrier warp's is unused.
//
// Registers. Spills are costly beyond their number: the acquire at a grid barrier invalidates L1, so that each spilled
// value costs a round trip to L2 in the next phase.
#include "kernels/butterflies.cuh"
#include "kernels/persistent/persistent_attention.cuh"
#include "kernels/persistent/persistent_delta.cuh"
#include "kernels/persistent/plane_acts.cuh"

enum {
    WARPS = QN_PERSISTENT_THREADS / QN_WARP_SIZE,
    SCHEDULER_WARP = 1,       /* computes work descriptors */
    BARRIER_WARP = WARPS - 1, /* arrives and waits at grid barriers; issues no cp.async */
    GEMV_WARPS = WARPS - 1,
    PREFETCH_DISTANCE = 16,   /* phases ahead, of which the struct is prefetched into L2 */
    MAX_DESCRIPTORS = 8,      /* window of work descriptors, in GEMVs */
    STEP_TILES = QN_PERSISTENT_STEP_TILES(QN_BITS),
    CODE_BYTES = QN_TILE_CODE_BYTES,
    SCALE_BYTES = QN_TILE_SCALE_BYTES,
    STEP_BYTES = STEP_TILES * (CODE_BYTES + SCALE_BYTES),
    PHASE_WORDS = sizeof(qn_persistent_phase) / 4,
    WARP_COLS = 4 * QN_WARP_SIZE /* activations that a warp computes in one iteration of the prologue */
};

// A range of (K tile, row tile) pairs of a block, row tile fastest: `remaining` pairs from (k_tile, tile) on.
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
    persistent_sequence sequence;
    float sumsq[WARPS];
    uint32_t n_scheduled;         // GEMVs whose descriptors have been computed
    uint32_t n_finished;          // GEMVs whose phases have ended: also the index of the current GEMV
    uint32_t next_to_schedule;    // index of the phase of the next GEMV to schedule, or n_phases
    uint32_t words[QN_WARP_SIZE]; // load_descriptor_word of that phase
    attention_pages pages;
};

static_assert(sizeof(persistent_control) <= QN_PERSISTENT_CONTROL_BYTES, "QN_PERSISTENT_CONTROL_BYTES is too small");
static_assert(sizeof(qn_persistent_phase) / 4 <= QN_PERSISTENT_THREADS, "one thread copies one word of a phase");
static_assert(sizeof(qn_persistent_phase) % 16 == 0, "cp.async.bulk.prefetch needs multiples of 16 bytes");

// ---- Weight pipeline ----

// The weights of a warp as a stream of steps over all GEMVs of the launch, and the state of its ring buffer. A step is
// up to STEP_TILES consecutive row tiles of one K tile.
struct weight_stream {
    const uint8_t *codes, *scales;
    uint32_t k_stride_tiles, tiles;
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
    s.k_stride_tiles = work.k_stride_tiles;
    s.tiles = work.tiles;
    const uint64_t tile = (uint64_t)s.at.k_tile * s.k_stride_tiles + s.at.tile;
    s.codes = work.codes + tile * CODE_BYTES + 16 * lane;
    s.scales = work.scales + tile * SCALE_BYTES + 16 * lane;
}

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
    uint32_t count = min(s.at.remaining, s.tiles - s.at.tile);
    count = count < STEP_TILES ? count : STEP_TILES;
    const uint32_t to = s.shared + s.issued * STEP_BYTES + 16 * lane;
    copy_weights<STEP_TILES, CODE_BYTES, SCALE_BYTES>(to, s.codes, s.scales, count, 16 * lane, 0);
    qn_cp_async_commit();
    s.codes += count * CODE_BYTES;
    s.scales += count * SCALE_BYTES;
    s.at.remaining -= count;
    s.at.tile += count;
    if (s.at.tile == s.tiles) {
        s.at.tile = 0;
        s.codes += (uint64_t)(s.k_stride_tiles - s.tiles) * CODE_BYTES;
        s.scales += (uint64_t)(s.k_stride_tiles - s.tiles) * SCALE_BYTES;
    }
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
        const uint32_t all = k_tiles * tiles, from = all * lane / GEMV_WARPS, to = all * (lane + 1) / GEMV_WARPS;
        work.warp_ranges[lane] = { tiles ? from / tiles : 0, tiles ? from % tiles : 0, to - from };
    }
    if (lane == BARRIER_WARP)
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

// ---- GEMV prologue: activations ----

// Elements c to c+3 of split-K partials, reduced and multiplied by the norm's factor. By full warps.
template <int count> QN_DEVICE float4 load_scaled_partials(const qn_persistent_partials &p, uint32_t c, float sumsq, bool pred)
{
    partial_loads_4<count> loads;
    issue_partials_4(loads, p, c, 0, pred);
    const float factor = rms_scale(p, sumsq);
    return scale_4(finish_partials_4(loads, p, c, pred), factor);
}

// Columns c to c+3 of the element-wise prologues: PLAIN, RMS_NORM, SWIGLU. RMS_NORM adds the squares of x + from to
// `square`, and with store_x stores x + from to x_out. All loads are issued before the first result is used.
QN_DEVICE float4 prologue_elementwise(const qn_persistent_gemv &s, uint32_t c, bool store_x, float &square)
{
    const uint32_t prologue = s.prologue;
    const bool in_range = c < s.n_cols;
    const float sumsq = rms_sumsq(s.from);
    if (prologue == QN_PROLOGUE_SWIGLU) {
        partial_loads_4<6> loads, loads2;
        issue_partials_4(loads, s.from, s.row + c, 0, in_range);
        issue_partials_4(loads2, s.from, s.row2 + c, 0, in_range);
        const float factor = rms_scale(s.from, sumsq);
        const float4 gate = scale_4(finish_partials_4(loads, s.from, s.row + c, in_range), factor);
        const float4 up = scale_4(finish_partials_4(loads2, s.from, s.row2 + c, in_range), factor);
        return make_float4(qn_silu_fast(gate.x) * up.x, qn_silu_fast(gate.y) * up.y, qn_silu_fast(gate.z) * up.z,
                           qn_silu_fast(gate.w) * up.w);
    }
    float4 x = load_cg_4_if(s.x + c, in_range);
    if (prologue == QN_PROLOGUE_PLAIN)
        return x;
    const float4 weight = load_cg_4_if(s.weight + c, in_range);
    const float4 addend = s.from.n_partials <= 6 ? load_scaled_partials<6>(s.from, c, sumsq, in_range)
                                                 : load_scaled_partials<12>(s.from, c, sumsq, in_range);
    x = add_4(x, addend);
    if (store_x && in_range)
        *(float4 *)(s.x_out + c) = x;
    square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
    return make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
}

// The butterflies of a Walsh-Hadamard transform in blocks of `rotation` columns whose strides are below 128, within a
// warp. Four adjacent columns a lane.
QN_DEVICE float4 hadamard_in_warp(float4 x, uint32_t rotation, uint32_t lane)
{
    float v[4] = { x.x, x.y, x.z, x.w };
    qn_butterflies<1, 4>(v);
    qn_butterflies<2, 4>(v);
    const uint32_t lanes = rotation < WARP_COLS ? rotation / 4 : QN_WARP_SIZE;
#pragma unroll 1
    for (uint32_t distance = 1; distance < lanes; distance *= 2) {
        const float sign = lane & distance ? -1.0f : 1.0f; // the upper lane keeps the difference
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = fmaf(v[i], sign, __shfl_xor_sync(QN_FULL_MASK, v[i], distance));
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The remaining butterflies, strides of 128 and more: columns within to within+3 of group `group` of a block of `count`
// groups of 128 columns, each of which has been transformed by itself. Each step combines adjacent groups; a bit of the
// group's index selects the sum or the difference.
template <int count> QN_DEVICE float4 hadamard_over_groups(const float *block, uint32_t group, uint32_t within)
{
    float4 v[count];
#pragma unroll
    for (int j = 0; j < count; j++)
        v[j] = *(const float4 *)(block + j * WARP_COLS + within);
#pragma unroll
    for (int n = count / 2, bit = 1; n > 0; n /= 2, bit *= 2)
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = add_4(v[2 * j], scale_4(v[2 * j + 1], group & bit ? -1.0f : 1.0f));
    return v[0];
}

// Finishes the transform of columns at + 4*lane on, which are in shared memory as results of hadamard_in_warp.
QN_DEVICE float4 hadamard_acts(const float *acts_f32, uint32_t at, uint32_t rotation, uint32_t lane)
{
    const float *block = acts_f32 + at / rotation * rotation;
    const uint32_t group = at % rotation / WARP_COLS;
    return rotation == 256   ? hadamard_over_groups<2>(block, group, 4 * lane)
           : rotation == 512 ? hadamard_over_groups<4>(block, group, 4 * lane)
                             : hadamard_over_groups<8>(block, group, 4 * lane);
}

// Layout of a GEMV phase's scratch in shared memory.
struct gemv_shared {
    uint8_t *acts;   // activations of the slice as bit planes
    float *acts_f32; // with fp16 rows: activations in f32, neither rotated nor quantised, then F16_SCRATCH floats; else null
    // The same memory twice. acc: sums, [k_tiles][tiles][16]; rotated: before that, the Hadamard transform's exchange
    // between warps.
    float *acc, *rotated;
};

QN_DEVICE float4 run_prologue(const qn_persistent_gemv &s, uint32_t position, uint32_t first, bool store_x, float &square,
                              uint32_t lane)
{
    if (s.prologue == QN_PROLOGUE_GATED_NORM)
        return prologue_gated_norm(s, first, lane);
    if (s.prologue == QN_PROLOGUE_ATTENTION_COMBINE)
        return prologue_attention_combine(s, position, first, lane);
    return prologue_elementwise(s, first + 4 * lane, store_x, square);
}

// The prologue of a GEMV: activations of `count` columns from `first` on, the block's slice (full K tiles), as bit
// planes in m.acts. Where `rotation` exceeds the WARP_COLS columns of a warp, warps exchange values through m.rotated,
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
                x = run_prologue(s, control.sequence.position, first + at, store_x, square, lane);
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
                x = hadamard_acts(m.rotated, at, rotation, lane);
            }
            quantize_bit_planes(m.acts, at, scale_4(x, normal), lane);
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

// Prefetches into L2 the inputs of a phase that no phase of this launch writes, during the phase before it. (Loading
// them into registers before the grid barrier was slower: the registers spill.)
QN_DEVICE void prefetch_phase(const persistent_sequence &sequence, const qn_persistent_phase &phase)
{
    if (phase.kind == QN_PHASE_DELTA)
        delta_prefetch(sequence, phase.u.delta);
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

// Phase i in shared memory. The asm makes the compiler compute the address at each use instead of keeping it: phases
// have no register for it, and a spilled one costs a round trip to L2 after each grid barrier.
QN_DEVICE const qn_persistent_phase &phase_at(const persistent_control &control, uint32_t i)
{
    uint32_t slot;
    asm volatile("mov.u32 %0, %1;" : "=r"(slot) : "r"(i % 3));
    return control.phases[slot];
}

// Prefetches the inputs of phase i + 1, and the struct of phase i + PREFETCH_DISTANCE. Called when no thread waits for
// loads: in a GEMV phase after the prologue.
QN_DEVICE void prefetch_next(const qn_persistent_args &a, const persistent_control &control, uint32_t i)
{
    if (threadIdx.x == QN_PERSISTENT_THREADS - 1 && i + PREFETCH_DISTANCE < a.n_phases)
        prefetch_bytes(a.phases + i + PREFETCH_DISTANCE, sizeof *a.phases);
    if (i + 1 < a.n_phases)
        prefetch_phase(control.sequence, phase_at(control, i + 1));
}

// ---- GEMV phase ----

// One step: `count` tiles at shared address `step` times the activations of a K tile, sums to `to` [count][16]. Two
// tiles at a time: with an odd count the last tile is stale data, whose sums are not stored.
QN_DEVICE void gemv_step(float *to, uint32_t step, uint32_t count, const bit_plane_acts &x, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + lane / 4 * 4;
    float acc[STEP_TILES][2] = {};
#pragma unroll
    for (int m = 0; m < STEP_TILES; m += 2)
        if (m < count)
            bit_plane_mma<2>(acc + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
    reduce_store_n1<STEP_TILES>(to, acc, count, lane);
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

// Phase i, a GEMV: see the head comment. gemv_index counts the GEMVs of the launch.
QN_DEVICE void gemv_phase(const qn_persistent_args &a, uint32_t i, persistent_control &control, const qn_persistent_gemv &s,
                          uint8_t *scratch, weight_stream &stream, uint32_t gemv_index, uint32_t warp, uint32_t lane)
{
    const work_descriptor &work = control.descriptors[gemv_index % MAX_DESCRIPTORS];
    const uint32_t k_tiles = work.k_tiles, tiles = work.tiles;
    if (k_tiles == 0)
        return;
    const bool store_x = s.prologue == QN_PROLOGUE_RMS_NORM && work.block_in_slice == 0;
    gemv_shared m = { scratch, (float *)(scratch + s.slice_k_tiles * K_TILE_ACTS_BYTES) };
    m.acc = m.rotated = m.acts_f32 + (s.n_f16_tiles ? s.slice_k_tiles * QN_TILE_COLS + F16_SCRATCH : 0);
    if (!s.n_f16_tiles)
        m.acts_f32 = nullptr;
    uint4 f16_rows = {};
    if (m.acts_f32)
        f16_rows = f16_rows_load(s, work.slice, work.block_in_slice);
    make_activations(control, s, m, work.slice * s.slice_k_tiles * QN_TILE_COLS, k_tiles * QN_TILE_COLS, store_x, warp, lane);
    __syncthreads();
    prefetch_next(a, control, i);
    if (store_x && warp == WARPS - 1) {
        const float square = qn_warp_sum(lane < WARPS ? control.sumsq[lane] : 0);
        if (lane == 0)
            s.sumsq[work.slice] = square;
    }
    if (m.acts_f32)
        f16_rows_gemv(s, m.acts_f32, work.slice, work.block_in_slice, f16_rows, m.acts_f32 + s.slice_k_tiles * QN_TILE_COLS);

    tile_range at = work.warp_ranges[warp];
    float *to = m.acc + (at.k_tile * tiles + at.tile) * QN_TILE_ROWS;
    bit_plane_acts x;
    while (at.remaining) {
        load_bit_plane_acts(x, qn_shared_address(m.acts) + at.k_tile * K_TILE_ACTS_BYTES, lane);
        uint32_t remaining = min(at.remaining, tiles - at.tile);
        at.remaining -= remaining;
        at.k_tile++;
        at.tile = 0;
        while (remaining) {
            const uint32_t count = remaining < STEP_TILES ? remaining : STEP_TILES;
            gemv_step(to, wait_for_step(stream), count, x, lane);
            release_step(stream, control, warp, lane);
            to += count * QN_TILE_ROWS;
            remaining -= count;
        }
    }
    float *out = s.out + ((uint64_t)work.slice * s.n_tiles + work.first_tile) * QN_TILE_ROWS;
    __syncthreads();
    if (m.acts_f32 && threadIdx.x >= QN_PERSISTENT_THREADS - QN_TILE_ROWS)
        f16_rows_finish(s, m.acts_f32 + s.slice_k_tiles * QN_TILE_COLS, work.slice, work.block_in_slice,
                        QN_PERSISTENT_THREADS - 1 - threadIdx.x);
    reduce_k_tiles(out, m.acc, k_tiles, tiles * QN_TILE_ROWS);
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

// ---- Grid barrier ----

// One counter for all barriers of a launch: barrier i is complete at (i + 1) * gridDim.x arrivals. All writes that the
// blocks have made before their arrivals are visible after the wait, to loads from L2 (load_cg). One thread arrives for
// its block, after __syncthreads(): persistent_cuda.h says why its release covers the writes of the other threads.
QN_DEVICE void grid_barrier_arrive(uint32_t *barrier)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
}

QN_DEVICE void grid_barrier_wait(const uint32_t *barrier, uint32_t expected)
{
    uint32_t arrived;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(barrier) : "memory");
    while (arrived < expected);
}

// After the last phase: the last block to arrive resets the counter for the next launch.
QN_DEVICE void grid_barrier_reset(uint32_t *barrier, uint32_t n_phases)
{
    if (atomicAdd(barrier, 1) + 1 == gridDim.x * n_phases)
        *barrier = 0;
}

QN_DEVICE void end_phase(const qn_persistent_args &a, uint32_t i)
{
    __syncthreads();
    if (threadIdx.x == BARRIER_WARP * QN_WARP_SIZE && i + 1 < a.n_phases)
        grid_barrier_arrive(a.barrier);
}

// ---- The kernel ----

extern "C" __global__ void __launch_bounds__(QN_PERSISTENT_THREADS, 1)
    qn_persistent_decode(const __grid_constant__ qn_persistent_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    persistent_control &control = *(persistent_control *)shared;
    uint8_t *scratch = shared + QN_PERSISTENT_CONTROL_BYTES;
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    if (warp == 0)
        schedule_first_gemvs(a, control, (uint32_t *)scratch, lane);
    if (threadIdx.x < PHASE_WORDS)
        for (uint32_t i = 0; i < 2 && i < a.n_phases; i++)
            ((uint32_t *)(control.phases + i))[threadIdx.x] = ((const uint32_t *)(a.phases + i))[threadIdx.x];
    __syncthreads();
    weight_stream stream = {};
    stream.shared = qn_shared_address(scratch + QN_PERSISTENT_SCRATCH_BYTES) + warp * QN_STAGES * STEP_BYTES;
    if (control.n_scheduled)
        begin_gemv(stream, control, warp, lane);
    issue_steps(stream, control, warp, lane); // phases and weights do not depend on the previous launch
    qn_pdl_wait();
    // All blocks are resident, and hold all registers: blocks of the next kernel begin where one of these has ended. After the
    // wait, so that all work before this launch is complete for what they load early.
    qn_pdl_trigger();
    if (threadIdx.x == 0)
        control.sequence = load_sequence(a);
    if (threadIdx.x < 2) {
        control.pages.first[threadIdx.x] = 1;
        control.pages.last[threadIdx.x] = 0;
    }
    __syncthreads();

    for (uint32_t i = 0; i < a.n_phases; i++) {
        const uint32_t kind = phase_at(control, i).kind;
        if (kind != QN_PHASE_GEMV) // a GEMV phase calls it after its prologue
            prefetch_next(a, control, i);
        if (kind == QN_PHASE_DELTA) {
            delta_phase(control.sequence, phase_at(control, i).u.delta, scratch);
            end_phase(a, i);
            delta_store_deferred(control.sequence, phase_at(control, i).u.delta, scratch);
        } else {
            if (kind == QN_PHASE_GEMV)
                gemv_phase(a, i, control, phase_at(control, i).u.gemv, scratch, stream, control.n_finished, warp, lane);
            else if (kind == QN_PHASE_ATTENTION)
                attention_phase(phase_at(control, i).u.attention, control.pages, control.sequence.position, scratch);
            else if (kind == QN_PHASE_STORE)
                store_phase(phase_at(control, i).u.store);
            end_phase(a, i);
        }
        if (i + 1 == a.n_phases)
            break;
        if (phase_at(control, i + 1).kind == QN_PHASE_ATTENTION)
            attention_prefetch(phase_at(control, i + 1).u.attention, control.pages, control.sequence.position);
        const uint32_t word = threadIdx.x - 2 * QN_WARP_SIZE;
        if (word < PHASE_WORDS && i + 2 < a.n_phases) // into the slot of phase i - 1
            ((uint32_t *)&control.phases[(i + 2) % 3])[word] = ((const uint32_t *)(a.phases + i + 2))[word];
        if (threadIdx.x == BARRIER_WARP * QN_WARP_SIZE)
            grid_barrier_wait(a.barrier, (i + 1) * gridDim.x);
        else if (warp == SCHEDULER_WARP)
            schedule_next_gemv(a, control, phase_at(control, i).kind == QN_PHASE_GEMV, lane);
        __syncthreads();
        issue_steps(stream, control, warp, lane);
    }
    if (threadIdx.x == 0)
        grid_barrier_reset(a.barrier, a.n_phases);
}
