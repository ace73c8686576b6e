// The open chunk of deltanet_open.cu: places in memory of a value head of a sequence, a block's copy in shared memory,
// and the loads between them.
#ifndef QN_CUDA_KERNELS_DELTANET_OPEN_CHUNK_CUH
#define QN_CUDA_KERNELS_DELTANET_OPEN_CHUNK_CUH

#include "cuda/kernels/deltanet/inputs.cuh"
#include "cuda/kernels/deltanet/state_planes.cuh"

#ifndef QN_HEAD_K
#define QN_HEAD_K 128
#endif
#ifndef QN_HEAD_V
#define QN_HEAD_V 128
#endif

#define CHUNK QN_GDN_CHUNK
#define ROWS QN_GDN_OPEN_ROWS
#define THREADS QN_GDN_OPEN_THREADS(QN_HEAD_V)
#define WARPS (THREADS / QN_WARP_SIZE)
#define LANES QN_GDN_ROW_LANES
#define QUADS (QN_HEAD_K / (4 * LANES)) // quads of 4 keys per lane and row of the state
#define WARP_VALUES 16
#define PASS_VALUES (WARPS * WARP_VALUES)
#define PASSES ((QN_HEAD_V + PASS_VALUES - 1) / PASS_VALUES)
#define GROUPS QN_GDN_SCALE_GROUPS(QN_HEAD_V) // of values with a scale in common
#define CHANNELS (2 * QN_HEAD_K + QN_HEAD_V)
// Row strides of the chunk in elements: accesses to 8 rows are free of bank conflicts.
#define KEY_ROW (QN_HEAD_K + 8)
#define VALUE_ROW (QN_HEAD_V + 8)

// A value head of a sequence, and its places in memory.
struct open_head {
    uint32_t sequence, head, k_head;
    uint32_t position, state_position;
    uint32_t first, n; // rows of the launch
    bool has_state;    // else the state at the chunk's start is zeros
    const unsigned char *from; // the layer's part of a state slot
    unsigned char *to;
    unsigned char *open;
};

struct open_smem {
    __align__(16) uint16_t keys[CHUNK * KEY_ROW], values[CHUNK * VALUE_ROW];
    __align__(16) float q[ROWS][QN_HEAD_K], k[ROWS][QN_HEAD_K]; // of the new rows, not normalised
    __align__(16) float v[ROWS][QN_HEAD_V];                     // and then v'
    __align__(16) float o[ROWS][QN_HEAD_V];                     // S q, and then o
    __align__(16) float z[2][ROWS][QN_HEAD_V];                  // of a block of rows and the next one
    __align__(16) float scales[GROUPS][CHUNK], decays[CHUNK];
    __align__(16) float norm[QN_HEAD_V];
    float since[CHUNK];                             // the sum of g of the rows after this one
    float k_near[ROWS][ROWS], q_near[ROWS][ROWS];   // with earlier rows of the block
    float alpha[ROWS], beta_in[ROWS], bias, factor; // inputs of g and beta
    float g[ROWS], beta[ROWS];
    qn_delta_qk_norms norms[ROWS];
    qn_gdn_open_sequence indices[2]; // of an item and the next one
    open_head heads[2];
    float total;          // the sum of g of the chunk
    uint32_t stores_keys; // the block stores rows and inputs of the key head
};

// After open_smem is memory that is used twice. First the convolution's inputs and weights, rows of CHANNELS: taps - 1
// earlier inputs, ROWS new ones, weights of each tap. Then this.
struct open_scores {
    float k[ROWS][GROUPS][CHUNK], q[ROWS][GROUPS][CHUNK]; // gated, and for scaled values; not normalised
    float state_k[ROWS][QN_HEAD_V];                       // S k
};

static_assert(GROUPS <= WARPS && GROUPS <= LANES, "a warp finishes a group of values, a lane of four stores its scores");
static_assert(ROWS <= WARPS, "a warp computes the norms of a row");
static_assert(sizeof(open_smem) <= QN_GDN_OPEN_FIXED_BYTES(QN_HEAD_K, QN_HEAD_V), "the launch's shared memory");
static_assert(sizeof(open_scores) <= QN_GDN_OPEN_REUSED_BYTES(QN_HEAD_K, QN_HEAD_V, 1), "the launch's shared memory");

QN_DEVICE float *inputs_in(open_smem &m)
{
    return (float *)(&m + 1);
}

QN_DEVICE open_scores &scores_in(open_smem &m)
{
    return *(open_scores *)(&m + 1);
}

QN_DEVICE qn_gdn_open_sequence read_indices(const qn_gdn_open_args &a, uint32_t sequence)
{
    if (!a.positions)
        return a.sequence;
    return { a.positions[sequence],
             a.state_positions[sequence],
             a.state_from[sequence],
             a.state_to[sequence],
             a.open_slots[sequence],
             a.cu_seqlens ? a.cu_seqlens[sequence] : sequence,
             a.cu_seqlens ? a.cu_seqlens[sequence + 1] : sequence + 1 };
}

// Whether rows or inputs of a sequence overwrite such as another block may read. If not, nothing is folded either.
QN_DEVICE bool overlaps(const qn_gdn_open_sequence &x)
{
    const uint32_t n = x.end - x.begin;
    return n > QN_GDN_DROPPED_ROWS || (n && x.position - x.state_position + n > CHUNK);
}

QN_DEVICE open_head locate_head(const qn_gdn_open_args &a, uint32_t sequence, uint32_t head, const qn_gdn_open_sequence &x)
{
    open_head h;
    h.sequence = sequence;
    h.head = head;
    h.k_head = head;
    while (h.k_head >= a.k_heads) // a few iterations: faster than a division
        h.k_head -= a.k_heads;
    h.first = x.begin;
    h.n = x.end - x.begin;
    h.position = x.position;
    h.state_position = x.state_position;
    h.has_state = x.state_position > 0;
    h.from = a.states + x.state_from * a.state_stride + a.state_offset;
    h.to = a.states + x.state_to * a.state_stride + a.state_offset;
    h.open = a.open + x.open_slot * a.open_stride + a.open_offset;
    return h;
}

QN_DEVICE open_head locate(const qn_gdn_open_args &a, uint32_t item, const qn_gdn_open_sequence &x)
{
    return locate_head(a, item / a.v_heads, item % a.v_heads, x);
}

// The number of rows of the open chunk before the launch's.
QN_DEVICE uint32_t open_rows(const open_head &h)
{
    return h.position - h.state_position;
}

// An item of the pipeline. Without an item, it is a sequence of length 0 without rows, and nothing is read.
QN_DEVICE open_head locate_short(const qn_gdn_open_args &a, uint32_t item, qn_gdn_open_sequence x)
{
    if (overlaps(x) || x.end == x.begin)
        x = {};
    return locate(a, item, x);
}

QN_DEVICE uint16_t *keys_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (uint16_t *)(h.open + a.layout.keys) + h.k_head * CHUNK * QN_HEAD_K;
}

QN_DEVICE uint16_t *values_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (uint16_t *)(h.open + a.layout.values) + h.head * CHUNK * QN_HEAD_V;
}

QN_DEVICE float *scales_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.scales) + h.head * GROUPS * CHUNK;
}

QN_DEVICE float *decays_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.decays) + h.head * CHUNK;
}

QN_DEVICE float *inputs_of(const qn_gdn_open_args &a, const open_head &h)
{
    return (float *)(h.open + a.layout.inputs);
}

QN_DEVICE uint32_t width_of(const qn_gdn_open_args &a)
{
    return 2 * a.k_heads * QN_HEAD_K + a.v_heads * QN_HEAD_V;
}

// The number of elements of the layer's S; each plane has this number.
QN_DEVICE size_t plane_of(const qn_gdn_open_args &a)
{
    return (size_t)a.v_heads * QN_HEAD_V * QN_HEAD_K;
}

// The head's S in the plane hi of a state slot; in the plane lo it is plane_of elements later.
QN_DEVICE const uint16_t *hi_of(const open_head &h)
{
    return (const uint16_t *)h.from + h.head * QN_HEAD_V * QN_HEAD_K;
}

// The offset of the layer's history from its part of a state slot.
QN_DEVICE size_t history_of(const qn_gdn_open_args &a)
{
    return 2 * plane_of(a) * sizeof(uint16_t);
}

// The input of the convolution `back` > 0 positions before the launch's first row, if that position exists: in the open
// slot, or before the state.
QN_DEVICE const float *past_input(const qn_gdn_open_args &a, const open_head &h, uint32_t back)
{
    const bool is_open = back <= open_rows(h);
    const uint32_t row = is_open ? (h.position - back) % QN_GDN_INPUT_ROWS(a.taps) : a.taps - 1 + open_rows(h) - back;
    return (is_open ? inputs_of(a, h) : (const float *)(h.from + history_of(a))) + row * width_of(a);
}

// ---- Loads into shared memory ----

QN_DEVICE uint32_t round_up_8(uint32_t n)
{
    return (n + 7) / 8 * 8;
}

// The first n rows of the chunk. Later ones that `more` rows make part of a block of 8 become zeros, so that a score of
// zero multiplies finite values.
QN_DEVICE void load_chunk(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n, uint32_t more)
{
    const uint16_t *keys = keys_of(a, h), *values = values_of(a, h);
    const uint32_t rows = n + more < CHUNK ? round_up_8(n + more) : CHUNK;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * (QN_HEAD_K / 8); i += THREADS) {
        const uint32_t row = i / (QN_HEAD_K / 8), column = i % (QN_HEAD_K / 8) * 8;
        qn_cp_async_16(m.keys + row * KEY_ROW + column, keys + row * QN_HEAD_K + column, row < n ? 16 : 0);
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * (QN_HEAD_V / 8); i += THREADS) {
        const uint32_t row = i / (QN_HEAD_V / 8), column = i % (QN_HEAD_V / 8) * 8;
        qn_cp_async_16(m.values + row * VALUE_ROW + column, values + row * QN_HEAD_V + column, row < n ? 16 : 0);
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < (GROUPS + 1) * (CHUNK / 4); i += THREADS) {
        const uint32_t group = i / (CHUNK / 4), row = i % (CHUNK / 4) * 4, valid = row < n ? n - row : 0;
        const float *from = group < GROUPS ? scales_of(a, h) + group * CHUNK : decays_of(a, h);
        qn_cp_async_16((group < GROUPS ? m.scales[group] : m.decays) + row, from + row, valid < 4 ? 4 * valid : 16);
    }
}

QN_DEVICE uint32_t channel_of(const qn_gdn_open_args &a, const open_head &h, uint32_t i)
{
    const uint32_t keys = a.k_heads * QN_HEAD_K;
    return i < QN_HEAD_K       ? h.k_head * QN_HEAD_K + i
           : i < 2 * QN_HEAD_K ? keys + h.k_head * QN_HEAD_K + i - QN_HEAD_K
                               : 2 * keys + h.head * QN_HEAD_V + i - 2 * QN_HEAD_K;
}

// The number of input rows that the convolution of a block of rows reads. done: the sequence's rows before the block.
QN_DEVICE void load_inputs(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t done, uint32_t begin,
                           uint32_t end)
{
    const uint32_t weights = a.taps - 1 + ROWS;
#pragma unroll 1
    for (uint32_t i = begin * (CHANNELS / 4) + threadIdx.x; i < end * (CHANNELS / 4); i += THREADS) {
        const uint32_t row = i / (CHANNELS / 4), c = i % (CHANNELS / 4) * 4;
        const int32_t at = (int32_t)(done + row) - (int32_t)(a.taps - 1); // among the sequence's rows of this launch
        const float *from = row >= weights ? a.conv + (row - weights) * width_of(a)
                            : at >= 0      ? a.qkv + (size_t)(h.first + at) * a.qkv_stride
                                           : past_input(a, h, -at);
        qn_cp_async_16(inputs_in(m) + row * CHANNELS + c, from + channel_of(a, h, c),
                       row >= weights || (int32_t)h.position + at >= 0 ? 16 : 0);
    }
}

// Earlier inputs, and then weights. In a loop: inlined twice, load_inputs takes registers that then spill.
QN_DEVICE void load_past_inputs(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t done)
{
#pragma unroll 1
    for (uint32_t weights = 0; weights < 2; weights++) {
        const uint32_t begin = weights ? a.taps - 1 + ROWS : 0;
        load_inputs(m, a, h, done, begin, begin + a.taps - 1 + weights);
    }
}

// What previous kernels computed of a block of rows.
QN_DEVICE void load_new_inputs(open_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t done, uint32_t rows,
                               uint32_t z)
{
    load_inputs(m, a, h, done, a.taps - 1, a.taps - 1 + rows);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * (QN_HEAD_V / 4); i += THREADS) {
        const uint32_t row = i / (QN_HEAD_V / 4), value = i % (QN_HEAD_V / 4) * 4;
        qn_cp_async_16(m.z[z][row] + value,
                       a.gate + (size_t)(h.first + done + row) * a.gate_stride + h.head * QN_HEAD_V + value, 16);
    }
    const uint32_t i = THREADS - 1 - threadIdx.x;
    if (i < rows) {
        qn_cp_async_4(m.alpha + i, a.alpha + (size_t)(h.first + done + i) * a.alpha_stride + h.head);
        qn_cp_async_4(m.beta_in + i, a.beta + (size_t)(h.first + done + i) * a.beta_stride + h.head);
    }
    if (i == 0) {
        qn_cp_async_4(&m.bias, a.bias + h.head);
        qn_cp_async_4(&m.factor, a.factor + h.head);
    }
}

QN_DEVICE void load_indices(qn_gdn_open_sequence &to, const qn_gdn_open_args &a, uint32_t item)
{
    const uint32_t i = threadIdx.x, sequence = item / a.v_heads;
    if (sequence >= a.sequences || i >= sizeof to / sizeof(uint32_t))
        return;
    uint32_t *word = (uint32_t *)&to + i;
    if (!a.positions)
        *word = ((const uint32_t *)&a.sequence)[i];
    else if (i < 5)
        qn_cp_async_4(word, (i == 0   ? a.positions
                             : i == 1 ? a.state_positions
                             : i == 2 ? a.state_from
                             : i == 3 ? a.state_to
                                      : a.open_slots) +
                                sequence);
    else if (a.cu_seqlens)
        qn_cp_async_4(word, a.cu_seqlens + sequence + i - 5);
    else
        *word = sequence + i - 5;
}

// Sums of log decays from each row of the chunk to its end, which `smem` has as `decays`, `since` and `total`. By a warp;
// a lane has two rows.
template <class smem> QN_DEVICE void sum_decays(smem &m)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, row = 2 * lane;
    const float last = m.decays[row + 1];
    float sum = m.decays[row] + last;
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const float after = __shfl_down_sync(QN_FULL_MASK, sum, distance);
        if (lane + distance < QN_WARP_SIZE)
            sum += after;
    }
    const float after = __shfl_down_sync(QN_FULL_MASK, sum, 1);
    m.since[row + 1] = lane + 1 < QN_WARP_SIZE ? after : 0.0f;
    m.since[row] = m.since[row + 1] + last;
    if (lane == 0)
        m.total = sum;
}

#endif
