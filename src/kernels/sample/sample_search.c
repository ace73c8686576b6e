/* Weighted selection. A range of logits that holds the wanted token is narrowed by sums above thresholds around that
 * token, which are estimated from a sample of the range. Each step copies the range's tokens, so the next one reads
 * fewer. Equal logits have equal weights, so among them the wanted token is found by counting. */
#include "kernels/sample/sample_search.h"

#include <math.h>
#include <string.h>

enum { THRESHOLDS = QN_SAMPLE_THRESHOLDS, SORTED = QN_SAMPLE_SORTED, MAX_SAMPLE = 256, TOKENS_PER_SAMPLE = 16 };

/* ---- A sample of a row ---- */

struct sample {
    size_t n;
    float logits[MAX_SAMPLE]; /* descending */
    double until[MAX_SAMPLE]; /* estimated sum of the row's weights up to and including each sampled token */
    double largest;           /* weight of the row's largest token, counted before all others; 0: unknown */
};

static void sort_descending(float *x, size_t n)
{
    static const size_t gaps[] = { 57, 23, 10, 4, 1 };
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (size_t i = gaps[g]; i < n; i++) {
            const float moved = x[i];
            size_t at = i;
            for (; at >= gaps[g] && x[at - gaps[g]] < moved; at -= gaps[g])
                x[at] = x[at - gaps[g]];
            x[at] = moved;
        }
}

static void weigh(const qn_sample_row *row, const float *logits, size_t n, uint64_t *weights)
{
    if (row->scale)
        row->kernels->weigh(row->scale, logits, n, weights);
    for (size_t i = 0; !row->scale && i < n; i++)
        weights[i] = 1;
}

/* Takes one token of each stride, at a varying place, so that a period in the row does no harm. */
static void take_sample(const qn_sample_row *row, const float *logits, size_t n, bool with_largest, struct sample *s)
{
    uint64_t weights[MAX_SAMPLE];
    const size_t most = n / TOKENS_PER_SAMPLE;
    s->n = most < 1 ? 1 : most > MAX_SAMPLE ? MAX_SAMPLE : most;
    const size_t stride = n / s->n;
    uint32_t random = 1;
    for (size_t i = 0; i < s->n; i++) {
        random = random * 1664525 + 1013904223;
        s->logits[i] = logits[i * stride + (size_t)((uint64_t)random * stride >> 32)];
    }
    sort_descending(s->logits, s->n);
    weigh(row, s->logits, s->n, weights);
    s->largest = with_largest && row->scale ? (double)row->scale->unit : 0;
    double sum = s->largest;
    for (size_t i = 0; i < s->n; i++)
        s->until[i] = sum += (double)weights[i] * (double)stride;
}

static float below(float logit)
{
    return nextafterf(logit, -INFINITY);
}

/* at: the sampled token at which the sum reaches a fraction of the total. before, after: tokens that probably come
 * before and after the row's token at that fraction. */
struct guess {
    float before, at, after;
};

static struct guess guess_at(const struct sample *s, double fraction)
{
    const size_t spread = 1 + s->n / TOKENS_PER_SAMPLE;
    const double wanted = fraction * s->until[s->n - 1];
    size_t i = 0;
    while (i + 1 < s->n && s->until[i] < wanted)
        i++;
    const bool is_above = wanted <= s->largest;
    return (struct guess){ .before = i >= spread && !is_above ? s->logits[i - spread] : INFINITY,
                           .at = s->logits[i],
                           .after = i + spread < s->n ? s->logits[i + spread] : -INFINITY };
}

/* ---- Bins ---- */

static qn_sample_bins sum_bins(const qn_sample_row *row, const float *logits, size_t n, const float *thresholds)
{
    qn_sample_bins bins;
    memcpy(bins.thresholds, thresholds, sizeof bins.thresholds);
    sort_descending(bins.thresholds, THRESHOLDS);
    bins.total = row->scale ? row->kernels->sum_above(row->scale, logits, n, bins.thresholds, bins.above)
                            : row->kernels->count_above(logits, n, bins.thresholds, bins.above);
    return bins;
}

/* Sets thresholds around one token. The bin of tokens equal to the guess holds no others, so each of the other bins has
 * fewer tokens than the range. */
static void thresholds_around(const struct guess *guess, float thresholds[THRESHOLDS])
{
    thresholds[0] = guess->before;
    thresholds[1] = guess->at;
    thresholds[2] = below(guess->at);
    thresholds[3] = guess->after;
}

/* Sets thresholds that divide the range of the keys evenly, whatever the tokens are. */
static void thresholds_between(const qn_sample_range *range, float thresholds[THRESHOLDS])
{
    const uint64_t first = qn_sample_key(range->above, 0) >> 32, last = qn_sample_key(range->up_to, 0) >> 32;
    for (uint64_t i = 0; i < THRESHOLDS; i++)
        thresholds[i] = qn_sample_key_logit((first + (last - first) * (i + 1) / (THRESHOLDS + 1)) << 32);
}

qn_sample_bins qn_sample_bins_around(const qn_sample_row *row, const double *fractions, size_t n_fractions)
{
    struct sample sample;
    float thresholds[THRESHOLDS] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    if (row->n <= SORTED)
        return sum_bins(row, row->logits, row->n, thresholds);
    take_sample(row, row->logits, row->n, true, &sample);
    struct guess guess = guess_at(&sample, fractions[0]);
    thresholds_around(&guess, thresholds);
    if (n_fractions > 1) {
        const struct guess second = guess_at(&sample, fractions[1]);
        thresholds[1] = guess.after;
        thresholds[2] = second.before;
        thresholds[3] = second.after;
    }
    return sum_bins(row, row->logits, row->n, thresholds);
}

/* Returns the bin in which the sum reaches `target`. The bins' sums are those of the range's tokens. */
static qn_sample_range bin_of(const qn_sample_bins *bins, const qn_sample_range *range, uint64_t target)
{
    float up_to = range->up_to;
    uint64_t before = 0;
    for (int i = 0; i < THRESHOLDS; i++) {
        if (range->before + bins->above[i] >= target)
            return (qn_sample_range){ bins->thresholds[i], up_to, range->before + before, bins->above[i] - before };
        up_to = bins->thresholds[i];
        before = bins->above[i];
    }
    return (qn_sample_range){ range->above, up_to, range->before + before, range->sum - before };
}

qn_sample_range qn_sample_bin(const qn_sample_bins *bins, uint64_t target)
{
    const qn_sample_range all = { -INFINITY, INFINITY, 0, bins->total };
    return bin_of(bins, &all, target);
}

/* ---- The last steps ---- */

/* Finds the token among equal tokens of a range, in ascending order of their positions. positions NULL: logits is the
 * row. */
static qn_sample_found find_equal(const qn_sample_row *row, const float *logits, const uint32_t *positions, size_t n,
                                  const qn_sample_range *range, uint64_t target)
{
    enum { BLOCK = 1024 };
    qn_sample_found found = { .logit = range->up_to };
    weigh(row, &range->up_to, 1, &found.weight);
    size_t rank = (size_t)((target - range->before - 1) / found.weight), first = 0;
    found.before = range->before + rank * found.weight;
    for (size_t end; first < n; first = end) {
        uint32_t n_equal = 0;
        end = n - first < BLOCK ? n : first + BLOCK;
        for (size_t i = first; i < end; i++)
            n_equal += logits[i] == range->up_to;
        if (n_equal > rank)
            break;
        rank -= n_equal;
    }
    while (logits[first] != range->up_to || rank-- > 0)
        first++;
    found.position = positions ? positions[first] : first;
    return found;
}

/* Finds the token among the n tokens of the list, by sorting. */
static qn_sample_found find_sorted(const qn_sample_row *row, size_t n, const qn_sample_range *range, uint64_t target)
{
    uint64_t keys[SORTED], weights[SORTED], before = range->before;
    float sorted[SORTED];
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = qn_sample_key(row->list[i], row->positions[i]);
        size_t at = i;
        for (; at > 0 && keys[at - 1] < key; at--)
            keys[at] = keys[at - 1];
        keys[at] = key;
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = qn_sample_key_logit(keys[i]);
    weigh(row, sorted, n, weights);
    size_t at = 0;
    while (at + 1 < n && before + weights[at] < target)
        before += weights[at++];
    return (qn_sample_found){ qn_sample_key_index(keys[at]), sorted[at], before, weights[at] };
}

/* ---- The search ---- */

/* Thresholds from a sample usually at least halve the number of tokens. If they do not, the range of the keys is
 * divided, so the number of steps is bounded, whatever the logits are. */
qn_sample_found qn_sample_find(const qn_sample_row *row, qn_sample_range range, uint64_t target)
{
    const float *logits = row->logits;
    const uint32_t *positions = NULL;
    size_t n = row->n;
    for (;;) {
        float thresholds[THRESHOLDS];
        const size_t n_before = n;
        if (n > SORTED && below(range.up_to) == range.above)
            return find_equal(row, logits, positions, n, &range, target);
        n = row->kernels->select(logits, positions, n, range.above, range.up_to, row->list, row->positions);
        if (n <= SORTED)
            return find_sorted(row, n, &range, target);
        if (positions && n > n_before / 2) {
            thresholds_between(&range, thresholds);
        } else {
            struct sample sample;
            take_sample(row, row->list, n, false, &sample);
            const struct guess guess = guess_at(&sample, (double)(target - range.before) / (double)range.sum);
            thresholds_around(&guess, thresholds);
        }
        logits = row->list;
        positions = row->positions;
        const qn_sample_bins bins = sum_bins(row, logits, n, thresholds);
        range = bin_of(&bins, &range, target);
    }
}
