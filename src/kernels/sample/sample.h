/* Choosing a token from a row of logits. Seeds, and what the filters' values may be, are the engine's. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_H
#define QN_KERNELS_SAMPLE_SAMPLE_H

#include "base/f16.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_sample_kernels {
    /* The largest of logits [n], n >= 1, none of them NaN. */
    float (*maximum)(const float *logits, size_t n);
} qn_sample_kernels;

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu);

/* qn_argmax_row - the index of the largest logit, the lowest of equals. */
size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n);

/* ---- The choice ---- */

/* How a token is chosen, and which it was. Fields are those of qn_sampling (quern/quern.h), in the order in which they work:
 * penalty, top_k, temperature, top_p, min_p, draw.
 *
 * A token's weight is e^((logit - largest) / temperature) by qn_exp (kernels/canon.h), as a whole number of units of
 * 2^-qn_sample_weight_bits(n), cut off. Sums of whole numbers do not depend on their order, so the same logits and the same
 * random number give the same token on every machine and device. Tokens less likely than a unit, about 1e-13 for a vocabulary
 * of 2^18, are never drawn. */
typedef struct qn_sample_request {
    float penalty;         /* 1: none */
    const int32_t *recent; /* [n_recent] tokens that it is for; others than those of the vocabulary do not count */
    size_t n_recent;
    uint32_t top_k;    /* 0: all */
    float temperature; /* below QN_SAMPLE_MIN_TEMPERATURE: the likeliest */
    float top_p, min_p;
    uint64_t random; /* 64 bits, as likely as any others */
    /* set by whoever chooses */
    uint64_t best; /* qn_sample_key of the largest logit: qn_sample_status says whether there is one */
    int32_t token; /* -1 where there is not */
} qn_sample_request;

#define QN_SAMPLE_MIN_TEMPERATURE 1e-6f

/* qn_sample_is_greedy - whether nothing is drawn. */
static inline bool qn_sample_is_greedy(const qn_sample_request *request)
{
    return request->temperature < QN_SAMPLE_MIN_TEMPERATURE || request->top_k == 1;
}

/* qn_sample_key - larger for likelier tokens: for larger logits, and of equals for the lower index. A NaN is larger than any
 * number. */
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

/* qn_sample_is_finite - whether a largest logit is. */
static inline bool qn_sample_is_finite(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32), magnitude = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered & 0x7fffffffu;
    return magnitude < 0x7f800000u;
}

/* qn_sample_status - QN_ERR_INVALID, naming what was found, where a largest logit is NaN or infinite. */
qn_status qn_sample_status(uint64_t best);

/* qn_sample_weight_bits - of a vocabulary of n, 1 to INT32_MAX: the sum of all weights is at most 2^62. */
static inline int qn_sample_weight_bits(size_t n)
{
    int bits = 62;
    while (n > (size_t)1 << (62 - bits))
        bits--;
    return bits;
}

/* qn_sample_scratch_bytes - what qn_sample_token needs for a vocabulary of n, 1 to INT32_MAX. */
size_t qn_sample_scratch_bytes(size_t n);

/* qn_sample_token - sets choice->best and choice->token for logits [n], which it does not change. scratch: at a multiple of
 * 8. */
void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n,
                     void *scratch);

void qn_sample_init_ref(qn_sample_kernels *kernels);
void qn_sample_init_avx2(qn_sample_kernels *kernels);
void qn_sample_init_avx512(qn_sample_kernels *kernels);
void qn_sample_init_neon(qn_sample_kernels *kernels);

#endif
