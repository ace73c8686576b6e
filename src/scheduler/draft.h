/* Drafts: tokens that are evaluated together with the last token of an answer, because they may follow it. A step
 * samples at each of them, with the random number, the penalties and the mask of a step of its own. Sampled tokens are
 * kept up to the first that differs from the draft: answers are the same as with one token per step, in fewer steps.
 *
 * The tokens are text that a grammar forces (jump-forward), or else what the request's drafter proposes
 * (engine/spec/drafter.h), or a draft model (draft_model.c). A proposal is also compared with the sampled tokens where
 * it was not drafted, so its chances are known before a row is spent on it.
 *
 * The drafts of a request are used by one thread at a time: the scheduler's step thread, and while a step is computed a
 * thread of the team (qn_sample_request.prepare), which calls qn_draft_expects. */
#ifndef QN_SCHEDULER_DRAFT_H
#define QN_SCHEDULER_DRAFT_H

#include "engine/spec/draft_sequence.h"
#include "engine/spec/drafter.h"
#include "engine/spec/ngram.h"
#include "scheduler/constraint.h"

/* What the model's draft head proposes: a chain of tokens, each of which takes a draft step, or a block of them, which
 * takes one. So how many there are is chosen before they are known, by how often tokens at their places were accepted.
 */
typedef struct qn_head_draft {
    bool is_asked;                  /* it is used even while it rests (engine/spec/head_use.h) */
    size_t most;                    /* tokens of a chain, or of a block */
    size_t block;                   /* rows of a block; 0: chains */
    bool has_begun;                 /* `acceptance` is set */
    qn_acceptance acceptance;       /* a token's class is its place in the chain */
    float chances[QN_DRAFT_TOKENS]; /* of the tokens of the next chain */
    qn_proposal proposal;
    size_t proposed_after; /* as in qn_drafts */
} qn_head_draft;

/* How the tokens of one answer are drafted. Zero: nothing is drafted. */
typedef struct qn_drafts {
    /* Forced text. */
    bool forces;
    bool is_lone; /* only in steps without other sequences */
    float chance; /* estimated chance that a token is accepted if all before it are, from recent drafts; 0 to 1 */

    /* Proposals. */
    bool proposes;
    bool always;         /* drafts whatever is proposed, without weighing the cost of rows */
    size_t most;         /* tokens of a draft */
    float simulated;     /* chance with which a drafted token is accepted, whatever is sampled; 0: as it is sampled */
    uint64_t random;     /* state of the generator for `simulated` */
    bool looks_up;       /* a drafter of its own proposes */
    qn_drafter *drafter; /* NULL before its first use, and without looks_up */
    qn_acceptance acceptance;
    qn_proposal proposal;
    size_t proposed_after;          /* tokens before the proposal; 0: there is none */
    float chances[QN_DRAFT_TOKENS]; /* of the proposal's tokens */
    bool has_head;                  /* the model's draft head proposes tokens, too */
    bool is_of_head;                /* what is drafted next, or was drafted last, are tokens of the head */
    qn_head_draft head;

    /* Proposals of the draft model. */
    bool follows;                /* it proposes */
    bool borrows;                /* `sequence` is the session's */
    bool is_of_model;            /* the proposal is the draft model's */
    float model_chance;          /* that a token of its proposals is accepted if all before it are */
    qn_draft_sequence *sequence; /* NULL before its first use */
} qn_drafts;

/* What the drafts of a request depend on. */
typedef struct qn_draft_options {
    const qn_device *device;
    const qn_sampling *sampling;
    qn_jump_forward jump_forward;
    qn_draft_kind kind; /* QN_DRAFT_AUTO: QN_DRAFT_NGRAM, and the draft model or else the draft head, if there is one:
                           the proposal of which most is expected */
    const qn_model *draft; /* the draft model; NULL: there is none */
    size_t block;          /* rows of a block of the draft head (qn_plan_head); 0: it makes chains */
    size_t block_tokens;   /* that a block proposes */
    bool always;
    size_t most; /* 0: the default */
    float simulated;
} qn_draft_options;

/* qn_drafts_create - Returns the drafts of an answer. There are none with mirostat and with a caller's mask, and none
 * of forced text on a device whose pieces have a fixed size. If forced text may be drafted, tokens are always sampled
 * under masks, unless sampling is greedy: checking first gives a different token for the same random number, and the
 * number of drafted tokens depends on other requests. For the same reason nothing is proposed where tokens are checked
 * first.
 *
 *   constraint   `accepts` is changed */
qn_drafts qn_drafts_create(const qn_draft_options *options, qn_constraint *constraint);

/* qn_drafts_free - Frees the drafter and the sequence of the draft model. */
void qn_drafts_free(qn_drafts *drafts);

/* qn_drafts_leave - Frees the sequence of the draft model; a later draft begins another one. */
void qn_drafts_leave(qn_drafts *drafts);

/* The text that a draft continues. All pointers are the caller's, valid during the call. */
typedef struct qn_draft_input {
    const qn_constraint *constraint;
    const qn_tokenizer *tokenizer;
    qn_token *tokens; /* [n] the prompt and the answer, with room for `most` others, where the draft is written */
    size_t n, n_answer;
    size_t n_vocab;
    const qn_written *written;    /* answers of other requests, or NULL */
    const char *scope;            /* lives as long as the drafts */
    const qn_acceptances *of_all; /* of the texts of the model, with whose chances this one begins */
} qn_draft_input;

/* ---- Forced text ---- */

/* qn_draft_find - Drafts up to `most` tokens of forced text: only tokens whose chance of acceptance is worth the cost
 * of their rows.
 *
 *   n_sequences   number of sequences with rows in the step, including this one
 *   masks         [most, qn_sample_mask_words(n_vocab)] row i is the mask of the token after token i of the draft
 *
 * Returns the number of tokens: 0 if nothing is forced, if a mask fails or takes long, and sometimes if few tokens were
 * accepted recently. */
size_t qn_draft_find(qn_drafts *drafts, const qn_draft_input *input, size_t n_sequences, size_t most, uint32_t *masks);

/* qn_draft_expects - Returns true if the next token and more tokens after it are forced: a draft can be made once the
 * next token is known. */
bool qn_draft_expects(qn_drafts *drafts, const qn_draft_input *input);

/* qn_draft_count - Updates the chance of forced text after n > 0 of its tokens were drafted. */
void qn_draft_count(qn_drafts *drafts, size_t n, size_t n_accepted);

/* ---- Proposals ---- */

/* qn_draft_propose - Has the drafter propose up to `most` tokens, with their chances: drafts->proposal. Without memory
 * there is no proposal. One that was made after the same tokens stays. */
void qn_draft_propose(qn_drafts *drafts, const qn_draft_input *input, size_t most);

/* qn_draft_expected - Returns how many tokens of a proposal of n are expected to be accepted, by their chances. */
float qn_draft_expected(const float *chances, size_t n);

/* qn_draft_take - Drafts the first n tokens of the proposal.
 *
 *   masks   as in qn_draft_find; NULL without a grammar
 *
 * Returns the number of tokens: fewer under a grammar that does not allow them, or whose masks take long. */
size_t qn_draft_take(qn_drafts *drafts, const qn_draft_input *input, size_t n, uint32_t *masks);

/* qn_draft_offer_head - Has the draft head offer up to `most` tokens, if that is more than what the drafter has
 * proposed after the same text. Sets head.chances. Returns the number of tokens; 0: the drafter's proposal stands. */
size_t qn_draft_offer_head(qn_drafts *drafts, const qn_draft_input *input, size_t most);

/* qn_draft_begin_chain - Makes a chain of the head, still empty, the proposal after n tokens. qn_draft_add_to_chain -
 * adds its next token; false if the chain ends before it. qn_draft_skip_chain - Notes that the head's offer was not
 * worth its time: what is expected of it returns to what was expected at first, little by little, so that it is tried
 * again. */
void qn_draft_begin_chain(qn_drafts *drafts, size_t n);
bool qn_draft_add_to_chain(qn_drafts *drafts, qn_token token);
void qn_draft_skip_chain(qn_drafts *drafts);

/* qn_draft_learn - Updates the chances, and those of all texts, by the tokens [n] that followed the first n_before
 * tokens. */
void qn_draft_learn(qn_drafts *drafts, qn_acceptances *of_all, size_t n_before, const qn_token *followed, size_t n);

/* ---- Results ---- */

/* qn_draft_simulate - With drafts->simulated: replaces sampled tokens [n + 1], as if the model had sampled tokens of
 * the draft [n] by chance. */
void qn_draft_simulate(qn_drafts *drafts, const qn_token *draft, size_t n, size_t n_vocab, qn_sample_request *sampled);

/* qn_draft_accepted - Returns how many tokens of a draft were sampled. The last of them is not counted if the sample
 * after it failed: that sample is then repeated in the next step, after the token was added to the answer.
 *
 *   draft    [n]
 *   sampled  [n + 1] */
size_t qn_draft_accepted(const qn_token *draft, size_t n, const qn_sample_request *sampled);

#endif
