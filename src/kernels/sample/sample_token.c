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
    return qn_fail(QN_ERR_INVALID, "logits: the largest is %s, expected a finite one", ordered >> 31 ? "inf" : "-inf");
}

size_t qn_sample_scratch_bytes(size_t n)
{
    return n * (sizeof(struct candidate) + sizeof(float));
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

/* ---- Penalty, argmax, and the sampler ---- */

/* The logits after the penalty: the caller's array if there is none, else a copy. */
static const float *apply_penalties(const qn_sample_request *request, const float *logits, size_t n, float *copy)
{
    if (request->sampling.repeat_penalty == 1 || !request->n_recent)
        return logits;
    memcpy(copy, logits, n * sizeof *logits);
    for (size_t i = 0; i < request->n_recent; i++) {
        const int32_t token = request->recent[i];
        if (token < 0 || (size_t)token >= n)
            continue;
        /* Reads the original logit, so that a token that occurs twice is penalised once. */
        copy[token] = logits[token] > 0 ? logits[token] / request->sampling.repeat_penalty
                                        : logits[token] * request->sampling.repeat_penalty;
    }
    return copy;
}

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

void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n, void *scratch)
{
    struct candidate *candidates = scratch;
    logits = apply_penalties(request, logits, n, (float *)(void *)(candidates + n));
    const size_t best = argmax_or_nan(kernels, logits, n);
    request->best = qn_sample_key(logits[best], (uint32_t)best);
    request->token = qn_sample_is_finite(request->best) ? (int32_t)best : -1;
    if (request->token < 0 || qn_sample_is_greedy(&request->sampling))
        return;
    const size_t k = qn_sample_top_k(&request->sampling, n);
    select_top(kernels, logits, n, candidates, k);
    request->token = draw(request, candidates, k, n);
}
