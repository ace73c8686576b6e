/* DRY ("don't repeat yourself"): penalties of the tokens that would continue a sequence of the text which has occurred
 * before. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_DRY_H
#define QN_KERNELS_SAMPLE_SAMPLE_DRY_H

#include "kernels/sample/sample.h"

/* Matches that are longer than dry_allowed_length by more than QN_SAMPLE_DRY_GROWTH count as if they were that long:
 * this bounds the time. No penalty is above QN_SAMPLE_DRY_MOST, after which a token is never drawn. */
enum { QN_SAMPLE_DRY_GROWTH = 128, QN_SAMPLE_DRY_MOST = 1000000 };

/* qn_sample_ends_breaker - whether one of the breakers, which may be NULL, ends with the last of n tokens, to which
 * `last` points. */
bool qn_sample_ends_breaker(const qn_sample_breakers *breakers, const qn_token *last, size_t n);

/* qn_sample_dry_longest - the length of the longest match that can occur or differ: of the tokens after the last
 * breaker. */
size_t qn_sample_dry_longest(const qn_sample_request *request);

/* qn_sample_dry_penalty - the penalty of token `at` of request->text, for what precedes it there: 0 if that, the
 * longest common suffix with the text, is shorter than dry_allowed_length, or if the token is a breaker. */
float qn_sample_dry_penalty(const qn_sample_request *request, size_t longest, size_t at);

#endif
