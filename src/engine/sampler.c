/* Choosing the next token from logits. The steps and their order are quern.h's; exponentials are kernels/canon.h's, and
 * sums are taken in an order that only the logits decide, so that a seed gives the same choice on every machine. */
#include "engine/internal.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "kernels/canon.h"

#include <math.h>
#include <string.h>

struct candidate {
    float logit;
    qn_token token;
};

struct qn_sampler {
    qn_sampling params;
    size_t n_vocab;
    uint64_t random; /* state of the generator */
    qn_kernels kernels;
    float *logits;                /* [n_vocab] after the penalty */
    struct candidate *candidates; /* [n_vocab] */
};

qn_sampling qn_sampling_defaults(void)
{
    return (qn_sampling){
        .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last_n = 64
    };
}

static qn_status check_params(const qn_sampling *p)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return qn_fail(QN_ERR_INVALID, "temperature: %g, expected 0 or more", (double)p->temperature);
    if (p->top_k < 0)
        return qn_fail(QN_ERR_INVALID, "top_k: %d, expected 0 or more", p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return qn_fail(QN_ERR_INVALID, "top_p: %g, expected more than 0 and at most 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p < 1))
        return qn_fail(QN_ERR_INVALID, "min_p: %g, expected 0 or more and less than 1", (double)p->min_p);
    if (!(p->repeat_penalty > 0) || isinf(p->repeat_penalty))
        return qn_fail(QN_ERR_INVALID, "repeat_penalty: %g, expected more than 0", (double)p->repeat_penalty);
    if (p->repeat_last_n < 0)
        return qn_fail(QN_ERR_INVALID, "repeat_last_n: %d, expected 0 or more", p->repeat_last_n);
    return QN_OK;
}

qn_status qn_sampler_create(const qn_sampling *params, size_t n_vocab, qn_sampler **out)
{
    unsigned cpu;
    qn_sampler *sampler;
    *out = NULL;
    QN_TRY(check_params(params));
    if (!n_vocab || n_vocab > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "sampler: a vocabulary of %zu, expected 1 to %d", n_vocab, INT32_MAX);
    QN_TRY(qn_cpu_features(&cpu));
    QN_TRY(qn_alloc(&sampler, 1, sizeof *sampler, "sampler"));
    *sampler = (qn_sampler){ .params = *params, .n_vocab = n_vocab, .random = params->seed };
    qn_kernels_init(&sampler->kernels, cpu);
    qn_status status = qn_alloc(&sampler->logits, n_vocab, sizeof *sampler->logits, "sampler");
    if (status == QN_OK)
        status = qn_alloc(&sampler->candidates, n_vocab, sizeof *sampler->candidates, "sampler");
    if (status != QN_OK) {
        qn_sampler_free(sampler);
        return status;
    }
    *out = sampler;
    return QN_OK;
}

void qn_sampler_free(qn_sampler *sampler)
{
    if (!sampler)
        return;
    qn_free(sampler->logits);
    qn_free(sampler->candidates);
    qn_free(sampler);
}

/* Uniform in [0, 1). Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014): SplitMix64. */
static double draw_uniform(qn_sampler *sampler)
{
    uint64_t z = sampler->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Likelier first; of equals the lower id. */
static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Restore a heap of n whose entry at `at` may be out of place downwards. `first` tells which of two belongs nearer the root. */
static void sift_down(struct candidate *heap, size_t n, size_t at, bool least_at_root)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child]) != least_at_root)
            child++;
        if (before(heap[child], heap[at]) == least_at_root)
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

/* The k likeliest tokens, in no order. A heap with the least likely of them at its root: most tokens fail against it at once.
 */
static void select_top(const float *logits, size_t n, struct candidate *top, size_t k)
{
    for (size_t i = 0; i < k; i++)
        top[i] = (struct candidate){ logits[i], (qn_token)i };
    if (k == n)
        return;
    make_heap(top, k, true);
    for (size_t i = k; i < n; i++) {
        if (logits[i] <= top[0].logit)
            continue;
        top[0] = (struct candidate){ logits[i], (qn_token)i };
        sift_down(top, k, 0, true);
    }
}

/* The logits after the penalty: the caller's own where it is off, else a copy. */
static const float *apply_penalty(qn_sampler *sampler, const qn_token *recent, size_t n_recent, const float *logits)
{
    const qn_sampling *p = &sampler->params;
    if (p->repeat_penalty == 1 || !n_recent || !p->repeat_last_n)
        return logits;
    const size_t n = n_recent < (size_t)p->repeat_last_n ? n_recent : (size_t)p->repeat_last_n;
    memcpy(sampler->logits, logits, sampler->n_vocab * sizeof *logits);
    for (size_t i = n_recent - n; i < n_recent; i++) {
        if (recent[i] < 0 || (size_t)recent[i] >= sampler->n_vocab)
            continue;
        /* From the original, so that a token that occurs twice is not penalised twice. */
        const float logit = logits[recent[i]];
        sampler->logits[recent[i]] = logit > 0 ? logit / p->repeat_penalty : logit * p->repeat_penalty;
    }
    return sampler->logits;
}

/* Draw from the k candidates. They are taken from a heap in falling order, as few as are needed. */
static qn_token draw(qn_sampler *sampler, size_t k)
{
    const qn_sampling *p = &sampler->params;
    struct candidate *heap = sampler->candidates;
    make_heap(heap, k, false);
    const float largest = heap[0].logit, inverse = 1 / p->temperature;
    double total = 0;
    for (size_t i = 0; i < k; i++)
        total += (double)qn_exp((heap[i].logit - largest) * inverse);
    double kept = 0;
    size_t n = k, n_kept = 0;
    while (n > 0) {
        const float weight = qn_exp((heap[0].logit - largest) * inverse);
        if (n_kept && (weight < p->min_p || kept >= (double)p->top_p * total))
            break;
        /* The taken one goes behind the heap: after the loop the kept are at the end, the likeliest last. */
        const struct candidate taken = heap[0];
        heap[0] = heap[--n];
        heap[n] = taken;
        sift_down(heap, n, 0, false);
        kept += (double)weight;
        n_kept++;
    }
    double point = draw_uniform(sampler) * kept;
    for (size_t i = k; i-- > k - n_kept;) {
        point -= (double)qn_exp((heap[i].logit - largest) * inverse);
        if (point < 0)
            return heap[i].token;
    }
    return heap[k - 1].token;
}

/* Whether any of them is NaN: the comparison is false for those alone, and summing it lets the compiler take many at once. */
static bool any_nan(const float *logits, size_t n)
{
    size_t sound = 0;
    for (size_t i = 0; i < n; i++)
        sound += logits[i] == logits[i];
    return sound != n;
}

qn_status qn_sampler_pick(qn_sampler *sampler, const float *logits, const qn_token *recent, size_t n_recent, qn_token *token)
{
    const size_t n = sampler->n_vocab;
    if (any_nan(logits, n))
        for (size_t i = 0; i < n; i++)
            if (isnan(logits[i]))
                return qn_fail(QN_ERR_INVALID, "logits: NaN for token %zu", i);
    logits = apply_penalty(sampler, recent, n_recent, logits);
    const size_t best = qn_argmax_row(&sampler->kernels.sample, logits, n);
    if (isinf(logits[best]))
        return qn_fail(QN_ERR_INVALID, "logits: the largest is %g, expected a finite one", (double)logits[best]);
    if (sampler->params.temperature < 1e-6f || sampler->params.top_k == 1) {
        *token = (qn_token)best;
        return QN_OK;
    }
    const size_t top_k = (size_t)sampler->params.top_k, k = top_k && top_k < n ? top_k : n;
    select_top(logits, n, sampler->candidates, k);
    *token = draw(sampler, k);
    return QN_OK;
}
