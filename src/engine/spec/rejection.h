/* The rejection rule of speculative sampling, for drafters that draw their tokens from a distribution of their own. A
 * drafter that proposes a token for certain needs none: the step samples as it would alone, and the draft is accepted
 * while it is what was sampled, which has the same distribution, and the same tokens as without drafts
 * (scheduler/draft.h). */
#ifndef QN_ENGINE_SPEC_REJECTION_H
#define QN_ENGINE_SPEC_REJECTION_H

#include "quern/quern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_rejection_sample - accepts a drafted token or draws another one, such that the result has the distribution p
 * whatever q is: accepts with probability min(1, p(t) / q(t)), else draws from max(0, p - q), normalised.
 *
 *   p, q      [n] weights >= 0, each with a finite sum above 0; they need not be normalised
 *   drafted   drawn from q: q[drafted] > 0
 *   random    state of the generator (base/splitmix.h); two numbers are taken, whether accepted or not
 *   token     the result
 *
 * Returns true if the drafted token was accepted. Method: Leviathan, Kalman and Matias, Fast Inference from
 * Transformers via Speculative Decoding (2023), appendix A.1. */
bool qn_rejection_sample(const float *p, const float *q, size_t n, qn_token drafted, uint64_t *random, qn_token *token);

#endif
