/* Drafts: finds their tokens and masks, and how likely they are to be accepted. */
#include "scheduler/draft.h"

#include "base/splitmix.h"

#include <string.h>

/* Cost of one more row of forced text in a step of one row on a CPU, relative to that step. Next to rows of other
 * sequences, a row costs as much as a step of its own. */
static const float row_cost = 0.75f;
static const float first_chance = 0.95f, memory = 0.1f, recovery = 1.0f / 256;

/* Tokens of a chain of the head: later ones are rarely accepted. FORCED_CHAIN: with QN_DRAFT. */
enum { CHAIN = 8, FORCED_CHAIN = 3 };

qn_drafts qn_drafts_create(const qn_draft_options *o, qn_constraint *constraint)
{
    const bool overlaps = o->device->vtable->launch, is_greedy = qn_sample_is_greedy(o->sampling);
    const bool is_wanted =
        o->jump_forward == QN_JUMP_FORWARD_ON || (o->jump_forward == QN_JUMP_FORWARD_AUTO && !overlaps);
    const bool can =
        (!o->sampling->mirostat || is_greedy) && (constraint->match || (!constraint->mask && !constraint->accepts));
    const bool forces = is_wanted && can && constraint->match && !o->device->piece;
    if (forces && !is_greedy)
        constraint->accepts = NULL;
    const bool checks_first = constraint->accepts && !overlaps && !is_greedy;
    const size_t most = o->most && o->most < QN_DRAFT_TOKENS ? o->most : QN_DRAFT_TOKENS;
    const bool proposes = o->kind != QN_DRAFT_OFF && can && !checks_first;
    const qn_draft_kind of_head = o->block ? QN_DRAFT_DFLASH : QN_DRAFT_MTP;
    qn_drafts d = { .forces = forces,
                    .is_lone = o->jump_forward == QN_JUMP_FORWARD_AUTO,
                    .chance = first_chance,
                    .proposes = proposes,
                    .looks_up = proposes && (o->kind == QN_DRAFT_AUTO || o->kind == QN_DRAFT_NGRAM),
                    .follows = proposes && o->draft && (o->kind == QN_DRAFT_AUTO || o->kind == QN_DRAFT_MODEL),
                    .always = o->always,
                    .most = most,
                    .simulated = o->simulated,
                    .random = o->sampling->seed,
                    .has_head = proposes && o->device->drafts &&
                                (o->kind == of_head || (o->kind == QN_DRAFT_AUTO && !o->draft)),
                    .head.is_asked = proposes && o->kind == of_head,
                    .head.block = o->block,
                    .head.most = o->most     ? most
                                 : o->always ? FORCED_CHAIN
                                             : CHAIN };
    if (o->block)
        d.head.most = o->most && o->most < o->block_tokens ? o->most : o->block_tokens;
    return d;
}

void qn_drafts_free(qn_drafts *d)
{
    if (d->drafter)
        d->drafter->vtable->free(d->drafter);
    d->drafter = NULL;
    qn_drafts_leave(d);
}

void qn_drafts_leave(qn_drafts *d)
{
    if (!d->borrows)
        qn_draft_sequence_free(d->sequence);
    d->sequence = NULL;
}

/* ---- Forced text ---- */

/* The number of tokens whose chance of acceptance is worth their cost. If it is 0, the chance grows with time. */
static size_t find_length(qn_drafts *d)
{
    float chance = d->chance;
    size_t n = 0;
    for (; n < QN_DRAFT_TOKENS && chance >= row_cost; n++)
        chance *= d->chance;
    if (!n)
        d->chance += recovery * (1 - d->chance);
    return n;
}

static size_t find_forced(const qn_draft_input *in, qn_token tokens[QN_GRAMMAR_FORCED])
{
    size_t n;
    const qn_status status = qn_grammar_match_forced_tokens(in->constraint->match, in->tokenizer, in->tokens, in->n,
                                                            in->n_answer, tokens, &n);
    return status == QN_OK ? n : 0;
}

/* Makes the masks after each of the n tokens that follow those of the input. Returns how many were made: not those
 * after a token that the grammar does not allow, nor those that take too long. */
static size_t make_masks(const qn_draft_input *in, size_t n, uint32_t *masks)
{
    const size_t n_words = qn_sample_mask_words(in->n_vocab);
    memset(masks, 0, n * n_words * sizeof *masks);
    return qn_grammar_match_masks(in->constraint->match, in->tokens + (in->n - in->n_answer), in->n_answer, n, n_words,
                                  masks);
}

size_t qn_draft_find(qn_drafts *d, const qn_draft_input *in, size_t n_sequences, size_t most, uint32_t *masks)
{
    qn_token forced[QN_GRAMMAR_FORCED];
    const bool is_wanted = d->forces && (n_sequences == 1 || !d->is_lone);
    size_t n = is_wanted && most ? find_forced(in, forced) : 0;
    n = n < most ? n : most;
    const size_t length = n ? find_length(d) : 0;
    n = n < length ? n : length;
    if (!n)
        return 0;
    memcpy(in->tokens + in->n, forced, n * sizeof *forced);
    const size_t n_masks = make_masks(in, n, masks);
    if (!n_masks) /* they take too long, as will the next ones */
        qn_draft_count(d, n, 0);
    return n_masks;
}

bool qn_draft_expects(qn_drafts *d, const qn_draft_input *in)
{
    qn_token forced[QN_GRAMMAR_FORCED];
    return d->forces && find_forced(in, forced) > 1 && find_length(d);
}

void qn_draft_count(qn_drafts *d, size_t n, size_t n_accepted)
{
    for (size_t i = 0; i < n_accepted; i++)
        d->chance += memory * (1 - d->chance);
    if (n_accepted < n)
        d->chance -= memory * d->chance;
}

/* ---- Proposals ---- */

static void create_drafter(qn_drafts *d, const qn_draft_input *in)
{
    if (qn_ngram_create(in->written, in->scope, &d->drafter) == QN_OK)
        memcpy(d->acceptance.chances, in->of_all->ngram.chances, QN_DRAFT_MODEL_CLASS * sizeof(float));
    d->looks_up = d->drafter;
    d->proposes = d->looks_up || d->follows || d->has_head;
}

/* Any tokens, where the drafter has too few: a simulated draft is as long as it may be. */
static void fill_simulated(qn_drafts *d, const qn_draft_input *in, size_t most)
{
    for (qn_proposal *p = &d->proposal; p->n < most; p->n++)
        p->tokens[p->n] = (qn_token)(qn_splitmix(&d->random) % in->n_vocab);
}

void qn_draft_propose(qn_drafts *d, const qn_draft_input *in, size_t most)
{
    d->is_of_head = false;
    if (d->proposed_after == in->n)
        return;
    d->proposed_after = 0;
    d->proposal.n = 0;
    d->is_of_model = false;
    if (d->looks_up && !d->drafter)
        create_drafter(d, in);
    if (!d->drafter)
        return;
    most = most < d->most ? most : d->most;
    d->drafter->vtable->propose(d->drafter, in->tokens, in->n, most, &d->proposal);
    if (d->simulated > 0 && !d->follows)
        fill_simulated(d, in, most);
    for (size_t i = 0; i < d->proposal.n; i++)
        d->chances[i] = d->simulated > 0 ? d->simulated : qn_acceptance_chance(&d->acceptance, &d->proposal, i);
    d->proposed_after = in->n;
}

float qn_draft_expected(const float *chances, size_t n)
{
    float expected = 0, chance = 1;
    for (size_t i = 0; i < n; i++) {
        chance *= chances[i];
        expected += chance;
    }
    return expected;
}

size_t qn_draft_take(qn_drafts *d, const qn_draft_input *in, size_t n, uint32_t *masks)
{
    const qn_proposal *proposal = d->is_of_head ? &d->head.proposal : &d->proposal;
    n = n < proposal->n ? n : proposal->n;
    memcpy(in->tokens + in->n, proposal->tokens, n * sizeof *in->tokens);
    return masks ? make_masks(in, n, masks) : n;
}

static size_t learn(qn_acceptance *own, qn_acceptance *of_all, const qn_proposal *proposal, const qn_token *followed,
                    size_t n)
{
    (void)qn_acceptance_learn(of_all, QN_ACCEPTANCE_OF_ALL, proposal, followed, n);
    return qn_acceptance_learn(own, QN_ACCEPTANCE_MEMORY, proposal, followed, n);
}

void qn_draft_learn(qn_drafts *d, qn_acceptances *of_all, size_t n_before, const qn_token *followed, size_t n)
{
    if (d->proposed_after && d->proposed_after == n_before && d->simulated <= 0) {
        const size_t accepted = learn(&d->acceptance, &of_all->ngram, &d->proposal, followed, n),
                     most = n < d->proposal.n ? n : d->proposal.n;
        for (size_t i = 0; d->is_of_model && i < most && i <= accepted; i++)
            d->model_chance += QN_ACCEPTANCE_MEMORY * ((float)(i < accepted) - d->model_chance);
    }
    if (d->has_head && d->head.proposed_after == n_before && d->simulated <= 0)
        (void)learn(&d->head.acceptance, &of_all->head, &d->head.proposal, followed, n);
    d->proposed_after = d->head.proposed_after = 0;
}

/* ---- The draft head ---- */

static uint8_t class_of_place(size_t i)
{
    return (uint8_t)(i < QN_DRAFT_MODEL_CLASS ? i : QN_DRAFT_MODEL_CLASS - 1);
}

size_t qn_draft_offer_head(qn_drafts *d, const qn_draft_input *in, size_t most)
{
    const size_t n = most < d->head.most ? most : d->head.most;
    if (!d->has_head)
        return 0;
    if (!d->head.has_begun)
        d->head.acceptance = in->of_all->head;
    d->head.has_begun = true;
    for (size_t i = 0; i < n; i++)
        d->head.chances[i] = d->simulated > 0 ? d->simulated : d->head.acceptance.chances[class_of_place(i)];
    const size_t n_proposed = d->proposal.n < most ? d->proposal.n : most;
    return qn_draft_expected(d->head.chances, n) > qn_draft_expected(d->chances, n_proposed) ? n : 0;
}

void qn_draft_begin_chain(qn_drafts *d, size_t n)
{
    d->is_of_head = true;
    d->head.proposal.n = 0;
    d->head.proposed_after = n;
}

bool qn_draft_add_to_chain(qn_drafts *d, qn_token token)
{
    qn_proposal *p = &d->head.proposal;
    if (token < 0 || p->n == QN_DRAFT_TOKENS) /* its logits are not finite */
        return false;
    p->classes[p->n] = class_of_place(p->n);
    p->tokens[p->n++] = token;
    return true;
}

void qn_draft_skip_chain(qn_drafts *d)
{
    float *chances = d->head.acceptance.chances;
    for (size_t i = 0; i < QN_DRAFT_MODEL_CLASS; i++)
        chances[i] += recovery * (qn_head_chances[i] - chances[i]);
}

/* ---- Results ---- */

void qn_draft_simulate(qn_drafts *d, const qn_token *draft, size_t n, size_t n_vocab, qn_sample_request *sampled)
{
    for (size_t i = 0; i < n; i++) {
        const bool accepts = (double)(qn_splitmix(&d->random) >> 11) < (double)d->simulated * 0x1p53;
        if (!accepts) {
            sampled[i].token = sampled[i].token == draft[i] ? (draft[i] + 1) % (qn_token)n_vocab : sampled[i].token;
            return;
        }
        sampled[i].token = draft[i];
    }
}

size_t qn_draft_accepted(const qn_token *draft, size_t n, const qn_sample_request *sampled)
{
    size_t accepted = 0;
    while (accepted < n && sampled[accepted].token == draft[accepted])
        accepted++;
    return accepted - (accepted && !qn_sample_is_finite(sampled[accepted].best));
}
