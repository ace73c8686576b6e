/* Sampling a token from a row of logits on the CPU, as a request describes (plan/sampling.h). The engine owns the
 * random generator and checks the ranges of the sampling parameters. */
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

/* Sums over the n logits above -inf: d is the lesser of largest - logit and FLT_MAX, times inverse, truncated to an
 * integer. */
typedef struct qn_sample_moments {
    uint64_t n, sum, squares; /* sum of d, sum of d * d */
} qn_sample_moments;

/* A token's surprisal minus that of the most likely token, (largest - logit) * inverse, in units of 2^-10, truncated.
 * The limit is the bound of the exponential: beyond it weights are 0. */
enum { QN_SAMPLE_SURPRISALS = 86 * 1024 };

static inline uint32_t qn_sample_surprisal(const qn_sample_scale *scale, float logit)
{
    const float x = (logit - scale->largest) * scale->inverse * -1024.0f;
    return x < (float)QN_SAMPLE_SURPRISALS ? (uint32_t)x : (uint32_t)QN_SAMPLE_SURPRISALS;
}

/* Passes over logits [n]. n >= 1 for maximum and n >= 0 for the others, whose logits must not be NaN. Comparisons are
 * float comparisons. Sums of weights are at most 2^62. */
typedef struct qn_sample_kernels {
    /* Returns the largest logit; NaN if any is NaN. */
    float (*maximum)(const float *logits, size_t n);
    /* Returns the index of the first logit that equals value; n if none does. */
    size_t (*find)(const float *logits, size_t n, float value);
    /* Computes weights [n]. */
    void (*weigh)(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *weights);
    /* Returns the sum of the weights. */
    uint64_t (*sum)(const qn_sample_scale *scale, const float *logits, size_t n);
    /* Returns the sum of the weights; sums: the sums of the weights of logits above each threshold. */
    uint64_t (*sum_above)(const qn_sample_scale *scale, const float *logits, size_t n,
                          const float thresholds[QN_SAMPLE_THRESHOLDS], uint64_t sums[QN_SAMPLE_THRESHOLDS]);
    /* Returns the number of logits above -inf; counts: the numbers of logits above each threshold. */
    uint64_t (*count_above)(const float *logits, size_t n, const float thresholds[QN_SAMPLE_THRESHOLDS],
                            uint64_t counts[QN_SAMPLE_THRESHOLDS]);
    /* Returns the largest logit with qn_exp((logit - largest) * inverse) < weight; -inf if there is none. */
    float (*largest_below)(const qn_sample_scale *scale, const float *logits, size_t n, float weight);
    /* Returns the smallest logit above -inf; inf if there is none. */
    float (*least)(const float *logits, size_t n);
    /* Returns the moments, for d below 2^31 and sums below 2^62. */
    qn_sample_moments (*moments)(const float *logits, size_t n, float largest, float inverse);
    /* Returns the sum of the weights times qn_sample_surprisal, and in *total the sum of the weights, for weights up to
     * 2^31 whose sum is at most 2^45. */
    uint64_t (*sum_surprisals)(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *total);
    /* Copies the logits with above < logit <= up_to to out [n], and their ids, or their indices if ids is NULL, to
     * out_ids [n], in order. Returns their number; elements after them are undefined. out and out_ids may be logits and
     * ids. */
    size_t (*select)(const float *logits, const uint32_t *ids, size_t n, float above, float up_to, float *out,
                     uint32_t *out_ids);
    /* Copies the logits whose bits are set in allowed [qn_sample_mask_words(n)], which may be NaN, to out [n] and their
     * indices to out_ids [n], like `select`. */
    size_t (*select_allowed)(const float *logits, const uint32_t *allowed, size_t n, float *out, uint32_t *out_ids);
} qn_sample_kernels;

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu);

/* qn_argmax_row - returns the index of the largest logit, the lowest index if several are equal; 0 if any is NaN. */
size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n);

/* ---- Sampling ---- */

_Static_assert((int)QN_SAMPLE_TOP_LOGPROBS == (int)QN_MAX_LOGPROBS, "the kernels list as many tokens as the interface");

/* qn_sample_n_top - returns the number of tokens that are listed, for a vocabulary of n. */
static inline uint32_t qn_sample_n_top(const qn_logprobs *logprobs, size_t n)
{
    const uint32_t n_top = logprobs->n < QN_SAMPLE_TOP_LOGPROBS ? logprobs->n : QN_SAMPLE_TOP_LOGPROBS;
    return n_top < n ? n_top : (uint32_t)n;
}

/* qn_sample_top_k - returns the number of tokens that top_k keeps of n: the most likely ones. */
static inline size_t qn_sample_top_k(const qn_sampling *sampling, size_t n)
{
    return sampling->top_k > 0 && (size_t)sampling->top_k < n ? (size_t)sampling->top_k : n;
}

/* qn_sample_weight_bits - returns the number of fraction bits of a weight for a vocabulary of n, 1 to INT32_MAX: the
 * largest number for which the sum of all weights is at most 2^62. */
static inline int qn_sample_weight_bits(size_t n)
{
    int bits = 62;
    while (n > (size_t)1 << (62 - bits))
        bits--;
    return bits;
}

/* qn_sample_xtc_applies - returns whether XTC ("exclude top choices", qn_sampling.xtc_probability) applies. Its random
 * number is derived from request->random, because a request has only one. */
bool qn_sample_xtc_applies(const qn_sample_request *request);

/* qn_sample_max_entries - returns a limit of the number of entries of a request. */
size_t qn_sample_max_entries(const qn_sample_request *request, size_t n);

/* qn_sample_list_entries - lists the tokens whose logits bias or penalties change, each once, with the changes.
 *
 *   entries   [qn_sample_max_entries(request, n)]
 *   slots     [n] zeros, and zeros again afterwards
 *
 * Returns the number of entries. */
size_t qn_sample_list_entries(const qn_sample_request *request, size_t n, uint32_t *slots, qn_sample_entry *entries);

/* qn_sample_set_logprobs - computes log probabilities from sums and keys over the unchanged logits.
 *
 *   largest   key of the largest logit
 *   total     sum of the weights at temperature 1
 *   top       [logprobs->n] keys, descending; keys beyond n are not read
 *   chosen    the logit of the sampled token */
void qn_sample_set_logprobs(qn_logprobs *logprobs, size_t n, uint64_t largest, uint64_t total, const uint64_t *top,
                            float chosen);

/* qn_sample_scratch_bytes - returns the scratch bytes of qn_sample_token for a vocabulary of n, 1 to INT32_MAX. */
size_t qn_sample_scratch_bytes(size_t n);

/* qn_sample_token - samples a token: sets the results of the request for logits [n], which are not changed. scratch:
 * qn_sample_scratch_bytes(n) bytes, aligned to 8 bytes. */
void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n,
                     void *scratch);

void qn_sample_init_ref(qn_sample_kernels *kernels);
void qn_sample_init_avx2(qn_sample_kernels *kernels);
void qn_sample_init_avx512(qn_sample_kernels *kernels);
void qn_sample_init_neon(qn_sample_kernels *kernels);

#endif
