/* Sampling a token from a row of logits on the CPU: the reference of the GPU kernels. */
#include "kernels/sample/sample.h"

#include "kernels/canon.h"

#include <math.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t token;
};

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

/* Entries and slots are not used any more when candidates are selected. */
struct scratch {
    qn_sample_entry *entries;     /* [n] */
    uint32_t *slots;              /* [n] */
    struct candidate *candidates; /* [n] in the memory of entries */
    float *copy;                  /* [n] the logits after mask, bias and penalties */
};

static struct scratch scratch_at(void *memory, size_t n)
{
    struct scratch s = { .entries = memory, .candidates = memory };
    s.slots = (uint32_t *)(void *)(s.entries + n);
    s.copy = (float *)(void *)(s.slots + n);
    return s;
}

size_t qn_sample_scratch_bytes(size_t n)
{
    return n * (sizeof(qn_sample_entry) + sizeof(uint32_t) + sizeof(float));
}

/* ---- Candidates ---- */

/* Order of tokens: the more likely first, of equal logits the lower id. */
static bool likelier(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
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

/* ---- The draw ---- */

struct weights {
    float largest, inverse, unit;
};

static float softmax_weight(const struct weights *w, float logit)
{
    return qn_exp((logit - w->largest) * w->inverse);
}

static uint64_t fixed_point_weight(const struct weights *w, float logit)
{
    return (uint64_t)(softmax_weight(w, logit) * w->unit);
}

/* Draw from the k candidates, popped from a heap in descending order until the filters end. */
static int32_t draw(const qn_sample_request *request, struct candidate *heap, size_t k, size_t n_vocab)
{
    make_heap(heap, k, false);
    const struct weights w = { heap[0].logit, 1 / request->sampling.temperature, ldexpf(1, qn_sample_weight_bits(n_vocab)) };
    uint64_t total = 0, kept = 0;
    for (size_t i = 0; i < k; i++)
        total += fixed_point_weight(&w, heap[i].logit);
    size_t n = k, n_kept = 0;
    while (n > 0) {
        if (n_kept && (softmax_weight(&w, heap[0].logit) < request->sampling.min_p ||
                       (double)kept >= (double)request->sampling.top_p * (double)total))
            break;
        /* The popped candidate is stored behind the heap: after the loop the kept ones are at the end, the most likely
         * last. */
        const struct candidate top_candidate = heap[0];
        heap[0] = heap[--n];
        heap[n] = top_candidate;
        sift_down(heap, n, 0, false);
        kept += fixed_point_weight(&w, top_candidate.logit);
        n_kept++;
    }
    uint64_t point = (uint64_t)((unsigned __int128)request->random * kept >> 64);
    size_t at = k - 1;
    for (uint64_t own; point >= (own = fixed_point_weight(&w, heap[at].logit));
         at--) /* ends in time: point is less than the sum of the kept weights */
        point -= own;
    return heap[at].token;
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

static void apply_mask(const uint32_t *allowed, float *logits, size_t n)
{
    for (size_t first = 0; first < n; first += 32)
        for (size_t i = first; allowed[first / 32] != UINT32_MAX && i < n && i < first + 32; i++)
            if (!(allowed[first / 32] >> (i - first) & 1))
                logits[i] = -INFINITY;
}

/* The logits after mask, bias and penalties: the caller's array if there are none, else a copy. */
static const float *adjust(const qn_sample_request *request, const float *logits, size_t n, const struct scratch *s)
{
    const qn_sampling *sampling = &request->sampling;
    const qn_sample_penalties penalties = { sampling->repeat_penalty, sampling->frequency_penalty, sampling->presence_penalty };
    if (!request->allowed && !qn_sample_max_entries(request, n))
        return logits;
    memset(s->slots, 0, n * sizeof *s->slots);
    memcpy(s->copy, logits, n * sizeof *logits);
    const size_t n_entries = qn_sample_list_entries(request, n, s->slots, s->entries);
    for (size_t i = 0; i < n_entries; i++)
        s->copy[s->entries[i].token] = qn_sample_adjust(logits[s->entries[i].token], &s->entries[i], &penalties);
    if (request->allowed)
        apply_mask(request->allowed, s->copy, n);
    return s->copy;
}

/* ---- Argmax ---- */

/* True if any logit is NaN. x == x is false only for NaN; summing the results lets the compiler vectorise the loop. */
static bool any_nan(const float *logits, size_t n)
{
    size_t n_numbers = 0;
    for (size_t i = 0; i < n; i++)
        n_numbers += logits[i] == logits[i];
    return n_numbers != n;
}

static size_t argmax_or_nan(const qn_sample_kernels *kernels, const float *logits, size_t n)
{
    if (any_nan(logits, n))
        for (size_t i = 0; i < n; i++)
            if (isnan(logits[i]))
                return i;
    return qn_argmax_row(kernels, logits, n);
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
                          struct candidate *top)
{
    const size_t best = argmax_or_nan(kernels, logits, n);
    const uint64_t largest = qn_sample_key(logits[best], (uint32_t)best);
    const size_t n_top = qn_sample_n_top(request->logprobs, n);
    uint64_t keys[QN_SAMPLE_TOP_LOGPROBS], total = 0;
    if (qn_sample_is_finite(largest)) {
        const struct weights w = { logits[best], 1, ldexpf(1, qn_sample_weight_bits(n)) };
        for (size_t i = 0; i < n; i++)
            total += fixed_point_weight(&w, logits[i]);
        if (n_top)
            select_top(kernels, logits, n, top, n_top);
        make_heap(top, n_top, false);
        for (size_t i = 0; i < n_top; i++) {
            keys[i] = qn_sample_key(top[0].logit, (uint32_t)top[0].token);
            top[0] = top[n_top - 1 - i];
            sift_down(top, n_top - 1 - i, 0, false);
        }
    }
    qn_sample_set_logprobs(request->logprobs, n, largest, total, keys, logits[request->token]);
}

/* ---- The sampler ---- */

void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n, void *scratch)
{
    const struct scratch s = scratch_at(scratch, n);
    const float *adjusted = adjust(request, logits, n, &s);
    const size_t best = argmax_or_nan(kernels, adjusted, n);
    request->best = qn_sample_key(adjusted[best], (uint32_t)best);
    request->token = qn_sample_is_finite(request->best) ? (int32_t)best : -1;
    if (request->token < 0)
        return;
    if (!qn_sample_is_greedy(&request->sampling)) {
        const size_t k = qn_sample_top_k(&request->sampling, n);
        select_top(kernels, adjusted, n, s.candidates, k);
        request->token = draw(request, s.candidates, k, n);
    }
    if (request->logprobs)
        find_logprobs(kernels, request, logits, n, s.candidates);
}
