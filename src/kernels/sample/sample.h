/* Sampling a token from a row of logits. The engine owns the random generator and checks the ranges of the sampling
 * parameters. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_H
#define QN_KERNELS_SAMPLE_SAMPLE_H

#include "base/f16.h"
#include "base/status.h"
#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_sample_kernels {
    /* The largest of logits [n], n >= 1, none of them NaN. */
    float (*maximum)(const float *logits, size_t n);
} qn_sample_kernels;

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu);

/* qn_argmax_row - the index of the largest logit, the lowest index of equal ones. */
size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n);

/* ---- Sampling ---- */

/* What is sampled by, and the result. Applied in the order penalty, top_k, temperature, top_p, min_p; then a token is drawn.
 *
 * A token's weight is e^((logit - largest) / temperature) by qn_exp (kernels/canon.h), truncated to an integer number of units
 * of 2^-qn_sample_weight_bits(n). Integer sums do not depend on their order, so the same logits and the same random number
 * give the same token on every system and device. Tokens with a weight below one unit, about 1e-13 for a vocabulary of
 * 2^18, are never drawn. */
typedef struct qn_sample_request {
    qn_sampling sampling;   /* checked by qn_sampler_create; repeat_last_n and seed are not read: recent, random */
    const qn_token *recent; /* [n_recent] token ids that are penalised; ids outside the vocabulary are ignored */
    size_t n_recent;
    uint64_t random; /* uniformly distributed, 64 bits */
    /* the result */
    uint64_t best; /* qn_sample_key of the largest logit; qn_sample_status checks that it is finite */
    int32_t token; /* -1 if the largest logit is not finite */
} qn_sample_request;

#define QN_SAMPLE_MIN_TEMPERATURE 1e-6f

/* qn_sample_is_greedy - true if the token is the argmax and nothing is drawn. */
static inline bool qn_sample_is_greedy(const qn_sampling *sampling)
{
    return sampling->temperature < QN_SAMPLE_MIN_TEMPERATURE || sampling->top_k == 1;
}

/* qn_sample_top_k - the number of most likely tokens that top_k keeps of n. */
static inline size_t qn_sample_top_k(const qn_sampling *sampling, size_t n)
{
    return sampling->top_k > 0 && (size_t)sampling->top_k < n ? (size_t)sampling->top_k : n;
}

/* qn_sample_key - a key whose order is that of the tokens: larger for a larger logit, and for the lower index of equal logits.
 * NaN is larger than every number. */
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

/* qn_sample_is_finite - true if the logit of a key is finite. */
static inline bool qn_sample_is_finite(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32), magnitude = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered & 0x7fffffffu;
    return magnitude < 0x7f800000u;
}

/* qn_sample_status - QN_ERR_INVALID, with the value in the message, if the largest logit is NaN or infinite. */
qn_status qn_sample_status(uint64_t best);

/* qn_sample_weight_bits - fraction bits of a weight for a vocabulary of n, 1 to INT32_MAX: the largest number for which the
 * sum of all weights is at most 2^62. */
static inline int qn_sample_weight_bits(size_t n)
{
    int bits = 62;
    while (n > (size_t)1 << (62 - bits))
        bits--;
    return bits;
}

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
