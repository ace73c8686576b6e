/* Sampling a token from a row of logits on the CPU: the reference of the GPU kernels. Every step is a pass over the row, or
 * over the tokens that are left of it; none sorts more than QN_SAMPLE_SORTED tokens. */
#include "kernels/sample/sample.h"

#include "kernels/sample/sample_search.h"

#include <float.h>
#include <math.h>
#include <string.h>

qn_status qn_sample_status(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32);
    if (qn_sample_is_finite(best))
        return QN_OK;
    if (ordered == UINT32_MAX)
        return qn_fail(QN_ERR_INVALID, "logits: NaN for token %u", (unsigned)qn_sample_key_index(best));
    if (ordered >> 31)
        return qn_fail(QN_ERR_INVALID, "logits: the largest is inf, expected a finite one");
    return qn_fail(QN_ERR_INVALID, "logits: the largest of the allowed tokens is -inf, expected a finite one");
}

/* ---- Scratch ---- */

/* A token of a list: its position there, its logit. */
struct candidate {
    float logit;
    int32_t position;
};

/* Entries and slots are used before, and in the same memory as, the other arrays. Each has n elements. */
struct scratch {
    qn_sample_entry *entries;
    uint32_t *slots;
    float *left; /* the logits of the tokens that are left after mask, bias, penalties and filters */
    uint32_t *left_ids;
    float *list; /* of a search */
    uint32_t *list_positions;
    struct candidate *heap;
};

static struct scratch scratch_at(void *memory, size_t n)
{
    struct scratch s = { .entries = memory, .list = memory };
    s.slots = s.left_ids = (uint32_t *)(void *)(s.entries + n);
    s.left = (float *)(void *)(s.slots + n);
    s.list_positions = (uint32_t *)(void *)(s.list + n);
    s.heap = (struct candidate *)(void *)(s.list_positions + n);
    return s;
}

size_t qn_sample_scratch_bytes(size_t n)
{
    return n * (sizeof(qn_sample_entry) + sizeof(uint32_t) + sizeof(float));
}

/* The tokens that are left, in ascending order of their ids. */
struct tokens {
    const float *logits;
    const uint32_t *ids; /* NULL: the positions */
    size_t n;
};

static uint32_t id_of(const struct tokens *t, size_t position)
{
    return t->ids ? t->ids[position] : (uint32_t)position;
}

/* ---- Mask, bias and penalties ---- */

static bool penalises_recent(const qn_sampling *sampling)
{
    return sampling->repeat_penalty != 1;
}

static bool penalises_generated(const qn_sampling *sampling)
{
    return sampling->frequency_penalty != 0 || sampling->presence_penalty != 0;
}

size_t qn_sample_max_entries(const qn_sample_request *request, size_t n)
{
    const size_t most = request->n_bias + (penalises_recent(&request->sampling) ? request->n_recent : 0) +
                        (penalises_generated(&request->sampling) ? request->n_generated : 0);
    return most < n ? most : n;
}

struct entry_list {
    qn_sample_entry *entries;
    uint32_t *slots; /* of each token: 1 + the index of its entry; 0: none */
    size_t n, n_vocab;
};

/* The entry of a token, added if there is none; NULL outside the vocabulary. */
static qn_sample_entry *entry_of(struct entry_list *list, qn_token token)
{
    if (token < 0 || (size_t)token >= list->n_vocab)
        return NULL;
    if (!list->slots[token]) {
        list->entries[list->n] = (qn_sample_entry){ .token = token };
        list->slots[token] = (uint32_t)++list->n;
    }
    return &list->entries[list->slots[token] - 1];
}

size_t qn_sample_list_entries(const qn_sample_request *request, size_t n, uint32_t *slots, qn_sample_entry *entries)
{
    struct entry_list list = { .entries = entries, .slots = slots, .n_vocab = n };
    qn_sample_entry *entry;
    for (size_t i = 0; i < request->n_bias; i++)
        if ((entry = entry_of(&list, request->bias[i].token)))
            entry->bias += request->bias[i].value;
    for (size_t i = 0; penalises_recent(&request->sampling) && i < request->n_recent; i++)
        if ((entry = entry_of(&list, request->recent[i])))
            entry->is_recent = 1;
    for (size_t i = 0; penalises_generated(&request->sampling) && i < request->n_generated; i++)
        if ((entry = entry_of(&list, request->generated[i])))
            entry->n_generated++;
    for (size_t i = 0; i < list.n; i++)
        slots[entries[i].token] = 0;
    return list.n;
}

/* The position of an id of a list in ascending order that has it. */
static size_t position_of(const uint32_t *ids, size_t n, uint32_t id)
{
    size_t first = 0;
    while (n > 1) {
        const size_t half = n / 2;
        if (ids[first + half] <= id)
            first += half;
        n -= half;
    }
    return first;
}

static bool is_allowed(const uint32_t *allowed, uint32_t token)
{
    return !allowed || allowed[token / 32] >> token % 32 & 1;
}

/* The tokens that the mask allows, after bias and penalties: the caller's array if there are none of the three. */
static struct tokens adjust(const qn_sample_kernels *kernels, const qn_sample_request *request, const float *logits, size_t n,
                            const struct scratch *s)
{
    const qn_sampling *sampling = &request->sampling;
    const qn_sample_penalties penalties = { sampling->repeat_penalty, sampling->frequency_penalty, sampling->presence_penalty };
    const bool has_entries = qn_sample_max_entries(request, n) > 0;
    struct tokens left = { logits, NULL, n };
    size_t n_entries = 0;
    if (has_entries) {
        memset(s->slots, 0, n * sizeof *s->slots);
        n_entries = qn_sample_list_entries(request, n, s->slots, s->entries);
    }
    if (request->allowed)
        left =
            (struct tokens){ s->left, s->left_ids, kernels->select_allowed(logits, request->allowed, n, s->left, s->left_ids) };
    else if (has_entries)
        left.logits = memcpy(s->left, logits, n * sizeof *logits);
    for (size_t i = 0; i < n_entries; i++) {
        const uint32_t token = (uint32_t)s->entries[i].token;
        if (is_allowed(request->allowed, token))
            s->left[left.ids ? position_of(left.ids, left.n, token) : token] =
                qn_sample_adjust(logits[token], &s->entries[i], &penalties);
    }
    return left;
}

/* ---- Argmax ---- */

/* The key of the largest logit, of the first NaN, or of -inf for token 0 where nothing else is left. */
static uint64_t best_key(const qn_sample_kernels *kernels, const struct tokens *t)
{
    const float largest = t->n ? kernels->maximum(t->logits, t->n) : -INFINITY;
    size_t at = 0;
    if (largest == -INFINITY)
        return qn_sample_key(largest, 0);
    if (isnan(largest))
        while (!isnan(t->logits[at]))
            at++;
    else
        at = kernels->find(t->logits, t->n, largest);
    return qn_sample_key(largest, id_of(t, at));
}

/* ---- The k most likely tokens, for few ---- */

/* Order of tokens: the more likely first, of equal logits the lower id, whose position is lower. */
static bool likelier(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.position < b.position);
}

/* Restore the heap property of [n] entries after a change of entry `at`. least_at_root: the least likely token is at the root,
 * else the most likely. */
static void sift_down(struct candidate *heap, size_t n, size_t at, bool least_at_root)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && likelier(heap[child + 1], heap[child]) != least_at_root)
            child++;
        if (likelier(heap[child], heap[at]) == least_at_root)
            return;
        const struct candidate moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

static void make_heap(struct candidate *heap, size_t n, bool least_at_root)
{
    for (size_t at = n / 2; at-- > 0;)
        sift_down(heap, n, at, least_at_root);
}

/* Logits scanned per maximum: few enough that a single large logit causes few scalar comparisons. */
enum { SCAN_BLOCK = 64 };

/* The k most likely tokens, unordered. They form a heap with the least likely at the root, so most tokens need one comparison.
 */
static void select_top(const qn_sample_kernels *kernels, const float *logits, size_t n, struct candidate *top, size_t k)
{
    for (size_t i = 0; i < k; i++)
        top[i] = (struct candidate){ logits[i], (int32_t)i };
    if (k == n)
        return;
    make_heap(top, k, true);
    for (size_t first = k, end; first < n; first = end) {
        end = n - first < SCAN_BLOCK ? n : first + SCAN_BLOCK;
        if (kernels->maximum(logits + first, end - first) <= top[0].logit)
            continue;
        for (size_t i = first; i < end; i++) {
            if (logits[i] <= top[0].logit)
                continue;
            top[0] = (struct candidate){ logits[i], (int32_t)i };
            sift_down(top, k, 0, true);
        }
    }
}

/* ---- Log probabilities ---- */

void qn_sample_set_logprobs(qn_logprobs *logprobs, size_t n, uint64_t largest, uint64_t total, const uint64_t *top,
                            float chosen)
{
    const bool is_finite = qn_sample_is_finite(largest);
    logprobs->chosen = NAN;
    logprobs->n = is_finite ? qn_sample_n_top(logprobs, n) : 0;
    if (!is_finite)
        return;
    /* The weight of the largest logit is 1, so the total is not 0. */
    const double log_sum = qn_sample_key_logit(largest) + log(ldexp((double)total, -qn_sample_weight_bits(n)));
    logprobs->chosen = (float)(chosen - log_sum);
    for (uint32_t i = 0; i < logprobs->n; i++) {
        logprobs->tokens[i] = (qn_token)qn_sample_key_index(top[i]);
        logprobs->values[i] = (float)(qn_sample_key_logit(top[i]) - log_sum);
    }
}

static void find_logprobs(const qn_sample_kernels *kernels, const qn_sample_request *request, const float *logits, size_t n,
                          const struct scratch *s)
{
    const uint64_t largest = best_key(kernels, &(struct tokens){ logits, NULL, n });
    const size_t n_top = qn_sample_n_top(request->logprobs, n);
    uint64_t keys[QN_SAMPLE_TOP_LOGPROBS], total = 0;
    if (qn_sample_is_finite(largest)) {
        const qn_sample_scale scale = { qn_sample_key_logit(largest), 1, ldexpf(1, qn_sample_weight_bits(n)) };
        total = kernels->sum(&scale, logits, n);
        if (n_top)
            select_top(kernels, logits, n, s->heap, n_top);
        make_heap(s->heap, n_top, false);
        for (size_t i = 0; i < n_top; i++) {
            keys[i] = qn_sample_key(s->heap[0].logit, (uint32_t)s->heap[0].position);
            s->heap[0] = s->heap[n_top - 1 - i];
            sift_down(s->heap, n_top - 1 - i, 0, false);
        }
    }
    qn_sample_set_logprobs(request->logprobs, n, largest, total, keys, logits[request->token]);
}

/* ---- Filters ---- */

/* What a draw works on: the tokens that are left, and their weights. */
struct draw {
    const qn_sample_kernels *kernels;
    const qn_sample_request *request;
    const struct scratch *scratch;
    qn_sample_scale scale;
    struct tokens left;
};

static qn_sample_row row_of(const struct draw *d, const qn_sample_scale *scale)
{
    return (qn_sample_row){ d->kernels, scale, d->left.logits, d->left.n, d->scratch->list, d->scratch->list_positions };
}

/* Keep the tokens with logits above a bound. */
static void keep_above(struct draw *d, float bound)
{
    const size_t n =
        d->kernels->select(d->left.logits, d->left.ids, d->left.n, bound, INFINITY, d->scratch->left, d->scratch->left_ids);
    d->left = (struct tokens){ d->scratch->left, d->scratch->left_ids, n };
}

/* The heap is put in the order of the positions. */
static void keep_few(struct draw *d, size_t k)
{
    const struct scratch *s = d->scratch;
    select_top(d->kernels, d->left.logits, d->left.n, s->heap, k);
    for (size_t i = 1; i < k; i++) {
        const struct candidate moved = s->heap[i];
        size_t at = i;
        for (; at > 0 && s->heap[at - 1].position > moved.position; at--)
            s->heap[at] = s->heap[at - 1];
        s->heap[at] = moved;
    }
    for (size_t i = 0; i < k; i++) { /* in ascending order: an id is read before another takes its place */
        s->left_ids[i] = id_of(&d->left, (size_t)s->heap[i].position);
        s->left[i] = s->heap[i].logit;
    }
    d->left = (struct tokens){ s->left, s->left_ids, k };
}

/* Of tokens that equal the k-th, those up to its position are kept. */
static void keep_many(struct draw *d, size_t k)
{
    const struct scratch *s = d->scratch;
    const struct tokens *t = &d->left;
    const qn_sample_row row = row_of(d, NULL);
    const double fraction = (double)k / (double)t->n;
    const qn_sample_bins bins = qn_sample_bins_around(&row, &fraction, 1);
    if (bins.total <= k) /* the others are -inf */
        return;
    const qn_sample_found last = qn_sample_find(&row, qn_sample_bin(&bins, k), k);
    const size_t n = last.position + 1;
    const uint32_t *ids = t->ids ? t->ids + n : NULL;
    size_t kept = d->kernels->select(t->logits, t->ids, n, nextafterf(last.logit, -INFINITY), INFINITY, s->left, s->left_ids);
    const size_t more =
        d->kernels->select(t->logits + n, ids, t->n - n, last.logit, INFINITY, s->left + kept, s->left_ids + kept);
    for (size_t i = kept; !ids && i < kept + more; i++)
        s->left_ids[i] += (uint32_t)n;
    d->left = (struct tokens){ s->left, s->left_ids, kept + more };
}

static void apply_top_k(struct draw *d, size_t n_vocab)
{
    const size_t k = qn_sample_top_k(&d->request->sampling, n_vocab);
    if (k >= d->left.n)
        return;
    if (k <= QN_SAMPLE_SORTED)
        keep_few(d, k);
    else
        keep_many(d, k);
}

/* A bound in (logit - largest) / temperature that is farther from the exact place of a weight than rounding moves it: less than
 * 2e-5 by two operations and the exponential, for arguments down to QN_EXP_MIN. */
#define MARGIN 1e-4

/* A logit whose weight, and those of all lower ones, are below `weight`. */
static float logit_below_weight(const struct draw *d, double weight)
{
    const double bound = (double)d->scale.largest + (double)d->request->sampling.temperature * (log(weight) - MARGIN);
    return bound <= -(double)FLT_MAX ? -INFINITY : nextafterf((float)bound, -INFINITY);
}

/* A logit above which all have at least `weight`. */
static float logit_above_weight(const struct draw *d, double weight)
{
    const double bound = (double)d->scale.largest + (double)d->request->sampling.temperature * (log(weight) + MARGIN);
    return bound <= -(double)FLT_MAX ? -FLT_MAX : nextafterf((float)bound, INFINITY);
}

/* The first token, in descending order, with a weight below min_p ends the row. The exponential is not strictly monotone: the
 * end is searched among the tokens near it. */
static void apply_min_p(struct draw *d)
{
    const float min_p = d->request->sampling.min_p;
    keep_above(d, logit_below_weight(d, (double)min_p));
    const float end = d->kernels->largest_below(&d->scale, d->left.logits, d->left.n, min_p);
    if (end > -INFINITY)
        keep_above(d, end);
}

/* The least sum of weights with which top_p of a total is reached, at least 1, in the arithmetic of the definition:
 * (double)sum >= (double)top_p * (double)total. */
static uint64_t sum_of_top_p(float top_p, uint64_t total)
{
    uint64_t least = 1, most = total;
    while (least < most) {
        const uint64_t middle = least + (most - least) / 2;
        if ((double)middle >= (double)top_p * (double)total)
            most = middle;
        else
            least = middle + 1;
    }
    return least;
}

/* More than the rounding of a sum of 2^62 to a double. */
enum { ROUNDING = 1024 };

/* The sum of the tokens that top_p keeps: of the first ones that reach `target`. */
static uint64_t kept_sum(const struct draw *d, const qn_sample_row *row, const qn_sample_bins *bins, uint64_t target)
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

/* ---- The draw ---- */

static int32_t draw(struct draw *d, size_t n_vocab)
{
    const qn_sampling *sampling = &d->request->sampling;
    uint64_t total = 0;
    apply_top_k(d, n_vocab);
    if (sampling->min_p > 0) {
        total = d->kernels->sum(&d->scale, d->left.logits, d->left.n);
        apply_min_p(d);
    }
    const double place = (double)d->request->random * 0x1p-64;
    const double fractions[2] = { (double)sampling->top_p * place, (double)sampling->top_p };
    const qn_sample_row row = row_of(d, &d->scale);
    const qn_sample_bins bins = qn_sample_bins_around(&row, fractions, sampling->top_p < 1 ? 2 : 1);
    const uint64_t kept = kept_sum(d, &row, &bins, sum_of_top_p(sampling->top_p, sampling->min_p > 0 ? total : bins.total));
    const uint64_t point = (uint64_t)((unsigned __int128)d->request->random * kept >> 64);
    return (int32_t)id_of(&d->left, qn_sample_find(&row, qn_sample_bin(&bins, point + 1), point + 1).position);
}

/* ---- The sampler ---- */

void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n, void *scratch)
{
    const struct scratch s = scratch_at(scratch, n);
    struct draw d = { .kernels = kernels, .request = request, .scratch = &s, .left = adjust(kernels, request, logits, n, &s) };
    request->best = best_key(kernels, &d.left);
    request->token = qn_sample_is_finite(request->best) ? (int32_t)qn_sample_key_index(request->best) : -1;
    if (request->token < 0)
        return;
    if (!qn_sample_is_greedy(&request->sampling)) {
        d.scale = (qn_sample_scale){ qn_sample_key_logit(request->best), 1 / request->sampling.temperature,
                                     ldexpf(1, qn_sample_weight_bits(n)) };
        request->token = draw(&d, n);
    }
    if (request->logprobs)
        find_logprobs(kernels, request, logits, n, &s);
}
