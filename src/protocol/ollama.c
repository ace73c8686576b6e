/* Answers of Ollama's /api/chat and /api/generate: one object, or lines with an object for each piece. */
#include "protocol/ollama.h"
#include "text/json_scan.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

/* ---- Parts of objects ---- */

void qn_ollama_refuse(const qn_refusal *refusal, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_string(out, "error", refusal->message);
    qn_json_close(out, '}');
}

void qn_ollama_open(const char *model, int64_t created, qn_bytes *out)
{
    char text[32];
    struct tm utc;
    const time_t seconds = (time_t)created;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    qn_json_open(out, '{');
    qn_json_member_string(out, "model", model);
    qn_json_member_string(out, "created_at", text);
}

void qn_ollama_seconds(const char *key, double seconds, qn_bytes *out)
{
    qn_json_member_integer(out, key, (int64_t)(seconds * 1e9));
}

void qn_ollama_digest(const char *name, uint64_t bytes, qn_bytes *out)
{
    const XXH128_hash_t a = XXH3_128bits_withSeed(name, strlen(name), bytes),
                        b = XXH3_128bits_withSeed(name, strlen(name), ~bytes);
    qn_json_key(out, "digest");
    qn_bytes_print(out, "\"%016llx%016llx%016llx%016llx\"", (unsigned long long)a.high64, (unsigned long long)a.low64,
                   (unsigned long long)b.high64, (unsigned long long)b.low64);
}

/* "135M", "27B". */
static void write_size(uint64_t n, qn_bytes *out)
{
    static const char units[] = { 'K', 'M', 'B', 'T' };
    double value = (double)n / 1e3;
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < sizeof units; unit++)
        value /= 1e3;
    qn_json_key(out, "parameter_size");
    if (n)
        qn_bytes_print(out, "\"%.*f%c\"", value < 10 ? 1 : 0, value, units[unit]);
    else
        qn_json_string(out, "");
}

void qn_ollama_details(const char *family, const char *type, uint64_t n_params, qn_bytes *out)
{
    qn_json_key(out, "details");
    qn_json_open(out, '{');
    qn_json_member_string(out, "parent_model", "");
    qn_json_member_string(out, "format", "gguf");
    qn_json_member_string(out, "family", family);
    qn_json_key(out, "families");
    qn_json_open(out, '[');
    if (*family)
        qn_json_string(out, family);
    qn_json_close(out, ']');
    write_size(n_params, out);
    qn_json_member_string(out, "quantization_level", type);
    qn_json_close(out, '}');
}

/* ---- Objects ---- */

static const char *model_of(const qn_ollama_exchange *x)
{
    return qn_text_exchange_model(&x->text);
}

static void open_object(const qn_ollama_exchange *x, qn_bytes *out)
{
    qn_ollama_open(model_of(x), x->text.base.created, out);
}

/* Opens the object that has the answer's text, reasoning and calls: of a chat its message. */
static void open_message(const qn_ollama_exchange *x, const char *text, size_t length, qn_bytes *out)
{
    if (x->is_chat) {
        qn_json_key(out, "message");
        qn_json_open(out, '{');
        qn_json_member_string(out, "role", "assistant");
    }
    qn_json_key(out, x->is_chat ? "content" : "response");
    qn_json_text(out, text, length);
}

static void close_message(const qn_ollama_exchange *x, qn_bytes *out)
{
    if (x->is_chat)
        qn_json_close(out, '}');
}

static void write_thinking(const char *text, size_t length, qn_bytes *out)
{
    qn_json_key(out, "thinking");
    qn_json_text(out, text, length);
}

static void write_calls(const qn_bytes *calls, qn_bytes *out)
{
    qn_json_key(out, "tool_calls");
    qn_json_open(out, '[');
    qn_bytes_add(out, calls->data, calls->length);
    qn_json_close(out, ']');
}

static void write_logprobs(const qn_ollama_exchange *x, qn_choice *choice, size_t n, qn_bytes *out)
{
    if (x->text.params.n_logprobs < 0 || !n)
        return;
    qn_json_key(out, "logprobs");
    qn_openai_logprob_list(&x->text, choice, n, out);
    qn_choice_drop(choice, n);
}

static void write_done(bool is_done, qn_bytes *out)
{
    qn_json_key(out, "done");
    qn_json_bool(out, is_done);
}

/* Ends the last object: why the answer ended, tokens and times. */
static void write_end(const qn_choice *choice, qn_bytes *out)
{
    const qn_request_result *r = &choice->result;
    write_done(true, out);
    qn_json_member_string(out, "done_reason", r->finish == QN_FINISH_STOP ? "stop" : "length");
    qn_ollama_seconds("total_duration", r->queued_seconds + r->prompt_seconds + r->generate_seconds, out);
    qn_json_member_integer(out, "load_duration", 0);
    qn_json_member_integer(out, "prompt_eval_count", (int64_t)r->n_prompt);
    qn_ollama_seconds("prompt_eval_duration", r->prompt_seconds, out);
    qn_json_member_integer(out, "eval_count", (int64_t)r->n_generated);
    qn_ollama_seconds("eval_duration", r->generate_seconds, out);
    qn_json_close(out, '}');
}

/* ---- Pieces ---- */

typedef enum piece { TEXT, THINKING, CALL } piece;

static void send_piece(const qn_ollama_exchange *x, qn_choice *choice, piece kind, const char *text, size_t length,
                       qn_bytes *out)
{
    open_object(x, out);
    open_message(x, text, kind == TEXT ? length : 0, out);
    if (kind == THINKING)
        write_thinking(text, length, out);
    else if (kind == CALL)
        write_calls(&choice->calls, out);
    close_message(x, out);
    write_done(false, out);
    write_logprobs(x, choice, qn_choice_ready(choice), out);
    qn_json_close(out, '}');
    qn_bytes_add(out, "\n", 1);
}

static void add_piece(const qn_ollama_exchange *x, qn_choice *choice, piece kind, const char *text, size_t length,
                      qn_bytes *out)
{
    if (x->text.base.is_stream)
        send_piece(x, choice, kind, text, length, out);
    else
        qn_bytes_add(kind == THINKING ? &choice->reasoning : &choice->text, text, length);
}

/* Adds a complete call to choice->calls: calls are sent whole, with their arguments as an object. */
static void add_call(const qn_ollama_exchange *x, qn_choice *choice, const qn_output_event *event)
{
    char id[QN_CALL_ID_BYTES];
    qn_bytes *out = &choice->calls;
    qn_exchange_call_id(&x->text.base, 0, event->call, id);
    qn_json_open(out, '{');
    qn_json_member_string(out, "id", id);
    qn_json_key(out, "function");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)event->call);
    qn_json_key(out, "name");
    qn_json_text(out, choice->name.data, choice->name.length);
    qn_json_key(out, "arguments");
    qn_bytes_add(out, choice->arguments.data, choice->arguments.length);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* The arguments of a call that was cut are no object, and there is nothing else to send them as. A call that does not
 * parse is text. */
static void end_call(const qn_ollama_exchange *x, qn_choice *choice, const qn_output_event *event, qn_bytes *out)
{
    const bool is_object = choice->arguments.length && *choice->arguments.data == '{' &&
                           qn_json_is_value(choice->arguments.data, choice->arguments.length);
    if (event->call_end == QN_OUTPUT_CUT)
        return;
    if (event->call_end == QN_OUTPUT_BROKEN || !is_object) {
        add_piece(x, choice, TEXT, event->text, event->length, out);
        return;
    }
    add_call(x, choice, event);
    if (!x->text.base.is_stream)
        return;
    send_piece(x, choice, CALL, "", 0, out);
    choice->calls.length = 0;
}

static void take_output(const qn_ollama_exchange *x, qn_choice *choice, const qn_output_event *event, qn_bytes *out)
{
    switch (event->kind) {
    case QN_OUTPUT_REASONING: add_piece(x, choice, THINKING, event->text, event->length, out); break;
    case QN_OUTPUT_CONTENT: add_piece(x, choice, TEXT, event->text, event->length, out); break;
    case QN_OUTPUT_CALL_BEGIN:
        choice->name.length = choice->arguments.length = 0;
        qn_bytes_add(&choice->name, event->text, event->length);
        break;
    case QN_OUTPUT_ARGUMENTS: qn_bytes_add(&choice->arguments, event->text, event->length); break;
    case QN_OUTPUT_CALL_END: end_call(x, choice, event, out); break;
    }
}

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_ollama_exchange *x = (qn_ollama_exchange *)exchange;
    qn_choice *choice = &x->text.choices[request];
    if (!qn_text_exchange_take(&x->text, choice, event, out))
        return;
    if (event->kind == QN_EXCHANGE_OUTPUT) {
        take_output(x, choice, event->output, out);
    } else if (event->kind == QN_EXCHANGE_TEXT) {
        add_piece(x, choice, TEXT, event->text, event->length, out);
    } else if (event->kind == QN_EXCHANGE_END && x->text.base.is_stream) {
        open_object(x, out);
        open_message(x, "", 0, out);
        close_message(x, out);
        write_logprobs(x, choice, choice->n_pending, out);
        write_end(choice, out);
        qn_bytes_add(out, "\n", 1);
    }
}

/* ---- The whole ---- */

static void write_loaded(const qn_ollama_exchange *x, qn_bytes *out)
{
    open_object(x, out);
    open_message(x, "", 0, out);
    close_message(x, out);
    write_done(true, out);
    qn_json_member_string(out, "done_reason", "load");
    qn_json_close(out, '}');
    qn_bytes_add(out, "\n", x->text.base.is_stream);
}

static void write_answer(const qn_ollama_exchange *x, qn_choice *choice, qn_bytes *out)
{
    open_object(x, out);
    open_message(x, choice->text.data, choice->text.length, out);
    if (choice->reasoning.length)
        write_thinking(choice->reasoning.data, choice->reasoning.length, out);
    if (choice->calls.length)
        write_calls(&choice->calls, out);
    close_message(x, out);
    write_logprobs(x, choice, choice->n_pending, out);
    write_end(choice, out);
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_ollama_exchange *x = (qn_ollama_exchange *)exchange;
    if (x->is_load) {
        write_loaded(x, out);
        return 200;
    }
    if (!qn_text_exchange_check_end(&x->text, out))
        return x->text.refusal.status;
    if (!exchange->is_stream)
        write_answer(x, &x->text.choices[0], out);
    return 200;
}

static void fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    qn_ollama_exchange *x = (qn_ollama_exchange *)exchange;
    exchange->has_failed = true;
    x->text.refusal = *refusal;
    if (!exchange->is_stream)
        return;
    qn_ollama_refuse(refusal, out);
    qn_bytes_add(out, "\n", 1);
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_ollama_exchange *x = (qn_ollama_exchange *)exchange;
    x->text.served = served;
    return x->is_load || qn_text_exchange_bind(&x->text, served, refusal);
}

static qn_exchange *parse_chat(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    return qn_ollama_parse(true, body, reading, refusal);
}

static qn_exchange *parse_generate(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    return qn_ollama_parse(false, body, reading, refusal);
}

/* White space before an object is part of its line. */
#define OLLAMA_TEXT(paths_, parse_)                                                                                    \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = " ", .stream_type = "application/x-ndjson", .parse = parse_, .bind = bind,      \
        .begin = qn_llama_begin, .event = event, .end = end, .fail = fail, .refuse = qn_ollama_refuse,                 \
        .free = qn_text_exchange_free                                                                                  \
    }

static const char *const chat_paths[] = { "/api/chat", NULL }, *const generate_paths[] = { "/api/generate", NULL };

const qn_protocol qn_ollama_chat = OLLAMA_TEXT(chat_paths, parse_chat);
const qn_protocol qn_ollama_generate = OLLAMA_TEXT(generate_paths, parse_generate);
