// The persistent decode kernel for 2 to QN_PERSISTENT_MAX_ROWS rows of different sequences. Phases, partials and the
// grid barrier are as for one row (persistent.h, persistent.cu); arrays of values have the rows outermost. Differences:
//
// Activations have a separate phase before each GEMV (QN_PHASE_ACTS). In the launch of one row, each block computes the
// activations of its slice in the prologue, and all blocks of a slice compute the same activations. With 8 rows the
// partials of gate and up, read by the 7 blocks of each slice, are 31 MB (27B model), 6 us of L2 traffic, and a
// prologue of 8 rows is longer than a grid barrier. Here each value is computed once, by a warp somewhere in the grid,
// and stored as hi/lo int8 to L2; blocks of the GEMV copy their slice.
//
// GEMV by int8 MMA (m16n8k32): the 8 columns of operand B are the rows, hi and lo are two MMAs. A tile and K tile of
// 1-bit weights take 16 MMAs (6.1 cycles each) and 115 instructions for any number of rows; by binary MMA they would
// take 4 MMAs and about 30 instructions for each row, which is more from 4 rows on. Limits of a token of the 27B model,
// 6.3 million pairs of tile and K tile on 132 SMs: 0.66 ms of MMAs, 0.82 ms of instructions, 0.8 ms of memory.
//
// A warp's steps go over the K tiles of up to STEP_TILES row tiles first, so that sums over K tiles stay in registers.
// A warp's part of such a group is a segment; the block adds a group's segments in ascending order of K.
//
// Results of a row do not depend on the other rows nor on their number: partitions are the same for any, rows are
// columns of the MMA, KV splits depend only on the position.
#define KERNEL_ROWS 8

#include "cuda/kernels/matmul/codes_s8.cuh"
#include "cuda/kernels/hilo.cuh"
#include "cuda/kernels/persistent/persistent_prologue.cuh"
#include "cuda/kernels/persistent/persistent_stream.cuh"

enum {
    GROUP_COLS = QN_ACTS_HILO_COLS, // columns with one scale, computed by a warp
    K_TILE_GROUPS = QN_TILE_COLS / GROUP_COLS,
    GROUP_BYTES = QN_ACTS_HILO_BYTES,
    SPAN_GROUPS = QN_TILE_GROUPS / QN_SCALES, // 32-column groups of a weight scale
    // Sums of a segment: [row][tile][16]. Rows are padded: a lane's two rows are 8 banks apart.
    SEGMENT_STRIDE = STEP_TILES * QN_TILE_ROWS + 4,
    SEGMENT_FLOATS = KERNEL_ROWS * SEGMENT_STRIDE,
    F16_ROW_SUMS = WARPS * QN_TILE_ROWS
};

static_assert(KERNEL_ROWS == QN_PERSISTENT_MAX_ROWS && KERNEL_ROWS == QN_MMA_N, "rows are the columns of an MMA");
static_assert(GROUP_COLS == WARP_COLS, "a warp quantises a group");

// ---- Values of a row ----

QN_DEVICE void select_row(qn_persistent_partials &p, uint32_t row)
{
    p.data += (uint64_t)row * p.n_partials * p.stride;
    p.sumsq += p.sumsq ? row * p.n_sumsq : 0;
}

QN_DEVICE qn_persistent_gemv row_of(const qn_persistent_gemv &s, uint32_t row)
{
    qn_persistent_gemv r = s;
    const bool is_attention = s.prologue == QN_PROLOGUE_ATTENTION_COMBINE;
    r.x += (uint64_t)row * s.n_cols * (is_attention ? s.n_splits : 1);
    r.x_out += (uint64_t)row * s.n_cols;
    r.maxima += is_attention ? 2 * row * s.n_heads * s.n_splits : 0;
    select_row(r.from, row);
    return r;
}

// Copies phase i to control.row_phase, with the addresses of a row. By the whole block, when none of its threads reads
// the previous copy any more.
QN_DEVICE void set_row_phase(persistent_control &control, uint32_t i, uint32_t row)
{
    const uint32_t *from = (const uint32_t *)&phase_at(control, i);
    if (threadIdx.x < QN_WARP_SIZE) {
        qn_persistent_phase &to = control.row_phase;
        for (uint32_t word = threadIdx.x; word < PHASE_WORDS; word += QN_WARP_SIZE)
            ((uint32_t *)&to)[word] = from[word];
        __syncwarp();
        if (threadIdx.x == 0 && to.kind == QN_PHASE_DELTA) {
            select_row(to.u.delta.qkv, row);
            select_row(to.u.delta.alpha, row);
            select_row(to.u.delta.beta, row);
            to.u.delta.out += row * to.u.delta.v_heads * DELTA_HEAD_DIM;
        } else if (threadIdx.x == 0) {
            qn_persistent_attention &s = to.u.attention;
            select_row(s.qkv, row);
            s.cosines += row * (s.n_rot / 2);
            s.sines += row * (s.n_rot / 2);
            s.cache.tables += row;
            s.partials += (uint64_t)row * s.n_heads * s.n_splits * s.head_dim;
            s.maxima += 2 * row * s.n_heads * s.n_splits;
        }
    }
    __syncthreads();
}

// ---- Activations ----

// Quantises 128 columns of a row, four a lane, by a full warp. An infinity or NaN among them makes the scale NaN, and
// so the row's sums.
QN_DEVICE void quantize_group(const qn_persistent_args &a, uint32_t group, uint32_t row, float4 x, uint32_t lane)
{
    const uint32_t lane_amax = max(max(MAGNITUDE(x.x), MAGNITUDE(x.y)), max(MAGNITUDE(x.z), MAGNITUDE(x.w)));
    const hilo_factors f = hilo_factors_of(__reduce_max_sync(QN_FULL_MASK, lane_amax));
    const float values[4] = { x.x, x.y, x.z, x.w }, inverse[4] = { f.inverse, f.inverse, f.inverse, f.inverse };
    const uint2 words = hilo_words(values, inverse);
    uint8_t *to = hilo_at(a.acts, KERNEL_ROWS, group, row, lane / 4) + 4 * (lane % 4);
    __stcg((uint32_t *)to, words.x);
    __stcg((uint32_t *)(to + GROUP_BYTES / 2), words.y);
    if (lane == 0)
        __stcg(a.acts_scale + group * KERNEL_ROWS + row, f.scale);
}

// A unit is the columns of a Hadamard transform of a row, or 128 columns; adjacent warps compute the groups of 128
// columns of a unit, and exchange values through `exchange` [WARPS][128]. Unit u is computed by block u % gridDim.x.
QN_DEVICE void acts_phase(const qn_persistent_args &a, const persistent_control &control, const qn_persistent_gemv &s,
                          float *exchange, uint32_t warp, uint32_t lane)
{
    const uint32_t rotation = s.rotation, unit_warps = rotation > GROUP_COLS ? rotation / GROUP_COLS : 1;
    const uint32_t n_groups = s.n_k_tiles * K_TILE_GROUPS, row_units = n_groups / unit_warps,
                   n_units = row_units * control.n_rows, block_units = WARPS / unit_warps;
    const float normal = rotation ? rsqrtf((float)rotation) : 1;
#pragma unroll 1
    for (uint32_t first = blockIdx.x; first < n_units; first += block_units * gridDim.x) {
        const uint32_t unit = first + warp / unit_warps * gridDim.x, row = unit / row_units,
                       group = (unit - row * row_units) * unit_warps + warp % unit_warps;
        const uint32_t c = group * GROUP_COLS + 4 * lane;
        const bool valid = unit < n_units;
        float4 x = {};
        if (valid) {
            float square = 0;
            const bool has_signs = rotation && s.signs && c < s.n_cols;
            const float4 sign = load_cg_4_if(s.signs + c, has_signs);
            x = run_prologue(row_of(s, row), control.sequences[row].position, group * GROUP_COLS, true, square, lane);
            if (s.n_f16_tiles)
                __stcg((float4 *)(a.acts_f32 + (uint64_t)row * s.n_k_tiles * QN_TILE_COLS + c), x);
            if (s.prologue == QN_PROLOGUE_RMS_NORM) {
                square = qn_warp_sum(square);
                if (lane == 0 && c < s.n_cols)
                    __stcg(s.sumsq + row * QN_PERSISTENT_ROWS_SUMSQ(s.n_cols) + group, square);
            }
            if (has_signs)
                x = make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
            if (rotation)
                x = hadamard_in_warp(x, rotation, lane);
        }
        if (unit_warps > 1) {
            const float *block = exchange + warp / unit_warps * unit_warps * GROUP_COLS;
            *(float4 *)(exchange + warp * GROUP_COLS + 4 * lane) = x;
            __syncthreads();
            x = hadamard_over_groups(block, warp % unit_warps, rotation, 4 * lane);
            __syncthreads();
        }
        if (valid)
            quantize_group(a, group, row, scale_4(x, normal), lane);
    }
}

// ---- GEMV ----

// Scratch of a GEMV phase in shared memory.
struct gemv_shared {
    uint8_t *acts;   // of the slice: [k_tiles][2][GROUP_BYTES]
    float *scales;   // [k_tiles][2][KERNEL_ROWS]
    float *f16_sums; // with fp16 rows: [KERNEL_ROWS][F16_ROW_SUMS]
    float *segments; // [groups of tiles + GEMV_WARPS - 1][SEGMENT_FLOATS]
};

QN_DEVICE gemv_shared gemv_shared_of(const qn_persistent_gemv &s, uint8_t *scratch)
{
    const uint32_t n_groups = s.slice_k_tiles * K_TILE_GROUPS;
    gemv_shared m = { scratch, (float *)(scratch + n_groups * GROUP_BYTES) };
    m.f16_sums = m.scales + n_groups * KERNEL_ROWS;
    m.segments = m.f16_sums + (s.n_f16_tiles ? KERNEL_ROWS * F16_ROW_SUMS : 0);
    return m;
}

// Copies n times 16 bytes that other blocks have written to shared memory. By the whole block. Not by cp.async: waiting
// for it would wait for the weights in flight.
QN_DEVICE void load_acts(void *to, const void *from, uint32_t n)
{
    enum { LOADS = 8 };
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < n; first += LOADS * QN_PERSISTENT_THREADS) {
        uint4 v[LOADS];
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++)
            v[i] = first + i * QN_PERSISTENT_THREADS < n ? __ldcg((const uint4 *)from + first + i * QN_PERSISTENT_THREADS)
                                                         : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++)
            if (first + i * QN_PERSISTENT_THREADS < n)
                ((uint4 *)to)[first + i * QN_PERSISTENT_THREADS] = v[i];
    }
}

// Adds the products of one step, `count` tiles at shared address `step` by a K tile, to sums: of a lane, rows of
// weights g and g+8 of each tile by rows 2t and 2t+1. Two tiles at a time: with an odd count the last tile is stale
// data, whose sums are not stored. acts: the lane's row of a matrix of the K tile's activations; acts_scales: of rows
// 2t and 2t+1.
QN_DEVICE void gemv_step(float (&sums)[STEP_TILES][4], uint32_t step, uint32_t count, const uint8_t *acts,
                         const float *acts_scales, uint32_t code_mask, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + lane / 4 * 4, token = lane % 8;
#pragma unroll
    for (int span = 0; span < QN_SCALES; span++) {
        const int half = span * K_TILE_GROUPS / QN_SCALES, fragment_index = span * QN_BITS / QN_SCALES;
        const float2 acts_scale = *(const float2 *)(acts_scales + half * KERNEL_ROWS);
        uint32_t b[SPAN_GROUPS][4]; // hi of 32 columns, then lo
#pragma unroll
        for (int j = 0; j < SPAN_GROUPS; j++) {
            const uint32_t piece = (span * SPAN_GROUPS + j) % 4 * 2 + lane / 8 % 2;
            qn_ldmatrix_x4(b[j], acts + half * GROUP_BYTES + (piece ^ token) * 16);
        }
#pragma unroll
        for (int pair = 0; pair < STEP_TILES; pair += 2) {
            if (pair >= count)
                continue;
#pragma unroll
            for (int m = pair; m < pair + 2; m++) {
                const uint4 fragment = load_shared_16(codes + m * CODE_BYTES + fragment_index * QN_FRAGMENT_BYTES);
                const uint32_t scale = load_shared_4(scales + m * SCALE_BYTES + span * 2 * QN_TILE_ROWS);
                int hi[4] = {}, lo[4] = {};
#pragma unroll
                for (int j = 0; j < SPAN_GROUPS; j++) {
                    uint32_t x[4];
                    unpack_group(x, fragment, span * SPAN_GROUPS + j, code_mask);
                    qn_mma_m16n8k32_s8(hi, x, b[j]);
                    qn_mma_m16n8k32_s8(lo, x, b[j] + 2);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float sum = (float)(256 * hi[i] + lo[i]) * (i % 2 ? acts_scale.y : acts_scale.x);
                    sums[m][i] = fmaf(code_scale(i < 2 ? qn_f16_low(scale) : qn_f16_high(scale)), sum, sums[m][i]);
                }
            }
        }
    }
}

// Stores a lane's sums of a segment, and clears them.
QN_DEVICE void store_segment(float *segment, float (&sums)[STEP_TILES][4], uint32_t lane)
{
    float *const to = segment + lane % 4 * 2 * SEGMENT_STRIDE + lane / 4;
#pragma unroll
    for (int m = 0; m < STEP_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i % 2 * SEGMENT_STRIDE + m * QN_TILE_ROWS + i / 2 * 8] = sums[m][i];
            sums[m][i] = 0;
        }
}

// Adds the segments of each group of tiles, in ascending order of K, and stores the block's partial sums to out,
// row_stride apart for each row. The segment of a group and a warp is at their sum: both ascend.
QN_DEVICE void reduce_segments(float *out, uint64_t row_stride, const float *segments, const work_descriptor &work,
                               uint32_t n_rows)
{
    const uint32_t k_tiles = work.k_tiles, quads = work.tiles * (QN_TILE_ROWS / 4), all = block_steps(k_tiles, work.tiles);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_rows * quads; i += QN_PERSISTENT_THREADS) {
        const uint32_t row = i / quads, quad = i - row * quads, group = quad / (STEP_TILES * QN_TILE_ROWS / 4);
        const uint32_t last = warp_of_step(all, (group + 1) * k_tiles - 1);
        const float *const from = segments + row * SEGMENT_STRIDE + quad % (STEP_TILES * QN_TILE_ROWS / 4) * 4;
        float4 sum = {};
#pragma unroll 1
        for (uint32_t warp = warp_of_step(all, group * k_tiles); warp <= last; warp++)
            if (work.warp_ranges[warp].remaining)
                sum = add_4(sum, *(const float4 *)(from + (group + warp) * SEGMENT_FLOATS));
        __stcg((float4 *)(out + row * row_stride + 4 * quad), sum);
    }
}

// ---- Rows of weights in fp16, in a GEMV phase ----

// Unit u is K tile u / n_f16_tiles of a tile of 16 rows; block u % gridDim.x computes it. A warp has a fragment of its
// weights (f16_rows_gemv). By the whole block; ends with a block barrier.
QN_DEVICE void f16_rows_phase(const qn_persistent_args &a, const qn_persistent_gemv &s, uint32_t n_rows, float *sums,
                              uint32_t warp, uint32_t lane)
{
    const uint32_t count = s.n_k_tiles * s.n_f16_tiles, t = lane % 4, stride = s.n_k_tiles * QN_TILE_COLS;
#pragma unroll 1
    for (uint32_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        const uint4 w = __ldg((const uint4 *)(s.f16_rows + (uint64_t)unit * (16 * QN_FRAGMENT_BYTES)) + threadIdx.x);
        const float *x = a.acts_f32 + unit / s.n_f16_tiles * QN_TILE_COLS + warp / 2 * 32 + 4 * t + warp % 2;
        float v[KERNEL_ROWS][4];
#pragma unroll
        for (uint32_t row = 0; row < KERNEL_ROWS; row++, x += stride) {
            v[row][0] = load_cg_if(x, row < n_rows);
            v[row][1] = load_cg_if(x + 2, row < n_rows);
            v[row][2] = load_cg_if(x + 16, row < n_rows);
            v[row][3] = load_cg_if(x + 18, row < n_rows);
        }
#pragma unroll
        for (uint32_t row = 0; row < KERNEL_ROWS; row++) {
            float upper = fmaf(qn_f16_high(w.x), v[row][1], qn_f16_low(w.x) * v[row][0]);
            float lower = fmaf(qn_f16_high(w.y), v[row][1], qn_f16_low(w.y) * v[row][0]);
            upper = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(w.z), v[row][3], fmaf(qn_f16_low(w.z), v[row][2], upper)));
            lower = qn_lanes_sum<1, 4>(fmaf(qn_f16_high(w.w), v[row][3], fmaf(qn_f16_low(w.w), v[row][2], lower)));
            if (t == 0) {
                float *const to = sums + row * F16_ROW_SUMS + warp * QN_TILE_ROWS + lane / 4;
                to[0] = upper;
                to[8] = lower;
            }
        }
        __syncthreads();
        const uint32_t row = threadIdx.x / QN_TILE_ROWS, i = threadIdx.x % QN_TILE_ROWS;
        if (row < n_rows)
            __stcg(s.f16_out + ((uint64_t)row * count + unit) * QN_TILE_ROWS + i, f16_sum_warps(sums + row * F16_ROW_SUMS, i));
        __syncthreads();
    }
}

// ---- Prefetches for later phases ----

// Prefetches into L2 the inputs of a phase that no phase of this launch writes, during the phase before it.
QN_DEVICE void prefetch_phase(const persistent_control &control, const qn_persistent_phase &phase)
{
    const bool one_thread = threadIdx.x == QN_PERSISTENT_THREADS - 1;
    if (phase.kind == QN_PHASE_DELTA) {
        const uint32_t row_units = 2 * phase.u.delta.v_heads;
#pragma unroll 1
        for (uint32_t unit = blockIdx.x; unit < row_units * control.n_rows; unit += gridDim.x)
            delta_prefetch(control.sequences[unit / row_units], phase.u.delta, unit % row_units);
    } else if (phase.kind == QN_PHASE_ACTS && one_thread) {
        const qn_persistent_gemv &s = phase.u.gemv;
        for (uint32_t c = blockIdx.x * GROUP_COLS; c < s.n_cols; c += gridDim.x * GROUP_COLS) {
            const uint32_t bytes = min((uint32_t)GROUP_COLS, s.n_cols - c) * sizeof(float);
            if (s.prologue == QN_PROLOGUE_RMS_NORM)
                prefetch_bytes(s.weight + c, bytes);
            if (s.rotation && s.signs)
                prefetch_bytes(s.signs + c, bytes);
        }
    } else if (phase.kind == QN_PHASE_GEMV && one_thread && blockIdx.x < phase.u.gemv.n_k_tiles * phase.u.gemv.n_f16_tiles) {
        prefetch_bytes(phase.u.gemv.f16_rows + (uint64_t)blockIdx.x * (16 * QN_FRAGMENT_BYTES), 16 * QN_FRAGMENT_BYTES);
    }
}

// Prefetches the inputs of phase i + 1, and the struct of phase i + PREFETCH_DISTANCE.
QN_DEVICE void prefetch_next(const qn_persistent_args &a, const persistent_control &control, uint32_t i)
{
    if (threadIdx.x == QN_PERSISTENT_THREADS - 1 && i + PREFETCH_DISTANCE < a.n_phases)
        prefetch_bytes(a.phases + i + PREFETCH_DISTANCE, sizeof *a.phases);
    if (i + 1 < a.n_phases)
        prefetch_phase(control, phase_at(control, i + 1));
}

// ---- Phases ----

// Phase i, a GEMV: copies the slice's activations; fp16 rows; the weights' steps; the block's partial sums.
QN_DEVICE void gemv_phase(const qn_persistent_args &a, uint32_t i, const persistent_control &control,
                          const qn_persistent_gemv &s, uint8_t *scratch, weight_stream &stream, uint32_t warp, uint32_t lane)
{
    const work_descriptor &work = control.descriptors[control.n_finished % MAX_DESCRIPTORS];
    const gemv_shared m = gemv_shared_of(s, scratch);
    const uint32_t n_groups = work.k_tiles * K_TILE_GROUPS, first_group = work.slice * s.slice_k_tiles * K_TILE_GROUPS;
    load_acts(m.acts, a.acts + (uint64_t)first_group * GROUP_BYTES, n_groups * (GROUP_BYTES / 16));
    load_acts(m.scales, a.acts_scale + first_group * KERNEL_ROWS, n_groups * (KERNEL_ROWS * 4 / 16));
    f16_rows_phase(a, s, control.n_rows, m.f16_sums, warp, lane);
    __syncthreads();
    prefetch_next(a, control, i);
    tile_range at = work.warp_ranges[warp];
    const uint8_t *const acts = m.acts + lane / 16 * (GROUP_BYTES / 2) + lane % 8 * 128;
    // For unpack_group. The compiler cannot prove that it is a constant, and keeps it in a register.
    const uint32_t code_mask = CODE_MASK + (a.n_phases >> 31);
    float sums[STEP_TILES][4] = {};
#pragma unroll 1
    while (at.remaining) {
        const uint32_t step = wait_for_step(stream);
        gemv_step(sums, step, work.tiles - at.tile, acts + at.k_tile * (K_TILE_GROUPS * GROUP_BYTES),
                  m.scales + at.k_tile * (K_TILE_GROUPS * KERNEL_ROWS) + lane % 4 * 2, code_mask, lane);
        release_step(stream, control, warp, lane);
        at.k_tile++;
        at.remaining--;
        if (at.k_tile == work.k_tiles || !at.remaining) {
            store_segment(m.segments + (at.tile / STEP_TILES + warp) * SEGMENT_FLOATS, sums, lane);
            at.k_tile = 0;
            at.tile += STEP_TILES;
        }
    }
    __syncthreads();
    if (work.k_tiles)
        reduce_segments(s.out + ((uint64_t)work.slice * s.n_tiles + work.first_tile) * QN_TILE_ROWS,
                        (uint64_t)s.n_slices * s.n_tiles * QN_TILE_ROWS, m.segments, work, control.n_rows);
}

// The units of phase i, 64 values of a head of a row: block u % gridDim.x computes unit u. The row of the block's last
// unit is stored by delta_store_deferred.
QN_DEVICE void delta_phase(persistent_control &control, uint32_t i, uint8_t *scratch)
{
    const uint32_t row_units = 2 * phase_at(control, i).u.delta.v_heads, n_units = row_units * control.n_rows;
    const qn_persistent_delta &s = control.row_phase.u.delta;
    delta_shared &m = *(delta_shared *)scratch;
#pragma unroll 1
    for (uint32_t unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        if (unit != blockIdx.x) {
            const uint32_t last = unit - gridDim.x;
            __syncthreads();
            delta_store_row(control.sequences[last / row_units], s, last % row_units, m);
            __syncthreads(); // all threads have read the previous unit's results, and its phase
        }
        set_row_phase(control, i, unit / row_units);
        delta_unit(control.sequences[unit / row_units], s, unit % row_units, m);
    }
}

// After the block's arrival at the grid barrier: no phase of this launch reads the rows.
QN_DEVICE void delta_store_deferred(const persistent_control &control, uint32_t i, const uint8_t *scratch)
{
    const uint32_t row_units = 2 * phase_at(control, i).u.delta.v_heads, n_units = row_units * control.n_rows;
    if (blockIdx.x >= n_units)
        return;
    const uint32_t last = blockIdx.x + (n_units - 1 - blockIdx.x) / gridDim.x * gridDim.x;
    delta_store_row(control.sequences[last / row_units], control.row_phase.u.delta, last % row_units,
                    *(const delta_shared *)scratch);
}

// Unit `unit` of all rows' splits that have positions, and its row; row n_rows: there are fewer.
QN_DEVICE attention_range attention_range_at(const persistent_control &control, const qn_persistent_attention &s,
                                             uint32_t unit, uint32_t &row)
{
    const bool is_first = unit < gridDim.x;
    for (row = 0; row < control.n_rows; row++) {
        const uint32_t position = control.sequences[row].position,
                       used = attention_used_splits(position, attention_tiles_per_split(position, s.n_splits)),
                       kv_head = unit / used;
        if (kv_head < s.n_kv_heads)
            return attention_range_of(s, position, kv_head, unit - kv_head * used, is_first);
        unit -= s.n_kv_heads * used;
    }
    return attention_range{};
}

QN_DEVICE void attention_phase(const qn_persistent_args &a, persistent_control &control, uint32_t i, uint8_t *scratch)
{
#pragma unroll 1
    for (uint32_t unit = blockIdx.x, row;; unit += gridDim.x) {
        const attention_range r = attention_range_at(control, phase_at(control, i).u.attention, unit, row);
        if (row == control.n_rows)
            break;
        if (unit != blockIdx.x)
            __syncthreads(); // all threads have read the previous unit's scratch, and its phase
        set_row_phase(control, i, row);
        attention_unit(control.row_phase.u.attention, a.codes, r, control.pages, control.sequences[row].position, scratch);
    }
}

// Blocks are distributed over the rows.
QN_DEVICE void store_phase(const qn_persistent_store &s, uint32_t n_rows)
{
    const uint32_t row = blockIdx.x % n_rows, block = blockIdx.x / n_rows, blocks = gridDim.x / n_rows;
    if (block >= blocks)
        return;
    qn_persistent_partials from = s.from;
    select_row(from, row);
    const float factor = rms_scale(from);
    for (uint32_t k = 0; k < s.n_outs; k++)
        for (uint32_t i = block * QN_PERSISTENT_THREADS + threadIdx.x; i < s.outs[k].n_rows;
             i += blocks * QN_PERSISTENT_THREADS) {
            const float y = factor * reduce_partials(from, s.outs[k].row + i);
            const uint64_t at = (uint64_t)row * s.outs[k].n_rows + i;
            s.outs[k].out[at] = s.outs[k].x ? load_cg(s.outs[k].x + at) + y : y;
        }
}

// ---- The kernel ----

// Loads the sequences of the rows that are computed, and counts them. Called by one warp.
QN_DEVICE void load_sequences(const qn_persistent_args &a, persistent_control &control, uint32_t lane)
{
    const bool is_row = lane < a.n_rows && (!a.sequences || a.sequences[lane] != QN_ATTENTION_NO_SESSION);
    const uint32_t n_rows = __popc(__ballot_sync(QN_FULL_MASK, is_row));
    if (lane == 0)
        control.n_rows = n_rows;
    if (is_row)
        control.sequences[lane] = load_sequence(a, lane);
}

extern "C" __global__ void __launch_bounds__(QN_PERSISTENT_THREADS, 1)
    qn_persistent_decode_rows(const __grid_constant__ qn_persistent_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    persistent_control &control = *(persistent_control *)shared;
    uint8_t *scratch = shared + QN_PERSISTENT_CONTROL_BYTES;
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    weight_stream stream = begin_launch(a, control, scratch, warp, lane);
    if (warp == 0)
        load_sequences(a, control, lane);
    __syncthreads();

    for (uint32_t i = 0; i < a.n_phases; i++) {
        const uint32_t kind = phase_at(control, i).kind;
        if (kind != QN_PHASE_GEMV) // a GEMV phase calls it after its activations have arrived
            prefetch_next(a, control, i);
        if (kind == QN_PHASE_GEMV)
            gemv_phase(a, i, control, phase_at(control, i).u.gemv, scratch, stream, warp, lane);
        else if (kind == QN_PHASE_ACTS)
            acts_phase(a, control, phase_at(control, i).u.gemv, (float *)scratch, warp, lane);
        else if (kind == QN_PHASE_DELTA)
            delta_phase(control, i, scratch);
        else if (kind == QN_PHASE_ATTENTION)
            attention_phase(a, control, i, scratch);
        else
            store_phase(phase_at(control, i).u.store, control.n_rows);
        end_phase(a, i);
        if (kind == QN_PHASE_DELTA)
            delta_store_deferred(control, i, scratch);
        if (i + 1 == a.n_phases)
            break;
        if (phase_at(control, i + 1).kind == QN_PHASE_ATTENTION) {
            const qn_persistent_attention &s = phase_at(control, i + 1).u.attention;
            uint32_t row;
            const attention_range r = attention_range_at(control, s, blockIdx.x, row);
            if (row < control.n_rows)
                attention_prefetch(s, a.codes, control.pages, row, r);
        }
        wait_for_phase(a, i, control, stream, warp, lane);
    }
    if (threadIdx.x == 0)
        grid_barrier_reset(a.barrier, a.n_phases);
}
