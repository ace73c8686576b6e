// Sampling: mask, bias and penalties, the largest logit of each slice, a histogram of the logits' distance to the
// maximum, and a sort of the few candidates by the last block of a row. sample.h describes the method; select.cu
// samples from many.
#include "cuda/kernels/sample/sample.cuh"

// ---- Argmax ----

// Each block changes only the logits that it reads itself, so a block barrier is enough.
QN_DEVICE void apply_entries(const row &r, const qn_sample_params &p)
{
    for (uint32_t i = threadIdx.x; i < p.n_entries; i += THREADS) {
        const qn_sample_entry entry = p.entries[i];
        const uint32_t vector = ((uint32_t)entry.token + r.shift) / VECTOR;
        if (vector / THREADS % gridDim.x != blockIdx.x)
            continue;
        const float x = r.logits[entry.token];
        if (p.raw)
            p.raw[i] = x;
        r.logits[entry.token] = qn_sample_adjust(x, &entry, &p.penalties);
    }
    if (p.n_entries)
        __syncthreads();
}

QN_DEVICE uint64_t apply_mask(const row &r, const uint32_t *allowed)
{
    uint64_t best = 0;
    for_each_logit(r, row_thread(), row_threads(), [&](float x, uint32_t at) {
        if (!(allowed[at / 32] >> at % 32 & 1))
            r.logits[at] = x = -QN_INFINITY;
        best = max_key(best, key_of(x, at));
    });
    return best;
}

// The state of a row for the kernels that follow.
QN_DEVICE void prepare_state(const row &r, const qn_sample_params &p)
{
    if (row_thread() == 0)
        r.state->n_candidates = 0;
    for (uint32_t i = row_thread(); p.kind == QN_SAMPLE_HISTOGRAM && i < BINS; i += row_threads()) {
        r.state->weights[i] = 0;
        r.state->counts[i] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) qn_sample_argmax(const __grid_constant__ qn_sample_args a)
{
    __shared__ qn_sample_params p;
    qn_pdl_trigger();
    load_params(&p, a);
    qn_pdl_wait();
    __syncthreads();
    const row r = row_of(a);
    apply_entries(r, p);
    uint64_t best = p.allowed ? apply_mask(r, p.allowed) : max_key_of_row(r);
    store_slices(r.state->best, best, p.kind == QN_SAMPLE_TOP_K ? slices_per_block() : 1);
    prepare_state(r, p);
    if (p.kind > QN_SAMPLE_ARGMAX || !is_last(&r.state->tickets[0]))
        return;
    best = block_max_key(load_slice(r, 1));
    if (threadIdx.x)
        return;
    if (p.kind == QN_SAMPLE_ARGMAX && is_finite(logit_of(best)))
        store_token(r, best, best);
    else
        store_no_token(r, best);
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

QN_DEVICE void zero_sums(qn_sample_state *s)
{
    if (threadIdx.x < QN_SAMPLE_REDUCTIONS)
        s->reductions[threadIdx.x] = 0;
    uint64_t *words = (uint64_t *)s->passes;
    for (uint32_t i = threadIdx.x; i < sizeof s->passes / sizeof *words; i += THREADS)
        words[i] = 0;
}

// Selects the bins whose tokens qn_sample_draw needs in order. cutoff_bin is the bin in which the filters (top_k, or
// top_p and min_p) end. If the bins up to it hold few tokens, all of them are candidates. Otherwise candidates are the
// tokens of cutoff_bin, to find the exact end of the kept tokens, and of bins low to high: the random number selects a
// token in low for the smallest possible kept weight (without cutoff_bin) and in high for the largest (with all of it).
// Where these are too many, or min_p may end in a bin before, or the row has filters that are no bins, it is left to
// qn_sample_select.
QN_DEVICE void choose_candidates(const row &r, uint64_t largest, uint32_t *counts, uint64_t *weights)
{
    __shared__ uint32_t cutoff_bin, low, high;
    const qn_sample_params p = *r.params;
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
    qn_sample_state *s = r.state;
    const bool few = counts[cutoff_bin] <= QN_SAMPLE_CANDIDATES, all_bins_kept = !p.top_k && p.last_bin == BINS - 1;
    const uint32_t first = few ? 0 : low, last = few ? cutoff_bin : high, n_before = first ? counts[first - 1] : 0;
    const uint64_t before = first ? weights[first - 1] : 0;
    const uint32_t n_cut = last < cutoff_bin ? counts[cutoff_bin] - counts[cutoff_bin - 1] : 0,
                   n_first = counts[last] - n_before;
    const bool is_known = few || (all_bins_kept && n_first + n_cut <= QN_SAMPLE_CANDIDATES);
    const bool select = p.selects ? total > 0 : !is_known;
    if (select)
        zero_sums(s);
    if (threadIdx.x)
        return;
    s->first = first;
    s->last = last;
    s->cutoff_bin = cutoff_bin;
    s->n_first = n_first;
    s->select = select;
    s->largest = largest;
    s->total = total;
    s->weight_before = before;
    s->weight_gap = kept_before_cutoff - weights[last];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    qn_sample_histogram(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t weights[BINS];
    __shared__ uint32_t counts[BINS];
    const row r = row_of(a);
    qn_pdl_trigger();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        weights[i] = 0;
        counts[i] = 0;
    }
    __syncthreads();
    qn_pdl_wait();
    if (r.params->kind != QN_SAMPLE_HISTOGRAM)
        return;
    const uint64_t largest = block_max_key(load_slice(r, 1));
    const softmax_scale s = scale_of(r, largest);
    const float bins_per_unit = r.params->bins_per_unit;
    for_each_logit_of_warp(r, row_thread(), row_threads(), [&](float x, uint32_t) {
        const uint32_t bin = bin_of(s, bins_per_unit, x);
        const uint64_t weight = bin < BINS ? fixed_point_weight(s, weight_of(s, x)) : 0;
        const bool alone = sum_by_warp(counts, weights, bin, bin < BINS, weight);
        if (alone)
            add_to_bin(counts, weights, bin, 1, weight);
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (counts[i]) {
            atomicAdd(&r.state->counts[i], counts[i]);
            atomicAdd((unsigned long long *)&r.state->weights[i], (unsigned long long)weights[i]);
        }
    if (!is_last(&r.state->tickets[1]))
        return;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
        counts[i] = __ldcg(&r.state->counts[i]);
        weights[i] = __ldcg((const unsigned long long *)&r.state->weights[i]);
    }
    __syncthreads();
    choose_candidates(r, largest, counts, weights);
}

// ---- Draw ----

// Sorted candidates, and the weights of the other tokens.
struct candidates {
    const uint64_t *keys; // [n], descending
    uint32_t n, n_first;
    uint64_t total, weight_before, weight_gap; // as in qn_sample_state
};

// Applies top_k, top_p and min_p to the candidates and selects the token. Each thread processes a contiguous range.
QN_DEVICE void draw(const row &r, const softmax_scale &s, const candidates &c, uint64_t best)
{
    __shared__ uint32_t end;
    __shared__ uint64_t kept;
    const qn_sample_params p = *r.params;
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
            store_token(r, best, c.keys[i]);
        sum += weight;
    }
}

// All logits that may be sampled, to the row's candidates.
QN_DEVICE void collect_candidates(const row &r, const softmax_scale &s, bool is_top_k, uint64_t threshold)
{
    const float bins_per_unit = r.params->bins_per_unit;
    const uint32_t low = r.state->first, high = r.state->last, cutoff_bin = r.state->cutoff_bin;
    for_each_logit(r, row_thread(), row_threads(), [&](float x, uint32_t at) {
        const uint64_t key = key_of(x, at);
        if (is_top_k && key < threshold)
            return;
        const uint32_t bin = bin_of(s, bins_per_unit, x);
        if (bin < BINS && (is_top_k || (bin >= low && bin <= high) || bin == cutoff_bin))
            add_candidate(r, key);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) qn_sample_draw(const __grid_constant__ qn_sample_args a)
{
    __shared__ uint64_t keys[QN_SAMPLE_CANDIDATES];
    const row r = row_of(a);
    qn_pdl_trigger();
    qn_pdl_wait();
    const uint32_t kind = r.params->kind;
    if (kind <= QN_SAMPLE_ARGMAX || (kind == QN_SAMPLE_HISTOGRAM && r.state->select))
        return;
    const bool is_top_k = kind == QN_SAMPLE_TOP_K;
    const uint32_t slices = is_top_k ? slices_per_block() : 1;
    const uint64_t own = load_slice(r, slices);
    keys[threadIdx.x] = own;
    const uint64_t best = block_max_key(own); // its barrier also makes keys visible
    const uint64_t threshold = is_top_k ? kth_slice(keys, own, gridDim.x * slices, r.params->top_k) : 0;
    const softmax_scale s = scale_of(r, best);
    collect_candidates(r, s, is_top_k, threshold);
    if (!is_last(&r.state->tickets[2]))
        return;
    const qn_sample_state *state = r.state;
    if (__ldcg(&state->n_candidates) == 0 || !is_finite(logit_of(best))) {
        if (threadIdx.x == 0)
            store_no_token(r, best);
        return;
    }
    const uint32_t n = load_sorted(keys, r, threshold, best, r.params->top_k);
    const candidates c = { keys,
                           n,
                           is_top_k ? n : state->n_first,
                           state->total,
                           is_top_k ? 0 : state->weight_before,
                           is_top_k ? 0 : state->weight_gap };
    draw(r, s, c, best);
}
