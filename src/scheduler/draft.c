/* Drafts of forced text: decides whether to draft, and finds the tokens and their masks. */
#include "scheduler/draft.h"

#include <string.h>

/* Cost of one more row in a step of one row on a CPU, relative to that step. Next to rows of other sequences, a row
 * costs as much as a step of its own. */
static const float row_cost = 0.75f;
static const float first_chance = 0.95f, memory = 0.1f, recovery = 1.0f / 256;

qn_drafter qn_drafter_create(const qn_device *device, qn_jump_forward jump_forward, const qn_sampling *sampling,
                             bool excluded, qn_constraint *constraint)
{
    const bool is_wanted =
        jump_forward == QN_JUMP_FORWARD_ON || (jump_forward == QN_JUMP_FORWARD_AUTO && !device->vtable->launch);
    const bool is_on = is_wanted && !excluded && constraint->match && !sampling->mirostat && !device->piece;
    if (is_on && !qn_sample_is_greedy(sampling))
        constraint->accepts = NULL;
    return (qn_drafter){ .is_on = is_on, .is_lone = jump_forward == QN_JUMP_FORWARD_AUTO, .chance = first_chance };
}

/* The number of tokens whose chance of acceptance is worth their cost. If it is 0, the chance grows with time. */
static size_t find_length(qn_drafter *drafter)
{
    float chance = drafter->chance;
    size_t n = 0;
    for (; n < QN_DRAFT_TOKENS && chance >= row_cost; n++)
        chance *= drafter->chance;
    if (!n)
        drafter->chance += recovery * (1 - drafter->chance);
    return n;
}

static size_t find_forced(const qn_draft_input *in, qn_token tokens[QN_GRAMMAR_FORCED])
{
    size_t n;
    const qn_status status = qn_grammar_match_forced_tokens(in->constraint->match, in->tokenizer, in->tokens, in->n,
                                                            in->n_answer, tokens, &n);
    return status == QN_OK ? n : 0;
}

size_t qn_draft_find(qn_drafter *drafter, const qn_draft_input *in, size_t n_sequences, size_t most, uint32_t *masks)
{
    const size_t n_words = qn_sample_mask_words(in->n_vocab);
    qn_token forced[QN_GRAMMAR_FORCED];
    const bool is_wanted = drafter->is_on && (n_sequences == 1 || !drafter->is_lone);
    size_t n = is_wanted && most ? find_forced(in, forced) : 0;
    n = n < most ? n : most;
    const size_t length = n ? find_length(drafter) : 0;
    n = n < length ? n : length;
    if (!n)
        return 0;
    memcpy(in->tokens + in->n, forced, n * sizeof *forced);
    memset(masks, 0, n * n_words * sizeof *masks);
    const size_t n_masks = qn_grammar_match_masks(in->constraint->match, in->tokens + (in->n - in->n_answer),
                                                  in->n_answer, n, n_words, masks);
    if (!n_masks) /* they take too long, as will the next ones */
        qn_draft_count(drafter, n, 0);
    return n_masks;
}

bool qn_draft_expects(qn_drafter *drafter, const qn_draft_input *in)
{
    qn_token forced[QN_GRAMMAR_FORCED];
    return drafter->is_on && find_forced(in, forced) > 1 && find_length(drafter);
}

size_t qn_draft_accepted(const qn_token *draft, size_t n, const qn_sample_request *sampled)
{
    size_t accepted = 0;
    while (accepted < n && sampled[accepted].token == draft[accepted])
        accepted++;
    return accepted - (accepted && !qn_sample_is_finite(sampled[accepted].best));
}

void qn_draft_count(qn_drafter *drafter, size_t n, size_t n_accepted)
{
    for (size_t i = 0; i < n_accepted; i++)
        drafter->chance += memory * (1 - drafter->chance);
    if (n_accepted < n)
        drafter->chance -= memory * drafter->chance;
}
