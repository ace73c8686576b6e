/* Drafts of forced text: when there is one, its tokens and their masks. */
#include "engine/draft.h"

#include <string.h>

/* Below this part of accepted tokens drafts rest. While they do, the part grows. */
static const float least_accepted = 0.4f, recovery = 1.0f / 256;

qn_drafter qn_drafter_create(const qn_device *device, qn_jump_forward jump_forward, const qn_sampling *sampling, bool excluded,
                             qn_constraint *constraint)
{
    const bool is_wanted =
        jump_forward == QN_JUMP_FORWARD_ON || (jump_forward == QN_JUMP_FORWARD_AUTO && !device->vtable->launch);
    const bool is_on = is_wanted && !excluded && constraint->match && !sampling->mirostat && !device->piece;
    if (is_on && !qn_sample_is_greedy(sampling))
        constraint->accepts = NULL;
    return (qn_drafter){ .is_on = is_on, .accepted = 1 };
}

static bool rests(qn_drafter *drafter)
{
    const bool is_resting = drafter->accepted < least_accepted;
    if (is_resting)
        drafter->accepted += recovery * (1 - drafter->accepted);
    return is_resting;
}

static size_t find_forced(const qn_draft_input *in, qn_token tokens[QN_GRAMMAR_FORCED])
{
    size_t n;
    const qn_status status =
        qn_grammar_match_forced_tokens(in->constraint->match, in->tokenizer, in->tokens, in->n, in->n_answer, tokens, &n);
    return status == QN_OK ? n : 0;
}

size_t qn_draft_find(qn_drafter *drafter, const qn_draft_input *in, size_t most, uint32_t *masks)
{
    const size_t n_words = qn_sample_mask_words(in->n_vocab);
    qn_token forced[QN_GRAMMAR_FORCED];
    if (!drafter->is_on || !most)
        return 0;
    const size_t n_forced = find_forced(in, forced), n = n_forced < most ? n_forced : most;
    if (!n || rests(drafter))
        return 0;
    memcpy(in->tokens + in->n, forced, n * sizeof *forced);
    memset(masks, 0, n * n_words * sizeof *masks);
    return qn_grammar_match_masks(in->constraint->match, in->tokens + (in->n - in->n_answer), in->n_answer, n, n_words, masks);
}

bool qn_draft_expects(qn_drafter *drafter, const qn_draft_input *in)
{
    qn_token forced[QN_GRAMMAR_FORCED];
    return drafter->is_on && find_forced(in, forced) > 1 && !rests(drafter);
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
    drafter->accepted += 0.25f * ((float)n_accepted / (float)n - drafter->accepted);
}
