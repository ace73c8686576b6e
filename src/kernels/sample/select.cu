// Sampling of rows in which too many tokens may be kept to be sorted. The order of keys is searched for the token in which a sum
// reaches its end: the count of top_k, the weight of top_p, the random number's weight. The histogram gives the bin in which it
// does. A pass sums the bin's tokens in ranges of keys; the range in which the end is found is divided by the next pass. Keys
// include the index, so a range of one token is reached whatever the number of equal logits.
//
// The blocks of a row are a cluster. Each sums a part of the tokens, adds its sums to the row's in global memory, and finds the
// same range in these after the cluster's barrier.
#include "kernels/cluster.cuh"
#include "kernels/sample/sample.cuh"

enum { RANGES = QN_SAMPLE_RANGES, PASSES = 3, SELECT_BLOCKS_PER_SM = 2 };

// Sums of all tokens before a bin or range, in descending order, and of its own.
struct sums {
    uint32_t n_before, n;
    uint64_t weight_before, weight;
};

QN_DEVICE uint64_t weight_through(const sums &s)
{
    return s.weight_before + s.weight;
}

// A range of keys in a bin. Keys are those of key_of without the bits that are equal for all indices.
struct range {
    uint32_t bin;
    uint64_t low, high;
    sums sum;
};

struct search {
    row r;
    softmax_scale scale;
    float bins_per_unit;
    uint32_t index_bits;
    uint32_t pass;         // number of the next one
    uint64_t *weights;     // [RANGES] of this block, in shared memory
    uint32_t *counts;      // [RANGES]
    uint32_t *last_tokens; // [RANGES] a token of each range with one token only
};

// Makes what the row's blocks wrote visible to all of them.
QN_DEVICE void row_sync()
{
#if __CUDA_ARCH__ >= 900
    if (gridDim.z > 1) {
        qn_cluster_sync();
        return;
    }
#endif
    __syncthreads();
}

QN_DEVICE uint32_t cluster_thread()
{
    return blockIdx.z * THREADS + threadIdx.x;
}

QN_DEVICE uint32_t cluster_threads()
{
    return gridDim.z * THREADS;
}

// ---- The bin or range in which the end is ----

// Thread i has the counts and weights of elements i * per_thread and on. Finds the element after which reached(count, weight) is
// true, with the sums over all tokens before; s: those before the first element. False if there is none.
template <int per_thread, typename reached_t>
QN_DEVICE bool find_end(const uint32_t *counts, const uint64_t *weights, const reached_t &reached, sums *s, uint32_t *element)
{
    __shared__ sums found;
    __shared__ uint32_t found_element;
    __shared__ bool is_found;
    uint32_t n_own = 0, n_all;
    uint64_t own = 0, all;
#pragma unroll
    for (int i = 0; i < per_thread; i++) {
        n_own += counts[i];
        own += weights[i];
    }
    uint32_t n = s->n_before + exclusive_sum(n_own, &n_all);
    if (threadIdx.x ==
        0) // exclusive_sum has barriers: the last call's result has been read, and this is before the writes below
        is_found = false;
    uint64_t weight = s->weight_before + exclusive_sum(own, &all);
#pragma unroll
    for (int i = 0; i < per_thread; i++) {
        if (!reached(n, weight) && reached(n + counts[i], weight + weights[i])) {
            found = { n, counts[i], weight, weights[i] };
            found_element = threadIdx.x * per_thread + i;
            is_found = true;
        }
        n += counts[i];
        weight += weights[i];
    }
    __syncthreads();
    *s = found;
    *element = found_element;
    return is_found;
}

// Upper 32 bits of the keys of a logit.
QN_DEVICE uint32_t ordered(float x)
{
    return (uint32_t)(key_of(x, 0) >> 32);
}

// Bounds of the keys of a bin: tokens of other bins may be within them, none of the bin are outside. The margins are many times
// the rounding errors of bin_of and of the bounds.
QN_DEVICE void bound_keys(const search &q, range *a)
{
    const float width = 1 / (q.scale.inverse * q.bins_per_unit), near = (float)a->bin * width * (1 - 1e-6f),
                far = (float)(a->bin + 1) * width * (1 + 1e-6f), largest = q.scale.largest;
    const uint32_t high = a->bin && near < QN_INFINITY ? ordered(largest - near) + 1 : ordered(largest),
                   low = far < QN_INFINITY ? ordered(largest - far) - 1 : 0;
    a->low = (uint64_t)low << q.index_bits;
    a->high = ((uint64_t)high + 1 << q.index_bits) - 1;
}

template <typename reached_t> QN_DEVICE bool find_in_histogram(const search &q, const reached_t &reached, range *a)
{
    enum { PER_THREAD = BINS / THREADS };
    uint32_t counts[PER_THREAD];
    uint64_t weights[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        counts[i] = __ldcg(&q.r.state->counts[threadIdx.x * PER_THREAD + i]);
        weights[i] = __ldcg((const unsigned long long *)&q.r.state->weights[threadIdx.x * PER_THREAD + i]);
    }
    a->sum = { 0, 0, 0, 0 };
    if (!find_end<PER_THREAD>(counts, weights, reached, &a->sum, &a->bin))
        return false;
    bound_keys(q, a);
    return true;
}

// ---- A pass ----

// Sums this block's part of the tokens of a range, in ranges of 2^shift keys from the highest on.
QN_DEVICE void sum_ranges(const search &q, const range &a, uint32_t shift)
{
    for (uint32_t i = threadIdx.x; i < RANGES; i += THREADS) {
        q.counts[i] = 0;
        q.weights[i] = 0;
    }
    __syncthreads();
    const uint32_t largest_index = (uint32_t)((1ull << q.index_bits) - 1);
    for_each_logit_of_warp(q.r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        const uint64_t key = (uint64_t)ordered(x) << q.index_bits | (largest_index - at);
        const bool is_in = bin_of(q.scale, q.bins_per_unit, x) == a.bin && key >= a.low && key <= a.high;
        const uint32_t element = is_in ? (uint32_t)(a.high - key >> shift) : 0;
        const uint64_t weight = is_in ? fixed_point_weight(q.scale, weight_of(q.scale, x)) : 0;
        const bool alone = sum_by_warp(q.counts, q.weights, element, is_in, weight);
        if (alone) {
            add_to_bin(q.counts, q.weights, element, 1, weight);
            q.last_tokens[element] = at;
        }
    });
    __syncthreads();
}

// Adds this block's sums to the row's. Sums of the pass before the last have been read by all blocks: they are zeroed for the
// pass after the next one.
QN_DEVICE void share_ranges(const search &q)
{
    qn_sample_pass *own = &q.r.state->passes[q.pass % PASSES], *read = &q.r.state->passes[(q.pass + PASSES - 1) % PASSES];
    for (uint32_t i = threadIdx.x; i < RANGES; i += THREADS)
        if (q.counts[i]) {
            atomicAdd(&own->counts[i], q.counts[i]);
            atomicAdd((unsigned long long *)&own->weights[i], (unsigned long long)q.weights[i]);
        }
    row_sync();
    for (uint32_t i = cluster_thread(); i < RANGES; i += cluster_threads()) {
        read->counts[i] = 0;
        read->weights[i] = 0;
    }
}

// Narrows a range to the smaller one in which the end is; *element: its number among the ranges of the pass.
template <typename reached_t> QN_DEVICE bool narrow(search *q, const reached_t &reached, range *a, uint32_t *element)
{
    enum { PER_THREAD = RANGES / THREADS };
    const uint32_t shift = shift_of(a->low, a->high);
    const bool is_shared = gridDim.z > 1;
    const qn_sample_pass *all = &q->r.state->passes[q->pass % PASSES];
    uint32_t counts[PER_THREAD];
    uint64_t weights[PER_THREAD];
    sum_ranges(*q, *a, shift);
    if (is_shared)
        share_ranges(*q);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const uint32_t at = threadIdx.x * PER_THREAD + i;
        counts[i] = is_shared ? __ldcg(&all->counts[at]) : q->counts[at];
        weights[i] = is_shared ? __ldcg((const unsigned long long *)&all->weights[at]) : q->weights[at];
    }
    q->pass++;
    if (!find_end<PER_THREAD>(counts, weights, reached, &a->sum, element))
        return false;
    a->high -= (uint64_t)*element << shift;
    a->low = max_key(a->low, low_of(a->high, shift));
    return true;
}

// The weight of all tokens through the one in which the end is; `all` if the sums do not reach it.
template <typename reached_t> QN_DEVICE uint64_t find_weight(search *q, const reached_t &reached, uint64_t all)
{
    range a;
    uint32_t element;
    if (!find_in_histogram(*q, reached, &a))
        return all;
    while (a.sum.n > 1)
        if (!narrow(q, reached, &a, &element))
            return all;
    return weight_through(a.sum);
}

// ---- The filters ----

QN_DEVICE void add_to_row(uint64_t *to, uint64_t own)
{
    uint64_t all;
    exclusive_sum(own, &all);
    if (threadIdx.x == 0)
        atomicAdd((unsigned long long *)to, (unsigned long long)all);
}

QN_DEVICE void max_of_row(uint64_t *to, uint64_t own)
{
    own = block_max_key(own);
    if (threadIdx.x == 0)
        atomicMax((unsigned long long *)to, (unsigned long long)own);
}

QN_DEVICE uint64_t load_of_row(const uint64_t *from)
{
    return __ldcg((const unsigned long long *)from);
}

// The weight of the tokens that min_p keeps: of those before the first with a smaller weight. A lower logit may have a larger
// weight, by the last bit: then this is less than the sum of all weights that are not smaller.
QN_DEVICE uint64_t find_min_p_weight(const search &q, float min_p)
{
    qn_sample_min_p *of_row = &q.r.state->min_p;
    uint64_t end = 0, last = ~0ull, sum = 0;
    for_each_logit(q.r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        const float weight = weight_of(q.scale, x);
        const uint64_t key = key_of(x, at);
        if (weight < min_p) {
            end = max_key(end, key);
        } else {
            last = key < last ? key : last;
            sum += fixed_point_weight(q.scale, weight);
        }
    });
    max_of_row(&of_row->end, end);
    add_to_row(&of_row->sum, sum); // its barriers separate the uses of shared memory before and after it
    max_of_row(&of_row->not_last, ~last);
    row_sync();
    end = load_of_row(&of_row->end);
    if (~load_of_row(&of_row->not_last) > end)
        return load_of_row(&of_row->sum);
    sum = 0;
    for_each_logit(q.r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        if (key_of(x, at) > end)
            sum += fixed_point_weight(q.scale, weight_of(q.scale, x));
    });
    add_to_row(&of_row->kept, sum);
    row_sync();
    return load_of_row(&of_row->kept);
}

QN_DEVICE uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// The weight of the tokens that all filters keep: each keeps the tokens before its end.
QN_DEVICE uint64_t find_kept_weight(search *q, const qn_sample_params &p)
{
    uint64_t total = q->r.state->total;
    if (p.top_k)
        total = find_weight(
            q, [&](uint32_t n, uint64_t) { return n >= p.top_k; }, total);
    const double goal = (double)p.top_p * (double)total;
    uint64_t kept = total;
    if (p.min_p > 0)
        kept = smaller(kept, find_min_p_weight(*q, p.min_p));
    if ((double)kept >= goal)
        kept = smaller(kept, find_weight(
                                 q, [&](uint32_t, uint64_t weight) { return (double)weight >= goal; }, total));
    return kept;
}

extern "C" __global__ void __launch_bounds__(THREADS, SELECT_BLOCKS_PER_SM)
    qn_sample_select(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t weights[RANGES];
    __shared__ uint32_t counts[RANGES], last_tokens[RANGES];
    const row r = row_of(a);
    qn_pdl_trigger();
    qn_pdl_wait();
    if (r.params->kind != QN_SAMPLE_HISTOGRAM || !r.state->select)
        return;
    const qn_sample_params p = *r.params;
    const uint64_t largest = r.state->largest;
    search q = { r,      scale_of(r, largest), p.bins_per_unit, (uint32_t)(32 - __clz((int)(r.n - 1))), 0, weights,
                 counts, last_tokens };
    const uint64_t point = __umul64hi(p.random, find_kept_weight(&q, p));
    const auto reached = [&](uint32_t, uint64_t weight) { return weight > point; };
    range drawn;
    uint32_t element;
    if (!find_in_histogram(q, reached, &drawn))
        return;
    do {
        if (!narrow(&q, reached, &drawn, &element))
            return;
    } while (drawn.sum.n > 1);
    if (threadIdx.x == 0 && counts[element] == 1) {
        const uint32_t token = last_tokens[element];
        store_token(r, largest, key_of(r.logits[token], token));
    }
}
