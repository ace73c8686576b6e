/* What a request's tokens are sampled by, and masks. A token is sampled from the whole vocabulary and checked at the end of
 * the step. If it is rejected the step leaves its logits, and the request stays out of the following steps: another thread
 * makes the mask and samples from these logits, while other requests continue. */
#include "engine/scheduler.h"

#include "base/memory.h"

#include <string.h>
#include <time.h>

/* Cancelled and late requests end after at most so long. */
enum { AWAIT_MILLISECONDS = 20 };

/* ---- In a step ---- */

static qn_status alloc_mask(qn_request *r)
{
    const size_t n = r->n_vocab, words = qn_sample_mask_words(n);
    if (!r->logits)
        QN_TRY(qn_alloc(&r->logits, n + words, sizeof(float), "mask of a request"));
    r->allowed = (uint32_t *)(void *)(r->logits + n);
    return QN_OK;
}

/* Leaves an error for qn_request_take_masked. */
static void keep_error(qn_request *r, qn_status status)
{
    r->mask_status = status;
    memcpy(r->mask_error, qn_error_text(), strlen(qn_error_text()) + 1);
}

/* A request's qn_sample_request.check. */
static float *check(void *request, qn_token token)
{
    qn_request *r = request;
    const qn_constraint *c = &r->constraint;
    if (c->accepts && c->accepts(c->user, r->tokens + r->n_prompt, r->n_tokens - r->n_prompt, token))
        return NULL;
    r->is_rejected = true;
    const qn_status status = alloc_mask(r);
    if (status != QN_OK)
        keep_error(r, status);
    return status == QN_OK ? r->logits : NULL;
}

bool qn_request_waits_for_token(const qn_request *r)
{
    return qn_constraint_exists(&r->constraint) || qn_sample_depends_on_text(&r->params.sampling) ||
           r->params.reasoning_budget >= 0 || r->never_ahead;
}

/* Whether the token that is sampled next is one of those that do not end the request. The step in flight may sample one
 * before it. */
static bool holds_back(const qn_request *r)
{
    return (int64_t)r->result.n_generated + r->has_pending < r->params.min_tokens;
}

qn_sample_request qn_request_next_sample(qn_request *r)
{
    qn_sample_request request = qn_sampler_next_request(r->sampler, r->tokens, r->n_tokens);
    if (!qn_sample_depends_on_text(&r->params.sampling)) { /* `tokens` may move while the step is in flight */
        request.recent = request.generated = NULL;
        request.n_recent = request.n_generated = 0;
    }
    request.bias = r->lists->bias;
    request.n_bias = r->lists->n_bias + (holds_back(r) ? r->lists->n_held : 0);
    r->logprobs.n = r->params.n_logprobs > 0 ? (uint32_t)r->params.n_logprobs : 0;
    request.logprobs = r->params.n_logprobs >= 0 ? &r->logprobs : NULL;
    request.check = qn_constraint_exists(&r->constraint) ? check : NULL;
    request.check_user = r;
    r->is_rejected = false;
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
