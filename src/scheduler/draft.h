/* Jump-forward: text that a grammar forces, as a draft. A step evaluates the tokens of the text after the last token of
 * the answer, and samples at each of them under the mask of its position, with the random number of a step of its own.
 * Sampled tokens are kept up to the first that differs from the draft: answers are the same as with one token per step,
 * in fewer steps.
 *
 * A drafter is used by one thread at a time: the scheduler's step thread, and while a step is computed a thread of the
 * team (qn_sample_request.prepare), which calls qn_draft_expects. */
#ifndef QN_SCHEDULER_DRAFT_H
#define QN_SCHEDULER_DRAFT_H

#include "scheduler/constraint.h"

enum { QN_DRAFT_TOKENS = 15 };

/* How the tokens of one answer are drafted. Zero: nothing is drafted. */
typedef struct qn_drafter {
    bool is_on;
    bool is_lone; /* only in steps without other sequences */
    float chance; /* estimated chance that a token is accepted if all before it are, from recent drafts; 0 to 1 */
} qn_drafter;

/* qn_drafter_create - Returns the drafter of an answer; is_on is false if the answer has no drafts. With drafts, tokens
 * are always sampled under masks, unless sampling is greedy: checking first gives a different token for the same random
 * number, and the number of drafted tokens depends on other requests.
 *
 *   excluded     the request uses a feature that drafts do not support
 *   constraint   `accepts` is changed */
qn_drafter qn_drafter_create(const qn_device *device, qn_jump_forward jump_forward, const qn_sampling *sampling,
                             bool excluded, qn_constraint *constraint);

/* The text that a draft continues. All pointers are the caller's, valid during the call. */
typedef struct qn_draft_input {
    const qn_constraint *constraint;
    const qn_tokenizer *tokenizer;
    qn_token *tokens; /* [n] the prompt and the answer, with room for `most` others, where the draft is written */
    size_t n, n_answer;
    size_t n_vocab;
} qn_draft_input;

/* qn_draft_find - Drafts up to `most` tokens: only tokens whose chance of acceptance is worth the cost of their rows.
 *
 *   n_sequences   number of sequences with rows in the step, including this one
 *   masks         [most, qn_sample_mask_words(n_vocab)] row i is the mask of the token after token i of the draft
 *
 * Returns the number of tokens: 0 if nothing is forced, if a mask fails or takes long, and sometimes if few tokens were
 * accepted recently. */
size_t qn_draft_find(qn_drafter *drafter, const qn_draft_input *input, size_t n_sequences, size_t most,
                     uint32_t *masks);

/* qn_draft_expects - Returns true if the next token and more tokens after it are forced: a draft can be made once the
 * next token is known. */
bool qn_draft_expects(qn_drafter *drafter, const qn_draft_input *input);

/* qn_draft_accepted - Returns how many tokens of a draft were sampled. The last of them is not counted if the sample
 * after it failed: that sample is then repeated in the next step, after the token was added to the answer.
 *
 *   draft    [n]
 *   sampled  [n + 1] */
size_t qn_draft_accepted(const qn_token *draft, size_t n, const qn_sample_request *sampled);

/* qn_draft_count - Updates the chance of acceptance after n > 0 tokens were drafted. */
void qn_draft_count(qn_drafter *drafter, size_t n, size_t n_accepted);

#endif
