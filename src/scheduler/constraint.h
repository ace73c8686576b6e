/* The constraint of an answer: which tokens may follow. A token is sampled under a mask that is made while the step is
 * computed. On devices that compute on the host, and while few tokens are rejected, it is sampled from the whole
 * vocabulary and checked instead.
 *
 * A constraint is used by one thread at a time: the scheduler's step thread, during a step a thread of the team
 * (qn_sample_request.prepare), and after a rejection the thread that makes the mask. */
#ifndef QN_SCHEDULER_CONSTRAINT_H
#define QN_SCHEDULER_CONSTRAINT_H

#include "engine/internal.h"

/* Zero: every token may follow. */
typedef struct qn_constraint {
    bool (*accepts)(void *user, const qn_token *answer, size_t n, qn_token token); /* as in qn_request_params */
    void (*mask)(void *user, const qn_token *answer, size_t n, uint32_t *allowed); /* a caller's; NULL with a grammar */
    void *user;
    qn_grammar *grammar; /* a reference, or NULL; `user` is then `match` */
    qn_grammar_match *match;
    float rejected; /* estimate: fraction of recently checked tokens that were rejected; 0 to 1 */
} qn_constraint;

static inline bool qn_constraint_exists(const qn_constraint *constraint)
{
    return constraint->mask || constraint->match;
}

/* qn_constraint_create - Creates the constraint of a grammar, on any thread. It takes a reference of the grammar.
 *
 *   repeats    the grammar restarts after an end token
 *   prompt     [n] its end determines whether the answer begins in reasoning; not kept
 *   sampling   with filters of the vocabulary, tokens are not checked first: that would change their distribution
 *   out        free it with qn_constraint_free; zero for no grammar */
qn_status qn_constraint_create(qn_model *model, qn_grammar *grammar, const qn_grammar_trigger *trigger, bool repeats,
                               const qn_token *prompt, size_t n, const qn_sampling *sampling, qn_constraint *out);
void qn_constraint_free(qn_constraint *constraint);

/* qn_constraint_copy - Copies the constraint of an answer that has not begun, for another answer to the same prompt
 * with the same grammar, trigger and `repeats`. */
qn_status qn_constraint_copy(const qn_constraint *of, const qn_sampling *sampling, qn_constraint *out);

/* qn_held_biases - Appends biases of -inf for the tokens that end an answer, for min_tokens.
 *
 *   bias    [n_bias] the request's own biases, which come first
 *   out     [n_bias + *n_held] free it with qn_free; *n_held is 0 without min_tokens */
qn_status qn_held_biases(const qn_model *model, int64_t min_tokens, bool ignore_end, const qn_token *stop_tokens,
                         size_t n_stop_tokens, const qn_logit_bias *bias, size_t n_bias, qn_logit_bias **out,
                         size_t *n_held);

/* qn_constraint_release - Removes the last n_held biases of a request if the mask allows only tokens that they hold
 * back: a grammar takes precedence over min_tokens. */
void qn_constraint_release(const uint32_t *allowed, size_t n_vocab, size_t n_held, qn_sample_request *request);

/* qn_constraint_again - Prepares the resample under `allowed` after a rejection. The mask may be made later. */
void qn_constraint_again(const qn_constraint *constraint, const uint32_t *allowed, qn_sample_request *request);

/* qn_constraint_quick_mask - Makes a grammar's mask while other requests wait, or returns false if that takes too long:
 * qn_grammar_match_quick_mask. */
bool qn_constraint_quick_mask(const qn_constraint *constraint, const qn_token *answer, size_t n, size_t n_vocab,
                              uint32_t *allowed);

/* qn_constraint_checks_first - Returns true if checking the next token is expected to be cheaper than masking it. */
bool qn_constraint_checks_first(const qn_constraint *constraint);

/* qn_constraint_count_check - Updates the rejection rate after a token was checked. */
void qn_constraint_count_check(qn_constraint *constraint, bool is_rejected);

/* qn_constraint_count_mask - Lowers the rejection rate after a token was masked, so that some tokens later a token is
 * checked again. */
void qn_constraint_count_mask(qn_constraint *constraint);

/* qn_constraint_mask - Makes the mask of the token that follows an answer of n tokens.
 *
 *   allowed   [qn_sample_mask_words(n_vocab)]
 *
 * QN_ERR_UNSUPPORTED as qn_grammar_match_mask. */
qn_status qn_constraint_mask(const qn_constraint *constraint, const qn_token *answer, size_t n, size_t n_vocab,
                             uint32_t *allowed);

#endif
