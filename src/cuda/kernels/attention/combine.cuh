// The end of decode attention: when all splits of a query tile are written, one block combines them in ascending order.
// The choice of the block depends on timing, the results do not. decode.cu and decode_codes.cu call it.
#ifndef QN_CUDA_KERNELS_ATTENTION_COMBINE_CUH
#define QN_CUDA_KERNELS_ATTENTION_COMBINE_CUH

#include "cuda/kernels/attention/piece.cuh"
#include "cuda/kernels/sigmoid.cuh"

#ifndef SPLITS_IN_FLIGHT
#define SPLITS_IN_FLIGHT (LANE_VALUES <= 8 ? 8 : 4) // rows of partials that a warp has in flight
#endif

// Whether a piece of work is the last of its query tile to be written. Called by one thread, between two barriers of
// the threads that write and read splits: release and acquire are cumulative (PTX ISA, "Causality Order").
QN_DEVICE bool arrive(const qn_attention_decode_args &a, const work_piece &piece, uint32_t n_splits, uint32_t n_query_tiles)
{
    const uint32_t n = piece.last - piece.first;
    if (n == n_splits)
        return true;
    uint32_t *counter = a.counters + (uint64_t)piece.row * n_query_tiles + piece.query_tile, before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(n) : "memory");
    if (before + n != n_splits)
        return false;
    *counter = 0; // for the next launch
    return true;
}

// The factor of a query's sums: l is their sum of weights, NaN if a score is.
QN_DEVICE float normalizing_factor(float l)
{
    return l > 0 || l != l ? 1 / l : 0;
}

QN_DEVICE float sink_of(const qn_attention_decode_args &a, uint32_t head)
{
    return a.sinks ? a.sinks[head] * QN_LOG2E : LOWEST;
}

// Combines the splits of query head `head` of a row and writes the result. By a full warp.
QN_DEVICE void combine_splits(const qn_attention_decode_args &a, uint32_t row, uint32_t head, uint32_t n_splits, int lane)
{
    const uint64_t query = (uint64_t)row * a.n_heads + head;
    const float *partials = a.partials + query * a.splits.n * DIM;
    const float2 *maxima = (const float2 *)a.maxima + query * a.splits.n;
    const float sink = sink_of(a, head);
    float m = sink, gates[LANE_VALUES], y[LANE_VALUES] = {};
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        const int dim = i * QN_WARP_SIZE + lane;
        gates[i] = a.gates && dim < DIM ? a.gates[(query * 2 + 1) * DIM + dim] : QN_INFINITY;
    }
    for (uint32_t i = lane; i < n_splits; i += QN_WARP_SIZE)
        m = fmaxf(m, __ldcg(maxima + i).x);
    m = qn_warp_max(m);
    float l = a.sinks ? qn_exp2(sink - m) : 0;
#pragma unroll 1
    for (uint32_t first = 0; first < n_splits; first += SPLITS_IN_FLIGHT) {
        float x[SPLITS_IN_FLIGHT][LANE_VALUES];
        float2 maximum[SPLITS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < SPLITS_IN_FLIGHT; i++) {
            const bool has = first + i < n_splits;
            maximum[i] = has ? __ldcg(maxima + first + i) : make_float2(LOWEST, 0);
#pragma unroll
            for (int j = 0; j < LANE_VALUES; j++) {
                const int dim = j * QN_WARP_SIZE + lane;
                x[i][j] = has && dim < DIM ? __ldcg(partials + (uint64_t)(first + i) * DIM + dim) : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < SPLITS_IN_FLIGHT; i++) {
            const float factor = qn_exp2(maximum[i].x - m);
            l += maximum[i].y * factor;
#pragma unroll
            for (int j = 0; j < LANE_VALUES; j++)
                y[j] += x[i][j] * factor;
        }
    }
    const float factor = normalizing_factor(l * (CODES ? a.value_codec.gain : 1));
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        y[i] *= factor;
    if (CODES)
        qn_row_rotate_inverse<DIM>(y, a.rotation, lane);
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        const int dim = i * QN_WARP_SIZE + lane;
        if (dim < DIM)
            qn_store_typed(a.out, (uint64_t)row * a.out_stride + head * DIM + dim, a.dtype, qn_gated(y[i], gates[i]));
    }
}

// Rows without a session have no splits: their results are zeros. Each block writes its part of them.
QN_DEVICE void write_rows_without_session(const qn_attention_decode_args &a)
{
    for (uint32_t row = blockIdx.x; a.mask.sessions && row < a.n_rows; row += gridDim.x)
        for (uint32_t i = threadIdx.x; a.mask.sessions[row] == QN_ATTENTION_NO_SESSION && i < a.n_heads * DIM; i += blockDim.x)
            qn_store_typed(a.out, (uint64_t)row * a.out_stride + i, a.dtype, 0);
}

#endif
