// What the kernels of sampling share: weights, the rows of a launch, reductions over a block, slices, sorting. blockIdx.y is
// the row; the blocks of a row divide its logits.
#ifndef QN_KERNELS_SAMPLE_SAMPLE_CUH
#define QN_KERNELS_SAMPLE_SAMPLE_CUH

#include "kernels/exp_cuda.h"
#include "kernels/sample/keys.cuh"
#include "kernels/sample/sample_cuda.h"

enum {
    THREADS = QN_SAMPLE_THREADS,
    WARPS = THREADS / QN_WARP_SIZE,
    VECTOR = QN_SAMPLE_VECTOR,
    UNROLL = 4, // vectors in flight per thread
    BLOCKS_PER_SM = 3 // QN_SAMPLE_GRID counts on it
};

// ---- Weights, as in sample.h ----

QN_DEVICE float logit_of(uint64_t key)
{
    const uint32_t ordered = (uint32_t)(key >> 32);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// qn_exp of kernels/canon.h.
QN_DEVICE float exp_canonical(float x)
{
    float n;
    const float y = qn_exp_series(fminf(fmaxf(x, QN_EXP_MIN), QN_EXP_MAX), &n);
    return __uint_as_float(__float_as_uint(y) + ((uint32_t)(int)n << 23));
}

struct softmax_scale {
    float largest, inverse, unit;
};

QN_DEVICE float weight_of(const softmax_scale &s, float logit)
{
    return exp_canonical((logit - s.largest) * s.inverse);
}

QN_DEVICE uint64_t fixed_point_weight(const softmax_scale &s, float weight)
{
    return (uint64_t)(weight * s.unit);
}

// ---- Rows ----

// A vector begins at a multiple of 16 bytes: the first one of a row may begin up to three logits before it.
struct row {
    float *logits;  // [n]
    uint32_t shift; // logits before the row in its first vector
    uint32_t n;
    const qn_sample_params *params;
    qn_sample_state *state;
    qn_sample_result *result;
    int32_t *token; // or null
};

QN_DEVICE row row_of(const qn_sample_args &a)
{
    float *logits = a.logits + (uint64_t)blockIdx.y * a.n;
    return { logits,
             (uint32_t)((uint64_t)logits / sizeof(float) % VECTOR),
             a.n,
             a.params + blockIdx.y,
             a.states + blockIdx.y,
             a.results + blockIdx.y,
             a.tokens ? a.tokens + blockIdx.y : nullptr };
}

// The parameters of the block's row into shared memory; a block barrier makes them visible. The previous kernel does not write
// them, so this may precede qn_pdl_wait.
QN_DEVICE void load_params(qn_sample_params *shared, const qn_sample_args &a)
{
    const uint32_t *from = (const uint32_t *)(a.params + blockIdx.y);
    if (threadIdx.x < sizeof *shared / sizeof *from)
        ((uint32_t *)shared)[threadIdx.x] = from[threadIdx.x];
}

QN_DEVICE uint32_t row_thread()
{
    return blockIdx.x * THREADS + threadIdx.x;
}

QN_DEVICE uint32_t row_threads()
{
    return gridDim.x * THREADS;
}

// Whether all logits of a vector, `first` being the index of the first, are in the row.
QN_DEVICE bool is_inside(const row &r, uint32_t first)
{
    return first < r.n && r.n - first >= VECTOR;
}

// Calls visit(logit, index) for the logits of the vectors begin, begin + stride and so on of the row, begin < stride. Only its
// first and its last vector may have elements outside. The index of a vector's first logit wraps where the vector begins
// before the row.
template <typename visit_t> QN_DEVICE void for_each_logit(const row &r, uint32_t begin, uint32_t stride, const visit_t &visit)
{
    const uint32_t last = (r.n + r.shift - 1) / VECTOR;
    for (uint32_t vector = begin; vector <= last; vector += UNROLL * stride) {
        float4 x[UNROLL];
#pragma unroll
        for (uint32_t i = 0; i < UNROLL; i++) {
            const uint32_t first = VECTOR * (vector + i * stride) - r.shift;
            x[i] = { 0, 0, 0, 0 };
            if (is_inside(r, first))
                x[i] = *(const float4 *)(r.logits + first);
        }
#pragma unroll
        for (uint32_t i = 0; i < UNROLL; i++) {
            const uint32_t first = VECTOR * (vector + i * stride) - r.shift;
            if (!is_inside(r, first))
                continue;
            visit(x[i].x, first);
            visit(x[i].y, first + 1);
            visit(x[i].z, first + 2);
            visit(x[i].w, first + 3);
        }
    }
#pragma unroll 1
    for (uint32_t i = 0; i < (last ? 2 * VECTOR : VECTOR); i++) {
        const uint32_t vector = i < VECTOR ? 0 : last, first = VECTOR * vector - r.shift, at = first + i % VECTOR;
        if (vector % stride == begin && !is_inside(r, first) && at < r.n)
            visit(r.logits[at], at);
    }
}

QN_DEVICE uint64_t max_key_of_row(const row &r)
{
    uint64_t best = 0; // below the key of any logit
    for_each_logit(r, row_thread(), row_threads(), [&](float x, uint32_t at) { best = max_key(best, key_of(x, at)); });
    return best;
}

// ---- Reductions over the blocks of a row, and over a block ----

// True in the last block of the row to call it; the writes of all its other blocks are then visible. Resets the ticket to 0.
QN_DEVICE bool is_last(uint32_t *ticket)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
        if (last)
            *ticket = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// Exclusive prefix sum over the threads of the block; *all is the total.
template <typename T> QN_DEVICE T exclusive_sum(T own, T *all)
{
    __shared__ T warp_values[WARPS];
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    T sum = own;
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const T other = __shfl_up_sync(QN_FULL_MASK, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    __syncthreads(); // warp_values of the previous call has been read
    if (lane == QN_WARP_SIZE - 1)
        warp_values[warp] = sum;
    __syncthreads();
    T before = sum - own, total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? warp_values[i] : 0;
        total += warp_values[i];
    }
    *all = total;
    return before;
}

// The largest key of the block, in every thread.
QN_DEVICE uint64_t block_max_key(uint64_t key)
{
    __shared__ uint64_t warp_values[WARPS];
    key = warp_max_key(key);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        warp_values[threadIdx.x / QN_WARP_SIZE] = key;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        key = max_key(key, warp_values[i]);
    return key;
}

// ---- Slices: threads of a block whose largest key is stored ----

// A power of two, for QN_SAMPLE_SLICES slices of the row at most and half as many at least.
QN_DEVICE uint32_t slices_per_block()
{
    uint32_t slices = QN_SAMPLE_SLICES / 2;
    while (slices * gridDim.x > QN_SAMPLE_SLICES)
        slices /= 2;
    return slices;
}

QN_DEVICE void store_slices(uint64_t *best, uint64_t key, uint32_t slices)
{
    __shared__ uint64_t warp_values[WARPS];
    const uint32_t threads = THREADS / slices;
    for (uint32_t distance = min(threads, QN_WARP_SIZE) / 2; distance > 0; distance /= 2)
        key = max_key(key, __shfl_xor_sync(QN_FULL_MASK, key, distance));
    if (threads <= QN_WARP_SIZE) {
        if (threadIdx.x % threads == 0)
            best[blockIdx.x * slices + threadIdx.x / threads] = key;
        return;
    }
    if (threadIdx.x % QN_WARP_SIZE == 0)
        warp_values[threadIdx.x / QN_WARP_SIZE] = key;
    __syncthreads();
    if (threadIdx.x >= slices)
        return;
    const uint32_t warps = threads / QN_WARP_SIZE;
    key = 0;
    for (uint32_t i = 0; i < warps; i++)
        key = max_key(key, warp_values[threadIdx.x * warps + i]);
    best[blockIdx.x * slices + threadIdx.x] = key;
}

// Thread i loads the largest key of slice i; 0 beyond the last.
QN_DEVICE uint64_t load_slice(const row &r, uint32_t slices)
{
    return threadIdx.x < gridDim.x * slices ? __ldcg((const unsigned long long *)&r.state->best[threadIdx.x]) : 0;
}

// The k-th largest of the slices' keys, 0 if k are not there: thread i has keys[i] as `own`. Keys of slices with logits
// differ.
QN_DEVICE uint64_t kth_slice(const uint64_t *keys, uint64_t own, uint32_t n_slices, uint32_t k)
{
    __shared__ uint64_t threshold;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n_slices; i++)
        rank += keys[i] > own;
    if (threadIdx.x == 0)
        threshold = 0;
    __syncthreads();
    if (threadIdx.x < n_slices && own && rank == k - 1)
        threshold = own;
    __syncthreads();
    return threshold;
}

// ---- Candidates ----

QN_DEVICE void add_candidate(const row &r, uint64_t key)
{
    const uint32_t at = atomicAdd(&r.state->n_candidates, 1);
    if (at < QN_SAMPLE_CANDIDATES)
        r.state->candidates[at] = key;
}

// Both sorts are descending. Few keys: the position of each is the number of larger keys.
template <int few> QN_DEVICE void rank_sort(uint64_t *keys, uint32_t n)
{
    enum { PER_THREAD = few / THREADS };
    uint64_t own[PER_THREAD];
    uint32_t position[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        own[i] = i * THREADS + threadIdx.x < n ? keys[i * THREADS + threadIdx.x] : 0;
        position[i] = 0;
    }
#pragma unroll 4
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t key = keys[j];
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            position[i] += key > own[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (i * THREADS + threadIdx.x < n)
            keys[position[i]] = own[i];
    __syncthreads();
}

// More keys, n a power of two: Batcher's bitonic network.
QN_DEVICE void bitonic_sort(uint64_t *keys, uint32_t n)
{
    for (uint32_t size = 2; size <= n; size *= 2)
        for (uint32_t distance = size / 2; distance > 0; distance /= 2) {
            for (uint32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                const uint32_t low = 2 * i - (i & (distance - 1)), high = low + distance;
                const uint64_t first = keys[low], second = keys[high];
                if ((first < second) == !(low & size)) {
                    keys[low] = second;
                    keys[high] = first;
                }
            }
            __syncthreads();
        }
}

// The n candidates of the row, n <= QN_SAMPLE_CANDIDATES, in descending order.
QN_DEVICE void load_sorted(uint64_t keys[QN_SAMPLE_CANDIDATES], const row &r, uint32_t n)
{
    enum { RANK_SORT_MAX = THREADS < 512 ? 512 : THREADS }; // the bitonic network is faster for more
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = threadIdx.x; i < size; i += THREADS)
        keys[i] = i < n ? __ldcg((const unsigned long long *)&r.state->candidates[i]) : 0;
    __syncthreads();
    if (n <= RANK_SORT_MAX)
        rank_sort<RANK_SORT_MAX>(keys, n);
    else
        bitonic_sort(keys, size);
}

#endif
