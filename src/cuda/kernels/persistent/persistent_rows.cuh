// Several rows in the persistent decode kernel: addresses of a row, and the phases whose units are distributed over the
// rows. Arrays of values have the rows outermost (persistent.h). Before each unit of the delta rule or of attention, a
// warp copies the phase with the row's addresses to shared memory; phases then read it as that of one row.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_ROWS_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_ROWS_CUH

#include "cuda/kernels/persistent/persistent_stream.cuh"

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

// The units of phase i, 64 values of a head of a row: block u % gridDim.x computes unit u. The row of the block's last
// unit is stored by delta_store_deferred.
QN_DEVICE void delta_phase(persistent_control &control, uint32_t i, uint8_t *scratch)
{
    const uint32_t row_units = delta_units(phase_at(control, i).u.delta), n_units = row_units * control.n_rows;
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
    const uint32_t row_units = delta_units(phase_at(control, i).u.delta), n_units = row_units * control.n_rows;
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

QN_DEVICE void attention_phase(persistent_control &control, uint32_t i, uint8_t *scratch)
{
#pragma unroll 1
    for (uint32_t unit = blockIdx.x, row;; unit += gridDim.x) {
        const attention_range r = attention_range_at(control, phase_at(control, i).u.attention, unit, row);
        if (row == control.n_rows)
            break;
        if (unit != blockIdx.x)
            __syncthreads(); // all threads have read the previous unit's scratch, and its phase
        set_row_phase(control, i, row);
        attention_unit(control.row_phase.u.attention, r, control.pages, control.sequences[row].position, scratch);
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

#endif
