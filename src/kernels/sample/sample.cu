// Arg-max: a logit and its place become one number that compares as wanted, and the largest of all is found by maxima alone,
// whose order does not matter.
#include "kernels/sample/sample_cuda.h"

#define NAN_KEY 0xffffffff00000000ul

// Larger for a larger logit, and for equals where the index is lower; no number's is 0.
QN_DEVICE uint64_t key_of(float x, uint32_t index)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); // -0 is 0
    const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return x != x ? NAN_KEY : (uint64_t)ordered << 32 | (0xffffffffu - index);
}

extern "C" __global__ void __launch_bounds__(QN_ARGMAX_THREADS)
    qn_sample_argmax(const __grid_constant__ qn_sample_argmax_args a)
{
    const uint32_t row = blockIdx.y, end = min(a.n, (blockIdx.x + 1) * QN_ARGMAX_PIECE);
    const float *logits = a.logits + (uint64_t)row * a.n;
    uint64_t best = 0;
    qn_wait_for_previous();
    qn_let_next_begin();
#pragma unroll 8
    for (uint32_t i = blockIdx.x * QN_ARGMAX_PIECE + threadIdx.x; i < end; i += QN_ARGMAX_THREADS) {
        const uint64_t key = key_of(logits[i], i);
        best = key > best ? key : best;
    }
#pragma unroll
    for (int distance = QN_WARP / 2; distance > 0; distance /= 2) {
        const uint64_t other = __shfl_xor_sync(QN_ALL_LANES, best, distance);
        best = other > best ? other : best;
    }
    if (threadIdx.x % QN_WARP == 0)
        atomicMax((unsigned long long *)&a.best[row], (unsigned long long)best);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&a.tickets[row], 1) == gridDim.x - 1) {
        __threadfence();
        best = atomicExch((unsigned long long *)&a.best[row], 0ull);
        a.tokens[row] = best >= NAN_KEY ? -1 : (int32_t)(0xffffffffu - (uint32_t)best);
        a.tickets[row] = 0;
    }
}
