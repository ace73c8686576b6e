// Choosing a token: the best ones by maxima, a histogram of how much less likely the others are, and the few that matter put in
// order by the last block to come.
#include "kernels/exp_cuda.h"
#include "kernels/sample/sample_cuda.h"

enum {
    THREADS = QN_SAMPLE_THREADS,
    WARPS = THREADS / QN_WARP,
    BINS = QN_SAMPLE_BINS,
    EACH = 8 // logits that a thread asks for at once
};

// ---- Keys and weights: as sample.h has them ----

QN_DEVICE uint64_t key_of(float x, uint32_t index)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); // -0 is 0
    const uint32_t ordered = x != x ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)ordered << 32 | (0xffffffffu - index);
}

QN_DEVICE float logit_of(uint64_t key)
{
    const uint32_t ordered = (uint32_t)(key >> 32);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

QN_DEVICE uint32_t index_of(uint64_t key)
{
    return 0xffffffffu - (uint32_t)key;
}

// qn_exp of kernels/canon.h.
QN_DEVICE float exponential(float x)
{
    float n;
    const float y = qn_exp_series(fminf(fmaxf(x, QN_EXP_MIN), QN_EXP_MAX), &n);
    return __uint_as_float(__float_as_uint(y) + ((uint32_t)(int)n << 23));
}

struct scale {
    float largest, inverse, unit, bins;
};

QN_DEVICE scale scale_of(const qn_sample_args &a, uint64_t best)
{
    return { logit_of(best), a.params->inverse, a.params->weight_unit, a.params->bins_per_unit };
}

QN_DEVICE float weight_of(const scale &s, float logit)
{
    return exponential((logit - s.largest) * s.inverse);
}

QN_DEVICE uint64_t whole(const scale &s, float weight)
{
    return (uint64_t)(weight * s.unit);
}

// BINS for what weighs nothing. Where the best is no number, neither is the difference, and nothing has a bin.
QN_DEVICE uint32_t bin_of(const scale &s, float logit)
{
    const float place = (s.largest - logit) * s.inverse * s.bins;
    return place < (float)BINS ? (uint32_t)place : BINS;
}

// ---- Blocks ----

// Whether this block is the last of the grid to come here; what the others have written is then visible. Leaves the ticket 0.
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

// The sum of all threads' values before this one's; *all is the sum of all.
template <typename T> QN_DEVICE T sum_before(T mine, T *all)
{
    __shared__ T of_warps[WARPS];
    const uint32_t lane = threadIdx.x % QN_WARP, warp = threadIdx.x / QN_WARP;
    T sum = mine;
#pragma unroll
    for (int distance = 1; distance < QN_WARP; distance *= 2) {
        const T other = __shfl_up_sync(QN_ALL_LANES, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    __syncthreads(); // of the last time
    if (lane == QN_WARP - 1)
        of_warps[warp] = sum;
    __syncthreads();
    T before = sum - mine, total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? of_warps[i] : 0;
        total += of_warps[i];
    }
    *all = total;
    return before;
}

// ---- A block's share of the logits ----

QN_DEVICE uint32_t first_of_mine()
{
    return blockIdx.x * THREADS + threadIdx.x;
}

QN_DEVICE uint32_t turn()
{
    return gridDim.x * THREADS;
}

QN_DEVICE void load_mine(float x[EACH], const qn_sample_args &a, uint32_t first)
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t at = first + i * turn();
        x[i] = at < a.n ? a.logits[at] : -QN_INFINITY;
    }
}

// ---- The best ----

QN_DEVICE uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

QN_DEVICE uint64_t largest_of_warp(uint64_t key)
{
#pragma unroll
    for (int distance = QN_WARP / 2; distance > 0; distance /= 2)
        key = larger(key, __shfl_xor_sync(QN_ALL_LANES, key, distance));
    return key;
}

// The largest of all threads' keys, in every thread.
QN_DEVICE uint64_t largest_of_block(uint64_t key)
{
    __shared__ uint64_t of_warps[WARPS];
    key = largest_of_warp(key);
    if (threadIdx.x % QN_WARP == 0)
        of_warps[threadIdx.x / QN_WARP] = key;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        key = larger(key, of_warps[i]);
    return key;
}

// The best of a block, 0 for threads beyond the blocks.
QN_DEVICE uint64_t best_of_a_block(const qn_sample_args &a)
{
    return threadIdx.x < gridDim.x ? __ldcg((const unsigned long long *)&a.state->best[threadIdx.x]) : 0;
}

QN_DEVICE bool is_finite(float x)
{
    return x - x == 0; // infinities and NaN have no difference
}

// A block has its share of the logits to itself, so what it changes there it can read after.
QN_DEVICE void penalise(const qn_sample_args &a)
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

extern "C" __global__ void __launch_bounds__(THREADS) qn_sample_best(const __grid_constant__ qn_sample_args a)
{
    qn_let_next_begin();
    qn_wait_for_previous();
    penalise(a);
    uint64_t best = 0;
    for (uint32_t first = first_of_mine(); first < a.n; first += EACH * turn()) {
        float x[EACH];
        load_mine(x, a, first);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t at = first + i * turn();
            best = at < a.n ? larger(best, key_of(x[i], at)) : best;
        }
    }
    best = largest_of_block(best);
    if (threadIdx.x == 0)
        a.state->best[blockIdx.x] = best;
    if (a.way != QN_SAMPLE_BEST) {
        for (uint32_t i = first_of_mine(); a.way == QN_SAMPLE_OF_MANY && i < BINS; i += turn()) {
            a.state->weights[i] = 0;
            a.state->counts[i] = 0;
        }
        if (first_of_mine() == 0)
            a.state->n_candidates = 0;
        return;
    }
    if (!is_last(&a.state->tickets[0]))
        return;
    best = largest_of_block(best_of_a_block(a));
    if (threadIdx.x == 0)
        *a.result = { best, is_finite(logit_of(best)) ? (int32_t)index_of(best) : -1, 0 };
}

// ---- The survey ----

// The bin whose tokens a sum of weights falls among: the first up to which there is more.
QN_DEVICE void find_bin(uint32_t *bin, const uint64_t *up_to, uint64_t sum)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (up_to[i] > sum)
            atomicMin(bin, i);
}

// Counts and weights become those of all bins up to each.
QN_DEVICE void add_up(uint32_t *counts, uint64_t *weights)
{
    enum { MINE = BINS / THREADS };
    uint32_t n[MINE], n_mine = 0, n_all;
    uint64_t w[MINE], w_mine = 0, w_all;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        n_mine += n[i] = counts[threadIdx.x * MINE + i];
        w_mine += w[i] = weights[threadIdx.x * MINE + i];
    }
    uint32_t n_before = sum_before(n_mine, &n_all);
    uint64_t w_before = sum_before(w_mine, &w_all);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        counts[threadIdx.x * MINE + i] = n_before += n[i];
        weights[threadIdx.x * MINE + i] = w_before += w[i];
    }
    __syncthreads();
}

// Which tokens can be the last that is kept, and which the one that is drawn: all that are kept, where they are few; else those
// of the bin in which the kept end, and of those in which a draw from as little as is kept before it, or as much as with it,
// ends.
QN_DEVICE void decide(const qn_sample_args &a, uint32_t *counts, uint64_t *weights)
{
    __shared__ uint32_t cut, low, high;
    const qn_sample_params p = *a.params;
    if (threadIdx.x == 0)
        cut = low = high = BINS - 1;
    add_up(counts, weights);
    const uint64_t total = weights[BINS - 1];
    const double goal = (double)p.top_p * (double)total;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (p.top_k ? counts[i] >= p.top_k : i == p.last_bin || (double)weights[i] >= goal)
            atomicMin(&cut, i);
    __syncthreads();
    const uint64_t least = cut ? weights[cut - 1] : 0;
    find_bin(&low, weights, __umul64hi(p.random, least));
    find_bin(&high, weights, __umul64hi(p.random, weights[cut]));
    __syncthreads();
    if (threadIdx.x)
        return;
    qn_sample_state *s = a.state;
    const bool few = counts[cut] <= QN_SAMPLE_CANDIDATES, all_kept = !p.top_k && p.last_bin == BINS - 1;
    const uint32_t first = few ? 0 : low, last = few ? cut : high, n_before = first ? counts[first - 1] : 0;
    const uint64_t before = first ? weights[first - 1] : 0;
    const uint32_t n_cut = last < cut ? counts[cut] - counts[cut - 1] : 0, n_first = counts[last] - n_before;
    const bool known = few || (all_kept && n_first + n_cut <= QN_SAMPLE_CANDIDATES);
    s->first = known ? first : BINS; // no bin
    s->last = known ? last : 0;
    s->cut = known ? cut : BINS + 1;
    s->n_first = n_first;
    s->total = total;
    s->before_first = before;
    s->between = least - weights[last];
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_sample_survey(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t weights[BINS];
    __shared__ uint32_t counts[BINS];
    qn_let_next_begin();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        weights[i] = 0;
        counts[i] = 0;
    }
    __syncthreads();
    qn_wait_for_previous();
    const scale s = scale_of(a, largest_of_block(best_of_a_block(a)));
    const bool weigh = !a.params->top_k;
    for (uint32_t first = first_of_mine(); first < a.n; first += EACH * turn()) {
        float x[EACH];
        load_mine(x, a, first);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t bin = bin_of(s, x[i]);
            if (bin == BINS)
                continue;
            atomicAdd(&counts[bin], 1);
            if (weigh)
                atomicAdd((unsigned long long *)&weights[bin], (unsigned long long)whole(s, weight_of(s, x[i])));
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (counts[i]) {
            atomicAdd(&a.state->counts[i], counts[i]);
            if (weigh)
                atomicAdd((unsigned long long *)&a.state->weights[i], (unsigned long long)weights[i]);
        }
    if (!is_last(&a.state->tickets[1]))
        return;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        counts[i] = __ldcg(&a.state->counts[i]);
        weights[i] = weigh ? __ldcg((const unsigned long long *)&a.state->weights[i]) : 0;
    }
    __syncthreads();
    decide(a, counts, weights);
}

// ---- The draw ----

// The k-th largest of the blocks' best, at most of so many. All keys differ.
QN_DEVICE uint64_t threshold_of(const uint64_t *of_blocks, uint64_t mine, uint32_t k)
{
    __shared__ uint64_t threshold;
    uint32_t larger_ones = 0;
    for (uint32_t i = 0; i < gridDim.x; i++)
        larger_ones += of_blocks[i] > mine;
    if (threadIdx.x < gridDim.x && larger_ones == k - 1)
        threshold = mine;
    __syncthreads();
    return threshold;
}

// Keys fall. Of few, each is put where there are as many larger ones before it.
template <int few> QN_DEVICE void sort_few(uint64_t *keys, uint32_t n)
{
    enum { MINE = few / THREADS };
    uint64_t mine[MINE];
    uint32_t place[MINE];
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        mine[i] = i * THREADS + threadIdx.x < n ? keys[i * THREADS + threadIdx.x] : 0;
        place[i] = 0;
    }
#pragma unroll 4
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t key = keys[j];
#pragma unroll
        for (int i = 0; i < MINE; i++)
            place[i] += key > mine[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; i++)
        if (i * THREADS + threadIdx.x < n)
            keys[place[i]] = mine[i];
    __syncthreads();
}

// Of many, n a power of two, by Batcher's bitonic network.
QN_DEVICE void sort_many(uint64_t *keys, uint32_t n)
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

// Candidates in order, and what is known of tokens that are none.
struct candidates {
    const uint64_t *keys;
    uint32_t n, n_first;
    uint64_t total, before_first, between; // as of qn_sample_state
};

// A thread has some that follow one another.
QN_DEVICE void draw(const qn_sample_args &a, const scale &s, const candidates &c, uint64_t best)
{
    __shared__ uint32_t end;
    __shared__ uint64_t kept;
    const qn_sample_params p = *a.params;
    const uint32_t m = p.top_k && p.top_k < c.n ? p.top_k : c.n, each = (m + THREADS - 1) / THREADS;
    const uint32_t begin = min(m, threadIdx.x * each), stop = min(m, begin + each);
    uint64_t mine = 0, all;
    for (uint32_t i = begin; i < stop; i++)
        mine += whole(s, weight_of(s, logit_of(c.keys[i])));
    if (threadIdx.x == 0)
        end = m;
    const uint64_t first_sum = sum_before(mine, &all); // and the end is visible
    const double goal = (double)p.top_p * (double)(p.top_k ? all : c.total);
    // What is before candidate i, of all tokens, where `sum` is what is before it of the candidates.
    const auto before = [&](uint32_t i, uint64_t sum) { return sum + c.before_first + (i < c.n_first ? 0 : c.between); };

    // The first that is not kept: not the best, and where kept tokens end, which is in the last of the bins.
    uint64_t sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        const float weight = weight_of(s, logit_of(c.keys[i]));
        const bool in_last = c.n_first == c.n || i >= c.n_first;
        if (in_last && before(i, sum) && (weight < p.min_p || (double)before(i, sum) >= goal)) {
            atomicMin(&end, i);
            break;
        }
        sum += whole(s, weight);
    }
    __syncthreads();
    sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        if (i == end)
            kept = before(i, sum);
        sum += whole(s, weight_of(s, logit_of(c.keys[i])));
    }
    if (threadIdx.x == 0 && end == m)
        kept = before(m - 1, all);
    __syncthreads();

    const uint64_t point = __umul64hi(p.random, kept);
    sum = first_sum;
    for (uint32_t i = begin; i < stop; i++) {
        const uint64_t from = before(i, sum), weight = whole(s, weight_of(s, logit_of(c.keys[i])));
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
    const bool of_top = a.way == QN_SAMPLE_OF_TOP;
    qn_let_next_begin();
    qn_wait_for_previous();
    const uint64_t of_a_block = best_of_a_block(a);
    keys[threadIdx.x] = of_a_block;
    const uint64_t best = largest_of_block(of_a_block); // and all keys are visible
    const uint64_t threshold = of_top ? threshold_of(keys, of_a_block, a.params->top_k) : 0;
    const scale s = scale_of(a, best);
    const uint32_t low = a.state->first, high = a.state->last, cut = a.state->cut;
    for (uint32_t first = first_of_mine(); first < a.n; first += EACH * turn()) {
        float x[EACH];
        load_mine(x, a, first);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t at = first + i * turn(), bin = bin_of(s, x[i]);
            const uint64_t key = key_of(x[i], at);
            if (bin < BINS && (of_top ? key >= threshold : (bin >= low && bin <= high) || bin == cut))
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
    enum { FEW = THREADS < 512 ? 512 : THREADS }; // with more, the network is faster
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = threadIdx.x; i < size; i += THREADS)
        keys[i] = i < n ? __ldcg((const unsigned long long *)&a.state->candidates[i]) : 0;
    __syncthreads();
    if (n <= FEW)
        sort_few<FEW>(keys, n);
    else
        sort_many(keys, size);
    const qn_sample_state *state = a.state;
    const candidates c = {
        keys, n, of_top ? n : state->n_first, state->total, of_top ? 0 : state->before_first, of_top ? 0 : state->between
    };
    draw(a, s, c, best);
}
