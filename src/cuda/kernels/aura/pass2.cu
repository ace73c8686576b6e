// Pass 2 of flash decoding: combines a query's partials over the blocks of keys. Also the rotation of query rows
// (qn_aura_rotate). One thread block a row.
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda/kernels/typed_rows.cuh"

#define DIM QN_HEAD_DIM
#define THREADS QN_AURA_PASS2_THREADS
#define HALF (DIM / 2)
#define QUADS (DIM / 4)          // threads that load one row, four values each
#define GROUPS (THREADS / QUADS) // rows that are processed in parallel
// Rows of a group whose loads are in flight: all of about 33 blocks, with heads of up to 256 on a device of 132 SMs.
#define BLOCKS_IN_FLIGHT (36 / GROUPS > 9 ? 9 : 36 / GROUPS > 2 ? 36 / GROUPS : 2)
#define LANE_BLOCKS 2 // blocks of a lane whose maxima and sums are in registers
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

// Signs of a thread's two values in a Hadamard transform, to be loaded before they are needed.
struct row_signs {
    float x[2];
};

QN_DEVICE row_signs load_signs(const qn_aura_gpu_rotation &r)
{
    row_signs o = { { 1, 1 } };
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (qn_is_hadamard<DIM>(r) && threadIdx.x < HALF)
            o.x[i] = r.signs[threadIdx.x + i * HALF];
    return o;
}

// Walsh-Hadamard transform of a row. Thread i < DIM / 2 holds values i and i + DIM / 2.
QN_DEVICE void hadamard_row(float y[2], float *shared)
{
    qn_group_hadamard<(DIM & (DIM - 1)) == 0 ? DIM : 64>(y, shared, threadIdx.x, threadIdx.x < HALF);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_rotate(const __grid_constant__ qn_aura_rotate_args a)
{
    __shared__ __align__(16) float group_sums[GROUPS][DIM];
    __shared__ float x[DIM];
    const uint64_t row = blockIdx.x, from = row / a.n_heads * a.stride + row % a.n_heads * DIM;
    const row_signs signs = load_signs(a.rotation);
    qn_pdl_wait();
    qn_pdl_trigger();
    if (qn_is_hadamard<DIM>(a.rotation)) {
        float y[2] = { 0, 0 };
#pragma unroll
        for (int i = 0; threadIdx.x < HALF && i < 2; i++)
            y[i] = qn_load_typed(a.rows, from + threadIdx.x + i * HALF, a.dtype) * signs.x[i];
        hadamard_row(y, x);
#pragma unroll
        for (int i = 0; threadIdx.x < HALF && i < 2; i++)
            a.out[row * DIM + threadIdx.x + i * HALF] = y[i];
        return;
    }
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        x[d] = qn_load_typed(a.rows, from + d, a.dtype);
    __syncthreads();
    if (a.rotation.forward)
        gemv_row(x, group_sums, a.rotation.forward);
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        a.out[row * DIM + d] = x[d];
}

// Maxima (log2 domain) and sums of a query's blocks. A lane holds those of its first blocks: blocks lane, lane
// + QN_WARP_SIZE, ... Those of later blocks are read from memory.
struct block_sums {
    const float *maxima, *exp_sums;
    uint32_t n;
    float m[LANE_BLOCKS], l[LANE_BLOCKS];

    // m is not written where l is 0, and then is not used.
    __device__ __forceinline__ void load(int lane)
    {
#pragma unroll
        for (int i = 0; i < LANE_BLOCKS; i++) {
            const uint32_t block = i * QN_WARP_SIZE + lane;
            l[i] = block < n ? exp_sums[block] : 0;
            m[i] = block < n ? maxima[block] * QN_LOG2E : 0;
        }
    }

    __device__ __forceinline__ float largest(float m0, int lane) const
    {
#pragma unroll
        for (int i = 0; i < LANE_BLOCKS; i++)
            m0 = l[i] != 0 ? fmaxf(m0, m[i]) : m0;
        for (uint32_t block = LANE_BLOCKS * QN_WARP_SIZE + lane; block < n; block += QN_WARP_SIZE)
            if (exp_sums[block] != 0)
                m0 = fmaxf(m0, maxima[block] * QN_LOG2E);
        return qn_warp_max(m0);
    }

    // The sum of l relative to m0; m becomes the blocks' factors, 0 where l is 0.
    __device__ __forceinline__ float sum_and_factors(float m0, int lane)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < LANE_BLOCKS; i++) {
            m[i] = l[i] != 0 ? exp2f(m[i] - m0) : 0;
            sum += l[i] * m[i];
        }
        for (uint32_t block = LANE_BLOCKS * QN_WARP_SIZE + lane; block < n; block += QN_WARP_SIZE)
            if (exp_sums[block] != 0)
                sum += exp_sums[block] * exp2f(maxima[block] * QN_LOG2E - m0);
        return qn_warp_sum(sum);
    }

    // By full warps, for any block of each lane.
    __device__ __forceinline__ float factor(uint32_t block, float m0) const
    {
        float x = 0;
#pragma unroll
        for (int i = 0; i < LANE_BLOCKS; i++) {
            const float other = __shfl_sync(QN_FULL_MASK, m[i], block % QN_WARP_SIZE);
            x = block / QN_WARP_SIZE == i ? other : x;
        }
        if (block >= LANE_BLOCKS * QN_WARP_SIZE && block < n)
            x = exp_sums[block] != 0 ? exp2f(maxima[block] * QN_LOG2E - m0) : 0;
        return x;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_flash_pass2(const __grid_constant__ qn_aura_flash_pass2_args a)
{
    __shared__ __align__(16) float group_sums[GROUPS][DIM];
    __shared__ float x[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    const uint32_t query = blockIdx.x, n = a.n_blocks;
    const float *partials = a.partials + (uint64_t)query * n * DIM + quad * 4;
    block_sums blocks = { a.m + (uint64_t)query * n, a.l + (uint64_t)query * n, n };
    const row_signs signs = load_signs(a.rotation);
    const float sink = a.sinks ? a.sinks[query % a.n_heads] * QN_LOG2E : LOWEST;
    qn_pdl_wait();
    qn_pdl_trigger();

    // The rows of the first blocks are loaded before it is known which blocks are valid (l != 0); rows of others are
    // not used.
    float4 rows[BLOCKS_IN_FLIGHT];
    const auto load_rows = [&](uint32_t first) {
#pragma unroll
        for (int i = 0; i < BLOCKS_IN_FLIGHT; i++)
            if (group < GROUPS && first + i * GROUPS < n)
                rows[i] = *(const float4 *)(partials + (uint64_t)(first + i * GROUPS) * DIM);
    };
    if (a.l)
        blocks.load(lane);
    load_rows(group);
    float m = sink, l = 0;
    if (a.l) {
        m = blocks.largest(m, lane);
        l = blocks.sum_and_factors(m, lane) + (a.sinks ? exp2f(sink - m) : 0);
    }

    float4 sum = make_float4(0, 0, 0, 0);
    for (uint32_t first = 0; first < n; first += BLOCKS_IN_FLIGHT * GROUPS) {
        if (first)
            load_rows(first + group);
#pragma unroll
        for (int i = 0; i < BLOCKS_IN_FLIGHT; i++) {
            const uint32_t at = first + group + i * GROUPS;
            const float factor = a.l ? blocks.factor(at, m) : 1;
            if (group < GROUPS && at < n && factor != 0)
                fma_float4(sum, factor, rows[i]);
        }
    }
    if (group < GROUPS)
        *(float4 *)&group_sums[group][quad * 4] = sum;
    __syncthreads();
    const float norm = !a.l ? 1 : l != 0 ? 1 / l : 0;
    const uint64_t to = (uint64_t)(query / a.n_heads) * a.out_stride + query % a.n_heads * DIM;
    const auto sum_groups = [&](int d) {
        float y = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            y += group_sums[i][d];
        return y * norm;
    };
    if (qn_is_hadamard<DIM>(a.rotation)) {
        float y[2] = { 0, 0 };
#pragma unroll
        for (int i = 0; threadIdx.x < HALF && i < 2; i++)
            y[i] = sum_groups(threadIdx.x + i * HALF);
        hadamard_row(y, x);
#pragma unroll
        for (int i = 0; threadIdx.x < HALF && i < 2; i++)
            qn_store_typed(a.out, to + threadIdx.x + i * HALF, a.dtype, y[i] * signs.x[i]);
        return;
    }
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        x[d] = sum_groups(d);
    __syncthreads();
    if (a.rotation.inverse)
        gemv_row(x, group_sums, a.rotation.inverse);
    for (int d = threadIdx.x; d < DIM; d += THREADS)
        qn_store_typed(a.out, to + d, a.dtype, x[d]);
}
