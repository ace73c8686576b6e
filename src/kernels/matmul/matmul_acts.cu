// Rows of floats into the forms that products read: normalised or multiplied on the way where an operation before the product
// is just that. A block reads its whole row for what depends on all of it, and writes a share.
#include "kernels/matmul/tiles.cuh"

enum { WARPS = QN_ACTS_THREADS / QN_WARP };

// The bits of the largest magnitude: ordered as the magnitudes are, infinity and NaN on top.
#define MAGNITUDE(x) (__float_as_uint(x) & 0x7fffffffu)
#define NOT_FINITE 0x7f800000u

// Smallest run that has codes: 127 divided by it would overflow below (matmul.h, QN_SMALLEST_RUN).
#define SMALLEST_RUN 1e-30f

struct row_source {
    const float *x, *x2, *weight;
    uint32_t n_cols;
    bool by_fours; // all of them begin at multiples of 16 bytes
    float scale;   // of the norm
};

#if QN_FORM == QN_ACTS_HALVES || QN_OP == QN_ACTS_NORM

QN_DEVICE float4 load_four(const float *x, uint32_t k, uint32_t n, bool by_fours)
{
    if (by_fours && k + 4 <= n)
        return *(const float4 *)(x + k);
    return make_float4(k < n ? x[k] : 0, k + 1 < n ? x[k + 1] : 0, k + 2 < n ? x[k + 2] : 0, k + 3 < n ? x[k + 3] : 0);
}

#endif

// What an element becomes; `other` is its weight or its other factor.
QN_DEVICE float value_of(const row_source &s, float x, float other)
{
#if QN_OP == QN_ACTS_NORM
    return x * s.scale * other;
#elif QN_OP == QN_ACTS_SWIGLU
    return x / (1.0f + expf(-x)) * other;
#else
    return x;
#endif
}

QN_DEVICE const float *others(const row_source &s)
{
    return QN_OP == QN_ACTS_NORM ? s.weight : s.x2;
}

#if QN_OP == QN_ACTS_NORM

QN_DEVICE float block_sum(float x)
{
    __shared__ float sums[WARPS];
    x = qn_warp_sum(x);
    if (threadIdx.x % QN_WARP == 0)
        sums[threadIdx.x / QN_WARP] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return sum;
}

// Many loads before their first use: a row is short, and its way is long.
QN_DEVICE float sum_of_squares(const row_source &s)
{
    enum { AHEAD = 8 };
    float sum = 0;
    for (uint32_t first = 4 * threadIdx.x; first < s.n_cols; first += 4 * AHEAD * QN_ACTS_THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            v[i] = load_four(s.x, first + 4 * i * QN_ACTS_THREADS, s.n_cols, s.by_fours);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            sum += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    return block_sum(sum);
}

#endif

#if QN_FORM == QN_ACTS_HALVES

QN_DEVICE float4 values_at(const row_source &s, uint32_t k)
{
    const float4 x = load_four(s.x, k, s.n_cols, s.by_fours);
    float4 other = {};
    if (QN_OP != QN_ACTS_PLAIN)
        other = load_four(others(s), k, s.n_cols, s.by_fours);
    return make_float4(value_of(s, x.x, other.x), value_of(s, x.y, other.y), value_of(s, x.z, other.z),
                       value_of(s, x.w, other.w));
}

QN_DEVICE uint32_t block_max(uint32_t x)
{
    __shared__ uint32_t maxima[WARPS];
    x = __reduce_max_sync(QN_ALL_LANES, x);
    if (threadIdx.x % QN_WARP == 0)
        maxima[threadIdx.x / QN_WARP] = x;
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        largest = max(largest, maxima[i]);
    return largest;
}

QN_DEVICE void write_row(const qn_matmul_acts_args &a, const row_source &source, uint32_t token)
{
    uint32_t largest = 0;
#pragma unroll 4
    for (uint32_t k = 4 * threadIdx.x; k < source.n_cols; k += 4 * QN_ACTS_THREADS) {
        const float4 v = values_at(source, k);
        largest = max(max(largest, max(MAGNITUDE(v.x), MAGNITUDE(v.y))), max(MAGNITUDE(v.z), MAGNITUDE(v.w)));
    }
    largest = block_max(largest);
    const bool finite = largest < NOT_FINITE;
    // The power of two above the largest magnitude, short of where its inverse would be no normal float.
    const uint32_t exponent = min(largest >> 23, 252u);
    const float scale = __uint_as_float((exponent + 1) << 23), inverse = __uint_as_float((253 - exponent) << 23);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        a.token_scale[token] = finite ? scale : __uint_as_float(0x7fc00000u);
    uint8_t *row = a.out + token / 8 * 1024 + token % 8 * 128;
    for (uint32_t i = blockIdx.x * QN_ACTS_THREADS + threadIdx.x; i < a.n_chunks * (QN_TILE_COLS / 4);
         i += gridDim.x * QN_ACTS_THREADS) {
        // Columns 4t to 4t+3 of half h of a run of a step of 64.
        const uint32_t t = i % 4, h = i / 4 % 2, run = i / 8 % 2, step = i / 16;
        const float4 v = values_at(source, 4 * i);
        const float x[4] = { v.x, v.y, v.z, v.w };
        uint8_t *to = row + (uint64_t)step * a.capacity * 128 + 4 * t;
#pragma unroll
        for (uint32_t part = 0; part < 2; part++)
            *(uint32_t *)(to + ((4 * run + 2 * part + h) ^ token % 8) * 16) =
                finite ? qn_floats_to_halves(x[part] * inverse, x[part + 2] * inverse) : 0;
    }
}

#else

QN_DEVICE float value_at(const row_source &s, uint32_t k)
{
    return k < s.n_cols ? value_of(s, s.x[k], QN_OP == QN_ACTS_PLAIN ? 0 : others(s)[k]) : 0;
}

// A run of 32 values, one a lane, as codes: the scale and the sum of codes come back to every lane.
QN_DEVICE int quantize_run(float x, float *scale, int *sum)
{
    const uint32_t bits = __reduce_max_sync(QN_ALL_LANES, MAGNITUDE(x));
    const float largest = __uint_as_float(bits);
    const bool finite = bits < NOT_FINITE, zero = !finite || largest < SMALLEST_RUN;
    const int code = zero ? 0 : __float2int_rn(x * (127.0f / largest));
    *scale = finite ? (zero ? 0 : largest * (1.0f / 127)) : __uint_as_float(0x7fc00000u);
    *sum = __reduce_add_sync(QN_ALL_LANES, code);
    return code;
}

QN_DEVICE void write_row(const qn_matmul_acts_args &a, const row_source &source, uint32_t token)
{
    const uint32_t lane = threadIdx.x % QN_WARP, t = lane % 16 / 4, in_words = lane / 16 * 4 + lane % 4;
    // A warp takes two runs of 32 together.
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / QN_WARP; i < a.n_chunks * 4; i += gridDim.x * WARPS) {
        const uint32_t chunk = i / 4, pair = i % 4;
        float scale[2];
        int sum[2], code[2];
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++)
            code[odd] = quantize_run(value_at(source, i * 64 + odd * 32 + lane), &scale[odd], &sum[odd]);
        const float less = -(scale[0] * (float)sum[0] + scale[1] * (float)sum[1]);
#if QN_FORM == QN_ACTS_ROW
        uint8_t *to = a.out + chunk * QN_ACTS_ROW_CHUNK;
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++) {
            uint8_t *words = to + 64 * (2 * pair + odd) + 16 * t + in_words;
            words[8 * odd] = (uint8_t)code[odd];
            words[8 * (1 - odd)] = 0;
        }
        if (lane == 0)
            *(float4 *)(to + QN_TILE_SET + 16 * pair) = make_float4(scale[0], scale[1], less, 0);
#else
        const uint32_t column = token % QN_ACTS_GROUP;
        uint8_t *to = a.out + (token / QN_ACTS_GROUP * a.n_chunks + chunk) * (uint64_t)QN_ACTS_COLUMNS_CHUNK;
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++)
            to[QN_TILE_SET * pair + 16 * (4 * column + t) + 8 * odd + in_words] = (uint8_t)code[odd];
        float *scales = (float *)(to + 4 * QN_TILE_SET) + 16 * pair + column / 2 * 4 + column % 2;
        if (lane == 0) {
            scales[0] = scale[0];
            scales[2] = scale[1];
            ((float *)(to + 4 * QN_TILE_SET + 256))[8 * pair + column] = less;
        }
#endif
    }
}

#endif

extern "C" __global__ void __launch_bounds__(QN_ACTS_THREADS) qn_matmul_acts(const __grid_constant__ qn_matmul_acts_args a)
{
    const uint32_t token = blockIdx.y;
    row_source source;
    source.x = a.x + (uint64_t)token * a.stride;
    source.x2 = a.x2 + (uint64_t)token * a.stride;
    source.weight = a.weight;
    source.n_cols = token < a.n_tokens ? a.n_cols : 0;
    source.by_fours = ((uint64_t)source.x | (QN_OP == QN_ACTS_PLAIN ? 0 : (uint64_t)others(source))) % 16 == 0;
    source.scale = 0;
    qn_let_next_begin();
#if QN_OP == QN_ACTS_NORM
    for (uint32_t k = (blockIdx.x * QN_ACTS_THREADS + threadIdx.x) * 32; k < a.n_cols; k += gridDim.x * QN_ACTS_THREADS * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.weight + k)); // nobody has touched it since the last token
#endif
    qn_wait_for_previous();
#if QN_OP == QN_ACTS_NORM
    source.scale = 1.0f / sqrtf(sum_of_squares(source) / (float)a.n_cols + a.eps);
#endif
    write_row(a, source, token);
}
