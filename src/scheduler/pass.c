/* Draft steps: the model's draft head proposes a chain or a block of tokens for each of several sequences, before the
 * step that verifies them. A draft step computes one more token of each chain, or all blocks. Its rows are at positions
 * after the sequence's end, whose memory is reserved meanwhile. All functions run on the step thread. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <math.h>

/* Whether the chain of a piece has another token, the one with this index, if the tokens before it are there. */
static bool goes_on(const qn_scheduled *step, uint32_t i, size_t index)
{
    return step->offers[i].is_passed && step->offers[i].chosen > index;
}

/* The row at a position after the request's last token, which is at 0. */
static qn_row row_at(const qn_request *r, qn_token token, size_t index)
{
    const uint32_t offset = r->rope_offset;
    return (qn_row){ .token = token,
                     .position = (uint32_t)(r->n_tokens - 1 + index),
                     .rope_offsets = { offset, offset, offset, offset },
                     .memory = r->memory };
}

/* The row that computes token `index` of a chain, from the token before it. */
static qn_row row_of(const qn_request *r, size_t index)
{
    return row_at(r, index ? r->drafts.head.proposal.tokens[index - 1] : r->tokens[r->n_tokens - 1], index);
}

/* The same of a token that the pass in flight samples, its request `sample`. */
static qn_row row_after(const qn_request *r, size_t index, uint32_t sample)
{
    qn_row row = row_at(r, 0, index);
    row.source = sample + 1;
    return row;
}

/* Adds a row to a draft step. */
static void add_row(qn_scheduled *to, qn_step *step, qn_row row, bool has_logits)
{
    if (has_logits) {
        to->requests[step->n_logit_rows] =
            (qn_sample_request){ .sampling = { .size = sizeof(qn_sampling), .repeat_penalty = 1 } };
        to->logit_rows[step->n_logit_rows++] = (uint32_t)step->n_rows;
    }
    to->rows[step->n_rows++] = row;
}

static qn_step begin_step(const qn_scheduled *to)
{
    return (qn_step){ .is_draft = true, .rows = to->rows, .logit_rows = to->logit_rows, .requests = to->requests };
}

/* Whether a chain that goes on has not ended before token `index`, which is computed from the one before it. */
static bool has_tokens_before(const qn_scheduled *step, uint32_t i, size_t index)
{
    return goes_on(step, i, index) && step->pieces[i].request->drafts.head.proposal.n == index;
}

/* Returns false if the step has no rows, or fails. */
static bool run_step(const qn_scheduler *s, qn_scheduled *to, const qn_step *step)
{
    qn_device *device = s->model->device;
    to->n_passes += step->n_rows > 0 && !step->is_chain;
    return step->n_rows && device->vtable->run(device, step) == QN_OK;
}

/* Adds to the logits of a block's next token what the token before adds to them. Returns the likeliest token; -1 if no
 * sum is finite. */
static qn_token add_link(const float *block, const float *link, size_t n)
{
    qn_token best = -1;
    float most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        const float logit = block[i] + link[i];
        if (logit > most && logit < INFINITY) {
            most = logit;
            best = (qn_token)i;
        }
    }
    return best;
}

/* Chooses the tokens of all blocks one after another, by the chain.
 *
 *   logits   [blocks' tokens, n_vocab] of the blocks, then room for those of one token of each */
static void run_chain(qn_scheduler *s, qn_scheduled *to, size_t n_tokens)
{
    const size_t n_vocab = s->model->plan.n_vocab;
    float *links = s->chain_logits + n_tokens * n_vocab;
    for (size_t k = 0; k < QN_DRAFT_TOKENS; k++) {
        qn_step step = begin_step(to);
        step.is_chain = true;
        step.requests = NULL;
        step.logits = links;
        for (uint32_t i = 0; i < to->n_pieces; i++)
            if (has_tokens_before(to, i, k))
                add_row(to, &step, row_of(to->pieces[i].request, k), true);
        if (!run_step(s, to, &step))
            return;
        size_t first = 0, n = 0;
        for (uint32_t i = 0; i < to->n_pieces; i++) {
            const size_t chosen = to->offers[i].is_passed ? to->offers[i].chosen : 0;
            if (has_tokens_before(to, i, k))
                (void)qn_draft_add_to_chain(
                    &to->pieces[i].request->drafts,
                    add_link(s->chain_logits + (first + k) * n_vocab, links + n++ * n_vocab, n_vocab));
            first += chosen;
        }
    }
}

/* Allocates the logits that a chain needs. */
static bool reserve_chain(qn_scheduler *s, const qn_scheduled *to)
{
    size_t n = 0;
    for (uint32_t i = 0; i < to->n_pieces; i++)
        if (to->offers[i].is_passed && to->offers[i].chosen)
            n += to->offers[i].chosen + 1;
    return qn_realloc_array(&s->chain_logits, &s->cap_chain_logits, n, s->model->plan.n_vocab * sizeof(float),
                            "logits of drafts") == QN_OK;
}

/* Runs the draft step for all blocks, and then their chain, if there is one. */
static void run_blocks(qn_scheduler *s, qn_scheduled *to)
{
    const qn_plan_head *head = &s->model->plan.head;
    qn_step step = begin_step(to);
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        const qn_request *r = to->pieces[i].request;
        const qn_row_offer *offer = &to->offers[i];
        for (size_t k = 0; offer->is_passed && offer->chosen && k < offer->block; k++)
            add_row(to, &step, row_at(r, k ? head->mask_token : r->tokens[r->n_tokens - 1], k),
                    head->from_anchor ? k < offer->chosen : k && k <= offer->chosen);
    }
    if (head->chain && !reserve_chain(s, to))
        return;
    step.requests = head->chain ? NULL : step.requests;
    step.logits = head->chain ? s->chain_logits : NULL;
    const double start = s->now();
    if (!run_step(s, to, &step))
        return;
    if (head->chain)
        run_chain(s, to, step.n_logit_rows);
    qn_row_costs_add(&s->drafting.passes, step.n_rows, s->now() - start);
    if (head->chain)
        return;
    for (uint32_t i = 0, n = 0; i < to->n_pieces; i++) {
        bool goes_on = true;
        for (size_t k = 0; to->offers[i].is_passed && k < to->offers[i].chosen; k++, n++)
            goes_on = goes_on && qn_draft_add_to_chain(&to->pieces[i].request->drafts, to->requests[n].token);
    }
}

/* Adds the tokens of pass `index` to their chains, of which one may have ended. */
static void take_pass(qn_scheduled *to, size_t index, const qn_sample_request *sampled)
{
    for (uint32_t i = 0, n = 0; i < to->n_pieces; i++) {
        qn_drafts *d = &to->pieces[i].request->drafts;
        if (!goes_on(to, i, index))
            continue;
        if (d->head.proposal.n == index)
            (void)qn_draft_add_to_chain(d, sampled[n].token);
        n++;
    }
}

/* Runs the draft step for token `index` of all chains that have one. Returns false if there is none, or it fails. */
static bool run_pass(qn_scheduler *s, qn_scheduled *to, size_t index)
{
    qn_step step = begin_step(to);
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        const qn_request *r = to->pieces[i].request;
        if (!goes_on(to, i, index))
            continue;
        if (has_tokens_before(to, i, index))
            add_row(to, &step, row_of(r, index), true);
        else
            to->offers[i].chosen = index; /* it has ended before */
    }
    const double start = s->now();
    if (!run_step(s, to, &step))
        return false;
    qn_row_costs_add(&s->drafting.passes, step.n_rows, s->now() - start);
    take_pass(to, index, to->requests);
    return true;
}

static void run_chains(qn_scheduler *s, qn_scheduled *to)
{
    for (size_t i = 0; i < QN_DRAFT_TOKENS && run_pass(s, to, i); i++)
        continue;
}

/* ---- Passes that run ahead ---- */

/* Fills the step of pass `index`. After the first, its tokens are those that the pass before it samples. rows: where
 * its rows and requests are. */
static qn_step fill_pass(const qn_scheduled *to, qn_scheduled *rows, size_t index)
{
    qn_step step = begin_step(rows);
    for (uint32_t i = 0, before = 0; i < to->n_pieces; i++) {
        const qn_request *r = to->pieces[i].request;
        if (goes_on(to, i, index))
            add_row(rows, &step, index ? row_after(r, index, before) : row_of(r, 0), true);
        before += index && goes_on(to, i, index - 1);
    }
    return step;
}

/* Runs all chains: each pass is launched while the one before it is in flight, and reads its tokens on the device. */
static void run_chains_ahead(qn_scheduler *s, qn_scheduled *to)
{
    qn_device *device = s->model->device;
    qn_scheduled *const places[] = { to, to == s->steps ? &s->steps[1] : s->steps };
    qn_step steps[2] = { fill_pass(to, to, 0) };
    double start = s->now();
    bool is_launched = device->vtable->launch(device, &steps[0]) == QN_OK;
    for (size_t i = 0; is_launched; i++) {
        qn_step *next = &steps[(i + 1) % 2];
        *next = fill_pass(to, places[(i + 1) % 2], i + 1);
        is_launched = next->n_rows && device->vtable->launch(device, next) == QN_OK;
        if (device->vtable->finish(device) != QN_OK) {
            if (is_launched)
                (void)device->vtable->finish(device);
            return;
        }
        to->n_passes++;
        take_pass(to, i, places[i % 2]->requests);
        const double now = s->now();
        qn_row_costs_add(&s->drafting.passes, steps[i % 2].n_rows, now - start);
        start = now;
    }
}

/* ---- Chains and blocks ---- */

/* Reserves memory for the chains and blocks, without taking any from other requests. Blocks that the draft step has no
 * rows for are dropped. Returns the length of the longest sequence with what follows it; 0: there is none. */
static size_t begin_chains(const qn_scheduler *s, qn_scheduled *to)
{
    size_t longest = 0, left = s->params.max_rows;
    for (uint32_t i = 0; i < to->n_pieces; i++) {
        qn_request *r = to->pieces[i].request;
        qn_row_offer *offer = &to->offers[i];
        if (!offer->is_passed)
            continue;
        const size_t n = offer->block ? offer->block : 1 + offer->chosen;
        if (!offer->chosen)
            qn_draft_skip_chain(&r->drafts);
        else if (offer->block > left || r->memory->vtable->prepare(r->memory, n) != QN_OK)
            offer->chosen = 0;
        if (!offer->chosen)
            continue;
        left -= offer->block;
        const size_t end = r->n_tokens - 1 + n;
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
    const size_t longest = begin_chains(s, to);
    if (!longest)
        return;
    qn_model_lock(s->model);
    const qn_status status =
        device->vtable->reserve(device, s->params.max_rows, qn_step_positions(longest, s->params.n_ctx));
    if (status == QN_OK && s->model->plan.head.block)
        run_blocks(s, to);
    else if (status == QN_OK && device->ahead >= to->n_pieces)
        run_chains_ahead(s, to);
    else if (status == QN_OK)
        run_chains(s, to);
    qn_model_unlock(s->model);
    end_chains(to);
    to->draft_seconds += s->now() - start;
}
