/* Sampling of a step's logits: the requests, and how a device computes them. engine/sampler.c makes requests,
 * kernels/sample and cuda/executor/sampling.c compute them. */
#ifndef QN_PLAN_SAMPLING_H
#define QN_PLAN_SAMPLING_H

#include "base/f16.h"
#include "base/status.h"
#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_sampling.dry_breakers, prepared. Each sequence is stored from its end to its beginning, followed by -1. */
typedef struct qn_sample_breakers {
    qn_token *tokens; /* [n_tokens] tokens of all sequences */
    size_t n_tokens;
    const qn_token **sequences; /* [n], sorted by their tokens */
    size_t n;
} qn_sample_breakers;

/* How a token is sampled, and the result. The steps are applied in this order:
 *
 *   mask, bias     tokens that are not allowed get the logit -inf. A token's DRY penalty, negated, is the first value
 *                  of its bias; other biases are added to it
 *   penalties      repeat_penalty once for each recent token; then, as OpenAI defines them, frequency_penalty times the
 *                  token's count in the generated text, and presence_penalty if it occurs there, are subtracted
 *   filters        top_n_sigma, top_k, temperature, typical_p, top_p and min_p, XTC
 *
 * Then a token is drawn. Every list ignores ids outside the vocabulary.
 *
 * A token's weight is e^((logit - largest) / temperature) by qn_exp (kernels/canon.h), truncated to an integer number
 * of units of 2^-qn_sample_weight_bits(n). Integer sums do not depend on their order, so the same logits and the same
 * random number give the same token on every system and device. Tokens with a weight below one unit, about 1e-13 for a
 * vocabulary of 2^18, are never drawn.
 *
 * Every filter keeps a range of the tokens in descending order, by sums of integers or comparisons of f32 and f64
 * values that all devices compute alike. Sums of weights are converted to f64. The raw weight of a token is its weight
 * before it is multiplied by unit = 2^qn_sample_weight_bits(n) and truncated:
 *
 *   top_n_sigma    keeps a token if d <= top_n_sigma * sqrt(n * sum of d * d - (sum of d)^2) / n, over the n tokens
 *                  with logits above -inf. d is the lesser of largest - logit and FLT_MAX, in units, truncated. The
 *                  unit is the power of two by which the largest d is less than 2^(qn_sample_weight_bits / 2), at least
 *                  2^-127
 *   typical_p      keeps the tokens whose qn_sample_surprisal differs from the mean by at most the smallest number for
 *                  which the sum of their weights is at least typical_p times the sum of all weights that top_k keeps.
 *                  The mean is the sum of surprisals times weights over the sum of the weights; these weights are
 *                  multiplied by 2^min(31, bits - 17) and truncated. The weights of later filters are relative to the
 *                  largest remaining logit
 *   top_p          ends before a token if the sum of the weights before it is at least top_p times the sum of all
 *                  weights that top_k keeps
 *   min_p          ends before a token if its raw weight is less than min_p
 *   XTC            applies if the upper 53 bits of the number that qn_splitmix returns after the state `random` are
 *                  below 2^53 xtc_probability. It drops the remaining tokens before the first one with a raw weight
 *                  below xtc_threshold * (sum of the remaining weights) / unit, except the last of them; tokens with a
 *                  weight of 0 do not count
 *   mirostat       replaces all other filters: ends before a token, but not before the first, if its raw weight is less
 *                  than qn_exp(-mirostat_mu ln 2) * (sum of all weights) / unit. On the CPU only */
typedef struct qn_sample_request {
    qn_sampling sampling;      /* checked by qn_sampler_create; repeat_last_n, seed and dry_breakers are not read */
    const qn_token *recent;    /* [n_recent] tokens that repeat_penalty applies to */
    const qn_token *generated; /* [n_generated] generated text, for frequency_penalty and presence_penalty */
    size_t n_recent, n_generated;
    const qn_token *text; /* [n_text] tokens that DRY searches for repetitions: the last dry_penalty_last_n */
    size_t n_text;
    const qn_sample_breakers *breakers; /* DRY's breakers, sorted; NULL: none */
    const qn_logit_bias *bias;          /* [n_bias]; two values for one token are added */
    size_t n_bias;
    float mirostat_mu;       /* in bits: mirostat drops tokens with more surprisal */
    const uint32_t *allowed; /* [qn_sample_mask_words(n)] bit t % 32 of word t / 32: token t is allowed; NULL: all are
                              */
    uint64_t random;         /* uniformly distributed, 64 bits */
    qn_logprobs *logprobs;   /* NULL: none. On entry n is the number of tokens to list; written if a token is sampled */
    bool logprobs_after;     /* they are of the distribution from which the token is drawn */
    /* NULL, or called by the device once before it samples the token, if possible while it computes the row. Sets the
     * members that depend on the tokens before it: `allowed`, `check`, the lists and mirostat_mu. Calls for different
     * rows may run at the same time on the team's threads. */
    void (*prepare)(void *user, struct qn_sample_request *request);
    /* NULL, or called by the device when the token is sampled, for one row at a time, on the thread that runs the step.
     * Returns NULL, or [n] floats that the device fills with the row's logits as the model computed them. Not together
     * with `allowed`. */
    float *(*check)(void *user, qn_token token);
    void *user; /* passed to prepare and check */
    /* result */
    uint64_t best;  /* qn_sample_key of the largest logit; qn_sample_status checks that it is finite */
    float surprise; /* with mirostat: -log2 of the token's probability among the tokens that remained; 0 for an argmax
                     */
    int32_t token;  /* -1 if the largest logit is not finite, as when no token is allowed */
} qn_sample_request;

static inline size_t qn_sample_mask_words(size_t n)
{
    return (n + 31) / 32;
}

#define QN_SAMPLE_MIN_TEMPERATURE 1e-6f

/* qn_sample_is_greedy - returns whether the token is the argmax, without drawing. */
static inline bool qn_sample_is_greedy(const qn_sampling *sampling)
{
    return sampling->temperature < QN_SAMPLE_MIN_TEMPERATURE || (sampling->top_k == 1 && !sampling->mirostat);
}

/* qn_sample_penalises_recent - returns whether recent tokens change the logits. */
static inline bool qn_sample_penalises_recent(const qn_sampling *sampling)
{
    return sampling->repeat_penalty != 1;
}

static inline bool qn_sample_penalises_generated(const qn_sampling *sampling)
{
    return sampling->frequency_penalty != 0 || sampling->presence_penalty != 0;
}

static inline bool qn_sample_has_dry(const qn_sampling *sampling)
{
    return sampling->dry_multiplier > 0 && sampling->dry_penalty_last_n != 0;
}

/* qn_sample_depends_on_text - returns whether a token depends on earlier tokens other than through the logits: the
 * request points to them, or mirostat needs the surprise of the last one. */
static inline bool qn_sample_depends_on_text(const qn_sampling *sampling)
{
    return qn_sample_penalises_recent(sampling) || qn_sample_penalises_generated(sampling) ||
           qn_sample_has_dry(sampling) || sampling->mirostat;
}

/* qn_sample_is_on_host - returns whether only the CPU has the filter, or the log probabilities after all filters; other
 * devices leave such a row to the host. */
static inline bool qn_sample_is_on_host(const qn_sampling *sampling, bool has_logprobs_after)
{
    return has_logprobs_after || (!qn_sample_is_greedy(sampling) && sampling->mirostat);
}

/* qn_sample_key - returns a key that orders tokens: larger for a larger logit, and for the lower index if logits are
 * equal. NaN is larger than every number. */
static inline uint64_t qn_sample_key(float logit, uint32_t index)
{
    const uint32_t bits = qn_f32_bits(logit + 0.0f); /* -0 is 0 */
    const uint32_t ordered = logit != logit ? UINT32_MAX : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)ordered << 32 | (UINT32_MAX - index);
}

static inline uint32_t qn_sample_key_index(uint64_t key)
{
    return UINT32_MAX - (uint32_t)key;
}

static inline float qn_sample_key_logit(uint64_t key)
{
    const uint32_t ordered = (uint32_t)(key >> 32);
    return qn_bits_f32(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

/* qn_sample_is_finite - returns whether the logit of a key is finite. */
static inline bool qn_sample_is_finite(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32),
                   magnitude = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered & 0x7fffffffu;
    return magnitude < 0x7f800000u;
}

/* qn_sample_status - returns QN_ERR_INVALID, with the value in the message, if the largest logit is NaN or infinite. It
 * is -inf if every token is excluded by its logit or by the mask. */
qn_status qn_sample_status(uint64_t best);

/* qn_sample_sort_breakers - sorts the breakers of a request. */
void qn_sample_sort_breakers(qn_sample_breakers *breakers);

#endif
