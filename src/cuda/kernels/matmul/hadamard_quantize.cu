// RMS norm or SwiGLU, signed Walsh-Hadamard transform and hi/lo int8 quantisation of one token's row, fused.
// Butterflies: strides within a thread's values, then over the lanes of a warp, and after an exchange through shared
// memory over the four warps. After another exchange a warp quantises 128 adjacent columns at a time, four a lane.
#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/matmul/acts.cuh"
#include "cuda/kernels/matmul/hadamard_quantize.h"

enum {
    THREADS = QN_HADAMARD_QUANTIZE_THREADS,
    WARPS = THREADS / QN_WARP_SIZE,
    PER_THREAD = QN_BLOCK / THREADS,         // values per thread
    WARP_VALUES = QN_WARP_SIZE * PER_THREAD, // transformed before the exchange
    VEC4S = PER_THREAD / 4
};

#if QN_OP == QN_ACTS_OP_RMS_NORM

QN_DEVICE float norm_scale(const qn_hadamard_quantize_args &a)
{
    __shared__ float sums[WARPS];
    float square = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < a.n_cols / 4; i += THREADS) {
        const float4 x = ((const float4 *)a.x)[i];
        square = fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, square))));
    }
    square = qn_warp_sum(square);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        sums[threadIdx.x / QN_WARP_SIZE] = square;
    __syncthreads();
    return 1.0f / sqrtf((sums[0] + sums[1] + sums[2] + sums[3]) / (float)a.n_cols + a.eps);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS) qn_hadamard_quantize(const __grid_constant__ qn_hadamard_quantize_args a)
{
    __shared__ __align__(16) float exchange[QN_BLOCK];
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, first = blockIdx.x * QN_BLOCK;
    const uint32_t first_value = first + threadIdx.x * PER_THREAD;
    float v[PER_THREAD];
    qn_pdl_trigger();
    float4 sign[VEC4S];
#pragma unroll
    for (int i = 0; i < VEC4S; i++)
        sign[i] = a.signs ? ((const float4 *)(a.signs + first_value))[i] : make_float4(1, 1, 1, 1);
    qn_pdl_wait();
    float4 x[VEC4S], other[VEC4S];
    const float *second_input = QN_OP == QN_ACTS_OP_RMS_NORM ? a.weight : a.x2;
#pragma unroll
    for (int i = 0; i < VEC4S; i++) {
        x[i] = ((const float4 *)(a.x + first_value))[i];
        other[i] = QN_OP == QN_ACTS_OP_NONE ? make_float4(0, 0, 0, 0) : ((const float4 *)(second_input + first_value))[i];
    }
    float scale = 1;
#if QN_OP == QN_ACTS_OP_RMS_NORM
    scale = norm_scale(a);
#endif
#pragma unroll
    for (int i = 0; i < VEC4S; i++) {
        v[4 * i] = apply_op(x[i].x, other[i].x, scale) * sign[i].x;
        v[4 * i + 1] = apply_op(x[i].y, other[i].y, scale) * sign[i].y;
        v[4 * i + 2] = apply_op(x[i].z, other[i].z, scale) * sign[i].z;
        v[4 * i + 3] = apply_op(x[i].w, other[i].w, scale) * sign[i].w;
    }

    qn_butterflies<1, PER_THREAD>(v);
    qn_butterflies<2, PER_THREAD>(v);
#if QN_BLOCK >= 1024
    qn_butterflies<4, PER_THREAD>(v);
#endif
#if QN_BLOCK >= 2048
    qn_butterflies<8, PER_THREAD>(v);
#endif
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2)
        qn_lane_butterflies<PER_THREAD>(v, distance);
#pragma unroll
    for (int i = 0; i < VEC4S; i++)
        ((float4 *)(exchange + threadIdx.x * PER_THREAD))[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    __syncthreads();
    // v[4k + j] is value k * THREADS + thread of warp j.
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        v[i] = exchange[i % 4 * WARP_VALUES + i / 4 * THREADS + threadIdx.x];
    qn_butterflies<1, PER_THREAD>(v);
    qn_butterflies<2, PER_THREAD>(v);

    // Each thread to where it has read from.
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        exchange[i % 4 * WARP_VALUES + i / 4 * THREADS + threadIdx.x] = v[i] * a.scale;
    __syncthreads();
#pragma unroll
    for (uint32_t at = warp * QN_ACTS_HILO_COLS; at < QN_BLOCK; at += WARPS * QN_ACTS_HILO_COLS)
        write_hilo_n1(a.out, first + at, ((const float4 *)(exchange + at))[lane]);
}
