// What the kernels of single stages share: the chunk of a block, its decays.
#ifndef QN_CUDA_KERNELS_DELTANET_STAGES_CUH
#define QN_CUDA_KERNELS_DELTANET_STAGES_CUH

#include "cuda/kernels/deltanet/stages.h"
#include "cuda/kernels/deltanet/state.cuh"

struct chunk {
    sequence s;
    uint32_t number;   // in its sequence
    uint32_t first, n; // tokens
};

QN_DEVICE chunk chunk_of(const sequence &s, uint32_t number)
{
    const uint32_t begin = number * TOKENS;
    return { s, number, s.first + begin, s.n - begin < TOKENS ? s.n - begin : TOKENS };
}

// The chunk of the block and its index among n heads (or blocks of heads) of the chunk, which are adjacent in memory
// and therefore in the grid; false for an index that is not used. By full warps.
QN_DEVICE bool chunk_of_block(const qn_gdn_chunk_args &a, uint32_t n, chunk &c, uint32_t &head)
{
    const uint32_t index = blockIdx.x / n;
    const sequence s = sequence_of(a, index);
    const uint32_t number = index - first_index(a, s);
    head = blockIdx.x % n;
    if (number >= s.chunks)
        return false;
    c = chunk_of(s, number);
    return true;
}

// The number of chunks of the sequences before one. By a full warp.
QN_DEVICE uint32_t chunks_before(const qn_gdn_chunk_args &a, uint32_t sequence)
{
    if (!a.cu_seqlens)
        return sequence * ((a.tokens + TOKENS - 1) / TOKENS);
    int sum = 0;
    for (uint32_t i = threadIdx.x % QN_WARP_SIZE; i < sequence; i += QN_WARP_SIZE)
        sum += (int)((qn_gdn_seqlen(a, i + 1) - qn_gdn_seqlen(a, i) + TOKENS - 1) / TOKENS);
    return (uint32_t)qn_warp_sum_int(sum);
}

QN_DEVICE const uint16_t *row_of(const void *rows, uint32_t token, uint32_t stride, uint32_t column)
{
    return (const uint16_t *)rows + (size_t)token * stride + column;
}

// The gc of two tokens of a lane, made non-increasing in a chunk of n tokens, in units of log 2. Tokens past the end
// have that of the last. By a full warp.
QN_DEVICE float2 running_minimum(float2 gc, uint32_t n)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    const float first = 2 * lane < n ? gc.x : QN_INFINITY, second = 2 * lane + 1 < n ? gc.y : QN_INFINITY;
    float least = fminf(first, second);
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const float before = __shfl_up_sync(QN_FULL_MASK, least, distance);
        least = lane >= distance ? fminf(least, before) : least;
    }
    const float before = __shfl_up_sync(QN_FULL_MASK, least, 1);
    return make_float2((lane ? fminf(first, before) : first) * 1.44269504f, least * 1.44269504f);
}

// Gates of a chunk for a value head, in shared memory.
struct chunk_gates {
    float gc[TOKENS], beta[TOKENS]; // gc in units of log 2; beta is 0 past the end
};

// By one warp.
QN_DEVICE void load_chunk_gates(chunk_gates &to, const qn_gdn_stage_args &a, const chunk &c, uint32_t head, bool with_beta)
{
    const uint32_t token = threadIdx.x % QN_WARP_SIZE * 2;
    const qn_gdn_chunk_args &r = a.rule;
    float gc[2] = { 0, 0 }, beta[2] = { 0, 0 };
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (token + i < c.n) {
            const size_t at = c.first + token + i;
            gc[i] = a.gc[at * a.gc_stride + head];
            if (with_beta)
                beta[i] = qn_gdn_beta(r, qn_load_typed(r.beta, at * r.beta_stride + head, r.beta_dtype));
        }
    *(float2 *)(to.gc + token) = running_minimum(make_float2(gc[0], gc[1]), c.n);
    *(float2 *)(to.beta + token) = make_float2(beta[0], beta[1]);
}

#endif
