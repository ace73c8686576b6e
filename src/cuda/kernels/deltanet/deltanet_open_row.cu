// Gated DeltaNet for decode of many sequences, one row each: qn_gdn_open_row of deltanet.h. Nothing is folded: the
// caller folds full chunks before the launch.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. A block has one value head of a sequence. It is bound by its
// loads, which are all issued before anything else, the state to registers, the rest to shared memory, so that four
// blocks fit on an SM. The state and earlier inputs are loaded before the wait for the previous kernel; the open chunk
// after it, since copies complete in the order in which they were issued, and the new row is used first. A warp has 16
// rows of the state, of the plane hi, as A fragments of MMAs whose B operand is the new key and query, each as the sum
// of two f16 terms; 16 rows of the chunk's keys are multiplied by the same operand. Four lanes have two values: their
// accumulators of S k and S q, and every fourth row of the chunk's values. So there are three block barriers after the
// loads: for the key and query, for the scores, and for the norm of the output.
//
// Keys are in an order in which the registers of a 16-byte load are an A fragment without moves. A load has eight keys
// of one row; its words 0 and 2 are row g of the fragment, words 1 and 3 row g + 8. Columns 0 to 3 of B are hi and lo
// of the key and of the query at the keys of words 0 and 2, columns 4 to 7 the same at the keys of words 1 and 3. The
// other half of the accumulators is not used.
//
// No block reads data that another block writes: the new key, its inputs of the convolution and the new value are in no
// row that the launch reads. A block stores the data of its value head; the block of a key head's first value head also
// stores the key's data.
#include "cuda/kernels/deltanet/chunk_rows.cuh"

enum { SCORE_WARP = ROW_WARPS - CHUNK / TILE_ROWS };

// Roles of warps before the key and query are in shared memory: the first three convolve.
enum { QUERY_WARP, KEY_WARP, VALUE_WARP, GATE_WARP, OUTPUT_WARP };

struct row_smem : chunk_rows {
    uint4 operand[KEY_GROUPS / 2][QN_WARP_SIZE]; // each lane's B of two groups of keys
    // after the convolution; q and k normalised
    __align__(16) float q[QN_HEAD_K], k[QN_HEAD_K], v[QN_HEAD_V];
    __align__(16) float z[QN_HEAD_V];
    __align__(8) float scores[GROUPS][CHUNK][2]; // of the key, of the query: gated, and for scaled values
    float squares[ROW_WARPS], largest[ROW_WARPS];
    float gate_inputs[4]; // alpha, beta, bias, factor
    float g, beta, kq;
};

static_assert(sizeof(row_smem) <= QN_GDN_ROW_FIXED_BYTES(QN_HEAD_K, QN_HEAD_V), "the launch's shared memory");

// After row_smem, rows of CHANNELS: taps - 1 earlier inputs of the convolution, weights of each tap, the new input.
QN_DEVICE float *inputs_in(row_smem &m)
{
    return (float *)(&m + 1);
}

// ---- Loads ----

// The place of a block's first row among all rows of inputs and channels. Warps that convolve have four channels a
// thread, and so have the next warps, of weights.
struct row_place {
    uint32_t channel;
    uint32_t slot; // of the row's inputs
};

QN_DEVICE row_place place_of(const qn_gdn_open_args &a, const open_head &h)
{
    const uint32_t ring = QN_GDN_INPUT_ROWS(a.taps);
    return { channel_of(a, h, 4 * (threadIdx.x % (CHANNELS / 4))),
             ring & (ring - 1) ? h.position % ring : h.position & (ring - 1) };
}

// Earlier inputs of the convolution, in the open slot or before the state, and weights.
QN_DEVICE void load_inputs(row_smem &m, const qn_gdn_open_args &a, const open_head &h, const row_place &p, uint32_t n)
{
    const uint32_t past = a.taps - 1, width = width_of(a);
    float *to = inputs_in(m) + 4 * (threadIdx.x % (CHANNELS / 4));
    if (threadIdx.x < CHANNELS / 4) {
        const float *open = inputs_of(a, h) + p.channel,
                    *before = (const float *)(h.from + history_of(a)) + (past + n) * width + p.channel;
#pragma unroll 1
        for (uint32_t back = past; back > 0; back--, to += CHANNELS) {
            const uint32_t row = p.slot < back ? p.slot + QN_GDN_INPUT_ROWS(a.taps) - back : p.slot - back;
            qn_cp_async_16(to, back <= n ? open + row * width : before - back * width, back <= h.position ? 16 : 0);
        }
    } else if (threadIdx.x < CHANNELS / 2) {
        const float *from = a.conv + p.channel;
        to += past * CHANNELS;
#pragma unroll 1
        for (uint32_t tap = 0; tap <= past; tap++, to += CHANNELS, from += width)
            qn_cp_async_16(to, from);
    }
}

// Loads the results of previous kernels and the inputs of the gates, to shared memory too: ptxas would count loads to
// registers and loads of the state by one scoreboard, and the first use would wait for the state.
QN_DEVICE void load_new(row_smem &m, const qn_gdn_open_args &a, const open_head &h, const row_place &p)
{
    const uint32_t warp = warp_id(), lane = threadIdx.x % QN_WARP_SIZE;
    const size_t row = h.first;
    if (warp < GATE_WARP) {
        qn_cp_async_16(inputs_in(m) + (2 * a.taps - 1) * CHANNELS + 4 * threadIdx.x, a.qkv + row * a.qkv_stride + p.channel);
    } else if (warp == OUTPUT_WARP) {
        qn_cp_async_16(m.z + 4 * lane, a.gate + row * a.gate_stride + h.head * QN_HEAD_V + 4 * lane);
    } else if (warp == GATE_WARP && lane < 4) {
        const float *from = lane == 0   ? a.alpha + row * a.alpha_stride
                            : lane == 1 ? a.beta + row * a.beta_stride
                            : lane == 2 ? a.bias
                                        : a.factor;
        qn_cp_async_4(m.gate_inputs + lane, from + h.head);
    }
}

// ---- The new row ----

// Four channels. Stores the input for later rows.
QN_DEVICE float4 convolve(row_smem &m, const qn_gdn_open_args &a, const open_head &h, const row_place &p)
{
    const float *inputs = inputs_in(m) + 4 * threadIdx.x, *weights = inputs + (a.taps - 1) * CHANNELS;
    const float4 input = *(const float4 *)(weights + a.taps * CHANNELS);
    float4 x = make_float4(0, 0, 0, 0);
    if (warp_id() == VALUE_WARP || h.head < a.k_heads)
        *(float4 *)(inputs_of(a, h) + p.slot * width_of(a) + p.channel) = input;
#pragma unroll 2
    for (uint32_t tap = 0; tap + 1 < a.taps; tap++)
        x = add_tap(*(const float4 *)(weights + tap * CHANNELS), *(const float4 *)(inputs + tap * CHANNELS), x);
    x = add_tap(*(const float4 *)(weights + (a.taps - 1) * CHANNELS), input, x);
    return make_float4(qn_silu_fast(x.x), qn_silu_fast(x.y), qn_silu_fast(x.z), qn_silu_fast(x.w));
}

// Stores the key or the query, normalised. By a warp. column: of hi; key: where the key's f16 go, or null.
QN_DEVICE void store_operand(row_smem &m, uint32_t column, float *to, float4 x, uint16_t *key)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, group = lane / 8, t = lane / 2 % 4, word = lane % 2;
    const float factor = rsqrtf(qn_warp_sum(qn_delta_dot(x, x, 0)) + 1e-6f);
    uint32_t hi[2], lo[2];
    x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    qn_gdn_split(x.x, x.y, hi[0], lo[0]);
    qn_gdn_split(x.z, x.w, hi[1], lo[1]);
    *(float4 *)(to + 4 * lane) = x;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t *words = (uint32_t *)(m.operand[group / 2] + (column + 4 * i) * 4 + t) + group % 2 * 2 + word;
        words[0] = hi[i];
        words[4 * 4] = lo[i]; // the next column
    }
    if (key)
        *(uint2 *)(key + 4 * lane) = make_uint2(hi[0], hi[1]);
}

// Everything up to the key, query, value and gates in shared memory. row: of the chunk.
QN_DEVICE void prepare_row(row_smem &m, const qn_gdn_open_args &a, const open_head &h, const row_place &p, uint32_t row)
{
    const uint32_t warp = warp_id(), lane = threadIdx.x % QN_WARP_SIZE;
    float4 x = make_float4(0, 0, 0, 0);
    if (warp < GATE_WARP)
        x = convolve(m, a, h, p);
    if (warp == QUERY_WARP) {
        store_operand(m, 2, m.q, x, nullptr);
    } else if (warp == KEY_WARP) {
        store_operand(m, 0, m.k, x, h.head < a.k_heads ? keys_of(a, h) + row * QN_HEAD_K : nullptr);
    } else if (warp == VALUE_WARP) {
        *(float4 *)(m.v + 4 * lane) = x;
    } else if (warp == GATE_WARP && lane == 0) {
        m.g = fminf(qn_delta_log_decay(m.gate_inputs[0], m.gate_inputs[2], m.gate_inputs[3]), 0.0f);
        m.beta = qn_sigmoid_fast(m.gate_inputs[1]);
        decays_of(a, h)[row] = m.g;
    } else if (warp == OUTPUT_WARP) {
        sum_decays(m);
    }
}

// ---- Products with the new key and query ----

// A lane's part of the dot products of two rows of four lanes: with the key in lanes of even t, with the query in lanes
// of odd t.
QN_DEVICE float2 multiply_rows(const row_smem &m, const tile_rows &s)
{
    float low[4] = {}, high[4] = {};
#pragma unroll
    for (int i = 0; i < KEY_GROUPS; i += 2) {
        const uint4 x = m.operand[i / 2][threadIdx.x % QN_WARP_SIZE];
        const uint32_t b0[2] = { x.x, x.y }, b1[2] = { x.z, x.w };
        qn_mma_m16n8k16_f16(low, &s.low[i].x, b0);
        qn_mma_m16n8k16_f16(high, &s.high[i].x, b0);
        qn_mma_m16n8k16_f16(low, &s.low[i + 1].x, b1);
        qn_mma_m16n8k16_f16(high, &s.high[i + 1].x, b1);
    }
    const bool upper = lane_t() >= 2; // columns 4 to 7
    return make_float2(fmaf(upper ? low[3] : low[1], 1 / QN_GDN_LO_SCALE, upper ? low[2] : low[0]),
                       fmaf(upper ? high[3] : high[1], 1 / QN_GDN_LO_SCALE, upper ? high[2] : high[0]));
}

// Scores of 16 rows of the chunk; zeros from row n on.
QN_DEVICE void compute_scores(row_smem &m, uint32_t first, uint32_t n)
{
    const uint32_t t = lane_t(), row = first + lane_g() + (t < 2 ? 0 : 8);
    tile_rows rows;
    read_keys(rows, m, first);
    float2 dots = multiply_rows(m, rows);
    dots = make_float2(qn_lanes_sum<2, 4>(dots.x), qn_lanes_sum<2, 4>(dots.y));
    const float score = row < n ? (t < 2 ? dots.x : dots.y) * expf(m.since[row] + m.g) : 0.0f;
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; group++)
        m.scores[group][row][t % 2] = score * m.scales[group][row];
}

// ---- v' and o ----

// Of a lane's two values: a and b of deltanet.h.
struct value_sums {
    float2 k, q;
};

// reads: of S k and S q, as multiply_rows returns them.
QN_DEVICE value_sums add_values(const row_smem &m, float2 reads, uint32_t n)
{
    const uint32_t t = lane_t(), group = warp_id() * TILE_ROWS / QN_GDN_SCALE_VALUES;
    const float decay = expf(m.total + m.g);
    value_sums x;
    x.k = make_float2(t % 2 ? 0.0f : decay * reads.x, t % 2 ? 0.0f : decay * reads.y);
    x.q = make_float2(t % 2 ? decay * reads.x : 0.0f, t % 2 ? decay * reads.y : 0.0f);
    const float *scores = m.scores[group][t];
    const uint16_t *values = m.values + 2 * lane_g();
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += TILE_ROWS) {
        float2 score[TILE_ROWS / 4];
        uint32_t pair[TILE_ROWS / 4];
#pragma unroll
        for (uint32_t i = 0; i < TILE_ROWS / 4; i++) {
            score[i] = *(const float2 *)(scores + 2 * (first + 4 * i));
            pair[i] = *(const uint32_t *)(values + first * QN_HEAD_V + value_tile(4 * i + t, warp_id()));
        }
#pragma unroll
        for (uint32_t i = 0; i < TILE_ROWS / 4; i++) {
            const float low = qn_f16_low(pair[i]), high = qn_f16_high(pair[i]);
            x.k = make_float2(fmaf(score[i].x, low, x.k.x), fmaf(score[i].x, high, x.k.y));
            x.q = make_float2(fmaf(score[i].y, low, x.q.x), fmaf(score[i].y, high, x.q.y));
        }
    }
    x.k = make_float2(qn_lanes_sum<1, 4>(x.k.x), qn_lanes_sum<1, 4>(x.k.y));
    x.q = make_float2(qn_lanes_sum<1, 4>(x.q.x), qn_lanes_sum<1, 4>(x.q.y));
    return x;
}

// v', o, and the gated norm.
QN_DEVICE void finish_row(row_smem &m, const qn_gdn_open_args &a, const open_head &h, uint32_t row, const value_sums &x)
{
    const uint32_t warp = warp_id(), t = lane_t(), value = warp * TILE_ROWS + 2 * lane_g(),
                   group = value / QN_GDN_SCALE_VALUES, repeat = a.v_heads / a.k_heads,
                   out_head = a.grouped ? h.k_head * repeat + h.head / a.k_heads : h.head;
    const float2 input = *(const float2 *)(m.v + value);
    const float2 v = make_float2(m.beta * (input.x - x.k.x), m.beta * (input.y - x.k.y)),
                 o = make_float2(fmaf(m.kq, v.x, x.q.x) * a.scale, fmaf(m.kq, v.y, x.q.y) * a.scale);
    const float warp_squares = qn_lanes_sum<4, QN_WARP_SIZE>(fmaf(o.x, o.x, o.y * o.y)),
                warp_largest = qn_lanes_max<4, QN_WARP_SIZE>(fmaxf(fabsf(v.x), fabsf(v.y)));
    if (threadIdx.x % QN_WARP_SIZE == 0) {
        m.squares[warp] = warp_squares;
        m.largest[warp] = warp_largest;
    }
    const float gate = m.norm[value + t % 2] * qn_silu_fast(m.z[value + t % 2]);
    __syncthreads();
    float squares = 0, largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROW_WARPS; i++)
        squares += m.squares[i];
#pragma unroll
    for (uint32_t i = 0; i < QN_GDN_SCALE_VALUES / TILE_ROWS; i++)
        largest = fmaxf(largest, m.largest[group * (QN_GDN_SCALE_VALUES / TILE_ROWS) + i]);
    const float2 scale = qn_delta_scale_of(largest);
    if (t < 2)
        a.out[(size_t)h.first * a.out_stride + out_head * QN_HEAD_V + value + t] =
            (t ? o.y : o.x) * rsqrtf(squares / QN_HEAD_V + a.eps) * gate;
    else if (t == 2)
        *(uint32_t *)(values_of(a, h) + row * QN_HEAD_V + value) = qn_f32_to_f16x2(v.x * scale.y, v.y * scale.y);
    else if (value % QN_GDN_SCALE_VALUES == 0)
        scales_of(a, h)[group * CHUNK + row] = scale.x;
}

// Grid: value heads (x), sequences (y).
extern "C" __global__ void __launch_bounds__(ROW_THREADS, QN_GDN_ROW_SM_BLOCKS)
    qn_gdn_open_row(const __grid_constant__ qn_gdn_open_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    row_smem &m = *(row_smem *)shared;
    const qn_gdn_open_sequence x = read_indices(a, blockIdx.y);
    qn_pdl_trigger();
    if (x.begin == x.end)
        return;
    const open_head h = locate_head(a, blockIdx.y, blockIdx.x, x);
    const uint32_t n = open_rows(h), warp = warp_id(), lane = threadIdx.x % QN_WARP_SIZE;
    tile_rows s;
    load_state(s, h);
    const row_place p = place_of(a, h);
    load_inputs(m, a, h, p, n);
    if (threadIdx.x >= CHANNELS / 2) // in warps that load no rows of the convolution
        load_vectors(m, a, h, n, threadIdx.x - CHANNELS / 2);
    qn_pdl_wait();
    load_new(m, a, h, p);
    qn_cp_async_commit();
    load_keys(m, a, h, n);
    load_values(m, a, h, n);
    qn_cp_async_commit();
    qn_cp_async_wait<1>();
    __syncthreads();
    prepare_row(m, a, h, p, n);
    qn_cp_async_wait<0>();
    __syncthreads();
    if (warp == GATE_WARP) {
        const float kq = qn_warp_sum(qn_delta_dot(*(const float4 *)(m.q + 4 * lane), *(const float4 *)(m.k + 4 * lane), 0));
        if (lane == 0)
            m.kq = kq;
    }
    if (warp >= SCORE_WARP && (warp - SCORE_WARP) * TILE_ROWS < n)
        compute_scores(m, (warp - SCORE_WARP) * TILE_ROWS, n);
    const float2 reads = multiply_rows(m, s);
    __syncthreads();
    finish_row(m, a, h, n, add_values(m, reads, n));
}
