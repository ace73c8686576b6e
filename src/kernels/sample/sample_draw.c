/* Filters and the draw. Each filter keeps a range of the tokens in descending order, found by sums of integer weights,
 * so the result does not depend on the order of summation. */
#include "kernels/sample/sample_draw.h"

#include "base/real.h"
#include "base/splitmix.h"
#include "kernels/canon.h"

#include <float.h>
#include <math.h>

/* ---- The k most likely tokens, for few ---- */

/* Returns whether a comes before b: the more likely token first; if logits are equal, the lower id, whose position is
 * lower. */
static bool likelier(qn_sample_candidate a, qn_sample_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.position < b.position);
}

/* Restores the heap property of [n] entries after entry `at` changed. The least likely token is at the root. */
static void sift_down(qn_sample_candidate *heap, size_t n, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && !likelier(heap[child + 1], heap[child]))
            child++;
        if (likelier(heap[child], heap[at]))
            return;
        const qn_sample_candidate moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

/* Logits scanned per maximum: few enough that a single large logit causes few scalar comparisons. */
enum { SCAN_BLOCK = 64 };

/* Selects the k most likely tokens. They form a heap with the least likely at the root, so most tokens need one
 * comparison. */
void qn_sample_select_few(const qn_sample_kernels *kernels, const float *logits, size_t n, qn_sample_candidate *top,
                          size_t k)
{
    for (size_t i = 0; i < k; i++)
        top[i] = (qn_sample_candidate){ logits[i], (int32_t)i };
    if (k == n)
        return;
    for (size_t at = k / 2; at-- > 0;)
        sift_down(top, k, at);
    for (size_t first = k, end; first < n; first = end) {
        end = n - first < SCAN_BLOCK ? n : first + SCAN_BLOCK;
        if (kernels->maximum(logits + first, end - first) <= top[0].logit)
            continue;
        for (size_t i = first; i < end; i++) {
            if (logits[i] <= top[0].logit)
                continue;
            top[0] = (qn_sample_candidate){ logits[i], (int32_t)i };
            sift_down(top, k, 0);
        }
    }
}

/* ---- Filters ---- */

static qn_sample_row row_of(const qn_sample_draw *d, const qn_sample_scale *scale)
{
    return (qn_sample_row){ d->kernels, scale, d->left.logits, d->left.n, d->list, d->positions };
}

/* Keeps the tokens with above < logit <= up_to. */
static void keep_between(qn_sample_draw *d, float above, float up_to)
{
    const size_t n = d->kernels->select(d->left.logits, d->left.ids, d->left.n, above, up_to, d->logits, d->ids);
    d->left = (qn_sample_tokens){ d->logits, d->ids, n };
}

static void keep_above(qn_sample_draw *d, float bound)
{
    keep_between(d, bound, INFINITY);
}

/* Keeps the k most likely tokens. Sorts the heap by positions. */
static void keep_few(qn_sample_draw *d, size_t k)
{
    qn_sample_select_few(d->kernels, d->left.logits, d->left.n, d->heap, k);
    for (size_t i = 1; i < k; i++) {
        const qn_sample_candidate moved = d->heap[i];
        size_t at = i;
        for (; at > 0 && d->heap[at - 1].position > moved.position; at--)
            d->heap[at] = d->heap[at - 1];
        d->heap[at] = moved;
    }
    for (size_t i = 0; i < k; i++) { /* in ascending order, so an id is read before its place is overwritten */
        d->ids[i] = qn_sample_id(&d->left, (size_t)d->heap[i].position);
        d->logits[i] = d->heap[i].logit;
    }
    d->left = (qn_sample_tokens){ d->logits, d->ids, k };
}

/* Keeps the k most likely tokens. Of tokens equal to the k-th, keeps those up to its position. */
static void keep_many(qn_sample_draw *d, size_t k)
{
    const qn_sample_tokens *t = &d->left;
    const qn_sample_row row = row_of(d, NULL);
    const double fraction = (double)k / (double)t->n;
    const qn_sample_bins bins = qn_sample_bins_around(&row, &fraction, 1);
    if (bins.total <= k) /* the others are -inf */
        return;
    const qn_sample_found last = qn_sample_find(&row, qn_sample_bin(&bins, k), k);
    const size_t n = last.position + 1;
    const uint32_t *ids = t->ids ? t->ids + n : NULL;
    size_t kept =
        d->kernels->select(t->logits, t->ids, n, nextafterf(last.logit, -INFINITY), INFINITY, d->logits, d->ids);
    const size_t more =
        d->kernels->select(t->logits + n, ids, t->n - n, last.logit, INFINITY, d->logits + kept, d->ids + kept);
    for (size_t i = kept; !ids && i < kept + more; i++)
        d->ids[i] += (uint32_t)n;
    d->left = (qn_sample_tokens){ d->logits, d->ids, kept + more };
}

/* Deviations from the largest logit, in units. */
struct deviations {
    float largest, inverse; /* 1 / unit */
    double most;            /* limit for tokens that are kept */
};

static bool is_kept(const struct deviations *s, float logit)
{
    return (double)(uint64_t)(fminf(s->largest - logit, FLT_MAX) * s->inverse) <= s->most;
}

/* Returns the largest logit that is not kept, by bisection between a dropped and a kept logit, in the order of their
 * keys. */
static float largest_dropped(const struct deviations *s, float dropped, float kept)
{
    uint64_t first = qn_sample_key(dropped, 0) >> 32, end = qn_sample_key(kept, 0) >> 32;
    while (end - first > 1) {
        const uint64_t middle = first + (end - first) / 2;
        if (is_kept(s, qn_sample_key_logit(middle << 32)))
            end = middle;
        else
            first = middle;
    }
    return qn_sample_key_logit(first << 32);
}

/* Applies top_n_sigma, with sums of integers. The unit is a power of two. The largest deviation has half of the bits of
 * a weight, so that sums of squares fit in 62 bits. */
static void apply_top_n_sigma(qn_sample_draw *d, size_t n_vocab)
{
    const float least = d->kernels->least(d->left.logits, d->left.n), range = fminf(d->scale.largest - least, FLT_MAX);
    const int bits = qn_sample_weight_bits(n_vocab) / 2;
    int exponent;
    if (range == 0)
        return;
    frexpf(range, &exponent);
    struct deviations s = { .largest = d->scale.largest,
                            .inverse = ldexpf(1, bits - exponent < 127 ? bits - exponent : 127) };
    const qn_sample_moments m = d->kernels->moments(d->left.logits, d->left.n, s.largest, s.inverse);
    const unsigned __int128 variance = (unsigned __int128)m.n * m.squares - (unsigned __int128)m.sum * m.sum; /* times
                                                                                                                 n^2 */
    s.most = (double)d->request->sampling.top_n_sigma * sqrt((double)variance) / (double)m.n;
    if (!is_kept(&s, least))
        keep_above(d, largest_dropped(&s, least, s.largest));
}

static void apply_top_k(qn_sample_draw *d, size_t n_vocab)
{
    const size_t k = qn_sample_top_k(&d->request->sampling, n_vocab);
    if (k >= d->left.n)
        return;
    if (k <= QN_SAMPLE_SORTED)
        keep_few(d, k);
    else
        keep_many(d, k);
}

/* Margin in (logit - largest) / temperature that exceeds the shift of a weight by rounding: less than 2e-5 from two
 * operations and the exponential, for arguments down to QN_EXP_MIN. */
#define MARGIN 1e-4

/* Returns a logit such that its weight and those of all lower logits are below `weight`. */
static float logit_below_weight(const qn_sample_draw *d, double weight)
{
    const double bound =
        (double)d->scale.largest + (double)d->request->sampling.temperature * (qn_real_log(weight) - MARGIN);
    return bound <= -(double)FLT_MAX ? -INFINITY : nextafterf((float)bound, -INFINITY);
}

/* Returns a logit above which all weights are at least `weight`. */
static float logit_above_weight(const qn_sample_draw *d, double weight)
{
    const double bound =
        (double)d->scale.largest + (double)d->request->sampling.temperature * (qn_real_log(weight) + MARGIN);
    return bound <= -(double)FLT_MAX ? -FLT_MAX : nextafterf((float)bound, INFINITY);
}

/* Ends the row before the first token, in descending order, with a weight below min_p. The exponential is not strictly
 * monotone, so the end is searched among the tokens near it. */
static void apply_min_p(qn_sample_draw *d)
{
    const float min_p = d->request->sampling.min_p;
    keep_above(d, logit_below_weight(d, (double)min_p));
    const float end = d->kernels->largest_below(&d->scale, d->left.logits, d->left.n, min_p);
    if (end > -INFINITY)
        keep_above(d, end);
}

/* Returns the least sum of weights, at least 1, that reaches a fraction of a total, in the arithmetic of the
 * definition: (double)sum >= (double)fraction * (double)total. */
static uint64_t sum_of_fraction(float fraction, uint64_t total)
{
    uint64_t least = 1, most = total;
    while (least < most) {
        const uint64_t middle = least + (most - least) / 2;
        if ((double)middle >= (double)fraction * (double)total)
            most = middle;
        else
            least = middle + 1;
    }
    return least;
}

/* ---- Typical sampling ---- */

/* Returns the largest logit with a surprisal of `least` or more; inf if all have, -inf if none has. */
static float logit_of_surprisal(const qn_sample_scale *scale, int64_t least)
{
    uint64_t first = qn_sample_key(-INFINITY, 0) >> 32, end = qn_sample_key(scale->largest, 0) >> 32;
    if (least <= 0)
        return INFINITY;
    if (least > QN_SAMPLE_SURPRISALS)
        return -INFINITY;
    while (end - first > 1) {
        const uint64_t middle = first + (end - first) / 2;
        if (qn_sample_surprisal(scale, qn_sample_key_logit(middle << 32)) >= least)
            first = middle;
        else
            end = middle;
    }
    return qn_sample_key_logit(first << 32);
}

/* The tokens whose surprisals differ from the mean by at most `distance`: above < logit <= up_to. */
struct around {
    float above, up_to;
};

static struct around logits_around(const qn_sample_scale *scale, int64_t mean, int64_t distance)
{
    return (struct around){ logit_of_surprisal(scale, mean + distance + 1),
                            logit_of_surprisal(scale, mean - distance) };
}

/* Copies the tokens with distances from first to last to the list. */
static qn_sample_tokens list_distances(const qn_sample_draw *d, int64_t mean, int64_t first, int64_t last)
{
    const qn_sample_tokens *t = &d->left;
    const struct around outer = logits_around(&d->scale, mean, last);
    const float none = outer.up_to;
    const struct around inner = first > 0 ? logits_around(&d->scale, mean, first - 1) : (struct around){ none, none };
    size_t n = d->kernels->select(t->logits, NULL, t->n, outer.above, inner.above, d->list, d->positions);
    n += d->kernels->select(t->logits, NULL, t->n, inner.up_to, outer.up_to, d->list + n, d->positions + n);
    return (qn_sample_tokens){ d->list, NULL, n };
}

/* Returns the least distance from the mean within which the weights sum up to `target`. The first pass tries 0, the
 * result if all logits are equal, and a likely bound; each later pass keeps a third of the distances. Every few passes
 * the tokens at the remaining distances are copied, and later passes read only these. */
static int64_t typical_distance(const qn_sample_draw *d, int64_t mean, uint64_t target)
{
    enum { PASSES_PER_LIST = 3, LIKELY = 4 * 1024 };
    const qn_sample_scale *scale = &d->scale;
    qn_sample_tokens t = d->left;
    int64_t first = 0, last = QN_SAMPLE_SURPRISALS;
    uint64_t within = 0, inside = 0; /* sums at distances below first: of all tokens, and of tokens not in t */
    for (int pass = 0; first < last; pass++) {
        uint64_t sums[QN_SAMPLE_THRESHOLDS];
        if (pass % PASSES_PER_LIST == 1) {
            t = list_distances(d, mean, first, last);
            inside = within;
        }
        const int64_t near = first + (pass ? (last - first) / 3 : 0);
        const int64_t far = first + (pass ? (last - first) * 2 / 3 : LIKELY);
        const struct around a = logits_around(scale, mean, near), b = logits_around(scale, mean, far);
        const float thresholds[QN_SAMPLE_THRESHOLDS] = { b.up_to, a.up_to, a.above, b.above };
        d->kernels->sum_above(scale, t.logits, t.n, thresholds, sums);
        const uint64_t until_near = inside + sums[2] - sums[1], until_far = inside + sums[3] - sums[0];
        if (until_near >= target) {
            last = near;
        } else if (until_far >= target) {
            first = near + 1;
            last = far;
            within = until_near;
        } else {
            first = far + 1;
            within = until_far;
        }
    }
    return last;
}

/* Applies typical_p. Meister et al., Locally Typical Sampling (2022). A token's distance from the entropy equals the
 * distance of its surprisal from the mean surprisal, both relative to the surprisal of the most likely token. */
static void apply_typical_p(qn_sample_draw *d, size_t n_vocab)
{
    const int bits = qn_sample_weight_bits(n_vocab) - 17;
    const qn_sample_scale reduced = { d->scale.largest, d->scale.inverse, ldexpf(1, bits < 31 ? bits : 31) };
    const uint64_t all = d->kernels->sum(&d->scale, d->left.logits, d->left.n);
    uint64_t total;
    const uint64_t sum = d->kernels->sum_surprisals(&reduced, d->left.logits, d->left.n, &total);
    const int64_t mean = (int64_t)(sum / total); /* the largest logit has a weight of one unit */
    const int64_t distance = typical_distance(d, mean, sum_of_fraction(d->request->sampling.typical_p, all));
    const struct around kept = logits_around(&d->scale, mean, distance);
    keep_between(d, kept.above, kept.up_to);
    d->scale.largest = d->kernels->maximum(d->left.logits, d->left.n);
}

/* ---- top_p ---- */

/* Exceeds the rounding error of converting a sum of 2^62 to double. */
enum { ROUNDING = 1024 };

/* Returns the sum of the weights that top_p keeps: of the first tokens whose sum reaches `target`. */
static uint64_t kept_sum(const qn_sample_draw *d, const qn_sample_row *row, const qn_sample_bins *bins, uint64_t target)
{
    if (target >= bins->total)
        return bins->total;
    qn_sample_range range = qn_sample_bin(bins, target);
    if (bins->total - target < ROUNDING) { /* only tokens with less than this weight can be dropped */
        const float up_to = logit_above_weight(d, ROUNDING / (double)d->scale.unit);
        const size_t n = d->kernels->select(row->logits, NULL, row->n, -INFINITY, up_to, row->list, row->positions);
        const uint64_t sum = d->kernels->sum(&d->scale, row->list, n);
        range = (qn_sample_range){ -INFINITY, up_to, bins->total - sum, sum };
        if (target <= range.before)
            return range.before;
    }
    const qn_sample_found last = qn_sample_find(row, range, target);
    return last.before + last.weight;
}

/* Returns the largest logit with a raw weight (before it is multiplied and truncated) below a bound; -inf if there is
 * none. */
static float first_below(const qn_sample_draw *d, const float *logits, size_t n, double bound)
{
    const float weight = (double)(float)bound < bound ? nextafterf((float)bound, INFINITY) : (float)bound;
    return d->kernels->largest_below(&d->scale, logits, n, weight);
}

bool qn_sample_xtc_applies(const qn_sample_request *request)
{
    uint64_t state = request->random;
    return (double)(qn_splitmix(&state) >> 11) * 0x1p-53 < (double)request->sampling.xtc_probability;
}

/* Returns the sum of the weights that XTC drops: of the tokens with at least xtc_threshold of the probability of all
 * kept tokens, all but the last in descending order. */
static uint64_t xtc_sum(const qn_sample_draw *d, const qn_sample_row *row, const qn_sample_bins *bins, uint64_t kept)
{
    const float end = first_below(d, row->logits, row->n,
                                  (double)d->request->sampling.xtc_threshold * (double)kept / (double)d->scale.unit);
    const size_t n = d->kernels->select(row->logits, NULL, row->n, end, INFINITY, row->list, row->positions);
    const uint64_t above = d->kernels->sum(&d->scale, row->list, n), sum = above < kept ? above : kept;
    return sum ? qn_sample_find(row, qn_sample_bin(bins, sum), sum).before : 0;
}

/* ---- The distribution after all filters ---- */

/* Sets the log probabilities to those of the tokens whose weights make up the sums from `dropped` to `kept`. Tokens
 * without weight are not listed. */
static void set_logprobs(const qn_sample_row *row, const qn_sample_bins *bins, uint64_t dropped, uint64_t kept,
                         uint64_t chosen, const qn_sample_draw *d)
{
    qn_logprobs *l = d->request->logprobs;
    const double total = (double)(kept - dropped);
    const uint32_t most = l ? l->n : 0;
    uint64_t before = dropped;
    if (!l || !d->request->logprobs_after)
        return;
    l->chosen = (float)qn_real_log((double)chosen / total);
    for (l->n = 0; l->n < most && l->n < QN_SAMPLE_TOP_LOGPROBS && before < kept; l->n++) {
        const qn_sample_found next = qn_sample_find(row, qn_sample_bin(bins, before + 1), before + 1);
        l->tokens[l->n] = (qn_token)qn_sample_id(&d->left, next.position);
        l->values[l->n] = (float)qn_real_log((double)next.weight / total);
        before = next.before + next.weight;
    }
}

void qn_sample_set_certain(qn_sample_request *request)
{
    qn_logprobs *l = request->logprobs;
    if (!l || !request->logprobs_after)
        return;
    l->chosen = 0;
    l->n = l->n > 0;
    l->tokens[0] = request->token;
    l->values[0] = 0;
}

/* ---- The draw ---- */

int32_t qn_sample_draw_token(qn_sample_draw *d, size_t n_vocab)
{
    const qn_sampling *sampling = &d->request->sampling;
    uint64_t total = 0;
    if (sampling->top_n_sigma > 0)
        apply_top_n_sigma(d, n_vocab);
    apply_top_k(d, n_vocab);
    if (sampling->typical_p > 0 && sampling->typical_p < 1)
        apply_typical_p(d, n_vocab);
    if (sampling->min_p > 0) {
        total = d->kernels->sum(&d->scale, d->left.logits, d->left.n);
        apply_min_p(d);
    }
    const double place = (double)d->request->random * 0x1p-64;
    const double fractions[2] = { (double)sampling->top_p * place, (double)sampling->top_p };
    const qn_sample_row row = row_of(d, &d->scale);
    const qn_sample_bins bins = qn_sample_bins_around(&row, fractions, sampling->top_p < 1 ? 2 : 1);
    const uint64_t kept =
        kept_sum(d, &row, &bins, sum_of_fraction(sampling->top_p, sampling->min_p > 0 ? total : bins.total));
    const uint64_t dropped = qn_sample_xtc_applies(d->request) ? xtc_sum(d, &row, &bins, kept) : 0;
    const uint64_t point = dropped + (uint64_t)((unsigned __int128)d->request->random * (kept - dropped) >> 64);
    const qn_sample_found found = qn_sample_find(&row, qn_sample_bin(&bins, point + 1), point + 1);
    set_logprobs(&row, &bins, dropped, kept, found.weight, d);
    return (int32_t)qn_sample_id(&d->left, found.position);
}

/* ---- Mirostat ---- */

/* Returns log2 of x > 0, computed by squarings, which give the same bits on every system. */
static double log2_of(double x)
{
    int exponent;
    double rest = 2 * frexp(x, &exponent), bit = 0.5, result; /* 1 <= rest < 2 */
    for (result = exponent - 1; bit > 1e-9; bit /= 2) {
        rest *= rest;
        if (rest >= 2) {
            rest /= 2;
            result += bit;
        }
    }
    return result;
}

/* Draws a token by mirostat. Basu et al., Mirostat (2021), in llama.cpp's second version. */
int32_t qn_sample_draw_mirostat(qn_sample_draw *d, float *surprise)
{
    const double all = (double)d->kernels->sum(&d->scale, d->left.logits, d->left.n);
    const double least = (double)qn_exp(d->request->mirostat_mu * -0.693147181f) * all / (double)d->scale.unit;
    if (least > 1) { /* more than the weight of the most likely token: only that token stays */
        qn_sample_request alone = *d->request;
        qn_sample_set_certain(&alone);
        return alone.token;
    }
    keep_above(d, first_below(d, d->left.logits, d->left.n, least));
    const qn_sample_row row = row_of(d, &d->scale);
    const double place = (double)d->request->random * 0x1p-64;
    const qn_sample_bins bins = qn_sample_bins_around(&row, &place, 1);
    const uint64_t target = (uint64_t)((unsigned __int128)d->request->random * bins.total >> 64) + 1;
    const qn_sample_found found = qn_sample_find(&row, qn_sample_bin(&bins, target), target);
    set_logprobs(&row, &bins, 0, bins.total, found.weight, d);
    *surprise = (float)-log2_of((double)found.weight / (double)bins.total);
    return (int32_t)qn_sample_id(&d->left, found.position);
}
