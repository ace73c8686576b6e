// Split-KV combine: the partial results that the blocks of decode.cu wrote for a query head become its output row. The
// order of sums is fixed: each group of threads adds its splits in ascending order, then the groups' sums are added.
#include "kernels/attention/split.cuh"
#include "kernels/sigmoid.cuh"
#include "kernels/typed_rows.cuh"

#define DIM QN_HEAD_DIM
#define HALF (DIM / 2)
#define QUADS (DIM / 4)                               // threads that load one split's row, four values each
#define GROUPS (QN_ATTENTION_COMBINE_THREADS / QUADS) // splits that are processed in parallel
#define SPLITS_IN_FLIGHT 9                            // rows in flight per thread: at head_dim 256 all of 33 splits
#define MAXIMA_IN_FLIGHT 2                            // maxima of a lane that are loaded together with them
#define LOWEST (-1e30f)

// The partials of a query, by split, and the number of splits that have any.
struct split_partials {
    const float *rows; // [n][DIM]
    const float2 *maxima;
    uint32_t n;
};

// Issues the loads of the thread's four values of splits first, first + GROUPS, ...
QN_DEVICE void load_splits(float4 x[SPLITS_IN_FLIGHT], const split_partials &splits, uint32_t first, int quad, bool has_group)
{
#pragma unroll
    for (int i = 0; i < SPLITS_IN_FLIGHT; i++)
        if (has_group && first + i * GROUPS < splits.n)
            x[i] = *(const float4 *)(splits.rows + (uint64_t)(first + i * GROUPS) * DIM + quad * 4);
}

// The maximum of all splits and of the sink, in every lane; `prefetched`: the lane's first maxima.
QN_DEVICE float reduce_max(const split_partials &splits, const float2 prefetched[MAXIMA_IN_FLIGHT], float sink, int lane)
{
    float m = sink;
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        if (i * QN_WARP_SIZE + lane < splits.n)
            m = fmaxf(m, prefetched[i].x);
    for (uint32_t i = MAXIMA_IN_FLIGHT * QN_WARP_SIZE + lane; i < splits.n; i += QN_WARP_SIZE)
        m = fmaxf(m, splits.maxima[i].x);
    return qn_warp_max(m);
}

// The sum of the splits' softmax sums, relative to m.
QN_DEVICE float reduce_sum(const split_partials &splits, const float2 prefetched[MAXIMA_IN_FLIGHT], float m, int lane)
{
    float l = 0;
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        if (i * QN_WARP_SIZE + lane < splits.n)
            l += prefetched[i].y * qn_exp2(prefetched[i].x - m);
    for (uint32_t i = MAXIMA_IN_FLIGHT * QN_WARP_SIZE + lane; i < splits.n; i += QN_WARP_SIZE)
        l += splits.maxima[i].y * qn_exp2(splits.maxima[i].x - m);
    return qn_warp_sum(l);
}

// The thread's four values of the group's splits, relative to m. x: the first splits' loads.
QN_DEVICE float4 sum_splits(float4 x[SPLITS_IN_FLIGHT], const split_partials &splits, float m, int group, int quad)
{
    float4 sum = make_float4(0, 0, 0, 0);
    for (uint32_t first = group; first < splits.n; first += SPLITS_IN_FLIGHT * GROUPS) {
        if (first != group)
            load_splits(x, splits, first, quad, true);
#pragma unroll
        for (int i = 0; i < SPLITS_IN_FLIGHT; i++) {
            if (first + i * GROUPS < splits.n) {
                const float factor = qn_exp2(splits.maxima[first + i * GROUPS].x - m);
                sum.x += x[i].x * factor;
                sum.y += x[i].y * factor;
                sum.z += x[i].z * factor;
                sum.w += x[i].w * factor;
            }
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(QN_ATTENTION_COMBINE_THREADS)
    qn_attention_combine(const __grid_constant__ qn_attention_combine_args a)
{
    __shared__ __align__(16) float group_acc[GROUPS][DIM];
    __shared__ float shared_row[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    const uint32_t row = blockIdx.y, query = row * a.n_heads + blockIdx.x, n_splits = a.splits.n;
    split_partials splits;
    splits.rows = a.partials + (uint64_t)query * n_splits * DIM;
    splits.maxima = (const float2 *)a.maxima + (uint64_t)query * n_splits;
    qn_pdl_trigger();
    splits.n = qn_attention_span_of(a.mask, a.splits, row).active_splits;
    const float sink = a.sinks ? a.sinks[blockIdx.x] * QN_LOG2E : LOWEST;
    const bool has = threadIdx.x < HALF, has_signs = qn_is_hadamard<DIM>(a.rotation);
    float signs[2], gates[2]; // of the thread's two output elements
#pragma unroll
    for (int i = 0; i < 2; i++)
        signs[i] = has && has_signs ? a.rotation.signs[threadIdx.x + i * HALF] : 1;
    qn_pdl_wait();

    float4 x[SPLITS_IN_FLIGHT];
    load_splits(x, splits, group, quad, group < GROUPS);
    float2 prefetched[MAXIMA_IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        prefetched[i] = i * QN_WARP_SIZE + lane < splits.n ? splits.maxima[i * QN_WARP_SIZE + lane] : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 2; i++)
        gates[i] = has && a.gates ? a.gates[((uint64_t)query * 2 + 1) * DIM + threadIdx.x + i * HALF] : QN_INFINITY;
    const float m = reduce_max(splits, prefetched, sink, lane);
    const float l = reduce_sum(splits, prefetched, m, lane) + (a.sinks ? qn_exp2(sink - m) : 0);
    if (group < GROUPS)
        *(float4 *)&group_acc[group][quad * 4] = sum_splits(x, splits, m, group, quad);
    __syncthreads();

    float y[2] = { 0, 0 };
    const float norm = l > 0 || l != l ? 1 / (l * a.gain) : 0; // l is NaN if a score is, and so is the result
#pragma unroll
    for (int i = 0; has && i < 2; i++) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            y[i] += group_acc[j][threadIdx.x + i * HALF];
        y[i] *= norm;
    }
    if (has_signs) {
        qn_group_hadamard<(DIM & (DIM - 1)) == 0 && DIM >= 64 ? DIM : 64>(y, shared_row, threadIdx.x, has);
        y[0] *= signs[0];
        y[1] *= signs[1];
    }
    if (a.rotation.inverse)
        qn_group_gemv<DIM>(y, a.rotation.inverse, shared_row, threadIdx.x, has);
#pragma unroll
    for (int i = 0; has && i < 2; i++)
        qn_store_typed(a.out, (uint64_t)row * a.out_stride + blockIdx.x * DIM + threadIdx.x + i * HALF, a.dtype,
                    qn_gated(y[i], gates[i]));
}
