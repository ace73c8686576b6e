// Sampling of rows in which too many tokens may be kept to be sorted. The order of keys is searched for the token in
// which a sum reaches its end: the count of top_k, the weight of top_p, the random number's weight. The histogram gives
// the bin of that token. A pass sums the bin's tokens in ranges of keys; the range in which the end is found is divided
// by the next pass. Keys include the index, so a range of one token is reached whatever the number of equal logits.
//
// The blocks of a row are a cluster. Each block sums a part of the tokens, adds its sums to the row's sums in global
// memory, and finds the same range in them after the cluster's barrier.
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/sample/sample.cuh"

enum { RANGES = QN_SAMPLE_RANGES, PASSES = 3, SELECT_BLOCKS_PER_SM = 2 };

#define ALL 0xffffffffu
#define FLOAT_MAX __uint_as_float(0x7f7fffffu)

// Sums of all tokens before a bin or range, in descending order, and of its own tokens.
struct sums {
    uint32_t n_before, n;
    uint64_t weight_before, weight;
};

QN_DEVICE uint64_t weight_through(const sums &s)
{
    return s.weight_before + s.weight;
}

// A range of keys in a bin. Keys are as returned by key_of, without the bits that are equal for all indices.
struct range {
    uint32_t bin;
    uint64_t low, high;
    sums sum;
};

// The tokens kept by top_n_sigma, top_k and typical_p in rows that have filters other than sums in descending order.
struct left_tokens {
    double most_deviation; // of top_n_sigma, in units
    float per_unit;        // units of deviation; 0: without top_n_sigma
    uint64_t low;          // the least key that top_k leaves
    uint32_t mean, distance;
};

struct search {
    row r;
    softmax_scale scale;
    float bins_per_unit;
    uint32_t index_bits;
    bool uses_histogram; // else `left` says which tokens are searched
    left_tokens left;
    float largest;         // logit of the row, before typical_p
    uint32_t pass;         // number of the next one
    uint32_t reduction;    // number of the next one
    uint64_t *weights;     // [RANGES] of this block, in shared memory
    uint32_t *counts;      // [RANGES]
    uint32_t *last_tokens; // [RANGES] a token of each range with one token only
};

// Makes the writes of the row's blocks visible to all of them.
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

// ---- Tokens ----

// Upper 32 bits of the keys of a logit.
QN_DEVICE uint32_t ordered(float x)
{
    return (uint32_t)(key_of(x, 0) >> 32);
}

QN_DEVICE uint64_t key_in(const search &q, float x, uint32_t index)
{
    return (uint64_t)ordered(x) << q.index_bits | ((uint32_t)((1ull << q.index_bits) - 1) - index);
}

// As in sample.h.
QN_DEVICE uint32_t surprisal(const search &q, float logit)
{
    enum { MOST = 86 * 1024 };
    const float x = (logit - q.largest) * q.scale.inverse * -1024.0f;
    return x < (float)MOST ? (uint32_t)x : MOST;
}

QN_DEVICE uint32_t distance_from_mean(const search &q, float logit)
{
    const uint32_t x = surprisal(q, logit);
    return x > q.left.mean ? x - q.left.mean : q.left.mean - x;
}

QN_DEVICE uint64_t deviation(const search &q, float logit)
{
    return (uint64_t)(fminf(q.largest - logit, FLOAT_MAX) * q.left.per_unit);
}

// Whether the filters of a row without histogram keep a token. -inf also stands for logits beyond the row.
QN_DEVICE bool is_left(const search &q, float logit, uint64_t key)
{
    return logit > -QN_INFINITY && key >= q.left.low && (double)deviation(q, logit) <= q.left.most_deviation &&
           (q.left.distance == ALL || distance_from_mean(q, logit) <= q.left.distance);
}

QN_DEVICE bool is_searched(const search &q, float logit, uint32_t at)
{
    return q.uses_histogram || is_left(q, logit, key_in(q, logit, at));
}

QN_DEVICE uint64_t weight_in(const search &q, float logit)
{
    return fixed_point_weight(q.scale, weight_of(q.scale, logit));
}

// ---- Reductions over the row ----

QN_DEVICE uint64_t *next_reduction(search *q)
{
    return &q->r.state->reductions[q->reduction++];
}

QN_DEVICE void add_to_row(uint64_t *to, uint64_t own)
{
    uint64_t all;
    exclusive_sum(own, &all);
    if (threadIdx.x == 0)
        atomicAdd((unsigned long long *)to, (unsigned long long)all);
}

// Two calls need a barrier between them.
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

template <typename value_t> QN_DEVICE uint64_t sum_row(search *q, const value_t &value)
{
    uint64_t *all = next_reduction(q), own = 0;
    for_each_logit(q->r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        if (is_searched(*q, x, at))
            own += value(x);
    });
    add_to_row(all, own);
    row_sync();
    return load_of_row(all);
}

template <typename value_t> QN_DEVICE uint64_t max_row(search *q, const value_t &value)
{
    uint64_t *all = next_reduction(q), own = 0;
    for_each_logit(q->r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        if (is_searched(*q, x, at))
            own = max_key(own, value(x));
    });
    max_of_row(all, own);
    row_sync();
    return load_of_row(all);
}

// ---- The bin or range in which the end is ----

// Thread i has the counts and weights of elements i * per_thread and on. Finds the element after which reached(count,
// weight) is true, with the sums over all tokens before; s: those before the first element. False if there is none.
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

// Bounds of the keys of a bin: tokens of other bins may be within them, none of the bin are outside. The margins are
// many times the rounding errors of bin_of and of the bounds.
QN_DEVICE void bound_keys(const search &q, range *a)
{
    const float width = 1 / (q.scale.inverse * q.bins_per_unit), near = (float)a->bin * width * (1 - 1e-6f),
                far = (float)(a->bin + 1) * width * (1 + 1e-6f), largest = q.scale.largest;
    const uint32_t high = a->bin && near < QN_INFINITY ? ordered(largest - near) + 1 : ordered(largest),
                   low = far < QN_INFINITY ? ordered(largest - far) - 1 : 0;
    a->low = (uint64_t)low << q.index_bits;
    a->high = ((uint64_t)high + 1 << q.index_bits) - 1;
}

// The bin in which the end is; without the histogram all keys, of any number of tokens.
template <typename reached_t> QN_DEVICE bool find_first_range(const search &q, const reached_t &reached, range *a)
{
    enum { PER_THREAD = BINS / THREADS };
    uint32_t counts[PER_THREAD];
    uint64_t weights[PER_THREAD];
    a->sum = { 0, 0, 0, 0 };
    if (!q.uses_histogram) {
        a->low = 0;
        a->high = (1ull << (32 + q.index_bits)) - 1;
        a->sum.n = ALL;
        return true;
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        counts[i] = __ldcg(&q.r.state->counts[threadIdx.x * PER_THREAD + i]);
        weights[i] = __ldcg((const unsigned long long *)&q.r.state->weights[threadIdx.x * PER_THREAD + i]);
    }
    if (!find_end<PER_THREAD>(counts, weights, reached, &a->sum, &a->bin))
        return false;
    bound_keys(q, a);
    return true;
}

// ---- A pass ----

// Sums this block's part of the tokens. locate(logit, index, &range) is true for tokens in a range.
template <typename locate_t> QN_DEVICE void sum_ranges(const search &q, const locate_t &locate)
{
    for (uint32_t i = threadIdx.x; i < RANGES; i += THREADS) {
        q.counts[i] = 0;
        q.weights[i] = 0;
    }
    __syncthreads();
    for_each_logit_of_warp(q.r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        uint32_t element = 0;
        const bool is_in = locate(x, at, &element);
        const uint64_t weight = is_in ? weight_in(q, x) : 0;
        const bool alone = sum_by_warp(q.counts, q.weights, element, is_in, weight);
        if (alone) {
            add_to_bin(q.counts, q.weights, element, 1, weight);
            q.last_tokens[element] = at;
        }
    });
    __syncthreads();
}

// Adds this block's sums to the row's. Sums of the pass before the last have been read by all blocks: they are zeroed
// for the pass after the next one.
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

// The range in which the end is; s: the sums before all ranges on entry, of this one afterwards.
template <typename locate_t, typename reached_t>
QN_DEVICE bool find_range(search *q, const locate_t &locate, const reached_t &reached, sums *s, uint32_t *element)
{
    enum { PER_THREAD = RANGES / THREADS };
    const bool is_shared = gridDim.z > 1;
    const qn_sample_pass *all = &q->r.state->passes[q->pass % PASSES];
    uint32_t counts[PER_THREAD];
    uint64_t weights[PER_THREAD];
    sum_ranges(*q, locate);
    if (is_shared)
        share_ranges(*q);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const uint32_t at = threadIdx.x * PER_THREAD + i;
        counts[i] = is_shared ? __ldcg(&all->counts[at]) : q->counts[at];
        weights[i] = is_shared ? __ldcg((const unsigned long long *)&all->weights[at]) : q->weights[at];
    }
    q->pass++;
    return find_end<PER_THREAD>(counts, weights, reached, s, element);
}

// Narrows a range to the smaller one in which the end is; *element: its number among the ranges of the pass.
template <typename reached_t> QN_DEVICE bool narrow(search *q, const reached_t &reached, range *a, uint32_t *element)
{
    const uint32_t shift = shift_of(a->low, a->high);
    const auto locate = [&](float x, uint32_t at, uint32_t *to) {
        const uint64_t key = key_in(*q, x, at);
        *to = (uint32_t)(a->high - key >> shift);
        return key >= a->low && key <= a->high &&
               (q->uses_histogram ? bin_of(q->scale, q->bins_per_unit, x) == a->bin : is_left(*q, x, key));
    };
    if (!find_range(q, locate, reached, &a->sum, element))
        return false;
    a->high -= (uint64_t)*element << shift;
    a->low = max_key(a->low, low_of(a->high, shift));
    return true;
}

// Finds the token at which a sum reaches its end, as a range of one token; false if the sums do not reach the end.
template <typename reached_t> QN_DEVICE bool find_token(search *q, const reached_t &reached, range *a)
{
    uint32_t element;
    if (!find_first_range(*q, reached, a))
        return false;
    while (a->sum.n > 1)
        if (!narrow(q, reached, a, &element))
            return false;
    return true;
}

// The weight of all tokens through the one in which the end is; `all` if the sums do not reach it.
template <typename reached_t> QN_DEVICE uint64_t find_weight(search *q, const reached_t &reached, uint64_t all)
{
    range a;
    return find_token(q, reached, &a) ? weight_through(a.sum) : all;
}

// ---- The filters ----

// The weight of the tokens before the first whose weight, as a float, is less than `least`. A lower logit may have a
// larger weight, by the last bit: then this is less than the sum of all weights that are not smaller.
QN_DEVICE uint64_t find_weight_above(search *q, float least)
{
    uint64_t *row_end = next_reduction(q), *row_sum = next_reduction(q), *row_last = next_reduction(q),
             *row_kept = next_reduction(q);
    uint64_t end = 0, last = ~0ull, sum = 0;
    for_each_logit(q->r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        const float weight = weight_of(q->scale, x);
        const uint64_t key = key_of(x, at);
        if (!is_searched(*q, x, at))
            return;
        if (weight < least) {
            end = max_key(end, key);
        } else {
            last = key < last ? key : last;
            sum += fixed_point_weight(q->scale, weight);
        }
    });
    max_of_row(row_end, end);
    add_to_row(row_sum, sum); // its barriers separate the two maxima
    max_of_row(row_last, ~last);
    row_sync();
    end = load_of_row(row_end);
    if (~load_of_row(row_last) > end)
        return load_of_row(row_sum);
    sum = 0;
    for_each_logit(q->r, cluster_thread(), cluster_threads(), [&](float x, uint32_t at) {
        if (key_of(x, at) > end && is_searched(*q, x, at))
            sum += weight_in(*q, x);
    });
    add_to_row(row_kept, sum);
    row_sync();
    return load_of_row(row_kept);
}

QN_DEVICE uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// A 128-bit integer as a double, rounded to nearest even.
QN_DEVICE double double_of(uint64_t high, uint64_t low)
{
    if (!high)
        return (double)low;
    const int shift = __clzll((long long)high);
    const uint64_t upper = shift ? high << shift | low >> (64 - shift) : high, lost = shift ? low << shift : low;
    return (double)(upper | (lost != 0)) * (double)(1ull << (63 - shift)) * 2;
}

// The exponent of frexpf(x), x > 0.
QN_DEVICE int exponent_of(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return bits >> 23 ? (int)(bits >> 23) - 126 : -117 - __clz((int)bits);
}

QN_DEVICE void apply_top_n_sigma(search *q, const qn_sample_params &p)
{
    const uint64_t least = ~max_row(q, [&](float x) { return ~(uint64_t)ordered(x); });
    const float range = fminf(q->largest - logit_of(least << 32), FLOAT_MAX);
    if (range == 0)
        return;
    const int exponent = (int)p.deviation_bits - exponent_of(range);
    q->left.per_unit = __uint_as_float((uint32_t)((exponent < 127 ? exponent : 127) + 127) << 23);
    const uint64_t n = sum_row(q, [](float) { return (uint64_t)1; });
    const uint64_t sum = sum_row(q, [&](float x) { return deviation(*q, x); });
    const uint64_t squares = sum_row(q, [&](float x) {
        const uint64_t d = deviation(*q, x);
        return d * d;
    });
    const uint64_t low = n * squares, subtracted = sum * sum;
    const double variance = double_of(__umul64hi(n, squares) - __umul64hi(sum, sum) - (low < subtracted), low - subtracted);
    q->left.most_deviation = (double)p.top_n_sigma * sqrt(variance) / (double)n;
}

// The least distance within which the tokens have enough weight is found in ranges of 2^7 distances, and in one of
// these.
QN_DEVICE void apply_typical_p(search *q, const qn_sample_params &p)
{
    enum { SHIFT = 7 };
    const softmax_scale reduced = { q->scale.largest, q->scale.inverse, p.surprisal_unit };
    const auto reduced_weight = [&](float x) { return fixed_point_weight(reduced, weight_of(reduced, x)); };
    const uint64_t sum = sum_row(q, [&](float x) { return reduced_weight(x) * surprisal(*q, x); });
    const uint64_t total = sum_row(q, reduced_weight), all = sum_row(q, [&](float x) { return weight_in(*q, x); });
    const double goal = (double)p.typical_p * (double)all;
    const auto reached = [&](uint32_t, uint64_t weight) { return (double)weight >= goal; };
    sums s = { 0, 0, 0, 0 };
    uint32_t range, rest;
    q->left.mean = (uint32_t)(sum / total);
    const auto locate_range = [&](float x, uint32_t at, uint32_t *to) {
        *to = distance_from_mean(*q, x) >> SHIFT;
        return is_searched(*q, x, at);
    };
    const auto locate_rest = [&](float x, uint32_t at, uint32_t *to) {
        const uint32_t distance = distance_from_mean(*q, x);
        *to = distance & ((1u << SHIFT) - 1);
        return distance >> SHIFT == range && is_searched(*q, x, at);
    };
    if (find_range(q, locate_range, reached, &s, &range) && find_range(q, locate_rest, reached, &s, &rest))
        q->left.distance = range << SHIFT | rest;
    q->scale.largest = logit_of(max_row(q, [&](float x) { return (uint64_t)ordered(x); }) << 32);
}

// The weight of all tokens that top_n_sigma, top_k and typical_p leave.
QN_DEVICE uint64_t find_total(search *q, const qn_sample_params &p)
{
    const uint64_t all = q->r.state->total;
    const auto reached = [&](uint32_t n, uint64_t) { return n >= p.top_k; };
    range last;
    if (q->uses_histogram)
        return p.top_k ? find_weight(q, reached, all) : all;
    if (p.top_n_sigma > 0)
        apply_top_n_sigma(q, p);
    if (p.top_k && find_token(q, reached, &last))
        q->left.low = last.low;
    if (p.typical_p > 0)
        apply_typical_p(q, p);
    return sum_row(q, [&](float x) { return weight_in(*q, x); });
}

// The weight of the tokens that top_p and min_p keep: each keeps the tokens before its end.
QN_DEVICE uint64_t find_kept(search *q, const qn_sample_params &p)
{
    const uint64_t total = find_total(q, p);
    const double goal = (double)p.top_p * (double)total;
    uint64_t kept = total;
    if (p.min_p > 0)
        kept = smaller(kept, find_weight_above(q, p.min_p));
    if ((double)kept >= goal)
        kept = smaller(kept, find_weight(
                                 q, [&](uint32_t, uint64_t weight) { return (double)weight >= goal; }, total));
    return kept;
}

// The weight of the tokens that XTC drops.
QN_DEVICE uint64_t find_dropped(search *q, const qn_sample_params &p, uint64_t kept)
{
    const double bound = (double)p.xtc_threshold * (double)kept / (double)q->scale.unit;
    const float rounded = (float)bound,
                least = (double)rounded < bound ? __uint_as_float(__float_as_uint(rounded) + 1) : rounded;
    const uint64_t sum = smaller(kept, find_weight_above(q, least));
    range last;
    return sum && find_token(
                      q, [&](uint32_t, uint64_t weight) { return weight >= sum; }, &last)
               ? last.sum.weight_before
               : 0;
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
    const uint64_t best = r.state->largest;
    search q = { r,
                 scale_of(r, best),
                 p.bins_per_unit,
                 (uint32_t)(32 - __clz((int)(r.n - 1))),
                 !p.selects,
                 { QN_INFINITY, 0, 0, 0, ALL },
                 logit_of(best),
                 0,
                 0,
                 weights,
                 counts,
                 last_tokens };
    const uint64_t kept = find_kept(&q, p), dropped = p.has_xtc ? find_dropped(&q, p, kept) : 0;
    const uint64_t point = dropped + __umul64hi(p.random, kept - dropped);
    const auto reached = [&](uint32_t, uint64_t weight) { return weight > point; };
    range drawn;
    uint32_t element;
    if (!find_first_range(q, reached, &drawn))
        return;
    do {
        if (!narrow(&q, reached, &drawn, &element))
            return;
    } while (drawn.sum.n > 1);
    if (threadIdx.x == 0 && counts[element] == 1) {
        const uint32_t token = last_tokens[element];
        store_token(r, best, key_of(r.logits[token], token));
    }
}
