/* Requests: what qn_scheduler_submit checks and copies, and the positions whose states are kept. */
#include "engine/scheduler.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the ends of a conversation's messages, the first's, which other conversations may share, and so many of the last. */
enum { LAST_MESSAGES = 3 };

qn_request_params qn_request_defaults(void)
{
    return (
        qn_request_params){ .sampling = qn_sampling_defaults(), .n_logprobs = -1, .max_tokens = -1, .reasoning_budget = -1 };
}

/* ---- The prompt ---- */

static qn_status check_tokens(const qn_scheduler *s, const char *what, const qn_token *tokens, size_t n)
{
    const size_t n_vocab = s->model->hparams.n_vocab;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= n_vocab)
            return qn_fail(QN_ERR_INVALID, "%s %zu: id %d is outside the vocabulary, expected 0 to %zu", what, i,
                           (int)tokens[i], n_vocab - 1);
    return QN_OK;
}

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
        return qn_fail(QN_ERR_INVALID, "prompt: %d of tokens, text, messages and a conversation are given, expected one",
                       prompts);
    if (p->tokens && !p->n_tokens)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if (p->messages && !p->n_messages)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no messages, at least 1 is needed");
    if (p->n_marks && !p->tokens)
        return qn_fail(QN_ERR_INVALID, "marks: %zu without tokens, expected none", p->n_marks);
    QN_TRY(check_marks(p));
    return p->tokens ? check_tokens(s, "token", p->tokens, p->n_tokens) : QN_OK;
}

static qn_status copy_bias(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    const size_t n_vocab = s->model->hparams.n_vocab;
    for (size_t i = 0; i < p->n_bias; i++) {
        const qn_logit_bias *bias = &p->bias[i];
        if (bias->token < 0 || (size_t)bias->token >= n_vocab)
            return qn_fail(QN_ERR_INVALID, "bias %zu: id %d is outside the vocabulary, expected 0 to %zu", i, (int)bias->token,
                           n_vocab - 1);
        if (!(bias->value < INFINITY))
            return qn_fail(QN_ERR_INVALID, "bias %zu: %g, expected a finite value or -inf", i, (double)bias->value);
    }
    QN_TRY(qn_alloc(&r->bias, p->n_bias, sizeof *r->bias, "request"));
    if (p->n_bias)
        memcpy(r->bias, p->bias, p->n_bias * sizeof *r->bias);
    return QN_OK;
}

static qn_status copy_tokens(const qn_token *from, size_t n, qn_token **to)
{
    size_t capacity = 0;
    if (!n)
        return QN_OK;
    QN_TRY(qn_realloc_array(to, &capacity, n, sizeof **to, "request"));
    memcpy(*to, from, n * sizeof **to);
    return QN_OK;
}

/* A conversation whose answer is parsed. */
static qn_status find_parsed(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    qn_output_params output;
    qn_status status =
        qn_conversation_input(s->model, p->conversation, p->conversation_length, &r->tokens, &r->n_tokens, &output);
    output.reasoning_budget = p->reasoning_budget < 0 ? SIZE_MAX : (size_t)p->reasoning_budget;
    if (status == QN_OK)
        status = qn_events_create(output, p->grammar, &p->grammar_trigger, r->stop, qn_request_push_parsed, r, &r->events);
    json_decref(output.tools);
    return status;
}

static qn_status find_tokens(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    if (p->tokens) {
        r->n_tokens = p->n_tokens;
        QN_TRY(copy_tokens(p->tokens, p->n_tokens, &r->tokens));
    } else if (p->text) {
        QN_TRY(qn_tokenize(s->model, p->text, strlen(p->text), true, true, &r->tokens, &r->n_tokens));
    } else if (p->on_event) {
        QN_TRY(find_parsed(s, p, r));
    } else if (p->conversation) {
        QN_TRY(qn_conversation_tokens(s->model, p->conversation, p->conversation_length, -1, &r->tokens, &r->n_tokens));
    } else {
        QN_TRY(qn_chat_tokens(s->model, p->messages, p->n_messages, true, &r->tokens, &r->n_tokens));
    }
    r->n_prompt = r->cap_tokens = r->n_tokens;
    if (!r->n_prompt)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if (r->n_prompt > s->params.n_ctx)
        return qn_fail(QN_ERR_CONTEXT, "context: the prompt has %zu tokens, the capacity is %u", r->n_prompt,
                       (unsigned)s->params.n_ctx);
    return QN_OK;
}

/* ---- Positions whose states are kept ---- */

/* Ascending, each once. */
static void keep_before(qn_request *r, size_t length)
{
    const uint32_t position = (uint32_t)(length / QN_PAGE * QN_PAGE);
    if (position && (!r->n_keep || r->keep[r->n_keep - 1] < position))
        r->keep[r->n_keep++] = position;
}

/* A message ends with an end token, which nothing that a message says becomes. */
static void keep_messages(const qn_scheduler *s, qn_request *r)
{
    size_t n_ends = 0, end = 0;
    for (size_t i = 0; i < r->n_prompt; i++)
        n_ends += qn_token_is_end(s->model, r->tokens[i]);
    for (size_t i = 0; i < r->n_prompt; i++)
        if (qn_token_is_end(s->model, r->tokens[i])) {
            if (end == 0 || end + LAST_MESSAGES >= n_ends)
                keep_before(r, i + 1);
            end++;
        }
}

static qn_status find_kept_positions(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    const bool has_messages = p->messages || p->conversation;
    QN_TRY(qn_alloc(&r->keep, (has_messages ? 1 + LAST_MESSAGES : p->n_marks) + 1, sizeof *r->keep, "request"));
    for (size_t i = 0; i < p->n_marks; i++)
        keep_before(r, p->marks[i]);
    if (has_messages)
        keep_messages(s, r);
    keep_before(r, r->n_prompt);
    return QN_OK;
}

/* ---- Requests ---- */

static qn_status check_values(const qn_scheduler *s, const qn_request_params *p)
{
    const qn_tokenizer *tok;
    if (!(p->deadline >= 0) || isinf(p->deadline))
        return qn_fail(QN_ERR_INVALID, "deadline: %g seconds, expected 0 or more", p->deadline);
    if (p->n_logprobs < -1 || p->n_logprobs > QN_MAX_LOGPROBS)
        return qn_fail(QN_ERR_INVALID, "log probabilities: %d, expected -1 to %d", p->n_logprobs, QN_MAX_LOGPROBS);
    if (p->accepts && !p->mask)
        return qn_fail(QN_ERR_INVALID, "accepts: it is given without mask");
    if (p->grammar && p->mask)
        return qn_fail(QN_ERR_INVALID, "mask: it is given with a grammar");
    if (p->on_event && (p->on_text || !p->conversation))
        return qn_fail(QN_ERR_INVALID, "on_event: it is given %s",
                       p->on_text ? "with on_text, expected one of them" : "without a conversation");
    if (p->on_text || p->n_stop)
        QN_TRY(qn_model_tokenizer(s->model, &tok));
    return check_tokens(s, "stop token", p->stop_tokens, p->n_stop_tokens);
}

/* By a grammar, or by callbacks. */
static qn_status find_constraint(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    r->constraint = (qn_constraint){ .accepts = p->accepts, .mask = p->mask, .user = p->user };
    if (!p->grammar)
        return QN_OK;
    return qn_constraint_create(s->model, p->grammar, &p->grammar_trigger, r->tokens, r->n_prompt, &p->sampling,
                                &r->constraint);
}

static qn_status create(const qn_scheduler *s, const qn_request_params *p, qn_request *r)
{
    const char *scope = p->scope ? p->scope : "";
    QN_TRY(qn_stop_create(p->stop, p->n_stop, &r->stop));
    QN_TRY(find_tokens(s, p, r));
    QN_TRY(find_kept_positions(s, p, r));
    QN_TRY(qn_sampler_create(&p->sampling, s->model->hparams.n_vocab, &r->sampler));
    QN_TRY(copy_bias(s, p, r));
    QN_TRY(find_constraint(s, p, r));
    QN_TRY(copy_tokens(p->stop_tokens, p->n_stop_tokens, &r->stop_tokens));
    QN_TRY(qn_alloc(&r->scope, strlen(scope) + 1, 1, "request"));
    memcpy(r->scope, scope, strlen(scope));
    return QN_OK;
}

qn_status qn_request_new(qn_scheduler *s, const qn_request_params *params, qn_request **out)
{
    qn_request *r;
    *out = NULL;
    QN_TRY(check_prompt(s, params));
    QN_TRY(check_values(s, params));
    QN_TRY(qn_alloc(&r, 1, sizeof *r, "request"));
    r->scheduler = s;
    r->params = *params;
    r->params.reasoning_budget = params->on_event ? params->reasoning_budget : -1;
    r->admitted_after = UINT64_MAX;
    r->n_vocab = s->model->hparams.n_vocab;
    atomic_init(&r->cancelled, false);
    atomic_init(&r->mask_state, QN_MASK_NONE);
    const qn_status status = create(s, params, r);
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
    free(r->tokens);
    free(r->stop_tokens);
    qn_free(r->bias);
    qn_free(r->logits);
    qn_free(r->keep);
    qn_free(r->scope);
    qn_sampler_free(r->sampler);
    qn_constraint_free(&r->constraint);
    qn_stop_free(r->stop);
    qn_utf8_stream_free(&r->utf8);
    qn_events_free(&r->events);
    qn_free(r);
}
