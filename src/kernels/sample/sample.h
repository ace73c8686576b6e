/* Sampling a token from a row of logits on the CPU, as a request says (plan/sampling.h). The engine owns the random
 * generator and checks the ranges of the sampling parameters. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_H
#define QN_KERNELS_SAMPLE_SAMPLE_H

#include "kernels/sample/adjust.h"
#include "plan/sampling.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weights of tokens: qn_exp((logit - largest) * inverse) * unit, truncated to an integer. */
typedef struct qn_sample_scale {
    float largest; /* at least every logit, finite */
    float inverse; /* 1 / temperature */
    float unit;    /* 2^qn_sample_weight_bits(n) */
} qn_sample_scale;

enum { QN_SAMPLE_THRESHOLDS = 4 };

/* Sums over the logits above -inf, of which there are n: d is the lesser of largest - logit and FLT_MAX,
 * times inverse, truncated to an integer. */
typedef struct qn_sample_moments {
    uint64_t n, sum, squares; /* of d, of d * d */
} qn_sample_moments;

/* A token's surprisal above that of the most likely one, (largest - logit) * inverse, in units of 2^-10, truncated.
 * Beyond the bound of the exponential weights are 0. */
enum { QN_SAMPLE_SURPRISALS = 86 * 1024 };

static inline uint32_t qn_sample_surprisal(const qn_sample_scale *scale, float logit)
{
    const float x = (logit - scale->largest) * scale->inverse * -1024.0f;
    return x < (float)QN_SAMPLE_SURPRISALS ? (uint32_t)x : (uint32_t)QN_SAMPLE_SURPRISALS;
}

/* Passes over logits [n]: n >= 1 for maximum, n >= 0 for the others, whose logits are not NaN. Comparisons are those of
 * floats. Sums of weights are at most 2^62. */
typedef struct qn_sample_kernels {
    /* The largest; NaN if any is NaN. */
    float (*maximum)(const float *logits, size_t n);
    /* The index of the first logit that equals value; n: none does. */
    size_t (*find)(const float *logits, size_t n, float value);
    /* weights [n]. */
    void (*weigh)(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *weights);
    /* The sum of the weights. */
    uint64_t (*sum)(const qn_sample_scale *scale, const float *logits, size_t n);
    /* The sum of the weights, and the sums of the weights of the logits above each threshold. */
    uint64_t (*sum_above)(const qn_sample_scale *scale, const float *logits, size_t n,
                          const float thresholds[QN_SAMPLE_THRESHOLDS], uint64_t sums[QN_SAMPLE_THRESHOLDS]);
    /* The number of logits above -inf, and above each threshold. */
    uint64_t (*count_above)(const float *logits, size_t n, const float thresholds[QN_SAMPLE_THRESHOLDS],
                            uint64_t counts[QN_SAMPLE_THRESHOLDS]);
    /* The largest logit with qn_exp((logit - largest) * inverse) < weight; -inf: there is none. */
    float (*largest_below)(const qn_sample_scale *scale, const float *logits, size_t n, float weight);
    /* The least logit above -inf; inf: there is none. */
    float (*least)(const float *logits, size_t n);
    /* For d below 2^31 and sums below 2^62. */
    qn_sample_moments (*moments)(const float *logits, size_t n, float largest, float inverse);
    /* The sum of the weights times qn_sample_surprisal, for weights up to 2^31 whose sum is at most 2^45; and their
     * sum. */
    uint64_t (*sum_surprisals)(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *total);
    /* Copy the logits with above < logit <= up_to to out [n], and their ids, or their indices where ids is NULL, to
     * out_ids [n], in order; returns their number, and overwrites any elements after them. out and out_ids may be
     * logits and ids. */
    size_t (*select)(const float *logits, const uint32_t *ids, size_t n, float above, float up_to, float *out,
                     uint32_t *out_ids);
    /* The same for the logits whose bits are set in allowed [qn_sample_mask_words(n)], which may be NaN. */
    size_t (*select_allowed)(const float *logits, const uint32_t *allowed, size_t n, float *out, uint32_t *out_ids);
} qn_sample_kernels;

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu);

/* qn_argmax_row - the index of the largest logit, the lowest index of equal ones; 0 if any is NaN. */
size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n);

/* ---- Sampling ---- */

_Static_assert((int)QN_SAMPLE_TOP_LOGPROBS == (int)QN_MAX_LOGPROBS, "the kernels list as many tokens as the interface");

/* qn_sample_n_top - the number of tokens listed, of a vocabulary of n. */
static inline uint32_t qn_sample_n_top(const qn_logprobs *logprobs, size_t n)
{
    const uint32_t n_top = logprobs->n < QN_SAMPLE_TOP_LOGPROBS ? logprobs->n : QN_SAMPLE_TOP_LOGPROBS;
    return n_top < n ? n_top : (uint32_t)n;
}

/* qn_sample_top_k - the number of most likely tokens that top_k keeps of n. */
static inline size_t qn_sample_top_k(const qn_sampling *sampling, size_t n)
{
    return sampling->top_k > 0 && (size_t)sampling->top_k < n ? (size_t)sampling->top_k : n;
}

/* qn_sample_weight_bits - fraction bits of a weight for a vocabulary of n, 1 to INT32_MAX: the largest number for which
 * the sum of all weights is at most 2^62. */
static inline int qn_sample_weight_bits(size_t n)
{
    int bits = 62;
    while (n > (size_t)1 << (62 - bits))
        bits--;
    return bits;
}

/* qn_sample_xtc_applies - the chance of XTC is another random number, made from the request's: a request has one. */
bool qn_sample_xtc_applies(const qn_sample_request *request);

/* qn_sample_list_entries - the tokens whose logits bias or penalties change, each once, with what changes them.
 *
 *   entries   [qn_sample_max_entries(request, n)]
 *   slots     [n] zero, and zero again afterwards
 *
 * Returns the number of entries. */
size_t qn_sample_max_entries(const qn_sample_request *request, size_t n);
size_t qn_sample_list_entries(const qn_sample_request *request, size_t n, uint32_t *slots, qn_sample_entry *entries);

/* qn_sample_set_logprobs - from sums and keys over the unchanged logits to log probabilities.
 *
 *   largest   key of the largest logit
 *   total     sum of the weights at temperature 1
 *   top       [logprobs->n] keys, descending; not read beyond n
 *   chosen    the logit of the sampled token */
void qn_sample_set_logprobs(qn_logprobs *logprobs, size_t n, uint64_t largest, uint64_t total, const uint64_t *top,
                            float chosen);

/* qn_sample_scratch_bytes - scratch of qn_sample_token for a vocabulary of n, 1 to INT32_MAX. */
size_t qn_sample_scratch_bytes(size_t n);

/* qn_sample_token - set request->best and request->token for logits [n], which are not changed. scratch:
 * qn_sample_scratch_bytes(n) bytes, at a multiple of 8 bytes. */
void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n,
                     void *scratch);

void qn_sample_init_ref(qn_sample_kernels *kernels);
void qn_sample_init_avx2(qn_sample_kernels *kernels);
void qn_sample_init_avx512(qn_sample_kernels *kernels);
void qn_sample_init_neon(qn_sample_kernels *kernels);

#endif
