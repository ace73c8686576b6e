// Split-KV combine: the partial results that the blocks of decode.cu wrote for a query head become its output row. The
// order of sums is fixed: each group of threads adds its splits in ascending order, then the groups' sums are added.
#include "kernels/attention/split.cuh"
#include "kernels/row.cuh"

#define DIM QN_HEAD_DIM
#define HALF (DIM / 2)
#define QUADS (DIM / 4)                               // threads that load one split's row, four values each
#define GROUPS (QN_ATTENTION_COMBINE_THREADS / QUADS) // splits that are processed in parallel
#define SPLITS_IN_FLIGHT 9                            // rows in flight per thread: at head_dim 256 all of 33 splits
#define MAXIMA_IN_FLIGHT 2                            // maxima of a lane that are loaded together with them
#define LOG2E 1.4426950408889634f
#define LOWEST (-1e30f)

extern "C" __global__ void __launch_bounds__(QN_ATTENTION_COMBINE_THREADS)
    qn_attention_combine(const __grid_constant__ qn_attention_combine_args a)
{
    __shared__ __align__(16) float group_acc[GROUPS][DIM];
    __shared__ float shared_row[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    const uint32_t row = blockIdx.y, query = row * a.n_heads + blockIdx.x, n_splits = a.n_splits;
    const float *partials = a.partials + (uint64_t)query * n_splits * DIM;
    const float2 *maxima = (const float2 *)a.maxima + (uint64_t)query * n_splits;
    qn_pdl_trigger();
    const uint32_t n = qn_attention_span_of(a.mask, a.mask.positions ? a.mask.positions[row] : 0, n_splits).active_splits;
    const float sink = a.sinks ? a.sinks[blockIdx.x] * LOG2E : LOWEST;
    const bool has = threadIdx.x < HALF, has_signs = (DIM & (DIM - 1)) == 0 && a.rotation.signs;
    float signs[2], gates[2]; // of the thread's two output elements
#pragma unroll
    for (int i = 0; i < 2; i++)
        signs[i] = has && has_signs ? a.rotation.signs[threadIdx.x + i * HALF] : 1;
    qn_pdl_wait();

    float4 x[SPLITS_IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < SPLITS_IN_FLIGHT; i++)
        if (group < GROUPS && group + i * GROUPS < n)
            x[i] = *(const float4 *)(partials + (uint64_t)(group + i * GROUPS) * DIM + quad * 4);
    float2 prefetched[MAXIMA_IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        prefetched[i] = i * QN_WARP_SIZE + lane < n ? maxima[i * QN_WARP_SIZE + lane] : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 2; i++)
        gates[i] = has && a.gates ? a.gates[((uint64_t)query * 2 + 1) * DIM + threadIdx.x + i * HALF] : QN_INFINITY;
    float m = sink, l = 0;
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        if (i * QN_WARP_SIZE + lane < n)
            m = fmaxf(m, prefetched[i].x);
    for (uint32_t i = MAXIMA_IN_FLIGHT * QN_WARP_SIZE + lane; i < n; i += QN_WARP_SIZE)
        m = fmaxf(m, maxima[i].x);
    m = qn_warp_max(m);
#pragma unroll
    for (int i = 0; i < MAXIMA_IN_FLIGHT; i++)
        if (i * QN_WARP_SIZE + lane < n)
            l += prefetched[i].y * qn_exp2(prefetched[i].x - m);
    for (uint32_t i = MAXIMA_IN_FLIGHT * QN_WARP_SIZE + lane; i < n; i += QN_WARP_SIZE)
        l += maxima[i].y * qn_exp2(maxima[i].x - m);
    l = qn_warp_sum(l) + (a.sinks ? qn_exp2(sink - m) : 0);

    if (group < GROUPS) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (uint32_t first = group; first < n; first += SPLITS_IN_FLIGHT * GROUPS) {
            if (first != group) {
#pragma unroll
                for (int i = 0; i < SPLITS_IN_FLIGHT; i++)
                    if (first + i * GROUPS < n)
                        x[i] = *(const float4 *)(partials + (uint64_t)(first + i * GROUPS) * DIM + quad * 4);
            }
#pragma unroll
            for (int i = 0; i < SPLITS_IN_FLIGHT; i++) {
                if (first + i * GROUPS < n) {
                    const float factor = qn_exp2(maxima[first + i * GROUPS].x - m);
                    sum.x += x[i].x * factor;
                    sum.y += x[i].y * factor;
                    sum.z += x[i].z * factor;
                    sum.w += x[i].w * factor;
                }
            }
        }
        *(float4 *)&group_acc[group][quad * 4] = sum;
    }
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
        a.out[(uint64_t)query * DIM + threadIdx.x + i * HALF] = y[i] / (1 + __expf(-gates[i])); // divided by 1 without gates
}
