/* /v1/responses: chats in OpenAI's newer form, answered at once or as a stream of numbered events. Nothing is
 * stored. */
#include "protocol/responses.h"

#include <stdlib.h>
#include <string.h>

static void free_responses(qn_exchange *exchange)
{
    qn_responses *x = (qn_responses *)exchange;
    qn_bytes_free(&x->text);
    qn_bytes_free(&x->items);
    qn_bytes_free(&x->logprobs);
    json_decref(x->custom);
    json_decref(x->names);
    qn_bytes_free(&x->instructions);
    qn_bytes_free(&x->choice);
    qn_text_exchange_free(exchange);
}

/* `include` asks for more data in the answer: log probabilities. Its other values concern tools that OpenAI's servers
 * run, or are always included. */
static bool take_include(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const char *const values[] = { "message.output_text.logprobs",
                                          "reasoning.encrypted_content",
                                          "message.input_image.image_url",
                                          "file_search_call.results",
                                          "web_search_call.results",
                                          "web_search_call.action.sources",
                                          "computer_call_output.output.image_url",
                                          "code_interpreter_call.outputs" };
    enum { N_VALUES = sizeof values / sizeof *values };
    const json_t *include = qn_field(body, "include");
    int64_t n = 0;
    bool is_asked = false;
    if (include && !json_is_array(include))
        return qn_refuse_type(refusal, "include", include, "an array");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const json_t *value = json_array_get(include, i);
        size_t k = 0;
        while (k < N_VALUES && !qn_json_is(value, values[k]))
            k++;
        if (k == N_VALUES)
            return qn_refuse(refusal, 400, "unsupported", "include", "'include' has '%.60s', which is unknown",
                             json_is_string(value) ? json_string_value(value) : "a value that is not a string");
        is_asked = is_asked || k == 0;
    }
    if (!qn_field_integer(body, "top_logprobs", 0, QN_MAX_LOGPROBS, &n, refusal))
        return false;
    x->params.n_logprobs = is_asked || n ? (int)n : -1;
    return true;
}

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_text_exchange *x = qn_text_exchange_alloc(sizeof(qn_responses), QN_CHAT_EXCHANGE, reading, refusal);
    if (!x)
        return NULL;
    qn_responses *r = (qn_responses *)x;
    r->text.account = r->items.account = r->logprobs.account = r->instructions.account = r->choice.account =
        reading->account;
    x->base.has_events = true;
    if (qn_openai_common(x, body, refusal) && take_include(x, body, refusal) &&
        qn_field_integer(body, "max_output_tokens", 1, INT32_MAX, &x->params.max_tokens, refusal) &&
        qn_responses_conversation(r, body, reading, refusal))
        return &x->base;
    free_responses(&x->base);
    return NULL;
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    return qn_text_exchange_bind((qn_text_exchange *)exchange, served, refusal);
}

/* ---- The response ---- */

static void write_null(const char *key, qn_bytes *out)
{
    qn_json_key(out, key);
    qn_json_null(out);
}

static void write_usage(const qn_choice *choice, qn_bytes *out)
{
    const qn_request_result *result = &choice->result;
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "input_tokens", (int64_t)result->n_prompt);
    qn_json_key(out, "input_tokens_details");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "cached_tokens", (int64_t)result->n_reused);
    qn_json_member_integer(out, "cache_write_tokens", 0);
    qn_json_close(out, '}');
    qn_json_member_integer(out, "output_tokens", (int64_t)result->n_generated);
    qn_json_key(out, "output_tokens_details");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "reasoning_tokens", (int64_t)choice->n_reasoning);
    qn_json_close(out, '}');
    qn_json_member_integer(out, "total_tokens", (int64_t)(result->n_prompt + result->n_generated));
    qn_json_close(out, '}');
}

static void write_tool_choice(const qn_responses *x, qn_bytes *out)
{
    qn_json_key(out, "tool_choice");
    if (x->choice.length)
        qn_bytes_add(out, x->choice.data, x->choice.length);
    else
        qn_json_string(out, "auto");
}

/* Repeats the settings of the request; a request that fails while it waits for its model is not bound yet. The tools
 * are not repeated: agents send 100 KB of them, and a stream has the response three times. */
static void write_settings(const qn_responses *x, qn_bytes *out)
{
    const qn_request_params *params = x->base.base.n_requests ? &x->base.base.requests[0] : &x->base.params;
    qn_json_key(out, "instructions");
    if (x->instructions.length)
        qn_bytes_add(out, x->instructions.data, x->instructions.length);
    else
        qn_json_null(out);
    qn_json_key(out, "max_output_tokens");
    if (params->max_tokens < 0)
        qn_json_null(out);
    else
        qn_json_integer(out, params->max_tokens);
    qn_json_key(out, "parallel_tool_calls");
    qn_json_bool(out, !x->base.tools.is_single);
    write_null("previous_response_id", out);
    qn_json_key(out, "store");
    qn_json_bool(out, false);
    qn_json_key(out, "temperature");
    qn_json_number(out, params->sampling.temperature);
    write_tool_choice(x, out);
    qn_json_key(out, "tools");
    qn_json_open(out, '[');
    qn_json_close(out, ']');
    if (params->n_logprobs >= 0)
        qn_json_member_integer(out, "top_logprobs", params->n_logprobs);
    qn_json_key(out, "top_p");
    qn_json_number(out, params->sampling.top_p);
    qn_json_member_string(out, "truncation", "disabled");
}

static const char *error_code(const qn_refusal *error)
{
    if (error->status == 429)
        return "rate_limit_exceeded";
    return error->status < 500 && error->code ? error->code : "server_error";
}

static void write_response(const qn_responses *x, const char *status, const qn_refusal *error, bool has_usage,
                           qn_bytes *out)
{
    const bool is_incomplete = !strcmp(status, "incomplete");
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    qn_responses_id(x, "resp_", SIZE_MAX, out);
    qn_json_member_string(out, "object", "response");
    qn_json_member_integer(out, "created_at", x->base.base.created);
    qn_json_member_string(out, "status", status);
    qn_json_member_string(out, "model", qn_text_exchange_model(&x->base));
    qn_json_key(out, "error");
    if (error) {
        qn_json_open(out, '{');
        qn_json_member_string(out, "code", error_code(error));
        qn_json_member_string(out, "message", error->message);
        qn_json_close(out, '}');
    } else {
        qn_json_null(out);
    }
    qn_json_key(out, "incomplete_details");
    if (is_incomplete) {
        qn_json_open(out, '{');
        qn_json_member_string(out, "reason", "max_output_tokens");
        qn_json_close(out, '}');
    } else {
        qn_json_null(out);
    }
    write_settings(x, out);
    qn_json_key(out, "output");
    qn_json_open(out, '[');
    qn_bytes_add(out, x->items.data, x->items.length);
    qn_json_close(out, ']');
    if (has_usage)
        write_usage(&x->base.choices[0], out);
    else
        write_null("usage", out);
    qn_json_close(out, '}');
}

static void send_response(qn_responses *x, const char *name, const char *status, const qn_refusal *error,
                          bool has_usage, qn_bytes *out)
{
    qn_responses_open_event(x, name, out);
    qn_json_key(out, "response");
    write_response(x, status, error, has_usage, out);
    qn_responses_close_event(out);
}

/* ---- The protocol ---- */

static void begin(qn_exchange *exchange, qn_bytes *out)
{
    qn_responses *x = (qn_responses *)exchange;
    if (!exchange->is_stream)
        return;
    send_response(x, "response.created", "in_progress", NULL, false, out);
    send_response(x, "response.in_progress", "in_progress", NULL, false, out);
}

static bool is_complete(const qn_responses *x)
{
    return x->base.choices[0].result.finish == QN_FINISH_STOP;
}

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_responses *x = (qn_responses *)exchange;
    if (!qn_text_exchange_take(&x->base, &x->base.choices[request], event, out))
        return;
    if (event->kind == QN_EXCHANGE_OUTPUT)
        qn_responses_output(x, event->output, out);
    else
        qn_responses_close_item(x, is_complete(x), out);
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_responses *x = (qn_responses *)exchange;
    const char *const status = is_complete(x) ? "completed" : "incomplete";
    qn_choice *choice = &x->base.choices[0];
    choice->text.has_failed =
        choice->text.has_failed || x->text.has_failed || x->items.has_failed || x->logprobs.has_failed;
    if (!qn_text_exchange_check_end(&x->base, out))
        return x->base.refusal.status;
    if (exchange->is_stream)
        send_response(x, is_complete(x) ? "response.completed" : "response.incomplete", status, NULL, true, out);
    else
        write_response(x, status, NULL, true, out);
    return 200;
}

static void fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    qn_responses *x = (qn_responses *)exchange;
    exchange->has_failed = true;
    x->base.refusal = *refusal;
    if (exchange->is_stream)
        send_response(x, "response.failed", "failed", refusal, false, out);
}

static const char *const paths[] = { "/v1/responses", "/responses", NULL };

const qn_protocol qn_responses_create = { .paths = paths,
                                          .keep_alive = ":\n\n",
                                          .has_reasoning_ids = true,
                                          .parse = parse,
                                          .bind = bind,
                                          .begin = begin,
                                          .event = event,
                                          .end = end,
                                          .fail = fail,
                                          .refuse = qn_openai_refuse,
                                          .free = free_responses };
