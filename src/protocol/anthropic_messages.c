/* /v1/messages: writes output as the content blocks of a message, at once or as a stream of events, in which each block
 * ends before the next begins. */
#include "protocol/anthropic.h"

#include "text/json_scan.h"

#include <string.h>

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_text_exchange *x = qn_text_exchange_alloc(sizeof(qn_anthropic), QN_CHAT_EXCHANGE, reading, refusal);
    if (!x)
        return NULL;
    x->base.has_events = true;
    ((qn_anthropic *)x)->blocks.account = reading->account;
    if (!qn_field(body, "max_tokens"))
        qn_refuse_type(refusal, "max_tokens", NULL, "an integer");
    else if (qn_openai_common(x, body, refusal) &&
             qn_field_integer(body, "max_tokens", 0, INT32_MAX, &x->params.max_tokens, refusal) &&
             qn_openai_take_stop(x, body, "stop_sequences", refusal) &&
             qn_anthropic_conversation((qn_anthropic *)x, body, reading, refusal))
        return &x->base;
    qn_anthropic_free(&x->base);
    return NULL;
}

void qn_anthropic_free(qn_exchange *exchange)
{
    qn_bytes_free(&((qn_anthropic *)exchange)->blocks);
    qn_text_exchange_free(exchange);
}

/* Member `bind`. Counts the prompt of a stream, which begins with its length. The scheduler refuses a prompt without
 * tokens. */
static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_anthropic *x = (qn_anthropic *)exchange;
    if (!qn_text_exchange_bind(&x->base, served, refusal))
        return false;
    if (exchange->is_stream && qn_text_exchange_count_prompt(&x->base))
        x->base.n_prompt = 0;
    return true;
}

/* ---- Errors ---- */

static const char *type_of(const qn_refusal *refusal)
{
    switch (refusal->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return "overloaded_error";
    case 504: return "timeout_error";
    default: return refusal->status < 500 ? "invalid_request_error" : "api_error";
    }
}

static void write_details(qn_bytes *out)
{
    qn_json_key(out, "details");
    qn_json_open(out, '{');
    qn_json_member_string(out, "error_code", QN_ANTHROPIC_NO_THREADS);
    qn_json_key(out, "unsupported");
    qn_json_open(out, '[');
    qn_json_string(out, "thread");
    qn_json_close(out, ']');
    qn_json_close(out, '}');
}

void qn_anthropic_refuse(const qn_refusal *refusal, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", "error");
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", type_of(refusal));
    qn_json_key(out, "message");
    if (refusal->n_ctx)
        qn_bytes_print(out, "\"prompt is too long: %zu tokens > %zu maximum\"", refusal->n_prompt, refusal->n_ctx);
    else
        qn_json_string(out, refusal->message);
    if (refusal->code && !strcmp(refusal->code, QN_ANTHROPIC_NO_THREADS))
        write_details(out);
    qn_json_close(out, '}');
    qn_json_key(out, "request_id");
    if (refusal->id) {
        qn_json_string(out, "req_");
        out->length -= !out->has_failed; /* its last quote */
        qn_bytes_add(out, refusal->id, strlen(refusal->id));
        qn_bytes_print(out, "\"");
    } else {
        qn_json_null(out);
    }
    qn_json_close(out, '}');
}

void qn_anthropic_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    qn_anthropic *x = (qn_anthropic *)exchange;
    exchange->has_failed = true;
    x->base.refusal = *refusal;
    x->base.refusal.id = exchange->id;
    if (!exchange->is_stream)
        return;
    qn_bytes_print(out, "event: error\ndata: ");
    qn_anthropic_refuse(&x->base.refusal, out);
    qn_bytes_print(out, "\n\n");
}

/* ---- Messages ---- */

static void write_usage(size_t n_prompt, size_t n_reused, size_t n_generated, size_t n_thinking, qn_bytes *out)
{
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "input_tokens", (int64_t)(n_prompt - n_reused));
    qn_json_member_integer(out, "cache_creation_input_tokens", 0);
    qn_json_member_integer(out, "cache_read_input_tokens", (int64_t)n_reused);
    qn_json_member_integer(out, "output_tokens", (int64_t)n_generated);
    qn_json_key(out, "output_tokens_details");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "thinking_tokens", (int64_t)n_thinking);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

static void write_choice_usage(const qn_choice *choice, qn_bytes *out)
{
    const qn_request_result *result = &choice->result;
    write_usage(result->n_prompt, result->n_reused, result->n_generated, choice->n_reasoning, out);
}

/* Writes a message up to the inside of `content`. */
static void open_message(const qn_anthropic *x, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    qn_bytes_print(out, "\"msg_");
    qn_bytes_add(out, x->base.base.id, strlen(x->base.base.id));
    qn_bytes_print(out, "\"");
    qn_json_member_string(out, "type", "message");
    qn_json_member_string(out, "role", "assistant");
    qn_json_member_string(out, "model", qn_text_exchange_model(&x->base));
    qn_json_key(out, "content");
    qn_json_open(out, '[');
}

static const char *stop_reason(const qn_choice *choice)
{
    const qn_request_result *result = &choice->result;
    if (result->finish == QN_FINISH_STOP)
        return result->is_stop_string ? "stop_sequence" : choice->n_calls ? "tool_use" : "end_turn";
    return result->finish == QN_FINISH_CONTEXT ? "model_context_window_exceeded" : "max_tokens";
}

static void write_stop(const qn_anthropic *x, const qn_choice *choice, qn_bytes *out)
{
    qn_json_member_string(out, "stop_reason", choice ? stop_reason(choice) : NULL);
    qn_json_member_string(out, "stop_sequence", choice ? qn_text_exchange_stop(&x->base, choice) : NULL);
}

/* ---- Events ---- */

/* Writes an event up to the member after `type`. */
static void open_event(const char *name, qn_bytes *out)
{
    qn_bytes_print(out, "event: %s\ndata: ", name);
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", name);
}

static void close_event(qn_bytes *out)
{
    qn_bytes_print(out, "}\n\n");
}

static void open_block_event(const qn_anthropic *x, const char *name, qn_bytes *out)
{
    open_event(name, out);
    qn_json_member_integer(out, "index", (int64_t)x->n_blocks - 1);
}

static void send_delta(const qn_anthropic *x, const char *type, const char *key, const char *text, size_t length,
                       qn_bytes *out)
{
    open_block_event(x, "content_block_delta", out);
    qn_json_key(out, "delta");
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", type);
    qn_json_key(out, key);
    qn_json_text(out, text, length);
    qn_json_close(out, '}');
    close_event(out);
}

static void begin(qn_exchange *exchange, qn_bytes *out)
{
    const qn_anthropic *x = (const qn_anthropic *)exchange;
    if (!exchange->is_stream)
        return;
    open_event("message_start", out);
    qn_json_key(out, "message");
    open_message(x, out);
    qn_json_close(out, ']');
    write_stop(x, NULL, out);
    write_usage(x->base.n_prompt, 0, 0, 0, out);
    qn_json_close(out, '}');
    close_event(out);
    qn_bytes_print(out, "%s", exchange->protocol->keep_alive);
}

/* ---- Blocks ---- */

static void write_text_block(qn_anthropic_block block, const char *text, size_t length, const char *signature,
                             qn_bytes *out)
{
    const bool is_thinking = block == QN_BLOCK_THINKING;
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", is_thinking ? "thinking" : "text");
    qn_json_key(out, is_thinking ? "thinking" : "text");
    qn_json_text(out, text, length);
    if (is_thinking)
        qn_json_member_string(out, "signature", signature);
    qn_json_close(out, '}');
}

/* `input` is a JSON object, as text. */
static void write_tool_block(const qn_anthropic *x, size_t call, const char *name, size_t length, const char *input,
                             size_t n_input, qn_bytes *out)
{
    char id[QN_CALL_ID_BYTES];
    qn_exchange_call_id(&x->base.base, 0, call, id);
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", "tool_use");
    qn_json_member_string(out, "id", id);
    qn_json_key(out, "name");
    qn_json_text(out, name, length);
    qn_json_key(out, "input");
    qn_bytes_add(out, input, n_input);
    qn_json_close(out, '}');
}

static void close_block(qn_anthropic *x, qn_bytes *out)
{
    qn_choice *choice = &x->base.choices[0];
    const bool is_thinking = x->block == QN_BLOCK_THINKING;
    char signature[QN_CALL_ID_BYTES];
    if (x->block == QN_BLOCK_NONE)
        return;
    if (is_thinking)
        qn_exchange_reasoning_id(&x->base.base, 0, x->n_thinking++, signature);
    if (x->base.base.is_stream) {
        if (is_thinking)
            send_delta(x, "signature_delta", "signature", signature, strlen(signature), out);
        open_block_event(x, "content_block_stop", out);
        close_event(out);
    } else {
        qn_bytes *text = is_thinking ? &choice->reasoning : &choice->text;
        write_text_block(x->block, text->data, text->length, signature, &x->blocks);
        text->length = 0;
    }
    x->block = QN_BLOCK_NONE;
}

static void open_block(qn_anthropic *x, qn_anthropic_block block, const qn_output_event *event, qn_bytes *out)
{
    close_block(x, out);
    x->block = block;
    x->n_blocks++;
    if (!x->base.base.is_stream)
        return;
    open_block_event(x, "content_block_start", out);
    qn_json_key(out, "content_block");
    if (block == QN_BLOCK_TOOL)
        write_tool_block(x, event->call, event->text, event->length, "{}", 2, out);
    else
        write_text_block(block, "", 0, "", out);
    close_event(out);
}

static void add_text(qn_anthropic *x, qn_anthropic_block block, const qn_output_event *event, qn_bytes *out)
{
    qn_choice *choice = &x->base.choices[0];
    const bool is_thinking = block == QN_BLOCK_THINKING;
    if (x->block != block)
        open_block(x, block, event, out);
    if (is_thinking && x->omits_thinking)
        return;
    if (!x->base.base.is_stream)
        qn_bytes_add(is_thinking ? &choice->reasoning : &choice->text, event->text, event->length);
    else if (is_thinking)
        send_delta(x, "thinking_delta", "thinking", event->text, event->length, out);
    else
        send_delta(x, "text_delta", "text", event->text, event->length, out);
}

/* Makes arguments that were cut a valid object of the members that are complete: those followed by another one. */
static void complete_input(qn_bytes *arguments)
{
    size_t depth = 0, end = 0;
    bool in_string = false;
    for (size_t i = 0; i < arguments->length; i++) {
        const char c = arguments->data[i];
        i += in_string && c == '\\';
        in_string ^= c == '"';
        if (in_string)
            continue;
        if (c == '{' || c == '[')
            depth++;
        else if (c == '}' || c == ']')
            depth -= depth > 0;
        else if (c == ',' && depth == 1)
            end = i;
    }
    arguments->length = end;
    qn_bytes_add(arguments, end ? "}" : "{}", end ? 1 : 2);
}

/* Collects a call without a stream. One that does not parse becomes text, as in a stream that had not begun it. */
static void collect_call(qn_anthropic *x, const qn_output_event *event, qn_bytes *out)
{
    qn_choice *choice = &x->base.choices[0];
    if (event->call_end == QN_OUTPUT_CUT)
        complete_input(&choice->arguments);
    const bool is_object = choice->arguments.length && *choice->arguments.data == '{' &&
                           qn_json_is_value(choice->arguments.data, choice->arguments.length);
    if (event->call_end != QN_OUTPUT_BROKEN && is_object) {
        close_block(x, out);
        write_tool_block(x, event->call, choice->name.data, choice->name.length, choice->arguments.data,
                         choice->arguments.length, &x->blocks);
    } else {
        add_text(x, QN_BLOCK_TEXT, event, out);
    }
}

static void collect(qn_anthropic *x, const qn_output_event *event, qn_bytes *out)
{
    qn_choice *choice = &x->base.choices[0];
    if (event->kind == QN_OUTPUT_CALL_END) {
        collect_call(x, event, out);
        return;
    }
    if (event->kind == QN_OUTPUT_CALL_BEGIN)
        choice->name.length = choice->arguments.length = 0;
    qn_bytes_add(event->kind == QN_OUTPUT_CALL_BEGIN ? &choice->name : &choice->arguments, event->text, event->length);
}

static void take_output(qn_anthropic *x, const qn_output_event *event, qn_bytes *out)
{
    if (event->kind == QN_OUTPUT_REASONING && x->hides_thinking)
        return;
    if (event->kind == QN_OUTPUT_REASONING || event->kind == QN_OUTPUT_CONTENT)
        add_text(x, event->kind == QN_OUTPUT_REASONING ? QN_BLOCK_THINKING : QN_BLOCK_TEXT, event, out);
    else if (!x->base.base.is_stream)
        collect(x, event, out);
    else if (event->kind == QN_OUTPUT_CALL_BEGIN)
        open_block(x, QN_BLOCK_TOOL, event, out);
    else if (x->block == QN_BLOCK_TOOL && event->kind == QN_OUTPUT_ARGUMENTS)
        send_delta(x, "input_json_delta", "partial_json", event->text, event->length, out);
    else if (x->block == QN_BLOCK_TOOL)
        close_block(x, out);
}

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_anthropic *x = (qn_anthropic *)exchange;
    if (!qn_text_exchange_take(&x->base, &x->base.choices[request], event, out))
        return;
    if (event->kind == QN_EXCHANGE_OUTPUT)
        take_output(x, event->output, out);
    else
        close_block(x, out);
}

/* ---- The end ---- */

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_anthropic *x = (qn_anthropic *)exchange;
    qn_choice *choice = &x->base.choices[0];
    choice->text.has_failed = choice->text.has_failed || x->blocks.has_failed;
    if (!qn_text_exchange_check_end(&x->base, out))
        return x->base.refusal.status;
    if (!exchange->is_stream) {
        open_message(x, out);
        qn_bytes_add(out, x->blocks.data, x->blocks.length);
        qn_json_close(out, ']');
        write_stop(x, choice, out);
        write_choice_usage(choice, out);
        qn_json_close(out, '}');
        return 200;
    }
    open_event("message_delta", out);
    qn_json_key(out, "delta");
    qn_json_open(out, '{');
    write_stop(x, choice, out);
    qn_json_close(out, '}');
    write_choice_usage(choice, out);
    close_event(out);
    open_event("message_stop", out);
    close_event(out);
    return 200;
}

static const char *const paths[] = { "/v1/messages", NULL };

const qn_protocol qn_anthropic_messages = { .paths = paths,
                                            .keep_alive = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                                            .request_header = "anthropic-version",
                                            .id_header = "request-id",
                                            .id_prefix = "req_",
                                            .has_reasoning_ids = true,
                                            .parse = parse,
                                            .bind = bind,
                                            .begin = begin,
                                            .event = event,
                                            .end = end,
                                            .fail = qn_anthropic_fail,
                                            .refuse = qn_anthropic_refuse,
                                            .free = qn_anthropic_free };
