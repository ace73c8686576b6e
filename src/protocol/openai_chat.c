/* /v1/chat/completions: chats, answered at once or as a stream of chunks. */
#include "protocol/openai.h"

#include <string.h>

/* Reads llama-server's fields: where reasoning goes, and how many tokens it may have. */
static bool take_reasoning(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const char *const formats[] = { "none", "auto", "deepseek", "deepseek-legacy" };
    const json_t *given = qn_field(body, "reasoning_format");
    size_t i = 0;
    while (given && i < sizeof formats / sizeof *formats && !qn_json_is(given, formats[i]))
        i++;
    if (i == sizeof formats / sizeof *formats)
        return qn_refuse_choice(refusal, "reasoning_format", given,
                                "\"none\", \"auto\", \"deepseek\" or \"deepseek-legacy\"");
    x->has_think_tags = given && i == 0;
    return qn_field_integer(body, "reasoning_budget_tokens", -1, INT32_MAX, &x->params.reasoning_budget, refusal) &&
           qn_field_integer(body, "thinking_budget_tokens", -1, INT32_MAX, &x->params.reasoning_budget, refusal);
}

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    bool has_functions;
    qn_text_exchange *x = NULL;
    if (!qn_openai_take_functions(body, &has_functions, reading, refusal))
        return NULL;
    x = qn_openai_create(QN_CHAT_EXCHANGE, body, reading, refusal);
    if (x)
        x->base.conversation = qn_openai_conversation(body, reading, refusal);
    if (x && x->base.conversation && take_reasoning(x, body, refusal)) {
        x->has_functions = has_functions;
        x->base.has_events = true;
        return &x->base;
    }
    if (has_functions)
        qn_openai_name_functions(refusal);
    if (x)
        qn_text_exchange_free(&x->base);
    return NULL;
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    return qn_text_exchange_bind((qn_text_exchange *)exchange, served, refusal);
}

/* ---- Chunks ---- */

static void open_object(const qn_text_exchange *x, const char *object, qn_bytes *out)
{
    qn_openai_open(x, "chatcmpl-", object, out);
}

/* Writes a chunk up to the inside of `delta`. */
static void open_chunk(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_bytes_print(out, "data: ");
    open_object(x, "chat.completion.chunk", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)index);
    qn_json_key(out, "delta");
    qn_json_open(out, '{');
}

/* Writes a chunk from the end of `delta` on, with the log probabilities of the n tokens since the last chunk. */
static void close_chunk(const qn_text_exchange *x, qn_choice *choice, size_t n, const char *finish_reason,
                        qn_bytes *out)
{
    qn_json_close(out, '}');
    qn_json_key(out, "logprobs");
    if (x->params.n_logprobs >= 0 && (n || (!finish_reason && choice->n_tokens)))
        qn_openai_chat_logprobs(x, choice, n, out);
    else
        qn_json_null(out);
    qn_choice_drop(choice, n);
    qn_json_member_string(out, "finish_reason", finish_reason);
    qn_json_close(out, '}');
    qn_json_close(out, ']');
    if (x->has_usage) {
        qn_json_key(out, "usage");
        qn_json_null(out);
    }
    if (x->has_timings && finish_reason && !x->has_usage)
        qn_llama_timings(choice, out);
    qn_bytes_print(out, "}\n\n");
}

static void send_text(const qn_text_exchange *x, size_t index, const char *key, const char *text, size_t length,
                      qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    open_chunk(x, index, out);
    qn_json_key(out, key);
    qn_json_text(out, text, length);
    close_chunk(x, choice, qn_choice_ready(choice), NULL, out);
}

/* Writes the object of `function` or `function_call`: in a call's first chunk the name and empty arguments, in later
 * chunks a piece of the arguments. */
static void write_function(const qn_output_event *event, qn_bytes *out)
{
    const bool is_first = event->kind == QN_OUTPUT_CALL_BEGIN;
    qn_json_open(out, '{');
    if (is_first) {
        qn_json_key(out, "name");
        qn_json_text(out, event->text, event->length);
    }
    qn_json_key(out, "arguments");
    qn_json_text(out, event->text, is_first ? 0 : event->length);
    qn_json_close(out, '}');
}

/* Writes a piece of a call. Its first chunk also has its id. */
static void write_call(const qn_text_exchange *x, size_t index, const qn_output_event *event, qn_bytes *out)
{
    char id[QN_CALL_ID_BYTES];
    qn_json_key(out, "tool_calls");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)event->call);
    if (event->kind == QN_OUTPUT_CALL_BEGIN) {
        qn_exchange_call_id(&x->base, index, event->call, id);
        qn_json_member_string(out, "id", id);
        qn_json_member_string(out, "type", "function");
    }
    qn_json_key(out, "function");
    write_function(event, out);
    qn_json_close(out, '}');
    qn_json_close(out, ']');
}

static void send_call(const qn_text_exchange *x, size_t index, const qn_output_event *event, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    open_chunk(x, index, out);
    if (x->has_functions) {
        qn_json_key(out, "function_call");
        write_function(event, out);
    } else {
        write_call(x, index, event, out);
    }
    close_chunk(x, choice, qn_choice_ready(choice), NULL, out);
}

/* Sends a chunk without anything new, but with progress. */
static void send_progress(const qn_text_exchange *x, size_t index, const qn_prompt_progress *progress, qn_bytes *out)
{
    open_chunk(x, index, out);
    qn_json_close(out, '}');
    qn_json_member_string(out, "finish_reason", NULL);
    qn_json_close(out, '}');
    qn_json_close(out, ']');
    qn_llama_progress(progress, out);
    qn_bytes_print(out, "}\n\n");
}

static void begin(qn_exchange *exchange, qn_bytes *out)
{
    const qn_text_exchange *x = (const qn_text_exchange *)exchange;
    for (size_t i = 0; x->base.is_stream && i < x->base.n_requests; i++) {
        open_chunk(x, i, out);
        qn_json_member_string(out, "role", "assistant");
        qn_json_member_string(out, "content", NULL);
        close_chunk(x, &x->choices[i], 0, NULL, out);
    }
}

/* ---- Events ---- */

/* Sends or collects a text of the answer. */
static void add_text(const qn_text_exchange *x, size_t index, bool is_reasoning, const char *text, size_t length,
                     qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    if (x->base.is_stream)
        send_text(x, index, is_reasoning ? "reasoning_content" : "content", text, length, out);
    else
        qn_bytes_add(is_reasoning ? &choice->reasoning : &choice->text, text, length);
}

static void add_tag(const qn_text_exchange *x, size_t index, bool is_reasoning, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    const char *const tag = is_reasoning ? "<think>" : "</think>";
    if (!x->has_think_tags || choice->is_tagged == is_reasoning)
        return;
    choice->is_tagged = is_reasoning;
    add_text(x, index, false, tag, strlen(tag), out);
}

/* Collects a call without a stream. One that was cut has the arguments so far, as in a stream; one that does not parse
 * is text. */
static void collect_call(const qn_text_exchange *x, size_t index, const qn_output_event *event)
{
    qn_choice *choice = &x->choices[index];
    char id[QN_CALL_ID_BYTES];
    if (event->call_end == QN_OUTPUT_BROKEN) {
        qn_bytes_add(&choice->text, event->text, event->length);
        return;
    }
    if (!x->has_functions) {
        qn_exchange_call_id(&x->base, index, event->call, id);
        qn_json_open(&choice->calls, '{');
        qn_json_member_string(&choice->calls, "id", id);
        qn_json_member_string(&choice->calls, "type", "function");
        qn_json_key(&choice->calls, "function");
    }
    qn_json_open(&choice->calls, '{');
    qn_json_key(&choice->calls, "name");
    qn_json_text(&choice->calls, choice->name.data, choice->name.length);
    qn_json_key(&choice->calls, "arguments");
    qn_json_text(&choice->calls, choice->arguments.data, choice->arguments.length);
    qn_json_close(&choice->calls, '}');
    if (!x->has_functions)
        qn_json_close(&choice->calls, '}');
}

static bool is_of_call(const qn_output_event *event)
{
    return event->kind != QN_OUTPUT_REASONING && event->kind != QN_OUTPUT_CONTENT;
}

static void take_output(const qn_text_exchange *x, size_t index, const qn_output_event *event, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    /* There is only one `function_call`: a second call is text, or dropped if it was cut. */
    if (x->has_functions && is_of_call(event) && event->call) {
        if (event->kind == QN_OUTPUT_CALL_END && event->call_end != QN_OUTPUT_CUT)
            add_text(x, index, false, event->text, event->length, out);
        return;
    }
    add_tag(x, index, event->kind == QN_OUTPUT_REASONING, out);
    switch (event->kind) {
    case QN_OUTPUT_REASONING: add_text(x, index, !x->has_think_tags, event->text, event->length, out); return;
    case QN_OUTPUT_CONTENT: add_text(x, index, false, event->text, event->length, out); return;
    case QN_OUTPUT_CALL_BEGIN: choice->name.length = choice->arguments.length = 0; break;
    case QN_OUTPUT_ARGUMENTS: break;
    case QN_OUTPUT_CALL_END:
        if (!x->base.is_stream)
            collect_call(x, index, event);
        return;
    }
    if (x->base.is_stream)
        send_call(x, index, event, out);
    else
        qn_bytes_add(event->kind == QN_OUTPUT_CALL_BEGIN ? &choice->name : &choice->arguments, event->text,
                     event->length);
}

static const char *finish_reason(const qn_text_exchange *x, const qn_choice *choice)
{
    const char *reason = qn_finish_reason(choice);
    return x->has_functions && !strcmp(reason, "tool_calls") ? "function_call" : reason;
}

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    qn_choice *choice = &x->choices[request];
    if (!qn_text_exchange_take(x, choice, event, out))
        return;
    if (event->kind == QN_EXCHANGE_PROGRESS) {
        send_progress(x, request, event->progress, out);
    } else if (event->kind == QN_EXCHANGE_OUTPUT) {
        take_output(x, request, event->output, out);
    } else if (event->kind == QN_EXCHANGE_END) {
        add_tag(x, request, false, out);
        if (x->base.is_stream) {
            open_chunk(x, request, out);
            close_chunk(x, choice, choice->n_pending, finish_reason(x, choice), out);
        }
    }
}

/* ---- The end ---- */

static void write_message(const qn_text_exchange *x, const qn_choice *choice, qn_bytes *out)
{
    qn_json_key(out, "message");
    qn_json_open(out, '{');
    qn_json_member_string(out, "role", "assistant");
    qn_json_key(out, "content");
    if (choice->calls.length && !choice->text.length)
        qn_json_null(out);
    else
        qn_json_text(out, choice->text.data, choice->text.length);
    if (choice->reasoning.length) {
        qn_json_key(out, "reasoning_content");
        qn_json_text(out, choice->reasoning.data, choice->reasoning.length);
    }
    if (choice->calls.length) {
        qn_json_key(out, x->has_functions ? "function_call" : "tool_calls");
        if (!x->has_functions)
            qn_json_open(out, '[');
        qn_bytes_add(out, choice->calls.data, choice->calls.length);
        if (!x->has_functions)
            qn_json_close(out, ']');
    }
    qn_json_close(out, '}');
}

static void write_body(const qn_text_exchange *x, qn_bytes *out)
{
    open_object(x, "chat.completion", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    for (size_t i = 0; i < x->base.n_requests; i++) {
        const qn_choice *choice = &x->choices[i];
        qn_json_open(out, '{');
        qn_json_member_integer(out, "index", (int64_t)i);
        write_message(x, choice, out);
        qn_json_key(out, "logprobs");
        if (x->params.n_logprobs >= 0)
            qn_openai_chat_logprobs(x, choice, choice->n_pending, out);
        else
            qn_json_null(out);
        qn_json_member_string(out, "finish_reason", finish_reason(x, choice));
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    qn_openai_close(x, out);
}

static void write_usage_chunk(const qn_text_exchange *x, qn_bytes *out)
{
    qn_bytes_print(out, "data: ");
    open_object(x, "chat.completion.chunk", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    qn_json_close(out, ']');
    qn_openai_close(x, out);
    qn_bytes_print(out, "\n\n");
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    if (!qn_text_exchange_check_end(x, out))
        return x->refusal.status;
    if (!x->base.is_stream)
        write_body(x, out);
    else if (x->has_usage)
        write_usage_chunk(x, out);
    if (x->base.is_stream)
        qn_bytes_print(out, "data: [DONE]\n\n");
    return 200;
}

static const char *const paths[] = { "/v1/chat/completions", "/chat/completions", NULL };

const qn_protocol qn_openai_chat = { .paths = paths,
                                     .keep_alive = ":\n\n",
                                     .parse = parse,
                                     .bind = bind,
                                     .begin = begin,
                                     .event = event,
                                     .end = end,
                                     .fail = qn_openai_fail,
                                     .refuse = qn_openai_refuse,
                                     .free = qn_text_exchange_free };
