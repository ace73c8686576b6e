// Gated DeltaNet for a few rows of each of some sequences, as a step that verifies drafts has them: qn_gdn_open_few of
// deltanet.h. Nothing is folded: the caller folds full chunks before the launch.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. A block has one value head of a sequence, and processes its rows
// in blocks of FEW_ROWS; a block of rows takes little longer than one row. A warp has 16 values: the state's rows of
// these, of the plane hi, are A fragments of MMAs, whose B operand has a column for each row of the block: its key or
// its query, as the sum of two f16 terms. The keys of the chunk, and of the block's own rows, are multiplied by the same
// operands: these are the scores. The order of keys in a fragment is that of loads of 16 bytes, in both operands. Four
// lanes have two values, and every fourth row of the chunk's values; then each of them has one value, and computes v'
// and o of one row after another in registers, since a value depends on the same value of earlier rows alone. So the
// number of block barriers does not depend on the number of rows.
//
// No block reads data that another block writes: up to QN_GDN_DROPPED_ROWS rows overwrite no input of the convolution
// that the launch reads, and keys and values are in no row that it reads. A block stores the data of its value head; the
// block of a key head's first value head also stores the key's data.
#include "cuda/kernels/deltanet/chunk_rows.cuh"
#include "cuda/kernels/deltanet/open_few.h"

enum {
    FEW_ROWS = QN_GDN_FEW_ROWS,
    OPERAND_ROW = QN_HEAD_K + 32, // eight lanes that read two rows, four segments each, are free of bank conflicts
    SCORE_ROW = 2 * FEW_ROWS + 4  // the same of four lanes that read four rows
};

// Operands of MMAs, [FEW_ROWS][OPERAND_ROW] each; lo is the rest times QN_GDN_LO_SCALE.
enum { KEY_HI, KEY_LO, QUERY_HI, QUERY_LO, OPERANDS };

static_assert(FEW_ROWS == 8 && FEW_ROWS == ROW_WARPS, "a column of the MMAs for each row, and a warp that convolves it");
static_assert(CHUNK == ROW_WARPS / 2 * TILE_ROWS, "half of the warps have a tile of the chunk each");

struct few_smem : chunk_rows {
    __align__(16) uint16_t operands[OPERANDS][FEW_ROWS][OPERAND_ROW];
    __align__(16) float v[FEW_ROWS][QN_HEAD_V], z[FEW_ROWS][QN_HEAD_V];
    __align__(16) float scores[GROUPS][CHUNK][SCORE_ROW]; // for each row, of its key and query: gated, for scaled values
    __align__(16) float near[FEW_ROWS][FEW_ROWS][2];      // the same with earlier rows of the block
    __align__(16) float squares[FEW_ROWS][ROW_WARPS], largest[FEW_ROWS][ROW_WARPS];
    float alpha[FEW_ROWS], beta_in[FEW_ROWS], bias, factor; // inputs of g and beta
    __align__(16) float g[FEW_ROWS];
    float beta[FEW_ROWS], kq[FEW_ROWS];
};

static_assert(sizeof(few_smem) <= QN_GDN_FEW_FIXED_BYTES(QN_HEAD_K, QN_HEAD_V), "the launch's shared memory");

// A block of new rows.
struct few_rows {
    uint32_t done;   // the sequence's rows before it
    uint32_t n;      // 1 to FEW_ROWS
    uint32_t stored; // rows of the chunk before it
};

// After few_smem, rows of CHANNELS: taps - 1 earlier inputs of the convolution, FEW_ROWS new ones, weights of each tap.
QN_DEVICE float *inputs_in(few_smem &m)
{
    return (float *)(&m + 1);
}

// ---- Loads ----

// Inputs of the convolution: rows [begin, end) of those in shared memory.
QN_DEVICE void load_inputs(few_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t done, uint32_t begin,
                           uint32_t end)
{
#pragma unroll 1
    for (uint32_t i = begin * (CHANNELS / 4) + threadIdx.x; i < end * (CHANNELS / 4); i += ROW_THREADS) {
        const uint32_t row = i / (CHANNELS / 4), c = i % (CHANNELS / 4) * 4;
        const int32_t at = (int32_t)(done + row) - (int32_t)(a.taps - 1); // among the sequence's rows of this launch
        const float *from = at >= 0 ? a.qkv + (size_t)(h.first + at) * a.qkv_stride : past_input(a, h, -at);
        qn_cp_async_16(inputs_in(m) + 4 * i, from + channel_of(a, h, c), (int32_t)h.position + at >= 0 ? 16 : 0);
    }
}

QN_DEVICE void load_weights(few_smem &m, const qn_gdn_open_args &a, const open_head &h)
{
    float *to = inputs_in(m) + (a.taps - 1 + FEW_ROWS) * CHANNELS;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < a.taps * (CHANNELS / 4); i += ROW_THREADS)
        qn_cp_async_16(to + 4 * i,
                       a.conv + i / (CHANNELS / 4) * width_of(a) + channel_of(a, h, i % (CHANNELS / 4) * 4));
}

// What does not depend on the previous kernel.
QN_DEVICE void load_stored(few_smem &m, const qn_gdn_open_args &a, const open_head &h)
{
    const uint32_t n = open_rows(h);
    load_inputs(m, a, h, 0, 0, a.taps - 1);
    load_weights(m, a, h);
    if (threadIdx.x < QN_HEAD_K / 2)
        load_vectors(m, a, h, n, threadIdx.x);
    if (threadIdx.x >= ROW_THREADS - 2)
        qn_cp_async_4(threadIdx.x % 2 ? &m.factor : &m.bias, (threadIdx.x % 2 ? a.factor : a.bias) + h.head);
    load_keys(m, a, h, n);
    load_values(m, a, h, n);
}

// What the previous kernels computed. A warp loads the row that it convolves.
QN_DEVICE void load_new(few_smem &m, const qn_gdn_open_args &a, const open_head &h, const few_rows &b)
{
    const uint32_t warp = warp_id(), lane = threadIdx.x % QN_WARP_SIZE, c = 4 * lane, keys = a.k_heads * QN_HEAD_K;
    const size_t row = h.first + b.done + warp;
    if (b.done > 0)
        load_inputs(m, a, h, b.done, 0, a.taps - 1);
    if (warp >= b.n)
        return;
    const float *input = a.qkv + row * a.qkv_stride + c;
    float *to = inputs_in(m) + (a.taps - 1 + warp) * CHANNELS + c;
    qn_cp_async_16(to, input + h.k_head * QN_HEAD_K);
    qn_cp_async_16(to + QN_HEAD_K, input + keys + h.k_head * QN_HEAD_K);
    qn_cp_async_16(to + 2 * QN_HEAD_K, input + 2 * keys + h.head * QN_HEAD_V);
    qn_cp_async_16(m.z[warp] + c, a.gate + row * a.gate_stride + h.head * QN_HEAD_V + c);
    if (lane == 0)
        qn_cp_async_4(m.alpha + warp, a.alpha + row * a.alpha_stride + h.head);
    if (lane == 1)
        qn_cp_async_4(m.beta_in + warp, a.beta + row * a.beta_stride + h.head);
}

// ---- New rows ----

QN_DEVICE float4 silu(float4 x)
{
    return make_float4(qn_silu_fast(x.x), qn_silu_fast(x.y), qn_silu_fast(x.z), qn_silu_fast(x.w));
}

// A lane's four channels of the query, the key and the value of a row. Stores the inputs for later rows.
QN_DEVICE void convolve(float4 x[3], few_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t row, float *to)
{
    const uint32_t c = 4 * (threadIdx.x % QN_WARP_SIZE);
    const float *inputs = inputs_in(m) + row * CHANNELS + c,
                *weights = inputs_in(m) + (a.taps - 1 + FEW_ROWS) * CHANNELS + c;
    float4 input[3];
#pragma unroll 2
    for (uint32_t tap = 0; tap < a.taps; tap++)
#pragma unroll
        for (uint32_t part = 0; part < 3; part++) {
            const uint32_t at = tap * CHANNELS + part * QN_HEAD_K;
            input[part] = *(const float4 *)(inputs + at);
            x[part] = add_tap(*(const float4 *)(weights + at), input[part], x[part]);
        }
#pragma unroll
    for (uint32_t part = 0; part < 3; part++) {
        if (part == 2 || h.head < a.k_heads)
            *(float4 *)(to + channel_of(a, h, part * QN_HEAD_K + c)) = input[part];
        x[part] = silu(x[part]);
    }
}

// Four elements of a lane, as the sum of two f16. Returns hi.
QN_DEVICE uint2 store_operand(few_smem &m, int operand, uint32_t row, float4 x, float factor)
{
    const uint32_t at = 4 * (threadIdx.x % QN_WARP_SIZE);
    uint2 hi, lo;
    qn_gdn_split(x.x * factor, x.y * factor, hi.x, lo.x);
    qn_gdn_split(x.z * factor, x.w * factor, hi.y, lo.y);
    *(uint2 *)(m.operands[operand][row] + at) = hi;
    *(uint2 *)(m.operands[operand + 1][row] + at) = lo;
    return hi;
}

// Everything up to keys, queries, values and gates in shared memory. A warp has a row; without one, it writes zeros.
QN_DEVICE void prepare_row(few_smem &m, const qn_gdn_open_args &a, const open_head &h, const few_rows &b)
{
    const uint32_t row = warp_id(), lane = threadIdx.x % QN_WARP_SIZE, c = 4 * lane;
    float4 x[3] = {};
    if (row < b.n)
        convolve(x, m, a, h, row,
                 inputs_of(a, h) + (size_t)((h.position + b.done + row) % QN_GDN_INPUT_ROWS(a.taps)) * width_of(a));
    const float4 q = x[0], k = x[1], v = x[2];
    const float q_factor = rsqrtf(qn_warp_sum(qn_delta_dot(q, q, 0)) + 1e-6f),
                k_factor = rsqrtf(qn_warp_sum(qn_delta_dot(k, k, 0)) + 1e-6f), kq = qn_warp_sum(qn_delta_dot(q, k, 0));
    (void)store_operand(m, QUERY_HI, row, q, q_factor);
    const uint2 key = store_operand(m, KEY_HI, row, k, k_factor);
    *(float4 *)(m.v[row] + c) = v;
    if (lane == 0) {
        m.g[row] = row < b.n ? fminf(qn_delta_log_decay(m.alpha[row], m.bias, m.factor), 0.0f) : 0.0f;
        m.beta[row] = row < b.n ? qn_sigmoid_fast(m.beta_in[row]) : 0.0f;
        m.kq[row] = kq * q_factor * k_factor;
    }
    if (row >= b.n)
        return;
    *(uint2 *)(m.keys + key_segment(b.stored + row, lane / 2) + lane % 2 * 4) = key;
    if (h.head < a.k_heads)
        *(uint2 *)(keys_of(a, h) + (b.stored + row) * QN_HEAD_K + c) = key;
    if (lane == 0)
        decays_of(a, h)[b.stored + row] = m.g[row];
}

// The sum of g of the block's rows after row `after`, which may be -1, up to row `last`.
QN_DEVICE float sum_gates(const few_smem &m, int after, int last)
{
    float g[FEW_ROWS], sum = 0;
    *(float4 *)g = *(const float4 *)m.g;
    *(float4 *)(g + 4) = *(const float4 *)(m.g + 4);
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++)
        sum += row > after && row <= last ? g[row] : 0.0f;
    return sum;
}

// ---- Products with the new keys and queries ----

// A lane's dot products of a tile's rows with the keys (operand KEY_HI) or the queries (QUERY_HI) of the block: element
// i is row g + i / 2 * 8 of 16, or of the state value 2 g + i / 2, with row 2 t + i % 2 of the block.
QN_DEVICE void multiply_rows(float x[4], const few_smem &m, const tile_rows &s, uint32_t operand)
{
    float hi[4] = {}, lo[4] = {};
    const uint16_t *from = m.operands[operand][lane_g()] + 8 * lane_t();
#pragma unroll
    for (int i = 0; i < KEY_GROUPS; i++) {
        const uint32_t first[4] = { s.low[i].x, s.high[i].x, s.low[i].y, s.high[i].y },
                       second[4] = { s.low[i].z, s.high[i].z, s.low[i].w, s.high[i].w };
        const uint4 y = *(const uint4 *)(from + 32 * i), z = *(const uint4 *)(from + FEW_ROWS * OPERAND_ROW + 32 * i);
        const uint32_t y0[2] = { y.x, y.y }, y1[2] = { y.z, y.w }, z0[2] = { z.x, z.y }, z1[2] = { z.z, z.w };
        qn_mma_m16n8k16_f16(hi, first, y0);
        qn_mma_m16n8k16_f16(lo, first, z0);
        qn_mma_m16n8k16_f16(hi, second, y1);
        qn_mma_m16n8k16_f16(lo, second, z1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = fmaf(lo[i], 1 / QN_GDN_LO_SCALE, hi[i]);
}

// Scores of 16 rows of the chunk with the keys or the queries; zeros from row n on.
QN_DEVICE void compute_scores(few_smem &m, uint32_t first, uint32_t n, bool of_queries)
{
    float x[4];
    tile_rows keys;
    read_keys(keys, m, first);
    multiply_rows(x, m, keys, of_queries ? QUERY_HI : KEY_HI);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = first + lane_g() + i / 2 * 8, of = 2 * lane_t() + i % 2;
        const float gate = row < n ? expf(m.since[row] + sum_gates(m, -1, of)) : 0.0f;
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
            m.scores[group][row][2 * of + of_queries] = row < n ? x[i] * gate * m.scales[group][row] : 0.0f;
    }
}

// Scores of the block's rows with earlier ones, whose keys are rounded as in the chunk.
QN_DEVICE void compute_near(few_smem &m, bool of_queries)
{
    float x[4];
    tile_rows keys;
#pragma unroll
    for (int i = 0; i < KEY_GROUPS; i++) {
        keys.low[i] = *(const uint4 *)(m.operands[KEY_HI][lane_g()] + 32 * i + 8 * lane_t());
        keys.high[i] = make_uint4(0, 0, 0, 0);
    }
    multiply_rows(x, m, keys, of_queries ? QUERY_HI : KEY_HI);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = 2 * lane_t() + i, earlier = lane_g();
        m.near[row][earlier][of_queries] = earlier < row ? x[i] * expf(sum_gates(m, earlier, row)) : 0.0f;
    }
}

// Scores, of keys by the first half of the warps and of queries by the second; the last warps of both, whose tiles are
// the last to be needed, have those of near rows, too.
QN_DEVICE void compute_all_scores(few_smem &m, const few_rows &b)
{
    const uint32_t warp = warp_id() % (ROW_WARPS / 2);
    const bool of_queries = warp_id() >= ROW_WARPS / 2;
    if (warp * TILE_ROWS < b.stored)
        compute_scores(m, warp * TILE_ROWS, b.stored, of_queries);
    if (warp == ROW_WARPS / 2 - 1)
        compute_near(m, of_queries);
}

// ---- v' and o ----

// Of a lane's value: a and b of deltanet.h, without the block's own rows.
struct value_sums {
    float k[FEW_ROWS], q[FEW_ROWS];
};

// The sum over four lanes, of which even ones have the value x and odd ones y.
QN_DEVICE float sum_value(float2 sum)
{
    const bool odd = lane_t() % 2;
    const float own = odd ? sum.y : sum.x, other = odd ? sum.x : sum.y;
    return qn_lanes_sum<2, 4>(own + __shfl_xor_sync(QN_FULL_MASK, other, 1));
}

// k_reads, q_reads: of S k and S q, as multiply_rows returns them.
QN_DEVICE void add_values(value_sums &sums, const few_smem &m, const float k_reads[4], const float q_reads[4], uint32_t n)
{
    const uint32_t t = lane_t(), group = warp_id() * TILE_ROWS / QN_GDN_SCALE_VALUES;
    const float decays[2] = { expf(m.total + sum_gates(m, -1, 2 * t)), expf(m.total + sum_gates(m, -1, 2 * t + 1)) };
    float2 k[FEW_ROWS], q[FEW_ROWS];
#pragma unroll
    for (uint32_t row = 0; row < FEW_ROWS; row++) {
        const float decay = row / 2 == t ? decays[row % 2] : 0.0f;
        k[row] = make_float2(decay * k_reads[row % 2], decay * k_reads[2 + row % 2]);
        q[row] = make_float2(decay * q_reads[row % 2], decay * q_reads[2 + row % 2]);
    }
    const uint16_t *values = m.values + 2 * lane_g();
#pragma unroll 2
    for (uint32_t j = t; j < n; j += 4) {
        const uint32_t pair = *(const uint32_t *)(values + value_tile(j, warp_id()));
        const float low = qn_f16_low(pair), high = qn_f16_high(pair);
        const float4 *scores = (const float4 *)m.scores[group][j];
#pragma unroll
        for (uint32_t row = 0; row < FEW_ROWS; row += 2) {
            const float4 score = scores[row / 2];
            k[row] = make_float2(fmaf(score.x, low, k[row].x), fmaf(score.x, high, k[row].y));
            q[row] = make_float2(fmaf(score.y, low, q[row].x), fmaf(score.y, high, q[row].y));
            k[row + 1] = make_float2(fmaf(score.z, low, k[row + 1].x), fmaf(score.z, high, k[row + 1].y));
            q[row + 1] = make_float2(fmaf(score.w, low, q[row + 1].x), fmaf(score.w, high, q[row + 1].y));
        }
    }
#pragma unroll
    for (uint32_t row = 0; row < FEW_ROWS; row++) {
        sums.k[row] = sum_value(k[row]);
        sums.q[row] = sum_value(q[row]);
    }
}

// Combines the values of a warp for each row; lane 4 g + t gets the result of row g.
template <bool is_max> QN_DEVICE float combine_rows(const float x[FEW_ROWS])
{
    float parts[FEW_ROWS];
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++)
        parts[row] = x[row];
#pragma unroll
    for (int n = FEW_ROWS / 2; n > 0; n /= 2) {
        const bool upper = lane_g() & n;
#pragma unroll
        for (int row = 0; row < n; row++) {
            const float own = upper ? parts[row + n] : parts[row], other = upper ? parts[row] : parts[row + n];
            const float received = __shfl_xor_sync(QN_FULL_MASK, other, 4 * n);
            parts[row] = is_max ? fmaxf(own, received) : own + received;
        }
    }
    return is_max ? qn_lanes_max<1, 2>(parts[0]) : qn_lanes_sum<1, 2>(parts[0]);
}

QN_DEVICE float sum_of(const float x[ROW_WARPS])
{
    const float4 low = *(const float4 *)x, high = *(const float4 *)(x + 4);
    return ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
}

// v', o, and the gated norm. Two lanes have a value: the first stores outputs, the second v'.
QN_DEVICE void finish_rows(few_smem &m, const qn_gdn_open_args &a, const open_head &h, const few_rows &b,
                           const value_sums &sums)
{
    enum { GROUP_WARPS = QN_GDN_SCALE_VALUES / TILE_ROWS };
    static_assert(GROUP_WARPS == 4, "the maxima of a group are loaded at once");
    const uint32_t warp = warp_id(), t = lane_t(), value = warp * TILE_ROWS + 2 * lane_g() + t % 2,
                   group = warp / GROUP_WARPS, repeat = a.v_heads / a.k_heads,
                   out_head = a.grouped ? h.k_head * repeat + h.head / a.k_heads : h.head;
    float v[FEW_ROWS], o[FEW_ROWS], squares[FEW_ROWS], sizes[FEW_ROWS];
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        float k_sum = sums.k[row], q_sum = sums.q[row];
#pragma unroll
        for (int earlier = 0; earlier < row; earlier++) {
            const float2 score = *(const float2 *)m.near[row][earlier];
            k_sum = fmaf(score.x, v[earlier], k_sum);
            q_sum = fmaf(score.y, v[earlier], q_sum);
        }
        v[row] = m.beta[row] * (m.v[row][value] - k_sum);
        o[row] = fmaf(m.kq[row], v[row], q_sum) * a.scale;
        squares[row] = o[row] * o[row];
        sizes[row] = fabsf(v[row]);
    }
    const float warp_squares = combine_rows<false>(squares), warp_largest = combine_rows<true>(sizes);
    if (t == 0) {
        m.squares[lane_g()][warp] = warp_squares;
        m.largest[lane_g()][warp] = warp_largest;
    }
    __syncthreads();
    const float norm = m.norm[value];
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        if (row >= b.n)
            break;
        const float4 largest = *(const float4 *)(m.largest[row] + group * GROUP_WARPS);
        const float2 scale = qn_delta_scale_of(fmaxf(fmaxf(largest.x, largest.y), fmaxf(largest.z, largest.w)));
        const uint32_t at = b.stored + row;
        if (t < 2) {
            a.out[(size_t)(h.first + b.done + row) * a.out_stride + out_head * QN_HEAD_V + value] =
                o[row] * rsqrtf(sum_of(m.squares[row]) / QN_HEAD_V + a.eps) * norm * qn_silu_fast(m.z[row][value]);
        } else {
            const uint16_t scaled = (uint16_t)qn_f32_to_f16x2(v[row] * scale.y, 0);
            values_of(a, h)[at * QN_HEAD_V + value] = scaled;
            m.values[value_tile(at, warp) + value % TILE_ROWS] = scaled;
        }
        if (t == 2 && value % QN_GDN_SCALE_VALUES == 0) {
            scales_of(a, h)[group * CHUNK + at] = scale.x;
            m.scales[group][at] = scale.x;
        }
    }
}

// Makes a full block's rows part of the chunk in shared memory. Their keys, values and scales are there.
QN_DEVICE void append_rows(few_smem &m, const few_rows &b)
{
    const int row = (int)threadIdx.x - (int)b.stored;
    const float all = sum_gates(m, -1, FEW_ROWS - 1);
    if (threadIdx.x < b.stored + FEW_ROWS)
        m.since[threadIdx.x] = row < 0 ? m.since[threadIdx.x] + all : sum_gates(m, row, FEW_ROWS - 1);
    if (threadIdx.x == 0)
        m.total += all;
    __syncthreads();
}

// Grid: value heads (x), sequences (y).
extern "C" __global__ void __launch_bounds__(ROW_THREADS, QN_GDN_FEW_SM_BLOCKS)
    qn_gdn_open_few(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    few_smem &m = *(few_smem *)shared;
    const qn_gdn_open_sequence x = read_indices(a, blockIdx.y);
    qn_pdl_trigger();
    if (x.begin == x.end)
        return;
    const open_head h = locate_head(a, blockIdx.y, blockIdx.x, x);
    tile_rows s;
    load_state(s, h);
    load_stored(m, a, h);
    qn_pdl_wait();
#pragma unroll 1
    for (few_rows b = { 0, 0, open_rows(h) }; b.done < h.n; b.done += b.n, b.stored += b.n) {
        if (b.done > 0)
            append_rows(m, { b.done, FEW_ROWS, b.stored - FEW_ROWS });
        b.n = h.n - b.done < FEW_ROWS ? h.n - b.done : FEW_ROWS;
        load_new(m, a, h, b);
        qn_cp_async_commit();
        qn_cp_async_wait<0>();
        __syncthreads();
        if (b.done == 0 && warp_id() == ROW_WARPS - 1) // the warp that is the last to have a row
            sum_decays(m);
        prepare_row(m, a, h, b);
        __syncthreads();
        compute_all_scores(m, b);
        float k_reads[4], q_reads[4];
        multiply_rows(k_reads, m, s, KEY_HI);
        multiply_rows(q_reads, m, s, QUERY_HI);
        __syncthreads();
        value_sums sums;
        add_values(sums, m, k_reads, q_reads, b.stored);
        finish_rows(m, a, h, b, sums);
    }
}
