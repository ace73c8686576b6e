/* What a step samples from its logits: requests, and what they ask of a device. */
#ifndef QN_PLAN_SAMPLING_H
#define QN_PLAN_SAMPLING_H

#include "base/f16.h"
#include "base/status.h"
#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_sampling.dry_breakers. Each sequence is from its end to its beginning, with -1 behind it. */
typedef struct qn_sample_breakers {
    qn_token *tokens; /* [n_tokens] of all sequences */
    size_t n_tokens;
    const qn_token **sequences; /* [n], sorted by their tokens */
    size_t n;
} qn_sample_breakers;

/* What is sampled by, and the result. Applied in this order:
 *
 *   mask, bias     tokens that are not allowed have the logit -inf. DRY's penalty of a token, negated, is the first
 *                  value of its bias, to which others are added
 *   penalties      repeat_penalty once for each recent token; then, as OpenAI defines them, frequency_penalty times the
 *                  count of the token in the generated text, and presence_penalty if it occurs there, are subtracted
 *   filters        top_n_sigma, top_k, temperature, typical_p, top_p and min_p, XTC
 *
 * and a token is drawn. Ids outside the vocabulary are ignored in every list.
 *
 * A token's weight is e^((logit - largest) / temperature) by qn_exp (kernels/canon.h), truncated to an integer number
 * of units of 2^-qn_sample_weight_bits(n). Integer sums do not depend on their order, so the same logits and the same
 * random number give the same token on every system and device. Tokens with a weight below one unit, about 1e-13 for a
 * vocabulary of 2^18, are never drawn.
 *
 * Every filter keeps a range of the tokens in descending order, by sums of integers or comparisons of f32 and f64
 * values that all devices compute alike. Sums of weights are converted to f64:
 *
 *   top_n_sigma    keeps a token if d <= top_n_sigma * sqrt(n * sum of d * d - (sum of d)^2) / n, over the n tokens
 *                  with logits above -inf. d is the lesser of largest - logit and FLT_MAX, in units, truncated. The
 *                  unit is the power of two by which the largest d is less than 2^(qn_sample_weight_bits / 2), at least
 *                  2^-127
 *   typical_p      keeps the tokens whose qn_sample_surprisal differs from the mean by at most the least number with
 *                  which the sum of their weights is at least typical_p times the sum of all that top_k keeps. The mean
 *                  is the sum of surprisals times weights over the sum of the weights, for weights with 2^min(31, bits
 *                  - 17) for unit, truncated. The weights of what follows are relative to the largest logit that is
 *                    left
 *   top_p          ends before a token if the sum of those before it is at least top_p times the sum of all that top_k
 *                  keeps
 *   min_p          ends before a token if its weight, before it is multiplied and truncated, is less than min_p
 *   XTC            applies if the upper 53 bits of the number that qn_splitmix gives after the state `random` are below
 *                  2^53 xtc_probability. Of the tokens that are left, those before the first one with a weight, before
 *                  it is multiplied and truncated, below xtc_threshold * (sum of the weights that are left) / unit are
 *                  dropped, but for the last of them; those with a weight of 0 do not count
 *   mirostat       applies instead of all others: ends before a token if its weight, before it is multiplied and
 *                  truncated, is less than qn_exp(-mirostat_mu ln 2) * (sum of all weights) / unit, after the first. On
 *                  the CPU only */
typedef struct qn_sample_request {
    qn_sampling sampling;      /* checked by qn_sampler_create; repeat_last_n, seed and dry_breakers are not read */
    const qn_token *recent;    /* [n_recent] tokens that repeat_penalty applies to */
    const qn_token *generated; /* [n_generated] the generated text, which frequency_penalty and presence_penalty apply
                                  to */
    size_t n_recent, n_generated;
    const qn_token *text; /* [n_text] the tokens that DRY searches for repetitions, the last dry_penalty_last_n ones */
    size_t n_text;
    const qn_sample_breakers *breakers; /* of DRY, sorted; NULL: none */
    const qn_logit_bias *bias;          /* [n_bias]; values of a token that occurs twice are added */
    size_t n_bias;
    float mirostat_mu;       /* bits: tokens with more surprisal are dropped */
    const uint32_t *allowed; /* [qn_sample_mask_words(n)] bit t % 32 of word t / 32: token t is allowed; NULL: all are
                              */
    uint64_t random;         /* uniformly distributed, 64 bits */
    qn_logprobs *logprobs;   /* NULL: none; written if a token is sampled. On entry n is the number of tokens to list */
    /* NULL, or called by the device once before the token is sampled, while the row is computed if it can: sets what
     * depends on the tokens before it, which are `allowed`, `check`, the lists and mirostat_mu. Rows at the same time,
     * on the team's threads. */
    void (*prepare)(void *user, struct qn_sample_request *request);
    /* NULL, or called by the device when the token is sampled, one row at a time on the thread that runs the step.
     * Returns NULL, or [n] floats that the device fills with the row's logits as the model computed them. Not together
     * with `allowed`. */
    float *(*check)(void *user, qn_token token);
    void *user; /* of prepare and check */
    /* the result */
    uint64_t best;  /* qn_sample_key of the largest logit; qn_sample_status checks that it is finite */
    float surprise; /* with mirostat: -log2 of the probability of the token among those that were left; 0 for an argmax
                     */
    int32_t token;  /* -1 if the largest logit is not finite, as when no token is allowed */
} qn_sample_request;

static inline size_t qn_sample_mask_words(size_t n)
{
    return (n + 31) / 32;
}

#define QN_SAMPLE_MIN_TEMPERATURE 1e-6f

/* qn_sample_is_greedy - true if the token is the argmax and nothing is drawn. */
static inline bool qn_sample_is_greedy(const qn_sampling *sampling)
{
    return sampling->temperature < QN_SAMPLE_MIN_TEMPERATURE || (sampling->top_k == 1 && !sampling->mirostat);
}

/* Whether the recent tokens, the generated text, and repetitions of the text change logits. */
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

/* qn_sample_depends_on_text - true if a token depends on the tokens before it otherwise than through the logits: the
 * request has pointers to them, or mirostat needs the surprise of the last one. */
static inline bool qn_sample_depends_on_text(const qn_sampling *sampling)
{
    return qn_sample_penalises_recent(sampling) || qn_sample_penalises_generated(sampling) ||
           qn_sample_has_dry(sampling) || sampling->mirostat;
}

/* qn_sample_is_on_host - true if only the CPU has the filter: other devices leave such a row to the host. */
static inline bool qn_sample_is_on_host(const qn_sampling *sampling)
{
    return !qn_sample_is_greedy(sampling) && sampling->mirostat;
}

/* qn_sample_key - a key whose order is that of the tokens: larger for a larger logit, and for the lower index of equal
 * logits. NaN is larger than every number. */
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

/* qn_sample_is_finite - true if the logit of a key is finite. */
static inline bool qn_sample_is_finite(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32),
                   magnitude = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered & 0x7fffffffu;
    return magnitude < 0x7f800000u;
}

/* qn_sample_status - QN_ERR_INVALID, with the value in the message, if the largest logit is NaN or infinite. -inf:
 * every token is excluded, by its logit or by the mask. */
qn_status qn_sample_status(uint64_t best);

/* qn_sample_sort_breakers - the order of the breakers of a request. */
void qn_sample_sort_breakers(qn_sample_breakers *breakers);

#endif
