// Several tokens of Gated DeltaNet: the delta rule token by token, in f32 (qn_gdn_recurrent); convolution and gates
// before the chunk kernels (qn_gdn_conv), and the gated norm after them (qn_gdn_norm). deltanet.h documents them; the
// chunked form on tensor cores is in deltanet_prepare.cu and deltanet_advance.cu.
//
// QN_HEAD_K and QN_HEAD_V are compile-time constants. q, k, v and o are f32, bf16 with QN_BF16, or f16 with QN_F16.
//
// Four lanes hold a row of the state (the keys of one value), interleaved in quads of 4 keys. A warp thus loads 8 rows
// in segments of 64 bytes, with all loads in flight at the same time, and a sum over keys takes two shuffles.
#include "cuda/kernels/deltanet/inputs.cuh"

#ifndef QN_HEAD_K
#define QN_HEAD_K 128
#endif
#ifndef QN_HEAD_V
#define QN_HEAD_V 128
#endif

#if defined(QN_BF16) || defined(QN_F16)
typedef uint16_t element;
#else
typedef float element;
#endif

#define LANES QN_GDN_ROW_LANES
#define KEY_QUADS (QN_HEAD_K / (4 * LANES)) // quads of 4 keys per lane

#if defined(QN_F16)
QN_DEVICE float to_float(element x)
{
    return qn_f16_to_f32(x);
}

QN_DEVICE element from_float(float x)
{
    return qn_f32_to_f16(x);
}
#elif defined(QN_BF16)
QN_DEVICE float to_float(element x)
{
    return qn_bf16_to_f32(x);
}

QN_DEVICE element from_float(float x)
{
    return qn_f32_to_bf16(x);
}
#else
QN_DEVICE float to_float(element x)
{
    return x;
}

QN_DEVICE element from_float(float x)
{
    return x;
}
#endif

// ---- Convolution and gates ----

#define CONV_ROWS QN_GDN_CONV_ROWS

static_assert(CONV_ROWS >= QN_GDN_MAX_TAPS - 1, "only the first block of tokens reads the history");

// Grid: heads of q, k and v (x), blocks of CONV_ROWS tokens (y). One thread per channel.
extern "C" __global__ void qn_gdn_conv(const __grid_constant__ qn_gdn_conv_args a)
{
    qn_pdl_wait();
    const uint32_t n = a.rows, begin = blockIdx.y * CONV_ROWS;
    const uint32_t keys = a.k_heads * QN_HEAD_K, width = 2 * keys + a.v_heads * QN_HEAD_V, head = blockIdx.x;
    const bool is_value = head >= 2 * a.k_heads;
    const uint32_t channels = is_value ? QN_HEAD_V : QN_HEAD_K, end = begin + CONV_ROWS < n ? begin + CONV_ROWS : n;
    const uint32_t offset = is_value ? 2 * keys + (head - 2 * a.k_heads) * QN_HEAD_V : head * QN_HEAD_K;
    for (uint32_t i = threadIdx.x; i < channels; i += blockDim.x) {
        const uint32_t channel = offset + i;
        const float *input = a.qkv + channel;
        float weights[QN_GDN_MAX_TAPS], window[QN_GDN_MAX_TAPS]; // index: tokens back; zeros beyond the taps
#pragma unroll
        for (uint32_t back = 0; back < QN_GDN_MAX_TAPS; back++) {
            const bool in_range = back < a.taps;
            weights[back] = in_range ? a.conv[(a.taps - 1 - back) * width + channel] : 0.0f;
            window[back] = !in_range || back == 0 ? 0.0f
                           : back <= begin        ? input[(size_t)(begin - back) * a.qkv_stride]
                           : a.history            ? a.history[(a.taps - 1 + begin - back) * width + channel]
                                                  : 0.0f;
        }
        for (uint32_t row = begin; row < end; row++) {
            float sum = 0;
            window[0] = input[(size_t)row * a.qkv_stride];
#pragma unroll
            for (int back = QN_GDN_MAX_TAPS - 1; back >= 0; back--)
                sum = fmaf(weights[back], window[back], sum);
            ((element *)a.out)[(size_t)row * a.out_stride + channel] = from_float(sum * qn_sigmoid(sum));
#pragma unroll
            for (int back = QN_GDN_MAX_TAPS - 1; back > 0; back--)
                window[back] = window[back - 1];
        }
        // Only the first block of tokens reads the history, so this block writes the next one.
        for (uint32_t row = 0; begin == 0 && row < a.taps - 1; row++)
            a.last[row * width + channel] = input[(size_t)(n - (a.taps - 1) + row) * a.qkv_stride];
    }
    if (is_value)
        for (uint32_t row = begin + threadIdx.x; row < end; row += blockDim.x) {
            const uint32_t v_head = head - 2 * a.k_heads;
            const size_t at = row, to = at * a.v_heads + v_head;
            a.g[to] = qn_delta_log_decay(a.alpha[at * a.alpha_stride + v_head], a.bias[v_head], a.factor[v_head]);
            a.beta[to] = qn_sigmoid(a.beta_in[at * a.beta_stride + v_head]);
        }
}

// ---- The delta rule ----

#define RECURRENT_VALUES QN_GDN_RECURRENT_VALUES
#define RECURRENT_THREADS (RECURRENT_VALUES * LANES)
#define RECURRENT_TOKENS 8 // loaded to shared memory at a time

struct recurrent_smem {
    __align__(16) float q[RECURRENT_TOKENS][QN_HEAD_K], k[RECURRENT_TOKENS][QN_HEAD_K];
    float v[RECURRENT_TOKENS][RECURRENT_VALUES], decay[RECURRENT_TOKENS], beta[RECURRENT_TOKENS];
};

// A row of a state, as qn_delta_load_row distributes it over lanes.
template <bool bf16> QN_DEVICE void load_state_keys(float4 s[KEY_QUADS], const qn_gdn_head_state &from, size_t row)
{
    const size_t step = from.key_step;
#pragma unroll
    for (int i = 0; i < KEY_QUADS; i++) {
        const size_t at = row + (i * LANES + threadIdx.x % LANES) * 4 * step;
        s[i] = make_float4(qn_gdn_load_state<bf16>(from, at), qn_gdn_load_state<bf16>(from, at + step),
                           qn_gdn_load_state<bf16>(from, at + 2 * step), qn_gdn_load_state<bf16>(from, at + 3 * step));
    }
}

template <bool bf16> QN_DEVICE void store_state_keys(const qn_gdn_head_state &to, size_t row, const float4 s[KEY_QUADS])
{
    const size_t step = to.key_step;
#pragma unroll
    for (int i = 0; i < KEY_QUADS; i++) {
        const size_t at = row + (i * LANES + threadIdx.x % LANES) * 4 * step;
        qn_gdn_store_state<bf16>(to, at, s[i].x);
        qn_gdn_store_state<bf16>(to, at + step, s[i].y);
        qn_gdn_store_state<bf16>(to, at + 2 * step, s[i].z);
        qn_gdn_store_state<bf16>(to, at + 3 * step, s[i].w);
    }
}

QN_DEVICE void load_bf16_row(float4 s[KEY_QUADS], const uint16_t *row)
{
#pragma unroll
    for (int i = 0; i < KEY_QUADS; i++) {
        const uint2 pairs = *(const uint2 *)(row + (i * LANES + threadIdx.x % LANES) * 4);
        const float2 lo = qn_bf16x2_to_f32(pairs.x), hi = qn_bf16x2_to_f32(pairs.y);
        s[i] = make_float4(lo.x, lo.y, hi.x, hi.y);
    }
}

QN_DEVICE void store_bf16_row(uint16_t *row, const float4 s[KEY_QUADS])
{
#pragma unroll
    for (int i = 0; i < KEY_QUADS; i++)
        *(uint2 *)(row + (i * LANES + threadIdx.x % LANES) * 4) =
            make_uint2(qn_f32_to_bf16x2(s[i].x, s[i].y), qn_f32_to_bf16x2(s[i].z, s[i].w));
}

QN_DEVICE void load_state_row(float4 s[KEY_QUADS], const qn_gdn_head_state &from, size_t value, bool in_range)
{
    const size_t row = value * from.value_step;
    if (!from.data || !in_range)
        qn_delta_load_row<LANES, KEY_QUADS>(s, nullptr);
    else if (from.key_step > 1 && from.type == QN_GDN_STATE_BF16)
        load_state_keys<true>(s, from, row);
    else if (from.key_step > 1)
        load_state_keys<false>(s, from, row);
    else if (from.type == QN_GDN_STATE_BF16)
        load_bf16_row(s, (const uint16_t *)from.data + row);
    else
        qn_delta_load_row<LANES, KEY_QUADS>(s, (const float *)from.data + row);
}

QN_DEVICE void store_state_row(const qn_gdn_head_state &to, size_t value, const float4 s[KEY_QUADS])
{
    const size_t row = value * to.value_step;
    if (to.key_step > 1 && to.type == QN_GDN_STATE_BF16)
        store_state_keys<true>(to, row, s);
    else if (to.key_step > 1)
        store_state_keys<false>(to, row, s);
    else if (to.type == QN_GDN_STATE_BF16)
        store_bf16_row((uint16_t *)to.data + row, s);
    else
        qn_delta_store_row<LANES, KEY_QUADS>((float *)to.data + row, s);
}

// Grid: blocks of RECURRENT_VALUES values (x), value heads (y), sequences (z).
extern "C" __global__ void __launch_bounds__(RECURRENT_THREADS) qn_gdn_recurrent(const __grid_constant__ qn_gdn_chunk_args a)
{
    __shared__ recurrent_smem m;
    qn_pdl_wait();
    const uint32_t sequence = blockIdx.z, head = blockIdx.y, value = blockIdx.x * RECURRENT_VALUES + threadIdx.x / LANES;
    const uint32_t k_head = a.tiled ? head % a.k_heads : head / (a.v_heads / a.k_heads);
    const uint32_t first = a.cu_seqlens ? qn_gdn_seqlen(a, sequence) : sequence * a.tokens;
    const uint32_t n = a.cu_seqlens ? qn_gdn_seqlen(a, sequence + 1) - first : a.tokens;
    if (qn_gdn_skipped(a, sequence))
        return;
    const qn_gdn_head_state initial = qn_gdn_initial_state(a, sequence, head),
                            final = qn_gdn_final_state(a, sequence, head);
    const bool in_range = value < a.head_v;
    float4 s[KEY_QUADS];
    load_state_row(s, initial, value, in_range);
    for (uint32_t begin = 0; begin < n; begin += RECURRENT_TOKENS) {
        const uint32_t tokens = n - begin < RECURRENT_TOKENS ? n - begin : RECURRENT_TOKENS;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < tokens * QN_HEAD_K; i += RECURRENT_THREADS) {
            const uint32_t token = i / QN_HEAD_K, x = k_head * QN_HEAD_K + i % QN_HEAD_K;
            m.q[token][i % QN_HEAD_K] = to_float(((const element *)a.q)[(size_t)(first + begin + token) * a.q_stride + x]);
            m.k[token][i % QN_HEAD_K] = to_float(((const element *)a.k)[(size_t)(first + begin + token) * a.k_stride + x]);
        }
        for (uint32_t i = threadIdx.x; i < tokens * RECURRENT_VALUES; i += RECURRENT_THREADS) {
            const uint32_t token = i / RECURRENT_VALUES, x = blockIdx.x * RECURRENT_VALUES + i % RECURRENT_VALUES;
            m.v[token][i % RECURRENT_VALUES] =
                x < a.head_v
                    ? to_float(((const element *)a.v)[(size_t)(first + begin + token) * a.v_stride + head * a.head_v + x])
                    : 0.0f;
        }
        if (threadIdx.x < tokens) {
            const size_t at = first + begin + threadIdx.x;
            m.decay[threadIdx.x] = expf(qn_gdn_log_decay(a, qn_load_typed(a.g, at * a.g_stride + head, a.g_dtype), head));
            m.beta[threadIdx.x] = qn_gdn_beta(a, qn_load_typed(a.beta, at * a.beta_stride + head, a.beta_dtype));
        }
        __syncthreads();
        for (uint32_t token = 0; token < tokens; token++) {
            const qn_delta_qk_norms sums = qn_delta_compute_qk_norms<QN_HEAD_K>(m.q[token], m.k[token], a.normalize);
            const float o = qn_delta_row<LANES, KEY_QUADS>(s, m.q[token], m.k[token], sums, m.decay[token], m.beta[token],
                                                      m.v[token][threadIdx.x / LANES]) *
                            a.scale;
            if (in_range && threadIdx.x % LANES == 0)
                ((element *)a.o)[(size_t)(first + begin + token) * a.o_stride + head * a.head_v + value] = from_float(o);
        }
    }
    if (final.data && in_range)
        store_state_row(final, value, s);
}

// ---- Gated norm ----

// Grid: blocks of 4 heads (x), rows (y). One warp per head.
extern "C" __global__ void __launch_bounds__(4 * QN_WARP_SIZE) qn_gdn_norm(const __grid_constant__ qn_gdn_norm_args a)
{
    const uint32_t head = blockIdx.x * 4 + threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const size_t row = blockIdx.y;
    qn_pdl_wait();
    if (head >= a.v_heads)
        return;
    float x[(QN_HEAD_V + QN_WARP_SIZE - 1) / QN_WARP_SIZE], squares = 0;
#pragma unroll
    for (uint32_t i = 0; i * QN_WARP_SIZE < QN_HEAD_V; i++) {
        const uint32_t at = i * QN_WARP_SIZE + lane;
        x[i] = at < QN_HEAD_V ? to_float(((const element *)a.o)[row * a.o_stride + head * QN_HEAD_V + at]) : 0.0f;
        squares = fmaf(x[i], x[i], squares);
    }
    const float factor = 1.0f / sqrtf(qn_warp_sum(squares) / QN_HEAD_V + a.eps);
    const uint32_t repeat = a.v_heads / a.k_heads;
    const uint32_t out_head = a.grouped ? head % a.k_heads * repeat + head / a.k_heads : head;
#pragma unroll
    for (uint32_t i = 0; i * QN_WARP_SIZE < QN_HEAD_V; i++) {
        const uint32_t at = i * QN_WARP_SIZE + lane;
        if (at < QN_HEAD_V) {
            const float z = a.gate[row * a.gate_stride + head * QN_HEAD_V + at];
            a.out[row * a.out_stride + out_head * QN_HEAD_V + at] = x[i] * factor * a.norm[at] * (z * qn_sigmoid(z));
        }
    }
}
