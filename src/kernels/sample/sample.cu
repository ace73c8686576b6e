// Sampling: argmax per block, a histogram of the logits' distance to the maximum, and a sort of the few candidates by the last
// block of the grid. sample_cuda.h describes the method.
#include "kernels/exp_cuda.h"
#include "kernels/sample/keys.cuh"
#include "kernels/sample/sample_cuda.h"

enum {
    THREADS = QN_SAMPLE_THREADS,
    WARPS = THREADS / QN_WARP_SIZE,
    BINS = QN_SAMPLE_BINS,
    UNROLL = 8 // loads of logits in flight per thread
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
    float largest, inverse, unit, bins;
};

QN_DEVICE softmax_scale scale_of(const qn_sample_args &a, uint64_t best)
{
    return { logit_of(best), a.params->inverse, a.params->weight_unit, a.params->bins_per_unit };
}

QN_DEVICE float weight_of(const softmax_scale &s, float logit)
{
    return exp_canonical((logit - s.largest) * s.inverse);
}

QN_DEVICE uint64_t fixed_point_weight(const softmax_scale &s, float weight)
{
    return (uint64_t)(weight * s.unit);
}

// The bin of a logit, BINS if its weight is 0. If the largest logit is not finite, the difference is NaN and the result BINS.
QN_DEVICE uint32_t bin_of(const softmax_scale &s, float logit)
{
    const float position = (s.largest - logit) * s.inverse * s.bins;
    return position < (float)BINS ? (uint32_t)position : BINS;
}

// ---- Grid and block primitives ----

// True in the last block of the grid to call it; the writes of all other blocks are then visible. Resets the ticket to 0.
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

// ---- Access to the logits: strided over the grid ----

QN_DEVICE uint32_t global_thread()
{
    return blockIdx.x * THREADS + threadIdx.x;
}

QN_DEVICE uint32_t grid_stride()
{
    return gridDim.x * THREADS;
}

QN_DEVICE void load_strided(float x[UNROLL], const qn_sample_args &a, uint32_t first)
{
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const uint32_t at = first + i * grid_stride();
        x[i] = at < a.n ? a.logits[at] : -QN_INFINITY;
    }
}

// ---- Argmax ----

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

// Thread i loads the largest key of block i; 0 for i >= gridDim.x.
QN_DEVICE uint64_t load_block_argmax(const qn_sample_args &a)
{
    return threadIdx.x < gridDim.x ? __ldcg((const unsigned long long *)&a.state->best[threadIdx.x]) : 0;
}

QN_DEVICE bool is_finite(float x)
{
    return x - x == 0; // NaN for infinities and NaN
}

// Each block penalises only the logits that it reads itself, so a block barrier is enough.
QN_DEVICE void apply_penalty(const qn_sample_args &a)
{
    const uint32_t n = a.params->n_recent;
    const float penalty = a.params->penalty;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t token = (uint32_t)a.recent[i];
        if (token / THREADS % gridDim.x != blockIdx.x)
            continue;
        const float x = a.logits[token];
        a.logits[token] = x > 0 ? __fdiv_rn(x, penalty) : x * penalty;
    }
    if (n)
        __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_sample_argmax(const __grid_constant__ qn_sample_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
    apply_penalty(a);
    uint64_t best = 0;
    for (uint32_t first = global_thread(); first < a.n; first += UNROLL * grid_stride()) {
        float x[UNROLL];
        load_strided(x, a, first);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const uint32_t at = first + i * grid_stride();
            best = at < a.n ? max_key(best, key_of(x[i], at)) : best;
        }
    }
    best = block_max_key(best);
    if (threadIdx.x == 0)
        a.state->best[blockIdx.x] = best;
    if (a.mode != QN_SAMPLE_ARGMAX) {
        for (uint32_t i = global_thread(); a.mode == QN_SAMPLE_HISTOGRAM && i < BINS; i += grid_stride()) {
            a.state->weights[i] = 0;
            a.state->counts[i] = 0;
        }
        if (global_thread() == 0)
            a.state->n_candidates = 0;
        return;
    }
    if (!is_last(&a.state->tickets[0]))
        return;
    best = block_max_key(load_block_argmax(a));
    if (threadIdx.x == 0)
        *a.result = { best, is_finite(logit_of(best)) ? (int32_t)index_of(best) : -1, 0 };
}

// ---- Histogram ----

// Lowers *bin to the bin in which a cumulative weight falls: the first with cumulative[i] > sum.
QN_DEVICE void find_bin(uint32_t *bin, const uint64_t *cumulative, uint64_t sum)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (cumulative[i] > sum)
            atomicMin(bin, i);
}

// Inclusive prefix sums of counts and weights over the bins, in place.
QN_DEVICE void inclusive_scan(uint32_t *counts, uint64_t *weights)
{
    enum { PER_THREAD = BINS / THREADS };
    uint32_t n[PER_THREAD], n_own = 0, n_all;
    uint64_t w[PER_THREAD], w_own = 0, w_all;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        n_own += n[i] = counts[threadIdx.x * PER_THREAD + i];
        w_own += w[i] = weights[threadIdx.x * PER_THREAD + i];
    }
    uint32_t n_before = exclusive_sum(n_own, &n_all);
    uint64_t w_before = exclusive_sum(w_own, &w_all);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        counts[threadIdx.x * PER_THREAD + i] = n_before += n[i];
        weights[threadIdx.x * PER_THREAD + i] = w_before += w[i];
    }
    __syncthreads();
}

// Selects the bins whose tokens qn_sample_draw needs in order. cutoff_bin is the bin in which the filters (top_k, or top_p and
// min_p) end. If the bins up to it hold few tokens, all of them are candidates. Otherwise candidates are the tokens of
// cutoff_bin, to find the exact end of the kept tokens, and of bins low to high: the random number selects a token in low for
// the smallest possible kept weight (without cutoff_bin) and in high for the largest (with all of it).
QN_DEVICE void choose_candidates(const qn_sample_args &a, uint32_t *counts, uint64_t *weights)
{
    __shared__ uint32_t cutoff_bin, low, high;
    const qn_sample_params p = *a.params;
    if (threadIdx.x == 0)
        cutoff_bin = low = high = BINS - 1;
    inclusive_scan(counts, weights);
    const uint64_t total = weights[BINS - 1];
    const double goal = (double)p.top_p * (double)total;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (p.top_k ? counts[i] >= p.top_k : i == p.last_bin || (double)weights[i] >= goal)
            atomicMin(&cutoff_bin, i);
    __syncthreads();
    const uint64_t kept_before_cutoff = cutoff_bin ? weights[cutoff_bin - 1] : 0;
    find_bin(&low, weights, __umul64hi(p.random, kept_before_cutoff));
    find_bin(&high, weights, __umul64hi(p.random, weights[cutoff_bin]));
    __syncthreads();
    if (threadIdx.x)
        return;
    qn_sample_state *s = a.state;
    const bool few = counts[cutoff_bin] <= QN_SAMPLE_CANDIDATES, all_bins_kept = !p.top_k && p.last_bin == BINS - 1;
    const uint32_t first = few ? 0 : low, last = few ? cutoff_bin : high, n_before = first ? counts[first - 1] : 0;
    const uint64_t before = first ? weights[first - 1] : 0;
    const uint32_t n_cut = last < cutoff_bin ? counts[cutoff_bin] - counts[cutoff_bin - 1] : 0,
                   n_first = counts[last] - n_before;
    const bool known = few || (all_bins_kept && n_first + n_cut <= QN_SAMPLE_CANDIDATES);
    s->first = known ? first : BINS; // else: no candidates
    s->last = known ? last : 0;
    s->cutoff_bin = known ? cutoff_bin : BINS + 1;
    s->n_first = n_first;
    s->total = total;
    s->weight_before = before;
    s->weight_gap = kept_before_cutoff - weights[last];
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_sample_histogram(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t weights[BINS];
    __shared__ uint32_t counts[BINS];
    qn_pdl_trigger();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        weights[i] = 0;
        counts[i] = 0;
    }
    __syncthreads();
    qn_pdl_wait();
    const softmax_scale s = scale_of(a, block_max_key(load_block_argmax(a)));
    const bool sum_weights = !a.params->top_k;
    for (uint32_t first = global_thread(); first < a.n; first += UNROLL * grid_stride()) {
        float x[UNROLL];
        load_strided(x, a, first);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const uint32_t bin = bin_of(s, x[i]);
            if (bin == BINS)
                continue;
            atomicAdd(&counts[bin], 1);
            if (sum_weights)
                atomicAdd((unsigned long long *)&weights[bin], (unsigned long long)fixed_point_weight(s, weight_of(s, x[i])));
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (counts[i]) {
            atomicAdd(&a.state->counts[i], counts[i]);
            if (sum_weights)
                atomicAdd((unsigned long long *)&a.state->weights[i], (unsigned long long)weights[i]);
        }
    if (!is_last(&a.state->tickets[1]))
        return;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        counts[i] = __ldcg(&a.state->counts[i]);
        weights[i] = sum_weights ? __ldcg((const unsigned long long *)&a.state->weights[i]) : 0;
    }
    __syncthreads();
    choose_candidates(a, counts, weights);
}

// ---- Sort and draw ----

// The k-th largest of the blocks' keys, k <= gridDim.x. All keys differ.
QN_DEVICE uint64_t kth_block_max(const uint64_t *block_keys, uint64_t own, uint32_t k)
{
    __shared__ uint64_t threshold;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < gridDim.x; i++)
        rank += block_keys[i] > own;
    if (threadIdx.x < gridDim.x && rank == k - 1)
        threshold = own;
    __syncthreads();
    return threshold;
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

// Sorted candidates, and the weights of the other tokens.
struct candidates {
    const uint64_t *keys; // [n], descending
    uint32_t n, n_first;
    uint64_t total, weight_before, weight_gap; // as in qn_sample_state
};

// Applies top_k, top_p and min_p to the candidates and selects the token. Each thread processes a contiguous range.
QN_DEVICE void draw(const qn_sample_args &a, const softmax_scale &s, const candidates &c, uint64_t best)
{
    __shared__ uint32_t end;
    __shared__ uint64_t kept;
    const qn_sample_params p = *a.params;
    const uint32_t m = p.top_k && p.top_k < c.n ? p.top_k : c.n, per_thread = (m + THREADS - 1) / THREADS;
    const uint32_t begin = min(m, threadIdx.x * per_thread), stop = min(m, begin + per_thread);
    uint64_t own = 0, all;
    for (uint32_t i = begin; i < stop; i++)
        own += fixed_point_weight(s, weight_of(s, logit_of(c.keys[i])));
    if (threadIdx.x == 0)
        end = m;
    const uint64_t first_sum = exclusive_sum(own, &all); // its barriers also make `end` visible
    const double goal = (double)p.top_p * (double)(p.top_k ? all : c.total);
    // Weight of all tokens before candidate i; sum: weight of the candidates before it.
    const auto before = [&](uint32_t i, uint64_t sum) { return sum + c.weight_before + (i < c.n_first ? 0 : c.weight_gap); };

    // `end`: the first candidate that is not kept. It is in cutoff_bin, and it is never the most likely token.
    uint64_t sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        const float weight = weight_of(s, logit_of(c.keys[i]));
        const bool in_last = c.n_first == c.n || i >= c.n_first;
        if (in_last && before(i, sum) && (weight < p.min_p || (double)before(i, sum) >= goal)) {
            atomicMin(&end, i);
            break;
        }
        sum += fixed_point_weight(s, weight);
    }
    __syncthreads();
    sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        if (i == end)
            kept = before(i, sum);
        sum += fixed_point_weight(s, weight_of(s, logit_of(c.keys[i])));
    }
    if (threadIdx.x == 0 && end == m)
        kept = before(m - 1, all);
    __syncthreads();

    const uint64_t point = __umul64hi(p.random, kept);
    sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        const uint64_t from = before(i, sum), weight = fixed_point_weight(s, weight_of(s, logit_of(c.keys[i])));
        if (from <= point && point - from < weight)
            *a.result = { best, (int32_t)index_of(c.keys[i]), 0 };
        sum += weight;
    }
}

QN_DEVICE void add_candidate(const qn_sample_args &a, uint64_t key)
{
    const uint32_t at = atomicAdd(&a.state->n_candidates, 1);
    if (at < QN_SAMPLE_CANDIDATES)
        a.state->candidates[at] = key;
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_sample_draw(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t keys[QN_SAMPLE_CANDIDATES];
    const bool is_top_k = a.mode == QN_SAMPLE_TOP_K;
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint64_t block_argmax = load_block_argmax(a);
    keys[threadIdx.x] = block_argmax;
    const uint64_t best = block_max_key(block_argmax); // its barrier also makes keys visible
    const uint64_t threshold = is_top_k ? kth_block_max(keys, block_argmax, a.params->top_k) : 0;
    const softmax_scale s = scale_of(a, best);
    const uint32_t low = a.state->first, high = a.state->last, cutoff_bin = a.state->cutoff_bin;
    for (uint32_t first = global_thread(); first < a.n; first += UNROLL * grid_stride()) {
        float x[UNROLL];
        load_strided(x, a, first);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const uint32_t at = first + i * grid_stride(), bin = bin_of(s, x[i]);
            const uint64_t key = key_of(x[i], at);
            if (bin < BINS && (is_top_k ? key >= threshold : (bin >= low && bin <= high) || bin == cutoff_bin))
                add_candidate(a, key);
        }
    }
    if (!is_last(&a.state->tickets[2]))
        return;
    const uint32_t n = __ldcg(&a.state->n_candidates);
    if (n == 0 || n > QN_SAMPLE_CANDIDATES || !is_finite(logit_of(best))) {
        if (threadIdx.x == 0)
            *a.result = { best, -1, 0 };
        return;
    }
    enum { RANK_SORT_MAX = THREADS < 512 ? 512 : THREADS }; // the bitonic network is faster for more
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = threadIdx.x; i < size; i += THREADS)
        keys[i] = i < n ? __ldcg((const unsigned long long *)&a.state->candidates[i]) : 0;
    __syncthreads();
    if (n <= RANK_SORT_MAX)
        rank_sort<RANK_SORT_MAX>(keys, n);
    else
        bitonic_sort(keys, size);
    const qn_sample_state *state = a.state;
    const candidates c = { keys,
                           n,
                           is_top_k ? n : state->n_first,
                           state->total,
                           is_top_k ? 0 : state->weight_before,
                           is_top_k ? 0 : state->weight_gap };
    draw(a, s, c, best);
}
