/* Which tokens may follow in an answer. A token is sampled under a mask that is
 * made while the step is computed; or, on devices that compute on the host, and while few tokens are rejected, from the
 * whole vocabulary, and checked. */
#ifndef QN_SCHEDULER_CONSTRAINT_H
#define QN_SCHEDULER_CONSTRAINT_H

#include "engine/internal.h"

/* Zero: every token may follow. */
typedef struct qn_constraint {
    bool (*accepts)(void *user, const qn_token *answer, size_t n, qn_token token); /* as in qn_request_params */
    void (*mask)(void *user, const qn_token *answer, size_t n, uint32_t *allowed); /* a caller's; NULL with a grammar */
    void *user;
    qn_grammar *grammar; /* a reference, with its match, which is `user`; or NULL */
    qn_grammar_match *match;
    float rejected; /* of the tokens that were checked lately; 0 to 1 */
} qn_constraint;

static inline bool qn_constraint_exists(const qn_constraint *constraint)
{
    return constraint->mask || constraint->match;
}

/* qn_constraint_create - the constraint of a grammar.
 *
 *   repeats    after an end token the grammar begins again
 *   prompt     [n] its end says whether the answer begins in reasoning
 *   sampling   with filters of the vocabulary, tokens are not checked first: that would change their distribution
 *   out        free it with qn_constraint_free; zero for no grammar */
qn_status qn_constraint_create(qn_model *model, qn_grammar *grammar, const qn_grammar_trigger *trigger, bool repeats,
                               const qn_token *prompt, size_t n, const qn_sampling *sampling, qn_constraint *out);
void qn_constraint_free(qn_constraint *constraint);

/* qn_constraint_copy - the constraint of another answer to the same prompt, with the same grammar, trigger and
 * `repeats`, that has not begun. */
qn_status qn_constraint_copy(const qn_constraint *of, const qn_sampling *sampling, qn_constraint *out);

/* qn_held_biases - what holds back the tokens that end an answer, for min_tokens: biases of -inf.
 *
 *   bias    [n_bias] others, which come first
 *   out     [n_bias + *n_held] free it with qn_free; no more than the others without min_tokens */
qn_status qn_held_biases(const qn_model *model, int64_t min_tokens, bool ignore_end, const qn_token *stop_tokens,
                         size_t n_stop_tokens, const qn_logit_bias *bias, size_t n_bias, qn_logit_bias **out,
                         size_t *n_held);

/* qn_constraint_release - what a grammar demands goes before min_tokens: where the mask allows no tokens but those that
 * are held back, the last n_held biases of a request, the request loses these biases. */
void qn_constraint_release(const uint32_t *allowed, size_t n_vocab, size_t n_held, qn_sample_request *request);

/* qn_constraint_again - from the sample of a token that was rejected to that under the mask `allowed`, which need not
 * be there yet. */
void qn_constraint_again(const qn_constraint *constraint, const uint32_t *allowed, qn_sample_request *request);

/* qn_constraint_quick_mask - the same for a grammar, for which others wait: qn_grammar_match_quick_mask. */
bool qn_constraint_quick_mask(const qn_constraint *constraint, const qn_token *answer, size_t n, size_t n_vocab,
                              uint32_t *allowed);

/* qn_constraint_checks_first - whether a token of a grammar is better checked than masked. qn_constraint_count_check -
 * after a token was checked. qn_constraint_count_mask - after one was masked: some tokens later the next one is
 * checked. */
bool qn_constraint_checks_first(const qn_constraint *constraint);
void qn_constraint_count_check(qn_constraint *constraint, bool is_rejected);
void qn_constraint_count_mask(qn_constraint *constraint);

/* qn_constraint_mask - make the mask for what follows an answer of n tokens.
 *
 *   allowed   [qn_sample_mask_words(n_vocab)]
 *
 * QN_ERR_UNSUPPORTED as qn_grammar_match_mask. */
qn_status qn_constraint_mask(const qn_constraint *constraint, const qn_token *answer, size_t n, size_t n_vocab,
                             uint32_t *allowed);

#endif
