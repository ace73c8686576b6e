/* Items of a response: reasoning, a message, calls. Each is added before its deltas, and done before the next. */
#include "protocol/responses.h"

#include <string.h>

/* ---- Events ---- */

void qn_responses_open_event(qn_responses *x, const char *name, qn_bytes *out)
{
    qn_bytes_print(out, "event: %s\ndata: ", name);
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", name);
    qn_json_member_integer(out, "sequence_number", (int64_t)x->n_events++);
}

void qn_responses_close_event(qn_bytes *out)
{
    qn_bytes_print(out, "}\n\n");
}

void qn_responses_id(const qn_responses *x, const char *prefix, size_t number, qn_bytes *out)
{
    qn_json_string(out, prefix);
    out->length -= !out->has_failed; /* its last quote */
    qn_bytes_add(out, x->base.base.id, strlen(x->base.base.id));
    if (number != SIZE_MAX)
        qn_bytes_print(out, "_%zu", number);
    qn_bytes_print(out, "\"");
}

static void write_item_id(const qn_responses *x, qn_bytes *out)
{
    static const char *const prefixes[] = {
        [QN_ITEM_MESSAGE] = "msg_", [QN_ITEM_CALL] = "fc_", [QN_ITEM_CUSTOM_CALL] = "ctc_"
    };
    char id[QN_CALL_ID_BYTES];
    if (x->item == QN_ITEM_REASONING) {
        qn_exchange_reasoning_id(&x->base.base, 0, x->n_reasoning - 1, id);
        qn_json_string(out, id);
    } else {
        qn_responses_id(x, prefixes[x->item], x->n_items - 1, out);
    }
}

static void open_item_event(qn_responses *x, const char *name, qn_bytes *out)
{
    qn_responses_open_event(x, name, out);
    qn_json_key(out, "item_id");
    write_item_id(x, out);
    qn_json_member_integer(out, "output_index", (int64_t)x->n_items - 1);
}

/* Writes the index of the part: these items have one, their text. */
static void write_part_index(const qn_responses *x, qn_bytes *out)
{
    if (x->item == QN_ITEM_REASONING || x->item == QN_ITEM_MESSAGE)
        qn_json_member_integer(out, "content_index", 0);
}

/* ---- Log probabilities ---- */

/* Whether the text of a content begins with the pending tokens from `first` on. */
static bool begins_with(const qn_text_exchange *x, size_t first, const char *text, size_t length)
{
    const qn_choice *choice = &x->choices[0];
    const char *bytes = "";
    size_t n = 0;
    for (size_t i = first, at = 0; i < choice->n_pending && at < length; i++, at += n) {
        const qn_token token = choice->tokens[i].token;
        if (qn_token_is_special(x->served->model, token) ||
            qn_token_piece(x->served->model, token, &bytes, &n) != QN_OK)
            return false;
        if (memcmp(bytes, text + at, n < length - at ? n : length - at) != 0)
            return false;
    }
    return true;
}

/* When a message begins, drops the tokens before its text, such as a delimiter. */
static void begin_logprobs(qn_responses *x, const char *text, size_t length)
{
    qn_choice *choice = &x->base.choices[0];
    size_t first = 0;
    x->logprobs.length = x->n_characters = 0;
    while (first < choice->n_pending && !begins_with(&x->base, first, text, length))
        first++;
    qn_choice_drop(choice, first < choice->n_pending ? first : 0);
    x->first_offset = choice->n_pending ? choice->tokens[0].offset : 0;
}

/* Takes the tokens of a new piece of text. */
static void take_logprobs(qn_responses *x, const char *text, size_t length)
{
    qn_choice *choice = &x->base.choices[0];
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        x->n_characters += ((unsigned char)text[i] & 0xc0) != 0x80;
    while (n < choice->n_pending && choice->tokens[n].offset < x->first_offset + x->n_characters)
        n++;
    qn_openai_logprob_entries(&x->base, choice, n, &x->logprobs);
    qn_choice_drop(choice, n);
}

/* Writes the log probabilities of tokens from `from` on; only messages have them. */
static void write_logprobs(const qn_responses *x, size_t from, qn_bytes *out)
{
    if (x->item != QN_ITEM_MESSAGE)
        return;
    from += from < x->logprobs.length && x->logprobs.data[from] == ',';
    qn_json_key(out, "logprobs");
    qn_json_open(out, '[');
    if (from < x->logprobs.length)
        qn_bytes_add(out, x->logprobs.data + from, x->logprobs.length - from);
    qn_json_close(out, ']');
}

/* ---- Items ---- */

/* Writes the part as it is added, or complete. */
static void write_part(const qn_responses *x, bool is_added, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", x->item == QN_ITEM_REASONING ? "reasoning_text" : "output_text");
    qn_json_key(out, "text");
    qn_json_text(out, x->text.data, is_added ? 0 : x->text.length);
    if (x->item == QN_ITEM_MESSAGE) {
        qn_json_key(out, "annotations");
        qn_json_open(out, '[');
        qn_json_close(out, ']');
    }
    write_logprobs(x, is_added ? x->logprobs.length : 0, out);
    qn_json_close(out, '}');
}

static void write_content(const qn_responses *x, bool is_added, qn_bytes *out)
{
    qn_json_key(out, "content");
    qn_json_open(out, '[');
    if (!is_added)
        write_part(x, false, out);
    qn_json_close(out, ']');
}

/* Writes the name of the called tool, as its client knows it: with its namespace, if it has one. */
static void write_call_name(const qn_responses *x, bool has_namespace, qn_bytes *out)
{
    const qn_bytes *name = &x->base.choices[0].name;
    const json_t *own = name->length ? qn_responses_name(x, name->data, name->length) : NULL,
                 *local = json_object_get(own, "name"), *space = json_object_get(own, "namespace");
    qn_json_key(out, "name");
    qn_json_text(out, own ? json_string_value(local) : name->data, own ? json_string_length(local) : name->length);
    if (!own || !has_namespace)
        return;
    qn_json_key(out, "namespace");
    qn_json_text(out, json_string_value(space), json_string_length(space));
}

static void write_call(const qn_responses *x, bool is_added, qn_bytes *out)
{
    char id[QN_CALL_ID_BYTES];
    qn_exchange_call_id(&x->base.base, 0, x->call, id);
    qn_json_member_string(out, "call_id", id);
    write_call_name(x, true, out);
    qn_json_key(out, x->item == QN_ITEM_CALL ? "arguments" : "input");
    qn_json_text(out, x->text.data, is_added ? 0 : x->text.length);
}

/* Writes the open item as it is added, or complete. */
static void write_item(const qn_responses *x, bool is_added, const char *status, qn_bytes *out)
{
    static const char *const types[] = { [QN_ITEM_REASONING] = "reasoning",
                                         [QN_ITEM_MESSAGE] = "message",
                                         [QN_ITEM_CALL] = "function_call",
                                         [QN_ITEM_CUSTOM_CALL] = "custom_tool_call" };
    qn_json_open(out, '{');
    qn_json_member_string(out, "type", types[x->item]);
    qn_json_key(out, "id");
    write_item_id(x, out);
    qn_json_member_string(out, "status", status);
    if (x->item == QN_ITEM_CALL || x->item == QN_ITEM_CUSTOM_CALL) {
        write_call(x, is_added, out);
    } else {
        if (x->item == QN_ITEM_MESSAGE) {
            qn_json_member_string(out, "role", "assistant");
        } else {
            qn_json_key(out, "summary");
            qn_json_open(out, '[');
            qn_json_close(out, ']');
            qn_json_key(out, "encrypted_content");
            write_item_id(x, out);
        }
        write_content(x, is_added, out);
    }
    qn_json_close(out, '}');
}

static void send_item(qn_responses *x, bool is_added, const char *status, qn_bytes *out)
{
    qn_responses_open_event(x, is_added ? "response.output_item.added" : "response.output_item.done", out);
    qn_json_member_integer(out, "output_index", (int64_t)x->n_items - 1);
    qn_json_key(out, "item");
    write_item(x, is_added, status, out);
    qn_responses_close_event(out);
}

static void send_part(qn_responses *x, bool is_added, qn_bytes *out)
{
    if (x->item != QN_ITEM_REASONING && x->item != QN_ITEM_MESSAGE)
        return;
    open_item_event(x, is_added ? "response.content_part.added" : "response.content_part.done", out);
    write_part_index(x, out);
    qn_json_key(out, "part");
    write_part(x, is_added, out);
    qn_responses_close_event(out);
}

/* The names of events, and of the member with the whole text. */
static const struct {
    const char *delta, *done, *whole;
} texts[] = {
    [QN_ITEM_REASONING] = { "response.reasoning_text.delta", "response.reasoning_text.done", "text" },
    [QN_ITEM_MESSAGE] = { "response.output_text.delta", "response.output_text.done", "text" },
    [QN_ITEM_CALL] = { "response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments" },
    [QN_ITEM_CUSTOM_CALL] = { "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
                              "input" },
};

static void send_text(qn_responses *x, bool is_delta, size_t from, size_t from_logprob, qn_bytes *out)
{
    const char *text = x->text.length ? x->text.data + from : "";
    open_item_event(x, is_delta ? texts[x->item].delta : texts[x->item].done, out);
    write_part_index(x, out);
    qn_json_key(out, is_delta ? "delta" : texts[x->item].whole);
    qn_json_text(out, text, x->text.length - from);
    if (x->item == QN_ITEM_CALL && !is_delta)
        write_call_name(x, false, out);
    write_logprobs(x, from_logprob, out);
    qn_responses_close_event(out);
}

/* ---- Output ---- */

/* Appends to the text of the open item; arguments of a custom tool are added as its input. */
static void add_text(qn_responses *x, const char *text, size_t length, qn_bytes *out)
{
    const size_t from = x->text.length, from_logprob = x->logprobs.length;
    if (x->item == QN_ITEM_MESSAGE && x->base.params.n_logprobs >= 0)
        take_logprobs(x, text, length);
    if (x->item == QN_ITEM_CUSTOM_CALL)
        qn_custom_input_feed(&x->input, text, length, &x->text);
    else
        qn_bytes_add(&x->text, text, length);
    if (x->base.base.is_stream && x->text.length > from)
        send_text(x, true, from, from_logprob, out);
}

/* Arguments of another form than {"input": "..."} are the input themselves. Arguments that were cut before the string
 * began might have become that form: they are not taken as the input. */
static void complete_input(qn_responses *x, bool is_complete, qn_bytes *out)
{
    const qn_bytes *arguments = &x->base.choices[0].arguments;
    if (x->item != QN_ITEM_CUSTOM_CALL || !qn_custom_input_is_other(&x->input, is_complete) || !arguments->length)
        return;
    qn_bytes_add(&x->text, arguments->data, arguments->length);
    if (x->base.base.is_stream)
        send_text(x, true, 0, 0, out);
}

void qn_responses_close_item(qn_responses *x, bool is_complete, qn_bytes *out)
{
    const char *const status = is_complete ? "completed" : "incomplete";
    if (x->item == QN_ITEM_NONE)
        return;
    complete_input(x, is_complete, out);
    write_item(x, false, status, &x->items);
    if (x->base.base.is_stream) {
        send_text(x, false, 0, 0, out);
        send_part(x, false, out);
        send_item(x, false, status, out);
    }
    x->text.length = 0;
    x->item = QN_ITEM_NONE;
}

static void open_item(qn_responses *x, qn_item item, qn_bytes *out)
{
    qn_responses_close_item(x, true, out);
    x->item = item;
    x->n_items++;
    x->n_reasoning += item == QN_ITEM_REASONING;
    x->input = (qn_custom_input){ 0 };
    x->logprobs.length = 0;
    if (!x->base.base.is_stream)
        return;
    send_item(x, true, "in_progress", out);
    send_part(x, true, out);
}

static void open_call(qn_responses *x, size_t call, qn_bytes *out)
{
    const qn_bytes *name = &x->base.choices[0].name;
    const bool is_custom = name->length && qn_responses_is_custom(x, name->data, name->length);
    x->call = call;
    open_item(x, is_custom ? QN_ITEM_CUSTOM_CALL : QN_ITEM_CALL, out);
}

static bool in_call(const qn_responses *x)
{
    return x->item == QN_ITEM_CALL || x->item == QN_ITEM_CUSTOM_CALL;
}

/* Without a stream, a call that does not parse is text, and a call that was cut has the arguments so far. */
static void end_call(qn_responses *x, const qn_output_event *event, qn_bytes *out)
{
    const bool is_complete = event->call_end == QN_OUTPUT_COMPLETE;
    const qn_bytes *arguments = &x->base.choices[0].arguments;
    if (x->base.base.is_stream) {
        if (in_call(x))
            qn_responses_close_item(x, is_complete, out);
    } else if (event->call_end != QN_OUTPUT_BROKEN) {
        open_call(x, event->call, out);
        add_text(x, arguments->data, arguments->length, out);
        qn_responses_close_item(x, is_complete, out);
    } else {
        if (x->item != QN_ITEM_MESSAGE)
            open_item(x, QN_ITEM_MESSAGE, out);
        add_text(x, event->text, event->length, out);
    }
}

void qn_responses_output(qn_responses *x, const qn_output_event *event, qn_bytes *out)
{
    const qn_item item = event->kind == QN_OUTPUT_REASONING ? QN_ITEM_REASONING : QN_ITEM_MESSAGE;
    qn_choice *choice = &x->base.choices[0];
    if (event->kind != QN_OUTPUT_CONTENT)
        qn_choice_drop(choice, choice->n_pending);
    switch (event->kind) {
    case QN_OUTPUT_REASONING:
    case QN_OUTPUT_CONTENT:
        if (x->item != item) {
            open_item(x, item, out);
            begin_logprobs(x, event->text, event->length);
        }
        add_text(x, event->text, event->length, out);
        return;
    case QN_OUTPUT_CALL_BEGIN:
        if (x->base.base.is_stream)
            qn_responses_close_item(x, true, out);
        choice->name.length = choice->arguments.length = 0;
        qn_bytes_add(&choice->name, event->text, event->length);
        if (x->base.base.is_stream)
            open_call(x, event->call, out);
        return;
    case QN_OUTPUT_ARGUMENTS:
        qn_bytes_add(&choice->arguments, event->text, event->length);
        if (x->base.base.is_stream && in_call(x))
            add_text(x, event->text, event->length, out);
        return;
    case QN_OUTPUT_CALL_END: end_call(x, event, out); return;
    }
}
