// Pass 2 of flash decoding: combines a query's partials over the blocks of keys. Also the rotation of query rows
// (qn_aura_rotate). One thread block a row.
#include "kernels/aura/aura_attention_cuda.h"
#include "kernels/typed_rows.cuh"

#define DIM QN_HEAD_DIM
#define THREADS QN_AURA_PASS2_THREADS
#define QUADS (DIM / 4)          // threads that load one row, four values each
#define GROUPS (THREADS / QUADS) // rows that are processed in parallel
#define BLOCKS_IN_FLIGHT 8       // rows of a group whose loads are in flight
#define LOWEST (-1e30f)

QN_DEVICE void fma_float4(float4 &sum, float factor, float4 x)
{
    sum.x = fmaf(factor, x.x, sum.x);
    sum.y = fmaf(factor, x.y, sum.y);
    sum.z = fmaf(factor, x.z, sum.z);
    sum.w = fmaf(factor, x.w, sum.w);
}

// y = matrix^T x for a row in shared memory, by all threads. The groups' partial sums are added in ascending order; y
// overwrites x.
QN_DEVICE void gemv_row(float *x, float (*group_sums)[DIM], const float *matrix)
{
    const int quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    float4 sum = make_float4(0, 0, 0, 0);
    if (group < GROUPS) {
#pragma unroll 8
        for (int j = group; j < DIM; j += GROUPS)
            fma_float4(sum, x[j], *(const float4 *)(matrix + j * DIM + quad * 4));
        *(float4 *)&group_sums[group][quad * 4] = sum;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float y = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            y += group_sums[i][d];
        x[d] = y;
    }
    __syncthreads();
}

// Walsh-Hadamard transform of the row in shared memory, with signs before or after it.
QN_DEVICE void hadamard_row(float *x, const qn_aura_gpu_rotation &r, bool signs_first)
{
    constexpr int half = DIM / 2;
    const bool has = threadIdx.x < half;
    float y[2] = { 0, 0 }, signs[2] = { 1, 1 };
#pragma unroll
    for (int i = 0; has && i < 2; i++) {
        signs[i] = r.signs[threadIdx.x + i * half];
        y[i] = x[threadIdx.x + i * half] * (signs_first ? signs[i] : 1);
    }
    __syncthreads();
    qn_group_hadamard<(DIM & (DIM - 1)) == 0 ? DIM : 64>(y, x, threadIdx.x, has);
#pragma unroll
    for (int i = 0; has && i < 2; i++)
        x[threadIdx.x + i * half] = y[i] * (signs_first ? 1 : signs[i]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_rotate(const __grid_constant__ qn_aura_rotate_args a)
{
    __shared__ __align__(16) float group_sums[GROUPS][DIM];
    __shared__ float x[DIM];
    const uint64_t row = blockIdx.x, from = row / a.n_heads * a.stride + row % a.n_heads * DIM;
    qn_pdl_wait();
    qn_pdl_trigger();
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        x[d] = qn_load_typed(a.rows, from + d, a.dtype);
    __syncthreads();
    if (qn_is_hadamard<DIM>(a.rotation))
        hadamard_row(x, a.rotation, true);
    else if (a.rotation.forward)
        gemv_row(x, group_sums, a.rotation.forward);
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        a.out[row * DIM + d] = x[d];
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_flash_pass2(const __grid_constant__ qn_aura_flash_pass2_args a)
{
    __shared__ __align__(16) float group_sums[GROUPS][DIM];
    __shared__ float x[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    const uint32_t query = blockIdx.x, n = a.n_blocks;
    const float *partials = a.partials + (uint64_t)query * n * DIM + quad * 4;
    const float *maxima = a.m + (uint64_t)query * n, *exp_sums = a.l + (uint64_t)query * n;
    qn_pdl_wait();
    qn_pdl_trigger();

    // The rows of the first blocks are loaded before it is known which blocks are valid (l != 0); rows of others are
    // not used.
    float4 rows[BLOCKS_IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < BLOCKS_IN_FLIGHT; i++)
        if (group < GROUPS && group + i * GROUPS < n)
            rows[i] = *(const float4 *)(partials + (uint64_t)(group + i * GROUPS) * DIM);
    float m = a.sinks ? a.sinks[query % a.n_heads] * QN_LOG2E : LOWEST, l = 0;
    const float sink = m;
    if (a.l) {
        for (uint32_t i = lane; i < n; i += QN_WARP_SIZE)
            if (exp_sums[i] != 0)
                m = fmaxf(m, maxima[i] * QN_LOG2E);
        m = qn_warp_max(m);
        for (uint32_t i = lane; i < n; i += QN_WARP_SIZE)
            if (exp_sums[i] != 0)
                l += exp_sums[i] * exp2f(maxima[i] * QN_LOG2E - m);
        l = qn_warp_sum(l) + (a.sinks ? exp2f(sink - m) : 0);
    }

    if (group < GROUPS) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (uint32_t first = group; first < n; first += BLOCKS_IN_FLIGHT * GROUPS) {
            if (first != group) {
#pragma unroll
                for (int i = 0; i < BLOCKS_IN_FLIGHT; i++)
                    if (first + i * GROUPS < n)
                        rows[i] = *(const float4 *)(partials + (uint64_t)(first + i * GROUPS) * DIM);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS_IN_FLIGHT; i++) {
                const uint32_t at = first + i * GROUPS;
                if (at < n && !a.l)
                    fma_float4(sum, 1, rows[i]);
                else if (at < n && exp_sums[at] != 0)
                    fma_float4(sum, exp2f(maxima[at] * QN_LOG2E - m), rows[i]);
            }
        }
        *(float4 *)&group_sums[group][quad * 4] = sum;
    }
    __syncthreads();
    const float norm = !a.l ? 1 : l != 0 ? 1 / l : 0;
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float y = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            y += group_sums[i][d];
        x[d] = y * norm;
    }
    __syncthreads();
    if (qn_is_hadamard<DIM>(a.rotation))
        hadamard_row(x, a.rotation, false);
    else if (a.rotation.inverse)
        gemv_row(x, group_sums, a.rotation.inverse);
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        qn_store_typed(a.out, (uint64_t)(query / a.n_heads) * a.out_stride + query % a.n_heads * DIM + d, a.dtype, x[d]);
}
