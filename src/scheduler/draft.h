/* Jump-forward: text that a grammar forces, as a draft. A step evaluates the tokens of the text after the last token of
 * the answer, and samples at each of them under the mask that holds there, with the random number that it would have
 * alone. The tokens that are sampled are kept up to the first that differs from the draft: answers are those of one
 * token a step, in fewer steps. */
#ifndef QN_SCHEDULER_DRAFT_H
#define QN_SCHEDULER_DRAFT_H

#include "scheduler/constraint.h"

enum { QN_DRAFT_TOKENS = 15 };

/* Zero: nothing is drafted. */
typedef struct qn_drafter {
    bool is_on;
    bool is_lone; /* only in steps without other sequences */
    float chance; /* that a token is accepted if those before it are, by the last ones; 0 to 1 */
} qn_drafter;

/* qn_drafter_create - whether an answer has drafts. With drafts its tokens are sampled under masks alone, unless
 * sampling is greedy: a token that is checked first and a masked one differ for the same random number, and how many
 * tokens are drafted depends on other requests.
 *
 *   excluded     the request has something that drafts do not support
 *   constraint   `accepts` is changed */
qn_drafter qn_drafter_create(const qn_device *device, qn_jump_forward jump_forward, const qn_sampling *sampling,
                             bool excluded, qn_constraint *constraint);

/* What a draft follows. */
typedef struct qn_draft_input {
    const qn_constraint *constraint;
    const qn_tokenizer *tokenizer;
    qn_token *tokens; /* [n] the prompt and the answer, with room for `most` others, where the draft is written */
    size_t n, n_answer;
    size_t n_vocab;
} qn_draft_input;

/* qn_draft_find - draft up to `most` tokens, as many as are likely enough to be accepted for what their rows cost.
 *
 *   n_sequences   that have rows in the step, this one included
 *   masks   [most, qn_sample_mask_words(n_vocab)] row i is the mask of what follows token i of the draft
 *
 * Returns the number of tokens: 0 where nothing is forced, where a mask fails or takes long, and sometimes where few
 * tokens were accepted lately. */
size_t qn_draft_find(qn_drafter *drafter, const qn_draft_input *input, size_t n_sequences, size_t most,
                     uint32_t *masks);

/* qn_draft_expects - whether the token that follows is forced and others after it: a draft is there when it is
 * known. */
bool qn_draft_expects(qn_drafter *drafter, const qn_draft_input *input);

/* qn_draft_accepted - how many tokens of a draft were sampled. Of these the last is left out where the sample after it
 * failed: it fails again in the next step, after the answer has the token.
 *
 *   draft    [n]
 *   sampled  [n + 1] */
size_t qn_draft_accepted(const qn_token *draft, size_t n, const qn_sample_request *sampled);

/* qn_draft_count - after n > 0 tokens were drafted. */
void qn_draft_count(qn_drafter *drafter, size_t n, size_t n_accepted);

#endif
