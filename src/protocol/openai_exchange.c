/* Exchanges of generated text: lifetime, requests, output, refusals. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

qn_text_exchange *qn_text_exchange_alloc(size_t size, qn_text_exchange_kind kind, qn_reading *reading,
                                         qn_refusal *refusal)
{
    qn_text_exchange *x;
    if (qn_alloc(&x, 1, size, "a request")) {
        qn_refuse_memory(refusal);
        return NULL;
    }
    x->kind = kind;
    x->limits = *reading->limits;
    x->base.account = x->conversation.account = x->settings.account = reading->account;
    x->params = (qn_request_params)QN_REQUEST_PARAMS_INIT;
    x->style = (qn_json_style)QN_JSON_STYLE_INIT;
    x->style.closed = true;
    x->params.reasoning_budget = QN_BUDGET_OF_SERVED;
    x->n_choices = x->n_best = 1;
    return x;
}

qn_text_exchange *qn_openai_create(qn_text_exchange_kind kind, const json_t *body, qn_reading *reading,
                                   qn_refusal *refusal)
{
    qn_text_exchange *x = qn_text_exchange_alloc(sizeof *x, kind, reading, refusal);
    if (!x || (qn_openai_params(x, body, refusal) && qn_openai_take_constraints(x, body, reading, refusal)))
        return x;
    qn_text_exchange_free(&x->base);
    return NULL;
}

/* Releases the values that only bind needs: kept, they could be as large as the body until the answer ends. */
static void release_body(qn_text_exchange *x)
{
    json_t **const parts[] = { &x->base.conversation, &x->biases,       &x->prompt,     &x->format.source,
                               &x->tools.list,        &x->tools.called, &x->gap.suffix, &x->gap.files };
    x->tools.name = NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        json_decref(*parts[i]);
        *parts[i] = NULL;
    }
}

void qn_text_exchange_free(qn_exchange *exchange)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    qn_grammar_free(x->params.grammar);
    release_body(x);
    qn_free(x->stop);
    qn_free(x->stop_tokens);
    qn_free(x->breakers);
    qn_free_tokens(x->breaker_tokens);
    json_decref(x->given_breakers);
    json_decref(x->model);
    json_decref(x->stops);
    qn_free(x->fields.list);
    free(x->bias);
    qn_bytes_free(&x->conversation);
    qn_bytes_free(&x->settings);
    for (size_t i = 0; x->prompts && i < x->n_prompts; i++) {
        free(x->prompts[i].tokens);
        qn_bytes_free(&x->prompts[i].json);
    }
    qn_free(x->prompts);
    for (size_t i = 0; x->choices && i < x->base.n_requests; i++)
        qn_choice_free(&x->choices[i]);
    qn_free(x->choices);
    qn_free(x->base.requests);
    qn_free(x);
}

/* ---- Requests ---- */

/* Returns the seed of a choice. Choices of one prompt have different seeds; choices of equal prompts have the same. */
static uint64_t seed_of(uint64_t seed, size_t choice)
{
    const uint64_t number = choice;
    return choice ? XXH64(&number, sizeof number, seed) : seed;
}

bool qn_openai_set_reasoning(json_t *conversation, const qn_served *served)
{
    const bool has_effort = json_object_get(conversation, "reasoning_effort") != NULL;
    if (!has_effort && served->thinking && !json_object_get(conversation, "enable_thinking") &&
        json_object_set_new(conversation, "enable_thinking", json_boolean(served->thinking == QN_THINKING_ON)) != 0)
        return false;
    const bool needs_effort = !has_effort && !json_is_false(json_object_get(conversation, "enable_thinking"));
    return !served->effort || !needs_effort ||
           json_object_set_new(conversation, "reasoning_effort", json_string(served->effort)) == 0;
}

/* This is the last use of the body's values. The scheduler keeps this text, and the template's text made of it; all
 * choices share both. */
bool qn_text_exchange_dump_conversation(qn_text_exchange *x, qn_refusal *refusal)
{
    enum { COPIES = 2 };
    if (!qn_openai_set_reasoning(x->base.conversation, x->served))
        return qn_refuse_memory(refusal);
    qn_json_dump(x->base.conversation, &x->conversation);
    release_body(x);
    qn_exchange_give_values(&x->base);
    if (x->conversation.has_failed || !qn_account_take(x->base.account, COPIES * x->conversation.length))
        return qn_refuse_over(x->base.account, refusal);
    x->params.conversation = x->conversation.data;
    x->params.conversation_length = x->conversation.length;
    return true;
}

qn_status qn_text_exchange_count_prompt(qn_text_exchange *x)
{
    return qn_conversation_count(x->served->model, x->params.conversation, x->params.conversation_length, -1,
                                 &x->n_prompt);
}

bool qn_text_exchange_bind_count(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    x->served = served;
    if (!qn_text_exchange_dump_conversation(x, refusal))
        return false;
    const qn_status status = qn_text_exchange_count_prompt(x);
    return status == QN_OK || qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, "messages",
                                        "%s", qn_error_text());
}

/* Reserves memory of n choices until the answer ends, besides that of requests: stop strings and breakers remain JSON
 * values. */
static bool promise_choices(const qn_text_exchange *x, size_t n, qn_refusal *refusal)
{
    enum { VALUE_BYTES = 128 };
    size_t bytes = n * (sizeof *x->base.requests + sizeof *x->choices);
    for (size_t i = 0; i < x->params.n_stop; i++)
        bytes += VALUE_BYTES + strlen(x->stop[i]);
    for (size_t i = 0; i < x->n_breakers; i++)
        bytes += VALUE_BYTES + strlen(x->breakers[i]);
    return qn_account_take(x->base.account, bytes) || qn_refuse_over(x->base.account, refusal);
}

bool qn_text_exchange_bind(qn_text_exchange *x, const qn_served *served, qn_refusal *refusal)
{
    const bool is_chat = x->base.conversation;
    const size_t n_prompts = is_chat ? 1 : x->n_prompts, n = n_prompts * x->n_choices;
    x->served = served;
    if (x->params.reasoning_budget == QN_BUDGET_OF_SERVED)
        x->params.reasoning_budget = is_chat ? served->reasoning_budget : -1;
    if (!qn_openai_bind_params(x, refusal) || !qn_openai_constrain(x, refusal) ||
        !(is_chat ? qn_text_exchange_dump_conversation : qn_openai_bind_prompts)(x, refusal))
        return false;
    release_body(x);
    if (!promise_choices(x, n, refusal))
        return false;
    if (qn_alloc(&x->base.requests, n, sizeof *x->base.requests, "requests") ||
        qn_alloc(&x->choices, n, sizeof *x->choices, "choices"))
        return qn_refuse_memory(refusal);
    x->base.n_requests = n;
    for (size_t i = 0; i < n; i++) {
        qn_request_params *request = &x->base.requests[i];
        qn_choice_init(&x->choices[i], x->base.account);
        *request = x->params;
        request->sampling.seed = seed_of(x->params.sampling.seed, i % x->n_choices);
        if (x->n_best < x->n_choices && request->n_logprobs < 0)
            request->n_logprobs = 0; /* to compare the choices */
        if (!is_chat) {
            request->tokens = x->prompts[i / x->n_choices].tokens;
            request->n_tokens = x->prompts[i / x->n_choices].n;
        }
    }
    return true;
}

const char *qn_text_exchange_model(const qn_text_exchange *x)
{
    if (x->served && x->served->name)
        return x->served->name;
    if (x->base.model)
        return x->base.model;
    return x->served ? qn_model_get_info(x->served->model)->name : "";
}

/* ---- Answers ---- */

void qn_openai_open(const qn_text_exchange *x, const char *prefix, const char *object, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    qn_bytes_print(out, "\"%s", prefix);
    qn_bytes_add(out, x->base.id, strlen(x->base.id));
    qn_bytes_print(out, "\"");
    qn_json_member_string(out, "object", object);
    qn_json_member_integer(out, "created", x->base.created);
    qn_json_member_string(out, "model", qn_text_exchange_model(x));
    if (x->served->fingerprint)
        qn_json_member_string(out, "system_fingerprint", x->served->fingerprint);
}

void qn_openai_close(const qn_text_exchange *x, qn_bytes *out)
{
    qn_openai_usage(x, out);
    if (x->has_timings)
        qn_llama_timings(&x->choices[0], out);
    qn_json_close(out, '}');
}

void qn_text_exchange_no_event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    (void)exchange;
    (void)request;
    (void)event;
    (void)out;
}

void qn_llama_begin(qn_exchange *exchange, qn_bytes *out)
{
    (void)exchange;
    (void)out;
}

const char *qn_text_exchange_stop(const qn_text_exchange *x, const qn_choice *choice)
{
    const size_t index = choice->result.stop_string;
    return choice->result.is_stop_string && index < x->params.n_stop ? x->stop[index] : NULL;
}

/* ---- Errors ---- */

static const char *type_of(const qn_refusal *refusal)
{
    switch (refusal->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return refusal->status < 500 ? "invalid_request_error" : "server_error";
    }
}

void qn_openai_refuse(const qn_refusal *refusal, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_member_string(out, "message", refusal->message);
    qn_json_member_string(out, "type", refusal->type ? refusal->type : type_of(refusal));
    qn_json_member_string(out, "param", *refusal->param ? refusal->param : NULL);
    qn_json_member_string(out, "code", refusal->code);
    if (refusal->n_ctx) {
        qn_json_member_integer(out, "n_prompt_tokens", (int64_t)refusal->n_prompt);
        qn_json_member_integer(out, "n_ctx", (int64_t)refusal->n_ctx);
    }
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

void qn_openai_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    x->base.has_failed = true;
    x->refusal = *refusal;
    if (!x->base.is_stream)
        return;
    qn_bytes_print(out, "data: ");
    qn_openai_refuse(refusal, out);
    qn_bytes_print(out, "\n\n");
}

/* ---- Output ---- */

/* Whether choices keep their tokens. Without log probabilities only /completion needs them. */
static bool keeps_tokens(const qn_text_exchange *x)
{
    return x->params.n_logprobs >= 0 || x->has_tokens;
}

static bool take_prompt(qn_text_exchange *x, qn_choice *choice, const qn_exchange_event *event, qn_refusal *refusal)
{
    const bool is_last = event->index + 1 == qn_openai_prompt_of(x, (size_t)(choice - x->choices))->n;
    return qn_choice_take_prompt(choice, event, x->served->model, is_last) || qn_refuse_over(x->base.account, refusal);
}

/* Counts an event for its choice. False: `refusal` is set, and the answer ends with it. */
static bool take(qn_text_exchange *x, qn_choice *choice, const qn_exchange_event *event, qn_refusal *refusal)
{
    switch (event->kind) {
    case QN_EXCHANGE_TOKEN:
        return qn_choice_take_token(choice, event, x->served->model, &x->params, keeps_tokens(x)) ||
               qn_refuse_over(x->base.account, refusal);
    case QN_EXCHANGE_PROMPT: return take_prompt(x, choice, event, refusal);
    case QN_EXCHANGE_TEXT: qn_choice_take_text(choice, event->text, event->length); return true;
    case QN_EXCHANGE_OUTPUT: qn_choice_take_output(choice, event->output); return true;
    case QN_EXCHANGE_PROGRESS: return true;
    case QN_EXCHANGE_EMBEDDING: return true;
    case QN_EXCHANGE_END: break;
    }
    qn_choice_end(choice, event->result);
    if (event->result->finish != QN_FINISH_ERROR)
        return true;
    qn_exchange_refuse_result(event->result, refusal);
    return false;
}

bool qn_text_exchange_take(qn_text_exchange *x, qn_choice *choice, const qn_exchange_event *event, qn_bytes *out)
{
    qn_refusal refusal;
    if (x->base.has_failed)
        return false;
    if (take(x, choice, event, &refusal))
        return event->kind != QN_EXCHANGE_TOKEN;
    x->base.protocol->fail(&x->base, &refusal, out);
    return false;
}

bool qn_text_exchange_check_end(qn_text_exchange *x, qn_bytes *out)
{
    for (size_t i = 0; !x->base.has_failed && i < x->base.n_requests; i++) {
        const qn_choice *c = &x->choices[i];
        if (c->text.has_failed || c->reasoning.has_failed || c->name.has_failed || c->arguments.has_failed ||
            c->calls.has_failed) {
            qn_refuse_over(x->base.account, &x->refusal);
            x->base.has_failed = true;
        }
    }
    x->refusal.id = x->base.id;
    if (x->base.has_failed && !x->base.is_stream)
        x->base.protocol->refuse(&x->refusal, out);
    return !x->base.has_failed;
}
