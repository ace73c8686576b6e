/* DRY ("don't repeat yourself"): penalties of tokens that would continue a repetition of earlier text. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_DRY_H
#define QN_KERNELS_SAMPLE_SAMPLE_DRY_H

#include "kernels/sample/sample.h"

/* A match that exceeds dry_allowed_length by more than QN_SAMPLE_DRY_GROWTH counts as that long: this bounds the time.
 * No penalty is above QN_SAMPLE_DRY_MOST; a token with that penalty is never drawn. */
enum { QN_SAMPLE_DRY_GROWTH = 128, QN_SAMPLE_DRY_MOST = 1000000 };

/* qn_sample_ends_breaker - returns whether one of the breakers, which may be NULL, ends at the last of n tokens. `last`
 * points to that token. */
bool qn_sample_ends_breaker(const qn_sample_breakers *breakers, const qn_token *last, size_t n);

/* qn_sample_dry_longest - returns the limit of a match's length: the number of tokens after the last breaker in the
 * text, at most the length beyond which the penalty does not grow. */
size_t qn_sample_dry_longest(const qn_sample_request *request);

/* qn_sample_dry_penalty - returns the penalty of token request->text[at] as the next token. It grows with the match:
 * the longest common suffix of the tokens before `at` and the text. 0 if the match is shorter than dry_allowed_length,
 * or if the token is a breaker. */
float qn_sample_dry_penalty(const qn_sample_request *request, size_t longest, size_t at);

#endif
