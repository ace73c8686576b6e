// The inputs of a draft head, and the hidden states that are kept for it. A block has a row and reads it up to three
// times, all but the first time from L1.
#include "cuda/kernels/norm/norm.h"

enum { WARPS = QN_NORM_PAIR_THREADS / QN_WARP_SIZE };

// The factor of a row's norm, from each thread's sum of squares. By all threads.
QN_DEVICE float norm_factor(float square, float (&sums)[WARPS], uint32_t n, float eps)
{
    square = qn_warp_sum(square);
    __syncthreads();
    if (threadIdx.x % QN_WARP_SIZE == 0)
        sums[threadIdx.x / QN_WARP_SIZE] = square;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

QN_DEVICE float row_factor(const float *x, float (&sums)[WARPS], uint32_t n, float eps)
{
    float square = 0;
    for (uint32_t i = threadIdx.x; i < n; i += QN_NORM_PAIR_THREADS)
        square = fmaf(x[i], x[i], square);
    return norm_factor(square, sums, n, eps);
}

QN_DEVICE void norm_row(float *y, const float *x, const float *weight, float (&sums)[WARPS], uint32_t n, float eps)
{
    const float factor = row_factor(x, sums, n, eps);
    for (uint32_t i = threadIdx.x; i < n; i += QN_NORM_PAIR_THREADS)
        y[i] = x[i] * factor * weight[i];
}

// The second half of a row, from a hidden state h = x * factor * weight.
QN_DEVICE void norm_hidden(float *y, const float *x, float factor, const qn_norm_pair_args &a, float (&sums)[WARPS])
{
    float square = 0;
    for (uint32_t i = threadIdx.x; i < a.n; i += QN_NORM_PAIR_THREADS) {
        const float h = x[i] * factor * a.weight[i];
        square = fmaf(h, h, square);
    }
    const float second = norm_factor(square, sums, a.n, a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += QN_NORM_PAIR_THREADS)
        y[i] = x[i] * factor * a.weight[i] * second * a.hidden_weight[i];
}

extern "C" __global__ void __launch_bounds__(QN_NORM_PAIR_THREADS) qn_norm_pair(const __grid_constant__ qn_norm_pair_args a)
{
    __shared__ float sums[WARPS];
    const uint64_t row = blockIdx.x;
    float *y = a.y + row * 2 * a.n;
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint64_t from = a.from[row], to = a.x ? a.to[row] : 0;
    norm_row(y, a.embedding + row * a.n, a.embedding_weight, sums, a.n, a.eps);
    if (from == QN_NORM_ROW_BEFORE) {
        const float *before = a.x + (row - 1) * a.n;
        norm_hidden(y + a.n, before, row_factor(before, sums, a.n, a.eps), a, sums);
    } else if (from) {
        norm_row(y + a.n, (const float *)from, a.hidden_weight, sums, a.n, a.eps);
    } else {
        for (uint32_t i = threadIdx.x; i < a.n; i += QN_NORM_PAIR_THREADS)
            y[a.n + i] = 0;
    }
    if (to)
        norm_row((float *)to, a.x + row * a.n, a.weight, sums, a.n, a.eps);
}

extern "C" __global__ void __launch_bounds__(QN_NORM_PAIR_THREADS) qn_norm_keep(const __grid_constant__ qn_norm_keep_args a)
{
    __shared__ float sums[WARPS];
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint64_t row = blockIdx.x, to = a.to[row];
    if (to)
        norm_row((float *)to, a.x + row * a.n, a.weight, sums, a.n, a.eps);
}
