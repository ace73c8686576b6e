/* Requests: the checks of qn_scheduler_submit, the data that a request shares with the previous one, and its own
 * data. All of it runs on the submitting thread, without locks. */
#include "scheduler/scheduler.h"

#include "base/memory.h"
#include "base/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void qn_request_params_init(qn_request_params *params, size_t size)
{
    const qn_request_params defaults = QN_REQUEST_PARAMS_INIT;
    params->size = size;
    qn_result_write(&defaults, sizeof defaults, params);
}

/* ---- What is refused ---- */

static qn_status check_marks(const qn_request_params *p)
{
    for (size_t i = 0; i < p->n_marks; i++)
        if (p->marks[i] > p->n_tokens || (i && p->marks[i] < p->marks[i - 1]))
            return qn_fail(QN_ERR_INVALID, "mark %zu: %u, expected at least the one before and at most %zu", i,
                           (unsigned)p->marks[i], p->n_tokens);
    return QN_OK;
}

static qn_status check_prompt(const qn_scheduler *s, const qn_request_params *p)
{
    const int prompts = (p->tokens != NULL) + (p->text != NULL) + (p->messages != NULL) + (p->conversation != NULL);
    if (prompts != 1)
        return qn_fail(QN_ERR_INVALID,
                       "prompt: %d of tokens, text, messages and a conversation are given, expected one", prompts);
    if (p->tokens && !p->n_tokens)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if (p->messages && !p->n_messages)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no messages, at least 1 is needed");
    if (p->n_marks && !p->tokens)
        return qn_fail(QN_ERR_INVALID, "marks: %zu without tokens, expected none", p->n_marks);
    QN_TRY(check_marks(p));
    return p->tokens ? qn_model_check_tokens(s->model, "token", p->tokens, p->n_tokens) : QN_OK;
}

static qn_status check_values(const qn_scheduler *s, const qn_request_params *p)
{
    const qn_tokenizer *tok;
    const bool is_scored = p->on_prompt_token && p->n_prompt_logprobs >= 0;
    if (!(p->deadline >= 0) || isinf(p->deadline))
        return qn_fail(QN_ERR_INVALID, "deadline: %g seconds, expected 0 or more", p->deadline);
    if (p->n_logprobs < -1 || p->n_logprobs > QN_MAX_LOGPROBS)
        return qn_fail(QN_ERR_INVALID, "log probabilities: %d, expected -1 to %d", p->n_logprobs, QN_MAX_LOGPROBS);
    if (p->n_prompt_logprobs < -1 || p->n_prompt_logprobs > QN_MAX_LOGPROBS)
        return qn_fail(QN_ERR_INVALID, "log probabilities of the prompt: %d, expected -1 to %d", p->n_prompt_logprobs,
                       QN_MAX_LOGPROBS);
    if (is_scored && s->generation)
        return qn_fail(QN_ERR_UNSUPPORTED, "log probabilities of the prompt: only a scheduler computes them");
    if (is_scored && p->reasoning_budget >= 0)
        return qn_fail(QN_ERR_INVALID, "log probabilities of the prompt: they are given with a reasoning budget");
    QN_TRY(qn_request_check_pooling(s, p));
    QN_TRY(qn_model_check_draft(s->model, p->draft));
    if (p->draft_tokens > QN_DRAFT_TOKENS)
        return qn_fail(QN_ERR_INVALID, "draft_tokens: %zu, expected at most %d", p->draft_tokens, QN_DRAFT_TOKENS);
    if (!(p->draft_accept >= 0 && p->draft_accept <= 1))
        return qn_fail(QN_ERR_INVALID, "draft_accept: %g, expected 0 to 1", (double)p->draft_accept);
    if (p->on_progress && s->generation)
        return qn_fail(QN_ERR_UNSUPPORTED, "on_progress: a session reports progress by qn_session_on_progress");
    if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
        return qn_fail(QN_ERR_INVALID, "min_tokens: %lld, expected at most max_tokens, %lld", (long long)p->min_tokens,
                       (long long)p->max_tokens);
    if (p->accepts && !p->mask)
        return qn_fail(QN_ERR_INVALID, "accepts: it is given without mask");
    if (p->grammar && p->mask)
        return qn_fail(QN_ERR_INVALID, "mask: it is given with a grammar");
    if (p->on_event && p->on_text)
        return qn_fail(QN_ERR_INVALID, "on_event: it is given with on_text, expected one of them");
    if (p->tools && (!p->on_event || p->conversation))
        return qn_fail(QN_ERR_INVALID, "tools: they are given %s",
                       p->on_event ? "with a conversation, which has its own" : "without on_event");
    if (p->on_text || p->on_event || p->n_stop || p->reasoning_budget >= 0)
        QN_TRY(qn_model_tokenizer(s->model, &tok));
    return QN_OK;
}

/* ---- Requests ---- */

static bool is_same_trigger(const qn_grammar_trigger *a, const qn_grammar_trigger *b)
{
    return a->when == b->when && a->text == b->text;
}

/* Sets the constraint: of a grammar, or of the caller's callbacks. A grammar's match is created once for a prompt;
 * other requests copy it. */
static qn_status find_constraint(const qn_scheduler *s, const qn_request_params *p, const qn_request *before,
                                 qn_request *r)
{
    r->constraint = (qn_constraint){ .accepts = p->accepts, .mask = p->mask, .user = p->user };
    if (!p->grammar)
        return QN_OK;
    if (before && before->prompt == r->prompt && before->constraint.grammar == p->grammar &&
        is_same_trigger(&before->params.grammar_trigger, &p->grammar_trigger) &&
        before->params.ignore_end == p->ignore_end)
        return qn_constraint_copy(&before->constraint, &p->sampling, &r->constraint);
    return qn_constraint_create(s->model, p->grammar, &p->grammar_trigger, p->ignore_end, r->tokens, r->n_prompt,
                                &p->sampling, &r->constraint);
}

/* The request's kind of draft, else the scheduler's, else that of QN_DRAFT. By default drafts on a GPU, where a step
 * with a draft does not run ahead, are those of a draft model or a draft head, which were loaded to be used. */
static void find_drafts(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    const qn_draft_forced *forced = &s->forced_draft;
    const qn_plan_head *head = &s->model->plan.head;
    const qn_draft_kind asked = p->draft == QN_DRAFT_AUTO ? s->params.draft : p->draft,
                        kind = asked == QN_DRAFT_AUTO ? forced->kind : asked,
                        of_head = head->block ? QN_DRAFT_DFLASH : QN_DRAFT_MTP,
                        on_gpu = s->model->draft            ? QN_DRAFT_MODEL
                                 : s->model->device->drafts ? of_head
                                                            : QN_DRAFT_OFF,
                        found = kind == QN_DRAFT_AUTO && s->overlaps ? on_gpu : kind;
    const qn_draft_options options = { .device = s->model->device,
                                       .sampling = &p->sampling,
                                       .jump_forward = p->jump_forward,
                                       .kind = p->max_tokens ? found : QN_DRAFT_OFF,
                                       .draft = s->model->draft,
                                       .block = head->block,
                                       .block_tokens = head->block - (head->block && !head->from_anchor),
                                       .always = forced->is_set && forced->kind == found,
                                       .most = p->draft_tokens,
                                       .simulated = p->draft_accept };
    r->drafts = qn_drafts_create(&options, &r->constraint);
}

static qn_status find_events(const qn_request_params *p, qn_request *r)
{
    qn_output_params output = r->prompt->output;
    if (!p->on_event && p->reasoning_budget < 0)
        return QN_OK;
    output.reasoning_budget = p->reasoning_budget < 0 ? SIZE_MAX : (size_t)p->reasoning_budget;
    return qn_events_create(output, p->grammar, &p->grammar_trigger, r->stop,
                            p->on_event ? qn_request_push_parsed : NULL, r, &r->events);
}

static qn_status find_input(const qn_scheduler *s, const qn_request_params *p, const qn_request *before, qn_request *r,
                            size_t *n_prompt)
{
    if (before && qn_input_lists_are_of(&before->params, p))
        r->lists = qn_input_lists_share(before->lists);
    else
        QN_TRY(qn_input_lists_create(s, p, &r->lists));
    if (before && qn_input_prompt_is_of(&before->params, p))
        r->prompt = qn_input_prompt_share(before->prompt);
    else
        QN_TRY(qn_input_prompt_create(s, p, &r->prompt, n_prompt));
    r->tokens = r->prompt->tokens;
    r->n_tokens = r->n_prompt = r->prompt->n_tokens;
    return QN_OK;
}

static qn_status create(const qn_scheduler *s, const qn_request_params *p, const qn_request *before, qn_request *r,
                        size_t *n_prompt)
{
    QN_TRY(find_input(s, p, before, r, n_prompt));
    QN_TRY(qn_stop_create(r->lists->stop, &r->stop));
    QN_TRY(find_events(p, r));
    QN_TRY(qn_sampler_create(&p->sampling, s->model->hparams.n_vocab, &r->sampler));
    if (p->pooling)
        QN_TRY(qn_pooled_create(p->pooling, r->n_prompt, s->model->hparams.n_embd, &r->pooled));
    QN_TRY(find_constraint(s, p, before, r));
    find_drafts(s, p, r);
    return QN_OK;
}

/* Returns the bytes that a request keeps, excluding memory shared with the previous request. */
static size_t count_bytes(const qn_request *r, const qn_request *before)
{
    enum { PARTS = 4 << 10 }; /* sampler, parser, search */
    const qn_grammar *grammar = r->constraint.grammar;
    const size_t pooled = r->pooled ? r->pooled->n_embd * (sizeof(double) + sizeof(float)) : 0;
    size_t bytes = sizeof *r + PARTS + qn_sampler_breaker_bytes(r->sampler) + pooled;
    if (!before || before->prompt != r->prompt)
        bytes += qn_input_prompt_bytes(r->prompt);
    if (!before || before->lists != r->lists)
        bytes += qn_input_lists_bytes(r->lists);
    if (grammar)
        bytes += qn_grammar_match_bytes(r->constraint.match);
    if (grammar && (!before || before->constraint.grammar != grammar))
        bytes += qn_grammar_bytes(grammar);
    return bytes;
}

static qn_status ask_for_memory(const qn_request_params *p, const qn_request *r, const qn_request *before)
{
    const size_t bytes = p->on_memory ? count_bytes(r, before) : 0;
    if (!p->on_memory || p->on_memory(p->user, bytes))
        return QN_OK;
    return qn_fail(QN_ERR_BUSY, "memory: the request needs %zu bytes, which it may not have", bytes);
}

qn_status qn_request_new(qn_scheduler *s, const qn_request_params *given, const qn_request *before, qn_request **out,
                         size_t *n_prompt)
{
    qn_request_params own = QN_REQUEST_PARAMS_INIT, *const params = &own;
    qn_request *r;
    *out = NULL;
    QN_TRY(QN_PARAMS_READ(qn_request_params, given, &own));
    QN_TRY(check_values(s, params));
    if (!before || !qn_input_prompt_is_of(&before->params, params))
        QN_TRY(check_prompt(s, params));
    QN_TRY(qn_alloc(&r, 1, sizeof *r, "request"));
    r->scheduler = s;
    r->params = *params;
    r->result = (qn_request_result)QN_REQUEST_RESULT_INIT;
    r->admitted_after = UINT64_MAX;
    r->n_vocab = s->model->hparams.n_vocab;
    atomic_init(&r->cancelled, false);
    atomic_init(&r->mask_state, QN_MASK_NONE);
    qn_status status = create(s, params, before, r, n_prompt);
    if (status == QN_OK)
        status = ask_for_memory(params, r, before);
    if (status != QN_OK) {
        qn_request_free(r);
        return status;
    }
    r->submitted = qn_now();
    r->deadline = params->deadline > 0 ? r->submitted + params->deadline : (double)INFINITY;
    r->result.n_prompt = r->n_prompt;
    r->end = (qn_event){ .request = r, .kind = QN_EVENT_END, .token = QN_NO_TOKEN };
    r->mask = (qn_event){ .request = r, .kind = QN_EVENT_MASK, .token = QN_NO_TOKEN };
    *out = r;
    return QN_OK;
}

void qn_request_free(qn_request *r)
{
    if (!r)
        return;
    if (r->memory)
        r->memory->vtable->free(r->memory);
    if (r->cap_tokens)
        free(r->tokens);
    qn_free(r->logits);
    qn_free(r->allowed);
    qn_sampler_free(r->sampler);
    qn_drafts_free(&r->drafts);
    qn_constraint_free(&r->constraint);
    qn_utf8_stream_free(&r->utf8);
    qn_events_free(&r->events);
    qn_stop_free(r->stop);
    qn_free(r->pooled);
    qn_input_prompt_free(r->prompt);
    qn_input_lists_free(r->lists);
    qn_free(r);
}
