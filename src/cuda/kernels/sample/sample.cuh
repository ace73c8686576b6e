// Shared by the kernels of sampling: weights, the rows of a launch, results, reductions over a block, bins, slices,
// sorting. blockIdx.y is the row; the blocks of a row divide its logits.
#ifndef QN_CUDA_KERNELS_SAMPLE_SAMPLE_CUH
#define QN_CUDA_KERNELS_SAMPLE_SAMPLE_CUH

#include "kernels/exp.h"
#include "cuda/kernels/sample/keys.cuh"
#include "cuda/kernels/sample/sample.h"

enum {
    THREADS = QN_SAMPLE_THREADS,
    WARPS = THREADS / QN_WARP_SIZE,
    VECTOR = QN_SAMPLE_VECTOR,
    UNROLL = 4, // vectors in flight per thread
    BINS = QN_SAMPLE_BINS,
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

// The parameters of the block's row into shared memory; a block barrier makes them visible. The previous kernel does
// not write them, so this may precede qn_pdl_wait.
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

// Calls visit(logit, index) for the logits of the vectors begin, begin + stride and so on of the row, begin < stride.
// Only its first and its last vector may have elements outside. The index of a vector's first logit wraps where the
// vector begins before the row.
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

// The same, called equally often by all lanes of a warp, which `begin` numbers in order: -inf stands for logits beyond
// the row.
template <typename visit_t>
QN_DEVICE void for_each_logit_of_warp(const row &r, uint32_t begin, uint32_t stride, const visit_t &visit)
{
    const uint32_t n_vectors = (r.n + r.shift + VECTOR - 1) / VECTOR, lane = threadIdx.x % QN_WARP_SIZE;
    const auto load = [&](uint32_t at) { return at < r.n ? r.logits[at] : -QN_INFINITY; };
    for (uint32_t vector = begin - lane; vector < n_vectors; vector += UNROLL * stride) {
        float4 x[UNROLL];
#pragma unroll
        for (uint32_t i = 0; i < UNROLL; i++) {
            const uint32_t first = VECTOR * (vector + lane + i * stride) - r.shift;
            if (is_inside(r, first))
                x[i] = *(const float4 *)(r.logits + first);
            else
                x[i] = { load(first), load(first + 1), load(first + 2), load(first + 3) };
        }
#pragma unroll
        for (uint32_t i = 0; i < UNROLL; i++) {
            const uint32_t first = VECTOR * (vector + lane + i * stride) - r.shift;
            visit(x[i].x, first);
            visit(x[i].y, first + 1);
            visit(x[i].z, first + 2);
            visit(x[i].w, first + 3);
        }
    }
}

QN_DEVICE uint64_t max_key_of_row(const row &r)
{
    uint64_t best = 0; // below the key of any logit
    for_each_logit(r, row_thread(), row_threads(), [&](float x, uint32_t at) { best = max_key(best, key_of(x, at)); });
    return best;
}

// ---- Weights and bins of a row ----

QN_DEVICE softmax_scale scale_of(const row &r, uint64_t best)
{
    return { logit_of(best), r.params->inverse, r.params->weight_unit };
}

// The bin of a logit, BINS if its weight is 0. If the largest logit is not finite, the difference is NaN and the result
// BINS.
QN_DEVICE uint32_t bin_of(const softmax_scale &s, float bins_per_unit, float logit)
{
    const float position = (s.largest - logit) * s.inverse * bins_per_unit;
    return position < (float)BINS ? (uint32_t)position : BINS;
}

QN_DEVICE bool is_finite(float x)
{
    return x - x == 0; // NaN for infinities and NaN
}

// ---- Results ----

QN_DEVICE void store_id(const row &r, uint64_t best, int32_t token)
{
    r.result->best = best;
    r.result->token = token;
    if (r.token)
        *r.token = token;
}

QN_DEVICE void store_token(const row &r, uint64_t best, uint64_t key)
{
    store_id(r, best, (int32_t)index_of(key));
    r.result->logit = logit_of(key);
}

QN_DEVICE void store_no_token(const row &r, uint64_t best)
{
    store_id(r, best, -1);
}

// ---- Reductions over the blocks of a row, and over a block ----

// True in the last block of the row to call it; the writes of all its other blocks are then visible. Resets the ticket
// to 0.
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

// ---- Bins in shared memory: counts and weights ----

// Adds n tokens. There is no 64-bit addition in shared memory, atomicAdd of such numbers is a loop: the thread whose
// addition to the low word overflows adds the carry.
QN_DEVICE void add_to_bin(uint32_t *counts, uint64_t *weights, uint32_t bin, uint32_t n, uint64_t weight)
{
    uint32_t *words = (uint32_t *)&weights[bin];
    const uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32) + (atomicAdd(&words[0], low) + low < low);
    if (high)
        atomicAdd(&words[1], high);
    atomicAdd(&counts[bin], n);
}

// Adds tokens of a warp, of the lanes that have one, by one lane for all tokens of a bin, if a bin has many: additions
// to the same address are done one after another. Returns true in the lanes whose token the caller has to add.
QN_DEVICE bool sum_by_warp(uint32_t *counts, uint64_t *weights, uint32_t bin, bool has_token, uint64_t weight)
{
    enum { MANY = 8 };
    uint32_t rest = __ballot_sync(QN_FULL_MASK, has_token);
    while (rest) {
        const int leader = __ffs((int)rest) - 1;
        const uint32_t common = __shfl_sync(QN_FULL_MASK, bin, leader);
        const bool same = has_token && bin == common;
        const uint32_t lanes = __ballot_sync(QN_FULL_MASK, same);
        if (__popc(lanes) < MANY)
            break;
        uint64_t sum = same ? weight : 0;
#pragma unroll
        for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(QN_FULL_MASK, sum, distance);
        if (threadIdx.x % QN_WARP_SIZE == (uint32_t)leader)
            add_to_bin(counts, weights, common, (uint32_t)__popc(lanes), sum);
        has_token = has_token && !same;
        rest &= ~lanes;
    }
    return has_token;
}

// ---- Slices: threads of a block whose largest key is stored ----

// A power of two, for at most QN_SAMPLE_SLICES slices of the row and at least half that number.
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

// ---- Ranges of keys: QN_SAMPLE_RANGES of 2^shift keys, from the highest on ----

QN_DEVICE uint32_t shift_of(uint64_t low, uint64_t high)
{
    enum { RANGES_LOG2 = 10 };
    const int bits = 64 - __clzll((long long)(high - low));
    return bits > RANGES_LOG2 ? (uint32_t)(bits - RANGES_LOG2) : 0;
}

QN_DEVICE uint64_t low_of(uint64_t high, uint32_t shift)
{
    const uint64_t others = (1ull << shift) - 1;
    return high > others ? high - others : 0;
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

// The k-th largest key of the row, which is from low to high, by passes of one block over the row. A pass counts the
// keys in ranges and continues with the one that has the k-th. counts: QN_SAMPLE_RANGES in shared memory.
QN_DEVICE uint64_t kth_key(const row &r, uint32_t *counts, uint64_t low, uint64_t high, uint32_t k)
{
    enum { PER_THREAD = QN_SAMPLE_RANGES / THREADS };
    __shared__ uint64_t range_high;
    __shared__ uint32_t n_before, n_through;
    for (;;) {
        const uint32_t shift = shift_of(low, high);
        for (uint32_t i = threadIdx.x; i < QN_SAMPLE_RANGES; i += THREADS)
            counts[i] = 0;
        __syncthreads();
        for_each_logit(r, threadIdx.x, THREADS, [&](float x, uint32_t at) {
            const uint64_t key = key_of(x, at);
            if (key >= low && key <= high)
                atomicAdd(&counts[high - key >> shift], 1);
        });
        __syncthreads();
        uint32_t own = 0, all;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            own += counts[threadIdx.x * PER_THREAD + i];
        uint32_t n = exclusive_sum(own, &all);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const uint32_t at = threadIdx.x * PER_THREAD + i, before = n;
            n += counts[at];
            if (before < k && n >= k) {
                range_high = high - ((uint64_t)at << shift);
                n_before = before;
                n_through = n;
            }
        }
        __syncthreads();
        high = range_high;
        low = max_key(low, low_of(high, shift));
        if (n_through == k || low == high)
            return low;
        k -= n_before;
    }
}

// The k largest keys of the row, unordered, by one block: where more are candidates than are sorted, as of thousands of
// equal logits. All of them are from low to high.
QN_DEVICE void collect_largest(uint64_t keys[QN_SAMPLE_CANDIDATES], const row &r, uint64_t low, uint64_t high, uint32_t k)
{
    __shared__ uint32_t n;
    const uint64_t threshold = kth_key(r, (uint32_t *)keys, low, high, k);
    if (threadIdx.x == 0)
        n = 0;
    __syncthreads();
    for_each_logit(r, threadIdx.x, THREADS, [&](float x, uint32_t at) {
        const uint64_t key = key_of(x, at);
        if (key >= threshold)
            keys[atomicAdd(&n, 1)] = key;
    });
    __syncthreads();
}

QN_DEVICE void sort(uint64_t keys[QN_SAMPLE_CANDIDATES], uint32_t n)
{
    enum { RANK_SORT_MAX = THREADS < 512 ? 512 : THREADS }; // the bitonic network is faster for more
    if (n <= RANK_SORT_MAX) {
        rank_sort<RANK_SORT_MAX>(keys, n);
        return;
    }
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS)
        keys[i] = 0;
    __syncthreads();
    bitonic_sort(keys, size);
}

// The row's candidates in descending order; or where they are too many, the k largest keys, which are from low to high.
// Returns the number.
QN_DEVICE uint32_t load_sorted(uint64_t keys[QN_SAMPLE_CANDIDATES], const row &r, uint64_t low, uint64_t high, uint32_t k)
{
    uint32_t n = __ldcg(&r.state->n_candidates);
    if (n > QN_SAMPLE_CANDIDATES) {
        collect_largest(keys, r, low, high, k);
        n = k;
    } else {
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            keys[i] = __ldcg((const unsigned long long *)&r.state->candidates[i]);
        __syncthreads();
    }
    sort(keys, n);
    return n;
}

#endif
