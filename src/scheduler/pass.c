/* Draft steps: the model's draft head proposes a chain of tokens for each of several sequences, before the step that
 * verifies them. A draft step computes one more token of each chain. Its rows are at positions after the sequence's
 * end, whose memory is reserved meanwhile. All functions run on the step thread. */
#include "scheduler/scheduler.h"

/* Whether the chain of a piece has another token, the one with this index. */
static bool goes_on(const qn_scheduled *step, uint32_t i, size_t index)
{
    const qn_drafts *d = &step->pieces[i].request->drafts;
    return step->offers[i].is_passed && step->offers[i].chosen > index && d->head.proposal.n == index;
}

/* The row that computes token `index` of a chain, from the token before it. */
static qn_row row_of(const qn_request *r, size_t index)
{
    const uint32_t offset = r->rope_offset;
    return (qn_row){ .token = index ? r->drafts.head.proposal.tokens[index - 1] : r->tokens[r->n_tokens - 1],
                     .position = (uint32_t)(r->n_tokens - 1 + index),
                     .rope_offsets = { offset, offset, offset, offset },
                     .memory = r->memory };
}

/* Runs the draft step for token `index` of all chains that have one. Returns false if there is none, or it fails. */
static bool run_pass(qn_scheduler *s, qn_scheduled *to, size_t index)
{
    qn_device *device = s->model->device;
    uint32_t n = 0;
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        if (!goes_on(to, i, index))
            continue;
        to->rows[n] = row_of(to->pieces[i].request, index);
        to->requests[n] = (qn_sample_request){ .sampling = { .size = sizeof(qn_sampling), .repeat_penalty = 1 } };
        to->logit_rows[n] = n;
        n++;
    }
    const double start = s->now();
    const qn_step step = { .is_draft = true,
                           .rows = to->rows,
                           .n_rows = n,
                           .logit_rows = to->logit_rows,
                           .n_logit_rows = n,
                           .requests = to->requests };
    if (!n || device->vtable->run(device, &step) != QN_OK)
        return false;
    qn_row_costs_add(&s->drafting.passes, n, s->now() - start);
    n = 0;
    for (uint32_t i = 0; i < to->n_pieces; i++)
        if (goes_on(to, i, index))
            (void)qn_draft_add_to_chain(&to->pieces[i].request->drafts, to->requests[n++].token);
    return true;
}

/* Reserves memory for the chains, without taking any from other requests. Returns the length of the longest sequence
 * with its chain; 0: there is no chain. */
static size_t begin_chains(qn_scheduled *to)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        qn_request *r = to->pieces[i].request;
        qn_row_offer *offer = &to->offers[i];
        if (!offer->is_passed)
            continue;
        if (!offer->chosen)
            qn_draft_skip_chain(&r->drafts);
        else if (r->memory->vtable->prepare(r->memory, 1 + offer->chosen) != QN_OK)
            offer->chosen = 0;
        if (!offer->chosen)
            continue;
        const size_t end = r->n_tokens + offer->chosen;
        longest = end > longest ? end : longest;
        qn_draft_begin_chain(&r->drafts, r->n_tokens);
    }
    return longest;
}

/* Gives the memory back, and leaves what was proposed. */
static void end_chains(qn_scheduled *to)
{
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        qn_memory *memory = to->pieces[i].request->memory;
        if (!to->offers[i].is_passed || !to->offers[i].chosen)
            continue;
        qn_memory_on_append(memory, memory->sequence->length);
        to->offers[i].chosen = to->pieces[i].request->drafts.head.proposal.n;
    }
}

void qn_scheduler_run_passes(qn_scheduler *s, qn_scheduled *to)
{
    qn_device *device = s->model->device;
    const double start = s->now();
    const size_t longest = begin_chains(to);
    if (!longest)
        return;
    qn_model_lock(s->model);
    if (device->vtable->reserve(device, s->params.max_rows, qn_step_positions(longest, s->params.n_ctx)) == QN_OK)
        for (size_t i = 0; i < QN_DRAFT_TOKENS && run_pass(s, to, i); i++)
            continue;
    qn_model_unlock(s->model);
    end_chains(to);
    to->draft_seconds += s->now() - start;
}
