/* Sampling parameters of requests, and their masks. Under a grammar a token is sampled under a mask, which the device's
 * threads make while the step is computed. A mask that would make other requests wait too long is not made there: the
 * token is sampled from the whole vocabulary and checked at the end of the step, like tokens under a caller's mask. If
 * the token is rejected, the step keeps its logits and the request has no rows in the next steps: another thread makes
 * the mask and samples from these logits, while other requests continue. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <string.h>
#include <time.h>

/* Longest wait for masks, so that cancelled and late requests end soon. */
enum { AWAIT_MILLISECONDS = 20 };

/* ---- In a step ---- */

static qn_status alloc_mask(qn_request *r)
{
    if (r->allowed)
        return QN_OK;
    return qn_alloc(&r->allowed, qn_sample_mask_words(r->n_vocab), sizeof *r->allowed, "mask of a request");
}

static qn_status alloc_logits(qn_request *r)
{
    QN_TRY(alloc_mask(r));
    return r->logits ? QN_OK : qn_alloc(&r->logits, r->n_vocab, sizeof *r->logits, "mask of a request");
}

/* Leaves an error for qn_request_take_masked. */
static void keep_error(qn_request *r, qn_status status)
{
    r->mask_status = status;
    memcpy(r->mask_error, qn_error_text(), strlen(qn_error_text()) + 1);
}

/* A request's qn_sample_request.check: called by the device on the step thread, while the step is being finished. */
static float *check(void *request, qn_token token)
{
    qn_request *r = request;
    const qn_constraint *c = &r->constraint;
    r->is_rejected = r->is_masked_later || !c->accepts ||
                     !c->accepts(c->user, r->tokens + r->n_prompt, r->n_tokens - r->n_prompt, token);
    if (r->is_masked_later)
        qn_constraint_count_mask(&r->constraint);
    else
        qn_constraint_count_check(&r->constraint, r->is_rejected);
    if (!r->is_rejected)
        return NULL;
    const qn_status status = alloc_logits(r);
    if (status != QN_OK)
        keep_error(r, status);
    return status == QN_OK ? r->logits : NULL;
}

/* Makes the mask for the next token, on a thread of the team. If that takes too long, the masks of this token and of
 * some tokens after it are made later, on another thread. */
static void constrain(qn_request *r, qn_sample_request *sampled)
{
    enum { SLOW_TOKENS = 32 };
    if (alloc_mask(r) == QN_OK && qn_constraint_quick_mask(&r->constraint, r->tokens + r->n_prompt,
                                                           r->n_tokens - r->n_prompt, r->n_vocab, r->allowed)) {
        sampled->allowed = r->allowed;
        qn_constraint_release(r->allowed, r->n_vocab, sampled->n_bias - r->lists->n_bias, sampled);
        qn_constraint_count_mask(&r->constraint);
        return;
    }
    r->n_slow = SLOW_TOKENS;
    r->is_checked = r->is_masked_later = true;
    sampled->check = check;
}

static qn_draft_input draft_input(const qn_request *r)
{
    return (qn_draft_input){ .constraint = &r->constraint,
                             .tokenizer = r->scheduler->model->tokenizer,
                             .tokens = r->tokens,
                             .n = r->n_tokens,
                             .n_answer = r->n_tokens - r->n_prompt,
                             .n_vocab = r->n_vocab,
                             .written = r->scheduler->written,
                             .scope = r->lists->scope,
                             .of_all = &r->scheduler->drafting.acceptances };
}

/* A request's qn_sample_request.prepare: called by the device while it computes the step, on any thread of the team,
 * for each request by one thread. The row of a request that is over is void. */
static void prepare(void *request, qn_sample_request *sampled)
{
    qn_request *r = request;
    if (r->is_over)
        return;
    if (qn_sample_depends_on_text(&r->params.sampling))
        qn_sampler_set_text(r->sampler, r->tokens, r->n_tokens, sampled);
    if (r->constraint.match && !sampled->check)
        constrain(r, sampled);
    const qn_draft_input input = draft_input(r);
    r->expects_draft = r->scheduler->overlaps && qn_draft_expects(&r->drafts, &input);
}

/* Whether the next step waits. A token sampled on the host is known only when the step has ended. After a forced token
 * the next step has a draft: several tokens, which save more than running one step ahead. */
bool qn_request_waits_for_token(const qn_request *r)
{
    const qn_request_params *p = &r->params;
    return r->is_checked || r->expects_draft || p->reasoning_budget >= 0 ||
           qn_sample_is_on_host(&p->sampling, p->n_logprobs >= 0 && p->logprobs_after);
}

/* The number of biases for the token sampled after n more tokens: held biases count while min_tokens is not reached. */
static size_t n_bias(const qn_request *r, size_t n)
{
    const bool holds_back = (int64_t)(r->result.n_generated + n) < r->params.min_tokens;
    return r->lists->n_bias + (holds_back ? r->lists->n_held : 0);
}

static bool checks_first(const qn_request *r)
{
    if (!r->constraint.match)
        return r->constraint.mask;
    return !r->scheduler->overlaps && qn_constraint_checks_first(&r->constraint);
}

qn_sample_request qn_request_next_sample(qn_request *r)
{
    qn_sample_request request = qn_sampler_next_request(r->sampler, r->tokens, r->n_tokens);
    /* `tokens` may move while the step is in flight: `prepare` sets these. */
    request.recent = request.generated = request.text = NULL;
    request.n_recent = request.n_generated = request.n_text = 0;
    request.bias = r->lists->bias;
    request.n_bias = n_bias(r, r->has_pending); /* the step in flight may sample one before it */
    r->logprobs.n = r->params.n_logprobs > 0 ? (uint32_t)r->params.n_logprobs : 0;
    request.logprobs = r->params.n_logprobs >= 0 ? &r->logprobs : NULL;
    request.logprobs_after = r->params.logprobs_after;
    const bool is_checked_first = checks_first(r);
    r->is_masked_later = r->constraint.match && !is_checked_first && r->n_slow;
    r->is_checked = is_checked_first || r->is_masked_later;
    request.check = r->is_checked ? check : NULL;
    request.prepare =
        (r->constraint.match && !request.check) || qn_sample_depends_on_text(&r->params.sampling) ? prepare : NULL;
    request.user = r;
    r->is_rejected = r->expects_draft = false;
    r->n_slow -= r->n_slow > 0;
    return request;
}

/* The most tokens of a draft, at most `most`, with room for them after the request's tokens. */
size_t qn_request_draft_room(qn_request *r, size_t most)
{
    const size_t length = r->n_tokens, n_ctx = r->scheduler->params.n_ctx;
    const int64_t limit = r->params.max_tokens;
    const size_t left[] = { QN_DRAFT_TOKENS, limit > 0 ? (size_t)limit - r->result.n_generated - 1 : SIZE_MAX,
                            n_ctx > length ? n_ctx - length : 0, qn_sequence_max_drafted(r->memory->sequence, 1) };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        most = left[i] < most ? left[i] : most;
    if (r->n_slow || !r->cap_tokens ||
        qn_realloc_array(&r->tokens, &r->cap_tokens, length + most, sizeof *r->tokens, "tokens of a request") != QN_OK)
        return 0;
    return most;
}

size_t qn_request_draft(qn_request *r, size_t n_sequences, size_t most, uint32_t *masks)
{
    most = r->drafts.forces ? qn_request_draft_room(r, most) : 0;
    const qn_draft_input input = draft_input(r);
    return most ? qn_draft_find(&r->drafts, &input, n_sequences, most, masks) : 0;
}

size_t qn_request_propose(qn_request *r, size_t most)
{
    most = r->drafts.proposes ? qn_request_draft_room(r, most) : 0;
    const qn_draft_input input = draft_input(r);
    /* What cannot be drafted is proposed, too: the chances of later tokens are learned from it. */
    qn_draft_propose(&r->drafts, &input, most ? most : 1);
    return most < r->drafts.proposal.n ? most : r->drafts.proposal.n;
}

size_t qn_request_offer_head(qn_request *r, size_t most)
{
    most = r->drafts.has_head ? qn_request_draft_room(r, most) : 0;
    const qn_draft_input input = draft_input(r);
    return most ? qn_draft_offer_head(&r->drafts, &input, most) : 0;
}

size_t qn_request_block_rows(const qn_request *r)
{
    const size_t n_ctx = r->scheduler->params.n_ctx, most = qn_sequence_max_drafted(r->memory->sequence, 1);
    size_t n = r->drafts.head.block;
    n = most < n ? 1 + most : n;
    return n_ctx - r->n_tokens + 1 < n ? n_ctx - r->n_tokens + 1 : n;
}

/* The most tokens that the step after the one in flight, which samples a token, can draft. */
static size_t expected_room(const qn_request *r)
{
    const size_t n_ctx = r->scheduler->params.n_ctx, made = r->result.n_generated + 2,
                 left[] = { qn_sequence_max_drafted(r->memory->sequence, 2),
                            n_ctx > r->n_tokens + 1 ? n_ctx - r->n_tokens - 1 : 0,
                            r->params.max_tokens <= 0               ? SIZE_MAX
                            : (uint64_t)r->params.max_tokens > made ? (size_t)(r->params.max_tokens - (int64_t)made)
                                                                    : 0 };
    size_t most = QN_DRAFT_TOKENS;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        most = left[i] < most ? left[i] : most;
    return most;
}

/* Whether the draft head offers tokens that are worth their passes. */
static bool expects_chain(qn_drafts *d, const qn_draft_input *input, const qn_drafting *drafting, size_t n_rows,
                          size_t room)
{
    const size_t n = d->has_head && room ? qn_draft_offer_head(d, input, room) : 0;
    qn_row_offer offer = {
        .chances = d->head.chances, .n = n, .is_passed = true, .block = d->head.block > room ? 1 + room : d->head.block
    };
    return n && (d->always || qn_row_costs_choose(&drafting->costs, &drafting->passes, n_rows, &offer, 1, n) > 0);
}

bool qn_request_expects_proposal(qn_request *r, const qn_drafting *drafting, size_t n_rows)
{
    static const float likely = 0.5f;
    qn_drafts *d = &r->drafts;
    const qn_draft_input input = draft_input(r);
    const size_t room = d->proposes ? expected_room(r) : 0;
    if (!room)
        return false;
    if (expects_chain(d, &input, drafting, n_rows, room))
        return true;
    if (d->proposed_after != r->n_tokens)
        qn_draft_propose(d, &input, QN_DRAFT_TOKENS);
    if (d->proposal.n < 2 || d->chances[0] < likely)
        return d->always && d->proposal.n > 1;
    qn_row_offer offer = { .chances = d->chances + 1, .n = d->proposal.n - 1 < room ? d->proposal.n - 1 : room };
    return d->always || qn_row_costs_choose(&drafting->costs, NULL, n_rows, &offer, 1, offer.n) > 0;
}

size_t qn_request_take_proposal(qn_request *r, size_t n, uint32_t *masks)
{
    const qn_draft_input input = draft_input(r);
    return qn_draft_take(&r->drafts, &input, n, masks);
}

/* The parameters may point into `tokens`, which does not move meanwhile: no step is launched while a step with drafts
 * is in flight (may_run_ahead). */
qn_sample_request qn_request_drafted_sample(qn_request *r, size_t i, const uint32_t *mask, qn_logprobs *logprobs)
{
    qn_sample_request request = qn_sampler_next_request(r->sampler, r->tokens, r->n_tokens + i);
    request.bias = r->lists->bias;
    request.n_bias = n_bias(r, i);
    request.allowed = mask;
    if (mask)
        qn_constraint_release(mask, r->n_vocab, request.n_bias - r->lists->n_bias, &request);
    request.logprobs = logprobs;
    request.logprobs_after = r->params.logprobs_after;
    if (logprobs)
        logprobs->n = r->params.n_logprobs > 0 ? (uint32_t)r->params.n_logprobs : 0;
    return request;
}

/* ---- Between steps ---- */

void qn_request_set_mask_state(qn_scheduler *s, qn_request *r, int state)
{
    pthread_mutex_lock(&s->lock); /* for qn_scheduler_await_masks */
    atomic_store(&r->mask_state, state);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void qn_request_reject(qn_scheduler *s, qn_request *r, const qn_sample_request *sampled)
{
    r->masked = *sampled;
    qn_constraint_again(&r->constraint, r->allowed, &r->masked);
    if (r->is_masked_later)
        r->masked.random = sampled->random;
    r->logprobs.n = r->params.n_logprobs > 0 ? (uint32_t)r->params.n_logprobs : 0;
    qn_request_set_mask_state(s, r, r->mask_status == QN_OK ? QN_MASK_WAITING : QN_MASK_SAMPLED);
    if (r->mask_status == QN_OK)
        qn_scheduler_push_mask(s, r);
}

bool qn_request_sample_masked(qn_request *r)
{
    if (atomic_load(&r->cancelled))
        return false;
    qn_status status =
        qn_constraint_mask(&r->constraint, r->tokens + r->n_prompt, r->n_tokens - r->n_prompt, r->n_vocab, r->allowed);
    if (status == QN_OK)
        qn_constraint_release(r->allowed, r->n_vocab, r->masked.n_bias - r->lists->n_bias, &r->masked);
    if (status == QN_OK)
        status = qn_sampler_sample(r->sampler, r->logits, &r->masked);
    if (status != QN_OK)
        keep_error(r, status);
    return true;
}

bool qn_request_take_masked(qn_request *r, qn_sample_request *sampled, qn_status *status)
{
    if (atomic_load(&r->mask_state) != QN_MASK_SAMPLED)
        return false;
    atomic_store(&r->mask_state, QN_MASK_NONE);
    *sampled = r->masked;
    *status = r->mask_status == QN_OK ? QN_OK : qn_fail(r->mask_status, "%s", r->mask_error);
    return true;
}

void qn_scheduler_await_masks(qn_scheduler *s)
{
    struct timespec until;
    size_t n_waiting = 0, n_sampled = 0;
    if (s->params.no_thread)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += AWAIT_MILLISECONDS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const int state = atomic_load(&s->running[i]->mask_state);
        n_waiting += state == QN_MASK_WAITING;
        n_sampled += state == QN_MASK_SAMPLED;
    }
    if (n_waiting && !n_sampled)
        pthread_cond_timedwait(&s->work, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}
