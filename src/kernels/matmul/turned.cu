// A token's row, rotated, into what products read. The transform is in registers: distances inside a thread's values, then over
// the lanes of a warp, and after one exchange through shared memory between the four warps; then a warp has runs of 32 side by
// side, which is how they are quantised.
#include "kernels/butterflies.cuh"
#include "kernels/matmul/turned_cuda.h"

enum {
    THREADS = QN_TURNED_THREADS,
    WARPS = THREADS / QN_WARP,
    EACH = QN_BLOCK / THREADS, // values of a thread
    OF_WARP = QN_WARP * EACH,  // that are transformed before the exchange
    RUNS = QN_BLOCK / 32,
    FOURS = EACH / 4
};

// A run of 32 values, one a lane, as codes by the rule of matmul.h: the scale and the sum of codes come back to every lane.
QN_DEVICE int codes_of_run(float x, float *scale, int *sum)
{
    const uint32_t bits = __reduce_max_sync(QN_ALL_LANES, __float_as_uint(x) & 0x7fffffffu); // ordered as magnitudes are
    const float largest = __uint_as_float(bits);
    const bool finite = bits < 0x7f800000u, zero = !finite || largest < 1e-30f; // QN_SMALLEST_RUN
    const int code = zero ? 0 : __float2int_rn(x * (127.0f / largest));
    *scale = finite ? (zero ? 0 : largest * (1.0f / 127)) : __uint_as_float(0x7fc00000u);
    *sum = __reduce_add_sync(QN_ALL_LANES, code);
    return code;
}

#if QN_OP == QN_ACTS_NORM

QN_DEVICE float norm_scale(const qn_matmul_turned_args &a)
{
    __shared__ float sums[WARPS];
    float square = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < a.n_cols / 4; i += THREADS) {
        const float4 x = ((const float4 *)a.x)[i];
        square = fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, square))));
    }
    square = qn_warp_sum(square);
    if (threadIdx.x % QN_WARP == 0)
        sums[threadIdx.x / QN_WARP] = square;
    __syncthreads();
    return 1.0f / sqrtf((sums[0] + sums[1] + sums[2] + sums[3]) / (float)a.n_cols + a.eps);
}

#endif

QN_DEVICE float value_of(float x, float other, float scale)
{
#if QN_OP == QN_ACTS_NORM
    return x * scale * other;
#elif QN_OP == QN_ACTS_SWIGLU
    return x / (1.0f + expf(-x)) * other;
#else
    return x;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_matmul_turned(const __grid_constant__ qn_matmul_turned_args a)
{
    __shared__ __align__(16) float exchange[QN_BLOCK];
    __shared__ float scales[RUNS];
    __shared__ int sums[RUNS];
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP, first = blockIdx.x * QN_BLOCK;
    const uint32_t mine = first + threadIdx.x * EACH;
    float v[EACH];
    qn_let_next_begin();
    float4 sign[FOURS];
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        sign[i] = a.signs ? ((const float4 *)(a.signs + mine))[i] : make_float4(1, 1, 1, 1);
    qn_wait_for_previous();
    float4 x[FOURS], other[FOURS];
    const float *others = QN_OP == QN_ACTS_NORM ? a.weight : a.x2;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        x[i] = ((const float4 *)(a.x + mine))[i];
        other[i] = QN_OP == QN_ACTS_PLAIN ? make_float4(0, 0, 0, 0) : ((const float4 *)(others + mine))[i];
    }
    float scale = 1;
#if QN_OP == QN_ACTS_NORM
    scale = norm_scale(a);
#endif
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        v[4 * i] = value_of(x[i].x, other[i].x, scale) * sign[i].x;
        v[4 * i + 1] = value_of(x[i].y, other[i].y, scale) * sign[i].y;
        v[4 * i + 2] = value_of(x[i].z, other[i].z, scale) * sign[i].z;
        v[4 * i + 3] = value_of(x[i].w, other[i].w, scale) * sign[i].w;
    }

    qn_butterflies<1, EACH>(v);
    qn_butterflies<2, EACH>(v);
#if QN_BLOCK >= 1024
    qn_butterflies<4, EACH>(v);
#endif
#if QN_BLOCK >= 2048
    qn_butterflies<8, EACH>(v);
#endif
#pragma unroll
    for (int distance = 1; distance < QN_WARP; distance *= 2)
        qn_lane_butterflies<EACH>(v, distance);
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        ((float4 *)(exchange + threadIdx.x * EACH))[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    __syncthreads();
    // Value 4k + j is place k * THREADS + thread of warp j's.
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = exchange[i % 4 * OF_WARP + i / 4 * THREADS + threadIdx.x];
    qn_butterflies<1, EACH>(v);
    qn_butterflies<2, EACH>(v);

    const uint32_t in_words = lane / 16 * 4 + lane % 4;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t run = i % 4 * EACH + i / 4 * WARPS + warp, column = first + run * 32, odd = run % 2;
        float run_scale;
        int sum;
        const int code = codes_of_run(v[i] * a.scale, &run_scale, &sum);
        uint8_t *words =
            a.out + column / QN_TILE_COLS * QN_ACTS_ROW_CHUNK + column % QN_TILE_COLS * 2 + 16 * (lane % 16 / 4) + in_words;
        words[8 * odd] = (uint8_t)code;
        words[8 * (1 - odd)] = 0;
        if (lane == 0) {
            scales[run] = run_scale;
            sums[run] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < RUNS / 2) {
        const uint32_t run = 2 * threadIdx.x, column = first + run * 32;
        const float less = -(scales[run] * (float)sums[run] + scales[run + 1] * (float)sums[run + 1]);
        uint8_t *to = a.out + column / QN_TILE_COLS * QN_ACTS_ROW_CHUNK + QN_TILE_SET + column % QN_TILE_COLS / 64 * 16;
        *(float4 *)to = make_float4(scales[run], scales[run + 1], less, 0);
    }
}
