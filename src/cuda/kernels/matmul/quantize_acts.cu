// Converts rows of floats to the activation layouts, fused with the RMS norm or SwiGLU before the matmul. In hi/lo int8
// a warp quantises 128 columns by themselves: the RMS norm's division is left to the matmul. A Hadamard transform
// before QN_ACTS_HILO is of up to 1024 columns, the columns of a thread block. A token's scale in fp16 needs all of its
// row: a block has a row, which it reads once and holds in registers. In QN_ACTS_HILO_N1 the blocks of a row share it;
// for the norm each block reads the whole row. With QN_16BIT rows are fp16 or bf16.
#include "cuda/kernels/matmul/acts.cuh"

enum {
    THREADS = QN_QUANTIZE_ACTS_THREADS(QN_ACTS_LAYOUT),
    WARPS = THREADS / QN_WARP_SIZE,
    HELD_VEC4S = 5 /* of a row that a thread holds; the rest of longer rows is read again */
};

#ifdef QN_16BIT
typedef uint16_t element;
#else
typedef float element;
#endif

struct row_source {
    const element *x, *x2;
    const float *weight;
    uint32_t n_cols;
    bool is_bf16; // 16-bit elements only
    bool vec4;    // all pointers are multiples of four elements
    float scale;  // 1 / RMS
};

QN_DEVICE float load_element(const float *x, uint32_t k, bool)
{
    return x[k];
}

#ifdef QN_16BIT
QN_DEVICE float load_element(const uint16_t *x, uint32_t k, bool is_bf16)
{
    return is_bf16 ? qn_bf16_to_f32(x[k]) : qn_f16_to_f32(x[k]);
}
#endif

QN_DEVICE float4 load_aligned(const float *x, bool)
{
    return *(const float4 *)x;
}

#ifdef QN_16BIT
QN_DEVICE float4 load_aligned(const uint16_t *x, bool is_bf16)
{
    const uint2 words = *(const uint2 *)x;
    if (is_bf16)
        return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                           __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u));
    return make_float4(qn_f16_low(words.x), qn_f16_high(words.x), qn_f16_low(words.y), qn_f16_high(words.y));
}
#endif

template <class type> QN_DEVICE float4 load_vec4(const row_source &s, const type *x, uint32_t k)
{
    const uint32_t n = s.n_cols;
    if (s.vec4 && k + 4 <= n)
        return load_aligned(x + k, s.is_bf16);
    return make_float4(k < n ? load_element(x, k, s.is_bf16) : 0, k + 1 < n ? load_element(x, k + 1, s.is_bf16) : 0,
                       k + 2 < n ? load_element(x, k + 2, s.is_bf16) : 0, k + 3 < n ? load_element(x, k + 3, s.is_bf16) : 0);
}

#if QN_OP == QN_ACTS_OP_RMS_NORM
#define SECOND_INPUT weight
#else
#define SECOND_INPUT x2
#endif

#if QN_OP == QN_ACTS_OP_RMS_NORM && QN_ACTS_LAYOUT == QN_ACTS_HILO_N1

// LOADS_IN_FLIGHT loads are issued before their first use: a row is short, and bound by latency.
QN_DEVICE float sum_of_squares(const row_source &s)
{
    enum { LOADS_IN_FLIGHT = 8 };
    float sum = 0;
    for (uint32_t first = 4 * threadIdx.x; first < s.n_cols; first += 4 * LOADS_IN_FLIGHT * THREADS) {
        float4 v[LOADS_IN_FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < LOADS_IN_FLIGHT; i++)
            v[i] = load_vec4(s, s.x, first + 4 * i * THREADS);
#pragma unroll
        for (uint32_t i = 0; i < LOADS_IN_FLIGHT; i++)
            sum += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    return qn_block_sum<WARPS>(sum);
}

#endif

QN_DEVICE float4 apply_op_4(float4 x, float4 other, float scale)
{
    return make_float4(apply_op(x.x, other.x, scale), apply_op(x.y, other.y, scale), apply_op(x.z, other.z, scale),
                       apply_op(x.w, other.w, scale));
}

QN_DEVICE float4 load_other(const row_source &s, uint32_t k)
{
    return QN_OP == QN_ACTS_OP_NONE ? make_float4(0, 0, 0, 0) : load_vec4(s, s.SECOND_INPUT, k);
}

#if QN_ACTS_LAYOUT == QN_ACTS_HILO || QN_ACTS_LAYOUT == QN_ACTS_HILO_F16

#if QN_ACTS_LAYOUT == QN_ACTS_HILO

// Butterflies between the warps of a block, for Hadamard blocks of more than a warp's 128 columns.
QN_DEVICE float4 cross_hadamard(float4 v, uint32_t block)
{
    __shared__ float4 values[THREADS];
    for (uint32_t distance = QN_WARP_SIZE; 4 * distance < block; distance *= 2) {
        __syncthreads(); // the values before have been read
        values[threadIdx.x] = v;
        __syncthreads();
        const float4 other = values[threadIdx.x ^ distance];
        const float sign = threadIdx.x & distance ? -1.0f : 1.0f;
        v = make_float4(fmaf(sign, v.x, other.x), fmaf(sign, v.y, other.y), fmaf(sign, v.z, other.z),
                        fmaf(sign, v.w, other.w));
    }
    return v;
}

#endif

// Writes a warp's 128 columns of a token, 4 i to 4 i + 3 in lane i, if there is such a block of the activations.
// QN_ACTS_HILO: by all warps.
QN_DEVICE void quantize_128(const qn_matmul_quantize_acts_args &a, uint32_t block, uint32_t token, float4 x, float4 other)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, n_blocks = a.n_k_tiles * (QN_TILE_COLS / QN_ACTS_HILO_COLS);
    float4 v = apply_op_4(x, other, 1); // the RMS norm without its division
#if QN_ACTS_LAYOUT == QN_ACTS_HILO
    if (a.hadamard.block) {
        v = apply_signs(v, a.hadamard.signs, block * QN_ACTS_HILO_COLS + 4 * lane, a.n_cols);
        v = cross_hadamard(warp_hadamard(v, a.hadamard.block), a.hadamard.block);
    }
#endif
    write_hilo(a.out, a.scale, a.capacity, a.planes, a.n_tokens, block, token, v, a.hadamard.scale, block < n_blocks);
#if QN_OP == QN_ACTS_OP_RMS_NORM
    const float sum = sum_of_squares_128(x);
    if (lane == 0 && block < n_blocks)
        a.scale[(uint64_t)(n_blocks + block) * a.capacity + token] = sum;
#endif
}

// A block's share.
QN_DEVICE void prepare_slots(const qn_matmul_quantize_acts_args &a)
{
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
    for (uint32_t i = block * THREADS + threadIdx.x; i < a.slot_bytes / sizeof(uint4); i += blocks * THREADS)
        ((uint4 *)a.slots)[i] = make_uint4(QN_FEW_EMPTY, QN_FEW_EMPTY, QN_FEW_EMPTY, QN_FEW_EMPTY);
}

#endif

#if QN_ACTS_LAYOUT == QN_ACTS_HILO

QN_DEVICE void quantize_row(const qn_matmul_quantize_acts_args &a, const row_source &source, uint32_t token)
{
    const uint32_t block = blockIdx.x * WARPS + threadIdx.x / QN_WARP_SIZE,
                   k = block * QN_ACTS_HILO_COLS + 4 * (threadIdx.x % QN_WARP_SIZE);
    prepare_slots(a);
    quantize_128(a, block, token, load_vec4(source, source.x, k), load_other(source, k));
}

#elif QN_ACTS_LAYOUT == QN_ACTS_F16 || QN_ACTS_LAYOUT == QN_ACTS_HILO_F16

QN_DEVICE uint32_t block_max(uint32_t x)
{
    __shared__ uint32_t maxima[WARPS];
    x = __reduce_max_sync(QN_FULL_MASK, x);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        maxima[threadIdx.x / QN_WARP_SIZE] = x;
    __syncthreads();
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        amax = max(amax, maxima[i]);
    return amax;
}

// The values of a row that a thread holds: columns 4 i to 4 i + 3 for i = threadIdx.x, threadIdx.x + THREADS, ...
struct held_values {
    float4 at[HELD_VEC4S];
};

QN_DEVICE uint32_t first_after_held()
{
    return 4 * (threadIdx.x + HELD_VEC4S * THREADS);
}

#if QN_OP == QN_ACTS_OP_RMS_NORM

QN_DEVICE float square(float4 v)
{
    return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}

#endif

// Reads the row and applies the operation; sets source.scale. Writes hi/lo int8 if that is wanted too. Returns the
// MAGNITUDE of the row.
QN_DEVICE uint32_t load_row(const qn_matmul_quantize_acts_args &a, uint32_t token, held_values &held, row_source &source)
{
    float4 other[HELD_VEC4S] = {};
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        held.at[i] = load_vec4(source, source.x, 4 * (threadIdx.x + i * THREADS));
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        other[i] = load_other(source, 4 * (threadIdx.x + i * THREADS));
#if QN_ACTS_LAYOUT == QN_ACTS_HILO_F16
    // The columns of a k-tile are a multiple of a warp's.
    const uint32_t n = a.n_k_tiles * (QN_TILE_COLS / 4);
    prepare_slots(a);
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        if (threadIdx.x + i * THREADS < n)
            quantize_128(a, (threadIdx.x + i * THREADS) / QN_WARP_SIZE, token, held.at[i], other[i]);
    for (uint32_t i = first_after_held() / 4; i < n; i += THREADS)
        quantize_128(a, i / QN_WARP_SIZE, token, load_vec4(source, source.x, 4 * i), load_other(source, 4 * i));
#endif
#if QN_OP == QN_ACTS_OP_RMS_NORM
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        sum += square(held.at[i]);
    for (uint32_t k = first_after_held(); k < source.n_cols; k += 4 * THREADS)
        sum += square(load_vec4(source, source.x, k));
    source.scale = 1.0f / sqrtf(qn_block_sum<WARPS>(sum) / (float)source.n_cols + a.eps);
#endif
    uint32_t amax = 0;
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        if (4 * (threadIdx.x + i * THREADS) < source.n_cols) { // SwiGLU of zeros takes as long
            held.at[i] = apply_op_4(held.at[i], other[i], source.scale);
            amax = max(amax, magnitude(held.at[i]));
        }
    for (uint32_t k = first_after_held(); k < source.n_cols; k += 4 * THREADS)
        amax = max(amax, magnitude(apply_op_4(load_vec4(source, source.x, k), load_other(source, k), source.scale)));
    return block_max(amax);
}

// A token's row of fp16; its columns of 64 are `stride` bytes apart.
struct f16_row {
    uint8_t *out;
    uint64_t stride;
    uint32_t token;
    float inverse;
    bool finite;
};

// Writes the scale too. amax: MAGNITUDE of the row.
QN_DEVICE f16_row begin_f16(const qn_matmul_f16_acts &to, uint32_t token, uint32_t amax)
{
    const bool finite = amax < INF_BITS;
    // The power of two above amax, limited so that its inverse is a normal float.
    const uint32_t exponent = min(amax >> 23, 252u);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        to.token_scale[token] = finite ? __uint_as_float((exponent + 1) << 23) : QN_NAN;
    return { to.out + token / 8 * 1024 + token % 8 * 128, (uint64_t)to.capacity * 128, token,
             __uint_as_float((253 - exponent) << 23), finite };
}

// Writes columns 4 i to 4 i + 3.
QN_DEVICE void write_f16(const f16_row &row, uint32_t i, float4 v)
{
    // Columns 4t to 4t+3 of half h of a group of a step of 64.
    const uint32_t t = i % 4, h = i / 4 % 2, group = i / 8 % 2, step = i / 16;
    const float x[4] = { v.x, v.y, v.z, v.w };
    uint8_t *to = row.out + step * row.stride + 4 * t;
#pragma unroll
    for (uint32_t k16 = 0; k16 < 2; k16++)
        *(uint32_t *)(to + ((4 * group + 2 * k16 + h) ^ row.token % 8) * 16) =
            row.finite ? qn_f32_to_f16x2(x[k16] * row.inverse, x[k16 + 2] * row.inverse) : 0;
}

QN_DEVICE void quantize_row(const qn_matmul_quantize_acts_args &a, row_source &source, uint32_t token)
{
    const uint32_t n = a.n_k_tiles * (QN_TILE_COLS / 4);
    held_values held;
    const uint32_t amax = load_row(a, token, held, source);
#if QN_ACTS_LAYOUT == QN_ACTS_HILO_F16
    const f16_row row = begin_f16(a.f16, token, amax);
#else
    const f16_row row = begin_f16({ a.out, a.scale, a.capacity }, token, amax);
#endif
#pragma unroll
    for (uint32_t i = 0; i < HELD_VEC4S; i++)
        if (threadIdx.x + i * THREADS < n)
            write_f16(row, threadIdx.x + i * THREADS, held.at[i]);
    for (uint32_t i = first_after_held() / 4; i < n; i += THREADS)
        write_f16(row, i, apply_op_4(load_vec4(source, source.x, 4 * i), load_other(source, 4 * i), source.scale));
}

#else

// A warp quantises 128 columns.
QN_DEVICE void quantize_row(const qn_matmul_quantize_acts_args &a, const row_source &source, uint32_t)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, n = a.n_k_tiles * (QN_TILE_COLS / QN_ACTS_HILO_COLS);
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / QN_WARP_SIZE; i < n; i += gridDim.x * WARPS) {
        const uint32_t k = i * QN_ACTS_HILO_COLS + 4 * lane;
        write_hilo_n1(a.out, i * QN_ACTS_HILO_COLS, apply_op_4(load_vec4(source, source.x, k), load_other(source, k), source.scale));
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_matmul_quantize_acts(const __grid_constant__ qn_matmul_quantize_acts_args a)
{
    const uint32_t token = blockIdx.y;
    row_source source;
    source.x = (const element *)a.x + (uint64_t)token * a.stride;
    source.x2 = (const element *)a.x2 + (uint64_t)token * a.stride;
    source.weight = a.weight;
    source.n_cols = a.n_cols;
    source.is_bf16 = a.is_bf16;
    const uint64_t second = QN_OP == QN_ACTS_OP_NONE ? 0 : (uint64_t)source.SECOND_INPUT;
    source.vec4 = ((uint64_t)source.x | second) % (4 * sizeof(element)) == 0 &&
                  (QN_OP != QN_ACTS_OP_RMS_NORM || second % sizeof(float4) == 0);
    source.scale = 0;
    qn_pdl_trigger();
    // Not read since the previous step: likely in HBM.
    for (uint32_t k = (blockIdx.x * THREADS + threadIdx.x) * 32; k < a.n_cols; k += gridDim.x * THREADS * 32) {
        if (QN_OP == QN_ACTS_OP_RMS_NORM)
            qn_prefetch_line(a.weight + k);
        if (QN_ACTS_LAYOUT == QN_ACTS_HILO && a.hadamard.signs)
            qn_prefetch_line(a.hadamard.signs + k);
    }
    qn_pdl_wait();
#if QN_OP == QN_ACTS_OP_RMS_NORM && QN_ACTS_LAYOUT == QN_ACTS_HILO_N1
    source.scale = 1.0f / sqrtf(sum_of_squares(source) / (float)a.n_cols + a.eps);
#endif
    quantize_row(a, source, token);
}
